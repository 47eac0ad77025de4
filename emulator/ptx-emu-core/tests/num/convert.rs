//! `cvt` between scalar types against `rustc_apfloat` and wide integers.

use crate::roundings::ROUNDINGS;
use proptest::prelude::*;
use ptx_emu_core::num::cvt::{Cvt, NumType};
use ptx_emu_core::num::minifloat::Minifloat;
use ptx_emu_core::num::narrow::{self, Narrowing};
use ptx_emu_core::num::{Rounding, bfloat, half};
use rustc_apfloat::ieee::{BFloat, Double, Float8E4M3FN, Float8E5M2, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

const INTEGERS: [NumType; 8] = [
    NumType::U8,
    NumType::U16,
    NumType::U32,
    NumType::U64,
    NumType::S8,
    NumType::S16,
    NumType::S32,
    NumType::S64,
];

const FLOATS: [NumType; 4] = [NumType::F16, NumType::Bf16, NumType::F32, NumType::F64];

#[test]
fn every_f16_converts_exactly_and_back() {
    for bits in 0..=u16::MAX {
        let reference = ::half::f16::from_bits(bits).to_f32();
        let actual = half::to_f32(bits);
        if reference.is_nan() {
            assert_eq!(actual.to_bits(), 0x7fff_ffff, "f16 {bits:#x}");
            assert_eq!(half::from_f32(reference), half::NAN, "f16 {bits:#x}");
            continue;
        }
        assert_eq!(actual.to_bits(), reference.to_bits(), "f16 {bits:#x}");
        assert_eq!(half::from_f32(actual), bits, "f16 {bits:#x} back");
        let wide = Cvt::new(NumType::F64, NumType::F16).apply(u64::from(bits));
        assert_eq!(f64::from_bits(wide), f64::from(reference), "f16 {bits:#x} to f64");
        let bf16 = Cvt::new(NumType::Bf16, NumType::F16).apply(u64::from(bits));
        assert_eq!(bf16, u64::from(bfloat::from_f32(reference)), "f16 {bits:#x} to bf16");
    }
}

/// Range of an integer type.
fn range(ty: NumType) -> (i128, i128) {
    match ty.is_signed() {
        true => (-1 << (ty.bits() - 1), (1 << (ty.bits() - 1)) - 1),
        false => (0, (1 << ty.bits()) - 1),
    }
}

fn as_integer(ty: NumType, bits: u64) -> i128 {
    if ty.is_signed() { i128::from(bits as i64) } else { i128::from(bits) }
}

fn round_f64(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Rn => x.round_ties_even(),
        Rounding::Rz => x.trunc(),
        Rounding::Rm => x.floor(),
        Rounding::Rp => x.ceil(),
        Rounding::Rna => x.round(),
    }
}

fn check_float_to_int(from: NumType, bits: u64, x: f64) {
    for to in INTEGERS {
        for (rounding, _) in ROUNDINGS {
            let expected = if x.is_nan() {
                let wide = from == NumType::F64 || to.bits() == 64;
                let (min, max) = range(to);
                match (wide, to.is_signed()) {
                    (false, _) => 0,
                    (true, true) => min,
                    (true, false) => max / 2 + 1,
                }
            } else {
                let (min, max) = range(to);
                (round_f64(x, rounding) as i128).clamp(min, max)
            };
            let actual = Cvt { rounding, integral: true, ..Cvt::new(to, from) }.apply(bits);
            assert_eq!(
                as_integer(to, actual),
                expected,
                "cvt.{rounding:?}.{to:?}.{from:?} of {bits:#x}"
            );
        }
    }
}

#[test]
fn every_f16_and_bf16_to_every_integer() {
    for bits in 0..=u16::MAX {
        check_float_to_int(NumType::F16, bits.into(), half::to_f32(bits).into());
        check_float_to_int(NumType::Bf16, bits.into(), bfloat::to_f32(bits).into());
    }
}

#[test]
fn every_f16_rounds_to_an_integer_in_place() {
    for bits in 0..=u16::MAX {
        for (rounding, _) in ROUNDINGS {
            for (ty, x, nan) in [
                (NumType::F16, half::to_f32(bits), half::NAN),
                (NumType::Bf16, bfloat::to_f32(bits), bfloat::NAN),
            ] {
                let rounded = round_f64(x.into(), rounding) as f32;
                let expected = match ty {
                    _ if x.is_nan() => nan,
                    NumType::F16 => half::from_f32(rounded),
                    _ => bfloat::from_f32(rounded),
                };
                let actual =
                    Cvt { rounding, integral: true, ..Cvt::new(ty, ty) }.apply(bits.into());
                assert_eq!(actual, u64::from(expected), "{rounding:?} {ty:?} {bits:#x}");
            }
        }
    }
}

