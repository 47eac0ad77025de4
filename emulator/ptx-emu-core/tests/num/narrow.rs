//! Packed and narrow conversions: NVIDIA's golden tables, every narrow code, every f16.

use proptest::prelude::*;
use ptx_emu_core::num::minifloat::{self, Minifloat};
use ptx_emu_core::num::narrow::{self, Narrowing};
use ptx_emu_core::num::{Rounding, half};

fn golden() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/formats/conversions.json");
    let text = std::fs::read_to_string(path).expect("the golden data are in the repository");
    serde_json::from_str(&text).expect("the golden data are JSON")
}

fn table(golden: &serde_json::Value, name: &str) -> Vec<u64> {
    let values = golden[name].as_array().unwrap_or_else(|| panic!("{name} is a list"));
    values.iter().map(|x| x.as_u64().expect("an integer")).collect()
}

fn samples(golden: &serde_json::Value, name: &str) -> Vec<(f32, u8)> {
    let values = golden[name].as_array().unwrap_or_else(|| panic!("{name} is a list"));
    let at = |x: &serde_json::Value, i: usize| x[i].as_u64().expect("an integer");
    values.iter().map(|x| (f32::from_bits(at(x, 0) as u32), at(x, 1) as u8)).collect()
}

#[test]
fn golden_decode_tables() {
    let golden = golden();
    for (name, format, len) in
        [("e2m1_to_f16_bits", Minifloat::E2m1, 16), ("e4m3_to_f16_bits", Minifloat::E4m3, 256)]
    {
        let expected = table(&golden, name);
        assert_eq!(expected.len(), len, "{name}");
        for (code, expected) in expected.into_iter().enumerate() {
            assert_eq!(u64::from(format.to_f16(code as u8)), expected, "{name} of {code:#x}");
        }
    }
    for (code, expected) in table(&golden, "ue8m0_to_bf16_bits").into_iter().enumerate() {
        assert_eq!(u64::from(minifloat::ue8m0_to_bf16(code as u8)), expected, "ue8m0 {code:#x}");
        let pair = narrow::bf16x2_from_ue8m0x2((code as u16) << 8 | 127);
        assert_eq!(u64::from(pair), expected << 16 | 0x3f80, "ue8m0x2 {code:#x}");
    }
}

#[test]
fn golden_encode_samples() {
    let golden = golden();
    for (name, format) in [
        ("f32_to_e2m1_rn_satfinite", Minifloat::E2m1),
        ("f32_to_e4m3_rn_satfinite", Minifloat::E4m3),
    ] {
        for (x, expected) in samples(&golden, name) {
            assert_eq!(format.from_f32(x, false), expected, "{name} of {:#x}", x.to_bits());
        }
    }
    for (name, up) in [("f32_to_ue8m0_rp_satfinite", true), ("f32_to_ue8m0_rz_satfinite", false)] {
        for (x, expected) in samples(&golden, name) {
            let actual = minifloat::ue8m0_from_f32(x, up, true);
            assert_eq!(actual, expected, "{name} of {:#x}", x.to_bits());
        }
    }
}

#[test]
fn golden_nibble_order() {
    let golden = golden();
    let halves = &golden["e2m1x2_0x21_to_f16x2"];
    let expected = halves["low"].as_u64().zip(halves["high"].as_u64()).expect("two halves");
    let actual = narrow::pair_to_f16x2(Minifloat::E2m1, 0x21, false);
    assert_eq!((u64::from(actual & 0xffff), u64::from(actual >> 16)), expected);
    let expected = golden["float2_x0.5_y6_to_e2m1x2"].as_u64().expect("a byte");
    assert_eq!(u64::from(narrow::pair_from_f32(Minifloat::E2m1, 6.0, 0.5, false)), expected);
}

