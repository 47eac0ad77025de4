//! Counts of the executions of machine-code blocks, as far as they are known.

use super::anchor::Anchor;
use super::blocks::{Block, Graph};
use super::follow;

/// A count that no bound is known of.
const ANY: u64 = u64::MAX;

/// Rounds after which bounds stay as they are; they hold at any time.
const ROUNDS: usize = 2000;

/// The bounds of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    lo: u64,
    hi: u64,
}

impl Interval {
    const UNKNOWN: Self = Self { lo: 0, hi: ANY };

    const fn exactly(count: u64) -> Self {
        Self { lo: count, hi: count }
    }

    /// Narrows it; whether that changed it.
    fn narrow(&mut self, lo: u64, hi: u64) -> bool {
        let before = *self;
        self.lo = self.lo.max(lo);
        self.hi = self.hi.min(hi);
        before != *self
    }
}

/// The blocks that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Warps of the launch.
    pub warps: u64,
    /// Threads.
    pub threads: u64,
}

/// No counts agree with what ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "block at {address:#06x} of the disassembly: required at least {at_least} executions, actual at \
     most {at_most}: it is not the code of the PTX that ran"
)]
pub struct Contradiction {
    /// The address of the block's begin.
    pub address: u64,
    /// The lower bound, by some of the known counts.
    pub at_least: u64,
    /// The upper bound, by the others.
    pub at_most: u64,
}

/// Executions of which it is not known which copy of an instruction they are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The number of executions beyond the blocks' own lower ends.
    pub executions: u64,
    /// Blocks, and how many copies of the instruction each has.
    pub copies: Vec<(usize, u64)>,
}

/// The least counts of a graph's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Warps that executed each block.
    pub warps: Vec<u64>,
    /// Executions of one of several blocks; no block is in two of them.
    pub open: Vec<Open>,
    /// Anchors without an effect that were left out: ptxas executes them less often than the PTX does.
    pub moved_loads: usize,
}

impl Counts {
    /// Counts of a graph. `effects` hold; of `values` those hold that agree with them.
    ///
    /// All threads are counted, and once more the first of each warp alone, which tells more where single
    /// threads work. Two executions by the first thread of a warp are two of the warp, and one by a warp is at most
    /// 32 by threads: neither depends on how warps diverge.
    ///
    /// # Errors
    /// [`Contradiction`] where no counts agree with the anchors.
    pub fn of(
        graph: &Graph<'_>,
        entered: Entered,
        effects: &[Anchor],
        values: &[Anchor],
    ) -> Result<Self, Contradiction> {
        let threads = |anchor: &Anchor| anchor.executed.threads;
        let first_lanes = |anchor: &Anchor| anchor.executed.first_lanes;
        let mut all_threads = Known::new(graph, entered.threads);
        all_threads.settle(effects, threads)?;
        all_threads.follow();
        all_threads.settle(effects, threads)?;
        let mut all = effects.to_vec();
        for value in values {
            let most = value
                .copies
                .iter()
                .map(|&(block, copies)| all_threads.executed[block].hi.saturating_mul(copies));
            if most.fold(0, u64::saturating_add) >= value.executed.threads {
                all.push(value.clone());
            }
        }
        let moved_loads = effects.len() + values.len() - all.len();
        all_threads.settle(&all, threads)?;
        let mut firsts = Known::new(graph, entered.warps);
        firsts.followed.clone_from(&all_threads.followed);
        firsts.settle(&all, first_lanes)?;
        let both = all_threads.executed.iter().zip(&firsts.executed);
        let warps: Vec<u64> =
            both.map(|(threads, firsts)| firsts.lo.max(threads.lo.div_ceil(32))).collect();
        let open = open(&all, &warps, graph);
        Ok(Self { warps, open, moved_loads })
    }
}

/// Executions that the lower ends leave open: those of the most work first.
fn open(anchors: &[Anchor], warps: &[u64], graph: &Graph<'_>) -> Vec<Open> {
    let mut found: Vec<(u64, Open)> = Vec::new();
    for anchor in anchors {
        let known =
            anchor.copies.iter().map(|&(block, copies)| warps[block].saturating_mul(copies));
        let executions = anchor.warps().saturating_sub(known.fold(0, u64::saturating_add));
        let work = anchor.copies.iter().map(|&(block, copies)| {
            executions.saturating_mul(graph.blocks[block].instructions.len() as u64) / copies
        });
        let work = work.min().unwrap_or(0);
        if work != 0 {
            found.push((work, Open { executions, copies: anchor.copies.clone() }));
        }
    }
    found.sort_by_key(|(work, _)| std::cmp::Reverse(*work));
    let mut taken = vec![false; warps.len()];
    found.retain(|(_, open)| {
        let free = open.copies.iter().all(|&(block, _)| !taken[block]);
        if free {
            open.copies.iter().for_each(|&(block, _)| taken[block] = true);
        }
        free
    });
    found.into_iter().map(|(_, open)| open).collect()
}

