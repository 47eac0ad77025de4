//! A warp: a set of fragments, each a program counter, the lanes at it and a
//! call stack.
//!
//! One fragment is the common case and runs without any check. When lanes diverge,
//! the fragment with the deepest stack and the lowest program counter runs
//! first, and fragments with the same program counter and equal stacks merge. This
//! reconverges structured code without knowing post-dominators. Lanes make independent
//! progress: a fragment that has run for long while others could run gives them a short
//! turn. Under the random schedule lanes may diverge anywhere, as PTX allows; only `.sync`
//! and `.aligned` instructions bring lanes together.
//!
//! `.sync` instructions wait until the lanes that they name have arrived, `.aligned`
//! instructions until every live lane of the warp has arrived.

mod parting;

use super::code::{Instr, RedTarget};
use super::context::{Context, Place};
use super::execute::{Stop, run_fragment};
use super::launch::Env;
use super::race::Order;
use super::regs::{FULL, FrameSize, Regs};
use super::units::{Awaited, Units};
use super::{Barriers, Stats};
use crate::diagnostic::{DiagnosticKind, Fault};
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

/// The reason why a fragment does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The fragment can run.
    Ready,
    /// Waiting at an `.aligned` instruction, for all live lanes.
    Aligned,
    /// Waiting at a `.sync` instruction, for these lanes.
    Members(u32),
    /// Waiting at `bar.warp.sync`, for these lanes.
    Warp(u32),
    /// Waiting for the rest of its warp to go ahead, see `parting`.
    Held,
    /// Waiting behind a CTA barrier, for its generation to end.
    Barrier { id: u8, generation: u64, target: Option<RedTarget> },
    /// Waiting at an instruction for an asynchronous unit.
    Unit(Awaited),
}

/// Lanes that are at one place.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) pc: usize,
    pub(crate) mask: u32,
    pub(crate) frames: Vec<Frame>,
    pub(crate) wait: Wait,
    /// Its wait was ended although nothing came.
    pub(super) expired: bool,
    /// The time of its last run, in turns of its warp.
    ran: u64,
}

impl Fragment {
    fn frame(&self) -> Frame {
        self.frames[self.frames.len() - 1]
    }

    pub(super) fn sibling(&self, pc: usize, mask: u32) -> Self {
        let frames = self.frames.clone();
        Self { pc, mask, frames, wait: Wait::Ready, expired: false, ran: self.ran }
    }

    fn meets(&self, other: &Self) -> bool {
        self.pc == other.pc && self.mergeable() && other.mergeable() && self.frames == other.frames
    }

    pub(super) fn mergeable(&self) -> bool {
        matches!(self.wait, Wait::Ready | Wait::Aligned | Wait::Members(_))
    }
}

/// The state that a warp shares with the rest of its cluster during a turn.
pub(crate) struct Surroundings<'a> {
    pub(crate) shared: &'a mut [Plain],
    pub(crate) barriers: &'a mut Barriers,
    pub(crate) units: &'a mut Units,
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
    /// Turns for which lanes stay behind yet, if some do.
    held: u64,
    /// Lanes that met at a `bar.warp.sync`, each group to be told to those who look for races.
    met: Vec<u32>,
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
            held: 0,
            met: Vec::new(),
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
        self.met.clear();
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
            expired: false,
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
    pub(crate) fn ready(&self, barriers: &Barriers, units: &Units) -> bool {
        self.fragments.iter().any(|fragment| match fragment.wait {
            Wait::Ready | Wait::Held => true,
            Wait::Barrier { id, generation, .. } => barriers.generation(id) != generation,
            Wait::Unit(awaited) => units.over(&awaited),
            _ => false,
        })
    }

    /// Runs for up to `turn` instructions; returns how many it ran.
    pub(crate) fn run(&mut self, around: &mut Surroundings<'_>, turn: u64) -> Result<u64, AtFault> {
        let mut left = turn;
        while left > 0 {
            self.wake(around.env, around.barriers, around.units)?;
            self.let_go(false);
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
                units: around.units,
                env: around.env,
                stats: around.stats,
                place: &self.place,
                frame: fragment.frame().local,
                block: self.block,
                clock: around.clock + (turn - left),
                pc: fragment.pc,
                expired: false,
                order: Order::Weak,
            };
            let mut ran = 0;
            for group in self.met.drain(..) {
                cx.race_met(group);
            }
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
            if matches!(stop, Stop::Yield) {
                break;
            }
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

    /// Lets fragments go on whose barrier or asynchronous unit has come.
    fn wake(
        &mut self,
        env: &Env<'_>,
        barriers: &mut Barriers,
        units: &Units,
    ) -> Result<(), AtFault> {
        for index in 0..self.fragments.len() {
            let (id, generation, target) = match self.fragments[index].wait {
                Wait::Barrier { id, generation, target } => (id, generation, target),
                Wait::Unit(awaited) if units.over(&awaited) => {
                    let fragment = &mut self.fragments[index];
                    let at = (fragment.pc, units.warp_index(self.place.rank, self.place.warp));
                    let slept = units.check_slept(&awaited).or_else(|f| units.report(env, at, f));
                    slept.map_err(|fault| (fragment.pc, fault))?;
                    fragment.wait = Wait::Ready;
                    continue;
                }
                _ => continue,
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
                return self.wake(env, barriers, units);
            }
        }
        Ok(())
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
                self.met.push(arrived);
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

    /// Returns the fault of a warp that can never run again: a fragment that waits for lanes of its
    /// own warp.
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
                Wait::Ready | Wait::Held | Wait::Barrier { .. } | Wait::Unit(_) => return None,
            };
            Some((fragment.pc, Fault::lane(kind, fragment.mask.trailing_zeros())))
        })
    }
}
