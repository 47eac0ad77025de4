//! Floating-point arithmetic against `rustc_apfloat` as the oracle.

use proptest::prelude::*;
use ptx_emu::num::{
    FloatFlags, MinMaxFlags, Rounding, approx, bfloat, double, half, pack16, single,
};
use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use rustc_apfloat::{Float, Round};

const ROUNDINGS: [(Rounding, Round); 5] = [
    (Rounding::Rn, Round::NearestTiesToEven),
    (Rounding::Rz, Round::TowardZero),
    (Rounding::Rm, Round::TowardNegative),
    (Rounding::Rp, Round::TowardPositive),
    (Rounding::Rna, Round::NearestTiesToAway),
];

fn flags(bits: u8) -> FloatFlags {
    FloatFlags { ftz: bits & 1 != 0, sat: bits & 2 != 0, relu: bits & 4 != 0 }
}

/// The bits of an oracle's result with the canonical NaN, the modifiers applied to the
/// magnitude order of patterns. `exp_at` is the position of the exponent field.
fn finish<F: Float>(x: F, nan: u128, exp_at: u32, flags: FloatFlags) -> u128 {
    if x.is_nan() {
        return if flags.sat { 0 } else { nan };
    }
    let sign = nan + 1;
    let mut bits = x.to_bits();
    if flags.ftz && (bits & nan) >> exp_at == 0 {
        bits &= sign;
    }
    if (flags.sat || flags.relu) && bits & sign != 0 {
        return 0;
    }
    let one = F::from_u128(1).value.to_bits();
    if flags.sat { bits.min(one) } else { bits }
}

