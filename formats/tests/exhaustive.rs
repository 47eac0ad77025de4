//! The encoders against a search for the nearest value, over a dense sample of all f32 patterns.

use fp4_formats::{e2m1, e4m3};

/// Index of the nearest of the ascending, non-negative `values`; ties go to the even index, and
/// larger numbers saturate to the last.
fn nearest(values: &[f64], x: f64) -> u8 {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        let (distance, least) = ((value - x).abs(), (values[best] - x).abs());
        if distance < least || (distance == least && index % 2 == 0) {
            best = index;
        }
    }
    best as u8
}

fn check(name: &str, values: &[f64], sign_bit: u8, encode: impl Fn(f32) -> u8) {
    // A prime step visits every exponent, with irregular mantissas.
    for bits in (0..=f32::MAX.to_bits()).step_by(16_411) {
        let x = f32::from_bits(bits);
        let want = nearest(values, f64::from(x).min(1e6));
        assert_eq!(encode(x), want, "{name}: {x:e} ({bits:#010x})");
        assert_eq!(encode(-x), want | sign_bit, "{name}: -{x:e} ({bits:#010x})");
    }
}

#[test]
fn e2m1_encodes_to_the_nearest_value() {
    let values: Vec<f64> = e2m1::VALUES[..8].iter().map(|&v| f64::from(v)).collect();
    check("e2m1", &values, 0x8, e2m1::encode);
}

#[test]
fn e4m3_encodes_to_the_nearest_value() {
    let values: Vec<f64> = (0..=e4m3::MAX_CODE).map(|code| f64::from(e4m3::decode(code))).collect();
    check("e4m3", &values, 0x80, e4m3::encode);
}
