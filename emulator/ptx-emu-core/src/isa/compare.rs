//! Comparison and selection: PTX ISA 9.7.6 and 9.7.7 (`set`, `setp`, `selp`,
//! `slct`), `testp` (9.7.3.1). Complete.

use super::Instructions;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::machine::regs::{Bits, LANES, Pred, Regs, Scalar, Slot};
use crate::num::compare::{self, FloatCmp, IntCmp, TestOp};
use crate::num::single;
use ptx_emu_simd::{Host, Plain, on_host};

/// Comparisons and selections.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "setp" | "set" | "selp" | "slct"),
    decode: |d| Ok((Family::Predicate, on_host!(h => decode(d, h))?)),
};

/// Boolean operator that joins a comparison and a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combine {
    And,
    Or,
    Xor,
}

impl Combine {
    fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        }
    }
}

/// A comparison of two rows: a lane mask, or two for packed types.
type Compare = Box<dyn Fn(&Regs) -> (u32, u32) + Send + Sync>;

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "setp" => setp(d, h),
        "set" => set(d, h),
        "selp" => selp(d, h),
        _ => slct(d, h),
    }
}

fn float_op(name: &str) -> Option<FloatCmp> {
    Some(match name {
        "eq" => FloatCmp::Eq,
        "ne" => FloatCmp::Ne,
        "lt" => FloatCmp::Lt,
        "le" => FloatCmp::Le,
        "gt" => FloatCmp::Gt,
        "ge" => FloatCmp::Ge,
        "equ" => FloatCmp::Equ,
        "neu" => FloatCmp::Neu,
        "ltu" => FloatCmp::Ltu,
        "leu" => FloatCmp::Leu,
        "gtu" => FloatCmp::Gtu,
        "geu" => FloatCmp::Geu,
        "num" => FloatCmp::Num,
        "nan" => FloatCmp::Nan,
        _ => return None,
    })
}

fn int_op(name: &str) -> Option<IntCmp> {
    Some(match name {
        "eq" => IntCmp::Eq,
        "ne" => IntCmp::Ne,
        "lt" | "lo" => IntCmp::Lt,
        "le" | "ls" => IntCmp::Le,
        "gt" | "hi" => IntCmp::Gt,
        "ge" | "hs" => IntCmp::Ge,
        _ => return None,
    })
}

fn rows<T: Scalar>(
    h: impl Host,
    a: Slot,
    b: Slot,
    test: impl Fn(T, T) -> bool + Send + Sync + 'static,
) -> Compare {
    Box::new(move |regs| {
        h.run(|| {
            let (a, b) = (T::Bits::row(regs, a), T::Bits::row(regs, b));
            let mut mask = 0;
            for lane in 0..LANES {
                mask |= u32::from(test(T::get(a[lane]), T::get(b[lane]))) << lane;
            }
            (mask, 0)
        })
    })
}

