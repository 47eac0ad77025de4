//! Tensor-level scales of weights that readers join: q, k and v; gate and up.

use std::path::Path;

use crate::support::*;
use half::bf16;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, Layout, Model, ModelOptions, NewTensor, SaveOptions, Severity,
    VerifyOptions, Weight, convert_model, load, quantize_model, verify, verify_with,
};
use safetensors::Dtype;

const ATTENTION: [&str; 3] = ["q_proj", "k_proj", "v_proj"];
const GATED: [&str; 2] = ["gate_proj", "up_proj"];

fn attention(name: &str) -> String {
    format!("model.layers.0.self_attn.{name}.weight")
}

fn expert(name: &str) -> String {
    format!("model.layers.0.mlp.experts.1.{name}.weight")
}

/// A layer whose projections have their own magnitudes; v has 1.32 times the smallest scale.
fn write_layer(path: &Path) {
    let scaled = |rows, factor: f32, seed| {
        let values = normal(rows, 64, seed);
        let largest = values.iter().fold(0f32, |max, x| max.max(x.abs()));
        let values: Vec<f32> = values.iter().map(|x| x / largest * factor).collect();
        tensor(Dtype::F32, &[rows, 64], f32s(&values))
    };
    let tensors = [
        (attention("q_proj"), scaled(64, 0.1, 1)),
        (attention("k_proj"), scaled(32, 0.132, 2)),
        (attention("v_proj"), scaled(32, 0.1, 3)),
        (attention("o_proj"), scaled(64, 0.3, 4)),
        (expert("gate_proj"), scaled(96, 0.2, 5)),
        (expert("up_proj"), scaled(96, 0.15, 6)),
        (expert("down_proj"), scaled(64, 0.5, 7)),
    ];
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(path, &tensors, &[]).expect("written");
}

fn source(folder: &Folder) -> Model {
    let path = folder.file("source.safetensors");
    write_layer(&path);
    Model::open(path).expect("a model")
}

fn weight(model: &Model, name: &str) -> Weight {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let part = parts.iter().find(|part| part.name == name).expect("quantised");
    load(model, layout, part).expect("valid")
}

/// The tensor-level scale of a weight in its layout's convention.
fn stored(model: &Model, name: &str) -> f32 {
    let convention = Layout::detect(model).expect("quantised").convention();
    weight(model, name).global.expect("two levels").stored(convention)
}

fn quantized_layer(folder: &Folder, model: &Model, layout: Layout, recipe: &str) -> Model {
    let recipe = recipe_by_name(Format::Nvfp4, recipe).expect("known");
    let out = folder.file(&format!("{layout} {}", folder.names().len()));
    let options = ModelOptions::new(recipe, layout);
    quantize_model(model, &options, &out, None, &mut ()).expect("quantised");
    Model::open(out).expect("a checkpoint")
}

#[test]
fn joined_weights_are_quantised_with_one_scale() {
    let folder = Folder::new("shared-quantize");
    let original = source(&folder);
    for layout in [Layout::ModelOpt, Layout::CompressedTensors] {
        for recipe in ["torchao", "modelopt", "compressed-tensors", "te"] {
            let model = quantized_layer(&folder, &original, layout, recipe);
            let scales = ATTENTION.map(|name| stored(&model, &attention(name)));
            assert_eq!(scales, [scales[0]; 3], "{layout} {recipe}");
            // The one scale is that of the largest value of all three.
            let multiplier = weight(&model, &attention("q_proj")).global.expect("two levels");
            let expected = 0.132 / 2688.0;
            assert!((multiplier.multiplier() / expected - 1.0).abs() < 1e-6, "{layout} {recipe}");
            let scales = GATED.map(|name| stored(&model, &expert(name)));
            assert_eq!(scales[0], scales[1], "{layout} {recipe}");
            assert_ne!(stored(&model, &attention("o_proj")), scales[0], "{layout} {recipe}");
            let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
            assert!(report.findings.is_empty(), "{report}");
            assert!(report.least_sqnr_db.expect("compared") > 18.0, "{report}");
        }
    }
    // TorchAO's readers do not join, and its recipe gives each tensor its own scale.
    let model = quantized_layer(&folder, &original, Layout::TorchAo, "torchao");
    assert_ne!(stored(&model, &attention("q_proj")), stored(&model, &attention("k_proj")));
}

