//! The files beside a model that become metadata of GGUF, and files of calibration. The first byte chooses: a tokenizer
//! of SentencePiece, `tokenizer.json`, `tokenizer_config.json`, or the header of a file of calibration, which is
//! completed as in the target `loader`. The model is converted to GGUF, or quantised with inputs.

#![no_main]

mod common;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use common::{FOLDER, with_header};
use libfuzzer_sys::fuzz_target;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    Calibration, Layout, Model, ModelOptions, NewTensor, QuantizedInputs, SaveOptions, convert_model,
    quantize_model, write,
};
use nvfp4_gguf::{Gguf, Value};
use safetensors::Dtype;

const CONFIG: &str = r#"{
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "vocab_size": 10, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": true
}"#;
const PAIRS: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}]}"#;
/// Most bytes of an output: a vocabulary that is stated to be larger than its tokens is filled up.
const MOST: u64 = 64 << 20;

/// A Llama of one layer in floats.
static SOURCE: LazyLock<PathBuf> = LazyLock::new(|| {
    let float = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let data = (0..count).flat_map(|at| (at as f32).sin().to_le_bytes()).collect();
        NewTensor { dtype: Dtype::F32, shape: shape.to_vec(), data }
    };
    let folder = FOLDER.join("source");
    std::fs::create_dir_all(&folder).expect("a folder");
    let tensors = [
        ("model.embed_tokens.weight", float(&[10, 64])),
        ("model.norm.weight", float(&[64])),
        ("model.layers.0.self_attn.q_proj.weight", float(&[64, 64])),
        ("model.layers.0.self_attn.k_proj.weight", float(&[32, 64])),
        ("model.layers.0.self_attn.v_proj.weight", float(&[32, 64])),
        ("model.layers.0.self_attn.o_proj.weight", float(&[64, 64])),
        ("model.layers.0.input_layernorm.weight", float(&[64])),
        ("model.layers.0.post_attention_layernorm.weight", float(&[64])),
        ("model.layers.0.mlp.gate_proj.weight", float(&[64, 64])),
        ("model.layers.0.mlp.up_proj.weight", float(&[64, 64])),
        ("model.layers.0.mlp.down_proj.weight", float(&[64, 64])),
    ];
    write(&folder.join("model.safetensors"), &tensors, &[]).expect("written");
    std::fs::write(folder.join("config.json"), CONFIG).expect("room");
    folder
});

fn options() -> ModelOptions {
    ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt").expect("known"), Layout::ModelOpt)
}

/// The same in NVFP4.
static QUANTISED: LazyLock<PathBuf> = LazyLock::new(|| {
    let out = FOLDER.join("quantised");
    let model = Model::open(&*SOURCE).expect("a model");
    quantize_model(&model, &options(), &out, None, &mut ()).expect("quantised");
    out
});

/// The length of an array of metadata.
fn length(file: &Gguf<'_>, key: &str) -> Option<usize> {
    match file.metadata.get(&format!("tokenizer.ggml.{key}"))? {
        Value::Array(_, items) => Some(items.len()),
        other => panic!("{key} is {other:?}"),
    }
}

/// Converts the model with these files beside it. Tokens, their types and their scores are as many.
fn convert(files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        std::fs::write(QUANTISED.join(name), bytes).expect("room");
    }
    let out = FOLDER.join("out");
    let model = Model::open(&*QUANTISED).expect("a model");
    if convert_model(&model, None, &SaveOptions::new(Layout::Gguf), &out, &mut ()).is_ok() {
        check(&out.join("model.gguf"));
        std::fs::remove_dir_all(&out).expect("it was written");
    }
    for (name, _) in files {
        std::fs::remove_file(QUANTISED.join(name)).expect("it was written");
    }
}

fn check(path: &Path) {
    let bytes = std::fs::read(path).expect("it was written");
    assert!(bytes.len() as u64 <= MOST, "{} bytes", bytes.len());
    let file = Gguf::parse(&bytes).expect("it was written");
    let tokens = length(&file, "tokens");
    assert_eq!(length(&file, "token_type"), tokens);
    assert!(length(&file, "scores").is_none_or(|scores| Some(scores) == tokens));
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    match mode % 4 {
        0 => convert(&[("tokenizer.model", rest)]),
        1 => convert(&[("tokenizer.json", rest)]),
        2 => convert(&[("tokenizer.json", PAIRS.as_bytes()), ("tokenizer_config.json", rest)]),
        _ => {
            let path = FOLDER.join("calibration.safetensors");
            std::fs::write(&path, with_header(rest, mode / 4)).expect("room");
            let Ok(calibration) = Calibration::open(&path) else { return };
            let model = Model::open(&*SOURCE).expect("a model");
            let out = FOLDER.join("calibrated");
            let options = options().inputs(QuantizedInputs::Nvfp4(calibration));
            if quantize_model(&model, &options, &out, None, &mut ()).is_ok() {
                std::fs::remove_dir_all(&out).expect("it was written");
            }
        }
    }
});