/// The comparison between operands `at` and `at + 1`.
fn comparison(
    d: &mut Decode<'_>,
    h: impl Host,
    name: &str,
    ty: Type,
    ftz: bool,
    at: usize,
) -> Decoded<Compare> {
    let unknown = || Reject::unsupported(format!("comparison .{name} of {ty:?}"));
    macro_rules! integer {
        ($T:ty) => {{
            let op = int_op(name).ok_or_else(unknown)?;
            let (a, b) = (d.src::<$T>(at)?, d.src::<$T>(at + 1)?);
            // One closure an operator, so that none is chosen for each lane.
            Ok(match op {
                IntCmp::Eq => rows::<$T>(h, a, b, |a, b| a == b),
                IntCmp::Ne => rows::<$T>(h, a, b, |a, b| a != b),
                IntCmp::Lt => rows::<$T>(h, a, b, |a, b| a < b),
                IntCmp::Le => rows::<$T>(h, a, b, |a, b| a <= b),
                IntCmp::Gt => rows::<$T>(h, a, b, |a, b| a > b),
                IntCmp::Ge => rows::<$T>(h, a, b, |a, b| a >= b),
            })
        }};
    }
    macro_rules! float {
        ($T:ty, $f:expr) => {{
            let op = float_op(name).ok_or_else(unknown)?;
            let (a, b) = (d.src::<$T>(at)?, d.src::<$T>(at + 1)?);
            Ok(rows::<$T>(h, a, b, move |a, b| $f(op, a, b)))
        }};
    }
    macro_rules! packed {
        ($f:expr) => {{
            let op = float_op(name).ok_or_else(unknown)?;
            let (a, b) = (d.src::<u32>(at)?, d.src::<u32>(at + 1)?);
            Ok(Box::new(move |regs: &Regs| {
                let (a, b) = (regs.row32(a), regs.row32(b));
                let (mut low, mut high) = (0, 0);
                for lane in 0..LANES {
                    let test =
                        |shift: u32| $f(op, (a[lane] >> shift) as u16, (b[lane] >> shift) as u16);
                    low |= u32::from(test(0)) << lane;
                    high |= u32::from(test(16)) << lane;
                }
                (low, high)
            }))
        }};
    }
    match ty {
        Type::B16 | Type::U16 => integer!(u16),
        Type::S16 => integer!(i16),
        Type::B32 | Type::U32 => integer!(u32),
        Type::S32 => integer!(i32),
        Type::B64 | Type::U64 => integer!(u64),
        Type::S64 => integer!(i64),
        Type::F32 => float!(f32, |op, a, b| compare::f32(op, a, b, ftz)),
        Type::F64 => float!(f64, compare::f64),
        Type::F16 => float!(u16, |op, a, b| compare::f16(op, a, b, ftz)),
        Type::Bf16 => float!(u16, compare::bf16),
        Type::F16x2 => packed!(|op, a, b| compare::f16(op, a, b, ftz)),
        Type::Bf16x2 => packed!(compare::bf16),
        other => d.bad_type(other),
    }
}

fn operator(d: &mut Decode<'_>) -> Decoded<String> {
    d.pick(|m| (float_op(m).is_some() || int_op(m).is_some()).then(|| m.to_owned()))
        .ok_or_else(|| Reject::unsupported("no known comparison"))
}

fn combine(d: &mut Decode<'_>) -> Option<Combine> {
    d.pick(|m| match m {
        "and" => Some(Combine::And),
        "or" => Some(Combine::Or),
        "xor" => Some(Combine::Xor),
        _ => None,
    })
}

fn setp(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let name = operator(d)?;
    let combine = combine(d);
    let ftz = d.has("ftz");
    let ty = d.ty()?;
    let (p, q) = Decode::pair(d.operand(0)?);
    let p = d.pred_target(p)?;
    let q = q.map(|q| d.pred_target(q)).transpose()?;
    let compare = comparison(d, h, &name, ty, ftz, 1)?;
    let other = match combine {
        None => None,
        Some(combine) => {
            let c = d.operand(3)?;
            Some((combine, d.pred(c)?))
        }
    };
    let packed = matches!(ty, Type::F16x2 | Type::Bf16x2);
    if let (false, None, None) = (packed, q, other) {
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            let (result, _) = compare(regs);
            regs.set_pred(p, mask, result);
        })));
    }
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let (low, high) = compare(regs);
        let with = |value: u32| match other {
            None => value,
            Some((combine, c)) => combine.apply(value, regs.pred(c)),
        };
        // Scalars: q is the opposite comparison; packed: the upper half's.
        let (first, second) = (with(low), with(if packed { high } else { !low }));
        regs.set_pred(p, mask, first);
        if let Some(q) = q {
            regs.set_pred(q, mask, second);
        }
    })))
}

