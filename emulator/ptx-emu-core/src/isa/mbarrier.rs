//! mbarrier operations: PTX ISA 9.7.13.15 (`mbarrier.init`, `inval`,
//! `expect_tx`, `complete_tx`, `arrive`, `arrive_drop`, `test_wait`,
//! `try_wait`, `pending_count`) and 9.7.9.25.3.3 (`cp.async.mbarrier.arrive`).
//!
//! Lanes act in lane order. `try_wait` waits until the phase of some executing
//! lane is over; when nothing else can run it gives up and returns false, and
//! the lazy and random schedules let it return false at once now and then, as
//! PTX allows. Its time limit has no other meaning. `test_wait` never waits; a
//! failing one lets other warps run.
//!
//! Limits: semantics and scopes are accepted and order nothing (memory is sequentially consistent
//! here); remote arrivals are visible at once; see also `machine::units::mbarrier`.

use super::Instructions;
use super::mem;
use crate::Family;
use crate::Schedule;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{Exec, Fault, Space};
use crate::machine::code::Op;
use crate::machine::race::Kind;
use crate::machine::regs::{LANES, Slot};
use crate::machine::units::{
    Arrival, At, Awaited, GroupKind, Home, Nothing, Operation, Poll, Publisher, Question, Range,
    Reach, Signal, lanes,
};
use crate::machine::{AddressSpace, Context};
use crate::syntax::ast::Operand;

/// `mbarrier`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "mbarrier",
    decode: |d| Ok((Family::Mbarrier, decode(d)?)),
};

/// An operand that names a place in shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedOperand {
    pub(super) address: mem::Address,
    pub(super) reach: Reach,
}

impl SharedOperand {
    /// The mbarrier of each lane: the address is resolved once per distinct
    /// value.
    fn each(
        &self,
        cx: &mut Context<'_>,
        mask: u32,
        mut f: impl FnMut(&mut Context<'_>, usize, At) -> Exec,
    ) -> Exec {
        let addrs = self.address.rows(cx);
        let mut last: Option<(u64, At)> = None;
        for lane in lanes(mask) {
            let at = match last {
                Some((addr, at)) if addr == addrs[lane] => at,
                _ => cx.mbarrier_at(self.reach, addrs[lane], lane)?,
            };
            last = Some((addrs[lane], at));
            f(cx, lane, at)?;
        }
        Ok(())
    }
}

/// Decodes `[address]` in shared memory.
pub(super) fn shared_operand(
    d: &mut Decode<'_>,
    operand: &Operand,
    reach: Reach,
) -> Decoded<SharedOperand> {
    let named = match reach {
        Reach::Generic => AddressSpace::Generic,
        Reach::Own | Reach::Cluster => AddressSpace::One(Space::Shared),
    };
    let (address, settled) = mem::address(d, operand, named)?;
    let reach = match settled {
        AddressSpace::One(Space::Shared) if reach == Reach::Generic => Reach::Own,
        _ => reach,
    };
    Ok(SharedOperand { address, reach })
}

/// Takes the state space.
pub(super) fn reach(d: &mut Decode<'_>) -> Reach {
    d.pick(|m| match m {
        "shared" | "shared::cta" => Some(Reach::Own),
        "shared::cluster" => Some(Reach::Cluster),
        _ => None,
    })
    .unwrap_or(Reach::Generic)
}

/// Takes semantics and scope; whether `.relaxed`.
pub(super) fn semantics(d: &mut Decode<'_>) -> bool {
    let relaxed = d.has("relaxed");
    const NAMES: [&str; 7] = ["release", "acquire", "acq_rel", "cta", "cluster", "gpu", "sys"];
    while d.pick(|m| NAMES.contains(&m).then_some(())).is_some() {}
    relaxed
}

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    const OPS: [&str; 9] = [
        "init",
        "inval",
        "arrive",
        "arrive_drop",
        "test_wait",
        "try_wait",
        "pending_count",
        "complete_tx",
        "expect_tx",
    ];
    // `arrive.expect_tx` is an arrival: the first modifier decides.
    let first = d.ins.modifiers.first().map(String::as_str).unwrap_or_default();
    let op = OPS
        .into_iter()
        .find(|op| *op == first)
        .ok_or_else(|| Reject::unsupported("no known mbarrier operation"))?;
    let _ = d.has(op);
    if !d.has("b64") {
        return Err(Reject::unsupported("no .b64"));
    }
    let wide = d.ins.modifiers.iter().any(|m| matches!(m.as_str(), "cluster" | "gpu" | "sys"));
    let relaxed = semantics(d);
    match op {
        "pending_count" => pending_count(d),
        "test_wait" | "try_wait" => wait(d, op == "try_wait", relaxed),
        "arrive" | "arrive_drop" => arrive(d, op == "arrive_drop", relaxed, wide && !relaxed),
        _ => plain(d, op),
    }
}

