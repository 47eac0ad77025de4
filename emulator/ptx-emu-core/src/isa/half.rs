//! f16, bf16 and their packed forms: PTX ISA 9.7.4, and 9.7.3 `ex2`, `tanh` of
//! half types. Correctly rounded; `.approx` as [`num::approx`](crate::num::approx)
//! states. Three-operand min and max of half types do not exist.

use super::float::{min_max_flags, rounding};
use super::{Instructions, is_numeric, last_type};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::machine::regs::LANES;
use crate::num::{FloatFlags, Rounding, approx, bfloat, half};
use ptx_emu_simd::{Host, on_host};

/// Arithmetic on f16 and bf16.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        is_numeric(&ins.opcode)
            && matches!(last_type(ins), Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2))
    },
    decode: |d| on_host!(h => decode(d, h)),
};

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<(Family, Op)> {
    // `fma.rn.f32.f16` and the like are f32 arithmetic.
    if d.ins.modifiers.iter().any(|m| m == "f32") {
        return Ok((Family::Float, super::float::decode(d)?));
    }
    Ok((Family::Half, half_only(d, h)?))
}

fn half_only(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let opcode = d.ins.opcode.as_str();
    if matches!(opcode, "min" | "max") {
        return min_max(d, h, opcode == "max");
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
            "add" => d.on(h).map2(move |a, b| half::add(a, b, flags)),
            "sub" => d.on(h).map2(move |a, b| half::sub(a, b, flags)),
            "mul" => d.on(h).map2(move |a, b| half::mul(a, b, flags)),
            "fma" => d.on(h).map3(move |a, b, c| half::fma(a, b, c, flags)),
            "abs" => d.on(h).map1(move |a| half::abs(a, ftz)),
            "neg" => d.on(h).map1(move |a| half::neg(a, ftz)),
            "ex2" => d.on(h).map1(approx::ex2_f16),
            "tanh" => d.on(h).map1(approx::tanh_f16),
            _ => d.bad_type(ty),
        },
        Type::F16x2 => match opcode {
            "fma" if flags == FloatFlags::NONE => fma_x2(d, h),
            "mul" if flags == FloatFlags::NONE => {
                d.on(h).map2(|a, b| half::mul_x2(a, b, FloatFlags::NONE))
            }
            "add" if flags == FloatFlags::NONE => {
                d.on(h).map2(|a, b| half::add_x2(a, b, FloatFlags::NONE))
            }
            "add" => d.on(h).map2(move |a, b| half::add_x2(a, b, flags)),
            "sub" => d.on(h).map2(move |a, b| half::sub_x2(a, b, flags)),
            "mul" => d.on(h).map2(move |a, b| half::mul_x2(a, b, flags)),
            "fma" => d.on(h).map3(move |a, b, c| half::fma_x2(a, b, c, flags)),
            "abs" => d.on(h).map1(move |a| half::abs_x2(a, ftz)),
            "neg" => d.on(h).map1(move |a| half::neg_x2(a, ftz)),
            "ex2" => d.on(h).map1(approx::ex2_f16x2),
            "tanh" => d.on(h).map1(approx::tanh_f16x2),
            _ => d.bad_type(ty),
        },
        Type::Bf16 => match opcode {
            "add" => d.on(h).map2(bfloat::add),
            "sub" => d.on(h).map2(bfloat::sub),
            "mul" => d.on(h).map2(bfloat::mul),
            "fma" => d.on(h).map3(move |a, b, c| bfloat::fma(a, b, c, flags.relu)),
            "abs" => d.on(h).map1(bfloat::abs),
            "neg" => d.on(h).map1(bfloat::neg),
            "ex2" => d.on(h).map1(approx::ex2_bf16),
            "tanh" => d.on(h).map1(approx::tanh_bf16),
            _ => d.bad_type(ty),
        },
        Type::Bf16x2 => match opcode {
            "add" => d.on(h).map2(bfloat::add_x2),
            "sub" => d.on(h).map2(bfloat::sub_x2),
            "mul" => d.on(h).map2(bfloat::mul_x2),
            "fma" => d.on(h).map3(move |a, b, c| bfloat::fma_x2(a, b, c, flags.relu)),
            "abs" => d.on(h).map1(bfloat::abs_x2),
            "neg" => d.on(h).map1(bfloat::neg_x2),
            "ex2" => d.on(h).map1(approx::ex2_bf16x2),
            "tanh" => d.on(h).map1(approx::tanh_bf16x2),
            _ => d.bad_type(ty),
        },
        _ => d.bad_type(ty),
    }
}

/// `fma.rn.f16x2` without other modifiers.
fn fma_x2(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let target = d.dst::<u32>(0)?;
    let (a, b, c) = (d.src::<u32>(1)?, d.src::<u32>(2)?, d.src::<u32>(3)?);
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let rows = [a, b, c].map(|slot| regs.row32(slot));
        let row = h.fma_f16x2([rows[0], rows[1]], rows[2]).unwrap_or_else(|| {
            let mut row = [0; LANES];
            for (lane, out) in row.iter_mut().enumerate() {
                let [a, b, c] = rows.map(|row| row[lane]);
                *out = half::fma_x2(a, b, c, FloatFlags::NONE);
            }
            row
        });
        regs.put(target, mask, &row);
    })))
}

fn min_max(d: &mut Decode<'_>, h: impl Host, max: bool) -> Decoded<Op> {
    let flags = min_max_flags(d);
    match (d.ty()?, max) {
        (Type::F16, false) => d.on(h).map2(move |a, b| half::min(a, b, flags)),
        (Type::F16, true) => d.on(h).map2(move |a, b| half::max(a, b, flags)),
        (Type::F16x2, false) => d.on(h).map2(move |a, b| half::min_x2(a, b, flags)),
        (Type::F16x2, true) => d.on(h).map2(move |a, b| half::max_x2(a, b, flags)),
        (Type::Bf16, false) => d.on(h).map2(move |a, b| bfloat::min(a, b, flags)),
        (Type::Bf16, true) => d.on(h).map2(move |a, b| bfloat::max(a, b, flags)),
        (Type::Bf16x2, false) => d.on(h).map2(move |a, b| bfloat::min_x2(a, b, flags)),
        (Type::Bf16x2, true) => d.on(h).map2(move |a, b| bfloat::max_x2(a, b, flags)),
        (other, _) => d.bad_type(other),
    }
}
