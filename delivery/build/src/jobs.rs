//! Jobs on all cores.

use std::sync::Mutex;
use std::thread;

/// Does `job` for each item, begun in their order, on as many threads as there are cores. The
/// results are in the order of the items.
pub fn parallel<T: Send, R: Send>(items: Vec<T>, job: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let queue = Mutex::new(items.into_iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.next());
                    let Some((index, item)) = next else { break };
                    let result = job(item);
                    if let Ok(mut place) = results[index].lock() {
                        *place = Some(result);
                    }
                }
            });
        }
    });
    // A thread that panicked has ended the scope with its panic.
    results.into_iter().filter_map(|result| result.into_inner().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel;

    #[test]
    fn results_are_in_order() {
        let items: Vec<u32> = (0..100).collect();
        let doubled: Vec<u32> = items.iter().map(|item| 2 * item).collect();
        assert_eq!(parallel(items, |item| 2 * item), doubled);
        assert!(parallel(Vec::<u32>::new(), |item| item).is_empty());
    }
}