/// The known counts of some of the threads.
struct Known<'g> {
    graph: &'g Graph<'g>,
    /// Edges into each block, and out of it.
    into: Vec<Vec<usize>>,
    out_of: Vec<Vec<usize>>,
    /// Threads that began.
    begun: u64,
    /// Threads that execute each block, and take each edge: what enters a block leaves it.
    executed: Vec<Interval>,
    taken: Vec<Interval>,
    /// Blocks of which the second executes at least as often as the first.
    followed: Vec<(usize, usize)>,
}

impl<'g> Known<'g> {
    fn new(graph: &'g Graph<'g>, begun: u64) -> Self {
        let count = graph.blocks.len();
        let (mut into, mut out_of) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (edge, &(from, to)) in graph.edges.iter().enumerate() {
            out_of[from].push(edge);
            into[to].push(edge);
        }
        let unknown = |block: &Block<'_>| {
            if block.traps { Interval::exactly(0) } else { Interval::UNKNOWN }
        };
        Self {
            graph,
            into,
            out_of,
            begun,
            executed: graph.blocks.iter().map(unknown).collect(),
            taken: vec![Interval::UNKNOWN; graph.edges.len()],
            followed: Vec::new(),
        }
    }

    /// Narrows all intervals until nothing changes. `count`: of these threads at an anchor.
    fn settle(
        &mut self,
        anchors: &[Anchor],
        count: fn(&Anchor) -> u64,
    ) -> Result<(), Contradiction> {
        for _ in 0..ROUNDS {
            let mut changed = false;
            for anchor in anchors {
                changed |= hold(&mut self.executed, anchor, count(anchor));
            }
            for block in 0..self.graph.blocks.len() {
                changed |= self.conserve(block);
            }
            for &(first, second) in &self.followed {
                let (least, most) = (self.executed[first].lo, self.executed[second].hi);
                changed |= self.executed[second].narrow(least, ANY);
                changed |= self.executed[first].narrow(0, most);
            }
            self.check()?;
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Finds the blocks that follow others, without what was never executed.
    fn follow(&mut self) {
        let live: Vec<bool> = self.taken.iter().map(|edge| edge.hi != 0).collect();
        self.followed = follow::followed(self.graph, &live);
    }

    fn check(&self) -> Result<(), Contradiction> {
        let blocks = self.executed.iter().zip(0..);
        let edges = self.taken.iter().zip(self.graph.edges.iter().map(|&(from, _)| from));
        let Some((wrong, block)) = blocks.chain(edges).find(|(one, _)| one.lo > one.hi) else {
            return Ok(());
        };
        let address = self.graph.blocks[block].instructions.first().map_or(0, |one| one.address);
        Err(Contradiction { address, at_least: wrong.lo, at_most: wrong.hi })
    }

    /// Threads that enter a block are those that leave it.
    fn conserve(&mut self, block: usize) -> bool {
        let begun = if block == 0 { self.begun } else { 0 };
        let ended =
            if self.graph.blocks[block].exits { Interval::UNKNOWN } else { Interval::exactly(0) };
        let executed = &mut self.executed[block];
        balance(executed, &self.into[block], &mut self.taken, Interval::exactly(begun))
            | balance(executed, &self.out_of[block], &mut self.taken, ended)
    }
}

/// All copies together execute at least `count` times, and those that are exact at most as often each.
fn hold(counts: &mut [Interval], anchor: &Anchor, count: u64) -> bool {
    let mut changed = false;
    for &block in &anchor.at_most {
        changed |= counts[block].narrow(0, count);
    }
    for &(block, copies) in &anchor.copies {
        let others = anchor.copies.iter().filter(|(other, _)| *other != block);
        let others = others.map(|&(other, copies)| counts[other].hi.saturating_mul(copies));
        let others = others.fold(0, u64::saturating_add);
        changed |= counts[block].narrow(count.saturating_sub(others).div_ceil(copies), ANY);
    }
    changed
}

/// `whole` is the sum of `parts` and `more`.
fn balance(whole: &mut Interval, parts: &[usize], of: &mut [Interval], more: Interval) -> bool {
    let least = |of: &[Interval], left_out: Option<usize>| {
        let parts = parts.iter().filter(|&&part| Some(part) != left_out);
        parts.map(|&part| of[part].lo).fold(more.lo, u64::saturating_add)
    };
    let most = |of: &[Interval], left_out: Option<usize>| {
        let parts = parts.iter().filter(|&&part| Some(part) != left_out);
        parts.map(|&part| of[part].hi).fold(more.hi, u64::saturating_add)
    };
    let mut changed = whole.narrow(least(of, None), most(of, None));
    for &part in parts {
        let lo = whole.lo.saturating_sub(most(of, Some(part)));
        let hi = match whole.hi {
            ANY => ANY,
            hi => hi.saturating_sub(least(of, Some(part))),
        };
        changed |= of[part].narrow(lo, hi);
    }
    changed
}
