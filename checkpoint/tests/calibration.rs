//! Inputs that are quantised with scales from calibration.

use std::path::PathBuf;

use crate::support::{Folder, f32s, random, tensor};
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, Calibration, Inputs, Layout, Model, ModelOptions, NewTensor,
    QuantizeReport, QuantizedInputs, inspect, load, verify,
};
use nvfp4_gguf::{Gguf, Header, Spec};
use safetensors::Dtype;
use serde_json::json;

const HIDDEN: usize = 64;
const INNER: usize = 128;

/// Modules of the model, and the largest magnitude of their inputs.
const LAYERS: [(&str, [usize; 2], f32); 7] = [
    ("model.layers.0.self_attn.q_proj", [HIDDEN, HIDDEN], 5.0),
    ("model.layers.0.self_attn.k_proj", [32, HIDDEN], 7.0),
    ("model.layers.0.self_attn.v_proj", [32, HIDDEN], 6.0),
    ("model.layers.0.self_attn.o_proj", [HIDDEN, HIDDEN], 0.3),
    ("model.layers.0.mlp.gate_proj", [INNER, HIDDEN], 11.0),
    ("model.layers.0.mlp.up_proj", [INNER, HIDDEN], 11.0),
    ("model.layers.0.mlp.down_proj", [HIDDEN, INNER], 100.0),
];

fn model(folder: &Folder) -> Model {
    let source = folder.file("source");
    std::fs::create_dir_all(&source).expect("a folder");
    let mut tensors: Vec<(String, NewTensor)> = vec![
        ("model.embed_tokens.weight".into(), random(&[10, HIDDEN], 1)),
        ("model.norm.weight".into(), random(&[HIDDEN], 2)),
        ("lm_head.weight".into(), random(&[10, HIDDEN], 3)),
        ("model.layers.0.input_layernorm.weight".into(), random(&[HIDDEN], 4)),
        ("model.layers.0.post_attention_layernorm.weight".into(), random(&[HIDDEN], 5)),
    ];
    for (at, (module, shape, _)) in LAYERS.iter().enumerate() {
        tensors.push((format!("{module}.weight"), random(shape, 6 + at as u64)));
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&source.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": HIDDEN,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": INNER,
        "vocab_size": 10, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
    });
    std::fs::write(source.join("config.json"), config.to_string()).expect("written");
    Model::open(source).expect("a model")
}

/// A file of calibration with these numbers.
fn magnitudes(folder: &Folder, numbers: &[(&str, f32)]) -> PathBuf {
    let path = folder.file("calibration.safetensors");
    let tensors: Vec<(&str, NewTensor)> = numbers
        .iter()
        .map(|(name, number)| (*name, tensor(Dtype::F32, &[], f32s(&[*number]))))
        .collect();
    checkpoint::write(&path, &tensors, &[]).expect("written");
    path
}

fn all(folder: &Folder) -> Calibration {
    let numbers = LAYERS.map(|(module, _, amax)| (module, amax));
    Calibration::open(&magnitudes(folder, &numbers)).expect("readable")
}

fn options(layout: Layout, inputs: QuantizedInputs) -> ModelOptions {
    let recipe = recipe_by_name(Format::Nvfp4, "modelopt").expect("known");
    ModelOptions::new(recipe, layout).inputs(inputs)
}

fn quantize(
    model: &Model,
    out: &std::path::Path,
    options: &ModelOptions,
) -> checkpoint::Result<QuantizeReport> {
    checkpoint::plan_quantize(model, options)?;
    checkpoint::quantize_model(model, options, out, None, &mut ())
}

/// The largest magnitude of a layer among those that readers join with it.
fn joined(module: &str) -> f32 {
    let largest = |names: &[&str]| {
        let of = |name: &&str| LAYERS.iter().find(|(module, ..)| module.ends_with(*name));
        names.iter().map(|name| of(name).expect("there").2).fold(0f32, f32::max)
    };
    let last = module.rsplit('.').next().expect("a name");
    if ["q_proj", "k_proj", "v_proj"].contains(&last) {
        return largest(&["q_proj", "k_proj", "v_proj"]);
    }
    largest(&[last])
}