/// The same bytes on a device.
#[test]
fn devices_share_scales_too() {
    let folder = Folder::new("shared-device");
    let original = source(&folder);
    let recipe = recipe_by_name(Format::Nvfp4, "modelopt").expect("known");
    let options = ModelOptions::new(recipe, Layout::ModelOpt);
    let cpu = folder.file("cpu");
    let expected = quantize_model(&original, &options, &cpu, None, &mut ()).expect("quantised");
    for kernels in machines() {
        let out = folder.file(kernels.device().choice().arch.name());
        let report = quantize_model(&original, &options, &out, Some(&kernels), &mut ());
        let report = report.expect("quantised");
        assert_eq!(
            (&report.shared, report.values, report.underflows),
            (&expected.shared, expected.values, expected.underflows)
        );
        let [cpu, out] = [&cpu, &out].map(|x| std::fs::read(x.join("model.safetensors")));
        assert!(cpu.expect("readable") == out.expect("readable"), "other bytes");
    }
}

/// A checkpoint whose scales differ: what TorchAO writes, under ModelOpt's names.
fn unshared(folder: &Folder, original: &Model) -> Model {
    let torchao = quantized_layer(folder, original, Layout::TorchAo, "torchao");
    let out = folder.file("unshared");
    let options = SaveOptions::new(Layout::ModelOpt);
    let report = convert_model(&torchao, None, &options, &out, &mut ()).expect("convertible");
    assert_eq!(report.unshared.len(), 2, "{report}");
    assert!(report.shared.is_empty(), "{report}");
    let text = report.to_string();
    assert!(text.contains("warning: readers join"), "{text}");
    assert!(text.contains("k_proj") && text.contains("--share-scales"), "{text}");
    Model::open(out).expect("a checkpoint")
}

#[test]
fn differing_scales_are_reported_with_what_readers_make_of_them() {
    let folder = Folder::new("shared-verify");
    let original = source(&folder);
    let model = unshared(&folder, &original);
    let findings = |original: Option<&Model>| {
        let report = verify(&model, original, &mut ()).expect("verifiable");
        assert!(report.verified, "{report}");
        let found = report.findings.into_iter();
        found
            .map(|finding| {
                assert_eq!((finding.severity, finding.kind), (Severity::Warning, "shared-scale"));
                finding.message
            })
            .collect::<Vec<String>>()
    };
    // 1.32 times as large is 20 log10(1 / 0.32) = 9.9 dB by itself, less with the noise there is.
    let alone = findings(None);
    assert_eq!(alone.len(), 2, "{alone:?}");
    let (k, q) = (attention("k_proj"), attention("q_proj"));
    assert!(alone[1].contains(&k), "{alone:?}");
    let expected = format!("{q} is 1.3200 times as large then, 9.9 dB");
    assert!(alone[1].contains(&expected), "{alone:?}");
    let against = findings(Some(&original));
    let db = |text: &str| -> f64 {
        let start = text.find(&format!("{q} is 1.3200 times as large then, ")).expect("named");
        let text = &text[start..];
        let text = text.split("then, ").nth(1).expect("a ratio");
        text.split(' ').next().expect("a number").parse().expect("a number")
    };
    assert!((9.0..9.9).contains(&db(&against[1])), "{against:?}");
}

