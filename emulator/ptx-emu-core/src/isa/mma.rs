//! Matrix products of a warp: PTX ISA 9.7.14.5 (`mma.sync`), with block scales
//! (9.7.14.3).
//!
//! All dense shapes and types, including the `kind::` forms of sm_120a. Arithmetic
//! is that of [`tensor`](crate::tensor), which states how far hardware may differ.
//! Products of the `kind::` forms and of block scales are exact, their sum with `C` is exact as far as f64 goes, and
//! one rounding to nearest even makes the result. How the hardware of sm_120a cuts terms and rounds is not published,
//! and no such GPU was recorded: results may differ in the last bits.
//! The warp executes as a whole; lanes that never reach the instruction, or that have exited,
//! are reported. `mma.sp` is not modelled.
//!
//! Scale selectors that PTX leaves undefined are an error at load if they are constants, else a finding, as
//! are registers that differ between lanes.
//!
//! Not noticed: padding bits of 4- and 6-bit operands that are not zero. So 4-bit operands that
//! `ldmatrix` has unpacked and that were not shifted left by 2 give wrong results and no finding.

mod float;
pub(super) mod form;
mod integer;
mod quad;
mod scales;

use super::Instructions;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{DiagnosticKind, Exec, Fault};
use crate::machine::Context;
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Regs, Scalar, Slot};
use crate::machine::units::lanes;
use crate::syntax::ast::{Imm, Operand};
use crate::tensor::fragment::{Fragment, accumulator};
use form::{Form, Kind};

/// `mma`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "mma",
    decode: |d| Ok((Family::Matrix, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.modifiers.iter().any(|m| m.starts_with("sp")) {
        return Err(Reject::unsupported("sparse operands"));
    }
    let form = Form::decode(d)?;
    let op = match form.kind {
        Kind::Quad { a_row, b_row } => quad::decode(d, &form, a_row, b_row),
        Kind::Float | Kind::Scaled(_) => float::decode(d, &form),
        Kind::Double => float::decode_double(d, &form),
        Kind::Integer { saturate } => integer::decode(d, &form, saturate),
        Kind::Bits { xor } => integer::decode_bits(d, &form, xor),
    }?;
    Ok(counted(op, &form))
}

/// The operation, its multiply-adds counted.
fn counted(op: Op, form: &Form) -> Op {
    let products = if matches!(form.kind, Kind::Quad { .. }) { 4 } else { 1 };
    let multiplies = (products * form.m * 8 * form.k) as u64;
    let (element, packed) = (form.a, form.container == 4);
    // Products with block scales run at the rate of f16 sums on GeForce cards, too.
    let in_f32 = form.d == form::Accumulator::F32 && !matches!(form.kind, Kind::Scaled(_));
    match op {
        Op::Exchange { members, run } => Op::Exchange {
            members,
            run: Box::new(move |cx, mask| {
                cx.stats.tensor.count(element, packed, in_f32, multiplies);
                run(cx, mask)
            }),
        },
        other => other,
    }
}

/// Marks what is undefined of a product: a row of `D` depends on that row of `A`, a column on that of
/// `B`, an element on that of `C`. The last two have their elements per register.
fn undefine(
    regs: &mut Regs,
    (a, a_slots): (Fragment, &[Slot]),
    (b, b_slots): (Fragment, &[Slot]),
    (c, of_c): (&[Slot], usize),
    (d, of_d): (&[Slot], usize),
) {
    let lines = |fragment: Fragment, slots: &[Slot]| {
        slots.iter().enumerate().fold(0u32, |all, (register, &slot)| {
            lanes(regs.undefined(slot))
                .fold(all, |all, lane| all | 1 << fragment.place(lane, register).0)
        })
    };
    let (rows, columns) = (lines(a, a_slots), lines(b, b_slots));
    let mut elements = [0u32; 16];
    for (register, &slot) in c.iter().enumerate() {
        for lane in lanes(regs.undefined(slot)) {
            for e in 0..of_c {
                let (row, column) = accumulator(lane, of_c * register + e);
                elements[row] |= 1 << column;
            }
        }
    }
    for (register, &slot) in d.iter().enumerate() {
        let depends = |lane: &usize| {
            (0..of_d).any(|e| {
                let (row, column) = accumulator(*lane, of_d * register + e);
                rows >> row & 1 != 0 || (columns | elements[row]) >> column & 1 != 0
            })
        };
        let found = (0..LANES).filter(depends).fold(0, |all, lane| all | 1 << lane);
        regs.undefine(slot, FULL, found, None);
    }
}

/// An operation of the whole warp.
pub(super) fn whole_warp(
    d: &mut Decode<'_>,
    run: impl Fn(&mut Context<'_>) -> Exec + Send + Sync + 'static,
) -> Decoded<Op> {
    let everyone = Imm::Int { bits: FULL.into(), unsigned: true };
    let members = d.src_of::<u32>(&Operand::Imm(everyone))?;
    Ok(Op::Exchange {
        members,
        run: Box::new(move |cx, mask| {
            if mask != FULL {
                let kind = DiagnosticKind::MissingMembers { present: mask, members: FULL };
                return Err(Fault::warp(kind));
            }
            run(cx)
        }),
    })
}

/// `.sync.aligned`, which every instruction of a whole warp has.
pub(super) fn sync_aligned(d: &mut Decode<'_>) -> Decoded<()> {
    for name in ["sync", "aligned"] {
        if !d.has(name) {
            return Err(Reject::unsupported(format!("no .{name}")));
        }
    }
    Ok(())
}

/// The registers of a vector source.
pub(super) fn sources<T: Scalar>(
    d: &mut Decode<'_>,
    at: usize,
    count: usize,
) -> Decoded<Vec<Slot>> {
    registers(d, at, count, |d, item| d.src_of::<T>(item))
}

/// The registers of a vector destination.
pub(super) fn targets<T: Scalar>(
    d: &mut Decode<'_>,
    at: usize,
    count: usize,
) -> Decoded<Vec<Slot>> {
    registers(d, at, count, |d, item| d.dst_of::<T>(item))
}

/// The registers of a vector operand of `count` elements.
fn registers(
    d: &mut Decode<'_>,
    at: usize,
    count: usize,
    register: impl Fn(&mut Decode<'_>, &Operand) -> Decoded<Slot>,
) -> Decoded<Vec<Slot>> {
    let operand = d.operand(at)?;
    let items = d.elements(operand);
    required("registers", at, count, items.len())?;
    items.iter().map(|item| register(d, item)).collect()
}

fn required(what: &str, at: usize, required: usize, actual: usize) -> Decoded<()> {
    if required == actual {
        return Ok(());
    }
    Err(Reject::operand(format!("operand {at}: {what}: required {required}, actual {actual}")))
}
