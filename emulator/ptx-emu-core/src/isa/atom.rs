//! Atomics: PTX ISA 9.7.13.10 (`atom`), 9.7.13.11 (`red`), vectors included.
//!
//! Lanes are processed in lane order. Ordering and scope modifiers have no further
//! effect, because memory is sequentially consistent here. As PTX specifies, `atom.add.f32`
//! flushes subnormals in global memory and not in shared memory.
//! `red.async` is in `cluster`.

use super::mem;
use super::{Instructions, first_modifier};
use crate::Family;
use crate::decode::{Decode, Decoded, Destination, Reject, Source, Type};
use crate::diagnostic::Space;
use crate::machine::AddressSpace;
use crate::machine::code::Op;
use crate::machine::race::Order;
use crate::machine::regs::{Class, LANES};
use crate::memory::Value;
use crate::num::{FloatFlags, MinMaxFlags, Rounding, bfloat, double, half, single};

/// Atomics and reductions.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| match ins.opcode.as_str() {
        "atom" => true,
        opcode => opcode == "red" && first_modifier(ins) != "async",
    },
    decode: |d| Ok((Family::Atomic, decode(d)?)),
};

/// New value of one element from old value and operands; the flag says that it
/// is in global memory.
type Update = Box<dyn Fn(u64, u64, u64, bool) -> u64 + Send + Sync>;

const OPS: [&str; 10] = ["and", "or", "xor", "exch", "cas", "add", "inc", "dec", "min", "max"];

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.modifiers.iter().any(|m| m == "async") {
        return Err(Reject::unsupported("asynchronous reduction"));
    }
    let returns = d.ins.opcode == "atom";
    let order = mem::semantics(d).unwrap_or(Order::Relaxed);
    mem::skip_hints(d);
    mem::order(d);
    let space = mem::space(d);
    let op = d
        .pick(|m| OPS.into_iter().find(|op| *op == m))
        .ok_or_else(|| Reject::unsupported("no known operation"))?;
    let count = mem::vector(d);
    let ty = d.ty()?;
    let at = usize::from(returns);
    let operand = d.operand(at)?;
    let (address, space) = mem::address(d, operand, space)?;
    if !matches!(space, AddressSpace::One(Space::Shared) | AddressSpace::Cluster) {
        d.function.global_sync = true;
    }
    let target = d.operand(0)?;
    if ty == Type::B128 {
        return wide(d, returns, op, (address, space), order);
    }
    let update = update(d, op, ty)?;
    let targets: Vec<Option<Destination>> = if returns {
        let targets = d.elements(target);
        targets.iter().map(|target| d.destination(target)).collect::<Decoded<_>>()?
    } else {
        vec![None; count]
    };
    let values = d.operand(at + 1)?;
    let values = d.elements(values);
    let bits = if ty.bits() == 64 { 64 } else { 32 };
    let sources: Vec<Source> = values
        .iter()
        .map(|value| match ty {
            Type::F32 => source_of(Class::R32, d.src_of::<f32>(value)),
            Type::F64 => source_of(Class::R64, d.src_of::<f64>(value)),
            _ => d.source(value, bits),
        })
        .collect::<Decoded<_>>()?;
    if sources.len() != count || targets.len() != count || ty.bytes() as usize * count > 32 {
        return Err(Reject::operand(format!("operands: required vectors of {count}")));
    }
    let third = if op == "cas" {
        let third = d.operand(at + 2)?;
        d.source(third, bits)?
    } else {
        sources[0]
    };
    let wanted = if bits == 64 { Class::R64 } else { Class::R32 };
    let fits = sources.iter().chain([&third]).all(|s| s.class == wanted)
        && targets.iter().flatten().all(|t| t.class == wanted);
    if !fits {
        return Err(Reject::operand(format!("operands: required {} bits", ty.bits())));
    }
    let each = ty.bytes() as usize;
    if let ([source], [target]) = (sources.as_slice(), targets.as_slice()) {
        let one = One { address, space, order, each, source: *source, third, target: *target };
        return Ok(one.op(returns, update));
    }
    Ok(Op::Look(Box::new(move |cx, mask| {
        let addrs = address.rows(cx);
        let values: Vec<[u64; LANES]> =
            sources.iter().map(|s| mem::word_row(cx.regs, *s)).collect();
        let third = mem::word_row(cx.regs, third);
        let mut old = vec![[[0u64; LANES]; 4]; count];
        let keep = u64::MAX >> (64 - 8 * each);
        let mut apply = |lane: usize, space: Space, words: &Value| {
            let global = space == Space::Global;
            let mut new = *words;
            for (k, (old, value)) in old.iter_mut().zip(&values).enumerate() {
                let (word, shift) = (k * each / 8, k * each % 8 * 8);
                let element = words[word] >> shift & keep;
                old[0][lane] = element;
                let result = update(element, value[lane] & keep, third[lane] & keep, global) & keep;
                new[word] = new[word] & !(keep << shift) | result << shift;
            }
            Some(new)
        };
        cx.ordered(order, |cx| cx.atomic(space, &addrs, mask, each * count, &mut apply))?;
        for (target, old) in targets.iter().zip(&old) {
            if let Some(target) = target {
                mem::put_words(cx.regs, mask, *target, old);
            }
        }
        Ok(returns && cx.looked(&addrs, &old[0], mask))
    })))
}

