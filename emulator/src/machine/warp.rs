//! A warp: a set of fragments, each a program counter, the lanes at it and a
//! call stack.
//!
//! One fragment is the common case and runs without any check. Where lanes part,
//! the fragment with the deepest stack and the lowest program counter runs
//! first, and fragments that meet at one program counter with equal stacks
//! merge: that reconverges structured code without knowing post-dominators.
//! Every lane makes progress on its own: a fragment that has run for long while
//! others could run gives them a short turn.
//!
//! `.sync` instructions wait until the lanes they name have come, `.aligned`
//! ones until every live lane of the warp has.

use super::barrier::Arrival;
use super::code::{BarrierOp, Instr, Op, RedTarget};
use super::context::{Context, Place};
use super::launch::Env;
use super::regs::{FULL, FrameSize, Pred, Regs, Slot};
use super::{Barriers, Reduction, Stats};
use crate::diagnostic::{DiagnosticKind, Exec, Fault};
use crate::memory::{Local, Plain};

/// Instructions a fragment may run while others could, before they get a turn.
const ROTATE: u64 = 4096;
/// Instructions of such a turn.
const SHORT_TURN: u64 = 128;

/// An activation of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Function index.
    pub(crate) function: usize,
    /// First register rows.
    pub(crate) base: FrameSize,
    /// First byte of local memory.
    pub(crate) local: u32,
    /// The call instruction; meaningless in the first frame.
    pub(crate) call: usize,
}

/// Why a fragment does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It can run.
    Ready,
    /// At an `.aligned` instruction, for all live lanes.
    Aligned,
    /// At a `.sync` instruction, for these lanes.
    Members(u32),
    /// At `bar.warp.sync`, for these lanes.
    Warp(u32),
    /// Behind a CTA barrier, for its generation to end.
    Barrier { id: u8, generation: u64, target: Option<RedTarget> },
}

/// Lanes that are at one place.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) pc: usize,
    pub(crate) mask: u32,
    pub(crate) frames: Vec<Frame>,
    pub(crate) wait: Wait,
    /// When it ran last, in turns of its warp.
    ran: u64,
}

impl Fragment {
    fn frame(&self) -> Frame {
        self.frames[self.frames.len() - 1]
    }

    fn sibling(&self, pc: usize, mask: u32) -> Self {
        Self { pc, mask, frames: self.frames.clone(), wait: Wait::Ready, ran: self.ran }
    }

    fn meets(&self, other: &Self) -> bool {
        self.pc == other.pc && self.mergeable() && other.mergeable() && self.frames == other.frames
    }

    fn mergeable(&self) -> bool {
        matches!(self.wait, Wait::Ready | Wait::Aligned | Wait::Members(_))
    }
}

/// What a warp shares with the rest of its cluster during a turn.
pub(crate) struct Surroundings<'a> {
    pub(crate) shared: &'a mut [Plain],
    pub(crate) barriers: &'a mut Barriers,
    pub(crate) env: &'a Env<'a>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) clock: u64,
}

/// A fault and the instruction it happened at.
pub(crate) type AtFault = (usize, Box<Fault>);

/// One warp.
#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) place: Place,
    regs: Regs,
    local: Local,
    pub(crate) fragments: Vec<Fragment>,
    turns: u64,
    /// Instructions since the running fragment was chosen over others.
    streak: u64,
    block: usize,
}

/// Why a fragment stopped.
enum Stop {
    /// Its turn is over.
    Turn,
    /// It waits, or met or passed another fragment, or split.
    Switch,
    /// All its lanes exited.
    Done,
}

impl Warp {
    /// A warp about to run function `function` in the lanes of `mask`.
    pub(crate) fn new(env: &Env<'_>, place: Place, mask: u32) -> Self {
        let entry = &env.functions[env.entry];
        let pool = env.pools[place.rank as usize].clone();
        let mut warp = Self {
            place,
            regs: Regs::new(pool, entry.frame),
            local: Local::default(),
            fragments: Vec::new(),
            turns: 0,
            streak: 0,
            block: 0,
        };
        warp.start(env, mask);
        warp
    }

