//! Blocks that execute at least as often as others, by the shape of the code.

use super::blocks::Graph;

/// Pairs of blocks: each execution of the first has one of the second of its own, by the same thread, before
/// or after it. `live`: edges that may be taken.
///
/// Without the second block, a thread that leaves the first one can neither end nor come back to it, or a thread
/// that comes to the first one can neither have begun nor come from it.
#[must_use]
pub fn followed(graph: &Graph<'_>, live: &[bool]) -> Vec<(usize, usize)> {
    let count = graph.blocks.len();
    let (mut after, mut before) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for (&(from, to), _) in graph.edges.iter().zip(live).filter(|(_, live)| **live) {
        after[from].push(to);
        before[to].push(from);
    }
    let ends: Vec<usize> = (0..count).filter(|&block| graph.blocks[block].exits).collect();
    let mut found = Vec::new();
    for second in 0..count {
        let ending = reached(&ends, &before, second);
        let begun = reached(&[0], &after, second);
        let again = in_cycles(&after, &before, second);
        let first = (0..count)
            .filter(|&first| first != second && !again[first] && (!ending[first] || !begun[first]));
        found.extend(first.map(|first| (first, second)));
    }
    found
}

/// Blocks that edges lead to from some of `from`, these included, without `avoided`.
fn reached(from: &[usize], edges: &[Vec<usize>], avoided: usize) -> Vec<bool> {
    let mut seen = vec![false; edges.len()];
    let mut left: Vec<usize> = from.iter().copied().filter(|&one| one != avoided).collect();
    left.iter().for_each(|&one| seen[one] = true);
    while let Some(one) = left.pop() {
        for &next in &edges[one] {
            if next != avoided && !seen[next] {
                seen[next] = true;
                left.push(next);
            }
        }
    }
    seen
}

/// Blocks from which edges lead back to them without `avoided`: Kosaraju's strongly connected components.
fn in_cycles(after: &[Vec<usize>], before: &[Vec<usize>], avoided: usize) -> Vec<bool> {
    let count = after.len();
    let (mut order, mut seen) = (Vec::new(), vec![false; count]);
    for start in (0..count).filter(|&start| start != avoided) {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut path = vec![(start, 0)];
        while let Some((one, at)) = path.last_mut() {
            let next = after[*one].get(*at).copied();
            *at += 1;
            match next {
                Some(next) if next != avoided && !std::mem::replace(&mut seen[next], true) => {
                    path.push((next, 0));
                }
                Some(_) => {}
                None => {
                    order.push(*one);
                    path.pop();
                }
            }
        }
    }
    let mut cyclic = vec![false; count];
    let mut component = vec![usize::MAX; count];
    for &root in order.iter().rev() {
        if component[root] != usize::MAX {
            continue;
        }
        component[root] = root;
        let (mut members, mut left) = (vec![root], vec![root]);
        while let Some(one) = left.pop() {
            for &next in &before[one] {
                if next != avoided && component[next] == usize::MAX {
                    component[next] = root;
                    members.push(next);
                    left.push(next);
                }
            }
        }
        let many = members.len() > 1;
        for one in members {
            cyclic[one] = many || after[one].contains(&one);
        }
    }
    cyclic
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{Block, Graph};
    use super::followed;

    fn pairs(count: usize, edges: &[(usize, usize)], live: &[bool]) -> Vec<(usize, usize)> {
        let block = |at| Block { instructions: &[], exits: at + 1 == count, traps: false };
        let graph = Graph { blocks: (0..count).map(block).collect(), edges: edges.to_vec() };
        followed(&graph, live)
    }

    #[test]
    fn the_ends_of_a_diamond_execute_as_often_as_all() {
        let found = pairs(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &[true; 4]);
        assert_eq!(found, [(1, 0), (2, 0), (3, 0), (0, 3), (1, 3), (2, 3)]);
    }

    #[test]
    fn a_side_that_is_never_taken_leaves_the_other() {
        let live = [true, false, true, true];
        let found = pairs(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &live);
        assert!(found.contains(&(0, 1)) && !found.contains(&(0, 2)));
    }

    /// A loop executes at least as often as what is around it, and not the other way round.
    #[test]
    fn what_is_behind_a_loop_does_not_execute_as_often() {
        let found = pairs(3, &[(0, 1), (1, 1), (1, 2)], &[true; 3]);
        assert_eq!(found, [(2, 0), (0, 1), (2, 1), (0, 2)]);
    }
}
