//! Integer arithmetic: PTX ISA 9.7.1 and 9.7.2 (extended precision).
//!
//! Models add, sub, mul, mad, sad, div, rem, abs, neg, min, max, mul24, mad24,
//! dp4a, dp2a, 16x2 forms, and the carry chain. The carry flag `CC.CF` is a
//! register of the frame; PTX leaves it undefined across calls, and so it is
//! here. Division by zero gives all ones, as PTX leaves open.

use super::{Instructions, is_arithmetic, last_type};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::machine::regs::{Bits, LANES, Pred, Scalar};
use crate::num::{int, packed};
use ptx_emu_simd::{Host, on_host};

/// Arithmetic on integers, and all arithmetic without a known type, which is refused.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| match ins.opcode.as_str() {
        "addc" | "subc" | "madc" | "rem" | "sad" | "mul24" | "mad24" | "dp4a" | "dp2a" => true,
        opcode => {
            let floating = matches!(
                last_type(ins),
                Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2)
                    | Some(Type::F32 | Type::F32x2 | Type::F64)
            );
            is_arithmetic(opcode) && !floating
        }
    },
    decode: |d| Ok((Family::Integer, on_host!(h => decode(d, h))?)),
};

/// Runs a body with `$T` as the host type of an integer type.
macro_rules! integers {
    ($d:ident, $ty:expr, $T:ident => $body:expr) => {
        match $ty {
            Type::U16 | Type::B16 => {
                type $T = u16;
                $body
            }
            Type::S16 => {
                type $T = i16;
                $body
            }
            Type::U32 | Type::B32 => {
                type $T = u32;
                $body
            }
            Type::S32 => {
                type $T = i32;
                $body
            }
            Type::U64 | Type::B64 => {
                type $T = u64;
                $body
            }
            Type::S64 => {
                type $T = i64;
                $body
            }
            other => $d.bad_type(other),
        }
    };
}
pub(super) use integers;

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "add" | "sub" | "addc" | "subc" => add_sub(d, h),
        "mul" | "mad" | "madc" => multiply(d, h),
        "mul24" | "mad24" => multiply24(d, h),
        "div" => match d.ty()? {
            Type::U16 => d.on(h).map2(int::div_u16),
            Type::S16 => d.on(h).map2(int::div_s16),
            Type::U32 => d.on(h).map2(int::div_u32),
            Type::S32 => d.on(h).map2(int::div_s32),
            Type::U64 => d.on(h).map2(int::div_u64),
            Type::S64 => d.on(h).map2(int::div_s64),
            other => d.bad_type(other),
        },
        "rem" => match d.ty()? {
            Type::U16 => d.on(h).map2(int::rem_u16),
            Type::S16 => d.on(h).map2(int::rem_s16),
            Type::U32 => d.on(h).map2(int::rem_u32),
            Type::S32 => d.on(h).map2(int::rem_s32),
            Type::U64 => d.on(h).map2(int::rem_u64),
            Type::S64 => d.on(h).map2(int::rem_s64),
            other => d.bad_type(other),
        },
        "sad" => match d.ty()? {
            Type::U16 => d.on(h).map3(int::sad_u16),
            Type::S16 => d.on(h).map3(int::sad_s16),
            Type::U32 => d.on(h).map3(int::sad_u32),
            Type::S32 => d.on(h).map3(int::sad_s32),
            Type::U64 => d.on(h).map3(int::sad_u64),
            Type::S64 => d.on(h).map3(int::sad_s64),
            other => d.bad_type(other),
        },
        "abs" => match d.ty()? {
            Type::S16 => d.on(h).map1(i16::wrapping_abs),
            Type::S32 => d.on(h).map1(i32::wrapping_abs),
            Type::S64 => d.on(h).map1(i64::wrapping_abs),
            other => d.bad_type(other),
        },
        "neg" => match d.ty()? {
            Type::S16 => d.on(h).map1(i16::wrapping_neg),
            Type::S32 => d.on(h).map1(i32::wrapping_neg),
            Type::S64 => d.on(h).map1(i64::wrapping_neg),
            other => d.bad_type(other),
        },
        "min" | "max" => min_max(d, h),
        "dp4a" => {
            let (a, b) = (signedness(d)?, signedness(d)?);
            match (a, b) {
                (true, true) => d.on(h).map3(|a, b, c| packed::dp4a(a, b, c, true, true)),
                (true, false) => d.on(h).map3(|a, b, c| packed::dp4a(a, b, c, true, false)),
                (false, true) => d.on(h).map3(|a, b, c| packed::dp4a(a, b, c, false, true)),
                (false, false) => d.on(h).map3(|a, b, c| packed::dp4a(a, b, c, false, false)),
            }
        }
        "dp2a" => {
            let hi = d.has("hi");
            if !hi && !d.has("lo") {
                return Err(Reject::unsupported("dp2a without .lo or .hi"));
            }
            let (a_signed, b_signed) = (signedness(d)?, signedness(d)?);
            d.on(h).map3(move |a, b, c| packed::dp2a(a, b, c, a_signed, b_signed, hi))
        }
        other => Err(Reject::unsupported(format!("instruction {other}"))),
    }
}

