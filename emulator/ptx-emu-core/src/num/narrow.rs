//! `cvt` to and from packed and narrow types (PTX ISA section 9.7.9.21) and `cvt.pack`
//! (9.7.9.22).
//!
//! The operand written first goes to the upper half of the destination, so it is the
//! argument `hi` here, or the first element of an array.
//!
//! # Limits
//!
//! PTX gives the random bits of `.rs` for f16x2 and bf16x2 exactly. For four results
//! it says which bits of `rbits` belong to which pair of operands, not how a pair
//! shares them: for 8- and 6-bit formats both operands of a pair use the same 16 bits
//! here, for e2m1 each operand has its own byte. The conversions of PTX 9.1 to and
//! from s2f6x2 are not modelled.

use super::minifloat::{E2M1X2, Minifloat, ue8m0_from_f32, ue8m0_to_bf16};
use super::round::{Class, Format, Step};
use super::{Rounding, bfloat, half, halves, pack16, single};

/// Modifiers of a conversion from f32 to f16, bf16 or tf32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Narrowing {
    /// `.rn` or `.rz`; for tf32 also `.rna`.
    pub rounding: Rounding,
    /// `.relu`: negative values and `-0` become `+0`.
    pub relu: bool,
    /// `.satfinite`: infinities and overflows become the largest finite number.
    pub satfinite: bool,
}

