//! Floating-point products, dense and block-scaled.

use super::case::{Acc, Case, Random, a_place, b_place, d_place, read, small};
use ptx_emu_core::tensor::element::{Element, ScaleType};

/// The selectors of a product with block scales: `[byte-id-a, thread-id-a, byte-id-b, thread-id-b]`.
pub type Selectors = [usize; 4];

/// Runs a form on random numbers, with two selectors if it has block scales.
fn float_case(modifiers: &str, m: usize, k: usize, a: Element, b: Element, d: Acc, c: Acc) {
    let selectors: &[Option<Selectors>] = match scales_of(modifiers) {
        None => &[None],
        Some((4, _)) => &[Some([0, 0, 0, 2]), Some([0, 1, 0, 3])],
        Some((2, _)) => &[Some([2, 1, 0, 1]), Some([0, 0, 2, 0])],
        Some(_) => &[Some([3, 1, 1, 2]), Some([0, 0, 2, 3])],
    };
    products(modifiers, [m, k], [a, b], [d, c], selectors);
}

/// The number of block scales along K and their type.
fn scales_of(modifiers: &str) -> Option<(usize, ScaleType)> {
    let vec = match modifiers {
        s if s.contains("4X") => 4,
        s if s.contains("k64") => 2,
        _ => 1,
    };
    let ty = if modifiers.contains("ue4m3") { ScaleType::Ue4m3 } else { ScaleType::Ue8m0 };
    modifiers.contains("block_scale").then_some((vec, ty))
}

/// Runs a form on random numbers and compares every element of D.
pub fn products(
    modifiers: &str,
    [m, k]: [usize; 2],
    [a, b]: [Element; 2],
    [d, c]: [Acc; 2],
    selectors: &[Option<Selectors>],
) {
    let f8f6f4 = modifiers.contains("f8f6f4");
    let bits = if f8f6f4 { 8 } else { a.bits() as usize };
    let is_half = |acc| matches!(acc, Acc::Half);
    let mut case = Case::new(modifiers, m, k, bits, is_half(d), is_half(c));
    let (scaled, (vec, ty)) = match scales_of(modifiers) {
        Some(scales) => (true, scales),
        None => (false, (1, ScaleType::Ue8m0)),
    };
    for (seed, selector) in selectors.iter().enumerate() {
        assert_eq!(selector.is_some(), scaled, "{modifiers}");
        let [a_byte, a_thread, b_byte, b_thread] = selector.unwrap_or_default();
        case.tail = match selector {
            Some(_) => format!(", SA, {{{a_byte}, {a_thread}}}, SB, {{{b_byte}, {b_thread}}}"),
            None => String::new(),
        };
        let mut random = Random(seed as u64 + 17);
        let mut codes = |element, lines: usize| -> Vec<u32> {
            (0..lines * k).map(|_| small(element, &mut random)).collect()
        };
        let (a_codes, b_codes) = (codes(a, m), codes(b, 8));
        let shift = |e| if f8f6f4 && e == Element::E2m1 { 2 } else { 0 };
        let mut input = case.pack(false, shift(a), |row, at| a_codes[row * k + at]);
        input.extend(case.pack(true, shift(b), |column, at| b_codes[column * k + at]));
        let c_from = input.len();
        input.extend((0..case.registers[3] * 32).map(|_| match c {
            Acc::Single => ((random.next() % 2000) as f32 - 1000.0).to_bits(),
            Acc::Half => 0x3c00_4000 + (random.next() & 0x8003_8003),
        }));
        let s_from = input.len();
        // ue4m3 from 1/8 to 30, ue8m0 from 2^-3 to 2^4; unlike in every lane and byte.
        input.extend((0..64).map(|_| {
            u32::from_le_bytes(std::array::from_fn(|_| match ty {
                ScaleType::Ue4m3 => 0x20 + (random.next() % 0x40) as u8,
                ScaleType::Ue8m0 => 124 + (random.next() % 8) as u8,
            }))
        }));
        let scale = |word: u32, byte: usize| ty.value((word >> (8 * byte)) as u8);
        let scale_a = |row: usize, at: usize| {
            // Row r: the first of a pair of lanes for r < 8, the second for r + 8.
            let lane = row % 8 * 4 + 2 * a_thread + row / 8;
            if scaled { scale(input[s_from + lane], a_byte + at * vec / k) } else { 1.0 }
        };
        let scale_b = |column: usize, at: usize| {
            let lane = column * 4 + b_thread;
            if scaled { scale(input[s_from + 32 + lane], b_byte + at * vec / k) } else { 1.0 }
        };
        let actual = case.run(&input);
        for lane in 0..32 {
            for i in 0..m * 8 / 32 {
                let (row, column) = d_place(lane, i);
                let start = read(c, &input[c_from..s_from], lane, i);
                if !scaled && !f8f6f4 && bits == 8 {
                    let terms = (0..k).map(|at| {
                        (a.value(a_codes[row * k + at]), b.value(b_codes[column * k + at]))
                    });
                    let expected =
                        f64::from((by_way_of_f16(&terms.collect::<Vec<_>>()) + start) as f32);
                    assert_eq!(
                        read(d, &actual, lane, i),
                        expected,
                        "{modifiers}: ({row}, {column})"
                    );
                    continue;
                }
                let sum: f64 = (0..k)
                    .rev()
                    .map(|at| {
                        let left = a.value(a_codes[row * k + at]) * scale_a(row, at);
                        left * (b.value(b_codes[column * k + at]) * scale_b(column, at))
                    })
                    .sum();
                let expected = match d {
                    Acc::Single => f64::from((start + sum) as f32),
                    Acc::Half => half::f16::from_f64(start + sum).to_f64(),
                };
                let actual = read(d, &actual, lane, i);
                assert_eq!(
                    actual, expected,
                    "{modifiers} {}: ({row}, {column}), lane {lane}, {i}",
                    case.tail
                );
            }
        }
    }
}

