//! `cvt` and `cvt.pack`: PTX ISA 9.7.9.21, 9.7.9.22.
//!
//! All scalar conversions, to tf32, the packed halves, and the 8-, 6- and 4-bit pairs and quads.
//! Missing: s2f6x2 and scaled conversions of PTX 9.1. Open points of the numerics are listed in
//! [`num::cvt`](crate::num::cvt) and [`num::narrow`](crate::num::narrow).

use super::Instructions;
use super::float::rounding;
use crate::Family;
use crate::decode::{Decode, Decoded, Destination, Reject, Source, Type};
use crate::machine::code::Op;
use crate::machine::regs::{Class, LANES, map_row};
use crate::num::cvt::{Cvt, NumType};
use crate::num::minifloat::Minifloat;
use crate::num::narrow::{self, Narrowing};
use crate::num::{Rounding, half};
use crate::syntax::ast::Operand;
use ptx_emu_simd::{Host, on_host};

/// `cvt`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "cvt",
    decode: |d| Ok((Family::Convert, on_host!(h => decode(d, h))?)),
};

fn scalar(ty: Type) -> Option<NumType> {
    Some(match ty {
        Type::U8 => NumType::U8,
        Type::U16 => NumType::U16,
        Type::U32 => NumType::U32,
        Type::U64 => NumType::U64,
        Type::S8 => NumType::S8,
        Type::S16 => NumType::S16,
        Type::S32 => NumType::S32,
        Type::S64 => NumType::S64,
        Type::F16 => NumType::F16,
        Type::Bf16 => NumType::Bf16,
        Type::F32 => NumType::F32,
        Type::F64 => NumType::F64,
        _ => return None,
    })
}

/// Format of a pair or quad, and whether it is a quad.
fn minifloat(ty: Type) -> Option<(Minifloat, bool)> {
    Some(match ty {
        Type::E4m3x2 => (Minifloat::E4m3, false),
        Type::E5m2x2 => (Minifloat::E5m2, false),
        Type::E2m1x2 => (Minifloat::E2m1, false),
        Type::E2m3x2 => (Minifloat::E2m3, false),
        Type::E3m2x2 => (Minifloat::E3m2, false),
        Type::E4m3x4 => (Minifloat::E4m3, true),
        Type::E5m2x4 => (Minifloat::E5m2, true),
        Type::E2m1x4 => (Minifloat::E2m1, true),
        Type::E2m3x4 => (Minifloat::E2m3, true),
        Type::E3m2x4 => (Minifloat::E3m2, true),
        _ => return None,
    })
}

struct Modifiers {
    rounding: Option<Rounding>,
    integral: Option<Rounding>,
    stochastic: bool,
    ftz: bool,
    sat: bool,
    relu: bool,
    satfinite: bool,
}

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    if d.has("pack") {
        return pack(d);
    }
    let modifiers = Modifiers {
        rounding: match d.has("rna") {
            true => Some(Rounding::Rna),
            false => rounding(d),
        },
        integral: d.pick(|m| match m {
            "rni" => Some(Rounding::Rn),
            "rzi" => Some(Rounding::Rz),
            "rmi" => Some(Rounding::Rm),
            "rpi" => Some(Rounding::Rp),
            _ => None,
        }),
        stochastic: d.has("rs"),
        ftz: d.has("ftz"),
        sat: d.has("sat"),
        relu: d.has("relu"),
        satfinite: d.has("satfinite"),
    };
    let (to, from) = (d.ty()?, d.ty()?);
    match (scalar(to), scalar(from)) {
        (Some(to), Some(from)) => scalars(d, h, to, from, &modifiers),
        _ => packed(d, h, to, from, &modifiers),
    }
}

fn scalars(
    d: &mut Decode<'_>,
    h: impl Host,
    to: NumType,
    from: NumType,
    m: &Modifiers,
) -> Decoded<Op> {
    if m.stochastic {
        return Err(Reject::unsupported("stochastic rounding of a scalar"));
    }
    let cvt = Cvt {
        to,
        from,
        rounding: m.integral.or(m.rounding).unwrap_or_default(),
        integral: m.integral.is_some(),
        ftz: m.ftz,
        sat: m.sat,
        relu: m.relu,
        satfinite: m.satfinite,
    };
    let operand = d.operand(1)?;
    let source = d.source(operand, if from.bits() == 64 { 64 } else { 32 })?;
    let operand = d.operand(0)?;
    let target = d.destination(operand)?;
    let target = match target {
        Some(target) => target,
        None => return Ok(Op::Nop),
    };
    Ok(special_cases(&cvt, source, target, h).unwrap_or_else(|| general(cvt, source, target)))
}

