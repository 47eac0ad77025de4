//! Golden files through the library, on every device there is: the emulated ones always, a GPU
//! where there is one.

use fp4_formats::quantize::{FloatType, Recipe};
use fp4_formats::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{ScaleLayout, e4m3, ue8m0};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale};

/// Columns of all recorded matrices.
const COLUMNS: usize = 64;

fn golden(name: &str) -> Vec<u8> {
    let path = nvfp4_tests::root().join("tests/data/quant").join(name);
    let path = match std::env::var_os("NVFP4_GOLDEN_DIR") {
        Some(folder) => std::path::Path::new(&folder).join(name),
        None => path,
    };
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The devices, with what says why one is missing.
fn devices() -> Vec<(&'static str, Kernels)> {
    ["emu:h200", "emu:b200", "cuda:0"]
        .into_iter()
        .filter_map(|name| {
            match Device::open(&name.parse().expect("a device")) {
                Ok(device) => {
                    let kernels = device.kernels(Some(&nvfp4_tests::kernels_dir()));
                    Some((name, kernels.expect("kernels are built")))
                }
                // Only a GPU may be missing.
                Err(error) if name.starts_with("cuda") => {
                    println!("skipped {name}: {error}");
                    None
                }
                Err(error) => panic!("{name}: {error}"),
            }
        })
        .collect()
}

/// Quantises `input`, f32, and compares with the files of `name`, whose tag stands before the
/// extension. Codes of blocks whose scale is `nan` mean nothing.
fn check(recipe: Recipe, scale: TensorScale, input: &[u8], name: &str, kind: &str, nan: u8) {
    let (scales, codes) =
        (golden(&format!("{name}.{kind}.u8")), golden(&format!("{name}.packed.u8")));
    let options = QuantizeOptions { recipe, scale, layout: ScaleLayout::Linear };
    for (device, kernels) in devices() {
        let rows = input.len() / (COLUMNS * size_of::<f32>());
        let kind = Input::plain(FloatType::F32);
        let quantizer = Quantizer::new(&kernels, rows, COLUMNS, kind, &options).expect("planned");
        let buffer = DeviceBuffer::upload(kernels.device(), "input", input).expect("uploaded");
        quantizer.launch(&buffer, None).expect("launched");
        // Some inputs are not finite: the result is compared, the error is expected.
        let got = quantizer.scales().read().expect("scales");
        let different = (0..scales.len()).find(|&i| got[i] != scales[i]);
        assert_eq!((different, got.len()), (None, scales.len()), "{device} {name}: scales");
        let got = quantizer.codes().read().expect("codes");
        assert_eq!(got.len(), codes.len(), "{device} {name}");
        let block = recipe.format().block() as usize / 2;
        let different = (0..codes.len()).find(|&i| scales[i / block] != nan && got[i] != codes[i]);
        if let Some(at) = different {
            let (row, byte) = (at / (COLUMNS / 2), at % (COLUMNS / 2));
            panic!("{device} {name}: row {row} byte {byte}: {:#x}, not {:#x}", got[at], codes[at]);
        }
    }
}

#[test]
fn golden_nvfp4_on_every_device() {
    for input in ["single", "wide"] {
        let bytes = golden(&format!("nvfp4_{input}_input.f32le"));
        for (recipe, tag) in [
            (Nvfp4Recipe::TransformerEngine, "te-ref-d0067d0d"),
            (Nvfp4Recipe::ModelOpt, "modelopt-0.47.0"),
            (Nvfp4Recipe::CompressedTensors, "compressed-tensors-0.20.0"),
        ] {
            let name = format!("nvfp4_{input}.{tag}");
            let scale = TensorScale::FromAmax;
            check(Recipe::Nvfp4(recipe), scale, &bytes, &name, "scale_e4m3", e4m3::NAN);
        }
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&golden("MANIFEST.json")).expect("valid JSON");
    for (name, recorded) in manifest["nvfp4"].as_object().expect("an object") {
        let bytes = golden(recorded["input"].as_str().expect("a file name"));
        let scale = match recorded["per_tensor_scale_f32_bits"].as_str() {
            None => TensorScale::OneLevel,
            Some(_) if name.ends_with("two_level") => TensorScale::FromAmax,
            Some(bits) => {
                let bits = u32::from_str_radix(bits.trim_start_matches("0x"), 16);
                TensorScale::Given(f32::from_bits(bits.expect("hex digits")))
            }
        };
        let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
        let name = format!("nvfp4_{name}.torchao");
        check(recipe, scale, &bytes, &name, "scale_e4m3", e4m3::NAN);
    }
}

#[test]
fn golden_mxfp4_on_every_device() {
    let bytes = golden("mx_input.f32le");
    for recipe in Mxfp4Recipe::ALL {
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
        let input = &bytes[..rows * COLUMNS * size_of::<f32>()];
        let name = format!("mx{mode}.{tag}");
        let recipe = Recipe::Mxfp4(recipe);
        check(recipe, TensorScale::OneLevel, input, &name, "scale_e8m0", ue8m0::NAN);
    }
}
