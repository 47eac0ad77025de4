//! f16, bf16 and their packed forms: PTX ISA 9.7.4, and 9.7.3 `ex2`, `tanh` of
//! half types. Correctly rounded; `.approx` as [`num::approx`](crate::num::approx)
//! states. Three-operand min and max of half types do not exist.

use super::float::{min_max_flags, rounding};
use super::{Instructions, is_numeric, last_type};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::num::{FloatFlags, Rounding, approx, bfloat, half};

/// Arithmetic on f16 and bf16.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        is_numeric(&ins.opcode)
            && matches!(last_type(ins), Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2))
    },
    decode,
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<(Family, Op)> {
    // `fma.rn.f32.f16` and the like are f32 arithmetic.
    if d.ins.modifiers.iter().any(|m| m == "f32") {
        return Ok((Family::Float, super::float::decode(d)?));
    }
    Ok((Family::Half, half_only(d)?))
}

fn half_only(d: &mut Decode<'_>) -> Decoded<Op> {
    let opcode = d.ins.opcode.as_str();
    if matches!(opcode, "min" | "max") {
        return min_max(d, opcode == "max");
    }
    if !matches!(rounding(d), None | Some(Rounding::Rn)) {
        return Err(Reject::unsupported("rounding of a half type other than .rn"));
    }
    if matches!(opcode, "ex2" | "tanh") && !d.has("approx") {
        return Err(Reject::unsupported("no .approx"));
    }
    let flags = d.flags();
    let ftz = flags.ftz;
    let ty = d.ty()?;
    match ty {
        Type::F16 => match opcode {
            "add" => d.map2(move |a, b| half::add(a, b, flags)),
            "sub" => d.map2(move |a, b| half::sub(a, b, flags)),
            "mul" => d.map2(move |a, b| half::mul(a, b, flags)),
            "fma" => d.map3(move |a, b, c| half::fma(a, b, c, flags)),
            "abs" => d.map1(move |a| half::abs(a, ftz)),
            "neg" => d.map1(move |a| half::neg(a, ftz)),
            "ex2" => d.map1(approx::ex2_f16),
            "tanh" => d.map1(approx::tanh_f16),
            _ => d.bad_type(ty),
        },
        Type::F16x2 => match opcode {
            "fma" if flags == FloatFlags::NONE => {
                d.map3(|a, b, c| half::fma_x2(a, b, c, FloatFlags::NONE))
            }
            "mul" if flags == FloatFlags::NONE => {
                d.map2(|a, b| half::mul_x2(a, b, FloatFlags::NONE))
            }
            "add" if flags == FloatFlags::NONE => {
                d.map2(|a, b| half::add_x2(a, b, FloatFlags::NONE))
            }
            "add" => d.map2(move |a, b| half::add_x2(a, b, flags)),
            "sub" => d.map2(move |a, b| half::sub_x2(a, b, flags)),
            "mul" => d.map2(move |a, b| half::mul_x2(a, b, flags)),
            "fma" => d.map3(move |a, b, c| half::fma_x2(a, b, c, flags)),
            "abs" => d.map1(move |a| half::abs_x2(a, ftz)),
            "neg" => d.map1(move |a| half::neg_x2(a, ftz)),
            "ex2" => d.map1(approx::ex2_f16x2),
            "tanh" => d.map1(approx::tanh_f16x2),
            _ => d.bad_type(ty),
        },
        Type::Bf16 => match opcode {
            "add" => d.map2(bfloat::add),
            "sub" => d.map2(bfloat::sub),
            "mul" => d.map2(bfloat::mul),
            "fma" => d.map3(move |a, b, c| bfloat::fma(a, b, c, flags.relu)),
            "abs" => d.map1(bfloat::abs),
            "neg" => d.map1(bfloat::neg),
            "ex2" => d.map1(approx::ex2_bf16),
            "tanh" => d.map1(approx::tanh_bf16),
            _ => d.bad_type(ty),
        },
        Type::Bf16x2 => match opcode {
            "add" => d.map2(bfloat::add_x2),
            "sub" => d.map2(bfloat::sub_x2),
            "mul" => d.map2(bfloat::mul_x2),
            "fma" => d.map3(move |a, b, c| bfloat::fma_x2(a, b, c, flags.relu)),
            "abs" => d.map1(bfloat::abs_x2),
            "neg" => d.map1(bfloat::neg_x2),
            "ex2" => d.map1(approx::ex2_bf16x2),
            "tanh" => d.map1(approx::tanh_bf16x2),
            _ => d.bad_type(ty),
        },
        _ => d.bad_type(ty),
    }
}

fn min_max(d: &mut Decode<'_>, max: bool) -> Decoded<Op> {
    let flags = min_max_flags(d);
    match (d.ty()?, max) {
        (Type::F16, false) => d.map2(move |a, b| half::min(a, b, flags)),
        (Type::F16, true) => d.map2(move |a, b| half::max(a, b, flags)),
        (Type::F16x2, false) => d.map2(move |a, b| half::min_x2(a, b, flags)),
        (Type::F16x2, true) => d.map2(move |a, b| half::max_x2(a, b, flags)),
        (Type::Bf16, false) => d.map2(move |a, b| bfloat::min(a, b, flags)),
        (Type::Bf16, true) => d.map2(move |a, b| bfloat::max(a, b, flags)),
        (Type::Bf16x2, false) => d.map2(move |a, b| bfloat::min_x2(a, b, flags)),
        (Type::Bf16x2, true) => d.map2(move |a, b| bfloat::max_x2(a, b, flags)),
        (other, _) => d.bad_type(other),
    }
}
