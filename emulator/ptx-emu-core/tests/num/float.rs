//! Floating-point arithmetic against `rustc_apfloat` as the oracle.

use crate::roundings::ROUNDINGS;
use proptest::prelude::*;
use ptx_emu_core::num::{FloatFlags, Rounding, bfloat, double, half, pack16, single};
use rustc_apfloat::ieee::{BFloat, Double, Half, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

fn flags(bits: u8) -> FloatFlags {
    FloatFlags { ftz: bits & 1 != 0, sat: bits & 2 != 0, relu: bits & 4 != 0 }
}

/// An operation that all formats have.
#[derive(Debug, Clone, Copy)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Fma,
}

impl Op {
    fn apply<F: Float>(self, [a, b, c]: [F; 3], round: Round) -> F {
        match self {
            Self::Add => a.add_r(b, round),
            Self::Sub => a.sub_r(b, round),
            Self::Mul => a.mul_r(b, round),
            Self::Div => a.div_r(b, round),
            Self::Fma => a.mul_add_r(b, c, round),
        }
        .value
    }
}

/// The bits that an operation on patterns of `F` must have: one rounding, the
/// canonical NaN, modifiers applied to the order of patterns. `.ftz` zeroes what is
/// less than the least normal number after a rounding to the precision of `F` with
/// exponents that have no end.
fn expected<F>(op: Op, operands: [u32; 3], round: Round, flags: FloatFlags) -> u32
where
    F: Float + FloatConvert<Quad>,
    Quad: FloatConvert<F>,
{
    let sign = 1 << (F::BITS - 1);
    let nan = sign - 1;
    let fraction = F::PRECISION - 1;
    let flush = |bits: u128| {
        if flags.ftz && (bits & nan) >> fraction == 0 { bits & sign } else { bits }
    };
    let operands = operands.map(|bits| F::from_bits(flush(u128::from(bits))));
    let result = op.apply(operands, round);
    if result.is_nan() {
        return if flags.sat { 0 } else { nan as u32 };
    }
    let mut bits = result.to_bits();
    if flags.ftz && is_tiny(op, operands, round) {
        bits &= sign;
    }
    if (flags.sat || flags.relu) && bits & sign != 0 {
        return 0;
    }
    let one = F::from_u128(1).value.to_bits();
    (if flags.sat { bits.min(one) } else { bits }) as u32
}

/// Whether a result is less than the least normal number of `F` after a rounding to
/// its precision. Scaled up, results of that size do not meet the end of exponents.
fn is_tiny<F>(op: Op, operands: [F; 3], round: Round) -> bool
where
    F: Float + FloatConvert<Quad>,
    Quad: FloatConvert<F>,
{
    const SCALE: i32 = 13;
    let mut loses_info = false;
    let wide = operands.map(|x| x.convert(&mut loses_info).value);
    let scaled = op.apply(wide, round).scalbn_r(SCALE, round);
    let rounded: F = scaled.convert_r(round, &mut loses_info).value;
    rounded.abs() < F::smallest_normalized().scalbn(SCALE)
}

/// f32 patterns with every exponent and the special significands as likely as others.
fn f32_bits() -> impl Strategy<Value = u32> {
    let significand = prop_oneof![
        3 => any::<u32>(),
        1 => Just(0),
        1 => Just(u32::MAX),
        1 => (0u32..23).prop_map(|i| 1 << i),
        1 => (0u32..8).prop_map(|i| 0x7f_ffff - i),
    ];
    let exponent = prop_oneof![2 => 0u32..256, 2 => 110u32..145, 1 => Just(0), 1 => 252u32..256];
    (significand, exponent, any::<bool>())
        .prop_map(|(m, e, s)| (m & 0x7f_ffff) | e << 23 | u32::from(s) << 31)
}

fn f64_bits() -> impl Strategy<Value = u64> {
    let exponent = prop_oneof![0u64..2048, 1000u64..1050, Just(0), 2044u64..2048];
    (any::<u64>(), any::<u8>(), exponent, any::<bool>()).prop_map(|(m, keep, e, s)| {
        let m = (m & ((1 << 52) - 1)) & (u64::MAX << (keep % 53));
        m | e << 52 | u64::from(s) << 63
    })
}

