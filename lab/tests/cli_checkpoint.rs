//! The commands on checkpoints: exit codes, messages, JSON, nothing half-written.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::support::*;
use nvfp4::quantize::Format;
use nvfp4_checkpoint::Layout;
use serde_json::{Value, json};

fn nvfp4(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env_remove("NVFP4_KERNELS_DIR").output().expect("the program starts")
}

fn text(path: std::path::PathBuf) -> String {
    path.display().to_string()
}

/// Runs with `args` and gives what it printed; the exit code must be `code`.
fn run(args: &[&str], code: i32) -> String {
    let output = nvfp4(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    if code == 2 { stderr.into_owned() } else { stdout }
}

#[test]
fn a_model_goes_through_all_commands() {
    let folder = Folder::new("cli-commands");
    let source = text(folder.file("source.safetensors"));
    write_model(source.as_ref());
    let out = text(folder.file("out"));
    let quantize = ["quantize", &source, "--layout", "compressed-tensors", "--recipe", "te"];
    let report =
        run(&[&quantize[..], &["--exclude", "*down*", "--out", &out, "--json"]].concat(), 0);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["quantized"].as_array().expect("a list").len(), 2, "{report}");
    assert_eq!((&report["recipe"], &report["device"]), (&"te".into(), &"cpu".into()));
    let left = report["left"].as_array().expect("a list");
    let reason = |tensor: &str| {
        let found = left.iter().find(|left| left["tensor"] == tensor).expect("left");
        found["reason"].as_str().expect("a reason").to_owned()
    };
    assert_eq!(reason("model.layers.1.mlp.down.weight"), "excluded by *down*");
    assert_eq!(reason("model.embed_tokens.weight"), "excluded by *embed*: an embedding");
    assert_eq!(reason("model.layers.1.mlp.odd.weight"), "K = 40 is no multiple of 16");

    let report: Value = serde_json::from_str(&run(&["inspect", &out, "--json"], 0)).expect("JSON");
    assert_eq!(report["layout"], "compressed-tensors");
    assert_eq!(report["weights"].as_array().expect("a list").len(), 2);
    assert!(run(&["inspect", &source], 0).contains("model.steps"));

    let report = run(&["verify", &out, "--against", &source, "--json"], 0);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["verified"], true, "{report}");
    assert!(report["least_sqnr_db"].as_f64().expect("a number") > 15.0);

    let other = text(folder.file("other"));
    let printed = run(&["convert", &out, "--layout", "modelopt", "--out", &other], 0);
    assert!(printed.contains("2 weights from layout compressed-tensors to modelopt"), "{printed}");
    assert!(printed.contains("2 tensor-level scales are the reciprocal"), "{printed}");
    assert!(run(&["verify", &other, "--against", &source], 0).contains("ok: 2 weights"));

    rewrite(&folder.file("other/model.safetensors"), |tensors| {
        let scale = named(tensors, "model.layers.0.mlp.up.weight_scale_2");
        scale.data = f32s(&[20_000.0]);
    });
    let printed = run(&["verify", &other], 1);
    assert!(
        printed.contains("error: reciprocal: model.layers.0.mlp.up.weight_scale_2"),
        "{printed}"
    );
    assert!(printed.contains("WRONG"), "{printed}");
}

