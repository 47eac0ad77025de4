//! Checkpoints as people publish them: sources that are quantised already, tied embeddings, scales in tiles,
//! files beside the index, and what else one would read wrongly. Each test has the smallest file of its kind.

use std::path::{Path, PathBuf};

use crate::support::*;
use half::bf16;
use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, ModelOptions, NewTensor, SaveOptions,
    Severity, convert_model, dequantize_model, inspect, load, plan_quantize, quantize_model,
    verify,
};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Writes a folder of one file with a configuration.
fn model(folder: &Folder, name: &str, tensors: &[(&str, NewTensor)], config: &Value) -> Model {
    with_metadata(folder, name, tensors, config, &[])
}

fn with_metadata(
    folder: &Folder,
    name: &str,
    tensors: &[(&str, NewTensor)],
    config: &Value,
    metadata: &[(&str, String)],
) -> Model {
    let path = folder.file(name);
    std::fs::create_dir(&path).expect("a folder");
    checkpoint::write(&path.join("model.safetensors"), tensors, metadata).expect("written");
    std::fs::write(path.join("config.json"), config.to_string()).expect("written");
    Model::open(path).expect("a model")
}

fn json_of(path: &Path, name: &str) -> Value {
    let text = std::fs::read(path.join(name)).expect("readable");
    serde_json::from_slice(&text).expect("JSON")
}

fn scalar(value: f32) -> NewTensor {
    tensor(Dtype::F32, &[], f32s(&[value]))
}

