//! Products against a naive oracle.

use proptest::prelude::*;
use ptx_emu_core::tensor::element::{Element, ScaleType, ScaleVec};
use ptx_emu_core::tensor::product::{
    Addend, FloatColumns, FloatRows, multiply_f16, multiply_f32, multiply_i32, round_f16,
};
use ptx_emu_core::tensor::tile::Tile;

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// The code of element `(row, k)`, bit by bit.
fn code(tile: &Tile<'_>, row: usize, k: usize) -> u32 {
    let first = (row * tile.k + k) * tile.container as usize;
    (0..tile.container as usize)
        .map(|bit| u32::from(tile.bytes[(first + bit) / 8] >> ((first + bit) % 8) & 1) << bit)
        .sum()
}

fn value(tile: &Tile<'_>, row: usize, k: usize) -> f64 {
    let value = tile.element.value(code(tile, row, k));
    if tile.negate { -value } else { value }
}

fn tile(element: Element, container: u32, rows: usize, k: usize, bytes: &[u8]) -> Tile<'_> {
    Tile { element, container, rows, k, bytes, negate: false }
}

fn panels(a: &Tile<'_>, b: &Tile<'_>) -> (FloatRows, FloatColumns) {
    let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
    a.float_rows(&mut rows);
    b.float_columns(&mut columns);
    (rows, columns)
}

fn check_f32(what: &str, columns: usize, actual: &[f32], expected: impl Fn(usize, usize) -> f64) {
    for (at, actual) in actual.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let expected = expected(row, column) as f32;
        assert!(
            actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan(),
            "{what}: ({row}, {column}): {actual:e}, expected {expected:e}"
        );
        if actual.is_nan() {
            assert_eq!(actual.to_bits(), 0x7fff_ffff, "{what}: NaN at ({row}, {column})");
        }
    }
}

/// All types whose sums are exact in f64, any codes, ragged sizes.
#[test]
fn narrow_types_are_exact() {
    let types = [
        (Element::E4m3, 8),
        (Element::E5m2, 8),
        (Element::E2m3, 8),
        (Element::E3m2, 8),
        (Element::E2m1, 8),
        (Element::E2m1, 4),
    ];
    let mut random = Random(1);
    for (a_type, a_bits) in types {
        for (b_type, b_bits) in types {
            for (m, n, k) in [(1, 1, 2), (64, 8, 32), (5, 7, 64), (128, 24, 32)] {
                let a_bytes = random.bytes(m * k * a_bits as usize / 8);
                let b_bytes = random.bytes(n * k * b_bits as usize / 8);
                let a = tile(a_type, a_bits, m, k, &a_bytes);
                let b = Tile { negate: true, ..tile(b_type, b_bits, n, k, &b_bytes) };
                let (rows, columns) = panels(&a, &b);
                let start: Vec<f32> =
                    (0..m * n).map(|_| random.next() as i32 as f32 / 8192.0).collect();
                let mut d = start.clone();
                multiply_f32(&rows, &columns, Addend::Old, &mut d);
                // Backwards: exact sums do not depend on the order.
                check_f32(&format!("{a_type:?} {b_type:?} {m}x{n}x{k}"), n, &d, |i, j| {
                    let terms = (0..k).rev().map(|k| value(&a, i, k) * value(&b, j, k));
                    terms.sum::<f64>() + f64::from(start[i * n + j])
                });
            }
        }
    }
}

#[test]
fn wide_types_are_within_one_rounding() {
    let mut random = Random(2);
    for (element, k) in [(Element::F16, 16), (Element::Bf16, 16), (Element::Tf32, 8)] {
        let (m, n) = (64, 40);
        let bits = element.bits() as usize;
        // Exponents that keep sums finite; every significand.
        let mut number = || {
            let value = (random.next() as f32 / 1e9 - 1.0) * 2f32.powi(random.next() as i32 % 8);
            match element {
                Element::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                Element::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            }
        };
        let a_bytes: Vec<u8> = (0..m * k).flat_map(|_| number()).collect();
        let b_bytes: Vec<u8> = (0..n * k).flat_map(|_| number()).collect();
        assert_eq!(a_bytes.len(), m * k * bits / 8);
        let a = tile(element, element.bits(), m, k, &a_bytes);
        let b = tile(element, element.bits(), n, k, &b_bytes);
        let (rows, columns) = panels(&a, &b);
        let mut d = vec![0.75f32; m * n];
        multiply_f32(&rows, &columns, Addend::Old, &mut d);
        for i in 0..m {
            for j in 0..n {
                let terms: Vec<f64> =
                    (0..k).rev().map(|k| value(&a, i, k) * value(&b, j, k)).collect();
                let exact = terms.iter().sum::<f64>() + 0.75;
                let size = terms.iter().map(|t| t.abs()).sum::<f64>() + 0.75;
                let error = (f64::from(d[i * n + j]) - exact).abs();
                let allowed = exact.abs() * 2f64.powi(-24) + size * 2f64.powi(-48);
                assert!(error <= allowed, "{element:?} ({i}, {j}): {error:e} > {allowed:e}");
            }
        }
    }
}