fn set(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let name = operator(d)?;
    let combine = combine(d);
    let ftz = d.has("ftz");
    let (to, from) = (d.ty()?, d.ty()?);
    let packed = matches!(from, Type::F16x2 | Type::Bf16x2);
    let (one, dst) = match to {
        Type::U32 | Type::S32 => (u32::MAX, d.dst::<u32>(0)?),
        Type::F32 => (1f32.to_bits(), d.dst::<u32>(0)?),
        Type::U16 | Type::S16 => (0xffff, d.dst::<u16>(0)?),
        Type::F16 => (0x3c00, d.dst::<u16>(0)?),
        Type::Bf16 => (0x3f80, d.dst::<u16>(0)?),
        Type::F16x2 => (0x3c00_3c00, d.dst::<u32>(0)?),
        Type::Bf16x2 => (0x3f80_3f80, d.dst::<u32>(0)?),
        other => return d.bad_type(other),
    };
    let compare = comparison(d, h, &name, from, ftz, 1)?;
    let other = match combine {
        None => None,
        Some(combine) => {
            let c = d.operand(3)?;
            Some((combine, d.pred(c)?))
        }
    };
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let (low, high) = compare(regs);
        let with = |value: u32| match other {
            None => value,
            Some((combine, c)) => combine.apply(value, regs.pred(c)),
        };
        let (low, high) = (with(low), with(high));
        let mut out = [0; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            let bit = |mask: u32, value: u32| if mask >> lane & 1 != 0 { value } else { 0 };
            *out = if packed {
                bit(low, one & 0xffff) | bit(high, one & 0xffff_0000)
            } else {
                bit(low, one)
            };
        }
        regs.put(dst, mask, &out);
    })))
}

fn selp(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let ty = d.ty()?;
    let p = d.operand(3)?;
    let p = d.pred(p)?;
    match ty {
        Type::F32 => select::<f32>(d, h, p),
        Type::F64 => select::<f64>(d, h, p),
        _ if ty.bits() == 64 => select::<u64>(d, h, p),
        _ if ty.bits() == 16 => select::<u16>(d, h, p),
        _ if ty.bits() == 32 => select::<u32>(d, h, p),
        _ => d.bad_type(ty),
    }
}

fn select<T: Scalar>(d: &mut Decode<'_>, h: impl Host, p: Pred) -> Decoded<Op> {
    let (dst, a, b) = (d.dst::<T>(0)?, d.src::<T>(1)?, d.src::<T>(2)?);
    Ok(Op::Alu(Box::new(move |regs, mask| {
        h.run(|| {
            let chosen = regs.pred(p);
            let mut out = *T::Bits::row(regs, b);
            let a = T::Bits::row(regs, a);
            for lane in 0..LANES {
                out[lane] = if chosen >> lane & 1 != 0 { a[lane] } else { out[lane] };
            }
            regs.put(dst, mask, &out);
        });
    })))
}

/// `slct.dtype.stype d, a, b, c`: `a` where `c >= 0`, else `b`; NaN takes `b`.
fn slct(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let ftz = d.has("ftz");
    let (ty, by) = (d.ty()?, d.ty()?);
    macro_rules! by {
        ($T:ty) => {
            match by {
                Type::S32 => d.on(h).map3(|a: $T, b: $T, c: i32| if c >= 0 { a } else { b }),
                Type::F32 => d.on(h).map3(
                    move |a: $T, b: $T, c: f32| {
                        if single::flush(c, ftz) >= 0.0 { a } else { b }
                    },
                ),
                other => d.bad_type(other),
            }
        };
    }
    match ty {
        Type::F32 => by!(f32),
        Type::F64 => by!(f64),
        _ if ty.bits() == 64 => by!(u64),
        _ if ty.bits() == 32 => by!(u32),
        _ if ty.bits() == 16 => by!(u16),
        _ => d.bad_type(ty),
    }
}

/// `testp.op.type p, a`
pub(super) fn testp(d: &mut Decode<'_>) -> Decoded<Op> {
    let op = d
        .pick(|m| {
            Some(match m {
                "finite" => TestOp::Finite,
                "infinite" => TestOp::Infinite,
                "number" => TestOp::Number,
                "notanumber" => TestOp::NotANumber,
                "normal" => TestOp::Normal,
                "subnormal" => TestOp::Subnormal,
                _ => return None,
            })
        })
        .ok_or_else(|| Reject::unsupported("no known test"))?;
    let p = d.operand(0)?;
    let p = d.pred_target(p)?;
    let test = match d.ty()? {
        Type::F32 => {
            let a = d.src::<f32>(1)?;
            rows::<f32>(Plain, a, a, move |a, _| compare::testp_f32(op, a))
        }
        Type::F64 => {
            let a = d.src::<f64>(1)?;
            rows::<f64>(Plain, a, a, move |a, _| compare::testp_f64(op, a))
        }
        other => return d.bad_type(other),
    };
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let (result, _) = test(regs);
        regs.set_pred(p, mask, result);
    })))
}
