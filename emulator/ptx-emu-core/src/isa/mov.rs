//! Data movement between registers: PTX ISA 9.7.9.1, 9.7.9.2 (`mov`), 9.7.9.20
//! (`cvta`), 9.7.9.19 (`isspacep`).
//!
//! `mov` of a variable's name gives its address in its own state space, of a
//! function's name a value that only an indirect call understands.

use super::Instructions;
use crate::Family;
use crate::decode::{Decode, Decoded, Destination, Reject, Source, Type};
use crate::machine::code::Op;
use crate::machine::regs::{Bits, Class, LANES, Slot, map_row};
use crate::machine::{RANK_SHIFT, window};
use crate::syntax::ast::Operand;
use ptx_emu_simd::{Host, on_host};

/// Moves and conversions of addresses.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "mov" | "cvta" | "isspacep"),
    decode: |d| Ok((Family::Move, on_host!(h => decode(d, h))?)),
};

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "cvta" => cvta(d),
        "isspacep" => isspacep(d),
        _ => mov(d, h),
    }
}

fn mov(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let ty = d.ty()?;
    let (target, value) = (d.operand(0)?, d.operand(1)?);
    if ty == Type::Pred {
        let target = d.pred_target(target)?;
        let value = d.pred(value)?;
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            let value = regs.pred(value);
            regs.set_pred(target, mask, value);
        })));
    }
    let targets = d.elements(target);
    let values = d.elements(value);
    match (targets.len(), values.len()) {
        (0, _) | (_, 0) => Err(Reject::operand("an empty vector")),
        (1, 1) => {
            let is_name =
                |o: &Operand| matches!(o, Operand::Ident(_) | Operand::SymbolOffset { .. });
            if ty.bits() == 32
                && is_name(value)
                && let Some(slot) = named_address32(d, value)
            {
                let target = d.dst::<u32>(0)?;
                return Ok(copy::<u32>(target, slot));
            }
            match ty.bits() {
                128 => move128(d, target, value),
                64 if ty == Type::F64 => d.on(h).map1(|a: f64| a),
                64 => d.on(h).map1(|a: u64| a),
                _ if ty == Type::F32 => d.on(h).map1(|a: f32| a),
                16 => d.on(h).map1(|a: u16| a),
                8 => d.on(h).map1(|a: u8| a),
                _ => d.on(h).map1(|a: u32| a),
            }
        }
        (1, _) => pack(d, h, ty, target, &values),
        (_, 1) => unpack(d, h, ty, &targets, value),
        _ => Err(Reject::unsupported("mov from vector to vector")),
    }
}

fn named_address32(d: &mut Decode<'_>, value: &Operand) -> Option<Slot> {
    match value {
        Operand::Ident(name) => d.address32(name, 0),
        Operand::SymbolOffset { name, offset } => d.address32(name, *offset),
        _ => None,
    }
}

fn copy<B: Bits>(target: Slot, source: Slot) -> Op {
    Op::Alu(Box::new(move |regs, mask| {
        let row = *B::row(regs, source);
        regs.put(target, mask, &row);
    }))
}

fn wide(d: &mut Decode<'_>, operand: &Operand) -> Decoded<Option<Slot>> {
    match d.destination(operand)? {
        None => Ok(None),
        Some(Destination { class: Class::R128, slot, .. }) => Ok(Some(slot)),
        Some(other) => Err(Reject::operand(format!(
            "destination: required a .b128 register, actual {} bits",
            other.bits
        ))),
    }
}

fn move128(d: &mut Decode<'_>, target: &Operand, value: &Operand) -> Decoded<Op> {
    let Some(target) = wide(d, target)? else {
        return Ok(Op::Nop);
    };
    let source = d.source(value, 128)?;
    if source.class != Class::R128 {
        return Err(Reject::operand("source: required a .b128 register"));
    }
    let source = source.slot;
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let rows = [*regs.row64(source), *regs.row64(source.next())];
        regs.put(target, mask, &rows[0]);
        regs.put(target.next(), mask, &rows[1]);
    })))
}