/// Codes of e4m3 that are all finite.
fn fp8(shape: &[usize]) -> NewTensor {
    let count: usize = shape.iter().product();
    let byte = |at: usize| (at * 37 % 0x7f) as u8 | ((at.is_multiple_of(3)) as u8) << 7;
    tensor(Dtype::F8_E4M3, shape, (0..count).map(byte).collect())
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let value = match exponent {
        0 => fraction / 8.0 * 2f32.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { value } else { -value }
}

/// A matrix in ModelOpt's NVFP4: codes, linear scales, tensor-level scale.
fn nvfp4(rows: usize, cols: usize, seed: u64) -> (NewTensor, NewTensor, NewTensor) {
    let recipe = recipe_by_name(Format::Nvfp4, "modelopt").expect("known");
    let dims = Dims::new(1, rows, cols).expect("sizes above zero");
    let values = normal(rows, cols, seed);
    let matrix =
        quantize_matrix("w", &values, dims, &QuantizeOptions::new(recipe)).expect("finite");
    (
        tensor(Dtype::U8, &[rows, cols / 2], matrix.codes.clone()),
        tensor(Dtype::F8_E4M3, &[rows, cols / 16], matrix.scales.clone()),
        scalar(matrix.multipliers()[0]),
    )
}

fn options(layout: Layout) -> ModelOptions {
    ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt").expect("known"), layout)
}

fn floats_of(model: &Model, name: &str) -> Vec<f32> {
    let file = model.file(name).expect("there");
    file.floats(name).expect("floats").values
}

fn quantised(
    model: &Model,
    folder: &Folder,
    layout: Layout,
) -> (PathBuf, checkpoint::QuantizeReport) {
    let out = folder.file(&format!("out {layout} {}", folder.names().len()));
    let report = quantize_model(model, &options(layout), &out, None, &mut ()).expect("quantised");
    (out, report)
}

fn decoded_weight(model: &Model, name: &str) -> Vec<f32> {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let part = parts.iter().find(|part| part.name == name).unwrap_or_else(|| panic!("{name}"));
    load(model, layout, part).expect("valid").dequantize().expect("small")
}

/// The same model in FP8 and in the floats that this stands for gives the same bytes, whatever the scales
/// belong to.
#[test]
fn fp8_sources_are_what_their_floats_are() {
    let folder = Folder::new("circulation-fp8");
    let (n, k) = (130, 192);
    let scale = |at: usize| 0.003 * (at + 1) as f32;
    let bf16s = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|at| bf16::from_f32(scale(at)).to_le_bytes()).collect()
    };
    // Name and shape of the scales, their type, and the index of the scale of (row, column).
    type Case = (&'static str, Vec<usize>, Dtype, fn(usize, usize) -> usize, Value);
    let blocks: fn(usize, usize) -> usize = |row, col| row / 128 * 2 + col / 128;
    let cases: Vec<Case> = vec![
        (
            "weight_scale_inv",
            vec![2, 2],
            Dtype::F32,
            blocks,
            json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ),
        ("weight_scale", vec![2, 1, 2, 1], Dtype::F32, blocks, json!({"quant_method": "modelopt"})),
        ("weight_scale", vec![], Dtype::F32, |_, _| 0, json!({"quant_method": "modelopt"})),
        (
            "weight_scale",
            vec![1],
            Dtype::BF16,
            |_, _| 0,
            json!({"quant_method": "compressed-tensors"}),
        ),
        (
            "weight_scale",
            vec![130, 1],
            Dtype::BF16,
            |row, _| row,
            json!({"quant_method": "compressed-tensors"}),
        ),
        ("weight_scale", vec![130], Dtype::F32, |row, _| row, json!({"quant_method": "modelopt"})),
        ("scale", vec![2, 2], Dtype::F8_E8M0, blocks, json!({"quant_method": "fp8"})),
        (
            "weight_scale",
            vec![130, 6],
            Dtype::U8,
            |row, col| row * 6 + col / 32,
            json!({"quant_method": "mxfp8"}),
        ),
        ("qscale_weight", vec![], Dtype::F32, |_, _| 0, Value::Null),
    ];
    for (at, (name, shape, dtype, index, quantization)) in cases.into_iter().enumerate() {
        let count: usize = shape.iter().product();
        let (data, multiplier): (Vec<u8>, Box<dyn Fn(usize) -> f32>) = match dtype {
            Dtype::F32 => (f32s(&(0..count).map(scale).collect::<Vec<_>>()), Box::new(scale)),
            Dtype::BF16 => (bf16s(count), Box::new(move |at| bf16::from_f32(scale(at)).to_f32())),
            _ => (
                (0..count).map(|at| 118 + (at % 7) as u8).collect(),
                Box::new(|at| 2f32.powi(118 + (at % 7) as i32 - 127)),
            ),
        };
        let codes = fp8(&[n, k]);
        let values: Vec<f32> = (codes.data.iter().enumerate())
            .map(|(at, &byte)| e4m3(byte) * multiplier(index(at / k, at % k)))
            .collect();
        let (up, scales) = ("m.mlp.up_proj.weight", format!("m.mlp.up_proj.{name}"));
        let kept = tensor(Dtype::BF16, &[16, 64], bf16s(16 * 64));
        let config = json!({"model_type": "llama", "quantization_config": quantization});
        let source = model(
            &folder,
            &format!("fp8 {at}"),
            &[
                (up, codes.clone()),
                (&scales, tensor(dtype, &shape, data)),
                ("m.mlp.down_proj.weight", kept.clone()),
                ("lm_head.weight", codes),
                (&format!("lm_head.{name}"), tensor(dtype, &shape, source_scales(dtype, count))),
            ],
            &config,
        );
        let head: Vec<f32> = (fp8(&[n, k]).data.iter()).map(|&byte| e4m3(byte)).collect();
        let plain = model(
            &folder,
            &format!("plain {at}"),
            &[
                (up, tensor(Dtype::F32, &[n, k], f32s(&values))),
                ("m.mlp.down_proj.weight", kept),
                ("lm_head.weight", tensor(Dtype::F32, &[n, k], f32s(&head))),
            ],
            &json!({"model_type": "llama"}),
        );
        for layout in [Layout::ModelOpt, Layout::CompressedTensors, Layout::TorchAo] {
            let (out, report) = quantised(&source, &folder, layout);
            let (other, _) = quantised(&plain, &folder, layout);
            assert_eq!(report.decoded.len(), 2, "{name}");
            let (found, expected) =
                (Model::open(&out).expect("open"), Model::open(other).expect("open"));
            for weight in [up, "m.mlp.down_proj.weight"] {
                assert_eq!(
                    decoded_weight(&found, weight),
                    decoded_weight(&expected, weight),
                    "{name} {layout}"
                );
            }
            // The head is excluded: it is BF16, and nothing of its FP8 form is left.
            assert_eq!(floats_of(&found, "lm_head.weight"), head, "{name}");
            assert!(
                !found.contains(&scales) || layout == Layout::ModelOpt || name == "weight_scale"
            );
            assert!(!found.contains(&format!("lm_head.{name}")), "{name}");
            let config = json_of(&out, "config.json");
            let ignored = &config["quantization_config"];
            let lists = [&ignored["ignore"], &ignored["modules_to_not_convert"]];
            assert!(lists.iter().any(|list| list.to_string().contains("lm_head")), "{config}");
            let report = verify(&found, Some(&source), &mut ()).expect("verifiable");
            assert!(report.verified, "{name} {layout}: {report}");
        }
    }
}

/// Scales of 1 for a weight, in a type.
fn source_scales(dtype: Dtype, count: usize) -> Vec<u8> {
    match dtype {
        Dtype::F32 => f32s(&vec![1.0; count]),
        Dtype::BF16 => (0..count).flat_map(|_| bf16::ONE.to_le_bytes()).collect(),
        _ => vec![127; count],
    }
}