fn signedness(d: &mut Decode<'_>) -> Decoded<bool> {
    match d.ty()? {
        Type::S32 => Ok(true),
        Type::U32 => Ok(false),
        other => d.bad_type(other),
    }
}

fn min_max(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let max = d.ins.opcode == "max";
    let relu = d.has("relu");
    match (d.ty()?, relu) {
        (Type::U16x2, false) if max => d.on(h).map2(packed::max_u16x2),
        (Type::U16x2, false) => d.on(h).map2(packed::min_u16x2),
        (Type::S16x2, _) if max => d.on(h).map2(move |a, b| packed::max_s16x2(a, b, relu)),
        (Type::S16x2, _) => d.on(h).map2(move |a, b| packed::min_s16x2(a, b, relu)),
        (Type::S32, true) if max => d.on(h).map2(int::max_relu_s32),
        (Type::S32, true) => d.on(h).map2(int::min_relu_s32),
        (ty, false) if max => integers!(d, ty, T => d.on(h).map2(|a: T, b: T| a.max(b))),
        (ty, false) => integers!(d, ty, T => d.on(h).map2(|a: T, b: T| a.min(b))),
        (ty, true) => d.bad_type(ty),
    }
}

fn add_sub(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let subtract = d.ins.opcode.starts_with("sub");
    let carry_in = d.ins.opcode.ends_with('c');
    let carry_out = d.has("cc");
    let sat = d.has("sat");
    let ty = d.ty()?;
    if carry_in || carry_out {
        return match ty.bits() {
            32 => carry_chain::<u32>(d, carry_in, carry_out, move |a, b, carry| {
                with_carry(a, b, carry, subtract, carry_in)
            }),
            64 => carry_chain::<u64>(d, carry_in, carry_out, move |a, b, carry| {
                with_carry(a, b, carry, subtract, carry_in)
            }),
            _ => d.bad_type(ty),
        };
    }
    match (ty, sat, subtract) {
        (Type::S32, true, false) => d.on(h).map2(i32::saturating_add),
        (Type::S32, true, true) => d.on(h).map2(i32::saturating_sub),
        (_, true, _) => d.bad_type(ty),
        (Type::U16x2 | Type::S16x2, false, false) => d.on(h).map2(packed::add_16x2),
        (_, false, false) => integers!(d, ty, T => d.on(h).map2(T::wrapping_add)),
        (_, false, true) => integers!(d, ty, T => d.on(h).map2(T::wrapping_sub)),
    }
}

/// An unsigned type with carries.
trait Carry: Scalar {
    fn add(self, other: Self, carry: bool) -> (Self, bool);
    fn sub(self, other: Self, borrow: bool) -> (Self, bool);
}

