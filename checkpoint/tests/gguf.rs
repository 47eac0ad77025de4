//! GGUF: models of every architecture whose names ggml has, written and read again; damaged files.

use std::path::Path;

use crate::support::{Folder, random};
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, CheckpointError, DequantizeOptions, Layout, Model, ModelOptions, NewTensor,
    SaveOptions, load, verify,
};
use nvfp4_gguf::{Gguf, Kind, Scalar, Value};
use proptest::prelude::*;
use serde_json::json;

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 16;
const INNER: usize = 128;
const EXPERTS: usize = 3;
const VOCABULARY: usize = 10;

/// A model of two layers, whose config.json has this `model_type`.
fn write_model(folder: &Path, kind: &str) {
    std::fs::create_dir_all(folder).expect("a folder");
    let mut tensors: Vec<(String, NewTensor)> = Vec::new();
    let mut seed = 1;
    let mut add = |name: String, shape: &[usize]| {
        seed += 1;
        tensors.push((name, random(shape, seed)));
    };
    add("model.embed_tokens.weight".into(), &[VOCABULARY, HIDDEN]);
    add("model.norm.weight".into(), &[HIDDEN]);
    let gemma = kind.starts_with("gemma");
    if !gemma {
        add("lm_head.weight".into(), &[VOCABULARY, HIDDEN]);
    }
    for layer in 0..2 {
        let mut add =
            |name: &str, shape: &[usize]| add(format!("model.layers.{layer}.{name}"), shape);
        add("self_attn.q_proj.weight", &[HEADS * HEAD, HIDDEN]);
        add("self_attn.k_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
        add("self_attn.v_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
        add("self_attn.o_proj.weight", &[HIDDEN, HEADS * HEAD]);
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        if matches!(kind, "gemma2" | "gemma3_text") {
            add("pre_feedforward_layernorm.weight", &[HIDDEN]);
            add("post_feedforward_layernorm.weight", &[HIDDEN]);
        }
        if kind.starts_with("qwen3") || kind == "gemma3_text" {
            add("self_attn.q_norm.weight", &[HEAD]);
            add("self_attn.k_norm.weight", &[HEAD]);
        }
        if kind == "llama" {
            add("self_attn.q_proj.bias", &[HEADS * HEAD]);
        }
        let (experts, [gate, up, down]) = match kind {
            "mixtral" => ("block_sparse_moe.experts", ["w1", "w3", "w2"]),
            _ => ("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
        };
        let router = match kind {
            "mixtral" => Some("block_sparse_moe.gate"),
            "qwen3_moe" => Some("mlp.gate"),
            "gpt_oss" => Some("mlp.router"),
            _ => None,
        };
        let Some(router) = router else {
            add("mlp.gate_proj.weight", &[INNER, HIDDEN]);
            add("mlp.up_proj.weight", &[INNER, HIDDEN]);
            add("mlp.down_proj.weight", &[HIDDEN, INNER]);
            continue;
        };
        add(&format!("{router}.weight"), &[EXPERTS, HIDDEN]);
        if kind == "gpt_oss" {
            add("self_attn.sinks", &[HEADS]);
            add(&format!("{router}.bias"), &[EXPERTS]);
        }
        for expert in 0..EXPERTS {
            add(&format!("{experts}.{expert}.{gate}.weight"), &[INNER, HIDDEN]);
            add(&format!("{experts}.{expert}.{up}.weight"), &[INNER, HIDDEN]);
            add(&format!("{experts}.{expert}.{down}.weight"), &[HIDDEN, INNER]);
            if kind == "gpt_oss" {
                add(&format!("{experts}.{expert}.{down}.bias"), &[HIDDEN]);
            }
        }
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&folder.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({
        "model_type": kind, "num_hidden_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "intermediate_size": INNER, "vocab_size": VOCABULARY,
        "num_local_experts": EXPERTS, "num_experts": EXPERTS, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": gemma,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

const KINDS: [&str; 8] =
    ["llama", "mixtral", "qwen3", "qwen3_moe", "gpt_oss", "gemma", "gemma2", "gemma3_text"];

fn quantized(source: &Path, out: &Path, layout: Layout, format: Format) -> Model {
    let recipe = recipe_by_name(format, "modelopt").expect("known");
    let options = ModelOptions::new(recipe, layout).experts_only(false);
    let source = Model::open(source).expect("a model");
    checkpoint::quantize_model(&source, &options, out, None, &mut ())
        .unwrap_or_else(|error| panic!("{layout}: {error}"));
    Model::open(out).expect("a checkpoint")
}

fn converted(model: &Model, out: &Path, options: SaveOptions) -> Model {
    checkpoint::convert_model(model, None, &options, out, &mut ())
        .unwrap_or_else(|error| panic!("{}: {error}", out.display()));
    Model::open(out).expect("a checkpoint")
}

/// The single GGUF file of a folder.
fn gguf(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.gguf")).expect("a file")
}

/// Both have the same weights in the same blocks, and the same other values.
#[track_caller]
fn assert_same(what: &str, before: &Model, after: &Model) {
    let [own, other] = [before, after].map(|model| Layout::detect(model).expect("quantised"));
    let (parts, others) = (own.find(before), other.find(after));
    assert!(!parts.is_empty(), "{what}");
    let general = |name: &str| {
        let name = name.replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.");
        name.replace(".w3.", ".up_proj.")
    };
    for part in &parts {
        let counterpart = others.iter().find(|x| general(&x.name) == general(&part.name));
        let counterpart = counterpart.unwrap_or_else(|| panic!("{what}: no {}", part.name));
        let [x, y] = [(before, own, part), (after, other, counterpart)]
            .map(|(model, layout, part)| load(model, layout, part).expect("valid"));
        assert!(x.blocks.codes() == y.blocks.codes(), "{what}: codes of {}", part.name);
        assert!(x.blocks.scales() == y.blocks.scales(), "{what}: scales of {}", part.name);
        let scale = |weight: &checkpoint::Weight| weight.global.map(|scale| scale.multiplier());
        let close = match (scale(&x), scale(&y)) {
            (Some(x), Some(y)) => (x / y - 1.0).abs() < 1e-6,
            (x, y) => x == y,
        };
        assert!(close, "{what}: tensor scale of {}", part.name);
    }
    assert_eq!(parts.len(), others.len(), "{what}");
    let pieces: Vec<&str> = parts.iter().flat_map(checkpoint::Parts::tensors).collect();
    let mut compared = 0;
    for name in before.names().filter(|name| !pieces.contains(name)) {
        let values = |model: &Model| model.file(name).expect("there").floats(name).expect("floats");
        let (own, other) = (values(before), values(after));
        assert_eq!(own.shape, other.shape, "{what}: {name}");
        // ggml has Gemma's norms plus one, rounded to F32.
        let slack = if what.starts_with("gemma") { f32::EPSILON } else { 0.0 };
        let near = own.values.iter().zip(&other.values).all(|(x, y)| (x - y).abs() <= slack);
        assert!(near, "{what}: {name}");
        compared += 1;
    }
    assert!(compared > 4, "{what}");
}

#[test]
fn every_architecture_goes_to_ggml_and_comes_back() {
    for kind in KINDS {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let folder = Folder::new("gguf-every_architecture_goes_to_ggml_and_comes_back");
            let source = folder.file("source");
            write_model(&source, kind);
            let layout = Layout::CompressedTensors;
            let first = quantized(&source, &folder.file("first"), layout, format);
            let out = folder.file("gguf");
            // llama.cpp applies no tensor-level scale to gpt-oss's experts and Gemma's feed-forward layers.
            if format == Format::Nvfp4 && (kind == "gpt_oss" || kind.starts_with("gemma")) {
                let options = SaveOptions::new(Layout::Gguf);
                let error = checkpoint::convert_model(&first, None, &options, &out, &mut ());
                let error = error.expect_err("refused").to_string();
                assert!(error.contains("does not apply tensor-level scales"), "{kind}: {error}");
                assert!(!out.exists());
                continue;
            }
            let there = converted(&first, &out, SaveOptions::new(Layout::Gguf));
            assert_eq!(Layout::detect(&there), Some(Layout::Gguf));
            assert_same(kind, &first, &there);
            // Nothing but the file: its metadata suffice.
            let alone = folder.file("alone.gguf");
            std::fs::copy(out.join("model.gguf"), &alone).expect("copied");
            let alone = Model::open(&alone).expect("a model");
            assert_eq!(alone.config().expect("stated")["model_type"], kind);
            assert_same(kind, &first, &alone);
            let back = converted(&alone, &folder.file("back"), SaveOptions::new(layout));
            assert_same(kind, &first, &back);
            let original = Model::open(&source).expect("a model");
            let report = verify(&there, Some(&original), &mut ()).expect("readable");
            assert!(report.verified, "{kind}: {report}");
        }
    }
}

/// The tensors that ggml's own table of names gives for them.
#[test]
fn tensors_have_the_names_and_types_of_ggml() {
    let folder = Folder::new("gguf-tensors_have_the_names_and_types_of_ggml");
    let source = folder.file("source");
    write_model(&source, "qwen3_moe");
    let out = folder.file("out");
    quantized(&source, &out, Layout::Gguf, Format::Nvfp4);
    let bytes = gguf(&out);
    let file = Gguf::parse(&bytes).expect("valid");
    let kind = |name: &str| {
        let tensor = file.tensor(name).unwrap_or_else(|| panic!("no {name}"));
        (tensor.kind, tensor.shape.clone())
    };
    let (hidden, inner, experts) = (HIDDEN as u64, INNER as u64, EXPERTS as u64);
    for (name, expected) in [
        ("token_embd.weight", (Kind::F32, vec![VOCABULARY as u64, hidden])),
        ("output.weight", (Kind::F32, vec![VOCABULARY as u64, hidden])),
        ("output_norm.weight", (Kind::F32, vec![hidden])),
        ("blk.1.attn_q.weight", (Kind::Nvfp4, vec![(HEADS * HEAD) as u64, hidden])),
        ("blk.1.attn_q.scale", (Kind::F32, vec![1])),
        ("blk.1.attn_k_norm.weight", (Kind::F32, vec![HEAD as u64])),
        ("blk.0.ffn_norm.weight", (Kind::F32, vec![hidden])),
        ("blk.0.ffn_gate_inp.weight", (Kind::F32, vec![experts, hidden])),
        ("blk.0.ffn_gate_exps.weight", (Kind::Nvfp4, vec![experts, inner, hidden])),
        ("blk.0.ffn_down_exps.weight", (Kind::Nvfp4, vec![experts, hidden, inner])),
        ("blk.0.ffn_down_exps.scale", (Kind::F32, vec![experts])),
    ] {
        assert_eq!(kind(name), expected, "{name}");
    }
    let stated = |key: &str| file.metadata.get(key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(stated("general.architecture").as_str(), Some("qwen3moe"));
    for (key, value) in [
        ("general.file_type", 39),
        ("qwen3moe.block_count", 2),
        ("qwen3moe.attention.head_count_kv", KV_HEADS as u64),
        ("qwen3moe.expert_count", experts),
        ("qwen3moe.attention.key_length", HEAD as u64),
    ] {
        assert_eq!(stated(key).as_u64(), Some(value), "{key}");
    }
}

/// ggml's encoder makes 448 of every scale from 248 up, so that none is written by `quantize`.
#[test]
fn no_quantised_scale_is_one_that_ggml_encodes_otherwise() {
    for recipe in
        ["modelopt", "torchao", "compressed-tensors", "te", "te-4over6-448-mse", "modelopt-4over6"]
    {
        let folder = Folder::new("gguf-no_quantised_scale_is_one_that_ggml_encodes_otherwise");
        let source = folder.file("source");
        write_model(&source, "llama");
        let recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
        let options = ModelOptions::new(recipe, Layout::Gguf);
        let model = Model::open(&source).expect("a model");
        let out = folder.file("out");
        checkpoint::quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
        let bytes = gguf(&out);
        let file = Gguf::parse(&bytes).expect("valid");
        let mut largest = 0;
        for tensor in file.tensors.iter().filter(|tensor| tensor.kind == Kind::Nvfp4) {
            let blocks =
                nvfp4_gguf::Blocks::of(&tensor.name, tensor.kind, tensor.data).expect("valid");
            largest = largest.max(*blocks.scales.iter().max().expect("some"));
        }
        // At most 240, and large enough to use the normal range of e4m3.
        assert!((0x60..=0x77).contains(&largest), "{}: {largest:#x}", recipe.name());
        let out = Model::open(&out).expect("a checkpoint");
        let report = verify(&out, Some(&model), &mut ()).expect("readable");
        assert!(report.verified, "{}: {report}", recipe.name());
        assert!(report.least_sqnr_db.expect("compared") > 18.0, "{report}");
    }
}

/// The search for block scales lessens the error of every recipe, also in other layouts.
#[test]
fn searched_scales_have_less_error() {
    let folder = Folder::new("gguf-searched_scales_have_less_error");
    let source = folder.file("source");
    write_model(&source, "llama");
    let model = Model::open(&source).expect("a model");
    for layout in [Layout::Gguf, Layout::CompressedTensors] {
        for recipe in ["modelopt", "torchao", "compressed-tensors", "te"] {
            let recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
            let [searched, plain] = [true, false].map(|search| {
                let out = folder.file(&format!("{layout}-{}-{search}", recipe.name()));
                let options = ModelOptions::new(recipe, layout).search(search);
                let report = checkpoint::quantize_model(&model, &options, &out, None, &mut ());
                let report = report.expect("quantised");
                assert_eq!(report.searched.is_some_and(|count| count > 100), search, "{report}");
                let out = Model::open(&out).expect("a checkpoint");
                let report = verify(&out, Some(&model), &mut ()).expect("readable");
                assert!(report.verified, "{report}");
                report.least_sqnr_db.expect("compared")
            });
            assert!(searched > plain + 0.5, "{layout} {}: {searched} {plain}", recipe.name());
        }
    }
    let adaptive = recipe_by_name(Format::Nvfp4, "modelopt-4over6").expect("known");
    let options = ModelOptions::new(adaptive, Layout::Gguf);
    assert!(!options.search);
    let out = folder.file("refused");
    let refused = checkpoint::quantize_model(&model, &options.search(true), &out, None, &mut ());
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("search for scales"), "{error}");
    assert!(!out.exists());
}

#[test]
fn large_models_are_in_several_files() {
    let folder = Folder::new("gguf-large_models_are_in_several_files");
    let source = folder.file("source");
    write_model(&source, "mixtral");
    let first = quantized(&source, &folder.file("first"), Layout::ModelOpt, Format::Nvfp4);
    let out = folder.file("out");
    let options = SaveOptions::new(Layout::Gguf).shard_bytes(20_000);
    let there = converted(&first, &out, options);
    assert!(there.shards().len() > 2, "{}", there.shards().len());
    assert_same("split", &first, &there);
    std::fs::remove_file(out.join("config.json")).expect("removed");
    // Any of the files names the others; only the first has the metadata.
    let count = there.shards().len();
    let one = out.join(format!("model-00002-of-{count:05}.gguf"));
    assert_same("split", &first, &Model::open(&one).expect("a model"));
    let bytes = std::fs::read(&one).expect("a file");
    let file = Gguf::parse(&bytes).expect("valid");
    assert_eq!(file.metadata.get("split.no").and_then(Value::as_u64), Some(1));
    assert_eq!(file.metadata.get("general.architecture"), None);
    std::fs::remove_file(&one).expect("removed");
    let error = Model::open(&out).expect_err("incomplete").to_string();
    assert!(error.contains("one of") && error.contains("files"), "{error}");
}

#[test]
fn floats_come_back() {
    let folder = Folder::new("gguf-floats_come_back");
    let source = folder.file("source");
    write_model(&source, "llama");
    let recipe = recipe_by_name(Format::Nvfp4, "modelopt").expect("known");
    let options = ModelOptions::new(recipe, Layout::Gguf).search(false);
    let (model, there) = (Model::open(&source).expect("a model"), folder.file("gguf"));
    checkpoint::quantize_model(&model, &options, &there, None, &mut ()).expect("quantised");
    let there = Model::open(there).expect("a checkpoint");
    // Neither joins weights.
    let same = quantized(&source, &folder.file("same"), Layout::TorchAo, Format::Nvfp4);
    let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
    let [own, other] = [(&there, "own"), (&same, "other")].map(|(model, name)| {
        let out = folder.file(name);
        checkpoint::dequantize_model(model, &options, &out, &mut ()).expect("dequantised");
        Model::open(out).expect("floats")
    });
    assert_eq!(own.names().collect::<Vec<_>>(), other.names().collect::<Vec<_>>());
    for name in own.names() {
        let values =
            |model: &Model| model.file(name).expect("there").floats(name).expect("floats").values;
        let (own, other) = (values(&own), values(&other));
        let largest = other.iter().fold(0f32, |x, y| x.max(y.abs()));
        // The tensor-level scales differ by a factor of two, and small blocks by their scales' rounding.
        let near = own.iter().zip(&other).all(|(x, y)| (x - y).abs() <= largest * 2f32.powi(-9));
        assert!(near, "{name}");
    }
}

/// A `tokenizer.model` of SentencePiece goes into the metadata, and with them into another file; one that is none
/// leaves the file without a tokenizer, and says so.
#[test]
fn tokenizers_of_sentencepiece_are_carried() {
    let folder = Folder::new("gguf-tokenizers_of_sentencepiece_are_carried");
    let source = folder.file("source");
    write_model(&source, "mixtral");
    let field = |number: u8, bytes: &[u8]| {
        [&[number << 3 | 2, u8::try_from(bytes.len()).expect("short")], bytes].concat()
    };
    let piece = |text: &str, score: f32, kind: u8| {
        let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
        field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat())
    };
    let pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x41>", 0.0, 6),
        ("\u{2581}a", -1.5, 1),
    ];
    let mut message: Vec<u8> =
        pieces.iter().flat_map(|&(text, score, kind)| piece(text, score, kind)).collect();
    message.extend(field(2, &[3 << 3, 2]));
    std::fs::write(source.join("tokenizer.model"), &message).expect("written");
    let there = quantized(&source, &folder.file("there"), Layout::Gguf, Format::Nvfp4);
    let copy = converted(&there, &folder.file("copy"), SaveOptions::new(Layout::Gguf));
    for model in [&there, &copy] {
        let bytes = gguf(model.path());
        let file = Gguf::parse(&bytes).expect("a file");
        let stated = |key: &str| &file.metadata[&format!("tokenizer.ggml.{key}")];
        let list = |key: &str| match stated(key) {
            Value::Array(_, values) => values.clone(),
            other => panic!("{key} is {other:?}"),
        };
        assert_eq!(stated("model"), &Value::String("llama".into()));
        let tokens = list("tokens");
        assert_eq!(tokens.len(), VOCABULARY);
        for (at, (text, score, kind)) in pieces.into_iter().enumerate() {
            assert_eq!(tokens[at], Value::String(text.into()));
            assert_eq!(list("scores")[at], Value::Scalar(Scalar::F32(score)), "{text}");
            assert_eq!(list("token_type")[at], Value::Scalar(Scalar::I32(kind.into())), "{text}");
        }
        // The model has more rows than the tokenizer pieces.
        assert_eq!(tokens[5], Value::String("[PAD5]".into()));
        assert_eq!(list("token_type")[5], Value::Scalar(Scalar::I32(5)));
        for (key, id) in [("unknown", 0), ("bos", 1), ("eos", 2)] {
            assert_eq!(stated(&format!("{key}_token_id")).as_u64(), Some(id), "{key}");
        }
        for (key, value) in
            [("add_bos_token", true), ("add_eos_token", false), ("add_space_prefix", true)]
        {
            assert_eq!(stated(key), &Value::Scalar(Scalar::Bool(value)), "{key}");
        }
    }
    std::fs::write(source.join("tokenizer.model"), b"no message").expect("written");
    let options =
        ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt").expect("known"), Layout::Gguf);
    let (model, out) = (Model::open(&source).expect("a model"), folder.file("without"));
    let report =
        checkpoint::quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
    assert!(report.saved.notes.iter().any(|note| note.contains("no tokenizer")), "{report}");
}

/// Llama 3's scaling is a tensor of factors there, YaRN keys of the metadata; a scaling without a form is refused.
#[test]
fn scaled_positions_are_carried() {
    let folder = Folder::new("gguf-scaled_positions_are_carried");
    let source = folder.file("source");
    let with = |kind: &str, scaling: serde_json::Value| {
        let _ = std::fs::remove_dir_all(&source);
        write_model(&source, kind);
        let path = source.join("config.json");
        let mut config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
        config["rope_scaling"] = scaling;
        std::fs::write(&path, config.to_string()).expect("written");
    };
    let llama3 = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    with("llama", llama3.clone());
    let model = quantized(&source, &folder.file("llama3"), Layout::Gguf, Format::Nvfp4);
    let bytes = gguf(model.path());
    let file = Gguf::parse(&bytes).expect("a file");
    let factors = file.tensors.iter().find(|tensor| tensor.name == "rope_freqs.weight");
    assert_eq!(factors.expect("there").shape, [HEAD as u64 / 2]);
    assert_eq!(file.metadata["tokenizer.ggml.model"], Value::String("no_vocab".into()));
    assert!(!model.contains("rope_freqs.weight"));
    let own = converted(&model, &folder.file("back"), SaveOptions::new(Layout::TorchAo));
    assert_eq!(own.config().expect("there")["rope_scaling"], llama3);
    assert!(own.names().all(|name| !name.contains("rope")));
    // A copy has them again.
    let copy = converted(&model, &folder.file("copy"), SaveOptions::new(Layout::Gguf));
    let bytes = gguf(copy.path());
    let copied = Gguf::parse(&bytes).expect("a file");
    let copied = copied.tensors.iter().find(|tensor| tensor.name == "rope_freqs.weight");
    assert!(copied.expect("there").data == factors.expect("there").data);

    let yarn = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
    });
    with("gpt_oss", yarn.clone());
    let model = quantized(&source, &folder.file("yarn"), Layout::Gguf, Format::Mxfp4);
    let bytes = gguf(model.path());
    let file = Gguf::parse(&bytes).expect("a file");
    assert_eq!(file.metadata["gpt-oss.rope.scaling.type"], Value::String("yarn".into()));
    assert_eq!(model.config().expect("there")["rope_scaling"], yarn);

    with("llama", json!({"type": "dynamic", "factor": 2.0}));
    let out = folder.file("refused");
    let options =
        ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt").expect("known"), Layout::Gguf);
    let source = Model::open(&source).expect("a model");
    let error = checkpoint::quantize_model(&source, &options, &out, None, &mut ());
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("scaling of rotary positions, dynamic"), "{error}");
    assert!(!out.exists());
}

#[test]
fn what_ggml_has_no_name_for_is_refused() {
    let folder = Folder::new("gguf-what_ggml_has_no_name_for_is_refused");
    let source = folder.file("source");
    write_model(&source, "llama");
    let convert = |config: &str| {
        let name = format!("q{}", config.len());
        let first = quantized(&source, &folder.file(&name), Layout::ModelOpt, Format::Nvfp4);
        std::fs::write(first.path().join("config.json"), config).expect("written");
        let first = Model::open(first.path()).expect("a model");
        let (options, out) = (SaveOptions::new(Layout::Gguf), folder.file("out"));
        let error = checkpoint::convert_model(&first, None, &options, &out, &mut ());
        assert!(!out.exists());
        error.expect_err("refused").to_string()
    };
    let error = convert(r#"{"model_type": "rwkv7"}"#);
    assert!(error.contains("none of them"), "{error}");
    let error = convert(r#"{"model_type": "llama", "num_attention_heads": 5}"#);
    assert!(
        error.contains("num_key_value_heads") || error.contains("num_attention_heads"),
        "{error}"
    );
}

/// Damage of a file, each with a word of the error.
#[test]
fn damaged_files_are_refused_by_name() {
    let folder = Folder::new("gguf-damaged_files_are_refused_by_name");
    let source = folder.file("source");
    write_model(&source, "qwen3_moe");
    let out = folder.file("out");
    quantized(&source, &out, Layout::Gguf, Format::Nvfp4);
    let sound = gguf(&out);
    let at = |text: &str| {
        let found = sound.windows(text.len()).position(|window| window == text.as_bytes());
        found.unwrap_or_else(|| panic!("no {text}"))
    };
    let put = |at: usize, bytes: &[u8]| {
        let mut damaged = sound.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let name = "blk.0.attn_q.weight";
    let after = at(name) + name.len();
    let [dimensions, first, kind, offset] = [after, after + 4, after + 20, after + 24];
    let key = "general.architecture";
    let value = at(key) + key.len();
    let huge = u64::MAX.to_le_bytes();
    let alignment = [1u8, 0, 0, 0, 0, 0, 0, 0];
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("3 bytes", sound[..3].to_vec()),
        ("7 bytes", sound[..7].to_vec()),
        ("needs", sound[..15].to_vec()),
        ("needs", sound[..23].to_vec()),
        ("needs", sound[..value].to_vec()),
        ("needs", sound[..value + 6].to_vec()),
        ("needs", sound[..after + 2].to_vec()),
        ("needs", sound[..kind].to_vec()),
        ("its data", sound[..sound.len() - 64].to_vec()),
        ("its data", sound[..sound.len() / 2].to_vec()),
        ("version", put(4, &[1, 0, 0, 0])),
        ("version", put(4, &[4, 0, 0, 0])),
        ("version", put(4, &[0, 0, 0, 3])),
        ("needs", put(8, &huge)),
        ("needs", put(16, &huge)),
        ("bytes at byte", put(at(key) - 8, &huge)),
        ("type of a value", put(value, &[13, 0, 0, 0])),
        ("type of a value", put(value, &[255, 255, 255, 255])),
        ("type of a value", put(value, &[9, 0, 0, 0, 13, 0, 0, 0])),
        ("needs", put(value + 4, &huge)),
        ("number of dimensions", put(dimensions, &[5, 0, 0, 0])),
        ("number of dimensions", put(dimensions, &[255, 255, 255, 255])),
        ("rows of whole blocks", put(first, &alignment)),
        ("rows of whole blocks", put(first, &huge)),
        ("its data", put(first + 8, &[0, 0, 0, 1, 0, 0, 0, 0])),
        ("rows of whole blocks", put(first + 8, &huge)),
        ("its type", put(kind, &[41, 0, 0, 0])),
        ("its type", put(kind, &[4, 0, 0, 0])),
        ("Q4_K (12)", put(kind, &[12, 0, 0, 0])),
        ("its offset", put(offset, &[1, 0, 0, 0, 0, 0, 0, 0])),
        ("its data", put(offset, &[224, 255, 255, 255, 255, 255, 255, 255])),
        ("a tensor", put(at("blk.1.attn_q.weight"), name.as_bytes())),
    ];
    assert!(cases.len() >= 30);
    let path = folder.file("damaged.gguf");
    for (word, bytes) in &cases {
        std::fs::write(&path, bytes).expect("written");
        match Model::open(&path) {
            Err(CheckpointError::Malformed { reason, .. }) => {
                assert!(reason.contains(word), "{word}: {reason}");
                assert!(!reason.contains('\n'), "{reason}");
            }
            other => panic!("{word}: {other:?}"),
        }
    }
    // A scale that ggml reads as 0 is found when the weight is read.
    let file = Gguf::parse(&sound).expect("valid");
    let data = file.tensor(name).expect("there").data.as_ptr().addr() - sound.as_ptr().addr();
    for scale in [0x7f, 0xb8] {
        std::fs::write(&path, put(data + 1, &[scale])).expect("written");
        let model = Model::open(&path).expect("a model");
        let report = verify(&model, None, &mut ()).expect("readable");
        assert!(!report.verified, "{report}");
        assert!(report.to_string().contains("index 1"), "{report}");
        let (options, target) = (SaveOptions::new(Layout::ModelOpt), folder.file("target"));
        checkpoint::convert_model(&model, None, &options, &target, &mut ()).expect_err("refused");
        assert!(!target.exists());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any byte of the header may be any other: the file is read or refused.
    #[test]
    fn changed_bytes_never_panic(at in 0..3000usize, value in any::<u8>()) {
        let folder = Folder::new("gguf-changed_bytes_never_panic");
        let path = folder.file("x.gguf");
        let mut bytes = include_bytes!("../../gguf/tests/data/golden.gguf").to_vec();
        bytes[at] = value;
        std::fs::write(&path, bytes).expect("written");
        if let Ok(model) = Model::open(&path) {
            let _ = checkpoint::inspect(&model).expect("listed").to_string();
            let _ = verify(&model, None, &mut ());
        }
    }
}

/// A file that the package gguf wrote: its weights have the values of its decoder, Q8_0 too.
#[test]
fn values_are_those_of_the_package_gguf() {
    let folder = Folder::new("gguf-values_are_those_of_the_package_gguf");
    let path = folder.file("golden.gguf");
    std::fs::write(&path, include_bytes!("../../gguf/tests/data/golden.gguf")).expect("written");
    let model = Model::open(&path).expect("a model");
    let out = folder.file("out");
    let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
    checkpoint::dequantize_model(&model, &options, &out, &mut ()).expect("dequantised");
    let out = Model::open(&out).expect("floats");
    let floats = |name: &str| out.file(name).expect("there").floats(name).expect("floats").values;
    for name in ["mxfp4", "q8_0", "f16", "bf16"] {
        assert_eq!(
            floats(&format!("{name}.weight")),
            floats(&format!("{name}.weight.values")),
            "{name}"
        );
    }
    // Beside it is a tensor-level scale.
    let scaled: Vec<f32> = floats("nvfp4.weight.values").iter().map(|value| value * 0.25).collect();
    assert_eq!(floats("nvfp4.weight"), scaled);
}