/// Integers of compressed-tensors, GPTQ and AWQ, against their definitions.
#[test]
fn packed_integers_are_sources() {
    let folder = Folder::new("circulation-int4");
    let (n, k, group) = (16, 64, 32);
    let code = |row: usize, col: usize| ((row * 7 + col * 5) % 16) as u32;
    let zero = |row: usize, group: usize| ((row * 3 + group) % 15 + 1) as u32;
    let scale = |row: usize, group: usize| 0.0625 * (1 + (row + group) % 5) as f32;
    let bf = |x: f32| bf16::from_f32(x).to_le_bytes();
    let i32s = |words: Vec<u32>| words.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let word = |code: &dyn Fn(usize) -> u32| (0..8).fold(0, |sum, j| sum | code(j) << (4 * j));
    let groups = k / group;
    let packed: Vec<u32> = (0..n)
        .flat_map(|row| (0..k / 8).map(move |at| (row, at)))
        .map(|(row, at)| word(&|j| code(row, at * 8 + j)))
        .collect();
    let scales: Vec<u8> =
        (0..n).flat_map(|row| (0..groups).flat_map(move |g| bf(scale(row, g)))).collect();
    let shape = [n as i64, k as i64].iter().flat_map(|x| x.to_le_bytes()).collect();
    let gptq: Vec<u32> = (0..k / 8)
        .flat_map(|at| (0..n).map(move |row| (at, row)))
        .map(|(at, row)| word(&|j| code(row, at * 8 + j)))
        .collect();
    let zeros: Vec<u32> = (0..groups)
        .flat_map(|g| (0..n / 8).map(move |at| (g, at)))
        .map(|(g, at)| word(&|j| zero(at * 8 + j, g) - 1))
        .collect();
    let turned: Vec<u8> =
        (0..groups).flat_map(|g| (0..n).flat_map(move |row| bf(scale(row, g)))).collect();
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let awq: Vec<u32> = (0..k)
        .flat_map(|col| (0..n / 8).map(move |at| (col, at)))
        .map(|(col, at)| word(&|j| code(at * 8 + order[j], col)))
        .collect();
    let awq_zeros: Vec<u32> = (0..groups)
        .flat_map(|g| (0..n / 8).map(move |at| (g, at)))
        .map(|(g, at)| word(&|j| zero(at * 8 + order[j], g)))
        .collect();
    let int = |shape: &[usize], words: Vec<u32>| tensor(Dtype::I32, shape, i32s(words));
    let symmetric =
        |row: usize, col: usize| (code(row, col) as f32 - 8.0) * scale(row, col / group);
    let asymmetric = |row: usize, col: usize| {
        let g = col / group;
        (code(row, col) as f32 - zero(row, g) as f32) * scale(row, g)
    };
    /// The name, the tensors, the configuration and the value at a row and a column.
    type Case<'a> = (&'a str, Vec<(&'a str, NewTensor)>, Value, &'a dyn Fn(usize, usize) -> f32);
    let cases: [Case<'_>; 3] = [
        (
            "integers of compressed-tensors",
            vec![
                ("m.up_proj.weight_packed", int(&[n, k / 8], packed)),
                ("m.up_proj.weight_scale", tensor(Dtype::BF16, &[n, groups], scales)),
                ("m.up_proj.weight_shape", tensor(Dtype::I64, &[2], shape)),
            ],
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            &symmetric,
        ),
        (
            "integers of GPTQ",
            vec![
                ("m.up_proj.qweight", int(&[k / 8, n], gptq)),
                ("m.up_proj.scales", tensor(Dtype::BF16, &[groups, n], turned.clone())),
                ("m.up_proj.qzeros", int(&[groups, n / 8], zeros)),
                ("m.up_proj.g_idx", int(&[k], (0..k).map(|at| (at / group) as u32).collect())),
            ],
            json!({"quant_method": "gptq", "bits": 4}),
            &asymmetric,
        ),
        (
            "integers of AWQ",
            vec![
                ("m.up_proj.qweight", int(&[k, n / 8], awq)),
                ("m.up_proj.scales", tensor(Dtype::BF16, &[groups, n], turned)),
                ("m.up_proj.qzeros", int(&[groups, n / 8], awq_zeros)),
            ],
            json!({"quant_method": "awq", "bits": 4}),
            &asymmetric,
        ),
    ];
    for (format, tensors, quantization, expected) in cases {
        let config = json!({"model_type": "llama", "quantization_config": quantization});
        let source = model(&folder, format, &tensors, &config);
        let (out, report) = quantised(&source, &folder, Layout::CompressedTensors);
        assert_eq!((report.decoded[0].format, report.quantized.len()), (format, 1));
        let values: Vec<f32> =
            (0..n).flat_map(|row| (0..k).map(move |col| expected(row, col))).collect();
        let floats = folder.file(&format!("{format} floats"));
        let in_f32 = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
        dequantize_model(&source, &in_f32, &floats, &mut ()).expect("dequantised");
        let floats = Model::open(floats).expect("open");
        assert_eq!(floats_of(&floats, "m.up_proj.weight"), values, "{format}");
        assert_eq!(floats.names().count(), 1, "{format}");
        let plain = tensor(Dtype::F32, &[n, k], f32s(&values));
        let config = json!({"model_type": "llama"});
        let plain =
            model(&folder, &format!("{format} plain"), &[("m.up_proj.weight", plain)], &config);
        let found = Model::open(&out).expect("open");
        let names: Vec<&str> = found.names().collect();
        assert!(!names.iter().any(|name| name.contains("qzeros") || name.contains("weight_shape")));
        let (exact, _) = quantised(&plain, &folder, Layout::CompressedTensors);
        let exact = Model::open(exact).expect("open");
        let weight = "m.up_proj.weight";
        assert_eq!(decoded_weight(&found, weight), decoded_weight(&exact, weight), "{format}");
        assert!(verify(&found, Some(&plain), &mut ()).expect("verifiable").verified);
    }
}

