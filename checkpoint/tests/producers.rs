//! Quark's and AutoRound's forms: read with their values and inputs, described in the target's terms, verified.

use std::path::{Path, PathBuf};

use crate::support::Folder;
use nvfp4_checkpoint::{
    self as checkpoint, CheckpointError, DequantizeOptions, Inputs, Layout, Model, SaveOptions,
    inspect, load, verify,
};
use serde_json::{Value, json};

const UP: &str = "model.layers.0.mlp.up_proj.weight";
const FORMS: [(&str, Layout, &str, Inputs); 4] = [
    ("quark-nvfp4", Layout::Quark, "nvfp4", Inputs::Calibrated),
    ("quark-mxfp4-fp8", Layout::Quark, "mxfp4", Inputs::Dynamic),
    ("auto-round-nvfp4", Layout::AutoRound, "nvfp4", Inputs::Calibrated),
    ("auto-round-mxfp4", Layout::AutoRound, "mxfp4", Inputs::Dynamic),
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/producers").join(name)
}

fn open(name: &str) -> Model {
    Model::open(data(name)).expect("a model")
}

/// A copy with its configuration changed.
fn changed(folder: &Folder, name: &str, edit: impl FnOnce(&mut Value)) -> Model {
    let out = folder.file(name);
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).expect("a folder");
    let file = "model.safetensors";
    std::fs::copy(data(name).join(file), out.join(file)).expect("copied");
    let mut config = open(name).config().expect("stated").clone();
    edit(&mut config["quantization_config"]);
    std::fs::write(out.join("config.json"), config.to_string()).expect("written");
    Model::open(out).expect("a model")
}

fn converted(model: &Model, layout: Layout, out: &Path) -> (Model, Vec<String>) {
    let options = SaveOptions::new(layout).force(true);
    let report = checkpoint::convert_model(model, None, &options, out, &mut ());
    let report = report.unwrap_or_else(|error| panic!("{layout}: {error}"));
    (Model::open(out).expect("a checkpoint"), report.notes)
}

#[test]
fn layouts_inputs_and_values_are_theirs() {
    for (name, layout, format, inputs) in FORMS {
        let folder = Folder::new("producers-layouts_inputs_and_values_are_theirs");
        let model = open(name);
        let contents = inspect(&model).expect("listed");
        assert_eq!(contents.layout, Some(layout), "{name}");
        let [weight] = contents.weights.as_slice() else { panic!("{name}: one weight") };
        assert_eq!((weight.format, weight.inputs), (format, inputs), "{name}");
        assert_eq!(weight.shape, Some(vec![3, 64]), "{name}");
        let report = verify(&model, None, &mut ()).expect("readable");
        assert!(report.verified, "{name}: {report}");
        let out = folder.file("out");
        let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
        checkpoint::dequantize_model(&model, &options, &out, &mut ()).expect("dequantised");
        let out = Model::open(&out).expect("floats");
        assert!(out.quantization_config().is_none());
        let floats = |name: &str| out.file(name).expect("there").floats(name).expect("floats");
        let mut compared = 0;
        for values in out.names().filter(|name| name.ends_with(".values")) {
            let weight = values.replace(".values", ".weight");
            assert_eq!(floats(&weight), floats(values), "{name}: {weight}");
            compared += 1;
        }
        assert_eq!(compared, if name == "quark-mxfp4-fp8" { 2 } else { 1 });
        let left = out.names().filter(|name| name.contains("scale")).count();
        assert_eq!(left, 0, "{name}");
    }
}

#[test]
fn conversions_keep_inputs_and_describe_the_target() {
    for (name, layout, _, inputs) in FORMS {
        let folder = Folder::new("producers-conversions_keep_inputs_and_describe_the_target");
        let model = open(name);
        let target = Layout::CompressedTensors;
        let (out, notes) = converted(&model, target, &folder.file("out"));
        assert!(notes.is_empty(), "{name}: {notes:?}");
        assert_eq!(Layout::detect(&out), Some(target), "{name}");
        let config = out.quantization_config().expect("described");
        assert_eq!(config["quant_method"], "compressed-tensors", "{name}");
        let ignore = config["ignore"].as_array().expect("a list");
        assert!(ignore.contains(&"lm_head".into()), "{name}: {ignore:?}");
        let contents = inspect(&out).expect("listed");
        assert_eq!(contents.weights[0].inputs, inputs, "{name}");
        assert_eq!(contents.others.len(), usize::from(name == "quark-mxfp4-fp8"), "{name}");
        let part = |model: &Model, layout: Layout| layout.find(model).remove(0);
        let [before, after] = [(&model, layout), (&out, target)]
            .map(|(model, layout)| load(model, layout, &part(model, layout)).expect("valid"));
        assert_eq!(before.blocks, after.blocks, "{name}");
        let input = |scale: Option<checkpoint::GlobalScale>| scale.map(|scale| scale.multiplier());
        assert_eq!(input(before.input), input(after.input), "{name}");
        let left = out.names().filter(|name| name.contains("scale_2")).count();
        assert_eq!(left, 0, "{name}");
        let report = verify(&out, None, &mut ()).expect("readable");
        assert!(report.verified, "{name}: {report}");
    }
}

/// A note or a refusal names the inputs that the target cannot describe.
#[test]
fn inputs_that_are_lost_are_named() {
    let folder = Folder::new("producers-inputs_that_are_lost_are_named");
    let (out, notes) =
        converted(&open("auto-round-mxfp4"), Layout::ModelOpt, &folder.file("auto-round"));
    assert!(notes.iter().any(|note| note.contains("inputs were quantised to mxfp4")), "{notes:?}");
    let algorithm = &out.hf_quant_config().expect("described")["quantization"]["quant_algo"];
    assert_eq!(*algorithm, "W4A16_NVFP4");
    let model = changed(&folder, "quark-nvfp4", |config| {
        config["global_quant_config"]["input_tensors"] = json!({"dtype": "int8"});
    });
    assert_eq!(inspect(&model).expect("listed").weights[0].inputs, Inputs::Other);
    let (options, out) = (SaveOptions::new(Layout::ModelOpt), folder.file("refused"));
    let error = checkpoint::convert_model(&model, None, &options, &out, &mut ());
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("a format that is not read"), "{error}");
    assert!(!out.exists());
}