fn encode(x: f32, format: Format, step: Step, relu: bool, satfinite: bool) -> u64 {
    let v = Format::F32.decode(u64::from(x.to_bits()));
    if relu && v.sign && v.class != Class::Nan {
        return 0;
    }
    format.encode(v, step, satfinite)
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.f16.f32`.
#[inline]
pub fn f16_from_f32(x: f32, n: Narrowing) -> u16 {
    if n.rounding == Rounding::Rn && !n.satfinite {
        let d = half::from_f32(x);
        return if n.relu { half::relu(d) } else { d };
    }
    encode(x, Format::F16, Step::Mode(n.rounding), n.relu, n.satfinite) as u16
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.bf16.f32`.
#[inline]
pub fn bf16_from_f32(x: f32, n: Narrowing) -> u16 {
    if n.rounding == Rounding::Rn && !n.satfinite {
        let d = bfloat::from_f32(x);
        return if n.relu { bfloat::relu(d) } else { d };
    }
    encode(x, Format::BF16, Step::Mode(n.rounding), n.relu, n.satfinite) as u16
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.f16x2.f32`.
#[inline]
pub fn f16x2_from_f32(hi: f32, lo: f32, n: Narrowing) -> u32 {
    pack16(f16_from_f32(lo, n), f16_from_f32(hi, n))
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.bf16x2.f32`.
#[inline]
pub fn bf16x2_from_f32(hi: f32, lo: f32, n: Narrowing) -> u32 {
    pack16(bf16_from_f32(lo, n), bf16_from_f32(hi, n))
}

/// `cvt.rs{.relu}{.satfinite}.f16x2.f32`: bits 28:16 of `rbits` are added to the 13
/// discarded bits of `hi`, bits 12:0 to those of `lo`.
pub fn f16x2_from_f32_stochastic(hi: f32, lo: f32, rbits: u32, relu: bool, satfinite: bool) -> u32 {
    let one = |x, bits| {
        let step = Step::Stochastic { bits: bits & 0x1fff, width: 13 };
        encode(x, Format::F16, step, relu, satfinite) as u16
    };
    pack16(one(lo, rbits), one(hi, rbits >> 16))
}

/// `cvt.rs{.relu}{.satfinite}.bf16x2.f32`: the upper half of `rbits` is added to the 16
/// discarded bits of `hi`, the lower half to those of `lo`.
pub fn bf16x2_from_f32_stochastic(
    hi: f32,
    lo: f32,
    rbits: u32,
    relu: bool,
    satfinite: bool,
) -> u32 {
    let one = |x, bits| {
        let step = Step::Stochastic { bits: bits & 0xffff, width: 16 };
        encode(x, Format::BF16, step, relu, satfinite) as u16
    };
    pack16(one(lo, rbits), one(hi, rbits >> 16))
}

/// `cvt.{rna,rn,rz}{.relu}{.satfinite}.tf32.f32`: an f32 whose low 13 bits are zero.
///
/// NaN is as on an H200: `.rn` and `.rz` give `0x7fffe000`; `.rna` only drops the low
/// bits, which can leave an infinity, and with `.satfinite` also steps one place back.
#[inline]
pub fn tf32_from_f32(x: f32, n: Narrowing) -> u32 {
    const KEPT: u32 = 0xffff_e000;
    if x.is_nan() {
        return match (n.rounding, n.satfinite) {
            (Rounding::Rna, false) => x.to_bits() & KEPT,
            (Rounding::Rna, true) => (x.to_bits() & KEPT) - (1 << 13),
            _ => single::NAN.to_bits() & KEPT,
        };
    }
    (encode(x, Format::TF32, Step::Mode(n.rounding), n.relu, n.satfinite) << 13) as u32
}

fn pack_codes(format: Minifloat, hi: u8, lo: u8) -> u16 {
    let width = format.bits().next_power_of_two();
    u16::from(lo) | u16::from(hi) << width
}

/// `cvt.rn.satfinite{.relu}.e4m3x2.f32` and its like for the other formats. A code of
/// 8 or 6 bits takes a byte, one of 4 bits a nibble: the e2m1x2 result is the low byte.
#[inline]
pub fn pair_from_f32(format: Minifloat, hi: f32, lo: f32, relu: bool) -> u16 {
    pack_codes(format, format.from_f32(hi, relu), format.from_f32(lo, relu))
}

/// Converts the halves of an f16x2 as [`pair_from_f32`] does.
#[inline]
pub fn pair_from_f16x2(format: Minifloat, x: u32, relu: bool) -> u16 {
    let (lo, hi) = halves(x);
    pair_from_f32(format, half::to_f32(hi), half::to_f32(lo), relu)
}

/// Converts the halves of a bf16x2 as [`pair_from_f32`] does.
#[inline]
pub fn pair_from_bf16x2(format: Minifloat, x: u32, relu: bool) -> u16 {
    let (lo, hi) = halves(x);
    pair_from_f32(format, bfloat::to_f32(hi), bfloat::to_f32(lo), relu)
}

/// `cvt.rn{.relu}.f16x2.e4m3x2` and its like for the other formats: exact.
#[inline]
pub fn pair_to_f16x2(format: Minifloat, codes: u16, relu: bool) -> u32 {
    let both = match format {
        Minifloat::E2m1 => E2M1X2[usize::from(codes & 0xff)],
        _ => pack16(format.to_f16(codes as u8), format.to_f16((codes >> 8) as u8)),
    };
    if !relu {
        return both;
    }
    let (lo, hi) = halves(both);
    pack16(half::relu(lo), half::relu(hi))
}

/// `cvt.rn{.relu}.bf16x2.{e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2}`; every number is exact.
#[inline]
pub fn pair_to_bf16x2(format: Minifloat, codes: u16, relu: bool) -> u32 {
    let (lo, hi) = halves(pair_to_f16x2(format, codes, relu));
    pack16(bfloat::from_f32(half::to_f32(lo)), bfloat::from_f32(half::to_f32(hi)))
}

/// `cvt.rs{.relu}.satfinite.e4m3x4.f32` and its like for the other formats. `x` is the
/// operand vector as written: its first element goes to the most significant code.
/// The e2m1x4 result is the low 16 bits.
pub fn quad_from_f32_stochastic(format: Minifloat, x: [f32; 4], rbits: u32, relu: bool) -> u32 {
    let random: [(u32, u32); 4] = match format {
        Minifloat::E2m1 => [24, 8, 16, 0].map(|at| ((rbits >> at) & 0xff, 8)),
        _ => [16, 16, 0, 0].map(|at| ((rbits >> at) & 0xffff, 16)),
    };
    let width = format.bits().next_power_of_two();
    x.into_iter().zip(random).fold(0, |d, (x, (bits, bit_width))| {
        d << width | u32::from(format.from_f32_stochastic(x, bits, bit_width, relu))
    })
}

/// `cvt.{rp,rz}{.satfinite}.ue8m0x2.f32`; `up` is `.rp`.
#[inline]
pub fn ue8m0x2_from_f32(hi: f32, lo: f32, up: bool, satfinite: bool) -> u16 {
    let one = |x| u16::from(ue8m0_from_f32(x, up, satfinite));
    one(lo) | one(hi) << 8
}

/// `cvt.{rp,rz}{.satfinite}.ue8m0x2.bf16x2`; `up` is `.rp`.
#[inline]
pub fn ue8m0x2_from_bf16x2(x: u32, up: bool, satfinite: bool) -> u16 {
    let (lo, hi) = halves(x);
    ue8m0x2_from_f32(bfloat::to_f32(hi), bfloat::to_f32(lo), up, satfinite)
}

/// `cvt.rn.bf16x2.ue8m0x2`: exact.
#[inline]
pub fn bf16x2_from_ue8m0x2(codes: u16) -> u32 {
    pack16(ue8m0_to_bf16(codes as u8), ue8m0_to_bf16((codes >> 8) as u8))
}

/// `cvt.pack.sat.type.s32{.b32}`: `a` and `b` are clamped to integers of `width` (2, 4,
/// 8 or 16) bits and packed, `b` lowest. `c`, which 16-bit results do not have, is
/// shifted left to make room. A width above 16 counts as 16.
#[inline]
pub fn cvt_pack(a: i32, b: i32, c: u32, width: u32, signed: bool) -> u32 {
    let width = width.clamp(1, 16);
    let (min, max) =
        if signed { (-1 << (width - 1), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    let mask = (1u32 << width) - 1;
    let field = |x: i32| x.clamp(min, max) as u32 & mask;
    let above = if width == 16 { 0 } else { c << (2 * width) };
    above | field(a) << width | field(b)
}