#[test]
fn block_scaled_e2m1_is_exact() {
    let mut random = Random(3);
    let cases = [
        (ScaleType::Ue4m3, ScaleVec::X4),
        (ScaleType::Ue8m0, ScaleVec::X4),
        (ScaleType::Ue8m0, ScaleVec::X2),
    ];
    for (scale, vec) in cases {
        for (m, n) in [(128, 16), (3, 5)] {
            let (k, blocks) = (64, vec.count());
            let a_bytes = random.bytes(m * k / 2);
            let b_bytes = random.bytes(n * k / 2);
            // Full range of ue4m3 with NaN; ue8m0 so that sums stay in f32.
            let mut scales = |count: usize| -> Vec<f64> {
                let code = |r: u32| match scale {
                    ScaleType::Ue4m3 => r as u8 & 0x7f,
                    ScaleType::Ue8m0 => 117 + (r % 20) as u8,
                };
                (0..count).map(|_| scale.value(code(random.next()))).collect()
            };
            let (sa, sb) = (scales(m * blocks), scales(n * blocks));
            let a = tile(Element::E2m1, 4, m, k, &a_bytes);
            let b = tile(Element::E2m1, 4, n, k, &b_bytes);
            let expected = |i: usize, j: usize| {
                let terms = (0..k).rev().map(|k| {
                    let block = k * blocks / 64;
                    let left = value(&a, i, k) * sa[i * blocks + block];
                    left * (value(&b, j, k) * sb[j * blocks + block])
                });
                terms.sum::<f64>() + (i * n + j) as f64
            };
            let (mut rows, mut columns) = panels(&a, &b);
            rows.scale(k / blocks, |row, block| sa[row * blocks + block]);
            columns.scale(k / blocks, |column, block| sb[column * blocks + block]);
            let mut d: Vec<f32> = (0..m * n).map(|at| at as f32).collect();
            multiply_f32(&rows, &columns, Addend::Old, &mut d);
            check_f32(&format!("{scale:?} {vec:?}"), n, &d, expected);
        }
    }
}

#[test]
fn addends() {
    let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
    rows.fill(4, 8, |_, _| 1.0);
    columns.fill(8, 8, |column, _| column as f64);
    for (addend, expected) in [
        (Addend::Zero, 56.0),
        (Addend::Old, 156.0),
        (Addend::Scaled(2), 81.0),
        (Addend::Scaled(0), 156.0),
    ] {
        let mut d = vec![100.0; 32];
        multiply_f32(&rows, &columns, addend, &mut d);
        assert_eq!(d[7], expected, "{addend:?}");
        assert_eq!(d[31], expected, "{addend:?}");
    }
    // An accumulator that is not read may hold anything.
    let mut d = vec![f32::NAN; 32];
    multiply_f32(&rows, &columns, Addend::Zero, &mut d);
    assert_eq!(d[1], 8.0);
    let mut d = vec![0x5640; 32];
    multiply_f16(&rows, &columns, Addend::Scaled(1), &mut d);
    assert_eq!(half::f16::from_bits(d[7]).to_f32(), 106.0);
}

#[test]
fn special_values() {
    let dot = |a: [f64; 2], b: [f64; 2], c: f32| {
        let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
        rows.fill(1, 2, |_, k| a[k]);
        columns.fill(1, 2, |_, k| b[k]);
        let mut d = [c];
        multiply_f32(&rows, &columns, Addend::Old, &mut d);
        d[0].to_bits()
    };
    let inf = f64::INFINITY;
    let nan = 0x7fff_ffff;
    assert_eq!(dot([inf, 1.0], [0.0, 1.0], 1.0), nan, "inf * 0");
    assert_eq!(dot([inf, inf], [1.0, -1.0], 1.0), nan, "inf - inf");
    assert_eq!(dot([inf, 1.0], [1.0, 1.0], f32::NEG_INFINITY), nan, "inf - inf in C");
    assert_eq!(dot([f64::NAN, 0.0], [1.0, 0.0], 1.0), nan);
    assert_eq!(dot([-f64::NAN, 0.0], [1.0, 0.0], 1.0), nan);
    assert_eq!(dot([inf, 1.0], [-1.0, 1.0], 1.0), f32::NEG_INFINITY.to_bits());
    assert_eq!(dot([1e30, 1.0], [1e30, 1.0], 1.0), f32::INFINITY.to_bits(), "overflow");
    assert_eq!(dot([1e30, -1e30], [1e30, 1e30], 1.0), 1f32.to_bits(), "no overflow in between");
    let tiny = f64::from(f32::from_bits(1));
    assert_eq!(dot([tiny, 0.0], [1.0, 0.0], 0.0), 1, "subnormals are kept");
    assert_eq!(dot([0.0, 0.0], [1.0, 1.0], -0.0), 0, "+0 - 0");
    assert!(ScaleType::Ue8m0.value(255).is_nan() && ScaleType::Ue4m3.value(0x7f).is_nan());
    assert_eq!(ScaleType::Ue8m0.value(0), 2f64.powi(-127));
    assert_eq!(ScaleType::Ue8m0.value(254), 2f64.powi(127));
    assert_eq!(ScaleType::Ue4m3.value(0x7e), 448.0);
}