#[test]
fn scales_are_shared_on_request() {
    let folder = Folder::new("shared-convert");
    let original = source(&folder);
    let model = unshared(&folder, &original);
    for layout in [Layout::ModelOpt, Layout::CompressedTensors] {
        let out = folder.file(&format!("shared {layout}"));
        let options = SaveOptions::new(layout).share_scales(true);
        let report = convert_model(&model, None, &options, &out, &mut ()).expect("convertible");
        assert!(report.unshared.is_empty(), "{report}");
        assert_eq!(report.shared.len(), 2, "{report}");
        for group in &report.shared {
            let db = group.least_db.expect("rounded");
            assert!((24.0..60.0).contains(&db), "{report}");
        }
        let shared = Model::open(out).expect("a checkpoint");
        let scales = ATTENTION.map(|name| stored(&shared, &attention(name)));
        assert_eq!(scales, [scales[0]; 3], "{layout}");
        // Values between two codes were rounded by the old scale, then once more by the new one,
        // which is off by up to a sixteenth.
        let report = verify(&shared, Some(&original), &mut ()).expect("verifiable");
        assert!(report.verified && !report.findings.is_empty(), "{report}");
        assert!(report.findings.iter().all(|x| x.kind == "rounded-twice"), "{report}");
        let bound = VerifyOptions::new().block_bound(2.5);
        let report = verify_with(&shared, Some(&original), bound, &mut ()).expect("verifiable");
        assert!(report.verified && report.findings.is_empty(), "{report}");
        assert!(report.least_sqnr_db.expect("compared") > 16.0, "{report}");
        // The weight whose scale it is has not changed, nor has one outside the groups.
        for name in [attention("k_proj"), attention("o_proj"), expert("gate_proj")] {
            let [before, after] = [&model, &shared].map(|model| weight(model, &name).blocks);
            assert_eq!(before.codes(), after.codes(), "{layout} {name}");
            assert_eq!(before.scales(), after.scales(), "{layout} {name}");
        }
    }
}

/// Scales that differ by a power of two are shared without changing a value.
#[test]
fn powers_of_two_are_exact() {
    let folder = Folder::new("shared-exact");
    let original = source(&folder);
    quantized_layer(&folder, &original, Layout::ModelOpt, "modelopt");
    let path = folder.file("modelopt 1/model.safetensors");
    let values = |model: &Model, name: &str| -> Vec<f32> {
        weight(model, &attention(name)).blocks.dequantize().expect("small")
    };
    rewrite(&path, |tensors| {
        // Half the scale of the tensor and twice that of each block: the same values.
        let global = named(tensors, &format!("{}_scale_2", attention("v_proj")));
        let value = f32::from_le_bytes(global.data[..].try_into().expect("4 bytes"));
        global.data = f32s(&[value * 4.0]);
        for byte in &mut named(tensors, &format!("{}_scale", attention("v_proj"))).data {
            *byte -= 2 << 3;
        }
    });
    let before = Model::open(folder.file("modelopt 1")).expect("a checkpoint");
    let out = folder.file("out");
    let options = SaveOptions::new(Layout::ModelOpt).share_scales(true);
    let report = convert_model(&before, None, &options, &out, &mut ()).expect("convertible");
    assert_eq!(report.shared.len(), 1, "{report}");
    assert_eq!(report.shared[0].least_db, None, "{report}");
    let after = Model::open(out).expect("a checkpoint");
    let scales = ATTENTION.map(|name| stored(&after, &attention(name)));
    assert_eq!(scales, [scales[0]; 3]);
    for name in ATTENTION {
        assert_eq!(values(&before, name), values(&after, name), "{name}");
    }
}

/// Weights that become NVFP4 by conversion have one scale without being asked for it, as they may
/// have any.
#[test]
fn reformatted_weights_share_a_scale() {
    let folder = Folder::new("shared-reformatted");
    let original = source(&folder);
    let mxfp4 = folder.file("mxfp4");
    let options = options(Format::Mxfp4, Layout::CompressedTensors);
    quantize_model(&original, &options, &mxfp4, None, &mut ()).expect("quantised");
    // One of the weights a few binades above the others.
    rewrite(&mxfp4.join("model.safetensors"), |tensors| {
        let scales = named(tensors, &format!("{}_scale", attention("k_proj")));
        scales.data.iter_mut().for_each(|byte| *byte += 3);
    });
    let before = Model::open(&mxfp4).expect("a checkpoint");
    let out = folder.file("out");
    let options = SaveOptions::new(Layout::ModelOpt);
    let format = Some(Format::Nvfp4);
    let report = convert_model(&before, format, &options, &out, &mut ()).expect("convertible");
    assert!(report.unshared.is_empty(), "{report}");
    let after = Model::open(out).expect("a checkpoint");
    let scales = ATTENTION.map(|name| stored(&after, &attention(name)));
    assert_eq!(scales, [scales[0]; 3]);
    for name in ATTENTION {
        let [before, after] =
            [&before, &after].map(|model| weight(model, &attention(name)).blocks.dequantize());
        assert_eq!(before.expect("small"), after.expect("small"), "{name}");
    }
}