/// Formats that are not read are refused by name, and nothing is written.
#[test]
fn sources_in_other_formats_are_refused() {
    let folder = Folder::new("circulation-refused");
    let plain = ("m.up_proj.weight", random(&[16, 64], 1));
    for (name, dtype, shape) in [
        ("m.down_proj.weight", Dtype::I8, vec![16, 64]),
        ("m.down_proj.weight", Dtype::U8, vec![512, 1]),
    ] {
        let bytes = shape.iter().product();
        let other = (name, tensor(dtype, &shape, vec![0x11; bytes]));
        let scale = ("m.down_proj.weight_scale", tensor(Dtype::F32, &[16, 1], f32s(&[1.0; 16])));
        let config = json!({"model_type": "llama", "quantization_config": {"quant_method": "x"}});
        let source = model(&folder, &format!("{dtype:?}"), &[plain.clone(), other, scale], &config);
        let before = folder.names();
        let error =
            quantize_model(&source, &options(Layout::TorchAo), &folder.file("out"), None, &mut ());
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("m.down_proj.weight"), "{error}");
        assert_eq!(folder.names(), before);
    }
}

/// FP8 layers beside NVFP4 are dequantised with them.
#[test]
fn fp8_layers_are_dequantised() {
    let folder = Folder::new("circulation-dequantise");
    let (codes, scales, global) = nvfp4(16, 64, 5);
    let eight = fp8(&[16, 64]);
    let expected: Vec<f32> = eight.data.iter().map(|&byte| e4m3(byte) * 0.25).collect();
    let source = model(
        &folder,
        "mixed",
        &[
            ("m.up_proj.weight", codes),
            ("m.up_proj.weight_scale", scales),
            ("m.up_proj.weight_scale_2", global),
            ("m.o_proj.weight", eight),
            ("m.o_proj.weight_scale", scalar(0.25)),
            ("m.o_proj.input_scale", scalar(0.5)),
        ],
        &json!({"model_type": "llama"}),
    );
    let out = folder.file("out");
    let options = DequantizeOptions::new().dtype(fp4_formats::FloatType::F32);
    dequantize_model(&source, &options, &out, &mut ()).expect("dequantised");
    let found = Model::open(out).expect("open");
    assert_eq!(floats_of(&found, "m.o_proj.weight"), expected);
    assert_eq!(found.names().collect::<Vec<_>>(), ["m.o_proj.weight", "m.up_proj.weight"]);
}

/// Readers build an output head for a model without one, and look for scales of it unless it is left out.
#[test]
fn tied_heads_are_left_out() {
    let folder = Folder::new("circulation-tied");
    let tensors = [
        ("model.embed_tokens.weight", random(&[32, 64], 1)),
        ("model.layers.0.mlp.up_proj.weight", random(&[16, 64], 2)),
    ];
    let config = json!({"model_type": "llama", "tie_word_embeddings": true});
    let source = model(&folder, "tied", &tensors, &config);
    let has_head = |list: &Value| list.as_array().expect("a list").contains(&json!("lm_head"));
    let (compressed, _) = quantised(&source, &folder, Layout::CompressedTensors);
    assert!(has_head(&json_of(&compressed, "config.json")["quantization_config"]["ignore"]));
    let (modelopt, _) = quantised(&source, &folder, Layout::ModelOpt);
    assert!(has_head(
        &json_of(&modelopt, "hf_quant_config.json")["quantization"]["exclude_modules"]
    ));
    // A conversion keeps it and the source's other names.
    let path = modelopt.join("hf_quant_config.json");
    let mut hf = json_of(&modelopt, "hf_quant_config.json");
    hf["quantization"]["exclude_modules"] = json!(["lm_head", "mtp.layers.0*", "vision"]);
    std::fs::write(path, hf.to_string()).expect("written");
    let out = folder.file("converted");
    let converted = Model::open(&modelopt).expect("open");
    convert_model(&converted, None, &SaveOptions::new(Layout::CompressedTensors), &out, &mut ())
        .expect("converted");
    let ignored = &json_of(&out, "config.json")["quantization_config"]["ignore"];
    for name in ["lm_head", "re:mtp\\.layers\\.0.*$", "vision"] {
        assert!(ignored.as_array().expect("a list").contains(&json!(name)), "{ignored}");
    }
    let back = folder.file("back");
    let converted = Model::open(&out).expect("open");
    convert_model(&converted, None, &SaveOptions::new(Layout::ModelOpt), &back, &mut ())
        .expect("converted");
    let excluded = &json_of(&back, "hf_quant_config.json")["quantization"]["exclude_modules"];
    for name in ["lm_head", "mtp.layers.0*", "vision"] {
        assert!(excluded.as_array().expect("a list").contains(&json!(name)), "{excluded}");
    }
    // An untied model has its head, or none.
    let config = json!({"model_type": "llama", "tie_word_embeddings": false});
    let untied = model(&folder, "untied", &tensors, &config);
    let (out, _) = quantised(&untied, &folder, Layout::CompressedTensors);
    assert!(!has_head(&json_of(&out, "config.json")["quantization_config"]["ignore"]));
}

