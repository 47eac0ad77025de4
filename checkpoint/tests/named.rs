//! Formats are called what they are, and are read or refused by name.

use std::path::Path;

use crate::support::{Folder, f32s, tensor};
use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, NewTensor, SaveOptions, inspect, verify,
};
use safetensors::Dtype;
use serde_json::json;

const M: &str = "model.layers.0.mlp.up_proj";
/// The values of e2m1, sign in bit 3.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
const ROWS: usize = 3;
const COLS: usize = 64;

fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Packed codes, a byte for each block of 32, and the values with these as powers of two.
fn mxfp4() -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let codes: Vec<u8> = (0..ROWS * COLS).map(|at| ((at * 7 + at / 5) % 16) as u8).collect();
    let packed = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 32).map(|at| 118 + at as u8).collect();
    let value = |at: usize| e2m1(codes[at]) * 2f32.powi(i32::from(scales[at / 32]) - 127);
    let values = (0..ROWS * COLS).map(value).collect();
    (packed, scales, values)
}

fn written(folder: &Folder, tensors: &[(&str, NewTensor)]) -> Model {
    let path = folder.file("model.safetensors");
    checkpoint::write(&path, tensors, &[]).expect("written");
    Model::open(path).expect("a model")
}

/// The values of `name` after `dequantize` to f32.
fn dequantized(model: &Model, out: &Path, name: &str) -> Vec<f32> {
    let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
    let report = checkpoint::dequantize_model(model, &options, out, &mut ()).expect("dequantised");
    assert_eq!(report.weights + report.decoded, 1, "{report}");
    let out = Model::open(out).expect("floats");
    assert_eq!(out.names().collect::<Vec<_>>(), [name]);
    out.file(name).expect("there").floats(name).expect("floats").values
}

/// Powers of two under ModelOpt's names may say that they are.
#[test]
fn e8m0_under_modelopts_names_is_mxfp4() {
    for dtype in [Dtype::F8_E8M0, Dtype::U8] {
        let folder = Folder::new("named-e8m0_under_modelopts_names_is_mxfp4");
        let (codes, scales, values) = mxfp4();
        let (weight, scale) = (format!("{M}.weight"), format!("{M}.weight_scale"));
        let model = written(
            &folder,
            &[
                (&weight, tensor(Dtype::U8, &[ROWS, COLS / 2], codes)),
                (&scale, tensor(dtype, &[ROWS, COLS / 32], scales)),
            ],
        );
        let contents = inspect(&model).expect("listed");
        assert_eq!(contents.layout, Some(Layout::ModelOpt), "{dtype:?}");
        let [entry] = contents.weights.as_slice() else { panic!("one weight") };
        assert_eq!((entry.format, &entry.problem), ("mxfp4", &None), "{dtype:?}");
        assert_eq!(dequantized(&model, &folder.file("out"), &weight), values, "{dtype:?}");
    }
}

/// DeepSeek V4's experts: two codes in an I8.
#[test]
fn e2m1_in_i8_is_read() {
    let folder = Folder::new("named-e2m1_in_i8_is_read");
    let (codes, scales, values) = mxfp4();
    let name = "layers.0.ffn.experts.3.w1.weight";
    let tensors = [
        (name, tensor(Dtype::I8, &[ROWS, COLS / 2], codes)),
        (
            "layers.0.ffn.experts.3.w1.scale",
            tensor(Dtype::F8_E8M0, &[ROWS, COLS / 32], scales.clone()),
        ),
    ];
    let experts = written(&folder, &tensors);
    let contents = inspect(&experts).expect("listed");
    assert_eq!(contents.layout, Some(Layout::DeepSeek));
    assert!(contents.others.is_empty());
    assert_eq!(dequantized(&experts, &folder.file("out"), name), values);
    // Scales of another shape are an error, not other numbers.
    let scale = tensor(Dtype::F8_E8M0, &[COLS / 32, ROWS], scales);
    let [weight, (name, _)] = tensors;
    let damaged = written(&folder, &[weight, (name, scale)]);
    let (options, out) = (DequantizeOptions::new(), folder.file("damaged"));
    let error = checkpoint::dequantize_model(&damaged, &options, &out, &mut ());
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("has shape [2, 3]; required [3, 2]"), "{error}");
}