/// `quantize --list` prints every tensor's fate with the reason, as text and as JSON, and writes nothing.
#[test]
fn the_fate_of_every_tensor_is_listed() {
    let folder = Folder::new("cli-list");
    let source = text(folder.file("source.safetensors"));
    write_model(source.as_ref());
    let before = std::fs::read(&source).expect("there");
    let list = ["quantize", &source, "--layout", "torchao", "--all-layers", "--list"];
    let more = ["--exclude", "*down*"];
    let printed = run(&[&list[..], &more].concat(), 0);
    let listed = run(&[&list[..], &more, &["--json"]].concat(), 0);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let expected = [
        ("model.embed_tokens.weight", "copied", "excluded by *embed*: an embedding"),
        ("model.layers.0.mlp.up.weight", "nvfp4", "a matrix of weights"),
        ("model.layers.0.mlp.up.bias", "copied", "no matrix called weight"),
        ("model.layers.0.norm.weight", "copied", "no matrix called weight"),
        ("model.layers.1.experts.gate_up.weight", "nvfp4", "a matrix of weights"),
        ("model.layers.1.experts.gate_up_bias", "copied", "no matrix called weight"),
        ("model.layers.1.mlp.down.weight", "copied", "excluded by *down*"),
        ("model.layers.1.mlp.odd.weight", "copied", "K = 40 is no multiple of 16"),
        ("model.steps", "copied", "type I64"),
    ];
    let tensors = listed["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), expected.len(), "{listed}");
    for (tensor, to, reason) in expected {
        let fate = tensors.iter().find(|fate| fate["tensor"] == tensor);
        let fate = fate.unwrap_or_else(|| panic!("{tensor} is not listed: {listed}"));
        assert_eq!((&fate["to"], &fate["reason"]), (&to.into(), &reason.into()), "{tensor}");
        let line = printed.lines().find(|line| line.split_whitespace().next() == Some(tensor));
        let line = line.unwrap_or_else(|| panic!("no line of {tensor}: {printed}"));
        assert!(line.ends_with(&format!("-> {to}: {reason}")), "{line}");
    }
    assert!(printed.contains("no config.json names the architecture"), "{printed}");
    assert!(
        printed.contains("2 of 9 tensors would be quantised; nothing was written"),
        "{printed}"
    );
    assert_eq!(folder.names(), ["source.safetensors"]);
    assert_eq!(std::fs::read(&source).expect("there"), before);
    // The list says what `quantize` then does.
    let out = text(folder.file("out"));
    let report = [&list[..5], &more, &["--json", "--out", &out]].concat();
    let report: Value = serde_json::from_str(&run(&report, 0)).expect("JSON");
    let becomes: Vec<&str> =
        expected.iter().filter(|(_, to, _)| *to == "nvfp4").map(|(tensor, ..)| *tensor).collect();
    assert_eq!(report["quantized"], becomes.into_iter().collect::<Value>());
}

#[test]
fn bad_input_is_refused() {
    let folder = Folder::new("cli-refused");
    let source = text(folder.file("source.safetensors"));
    write_model(source.as_ref());
    let out = text(folder.file("out"));
    let with = |args: &[&str]| run(&[&["quantize", &source, "--out", &out], args].concat(), 2);
    for (args, message) in [
        (&["--layout", "ggml"][..], "must be one of modelopt"),
        (&["--layout", "gpt-oss"], "it has no form of nvfp4"),
        (&["--layout", "torchao", "--format", "int4"], "neither nvfp4 nor mxfp4"),
        (&["--layout", "torchao", "--recipe", "rceil"], "recipe for nvfp4 must be one of torchao"),
        (
            &["--layout", "modelopt", "--swizzled"],
            "in groups of 16 have their scales in 128x4 tiles",
        ),
        (&["--layout", "torchao", "--exclude", "*"], "has no tensor that can be quantised"),
        (&["--layout", "torchao", "--device", "cuda:999"], ""),
    ] {
        let stderr = with(args);
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert_eq!(folder.names(), ["source.safetensors"], "{args:?}");
    }
    quantized(&folder, "out", Layout::TorchAo, Format::Nvfp4);
    assert!(with(&["--layout", "torchao"]).contains("out exists; --force replaces a checkpoint"));
    run(&["quantize", &source, "--out", &out, "--layout", "torchao", "--force"], 0);
    assert!(run(&["verify", &source], 2).contains("has no quantised weight in a known layout"));
    assert!(run(&["inspect", &text(folder.file("none"))], 2).contains("cannot read"));
}

/// A limit on the size of files stands in for a disk that fills up while tensors are written.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let folder = Folder::new("cli-full");
    let source = text(folder.file("source.safetensors"));
    write_model(source.as_ref());
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let args = ["quantize", &source, "--layout", "modelopt", "--out", &text(folder.file("out"))];
    let mut command = Command::new("sh");
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_nvfp4")]).args(args).output();
    let output = output.expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot write"), "{stderr}");
    assert_eq!(folder.names(), ["source.safetensors"]);
}

/// A model of zeros that takes seconds to quantise and, where files may have holes, no room.
#[cfg(unix)]
fn write_large_model(path: &Path) {
    const TENSORS: usize = 256;
    const BYTES: usize = 4 << 20;
    let places = (0..TENSORS).map(|at| {
        let place = json!({
            "dtype": "F32",
            "shape": [1024, 1024],
            "data_offsets": [at * BYTES, (at + 1) * BYTES],
        });
        (format!("layers.{at:03}.weight"), place)
    });
    let header = Value::Object(places.collect()).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(path, &file).expect("written");
    let opened = std::fs::OpenOptions::new().write(true).open(path).expect("it is there");
    opened.set_len((file.len() + TENSORS * BYTES) as u64).expect("room");
}

/// Ctrl-C or SIGTERM while tensors are written: what is there is gone, what was there before is not.
/// SIGKILL leaves a folder, which does not keep the next run from its work.
#[cfg(unix)]
#[test]
fn signals_leave_nothing() {
    let folder = Folder::new("cli-signals");
    let source = folder.file("source.safetensors");
    write_large_model(&source);
    let small = folder.file("small.safetensors");
    write_model(&small);
    let out = folder.file("out");
    for (signal, code, there_before) in
        [("-INT", Some(130), false), ("-TERM", Some(143), true), ("-KILL", None, true)]
    {
        if there_before {
            let model = text(small.clone());
            let args = ["quantize", &model, "--layout", "modelopt", "--force", "--out"];
            run(&[&args[..], &[&text(out.clone())]].concat(), 0);
        }
        let weights = || std::fs::read(out.join("model.safetensors")).ok();
        let (before, weights_before) = (folder.names(), weights());
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
        command.args(["quantize", "--layout", "modelopt", "--force"]).arg(&source);
        command.arg("--out").arg(&out).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        // Output goes into a folder beside its place first.
        while folder.names() == before {
            assert_eq!(child.try_wait().expect("a child"), None, "it ended before it wrote");
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = child.id().to_string();
        let kill = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(kill.success());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), code, "{signal}: {stderr}");
        assert!(weights() == weights_before, "what was there is damaged");
        if code.is_some() {
            let expected = format!("interrupted; nothing was written to {}", out.display());
            assert!(stderr.contains(&expected), "{stderr}");
            assert_eq!(folder.names(), before);
        } else {
            assert_ne!(folder.names(), before, "nothing can be removed after SIGKILL");
            let model = text(small.clone());
            let args = ["quantize", &model, "--layout", "modelopt", "--force", "--out"];
            run(&[&args[..], &[&text(out.clone())]].concat(), 0);
        }
    }
}

