//! Quantising a model into every layout, reading it back, converting it: codes and scales are
//! those of the quantiser, and the same input gives the same bytes.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::*;
use fp4_formats::ScaleLayout;
use half::bf16;
use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{
    self as checkpoint, CheckpointError, Convention, GlobalScale, Layout, Model, NewTensor,
    Observer, SaveOptions, Weight, convert_model, load, quantize_model, verify,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// All weights of a checkpoint, by name.
fn weights(model: &Model) -> BTreeMap<String, Weight> {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let weight = |part: &_| load(model, layout, part).unwrap_or_else(|error| panic!("{error}"));
    parts.iter().map(|part| (part.name.clone(), weight(part))).collect()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("readable"))
        })
        .collect()
}

#[test]
fn every_layout_holds_what_the_quantiser_made() {
    let folder = Folder::new("layouts-hold");
    for (layout, format) in combinations() {
        let what = format!("{layout} {}", format.name());
        let model = quantized(&folder, &what, layout, format);
        assert_eq!(Layout::detect(&model), Some(layout), "{what}");
        let found = weights(&model);
        assert_eq!(found.keys().collect::<Vec<_>>(), WEIGHTS.iter().collect::<Vec<_>>(), "{what}");

        let source = Model::open(folder.file("source.safetensors")).expect("a model");
        for (name, weight) in &found {
            let floats = source.file(name).expect("there").floats(name).expect("floats");
            assert_eq!(weight.spec.shape, floats.shape, "{what} {name}");
            let (rows, cols) = (floats.values.len() / weight.spec.cols(), weight.spec.cols());
            let recipe = recipe_by_name(format, "torchao").expect("known");
            let dims = Dims::new(1, rows, cols).expect("sizes above zero");
            let options = QuantizeOptions::new(recipe);
            let expected = quantize_matrix(name, &floats.values, dims, &options).expect("finite");
            assert_eq!(weight.blocks.codes(), expected.codes, "{what} {name}");
            assert_eq!(weight.blocks.scales(), expected.scales, "{what} {name}");
            let stored = expected
                .global()
                .map(|g| GlobalScale::new(layout.convention(), g.stored(layout.convention())));
            assert_eq!(weight.global, stored, "{what} {name}");
        }
        for name in source.names().filter(|name| !WEIGHTS.contains(name)) {
            assert_eq!(
                model.raw(name).expect("copied"),
                source.raw(name).expect("there"),
                "{name}"
            );
        }
        let report = verify(&model, Some(&source), &mut ()).expect("verifiable");
        assert!(report.verified, "{what}: {report}");
        assert!(report.findings.is_empty(), "{what}: {report}");
        assert!(report.least_sqnr_db.expect("compared") > 15.0, "{what}: {report}");
    }
}

/// A file is what the crate `safetensors` reads, and the same input gives the same bytes.
#[test]
fn outputs_are_valid_and_stable() {
    let folder = Folder::new("layouts-stable");
    for (layout, format) in combinations() {
        let what = format!("{layout} {}", format.name());
        quantized(&folder, &what, layout, format);
        quantized(&folder, &format!("{what} again"), layout, format);
        let first = files(&folder.file(&what));
        assert_eq!(first, files(&folder.file(&format!("{what} again"))), "{what}");
        let read = SafeTensors::deserialize(&first["model.safetensors"]).expect("valid");
        assert!(read.len() > 8, "{what}");
        // Onto itself: nothing changes.
        let model = Model::open(folder.file(&what)).expect("a checkpoint");
        let same = folder.file(&format!("{what} same"));
        let report = convert_model(&model, None, &SaveOptions::new(layout), &same, &mut ());
        assert_eq!(report.expect("convertible").inverted, 0, "{what}");
        assert_eq!(files(&same), first, "{what}");
    }
}

