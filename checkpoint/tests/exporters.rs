//! Checkpoints as the projects' own exporters write them: names, shapes and configurations of
//! ModelOpt 0.47, compressed-tensors 0.19 and TorchAO 0.18. The tests cover the files that are
//! read, the notes of a conversion in the target's terms, and the refusals.

use std::path::PathBuf;

use crate::support::*;
use half::bf16;
use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::Result;
use nvfp4_checkpoint::{
    self as checkpoint, CheckpointError, DequantizeOptions, Inputs, Layout, Model, NewTensor,
    OtherFormat, SaveOptions, Severity, VerifyReport, convert_model, dequantize_model, inspect,
    load, verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

/// A checkpoint that is being put together, and the model that it was made from.
#[derive(Default)]
struct Export {
    tensors: Tensors,
    original: Tensors,
}

fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
}

fn scalar(value: f32) -> NewTensor {
    tensor(Dtype::F32, &[], f32s(&[value]))
}

/// A matrix, its codes, block scales and tensor-level scale by ModelOpt's recipe.
fn quantised(format: Format, rows: usize, seed: u64) -> (Vec<f32>, Vec<u8>, Vec<u8>, f32) {
    let values = normal(rows, 64, seed);
    let recipe = recipe_by_name(format, "modelopt").expect("known");
    let dims = Dims::new(1, rows, 64).expect("sizes above zero");
    let matrix =
        quantize_matrix("w", &values, dims, &QuantizeOptions::new(recipe)).expect("finite");
    let global = matrix.multipliers().first().copied().unwrap_or(1.0);
    (values, matrix.codes, matrix.scales, global)
}

impl Export {
    fn add(&mut self, name: impl Into<String>, tensor: NewTensor) {
        self.tensors.push((name.into(), tensor));
    }

    /// A tensor that both models have.
    fn both(&mut self, name: &str, tensor: NewTensor) {
        self.add(name, tensor.clone());
        self.original.push((name.into(), tensor));
    }

    fn weight(&mut self, module: &str, values: &[f32]) {
        let shape = [values.len() / 64, 64];
        self.original.push((format!("{module}.weight"), tensor(Dtype::F32, &shape, f32s(values))));
    }

    /// A layer in ModelOpt's layout, with a scale of its input if there is one.
    fn modelopt(&mut self, module: &str, rows: usize, input: Option<f32>) {
        let (values, codes, scales, global) = quantised(Format::Nvfp4, rows, rows as u64);
        self.weight(module, &values);
        self.add(format!("{module}.weight"), tensor(Dtype::U8, &[rows, 32], codes));
        self.add(format!("{module}.weight_scale"), tensor(Dtype::F8_E4M3, &[rows, 4], scales));
        self.add(format!("{module}.weight_scale_2"), scalar(global));
        if let Some(input) = input {
            self.add(format!("{module}.input_scale"), scalar(input));
        }
    }

    /// A layer in compressed-tensors' layout.
    fn compressed_tensors(&mut self, module: &str, format: Format, rows: usize) {
        let (values, codes, scales, global) = quantised(format, rows, rows as u64);
        self.weight(module, &values);
        self.add(format!("{module}.weight_packed"), tensor(Dtype::U8, &[rows, 32], codes));
        let name = format!("{module}.weight_scale");
        match format {
            Format::Nvfp4 => {
                self.add(name, tensor(Dtype::F8_E4M3, &[rows, 4], scales));
                let global = tensor(Dtype::F32, &[1], f32s(&[1.0 / global]));
                self.add(format!("{module}.weight_global_scale"), global);
            }
            Format::Mxfp4 => self.add(name, tensor(Dtype::U8, &[rows, 2], scales)),
        }
    }

    /// A layer in FP8, with scales of this shape; F32, or BF16 for each row.
    fn fp8(&mut self, module: &str, rows: usize, scales: &[usize]) {
        let count: usize = scales.iter().product();
        let bytes = (0..rows * 64).map(|at| (at * 37 % 0x70) as u8).collect();
        self.add(format!("{module}.weight"), tensor(Dtype::F8_E4M3, &[rows, 64], bytes));
        let scale = match count {
            1 => tensor(Dtype::F32, scales, f32s(&[0.25])),
            _ => tensor(Dtype::BF16, scales, bf16s(&vec![0.25; count])),
        };
        self.add(format!("{module}.weight_scale"), scale);
        if count == 1 {
            self.add(format!("{module}.input_scale"), tensor(Dtype::F32, scales, f32s(&[0.5])));
        }
        self.weight(module, &normal(rows, 64, 77));
    }

    /// Writes both models; `config` is `config.json`, `hf` the `quantization` of ModelOpt's file.
    fn write(
        &self,
        folder: &Folder,
        name: &str,
        config: Value,
        hf: Option<Value>,
    ) -> (Model, Model) {
        let write = |name: &str, tensors: &Tensors| -> PathBuf {
            let path = folder.file(name);
            std::fs::create_dir(&path).expect("a folder");
            let tensors: Vec<(&str, NewTensor)> =
                tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
            checkpoint::write(&path.join("model.safetensors"), &tensors, &[]).expect("written");
            path
        };
        let path = write(name, &self.tensors);
        std::fs::write(path.join("config.json"), config.to_string()).expect("written");
        if let Some(quantization) = hf {
            let producer = json!({"name": "modelopt", "version": "0.47.0"});
            let text = json!({"producer": producer, "quantization": quantization}).to_string();
            std::fs::write(path.join("hf_quant_config.json"), text).expect("written");
        }
        let original = write(&format!("{name} original"), &self.original);
        let model_type = json!({"model_type": config["model_type"]}).to_string();
        std::fs::write(original.join("config.json"), model_type).expect("written");
        (Model::open(path).expect("a model"), Model::open(original).expect("a model"))
    }
}