/// FP8 alone has no layout, and is dequantised all the same.
#[test]
fn fp8_alone_is_dequantised() {
    let folder = Folder::new("named-fp8_alone_is_dequantised");
    let weight = format!("{M}.weight");
    let model = written(
        &folder,
        &[
            (&weight, tensor(Dtype::F8_E4M3, &[2, 2], vec![0x38, 0xb8, 0x40, 0x30])),
            (&format!("{M}.weight_scale"), tensor(Dtype::F32, &[], f32s(&[0.25]))),
        ],
    );
    let values = dequantized(&model, &folder.file("out"), &weight);
    assert_eq!(values, [0.25, -0.25, 0.5, 0.125]);
}

/// gptqmodel's layers in NVFP4 have one level of scales under ModelOpt's names. Layers with inputs in NVFP4 keep their
/// weights in integers of GPTQ, and a scale of inputs whose bits are an integer.
#[test]
fn gptqmodels_forms_are_read() {
    let folder = Folder::new("named-gptqmodels_forms_are_read");
    let codes: Vec<u8> = (0..ROWS * COLS).map(|at| ((at * 7 + at / 5) % 16) as u8).collect();
    let packed: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    // 0.5, 1, 2 and so on.
    let scales: Vec<u8> = (0..ROWS * COLS / 16).map(|at| 0x30 + 8 * (at % 5) as u8).collect();
    let value = |at: usize| e2m1(codes[at]) * 0.5 * 2f32.powi((at / 16 % 5) as i32);
    let right: Vec<f32> = (0..ROWS * COLS).map(value).collect();
    let (weight, scale) = (format!("{M}.weight"), format!("{M}.weight_scale"));
    let tensors = [
        (weight.as_str(), tensor(Dtype::U8, &[ROWS, COLS / 2], packed)),
        (scale.as_str(), tensor(Dtype::F8_E4M3, &[ROWS, COLS / 16], scales)),
    ];
    // Without a word of gptqmodel, the second scale is missing.
    let error = verify(&written(&folder, &tensors), None, &mut ()).expect("readable").to_string();
    assert!(error.contains("weight_scale_2"), "{error}");
    let config = json!({"quantization_config": {
        "quant_method": "gptq", "bits": 4, "meta": {"quantizer": ["gptqmodel:6.0.0"]},
    }});
    std::fs::write(folder.file("config.json"), config.to_string()).expect("written");
    let model = written(&folder, &tensors);
    let report = verify(&model, None, &mut ()).expect("readable");
    assert!(report.verified, "{report}");
    let contents = inspect(&model).expect("listed");
    assert_eq!(contents.layout, Some(Layout::ModelOpt), "{contents}");
    assert_eq!(contents.weights.len(), 1, "{contents}");
    assert_eq!(dequantized(&model, &folder.file("out"), &weight), right);

    let names = ["qweight", "scales", "qzeros", "activation_global_scale_bits"];
    let [qweight, scales, zeros, bits] = names.map(|ending| format!("{M}.{ending}"));
    let words = |shape: &[usize], word: u32| {
        let count = shape.iter().product::<usize>();
        tensor(Dtype::I32, shape, word.to_le_bytes().repeat(count))
    };
    let tensors = [
        (qweight.as_str(), words(&[COLS / 8, 8], 0x8765_4321)),
        (scales.as_str(), tensor(Dtype::F32, &[1, 8], f32s(&[0.5; 8]))),
        (zeros.as_str(), words(&[1, 1], 0x7777_7777)),
        (bits.as_str(), words(&[], 0.25f32.to_bits())),
    ];
    let model = written(&folder, &tensors);
    let contents = inspect(&model).expect("listed");
    assert!(contents.to_string().contains("packed integers"), "{contents}");
    let values = dequantized(&model, &folder.file("floats"), &weight);
    let right: Vec<f32> =
        (0..COLS * 8).map(|at| ((at % COLS % 8) as f32 + 1.0 - 8.0) * 0.5).collect();
    assert_eq!(values, right);
}