/// The file without metadata equals what the crate `safetensors` writes.
#[test]
fn files_are_laid_out_as_safetensors_does() {
    let folder = Folder::new("layouts-file");
    let path = folder.file("x.safetensors");
    let tensors = [("b", random(&[3, 5], 1)), ("a", tensor(Dtype::U8, &[3], vec![1, 2, 3]))];
    checkpoint::write(&path, &tensors, &[]).expect("written");
    let views = tensors.iter().map(|(name, tensor)| {
        let NewTensor { dtype, shape, data } = tensor;
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data);
        (*name, view.expect("consistent"))
    });
    let expected = safetensors::serialize(views, None).expect("serialised");
    assert_eq!(std::fs::read(&path).expect("readable"), expected);
}

/// Conversions lose nothing, from every layout to every other and back: codes, scales, and unless
/// inverted the global scales too, are the same; a scale inverted once is the same after being
/// inverted twice more.
#[test]
fn conversions_lose_nothing() {
    let folder = Folder::new("layouts-convert");
    for (from, format) in combinations() {
        let name = format!("{from} {}", format.name());
        let start = quantized(&folder, &name, from, format);
        let known = |to: &Layout| to.supports(format) && is_general(to);
        for to in Layout::ALL.into_iter().filter(known) {
            let what = format!("{name} to {to}");
            let convert = |model: &Model, layout, name: &str| {
                let out = folder.file(name);
                let options = SaveOptions::new(layout);
                // ModelOpt's MXFP4 has to be asked for.
                convert_model(model, Some(format), &options, &out, &mut ())
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                Model::open(out).expect("a checkpoint")
            };
            let there = convert(&start, to, &format!("{what} there"));
            let back = convert(&there, from, &format!("{what} back"));
            let again = convert(&back, to, &format!("{what} again"));
            let [start, there, back, again] = [&start, &there, &back, &again].map(weights);
            for (name, weight) in &start {
                for other in [&there[name], &back[name], &again[name]] {
                    assert_eq!(weight.blocks.codes(), other.blocks.codes(), "{what} {name}");
                    assert_eq!(weight.blocks.scales(), other.blocks.scales(), "{what} {name}");
                }
                assert_eq!(there[name].global, again[name].global, "{what} {name}");
                if from.convention() == to.convention() {
                    assert_eq!(weight.global, back[name].global, "{what} {name}");
                }
            }
        }
    }
}

#[test]
fn shards_have_an_index_and_hold_the_same() {
    let folder = Folder::new("layouts-shards");
    let whole = quantized(&folder, "whole", Layout::ModelOpt, Format::Nvfp4);
    let source = Model::open(folder.file("source.safetensors")).expect("a model");
    let mut options = options(Format::Nvfp4, Layout::ModelOpt);
    options.save.shard_bytes = 3000;
    let out = folder.file("shards");
    let report = quantize_model(&source, &options, &out, None, &mut ()).expect("quantised");
    assert!(report.saved.shards.len() > 2, "{report}");
    let shards = Model::open(&out).expect("a checkpoint");
    assert_eq!(shards.shards().len(), report.saved.shards.len());
    assert!(shards.unlisted().is_empty());
    assert_eq!(weights(&shards), weights(&whole));
    let index: Value = serde_json::from_slice(
        &std::fs::read(out.join("model.safetensors.index.json")).expect("an index"),
    )
    .expect("valid JSON");
    assert_eq!(index["metadata"]["total_size"].as_u64(), Some(report.saved.bytes));
    assert_eq!(index["weight_map"].as_object().expect("a map").len(), shards.names().count());

    // From shards, by index file, to one file.
    let index = Model::open(out.join("model.safetensors.index.json")).expect("a checkpoint");
    let one = folder.file("one");
    convert_model(&index, None, &SaveOptions::new(Layout::ModelOpt), &one, &mut ()).expect("works");
    assert_eq!(files(&one)["model.safetensors"], files(&folder.file("whole"))["model.safetensors"]);
}

