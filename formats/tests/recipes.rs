//! Every recipe against the bytes of the project that it is named after (see
//! tests/data/quant), and properties that hold for any input.

use fp4_formats::recipe::{
    AdaptiveRecipe, AdaptiveTensor, Mxfp4Recipe, Nvfp4Recipe, Nvfp4Tensor, Software,
};
use fp4_formats::{ScaleLayout, e2m1, e4m3, ue8m0};
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

fn manifest() -> Value {
    serde_json::from_slice(&bytes("MANIFEST.json")).expect("valid JSON")
}

fn bits(value: &Value) -> f32 {
    let text = value.as_str().expect("hex digits").trim_start_matches("0x");
    f32::from_bits(u32::from_str_radix(text, 16).expect("hex digits"))
}

/// The largest magnitude; NaN if there is one.
fn amax(values: &[f32]) -> f32 {
    values.iter().fold(
        0.0,
        |max: f32, x| if x.is_nan() || max.is_nan() { f32::NAN } else { max.max(x.abs()) },
    )
}

fn codes(block: fp4_formats::recipe::BlockScale, values: &[f32]) -> Vec<u8> {
    let (groups, rest) = values.as_chunks();
    assert!(rest.is_empty());
    groups.iter().flat_map(|&group| block.codes::<Software>(group).to_le_bytes()).collect()
}

/// Compares scale bytes and the codes of blocks whose scale is a number.
fn compare(name: &str, block: usize, got: &[(u8, Vec<u8>)], scales: &[u8], packed: &[u8], nan: u8) {
    assert_eq!(scales.len(), got.len(), "{name}: blocks");
    assert_eq!(packed.len(), got.len() * block / 2, "{name}: codes");
    for (index, ((byte, codes), want)) in got.iter().zip(packed.chunks(block / 2)).enumerate() {
        assert_eq!(*byte, scales[index], "{name}: scale of block {index}");
        if *byte == nan {
            continue;
        }
        for at in 0..block / 2 {
            let (got, want) = (codes[at], want[at]);
            assert_eq!(got, want, "{name}: block {index} byte {at} is {got:#04x}, not {want:#04x}");
        }
    }
}

fn nvfp4(recipe: Nvfp4Recipe, parameter: f32, values: &[f32]) -> Vec<(u8, Vec<u8>)> {
    let tensor = Nvfp4Tensor::new(recipe, parameter);
    values
        .chunks(16)
        .map(|values| {
            let block = tensor.block::<Software>(amax(values));
            (block.byte, codes(block, values))
        })
        .collect()
}

fn mxfp4(recipe: Mxfp4Recipe, values: &[f32]) -> Vec<(u8, Vec<u8>)> {
    values
        .chunks(32)
        .map(|values| {
            let block = recipe.block(amax(values));
            (block.byte, codes(block, values))
        })
        .collect()
}

#[test]
fn golden_nvfp4_torchao() {
    let manifest = manifest();
    let cases = manifest["nvfp4"].as_object().expect("an object");
    assert_eq!(cases.len(), 6);
    for (name, case) in cases {
        let values = floats(case["input"].as_str().expect("a file name"));
        let given = &case["per_tensor_scale_f32_bits"];
        let parameter = if given.is_null() { 1.0 } else { bits(given) };
        if name.ends_with("two_level") {
            let computed = Nvfp4Recipe::TorchAo.tensor_parameter(amax(&values));
            assert_eq!(computed.to_bits(), parameter.to_bits(), "{name}: tensor parameter");
        }
        let got = nvfp4(Nvfp4Recipe::TorchAo, parameter, &values);
        let file = format!("nvfp4_{name}.torchao");
        let scales = bytes(&format!("{file}.scale_e4m3.u8"));
        compare(name, 16, &got, &scales, &bytes(&format!("{file}.packed.u8")), e4m3::NAN);
        if name == "extremes_single" {
            continue;
        }
        let dequantised = floats(&format!("{file}.dequant.f32le"));
        for (at, want) in dequantised.iter().enumerate() {
            let (byte, codes) = &got[at / 16];
            let code = codes[at % 16 / 2] >> (at % 2 * 4);
            let value = e2m1::decode(code) * (parameter * e4m3::decode(*byte));
            assert_eq!(value.to_bits(), want.to_bits(), "{name} dequantised {at}: {value} {want}");
        }
    }
}