/// Experts in one tensor of floats are no matrix, but readers build modules for them.
#[test]
fn experts_of_floats_are_left_out() {
    let folder = Folder::new("circulation-experts");
    let (codes, scales, global) = nvfp4(16, 64, 5);
    let source = model(
        &folder,
        "source",
        &[
            ("model.layers.0.mlp.up_proj.weight", codes),
            ("model.layers.0.mlp.up_proj.weight_scale", scales),
            ("model.layers.0.mlp.up_proj.weight_scale_2", global),
            ("mtp.layers.0.mlp.experts.gate_up_proj", random(&[2, 32, 64], 1)),
        ],
        &json!({"model_type": "qwen3_5_moe"}),
    );
    let out = folder.file("out");
    convert_model(&source, None, &SaveOptions::new(Layout::CompressedTensors), &out, &mut ())
        .expect("converted");
    let ignored = json_of(&out, "config.json")["quantization_config"]["ignore"].to_string();
    assert!(ignored.contains("\"mtp.layers.0.mlp.experts\""), "{ignored}");
    assert!(ignored.contains(r"re:mtp\\.layers\\.0\\.mlp\\.experts\\..*$"), "{ignored}");
}

/// Scales in 128x4 tiles under ModelOpt's names, by metadata and by a padded shape.
#[test]
fn tiles_under_modelopts_names() {
    let folder = Folder::new("circulation-tiles");
    for (rows, marked) in [(128, true), (200, true), (200, false)] {
        let original = model(
            &folder,
            &format!("original {rows} {marked}"),
            &[("m.up_proj.weight", tensor(Dtype::F32, &[rows, 96], f32s(&normal(rows, 96, 9))))],
            &json!({"model_type": "flux"}),
        );
        let out = folder.file(&format!("tiles {rows} {marked}"));
        let mut tiled = options(Layout::ModelOpt);
        tiled.save.scales = fp4_formats::ScaleLayout::Blocked128x4;
        quantize_model(&original, &tiled, &out, None, &mut ()).expect("quantised");
        let (linear, _) = quantised(&original, &folder, Layout::ModelOpt);
        let linear = Model::open(linear).expect("open");
        if !marked {
            rewrite(&out.join("model.safetensors"), |_| {});
        }
        let found = Model::open(&out).expect("open");
        assert_eq!(found.metadata("_quantization_metadata").is_some(), marked);
        let name = "m.up_proj.weight";
        let raw = found.raw("m.up_proj.weight_scale").expect("there");
        assert_eq!(raw.shape, [rows.next_multiple_of(128), 8]);
        assert_eq!(decoded_weight(&found, name), decoded_weight(&linear, name));
        let report = verify(&found, Some(&original), &mut ()).expect("verifiable");
        assert!(report.verified && report.least_sqnr_db > Some(18.0), "{report}");
        let contents = inspect(&found).expect("readable");
        assert_eq!(contents.weights[0].scales, Some("128x4"));
        // In another layout they are linear.
        let to = folder.file(&format!("converted {rows} {marked}"));
        convert_model(&found, None, &SaveOptions::new(Layout::CompressedTensors), &to, &mut ())
            .expect("converted");
        assert_eq!(
            decoded_weight(&Model::open(to).expect("open"), name),
            decoded_weight(&linear, name)
        );
    }
}

/// Weights that readers join get one scale, also under names of linear attention and Mistral's own.
#[test]
fn joined_weights_of_newer_models() {
    let folder = Folder::new("circulation-joined");
    let louder = |rows: usize, seed: u64, factor: f32| {
        let values: Vec<f32> = normal(rows, 64, seed).iter().map(|x| x * factor).collect();
        tensor(Dtype::F32, &[rows, 64], f32s(&values))
    };
    let names = [
        "l.linear_attn.in_proj_qkv",
        "l.linear_attn.in_proj_z",
        "l.attention.wq",
        "l.attention.wk",
        "l.attention.wv",
    ];
    let weights: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
    let tensors: Vec<(&str, NewTensor)> = (weights.iter().enumerate())
        .map(|(at, name)| (name.as_str(), louder(16, at as u64, 1.0 + at as f32)))
        .collect();
    let source = model(&folder, "source", &tensors, &json!({"model_type": "qwen3_next"}));
    let (out, report) = quantised(&source, &folder, Layout::ModelOpt);
    let found = Model::open(out).expect("open");
    let scale = |name: &str| floats_of(&found, &format!("{name}.weight_scale_2"))[0];
    assert_eq!(scale(names[0]), scale(names[1]));
    assert_eq!((scale(names[2]), scale(names[3])), (scale(names[4]), scale(names[4])));
    assert_ne!(scale(names[0]), scale(names[2]));
    assert_eq!(report.shared.len(), 2);
}