macro_rules! carry {
    ($($ty:ty),*) => {$(
        impl Carry for $ty {
            fn add(self, other: Self, carry: bool) -> (Self, bool) {
                let (sum, first) = self.overflowing_add(other);
                let (sum, second) = sum.overflowing_add(<$ty>::from(carry));
                (sum, first | second)
            }
            fn sub(self, other: Self, borrow: bool) -> (Self, bool) {
                let (difference, first) = self.overflowing_sub(other);
                let (difference, second) = difference.overflowing_sub(<$ty>::from(borrow));
                (difference, first | second)
            }
        }
    )*};
}
carry!(u32, u64);

fn with_carry<T: Carry>(a: T, b: T, carry: bool, subtract: bool, carry_in: bool) -> (T, bool) {
    let carry = carry && carry_in;
    if subtract { a.sub(b, carry) } else { a.add(b, carry) }
}

/// `d, CC.CF = f(a, b, CC.CF)`.
fn carry_chain<T: Carry>(
    d: &mut Decode<'_>,
    carry_in: bool,
    carry_out: bool,
    f: impl Fn(T, T, bool) -> (T, bool) + Send + Sync + 'static,
) -> Decoded<Op> {
    let flag = d.carry_flag();
    let (dst, a, b) = (d.dst::<T>(0)?, d.src::<T>(1)?, d.src::<T>(2)?);
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let carries = if carry_in { regs.pred(Pred::Register(flag, false)) } else { 0 };
        let mut out = [T::Bits::default(); LANES];
        let mut flags = 0;
        let (a, b) = (T::Bits::row(regs, a), T::Bits::row(regs, b));
        for lane in 0..LANES {
            let (value, carry) = f(T::get(a[lane]), T::get(b[lane]), carries >> lane & 1 != 0);
            out[lane] = value.bits();
            flags |= u32::from(carry) << lane;
        }
        regs.put(dst, mask, &out);
        if carry_out {
            regs.set_pred(flag, mask, flags);
        }
    })))
}

fn multiply(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let opcode = d.ins.opcode.as_str();
    let add = opcode != "mul";
    let carry_in = opcode == "madc";
    let carry_out = d.has("cc");
    let sat = d.has("sat");
    let (hi, wide) = (d.has("hi"), d.has("wide"));
    let _ = d.has("lo");
    let ty = d.ty()?;
    if carry_in || carry_out {
        return multiply_carry(d, ty, hi, carry_in, carry_out);
    }
    if wide {
        return match (ty, add) {
            (Type::U16, false) => d.on(h).map2(int::mul_wide_u16),
            (Type::S16, false) => d.on(h).map2(int::mul_wide_s16),
            (Type::U32, false) => d.on(h).map2(int::mul_wide_u32),
            (Type::S32, false) => d.on(h).map2(int::mul_wide_s32),
            (Type::U16, true) => {
                d.on(h).map3(|a, b, c: u32| int::mul_wide_u16(a, b).wrapping_add(c))
            }
            (Type::S16, true) => {
                d.on(h).map3(|a, b, c: i32| int::mul_wide_s16(a, b).wrapping_add(c))
            }
            (Type::U32, true) => {
                d.on(h).map3(|a, b, c: u64| int::mul_wide_u32(a, b).wrapping_add(c))
            }
            (Type::S32, true) => {
                d.on(h).map3(|a, b, c: i64| int::mul_wide_s32(a, b).wrapping_add(c))
            }
            _ => d.bad_type(ty),
        };
    }
    match (ty, hi, add) {
        (Type::S32, true, true) if sat => d.on(h).map3(int::mad_hi_sat_s32),
        _ if sat => d.bad_type(ty),
        (Type::U16, true, false) => d.on(h).map2(int::mul_hi_u16),
        (Type::S16, true, false) => d.on(h).map2(int::mul_hi_s16),
        (Type::U32, true, false) => d.on(h).map2(int::mul_hi_u32),
        (Type::S32, true, false) => d.on(h).map2(int::mul_hi_s32),
        (Type::U64, true, false) => d.on(h).map2(int::mul_hi_u64),
        (Type::S64, true, false) => d.on(h).map2(int::mul_hi_s64),
        (Type::U16, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_u16(a, b).wrapping_add(c)),
        (Type::S16, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_s16(a, b).wrapping_add(c)),
        (Type::U32, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_u32(a, b).wrapping_add(c)),
        (Type::S32, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_s32(a, b).wrapping_add(c)),
        (Type::U64, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_u64(a, b).wrapping_add(c)),
        (Type::S64, true, true) => d.on(h).map3(|a, b, c| int::mul_hi_s64(a, b).wrapping_add(c)),
        (_, true, _) => d.bad_type(ty),
        (_, false, false) => integers!(d, ty, T => d.on(h).map2(T::wrapping_mul)),
        (_, false, true) => {
            integers!(d, ty, T => d.on(h).map3(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c)))
        }
    }
}