/// compressed-tensors computes 2688 times the reciprocal in the model's own type: 9760.7 for
/// 0.2754, in bf16 3.625 * 2688 and so 9728.
#[test]
fn compressed_tensors_divisor_has_the_models_type() {
    let folder = Folder::new("shared-divisor");
    const AMAX: f32 = 141.0 / 512.0;
    let path = folder.file("source.safetensors");
    let mut values = vec![bf16::from_f32(0.01); 32 * 64];
    values[77] = bf16::from_f32(-AMAX);
    let stored_as = |dtype| match dtype {
        Dtype::F32 => values.iter().flat_map(|x| x.to_f32().to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
    };
    for (dtype, expected) in [(Dtype::F32, 1.0 / AMAX * 2688.0), (Dtype::BF16, 9728.0)] {
        let weight = tensor(dtype, &[32, 64], stored_as(dtype));
        checkpoint::write(&path, &[("m.weight", weight)], &[]).expect("written");
        let original = Model::open(&path).expect("a model");
        let layout = Layout::CompressedTensors;
        let model = quantized_layer(&folder, &original, layout, "compressed-tensors");
        assert_eq!(stored(&model, "m.weight"), expected, "{dtype:?}");
        // The other projects divide in f32.
        let model = quantized_layer(&folder, &original, layout, "te");
        assert_eq!(stored(&model, "m.weight"), 2688.0 / AMAX, "{dtype:?}");
    }
}

/// gpt-oss's readers know experts only.
#[test]
fn gpt_oss_has_experts_only() {
    let folder = Folder::new("shared-gpt-oss");
    let path = folder.file("source.safetensors");
    write_model(&path);
    let model = Model::open(&path).expect("a model");
    let recipe = recipe_by_name(Format::Mxfp4, "torchao").expect("known");
    let options = ModelOptions::new(recipe, Layout::GptOss);
    let report = quantize_model(&model, &options, &folder.file("out"), None, &mut ());
    let report = report.expect("quantised");
    assert_eq!(report.quantized, ["model.layers.1.experts.gate_up.weight"]);
    let up = report.left.iter().find(|left| left.tensor == "model.layers.0.mlp.up.weight");
    assert_eq!(up.expect("left").reason, "no experts");
}

/// Values whose codes are zero are counted, and zeros are not among them.
#[test]
fn underflows_are_counted() {
    let folder = Folder::new("shared-underflow");
    let path = folder.file("source.safetensors");
    // In each block of 16: one 6, three that are less than a quarter of the block's scale, zeros.
    let mut values = vec![0f32; 8 * 32];
    for block in values.chunks_exact_mut(16) {
        block[..4].copy_from_slice(&[6.0, 0.2, -0.2, 1e-30]);
    }
    let original = tensor(Dtype::F32, &[8, 32], f32s(&values));
    checkpoint::write(&path, &[("m.weight", original)], &[]).expect("written");
    let model = Model::open(&path).expect("a model");
    let options = options(Format::Nvfp4, Layout::ModelOpt);
    let report = quantize_model(&model, &options, &folder.file("out"), None, &mut ());
    let report = report.expect("quantised");
    assert_eq!((report.values, report.underflows), (64, 48));
    let text = report.to_string();
    assert!(text.contains("48 of 64 values other than 0 became 0 (75.00 %)"), "{text}");
}
