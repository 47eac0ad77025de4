//! The JSON beside a checkpoint: `config.json`, `hf_quant_config.json`, an index, and the metadata in a
//! file's header. The first byte chooses the checkpoint, the second the file. Tensors of Quark and AutoRound have
//! ModelOpt's and compressed-tensors' names, so that their configurations are read beside those.

#![no_main]

mod common;

use std::path::PathBuf;
use std::sync::LazyLock;

use common::{FOLDER, read_everything};
use libfuzzer_sys::fuzz_target;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{Layout, Model, ModelOptions, NewTensor, quantize_model, write};
use nvfp4_manifest::Manifest;
use safetensors::Dtype;

/// A small checkpoint in each layout.
static CHECKPOINTS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let float = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let data = (0..count).flat_map(|at| (at as f32).sin().to_le_bytes()).collect();
        NewTensor { dtype: Dtype::F32, shape: shape.to_vec(), data }
    };
    let source = FOLDER.join("source.safetensors");
    let tensors = [
        ("model.layers.0.mlp.gate_proj.weight", float(&[4, 64])),
        ("model.layers.0.mlp.up_proj.weight", float(&[4, 64])),
        ("model.layers.0.mlp.experts.gate_up_proj", float(&[2, 8, 64])),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", float(&[2, 8])),
        ("lm_head.weight", float(&[4, 64])),
    ];
    write(&source, &tensors, &[]).expect("written");
    let model = Model::open(&source).expect("a model");
    let each = [
        (Layout::ModelOpt, Format::Nvfp4),
        (Layout::CompressedTensors, Format::Nvfp4),
        (Layout::CompressedTensors, Format::Mxfp4),
        (Layout::TorchAo, Format::Nvfp4),
        (Layout::GptOss, Format::Mxfp4),
        (Layout::ModelOpt, Format::Mxfp4),
    ];
    let quantised = each.iter().enumerate().map(|(at, (layout, format))| {
        let recipe = recipe_by_name(*format, "modelopt").expect("known");
        let out = FOLDER.join(format!("{at}"));
        let mut options = ModelOptions::new(recipe, *layout);
        options.save.force = true;
        quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
        out
    });
    quantised.collect()
});

fuzz_target!(|input: &[u8]| {
    let [which, file, text @ ..] = input else { return };
    let folder = &CHECKPOINTS[usize::from(*which) % CHECKPOINTS.len()];
    let name = match file % 5 {
        0 | 1 => "config.json",
        2 => "hf_quant_config.json",
        3 => "model.safetensors.index.json",
        _ => {
            // TorchAO's metadata: text under one key.
            let path = FOLDER.join("metadata.safetensors");
            let codes = NewTensor { dtype: Dtype::U8, shape: vec![4, 32], data: vec![1; 128] };
            let scales = NewTensor { dtype: Dtype::F8_E4M3, shape: vec![4, 4], data: vec![56; 16] };
            let tensors = [("x._weight_qdata", codes), ("x._weight_scale", scales)];
            let text = String::from_utf8_lossy(text).into_owned();
            let names = "[\"x.weight\"]".to_owned();
            write(&path, &tensors, &[("tensor_names", names), ("x.weight", text)])
                .expect("written");
            return read_everything(&path);
        }
    };
    let path = folder.join(name);
    let before = std::fs::read(&path).ok();
    std::fs::write(&path, text).expect("room");
    read_everything(folder);
    let _ = Manifest::<nvfp4_manifest::Callable>::read(&path);
    match before {
        Some(before) => std::fs::write(&path, before).expect("room"),
        None => std::fs::remove_file(&path).expect("it was written"),
    }
});