fn check_single(op: Op, ops: [u32; 3], mode: usize, flags: FloatFlags, actual: f32) {
    let (rounding, round) = ROUNDINGS[mode];
    let expected = expected::<Single>(op, ops, round, flags);
    assert_eq!(
        actual.to_bits(),
        expected,
        "{op:?} of {ops:#x?} {rounding:?} {flags:?}: {:#x} instead of {expected:#x}",
        actual.to_bits()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn single_is_correctly_rounded(
        a in f32_bits(), b in f32_bits(), c in f32_bits(), mode in 0usize..5, bits in 0u8..8,
    ) {
        let flags = flags(bits);
        let rounding = ROUNDINGS[mode].0;
        let [fa, fb, fc] = [a, b, c].map(f32::from_bits);
        // The cancelling addend of fma makes exact ties and exact zeros likely.
        let near = f32::from_bits((-(fa * fb)).to_bits() ^ (c & 3));
        // Products and quotients about the least normal number.
        let small = f32::from_bits((f32::MIN_POSITIVE / fa).to_bits() ^ (c & 7));
        let large = f32::from_bits((fa / f32::MIN_POSITIVE).to_bits() ^ (c & 7));
        let [near_bits, small_bits, large_bits] = [near, small, large].map(f32::to_bits);
        let one = 1f32.to_bits();
        let (mul, div) = (single::mul, single::div);
        for (op, ops, actual) in [
            (Op::Add, [a, b, 0], single::add(fa, fb, rounding, flags)),
            (Op::Sub, [a, b, 0], single::sub(fa, fb, rounding, flags)),
            (Op::Mul, [a, b, 0], mul(fa, fb, rounding, flags)),
            (Op::Mul, [a, small_bits, 0], mul(fa, small, rounding, flags)),
            (Op::Div, [a, b, 0], div(fa, fb, rounding, flags)),
            (Op::Div, [a, large_bits, 0], div(fa, large, rounding, flags)),
            (Op::Div, [one, a, 0], single::rcp(fa, rounding, flags)),
            (Op::Fma, [a, b, c], single::fma(fa, fb, fc, rounding, flags)),
            (Op::Fma, [a, b, near_bits], single::fma(fa, fb, near, rounding, flags)),
        ] {
            check_single(op, ops, mode, flags, actual);
        }
    }

    #[test]
    fn single_sqrt_is_between_its_neighbours(a in f32_bits()) {
        let x = f32::from_bits(a & 0x7fff_ffff);
        let x = if x.is_finite() && x > 0.0 { x } else { 2.0 };
        let down = single::sqrt(x, Rounding::Rm, FloatFlags::NONE);
        let up = single::sqrt(x, Rounding::Rp, FloatFlags::NONE);
        let near = single::sqrt(x, Rounding::Rn, FloatFlags::NONE);
        let square = |v: f32| f64::from(v) * f64::from(v);
        prop_assert!(square(down) <= f64::from(x) && square(up) >= f64::from(x), "{a:#x}");
        prop_assert!(up.to_bits() - down.to_bits() == u32::from(square(down) != f64::from(x)),
            "{a:#x}");
        prop_assert!(near == down || near == up, "{a:#x}");
        prop_assert_eq!(down.to_bits(),
            single::sqrt(x, Rounding::Rz, FloatFlags::NONE).to_bits());
    }

    #[test]
    fn double_is_correctly_rounded(
        a in f64_bits(), b in f64_bits(), c in f64_bits(), mode in 0usize..5,
    ) {
        let (rounding, round) = ROUNDINGS[mode];
        let [fa, fb, fc] = [a, b, c].map(f64::from_bits);
        let [sa, sb, sc] = [a, b, c].map(|x| Double::from_bits(u128::from(x)));
        // Operands in the order in which hardware takes a NaN among them.
        for (name, actual, expected, first_nan) in [
            ("add", double::add(fa, fb, rounding), sa.add_r(sb, round).value, [b, a, a]),
            ("sub", double::sub(fa, fb, rounding), sa.sub_r(sb, round).value, [b, a, a]),
            ("mul", double::mul(fa, fb, rounding), sa.mul_r(sb, round).value, [b, a, a]),
            ("div", double::div(fa, fb, rounding), sa.div_r(sb, round).value, [a, b, b]),
            ("fma", double::fma(fa, fb, fc, rounding), sa.mul_add_r(sb, sc, round).value, [b, c, a]),
        ] {
            let expected = if expected.is_nan() {
                first_nan.into_iter().find(|&x| f64::from_bits(x).is_nan())
                    .map_or(0xfff8 << 48, |x| x | 1 << 51)
            } else {
                expected.to_bits() as u64
            };
            prop_assert!(actual.to_bits() == expected,
                "{name} of {a:#x} {b:#x} {c:#x} {rounding:?}: {:#x} instead of {expected:#x}",
                actual.to_bits());
        }
    }

    #[test]
    fn double_sqrt_is_between_its_neighbours(a in f64_bits()) {
        let x = f64::from_bits(a & !(1 << 63));
        // The oracle scales by 2^600.
        let x = if x > 0.0 && x < 1e100 { x } else { 2.0 };
        let down = double::sqrt(x, Rounding::Rm);
        let up = double::sqrt(x, Rounding::Rp);
        let soft = |v: f64| Double::from_bits(u128::from(v.to_bits()));
        // Far from the subnormals, where the residual itself would round away.
        let scale = |v: f64, up: i32| soft(v).scalbn_r(up, Round::NearestTiesToEven);
        let sign = |v: f64| {
            let residual = (-scale(v, 300)).mul_add_r(
                scale(v, 300), scale(x, 600), Round::NearestTiesToEven).value;
            (residual.is_negative() && !residual.is_zero(), residual.is_zero())
        };
        let (down_above, exact) = sign(down);
        let (up_above, up_exact) = sign(up);
        prop_assert!(!down_above && (up_above || up_exact), "{a:#x}");
        prop_assert_eq!(up.to_bits() - down.to_bits(), u64::from(!exact), "{:#x}", a);
    }

    #[test]
    fn f16_is_correctly_rounded(a in any::<u16>(), b in any::<u16>(), c in any::<u16>(), bits in 0u8..8) {
        let flags = flags(bits);
        let near = half::mul(a, b, FloatFlags::NONE) ^ 0x8000 ^ (c & 3);
        for (op, [x, y, z], actual) in [
            (Op::Add, [a, b, 0], half::add(a, b, flags)),
            (Op::Sub, [a, b, 0], half::sub(a, b, flags)),
            (Op::Mul, [a, b, 0], half::mul(a, b, flags)),
            (Op::Fma, [a, b, c], half::fma(a, b, c, flags)),
            (Op::Fma, [a, b, near], half::fma(a, b, near, flags)),
        ] {
            let expected =
                expected::<Half>(op, [x, y, z].map(u32::from), Round::NearestTiesToEven, flags);
            prop_assert!(u32::from(actual) == expected,
                "{op:?} of {x:#x} {y:#x} {z:#x} {flags:?}: {actual:#x} instead of {expected:#x}");
        }
    }

    #[test]
    fn bf16_is_correctly_rounded(a in any::<u16>(), b in any::<u16>(), c in any::<u16>(), relu: bool) {
        let near = bfloat::mul(a, b) ^ 0x8000 ^ (c & 3);
        let none = FloatFlags::NONE;
        let relu_flag = FloatFlags { relu, ..none };
        for (op, [x, y, z], actual, flags) in [
            (Op::Add, [a, b, 0], bfloat::add(a, b), none),
            (Op::Sub, [a, b, 0], bfloat::sub(a, b), none),
            (Op::Mul, [a, b, 0], bfloat::mul(a, b), none),
            (Op::Fma, [a, b, c], bfloat::fma(a, b, c, relu), relu_flag),
            (Op::Fma, [a, b, near], bfloat::fma(a, b, near, relu), relu_flag),
        ] {
            let expected =
                expected::<BFloat>(op, [x, y, z].map(u32::from), Round::NearestTiesToEven, flags);
            prop_assert!(u32::from(actual) == expected,
                "{op:?} of {x:#x} {y:#x} {z:#x}: {actual:#x} instead of {expected:#x}");
        }
    }

    #[test]
    fn packed_operations_are_two_scalar_ones(a: u32, b: u32, c: u32, d: u64, e: u64, f: u64) {
        let lo = |x: u32| x as u16;
        let hi = |x: u32| (x >> 16) as u16;
        let flags = FloatFlags::FTZ;
        prop_assert_eq!(half::fma_x2(a, b, c, flags),
            pack16(half::fma(lo(a), lo(b), lo(c), flags), half::fma(hi(a), hi(b), hi(c), flags)));
        prop_assert_eq!(bfloat::fma_x2(a, b, c, true),
            pack16(bfloat::fma(lo(a), lo(b), lo(c), true), bfloat::fma(hi(a), hi(b), hi(c), true)));
        let one = |at: u32| {
            let [d, e, f] = [d, e, f].map(|x| f32::from_bits((x >> at) as u32));
            u64::from(single::fma(d, e, f, Rounding::Rz, flags).to_bits()) << at
        };
        prop_assert_eq!(single::fma_x2(d, e, f, Rounding::Rz, flags), one(0) | one(32));
    }
}
