//! f32 arithmetic: PTX ISA 9.7.3, and add, sub, fma of f32 with a half operand
//! (9.7.5), and f32x2.
//!
//! Results are correctly rounded except those of `.approx` instructions, see
//! [`num::approx`](crate::num::approx).

use super::{Instructions, is_function, is_numeric, last_type};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::num::{FloatFlags, MinMaxFlags, Rounding, approx, bfloat, compare, half, single};
use ptx_emu_simd::{Host, on_host};

/// Arithmetic on f32; functions of other types are refused here.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| match last_type(ins) {
        Some(Type::F32 | Type::F32x2) => is_numeric(&ins.opcode),
        Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::F64) => false,
        _ => is_function(&ins.opcode),
    },
    decode: |d| Ok((Family::Float, decode(d)?)),
};

/// `.rn` and the other rounding modifiers.
pub(super) fn rounding(d: &mut Decode<'_>) -> Option<Rounding> {
    d.pick(|m| match m {
        "rn" => Some(Rounding::Rn),
        "rz" => Some(Rounding::Rz),
        "rm" => Some(Rounding::Rm),
        "rp" => Some(Rounding::Rp),
        _ => None,
    })
}

/// `.ftz`, `.NaN`, `.xorsign.abs` of `min` and `max`.
pub(super) fn min_max_flags(d: &mut Decode<'_>) -> MinMaxFlags {
    MinMaxFlags {
        ftz: d.has("ftz"),
        nan: d.has("NaN"),
        xorsign: d.has("xorsign"),
        abs: d.has("abs"),
    }
}

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "add" | "sub" | "mul" | "fma" | "mad" | "div" => on_host!(h => arithmetic(d, h)),
        "abs" => {
            let ftz = d.has("ftz");
            d.ty()?;
            d.map1(move |a| single::abs(a, ftz))
        }
        "neg" => {
            let ftz = d.has("ftz");
            d.ty()?;
            d.map1(move |a| single::neg(a, ftz))
        }
        "min" | "max" => {
            let flags = min_max_flags(d);
            d.ty()?;
            match (d.ins.opcode == "max", d.count()) {
                (true, 3) => d.map2(move |a, b| single::max(a, b, flags)),
                (false, 3) => d.map2(move |a, b| single::min(a, b, flags)),
                (true, _) => d.map3(move |a, b, c| single::max3(a, b, c, flags)),
                (false, _) => d.map3(move |a, b, c| single::min3(a, b, c, flags)),
            }
        }
        "copysign" => match d.ty()? {
            // PTX: d has the sign of a and the magnitude of b.
            Type::F32 => d.map2(compare::copysign_f32),
            other => d.bad_type(other),
        },
        "testp" => super::compare::testp(d),
        _ => function(d),
    }
}

fn function(d: &mut Decode<'_>) -> Decoded<Op> {
    let approximate = d.has("approx");
    let rounding = rounding(d);
    let flags = d.flags();
    let ftz = flags.ftz;
    if d.ty()? != Type::F32 {
        return Err(Reject::unsupported("type"));
    }
    match (d.ins.opcode.as_str(), rounding, approximate) {
        ("rcp", Some(rounding), _) => d.map1(move |a| single::rcp(a, rounding, flags)),
        ("rcp", None, true) => d.map1(move |a| approx::rcp(a, ftz)),
        ("sqrt", Some(rounding), _) => d.map1(move |a| single::sqrt(a, rounding, flags)),
        ("sqrt", None, true) => d.map1(move |a| approx::sqrt(a, ftz)),
        ("rsqrt", None, true) => d.map1(move |a| approx::rsqrt(a, ftz)),
        ("sin", None, true) => d.map1(move |a| approx::sin(a, ftz)),
        ("cos", None, true) => d.map1(move |a| approx::cos(a, ftz)),
        ("lg2", None, true) => d.map1(move |a| approx::lg2(a, ftz)),
        ("ex2", None, true) => d.map1(move |a| approx::ex2(a, ftz)),
        ("tanh", None, true) => d.map1(approx::tanh),
        (other, ..) => Err(Reject::unsupported(format!("{other} without .approx or a rounding"))),
    }
}

/// Whether a host multiplies and adds with one rounding by one instruction.
fn fused<H: Host>(_: H) -> bool {
    H::FUSED
}