fn soft_convert<F, T>(bits: u64, round: Round, nan: u64) -> u64
where
    F: Float + FloatConvert<T>,
    T: Float,
{
    let mut loses_info = false;
    let value: T = F::from_bits(u128::from(bits)).convert_r(round, &mut loses_info).value;
    if value.is_nan() { nan } else { value.to_bits() as u64 }
}

fn check_float_to_float(bits: u64) {
    for (rounding, round) in ROUNDINGS {
        let wide_nan = |exp_at: u32, sign_at: u32| {
            let payload = (bits & ((1 << exp_at) - 1)) << (52 - exp_at);
            (bits >> sign_at & 1) << 63 | 0x7ff8 << 48 | payload
        };
        // From f64 a NaN keeps its sign and the upper bits of its payload.
        let narrow_nan = |exponent: u64, man_bits: u32| {
            let payload = (bits & ((1 << 52) - 1)) >> (52 - man_bits);
            let sign = if man_bits == 23 { bits >> 63 << 31 } else { bits >> 63 << 15 };
            sign | exponent << man_bits | 1 << (man_bits - 1) | payload
        };
        let f32_bits = bits & 0xffff_ffff;
        let f16_bits = bits & 0xffff;
        use NumType::{Bf16, F16, F32, F64};
        for (to, from, expected) in [
            (F16, F32, soft_convert::<Single, Half>(f32_bits, round, 0x7fff)),
            (Bf16, F32, soft_convert::<Single, BFloat>(f32_bits, round, 0x7fff)),
            (F64, F32, soft_convert::<Single, Double>(f32_bits, round, wide_nan(23, 31))),
            (F32, F64, soft_convert::<Double, Single>(bits, round, narrow_nan(0xff, 23))),
            (F16, F64, soft_convert::<Double, Half>(bits, round, narrow_nan(0x1f, 10))),
            (Bf16, F64, soft_convert::<Double, BFloat>(bits, round, narrow_nan(0xff, 7))),
            // bf16 is the upper half of f32, NaN or not.
            (F32, Bf16, f16_bits << 16),
            (F16, Bf16, soft_convert::<BFloat, Half>(f16_bits, round, 0x7fff)),
            (Bf16, F16, soft_convert::<Half, BFloat>(f16_bits, round, 0x7fff)),
        ] {
            let actual = Cvt { rounding, ..Cvt::new(to, from) }.apply(bits);
            assert_eq!(actual, expected, "cvt.{rounding:?}.{to:?}.{from:?} of {bits:#x}");
        }
        if matches!(rounding, Rounding::Rn | Rounding::Rz) {
            let x = f32::from_bits(f32_bits as u32);
            let n = Narrowing { rounding, ..Narrowing::default() };
            let f16 = soft_convert::<Single, Half>(f32_bits, round, 0x7fff) as u16;
            assert_eq!(narrow::f16_from_f32(x, n), f16, "f16 {rounding:?} of {f32_bits:#x}");
            let n = Narrowing { satfinite: true, ..n };
            let f16 = if f16 & 0x7fff == 0x7c00 { f16 - 1 } else { f16 };
            assert_eq!(narrow::f16_from_f32(x, n), f16, "f16 satfinite of {f32_bits:#x}");
        }
    }
    // Formats of 8 bits, where the oracle has them. It does not saturate.
    let x = f32::from_bits(bits as u32);
    if x.abs() <= 448.0 {
        let nearest = Round::NearestTiesToEven;
        let e4m3 = soft_convert::<Single, Float8E4M3FN>(bits & 0xffff_ffff, nearest, 0x7f);
        assert_eq!(u64::from(Minifloat::E4m3.from_f32(x, false)), e4m3, "e4m3 of {x:?}");
        let e5m2 = soft_convert::<Single, Float8E5M2>(bits & 0xffff_ffff, nearest, 0x7f);
        assert_eq!(u64::from(Minifloat::E5m2.from_f32(x, false)), e5m2, "e5m2 of {x:?}");
    }
}