/// `init`, `inval`, `expect_tx`, `complete_tx`: an address and perhaps a count.
fn plain(d: &mut Decode<'_>, op: &'static str) -> Decoded<Op> {
    let reach = reach(d);
    let operand = d.operand(0)?;
    let barrier = shared_operand(d, operand, reach)?;
    let count = if op == "inval" { None } else { Some(d.src::<u32>(1)?) };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let counts = count.map_or([0; LANES], |slot| *cx.regs.row32(slot));
        barrier.each(cx, mask, |cx, lane, at| {
            if cx.units.busy() && matches!(op, "init" | "inval") {
                let home = Home::Shared(at.rank);
                let range = Range { home, start: at.offset.into(), bytes: 8 };
                cx.check_flight_at(&range, true, lane)?;
            }
            let weak = matches!(op, "init" | "inval");
            cx.race_barrier_object(at, if weak { Kind::Write } else { Kind::StrongWrite }, lane)?;
            // It is relaxed: who sees the phase end knows of what the thread did before its last fence.
            let publisher = (op == "complete_tx").then(|| Publisher::Warp {
                warp: cx.warp(),
                lanes: mask,
                relaxed: true,
            });
            let act = |cx: &mut Context<'_>, again: bool| {
                let shared = &mut cx.shared[at.rank as usize];
                cx.units.with_barrier(at, publisher, |barriers| match op {
                    "init" => barriers.init(shared, at, counts[lane], again),
                    "inval" => barriers.inval(shared, at),
                    "expect_tx" => barriers.expect_tx(shared, at, counts[lane]),
                    _ => barriers.complete_tx(shared, at, i64::from(counts[lane])),
                })
            };
            let Err(kind) = act(cx, false) else { return Ok(()) };
            cx.report(Fault::lane(kind, lane as u32))?;
            // Only that it is in use lets it go on.
            act(cx, true).map_err(|kind| Fault::lane(kind, lane as u32))
        })
    })))
}

/// `mbarrier.arrive{.expect_tx}{.noComplete} state|_, [address]{, count}`
/// `wide`: it releases for more than the CTA.
fn arrive(d: &mut Decode<'_>, drop: bool, relaxed: bool, wide: bool) -> Decoded<Op> {
    let expect = d.has("expect_tx");
    let no_complete = d.has("noComplete");
    let reach = reach(d);
    // The sink may be left out for arrivals without a state.
    let stated = !matches!(d.operand(0)?, Operand::Address { .. });
    let at = usize::from(stated);
    let target = match d.operand(0)? {
        Operand::Sink | Operand::Address { .. } => None,
        operand => Some(d.dst_of::<u64>(operand)?),
    };
    let operand = d.operand(at)?;
    let barrier = shared_operand(d, operand, reach)?;
    let number = if d.count() > at + 1 { Some(d.src::<u32>(at + 1)?) } else { None };
    if number.is_none() && (expect || no_complete) {
        return Err(Reject::operand("count: required"));
    }
    let arrival = Arrival { drop, no_complete };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let numbers = number.map_or([1; LANES], |slot| *cx.regs.row32(slot));
        barrier.each(cx, mask, |cx, lane, at| {
            cx.stats.asynchronous.mbarrier_arrivals += 1;
            cx.stats.asynchronous.cluster_releases += u64::from(wide);
            cx.race_barrier_object(at, Kind::StrongWrite, lane)?;
            // Who has seen a phase end knows of its arrivals, relaxed ones too.
            if !relaxed {
                cx.race_arrives(at, 1 << lane);
            }
            let publisher = Publisher::Warp { warp: cx.warp(), lanes: mask, relaxed };
            let shared = &mut cx.shared[at.rank as usize];
            let state = cx.units.with_barrier(at, Some(publisher), |barriers| {
                if !expect {
                    return barriers.arrive(shared, at, numbers[lane], arrival);
                }
                barriers.expect_tx(shared, at, numbers[lane])?;
                barriers.arrive(shared, at, 1, arrival)
            });
            let state = state.map_err(|kind| Fault::lane(kind, lane as u32))?;
            if let Some(target) = target {
                cx.regs.put_lane(target, lane, state);
            }
            Ok(())
        })
    })))
}

/// The phase that a wait asks for, by lane.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Parity(Slot),
    Token(Slot),
}

/// `mbarrier.{test,try}_wait{.parity} done, [address], state|parity{, limit}`
fn wait(d: &mut Decode<'_>, limited: bool, relaxed: bool) -> Decoded<Op> {
    let parity = d.has("parity");
    let reach = reach(d);
    if reach == Reach::Cluster {
        return Err(Reject::unsupported("a wait for another CTA's mbarrier"));
    }
    let target = d.operand(0)?;
    let target = d.pred_target(target)?;
    let operand = d.operand(1)?;
    let barrier = shared_operand(d, operand, reach)?;
    let asked =
        if parity { Asked::Parity(d.src::<u32>(2)?) } else { Asked::Token(d.src::<u64>(2)?) };
    if d.count() > 3 {
        d.src::<u32>(3)?;
    }
    let wait = WaitOperands { barrier, asked, target, limited, relaxed };
    Ok(Op::Poll { aligned: false, run: Box::new(move |cx, mask| poll(cx, mask, &wait)) })
}