    /// Makes the warp ready for another CTA, its memory reused.
    pub(crate) fn restart(&mut self, env: &Env<'_>, place: Place, mask: u32) {
        self.regs.reset(env.pools[place.rank as usize].clone());
        self.place = place;
        self.turns = 0;
        self.streak = 0;
        self.start(env, mask);
    }

    fn start(&mut self, env: &Env<'_>, mask: u32) {
        let entry = &env.functions[env.entry];
        self.local.reserve(entry.local as usize);
        self.local.poison(0, self.local.len(), FULL);
        self.fragments.clear();
        self.fragments.push(Fragment {
            pc: entry.start,
            mask,
            frames: vec![Frame {
                function: env.entry,
                base: FrameSize::default(),
                local: 0,
                call: 0,
            }],
            wait: Wait::Ready,
            ran: 0,
        });
    }

    /// Whether all lanes have exited.
    pub(crate) fn done(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Live lanes.
    fn live(&self) -> u32 {
        self.fragments.iter().fold(0, |all, f| all | f.mask)
    }

    /// Whether some lane can run.
    pub(crate) fn ready(&self, barriers: &Barriers) -> bool {
        self.fragments.iter().any(|fragment| match fragment.wait {
            Wait::Ready => true,
            Wait::Barrier { id, generation, .. } => barriers.generation(id) != generation,
            _ => false,
        })
    }

    /// Runs for up to `turn` instructions; returns how many it ran.
    pub(crate) fn run(&mut self, around: &mut Surroundings<'_>, turn: u64) -> Result<u64, AtFault> {
        let mut left = turn;
        while left > 0 {
            self.wake(around.barriers);
            let Some((index, short)) = self.choose() else {
                break;
            };
            let mut fragment = self.fragments.swap_remove(index);
            let others = self.fragments.len();
            let limit = match (others, short) {
                (0, _) => left,
                (_, true) => left.min(SHORT_TURN),
                (_, false) => left.min(ROTATE),
            };
            self.turns += 1;
            fragment.ran = self.turns;
            self.regs.set_base(fragment.frame().base);
            let mut cx = Context {
                regs: &mut self.regs,
                local: &mut self.local,
                shared: around.shared,
                barriers: around.barriers,
                env: around.env,
                stats: around.stats,
                place: &self.place,
                frame: fragment.frame().local,
                block: self.block,
                clock: around.clock + (turn - left),
            };
            let mut ran = 0;
            let stop =
                run_fragment(&mut cx, &mut fragment, &mut self.fragments, limit, short, &mut ran);
            self.block = cx.block;
            left -= ran.min(left);
            self.streak += ran;
            let stop = stop.map_err(|fault| (fragment.pc, fault))?;
            if matches!(stop, Stop::Done) {
                self.streak = 0;
                self.release();
                continue;
            }
            self.put_back(fragment);
            if short || self.fragments.len() == 1 {
                self.streak = 0;
            }
        }
        Ok(turn - left)
    }

    /// Returns a fragment to the set, merged with those it meets.
    fn put_back(&mut self, mut fragment: Fragment) {
        while let Some(index) = self.fragments.iter().position(|f| f.meets(&fragment)) {
            let other = self.fragments.swap_remove(index);
            fragment.mask |= other.mask;
            fragment.wait = Wait::Ready;
            fragment.ran = fragment.ran.max(other.ran);
        }
        self.fragments.push(fragment);
        self.release();
    }

    /// Lets fragments behind completed CTA barriers go on.
    fn wake(&mut self, barriers: &mut Barriers) {
        for index in 0..self.fragments.len() {
            let Wait::Barrier { id, generation, target } = self.fragments[index].wait else {
                continue;
            };
            if barriers.generation(id) == generation {
                continue;
            }
            let mask = self.fragments[index].mask;
            if let Some(target) = target {
                let value = barriers.fetch(id, generation, mask.count_ones());
                self.regs.set_base(self.fragments[index].frame().base);
                match target {
                    RedTarget::Count(slot) => self.regs.put(slot, mask, &[value; 32]),
                    RedTarget::Pred(index) => {
                        let value = if value != 0 { FULL } else { 0 };
                        self.regs.set_pred(index, mask, value);
                    }
                }
            }
            self.fragments[index].wait = Wait::Ready;
            if self.fragments.len() > 1 {
                let fragment = self.fragments.swap_remove(index);
                self.put_back(fragment);
                // The set was reordered: look again from the start.
                return self.wake(barriers);
            }
        }
    }

    /// `bar.warp.sync` completes when its live members wait at one.
    fn release_warp_barriers(&mut self) {
        let live = self.live();
        for index in 0..self.fragments.len() {
            let Wait::Warp(members) = self.fragments[index].wait else {
                continue;
            };
            let arrived = self
                .fragments
                .iter()
                .filter(|f| f.wait == Wait::Warp(members))
                .fold(0, |all, f| all | f.mask);
            if members & live & !arrived == 0 {
                for fragment in &mut self.fragments {
                    if fragment.wait == Wait::Warp(members) {
                        fragment.wait = Wait::Ready;
                        fragment.pc += 1;
                    }
                }
            }
        }
    }

    /// Lets fragments go on whose lanes are complete; exited lanes are waited
    /// for no longer.
    fn release(&mut self) {
        if self.fragments.iter().all(|f| f.wait == Wait::Ready) {
            return;
        }
        let live = self.live();
        self.release_warp_barriers();
        for fragment in &mut self.fragments {
            let release = match fragment.wait {
                Wait::Aligned => fragment.mask == live,
                Wait::Members(members) => members & live & !fragment.mask == 0,
                _ => false,
            };
            if release {
                fragment.wait = Wait::Ready;
            }
        }
    }

    /// Fragment to run, and whether it gets only a short turn out of order.
    fn choose(&mut self) -> Option<(usize, bool)> {
        if let [only] = self.fragments.as_slice() {
            return (only.wait == Wait::Ready).then_some((0, false));
        }
        let ready = || self.fragments.iter().enumerate().filter(|(_, f)| f.wait == Wait::Ready);
        let (first, _) = ready().min_by_key(|(_, f)| (usize::MAX - f.frames.len(), f.pc))?;
        if self.streak < ROTATE {
            return Some((first, false));
        }
        let starved = ready().min_by_key(|(index, f)| (f.ran, *index))?.0;
        Some((starved, starved != first))
    }

    /// What is wrong with a warp that can never run again: a fragment that
    /// waits for lanes of its own warp.
    pub(crate) fn stuck(&self, code: &[Instr]) -> Option<AtFault> {
        let live = self.live();
        self.fragments.iter().find_map(|fragment| {
            let kind = match fragment.wait {
                Wait::Aligned => DiagnosticKind::DivergentAligned {
                    present: fragment.mask,
                    missing: live & !fragment.mask,
                    elsewhere: self
                        .fragments
                        .iter()
                        .filter(|other| other.mask != fragment.mask)
                        .map(|other| code[other.pc].line)
                        .collect(),
                },
                Wait::Members(members) | Wait::Warp(members) => {
                    let present = self
                        .fragments
                        .iter()
                        .filter(|other| other.wait == fragment.wait && other.pc == fragment.pc)
                        .fold(0, |all, other| all | other.mask);
                    DiagnosticKind::MissingMembers { present, members }
                }
                Wait::Ready | Wait::Barrier { .. } => return None,
            };
            Some((fragment.pc, Fault::lane(kind, fragment.mask.trailing_zeros())))
        })
    }
}

/// Executes until the fragment must stop. Counts into `ran`.
fn run_fragment(
    cx: &mut Context<'_>,
    fragment: &mut Fragment,
    others: &mut Vec<Fragment>,
    limit: u64,
    short: bool,
    ran: &mut u64,
) -> Exec<Stop> {
    let env = cx.env;
    let code: &[Instr] = env.code;
    while *ran < limit {
        let instr = &code[fragment.pc];
        let mask = match instr.guard {
            Pred::Const(true) => fragment.mask,
            guard => fragment.mask & cx.regs.pred(guard),
        };
        *ran += 1;
        let count = &mut cx.stats.executed[fragment.pc];
        count.0 += 1;
        count.1 += if mask == FULL { 32 } else { u64::from(mask.count_ones()) };
        match &instr.op {
            Op::Alu(run) => {
                if mask != 0 {
                    run(cx.regs, mask);
                }
                fragment.pc += 1;
            }
            Op::Effect(run) => {
                if mask != 0 {
                    run(cx, mask)?;
                    cx.clock += 1;
                }
                fragment.pc += 1;
            }
            Op::Nop => fragment.pc += 1,
            Op::Branch(target) => {
                if mask == fragment.mask {
                    fragment.pc = *target;
                } else if mask == 0 {
                    fragment.pc += 1;
                } else {
                    cx.stats.divergent_branches += 1;
                    others.push(fragment.sibling(*target, mask));
                    fragment.mask &= !mask;
                    fragment.pc += 1;
                    return Ok(Stop::Switch);
                }
            }
            _ if mask == 0 => fragment.pc += 1,
            op => {
                if let Some(stop) = control(cx, fragment, others, op, mask)? {
                    return Ok(stop);
                }
            }
        }
        if !others.is_empty() {
            let passed = others.iter().any(|other| {
                other.pc == fragment.pc && other.mergeable()
                    || !short && other.wait == Wait::Ready && other.pc < fragment.pc
            });
            if passed {
                return Ok(Stop::Switch);
            }
        }
    }
    Ok(Stop::Turn)
}

/// Separates the lanes that do not execute the instruction; they go on behind
/// it.
fn part(fragment: &mut Fragment, others: &mut Vec<Fragment>, mask: u32) {
    let rest = fragment.mask & !mask;
    if rest != 0 {
        others.push(fragment.sibling(fragment.pc + 1, rest));
        fragment.mask = mask;
    }
}

/// Everything that is not straight-line: `None` means go on with the fragment.
fn control(
    cx: &mut Context<'_>,
    fragment: &mut Fragment,
    others: &mut Vec<Fragment>,
    op: &Op,
    mask: u32,
) -> Exec<Option<Stop>> {
    let whole = mask == fragment.mask;
    let live = others.iter().fold(fragment.mask, |all, f| all | f.mask);
    match op {
        Op::BranchIndex { index, targets } => {
            let index = *cx.regs.row32(*index);
            part(fragment, others, mask);
            let lane = mask.trailing_zeros();
            let chosen = index[lane as usize];
            let target = *targets.get(chosen as usize).ok_or_else(|| {
                Fault::lane(DiagnosticKind::BadTarget { target: chosen.into() }, lane)
            })?;
            let same = same_lanes(&index, chosen, mask);
            if same != mask {
                cx.stats.divergent_branches += 1;
                others.push(fragment.sibling(fragment.pc, mask & !same));
                fragment.mask = same;
            }
            fragment.pc = target;
            Ok((!whole || same != mask).then_some(Stop::Switch))
        }
        Op::Call(site) => {
            part(fragment, others, mask);
            let split = super::calls::call(cx, fragment, others, site)?;
            Ok((split || !whole).then_some(Stop::Switch))
        }
        Op::Return if fragment.frames.len() > 1 => {
            part(fragment, others, mask);
            super::calls::ret(cx, fragment);
            Ok((!whole).then_some(Stop::Switch))
        }
        Op::Exit | Op::Return => {
            cx.barriers.exit(mask.count_ones());
            fragment.mask &= !mask;
            if fragment.mask == 0 {
                return Ok(Some(Stop::Done));
            }
            fragment.pc += 1;
            Ok(Some(Stop::Switch))
        }
        Op::Trap => Err(Fault::lane(DiagnosticKind::Trap, mask.trailing_zeros())),
        Op::Breakpoint => Err(Fault::lane(DiagnosticKind::Breakpoint, mask.trailing_zeros())),
        Op::Exchange { members, run } => {
            let members = *cx.regs.row32(*members);
            let (complete, waiting) = groups(&members, mask, live)?;
            if complete == fragment.mask {
                run(cx, mask)?;
                fragment.pc += 1;
                return Ok(None);
            }
            // Lanes whose group is complete execute and go on; the others wait
            // here. Lanes without the instruction go on at once.
            if complete != 0 {
                run(cx, complete)?;
            }
            let on = fragment.mask & !mask | complete;
            if complete == mask {
                fragment.pc += 1;
                return Ok(None);
            }
            if on != 0 {
                others.push(fragment.sibling(fragment.pc + 1, on));
            }
            fragment.mask &= !on;
            fragment.wait = Wait::Members(waiting);
            Ok(Some(Stop::Switch))
        }
        Op::WarpBarrier { members } => {
            let members = *cx.regs.row32(*members);
            let lane = mask.trailing_zeros() as usize;
            let group = members[lane];
            let same = same_lanes(&members, group, mask);
            if same & !group != 0 {
                let lane = (same & !group).trailing_zeros();
                return Err(Fault::lane(DiagnosticKind::NotAMember { members: group }, lane));
            }
            if whole && same == mask && group & live & !mask == 0 {
                fragment.pc += 1;
                return Ok(None);
            }
            part(fragment, others, mask);
            if same != mask {
                others.push(fragment.sibling(fragment.pc, mask & !same));
                fragment.mask = same;
            }
            fragment.wait = Wait::Warp(group);
            Ok(Some(Stop::Switch))
        }
        Op::Barrier(barrier) => cta_barrier(cx, fragment, others, barrier, mask, live),
        Op::Alu(_) | Op::Effect(_) | Op::Nop | Op::Branch(_) => Ok(None),
    }
}

/// Lanes of `mask` whose value is `value`.
pub(crate) fn same_lanes(row: &[u32; 32], value: u32, mask: u32) -> u32 {
    let mut same = 0;
    for (lane, &other) in row.iter().enumerate() {
        same |= u32::from(other == value) << lane;
    }
    same & mask
}

/// Splits the executing lanes by member mask: those whose live members are all
/// here, and the members that a lane of the others waits for.
fn groups(members: &[u32; 32], mask: u32, live: u32) -> Exec<(u32, u32)> {
    let (mut complete, mut waiting) = (0, 0);
    let mut rest = mask;
    while rest != 0 {
        let lane = rest.trailing_zeros();
        let group = members[lane as usize];
        let same = same_lanes(members, group, mask);
        if same & !group != 0 {
            let lane = (same & !group).trailing_zeros();
            return Err(Fault::lane(DiagnosticKind::NotAMember { members: group }, lane));
        }
        if group & live & !same == 0 {
            complete |= same;
        } else {
            waiting |= group;
        }
        rest &= !same;
    }
    Ok((complete, waiting))
}

fn cta_barrier(
    cx: &mut Context<'_>,
    fragment: &mut Fragment,
    others: &mut Vec<Fragment>,
    barrier: &BarrierOp,
    mask: u32,
    live: u32,
) -> Exec<Option<Stop>> {
    let whole = mask == fragment.mask;
    if barrier.aligned && mask != live {
        part(fragment, others, mask);
        fragment.wait = Wait::Aligned;
        return Ok(Some(Stop::Switch));
    }
    part(fragment, others, mask);
    let lane = mask.trailing_zeros() as usize;
    let value = |slot: Slot, regs: &Regs| regs.row32(slot)[lane];
    let id = value(barrier.id, cx.regs);
    let expected = barrier.count.map(|slot| value(slot, cx.regs));
    // A counted barrier counts whole warps: exited lanes of an aligned one too.
    let threads = if barrier.aligned && expected.is_some() { 32 } else { mask.count_ones() };
    let reduction: Option<(Reduction, u32)> =
        barrier.reduction.map(|(op, pred, _)| (op, (cx.regs.pred(pred) & mask).count_ones()));
    let generation = cx.barriers.generation((id % 16) as u8);
    cx.barriers
        .arrive(Arrival { id, expected, threads, reduction })
        .map_err(|kind| Fault::lane(kind, lane as u32))?;
    cx.stats.barrier_arrivals += 1;
    fragment.pc += 1;
    if !barrier.wait {
        return Ok((!whole).then_some(Stop::Switch));
    }
    fragment.wait = Wait::Barrier {
        id: id as u8,
        generation,
        target: barrier.reduction.map(|(_, _, target)| target),
    };
    Ok(Some(Stop::Switch))
}