/// Opening a pipe that nobody writes to would wait for ever.
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_at_once() {
    let folder = Folder::new("cli-pipe");
    let pipe = folder.file("pipe.safetensors");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let limited = |args: &[&str]| {
        let mut command = Command::new("timeout");
        let output = command.args(["20", env!("CARGO_BIN_EXE_nvfp4")]).args(args).output();
        let output = output.expect("timeout runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        stderr
    };
    let path = text(pipe);
    assert!(limited(&["inspect", &path]).contains("not a regular file"));
    let source = folder.file("source.safetensors");
    write_model(&source);
    let config = folder.file("config.json");
    assert!(Command::new("mkfifo").arg(&config).status().expect("mkfifo runs").success());
    assert!(limited(&["inspect", &text(source)]).contains("config.json is not usable: no regular"));
}

/// A file that is written to while its model is quantised.
#[test]
fn a_source_that_changes_is_an_error() {
    use nvfp4_checkpoint::{Model, Observer, quantize_model};

    struct Touch(std::path::PathBuf);
    impl Observer for Touch {
        fn tensor(&mut self, name: &str) {
            if name == "model.layers.1.mlp.down.weight" {
                // The content stays, so that nothing is read that changes.
                let file = std::fs::OpenOptions::new().write(true).open(&self.0).expect("a file");
                file.set_modified(std::time::UNIX_EPOCH).expect("changed");
            }
        }
    }
    let folder = Folder::new("cli-changes");
    let source = folder.file("source.safetensors");
    write_model(&source);
    let model = Model::open(&source).expect("a model");
    let options = options(Format::Nvfp4, Layout::ModelOpt);
    let out = folder.file("out");
    let error = quantize_model(&model, &options, &out, None, &mut Touch(source.clone()));
    let error = error.expect_err("what was read may be a mixture").to_string();
    assert!(error.ends_with("source.safetensors changed while it was read"), "{error}");
    assert_eq!(folder.names(), ["source.safetensors"]);
}

/// `--activations` with `--calibration` writes scales of inputs; `--search` changes block scales.
#[test]
fn inputs_and_searched_scales_are_asked_for() {
    let folder = Folder::new("cli-inputs");
    let source = text(folder.file("source.safetensors"));
    write_model(source.as_ref());
    let quantize = ["quantize", &source, "--exclude", "*experts*", "--layout", "modelopt"];
    let inputs = text(folder.file("inputs.safetensors"));
    let mut magnitudes =
        vec![("model.layers.0.mlp.up", 2688.0), ("model.layers.1.mlp.down", 448.0)];
    let write = |magnitudes: &[(&str, f32)]| {
        let scalar = |number| tensor(safetensors::Dtype::F32, &[], f32s(&[number]));
        let tensors: Vec<_> =
            magnitudes.iter().map(|(name, number)| (*name, scalar(*number))).collect();
        nvfp4_checkpoint::write(inputs.as_ref(), &tensors, &[]).expect("written");
    };
    write(&magnitudes);
    for (format, module, scale) in [("nvfp4", 0, 1.0), ("fp8", 1, 1.0)] {
        let out = text(folder.file(format));
        let asked = ["--activations", format, "--calibration", &inputs, "--out", &out];
        let printed = run(&[&quantize[..], &asked].concat(), 0);
        assert!(printed.contains("with scales from calibration"), "{printed}");
        let model = nvfp4_checkpoint::Model::open(&out).expect("a checkpoint");
        let name = format!("{}.input_scale", magnitudes[module].0);
        assert_eq!(model.file(&name).expect("there").scalar(&name).expect("one"), scale);
    }
    magnitudes.pop();
    write(&magnitudes);
    let out = text(folder.file("refused"));
    let asked = ["--activations", "nvfp4", "--calibration", &inputs, "--out", &out];
    let message = run(&[&quantize[..], &asked].concat(), 2);
    assert!(message.contains("`model.layers.1.mlp.down`"), "{message}");
    assert!(!folder.file("refused").exists());
    // One is nothing without the other.
    run(&[&quantize[..], &["--activations", "nvfp4", "--out", &out]].concat(), 2);

    let out = text(folder.file("searched"));
    let printed = run(&[&quantize[..], &["--search", "--out", &out]].concat(), 0);
    assert!(printed.contains("block scales are larger than the recipe's"), "{printed}");
    assert!(printed.contains("W4A16"), "{printed}");
    run(&["verify", &out, "--against", &source], 0);
}
