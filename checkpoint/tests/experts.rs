//! Experts as mlx-lm has them, in one tensor for each projection, and as transformers has them in floats.

use std::path::{Path, PathBuf};

use crate::support::{Folder, random};
use fp4_formats::FloatType;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, Checkpoint, DequantizeOptions, Layout, Model, ModelOptions, NewTensor,
    Result, SaveOptions, load, verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

const HIDDEN: usize = 64;
const INNER: usize = 96;
const EXPERTS: usize = 3;

/// A layer of a model with experts, as transformers stores it.
fn write_model(folder: &Path, kind: &str) -> Model {
    std::fs::create_dir_all(folder).expect("a folder");
    let mut tensors: Vec<(String, NewTensor)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| {
        let seed = tensors.len() as u64;
        tensors.push((name, random(shape, seed)));
    };
    let layer = "model.layers.0";
    add("model.embed_tokens.weight".into(), &[7, HIDDEN]);
    add(format!("{layer}.input_layernorm.weight"), &[HIDDEN]);
    add(format!("{layer}.self_attn.o_proj.weight"), &[HIDDEN, HIDDEN]);
    let (experts, names) = match kind {
        "mixtral" | "minimax_m2" => {
            (format!("{layer}.block_sparse_moe.experts"), ["w1", "w3", "w2"])
        }
        "llama4_text" => (format!("{layer}.feed_forward.experts"), [""; 3]),
        _ => (format!("{layer}.mlp.experts"), ["gate_proj", "up_proj", "down_proj"]),
    };
    match kind {
        "gpt_oss" | "llama4_text" => {
            add(format!("{experts}.gate_up_proj"), &[EXPERTS, HIDDEN, 2 * INNER]);
            add(format!("{experts}.down_proj"), &[EXPERTS, INNER, HIDDEN]);
            if kind == "gpt_oss" {
                add(format!("{experts}.gate_up_proj_bias"), &[EXPERTS, 2 * INNER]);
                add(format!("{experts}.down_proj_bias"), &[EXPERTS, HIDDEN]);
            }
        }
        _ => {
            for expert in 0..EXPERTS {
                let [gate, up, down] =
                    names.map(|name| format!("{experts}.{expert}.{name}.weight"));
                add(gate, &[INNER, HIDDEN]);
                add(up, &[INNER, HIDDEN]);
                add(down, &[HIDDEN, INNER]);
            }
        }
    }
    if kind == "deepseek_v3" {
        add(format!("{layer}.self_attn.kv_b_proj.weight"), &[128, HIDDEN]);
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&folder.join("model.safetensors"), &tensors, &[]).expect("written");
    // In Llama 4's files of the text alone, hidden_size says where K is.
    let config = json!({"model_type": kind, "hidden_size": HIDDEN, "num_hidden_layers": 1});
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    Model::open(folder).expect("a model")
}

fn quantized(source: &Model, out: PathBuf, layout: Layout, format: Format) -> Result<Model> {
    let recipe = recipe_by_name(format, "torchao").expect("known");
    let options = ModelOptions::new(recipe, layout).experts_only(false);
    checkpoint::quantize_model(source, &options, &out, None, &mut ())?;
    Model::open(out)
}

fn converted(model: &Model, out: PathBuf, layout: Layout) -> Result<Model> {
    checkpoint::convert_model(model, None, &SaveOptions::new(layout), &out, &mut ())?;
    Model::open(out)
}

fn dequantized(model: &Model, out: PathBuf) -> Result<Model> {
    let options = DequantizeOptions::new().dtype(FloatType::F32);
    checkpoint::dequantize_model(model, &options, &out, &mut ())?;
    Model::open(out)
}

fn floats(model: &Model, name: &str) -> Vec<f32> {
    model.file(name).expect("there").floats(name).expect("floats").values
}

fn refused(what: &str, done: Result<Model>, reason: &str, out: &Path) {
    let error = done.err().unwrap_or_else(|| panic!("{what} ought to be refused")).to_string();
    assert!(error.contains(reason), "{what}: {error}");
    assert!(!out.exists(), "{what}");
}