#[test]
fn torchao_scales_may_be_swizzled() {
    let folder = Folder::new("layouts-swizzled");
    let source = folder.file("source.safetensors");
    checkpoint::write(&source, &[("m.weight", random(&[130, 80], 3))], &[]).expect("written");
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let cols = 160;
        let weight = random(&[130, cols], 4);
        checkpoint::write(&source, &[("m.weight", weight)], &[]).expect("written");
        let model = Model::open(&source).expect("a model");
        let mut results = Vec::new();
        for scales in ScaleLayout::ALL {
            let mut options = options(format, Layout::TorchAo);
            options.save.scales = scales;
            let out = folder.file(&format!("{} {scales}", format.name()));
            quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
            let model = Model::open(&out).expect("a checkpoint");
            let blocks = cols / format.block() as usize;
            let shape = model.raw("m._weight_scale").expect("there").shape;
            match scales {
                ScaleLayout::Linear => assert_eq!(shape, [130, blocks]),
                ScaleLayout::Blocked128x4 => {
                    assert_eq!(shape, [64, blocks.div_ceil(4) * 16]);
                    // The metadata is not the only thing that says so.
                    rewrite(&out.join("model.safetensors"), |_| {});
                }
            }
            let model = Model::open(&out).expect("a checkpoint");
            results.push(weights(&model));
        }
        for (linear, swizzled) in results[0].values().zip(results[1].values()) {
            assert_eq!(linear.blocks, swizzled.blocks, "{}", format.name());
        }
    }
    // Only TorchAO and ModelOpt have them.
    let model = Model::open(&source).expect("a model");
    let mut linear = options(Format::Nvfp4, Layout::CompressedTensors);
    linear.save.scales = ScaleLayout::Blocked128x4;
    let error = quantize_model(&model, &linear, &folder.file("no"), None, &mut ());
    let error = error.expect_err("not in this layout");
    assert!(matches!(error, CheckpointError::Unsupported { .. }), "{error}");
}