/// Formats that are not read have a name in the list, in `verify` and in the refusal of everything that writes.
#[test]
fn formats_that_are_not_read_have_names() {
    let bytes = |shape: &[usize]| tensor(Dtype::U8, shape, vec![0x38; shape.iter().product()]);
    let floats =
        |shape: &[usize]| tensor(Dtype::F32, shape, f32s(&vec![1.0; shape.iter().product()]));
    let words = |shape: &[usize]| {
        tensor(Dtype::U32, shape, vec![0x11; 4 * shape.iter().product::<usize>()])
    };
    let integers = |shape: &[usize]| tensor(Dtype::I8, shape, vec![1; shape.iter().product()]);
    let cases: [(&str, Vec<(String, NewTensor)>); 5] = [
        (
            "packed 4-bit codes with float scales of blocks",
            vec![
                (format!("{M}.weight"), bytes(&[4, 32])),
                (format!("{M}.weight_scale"), floats(&[4, 4])),
            ],
        ),
        ("8-bit integers", vec![(format!("{M}.weight"), integers(&[4, 32]))]),
        (
            "another format of MLX's",
            vec![(format!("{M}.weight"), words(&[4, 16])), (format!("{M}.scales"), bytes(&[4, 2]))],
        ),
        (
            "FP-Quant's codes of rotated weights",
            vec![
                (format!("{M}.qweight"), bytes(&[4, 32])),
                (format!("{M}.scales"), bytes(&[4, 2])),
                (format!("{M}.forward_hadamard_matrix"), floats(&[32, 32])),
            ],
        ),
        (
            "MXFP4 in gpt-oss's blocks",
            vec![
                ("model.layers.0.mlp.experts.down_proj_blocks".into(), bytes(&[2, 4, 2, 16])),
                ("model.layers.0.mlp.experts.down_proj_scales".into(), bytes(&[2, 4, 2])),
            ],
        ),
    ];
    for (name, tensors) in cases {
        let folder = Folder::new("named-formats_that_are_not_read_have_names");
        // Beside a weight in NVFP4.
        let q = "model.layers.0.self_attn.q_proj.weight";
        let mut all: Vec<(&str, NewTensor)> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        let [packed, scale, global] =
            ["packed", "scale", "global_scale"].map(|x| format!("{q}_{x}"));
        all.push((&packed, bytes(&[4, 32])));
        all.push((&scale, tensor(Dtype::F8_E4M3, &[4, 4], vec![0x38; 16])));
        all.push((&global, floats(&[1])));
        let model = written(&folder, &all);
        let contents = inspect(&model).expect("listed");
        assert_eq!(contents.layout, Some(Layout::CompressedTensors), "{name}");
        assert_eq!(contents.others.len(), 1, "{name}: {contents}");
        assert_eq!(contents.others[0].format.name(), name);
        let report = verify(&model, None, &mut ()).expect("readable").to_string();
        assert!(report.contains(&format!("it is in {name}, which is not checked")), "{report}");
        let out = folder.file("out");
        let convert = SaveOptions::new(Layout::ModelOpt);
        let converted = checkpoint::convert_model(&model, None, &convert, &out, &mut ());
        let dequantize = DequantizeOptions::new();
        let floats = checkpoint::dequantize_model(&model, &dequantize, &out, &mut ());
        for error in [converted.expect_err("refused"), floats.expect_err("refused")] {
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
        assert!(!out.exists());
        // Alone, too.
        let alone = written(&folder, &all[..all.len() - 3]);
        if name == "MXFP4 in gpt-oss's blocks" {
            assert_eq!(Layout::detect(&alone), Some(Layout::GptOss));
            continue;
        }
        let error = verify(&alone, None, &mut ()).expect_err("nothing to verify").to_string();
        let weight = &contents.others[0].weight;
        assert!(error.contains(&format!("`{weight}` is in {name}")), "{name}: {error}");
    }
}

/// A file's name does not make it one.
#[test]
fn files_are_known_by_their_content() {
    let folder = Folder::new("named-files_are_known_by_their_content");
    let golden = include_bytes!("../../gguf/tests/data/golden.gguf");
    let path = folder.file("model.safetensors");
    std::fs::write(&path, golden).expect("written");
    let model = Model::open(&path).expect("a model");
    assert_eq!(Layout::detect(&model), Some(Layout::Gguf));
    let path = folder.file("model.gguf");
    checkpoint::write(&path, &[("x", tensor(Dtype::F32, &[1], f32s(&[1.0])))], &[])
        .expect("written");
    let error = Model::open(&path).expect_err("no GGUF").to_string();
    assert!(error.contains("does not begin with GGUF"), "{error}");
}

/// A file of as many tensors and named modules as the largest models have: each look-up takes no search.
#[test]
fn a_hundred_thousand_tensors_are_listed() {
    const WEIGHTS: usize = 25_000;
    let folder = Folder::new("named-a_hundred_thousand_tensors_are_listed");
    let module = |at: usize| format!("model.layers.{}.mlp.experts.{}.up_proj", at / 250, at % 250);
    let mut names = Vec::new();
    for at in 0..WEIGHTS {
        let of = module(at);
        names.push((format!("{of}.weight"), tensor(Dtype::U8, &[1, 8], vec![0x12; 8])));
        names.push((format!("{of}.weight_scale"), tensor(Dtype::F8_E4M3, &[1, 1], vec![0x38])));
        for scale in ["weight_scale_2", "input_scale"] {
            names.push((format!("{of}.{scale}"), tensor(Dtype::F32, &[], f32s(&[1e-3]))));
        }
    }
    let tensors: Vec<(&str, NewTensor)> =
        names.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&folder.file("model.safetensors"), &tensors, &[]).expect("written");
    let layers: serde_json::Map<String, serde_json::Value> = (0..WEIGHTS)
        .map(|at| (module(at), json!({"quant_algo": "NVFP4", "group_size": 16})))
        .collect();
    let config = json!({"quantization": {
        "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null, "quantized_layers": layers,
    }});
    std::fs::write(folder.file("hf_quant_config.json"), config.to_string()).expect("written");
    let model = Model::open(folder.path()).expect("a model");
    let contents = inspect(&model).expect("listed");
    assert_eq!((contents.tensors.len(), contents.weights.len()), (4 * WEIGHTS, WEIGHTS));
    let sound = |weight: &checkpoint::WeightEntry| {
        weight.problem.is_none() && weight.inputs == checkpoint::Inputs::Calibrated
    };
    assert!(contents.weights.iter().all(sound));
    assert_eq!((contents.others.len(), contents.side_data.len()), (0, 0));
}