fn flush(bits: u128, nan: u128, exp_at: u32, ftz: bool) -> u128 {
    if ftz && (bits & nan) >> exp_at == 0 { bits & (nan + 1) } else { bits }
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

fn check_single(
    name: &str,
    ops: &[u32],
    rounding: Rounding,
    flags: FloatFlags,
    actual: f32,
    oracle: impl Fn(&[Single]) -> Single,
) {
    let soft: Vec<_> = ops
        .iter()
        .map(|&x| Single::from_bits(flush(u128::from(x), 0x7fff_ffff, 23, flags.ftz)))
        .collect();
    let expected = finish(oracle(&soft), 0x7fff_ffff, 23, flags) as u32;
    assert_eq!(
        actual.to_bits(),
        expected,
        "{name} of {ops:#x?} {rounding:?} {flags:?}: {:#x} instead of {expected:#x}",
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
        let (rounding, round) = ROUNDINGS[mode];
        let [fa, fb, fc] = [a, b, c].map(f32::from_bits);
        // The cancelling addend of fma makes exact ties and exact zeros likely.
        let near = f32::from_bits((-(fa * fb)).to_bits() ^ (c & 3));
        check_single("add", &[a, b], rounding, flags, single::add(fa, fb, rounding, flags),
            |x| x[0].add_r(x[1], round).value);
        check_single("sub", &[a, b], rounding, flags, single::sub(fa, fb, rounding, flags),
            |x| x[0].sub_r(x[1], round).value);
        check_single("mul", &[a, b], rounding, flags, single::mul(fa, fb, rounding, flags),
            |x| x[0].mul_r(x[1], round).value);
        check_single("div", &[a, b], rounding, flags, single::div(fa, fb, rounding, flags),
            |x| x[0].div_r(x[1], round).value);
        check_single("rcp", &[a], rounding, flags, single::rcp(fa, rounding, flags),
            |x| "1".parse::<Single>().expect("a number").div_r(x[0], round).value);
        check_single("fma", &[a, b, c], rounding, flags, single::fma(fa, fb, fc, rounding, flags),
            |x| x[0].mul_add_r(x[1], x[2], round).value);
        check_single("fma", &[a, b, near.to_bits()], rounding, flags,
            single::fma(fa, fb, near, rounding, flags),
            |x| x[0].mul_add_r(x[1], x[2], round).value);
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
        for (name, actual, expected, first_nan) in [
            ("add", double::add(fa, fb, rounding), sa.add_r(sb, round).value, [a, b, b]),
            ("sub", double::sub(fa, fb, rounding), sa.sub_r(sb, round).value, [a, b, b]),
            ("mul", double::mul(fa, fb, rounding), sa.mul_r(sb, round).value, [a, b, b]),
            ("div", double::div(fa, fb, rounding), sa.div_r(sb, round).value, [a, b, b]),
            ("fma", double::fma(fa, fb, fc, rounding), sa.mul_add_r(sb, sc, round).value, [a, b, c]),
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
        let soft = |x: u16| Half::from_bits(flush(u128::from(x), 0x7fff, 10, flags.ftz));
        let near = half::mul(a, b, FloatFlags::NONE) ^ 0x8000 ^ (c & 3);
        let cases = [
            ("add", half::add(a, b, flags), (soft(a) + soft(b)).value),
            ("sub", half::sub(a, b, flags), (soft(a) - soft(b)).value),
            ("mul", half::mul(a, b, flags), (soft(a) * soft(b)).value),
            ("fma", half::fma(a, b, c, flags), soft(a).mul_add(soft(b), soft(c)).value),
            ("fma near", half::fma(a, b, near, flags), soft(a).mul_add(soft(b), soft(near)).value),
        ];
        for (name, actual, expected) in cases {
            let expected = finish(expected, 0x7fff, 10, flags) as u16;
            prop_assert!(actual == expected,
                "{name} of {a:#x} {b:#x} {c:#x} {flags:?}: {actual:#x} instead of {expected:#x}");
        }
    }

    #[test]
    fn bf16_is_correctly_rounded(a in any::<u16>(), b in any::<u16>(), c in any::<u16>(), relu: bool) {
        let soft = |x: u16| BFloat::from_bits(u128::from(x));
        let near = bfloat::mul(a, b) ^ 0x8000 ^ (c & 3);
        let none = FloatFlags::NONE;
        let relu_flag = FloatFlags { relu, ..none };
        let cases = [
            ("add", bfloat::add(a, b), (soft(a) + soft(b)).value, none),
            ("sub", bfloat::sub(a, b), (soft(a) - soft(b)).value, none),
            ("mul", bfloat::mul(a, b), (soft(a) * soft(b)).value, none),
            ("fma", bfloat::fma(a, b, c, relu), soft(a).mul_add(soft(b), soft(c)).value, relu_flag),
            ("fma near", bfloat::fma(a, b, near, relu),
                soft(a).mul_add(soft(b), soft(near)).value, relu_flag),
        ];
        for (name, actual, expected, flags) in cases {
            let expected = finish(expected, 0x7fff, 7, flags) as u16;
            prop_assert!(actual == expected,
                "{name} of {a:#x} {b:#x} {c:#x}: {actual:#x} instead of {expected:#x}");
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

/// `min` or `max` of f64 images of two operands whose signs differ if `sign`, as the PTX
/// pseudo-code has it.
fn min_max_oracle(max: bool, a: f64, b: f64, sign: bool, flags: MinMaxFlags) -> Option<f64> {
    let (a, b) = if flags.abs { (a.abs(), b.abs()) } else { (a, b) };
    if (a.is_nan() && b.is_nan()) || (flags.nan && (a.is_nan() || b.is_nan())) {
        return None;
    }
    let d = if a.is_nan() {
        b
    } else if b.is_nan() || a.total_cmp(&b).is_lt() != max {
        a
    } else {
        b
    };
    Some(if flags.xorsign { d.abs() * if sign { -1.0 } else { 1.0 } } else { d })
}

fn min_max_flags() -> impl Iterator<Item = MinMaxFlags> {
    (0..16).map(|i| MinMaxFlags {
        ftz: i & 1 != 0,
        nan: i & 2 != 0,
        abs: i & 4 != 0,
        xorsign: i & 12 == 12,
    })
}

#[test]
fn min_and_max_follow_the_pseudo_code() {
    let halves = [
        0u16, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x8400, 0x3c00, 0xbc00, 0x4000, 0x7bff, 0x7c00,
        0xfc00, 0x7e00, 0xfe00, 0x7fff, 0x7d01,
    ];
    for flags in min_max_flags() {
        for a in halves {
            for b in halves {
                let sign = (a ^ b) & 0x8000 != 0;
                let name = |max| if max { "max" } else { "min" };
                for max in [false, true] {
                    let value = |x| f64::from(half::to_f32(half::flush(x, flags.ftz)));
                    let expected = min_max_oracle(max, value(a), value(b), sign, flags)
                        .map_or(half::NAN, |x| half::from_f32(x as f32));
                    let actual = if max { half::max(a, b, flags) } else { half::min(a, b, flags) };
                    assert_eq!(actual, expected, "{} f16 {a:#x} {b:#x} {flags:?}", name(max));

                    let [fa, fb] = [a, b].map(|x| f32::from_bits(u32::from(x) << 16 | 1));
                    let value = |x| f64::from(single::flush(x, flags.ftz));
                    let expected = min_max_oracle(max, value(fa), value(fb), sign, flags)
                        .map_or(single::NAN, |x| x as f32);
                    let actual =
                        if max { single::max(fa, fb, flags) } else { single::min(fa, fb, flags) };
                    assert_eq!(
                        actual.to_bits(),
                        expected.to_bits(),
                        "{} f32 {fa:?} {fb:?} {flags:?}",
                        name(max)
                    );

                    let value = |x| f64::from(bfloat::to_f32(x));
                    let expected = min_max_oracle(max, value(a), value(b), sign, flags)
                        .map_or(bfloat::NAN, |x| bfloat::from_f32(x as f32));
                    let actual =
                        if max { bfloat::max(a, b, flags) } else { bfloat::min(a, b, flags) };
                    assert_eq!(actual, expected, "{} bf16 {a:#x} {b:#x} {flags:?}", name(max));
                }
            }
        }
    }
    assert_eq!(double::min(0.0, -0.0).to_bits(), (-0f64).to_bits());
    assert_eq!(double::max(-0.0, 0.0).to_bits(), 0);
    assert_eq!(double::max(f64::NAN, 3.0), 3.0);
    assert!(double::min(f64::NAN, f64::NAN).is_nan());
    let flags = MinMaxFlags { nan: true, ..MinMaxFlags::default() };
    assert_eq!(single::min3(3.0, 1.0, 2.0, flags), 1.0);
    assert_eq!(single::max3(1.0, f32::NAN, 2.0, flags).to_bits(), single::NAN.to_bits());
}

#[test]
fn sign_operations_and_flushing() {
    assert_eq!(single::neg(f32::from_bits(0x7f80_0001), false).to_bits(), 0x7fff_ffff);
    assert_eq!(single::neg(f32::from_bits(1), true).to_bits(), 0x8000_0000);
    assert_eq!(single::neg(f32::from_bits(1), false).to_bits(), 0x8000_0001);
    assert_eq!(single::abs(f32::from_bits(0x8000_0001), true).to_bits(), 0);
    assert_eq!(single::abs(-2.0, false), 2.0);
    assert_eq!(half::neg_x2(0x7c01_3c00, false), 0x7fff_bc00);
    assert_eq!(half::abs_x2(0x8001_bc00, true), 0x0000_3c00);
    assert_eq!(bfloat::neg_x2(0xff81_3f80), 0x7fff_bf80);
    assert_eq!(bfloat::abs_x2(0xbf80_8001), 0x3f80_0001);
    assert_eq!(double::neg(f64::from_bits(0x7ff0_0000_0000_0001)).to_bits(), 0xfff0_0000_0000_0001);
    // Mixed precision: the narrow operand is widened exactly, the f32 one untouched.
    let flags = FloatFlags::NONE;
    assert_eq!(half::add_f32(0x0001, 1.0, Rounding::Rp, flags), 1.0 + f32::EPSILON);
    assert_eq!(half::sub_f32(0x3c00, 3.0, Rounding::Rn, flags), -2.0);
    assert_eq!(half::fma_f32(0x7bff, 0x7bff, 1.0, Rounding::Rz, flags), 4_290_774_016.0);
    assert_eq!(bfloat::add_f32(0x3f80, 1.0, Rounding::Rn, flags), 2.0);
    assert_eq!(bfloat::sub_f32(0x3f80, 1.0, Rounding::Rm, flags).to_bits(), 0x8000_0000);
    assert_eq!(bfloat::fma_f32(0x4000, 0x4040, 1.0, Rounding::Rn, flags), 7.0);
}

fn ulps(actual: f32, exact: f64) -> f64 {
    let size = exact.abs().max(f64::from(f32::MIN_POSITIVE));
    (f64::from(actual) - exact).abs() / (size * 2f64.powi(-23))
}

#[test]
fn approximations_are_rounded_to_nearest() {
    let check = |name: &str, x: f32, actual: f32, exact: f64| {
        if exact.abs() > f64::from(f32::MAX) {
            assert_eq!(f64::from(actual), exact.signum() * f64::INFINITY, "{name} {x:?}");
        } else {
            assert!(ulps(actual, exact) <= 0.5001, "{name} {x:?}: {actual:?}, {exact:?}");
        }
    };
    for bits in (0..0x7f80_0000u32).step_by(40_009) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            let wide = f64::from(x);
            check("ex2", x, approx::ex2(x, false), wide.exp2());
            check("tanh", x, approx::tanh(x), wide.tanh());
            check("sin", x, approx::sin(x, false), wide.sin());
            check("cos", x, approx::cos(x, false), wide.cos());
            if x > 0.0 {
                check("lg2", x, approx::lg2(x, false), wide.log2());
                check("rsqrt", x, approx::rsqrt(x, false), 1.0 / wide.sqrt());
            }
        }
    }
    for x in [0.99f32, 1.01, 1.0 + f32::EPSILON, 1.0 - f32::EPSILON] {
        check("lg2", x, approx::lg2(x, false), f64::from(x).log2());
    }
}

#[test]
fn every_half_through_the_unary_operations() {
    // `place` is a unit in the last place, relative: 2^-10 for f16, 2^-7 for bf16, whose
    // smallest normal numbers bound the size that it is relative to.
    let near = |actual: f32, exact: f64, place: f64| {
        let bound = place * exact.abs().max(if place > 0.001 { 1.2e-38 } else { 6e-5 });
        actual == exact as f32 || (f64::from(actual) - exact).abs() <= bound
    };
    for bits in 0..=u16::MAX {
        let x = half::to_f32(bits);
        let b = bfloat::to_f32(bits);
        if half::is_nan(bits) {
            let all = [half::neg(bits, false), half::abs(bits, true), approx::ex2_f16(bits)];
            assert_eq!((all, approx::tanh_f16(bits)), ([half::NAN; 3], half::NAN), "{bits:#x}");
        } else {
            assert_eq!(half::neg(bits, false), bits ^ 0x8000, "neg {bits:#x}");
            assert_eq!(half::abs(bits, false), bits & 0x7fff, "abs {bits:#x}");
            let exact = f64::from(x).exp2();
            let exact = if exact >= 65520.0 { f64::INFINITY } else { exact };
            let ex2 = half::to_f32(approx::ex2_f16(bits));
            assert!(near(ex2, exact, 2f64.powi(-10)), "ex2.f16 {bits:#x}: {ex2} {exact}");
            let tanh = half::to_f32(approx::tanh_f16(bits));
            let exact = f64::from(x).tanh();
            assert!(near(tanh, exact, 2f64.powi(-10)), "tanh.f16 {bits:#x}: {tanh} {exact}");
        }
        if bfloat::is_nan(bits) {
            let all = [bfloat::neg(bits), bfloat::abs(bits), approx::ex2_bf16(bits)];
            assert_eq!(
                (all, approx::tanh_bf16(bits)),
                ([bfloat::NAN; 3], bfloat::NAN),
                "{bits:#x}"
            );
        } else {
            assert_eq!(bfloat::neg(bits), bits ^ 0x8000, "neg {bits:#x}");
            assert_eq!(bfloat::abs(bits), bits & 0x7fff, "abs {bits:#x}");
            let exact = f64::from(b).exp2();
            let flushed = exact < f64::from(f32::MIN_POSITIVE);
            let exact = if flushed { 0.0 } else { exact };
            let ex2 = bfloat::to_f32(approx::ex2_bf16(bits));
            assert!(near(ex2, exact, 2f64.powi(-7)), "ex2.bf16 {bits:#x}: {ex2} {exact}");
            let tanh = bfloat::to_f32(approx::tanh_bf16(bits));
            let exact = f64::from(b).tanh();
            assert!(near(tanh, exact, 2f64.powi(-7)), "tanh.bf16 {bits:#x}: {tanh} {exact}");
        }
    }
}

#[test]
fn approximations_have_the_documented_special_cases() {
    let tiny = f32::from_bits(1);
    let inf = f32::INFINITY;
    let cases: [(&str, f32, f32); 34] = [
        ("ex2 -inf", approx::ex2(-inf, false), 0.0),
        ("ex2 inf", approx::ex2(inf, false), inf),
        ("ex2 0", approx::ex2(-0.0, true), 1.0),
        ("ex2 tiny", approx::ex2(tiny, true), 1.0),
        ("ex2 subnormal", approx::ex2(-149.0, false), tiny),
        ("ex2 flushed", approx::ex2(-149.0, true), 0.0),
        ("ex2 nan", approx::ex2(f32::NAN, true), single::NAN),
        ("lg2 0", approx::lg2(0.0, false), -inf),
        ("lg2 -0", approx::lg2(-0.0, false), -inf),
        ("lg2 -1", approx::lg2(-1.0, false), single::NAN),
        ("lg2 inf", approx::lg2(inf, false), inf),
        ("lg2 tiny", approx::lg2(tiny, false), -149.0),
        ("lg2 flushed", approx::lg2(tiny, true), -inf),
        ("sin -0", approx::sin(-0.0, false), -0.0),
        ("sin inf", approx::sin(inf, false), single::NAN),
        ("sin flushed", approx::sin(-tiny, true), -0.0),
        ("cos 0", approx::cos(-0.0, false), 1.0),
        ("cos nan", approx::cos(f32::NAN, false), single::NAN),
        ("tanh -inf", approx::tanh(-inf), -1.0),
        ("tanh -0", approx::tanh(-0.0), -0.0),
        ("tanh nan", approx::tanh(f32::NAN), single::NAN),
        ("rcp -inf", approx::rcp(-inf, false), -0.0),
        ("rcp -0", approx::rcp(-0.0, false), -inf),
        ("rcp tiny", approx::rcp(-tiny, true), -inf),
        ("sqrt -0", approx::sqrt(-0.0, false), -0.0),
        ("sqrt -1", approx::sqrt(-1.0, false), single::NAN),
        ("rsqrt -0", approx::rsqrt(-0.0, false), -inf),
        ("rsqrt inf", approx::rsqrt(inf, false), 0.0),
        ("rsqrt -1", approx::rsqrt(-1.0, false), single::NAN),
        ("div", approx::div_approx(6.0, -3.0, false), -2.0),
        ("div large", approx::div_approx(1e38, 1.7e38, false), 0.0),
        ("div inf large", approx::div_approx(inf, 1.7e38, false), single::NAN),
        ("div.full large", approx::div_full(1.7e38, 1.7e38, false), 1.0),
        ("div 0 0", approx::div_approx(0.0, 0.0, false), single::NAN),
    ];
    for (name, actual, expected) in cases {
        assert_eq!(actual.to_bits(), expected.to_bits(), "{name}: {actual:?}, {expected:?}");
    }
    assert_eq!(approx::ex2_f16x2(0x7c00_3c00), 0x7c00_4000);
    assert_eq!(approx::ex2_bf16x2(0x3f80_ff80), 0x4000_0000);
    assert_eq!(approx::tanh_f16x2(0xfc00_0000), 0xbc00_0000);
    assert_eq!(approx::tanh_bf16x2(0xff80_7fff), 0xbf80_7fff);
    assert_eq!(approx::rcp_f64(4.0), 0.25);
    assert_eq!(approx::rcp_f64(-0.0), f64::NEG_INFINITY);
    assert_eq!(approx::rcp_f64(3.0).to_bits() as u32, 0);
    assert_eq!(approx::rsqrt_f64(4.0, true), 0.5);
    assert_eq!(approx::rsqrt_f64(2.0, false), 1.0 / 2f64.sqrt());
    assert!(approx::rcp_f64(f64::from_bits(0x7ff0_0000_0000_0001)).is_nan());
}
