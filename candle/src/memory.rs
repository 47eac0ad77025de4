//! The memory of an engine's launches: workspaces, plans that layers share, and what graphs may still refer to.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
#[cfg(feature = "models")]
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use nvfp4::gemm::Workspace;

use crate::engine::lock;
use crate::mixture::Planned;

/// The memory of an engine's launches.
#[derive(Default)]
pub(crate) struct Memory {
    /// Candle's devices queue on each thread's own stream, to which a workspace belongs.
    pub workspaces: Mutex<HashMap<ThreadId, Workspace>>,
    /// Plans of mixtures, which layers of the same sizes share.
    pub mixtures: Mutex<Recent<Planned>>,
    /// Plans of norms, which layers of the same sizes share.
    #[cfg(feature = "models")]
    pub norms: Mutex<Recent<Arc<crate::models::PlannedNorm>>>,
    /// Plans of attentions, which layers of the same sizes share.
    #[cfg(feature = "models")]
    pub attentions: Mutex<Recent<Arc<crate::models::PlannedAttention>>>,
    retired: Arc<Mutex<Retired>>,
    /// Whether all is kept, as graphs of other owners may refer to it.
    keeps_all: bool,
}

impl Memory {
    /// No memory yet. `keeps_all` says that nothing is freed before the engine is.
    pub fn new(keeps_all: bool) -> Self {
        Self { keeps_all, ..Self::default() }
    }

    /// Empty memory of an engine alike.
    pub fn apart(&self) -> Self {
        Self::new(self.keeps_all)
    }

    /// Keeps what layers have allocated until the lease is dropped.
    #[cfg(feature = "models")]
    pub fn lease(&self) -> Lease {
        let mut retired = lock(&self.retired);
        let id = retired.next;
        retired.next += 1;
        retired.leases.insert(id);
        Lease { id, retired: self.retired.clone() }
    }

    /// Frees what a layer no longer needs, or keeps it until no lease of those there are is left.
    pub fn retire(&self, old: impl Any + Send) {
        let mut retired = lock(&self.retired);
        if self.keeps_all || !retired.leases.is_empty() {
            let before = (!self.keeps_all).then_some(retired.next);
            retired.kept.push((before, Box::new(old)));
        }
    }
}

/// Memory that is no longer needed but by graphs.
#[derive(Default)]
struct Retired {
    /// The number of the next lease.
    next: u64,
    leases: BTreeSet<u64>,
    /// Each is kept for leases of smaller numbers, or as long as the engine.
    kept: Vec<(Option<u64>, Box<dyn Any + Send>)>,
}

/// The promise that memory which layers had allocated before is kept.
#[cfg(feature = "models")]
pub(crate) struct Lease {
    id: u64,
    retired: Arc<Mutex<Retired>>,
}

#[cfg(feature = "models")]
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.id)
    }
}

#[cfg(feature = "models")]
impl Drop for Lease {
    fn drop(&mut self) {
        let freed: Vec<_> = {
            let mut retired = lock(&self.retired);
            let Retired { next: _, leases, kept } = &mut *retired;
            leases.remove(&self.id);
            let oldest = leases.first().copied().unwrap_or(u64::MAX);
            let is_free = |before: Option<u64>| before.is_some_and(|before| before <= oldest);
            kept.extract_if(.., |(before, _)| is_free(*before)).collect()
        };
        drop(freed);
    }
}

/// The most plans of a kind that an engine keeps.
const PLANS: usize = 16;

/// The plans that were used last.
pub(crate) struct Recent<T>(Vec<T>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Send + 'static> Recent<T> {
    /// The plan that `is_it` finds, or the one that is made.
    pub fn get<E>(
        &mut self,
        memory: &Memory,
        is_it: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        let plan = match self.0.iter().position(is_it) {
            Some(at) => self.0.remove(at),
            None => {
                let plan = make()?;
                if self.0.len() >= PLANS {
                    memory.retire(self.0.remove(0));
                }
                plan
            }
        };
        self.0.push(plan);
        Ok(&self.0[self.0.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is freed.
    #[cfg(feature = "models")]
    struct Thing(Arc<Mutex<usize>>);

    #[cfg(feature = "models")]
    impl Drop for Thing {
        fn drop(&mut self) {
            *lock(&self.0) += 1;
        }
    }

    #[cfg(feature = "models")]
    #[test]
    fn leases_keep_what_was_there_before_them() {
        let (memory, freed) = (Memory::default(), Arc::<Mutex<usize>>::default());
        let retire = || memory.retire(Thing(freed.clone()));
        let count = || *lock(&freed);
        retire();
        assert_eq!(count(), 1);
        let first = memory.lease();
        retire();
        let second = memory.lease();
        retire();
        assert_eq!(count(), 1);
        // The thing that was retired before the second lease was needed by the first alone.
        drop(first);
        assert_eq!(count(), 2);
        drop(second);
        assert_eq!(count(), 3);
        retire();
        assert_eq!(count(), 4);
        let all = Memory::new(true);
        all.retire(Thing(freed.clone()));
        drop(all.lease());
        assert_eq!(count(), 4);
    }

    #[test]
    fn the_oldest_plan_makes_room() {
        let (memory, mut plans) = (Memory::default(), Recent::default());
        let get = |plans: &mut Recent<usize>, at: usize| {
            let mut made = false;
            let plan = plans.get(
                &memory,
                |plan| *plan == at,
                || {
                    made = true;
                    Ok::<_, std::convert::Infallible>(at)
                },
            );
            assert_eq!(plan, Ok(&at));
            made
        };
        assert!((0..PLANS).all(|at| get(&mut plans, at)));
        assert!(!get(&mut plans, 0));
        assert!(get(&mut plans, PLANS));
        assert!(!get(&mut plans, 0) && get(&mut plans, 1) && !get(&mut plans, 3));
    }
}
