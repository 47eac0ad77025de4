//! Hopper's sums: those of tiles against that of one cell, and both against arithmetic on
//! integers.

use proptest::prelude::*;
use ptx_emu_core::tensor::aligned::{Adder, truncate_f32};
use ptx_emu_core::tensor::element::Element;
use ptx_emu_core::tensor::product::{Addend, FloatColumns, FloatRows};

/// `significand * 2^exponent` in units of `2^unit`, cut towards zero.
fn cut(significand: i128, exponent: i32, unit: i32) -> i128 {
    if exponent >= unit {
        significand << (exponent - unit)
    } else {
        significand / (1 << (unit - exponent).min(100))
    }
}

/// Significands of at most 8 bits with exponents, as values and as pairs.
fn value((significand, exponent): (i32, i32)) -> f64 {
    f64::from(significand) * 2f64.powi(exponent)
}

/// Exponent of the leading bit.
fn top(significand: i32, exponent: i32) -> i32 {
    31 - significand.unsigned_abs().leading_zeros() as i32 + exponent
}

fn operand() -> impl Strategy<Value = (i32, i32)> {
    prop_oneof![8 => (-255i32..256, -12i32..6), 1 => Just((0, 0)), 1 => Just((1, -24))]
}

proptest! {
    /// bf16 operands have no subnormal numbers here, so that their exponents are those of
    /// their leading bits.
    #[test]
    fn terms_are_cut_25_bits_below_the_largest(
        terms in prop::collection::vec((operand(), operand()), 16),
        c in (-0xff_ffffi32..0x100_0000, -40i32..10),
    ) {
        let adder = Adder::new(Element::Bf16, Element::Bf16, false);
        let pairs: Vec<(f64, f64)> = terms.iter().map(|&(a, b)| (value(a), value(b))).collect();
        let actual = adder.sum(pairs.iter().copied(), value(c));

        let exponents = terms.iter().filter(|(a, b)| a.0 * b.0 != 0).map(|(a, b)| top(a.0, a.1) + top(b.0, b.1));
        let largest = exponents.chain((c.0 != 0).then(|| top(c.0, c.1))).max();
        let Some(largest) = largest else {
            prop_assert_eq!(actual.to_bits(), 0);
            return Ok(());
        };
        let unit = largest - 25;
        let sum: i128 = terms
            .iter()
            .map(|(a, b)| cut(i128::from(a.0) * i128::from(b.0), a.1 + b.1, unit))
            .chain([cut(c.0.into(), c.1, unit)])
            .sum();
        prop_assert_eq!(actual, sum as f64 * 2f64.powi(unit));

        let mut d = [value(c) as f32];
        let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
        rows.fill(1, 16, |_, k| pairs[k].0);
        columns.fill(1, 16, |_, k| pairs[k].1);
        adder.multiply_f32(&rows, &columns, Addend::Old, &mut d);
        prop_assert_eq!(d[0].to_bits(), truncate_f32(actual, 23).to_bits());
    }

    /// Cutting gives the neighbour nearer to zero of what lies between two.
    #[test]
    fn f32_results_are_cut(bits in 1u32..0x7f7f_ffff, part in 0u32..8) {
        let [low, high] = [bits, bits + 1].map(|bits| f64::from(f32::from_bits(bits)));
        let x = low + (high - low) * f64::from(part) / 8.0;
        prop_assert_eq!(truncate_f32(x, 23).to_bits(), bits);
        prop_assert_eq!(truncate_f32(-x, 23).to_bits(), bits | 0x8000_0000);
    }
}

#[test]
fn results_at_the_ends_of_f32() {
    let beyond = 2f64.powi(128);
    for (x, expected) in [
        (beyond, f32::INFINITY),
        (-beyond, f32::NEG_INFINITY),
        (beyond * (1.0 - 2f64.powi(-40)), f32::MAX),
        (2f64.powi(-150), 0.0),
        (1.75 * 2f64.powi(-149), f32::from_bits(1)),
    ] {
        assert_eq!(truncate_f32(x, 23).to_bits(), expected.to_bits(), "{x:e}");
    }
    assert_eq!(truncate_f32(-0.0, 23).to_bits(), 0, "a zero has no sign");
    assert_eq!(truncate_f32(-2f64.powi(-150), 23).to_bits(), 0, "nor has what becomes zero");
    assert_eq!(truncate_f32(f64::NAN, 23).to_bits(), 0x7fff_ffff);
    // 13 digits: 1 + 2^-13 stays, 1 + 2^-14 goes.
    assert_eq!(truncate_f32(1.0 + 2f64.powi(-13), 13), 1.0 + 2f32.powi(-13));
    assert_eq!(truncate_f32(1.0 + 2f64.powi(-14), 13), 1.0);
}

#[test]
fn narrow_types_keep_13_bits() {
    let adder = Adder::new(Element::E4m3, Element::E4m3, false);
    for (exponent, kept) in [(-13, true), (-14, false)] {
        let small = 2f64.powi(exponent);
        let expected = 1.0 + if kept { small } else { 0.0 };
        // Beside a product of 1 and beside an accumulator of 1.
        assert_eq!(adder.sum([(1.0, 1.0), (0.125, 8.0 * small)].into_iter(), 0.0), expected);
        assert_eq!(adder.sum([(0.125, 8.0 * small)].into_iter(), 1.0), expected);
    }
    // A subnormal factor has the exponent of the least normal one, -6: the product of
    // 2^-9 and 1 counts as 2^-6, and 2^-20 is cut beside it.
    let terms = [(2f64.powi(-9), 1.0), (2f64.powi(-6), 2f64.powi(-14))];
    assert_eq!(adder.sum(terms.into_iter(), 0.0), 2f64.powi(-9));
}

#[test]
fn eight_bit_products_of_a_warp_go_by_way_of_f16() {
    let adder = Adder::as_f16(false);
    // Elements 0 and 1 of four are added first and cut at f32; the rest follows.
    let mut terms = [(0.0, 0.0); 8];
    (terms[0], terms[2], terms[4]) = ((448.0, 448.0), (-448.0, 448.0), (0.0625, 0.0078125));
    // 448^2 is 1.53 * 2^17; 2^-11 is 28 below and is lost before the two cancel.
    assert_eq!(adder.split(&terms, 1.0), 1.0);
    terms.swap(4, 6);
    assert_eq!(adder.split(&terms, 1.0), 1.0);
    terms[0] = (0.0, 0.0);
    terms[2] = (0.0, 0.0);
    assert_eq!(adder.split(&terms, 1.0), 1.0 + 2f64.powi(-11));
}