/// Operands of a wait.
#[derive(Debug, Clone, Copy)]
struct WaitOperands {
    barrier: SharedOperand,
    asked: Asked,
    target: u32,
    /// `try_wait`
    limited: bool,
    relaxed: bool,
}

fn poll(cx: &mut Context<'_>, mask: u32, wait: &WaitOperands) -> Exec<Poll> {
    let &WaitOperands { barrier, asked, target, limited, relaxed } = wait;
    let warp = cx.warp();
    let (mut over, mut open, mut last_over) = (0, None, None);
    let mut last: Option<(At, Question, Result<(), u64>)> = None;
    barrier.each(cx, mask, |cx, lane, at| {
        if at.rank != cx.place.rank {
            let required = "one in the shared memory of the executing CTA";
            return Err(cx.bad_operand(lane, "mbarrier", required, format!("{:#x}", at.address())));
        }
        cx.race_barrier_object(at, Kind::StrongRead, lane)?;
        let question = match asked {
            Asked::Parity(slot) => Question::Parity(cx.regs.row32(slot)[lane] & 1 != 0),
            Asked::Token(slot) => Question::Token(cx.regs.row64(slot)[lane]),
        };
        let answer = match last {
            Some((other, other_question, answer)) if (other, other_question) == (at, question) => {
                answer
            }
            _ => cx
                .units
                .barriers
                .test(&cx.shared[at.rank as usize], at, question)
                .map_err(|kind| Fault::lane(kind, lane as u32))?,
        };
        last = Some((at, question, answer));
        match answer {
            Ok(()) => {
                if over == 0 || last_over != Some(at) {
                    cx.units.learn(warp, at, relaxed);
                    last_over = Some(at);
                }
                over |= 1 << lane;
            }
            Err(phase) => {
                open.get_or_insert((at, phase));
            }
        }
        Ok(())
    })?;
    cx.stats.asynchronous.mbarrier_tests += 1;
    let Some((at, phase)) = open.filter(|_| over == 0) else {
        cx.regs.set_pred(target, mask, over);
        // A warp goes through one phase at a time while others can run: on hardware they all run.
        let fair = cx.env.schedule == Schedule::Eager && over != 0;
        return Ok(if fair { Poll::Yield } else { Poll::Done });
    };
    cx.stats.asynchronous.mbarrier_tests_failed += 1;
    let awaited = Awaited::Phase { at, phase, limited };
    if limited && !cx.expired && !cx.units.refuses(warp, mask) {
        return Ok(Poll::Wait(awaited));
    }
    cx.regs.set_pred(target, mask, 0);
    if !limited {
        cx.with_units(|units, machine| units.tested(machine, awaited))?;
    }
    cx.looked(&[at.address().into(); LANES], &[[phase; LANES]; 4], mask);
    Ok(Poll::Yield)
}

/// `mbarrier.pending_count count, state`
fn pending_count(d: &mut Decode<'_>) -> Decoded<Op> {
    d.map1(|state: u64| (state >> 32) as u32)
}

/// `cp.async.mbarrier.arrive{.noinc}.b64 [address]`: an arrival once the
/// executing thread's earlier `cp.async` operations are complete. Without
/// `.noinc` the arrival is added to the pending ones first.
pub(super) fn copies_arrive(d: &mut Decode<'_>) -> Decoded<Op> {
    let increment = !d.has("noinc");
    let _ = d.has("b64");
    let reach = reach(d);
    if reach == Reach::Cluster {
        return Err(Reject::unsupported("cp.async.mbarrier.arrive on another CTA's mbarrier"));
    }
    let operand = d.operand(0)?;
    let barrier = shared_operand(d, operand, reach)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let mut groups: Vec<(At, u32)> = Vec::new();
        barrier.each(cx, mask, |cx, lane, at| {
            cx.stats.asynchronous.mbarrier_arrivals += 1;
            if increment {
                cx.units
                    .barriers
                    .add_pending(&mut cx.shared[at.rank as usize], at, 1)
                    .map_err(|kind| Fault::lane(kind, lane as u32))?;
            }
            match groups.iter_mut().find(|(other, _)| *other == at) {
                Some((_, lanes)) => *lanes |= 1 << lane,
                None => groups.push((at, 1 << lane)),
            }
            Ok(())
        })?;
        for (at, lanes) in groups {
            let warp = cx.warp();
            let after = cx.units.issued_by(&[GroupKind::Copy], warp, lanes);
            let id = cx.issue(Operation {
                name: "cp.async.mbarrier.arrive",
                site: cx.site(lanes.trailing_zeros() as usize),
                lanes,
                reads: Vec::new(),
                writes: Vec::new(),
                async_proxy: false,
                atomic: false,
                group: None,
                after,
                signals: vec![Signal::Arrive(at, lanes.count_ones())],
                work: Box::new(Nothing),
            })?;
            cx.units.after_copies(id, warp);
        }
        Ok(())
    })))
}