/// Every tensor of the list of tensors that stay floats, and one of each that does not.
#[test]
fn tensors_that_stay_floats() {
    let folder = Folder::new("circulation-floats");
    let stays = [
        "model.layers.0.mlp.shared_expert_gate.weight",
        "model.layers.0.linear_attn.in_proj_a.weight",
        "model.layers.0.linear_attn.in_proj_b.weight",
        "model.layers.0.linear_attn.conv1d.weight",
        "mtp.layers.0.mlp.up_proj.weight",
        "output.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "visual.merger.weight",
        "vision_tower.layers.0.fc1.weight",
        "model.vision_model.fc1.weight",
        "model.embed_vision.projection.weight",
        "multi_modal_projector.linear_1.weight",
        "proj_out.weight",
        "model.layers.0.mlp.gate.wg.weight",
        "model.layers.0.mlp.moe_gate.weight",
        "model.layers.0.mlp.gate.weight",
        "score.weight",
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "lm_head.weight",
        "model.layers.4.mlp.up_proj.weight",
        "model.layers.0.self_attn.indexer.wq_b.weight",
    ];
    let becomes = [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.3.mlp.up_proj.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
    ];
    let names = stays.iter().chain(&becomes);
    let tensors: Vec<(&str, NewTensor)> = names.map(|name| (*name, random(&[16, 64], 3))).collect();
    let config = json!({"model_type": "deepseek_v32", "num_hidden_layers": 4, "num_nextn_predict_layers": 1});
    let source = model(&folder, "source", &tensors, &config);
    let before = folder.names();
    let plan = plan_quantize(&source, &options(Layout::ModelOpt)).expect("a plan");
    assert_eq!(folder.names(), before);
    for fate in &plan.tensors {
        let expected = if becomes.contains(&fate.tensor.as_str()) { "nvfp4" } else { "copied" };
        assert_eq!(fate.to, expected, "{}: {}", fate.tensor, fate.reason);
    }
    let (_, report) = quantised(&source, &folder, Layout::ModelOpt);
    assert_eq!(report.quantized.len(), becomes.len());
    assert_eq!(plan.architecture, "architecture DeepSeek (deepseek_v32)");
    let gpt2 = model(
        &folder,
        "gpt2",
        &[("transformer.h.0.attn.c_attn.weight", random(&[64, 192], 3))],
        &json!({"model_type": "gpt2"}),
    );
    let plan = plan_quantize(&gpt2, &options(Layout::ModelOpt)).expect("a plan");
    assert!(plan.tensors[0].reason.contains("Conv1D"), "{plan}");
    let unknown = model(
        &folder,
        "unknown",
        &[("x.fc.weight", random(&[16, 64], 3))],
        &json!({"model_type": "zorblax"}),
    );
    let plan = plan_quantize(&unknown, &options(Layout::ModelOpt)).expect("a plan");
    assert!(plan.architecture.starts_with("architecture zorblax is unknown: "), "{plan}");
}

/// A file of tensors that the index does not name is copied and named.
#[test]
fn files_beside_the_index() {
    let folder = Folder::new("circulation-beside");
    let (codes, scales, global) = nvfp4(16, 64, 5);
    let path = folder.file("source");
    std::fs::create_dir(&path).expect("a folder");
    let tensors = [
        ("m.up_proj.weight", codes),
        ("m.up_proj.weight_scale", scales),
        ("m.up_proj.weight_scale_2", global),
    ];
    checkpoint::write(&path.join("model-00001-of-00001.safetensors"), &tensors, &[])
        .expect("written");
    checkpoint::write(
        &path.join("mtp.safetensors"),
        &[("mtp.fc.weight", random(&[16, 64], 1))],
        &[],
    )
    .expect("written");
    let map: serde_json::Map<String, Value> = (tensors.iter())
        .map(|(name, _)| ((*name).to_owned(), json!("model-00001-of-00001.safetensors")))
        .collect();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(path.join("model.safetensors.index.json"), index).expect("written");
    let source = Model::open(&path).expect("open");
    assert_eq!(source.beside().len(), 1);
    assert!(inspect(&source).expect("readable").to_string().contains("mtp.safetensors"));
    let report = verify(&source, None, &mut ()).expect("verifiable");
    assert!(report.verified && report.to_string().contains("mtp.safetensors"), "{report}");
    let out = folder.file("converted");
    let options = SaveOptions::new(Layout::CompressedTensors);
    let report = convert_model(&source, None, &options, &out, &mut ()).expect("converted");
    assert!(report.notes.iter().any(|note| note.contains("mtp.safetensors")), "{report}");
    assert!(out.join("mtp.safetensors").is_file());
    let out = folder.file("dequantised");
    let report = dequantize_model(&source, &DequantizeOptions::new(), &out, &mut ()).expect("done");
    assert!(report.notes[0].contains("mtp.safetensors") && out.join("mtp.safetensors").is_file());
}