/// Computes the sum of two f16 instructions that stand for 8-bit products, elements 0 and 1 of
/// every four first: terms are cut 25 bits below the largest exponent, and their sum to f32.
fn by_way_of_f16(terms: &[(f64, f64)]) -> f64 {
    let exponent = |x: f64| x.abs().log2().floor().max(-14.0);
    [0, 1].into_iter().fold(0.0f64, |start, pair| {
        let chosen = || terms.iter().enumerate().filter(|(k, _)| k % 4 / 2 == pair).map(|(_, t)| t);
        let tops = chosen().filter(|(a, b)| a * b != 0.0).map(|&(a, b)| exponent(a) + exponent(b));
        let of_start = (start != 0.0).then(|| start.abs().log2().floor());
        let unit = (tops.chain(of_start).fold(-60.0, f64::max) - 25.0).exp2();
        let total: i64 =
            (start / unit) as i64 + chosen().map(|(a, b)| (a * b / unit) as i64).sum::<i64>();
        let sum = total as f64 * unit;
        let near = sum as f32;
        let step = u32::from(f64::from(near).abs() > sum.abs());
        f64::from(f32::from_bits(near.to_bits() - step))
    })
}

#[test]
fn half_precision() {
    let f16 = Element::F16;
    for (d, d_name) in [(Acc::Half, "f16"), (Acc::Single, "f32")] {
        let name = format!("m16n8k16.row.col.{d_name}.f16.f16.{d_name}");
        float_case(&name, 16, 16, f16, f16, d, d);
        let name = format!("m16n8k8.row.col.{d_name}.f16.f16.{d_name}");
        float_case(&name, 16, 8, f16, f16, d, d);
    }
}

#[test]
fn bfloat_and_tf32() {
    for (shape, k, ty, element) in [
        ("m16n8k8", 8, "bf16", Element::Bf16),
        ("m16n8k16", 16, "bf16", Element::Bf16),
        ("m16n8k4", 4, "tf32", Element::Tf32),
        ("m16n8k8", 8, "tf32", Element::Tf32),
    ] {
        let name = format!("{shape}.row.col.f32.{ty}.{ty}.f32");
        float_case(&name, 16, k, element, element, Acc::Single, Acc::Single);
    }
}

const NARROW: [(&str, Element); 5] = [
    ("e4m3", Element::E4m3),
    ("e5m2", Element::E5m2),
    ("e2m3", Element::E2m3),
    ("e3m2", Element::E3m2),
    ("e2m1", Element::E2m1),
];

#[test]
fn narrow_types_and_their_mixes() {
    for (a_name, a) in NARROW {
        for (b_name, b) in NARROW {
            let single = Acc::Single;
            if a.bits() == 8 && b.bits() == 8 {
                for (shape, k) in [("m16n8k16", 16), ("m16n8k32", 32)] {
                    let name = format!("{shape}.row.col.f32.{a_name}.{b_name}.f32");
                    float_case(&name, 16, k, a, b, single, single);
                }
            }
            let name = format!("kind::f8f6f4.m16n8k32.row.col.f32.{a_name}.{b_name}.f32");
            float_case(&name, 16, 32, a, b, single, single);
            let name = format!("kind::f8f6f4.m16n8k32.row.col.f16.{a_name}.{b_name}.f16");
            if a.bits() < 8 && b.bits() < 8 {
                float_case(&name, 16, 32, a, b, Acc::Half, Acc::Half);
            }
            let name = format!(
                "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.{a_name}.{b_name}.f32.ue8m0"
            );
            float_case(&name, 16, 32, a, b, single, single);
        }
    }
}

#[test]
fn block_scaled_e2m1() {
    for name in [
        "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3",
        "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
        "kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
        "kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
        "m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
    ] {
        float_case(name, 16, 64, Element::E2m1, Element::E2m1, Acc::Single, Acc::Single);
    }
}

#[test]
fn double_precision() {
    for (m, k) in [(8, 4), (16, 4), (16, 8), (16, 16)] {
        let name = format!("m{m}n8k{k}.row.col.f64.f64.f64.f64");
        let case = Case::new(&name, m, k, 64, false, false);
        let mut random = Random(21);
        let mut numbers = |n: usize| -> Vec<f64> {
            (0..n).map(|_| f64::from(random.next()) / 3.0 - 3e8).collect()
        };
        let (a, b) = (numbers(m * k), numbers(8 * k));
        let c = numbers(case.registers[3] * 32);
        let mut words = vec![];
        for i in 0..case.registers[1] {
            words.extend((0..32).map(|lane| {
                let (row, at) = a_place(m, k, 64, lane, i);
                a[row * k + at]
            }));
        }
        for i in 0..case.registers[2] {
            words.extend((0..32).map(|lane| {
                let (column, at) = b_place(k, 64, lane, i);
                b[column * k + at]
            }));
        }
        words.extend(&c);
        let input: Vec<u32> =
            words.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]).collect();
        let actual = case.run(&input);
        for lane in 0..32 {
            for i in 0..m * 8 / 32 {
                let (row, column) = d_place(lane, i);
                let start = c[i * 32 + lane];
                let expected =
                    (0..k).fold(start, |sum, at| a[row * k + at].mul_add(b[column * k + at], sum));
                let at = (i * 32 + lane) * 2;
                let actual =
                    f64::from_bits(u64::from(actual[at]) | u64::from(actual[at + 1]) << 32);
                assert_eq!(actual.to_bits(), expected.to_bits(), "{name}: ({row}, {column})");
            }
        }
    }
}
