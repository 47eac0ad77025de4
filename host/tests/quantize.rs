//! The quantiser against TorchAO's bytes, and what it refuses.

use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{FloatType, ScaleLayout, e4m3};
use nvfp4::error::{Error, Position};
use nvfp4::quantize::{
    Format, MIN_TENSOR_SCALE, QuantizeOptions, Recipe, TensorScale, quantize, quantize_bytes,
    quantize_matrix, recipe_by_name,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::rng::SplitMix64;
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

/// Every other project's two-level NVFP4, the tensor parameter computed from the input.
#[test]
fn golden_nvfp4_of_other_projects() {
    for (recipe, project) in [
        ("te", "te-ref-d0067d0d"),
        ("modelopt", "modelopt-0.47.0"),
        ("compressed-tensors", "compressed-tensors-0.20.0"),
    ] {
        let recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
        for (name, rows) in [("single", 25), ("wide", 23)] {
            let values = floats(&format!("nvfp4_{name}_input.f32le"));
            let dims = Dims::new(1, rows, 64).expect("sizes above zero");
            let options = QuantizeOptions::new(recipe);
            let matrix = quantize_matrix(name, &values, dims, &options).expect("finite");
            let file = format!("nvfp4_{name}.{project}");
            let what = |part| format!("{file} {part}");
            same(&what("scales"), &matrix.scales, &bytes(&format!("{file}.scale_e4m3.u8")));
            same(&what("codes"), &matrix.codes, &bytes(&format!("{file}.packed.u8")));
        }
    }
}

/// Every project's MXFP4 of the finite rows; the files of TorchAO have all rows.
#[test]
fn golden_mxfp4() {
    const FINITE_ROWS: usize = 62;
    let values = floats("mx_input.f32le");
    let finite = &values[..FINITE_ROWS * 64];
    let dims = Dims::new(1, FINITE_ROWS, 64).expect("sizes above zero");
    for (recipe, file) in [
        ("torchao", "mx_floor.torchao-36027d82"),
        ("floor", "mx_floor.torchao-36027d82"),
        ("ceil", "mx_ceil.torchao-36027d82"),
        ("even", "mx_even.torchao-36027d82"),
        ("rceil", "mx_rceil.torchao-36027d82"),
        ("floor-0.18", "mx_floor.torchao-0.18.0"),
        ("ceil-0.18", "mx_ceil.torchao-0.18.0"),
        ("even-0.18", "mx_even.torchao-0.18.0"),
        ("rceil-0.18", "mx_rceil.torchao-0.18.0"),
        ("modelopt", "mx.modelopt-0.47.0"),
        ("compressed-tensors", "mx.compressed-tensors-0.20.0"),
    ] {
        let recipe = recipe_by_name(Format::Mxfp4, recipe).expect("known");
        let options = QuantizeOptions::new(recipe);
        let matrix = quantize_matrix("x", finite, dims, &options).expect("finite");
        assert!(matrix.parameters.is_empty(), "{file}");
        let scales = bytes(&format!("{file}.scale_e8m0.u8"));
        same(&format!("{file} scales"), &matrix.scales, &scales[..matrix.scales.len()]);
        // The codes mean nothing if the scale is NaN.
        let codes = bytes(&format!("{file}.packed.u8"));
        let blocks = matrix.codes.chunks(16).zip(codes.chunks(16)).zip(&matrix.scales);
        for (at, ((found, expected), _)) in blocks.enumerate().filter(|&(_, (_, &s))| s != 255) {
            same(&format!("{file} codes of block {at}"), found, expected);
        }
    }
}

/// Rows with their own parameters are the rows quantised one by one.
#[test]
fn rows_are_independent() {
    let values: Vec<f32> =
        (0..6 * 64).map(|at| ((at * 37 % 101) as f32 - 50.0) * 1.5f32.powi(at / 64)).collect();
    for recipe in
        ["torchao", "te", "modelopt", "compressed-tensors", "te-4over6-mse", "modelopt-4over6"]
    {
        let recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
        let mut options = QuantizeOptions::new(recipe);
        options.scale = TensorScale::PerRow;
        let all = Dims::new(1, 6, 64).expect("sizes above zero");
        let all = quantize_matrix("x", &values, all, &options).expect("finite");
        assert_eq!(all.parameters.len(), 6);
        for (row, values) in values.chunks(64).enumerate() {
            let one = Dims::new(1, 1, 64).expect("sizes above zero");
            let options = QuantizeOptions::new(recipe);
            let one = quantize_matrix("x", values, one, &options).expect("finite");
            let what = format!("{} row {row}", recipe.name());
            same(&what, &all.codes[row * 32..][..32], &one.codes);
            same(&what, &all.scales[row * 4..][..4], &one.scales);
            assert_eq!(all.parameters[row].to_bits(), one.parameters[0].to_bits(), "{what}");
        }
        let error = all.into_blocks("x", Dims::new(1, 6, 64).expect("sizes above zero"));
        assert!(matches!(error, Err(Error::Shape { .. })));
    }
}

#[test]
fn recipes_are_found_by_name() {
    for format in [Format::Nvfp4, Format::Mxfp4] {
        for name in ["torchao", "modelopt", "compressed-tensors"] {
            assert_eq!(recipe_by_name(format, name).expect("known").format(), format);
        }
        let text = recipe_by_name(format, "x").expect_err("unknown").to_string();
        assert!(text.contains("modelopt") && text.contains("`x`"), "{text}");
    }
    assert!(recipe_by_name(Format::Mxfp4, "te").is_err());
    assert!(recipe_by_name(Format::Nvfp4, "rceil").is_err());
    let floor = recipe_by_name(Format::Mxfp4, "torchao").expect("known");
    assert_eq!(floor.name(), "floor");
    assert!(matches!(floor, Recipe::Mxfp4(_)));
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

/// Bytes are quantised as the numbers that they are, in rows longer than what is converted at once
/// and with any scale; the first one that is not finite is an error.
#[test]
fn bytes_are_quantised_like_numbers() {
    let dims = Dims::new(1, 3, 2112).expect("sizes above zero");
    let mut rng = SplitMix64::new(11);
    let values: Vec<f64> = (0..dims.elements()).map(|_| rng.normal()).collect();
    for dtype in FloatType::ALL {
        let bytes = nvfp4::floats::encode(dtype, values.iter().copied());
        let values = nvfp4::floats::decode(dtype, &bytes);
        let recipes = [Nvfp4Recipe::TorchAo, Nvfp4Recipe::ModelOpt].map(Recipe::Nvfp4);
        let others = [Recipe::Adaptive(AdaptiveRecipe::ModelOpt), Recipe::Mxfp4(Mxfp4Recipe::Even)];
        let scales = [TensorScale::FromAmax, TensorScale::PerRow, TensorScale::Given(0.25)];
        for (recipe, scale) in recipes.into_iter().chain(others).zip(scales.into_iter().cycle()) {
            let options = QuantizeOptions::new(recipe).scale(scale);
            let quantize = |bytes: &[u8]| quantize_bytes("x", dtype, bytes, dims, &options);
            let expected = quantize_matrix("x", &values, dims, &options).expect("finite");
            let got = quantize(&bytes).expect("finite");
            assert_eq!(got.difference(&expected), None, "{dtype:?} {options:?}");

            let width = dtype.bytes() as usize;
            let mut damaged = bytes.clone();
            for index in [5000, 4500] {
                let infinite = nvfp4::floats::encode(dtype, [f64::INFINITY]);
                damaged[index * width..][..width].copy_from_slice(&infinite);
            }
            match quantize(&damaged) {
                Err(Error::NonFinite { index, value: f32::INFINITY, .. }) => {
                    assert_eq!((index.row, index.column), (2, 276), "{dtype:?} {options:?}");
                }
                other => panic!("{dtype:?} {options:?}: {other:?}"),
            }
            let error = quantize(&bytes[1..]).expect_err("too short");
            assert!(matches!(error, Error::Shape { .. }), "{error}");
        }
    }
}