/// A copy has the input's configuration; nothing else is written in these layouts.
#[test]
fn they_are_copied_and_not_written() {
    for (name, layout, ..) in FORMS {
        let folder = Folder::new("producers-they_are_copied_and_not_written");
        let model = open(name);
        let (copy, _) = converted(&model, layout, &folder.file("copy"));
        assert_eq!(copy.config(), model.config(), "{name}");
        assert_eq!(copy.names().collect::<Vec<_>>(), model.names().collect::<Vec<_>>(), "{name}");
        for tensor in model.names() {
            let [before, after] = [&model, &copy].map(|model| model.raw(tensor).expect("there"));
            assert_eq!(before, after, "{name}: {tensor}");
        }
        let (other, _) = converted(&model, Layout::CompressedTensors, &folder.file("other"));
        let (options, out) = (SaveOptions::new(layout), folder.file("refused"));
        let error = checkpoint::convert_model(&other, None, &options, &out, &mut ());
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("no configuration is written for it"), "{error}");
        assert!(!out.exists());
    }
}

/// Scales in e5m3 are bytes, too, and are not taken for e4m3.
#[test]
fn e5m3_is_named_and_not_read() {
    let folder = Folder::new("producers-e5m3_is_named_and_not_read");
    let quark = changed(&folder, "quark-nvfp4", |config| {
        config["global_quant_config"]["weight"][1]["dtype"] = "fp8_e5m3".into();
    });
    let auto_round = changed(&folder, "auto-round-nvfp4", |config| {
        config["data_type"] = "nvfp4_v2".into();
    });
    // AutoRound's other export, in compressed-tensors' terms.
    let compressed_tensors = changed(&folder, "auto-round-mxfp4", |config| {
        *config = json!({
            "quant_method": "compressed-tensors",
            "format": "nvfp4-e5m3-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
            "ignore": ["lm_head"],
        });
    });
    for model in [quark, auto_round, compressed_tensors] {
        assert_eq!(Layout::detect(&model), None);
        let out = folder.file("out");
        let options = DequantizeOptions::new();
        let error = checkpoint::dequantize_model(&model, &options, &out, &mut ());
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("4-bit codes with e5m3 scales, which is not read"), "{error}");
        assert!(!out.exists());
        let text = inspect(&model).expect("listed").to_string();
        assert!(text.contains("e5m3"), "{text}");
    }
}

/// A word of the finding for each contradiction.
#[test]
fn configurations_are_compared_with_the_tensors() {
    let folder = Folder::new("producers-configurations_are_compared_with_the_tensors");
    type Edit = fn(&mut Value);
    let cases: [(&str, &str, Edit); 6] = [
        ("quark-nvfp4", "excludes it", |config| config["exclude"] = json!(["*up_proj"])),
        ("quark-nvfp4", "no specification", |config| {
            config["global_quant_config"]["weight"] = Value::Null;
        }),
        ("quark-mxfp4-fp8", "scale from calibration", |config| {
            let inputs = &mut config["global_quant_config"]["input_tensors"];
            *inputs = json!([inputs.clone(), {"dtype": "fp8_e4m3", "is_dynamic": false}]);
        }),
        ("auto-round-mxfp4", "group_size 16", |config| config["group_size"] = 16.into()),
        ("auto-round-mxfp4", "bits 16", |config| {
            config["extra_config"]["model.layers.0.mlp.up_proj"] = json!({"bits": 16});
        }),
        ("auto-round-mxfp4", "scale from calibration", |config| {
            config["act_data_type"] = "nv_fp4_with_static_gs".into();
        }),
    ];
    for (name, word, edit) in cases {
        let model = changed(&folder, name, edit);
        let report = verify(&model, None, &mut ()).expect("readable");
        assert!(!report.verified, "{name} {word}: {report}");
        assert!(report.to_string().contains(word), "{name} {word}: {report}");
    }
}

/// The KV cache and rotations are no part of the tensors, and are refused by name.
#[test]
fn what_is_stated_beside_is_refused() {
    let folder = Folder::new("producers-what_is_stated_beside_is_refused");
    type Edit = fn(&mut Value);
    let cases: [(&str, &str, Edit); 3] = [
        ("quark-nvfp4", "KV cache", |config| {
            config["kv_cache_quant_config"] = json!({"*k_proj": {"output_tensors": {}}});
        }),
        ("auto-round-nvfp4", "KV cache", |config| config["static_kv_dtype"] = "fp8".into()),
        ("auto-round-nvfp4", "rotated", |config| {
            config["rotation_config"] = json!({"hadamard_type": "hadamard"});
        }),
    ];
    for (name, word, edit) in cases {
        let model = changed(&folder, name, edit);
        let (options, out) = (SaveOptions::new(Layout::CompressedTensors), folder.file("out"));
        match checkpoint::convert_model(&model, None, &options, &out, &mut ()) {
            Err(error @ CheckpointError::Unsupported { .. }) => {
                assert!(error.to_string().contains(word), "{name}: {error}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert!(!out.exists());
    }
}

/// A weight under its name, whatever names its tensors have.
#[test]
fn weights_have_their_names() {
    for (name, layout, ..) in FORMS {
        let parts = layout.find(&open(name));
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), [UP], "{name}");
    }
}