/// `mad.cc`, `madc`: the product's half plus `c` plus the carry.
fn multiply_carry(
    d: &mut Decode<'_>,
    ty: Type,
    hi: bool,
    carry_in: bool,
    carry_out: bool,
) -> Decoded<Op> {
    macro_rules! chain {
        ($T:ty, $product:expr) => {{
            let flag = d.carry_flag();
            let (dst, a) = (d.dst::<$T>(0)?, d.src::<$T>(1)?);
            let (b, c) = (d.src::<$T>(2)?, d.src::<$T>(3)?);
            Ok(Op::Alu(Box::new(move |regs, mask| {
                let carries = regs.pred(Pred::Register(flag, false));
                let mut out = [<$T>::default(); LANES];
                let mut flags = 0;
                let rows = [a, b, c].map(|slot| *<$T as Bits>::row(regs, slot));
                for lane in 0..LANES {
                    let product: $T = $product(rows[0][lane], rows[1][lane]);
                    let carry = carry_in && carries >> lane & 1 != 0;
                    let (value, carry) = Carry::add(product, rows[2][lane], carry);
                    out[lane] = value;
                    flags |= u32::from(carry) << lane;
                }
                regs.put(dst, mask, &out);
                if carry_out {
                    regs.set_pred(flag, mask, flags);
                }
            })))
        }};
    }
    match (ty, hi) {
        (Type::U32 | Type::S32, false) => chain!(u32, u32::wrapping_mul),
        (Type::U64 | Type::S64, false) => chain!(u64, u64::wrapping_mul),
        (Type::U32, true) => chain!(u32, int::mul_hi_u32),
        (Type::S32, true) => {
            chain!(u32, |a: u32, b: u32| int::mul_hi_s32(a as i32, b as i32) as u32)
        }
        (Type::U64, true) => chain!(u64, int::mul_hi_u64),
        (Type::S64, true) => {
            chain!(u64, |a: u64, b: u64| int::mul_hi_s64(a as i64, b as i64) as u64)
        }
        _ => d.bad_type(ty),
    }
}

fn multiply24(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let add = d.ins.opcode == "mad24";
    let hi = d.has("hi");
    let _ = d.has("lo");
    let sat = d.has("sat");
    match (d.ty()?, hi, add) {
        (Type::S32, true, true) if sat => d.on(h).map3(int::mad24_hi_sat_s32),
        (ty, _, _) if sat => d.bad_type(ty),
        (Type::U32, false, false) => d.on(h).map2(int::mul24_lo_u32),
        (Type::S32, false, false) => d.on(h).map2(int::mul24_lo_s32),
        (Type::U32, true, false) => d.on(h).map2(int::mul24_hi_u32),
        (Type::S32, true, false) => d.on(h).map2(int::mul24_hi_s32),
        (Type::U32, false, true) => d.on(h).map3(|a, b, c| int::mul24_lo_u32(a, b).wrapping_add(c)),
        (Type::S32, false, true) => d.on(h).map3(|a, b, c| int::mul24_lo_s32(a, b).wrapping_add(c)),
        (Type::U32, true, true) => d.on(h).map3(|a, b, c| int::mul24_hi_u32(a, b).wrapping_add(c)),
        (Type::S32, true, true) => d.on(h).map3(|a, b, c| int::mul24_hi_s32(a, b).wrapping_add(c)),
        (ty, _, _) => d.bad_type(ty),
    }
}