/// Equal values in another float type are a note.
#[test]
fn values_decide_and_not_types() {
    let folder = Folder::new("circulation-types");
    let original = model(
        &folder,
        "original",
        &[
            ("m.up_proj.weight", random(&[16, 64], 1)),
            ("m.norm.weight", tensor(Dtype::F32, &[64], f32s(&[1.5; 64]))),
        ],
        &json!({"model_type": "llama"}),
    );
    let (out, _) = quantised(&original, &folder, Layout::ModelOpt);
    for (value, verified) in [(1.5, true), (1.25, false)] {
        rewrite(&out.join("model.safetensors"), |tensors| {
            let data = (0..64).flat_map(|_| bf16::from_f32(value).to_le_bytes()).collect();
            *named(tensors, "m.norm.weight") = tensor(Dtype::BF16, &[64], data);
        });
        let found = Model::open(&out).expect("open");
        let report = verify(&found, Some(&original), &mut ()).expect("verifiable");
        assert_eq!(report.verified, verified, "{report}");
        let noted = report.findings.iter().any(|finding| finding.severity == Severity::Note);
        assert_eq!(noted, verified, "{report}");
    }
}

/// Experts in one tensor, with a tensor-level scale and a scale of inputs for each.
#[test]
fn scales_of_each_expert_in_one_tensor() {
    let folder = Folder::new("circulation-each");
    let (experts, rows, cols) = (3, 32, 64);
    let all: Vec<_> = (0..experts).map(|at| nvfp4(rows, cols, at as u64 + 1)).collect();
    let joint = |part: &dyn Fn(usize) -> Vec<u8>| (0..experts).flat_map(part).collect::<Vec<u8>>();
    let name = "model.layers.0.mlp.experts.down_proj";
    let tensors = [
        (
            name.to_owned(),
            tensor(Dtype::U8, &[experts, rows, cols / 2], joint(&|at| all[at].0.data.clone())),
        ),
        (
            format!("{name}_weight_scale"),
            tensor(
                Dtype::F8_E4M3,
                &[experts, rows, cols / 16],
                joint(&|at| all[at].1.data.clone()),
            ),
        ),
        (
            format!("{name}_weight_scale_2"),
            tensor(Dtype::F32, &[experts], joint(&|at| all[at].2.data.clone())),
        ),
        (format!("{name}_input_scale"), tensor(Dtype::F32, &[experts], f32s(&[0.5, 0.25, 0.125]))),
    ];
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let config = json!({"model_type": "qwen3_moe", "hidden_size": 32});
    let source = model(&folder, "source", &tensors, &config);
    let out = folder.file("dequantised");
    dequantize_model(&source, &DequantizeOptions::new(), &out, &mut ()).expect("dequantised");
    let out = folder.file("converted");
    let options = SaveOptions::new(Layout::CompressedTensors);
    convert_model(&source, None, &options, &out, &mut ()).expect("converted");
    let found = Model::open(out).expect("open");
    let whole = decoded_weight(&source, name);
    for (expert, input) in [2f32, 4.0, 8.0].into_iter().enumerate() {
        let module = format!("model.layers.0.mlp.experts.{expert}.down_proj");
        assert_eq!(floats_of(&found, &format!("{module}.input_global_scale")), [input]);
        let values = decoded_weight(&found, &format!("{module}.weight"));
        let expected = &whole[expert * rows * cols..][..rows * cols];
        // The divisor is the reciprocal, rounded once.
        let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-6 * y.abs();
        assert!(values.iter().zip(expected).all(near));
    }
}

