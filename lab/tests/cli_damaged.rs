//! Damaged files of GGUF and MLX: one line that names the damage, exit code 2, nothing left behind.

use std::path::Path;
use std::process::Command;

use crate::support::*;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{self as checkpoint, Layout, Model, ModelOptions, NewTensor};
use serde_json::json;

/// Runs a command that writes; it must fail with one line, which it gives, and leave `folder` as it was.
fn refused(folder: &Folder, args: &[&str]) -> String {
    let before = folder.names();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    let output = command.args(args).env_remove("NVFP4_KERNELS_DIR").output().expect("it starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
    assert_eq!(folder.names(), before, "{args:?}: {stderr}");
    stderr
}

/// Both commands that write refuse `input` with `word` in their line.
fn both_refuse(folder: &Folder, input: &str, word: &str) {
    let out = folder.file("out").display().to_string();
    for command in
        [&["convert", input, "--layout", "compressed-tensors"][..], &["dequantize", input]]
    {
        let line = refused(folder, &[command, &["--out", &out]].concat());
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// A model of one layer for ggml, quantised in a layout.
fn small(folder: &Folder, layout: Layout) {
    let source = folder.file("source");
    std::fs::create_dir_all(&source).expect("a folder");
    let layer = "model.layers.0";
    let mut tensors: Vec<(String, NewTensor)> = vec![
        ("model.embed_tokens.weight".into(), random(&[10, 64], 1)),
        ("model.norm.weight".into(), random(&[64], 2)),
        ("lm_head.weight".into(), random(&[10, 64], 3)),
    ];
    for (at, name) in ["q_proj", "k_proj", "v_proj", "o_proj"].into_iter().enumerate() {
        let name = format!("{layer}.self_attn.{name}.weight");
        tensors.push((name, random(&[64, 64], 4 + at as u64)));
    }
    for (name, shape) in
        [("gate_proj", [128, 64]), ("up_proj", [128, 64]), ("down_proj", [64, 128])]
    {
        tensors.push((format!("{layer}.mlp.{name}.weight"), random(&shape, 9)));
    }
    for name in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((format!("{layer}.{name}.weight"), random(&[64], 10)));
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&source.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128, "vocab_size": 10,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
    });
    std::fs::write(source.join("config.json"), config.to_string()).expect("written");
    let recipe = recipe_by_name(Format::Nvfp4, "torchao").expect("known");
    let model = Model::open(&source).expect("a model");
    let options = ModelOptions::new(recipe, layout);
    checkpoint::quantize_model(&model, &options, &folder.file("sound"), None, &mut ())
        .expect("quantised");
}

#[test]
fn damaged_gguf_files_are_refused_in_a_line() {
    let folder = Folder::new("cli-damaged-gguf");
    small(&folder, Layout::Gguf);
    let sound = std::fs::read(folder.file("sound/model.gguf")).expect("a file");
    let at = |text: &str| {
        let found = sound.windows(text.len()).position(|window| window == text.as_bytes());
        found.unwrap_or_else(|| panic!("no {text}"))
    };
    let put = |at: usize, bytes: &[u8]| {
        let mut damaged = sound.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let without = |range: std::ops::Range<usize>| {
        let mut damaged = sound.clone();
        damaged.drain(range);
        damaged
    };
    let name = "blk.0.attn_q.weight";
    let after = at(name) + name.len();
    // Rows and columns follow the number of dimensions, columns first.
    let [dimensions, columns, rows, kind, offset] =
        [after, after + 4, after + 12, after + 20, after + 24];
    let key = "general.architecture";
    let value = at(key) + key.len();
    let heads = "llama.attention.head_count";
    let heads = at(heads) + heads.len() + 4;
    let number = |x: u64| x.to_le_bytes();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("0 bytes", Vec::new()),
        ("4 bytes", sound[..4].to_vec()),
        ("needs", sound[..8].to_vec()),
        ("needs", sound[..20].to_vec()),
        ("needs", sound[..value + 2].to_vec()),
        ("needs", sound[..after].to_vec()),
        ("needs", sound[..rows + 4].to_vec()),
        ("its data", sound[..sound.len() - 32].to_vec()),
        ("its data", sound[..sound.len() / 2].to_vec()),
        ("does not begin with GGUF", put(0, b"GGML")),
        ("version", put(4, &[1, 0, 0, 0])),
        ("version", put(4, &[9, 0, 0, 0])),
        ("is not usable", put(8, &number(1000))),
        ("is not usable", put(16, &number(1000))),
        ("is not usable", put(16, &number(1))),
        ("needs", put(at(key) - 8, &number(1 << 40))),
        ("needs", put(value + 4, &number(1 << 40))),
        ("type of a value", put(value, &[13, 0, 0, 0])),
        ("number of dimensions", put(dimensions, &[5, 0, 0, 0])),
        ("whole blocks", put(columns, &number(65))),
        ("its data", put(rows, &number(1 << 20))),
        ("whole blocks", put(columns, &number(1 << 63 | 64))),
        ("no 0", put(rows, &number(0))),
        ("its type", put(kind, &[99, 0, 0, 0])),
        ("its offset", put(offset, &number(7))),
        ("its data", put(offset, &number(1 << 40))),
        ("a tensor", put(at("blk.0.attn_k.weight"), name.as_bytes())),
        ("head_count", put(heads, &[3, 0, 0, 0])),
        ("is not usable", without(24..40)),
        ("is not usable", without(value..value + 4)),
        ("is not usable", without(kind..kind + 4)),
    ];
    let path = folder.file("damaged.gguf");
    let input = path.display().to_string();
    assert!(cases.len() >= 30);
    for (word, bytes) in cases {
        assert!(bytes != sound, "{word}");
        std::fs::write(&path, bytes).expect("written");
        both_refuse(&folder, &input, word);
    }
    // A scale that ggml reads as another number is found when the weight is read.
    let file = Model::open(folder.file("sound")).expect("sound");
    let first = file.shards()[0].entries();
    let weight = first.iter().find(|entry| entry.name.ends_with("q_proj.weight")).expect("there");
    std::fs::write(&path, put(weight.offset as usize, &[0x7f])).expect("written");
    both_refuse(&folder, &input, "index 0");
}

/// Replaces the only `from` of a safetensors header.
fn header(sound: &[u8], from: &str, to: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(sound[..8].try_into().expect("8 bytes")) as usize;
    let text = std::str::from_utf8(&sound[8..8 + length]).expect("UTF-8");
    assert!(text.contains(from), "no {from} in {text}");
    let text = text.replacen(from, to, 1);
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &sound[8 + length..]].concat()
}

