//! Damaged checkpoints and outputs that cannot be: typed errors that name tensor and byte, findings
//! that name the mistake, nothing left behind, no panic.

use std::io::{Cursor, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::support::*;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::quantize::Format;
use nvfp4_checkpoint::Result;
use nvfp4_checkpoint::{
    CheckpointError, Finding, Layout, Model, NewTensor, Observer, SaveOptions, Severity,
    TensorSpec, TensorWriter, VerifyReport, convert_model, load, quantize_model, verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

const UP: &str = "model.layers.0.mlp.up.weight";

/// A checkpoint of [`write_model`] with its tensors changed, metadata lost.
fn damaged(
    folder: &Folder,
    layout: Layout,
    format: Format,
    edit: impl FnOnce(&mut Tensors),
) -> Model {
    let _ = std::fs::remove_dir_all(folder.file("damaged"));
    quantized(folder, "damaged", layout, format);
    rewrite(&folder.file("damaged/model.safetensors"), edit);
    Model::open(folder.file("damaged")).expect("the header is still valid")
}

fn first_error(model: &Model) -> CheckpointError {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let error = parts.iter().find_map(|part| load(model, layout, part).err());
    match error.expect("damaged") {
        CheckpointError::Library(other) => panic!("expected a checkpoint's error, got {other}"),
        error => error,
    }
}

/// Reads the byte of the file that an error names.
fn byte_of(path: &Path, byte: u64) -> u8 {
    std::fs::read(path).expect("readable")[byte as usize]
}

#[test]
fn a_bad_scale_is_named_with_its_byte() {
    let folder = Folder::new("damage-scale");
    for (layout, format, name, bad) in [
        (Layout::ModelOpt, Format::Nvfp4, format!("{UP}_scale"), 0x7f),
        (Layout::CompressedTensors, Format::Nvfp4, format!("{UP}_scale"), 0x88),
        (Layout::TorchAo, Format::Nvfp4, "model.layers.0.mlp.up._weight_scale".into(), 0xff),
        (Layout::TorchAo, Format::Mxfp4, "model.layers.0.mlp.up._weight_scale".into(), 0xff),
        (Layout::GptOss, Format::Mxfp4, format!("{UP}.scales"), 0xff),
    ] {
        let model = damaged(&folder, layout, format, |tensors| {
            named(tensors, &name).data[33] = bad;
        });
        match first_error(&model) {
            CheckpointError::Scale { path, tensor, index, byte, found, .. } => {
                assert_eq!((tensor, index, found), (name, 33, format!("{bad:#04x}")), "{layout}");
                assert_eq!(byte_of(&path, byte), bad, "{layout}");
            }
            other => panic!("{layout}: {other}"),
        }
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let model = damaged(&folder, Layout::ModelOpt, Format::Nvfp4, |tensors| {
            named(tensors, &format!("{UP}_scale_2")).data = f32s(&[bad]);
        });
        let error = first_error(&model);
        let expected = matches!(&error, CheckpointError::Scale { tensor, index: 0, .. } if tensor.ends_with("scale_2"));
        assert!(expected, "{bad}: {error}");
    }
}

#[test]
fn wrong_pieces_are_named() {
    let folder = Folder::new("damage-pieces");
    let scale = format!("{UP}_scale");
    let message = |edit: &dyn Fn(&mut Tensors)| {
        let model = damaged(&folder, Layout::ModelOpt, Format::Nvfp4, |tensors| edit(tensors));
        first_error(&model).to_string()
    };
    let missing = message(&|tensors| tensors.retain(|(name, _)| *name != scale));
    assert!(missing.contains(&format!("has no tensor `{scale}`")), "{missing}");
    let level = format!("{UP}_scale_2");
    let missing = message(&|tensors| tensors.retain(|(name, _)| *name != level));
    assert!(missing.contains(&format!("has no tensor `{level}`")), "{missing}");
    let kind = message(&|tensors| {
        let tensor = named(tensors, &scale);
        (tensor.dtype, tensor.shape) = (Dtype::F16, vec![130, 2]);
    });
    assert!(kind.contains("has type F16; required F8_E4M3 or U8"), "{kind}");
    let shape = message(&|tensors| named(tensors, &scale).shape = vec![4, 130]);
    assert!(shape.contains("has shape [4, 130]; required [130, 4]"), "{shape}");
    let odd = message(&|tensors| {
        let tensor = named(tensors, UP);
        (tensor.shape, tensor.data) = (vec![130, 31], vec![0; 130 * 31]);
    });
    assert!(odd.contains("K a multiple of 16"), "{odd}");
    let empty = message(&|tensors| {
        let tensor = named(tensors, UP);
        (tensor.shape, tensor.data) = (vec![0, 32], vec![]);
    });
    assert!(empty.contains("has shape [0, 32]"), "{empty}");
    let several = message(&|tensors| {
        let tensor = named(tensors, &level);
        (tensor.shape, tensor.data) = (vec![2], f32s(&[1.0, 1.0]));
    });
    assert!(several.contains("has shape [2]; required [] or [1]"), "{several}");
}

fn check(model: &Model, original: bool, folder: &Folder) -> VerifyReport {
    let source = Model::open(folder.file("source.safetensors")).expect("a model");
    verify(model, original.then_some(&source), &mut ()).expect("verifiable")
}

/// The kinds of findings that are errors.
fn kinds(report: &VerifyReport) -> Vec<&'static str> {
    let errors = report.findings.iter().filter(|x| x.severity == Severity::Error);
    errors.map(|finding| finding.kind).collect()
}

#[test]
fn verify_names_the_mistake() {
    let folder = Folder::new("damage-verify");
    type Edit = fn(&mut Tensors);
    let swap: Edit = |tensors| {
        named(tensors, UP).data.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
    };
    let invert: Edit = |tensors| {
        let tensor = named(tensors, "model.layers.0.mlp.up.weight_scale_2");
        let value = f32::from_le_bytes(tensor.data[..].try_into().expect("4 bytes"));
        tensor.data = f32s(&[1.0 / value]);
    };
    let double: Edit = |tensors| {
        let tensor = named(tensors, "model.layers.0.mlp.up.weight_scale_2");
        let value = f32::from_le_bytes(tensor.data[..].try_into().expect("4 bytes"));
        tensor.data = f32s(&[value * 3.0]);
    };
    let noise: Edit = |tensors| {
        for (at, byte) in named(tensors, UP).data.iter_mut().enumerate() {
            *byte = ((at * 2_654_435_761) >> 7) as u8;
        }
    };
    let none: Edit = |_| {};
    let no_bias: Edit = |tensors| tensors.retain(|(name, _)| !name.ends_with("up.bias"));
    let zeros: Edit = |tensors| {
        named(tensors, "model.layers.0.mlp.up.weight_scale").data[5] = 0;
    };
    for (edit, alone, against, warnings) in [
        (none, vec![], vec![], vec![]),
        (swap, vec![], vec!["nibble-order"], vec![]),
        (invert, vec!["reciprocal"], vec!["reciprocal", "factor"], vec![]),
        (double, vec![], vec!["factor"], vec![]),
        (noise, vec![], vec!["sqnr"], vec![]),
        (no_bias, vec![], vec!["missing"], vec![]),
        (zeros, vec![], vec!["rounding"], vec!["zero-scale"]),
    ] {
        let model = damaged(&folder, Layout::ModelOpt, Format::Nvfp4, edit);
        let report = check(&model, false, &folder);
        assert_eq!(kinds(&report), alone, "{report}");
        assert_eq!(report.verified, alone.is_empty(), "{report}");
        let found: Vec<_> = report.findings.iter().map(|x| x.kind).collect();
        assert!(warnings.iter().all(|kind| found.contains(kind)), "{report}");
        let report = check(&model, true, &folder);
        assert_eq!(kinds(&report), against, "{report}");
        assert_eq!(report.verified, against.is_empty(), "{report}");
    }
}

/// A divisor written where compressed-tensors has its divisor is fine, a multiplier is not.
#[test]
fn verify_knows_each_convention() {
    let folder = Folder::new("damage-convention");
    let model = quantized(&folder, "good", Layout::CompressedTensors, Format::Nvfp4);
    assert!(check(&model, false, &folder).verified);
    let model = damaged(&folder, Layout::CompressedTensors, Format::Nvfp4, |tensors| {
        let tensor = named(tensors, "model.layers.0.mlp.up.weight_global_scale");
        let value = f32::from_le_bytes(tensor.data[..].try_into().expect("4 bytes"));
        tensor.data = f32s(&[1.0 / value]);
    });
    let report = check(&model, false, &folder);
    assert_eq!(kinds(&report), ["reciprocal"], "{report}");
    let text = report.to_string();
    assert!(text.contains("looks like a multiplier where layout compressed-tensors has a divisor"));
}

/// Scales swizzled without saying so, where the size does not give it away.
#[test]
fn verify_finds_swizzled_scales() {
    let folder = Folder::new("damage-swizzled");
    let source = folder.file("source.safetensors");
    nvfp4_checkpoint::write(&source, &[("m.weight", random(&[128, 64], 9))], &[]).expect("written");
    let original = Model::open(&source).expect("a model");
    let mut swizzled = options(Format::Nvfp4, Layout::TorchAo);
    swizzled.save.scales = fp4_formats::ScaleLayout::Blocked128x4;
    let out = folder.file("out");
    quantize_model(&original, &swizzled, &out, None, &mut ()).expect("quantised");
    rewrite(&out.join("model.safetensors"), |tensors| {
        named(tensors, "m._weight_scale").shape = vec![128, 4];
    });
    let model = Model::open(&out).expect("a checkpoint");
    let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
    assert_eq!(kinds(&report), ["scale-order"], "{report}");
}

#[test]
fn configuration_and_index_are_checked() {
    let folder = Folder::new("damage-config");
    quantized(&folder, "m", Layout::ModelOpt, Format::Nvfp4);
    let config = folder.file("m/config.json");
    let text = r#"{"quantization_config": {"quant_method": "compressed-tensors"}}"#;
    std::fs::write(&config, text).expect("written");
    let model = Model::open(folder.file("m")).expect("a checkpoint");
    assert_eq!(kinds(&check(&model, false, &folder)), ["configuration"]);
    std::fs::write(&config, "{").expect("written");
    let error = Model::open(folder.file("m")).expect_err("no JSON").to_string();
    assert!(error.contains("config.json is not usable: no valid JSON"), "{error}");
    std::fs::remove_file(&config).expect("removed");

    let index = folder.file("m/model.safetensors.index.json");
    let open = |text: &str| {
        std::fs::write(&index, text).expect("written");
        Model::open(folder.file("m")).map(drop).expect_err("a bad index").to_string()
    };
    assert!(open("{}").contains("no object `weight_map`"));
    assert!(open(r#"{"weight_map": {}}"#).contains("has no tensor"));
    assert!(open(r#"{"weight_map": {"a": 1}}"#).contains("tensor `a` is in 1, no file name"));
    for path in ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..", ""] {
        let text = format!(r#"{{"weight_map": {{"a": "{path}"}}}}"#);
        assert!(open(&text).contains("no file name"), "{path}");
    }
    let missing = open(r#"{"weight_map": {"a": "model.safetensors"}}"#);
    assert!(missing.contains("has no tensor `a`"), "{missing}");
    assert!(open(r#"{"weight_map": {"a": "gone.safetensors"}}"#).contains("gone.safetensors"));
    let text = format!(r#"{{"weight_map": {{"{UP}": "model.safetensors"}}}}"#);
    std::fs::write(&index, text).expect("written");
    let model = Model::open(folder.file("m")).expect("a valid index");
    assert!(model.unlisted().len() > 5);
    assert_eq!(model.names().collect::<Vec<_>>(), [UP]);

    let empty = folder.file("empty");
    std::fs::create_dir(&empty).expect("a folder");
    assert!(matches!(Model::open(&empty), Err(CheckpointError::Nothing { .. })));
}

/// Each file's statements against the tensors: algorithm, group size, modules left out.
#[test]
fn verify_compares_modelopts_configuration() {
    let folder = Folder::new("damage-hf-quant-config");
    quantized(&folder, "m", Layout::ModelOpt, Format::Nvfp4);
    let json = |file: &str| -> Value {
        let text = std::fs::read(folder.file("m").join(file)).expect("readable");
        serde_json::from_slice(&text).expect("JSON")
    };
    const HF: &str = "hf_quant_config.json";
    let good = [(HF, json(HF)), ("config.json", json("config.json"))];
    // Findings once the value at a pointer into a file is another.
    let with =
        |file: &str, pointer: &str, value: Value| -> Vec<(Severity, Option<String>, String)> {
            for (name, good) in &good {
                let mut config = good.clone();
                if *name == file {
                    *config.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) =
                        value.clone();
                }
                std::fs::write(folder.file("m").join(name), config.to_string()).expect("written");
            }
            let model = Model::open(folder.file("m")).expect("a checkpoint");
            let findings = check(&model, false, &folder).findings.into_iter();
            findings
                .map(|Finding { severity, kind, tensor, message }| {
                    assert_eq!(kind, "configuration", "{message}");
                    (severity, tensor, message)
                })
                .collect()
        };
    let errors = |file: &str, pointer: &str, value: Value, tensors: &[Option<&str>], text: &str| {
        let found = with(file, pointer, value);
        assert!(found.iter().all(|found| found.0 == Severity::Error), "{found:?}");
        let named: Vec<Option<&str>> = found.iter().map(|found| found.1.as_deref()).collect();
        assert_eq!(named, tensors, "{file} {pointer}");
        for (_, _, message) in found {
            assert!(message.contains(file) && message.contains(text), "{message}");
        }
    };
    assert_eq!(with("", "", Value::Null), []);

    let all = WEIGHTS.map(Some);
    for (algorithm, text) in [
        (Value::from("FP8"), "quant_algo FP8, group_size 16"),
        ("INT4_AWQ".into(), "the tensors are NVFP4 in groups of 16"),
        (Value::Null, "has no quant_algo"),
    ] {
        errors(HF, "/quantization/quant_algo", algorithm, &[None], text);
    }
    assert_eq!(with(HF, "/quantization/quant_algo", "NVFP4_AWQ".into()), []);
    let mixed = Value::from("MIXED_PRECISION");
    assert_eq!(with("config.json", "/quantization_config/quant_algo", mixed), []);
    let inputs = "there is no input_scale";
    errors(HF, "/quantization/quant_algo", "NVFP4".into(), &all, inputs);
    errors("config.json", "/quantization_config/quant_algo", "NVFP4".into(), &all, inputs);
    errors("config.json", "/quantization_config/quant_algo", "FP8".into(), &[None], "FP8");
    for size in [Value::from(32), Value::Null, "16".into()] {
        let text = format!("group_size {size};");
        errors(HF, "/quantization/group_size", size, &[None], &text);
    }
    let groups = "/quantization_config/config_groups/group_0/weights/group_size";
    errors("config.json", groups, 128.into(), &[None], "group_size 128");

    // Left out by the file, quantised in the tensors.
    let left: &[&str] = &["model.embed_tokens", "model.layers.1.mlp.odd"];
    let and = |more: &str| Value::from([left, &[more]].concat());
    for (file, pointer) in
        [(HF, "/quantization/exclude_modules"), ("config.json", "/quantization_config/ignore")]
    {
        errors(file, pointer, and("*.mlp.up"), &[Some(UP)], "leaves it out by `*.mlp.up`");
        errors(file, pointer, and("model.layers.0.mlp.up"), &[Some(UP)], "leaves it out");
        assert_eq!(with(file, pointer, and("model.layers.?.attn*")), []);
        // The other way round.
        let found = with(file, pointer, Value::from(&left[..1]));
        let [(Severity::Warning, Some(module), message)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(module, left[1]);
        assert!(message.contains(file) && message.contains("does not leave it out"), "{message}");
        assert_eq!(with(file, pointer, Value::from(&left[1..])), [], "embeddings are no layers");
        assert_eq!(with(file, pointer, Value::from(vec!["model.layers.1.mlp.odd*"])), []);
    }

    // Each module on its own.
    let module = |name: &'static str| name.rsplit_once('.').expect("a module").0;
    let layer = |size: u32| json!({"quant_algo": "W4A16_NVFP4", "group_size": size});
    let layers = |first: u32| -> Value {
        let sizes = WEIGHTS.iter().zip([first, 16, 16]);
        let layers = sizes.map(|(name, size)| (module(name).to_owned(), layer(size)));
        let layers: serde_json::Map<String, Value> = layers.collect();
        json!({"quant_algo": "MIXED_PRECISION", "exclude_modules": [], "quantized_layers": layers})
    };
    assert_eq!(with(HF, "/quantization", layers(16)), []);
    errors(HF, "/quantization", layers(32), &[Some(WEIGHTS[0])], "group_size 32");
    let none = json!({"quant_algo": "MIXED_PRECISION"});
    errors(HF, "/quantization", none, &all, "quant_algo null, group_size null");

    // With scales of inputs.
    rewrite(&folder.file("m/model.safetensors"), |tensors| {
        for name in WEIGHTS {
            let scale = tensor(Dtype::F32, &[], f32s(&[0.5]));
            tensors.push((format!("{}.input_scale", module(name)), scale));
        }
    });
    let found = with(HF, "/quantization/quant_algo", "NVFP4".into());
    assert_eq!(found.len(), 3, "config.json still says W4A16: {found:?}");
    assert!(found.iter().all(|found| found.0 == Severity::Warning), "{found:?}");

    // ModelOpt's file beside another project's tensors.
    quantized(&folder, "t", Layout::TorchAo, Format::Nvfp4);
    std::fs::copy(folder.file("m").join(HF), folder.file("t").join(HF)).expect("copied");
    let report = check(&Model::open(folder.file("t")).expect("a checkpoint"), false, &folder);
    assert_eq!(kinds(&report), ["configuration"], "{report}");
}

/// Stops after a number of tensors.
struct StopAfter(std::cell::Cell<usize>);

impl Observer for StopAfter {
    fn cancelled(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn failures_leave_nothing_and_replace_nothing() {
    let folder = Folder::new("damage-output");
    let source = folder.file("source.safetensors");
    write_model(&source);
    let model = Model::open(&source).expect("a model");
    let options = options(Format::Nvfp4, Layout::ModelOpt);
    let out = folder.file("out");
    let before = folder.names();
    let run = |options: &_, observer: &mut dyn Observer| {
        quantize_model(&model, options, &out, None, observer).map(drop)
    };
    for after in 0..8 {
        let result = run(&options, &mut StopAfter(after.into()));
        let interrupted = CheckpointError::Interrupted { path: out.clone() };
        assert_eq!(result.expect_err("stopped").to_string(), interrupted.to_string());
        assert_eq!(folder.names(), before, "stopped after {after}");
    }

    std::fs::create_dir(&out).expect("a folder");
    std::fs::write(out.join("precious"), "x").expect("written");
    let mut forced = options.clone();
    forced.save.force = true;
    for options in [&options, &forced] {
        let error = run(options, &mut ()).expect_err("it exists");
        assert!(matches!(error, CheckpointError::Exists { .. }), "{error}");
    }
    std::fs::remove_file(out.join("precious")).expect("removed");
    assert!(run(&options, &mut ()).is_err());
    run(&forced, &mut ()).expect("an empty folder is replaced");
    let error = run(&options, &mut ()).expect_err("it exists").to_string();
    assert!(error.ends_with("exists; --force replaces a checkpoint"), "{error}");
    let first = std::fs::read(out.join("model.safetensors")).expect("readable");
    assert!(run(&forced, &mut StopAfter(2.into())).is_err());
    assert_eq!(std::fs::read(out.join("model.safetensors")).expect("readable"), first);
    run(&forced, &mut ()).expect("a checkpoint is replaced");
    assert_eq!(folder.names(), ["out", "source.safetensors"]);

    // Not onto itself, nor around itself.
    let quantised = Model::open(&out).expect("a checkpoint");
    let mut save = SaveOptions::new(Layout::TorchAo);
    save.force = true;
    for target in [&out, &folder.path().to_path_buf()] {
        let error = convert_model(&quantised, None, &save, target, &mut ()).expect_err("itself");
        assert!(error.to_string().contains("it holds the input"), "{error}");
    }
    let nowhere = folder.file("no/such/folder");
    let error = quantize_model(&model, &options, &nowhere, None, &mut ()).expect_err("no folder");
    assert!(matches!(error, CheckpointError::Library(Error::Io { .. })), "{error}");
}

#[test]
fn unusable_models_are_refused() {
    let folder = Folder::new("damage-models");
    let on = |kernels: Option<&Kernels>, tensors: &[(&str, NewTensor)]| -> Result<()> {
        let source = folder.file("x.safetensors");
        nvfp4_checkpoint::write(&source, tensors, &[]).expect("written");
        let model = Model::open(&source).expect("a model");
        let options = options(Format::Nvfp4, Layout::ModelOpt);
        quantize_model(&model, &options, &folder.file("out"), kernels, &mut ()).map(drop)
    };
    let run = |tensors: &[(&str, NewTensor)]| on(None, tensors);
    let mut values = normal(4, 32, 1);
    values[37] = f32::NEG_INFINITY;
    let weight = tensor(Dtype::F32, &[4, 32], f32s(&values));
    let tensors = [("a.weight", random(&[2, 32], 1)), ("m.weight", weight)];
    let machines = machines();
    for kernels in [None].into_iter().chain(machines.iter().map(Some)) {
        match on(kernels, &tensors) {
            Err(CheckpointError::NonFinite { path, tensor, index, byte, .. }) => {
                assert_eq!((tensor.as_str(), index), ("m.weight", 37));
                let bytes = std::fs::read(path).expect("readable");
                assert_eq!(bytes[byte as usize..][..4], f32::NEG_INFINITY.to_le_bytes());
            }
            other => panic!("expected NonFinite, got {other:?}"),
        }
    }
    for tensors in [
        vec![],
        vec![("m.bias", random(&[32], 1))],
        vec![("m.weight", random(&[4, 24], 1))],
        vec![("m.weight", tensor(Dtype::F32, &[0, 32], vec![]))],
        vec![("lm_head.weight", random(&[4, 32], 1))],
    ] {
        let error = run(&tensors).expect_err("nothing to quantise");
        assert!(matches!(error, CheckpointError::Nothing { .. }), "{error}");
    }
    assert_eq!(folder.names(), ["x.safetensors"]);
    // Twice is once too often.
    let model = quantized(&folder, "q", Layout::ModelOpt, Format::Nvfp4);
    let options = options(Format::Nvfp4, Layout::ModelOpt);
    let error = quantize_model(&model, &options, &folder.file("qq"), None, &mut ());
    let error = error.expect_err("quantised already").to_string();
    assert!(error.contains("must be not quantised yet, but is in layout modelopt"), "{error}");
    let source = Model::open(folder.file("source.safetensors")).expect("a model");
    let error = verify(&source, None, &mut ()).expect_err("not quantised");
    assert!(matches!(error, CheckpointError::Nothing { .. }), "{error}");
}

/// A disk with this much room.
struct Full {
    inner: Cursor<Vec<u8>>,
    room: u64,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.room.saturating_sub(self.inner.position());
        if left == 0 && !bytes.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        self.inner.write(&bytes[..bytes.len().min(left as usize)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Full {
    fn seek(&mut self, position: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(position)
    }
}

#[test]
fn a_full_disk_is_an_error_at_every_byte() {
    let spec = |name: &str, shape: &[usize]| TensorSpec {
        name: name.into(),
        dtype: Dtype::U8,
        shape: shape.to_vec(),
    };
    let write = |room: u64| -> Result<Vec<u8>> {
        let sink = Full { inner: Cursor::new(Vec::new()), room };
        let specs = vec![spec("a", &[3]), spec("b", &[2, 4]), spec("c", &[0])];
        let mut writer = TensorWriter::new(sink, Path::new("x"), specs, &Default::default())?;
        // In another order than the file's.
        writer.put("b", &[1; 8])?;
        writer.put("c", &[])?;
        writer.put("a", &[2; 3])?;
        Ok(writer.finish()?.inner.into_inner())
    };
    let whole = write(u64::MAX).expect("room enough");
    assert!(write(whole.len() as u64).is_ok());
    for room in 0..whole.len() as u64 {
        match write(room) {
            Err(CheckpointError::Library(Error::Io { action: "write", path, source })) => {
                assert_eq!(path, PathBuf::from("x"));
                assert_eq!(source.kind(), ErrorKind::StorageFull, "room for {room}");
            }
            other => panic!("room for {room}: {other:?}"),
        }
    }
}

#[test]
fn writers_hold_callers_to_the_header() {
    let writer = || {
        let spec = TensorSpec { name: "a".into(), dtype: Dtype::U8, shape: vec![2] };
        let sink = Cursor::new(Vec::new());
        TensorWriter::new(sink, Path::new("x"), vec![spec], &Default::default()).expect("valid")
    };
    assert!(
        writer().finish().expect_err("nothing put").to_string().contains("`a` was not written")
    );
    let mut twice = writer();
    twice.put("a", &[1, 2]).expect("announced");
    assert!(twice.put("a", &[1, 2]).is_err());
    assert!(writer().put("b", &[]).is_err());
    assert!(matches!(writer().put("a", &[1]), Err(CheckpointError::Library(Error::Shape { .. }))));
    let spec = TensorSpec { name: "a".into(), dtype: Dtype::F32, shape: vec![usize::MAX, 2] };
    let sink = Cursor::new(Vec::new());
    let error = TensorWriter::new(sink, Path::new("x"), vec![spec], &Default::default());
    assert!(matches!(error, Err(CheckpointError::Library(Error::Overflow { .. }))));
}