#[test]
fn scales_of_inputs_are_written_in_every_layout_that_has_them() {
    for layout in [Layout::ModelOpt, Layout::CompressedTensors, Layout::TorchAo, Layout::Gguf] {
        let folder = Folder::new("calibration-scales_of_inputs_are_written");
        let (model, out) = (model(&folder), folder.file("out"));
        let options = options(layout, QuantizedInputs::Nvfp4(all(&folder)));
        let report = quantize(&model, &out, &options).expect("quantised");
        assert!(report.to_string().contains("W4A4"), "{report}");
        assert_eq!(report.filled, [""; 0]);
        let written = Model::open(&out).expect("a checkpoint");
        let parts = layout.find(&written);
        assert_eq!(parts.len(), LAYERS.len(), "{layout}");
        for part in &parts {
            let weight = load(&written, layout, part).expect("valid");
            let module = part.name.strip_suffix(".weight").expect("a weight");
            let input = weight.input.unwrap_or_else(|| panic!("{layout}: no input of {module}"));
            let expected = joined(module) / 2688.0;
            let ratio = input.multiplier() / expected;
            assert!((ratio - 1.0).abs() < 2e-7, "{layout} {module}: {input:?}, not {expected}");
        }
        let contents = inspect(&written).expect("listed");
        assert!(
            contents.weights.iter().all(|weight| weight.inputs == Inputs::Calibrated),
            "{layout}: {contents}"
        );
        let report = verify(&written, Some(&model), &mut ()).expect("readable");
        assert!(report.verified && report.findings.is_empty(), "{layout}: {report}");
    }
    // compressed-tensors' divisor is computed as such.
    let folder = Folder::new("calibration-divisor");
    let (model, out) = (model(&folder), folder.file("out"));
    let options = options(Layout::CompressedTensors, QuantizedInputs::Nvfp4(all(&folder)));
    quantize(&model, &out, &options).expect("quantised");
    let out = Model::open(&out).expect("a checkpoint");
    let name = "model.layers.0.self_attn.o_proj.input_global_scale";
    assert_eq!(out.file(name).expect("there").scalar(name).expect("one"), 2688.0 / 0.3);
}

/// Scales of a layer are called `up.scale` and `up.input_scale` in files of ggml, or `up.weight.scale` and
/// `up.weight.input_scale`.
#[test]
fn both_spellings_of_ggmls_scales_are_read() {
    let folder = Folder::new("calibration-both_spellings");
    let (model, out) = (model(&folder), folder.file("out"));
    let options = options(Layout::Gguf, QuantizedInputs::Nvfp4(all(&folder)));
    quantize(&model, &out, &options).expect("quantised");
    let path = out.join("model.gguf");
    let written = std::fs::read(&path).expect("a file");
    let file = Gguf::parse(&written).expect("valid");
    let mut renamed = 0;
    let specs = file.tensors.iter().map(|tensor| {
        let ending = [".input_scale", ".scale"].into_iter().find(|x| tensor.name.ends_with(x));
        let module = ending.and_then(|ending| tensor.name.strip_suffix(ending));
        renamed += usize::from(ending.is_some());
        let name = match (module, ending) {
            (Some(module), Some(ending)) => format!("{module}.weight{ending}"),
            _ => tensor.name.clone(),
        };
        Spec { name, kind: tensor.kind, shape: tensor.shape.clone() }
    });
    let specs: Vec<Spec> = specs.collect();
    assert_eq!(renamed, 2 * LAYERS.len());
    let Header { mut bytes, places, end } = Header::new(&file.metadata, &specs).expect("valid");
    for (tensor, (first, _)) in file.tensors.iter().zip(places) {
        bytes.resize(first as usize, 0);
        bytes.extend_from_slice(tensor.data);
    }
    bytes.resize(end as usize, 0);
    let other = folder.file("other");
    std::fs::create_dir(&other).expect("a folder");
    std::fs::write(other.join("model.gguf"), bytes).expect("room");
    let [own, other] = [out, other].map(|path| Model::open(path).expect("a checkpoint"));
    let [own_parts, parts] = [&own, &other].map(|model| Layout::Gguf.find(model));
    assert_eq!(parts.len(), LAYERS.len());
    for (part, own_part) in parts.iter().zip(&own_parts) {
        let weight = load(&other, Layout::Gguf, part).expect("valid");
        let own = load(&own, Layout::Gguf, own_part).expect("valid");
        assert_eq!(part.name, own_part.name);
        assert!(weight.global.is_some() && weight.input.is_some(), "{}", part.name);
        assert_eq!((weight.global, weight.input), (own.global, own.input), "{}", part.name);
        assert!(weight.blocks == own.blocks, "{}", part.name);
    }
}