/// Bit patterns whose f32 and f64 readings have moderate exponents half of the time.
fn float_bits() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (any::<u64>(), 100u64..160, 900u64..1100, any::<u8>()).prop_map(|(m, e32, e64, cut)| {
            let m = m & (u64::MAX << (cut % 64));
            (m & !(0x7ff << 52 | 0xff << 23)) | e64 << 52 | e32 << 23
        }),
        (any::<u32>(), 100u64..160).prop_map(|(m, e)| u64::from(m & 0x807f_f000) | e << 23),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn floats_to_floats(bits in float_bits()) {
        check_float_to_float(bits);
    }

    #[test]
    fn floats_to_integers(bits in float_bits()) {
        let x = f32::from_bits(bits as u32);
        check_float_to_int(NumType::F32, bits & 0xffff_ffff, x.into());
        check_float_to_int(NumType::F64, bits, f64::from_bits(bits));
        for (rounding, _) in ROUNDINGS {
            let in_place = |ty| Cvt { rounding, integral: true, ..Cvt::new(ty, ty) };
            if !x.is_nan() {
                let actual = in_place(NumType::F32).apply(bits) as u32;
                prop_assert_eq!(actual, (round_f64(x.into(), rounding) as f32).to_bits());
            }
            let x = f64::from_bits(bits);
            if !x.is_nan() {
                let actual = in_place(NumType::F64).apply(bits);
                prop_assert_eq!(actual, round_f64(x, rounding).to_bits());
            }
        }
    }

    #[test]
    fn integers_to_floats(bits: u64, keep in 0u32..64) {
        let bits = bits >> keep;
        for from in INTEGERS {
            let value = as_integer(from, from.extend(bits));
            for (rounding, round) in ROUNDINGS {
                for to in FLOATS {
                    let expected = match to {
                        NumType::F16 => Half::from_i128_r(value, round).value.to_bits(),
                        NumType::Bf16 => BFloat::from_i128_r(value, round).value.to_bits(),
                        NumType::F32 => Single::from_i128_r(value, round).value.to_bits(),
                        _ => Double::from_i128_r(value, round).value.to_bits(),
                    };
                    let actual = Cvt { rounding, ..Cvt::new(to, from) }.apply(bits);
                    prop_assert!(u128::from(actual) == expected,
                        "cvt.{rounding:?}.{to:?}.{from:?} of {bits:#x}: {actual:#x}, {expected:#x}");
                }
            }
        }
    }

    #[test]
    fn integers_to_integers(bits: u64, keep in 0u32..64) {
        let bits = (bits as i64 >> keep) as u64;
        for from in INTEGERS {
            let value = as_integer(from, from.extend(bits));
            for to in INTEGERS {
                let (min, max) = range(to);
                let plain = Cvt::new(to, from).apply(bits);
                prop_assert_eq!(plain, to.extend(value as u64), "{:?} from {:?}", to, from);
                let sat = Cvt { sat: true, ..Cvt::new(to, from) }.apply(bits);
                prop_assert_eq!(as_integer(to, sat), value.clamp(min, max), "{:?} from {:?}", to, from);
            }
        }
    }

}

proptest! {
    #[test]
    fn lanes_are_converted_one_by_one(lanes: [u64; 8], modifiers: u8, mode in 0usize..5) {
        for to in INTEGERS.into_iter().chain(FLOATS) {
            for from in INTEGERS.into_iter().chain(FLOATS) {
                let cvt = Cvt {
                    to,
                    from,
                    rounding: if modifiers & 1 == 0 { Rounding::Rn } else { ROUNDINGS[mode].0 },
                    integral: modifiers & 6 == 6,
                    ftz: modifiers & 24 == 24,
                    sat: modifiers & 96 == 96,
                    relu: modifiers & 160 == 160,
                    satfinite: modifiers & 80 == 80,
                };
                prop_assert_eq!(cvt.apply_lanes(lanes), lanes.map(|x| cvt.apply(x)), "{:?}", cvt);
            }
        }
    }
}

#[test]
fn modifiers_on_scalar_conversions() {
    let f32_bits = |x: f32| u64::from(x.to_bits());
    let sat = Cvt { sat: true, ..Cvt::new(NumType::F16, NumType::F32) };
    for (x, expected) in [(2.0, 0x3c00), (0.5, 0x3800), (-1.0, 0), (-0.0, 0), (f32::NAN, 0)] {
        assert_eq!(sat.apply(f32_bits(x)), expected, "sat of {x}");
    }
    let relu = Cvt { relu: true, ..Cvt::new(NumType::Bf16, NumType::F32) };
    for (x, expected) in [(2.0, 0x4000), (-1.0, 0), (-0.0, 0), (f32::NAN, 0x7fff)] {
        assert_eq!(relu.apply(f32_bits(x)), expected, "relu of {x}");
    }
    let ftz = Cvt { ftz: true, ..Cvt::new(NumType::F32, NumType::F64) };
    assert_eq!(ftz.apply((-1e-40f64).to_bits()), 0x8000_0000);
    let ftz = Cvt { ftz: true, rounding: Rounding::Rp, ..Cvt::new(NumType::S32, NumType::F32) };
    assert_eq!(ftz.apply(1), 0);
    assert_eq!(Cvt { ftz: false, ..ftz }.apply(1), 1);
    let satfinite = Cvt { satfinite: true, ..Cvt::new(NumType::F16, NumType::F32) };
    assert_eq!(satfinite.apply(f32_bits(f32::NEG_INFINITY)), 0xfbff);
    assert_eq!(satfinite.apply(f32_bits(f32::NAN)), 0x7fff);
    // Results of signed types are extended for wider registers.
    assert_eq!(Cvt::new(NumType::S8, NumType::S32).apply(0x80), (-128i64) as u64);
    assert_eq!(Cvt::new(NumType::U8, NumType::S32).apply(0xffff_ff80), 0x80);
}
