//! The layout of DeepSeek V4's routed experts: bytes, round trips, and what is refused.

use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, ModelOptions, NewTensor, SaveOptions,
    convert_model, dequantize_model, inspect, quantize_model, verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::support::{Folder, f32s, normal, tensor};

const EXPERT: &str = "layers.0.ffn.experts.3.w1";
const SHARED: &str = "layers.0.ffn.shared_experts.w1";
const ROWS: usize = 128;
const COLS: usize = 128;

/// Experts in floats, a layer in FP8 as DeepSeek V4 has it, a router.
fn source(folder: &Folder) -> Model {
    let path = folder.file("source");
    std::fs::create_dir(&path).expect("a folder");
    let (expert, shared) = (format!("{EXPERT}.weight"), format!("{SHARED}.weight"));
    let codes = (0..ROWS * COLS).map(|at| (at % 0x70) as u8).collect();
    let tensors = [
        (expert.as_str(), tensor(Dtype::F32, &[ROWS, COLS], f32s(&normal(ROWS, COLS, 7)))),
        (shared.as_str(), tensor(Dtype::F8_E4M3, &[ROWS, COLS], codes)),
        (&format!("{SHARED}.scale"), tensor(Dtype::F8_E8M0, &[1, 1], vec![120])),
        ("layers.0.ffn.gate.weight", tensor(Dtype::F32, &[2, 4], f32s(&normal(2, 4, 1)))),
    ];
    checkpoint::write(&path.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({
        "model_type": "deepseek_v4",
        "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    });
    std::fs::write(path.join("config.json"), config.to_string()).expect("written");
    Model::open(path).expect("a model")
}

fn quantised(folder: &Folder, source: &Model) -> Model {
    let recipe = recipe_by_name(Format::Mxfp4, "torchao").expect("known");
    let out = folder.file("quantised");
    let options = ModelOptions::new(recipe, Layout::DeepSeek);
    let report = quantize_model(source, &options, &out, None, &mut ()).expect("quantised");
    assert_eq!(report.quantized, [format!("{EXPERT}.weight")]);
    assert_eq!(report.decoded, []);
    Model::open(out).expect("a model")
}

fn bytes(model: &Model, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
    let raw = model.raw(name).expect("there");
    (raw.dtype, raw.shape.clone(), raw.data.to_vec())
}

fn config(model: &Model) -> Value {
    let text = std::fs::read(model.path().join("config.json")).expect("readable");
    serde_json::from_slice(&text).expect("JSON")
}

/// Experts become e2m1 in I8 with E8M0 scales, layers in FP8 stay byte for byte, and the configuration says both.
#[test]
fn quantised_bytes() {
    let folder = Folder::new("deepseek-quantised");
    let source = source(&folder);
    let found = quantised(&folder, &source);
    let recipe = recipe_by_name(Format::Mxfp4, "torchao").expect("known");
    let dims = nvfp4::tensor::Dims::new(1, ROWS, COLS).expect("sizes above zero");
    let options = nvfp4::quantize::QuantizeOptions::new(recipe);
    let matrix = nvfp4::quantize::quantize_matrix("w", &normal(ROWS, COLS, 7), dims, &options)
        .expect("finite");
    let (weight, scale) = (format!("{EXPERT}.weight"), format!("{EXPERT}.scale"));
    assert_eq!(bytes(&found, &weight), (Dtype::I8, vec![ROWS, COLS / 2], matrix.codes.clone()));
    assert_eq!(
        bytes(&found, &scale),
        (Dtype::F8_E8M0, vec![ROWS, COLS / 32], matrix.scales.clone())
    );
    for name in [format!("{SHARED}.weight"), format!("{SHARED}.scale")] {
        assert_eq!(bytes(&found, &name), bytes(&source, &name), "{name}");
    }
    let stated = config(&found);
    assert_eq!(stated["expert_dtype"], "fp4");
    let quantization = &stated["quantization_config"];
    assert_eq!(quantization["quant_method"], "fp8");
    assert_eq!(quantization["weight_block_size"], json!([128, 128]));
    assert_eq!(quantization["modules_to_not_convert"], json!(["layers.0.ffn.gate"]));
    assert_eq!(inspect(&found).expect("listed").layout, Some(Layout::DeepSeek));
    let report = verify(&found, Some(&source), &mut ()).expect("verifiable");
    assert!(report.verified, "{report}");
}

/// MXFP4 of another layout has the same bytes in this one, and comes back.
#[test]
fn round_trip() {
    let folder = Folder::new("deepseek-round");
    let path = folder.file("source");
    std::fs::create_dir(&path).expect("a folder");
    let codes: Vec<u8> = (0..ROWS * COLS / 2).map(|at| (at * 31 % 256) as u8).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 32).map(|at| 100 + (at % 40) as u8).collect();
    let [packed, scale] = ["weight_packed", "weight_scale"].map(|end| format!("{EXPERT}.{end}"));
    let tensors: [(&str, NewTensor); 2] = [
        (&packed, tensor(Dtype::U8, &[ROWS, COLS / 2], codes.clone())),
        (&scale, tensor(Dtype::U8, &[ROWS, COLS / 32], scales.clone())),
    ];
    checkpoint::write(&path.join("model.safetensors"), &tensors, &[]).expect("written");
    let stated = json!({"model_type": "deepseek_v4"});
    std::fs::write(path.join("config.json"), stated.to_string()).expect("written");
    let source = Model::open(path).expect("a model");
    let out = folder.file("deepseek");
    let options = SaveOptions::new(Layout::DeepSeek);
    convert_model(&source, None, &options, &out, &mut ()).expect("converted");
    let experts = Model::open(out).expect("a model");
    let (weight, of_weight) = (format!("{EXPERT}.weight"), format!("{EXPERT}.scale"));
    assert_eq!(bytes(&experts, &weight), (Dtype::I8, vec![ROWS, COLS / 2], codes.clone()));
    assert_eq!(
        bytes(&experts, &of_weight),
        (Dtype::F8_E8M0, vec![ROWS, COLS / 32], scales.clone())
    );
    assert_eq!(config(&experts)["expert_dtype"], "fp4");
    let out = folder.file("back");
    let options = SaveOptions::new(Layout::CompressedTensors);
    convert_model(&experts, None, &options, &out, &mut ()).expect("converted");
    let back = Model::open(out).expect("a model");
    assert_eq!(bytes(&back, &packed).2, codes);
    assert_eq!(bytes(&back, &scale).2, scales);
    assert_eq!(config(&back)["expert_dtype"], Value::Null);
    let out = folder.file("floats");
    dequantize_model(&experts, &DequantizeOptions::new(), &out, &mut ()).expect("dequantised");
    let floats = Model::open(out).expect("a model");
    assert_eq!(config(&floats)["expert_dtype"], Value::Null);
}

/// Readers have routed experts alone in 4 bits, and no NVFP4.
#[test]
fn others_are_refused() {
    let folder = Folder::new("deepseek-refused");
    let source = source(&folder);
    let before = folder.names();
    let out = folder.file("out");
    let of = |format, layout| {
        ModelOptions::new(recipe_by_name(format, "torchao").expect("known"), layout)
    };
    let nvfp4 = of(Format::Nvfp4, Layout::DeepSeek);
    let error = quantize_model(&source, &nvfp4, &out, None, &mut ()).expect_err("refused");
    assert!(error.to_string().contains("it has no form of nvfp4"), "{error}");
    let all = of(Format::Mxfp4, Layout::DeepSeek).experts_only(false);
    let error = quantize_model(&source, &all, &out, None, &mut ()).expect_err("refused");
    assert!(error.to_string().contains("no matrix of a routed expert"), "{error}");
    assert_eq!(error.exit_code(), 2);
    assert_eq!(folder.names(), before);
}