/// ModelOpt's W4A8_NVFP4_FP8: groups of 32, each with the scale of its largest magnitude.
#[test]
fn inputs_in_fp8_have_weights_in_groups_of_32() {
    let folder = Folder::new("calibration-inputs_in_fp8");
    let (model, out) = (model(&folder), folder.file("out"));
    let options = options(Layout::ModelOpt, QuantizedInputs::Fp8(all(&folder)));
    let report = quantize(&model, &out, &options).expect("quantised");
    assert!(report.to_string().contains("W4A8"), "{report}");
    let written = Model::open(&out).expect("a checkpoint");
    let config = written.hf_quant_config().expect("there");
    assert_eq!(config["quantization"]["quant_algo"], "W4A8_NVFP4_FP8");
    let contents = inspect(&written).expect("listed");
    assert!(contents.weights.iter().all(|weight| weight.inputs == Inputs::Fp8), "{contents}");
    for (module, [rows, cols], amax) in LAYERS {
        let raw = |name: &str| written.raw(&format!("{module}.{name}")).expect("there");
        assert_eq!(raw("weight_scale").shape, [rows, cols / 32], "{module}");
        if module.ends_with("o_proj") {
            let scale = format!("{module}.input_scale");
            let scale = written.file(&scale).expect("there").scalar(&scale).expect("one");
            assert_eq!(scale, amax / 448.0);
        }
    }
    let report = verify(&written, Some(&model), &mut ()).expect("readable");
    assert!(report.verified && report.findings.is_empty(), "{report}");
    assert!(report.least_sqnr_db.expect("compared") > 17.0, "{report}");
    // Without groups of 32 the same scales stand for the same values where they are the larger of a pair.
    let plain = folder.file("plain");
    let options = self::options(Layout::ModelOpt, QuantizedInputs::Float);
    quantize(&model, &plain, &options).expect("quantised");
    let plain = Model::open(&plain).expect("a checkpoint");
    let name = format!("{}.weight_scale", LAYERS[4].0);
    let [groups, blocks] =
        [&written, &plain].map(|model| model.raw(&name).expect("there").data.to_vec());
    let larger: Vec<u8> = blocks.chunks_exact(2).map(|pair| pair[0].max(pair[1])).collect();
    assert_eq!(groups, larger);
}

#[test]
fn layers_without_a_magnitude_are_refused_by_name() {
    let folder = Folder::new("calibration-layers_without_a_magnitude");
    let model = model(&folder);
    let numbers = LAYERS.map(|(module, _, amax)| (module, amax));
    let refused = |numbers: &[(&str, f32)], word: &str| {
        let calibration = Calibration::open(&magnitudes(&folder, numbers));
        let out = folder.file("out");
        let result = calibration.and_then(|calibration| {
            quantize(&model, &out, &options(Layout::ModelOpt, QuantizedInputs::Nvfp4(calibration)))
        });
        let error = result.expect_err("refused").to_string();
        assert!(error.contains(word) && !out.exists(), "{word}: {error}");
    };
    refused(&numbers[1..], "self_attn.q_proj");
    for number in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        let mut changed = numbers;
        changed[3].1 = number;
        refused(&changed, "self_attn.o_proj");
    }
    let nvfp4 = || QuantizedInputs::Nvfp4(all(&folder));
    let fp8 = || QuantizedInputs::Fp8(all(&folder));
    let mxfp4 = recipe_by_name(Format::Mxfp4, "modelopt").expect("known");
    for options in [
        options(Layout::Mlx, nvfp4()),
        options(Layout::CompressedTensors, fp8()),
        options(Layout::Gguf, fp8()),
        options(Layout::ModelOpt, fp8()).search(true),
        ModelOptions::new(mxfp4, Layout::ModelOpt).inputs(nvfp4()),
    ] {
        let error = quantize(&model, &folder.file("out"), &options).expect_err("refused");
        assert!(error.to_string().contains("quantised inputs"), "{error}");
    }
}

/// Experts that calibration never reached get the largest scale of their layer.
#[test]
fn dead_experts_are_filled() {
    let folder = Folder::new("calibration-dead_experts_are_filled");
    let source = folder.file("source");
    std::fs::create_dir_all(&source).expect("a folder");
    let names: Vec<String> =
        (0..3).map(|expert| format!("model.layers.0.mlp.experts.{expert}.down_proj")).collect();
    let weights: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
    let tensors: Vec<(&str, NewTensor)> =
        weights.iter().map(|name| (name.as_str(), random(&[32, 64], 4))).collect();
    checkpoint::write(&source.join("model.safetensors"), &tensors, &[]).expect("written");
    let model = Model::open(&source).expect("a model");
    // The second is not there, the third was not reached.
    let path = magnitudes(&folder, &[(&names[0], 2688.0), (&names[2], 0.0)]);
    let calibration = Calibration::open(&path).expect("readable");
    let options = options(Layout::CompressedTensors, QuantizedInputs::Nvfp4(calibration));
    let out = folder.file("out");
    let report = quantize(&model, &out, &options).expect("quantised");
    assert_eq!(report.filled, [weights[1].as_str(), &weights[2]]);
    assert!(report.to_string().contains("2 experts"), "{report}");
    let out = Model::open(&out).expect("a checkpoint");
    for name in &names {
        let name = format!("{name}.input_global_scale");
        assert_eq!(out.file(&name).expect("there").scalar(&name).expect("one"), 1.0);
    }
}
