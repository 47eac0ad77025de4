//! Layers of zeros whose scales are no numbers: refused, named by `verify`, and zeros on request.

use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, NewTensor, SaveOptions, convert_model,
    dequantize_model, verify,
};
use safetensors::Dtype;
use serde_json::json;

use crate::support::{Folder, f32s, tensor};

const ROWS: usize = 4;
const COLS: usize = 64;
const GATE: &str = "model.layers.0.mlp.gate_proj";
const UP: &str = "model.layers.0.mlp.up_proj";
const OPTION: &str = "--repair-zero-layers";

/// A gate that is sound and an up with these scales.
fn model(folder: &Folder, name: &str, global: f32, scale: u8) -> Model {
    let path = folder.file(name);
    std::fs::create_dir(&path).expect("a folder");
    let mut tensors: Vec<(String, NewTensor)> = Vec::new();
    for (of, global, scale) in [(GATE, 0.25, 0x38), (UP, global, scale)] {
        let codes = (0..ROWS * COLS / 2).map(|at| (at % 255) as u8).collect();
        let scales = vec![scale; ROWS * COLS / 16];
        tensors.extend([
            (format!("{of}.weight"), tensor(Dtype::U8, &[ROWS, COLS / 2], codes)),
            (format!("{of}.weight_scale"), tensor(Dtype::F8_E4M3, &[ROWS, COLS / 16], scales)),
            (format!("{of}.weight_scale_2"), tensor(Dtype::F32, &[], f32s(&[global]))),
        ]);
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&path.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({"model_type": "llama"});
    std::fs::write(path.join("config.json"), config.to_string()).expect("written");
    Model::open(path).expect("a model")
}

fn values(model: &Model, folder: &Folder, name: &str) -> Vec<f32> {
    let out = folder.file(name);
    let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
    dequantize_model(model, &options, &out, &mut ()).expect("dequantised");
    let found = Model::open(out).expect("a model");
    let name = format!("{UP}.weight");
    found.file(&name).expect("there").floats(&name).expect("floats").values
}

/// ModelOpt's and TorchAO's layer of zeros, and one of which the block scales alone are no numbers.
#[test]
fn layers_of_zeros_are_repaired_on_request() {
    let folder = Folder::new("repair-zeros");
    for (at, (global, scale)) in
        [(0.0, 0x7f), (0.0, 0x38), (0.25, 0x7f), (f32::NAN, 0x7f)].into_iter().enumerate()
    {
        let source = model(&folder, &format!("source-{at}"), global, scale);
        let report = verify(&source, None, &mut ()).expect("verifiable");
        assert!(!report.verified);
        assert!(report.to_string().contains(OPTION), "{report}");
        let before = folder.names();
        for layout in [Layout::ModelOpt, Layout::CompressedTensors] {
            let out = folder.file(&format!("out-{at}-{layout}"));
            let options = SaveOptions::new(layout);
            convert_model(&source, None, &options, &out, &mut ()).expect_err("refused");
            assert!(!out.exists());
        }
        assert_eq!(folder.names(), before);
        for layout in [Layout::ModelOpt, Layout::CompressedTensors] {
            let out = folder.file(&format!("out-{at}-{layout}"));
            let options = SaveOptions::new(layout).repair_zero_layers(true);
            let report = convert_model(&source, None, &options, &out, &mut ()).expect("converted");
            let note = format!("{UP}.weight had no scale that is a number and is zeros now");
            assert_eq!(report.notes, [note]);
            // The scale that readers take for gate and up is the gate's.
            assert_eq!(report.unshared, []);
            let found = Model::open(out).expect("a model");
            assert!(verify(&found, None, &mut ()).expect("verifiable").verified);
            let floats = values(&found, &folder, &format!("floats-{at}-{layout}"));
            assert_eq!(floats, [0.0; ROWS * COLS]);
        }
    }
}

/// A damaged scale beside sound ones, and an infinite multiplier of sound blocks, are no layer of zeros.
#[test]
fn damage_is_not_repaired() {
    let folder = Folder::new("repair-damage");
    let infinite = model(&folder, "infinite", f32::INFINITY, 0x38);
    let sound = model(&folder, "sound", 0.25, 0x38);
    crate::support::rewrite(&sound.path().join("model.safetensors"), |tensors| {
        crate::support::named(tensors, &format!("{UP}.weight_scale")).data[3] = 0x7f;
    });
    let one = Model::open(sound.path()).expect("a model");
    let options = SaveOptions::new(Layout::ModelOpt).repair_zero_layers(true);
    for source in [infinite, one] {
        let out = folder.file("out");
        convert_model(&source, None, &options, &out, &mut ()).expect_err("refused");
        assert!(!out.exists());
        let report = verify(&source, None, &mut ()).expect("verifiable");
        assert!(!report.verified && !report.to_string().contains(OPTION), "{report}");
    }
}