fn four_bits(format: Format, dynamic: Value) -> Value {
    let (strategy, scale) = match format {
        Format::Nvfp4 => ("tensor_group", "torch.float8_e4m3fn"),
        Format::Mxfp4 => ("group", "torch.uint8"),
    };
    json!({"actorder": null, "block_structure": null, "dynamic": dynamic,
        "group_size": format.block(), "num_bits": 4, "observer": null, "observer_kwargs": {},
        "scale_dtype": scale, "strategy": strategy, "symmetric": true, "type": "float",
        "zp_dtype": null})
}

/// A configuration as llmcompressor writes it, of groups (format, targets, weights, inputs).
fn llmcompressor(groups: &[(&str, Value, Value, Value)]) -> Value {
    let mut config_groups = serde_json::Map::new();
    for (at, (format, targets, weights, inputs)) in groups.iter().enumerate() {
        let group = json!({"format": format, "targets": targets, "weights": weights,
            "input_activations": inputs, "output_activations": null});
        config_groups.insert(format!("group_{at}"), group);
    }
    let format = if groups.len() > 1 { "mixed-precision" } else { groups[0].0 };
    json!({"quantization_config": {"config_groups": config_groups, "format": format,
        "global_compression_ratio": null, "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}})
}

fn nvfp4_group(targets: Value, inputs: Value) -> (&'static str, Value, Value, Value) {
    ("nvfp4-pack-quantized", targets, four_bits(Format::Nvfp4, false.into()), inputs)
}

fn modelopt(quantization: Value) -> (Value, Option<Value>) {
    let mut config = quantization.clone();
    config["quant_method"] = "modelopt".into();
    config["ignore"] = quantization["exclude_modules"].clone();
    (json!({"quantization_config": config}), Some(quantization))
}

fn convert(model: &Model, folder: &Folder, layout: Layout) -> Result<(Model, Value, Value)> {
    let out = folder.file(&format!("to {layout} {}", folder.names().len()));
    convert_model(model, None, &SaveOptions::new(layout), &out, &mut ())?;
    let json = |name: &str| -> Value {
        std::fs::read(out.join(name))
            .map(|text| serde_json::from_slice(&text).expect("JSON"))
            .unwrap_or_default()
    };
    let config = json("config.json")["quantization_config"].clone();
    Ok((
        Model::open(&out).expect("a model"),
        config,
        json("hf_quant_config.json")["quantization"].clone(),
    ))
}

/// The message with which a conversion is refused; it must have written nothing.
fn refused(model: &Model, folder: &Folder, layout: Layout) -> String {
    let before = folder.names();
    match convert(model, folder, layout) {
        Err(error @ CheckpointError::Unsupported { .. }) => {
            assert_eq!(folder.names(), before, "{layout}");
            error.to_string()
        }
        Err(error) => panic!("{layout}: {error}"),
        Ok(_) => panic!("{layout}: converted"),
    }
}

fn verified(model: &Model, original: &Model) -> VerifyReport {
    let report = verify(model, Some(original), &mut ()).expect("verifiable");
    assert!(report.verified, "{report}");
    assert!(report.least_sqnr_db.is_none_or(|db| db > 15.0), "{report}");
    report
}

fn kinds(report: &VerifyReport) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

/// Dequantised values of a weight.
fn values(model: &Model, name: &str) -> Vec<f32> {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let part = parts.iter().find(|part| part.name == name).unwrap_or_else(|| panic!("{name}"));
    load(model, layout, part).expect("valid").blocks.dequantize().expect("small")
}

/// transformers takes a checkpoint for TorchAO's only if the configuration says so, and the
/// tensors' own description says how inputs are quantised.
#[test]
fn torchao_is_described_for_transformers() {
    let folder = Folder::new("exporters-torchao");
    let metadata = |model: &Model| -> Value {
        serde_json::from_str(model.metadata("m.fc.weight").expect("described")).expect("JSON")
    };
    let of_modelopt = |name: &str, algorithm: &str, input| {
        let mut export = Export::default();
        export.modelopt("m.fc", 32, input);
        let (config, hf) = modelopt(json!({"quant_algo": algorithm, "group_size": 16,
            "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}));
        export.write(&folder, name, config, hf).0
    };
    let calibrated = of_modelopt("calibrated", "NVFP4", Some(0.01));
    let (model, config, _) = convert(&calibrated, &folder, Layout::TorchAo).expect("convertible");
    assert_eq!(config["quant_method"], "torchao");
    let kind = &config["quant_type"]["default"];
    assert_eq!(kind["_type"], "NVFP4DynamicActivationNVFP4WeightConfig");
    assert_eq!(kind["_data"]["step"], "convert");
    let how = json!({"block_size": 16, "is_swizzled_scales": true, "use_triton_kernel": false,
        "use_dynamic_per_tensor_scale": false});
    let kwargs = json!({"_type": "QuantizeTensorToNVFP4Kwargs", "_data": how});
    assert_eq!(metadata(&model)["_data"]["act_quant_kwargs"], kwargs);
    // Onto itself: the same configuration and description.
    let (again, same, _) = convert(&model, &folder, Layout::TorchAo).expect("convertible");
    assert_eq!((config, metadata(&model)), (same, metadata(&again)));
    let (_, config, _) = convert(&model, &folder, Layout::CompressedTensors).expect("convertible");
    let inputs = &config["config_groups"]["group_0"]["input_activations"];
    assert_eq!(inputs["dynamic"], "local");

    let weights = of_modelopt("weights", "W4A16_NVFP4", None);
    let (model, config, _) = convert(&weights, &folder, Layout::TorchAo).expect("convertible");
    let kind = &config["quant_type"]["default"];
    assert_eq!(kind["_type"], "NVFP4WeightOnlyConfig");
    assert_eq!(kind["_data"]["use_dynamic_per_tensor_scale"], true);
    assert!(metadata(&model)["_data"]["act_quant_kwargs"].is_null());

    let mut export = Export::default();
    export.compressed_tensors("m.fc", Format::Mxfp4, 32);
    let dynamic = four_bits(Format::Mxfp4, true.into());
    let weights = four_bits(Format::Mxfp4, false.into());
    let config = llmcompressor(&[("mxfp4-pack-quantized", json!(["Linear"]), weights, dynamic)]);
    let (mxfp4, original) = export.write(&folder, "mxfp4", config, None);
    assert!(verified(&mxfp4, &original).findings.is_empty());
    let (model, config, _) = convert(&mxfp4, &folder, Layout::TorchAo).expect("convertible");
    let kind = &config["quant_type"]["default"];
    assert_eq!(kind["_type"], "MXDynamicActivationMXWeightConfig");
    let kwargs = &metadata(&model)["_data"]["act_quant_kwargs"];
    assert_eq!(kwargs["_type"], "QuantizeTensorToMXKwargs");
    let (_, config, _) = convert(&model, &folder, Layout::CompressedTensors).expect("convertible");
    let inputs = &config["config_groups"]["group_0"]["input_activations"];
    assert_eq!((&inputs["dynamic"], &inputs["strategy"]), (&json!(true), &json!("group")));
    // Facts that ModelOpt cannot say are noted as left out.
    let out = folder.file("noted");
    let options = SaveOptions::new(Layout::ModelOpt);
    let report = convert_model(&model, None, &options, &out, &mut ()).expect("convertible");
    assert!(report.notes[0].contains("inputs were quantised to mxfp4 at run time"), "{report}");
}

#[test]
fn mixed_precision_is_described_or_refused() {
    let folder = Folder::new("exporters-mixed");
    let mut export = Export::default();
    export.fp8("m.attn", 16, &[]);
    export.modelopt("m.up", 32, Some(0.01));
    export.modelopt("m.down", 48, Some(0.02));
    let layer = |size| json!({"quant_algo": "NVFP4", "group_size": size});
    let layers = json!({"m.attn": {"quant_algo": "FP8"}, "m.up": layer(16), "m.down": layer(16)});
    let (config, hf) = modelopt(json!({"quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": null, "quantized_layers": layers}));
    let (model, original) = export.write(&folder, "modelopt", config, hf);
    let report = verified(&model, &original);
    assert_eq!(kinds(&report), ["unread"], "{report}");
    let listed = inspect(&model).expect("listable");
    assert_eq!(listed.algorithm.as_deref(), Some("MIXED_PRECISION"));
    assert_eq!(listed.others.len(), 1);
    assert_eq!(
        (listed.others[0].module.as_str(), listed.others[0].format),
        ("m.attn", OtherFormat::Fp8)
    );

    let (there, config, _) =
        convert(&model, &folder, Layout::CompressedTensors).expect("described");
    assert_eq!(config["format"], "mixed-precision");
    let groups = &config["config_groups"];
    assert_eq!(groups["group_0"]["targets"], json!(["m.down", "m.up"]));
    assert_eq!(groups["group_0"]["format"], "nvfp4-pack-quantized");
    assert_eq!(groups["group_1"]["targets"], json!(["m.attn"]));
    assert_eq!(groups["group_1"]["format"], "float-quantized");
    assert_eq!(groups["group_1"]["weights"]["num_bits"], 8);
    assert_eq!(there.raw("m.attn.weight_scale").expect("copied").shape, [1]);
    assert_eq!(kinds(&verified(&there, &original)), ["unread"]);

    let (back, config, hf) = convert(&there, &folder, Layout::ModelOpt).expect("described");
    assert_eq!(hf["quant_algo"], "MIXED_PRECISION");
    assert_eq!(hf["quantized_layers"], layers);
    assert_eq!(config["quantized_layers"], layers);
    assert_eq!(back.raw("m.attn.weight_scale").expect("copied").shape, [] as [usize; 0]);
    assert_eq!(kinds(&verified(&back, &original)), ["unread"]);

    let message = refused(&model, &folder, Layout::TorchAo);
    assert!(message.contains("`m.attn.weight`") && message.contains("FP8"), "{message}");
    let options = DequantizeOptions::new().shard_bytes(1 << 20);
    let report = dequantize_model(&model, &options, &folder.file("floats"), &mut ());
    assert_eq!(report.expect("dequantised").decoded, 1);

    // A scale for each row and inputs at run time are not what ModelOpt's FP8 is.
    let mut export = Export::default();
    export.fp8("m.attn", 16, &[16, 1]);
    export.compressed_tensors("m.up", Format::Nvfp4, 32);
    let eight = json!({"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": false});
    let token = json!({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true});
    let stated = llmcompressor(&[
        ("float-quantized", json!(["re:.*attn$"]), eight, token),
        nvfp4_group(json!(["re:.*up$"]), Value::Null),
    ]);
    let (model, original) = export.write(&folder, "rows", stated.clone(), None);
    assert_eq!(kinds(&verified(&model, &original)), ["unread"]);
    let message = refused(&model, &folder, Layout::ModelOpt);
    assert!(message.contains("FP8 with a scale for each row"), "{message}");
    // The same layout keeps the configuration as it is.
    let (same, config, _) = convert(&model, &folder, Layout::CompressedTensors).expect("kept");
    assert_eq!(config, stated["quantization_config"]);
    assert_eq!(same.raw("m.attn.weight_scale").expect("copied").dtype, Dtype::BF16);

    // Integers, under names that NVFP4 has too.
    let mut export = Export::default();
    export.compressed_tensors("m.up", Format::Nvfp4, 32);
    export.add("m.attn.weight_packed", tensor(Dtype::I32, &[16, 8], vec![1; 512]));
    export.add("m.attn.weight_scale", tensor(Dtype::BF16, &[16, 1], bf16s(&[0.1; 16])));
    export.add("m.attn.weight_shape", tensor(Dtype::I64, &[2], vec![0; 16]));
    let int = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128});
    let stated = llmcompressor(&[
        ("pack-quantized", json!(["re:.*attn$"]), int, Value::Null),
        nvfp4_group(json!(["re:.*up$"]), Value::Null),
    ]);
    let (model, original) = export.write(&folder, "int", stated, None);
    assert_eq!(kinds(&verified(&model, &original)), ["unread"]);
    for layout in [Layout::ModelOpt, Layout::TorchAo] {
        assert!(refused(&model, &folder, layout).contains("packed integers"));
    }
}

#[test]
fn the_kv_cache_is_carried_over() {
    let folder = Folder::new("exporters-kv");
    let mut export = Export::default();
    export.modelopt("m.k_proj", 32, None);
    export.both("m.k_proj.k_scale", scalar(0.125));
    export.both("m.v_proj.v_scale", scalar(0.5));
    let stated = |kv: &str| {
        modelopt(json!({"quant_algo": "W4A16_NVFP4", "group_size": 16,
            "kv_cache_quant_algo": kv, "exclude_modules": ["lm_head"]}))
    };
    let (config, hf) = stated("FP8");
    let (model, _) = export.write(&folder, "fp8", config, hf);
    assert_eq!(inspect(&model).expect("listable").kv_cache.as_deref(), Some("FP8"));
    let (there, config, _) =
        convert(&model, &folder, Layout::CompressedTensors).expect("described");
    let scheme = &config["kv_cache_scheme"];
    assert_eq!((&scheme["num_bits"], &scheme["type"]), (&json!(8), &json!("float")));
    assert_eq!(there.raw("m.k_scale").expect("renamed").shape, [1]);
    assert_eq!(
        there.file("m.v_scale").expect("renamed").floats("m.v_scale").expect("f32").values,
        [0.5]
    );
    assert!(!there.contains("m.k_proj.k_scale"));
    let (back, _, hf) = convert(&there, &folder, Layout::ModelOpt).expect("described");
    assert_eq!(hf["kv_cache_quant_algo"], "FP8");
    assert_eq!(back.raw("m.k_proj.k_scale").expect("renamed").data, 0.125f32.to_le_bytes());
    assert!(refused(&model, &folder, Layout::TorchAo).contains("KV cache"));
    // Floats have their cache in floats.
    for (model, name) in [(&model, "floats"), (&there, "others")] {
        let out = folder.file(name);
        let options = DequantizeOptions::new();
        let report = checkpoint::dequantize_model(model, &options, &out, &mut ()).expect("done");
        assert_eq!(report.notes, ["scales of the KV cache are left out"]);
        let out = Model::open(&out).expect("floats");
        assert_eq!(out.names().filter(|name| name.ends_with("_scale")).count(), 0);
    }

    let (config, hf) = stated("NVFP4");
    let (model, _) = export.write(&folder, "nvfp4", config, hf);
    let message = refused(&model, &folder, Layout::CompressedTensors);
    assert!(message.contains("KV cache") && message.contains("NVFP4"), "{message}");
    let (_, _, hf) = convert(&model, &folder, Layout::ModelOpt).expect("kept");
    assert_eq!(hf["kv_cache_quant_algo"], "NVFP4");
}

/// `[.., rows, cols]` elements of `width` bytes as `[.., cols, rows]`.
fn transposed(data: &[u8], [rows, cols]: [usize; 2], width: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for matrix in data.chunks(rows * cols * width) {
        for col in 0..cols {
            for row in 0..rows {
                out.extend(&matrix[(row * cols + col) * width..][..width]);
            }
        }
    }
    out
}

const EXPERTS: &str = "model.layers.0.mlp.experts";

/// gpt-oss's experts as ModelOpt exports them: names with underscores, K before N.
#[test]
fn fused_experts_keep_modelopts_names_and_order() {
    let folder = Folder::new("exporters-fused");
    let mut export = Export::default();
    let experts = 2;
    for (name, n, seed) in [("gate_up_proj", 128, 1), ("down_proj", 64, 2)] {
        let (values, codes, scales, global) = quantised(Format::Nvfp4, experts * n, seed);
        let name = format!("{EXPERTS}.{name}");
        let stored = |width: usize, data: &[u8], bytes| transposed(data, [n, width], bytes);
        let codes = tensor(Dtype::U8, &[experts, 32, n], stored(32, &codes, 1));
        export.add(name.clone(), codes);
        let scales = tensor(Dtype::F8_E4M3, &[experts, 4, n], stored(4, &scales, 1));
        export.add(format!("{name}_weight_scale"), scales);
        export.add(format!("{name}_weight_scale_2"), scalar(global));
        export.add(format!("{name}_input_scale"), scalar(0.01));
        let values = stored(64, &f32s(&values), 4);
        export.original.push((name.clone(), tensor(Dtype::F32, &[experts, 64, n], values)));
        export.both(&format!("{name}_bias"), random(&[experts, n], seed + 5));
    }
    let (mut config, hf) = modelopt(json!({"quant_algo": "NVFP4", "group_size": 16,
        "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}));
    config["model_type"] = "gpt_oss".into();
    let (model, original) = export.write(&folder, "nvfp4", config, hf);
    let report = verified(&model, &original);
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.weights.len(), 2, "{report}");
    assert_eq!(report.weights[1].shape, [experts, 128, 64]);

    // Onto itself: the same tensors.
    let (same, ..) = convert(&model, &folder, Layout::ModelOpt).expect("kept");
    for name in model.names() {
        assert_eq!(model.raw(name).expect("there"), same.raw(name).expect("kept"), "{name}");
    }
    // compressed-tensors has a matrix for each expert; gpt-oss's gate has the even rows.
    let (there, ..) = convert(&model, &folder, Layout::CompressedTensors).expect("described");
    let gate = format!("{EXPERTS}.1.gate_proj");
    assert_eq!(there.raw(&format!("{gate}.weight_packed")).expect("there").shape, [64, 32]);
    let whole = values(&model, &format!("{EXPERTS}.gate_up_proj"));
    let rows: Vec<&[f32]> = whole.chunks(64).collect();
    let up: Vec<f32> = (0..64).flat_map(|row| rows[128 + 2 * row + 1]).copied().collect();
    assert_eq!(values(&there, &format!("{EXPERTS}.1.up_proj.weight")), up);
    let bias = original.file(&format!("{EXPERTS}.gate_up_proj_bias")).expect("there");
    let bias = bias.floats(&format!("{EXPERTS}.gate_up_proj_bias")).expect("f32").values;
    let even: Vec<f32> = bias[128..].iter().step_by(2).copied().collect();
    let name = format!("{gate}.bias");
    assert_eq!(there.file(&name).expect("there").floats(&name).expect("f32").values, even);
    let report = verified(&there, &original);
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.weights.len(), 6, "{report}");
    assert!(refused(&model, &folder, Layout::TorchAo).contains("[experts, K, N]"));
}

/// ModelOpt's own MXFP4 of such experts has its blocks along the output dimension.
#[test]
fn blocks_along_the_output_are_read_and_not_converted() {
    let folder = Folder::new("exporters-along-output");
    let mut export = Export::default();
    let (values, codes, scales, _) = quantised(Format::Mxfp4, 2 * 32, 3);
    let name = format!("{EXPERTS}.down_proj");
    export.add(name.clone(), tensor(Dtype::U8, &[2, 32, 32], codes));
    export.add(format!("{name}_weight_scale"), tensor(Dtype::U8, &[2, 32, 2], scales));
    export.original.push((name.clone(), tensor(Dtype::F32, &[2, 32, 64], f32s(&values))));
    export.both(&format!("{name}_bias"), random(&[2, 64], 4));
    let (config, hf) = modelopt(json!({"quant_algo": "mxfp4", "kv_cache_quant_algo": null,
        "exclude_modules": ["lm_head"]}));
    let (model, original) = export.write(&folder, "mxfp4", config, hf);
    assert_eq!(kinds(&verified(&model, &original)), ["blocks"]);
    for layout in [Layout::CompressedTensors, Layout::TorchAo, Layout::GptOss] {
        assert!(refused(&model, &folder, layout).contains("along the output dimension"));
    }
    let (same, ..) = convert(&model, &folder, Layout::ModelOpt).expect("kept");
    assert_eq!(same.raw(&name).expect("kept"), model.raw(&name).expect("there"));
}

#[test]
fn side_data_is_folded_kept_or_refused() {
    let folder = Folder::new("exporters-side");
    let with = |name: &str, algorithm: &str, low_rank: bool| {
        let mut export = Export::default();
        export.modelopt("m.fc", 32, Some(0.01));
        let scales: Vec<f32> = (0..64).map(|at| [0.25, 1.0, 2.0, 8.0][at % 4]).collect();
        export.add("m.fc.pre_quant_scale", tensor(Dtype::BF16, &[64], bf16s(&scales)));
        let (a, b) = (normal(2, 64, 8), normal(32, 2, 9));
        let rank = |values: &[f32]| -> Vec<f32> {
            values.iter().map(|&x| bf16::from_f32(x * 4.0).to_f32()).collect()
        };
        let (a, b) = (rank(&a), rank(&b));
        let original = &mut export.original[0].1.data;
        let mut values: Vec<f32> = original
            .chunks(4)
            .map(|x| f32::from_le_bytes(x.try_into().expect("4 bytes")))
            .collect();
        for (at, value) in values.iter_mut().enumerate() {
            let (row, col) = (at / 64, at % 64);
            if low_rank {
                *value += b[2 * row] * a[col] + b[2 * row + 1] * a[64 + col];
            }
            *value *= scales[col];
        }
        *original = f32s(&values);
        if low_rank {
            let prefix = "m.fc.weight_quantizer._svdquant_lora";
            export.add(format!("{prefix}_a"), tensor(Dtype::BF16, &[2, 64], bf16s(&a)));
            export.add(format!("{prefix}_b"), tensor(Dtype::BF16, &[32, 2], bf16s(&b)));
        }
        let (config, hf) = modelopt(json!({"quant_algo": algorithm, "group_size": 16,
            "has_zero_point": false, "pre_quant_scale": true, "kv_cache_quant_algo": null,
            "exclude_modules": ["lm_head"]}));
        export.write(&folder, name, config, hf)
    };
    for (name, algorithm, low_rank, first) in [
        ("awq", "NVFP4_AWQ", false, "m.fc.pre_quant_scale"),
        ("svd", "NVFP4_SVD", true, "m.fc.pre_quant_scale"),
    ] {
        let (model, original) = with(name, algorithm, low_rank);
        let report = verified(&model, &original);
        assert!(report.findings.is_empty(), "{report}");
        let message = refused(&model, &folder, Layout::CompressedTensors);
        assert!(message.contains(first), "{message}");
        let (same, _, hf) = convert(&model, &folder, Layout::ModelOpt).expect("kept");
        assert_eq!(hf["quant_algo"], algorithm);
        assert_eq!(same.names().count(), model.names().count());
        let listed = inspect(&same).expect("listable");
        assert_eq!(listed.side_data.len(), if low_rank { 3 } else { 1 });
        // As floats, it is what the original is.
        let out = folder.file(&format!("{name} floats"));
        let options = DequantizeOptions::new().shard_bytes(1 << 20);
        let report = dequantize_model(&model, &options, &out, &mut ()).expect("dequantised");
        assert_eq!(report.folded.len(), listed.side_data.len(), "{report}");
        let floats = Model::open(&out).expect("a model");
        assert_eq!(floats.names().collect::<Vec<_>>(), ["m.fc.weight"]);
        let [before, after] = [&original, &floats].map(|model| {
            let file = model.file("m.fc.weight").expect("there");
            file.floats("m.fc.weight").expect("floats").values
        });
        let square = |values: &mut dyn Iterator<Item = f32>| -> f32 { values.map(|x| x * x).sum() };
        let noise = square(&mut before.iter().zip(&after).map(|(x, y)| x - y));
        assert!(noise < 0.03 * square(&mut before.iter().copied()), "{noise}");
    }

    // Rotations.
    let mut export = Export::default();
    export.compressed_tensors("m.fc", Format::Nvfp4, 32);
    let mut config = llmcompressor(&[nvfp4_group(json!(["Linear"]), Value::Null)]);
    config["quantization_config"]["transform_config"] =
        json!({"config_groups": {"R1": {"type": "hadamard", "apply": []}}});
    export.original[0].1 = random(&[32, 64], 1234);
    let (model, original) = export.write(&folder, "spinquant", config, None);
    let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
    assert!(report.verified, "{report}");
    assert_eq!(kinds(&report), ["transform"], "{report}");
    assert!(report.findings[0].message.contains("R1"), "{report}");
    let message = refused(&model, &folder, Layout::ModelOpt);
    assert!(message.contains("transform_config") && message.contains("R1"), "{message}");
    let (_, config, _) = convert(&model, &folder, Layout::CompressedTensors).expect("kept");
    assert_eq!(config["transform_config"]["config_groups"]["R1"]["type"], "hadamard");
}

#[test]
fn modelopts_groups_of_32_and_mxfp4_are_read() {
    let folder = Folder::new("exporters-groups");
    // Pairs of blocks with one scale.
    let mut export = Export::default();
    export.modelopt("m.fc", 32, Some(0.01));
    let scales = &mut named(&mut export.tensors, "m.fc.weight_scale").data;
    let halves: Vec<u8> = scales.chunks(2).map(|pair| pair[0].max(pair[1])).collect();
    (*scales, named(&mut export.tensors, "m.fc.weight_scale").shape) = (halves, vec![32, 2]);
    for (name, algorithm) in [("w4a8", "W4A8_NVFP4_FP8"), ("w4a16", "W4A16_NVFP4")] {
        if algorithm == "W4A16_NVFP4" {
            export.tensors.retain(|(name, _)| name != "m.fc.input_scale");
        }
        let (config, hf) = modelopt(json!({"quant_algo": algorithm, "group_size": 32,
            "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}));
        let (model, _) = export.write(&folder, name, config, hf);
        let report = verify(&model, None, &mut ()).expect("verifiable");
        assert!(report.verified && report.findings.is_empty(), "{report}");
        let (same, _, hf) = convert(&model, &folder, Layout::ModelOpt).expect("kept");
        assert_eq!(same.raw("m.fc.weight_scale").expect("kept").shape, [32, 2]);
        assert_eq!(hf["group_size"], 32);
        if algorithm == "W4A16_NVFP4" {
            let (there, ..) = convert(&model, &folder, Layout::CompressedTensors).expect("exact");
            assert_eq!(there.raw("m.fc.weight_scale").expect("there").shape, [32, 4]);
            assert_eq!(values(&there, "m.fc.weight"), values(&model, "m.fc.weight"));
            let (back, ..) = convert(&there, &folder, Layout::ModelOpt).expect("exact");
            assert_eq!(back.raw("m.fc.weight_scale").expect("there").shape, [32, 4]);
        } else {
            assert_eq!(inspect(&model).expect("listable").weights[0].inputs, Inputs::Fp8);
            assert!(refused(&model, &folder, Layout::CompressedTensors).contains("fp8"));
        }
    }

    let mut export = Export::default();
    let (values, codes, scales, _) = quantised(Format::Mxfp4, 32, 5);
    export.weight("m.fc", &values);
    export.add("m.fc.weight", tensor(Dtype::U8, &[32, 32], codes));
    export.add("m.fc.weight_scale", tensor(Dtype::U8, &[32, 2], scales));
    let (config, hf) = modelopt(json!({"quant_algo": "mxfp4", "kv_cache_quant_algo": null,
        "exclude_modules": ["lm_head"]}));
    let (model, original) = export.write(&folder, "mxfp4", config, hf);
    let report = verified(&model, &original);
    assert!(report.findings.is_empty(), "{report}");
    let (there, ..) = convert(&model, &folder, Layout::CompressedTensors).expect("exact");
    let (back, _, hf) = convert(&there, &folder, Layout::ModelOpt).expect("exact");
    // Other layouts' MXFP4 becomes NVFP4, which engines read under ModelOpt's names.
    assert_eq!(hf["quant_algo"], "W4A16_NVFP4");
    assert_eq!(self::values(&back, "m.fc.weight"), self::values(&model, "m.fc.weight"));
}

/// A wrong statement about tensors that are right.
#[test]
fn compressed_tensors_configuration_is_checked() {
    let folder = Folder::new("exporters-configuration");
    let mut export = Export::default();
    export.compressed_tensors("m.up", Format::Nvfp4, 32);
    export.both("lm_head.weight", random(&[8, 64], 6));
    let good = llmcompressor(&[nvfp4_group(json!(["Linear"]), Value::Null)]);
    let (model, original) = export.write(&folder, "m", good.clone(), None);
    let report = verified(&model, &original);
    assert!(report.findings.is_empty(), "{report}");
    let path = folder.file("m");
    let findings = |pointer: &str, value: Value| {
        let mut config = good.clone();
        let whole = format!("/quantization_config{pointer}");
        *config.pointer_mut(&whole).unwrap_or_else(|| panic!("{pointer}")) = value;
        std::fs::write(path.join("config.json"), config.to_string()).expect("written");
        let model = Model::open(&path).expect("a model");
        verify(&model, None, &mut ()).expect("verifiable").findings
    };
    let group = "/config_groups/group_0";
    let inputs = four_bits(Format::Nvfp4, "local".into());
    for (pointer, value, severity, text) in [
        ("/format".to_owned(), json!("bogus"), Severity::Error, "says format bogus"),
        (
            format!("{group}/format"),
            json!("pack-quantized"),
            Severity::Error,
            "format pack-quantized",
        ),
        (
            format!("{group}/format"),
            json!("mxfp4-pack-quantized"),
            Severity::Error,
            "nvfp4-pack-quantized",
        ),
        (format!("{group}/weights/group_size"), json!(32), Severity::Error, "group_size 32"),
        (format!("{group}/weights/num_bits"), json!(8), Severity::Error, "num_bits 8"),
        (format!("{group}/targets"), json!(["re:.*down$"]), Severity::Error, "no group"),
        (format!("{group}/input_activations"), inputs, Severity::Error, "no input_global_scale"),
        ("/ignore".to_owned(), json!(["lm_head", "re:.*up$"]), Severity::Error, "by `re:.*up$`"),
        ("/ignore".to_owned(), json!(["lm_head", "m.up"]), Severity::Error, "by `m.up`"),
        ("/ignore".to_owned(), json!([]), Severity::Warning, "does not ignore it"),
        ("/ignore".to_owned(), json!(["re:(lm"]), Severity::Warning, "was not compared"),
    ] {
        let found = findings(&pointer, value.clone());
        let named = found.iter().any(|x| x.severity == severity && x.message.contains(text));
        assert!(named, "{pointer} {value}: {found:?}");
        assert!(found.iter().all(|x| x.kind == "configuration"), "{found:?}");
    }
    assert!(findings("/ignore", json!(["re:lm_head"])).is_empty());
    assert!(findings("/ignore", json!(["re:(?=lm).*"])).is_empty());
}

/// Experts that an exporter renamed, took apart or put together are compared all the same.
#[test]
fn experts_are_matched_with_their_originals() {
    let folder = Folder::new("exporters-linearised");
    let mut export = Export::default();
    let projections = [("gate_proj", 48), ("up_proj", 80), ("down_proj", 32)];
    for (projection, rows) in projections {
        export.compressed_tensors(&format!("{EXPERTS}.0.{projection}"), Format::Nvfp4, rows);
    }
    for (name, _) in &mut export.original {
        for (ours, theirs) in [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")] {
            *name = name.replace(ours, theirs);
        }
    }
    let config = llmcompressor(&[nvfp4_group(json!(["Linear"]), Value::Null)]);
    let (model, original) = export.write(&folder, "renamed", config.clone(), None);
    let report = verified(&model, &original);
    assert!(kinds(&report).iter().all(|kind| *kind == "shared-scale"), "{report}");

    // Gate and up of two experts in one tensor, one after the other.
    let mut export = Export::default();
    let mut joint = Vec::new();
    for expert in 0..2 {
        for (projection, rows) in [("gate_proj", 48), ("up_proj", 48)] {
            export.compressed_tensors(
                &format!("{EXPERTS}.{expert}.{projection}"),
                Format::Nvfp4,
                rows,
            );
            joint.extend(export.original.pop().expect("added").1.data);
        }
    }
    let joint = tensor(Dtype::F32, &[2, 96, 64], joint);
    export.original.push((format!("{EXPERTS}.gate_up_proj"), joint));
    export.original.push((format!("{EXPERTS}.gate_up_proj_bias"), random(&[2, 96], 1)));
    let (model, original) = export.write(&folder, "apart", config, None);
    let report = verified(&model, &original);
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.weights.len(), 4, "{report}");
}

/// Experts in one tensor with a tensor-level scale each, as TorchAO has them.
#[test]
fn experts_may_have_scales_of_their_own() {
    let folder = Folder::new("exporters-expert-scales");
    let name = format!("{EXPERTS}.gate_up_proj");
    let prefix = format!("{EXPERTS}._gate_up_proj");
    let (mut export, mut globals) = (Export::default(), Vec::new());
    let (mut all_codes, mut all_scales, mut joint) = (Vec::new(), Vec::new(), Vec::new());
    for expert in 0..3u64 {
        let (values, codes, scales, global) = quantised(Format::Nvfp4, 32, expert);
        // Weights of one expert are twice those of the one before.
        let factor = (1 << expert) as f32;
        joint.extend(values.iter().map(|x| x * factor));
        all_codes.extend(codes);
        all_scales.extend(scales);
        globals.push(global * factor);
    }
    export.original.push((name.clone(), tensor(Dtype::F32, &[3, 32, 64], f32s(&joint))));
    export.add(format!("{prefix}_qdata"), tensor(Dtype::U8, &[3, 32, 32], all_codes));
    export.add(format!("{prefix}_scale"), tensor(Dtype::F8_E4M3, &[3, 32, 4], all_scales));
    let scales = tensor(Dtype::F32, &[3, 1, 1], f32s(&globals));
    export.add(format!("{prefix}_per_tensor_scale"), scales.clone());
    let config = json!({"model_type": "mixtral", "hidden_size": 64,
        "quantization_config": {"quant_method": "torchao", "quant_type": {"default": {}}}});
    let (model, original) = export.write(&folder, "torchao", config, None);
    assert!(verified(&model, &original).findings.is_empty());
    let (same, ..) = convert(&model, &folder, Layout::TorchAo).expect("kept");
    let stored = same.raw(&format!("{prefix}_per_tensor_scale")).expect("kept");
    assert_eq!((stored.shape, stored.data.to_vec()), (scales.shape, scales.data));
    // Apart, each matrix has that of its expert.
    for layout in [Layout::ModelOpt, Layout::CompressedTensors] {
        let (there, ..) = convert(&model, &folder, layout).expect("described");
        let report = verified(&there, &original);
        assert!(report.findings.is_empty(), "{report}");
        assert_eq!(report.weights.len(), 6, "{report}");
        for weight in &report.weights {
            let expert = weight.name.split('.').nth(5).expect("a number");
            let expert: usize = expert.parse().expect("a number");
            assert!((weight.multiplier / globals[expert] - 1.0).abs() < 1e-6, "{report}");
        }
    }
    // One of them wrong.
    named(&mut export.tensors, &format!("{prefix}_per_tensor_scale")).data[4..8].fill(0);
    let (model, _) = export.write(&folder, "zero", json!({}), None);
    let report = verify(&model, None, &mut ()).expect("verifiable");
    let error = report.findings.iter().find(|x| x.kind == "scale").expect("found");
    assert!(error.message.contains("index 1"), "{report}");
}

/// TorchAO's experts in one tensor: their scales are tiles of 128 rows, expert after expert.
#[test]
fn swizzled_experts_are_read() {
    let folder = Folder::new("exporters-swizzled");
    let source = folder.file("source.safetensors");
    checkpoint::write(&source, &[("m.experts.weight", random(&[3, 128, 64], 2))], &[])
        .expect("written");
    let original = Model::open(&source).expect("a model");
    let mut results = Vec::new();
    for scales in fp4_formats::ScaleLayout::ALL {
        let mut options = options(Format::Nvfp4, Layout::TorchAo);
        options.save.scales = scales;
        let out = folder.file(scales.name());
        checkpoint::quantize_model(&original, &options, &out, None, &mut ()).expect("quantised");
        let model = Model::open(&out).expect("a model");
        results.push((
            model.raw("m.experts._weight_scale").expect("there").shape,
            values(&model, "m.experts.weight"),
        ));
        verified(&model, &original);
    }
    assert_eq!(results[0].0, [3, 128, 4]);
    assert_eq!(results[1].0, [3, 32, 16]);
    assert_eq!(results[0].1, results[1].1);
}

const MIXTRAL: &str = "model.layers.0.block_sparse_moe.experts";

/// Two experts as llmcompressor writes them, with other rows for each matrix, of a model that
/// `config.json` calls `kind`.
fn matrix_experts(
    folder: &Folder,
    name: &str,
    format: Format,
    experts: &str,
    kind: &str,
) -> (Model, Model) {
    let mut export = Export::default();
    for expert in 0..2 {
        for (projection, rows) in [("gate_proj", 16), ("up_proj", 32), ("down_proj", 48)] {
            let module = format!("{experts}.{expert}.{projection}");
            export.compressed_tensors(&module, format, rows + 64 * expert);
        }
    }
    let named = match format {
        Format::Nvfp4 => "nvfp4-pack-quantized",
        Format::Mxfp4 => "mxfp4-pack-quantized",
    };
    let weights = four_bits(format, false.into());
    let mut config = llmcompressor(&[(named, json!(["Linear"]), weights, Value::Null)]);
    if !kind.is_empty() {
        config["model_type"] = kind.into();
    }
    export.write(folder, name, config, None)
}

/// Readers of ModelOpt's layout have Mixtral's own names, which llmcompressor replaces.
#[test]
fn mixtrals_experts_get_their_names_back() {
    let folder = Folder::new("exporters-mixtral");
    let nvfp4 = Format::Nvfp4;
    let (model, original) = matrix_experts(&folder, "mixtral", nvfp4, MIXTRAL, "mixtral");
    let (there, _, _) = convert(&model, &folder, Layout::ModelOpt).expect("described");
    for expert in 0..2 {
        for (before, after) in [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")] {
            let [before, after] =
                [before, after].map(|name| format!("{MIXTRAL}.{expert}.{name}.weight"));
            assert_eq!(values(&model, &before), values(&there, &after));
            assert!(!there.contains(&before), "{before}");
        }
    }
    let report = verify(&there, Some(&original), &mut ()).expect("verifiable");
    assert!(report.weights.iter().all(|weight| weight.sqnr_db.is_some()), "{report}");

    let other = "model.layers.0.mlp.experts";
    let (qwen, _) = matrix_experts(&folder, "qwen", nvfp4, other, "qwen3_moe");
    let (there, _, _) = convert(&qwen, &folder, Layout::ModelOpt).expect("described");
    assert!(there.contains(&format!("{other}.0.gate_proj.weight")));
    for kind in ["", "unheard_of"] {
        let name = format!("of type {kind}");
        let (unknown, _) = matrix_experts(&folder, &name, nvfp4, MIXTRAL, kind);
        let message = refused(&unknown, &folder, Layout::ModelOpt);
        assert!(message.contains(&format!("{MIXTRAL}.0.down_proj.weight")), "{message}");
        assert!(message.contains("and 5 more"), "{message}");
        assert!(message.contains("model_type is mixtral"), "{message}");
    }
}

/// Matrices of single experts are refused if the model's readers expect all experts in one tensor.
#[test]
fn matrices_of_experts_that_no_reader_finds_are_refused() {
    let folder = Folder::new("exporters-matrices");
    let experts = "model.layers.0.mlp.experts";
    for (format, kind) in [(Format::Nvfp4, "qwen3_moe"), (Format::Mxfp4, "gpt_oss")] {
        let (model, original) = matrix_experts(&folder, kind, format, experts, kind);
        let message = refused(&model, &folder, Layout::TorchAo);
        assert!(message.contains("it and 5 more are each of one expert"), "{message}");
        assert!(message.contains("layout compressed-tensors has a matrix for each"), "{message}");
        convert(&model, &folder, Layout::CompressedTensors).expect("described");

        let mut options = options(format, Layout::TorchAo);
        let out = folder.file(&format!("{kind} quantised"));
        let before = folder.names();
        let quantize =
            |options: &_| checkpoint::quantize_model(&original, options, &out, None, &mut ());
        let error = quantize(&options).expect_err("refused").to_string();
        assert!(error.contains("--exclude '*.experts.*'"), "{error}");
        assert_eq!(folder.names(), before);
        // The message's advice leads on: here nothing else is left.
        options.exclude.push("*.experts.*".into());
        let error = quantize(&options).expect_err("nothing to quantise").to_string();
        assert!(error.contains("has no tensor that can be quantised"), "{error}");
    }
    let (model, _) = matrix_experts(&folder, "linear", Format::Mxfp4, experts, "gpt_oss");
    let message = refused(&model, &folder, Layout::ModelOpt);
    assert!(message.contains("of one expert of gpt-oss"), "{message}");
    let message = refused(&model, &folder, Layout::GptOss);
    assert!(message.contains("expect all experts in one tensor"), "{message}");
    // Nothing says what the model is.
    let (model, _) = matrix_experts(&folder, "unknown", Format::Mxfp4, experts, "");
    convert(&model, &folder, Layout::TorchAo).expect("described");
}

/// Readers of gpt-oss's layout decode its experts and nothing else.
#[test]
fn other_models_than_gpt_oss_do_not_become_it() {
    let folder = Folder::new("exporters-not-gpt-oss");
    let mut export = Export::default();
    export.compressed_tensors("m.up_proj", Format::Mxfp4, 32);
    let weights = four_bits(Format::Mxfp4, false.into());
    let mut config =
        llmcompressor(&[("mxfp4-pack-quantized", json!(["Linear"]), weights, Value::Null)]);
    config["architectures"] = json!(["LlamaForCausalLM"]);
    let (model, _) = export.write(&folder, "llama", config, None);
    let message = refused(&model, &folder, Layout::GptOss);
    assert!(message.contains("`m.up_proj.weight`: it is of another model than gpt-oss"));
    assert!(message.contains("layouts compressed-tensors and modelopt hold it"), "{message}");
}
