//! Floating-point operations other than rounded arithmetic: `min` and `max`, signs,
//! flushing, approximations, and the unary operations of 16 bits.

use ptx_emu_core::num::{FloatFlags, MinMaxFlags, Rounding, approx, bfloat, double, half, single};

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
    // A NaN of f64 becomes quiet and keeps its sign.
    assert_eq!(double::neg(f64::from_bits(0x7ff0_0000_0000_0001)).to_bits(), 0x7ff8_0000_0000_0001);
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
    // The bits that make it a NaN are in the lower half, which is not read.
    assert_eq!(approx::rcp_f64(f64::from_bits(0x7ff0_0000_0000_0001)), 0.0);
    assert_eq!(approx::rcp_f64(f64::NAN).to_bits(), 0x7fff_ffff << 32);
}