const MINIFLOATS: [(Minifloat, i32, u32); 5] = [
    // exponent bias, significand bits
    (Minifloat::E4m3, 7, 3),
    (Minifloat::E5m2, 15, 2),
    (Minifloat::E3m2, 3, 2),
    (Minifloat::E2m3, 1, 3),
    (Minifloat::E2m1, 1, 1),
];

/// The value of a code from the definition of its format.
fn minifloat_value(format: Minifloat, bias: i32, man_bits: u32, code: u8) -> f64 {
    let width = format.bits();
    let mag = u32::from(code) & ((1 << (width - 1)) - 1);
    let man = f64::from(mag & ((1 << man_bits) - 1)) / f64::from(1 << man_bits);
    let exp = (mag >> man_bits) as i32;
    let value = match format {
        Minifloat::E4m3 if mag == 0x7f => f64::NAN,
        Minifloat::E5m2 if mag > 0x7c => f64::NAN,
        Minifloat::E5m2 if mag == 0x7c => f64::INFINITY,
        _ if exp == 0 => man * 2f64.powi(1 - bias),
        _ => (1.0 + man) * 2f64.powi(exp - bias),
    };
    if code >> (width - 1) & 1 == 1 { -value } else { value }
}

#[test]
fn every_narrow_code_decodes_to_its_value_and_back() {
    for (format, bias, man_bits) in MINIFLOATS {
        for code in 0..1u32 << format.bits() {
            let code = code as u8;
            let value = minifloat_value(format, bias, man_bits, code);
            let bits = format.to_f16(code);
            let pair = u16::from(code) << format.bits().next_power_of_two();
            let brain = narrow::pair_to_bf16x2(format, pair, false);
            assert_eq!(brain & 0xffff, 0, "{format:?} {code:#x} beside a zero");
            let brain = f64::from(f32::from_bits(brain));
            assert!(
                brain.to_bits() == value.to_bits() || brain.is_nan() && value.is_nan(),
                "{format:?} {code:#x} as bf16: {brain}"
            );
            if value.is_nan() {
                assert_eq!(bits, half::NAN, "{format:?} {code:#x}");
                continue;
            }
            let decoded = half::to_f32(bits);
            assert_eq!(f64::from(decoded).to_bits(), value.to_bits(), "{format:?} {code:#x}");
            let again = format.from_f32(decoded, false);
            let expected = if value.is_infinite() { code - 1 } else { code };
            assert_eq!(again, expected, "{format:?} {code:#x} encoded again");
            assert_eq!(
                narrow::pair_to_f16x2(format, pair, false),
                u32::from(bits) << 16 | u32::from(format.to_f16(0)),
                "{format:?} {code:#x} as a pair"
            );
        }
    }
}

/// Nearest code by exhaustive search, ties to the even code, after saturation.
fn nearest_code(format: Minifloat, bias: i32, man_bits: u32, x: f64) -> u8 {
    let sign = 1 << (format.bits() - 1);
    let codes = (0..sign).filter(|&c| minifloat_value(format, bias, man_bits, c).is_finite());
    // Infinities are as far beyond the largest number as any large number.
    let size = x.abs().min(1e6);
    let distance = |c: u8| (minifloat_value(format, bias, man_bits, c) - size).abs();
    let best = codes
        .min_by(|&c, &d| distance(c).total_cmp(&distance(d)).then((c & 1).cmp(&(d & 1))))
        .expect("a format has codes");
    if x.is_sign_negative() { best | sign } else { best }
}

#[test]
fn every_f16_encodes_to_the_nearest_narrow_code() {
    for (format, bias, man_bits) in MINIFLOATS {
        let nan = if format.bits() == 8 { 0x7f } else { (1 << (format.bits() - 1)) - 1 };
        for bits in 0..=u16::MAX {
            let x = half::to_f32(bits);
            let expected =
                if x.is_nan() { nan } else { nearest_code(format, bias, man_bits, x.into()) };
            let actual = narrow::pair_from_f16x2(format, u32::from(bits), false);
            assert_eq!(actual, u16::from(expected), "{format:?} of f16 {bits:#x}");
            let expected = if x.is_sign_negative() && !x.is_nan() { 0 } else { expected };
            let actual = format.from_f32(x, true);
            assert_eq!(actual, expected, "{format:?} of f16 {bits:#x} with relu");
        }
    }
}

