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

/// Each damage ends in one line that names it, without an output.
#[test]
fn damaged_files_are_refused_by_name() {
    let folder = Folder::new("mlx-damaged_files_are_refused_by_name");
    let source = folder.file("source");
    write_model(&source);
    let sound = folder.file("sound");
    quantized(&source, &sound, Layout::Mlx, Format::Nvfp4);
    let bytes = std::fs::read(sound.join("model.safetensors")).expect("there");
    let text = String::from_utf8_lossy(&bytes[8..]).into_owned();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = 8 + text.find(from).unwrap_or_else(|| panic!("no {from}"));
        let mut damaged = bytes.clone();
        damaged[at..at + to.len()].copy_from_slice(to.as_bytes());
        damaged
    };
    let put = |at: usize, own: &[u8]| {
        let mut damaged = bytes.clone();
        damaged[at..at + own.len()].copy_from_slice(own);
        damaged
    };
    let up = "model.layers.0.mlp.up_proj";
    let renamed = |ending: &str, to: &str| {
        replaced(&format!("{up}.{ending}"), &format!("{}.{to}", up.replace("up_", "xx_")))
    };
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("header", bytes[..0].to_vec()),
        ("header", bytes[..7].to_vec()),
        ("header", bytes[..9].to_vec()),
        ("header", bytes[..header - 1].to_vec()),
        ("", bytes[..header].to_vec()),
        ("", bytes[..header + 1].to_vec()),
        ("", bytes[..bytes.len() - 1].to_vec()),
        ("", [bytes.as_slice(), &[0]].concat()),
        ("header", put(0, &[255; 8])),
        ("header", put(0, &[0; 8])),
        ("header", put(8, b"[")),
        ("up_proj.scales", renamed("scales", "scales")),
        ("up_proj.weight", renamed("weight", "weight")),
        ("U32", replaced("\"U32\",\"shape\":[130,8]", "\"I32\",\"shape\":[130,8]")),
        ("U32", replaced("\"U32\",\"shape\":[130,8]", "\"F32\",\"shape\":[130,8]")),
        ("shape", replaced("[130,8]", "[8,130]")),
        ("shape", replaced("[130,8]", "[65,16]")),
        ("shape", replaced("[130,8]", "[26,40]")),
        ("shape", replaced("[130,4]", "[4,130]")),
        ("shape", replaced("[130,4]", "[65,8] ")),
        ("shape", replaced("[130,4]", "[520,1]")),
        ("", replaced("[130,8]", "[130,9]")),
        ("", replaced("[130,4]", "[130,5]")),
        ("", replaced("\"U8\",\"shape\":[130,4]", "\"I8\",\"shape\":[130,4]")),
        ("", replaced("\"U8\",\"shape\":[130,4]", "\"XX\",\"shape\":[130,4]")),
        ("", replaced("\"dtype\":\"U32\"", "\"dtype\":\"U64\"")),
        ("", replaced("data_offsets", "data_offsetX")),
        ("", replaced("\"shape\":[130,8]", "\"shapf\":[130,8]")),
    ];
    // A block scale that is NaN, or has its sign bit set.
    let model = Model::open(&sound).expect("a checkpoint");
    let scales = model.raw(&format!("{up}.scales")).expect("there").data;
    let first = bytes.windows(scales.len()).position(|window| window == &*scales).expect("there");
    for scale in [0x7f, 0xff, 0x80, 0xb8] {
        cases.push(("up_proj.scales", put(first + 5, &[scale])));
    }
    assert!(cases.len() >= 30);
    let (damaged, out) = (folder.file("damaged"), folder.file("out"));
    std::fs::create_dir_all(&damaged).expect("a folder");
    std::fs::copy(sound.join("config.json"), damaged.join("config.json")).expect("copied");
    for (at, (word, bytes)) in cases.iter().enumerate() {
        std::fs::write(damaged.join("model.safetensors"), bytes).expect("written");
        let options = DequantizeOptions::new();
        let done = Model::open(&damaged)
            .and_then(|model| checkpoint::dequantize_model(&model, &options, &out, &mut ()));
        let error = done.expect_err(&format!("{at}: {word}")).to_string();
        assert!(error.contains(word), "{at}: {word}: {error}");
        assert!(!error.contains('\n'), "{at}: {error}");
        assert!(!out.exists(), "{at}: {word}");
    }
    let left = std::fs::read_dir(folder.path()).expect("a folder").flatten().count();
    assert_eq!(left, 3, "source, sound and damaged");
}
