//! The quantiser against TorchAO's bytes, and what it refuses.

use fp4_formats::{ScaleLayout, e2m1, e4m3};
use nvfp4::error::{Error, Position};
use nvfp4::quantize::{MIN_TENSOR_SCALE, TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};
use proptest::prelude::*;
use serde_json::Value;

fn bytes(name: &str) -> Vec<u8> {
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/quant/{}"), name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = bytes(name);
    let (items, rest) = bytes.as_chunks();
    assert!(rest.is_empty(), "{name} is no list of f32");
    items.iter().map(|&item| f32::from_le_bytes(item)).collect()
}

fn same(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    if let Some(at) = (0..got.len()).find(|&at| got[at] != want[at]) {
        panic!("{what}: byte {at} is {:#04x}, expected {:#04x}", got[at], want[at]);
    }
}

/// The cases of the manifest whose inputs are all finite: name, dims, scale, values.
fn finite_cases() -> Vec<(String, Dims, TensorScale, Vec<f32>)> {
    let manifest: Value = serde_json::from_slice(&bytes("MANIFEST.json")).expect("valid JSON");
    let cases = manifest["nvfp4"].as_object().expect("an object");
    assert_eq!(cases.len(), 6);
    let finite = cases.iter().filter(|(name, _)| *name != "extremes_single");
    finite
        .map(|(name, case)| {
            let size = |at: usize| case["shape"][at].as_u64().expect("a size") as usize;
            let bits = case["per_tensor_scale_f32_bits"].as_str();
            let given = bits.map(|hex| {
                let bits = u32::from_str_radix(hex.trim_start_matches("0x"), 16);
                f32::from_bits(bits.expect("hex digits"))
            });
            let scale = match (name.ends_with("two_level"), given) {
                (true, Some(_)) => TensorScale::FromAmax,
                (false, Some(given)) => TensorScale::Given(given),
                (_, None) => TensorScale::OneLevel,
            };
            let dims = Dims::new(1, size(0), size(1)).expect("sizes above zero");
            let values = floats(case["input"].as_str().expect("a file name"));
            let tensor = quantize(name, &values, dims, scale, ScaleLayout::Linear);
            assert_eq!(
                tensor.expect("finite values").global_scale().to_bits(),
                given.unwrap_or(1.0).to_bits(),
                "{name}: tensor scale"
            );
            (name.clone(), dims, scale, values)
        })
        .collect()
}

#[test]
fn golden_torchao_bytes() {
    for (name, dims, scale, values) in finite_cases() {
        let tensor = quantize(&name, &values, dims, scale, ScaleLayout::Linear).expect("finite");
        let file = format!("nvfp4_{name}.torchao");
        same(&format!("{name} scales"), tensor.scales(), &bytes(&format!("{file}.scale_e4m3.u8")));
        same(&format!("{name} codes"), tensor.codes(), &bytes(&format!("{file}.packed.u8")));
        let want = floats(&format!("{file}.dequant.f32le"));
        let got = tensor.dequantize().expect("a small tensor");
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{name} dequantised {at}: {got} {want}");
        }
    }
}

#[test]
fn golden_torchao_extremes() {
    let values = floats("nvfp4_extremes_single_input.f32le");
    let finite = Dims::new(1, 3, 64).expect("sizes above zero");
    let scale = TensorScale::OneLevel;
    let tensor = quantize("x", &values[..192], finite, scale, ScaleLayout::Linear).expect("finite");
    let scales = bytes("nvfp4_extremes_single.torchao.scale_e4m3.u8");
    same("scales", tensor.scales(), &scales[..12]);
    same("codes", tensor.codes(), &bytes("nvfp4_extremes_single.torchao.packed.u8")[..96]);

    let all = Dims::new(1, 4, 64).expect("sizes above zero");
    let first = values.iter().position(|x| !x.is_finite()).expect("the last row is not finite");
    match quantize("x", &values, all, scale, ScaleLayout::Linear) {
        Err(Error::NonFinite { tensor, index, .. }) => {
            assert_eq!(tensor, "x");
            assert_eq!(index, Position { batch: 0, row: 3, column: first - 192 });
        }
        other => panic!("expected NonFinite, got {other:?}"),
    }
}

#[test]
fn golden_torchao_element_cast() {
    let inputs = floats("e2m1_cast_input.f32le");
    let codes = bytes("e2m1_cast.torchao.unpacked.u8");
    for (at, (x, code)) in inputs.iter().zip(&codes).enumerate().filter(|(_, (x, _))| !x.is_nan()) {
        assert_eq!(e2m1::encode(*x), *code, "element {at}: {x:e}");
    }
}

