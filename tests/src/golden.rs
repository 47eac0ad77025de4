//! The recorded bytes of other projects' quantisers.

use std::path::Path;

use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{e4m3, ue8m0};
use nvfp4::quantize::TensorScale;

/// Columns of all recorded matrices.
pub const COLUMNS: usize = 64;

/// One recorded quantisation of f32 numbers, [rows, [`COLUMNS`]].
#[derive(Debug, Clone)]
pub struct Golden {
    /// Its name, tag included.
    pub name: String,
    /// The recipe that gave the bytes.
    pub recipe: Recipe,
    /// The tensor-level scale.
    pub scale: TensorScale,
    /// The numbers, little-endian.
    pub input: Vec<u8>,
    /// Scales, linear.
    pub scales: Vec<u8>,
    /// Packed codes. Codes of blocks whose scale is [`nan`](Self::nan) mean nothing.
    pub codes: Vec<u8>,
    /// The scale byte that is not a number.
    pub nan: u8,
}

/// Reads a recorded file; NVFP4_GOLDEN_DIR names another folder than the workspace's.
pub fn file(name: &str) -> Vec<u8> {
    let path = std::env::var_os("NVFP4_GOLDEN_DIR").map_or_else(
        || crate::root().join("tests/data/quant").join(name),
        |folder| Path::new(&folder).join(name),
    );
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn case(recipe: Recipe, scale: TensorScale, input: Vec<u8>, name: String) -> Golden {
    let (kind, nan) = match recipe {
        Recipe::Nvfp4(_) | Recipe::Adaptive(_) => ("scale_e4m3", e4m3::NAN),
        Recipe::Mxfp4(_) => ("scale_e8m0", ue8m0::NAN),
    };
    let scales = file(&format!("{name}.{kind}.u8"));
    let codes = file(&format!("{name}.packed.u8"));
    Golden { name, recipe, scale, input, scales, codes, nan }
}

/// Returns all recordings of NVFP4.
pub fn nvfp4() -> Vec<Golden> {
    let mut all = Vec::new();
    for (input, rows) in [("single", 25), ("wide", 23)] {
        for (recipe, tag) in [
            (Nvfp4Recipe::TransformerEngine, "te-ref-d0067d0d"),
            (Nvfp4Recipe::ModelOpt, "modelopt-0.47.0"),
            (Nvfp4Recipe::CompressedTensors, "compressed-tensors-0.20.0"),
        ] {
            let bytes = file(&format!("nvfp4_{input}_input.f32le"));
            assert_eq!(bytes.len(), rows * COLUMNS * size_of::<f32>(), "{input}");
            let name = format!("nvfp4_{input}.{tag}");
            all.push(case(Recipe::Nvfp4(recipe), TensorScale::FromAmax, bytes, name));
        }
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&file("MANIFEST.json")).expect("valid JSON");
    for (name, recorded) in manifest["nvfp4"].as_object().expect("an object") {
        let bytes = file(recorded["input"].as_str().expect("a file name"));
        let scale = match recorded["per_tensor_scale_f32_bits"].as_str() {
            None => TensorScale::OneLevel,
            Some(_) if name.ends_with("two_level") => TensorScale::FromAmax,
            Some(bits) => {
                let bits = u32::from_str_radix(bits.trim_start_matches("0x"), 16);
                TensorScale::Given(f32::from_bits(bits.expect("hex digits")))
            }
        };
        let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
        all.push(case(recipe, scale, bytes, format!("nvfp4_{name}.torchao")));
    }
    all
}

/// Returns all recordings of NVFP4 with adaptive block scaling.
pub fn adaptive() -> Vec<Golden> {
    let of = |(input, rows): (&str, usize)| {
        let bytes = file(&format!("nvfp4_{input}_input.f32le"));
        assert_eq!(bytes.len(), rows * COLUMNS * size_of::<f32>(), "{input}");
        AdaptiveRecipe::ALL.map(|recipe| {
            let tag = match recipe {
                AdaptiveRecipe::TransformerEngine => "te-4over6-256-mae-2.20.2",
                AdaptiveRecipe::TransformerEngineMse => "te-4over6-256-mse-2.20.2",
                AdaptiveRecipe::TransformerEngine448 => "te-4over6-448-mae-2.20.2",
                AdaptiveRecipe::TransformerEngine448Mse => "te-4over6-448-mse-2.20.2",
                AdaptiveRecipe::ModelOpt => "modelopt-4over6-0.47.0",
            };
            let (recipe, name) = (Recipe::Adaptive(recipe), format!("nvfp4_{input}.{tag}"));
            case(recipe, TensorScale::FromAmax, bytes.clone(), name)
        })
    };
    [("single", 25), ("wide", 23), ("mixed", 512)].into_iter().flat_map(of).collect()
}

/// Returns all recordings of MXFP4.
pub fn mxfp4() -> Vec<Golden> {
    let bytes = file("mx_input.f32le");
    let of = |recipe| {
        let (mode, tag, rows) = match recipe {
            Mxfp4Recipe::Floor => ("_floor", "torchao-36027d82", 65),
            Mxfp4Recipe::Ceil => ("_ceil", "torchao-36027d82", 65),
            Mxfp4Recipe::Even => ("_even", "torchao-36027d82", 65),
            Mxfp4Recipe::Rceil => ("_rceil", "torchao-36027d82", 65),
            Mxfp4Recipe::Floor018 => ("_floor", "torchao-0.18.0", 65),
            Mxfp4Recipe::Ceil018 => ("_ceil", "torchao-0.18.0", 65),
            Mxfp4Recipe::Even018 => ("_even", "torchao-0.18.0", 65),
            Mxfp4Recipe::Rceil018 => ("_rceil", "torchao-0.18.0", 65),
            Mxfp4Recipe::ModelOpt => ("", "modelopt-0.47.0", 62),
            Mxfp4Recipe::CompressedTensors => ("", "compressed-tensors-0.20.0", 62),
        };
        let input = bytes[..rows * COLUMNS * size_of::<f32>()].to_vec();
        let name = format!("mx{mode}.{tag}");
        case(Recipe::Mxfp4(recipe), TensorScale::OneLevel, input, name)
    };
    Mxfp4Recipe::ALL.into_iter().map(of).collect()
}