#[test]
fn element_decoders_agree_with_other_implementations() {
    for code in 0..=0xffff_u16 {
        let f16 = f64::from(half::f16::from_bits(code).to_f32());
        let bf16 = f64::from(half::bf16::from_bits(code).to_f32());
        for (element, expected) in [(Element::F16, f16), (Element::Bf16, bf16)] {
            let actual = element.value(code.into());
            assert!(
                actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan(),
                "{element:?} {code:#06x}: {actual}, expected {expected}"
            );
        }
    }
    for code in 0..16u32 {
        let signed = (code as i32) << 28 >> 28;
        assert_eq!(Element::S4.integer(code | 0xf0), signed as i16, "s4 {code}");
        assert_eq!(Element::U4.integer(code | 0xf0), code as i16, "u4 {code}");
    }
    for element in Element::ALL.into_iter().filter(|e| e.is_integer()) {
        for code in 0..256 {
            let integer = f64::from(element.integer(code));
            assert_eq!(element.value(code), integer, "{element:?} {code:#x}");
            assert_eq!(element.table()[code as usize], integer, "{element:?} {code:#x}");
        }
    }
    assert_eq!(Element::Tf32.value(1.5f32.to_bits() | 0x1fff), 1.5);
    assert_eq!((Element::S8.integer(0x80), Element::U8.integer(0x1ff)), (-128, 255));
}

fn naive_i32(a: &[i16], b: &[i16], k: usize, i: usize, j: usize) -> i64 {
    (0..k).map(|x| i64::from(a[i * k + x]) * i64::from(b[j * k + x])).sum()
}

proptest! {
    #[test]
    fn integers_are_exact(
        (m, n, k) in (1usize..20, 1usize..20, 1usize..70),
        seed in any::<u64>(),
        saturate in any::<bool>(),
        add in any::<bool>(),
    ) {
        let mut random = Random(seed);
        let a: Vec<i16> = (0..m * k).map(|_| i16::from(random.next() as i8)).collect();
        let b: Vec<i16> = (0..n * k).map(|_| i16::from(random.next() as u8)).collect();
        let c: Vec<i32> =
            (0..m * n).map(|i| if i % 2 == 0 { i32::MAX - 5 } else { (random.next() << 1) as i32 }).collect();
        let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
        rows.fill(m, k, |row, x| a[row * k + x].into());
        columns.fill(n, k, |column, x| b[column * k + x].into());
        let mut d = c.clone();
        multiply_i32(&rows, &columns, add, saturate, &mut d);
        for i in 0..m {
            for j in 0..n {
                let sum = naive_i32(&a, &b, k, i, j) + if add { i64::from(c[i * n + j]) } else { 0 };
                let expected = if saturate {
                    sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32
                } else {
                    sum as i32
                };
                prop_assert_eq!(d[i * n + j], expected, "({}, {})", i, j);
            }
        }
    }

    /// Against the exact halfway points between neighbours.
    #[test]
    fn f16_is_rounded_once(bits in 0u16..0x7bff, nudge in -1i32..=1) {
        let (low, high) = (half::f16::from_bits(bits), half::f16::from_bits(bits + 1));
        let middle = (low.to_f64() + high.to_f64()) / 2.0;
        // A nudge that f32 cannot hold: rounding twice would lose it.
        let x = f64::from_bits((middle.to_bits() as i64 + i64::from(nudge)) as u64);
        let expected = match nudge {
            -1 => bits,
            1 => bits + 1,
            _ => bits + (bits & 1),
        };
        prop_assert_eq!(round_f16(x), expected, "{:e}", x);
        prop_assert_eq!(round_f16(-x), expected | 0x8000, "{:e}", -x);
    }
}

#[test]
fn f16_extremes() {
    assert_eq!(round_f16(65520.0), 0x7c00);
    assert_eq!(round_f16(65519.999), 0x7bff);
    assert_eq!(round_f16(1e300), 0x7c00);
    assert_eq!(round_f16(-1e300), 0xfc00);
    assert_eq!(round_f16(1e-300), 0);
    assert_eq!(round_f16(f64::NAN), 0x7fff);
    assert_eq!(round_f16(f64::INFINITY), 0x7c00);
}
