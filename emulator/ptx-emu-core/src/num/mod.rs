//! Arithmetic of PTX instructions on single values.
//!
//! Every function here is pure and total: bit patterns or native numbers in, the
//! same out, no machine state, no panics and no dependence on the host's `libm`, so
//! results are equal on every host. The interpreter calls them once per lane. The hot
//! ones (f32, f16x2 and bf16x2 add, multiply, fma in `.rn`, comparisons, logic) have no
//! branches once modifiers are known, so that a loop over the 32 lanes vectorises when
//! the modifiers are constants and the arrays are distinct (copies, or arguments of a
//! function of their own).
//!
//! | module | PTX ISA 9.x | what |
//! |---|---|---|
//! | [`single`], [`double`] | 9.7.3 | f32, f32x2 and f64 arithmetic |
//! | [`half`], [`bfloat`] | 9.7.4, 9.7.5 | f16, bf16, their x2 forms, mixed precision |
//! | [`approx`] | 9.7.3, 9.7.4 | `.approx` instructions |
//! | [`compare`] | 9.7.3, 9.7.6, 9.7.7 | `setp`, `testp`, `copysign` |
//! | [`cvt`], [`narrow`] | 9.7.9.21, 9.7.9.22 | `cvt`, `cvt.pack` |
//! | [`minifloat`] | 5.2.3 | e4m3, e5m2, e3m2, e2m3, e2m1, ue8m0 |
//! | [`int`], [`bits`], [`packed`] | 9.7.1, 9.7.2, 9.7.8 | integers, bit fields, 8- and 16-bit vectors |
//!
//! # Modelled
//!
//! Results that PTX leaves open follow recordings of an H200 (`tests/data/conformance`):
//!
//! * Rounding is exact: one rounding of the infinitely precise result.
//! * f32, f16 and bf16 results that are NaN are the canonical NaN (`0x7fffffff`,
//!   `0x7fff`), `neg` and `abs` included.
//! * f64 keeps sign and payload of a NaN operand, made quiet; of several it takes `b`
//!   before `c` before `a`, a division `a` before `b`. An invalid operation gives
//!   `0xfff8000000000000`. `atom.add` and `red.add` in global memory do not even make
//!   it quiet.
//! * `cvt` to and from f64 keeps a NaN's sign and what fits of its payload; bf16 to f32
//!   and `cvt` to the same type keep all its bits; other NaNs become canonical. The
//!   NaNs of tf32 are in [`narrow::tf32_from_f32`].
//! * `.ftz` replaces subnormal operands by zeros of the same sign, and a result that is
//!   less than the least normal number after a rounding to the format's precision with
//!   exponents that have no end. A result that such a rounding brings up to the least
//!   normal number stays.
//! * `bfe` and `bfi` take eight bits of position and length for 32-bit values, and all
//!   32 for 64-bit values ([`bits`]).
//! * `.sat` clamps to `[+0, 1]`, NaN to `+0`; `.relu` clamps to `[+0, inf]` and keeps
//!   NaN.
//!
//! # Limits
//!
//! PTX bounds the error of `.approx` results; those of [`approx`] are inside, and need
//! not be the hardware's in the last places. Other devices than an H200 may differ
//! where PTX leaves a result open.

/// Functions that f16 and bf16 have alike: `min` and `max` of packed halves, and operations whose
/// other operand and result are f32, by the module's `min`, `max` and `to_f32`.
macro_rules! both_half_formats {
    ($name:literal) => {
        #[doc = concat!("`min.", $name, "x2`.")]
        #[inline]
        pub fn min_x2(a: u32, b: u32, flags: MinMaxFlags) -> u32 {
            map_halves([a, b], |[a, b]| min(a, b, flags))
        }

        #[doc = concat!("`max.", $name, "x2`.")]
        #[inline]
        pub fn max_x2(a: u32, b: u32, flags: MinMaxFlags) -> u32 {
            map_halves([a, b], |[a, b]| max(a, b, flags))
        }

        #[doc = concat!("`add.f32.", $name, "`: `a + c` in f32. Section 9.7.5.1 (sm_100 and later).")]
        #[inline]
        pub fn add_f32(a: u16, c: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
            single::add(to_f32(a), c, rounding, flags)
        }

        #[doc = concat!("`sub.f32.", $name, "`: `a - c` in f32. Section 9.7.5.2 (sm_100 and later).")]
        #[inline]
        pub fn sub_f32(a: u16, c: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
            single::sub(to_f32(a), c, rounding, flags)
        }

        #[doc = concat!("`fma.f32.", $name, "`: `a * b + c` in f32. Section 9.7.5.3 (sm_100 and later).")]
        #[inline]
        pub fn fma_f32(a: u16, b: u16, c: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
            single::fma(to_f32(a), to_f32(b), c, rounding, flags)
        }
    };
}

pub mod approx;
pub mod bfloat;
pub mod bits;
pub mod compare;
pub mod cvt;
pub mod double;
pub mod half;
pub mod int;
pub mod minifloat;
pub mod narrow;
pub mod packed;
mod round;
pub mod single;

/// Rounding modifier of a floating-point instruction.
///
/// The integer roundings `.rni`, `.rzi`, `.rmi`, `.rpi` of `cvt` use the same four
/// directions. Stochastic rounding (`.rs`) takes its own operand; see
/// [`narrow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// `.rn`: to nearest, ties to even.
    #[default]
    Rn,
    /// `.rz`: towards zero.
    Rz,
    /// `.rm`: towards negative infinity.
    Rm,
    /// `.rp`: towards positive infinity.
    Rp,
    /// `.rna`: to nearest, ties away from zero.
    Rna,
}

/// Modifiers of floating-point arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FloatFlags {
    /// `.ftz`: subnormal operands and results become zero, sign kept.
    pub ftz: bool,
    /// `.sat`: the result is clamped to `[+0, 1]`; NaN becomes `+0`.
    pub sat: bool,
    /// `.relu`: a negative result becomes `+0`; NaN stays the canonical NaN.
    pub relu: bool,
}

impl FloatFlags {
    /// No modifier.
    pub const NONE: Self = Self { ftz: false, sat: false, relu: false };
    /// Only `.ftz`.
    pub const FTZ: Self = Self { ftz: true, sat: false, relu: false };
}

/// Modifiers of floating-point `min` and `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MinMaxFlags {
    /// `.ftz`: subnormal operands count as zero, sign kept.
    pub ftz: bool,
    /// `.NaN`: the result is the canonical NaN if any operand is NaN. Without it a
    /// NaN operand loses to a number.
    pub nan: bool,
    /// `.abs`: magnitudes are compared, and the result is a magnitude.
    pub abs: bool,
    /// `.xorsign`, which PTX has only together with `.abs` and two operands: the
    /// result carries the exclusive or of the operands' signs.
    pub xorsign: bool,
}

/// The two 16-bit halves of a packed register, low half first.
#[inline]
pub const fn halves(x: u32) -> (u16, u16) {
    (x as u16, (x >> 16) as u16)
}

/// Packs two 16-bit values, `lo` into bits 15:0.
#[inline]
pub const fn pack16(lo: u16, hi: u16) -> u32 {
    lo as u32 | (hi as u32) << 16
}

/// Applies `f` to the corresponding halves of packed operands.
#[inline(always)]
fn map_halves<const N: usize>(ops: [u32; N], f: impl Fn([u16; N]) -> u16) -> u32 {
    pack16(f(ops.map(|x| x as u16)), f(ops.map(|x| (x >> 16) as u16)))
}