/// Conversions in inner loops, as closures that vectorise or at least do not
/// interpret their modifiers for each lane.
fn special_cases(cvt: &Cvt, source: Source, target: Destination, h: impl Host) -> Option<Op> {
    use NumType::{F16, F32, S8, S16, S32, S64, U8, U16, U32, U64};
    let (a, t) = (source.slot, target.slot);
    macro_rules! map {
        ($A:ty, $D:ty, $f:expr) => {
            Some(Op::Alu(Box::new(move |regs, mask| {
                h.run(|| crate::decode::unary::<$A, $D>(regs, mask, t, a, &$f));
            })))
        };
    }
    let plain = *cvt == (Cvt { rounding: cvt.rounding, ..Cvt::new(cvt.to, cvt.from) });
    let nearest = cvt.rounding == Rounding::Rn;
    match (cvt.from, cvt.to, source.class, target.class) {
        _ if !plain => None,
        // The result of a signed narrow type is extended to the register.
        (U8, U16 | U32 | S16 | S32, Class::R32, Class::R32) => map!(u8, u32, u32::from),
        (U16, U32 | S32, Class::R32, Class::R32) => map!(u16, u32, u32::from),
        (S8, S32 | U32, Class::R32, Class::R32) => map!(i8, i32, i32::from),
        (S8, S16 | U16, Class::R32, Class::R32) if target.bits == 16 => map!(i8, i16, i16::from),
        (S16, S32 | U32, Class::R32, Class::R32) => map!(i16, i32, i32::from),
        (U32, U64 | S64, Class::R32, Class::R64) => map!(u32, u64, u64::from),
        (S32, S64 | U64, Class::R32, Class::R64) => map!(i32, i64, i64::from),
        (U64 | S64, U32 | S32, Class::R64, Class::R32) => map!(u64, u32, |a| a as u32),
        (U32 | S32, U16, Class::R32, Class::R32) => map!(u32, u16, |a| a as u16),
        (U16 | U32 | S16 | S32, U8, Class::R32, Class::R32) => map!(u32, u8, |a| a as u8),
        (S32, F32, Class::R32, Class::R32) if nearest => map!(i32, f32, |a: i32| a as f32),
        (U32, F32, Class::R32, Class::R32) if nearest => map!(u32, f32, |a: u32| a as f32),
        (F16, F32, Class::R32, Class::R32) => map!(u16, f32, half::to_f32),
        // Bits, not numbers: NaN stays as it is.
        (NumType::Bf16, F32, Class::R32, Class::R32) => map!(u16, u32, |a| u32::from(a) << 16),
        (F32, F16, Class::R32, Class::R32) if nearest => map!(f32, u16, half::from_f32),
        _ => None,
    }
}

fn general(cvt: Cvt, source: Source, target: Destination) -> Op {
    // Narrow results are extended to the register, not beyond.
    let kept = if target.bits >= 32 { u32::MAX } else { (1 << target.bits) - 1 };
    Op::Alu(Box::new(move |regs, mask| {
        let mut wide = [0u64; LANES];
        match source.class {
            Class::R64 => {
                for (out, a) in wide.iter_mut().zip(regs.row64(source.slot)) {
                    *out = cvt.apply(*a);
                }
            }
            _ => {
                for (out, a) in wide.iter_mut().zip(regs.row32(source.slot)) {
                    *out = cvt.apply(u64::from(*a));
                }
            }
        }
        match target.class {
            Class::R64 => regs.put(target.slot, mask, &wide),
            _ => regs.put(target.slot, mask, &map_row(&wide, |value| value as u32 & kept)),
        }
    }))
}