/// Names, types and conventions as the projects write them, made by hand.
#[test]
fn foreign_files_are_read() {
    let folder = Folder::new("layouts-foreign");
    let codes: Vec<u8> = (0..64).map(|x| (x * 37 + 11) as u8).collect();
    let e4m3: Vec<u8> = (0..8).map(|x| 0x30 + x).collect();
    let ue8m0: Vec<u8> = (0..4).map(|x| 120 + x).collect();
    let scalar = |shape: &[usize], x: f32| tensor(Dtype::F32, shape, f32s(&[x]));
    let u8s = |shape: &[usize], data: &[u8]| tensor(Dtype::U8, shape, data.to_vec());
    let e4m3s = tensor(Dtype::F8_E4M3, &[2, 4], e4m3.clone());
    let e8m0s = tensor(Dtype::F8_E8M0, &[2, 2], ue8m0.clone());
    let nv = |global| (Format::Nvfp4, vec![2, 64], Some(global));
    let mx = |shape: &[usize]| (Format::Mxfp4, shape.to_vec(), None);
    type Tensors = Vec<(&'static str, NewTensor)>;
    let cases: Vec<(&str, Layout, _, Tensors)> = vec![
        (
            "m.weight",
            Layout::ModelOpt,
            nv(GlobalScale::Multiplier(0.25)),
            vec![
                ("m.weight", u8s(&[2, 32], &codes)),
                ("m.weight_scale", e4m3s.clone()),
                ("m.weight_scale_2", scalar(&[], 0.25)),
                ("m.input_scale", scalar(&[], 0.5)),
            ],
        ),
        (
            "m.weight",
            Layout::CompressedTensors,
            nv(GlobalScale::Divisor(4.0)),
            vec![
                ("m.weight_packed", u8s(&[2, 32], &codes)),
                ("m.weight_scale", e4m3s.clone()),
                ("m.weight_global_scale", scalar(&[1], 4.0)),
            ],
        ),
        (
            "m.weight",
            Layout::CompressedTensors,
            mx(&[2, 64]),
            vec![
                ("m.weight_packed", u8s(&[2, 32], &codes)),
                ("m.weight_scale", u8s(&[2, 2], &ue8m0)),
            ],
        ),
        (
            "m.weight",
            Layout::TorchAo,
            nv(GlobalScale::Multiplier(0.25)),
            vec![
                ("m._weight_qdata", u8s(&[2, 32], &codes)),
                ("m._weight_scale", e4m3s),
                ("m._weight_per_tensor_scale", scalar(&[], 0.25)),
            ],
        ),
        (
            "m.weight",
            Layout::TorchAo,
            mx(&[2, 64]),
            vec![("m._weight_qdata", u8s(&[2, 32], &codes)), ("m._weight_scale", e8m0s)],
        ),
        (
            "block.0.mlp.mlp1_weight",
            Layout::GptOss,
            mx(&[2, 1, 64]),
            vec![
                ("block.0.mlp.mlp1_weight.blocks", u8s(&[2, 1, 2, 16], &codes)),
                ("block.0.mlp.mlp1_weight.scales", u8s(&[2, 1, 2], &ue8m0)),
            ],
        ),
        (
            "mlp.experts.gate_up_proj",
            Layout::GptOss,
            mx(&[1, 2, 64]),
            vec![
                ("mlp.experts.gate_up_proj_blocks", u8s(&[1, 2, 2, 16], &codes)),
                ("mlp.experts.gate_up_proj_scales", u8s(&[1, 2, 2], &ue8m0)),
            ],
        ),
    ];
    for (at, (name, layout, (format, shape, global), tensors)) in cases.into_iter().enumerate() {
        let path = folder.file(&format!("{at}.safetensors"));
        checkpoint::write(&path, &tensors, &[]).expect("written");
        let model = Model::open(&path).expect("a file");
        assert_eq!(Layout::detect(&model), Some(layout), "case {at}");
        let found = weights(&model);
        let weight = &found[name];
        assert_eq!((weight.spec.format, &weight.spec.shape), (format, &shape), "case {at}");
        assert_eq!(weight.global, global, "case {at}");
        assert_eq!(weight.blocks.codes(), codes, "case {at}");
        assert_eq!(found.len(), 1, "case {at}");
        if layout == Layout::ModelOpt {
            let input = weight.input.expect("there").stored(Convention::Divisor);
            assert_eq!(input, 2.0, "case {at}");
            let out = folder.file("with-input");
            let options = SaveOptions::new(Layout::CompressedTensors);
            convert_model(&model, None, &options, &out, &mut ()).expect("convertible");
            let model = Model::open(&out).expect("a checkpoint");
            let input = model.file("m.input_global_scale").expect("there");
            assert_eq!(input.scalar("m.input_global_scale").expect("one value"), 2.0);
        }
    }
}

/// Bytes that compressed-tensors itself made, as a checkpoint of it: the values are the input's
/// within the format's precision, and the same bytes are written again.
#[test]
fn golden_bytes_survive_a_checkpoint() {
    let bytes = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/quant/").to_owned() + name;
        std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let manifest: Value = serde_json::from_slice(&bytes("MANIFEST.json")).expect("valid JSON");
    let bits = |recipe: &str, key: &str| {
        let hex = manifest["other_recipes"][recipe]["single"][key].as_str().expect("hex digits");
        u32::from_str_radix(hex.trim_start_matches("0x"), 16).expect("hex digits").to_le_bytes()
    };
    let folder = Folder::new("layouts-golden");
    let original = folder.file("original.safetensors");
    let input = tensor(Dtype::F32, &[25, 64], bytes("nvfp4_single_input.f32le"));
    checkpoint::write(&original, &[("m.weight", input)], &[]).expect("written");
    let original = Model::open(&original).expect("a model");
    let golden = |project: &str, part: &str| bytes(&format!("nvfp4_single.{project}.{part}.u8"));
    for (layout, recipe, project, key, names) in [
        (
            Layout::CompressedTensors,
            "compressed-tensors",
            "compressed-tensors-0.20.0",
            ("compressed_tensors", "bits"),
            ["m.weight_packed", "m.weight_scale", "m.weight_global_scale"],
        ),
        (
            Layout::ModelOpt,
            "modelopt",
            "modelopt-0.47.0",
            ("modelopt", "weight_scale_2_bits"),
            ["m.weight", "m.weight_scale", "m.weight_scale_2"],
        ),
    ] {
        let mut options = options(Format::Nvfp4, layout);
        options.recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
        let out = folder.file(recipe);
        quantize_model(&original, &options, &out, None, &mut ()).expect("quantised");
        let model = Model::open(&out).expect("a checkpoint");
        let global = bits(key.0, key.1);
        let expected = [golden(project, "packed"), golden(project, "scale_e4m3"), global.to_vec()];
        for (name, expected) in names.iter().zip(expected) {
            assert_eq!(model.raw(name).expect("there").data, expected, "{name}");
        }
    }
}

#[test]
fn mxfp4_becomes_nvfp4_exactly_or_not_at_all() {
    let folder = Folder::new("layouts-exact");
    let gpt_oss = quantized(&folder, "gpt-oss", Layout::GptOss, Format::Mxfp4);
    let out = folder.file("modelopt");
    let options = SaveOptions::new(Layout::ModelOpt);
    let report = convert_model(&gpt_oss, None, &options, &out, &mut ()).expect("exact");
    assert_eq!((report.reformatted, report.inverted), (3, 0));
    let converted = weights(&Model::open(&out).expect("a checkpoint"));
    for (name, weight) in weights(&gpt_oss) {
        let bits = |weight: &Weight| -> Vec<u32> {
            weight.blocks.dequantize().expect("small").iter().map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(&weight), bits(&converted[&name]), "{name}");
    }

    // A block 60 binades from the others.
    rewrite(&folder.file("gpt-oss/model.safetensors"), |tensors| {
        named(tensors, "model.layers.1.mlp.down.weight.scales").data[7] = 60;
    });
    let model = Model::open(folder.file("gpt-oss")).expect("a checkpoint");
    let before = folder.names();
    match convert_model(&model, None, &options, &folder.file("no"), &mut ()) {
        Err(CheckpointError::Inexact { tensor, index, .. }) => {
            assert_eq!(tensor, "model.layers.1.mlp.down.weight");
            // Scale 7 of 3 per row is block 1 of row 2, whose halves are blocks 2 and 3.
            assert_eq!(index[0], 2);
            assert!(index[1] == 2 || index[1] == 3, "{index:?}");
        }
        other => panic!("expected Inexact, got {other:?}"),
    }
    assert_eq!(folder.names(), before);

    let nvfp4 = Model::open(&out).expect("a checkpoint");
    let error = convert_model(&nvfp4, Some(Format::Mxfp4), &options, &folder.file("no"), &mut ());
    let error = error.expect_err("not exact");
    assert!(matches!(error, CheckpointError::Unsupported { .. }), "{error}");
}

#[test]
fn configuration_and_other_files_are_kept() {
    let folder = Folder::new("layouts-config");
    let source = folder.file("model");
    std::fs::create_dir(&source).expect("a folder");
    write_model(&source.join("model.safetensors"));
    std::fs::write(source.join("config.json"), r#"{"hidden_size": 64}"#).expect("written");
    std::fs::write(source.join("tokenizer.json"), "{}").expect("written");
    std::fs::write(source.join("pytorch_model.bin"), "x").expect("written");
    let model = Model::open(&source).expect("a model");
    for (layout, format) in combinations() {
        let out = folder.file(&format!("{layout} {}", format.name()));
        quantize_model(&model, &options(format, layout), &out, None, &mut ()).expect("quantised");
        let files = files(&out);
        let json = |name: &str| -> Value { serde_json::from_slice(&files[name]).expect("JSON") };
        assert_eq!(json("config.json")["hidden_size"], 64, "{layout}");
        assert_eq!(files["tokenizer.json"], b"{}", "{layout}");
        assert!(!files.contains_key("pytorch_model.bin"), "{layout}");
        let quantization = &json("config.json")["quantization_config"];
        let left = "model.layers.1.mlp.odd";
        match layout {
            Layout::ModelOpt => {
                assert_eq!(quantization["quant_method"], "modelopt");
                let config = json("hf_quant_config.json");
                let algorithm = match format {
                    Format::Nvfp4 => "W4A16_NVFP4",
                    Format::Mxfp4 => "mxfp4",
                };
                assert_eq!(config["quantization"]["quant_algo"], algorithm);
                let excluded = config["quantization"]["exclude_modules"].as_array();
                assert!(excluded.expect("a list").contains(&left.into()));
            }
            Layout::CompressedTensors => {
                let expected = format!("{}-pack-quantized", format.name());
                assert_eq!(quantization["format"], expected);
                assert!(quantization["ignore"].as_array().expect("a list").contains(&left.into()));
            }
            Layout::Gguf | Layout::Mlx | Layout::DeepSeek | Layout::Quark | Layout::AutoRound => {
                unreachable!("no layout of any model")
            }
            Layout::GptOss => assert_eq!(quantization["quant_method"], "mxfp4"),
            Layout::TorchAo => {
                assert_eq!(quantization["quant_method"], "torchao");
                assert_eq!(quantization["quant_type"]["default"]["_version"], 1);
            }
        }
    }
}

/// The name that transformers gives experts of gpt-oss.
const EXPERTS: &str = "model.layers.0.mlp.experts";

/// Experts as transformers stores gpt-oss's: bf16, `[experts, K, N]`, where `down_proj` is square.
/// Returns them as `[experts, N, K]`.
fn gpt_oss_model(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let (experts, hidden) = (2, 64);
    let mut tensors = Vec::new();
    let mut expected = BTreeMap::new();
    for (name, n, seed) in [("gate_up_proj", 2 * hidden, 1), ("down_proj", hidden, 2)] {
        let values = normal(experts * n, hidden, seed);
        let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
        let mut stored = vec![0; 2 * values.len()];
        for (at, value) in values.iter().enumerate() {
            let (expert, row, col) = (at / (n * hidden), at / hidden % n, at % hidden);
            let place = 2 * ((expert * hidden + col) * n + row);
            stored[place..place + 2].copy_from_slice(&value.to_le_bytes());
        }
        let name = format!("{EXPERTS}.{name}");
        tensors.push((name.clone(), tensor(Dtype::BF16, &[experts, hidden, n], stored)));
        tensors.push((format!("{name}_bias"), random(&[experts, n], seed + 2)));
        let values = values.into_iter().map(bf16::to_f32).collect();
        expected.insert(name, (vec![experts, n, hidden], values));
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(path, &tensors, &[]).expect("written");
    expected
}

/// The published files have blocks along the input dimension, which the unquantised ones have
/// first.
#[test]
fn gpt_oss_experts_are_transposed() {
    let folder = Folder::new("layouts-gpt-oss");
    let source = folder.file("source.safetensors");
    let expected = gpt_oss_model(&source);
    let original = Model::open(&source).expect("a model");
    let options = options(Format::Mxfp4, Layout::GptOss);
    let out = folder.file("cpu");
    let report = quantize_model(&original, &options, &out, None, &mut ()).expect("quantised");
    assert_eq!(report.transposed.len(), 2, "{report}");
    let model = Model::open(&out).expect("a checkpoint");
    let blocks = |name: &str| model.raw(&format!("{EXPERTS}.{name}_blocks")).expect("there").shape;
    assert_eq!(blocks("gate_up_proj"), [2, 128, 2, 16]);
    assert_eq!(blocks("down_proj"), [2, 64, 2, 16]);
    let found = weights(&model);
    for (name, (shape, values)) in &expected {
        let dims = Dims::new(shape[0], shape[1], shape[2]).expect("sizes above zero");
        let how = QuantizeOptions::new(options.recipe);
        let expected = quantize_matrix(name, values, dims, &how).expect("finite");
        assert_eq!(&found[name].spec.shape, shape, "{name}");
        assert_eq!(found[name].blocks.codes(), expected.codes, "{name}");
        assert_eq!(found[name].blocks.scales(), expected.scales, "{name}");
    }
    let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
    assert!(report.verified && report.findings.is_empty(), "{report}");
    assert!(report.least_sqnr_db.expect("compared") > 15.0, "{report}");
    for kernels in machines() {
        let on_device = folder.file(kernels.device().choice().arch.name());
        quantize_model(&original, &options, &on_device, Some(&kernels), &mut ()).expect("works");
        assert!(files(&on_device) == files(&out), "{}", on_device.display());
    }

    // No other layout is known to have them so.
    let other = self::options(Format::Nvfp4, Layout::TorchAo);
    let error = quantize_model(&original, &other, &folder.file("no"), None, &mut ());
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("layout torchao cannot hold"), "{error}");
    assert!(error.contains("[experts, K, N]"), "{error}");
}

/// Blocks along the output dimension are what they would be if the order were taken for the other.
#[test]
fn experts_quantised_along_the_wrong_dimension_are_found() {
    let folder = Folder::new("layouts-wrong-dimension");
    let source = folder.file("source.safetensors");
    gpt_oss_model(&source);
    let original = Model::open(&source).expect("a model");
    let misread = folder.file("misread.safetensors");
    std::fs::copy(&source, &misread).expect("copied");
    // Under these names the last dimension is the input's.
    rewrite(&misread, |tensors| {
        tensors.retain(|(name, _)| !name.ends_with("bias"));
        tensors.iter_mut().for_each(|(name, _)| name.push_str(".weight"));
    });
    let out = folder.file("out");
    let model = Model::open(&misread).expect("a model");
    let options = options(Format::Mxfp4, Layout::GptOss);
    quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
    rewrite(&out.join("model.safetensors"), |tensors| {
        for (name, _) in tensors {
            *name = name.replace(".weight.", "_");
        }
    });
    let model = Model::open(&out).expect("a checkpoint");
    let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
    let errors = |ending: &str| -> Vec<&str> {
        let found = report.findings.iter();
        let named =
            found.filter(|x| x.tensor.as_deref().is_some_and(|name| name.ends_with(ending)));
        named.map(|finding| finding.kind).collect()
    };
    assert!(!report.verified, "{report}");
    assert_eq!(errors("gate_up_proj"), ["shape"], "{report}");
    assert_eq!(errors("down_proj"), ["sqnr"], "{report}");
}

/// Experts of unknown order are refused: nothing tells the two dimensions apart, and nothing is
/// written.
#[test]
fn experts_of_unknown_order_are_refused() {
    let folder = Folder::new("layouts-unknown-order");
    let source = folder.file("model");
    let run = |config: &str, tensors: &[(&str, NewTensor)]| {
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir(&source).expect("a folder");
        checkpoint::write(&source.join("model.safetensors"), tensors, &[]).expect("written");
        std::fs::write(source.join("config.json"), config).expect("written");
        let model = Model::open(&source).expect("a model");
        let out = folder.file("out");
        let _ = std::fs::remove_dir_all(&out);
        let options = options(Format::Mxfp4, Layout::GptOss);
        quantize_model(&model, &options, &out, None, &mut ()).map(|report| report.transposed)
    };
    let (up, down, up_bias) = ("x.gate_up_proj", "x.down_proj", "x.gate_up_proj_bias");
    let (wide, square) = (random(&[2, 32, 64], 1), random(&[2, 64, 64], 2));
    let bias = |n: usize| random(&[2, n], 3);
    let hidden = |size: usize| format!(r#"{{"hidden_size": {size}}}"#);
    let (none, nothing) = ("{}".to_owned(), "none of them is there");
    let pair =
        |up_shape: &[usize]| vec![(up, random(up_shape, 1)), (down, random(&[2, 32, 32], 2))];
    for (config, tensors, expected) in [
        (none.clone(), vec![(up, wide.clone())], Err(nothing)),
        (hidden(7), vec![(up, square.clone())], Err(nothing)),
        (none.clone(), vec![(up, square), (up_bias, bias(64))], Err(nothing)),
        (none.clone(), vec![(up, wide.clone()), (up_bias, bias(64))], Ok(vec![up])),
        (none.clone(), vec![(up, wide.clone()), (up_bias, bias(32))], Ok(vec![])),
        (hidden(32), vec![(up, wide.clone())], Ok(vec![up])),
        (hidden(64), vec![(up, wide.clone())], Ok(vec![])),
        (format!(r#"{{"text_config": {}}}"#, hidden(32)), vec![(up, wide.clone())], Ok(vec![up])),
        (none.clone(), pair(&[2, 64, 32]), Ok(vec![])),
        (none, pair(&[2, 32, 64]), Ok(vec![down, up])),
        (
            hidden(64),
            vec![(up, wide), (up_bias, bias(64))],
            Err("the bias and hidden_size disagree"),
        ),
    ] {
        match (run(&config, &tensors), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{config}"),
            (Err(error), Err(reason)) => {
                let text = error.to_string();
                assert!(text.contains(reason), "{config}: {text}");
                match error {
                    CheckpointError::Orientation { tensor, actual, .. } => {
                        assert_eq!((tensor.as_str(), &actual), (up, &tensors[0].1.shape));
                    }
                    other => panic!("{other}"),
                }
                assert_eq!(folder.names(), ["model"], "{config}");
            }
            (found, expected) => panic!("{config}: {found:?} instead of {expected:?}"),
        }
    }
    // Left as it is, it is no obstacle.
    let model = Model::open(&source).expect("a model");
    let mut excluding = options(Format::Mxfp4, Layout::GptOss);
    excluding.exclude.push("*gate_up*".into());
    let error = quantize_model(&model, &excluding, &folder.file("out"), None, &mut ());
    let error = error.expect_err("nothing else is there");
    assert!(matches!(error, CheckpointError::Nothing { .. }), "{error}");
}

/// The values of a bar: bytes to come, bytes done, the tensor.
#[derive(Default)]
struct Heard {
    total: u64,
    done: u64,
    tensors: Vec<String>,
}

impl Observer for Heard {
    fn begin(&mut self, bytes: u64) {
        assert_eq!((self.total, self.done), (0, 0), "begun twice");
        self.total = bytes;
    }

    fn tensor(&mut self, name: &str) {
        assert!(self.total > 0 && self.done <= self.total);
        self.tensors.push(name.to_owned());
    }

    fn done(&mut self, bytes: u64) {
        self.done += bytes;
    }
}

/// Every operation says at first how much there is to do, and ends having done that.
#[test]
fn observers_hear_of_every_byte() {
    let folder = Folder::new("layouts-observed");
    let source = folder.file("source.safetensors");
    write_model(&source);
    let source = Model::open(&source).expect("a model");
    for (layout, format) in combinations() {
        let what = format!("{layout} {}", format.name());
        let out = folder.file(&what);
        let mut heard = Heard::default();
        quantize_model(&source, &options(format, layout), &out, None, &mut heard).expect("works");
        assert_eq!(heard.done, heard.total, "{what} quantised");
        assert_eq!(heard.tensors.len(), source.names().count(), "{what} quantised");

        let model = Model::open(&out).expect("a checkpoint");
        let (save, again) = (SaveOptions::new(layout), folder.file(&format!("{what} again")));
        let mut heard = Heard::default();
        convert_model(&model, None, &save, &again, &mut heard).expect("works");
        assert_eq!(heard.done, heard.total, "{what} converted");
        assert_eq!(heard.tensors.len(), source.names().count(), "{what} converted");

        let mut heard = Heard::default();
        verify(&model, Some(&source), &mut heard).expect("works");
        assert_eq!(heard.done, heard.total, "{what} verified");
        assert_eq!(heard.tensors, WEIGHTS, "{what} verified");
    }
}