/// tf32 by hand: cut after 10 bits of significand.
fn tf32_oracle(x: f32, rounding: Rounding) -> u32 {
    let bits = x.to_bits();
    let odd = bits >> 13 & 1;
    let sum = match rounding {
        Rounding::Rna => bits.wrapping_add(0x1000),
        Rounding::Rn => bits.wrapping_add(0xfff + odd),
        _ => bits,
    };
    sum & !0x1fff
}

/// Patterns of f32, some of them NaN.
fn f32_patterns() -> impl Strategy<Value = u32> {
    prop_oneof![4 => any::<u32>(), 1 => any::<u32>().prop_map(|bits| bits | 0x7f80_0000)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn tf32(bits in f32_patterns(), relu: bool, satfinite: bool) {
        let x = f32::from_bits(bits);
        for rounding in [Rounding::Rn, Rounding::Rz, Rounding::Rna] {
            let actual = narrow::tf32_from_f32(x, Narrowing { rounding, relu, satfinite });
            let expected = match tf32_oracle(x, rounding) {
                // As hardware has it: `.rna` only cuts the pattern, and `.satfinite`
                // then takes the place below.
                _ if x.is_nan() && rounding == Rounding::Rna => {
                    (bits & !0x1fff) - if satfinite { 0x2000 } else { 0 }
                }
                _ if x.is_nan() => 0x7fff_e000,
                _ if relu && x.is_sign_negative() => 0,
                infinite if satfinite && infinite << 1 == 0xff00_0000 => infinite - 0x2000,
                bits => bits,
            };
            prop_assert!(actual == expected,
                "{rounding:?} of {:#x}: {actual:#x}, {expected:#x}", x.to_bits());
        }
    }

    #[test]
    fn stochastic_rounding_adds_and_truncates(m in 0u32..0x80_0000, e in 115u32..140, rbits: u32) {
        // Normal in f16 and bf16: the discarded bits are the low 13 or 16.
        let bits = m | e << 23;
        let x = f32::from_bits(bits);
        let f16 = ((bits + (rbits & 0x1fff)) >> 13) - (112 << 10);
        prop_assert_eq!(narrow::f16x2_from_f32_stochastic(-x, x, rbits << 16 | (rbits & 0xffff), false, false),
            f16 | (f16 | 0x8000) << 16);
        let bf16 = |rbits: u32| (bits + (rbits & 0xffff)) >> 16;
        prop_assert_eq!(narrow::bf16x2_from_f32_stochastic(x, x, rbits, false, false),
            bf16(rbits) | bf16(rbits >> 16) << 16);
        prop_assert_eq!(narrow::bf16x2_from_f32_stochastic(-x, x, rbits, true, false), bf16(rbits));
    }

    #[test]
    fn stochastic_rounding_of_four_is_between_neighbours(x: [f32; 4], rbits: u32) {
        for (format, bias, man_bits) in MINIFLOATS {
            let width = format.bits().next_power_of_two();
            let d = narrow::quad_from_f32_stochastic(format, x, rbits, false);
            let up = narrow::quad_from_f32_stochastic(format, x, u32::MAX, false);
            let down = narrow::quad_from_f32_stochastic(format, x, 0, false);
            for (i, x) in x.into_iter().enumerate() {
                let value = |d: u32| {
                    let code = (d >> (width * (3 - i as u32)) & ((1 << width) - 1)) as u8;
                    minifloat_value(format, bias, man_bits, code).abs()
                };
                if x.is_nan() {
                    continue;
                }
                prop_assert!(value(down) <= f64::from(x.abs()), "{format:?} {x:?}");
                prop_assert!(value(down) <= value(d) && value(d) <= value(up), "{format:?} {x:?}");
            }
        }
    }

    #[test]
    fn cvt_pack_clamps_and_shifts(a: i32, b: i32, c: u32, narrow_by in 0u32..31) {
        let (a, b) = (a >> narrow_by, b >> narrow_by);
        for width in [2u32, 4, 8, 16] {
            for signed in [false, true] {
                let (min, max) = match signed {
                    true => (-1i64 << (width - 1), (1 << (width - 1)) - 1),
                    false => (0, (1 << width) - 1),
                };
                let field = |x: i32| i64::from(x).clamp(min, max) as u64 & ((1 << width) - 1);
                let expected = u64::from(c) << (2 * width) | field(a) << width | field(b);
                prop_assert_eq!(narrow::cvt_pack(a, b, c, width, signed), expected as u32);
            }
        }
    }
}

#[test]
fn stochastic_operands_use_their_own_bits() {
    // 2.5 lies in the middle of e2m1's 2 and 3: the top random bit decides.
    let x = [2.5f32; 4];
    for (rbits, expected) in
        [(0x8000_0000, 0x5444), (0x0000_8000, 0x4544), (0x0080_0000, 0x4454), (0x80, 0x4445)]
    {
        let actual = narrow::quad_from_f32_stochastic(Minifloat::E2m1, x, rbits, false);
        assert_eq!(actual, expected, "{rbits:#x}");
    }
    // 17 lies in the middle of e4m3's 16 and 18.
    let x = [17.0f32; 4];
    let quad = |rbits| narrow::quad_from_f32_stochastic(Minifloat::E4m3, x, rbits, false);
    assert_eq!(quad(0x8000_7fff), 0x5959_5858);
    assert_eq!(quad(0x7fff_8000), 0x5858_5959);
}

#[test]
fn packing_puts_the_first_operand_on_top() {
    let n = Narrowing::default();
    assert_eq!(narrow::f16x2_from_f32(2.0, 1.0, n), 0x4000_3c00);
    assert_eq!(narrow::bf16x2_from_f32(2.0, 1.0, n), 0x4000_3f80);
    let relu = Narrowing { relu: true, ..n };
    assert_eq!(narrow::f16x2_from_f32(f32::NAN, -1.0, relu), 0x7fff_0000);
    assert_eq!(narrow::bf16x2_from_f32(-0.0, f32::INFINITY, relu), 0x0000_7f80);
    assert_eq!(narrow::pair_from_f32(Minifloat::E4m3, 1.0, 2.0, false), 0x3840);
    assert_eq!(narrow::pair_from_f32(Minifloat::E2m3, 1.0, -1.0, false), 0x0828);
    assert_eq!(narrow::pair_from_f32(Minifloat::E2m1, f32::NAN, -9.0, false), 0x7f);
    assert_eq!(narrow::pair_from_bf16x2(Minifloat::E2m1, 0x3f80_bf80, true), 0x20);
    assert_eq!(narrow::pair_to_f16x2(Minifloat::E2m1, 0x9a, true), 0);
    assert_eq!(narrow::pair_to_f16x2(Minifloat::E5m2, 0xfd7c, true), 0x7fff_7c00);
    assert_eq!(narrow::pair_to_bf16x2(Minifloat::E2m1, 0x21, false), 0x3f80_3f00);
    assert_eq!(narrow::pair_to_bf16x2(Minifloat::E2m1, 0x9a, true), 0);
    assert_eq!(narrow::pair_to_bf16x2(Minifloat::E5m2, 0xfd7c, true), 0x7fff_7f80);
    assert_eq!(narrow::ue8m0x2_from_f32(3.0, 3.0, true, true), 0x8181);
    assert_eq!(narrow::ue8m0x2_from_bf16x2(0x4040_ff80, false, false), 0x80ff);
    assert_eq!(narrow::ue8m0x2_from_f32(f32::MAX, f32::INFINITY, true, true), 0xfefe);
}
