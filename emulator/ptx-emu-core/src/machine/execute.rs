//! Runs one fragment of a warp: the loop over instructions, and the effects of
//! branches, calls, exits and synchronising instructions on the set of
//! fragments.

use super::Reduction;
use super::barrier::Arrival;
use super::code::{BarrierOp, Instr, Op};
use super::context::Context;
use super::regs::{FULL, Pred, Regs, Slot};
use super::units::Poll;
use super::warp::{Fragment, Wait};
use crate::Schedule;
use crate::diagnostic::{DiagnosticKind, Exec, Fault};

/// The reason why a fragment stopped.
pub(super) enum Stop {
    /// Its turn is over.
    Turn,
    /// The fragment waits, or met or passed another fragment, or split.
    Switch,
    /// The fragment looked for something that has not come: others should run.
    Yield,
    /// All its lanes exited.
    Done,
}

/// Executes until the fragment must stop. Counts into `ran`.
pub(super) fn run_fragment(
    cx: &mut Context<'_>,
    fragment: &mut Fragment,
    others: &mut Vec<Fragment>,
    limit: u64,
    short: bool,
    ran: &mut u64,
) -> Exec<Stop> {
    let env = cx.env;
    let code: &[Instr] = env.code;
    let start = cx.clock;
    let noting = env.module.wgmma;
    while *ran < limit {
        let instr = &code[fragment.pc];
        let mask = match instr.guard {
            Pred::Const(true) => fragment.mask,
            guard => fragment.mask & cx.regs.pred(guard),
        };
        *ran += 1;
        let count = &mut cx.stats.executed[fragment.pc];
        count.warps += 1;
        count.threads += if mask == FULL { 32 } else { u64::from(mask.count_ones()) };
        count.first_lanes += u64::from(mask & 1);
        if noting || cx.regs.watch.busy() {
            cx.watch(fragment.pc, mask, fragment.mask)?;
        }
        match &instr.op {
            Op::Alu(run) => {
                if mask != 0 {
                    run(cx.regs, mask);
                }
                fragment.pc += 1;
            }
            Op::Effect(run) => {
                if mask != 0 {
                    cx.clock = start + *ran;
                    cx.pc = fragment.pc;
                    run(cx, mask)?;
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
                    cx.race_branch();
                    others.push(fragment.sibling(*target, mask));
                    fragment.mask &= !mask;
                    fragment.pc += 1;
                    return Ok(Stop::Switch);
                }
            }
            _ if mask == 0 => fragment.pc += 1,
            op => {
                cx.clock = start + *ran;
                cx.pc = fragment.pc;
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
fn part(cx: &mut Context<'_>, fragment: &mut Fragment, others: &mut Vec<Fragment>, mask: u32) {
    let rest = fragment.mask & !mask;
    if rest != 0 {
        cx.race_branch();
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
            part(cx, fragment, others, mask);
            let lane = mask.trailing_zeros();
            let chosen = index[lane as usize];
            let target = *targets.get(chosen as usize).ok_or_else(|| {
                Fault::lane(DiagnosticKind::BadTarget { target: chosen.into() }, lane)
            })?;
            let same = same_lanes(&index, chosen, mask);
            if same != mask {
                cx.stats.divergent_branches += 1;
                cx.race_branch();
                others.push(fragment.sibling(fragment.pc, mask & !same));
                fragment.mask = same;
            }
            fragment.pc = target;
            Ok((!whole || same != mask).then_some(Stop::Switch))
        }
        Op::Call(site) => {
            cx.deliver_load(None)?;
            part(cx, fragment, others, mask);
            let split = super::calls::call(cx, fragment, others, site)?;
            Ok((split || !whole).then_some(Stop::Switch))
        }
        Op::Return if fragment.frames.len() > 1 => {
            cx.deliver_load(None)?;
            part(cx, fragment, others, mask);
            super::calls::ret(cx, fragment);
            Ok((!whole).then_some(Stop::Switch))
        }
        Op::Exit | Op::Return => {
            cx.race_exit(mask, |barriers| barriers.exit(mask.count_ones()));
            let at = (cx.pc, cx.warp());
            cx.units.exit(cx.env, cx.place.rank, at, mask)?;
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
                synchronised(cx, &members, complete);
                run(cx, mask)?;
                fragment.pc += 1;
                return Ok(None);
            }
            // Lanes whose group is complete execute and go on; the others wait
            // here. Lanes without the instruction go on at once.
            if complete != 0 {
                synchronised(cx, &members, complete);
                run(cx, complete)?;
            }
            let on = fragment.mask & !mask | complete;
            if complete == mask {
                fragment.pc += 1;
                return Ok(None);
            }
            if on != 0 {
                cx.race_branch();
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
                cx.race_met(mask);
                fragment.pc += 1;
                // The barrier decides what the lanes do next, so the random schedule chooses anew
                // here.
                let random = matches!(cx.env.schedule, Schedule::Random(_));
                return Ok(random.then_some(Stop::Yield));
            }
            part(cx, fragment, others, mask);
            if same != mask {
                cx.race_branch();
                others.push(fragment.sibling(fragment.pc, mask & !same));
                fragment.mask = same;
            }
            fragment.wait = Wait::Warp(group);
            Ok(Some(Stop::Switch))
        }
        Op::Look(run) => {
            let others_first = run(cx, mask)?;
            fragment.pc += 1;
            Ok(others_first.then_some(Stop::Yield))
        }
        Op::Poll { aligned, run } => {
            part(cx, fragment, others, mask);
            if *aligned && mask != live {
                fragment.wait = Wait::Aligned;
                return Ok(Some(Stop::Switch));
            }
            if *aligned {
                cx.race_synchronised(mask);
            }
            cx.expired = std::mem::take(&mut fragment.expired);
            match run(cx, mask)? {
                Poll::Done => {
                    fragment.pc += 1;
                    Ok((!whole).then_some(Stop::Switch))
                }
                Poll::Yield => {
                    fragment.pc += 1;
                    Ok(Some(Stop::Yield))
                }
                Poll::Wait(awaited) => {
                    fragment.wait = Wait::Unit(awaited);
                    Ok(Some(Stop::Switch))
                }
            }
        }
        Op::Barrier(barrier) => cta_barrier(cx, fragment, others, barrier, mask, live),
        Op::Alu(_) | Op::Effect(_) | Op::Nop | Op::Branch(_) => Ok(None),
    }
}

/// Lanes of `mask` whose value is `value`.
fn same_lanes(row: &[u32; 32], value: u32, mask: u32) -> u32 {
    let mut same = 0;
    for (lane, &other) in row.iter().enumerate() {
        same |= u32::from(other == value) << lane;
    }
    same & mask
}

/// Groups of lanes execute an instruction with `.sync`, all members of each.
fn synchronised(cx: &mut Context<'_>, members: &[u32; 32], mask: u32) {
    if !cx.race_may_join() {
        return;
    }
    let mut rest = mask;
    while rest != 0 {
        let same = same_lanes(members, members[rest.trailing_zeros() as usize], rest);
        cx.race_synchronised(same);
        rest &= !same;
    }
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
        part(cx, fragment, others, mask);
        fragment.wait = Wait::Aligned;
        return Ok(Some(Stop::Switch));
    }
    part(cx, fragment, others, mask);
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
    let completed = cx.barriers.generation(id as u8) != generation;
    cx.race_barrier(id, barrier, mask, completed);
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
