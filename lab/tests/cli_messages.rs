//! The program's messages about checkpoints: names that would control a terminal, causes, reasons.

use std::process::{Command, Output};

use crate::support::*;
use nvfp4_checkpoint::{self as checkpoint, NewTensor};
use safetensors::Dtype;

fn nvfp4(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env_remove("NVFP4_KERNELS_DIR").output().expect("the program starts")
}

/// Returns the printed text, messages included; the exit code must be `code`.
fn printed(args: &[&str], code: i32) -> String {
    let output = nvfp4(args);
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text:?}");
    text.concat()
}

#[test]
fn control_characters_of_names_are_escaped() {
    let folder = Folder::new("messages-control");
    let path = folder.file("x.safetensors");
    let name = "m.\u{1b}[31mred\nfake line.weight";
    let tensors = [(name, random(&[8, 32], 1)), ("m.\u{7}.weight", random(&[8, 40], 2))];
    checkpoint::write(&path, &tensors, &[]).expect("written");
    let path = path.display().to_string();
    let out = folder.file("out").display().to_string();
    for args in [
        vec!["inspect", &path],
        vec!["quantize", &path, "--layout", "modelopt", "--format", "mxfp4", "--out", &out],
        vec!["inspect", &out],
        vec!["verify", &out, "--against", &path],
    ] {
        let text = printed(&args, 0);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{args:?}: {text:?}");
        assert!(!text.contains("\nfake line"), "{args:?}: {text:?}");
    }
    let tensors = [(name, tensor(Dtype::F32, &[1, 32], f32s(&[f32::NAN; 32])))];
    checkpoint::write(path.as_ref(), &tensors, &[]).expect("written");
    let text = printed(&["quantize", &path, "--layout", "torchao", "--force", "--out", &out], 2);
    assert!(text.contains("NaN") && !text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn a_missing_shard_is_named_with_its_index() {
    let folder = Folder::new("messages-shard");
    let index = folder.file("model.safetensors.index.json");
    let map = r#"{"weight_map": {"a": "here.safetensors", "b": "gone.safetensors",
        "c": "gone.safetensors"}}"#;
    std::fs::write(&index, map).expect("written");
    let here: [(&str, NewTensor); 1] = [("a", random(&[4, 32], 1))];
    checkpoint::write(&folder.file("here.safetensors"), &here, &[]).expect("written");
    let text = printed(&["inspect", &folder.path().display().to_string()], 2);
    let expected = format!("gone.safetensors is not there; {} has `b`", index.display());
    assert!(text.contains(&expected) && text.contains("1 more tensors"), "{text}");
}

#[test]
fn the_systems_message_appears_once() {
    let folder = Folder::new("messages-once");
    let text = printed(&["inspect", &folder.file("none").display().to_string()], 2);
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
}

#[test]
fn it_says_why_nothing_is_quantised() {
    let folder = Folder::new("messages-nothing");
    let path = folder.file("x.safetensors");
    let tensors = [
        ("a.weight", random(&[8, 40], 1)),
        ("b.weight", random(&[8, 40], 2)),
        ("model.embed_tokens.weight", random(&[8, 64], 3)),
    ];
    checkpoint::write(&path, &tensors, &[]).expect("written");
    let out = folder.file("out").display().to_string();
    let path = path.display().to_string();
    let text = printed(&["quantize", &path, "--layout", "modelopt", "--out", &out], 2);
    let first = "2 left as they are: K = 40 is no multiple of 16 (such as a.weight)";
    let second =
        "1 left as they are: excluded by *embed*: an embedding (such as model.embed_tokens.weight)";
    assert!(text.contains(first) && text.contains(second), "{text}");
    assert!(text.find(first) < text.find(second), "{text}");
}

#[test]
fn help_states_the_error_of_reciprocals() {
    let text = printed(&["convert", "--help"], 0);
    assert!(text.contains("6e-8") && text.contains("--share-scales"), "{text}");
}
