//! MLX's nvfp4 and mxfp4: written, read again, and read as MLX wrote them.

use std::path::Path;

use crate::support::{Folder, random};
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, ModelOptions, NewTensor, SaveOptions,
    load, verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

fn write_model(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let tensors: [(&str, NewTensor); 4] = [
        ("model.embed_tokens.weight", random(&[7, 64], 1)),
        ("model.layers.0.mlp.up_proj.weight", random(&[130, 64], 2)),
        ("model.layers.0.mlp.down_proj.weight", random(&[5, 96], 3)),
        ("model.layers.0.input_layernorm.weight", random(&[64], 4)),
    ];
    checkpoint::write(&folder.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = json!({"model_type": "llama", "hidden_size": 64});
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

fn quantized(source: &Path, out: &Path, layout: Layout, format: Format) -> Model {
    let recipe = recipe_by_name(format, "torchao").expect("known");
    let source = Model::open(source).expect("a model");
    let options = ModelOptions::new(recipe, layout);
    checkpoint::quantize_model(&source, &options, out, None, &mut ()).expect("quantised");
    Model::open(out).expect("a checkpoint")
}

#[test]
fn both_formats_are_written_and_read() {
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let folder = Folder::new("mlx-both_formats_are_written_and_read");
        let source = folder.file("source");
        write_model(&source);
        let model = quantized(&source, &folder.file("out"), Layout::Mlx, format);
        assert_eq!(Layout::detect(&model), Some(Layout::Mlx));
        let name = "model.layers.0.mlp.up_proj.weight";
        let codes = model.raw(name).expect("there");
        assert_eq!((codes.dtype, codes.shape), (Dtype::U32, vec![130, 8]));
        let scales = model.raw("model.layers.0.mlp.up_proj.scales").expect("there");
        let blocks = 64 / format.block() as usize;
        assert_eq!((scales.dtype, scales.shape), (Dtype::U8, vec![130, blocks]));
        let config = model.config().expect("there");
        let stated = json!({"group_size": format.block(), "bits": 4, "mode": format.name()});
        assert_eq!(config["quantization"], stated);
        assert_eq!(config["quantization_config"], Value::Null);
        let original = Model::open(&source).expect("a model");
        let report = verify(&model, Some(&original), &mut ()).expect("readable");
        assert!(report.verified, "{report}");
    }
}

#[test]
fn mxfp4_goes_to_mlx_and_comes_back() {
    let folder = Folder::new("mlx-mxfp4_goes_to_mlx_and_comes_back");
    let source = folder.file("source");
    write_model(&source);
    let layout = Layout::CompressedTensors;
    let first = quantized(&source, &folder.file("first"), layout, Format::Mxfp4);
    let convert = |model: &Model, layout, name: &str| {
        let out = folder.file(name);
        let options = SaveOptions::new(layout);
        checkpoint::convert_model(model, None, &options, &out, &mut ()).expect("converted");
        Model::open(out).expect("a checkpoint")
    };
    let back = convert(&convert(&first, Layout::Mlx, "there"), layout, "back");
    assert_eq!(back.config().expect("there")["quantization"], Value::Null);
    for part in layout.find(&first) {
        let own = load(&first, layout, &part).expect("valid");
        let other = layout.find(&back).into_iter().find(|x| x.name == part.name).expect("there");
        assert_eq!(own.blocks, load(&back, layout, &other).expect("valid").blocks);
    }
}

/// mlx-lm quantises embeddings, which readers of other layouts look up in floats.
#[test]
fn embeddings_of_mlx_become_floats() {
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let folder = Folder::new("mlx-embeddings_of_mlx_become_floats");
        let (source, out) = (folder.file("source"), folder.file("out"));
        write_model(&source);
        let recipe = recipe_by_name(format, "torchao").expect("known");
        let model = Model::open(&source).expect("a model");
        let options = ModelOptions::new(recipe, Layout::Mlx).default_excludes(false);
        checkpoint::quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
        let model = Model::open(&out).expect("a checkpoint");
        let name = "model.embed_tokens.weight";
        let part = Layout::Mlx.find(&model).into_iter().find(|part| part.name == name);
        let part = part.expect("quantised");
        let values = load(&model, Layout::Mlx, &part).expect("valid").dequantize().expect("small");
        for layout in [Layout::CompressedTensors, Layout::TorchAo] {
            let target = folder.file(layout.name());
            let options = SaveOptions::new(layout);
            let report = checkpoint::convert_model(&model, None, &options, &target, &mut ());
            let report = report.expect("converted");
            assert_eq!(report.weights, 2);
            assert!(report.notes.iter().any(|note| note.contains(name)), "{:?}", report.notes);
            let written = Model::open(&target).expect("a checkpoint");
            assert!(layout.find(&written).iter().all(|part| part.name != name));
            assert_eq!(written.raw(name).expect("there").dtype, Dtype::BF16);
            let read = written.file(name).expect("there").floats(name).expect("floats").values;
            assert_eq!(read, values, "{layout}");
            assert!(verify(&written, None, &mut ()).expect("readable").verified);
        }
    }
}

