//! Comparisons and properties: `setp`, `set` (PTX ISA sections 9.7.6, 9.7.7), `testp`
//! and `copysign` (9.7.3.1, 9.7.3.2).
//!
//! The combination with a predicate (`.and`, `.or`, `.xor`) is the machine's.

use super::{bfloat, half, single};

/// Comparison of integers. `lo`, `ls`, `hi`, `hs` are `Lt`, `Le`, `Gt`, `Ge` on
/// unsigned operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntCmp {
    /// `eq`
    Eq,
    /// `ne`
    Ne,
    /// `lt`, `lo`
    Lt,
    /// `le`, `ls`
    Le,
    /// `gt`, `hi`
    Gt,
    /// `ge`, `hs`
    Ge,
}

/// Applies `op` to integers of either signedness.
#[inline(always)]
pub fn integer<T: Ord>(op: IntCmp, a: T, b: T) -> bool {
    match op {
        IntCmp::Eq => a == b,
        IntCmp::Ne => a != b,
        IntCmp::Lt => a < b,
        IntCmp::Le => a <= b,
        IntCmp::Gt => a > b,
        IntCmp::Ge => a >= b,
    }
}

/// Comparison of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatCmp {
    /// `eq`: equal, and no operand is NaN.
    Eq,
    /// `ne`: unequal, and no operand is NaN.
    Ne,
    /// `lt`
    Lt,
    /// `le`
    Le,
    /// `gt`
    Gt,
    /// `ge`
    Ge,
    /// `equ`: equal, or an operand is NaN.
    Equ,
    /// `neu`: unequal, or an operand is NaN.
    Neu,
    /// `ltu`
    Ltu,
    /// `leu`
    Leu,
    /// `gtu`
    Gtu,
    /// `geu`
    Geu,
    /// `num`: no operand is NaN.
    Num,
    /// `nan`: an operand is NaN.
    Nan,
}

/// Applies `op`; `PartialOrd` of floating-point types is IEEE 754's.
#[inline(always)]
fn float<T: PartialOrd>(op: FloatCmp, a: T, b: T) -> bool {
    // `x != x` for NaN only; the generic bound has no `is_nan`.
    #[expect(clippy::eq_op, reason = "the test for NaN")]
    let unordered = a != a || b != b;
    match op {
        FloatCmp::Eq => a == b,
        FloatCmp::Ne => !unordered && a != b,
        FloatCmp::Lt => a < b,
        FloatCmp::Le => a <= b,
        FloatCmp::Gt => a > b,
        FloatCmp::Ge => a >= b,
        FloatCmp::Equ => unordered || a == b,
        FloatCmp::Neu => a != b,
        FloatCmp::Ltu => unordered || a < b,
        FloatCmp::Leu => unordered || a <= b,
        FloatCmp::Gtu => unordered || a > b,
        FloatCmp::Geu => unordered || a >= b,
        FloatCmp::Num => !unordered,
        FloatCmp::Nan => unordered,
    }
}

/// `setp.op.f32`; with `ftz` subnormal operands count as zero.
#[inline]
pub fn f32(op: FloatCmp, a: f32, b: f32, ftz: bool) -> bool {
    float(op, single::flush(a, ftz), single::flush(b, ftz))
}

/// `setp.op.f64`.
#[inline]
pub fn f64(op: FloatCmp, a: f64, b: f64) -> bool {
    float(op, a, b)
}

/// `setp.op.f16` on bit patterns; with `ftz` subnormal operands count as zero.
#[inline]
pub fn f16(op: FloatCmp, a: u16, b: u16, ftz: bool) -> bool {
    float(op, half::to_f32(half::flush(a, ftz)), half::to_f32(half::flush(b, ftz)))
}

/// `setp.op.bf16` on bit patterns.
#[inline]
pub fn bf16(op: FloatCmp, a: u16, b: u16) -> bool {
    float(op, bfloat::to_f32(a), bfloat::to_f32(b))
}

/// Property asked for by `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TestOp {
    /// Neither infinite nor NaN.
    Finite,
    /// Positive or negative infinity.
    Infinite,
    /// Not NaN.
    Number,
    /// NaN.
    NotANumber,
    /// Neither subnormal, infinite nor NaN. Zeros are normal here.
    Normal,
    /// Subnormal; zeros are not.
    Subnormal,
}

/// `testp.op.f32`. Section 9.7.3.1.
#[inline]
pub fn testp_f32(op: TestOp, a: f32) -> bool {
    testp(op, a.classify())
}

/// `testp.op.f64`. Section 9.7.3.1.
#[inline]
pub fn testp_f64(op: TestOp, a: f64) -> bool {
    testp(op, a.classify())
}

fn testp(op: TestOp, class: std::num::FpCategory) -> bool {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    match op {
        TestOp::Finite => !matches!(class, Infinite | Nan),
        TestOp::Infinite => class == Infinite,
        TestOp::Number => class != Nan,
        TestOp::NotANumber => class == Nan,
        TestOp::Normal => matches!(class, Normal | Zero),
        TestOp::Subnormal => class == Subnormal,
    }
}

/// `copysign.f32`: `b` with the sign of `a`. Section 9.7.3.2.
#[inline]
pub fn copysign_f32(a: f32, b: f32) -> f32 {
    b.copysign(a)
}

/// `copysign.f64`: `b` with the sign of `a`. Section 9.7.3.2.
#[inline]
pub fn copysign_f64(a: f64, b: f64) -> f64 {
    b.copysign(a)
}