#[test]
fn golden_nvfp4_other_projects() {
    let manifest = manifest();
    let other = &manifest["other_recipes"];
    for input in ["single", "wide"] {
        let values = floats(&format!("nvfp4_{input}_input.f32le"));
        let largest = amax(&values);
        let te = &other["te"][input]["global_amax_bits"];
        assert_eq!(bits(te).to_bits(), largest.to_bits(), "{input}: largest magnitude");
        for (recipe, tag, recorded) in [
            (Nvfp4Recipe::TransformerEngine, "te-ref-d0067d0d", None),
            (
                Nvfp4Recipe::ModelOpt,
                "modelopt-0.47.0",
                Some(bits(&other["modelopt"][input]["weight_scale_2_bits"])),
            ),
            (
                Nvfp4Recipe::CompressedTensors,
                "compressed-tensors-0.20.0",
                Some(bits(&other["compressed_tensors"][input]["bits"])),
            ),
        ] {
            let name = format!("nvfp4_{input}.{tag}");
            let parameter = recipe.tensor_parameter(largest);
            if let Some(recorded) = recorded {
                assert_eq!(parameter.to_bits(), recorded.to_bits(), "{name}: tensor parameter");
            }
            let got = nvfp4(recipe, parameter, &values);
            let scales = bytes(&format!("{name}.scale_e4m3.u8"));
            compare(&name, 16, &got, &scales, &bytes(&format!("{name}.packed.u8")), e4m3::NAN);
        }
    }
}

/// Both candidates are chosen often, and the bound and the error matter.
#[test]
fn golden_nvfp4_adaptive() {
    let manifest = manifest();
    for input in ["single", "wide", "mixed"] {
        let values = floats(&format!("nvfp4_{input}_input.f32le"));
        let largest = amax(&values);
        let mut all = Vec::new();
        for (recipe, tag) in [
            (AdaptiveRecipe::TransformerEngine, "te-4over6-256-mae-2.20.2"),
            (AdaptiveRecipe::TransformerEngineMse, "te-4over6-256-mse-2.20.2"),
            (AdaptiveRecipe::TransformerEngine448, "te-4over6-448-mae-2.20.2"),
            (AdaptiveRecipe::TransformerEngine448Mse, "te-4over6-448-mse-2.20.2"),
            (AdaptiveRecipe::ModelOpt, "modelopt-4over6-0.47.0"),
        ] {
            let recorded = &manifest["four_over_six"][input][tag];
            let parameter = recipe.tensor_parameter(largest);
            match recipe.project() {
                Nvfp4Recipe::ModelOpt => {
                    let stored = bits(&recorded["weight_scale_2_bits"]);
                    assert_eq!(parameter.to_bits(), stored.to_bits(), "{input} {tag}");
                }
                _ => {
                    let stored = bits(&recorded["global_amax_bits"]);
                    assert_eq!(largest.to_bits(), stored.to_bits(), "{input} {tag}");
                }
            }
            let tensor = AdaptiveTensor::new(recipe, parameter, largest);
            let got: Vec<(u8, Vec<u8>)> = values
                .chunks(16)
                .map(|values| {
                    let block = tensor.block::<Software>(values.as_chunks().0);
                    (block.byte, codes(block, values))
                })
                .collect();
            let name = format!("nvfp4_{input}.{tag}");
            let scales = bytes(&format!("{name}.scale_e4m3.u8"));
            compare(&name, 16, &got, &scales, &bytes(&format!("{name}.packed.u8")), e4m3::NAN);
            let on_four = values.chunks(16).zip(&scales).filter(|(values, byte)| {
                let on_six = tensor.candidate::<Software>(amax(values), false).scale.byte;
                on_six != **byte
            });
            let (on_four, blocks) = (on_four.count(), scales.len());
            assert!(on_four > blocks / 10 && on_four < blocks * 9 / 10, "{name}: {on_four}");
            all.push(scales);
        }
        assert!((0..all.len()).all(|a| (0..a).all(|b| all[a] != all[b])), "{input}");
    }
}