#[test]
fn damaged_mlx_files_are_refused_in_a_line() {
    let folder = Folder::new("cli-damaged-mlx");
    small(&folder, Layout::Mlx);
    let (file, config) = ("model.safetensors", "config.json");
    let sound = std::fs::read(folder.file("sound").join(file)).expect("a file");
    let stated = std::fs::read_to_string(folder.file("sound").join(config)).expect("a file");
    let put = |at: usize, bytes: &[u8]| {
        let mut damaged = sound.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let model = Model::open(folder.file("sound")).expect("sound");
    let entries = model.shards()[0].entries();
    let offset = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name.ends_with(name)).expect("there");
        entry.offset as usize
    };
    let scales = offset("up_proj.scales");
    let with = |from: &str, to: &str| header(&sound, from, to);
    let (up, up_scales) = ("mlp.up_proj.weight\":{", "mlp.up_proj.scales\":{");
    // The keys of a tensor in the order in which the file has them.
    let of = |tensor: &str, from: &str, to: &str| {
        let length = u64::from_le_bytes(sound[..8].try_into().expect("8 bytes")) as usize;
        let text = std::str::from_utf8(&sound[8..8 + length]).expect("UTF-8");
        let start = text.find(tensor).expect("there");
        let end = start + text[start..].find('}').expect("closed");
        let entry = &text[start..end];
        assert!(entry.contains(from), "no {from} in {entry}");
        header(&sound, entry, &entry.replacen(from, to, 1))
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("0 bytes", Vec::new()),
        ("3 bytes", sound[..3].to_vec()),
        ("header", sound[..8].to_vec()),
        ("header", sound[..60].to_vec()),
        ("header", sound[..sound.len() / 2].to_vec()),
        ("header", sound[..sound.len() - 1].to_vec()),
        ("header", [&sound[..], &[0; 16]].concat()),
        ("header", put(0, &(1u64 << 40).to_le_bytes())),
        ("is not usable", put(0, &0u64.to_le_bytes())),
        ("is not usable", put(0, &64u64.to_le_bytes())),
        ("is not usable", put(8, b" ")),
        ("is not usable", of(up, "\"U32\"", "\"U33\"")),
        ("is not usable", of(up, "\"U32\"", "\"U8\"")),
        ("is not usable", of(up, "[128,8]", "[128,9]")),
        ("is not usable", of(up, "[128,8]", "[-128,8]")),
        ("is not usable", of(up, "[128,8]", "\"128\"")),
        ("is not usable", of(up, "\"shape\"", "\"shapes\"")),
        ("is not usable", of(up_scales, "\"dtype\"", "\"type\"")),
        ("has type F32", of(up, "\"U32\"", "\"F32\"")),
        ("has type I8", of(up_scales, "\"U8\"", "\"I8\"")),
        ("required [64, 8]", of(up, "[128,8]", "[64,16]")),
        ("has shape [64, 8]", of(up_scales, "[128,4]", "[64,8]")),
        ("has shape [1024]", of(up, "[128,8]", "[1024]")),
        ("has shape [512]", of(up_scales, "[128,4]", "[512]")),
        ("has no tensor", with(up, "mlp.up_proj.weights\":{")),
        ("has no tensor", with(up_scales, "mlp.up_proj.scale\":{")),
        ("0x7f at index 0", put(scales, &[0x7f])),
        ("0xff at index 9", put(scales + 9, &[0xff])),
        ("0x80 at index 511", put(scales + 511, &[0x80])),
    ];
    let damaged = folder.file("damaged");
    std::fs::create_dir_all(&damaged).expect("a folder");
    let input = damaged.display().to_string();
    let write = |file: &str, bytes: &[u8]| {
        std::fs::write(Path::new(&damaged).join(file), bytes).expect("written");
    };
    write(config, stated.as_bytes());
    for (word, bytes) in &cases {
        write(file, bytes);
        both_refuse(&folder, &input, word);
    }
    write(file, &sound);
    let configurations = [
        ("no valid JSON", String::new()),
        ("no valid JSON", stated[..stated.len() / 2].to_owned()),
        ("no valid JSON", stated.replacen(':', " ", 1)),
        ("has shape", stated.replace("nvfp4", "mxfp4")),
        ("MLX's", stated.replace("nvfp4", "int3")),
        ("MLX's", stated.replace("nvfp4", "mxfp8")),
    ];
    for (word, text) in &configurations {
        assert_ne!(*text, stated);
        write(config, text.as_bytes());
        both_refuse(&folder, &input, word);
    }
    assert!(cases.len() + configurations.len() >= 30);
}