/// The names in files are mlx-lm's; read again, experts are matrices with the values of the original, and floats of them
/// have the names and the order of the original.
#[test]
fn stacked_experts_are_written_and_read() {
    for (kind, module) in [
        ("mixtral", "block_sparse_moe.switch_mlp"),
        ("minimax_m2", "block_sparse_moe.switch_mlp"),
        ("qwen3_moe", "mlp.switch_mlp"),
        ("deepseek_v3", "mlp.switch_mlp"),
        ("kimi_k2", "mlp.switch_mlp"),
        ("glm4_moe", "mlp.switch_mlp"),
        ("gpt_oss", "mlp.experts"),
        ("llama4_text", "feed_forward.experts"),
    ] {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let folder = Folder::new("experts-stacked_experts_are_written_and_read");
            let source = write_model(&folder.file("source"), kind);
            let there = quantized(&source, folder.file("mlx"), Layout::Mlx, format);
            let there = there.unwrap_or_else(|error| panic!("{kind}: {error}"));
            // The tensors of the file, without the configuration.
            let alone = folder.file("alone.safetensors");
            std::fs::copy(folder.file("mlx/model.safetensors"), &alone).expect("copied");
            let file = Checkpoint::open(&alone).expect("a file");
            let block = format.block() as usize;
            for (projection, rows, cols) in [
                ("gate_proj", INNER, HIDDEN),
                ("up_proj", INNER, HIDDEN),
                ("down_proj", HIDDEN, INNER),
            ] {
                let name = format!("model.layers.0.{module}.{projection}");
                let own = |ending: &str| {
                    let raw = file.raw(&format!("{name}.{ending}"));
                    let raw = raw.unwrap_or_else(|error| panic!("{kind}: {error}"));
                    (raw.dtype, raw.shape)
                };
                assert_eq!(own("weight"), (Dtype::U32, vec![EXPERTS, rows, cols / 8]));
                assert_eq!(own("scales"), (Dtype::U8, vec![EXPERTS, rows, cols / block]));
                if kind == "gpt_oss" {
                    assert_eq!(own("bias"), (Dtype::F32, vec![EXPERTS, rows]));
                }
            }
            let of_experts =
                |name: &str| name.contains("experts.0.") || name.contains("switch_mlp.0");
            assert!(!file.entries().iter().any(|entry| of_experts(&entry.name)), "{kind}");
            assert_eq!(Layout::detect(&there), Some(Layout::Mlx));
            let report = verify(&there, Some(&source), &mut ()).expect("readable");
            assert!(report.verified, "{kind}: {report}");
            assert!(report.weights.len() > 3 * EXPERTS, "{kind}: {report}");
            let back = dequantized(&there, folder.file("floats"));
            let back = back.unwrap_or_else(|error| panic!("{kind}: {error}"));
            let names = |model: &Model| model.names().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(names(&source), names(&back), "{kind}");
            for name in source.names() {
                let shape = |model: &Model| model.raw(name).expect("there").shape;
                assert_eq!(shape(&source), shape(&back), "{kind}: {name}");
                let (x, y) = (floats(&source, name), floats(&back, name));
                let noise: f32 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
                let signal: f32 = x.iter().map(|x| x * x).sum();
                assert!(noise < 0.03 * signal, "{kind}: {name}: {noise} of {signal}");
            }
            let twice = converted(&there, folder.file("twice"), Layout::Mlx).expect("copied");
            for name in there.names() {
                let bytes = |model: &Model| model.raw(name).expect("there").data.to_vec();
                assert_eq!(bytes(&there), bytes(&twice), "{kind}: {name}");
            }
            assert_eq!(there.config(), twice.config(), "{kind}");
        }
    }
}

/// Codes and scales go through the layout with a matrix for each expert and come back, also over several files.
#[test]
fn stacked_experts_are_converted() {
    for kind in ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"] {
        let folder = Folder::new("experts-stacked_experts_are_converted");
        let source = write_model(&folder.file("source"), kind);
        let layout = Layout::CompressedTensors;
        let first = quantized(&source, folder.file("first"), layout, Format::Mxfp4).expect("done");
        let (out, options) = (folder.file("mlx"), SaveOptions::new(Layout::Mlx).shard_bytes(9000));
        let report = checkpoint::convert_model(&first, None, &options, &out, &mut ());
        let report = report.expect("converted");
        assert!(report.saved.shards.len() > 2, "{report}");
        let there = Model::open(&out).expect("a checkpoint");
        assert!(there.shards().len() > 2);
        if kind == "deepseek_v3" {
            let name = "model.layers.0.self_attn.kv_b_proj.weight";
            assert_eq!(there.raw(name).expect("there").dtype, Dtype::BF16);
            assert!(report.notes.iter().any(|note| note.contains(name)), "{report}");
        }
        let back = converted(&there, folder.file("back"), layout).expect("converted");
        let general = |name: &str| {
            let name = name.replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.");
            name.replace(".w3.", ".up_proj.")
        };
        for part in layout.find(&first).iter().filter(|part| !part.name.contains("kv_b_proj")) {
            let others = layout.find(&back);
            let other = others.iter().find(|other| general(&other.name) == general(&part.name));
            let other = other.unwrap_or_else(|| panic!("{kind}: no {}", part.name));
            let [x, y] = [(&first, part), (&back, other)]
                .map(|(model, part)| load(model, layout, part).expect("valid").blocks);
            assert_eq!(x, y, "{kind}: {}", part.name);
        }
    }
}