#[test]
fn golden_mxfp4_torchao() {
    let values = floats("mx_input.f32le");
    for (recipe, mode, version) in [
        (Mxfp4Recipe::Floor, "floor", "36027d82"),
        (Mxfp4Recipe::Ceil, "ceil", "36027d82"),
        (Mxfp4Recipe::Even, "even", "36027d82"),
        (Mxfp4Recipe::Rceil, "rceil", "36027d82"),
        (Mxfp4Recipe::Floor018, "floor", "0.18.0"),
        (Mxfp4Recipe::Ceil018, "ceil", "0.18.0"),
        (Mxfp4Recipe::Even018, "even", "0.18.0"),
        (Mxfp4Recipe::Rceil018, "rceil", "0.18.0"),
    ] {
        let name = format!("mx_{mode}.torchao-{version}");
        let got = mxfp4(recipe, &values);
        let scales = bytes(&format!("{name}.scale_e8m0.u8"));
        compare(&name, 32, &got, &scales, &bytes(&format!("{name}.packed.u8")), ue8m0::NAN);
        if mode != "floor" {
            continue;
        }
        for (at, want) in floats(&format!("{name}.dequant_finite.f32le")).iter().enumerate() {
            let (byte, codes) = &got[at / 32];
            let value = e2m1::decode(codes[at % 32 / 2] >> (at % 2 * 4)) * ue8m0::decode(*byte);
            assert_eq!(value.to_bits(), want.to_bits(), "{name} dequantised {at}: {value} {want}");
        }
    }
}

#[test]
fn golden_mxfp4_other_projects() {
    let values = floats("mx_input.f32le");
    let finite = 62 * 64;
    for (recipe, tag) in [
        (Mxfp4Recipe::ModelOpt, "modelopt-0.47.0"),
        (Mxfp4Recipe::CompressedTensors, "compressed-tensors-0.20.0"),
    ] {
        let name = format!("mx.{tag}");
        let got = mxfp4(recipe, &values[..finite]);
        let scales = bytes(&format!("{name}.scale_e8m0.u8"));
        compare(&name, 32, &got, &scales, &bytes(&format!("{name}.packed.u8")), ue8m0::NAN);
    }
}

#[test]
fn golden_element_cast() {
    let inputs = floats("e2m1_cast_input.f32le");
    let codes = bytes("e2m1_cast.torchao.unpacked.u8");
    for (at, (x, code)) in inputs.iter().zip(&codes).enumerate().filter(|(_, (x, _))| !x.is_nan()) {
        assert_eq!(e2m1::encode(*x), *code, "element {at}: {x:e}");
    }
}

#[test]
fn golden_blocked_layout() {
    let linear = bytes("swizzle_input_130x5.u8");
    let mut blocked = vec![0; ScaleLayout::Blocked128x4.bytes(130, 5).expect("small")];
    for row in 0..130 {
        for kb in 0..5 {
            blocked[ScaleLayout::Blocked128x4.offset(row, kb, 5)] = linear[row * 5 + kb];
        }
    }
    assert_eq!(blocked, bytes("swizzle_blocked_256x8.torchao.u8"));
}

/// The recipes differ: on the same data with the same scales, the order of the divisions changes
/// the bytes.
#[test]
fn golden_recipes_differ() {
    let packed = |tag: &str| bytes(&format!("nvfp4_single.{tag}.packed.u8"));
    let two_level = bytes("nvfp4_two_level.torchao.packed.u8");
    let different = |other: &[u8]| {
        let nibbles =
            two_level.iter().zip(other).flat_map(|(a, b)| [(a & 15, b & 15), (a >> 4, b >> 4)]);
        nibbles.filter(|(a, b)| a != b && (a & 7, b & 7) != (0, 0)).count()
    };
    assert_eq!(different(&packed("te-ref-d0067d0d")), 30);
    assert_eq!(different(&packed("modelopt-0.47.0")), 22);
    assert_eq!(different(&packed("compressed-tensors-0.20.0")), 22);
}