/// An atomic of one element of up to 8 bytes a lane.
struct One {
    address: mem::Address,
    space: AddressSpace,
    order: Order,
    /// Bytes of the element.
    each: usize,
    source: Source,
    third: Source,
    target: Option<Destination>,
}

impl One {
    fn op(self, returns: bool, update: Update) -> Op {
        let Self { address, space, order, each, source, third, target } = self;
        let keep = u64::MAX >> (64 - 8 * each);
        Op::Look(Box::new(move |cx, mask| {
            let addrs = address.rows(cx);
            let value = mem::word_row(cx.regs, source);
            let third = mem::word_row(cx.regs, third);
            let mut old = [[0u64; LANES]; 4];
            let [found, ..] = &mut old;
            let apply = |lane: usize, space: Space, words: &Value| {
                let (value, third) = (value[lane] & keep, third[lane] & keep);
                let element = words[0] & keep;
                found[lane] = element;
                let result = update(element, value, third, space == Space::Global) & keep;
                Some([result, 0, 0, 0])
            };
            cx.ordered(order, |cx| cx.atomic(space, &addrs, mask, each, apply))?;
            if let Some(target) = target {
                mem::put_words(cx.regs, mask, target, &old);
            }
            Ok(returns && cx.looked(&addrs, &old, mask))
        }))
    }
}

fn source_of(class: Class, slot: Decoded<crate::machine::regs::Slot>) -> Decoded<Source> {
    slot.map(|slot| Source { class, slot })
}

/// `.b128` exchange and compare-and-swap.
fn wide(
    d: &mut Decode<'_>,
    returns: bool,
    op: &str,
    (address, space): (mem::Address, AddressSpace),
    order: Order,
) -> Decoded<Op> {
    let cas = op == "cas";
    if !returns || !(cas || op == "exch") {
        return Err(Reject::unsupported(format!("{op}.b128")));
    }
    let target = d.operand(0)?;
    let target = d.destination(target)?;
    let value = d.operand(2)?;
    let value = d.source(value, 128)?;
    let swap = if cas {
        let swap = d.operand(3)?;
        d.source(swap, 128)?
    } else {
        value
    };
    let registers = [value.class, swap.class].into_iter().chain(target.map(|t| t.class));
    if registers.into_iter().any(|class| class != Class::R128) {
        return Err(Reject::operand("operands: required .b128 registers"));
    }
    Ok(Op::Look(Box::new(move |cx, mask| {
        let addrs = address.rows(cx);
        let row = |slot| [*cx.regs.row64(slot), mem::upper_row(cx.regs, slot)];
        let (value, swap) = (row(value.slot), row(swap.slot));
        let mut old = [[0; LANES]; 4];
        let mut apply = |lane: usize, _: Space, words: &Value| {
            old[0][lane] = words[0];
            old[1][lane] = words[1];
            let equal = words[0] == value[0][lane] && words[1] == value[1][lane];
            (!cas || equal).then(|| [swap[0][lane], swap[1][lane], 0, 0])
        };
        cx.ordered(order, |cx| cx.atomic(space, &addrs, mask, 16, &mut apply))?;
        if let Some(target) = target {
            mem::put_words(cx.regs, mask, target, &old);
        }
        Ok(cx.looked(&addrs, &old, mask))
    })))
}