/// A tensor-level scale has no place, and experts have other names.
#[test]
fn what_mlx_has_no_place_for_is_refused() {
    let folder = Folder::new("mlx-what_mlx_has_no_place_for_is_refused");
    let source = folder.file("source");
    write_model(&source);
    let first = quantized(&source, &folder.file("first"), Layout::ModelOpt, Format::Nvfp4);
    let (options, out) = (SaveOptions::new(Layout::Mlx), folder.file("out"));
    let error =
        checkpoint::convert_model(&first, None, &options, &out, &mut ()).expect_err("refused");
    assert!(error.to_string().contains("tensor-level scale"), "{error}");
    assert!(!out.exists());
    let experts = folder.file("experts.safetensors");
    let tensor = random(&[8, 64], 9);
    checkpoint::write(&experts, &[("model.layers.0.mlp.experts.0.up_proj.weight", tensor)], &[])
        .expect("written");
    let recipe = recipe_by_name(Format::Nvfp4, "torchao").expect("known");
    let model = Model::open(&experts).expect("a model");
    let options = ModelOptions::new(recipe, Layout::Mlx);
    let error =
        checkpoint::quantize_model(&model, &options, &out, None, &mut ()).expect_err("refused");
    assert!(error.to_string().contains("switch_mlp"), "{error}");
}

/// `tests/data/mlx`: tensors that MLX quantised, beside the values that it reads itself.
#[test]
fn values_are_those_of_mlx() {
    for mode in ["nvfp4", "mxfp4", "nvfp4-experts"] {
        let folder = Folder::new("mlx-values_are_those_of_mlx");
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/data/mlx/{mode}.safetensors"));
        let model = Model::open(&path).expect("a model");
        assert_eq!(Layout::detect(&model), Some(Layout::Mlx));
        let out = folder.file("out");
        let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
        checkpoint::dequantize_model(&model, &options, &out, &mut ()).expect("dequantised");
        let out = Model::open(&out).expect("floats");
        let floats =
            |name: &str| out.file(name).expect("there").floats(name).expect("floats").values;
        assert_eq!(floats("layer.weight"), floats("layer.values"), "{mode}");
        // MLX rounds ties towards zero; verify takes either neighbour for right.
        let original = folder.file("original.safetensors");
        let values = out.raw("layer.original").expect("there");
        let tensor =
            NewTensor { dtype: values.dtype, shape: values.shape, data: values.data.to_vec() };
        checkpoint::write(&original, &[("layer.weight", tensor)], &[]).expect("written");
        let original = Model::open(&original).expect("a model");
        let report = verify(&model, Some(&original), &mut ()).expect("readable");
        assert!(report.verified, "{report}");
    }
}