/// The same for MXFP4, over the finite blocks: block scales that differ from FLOOR's, then codes
/// and signs of zeros that differ under the same scale. No two recipes give the same bytes.
#[test]
fn golden_mxfp4_recipes_differ() {
    const FINITE: usize = 124;
    let read = |tag: &str| {
        let mut scales = bytes(&format!("mx{tag}.scale_e8m0.u8"));
        let mut packed = bytes(&format!("mx{tag}.packed.u8"));
        scales.truncate(FINITE);
        packed.truncate(FINITE * 16);
        assert_eq!((scales.len(), packed.len()), (FINITE, FINITE * 16), "{tag}");
        (scales, packed)
    };
    let floor = read("_floor.torchao-36027d82");
    let mut all = vec![floor.clone()];
    for (tag, expected) in [
        ("_ceil.torchao-36027d82", [104, 0, 0]),
        ("_even.torchao-36027d82", [27, 0, 0]),
        ("_rceil.torchao-36027d82", [41, 0, 0]),
        ("_floor.torchao-0.18.0", [0, 70, 0]),
        ("_ceil.torchao-0.18.0", [104, 70, 0]),
        ("_even.torchao-0.18.0", [27, 70, 0]),
        ("_rceil.torchao-0.18.0", [37, 80, 0]),
        (".modelopt-0.47.0", [37, 39, 147]),
        (".compressed-tensors-0.20.0", [27, 0, 56]),
    ] {
        let other = read(tag);
        let mut found = [0; 3];
        for block in 0..FINITE {
            if other.0[block] != floor.0[block] {
                found[0] += 1;
                continue;
            }
            let codes = block * 16..(block + 1) * 16;
            for (a, b) in other.1[codes.clone()].iter().zip(&floor.1[codes]) {
                for (a, b) in [(a & 15, b & 15), (a >> 4, b >> 4)] {
                    found[1] += usize::from(a & 7 != b & 7 || a != b && a & 7 != 0);
                    found[2] += usize::from(a != b && (a & 7, b & 7) == (0, 0));
                }
            }
        }
        assert_eq!(found, expected, "{tag}: scales, codes, zeros");
        assert!(!all.contains(&other), "{tag} is one of those before it");
        all.push(other);
    }
}

proptest! {
    /// Blocks of NVFP4, any finite ones of any finite tensor: the scale is a number, and each value
    /// is zero or has the sign of the input.
    #[test]
    fn nvfp4_of_any_finite_block(
        raw in prop::collection::vec(any::<u32>(), 16),
        larger in 0u32..0x7f80_0000,
    ) {
        let values: Vec<f32> = raw.iter().map(|&b| f32::from_bits(b)).map(|x| if x.is_finite() { x } else { 1.0 }).collect();
        let largest = amax(&values).max(f32::from_bits(larger));
        for recipe in Nvfp4Recipe::ALL {
            let parameter = recipe.tensor_parameter(largest);
            prop_assert!(recipe.accepts(parameter), "{recipe:?} {parameter:e}");
            let got = nvfp4(recipe, parameter, &values);
            prop_assert!(e4m3::is_unsigned_finite(got[0].0), "{recipe:?}");
            for (at, x) in values.iter().enumerate() {
                let value = e2m1::decode(got[0].1[at / 2] >> (at % 2 * 4));
                prop_assert!(value == 0.0 || (value < 0.0) == (*x < 0.0), "{recipe:?} element {at}");
            }
        }
    }

    /// The error of MXFP4 is at most half a step if nothing saturates.
    #[test]
    fn mxfp4_error_is_at_most_half_a_step(
        mantissas in prop::collection::vec(-1f32..1.0, 32),
        exponent in -100i32..100,
    ) {
        let values: Vec<f32> = mantissas.iter().map(|m| m * (exponent as f32).exp2()).collect();
        for recipe in [Mxfp4Recipe::Ceil, Mxfp4Recipe::Rceil, Mxfp4Recipe::ModelOpt] {
            let got = mxfp4(recipe, &values);
            let scale = f64::from(ue8m0::decode(got[0].0));
            for (at, x) in values.iter().enumerate() {
                let code = got[0].1[at / 2] >> (at % 2 * 4);
                let scaled = (f64::from(*x) / scale).abs();
                let step = if scaled < 2.0 { 0.5 } else if scaled < 4.0 { 1.0 } else { 2.0 };
                let error = (f64::from(e2m1::decode(code)) - f64::from(*x) / scale).abs();
                prop_assert!(scaled <= 8.0 && error <= step / 2.0 || scaled > 6.0, "{recipe:?} {at}: {x}");
            }
        }
    }
}