/// gpt-oss's experts, a matrix each in these layouts, become transformers' tensors with their biases again.
#[test]
fn floats_of_gpt_oss_are_those_of_transformers() {
    let folder = Folder::new("experts-floats_of_gpt_oss_are_those_of_transformers");
    let source = write_model(&folder.file("source"), "gpt_oss");
    for layout in [Layout::Gguf, Layout::CompressedTensors, Layout::Mlx] {
        let name = |what: &str| folder.file(&format!("{layout}-{what}"));
        let there = quantized(&source, name("there"), layout, Format::Mxfp4);
        let there = there.unwrap_or_else(|error| panic!("{layout}: {error}"));
        let back = dequantized(&there, name("floats")).unwrap_or_else(|e| panic!("{layout}: {e}"));
        assert_eq!(
            source.names().collect::<Vec<_>>(),
            back.names().collect::<Vec<_>>(),
            "{layout}"
        );
        let experts = "model.layers.0.mlp.experts";
        for (name, noise) in [
            ("gate_up_proj", 0.03),
            ("down_proj", 0.03),
            ("gate_up_proj_bias", 0.0),
            ("down_proj_bias", 0.0),
        ] {
            let name = format!("{experts}.{name}");
            let shape = |model: &Model| model.raw(&name).expect("there").shape;
            assert_eq!(shape(&source), shape(&back), "{layout}: {name}");
            let (x, y) = (floats(&source, &name), floats(&back, &name));
            let error: f32 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
            let signal: f32 = x.iter().map(|x| x * x).sum();
            assert!(error <= noise * signal, "{layout}: {name}: {error} of {signal}");
        }
    }
}

/// Weights of two formats: the configuration names mlx-lm's modules, and `verify` finds their descriptions.
#[test]
fn modes_of_stacked_experts_are_stated() {
    let folder = Folder::new("experts-modes_of_stacked_experts_are_stated");
    let source = write_model(&folder.file("source"), "qwen3_moe");
    let out = folder.file("mlx");
    quantized(&source, out.clone(), Layout::Mlx, Format::Nvfp4).expect("quantised");
    let path = out.join("config.json");
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("there")).expect("JSON");
    let own = config["quantization"].clone();
    config["quantization"] = json!({"group_size": 64, "bits": 8, "mode": "affine"});
    for module in [
        "mlp.switch_mlp.gate_proj",
        "mlp.switch_mlp.up_proj",
        "mlp.switch_mlp.down_proj",
        "self_attn.o_proj",
    ] {
        config["quantization"][format!("model.layers.0.{module}")] = own.clone();
    }
    std::fs::write(&path, config.to_string()).expect("written");
    let model = Model::open(&out).expect("a checkpoint");
    let report = verify(&model, Some(&source), &mut ()).expect("readable");
    assert!(report.verified, "{report}");
    config["quantization"]["model.layers.0.mlp.switch_mlp.up_proj"]["group_size"] = 32.into();
    std::fs::write(&path, config.to_string()).expect("written");
    let model = Model::open(&out).expect("a checkpoint");
    let report = verify(&model, Some(&source), &mut ()).expect("readable");
    assert!(!report.verified, "{report}");
}