#[test]
fn golden_torchao_blocked_layout() {
    // The recorded bytes are any bytes, also NaN scales; masked, they are valid and still differ.
    let mask = |bytes: Vec<u8>| -> Vec<u8> { bytes.iter().map(|b| b & 0x3f).collect() };
    let dims = Dims::new(1, 130, 80).expect("sizes above zero");
    let linear: BlockScaled<fp4_formats::Nvfp4> = BlockScaled::new(
        "x",
        dims,
        ScaleLayout::Linear,
        vec![0; 130 * 40],
        mask(bytes("swizzle_input_130x5.u8")),
        1.0,
    )
    .expect("a valid tensor");
    let blocked = linear.to_layout(ScaleLayout::Blocked128x4).expect("a small tensor");
    same("128x4", blocked.scales(), &mask(bytes("swizzle_blocked_256x8.torchao.u8")));
    assert_eq!(blocked.to_layout(ScaleLayout::Linear).expect("a small tensor"), linear);
}

#[test]
fn a_tensor_of_zeros_stays_zero() {
    let dims = Dims::new(1, 2, 32).expect("sizes above zero");
    for scale in [TensorScale::OneLevel, TensorScale::FromAmax, TensorScale::Given(0.5)] {
        let x = quantize("x", &[0.0; 64], dims, scale, ScaleLayout::Linear).expect("finite");
        assert!(x.scales().iter().all(|&s| s == e4m3::encode(e4m3::MIN_NORMAL)), "{scale:?}");
        assert!(x.dequantize().expect("small").iter().all(|&v| v == 0.0), "{scale:?}");
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let dims = Dims::new(1, 1, 16).expect("sizes above zero");
    let run = |values: &[f32], dims, scale| {
        quantize("x", values, dims, scale, ScaleLayout::Linear).expect_err("bad input").to_string()
    };
    assert_eq!(
        run(&[0.0; 15], dims, TensorScale::OneLevel),
        "length of `x` must be 16 (1 x 1 x 16), but is 15"
    );
    let odd = Dims::new(1, 1, 24).expect("sizes above zero");
    assert_eq!(
        run(&[0.0; 24], odd, TensorScale::OneLevel),
        "K of `x` must be a multiple of 16 (nvfp4), but is 24"
    );
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, MIN_TENSOR_SCALE / 2.0] {
        let text = run(&[0.0; 16], dims, TensorScale::Given(bad));
        assert!(text.starts_with("tensor scale of `x` must be finite and at least"), "{text}");
    }
    let mut values = [0.0; 16];
    values[7] = f32::NEG_INFINITY;
    assert_eq!(
        run(&values, dims, TensorScale::FromAmax),
        "`x` has -inf at [0, 0, 7]; only finite values can be quantised"
    );
}

proptest! {
    /// Every element lands within half a step of its block's grid. A block scale is at most
    /// 2^-4 below what the block needs (e4m3 rounding), so the largest element, at most
    /// 6 * (1 + 2^-4), still rounds to 6; subnormal rounding only happens below 2^-6, which the
    /// recipe excludes.
    #[test]
    fn error_is_at_most_half_a_step(
        values in prop::collection::vec(-1e4f32..1e4, 64),
        exponent in -60i32..60,
        blocked in any::<bool>(),
    ) {
        let values: Vec<f32> = values.iter().map(|v| v * (exponent as f32).exp2()).collect();
        let layout = if blocked { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
        let dims = Dims::new(2, 2, 16).expect("sizes above zero");
        let x = quantize("x", &values, dims, TensorScale::FromAmax, layout).expect("finite");
        let back = x.dequantize().expect("small");
        for (at, (v, b)) in values.iter().zip(&back).enumerate() {
            let row = at / 16;
            let scale = x.global_scale() * e4m3::decode(x.scale_byte(row / 2, row % 2, 0));
            let scaled = v.abs() / scale;
            let step = if scaled < 2.0 { 0.5 } else if scaled < 4.0 { 1.0 } else { 2.0 };
            prop_assert!((v - b).abs() <= 0.5 * step * scale * 1.0001, "element {}: {} -> {}", at, v, b);
        }
    }

    /// Whatever the magnitudes, down to subnormals: finite scales, finite results.
    #[test]
    fn any_finite_input_gives_finite_output(bits in prop::collection::vec(any::<u32>(), 32)) {
        let values: Vec<f32> =
            bits.iter().map(|&b| f32::from_bits(b)).map(|v| if v.is_finite() { v } else { 0.0 }).collect();
        let dims = Dims::new(1, 2, 16).expect("sizes above zero");
        for scale in [TensorScale::OneLevel, TensorScale::FromAmax] {
            let x = quantize("x", &values, dims, scale, ScaleLayout::Linear).expect("finite");
            for (at, (v, b)) in values.iter().zip(x.dequantize().expect("small")).enumerate() {
                prop_assert!(b.is_finite(), "element {}", at);
                prop_assert!(b == 0.0 || b.is_sign_negative() == v.is_sign_negative(), "element {}", at);
            }
        }
    }
}