/// `mov.b32 d, {a, b}`: the first element is the least significant.
fn pack(
    d: &mut Decode<'_>,
    h: impl Host,
    ty: Type,
    target: &Operand,
    values: &[Operand],
) -> Decoded<Op> {
    let each = ty.bits() / values.len() as u32;
    if each < 8 || each * values.len() as u32 != ty.bits() {
        return Err(Reject::operand("vector that does not fit the type"));
    }
    let sources: Vec<Source> =
        values.iter().map(|value| d.source(value, each)).collect::<Decoded<_>>()?;
    if sources.iter().any(|s| (s.class == Class::R64) != (each == 64) || s.class == Class::Pred) {
        return Err(Reject::operand(format!("elements: required {each} bits each")));
    }
    if each == 64 {
        let Some(target) = wide(d, target)? else {
            return Ok(Op::Nop);
        };
        let (a, b) = (sources[0].slot, sources[1].slot);
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            let rows = [*regs.row64(a), *regs.row64(b)];
            regs.put(target, mask, &rows[0]);
            regs.put(target.next(), mask, &rows[1]);
        })));
    }
    let slots: Vec<Slot> = sources.iter().map(|s| s.slot).collect();
    let gather = move |regs: &crate::machine::regs::Regs, first: usize, count: usize| {
        let slots = &slots[first..first + count];
        h.run(|| {
            let mut out = [0u64; LANES];
            let keep = (1u64 << each) - 1;
            for (k, slot) in slots.iter().enumerate() {
                for (out, a) in out.iter_mut().zip(regs.row32(*slot)) {
                    *out |= (u64::from(*a) & keep) << (k as u32 * each);
                }
            }
            out
        })
    };
    let count = values.len();
    match ty.bits() {
        128 => {
            let Some(target) = wide(d, target)? else {
                return Ok(Op::Nop);
            };
            Ok(Op::Alu(Box::new(move |regs, mask| {
                let low = gather(regs, 0, count / 2);
                let high = gather(regs, count / 2, count / 2);
                regs.put(target, mask, &low);
                regs.put(target.next(), mask, &high);
            })))
        }
        64 => {
            let target = d.dst_of::<u64>(target)?;
            Ok(Op::Alu(Box::new(move |regs, mask| {
                let row = gather(regs, 0, count);
                regs.put(target, mask, &row);
            })))
        }
        _ => {
            let target = d.dst_of::<u32>(target)?;
            let slots: Vec<Slot> = sources.iter().map(|s| s.slot).collect();
            Ok(Op::Alu(Box::new(move |regs, mask| {
                h.run(|| {
                    let mut row = [0; LANES];
                    let keep = (1 << each) - 1;
                    for (k, slot) in slots.iter().enumerate() {
                        let up = k as u32 * each;
                        for (out, a) in row.iter_mut().zip(regs.row32(*slot)) {
                            *out |= (a & keep) << up;
                        }
                    }
                    regs.put(target, mask, &row);
                });
            })))
        }
    }
}

/// `mov.b32 {a, b}, d`
fn unpack(
    d: &mut Decode<'_>,
    h: impl Host,
    ty: Type,
    targets: &[Operand],
    value: &Operand,
) -> Decoded<Op> {
    let each = ty.bits() / targets.len() as u32;
    if each < 8 || each * targets.len() as u32 != ty.bits() {
        return Err(Reject::operand("vector that does not fit the type"));
    }
    let source = d.source(value, ty.bits())?;
    let class = match ty.bits() {
        128 => Class::R128,
        64 => Class::R64,
        _ => Class::R32,
    };
    if source.class != class {
        return Err(Reject::operand(format!("source: required {} bits", ty.bits())));
    }
    let mut places = Vec::new();
    for (k, target) in targets.iter().enumerate() {
        if let Some(target) = d.destination(target)? {
            if (target.class == Class::R64) != (each == 64) || target.class == Class::Pred {
                return Err(Reject::operand(format!("elements: required {each} bits each")));
            }
            places.push((k as u32 * each, target.slot));
        }
    }
    let slot = source.slot;
    if class == Class::R32 {
        let keep = ((1u64 << each) - 1) as u32;
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            let row = *regs.row32(slot);
            h.run(|| {
                for &(shift, target) in &places {
                    regs.put(target, mask, &map_row(&row, |value| value >> shift & keep));
                }
            });
        })));
    }
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let rows = match class {
            Class::R128 => [*regs.row64(slot), *regs.row64(slot.next())],
            _ => [*regs.row64(slot), [0; LANES]],
        };
        h.run(|| {
            for &(at, target) in &places {
                let row = &rows[(at / 64) as usize];
                if each == 64 {
                    regs.put(target, mask, row);
                } else {
                    let keep = ((1u64 << each) - 1) as u32;
                    let shift = at % 64;
                    regs.put(target, mask, &map_row(row, |value| (value >> shift) as u32 & keep));
                }
            }
        });
    })))
}

/// The window of a state space modifier.
fn window_of(d: &mut Decode<'_>) -> Decoded<u64> {
    d.pick(|m| {
        Some(match m {
            "global" => 0,
            "shared" | "shared::cta" | "shared::cluster" => window::SHARED,
            "local" => window::LOCAL,
            "const" => window::CONST,
            "param" | "param::entry" => window::PARAM,
            _ => return None,
        })
    })
    .ok_or_else(|| Reject::unsupported("no known state space"))
}

fn cvta(d: &mut Decode<'_>) -> Decoded<Op> {
    let to = d.has("to");
    let window = window_of(d)?;
    let ty = d.ty()?;
    if ty.bits() != 64 {
        return Err(Reject::unsupported("32-bit generic addresses"));
    }
    if to {
        d.map1(move |a: u64| a.wrapping_sub(window))
    } else {
        d.map1(move |a: u64| a.wrapping_add(window))
    }
}

fn isspacep(d: &mut Decode<'_>) -> Decoded<Op> {
    // Shared memory without `::cluster` is the executing CTA's own.
    let own = !d.ins.modifiers.iter().any(|modifier| modifier == "shared::cluster");
    let window = window_of(d)?;
    let own = own && window == window::SHARED;
    let p = d.operand(0)?;
    let p = d.pred_target(p)?;
    let a = d.src::<u64>(1)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let rank = cx.place.rank;
        let mut inside = 0;
        for (lane, &address) in cx.regs.row64(a).iter().enumerate() {
            let here = !own || address as u32 >> RANK_SHIFT == rank;
            inside |= u32::from(window::tag(address) == window && here) << lane;
        }
        cx.regs.set_pred(p, mask, inside);
        Ok(())
    })))
}