fn update(d: &Decode<'_>, op: &str, ty: Type) -> Decoded<Update> {
    let bits = ty.bits();
    let integer = ty.is_integer() && bits >= 32;
    let untyped = integer || matches!(ty, Type::B16) && matches!(op, "cas" | "exch");
    Ok(match op {
        "exch" if untyped => Box::new(|_, b, _, _| b),
        "cas" if untyped => Box::new(|a, b, c, _| if a == b { c } else { a }),
        "and" if integer => Box::new(|a, b, _, _| a & b),
        "or" if integer => Box::new(|a, b, _, _| a | b),
        "xor" if integer => Box::new(|a, b, _, _| a ^ b),
        "add" if integer => Box::new(|a, b, _, _| a.wrapping_add(b)),
        "inc" if ty == Type::U32 => Box::new(|a, b, _, _| if a >= b { 0 } else { a + 1 }),
        "dec" if ty == Type::U32 => Box::new(|a, b, _, _| if a == 0 || a > b { b } else { a - 1 }),
        "min" | "max" => return min_max(d, ty, op == "max"),
        "add" => return float_add(d, ty),
        _ => return Err(Reject::unsupported(format!("{op} of {ty:?}"))),
    })
}

fn min_max(d: &Decode<'_>, ty: Type, max: bool) -> Decoded<Update> {
    const FLAGS: MinMaxFlags = MinMaxFlags { ftz: false, nan: false, abs: false, xorsign: false };
    Ok(match (ty, max) {
        (Type::U32 | Type::U64, true) => Box::new(|a, b, _, _| a.max(b)),
        (Type::U32 | Type::U64, false) => Box::new(|a, b, _, _| a.min(b)),
        (Type::S32, true) => Box::new(|a, b, _, _| (a as i32).max(b as i32) as u64),
        (Type::S32, false) => Box::new(|a, b, _, _| (a as i32).min(b as i32) as u64),
        (Type::S64, true) => Box::new(|a, b, _, _| (a as i64).max(b as i64) as u64),
        (Type::S64, false) => Box::new(|a, b, _, _| (a as i64).min(b as i64) as u64),
        (Type::F16, true) => Box::new(|a, b, _, _| half::max(a as u16, b as u16, FLAGS).into()),
        (Type::F16, false) => Box::new(|a, b, _, _| half::min(a as u16, b as u16, FLAGS).into()),
        (Type::Bf16, true) => Box::new(|a, b, _, _| bfloat::max(a as u16, b as u16, FLAGS).into()),
        (Type::Bf16, false) => Box::new(|a, b, _, _| bfloat::min(a as u16, b as u16, FLAGS).into()),
        (Type::F16x2, true) => {
            Box::new(|a, b, _, _| half::max_x2(a as u32, b as u32, FLAGS).into())
        }
        (Type::F16x2, false) => {
            Box::new(|a, b, _, _| half::min_x2(a as u32, b as u32, FLAGS).into())
        }
        (Type::Bf16x2, true) => {
            Box::new(|a, b, _, _| bfloat::max_x2(a as u32, b as u32, FLAGS).into())
        }
        (Type::Bf16x2, false) => {
            Box::new(|a, b, _, _| bfloat::min_x2(a as u32, b as u32, FLAGS).into())
        }
        _ => return d.bad_type(ty),
    })
}

fn float_add(d: &Decode<'_>, ty: Type) -> Decoded<Update> {
    const RN: Rounding = Rounding::Rn;
    const NONE: FloatFlags = FloatFlags::NONE;
    Ok(match ty {
        Type::F32 => Box::new(|a, b, _, global| {
            let flags = if global { FloatFlags::FTZ } else { NONE };
            let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            single::add(a, b, RN, flags).to_bits().into()
        }),
        Type::F64 => Box::new(|a, b, _, global| {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            // In shared memory it is an addition onto the operand.
            if global { double::add_in_memory(a, b) } else { double::add(b, a, RN) }.to_bits()
        }),
        Type::F16 => Box::new(|a, b, _, _| half::add(a as u16, b as u16, NONE).into()),
        Type::F16x2 => Box::new(|a, b, _, _| half::add_x2(a as u32, b as u32, NONE).into()),
        Type::Bf16 => Box::new(|a, b, _, _| bfloat::add(a as u16, b as u16).into()),
        Type::Bf16x2 => Box::new(|a, b, _, _| bfloat::add_x2(a as u32, b as u32).into()),
        _ => return d.bad_type(ty),
    })
}