/// compressed-tensors 0.20 has MXFP8 and FP8 in blocks of 128 x 128 beside NVFP4; other layouts refuse them by name.
#[test]
fn mxfp8_and_blocks_of_fp8_go_to_compressed_tensors() {
    const BLOCKED: &str = "model.layers.0.self_attn.o_proj";
    const MX: &str = "model.layers.0.mlp.down_proj";
    let [rows, cols] = [200, 160];
    let e4m3 = |count: usize| (0..count).map(|at| (at % 0x70) as u8).collect::<Vec<u8>>();
    let scales: Vec<f32> = (0..4).map(|at| 0.5 + at as f32).collect();
    let nvfp4: Vec<u8> = (0..64 * 8).map(|at| (at * 37 % 256) as u8).collect();
    let powers: Vec<u8> = (0..8 * 3).map(|at| 120 + at as u8 % 9).collect();
    // ModelOpt's names, and DeepSeek's.
    for (ending, shape, mx, scheme) in [
        ("weight_scale", &[2, 1, 2, 1][..], Dtype::U8, None),
        ("weight_scale_inv", &[2, 2], Dtype::F8_E8M0, Some("dynamic")),
    ] {
        let folder = Folder::new("named-mxfp8_and_blocks_of_fp8_go_to_compressed_tensors");
        let (source, out) = (folder.file("source"), folder.file("out"));
        std::fs::create_dir_all(&source).expect("a folder");
        let names = [
            format!("{M}.weight"),
            format!("{M}.weight_scale"),
            format!("{M}.weight_scale_2"),
            format!("{BLOCKED}.weight"),
            format!("{BLOCKED}.{ending}"),
            format!("{MX}.weight"),
            format!("{MX}.weight_scale"),
        ];
        let stored = [
            tensor(Dtype::U8, &[64, 8], nvfp4.clone()),
            tensor(Dtype::F8_E4M3, &[64, 1], vec![0x38; 64]),
            tensor(Dtype::F32, &[], f32s(&[0.5])),
            tensor(Dtype::F8_E4M3, &[rows, cols], e4m3(rows * cols)),
            tensor(Dtype::F32, shape, f32s(&scales)),
            tensor(Dtype::F8_E4M3, &[8, 96], e4m3(8 * 96)),
            tensor(mx, &[8, 3], powers.clone()),
        ];
        let tensors: Vec<(&str, NewTensor)> =
            names.iter().map(String::as_str).zip(stored.clone()).collect();
        checkpoint::write(&source.join("model.safetensors"), &tensors, &[]).expect("written");
        let layer = |algorithm: &str| json!({"quant_algo": algorithm});
        let stated = json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            M: layer("W4A16_NVFP4"), BLOCKED: layer("fp8_pb_wo"), MX: layer("MXFP8"),
        }}});
        std::fs::write(source.join("hf_quant_config.json"), stated.to_string()).expect("written");
        let config =
            json!({"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}});
        std::fs::write(source.join("config.json"), config.to_string()).expect("written");
        let model = Model::open(&source).expect("a model");
        let options = SaveOptions::new(Layout::CompressedTensors);
        checkpoint::convert_model(&model, None, &options, &out, &mut ()).expect("converted");
        let written = Model::open(&out).expect("a checkpoint");
        let raw = |name: String| {
            let raw = written.raw(&name).unwrap_or_else(|_| panic!("no {name}"));
            (raw.dtype, raw.shape.clone(), raw.data.to_vec())
        };
        let blocks = (Dtype::F32, vec![2, 2], f32s(&scales));
        assert_eq!(raw(format!("{BLOCKED}.weight_scale")), blocks);
        assert!(!written.contains(&format!("{BLOCKED}.weight_scale_inv")));
        assert_eq!(raw(format!("{MX}.weight_scale")), (Dtype::U8, vec![8, 3], powers.clone()));
        let config = written.quantization_config().expect("stated");
        assert_eq!(config["format"], "mixed-precision");
        let groups = config["config_groups"].as_object().expect("groups");
        let of = |module: &str| {
            let found = groups.values().find(|group| group["targets"][0] == module);
            found.unwrap_or_else(|| panic!("no group of {module}"))
        };
        let (blocked, mx) = (of(BLOCKED), of(MX));
        assert_eq!(blocked["weights"]["block_structure"], json!([128, 128]));
        assert_eq!(blocked["format"], "float-quantized");
        let inputs = &blocked["input_activations"];
        assert_eq!(inputs["group_size"].as_u64(), scheme.map(|_| 128));
        assert_eq!(
            (&mx["format"], &mx["weights"]["group_size"]),
            (&json!("mxfp8-quantized"), &json!(32))
        );
        assert_eq!(mx["input_activations"]["dynamic"], true);
        let report = verify(&written, None, &mut ()).expect("readable");
        assert!(report.verified, "{report}");
        // Both stand for the same floats.
        let floats = [(&model, "before"), (&written, "after")].map(|(model, name)| {
            let (options, out) = (DequantizeOptions::new(), folder.file(name));
            checkpoint::dequantize_model(model, &options, &out, &mut ()).expect("dequantised");
            Model::open(out).expect("floats")
        });
        for module in [M, BLOCKED, MX] {
            let name = format!("{module}.weight");
            let [before, after] = floats.each_ref().map(|model| model.raw(&name).expect("there"));
            assert_eq!((before.shape, before.data), (after.shape, after.data), "{module}");
        }
        // Onto other layouts they are refused.
        for layout in [Layout::TorchAo, Layout::ModelOpt] {
            let other = folder.file("other");
            let from = if layout == Layout::ModelOpt { &written } else { &model };
            let refused =
                checkpoint::convert_model(from, None, &SaveOptions::new(layout), &other, &mut ());
            let error = refused.expect_err("refused").to_string();
            assert!(error.contains("MXFP8") || error.contains("scales of blocks"), "{error}");
            assert!(!other.exists());
        }
    }
}