/// Experts of a layer that are stored differently, and models in which mlx-lm has other tensors changed.
#[test]
fn forms_that_mlx_lm_does_not_have_are_refused() {
    let folder = Folder::new("experts-forms_that_mlx_lm_does_not_have_are_refused");
    let out = folder.file("out");
    let source = write_model(&folder.file("source"), "qwen3_moe");
    let recipe = recipe_by_name(Format::Nvfp4, "torchao").expect("known");
    let options = ModelOptions::new(recipe, Layout::Mlx).exclude(vec!["*.experts.1.*".into()]);
    let done = checkpoint::quantize_model(&source, &options, &out, None, &mut ());
    refused(
        "one expert",
        done.map(|_| Model::open(&out).expect("written")),
        "another expert",
        &out,
    );
    for (kind, reason) in [
        ("qwen3_next", "one more in its norms"),
        ("nemotron_h", "order of dimensions of its convolutions"),
        ("gemma4_text", "under other names"),
        ("dots1", "names a known family"),
    ] {
        let source = write_model(&folder.file(kind), kind);
        refused(kind, quantized(&source, out.clone(), Layout::Mlx, Format::Nvfp4), reason, &out);
        if kind == "dots1" {
            continue;
        }
        // Such a file of mlx-lm's.
        let sound = write_model(&folder.file(&format!("{kind}-sound")), "qwen3_moe");
        let mlx = folder.file(&format!("{kind}-mlx"));
        let there = quantized(&sound, mlx.clone(), Layout::Mlx, Format::Nvfp4).expect("quantised");
        let mut config = there.config().expect("there").clone();
        config["model_type"] = kind.into();
        std::fs::write(mlx.join("config.json"), config.to_string()).expect("written");
        let there = Model::open(&mlx).expect("a checkpoint");
        assert!(verify(&there, None, &mut ()).expect("readable").verified);
        refused(kind, dequantized(&there, out.clone()), reason, &out);
        refused(kind, converted(&there, out.clone(), Layout::CompressedTensors), reason, &out);
    }
    // Multi-head latent attention as mlx-lm has it.
    let mlx = folder.file("latent");
    let source = write_model(&folder.file("deepseek"), "deepseek_v3");
    quantized(&source, mlx.clone(), Layout::Mlx, Format::Nvfp4).expect("quantised");
    let path = mlx.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("there");
    let (from, to) = (b"self_attn.kv_b_proj.weight", b"self_attn.embed_q.weight  ");
    let at = bytes.windows(from.len()).position(|window| window == from).expect("there");
    let mut renamed = bytes;
    renamed[at..at + to.len()].copy_from_slice(to);
    // Spaces after the name would be part of it: they follow the quotation mark.
    renamed[at + from.len() - 2..at + from.len() + 1].copy_from_slice(b"\"  ");
    std::fs::write(&path, renamed).expect("written");
    let there = Model::open(&mlx).expect("a checkpoint");
    let reason = "kv_b_proj in two tensors";
    refused("latent", dequantized(&there, out.clone()), reason, &out);
    refused("latent", converted(&there, out.clone(), Layout::CompressedTensors), reason, &out);
}

/// `tests/data/mlx`: models of mlx-lm with experts, beside the values that it reads itself.
#[test]
fn values_of_stacked_experts_are_those_of_mlx_lm() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlx");
    for name in ["nvfp4-mixtral", "mxfp4-gpt-oss"] {
        let folder = Folder::new("experts-values_of_stacked_experts_are_those_of_mlx_lm");
        let model = Model::open(data.join(name)).expect("a model");
        let expected = Checkpoint::open(data.join(format!("{name}-values.safetensors")));
        let expected = expected.expect("values");
        let out = dequantized(&model, folder.file("out")).expect("dequantised");
        let names: Vec<String> = expected.entries().into_iter().map(|entry| entry.name).collect();
        assert_eq!(out.names().count(), names.len(), "{name}");
        for tensor in &names {
            let right = expected.floats(tensor).expect("floats");
            assert_eq!(out.raw(tensor).expect("there").shape, right.shape, "{name}: {tensor}");
            assert_eq!(floats(&out, tensor), right.values, "{name}: {tensor}");
        }
    }
}

/// `tests/data/mlx/affine.safetensors`: integers of every number of bits, which MLX quantised and read.
#[test]
fn integers_of_mlx_are_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlx/affine.safetensors");
    let folder = Folder::new("experts-integers_of_mlx_are_read");
    let model = Model::open(data).expect("a model");
    let out = dequantized(&model, folder.file("out")).expect("dequantised");
    for bits in [2, 3, 4, 5, 6, 8] {
        let values = floats(&out, &format!("bits{bits}.weight"));
        let right = floats(&out, &format!("bits{bits}.values"));
        assert_eq!(values.len(), right.len());
        let largest = right.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (x, y) in values.iter().zip(&right) {
            // MLX may multiply and add in one step.
            assert!((x - y).abs() <= 1e-6 * largest, "{bits} bits: {x} {y}");
        }
    }
}

/// An expert that is missing in a file is named, not left out.
#[test]
fn a_missing_expert_is_named() {
    let folder = Folder::new("experts-a_missing_expert_is_named");
    let source = write_model(&folder.file("source"), "gpt_oss");
    let layout = Layout::CompressedTensors;
    let out = folder.file("quantised");
    let model = quantized(&source, out.clone(), layout, Format::Mxfp4).expect("quantised");
    let kept: Vec<(String, NewTensor)> = model
        .names()
        .filter(|name| !name.contains("experts.1.up_proj.weight"))
        .map(|name| {
            let raw = model.raw(name).expect("there");
            let data = raw.data.to_vec();
            (name.to_owned(), NewTensor { dtype: raw.dtype, shape: raw.shape, data })
        })
        .collect();
    let kept: Vec<(&str, NewTensor)> =
        kept.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    drop(model);
    checkpoint::write(&out.join("model.safetensors"), &kept, &[]).expect("written");
    let model = Model::open(&out).expect("a checkpoint");
    let target = folder.file("floats");
    refused("up", dequantized(&model, target.clone()), "expert 1 has no up_proj", &target);
}
