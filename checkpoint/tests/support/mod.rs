//! Test support of checkpoints: a model, ways to look at files and to damage them.
#![allow(dead_code, reason = "each test takes what it needs")]

#[path = "../../../host/tests/support/mod.rs"]
mod library;

use std::path::Path;

pub use library::*;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::rng::SplitMix64;
use nvfp4_checkpoint::{self as checkpoint, Layout, Model, ModelOptions, NewTensor};
use safetensors::Dtype;

pub fn tensor(dtype: Dtype, shape: &[usize], data: Vec<u8>) -> NewTensor {
    NewTensor { dtype, shape: shape.to_vec(), data }
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Normal values, each row with its own magnitude.
pub fn normal(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed);
    let row_scale = |row: usize| 0.02 * ((row % 5) as f64 + 1.0);
    (0..rows * cols).map(|at| (rng.normal() * row_scale(at / cols)) as f32).collect()
}

pub fn random(shape: &[usize], seed: u64) -> NewTensor {
    let cols = *shape.last().expect("a dimension");
    let rows = shape.iter().product::<usize>() / cols;
    tensor(Dtype::F32, shape, f32s(&normal(rows, cols, seed)))
}

/// A model: two layers, one of them with experts in one tensor, and what is not quantised.
pub fn write_model(path: &Path) {
    let tensors = [
        ("model.embed_tokens.weight", random(&[7, 64], 1)),
        ("model.layers.0.mlp.up.weight", random(&[130, 64], 2)),
        ("model.layers.0.mlp.up.bias", random(&[130], 3)),
        ("model.layers.0.norm.weight", random(&[64], 4)),
        ("model.layers.1.experts.gate_up.weight", random(&[3, 10, 96], 5)),
        ("model.layers.1.experts.gate_up_bias", random(&[3, 10], 8)),
        ("model.layers.1.mlp.down.weight", random(&[5, 96], 6)),
        ("model.layers.1.mlp.odd.weight", random(&[4, 40], 7)),
        ("model.steps", tensor(Dtype::I64, &[], 7u64.to_le_bytes().to_vec())),
    ];
    checkpoint::write(path, &tensors, &[]).expect("written");
}

/// The tensors of [`write_model`] that are quantised.
pub const WEIGHTS: [&str; 3] = [
    "model.layers.0.mlp.up.weight",
    "model.layers.1.experts.gate_up.weight",
    "model.layers.1.mlp.down.weight",
];

/// Options under which all of [`WEIGHTS`] are quantised, whatever the layout.
pub fn options(format: Format, layout: Layout) -> ModelOptions {
    let recipe = recipe_by_name(format, "torchao").expect("known");
    ModelOptions::new(recipe, layout).experts_only(false)
}

/// Whether a layout holds any tensor. GGUF has names for known architectures only, MLX no tensor-level scales
/// and experts of known families alone, DeepSeek's routed experts alone; Quark's and AutoRound's are read only.
pub fn is_general(layout: &Layout) -> bool {
    !matches!(
        layout,
        Layout::Gguf | Layout::Mlx | Layout::DeepSeek | Layout::Quark | Layout::AutoRound
    )
}

/// Every such layout with every format that it has.
pub fn combinations() -> Vec<(Layout, Format)> {
    let formats = [Format::Nvfp4, Format::Mxfp4];
    Layout::ALL
        .into_iter()
        .flat_map(|layout| formats.map(|format| (layout, format)))
        .filter(|(layout, format)| layout.supports(*format) && is_general(layout))
        .collect()
}

/// Quantises [`write_model`] into a subfolder, and opens the result.
pub fn quantized(folder: &Folder, name: &str, layout: Layout, format: Format) -> Model {
    let source = folder.file("source.safetensors");
    if !source.exists() {
        write_model(&source);
    }
    let model = Model::open(&source).expect("a model");
    let out = folder.file(name);
    checkpoint::quantize_model(&model, &options(format, layout), &out, None, &mut ())
        .unwrap_or_else(|error| panic!("{layout} {}: {error}", format.name()));
    Model::open(out).expect("a checkpoint")
}

/// Tensors by name, in the order of a file.
pub type Tensors = Vec<(String, NewTensor)>;

/// All tensors of a file as they could be written again.
pub fn tensors(path: &Path) -> Tensors {
    let file = checkpoint::Checkpoint::open(path).expect("a file");
    let entries = file.entries().into_iter();
    entries
        .map(|entry| {
            let raw = file.raw(&entry.name).expect("listed");
            (entry.name, tensor(raw.dtype, &raw.shape, raw.data.to_vec()))
        })
        .collect()
}

/// Writes a file again with its tensors changed by `edit`; metadata is lost.
pub fn rewrite(path: &Path, edit: impl FnOnce(&mut Tensors)) {
    let mut tensors = tensors(path);
    edit(&mut tensors);
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(path, &tensors, &[]).expect("written");
}

/// The tensor of this name among `tensors`.
pub fn named<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut NewTensor {
    let found = tensors.iter_mut().find(|(other, _)| other == name);
    &mut found.unwrap_or_else(|| panic!("there is a tensor {name}")).1
}