/// Dead experts: `dequantize` needs no scales of inputs, `convert` repairs them on request.
#[test]
fn scales_of_inputs_of_dead_experts() {
    let folder = Folder::new("circulation-dead");
    let mut tensors = Vec::new();
    for (expert, input) in [0.25, f32::INFINITY, 0.5, 0.0].into_iter().enumerate() {
        let (codes, scales, global) = nvfp4(16, 64, expert as u64);
        let of = format!("model.layers.0.mlp.experts.{expert}.up_proj");
        tensors.extend([
            (format!("{of}.weight"), codes),
            (format!("{of}.weight_scale"), scales),
            (format!("{of}.weight_scale_2"), global),
            (format!("{of}.input_scale"), scalar(input)),
        ]);
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let source = model(&folder, "source", &tensors, &json!({"model_type": "qwen3_moe"}));
    let out = folder.file("dequantised");
    dequantize_model(&source, &DequantizeOptions::new(), &out, &mut ()).expect("dequantised");
    let options = SaveOptions::new(Layout::CompressedTensors);
    let before = folder.names();
    let out = folder.file("converted");
    convert_model(&source, None, &options, &out, &mut ()).expect_err("refused");
    assert_eq!(folder.names(), before);
    let options = options.repair_input_scales(true);
    let report = convert_model(&source, None, &options, &out, &mut ()).expect("converted");
    assert!(
        report.notes.iter().any(|note| note.starts_with("2 of 4 scales of inputs")),
        "{report}"
    );
    let found = Model::open(out).expect("open");
    for (expert, divisor) in [4f32, 2.0, 2.0, 2.0].into_iter().enumerate() {
        let name = format!("model.layers.0.mlp.experts.{expert}.up_proj.input_global_scale");
        assert_eq!(floats_of(&found, &name), [divisor], "{expert}");
    }
}

/// A divisor in the place of a multiplier is refused by every command; an expert without a scale of inputs
/// beside others is named.
#[test]
fn commands_know_what_verify_knows() {
    let folder = Folder::new("circulation-silence");
    let (codes, scales, global) = nvfp4(16, 64, 5);
    let multiplier = f32::from_le_bytes(global.data.clone().try_into().expect("four bytes"));
    let tensors = |global: f32| {
        [
            ("m.experts.0.up_proj.weight", codes.clone()),
            ("m.experts.0.up_proj.weight_scale", scales.clone()),
            ("m.experts.0.up_proj.weight_scale_2", scalar(global)),
            ("m.experts.0.up_proj.input_scale", scalar(0.5)),
            ("m.experts.1.up_proj.weight", codes.clone()),
            ("m.experts.1.up_proj.weight_scale", scales.clone()),
            ("m.experts.1.up_proj.weight_scale_2", scalar(multiplier)),
        ]
    };
    let config = json!({"model_type": "qwen3_moe"});
    let wrong = model(&folder, "wrong", &tensors(1.0 / multiplier), &config);
    let before = folder.names();
    let out = folder.file("out");
    let options = SaveOptions::new(Layout::CompressedTensors);
    let errors = [
        convert_model(&wrong, None, &options, &out, &mut ()).expect_err("refused"),
        dequantize_model(&wrong, &DequantizeOptions::new(), &out, &mut ()).expect_err("refused"),
    ];
    for error in errors {
        assert!(error.to_string().contains("looks like a divisor"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    assert_eq!(folder.names(), before);
    let right = model(&folder, "right", &tensors(multiplier), &config);
    let report = convert_model(&right, None, &options, &out, &mut ()).expect("converted");
    let note = "1 of 2 experts of m.experts.*.up_proj have no scale of inputs";
    assert!(report.notes.iter().any(|x| x.starts_with(note)), "{report}");
}

/// `config.json` may have the method of the model's first quantisation beside ModelOpt's own file.
#[test]
fn two_configurations() {
    let folder = Folder::new("circulation-two");
    let (codes, scales, global) = nvfp4(16, 64, 5);
    let source = model(
        &folder,
        "source",
        &[
            ("m.up_proj.weight", codes),
            ("m.up_proj.weight_scale", scales),
            ("m.up_proj.weight_scale_2", global),
        ],
        &json!({"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}}),
    );
    let layers = json!({"m.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}});
    let hf = json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}});
    std::fs::write(source.path().join("hf_quant_config.json"), hf.to_string()).expect("written");
    let source = Model::open(source.path()).expect("open");
    let report = verify(&source, None, &mut ()).expect("verifiable");
    assert!(report.verified, "{report}");
}

/// MiniMax-M2's experts have Mixtral's names in ModelOpt's layout.
#[test]
fn minimax_to_modelopt() {
    let folder = Folder::new("circulation-minimax");
    let of = "model.layers.0.block_sparse_moe.experts.0";
    let projections = ["gate_proj", "up_proj", "down_proj"];
    let mut tensors = Vec::new();
    for (at, projection) in projections.into_iter().enumerate() {
        let (codes, scales, global) = nvfp4(16, 64, at as u64);
        let multiplier = f32::from_le_bytes(global.data.try_into().expect("four bytes"));
        tensors.extend([
            (format!("{of}.{projection}.weight_packed"), codes),
            (format!("{of}.{projection}.weight_scale"), scales),
            (
                format!("{of}.{projection}.weight_global_scale"),
                tensor(Dtype::F32, &[1], f32s(&[1.0 / multiplier])),
            ),
        ]);
    }
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let source = model(&folder, "source", &tensors, &json!({"model_type": "minimax_m2"}));
    let out = folder.file("out");
    convert_model(&source, None, &SaveOptions::new(Layout::ModelOpt), &out, &mut ())
        .expect("converted");
    let found = Model::open(out).expect("open");
    for name in ["w1", "w2", "w3"] {
        assert!(found.contains(&format!("{of}.{name}.weight")), "{name}");
    }
}