fn packed(d: &mut Decode<'_>, h: impl Host, to: Type, from: Type, m: &Modifiers) -> Decoded<Op> {
    let refuse = || {
        Err(Reject::unsupported(format!("conversion from {from:?} to {to:?} with these modifiers")))
    };
    let (relu, satfinite) = (m.relu, m.satfinite);
    if m.sat || m.integral.is_some() {
        return refuse();
    }
    let narrowing = Narrowing { rounding: m.rounding.unwrap_or_default(), relu, satfinite };
    let nearest = m.rounding == Some(Rounding::Rn);
    match (to, from) {
        (Type::Tf32, Type::F32) => d.on(h).map1(move |a| narrow::tf32_from_f32(a, narrowing)),
        (Type::F16x2, Type::F32) if m.stochastic => d.on(h).map3(move |hi, lo, bits| {
            narrow::f16x2_from_f32_stochastic(hi, lo, bits, relu, satfinite)
        }),
        (Type::Bf16x2, Type::F32) if m.stochastic => d.on(h).map3(move |hi, lo, bits| {
            narrow::bf16x2_from_f32_stochastic(hi, lo, bits, relu, satfinite)
        }),
        (Type::F16x2, Type::F32) if nearest && !relu && !satfinite && !m.ftz => {
            d.on(h).map2(|hi: f32, lo: f32| {
                u32::from(half::from_f32(lo)) | u32::from(half::from_f32(hi)) << 16
            })
        }
        (Type::F16x2, Type::F32) => {
            d.on(h).map2(move |hi, lo| narrow::f16x2_from_f32(hi, lo, narrowing))
        }
        (Type::Bf16x2, Type::F32) => {
            d.on(h).map2(move |hi, lo| narrow::bf16x2_from_f32(hi, lo, narrowing))
        }
        (Type::Ue8m0x2, Type::F32 | Type::Bf16x2) => {
            let up = match m.rounding {
                Some(Rounding::Rp) => true,
                Some(Rounding::Rz) => false,
                _ => return refuse(),
            };
            if from == Type::F32 {
                d.on(h).map2(move |hi, lo| narrow::ue8m0x2_from_f32(hi, lo, up, satfinite))
            } else {
                d.on(h).map1(move |a| narrow::ue8m0x2_from_bf16x2(a, up, satfinite))
            }
        }
        (Type::Bf16x2, Type::Ue8m0x2) => d.on(h).map1(narrow::bf16x2_from_ue8m0x2),
        _ => match (minifloat(to), minifloat(from)) {
            (Some((format, true)), None) if from == Type::F32 && m.stochastic => {
                quad(d, format, relu)
            }
            // Out of range values saturate in every narrow format.
            (Some((format, false)), None) if nearest && satfinite => match from {
                Type::F32 => {
                    d.on(h).map2(move |hi, lo| narrow::pair_from_f32(format, hi, lo, relu))
                }
                Type::F16x2 => d.on(h).map1(move |a| narrow::pair_from_f16x2(format, a, relu)),
                Type::Bf16x2 => d.on(h).map1(move |a| narrow::pair_from_bf16x2(format, a, relu)),
                _ => refuse(),
            },
            (None, Some((format, false))) if to == Type::F16x2 && nearest => {
                d.on(h).map1(move |codes| narrow::pair_to_f16x2(format, codes, relu))
            }
            (None, Some((format, false))) if to == Type::Bf16x2 && nearest && !satfinite => {
                d.on(h).map1(move |codes| narrow::pair_to_bf16x2(format, codes, relu))
            }
            _ => refuse(),
        },
    }
}

/// `cvt.rs.e4m3x4.f32 d, {a, b, e, f}, rbits`
fn quad(d: &mut Decode<'_>, format: Minifloat, relu: bool) -> Decoded<Op> {
    let target = d.dst::<u32>(0)?;
    let vector = d.operand(1)?;
    let items = d.elements(vector);
    let [a, b, e, f]: &[Operand; 4] = items
        .as_slice()
        .try_into()
        .map_err(|_| Reject::operand("source: required a vector of 4"))?;
    let rows = [d.src_of::<f32>(a)?, d.src_of::<f32>(b)?, d.src_of::<f32>(e)?, d.src_of::<f32>(f)?];
    let bits = d.src::<u32>(2)?;
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let mut out = [0; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            let x = rows.map(|row| f32::from_bits(regs.row32(row)[lane]));
            *out = narrow::quad_from_f32_stochastic(format, x, regs.row32(bits)[lane], relu);
        }
        regs.put(target, mask, &out);
    })))
}

/// `cvt.pack.sat.convertType.abType{.cType} d, a, b{, c}`
fn pack(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("sat");
    let (width, signed) = d
        .pick(|m| {
            Some(match m {
                "u16" => (16, false),
                "s16" => (16, true),
                "u8" => (8, false),
                "s8" => (8, true),
                "u4" => (4, false),
                "s4" => (4, true),
                "u2" => (2, false),
                "s2" => (2, true),
                _ => return None,
            })
        })
        .ok_or_else(|| Reject::unsupported("type of cvt.pack"))?;
    if !d.has("s32") {
        return Err(Reject::unsupported("source type of cvt.pack other than .s32"));
    }
    if d.has("b32") {
        d.map3(move |a, b, c| narrow::cvt_pack(a, b, c, width, signed))
    } else {
        d.map2(move |a, b| narrow::cvt_pack(a, b, 0, width, signed))
    }
}