fn arithmetic(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let opcode = d.ins.opcode.as_str();
    let explicit = rounding(d);
    let (approximate, full) = (d.has("approx"), d.has("full"));
    let flags = d.flags();
    let ty = d.ty()?;
    let rounding = explicit.unwrap_or_default();
    let plain = rounding == Rounding::Rn && flags == FloatFlags::NONE;
    let ftz = rounding == Rounding::Rn && flags == FloatFlags::FTZ;
    if ty == Type::F32x2 {
        return match opcode {
            "add" => d.on(h).map2(move |a, b| single::add_x2(a, b, rounding, flags)),
            "sub" => d.on(h).map2(move |a, b| single::sub_x2(a, b, rounding, flags)),
            "mul" => d.on(h).map2(move |a, b| single::mul_x2(a, b, rounding, flags)),
            "fma" => d.on(h).map3(move |a, b, c| single::fma_x2(a, b, c, rounding, flags)),
            _ => d.bad_type(ty),
        };
    }
    if ty != Type::F32 {
        return d.bad_type(ty);
    }
    // A second type modifier: one operand is narrower.
    match d.pick(|m| Type::parse(m).filter(|ty| matches!(ty, Type::F16 | Type::Bf16))) {
        Some(narrow) => return mixed(d, h, narrow, rounding, flags),
        None => {
            // `.f32.f32` is the unmixed form.
            let _ = d.has("f32");
        }
    }
    const RN: Rounding = Rounding::Rn;
    const NONE: FloatFlags = FloatFlags::NONE;
    const FTZ: FloatFlags = FloatFlags::FTZ;
    match opcode {
        // The usual modifiers as constants, so that the lane loops vectorise.
        "add" if plain => d.on(h).map2(|a, b| single::add(a, b, RN, NONE)),
        "sub" if plain => d.on(h).map2(|a, b| single::sub(a, b, RN, NONE)),
        "mul" if plain => d.on(h).map2(|a, b| single::mul(a, b, RN, NONE)),
        "fma" | "mad" if plain && fused(h) => d.on(h).map3(single::fused),
        "fma" | "mad" if plain => d.on(h).map3(|a, b, c| single::fma(a, b, c, RN, NONE)),
        "add" if ftz => d.on(h).map2(|a, b| single::add(a, b, RN, FTZ)),
        "sub" if ftz => d.on(h).map2(|a, b| single::sub(a, b, RN, FTZ)),
        "mul" if ftz => d.on(h).map2(|a, b| single::mul(a, b, RN, FTZ)),
        "fma" | "mad" if ftz => d.on(h).map3(|a, b, c| single::fma(a, b, c, RN, FTZ)),
        "add" => d.on(h).map2(move |a, b| single::add(a, b, rounding, flags)),
        "sub" => d.on(h).map2(move |a, b| single::sub(a, b, rounding, flags)),
        "mul" => d.on(h).map2(move |a, b| single::mul(a, b, rounding, flags)),
        "fma" | "mad" => d.on(h).map3(move |a, b, c| single::fma(a, b, c, rounding, flags)),
        _ if full => d.on(h).map2(move |a, b| approx::div_full(a, b, flags.ftz)),
        _ if approximate => d.on(h).map2(move |a, b| approx::div_approx(a, b, flags.ftz)),
        _ if explicit.is_some() => d.on(h).map2(move |a, b| single::div(a, b, rounding, flags)),
        _ => Err(Reject::unsupported("div.f32 without .approx, .full or a rounding")),
    }
}

/// `add.f32.f16 d, a, c` and the like: the narrow operands come first.
fn mixed(
    d: &mut Decode<'_>,
    h: impl Host,
    narrow: Type,
    rounding: Rounding,
    flags: FloatFlags,
) -> Decoded<Op> {
    match (d.ins.opcode.as_str(), narrow == Type::F16) {
        ("add", true) => d.on(h).map2(move |a, c| half::add_f32(a, c, rounding, flags)),
        ("sub", true) => d.on(h).map2(move |a, c| half::sub_f32(a, c, rounding, flags)),
        ("fma", true) => d.on(h).map3(move |a, b, c| half::fma_f32(a, b, c, rounding, flags)),
        ("add", false) => d.on(h).map2(move |a, c| bfloat::add_f32(a, c, rounding, flags)),
        ("sub", false) => d.on(h).map2(move |a, c| bfloat::sub_f32(a, c, rounding, flags)),
        ("fma", false) => d.on(h).map3(move |a, b, c| bfloat::fma_f32(a, b, c, rounding, flags)),
        (other, _) => Err(Reject::unsupported(format!("{other} of mixed types"))),
    }
}
