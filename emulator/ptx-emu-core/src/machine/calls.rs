//! Calls of device functions (PTX ISA 7.1, 9.7.12 `call`, `ret`).
//!
//! Arguments and results in `.param` space are bytes of the local frames of
//! caller and callee, copied with their initialisation state; register ones are
//! copied row to row.

use super::access::lanes;
use super::code::{CallSite, Callee, FunctionCode, Op, Passed};
use super::context::Context;
use super::regs::{FrameSize, Slot};
use super::warp::{Fragment, Frame};
use super::window;
use crate::diagnostic::{DiagnosticKind, Exec, Fault};

/// Deepest call stack.
const MAX_DEPTH: usize = 4096;
/// Largest local memory of a thread (CUDA C++ Programming Guide, technical
/// specifications): 512 KiB.
const MAX_LOCAL: u32 = 512 << 10;

/// Enters the callee. True when the fragment had to split because its lanes
/// call different functions.
pub(super) fn call(
    cx: &mut Context<'_>,
    fragment: &mut Fragment,
    others: &mut Vec<Fragment>,
    site: &CallSite,
) -> Exec<bool> {
    let (target, split) = match &site.callee {
        Callee::Direct(target) => (*target, false),
        Callee::Indirect(slot, allowed) => {
            let row = *cx.regs.row64(*slot);
            let lane = fragment.mask.trailing_zeros();
            let address = row[lane as usize];
            let mut same = 0;
            for (lane, &other) in row.iter().enumerate() {
                same |= u32::from(other == address) << lane;
            }
            same &= fragment.mask;
            let split = same != fragment.mask;
            if split {
                let mut rest = fragment.clone();
                rest.mask &= !same;
                others.push(rest);
                fragment.mask = same;
            }
            let index = (address & !(0xff << 56)) as usize;
            let known = window::tag(address) == window::FUNCTION
                && cx.env.functions.get(index).is_some_and(|f| f.defined)
                && allowed.as_ref().is_none_or(|list| list.contains(&index));
            if !known {
                let kind = DiagnosticKind::BadTarget { target: address };
                return Err(Fault::lane(kind, lane));
            }
            (index, split)
        }
    };
    let caller = fragment.frames[fragment.frames.len() - 1];
    let (from, to) = (&cx.env.functions[caller.function], &cx.env.functions[target]);
    let frame = Frame {
        function: target,
        base: caller.base.plus(from.frame),
        local: caller.local + from.local,
        call: fragment.pc,
    };
    let local = frame.local + to.local;
    if fragment.frames.len() >= MAX_DEPTH || local > MAX_LOCAL {
        return Err(Fault::warp(DiagnosticKind::StackOverflow {
            depth: fragment.frames.len() as u32,
            bytes: u64::from(local),
        }));
    }
    cx.regs.reserve(frame.base.plus(to.frame));
    cx.local.reserve(local as usize);
    cx.local.poison(frame.local as usize, to.local as usize, fragment.mask);
    pass_all(cx, fragment.mask, (&caller, &site.args), (&frame, &to.params));
    fragment.frames.push(frame);
    fragment.pc = to.start;
    enter(cx, &frame);
    Ok(split)
}

/// Returns to the caller.
pub(super) fn ret(cx: &mut Context<'_>, fragment: &mut Fragment) {
    let (Some(frame), Some(caller)) = (fragment.frames.pop(), fragment.frames.last().copied())
    else {
        return;
    };
    if let Op::Call(site) = &cx.env.code[frame.call].op {
        let callee: &FunctionCode = &cx.env.functions[frame.function];
        pass_all(cx, fragment.mask, (&frame, &callee.returns), (&caller, &site.returns));
    }
    fragment.pc = frame.call + 1;
    enter(cx, &caller);
}

fn enter(cx: &mut Context<'_>, frame: &Frame) {
    cx.regs.set_base(frame.base);
    cx.frame = frame.local;
}

fn pass_all(
    cx: &mut Context<'_>,
    mask: u32,
    (from, sources): (&Frame, &[Passed]),
    (to, targets): (&Frame, &[Passed]),
) {
    for (source, target) in sources.iter().zip(targets) {
        for lane in lanes(mask) {
            pass(cx, lane, (from, *source), (to, *target));
        }
    }
}

fn pass(
    cx: &mut Context<'_>,
    lane: usize,
    (from, source): (&Frame, Passed),
    (to, target): (&Frame, Passed),
) {
    if let (Passed::Frame { offset, bytes }, Passed::Frame { offset: at, bytes: room }) =
        (source, target)
    {
        let (a, b) = ((from.local + offset) as usize, (to.local + at) as usize);
        return cx.local.copy(lane, a, b, bytes.min(room) as usize);
    }
    let value = read(cx, lane, from, source);
    write(cx, lane, to, target, value);
}

fn read(cx: &mut Context<'_>, lane: usize, frame: &Frame, source: Passed) -> u128 {
    let at = |cx: &mut Context<'_>, base: FrameSize| cx.regs.set_base(base);
    at(cx, frame.base);
    let wide = |cx: &Context<'_>, slot: Slot| u128::from(cx.regs.row64(slot)[lane]);
    match source {
        Passed::Frame { offset, bytes } => {
            let mut value = 0;
            for k in 0..bytes.min(16) as usize {
                let byte = cx.local.load(lane, (frame.local + offset) as usize + k, 1)[0];
                value |= u128::from(byte) << (8 * k);
            }
            value
        }
        Passed::R32(slot, bytes) => {
            let value = cx.regs.row32(slot)[lane];
            u128::from(if bytes >= 4 { value } else { value & ((1 << (8 * bytes)) - 1) })
        }
        Passed::R64(slot) => wide(cx, slot),
        Passed::R128(slot) => wide(cx, slot) | wide(cx, slot.next()) << 64,
    }
}

fn write(cx: &mut Context<'_>, lane: usize, frame: &Frame, target: Passed, value: u128) {
    cx.regs.set_base(frame.base);
    match target {
        Passed::Frame { offset, bytes } => {
            for k in 0..bytes.min(16) as usize {
                let byte = (value >> (8 * k)) as u64 & 0xff;
                let at = (frame.local + offset) as usize + k;
                cx.local.store(lane, at, 1, &[byte, 0, 0, 0]);
            }
        }
        Passed::R32(slot, bytes) => {
            let value = value as u32;
            let value = if bytes >= 4 { value } else { value & ((1 << (8 * bytes)) - 1) };
            cx.regs.put_lane(slot, lane, value);
        }
        Passed::R64(slot) => cx.regs.put_lane(slot, lane, value as u64),
        Passed::R128(slot) => {
            cx.regs.put_lane(slot, lane, value as u64);
            cx.regs.put_lane(slot.next(), lane, (value >> 64) as u64);
        }
    }
}
