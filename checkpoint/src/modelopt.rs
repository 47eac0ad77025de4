//! NVIDIA ModelOpt's unified export (nvidia-modelopt 0.47, `modelopt/torch/export`).
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U8 | `[.., N, K/2]` |
//! | `m.weight_scale` | nvfp4: F8_E4M3, mxfp4: U8, of others F8_E8M0 | `[.., N, K/16]`, or `K/32` |
//! | `m.weight_scale_2` | F32 | `[]`: amax / (6 * 448); nvfp4 only |
//! | `m.input_scale` | F32 | `[]`: amax of the input / (6 * 448); only with quantised activations |
//!
//! Scales of matrices in NVFP4 may be in 128x4 tiles, `[N to 128, K/16 to 4]`, as ModelOpt's
//! `enable_swizzle_layout` writes them and ComfyUI reads them: the files' metadata has
//! `_quantization_metadata` with these layers, or there is a tensor `m.comfy_quant`.
//!
//! NVFP4 has groups of 32 in `W4A8_NVFP4_FP8` and where a recipe asks for them. Experts that the
//! model has in one tensor `x`, `[experts, K, N]` (gpt-oss, Llama 4), keep its name and order:
//!
//! | tensor | nvfp4 | mxfp4, blocks along N |
//! | --- | --- | --- |
//! | `x` | `[experts, K/2, N]` | `[experts, K, N/2]` |
//! | `x_weight_scale` | `[experts, K/16, N]` | `[experts, K, N/32]` |
//! | `x_weight_scale_2`, `x_input_scale` | `[]` | |
//!
//! `hf_quant_config.json` names the algorithm and the excluded modules or, where there are several
//! algorithms, the algorithm of each module; `quantization_config` in `config.json` repeats it.

use std::collections::{BTreeMap, BTreeSet};

use fp4_formats::ScaleLayout;
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::contents::{Contents, Description};
use super::file::RawTensor;
use super::inputs::Inputs;
use super::model::Model;
use super::orientation::{EXPERTS, Orientation};
use super::parts::{Content, Parts, Piece, present};
use super::weight::{Order, WeightSpec, module};

/// Names of the scales of a weight and of its input.
struct Names {
    scales: String,
    global: String,
    input: String,
}

impl Names {
    fn of(name: &str) -> Self {
        match name.ends_with(EXPERTS) {
            true => Self {
                scales: format!("{name}_weight_scale"),
                global: format!("{name}_weight_scale_2"),
                input: format!("{name}_input_scale"),
            },
            false => Self {
                scales: format!("{name}_scale"),
                global: format!("{name}_scale_2"),
                input: format!("{}.input_scale", module(name)),
            },
        }
    }
}

/// A matrix of bytes is a weight if it has scales of bytes, or if it has none and its name ends in
/// `.weight`. Floats as scales belong to integers.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let tiles = Tiles::of(model);
    let mut parts: Vec<Parts> =
        model.names().filter_map(|name| part(model, &tiles, name)).collect();
    if is_of_gptqmodel(model) {
        for part in &mut parts {
            part.global = part.global.take().filter(|global| model.contains(global));
        }
    }
    parts
}

/// Whether the configuration says that gptqmodel wrote the checkpoint, whose layers in NVFP4 have a single level of
/// scales.
pub(super) fn is_of_gptqmodel(model: &Model) -> bool {
    let Some(config) = model.quantization_config() else { return false };
    let stated = &config["meta"]["quantizer"];
    let all = stated.as_array().into_iter().flatten().chain([stated]);
    all.filter_map(Value::as_str).any(|quantizer| quantizer.starts_with("gptqmodel"))
}

/// Key of a file's metadata with the layers whose scales are in 128x4 tiles, by which ModelOpt's
/// `enable_swizzle_layout` and ComfyUI mark a checkpoint.
const QUANTIZATION_METADATA: &str = "_quantization_metadata";

/// The layers whose scales are in 128x4 tiles.
enum Tiles {
    /// The layers that the file names.
    Named(BTreeSet<String>),
    /// All, for the file names none.
    All,
}

impl Tiles {
    fn of(model: &Model) -> Self {
        let Some(text) = model.metadata(QUANTIZATION_METADATA) else {
            return Self::Named(BTreeSet::new());
        };
        let stated: Value = serde_json::from_str(text).unwrap_or_default();
        match stated["layers"].as_object() {
            Some(layers) => Self::Named(layers.keys().cloned().collect()),
            None => Self::All,
        }
    }

    /// Whether a matrix has its scales in tiles, whose size they must have; `None` if the shape decides.
    fn has(
        &self,
        model: &Model,
        module: &str,
        codes: &RawTensor<'_>,
        scales: &str,
    ) -> Option<bool> {
        let marked = match self {
            Self::All => true,
            Self::Named(layers) => {
                layers.contains(module) || model.contains(&format!("{module}.comfy_quant"))
            }
        };
        let (&[rows, pairs], true) = (codes.shape.as_slice(), marked) else { return None };
        let blocks = if codes.dtype == Dtype::F4 { pairs / 16 } else { pairs / 8 };
        let tiles = ScaleLayout::Blocked128x4.bytes(rows, blocks).ok()?;
        let stored = model.raw(scales).ok()?.data.len();
        (stored == tiles).then_some(true)
    }
}

fn part(model: &Model, tiles: &Tiles, name: &str) -> Option<Parts> {
    let raw = model.raw(name).ok()?;
    if !matches!(raw.dtype, Dtype::U8 | Dtype::F4) || raw.shape.len() < 2 {
        return None;
    }
    let Names { scales, global, input } = Names::of(name);
    let scale = model.raw(&scales).ok();
    let is_weight = match &scale {
        Some(scale) => !matches!(scale.dtype, Dtype::BF16 | Dtype::F32) || scale.shape.len() < 2,
        None => name.ends_with(".weight"),
    };
    if !is_weight {
        return None;
    }
    // Without its second scale, a weight in NVFP4 would be at least 448 times too large, so it is
    // required; scales of MXFP4 are bytes.
    let ue8m0 = |dtype| matches!(dtype, Dtype::U8 | Dtype::F8_E8M0);
    let bytes = scale.as_ref().is_some_and(|scale| ue8m0(scale.dtype));
    let format = if bytes && !model.contains(&global) { Format::Mxfp4 } else { Format::Nvfp4 };
    let block = format.block() as usize;
    let transposed =
        match (raw.shape.as_slice(), scale.as_ref().map(|scale| scale.shape.as_slice())) {
            (&[_, pairs, n], Some(&[_, blocks, scale_n])) => {
                n == scale_n && pairs.checked_mul(2) == blocks.checked_mul(block)
            }
            _ => false,
        };
    let order = match (format, raw.shape.as_slice()) {
        _ if transposed => Order::InputFirst,
        (Format::Mxfp4, &[experts, first, pairs]) if name.ends_with(EXPERTS) => {
            match Orientation::of_stored(model, name, [experts, first, pairs.saturating_mul(2)]) {
                Some(Orientation::OutputFirst) => Order::OutputFirst,
                Some(Orientation::InputFirst) | None => Order::AlongOutput,
            }
        }
        _ => Order::OutputFirst,
    };
    // Tiles of a single matrix may also follow from the shape, which is padded then.
    let swizzled = match (format, raw.shape.len()) {
        (Format::Nvfp4, 2) => tiles.has(model, module(name), &raw, &scales),
        _ => Some(false),
    };
    Some(Parts {
        name: name.into(),
        format,
        codes: name.into(),
        scales,
        global: (format == Format::Nvfp4).then_some(global),
        input: present(model, input),
        codes_in_blocks: false,
        swizzled,
        original: None,
        order,
        transposed,
    })
}

/// The metadata of a file whose weights have their scales in tiles.
pub(super) fn metadata(weights: &[(WeightSpec, ScaleLayout)]) -> BTreeMap<String, String> {
    let tiled = weights.iter().filter(|(_, scales)| *scales == ScaleLayout::Blocked128x4);
    let layers: BTreeMap<&str, Value> =
        tiled.map(|(weight, _)| (weight.module(), json!({"format": "nvfp4"}))).collect();
    if layers.is_empty() {
        return BTreeMap::new();
    }
    let stated = json!({"format_version": "1.0", "layers": layers});
    BTreeMap::from([(QUANTIZATION_METADATA.to_owned(), stated.to_string())])
}

pub(super) fn pieces(weight: &WeightSpec, layout: ScaleLayout) -> Result<Vec<Piece>, String> {
    let tiles = layout == ScaleLayout::Blocked128x4;
    if tiles && (weight.format != Format::Nvfp4 || weight.shape.len() != 2 || weight.group != 16) {
        return Err(
            "only matrices in nvfp4 in groups of 16 have their scales in 128x4 tiles".into()
        );
    }
    let name = &weight.name;
    if weight.order == Order::InputFirst && weight.format == Format::Mxfp4 {
        return Err(
            "its readers expect blocks of mxfp4 along the output dimension of experts that \
                    the model has as [experts, K, N]"
                .into(),
        );
    }
    let names = Names::of(name);
    let transposed = weight.order == Order::InputFirst;
    let stored = |mut shape: Vec<usize>| {
        if let (true, [.., rows, cols]) = (transposed, shape.as_mut_slice()) {
            std::mem::swap(rows, cols);
        }
        shape
    };
    let codes = stored(weight.with_last(&[weight.cols() / 2]));
    let scale_shape = match (tiles, weight.shape.as_slice()) {
        (true, &[rows, cols]) => {
            vec![
                rows.next_multiple_of(TILE_ROWS),
                (cols / weight.group).next_multiple_of(TILE_BLOCKS),
            ]
        }
        _ => stored(weight.with_last(&[weight.cols() / weight.group])),
    };
    let scale_type = match weight.format {
        Format::Nvfp4 => Dtype::F8_E4M3,
        Format::Mxfp4 => Dtype::U8,
    };
    let scales = Content::Scales(layout);
    let mut pieces = vec![
        Piece::new(name.clone(), Dtype::U8, codes, Content::Codes),
        Piece::new(names.scales, scale_type, scale_shape, scales),
    ];
    pieces.iter_mut().for_each(|piece| piece.transposed = transposed);
    if weight.format == Format::Nvfp4 {
        pieces.push(Piece::new(names.global, Dtype::F32, vec![], Content::Global));
    }
    if weight.input {
        pieces.push(Piece::new(names.input, Dtype::F32, vec![], Content::Input));
    }
    Ok(pieces)
}

/// The name of an algorithm.
fn algorithm(format: Format, inputs: Inputs) -> &'static str {
    match (format, inputs) {
        (Format::Nvfp4, Inputs::Calibrated) => "NVFP4",
        (Format::Nvfp4, Inputs::Fp8) => "W4A8_NVFP4_FP8",
        (Format::Nvfp4, Inputs::Float | Inputs::Dynamic | Inputs::OneLevel | Inputs::Other) => {
            "W4A16_NVFP4"
        }
        // The name that its export has.
        (Format::Mxfp4, _) => "mxfp4",
    }
}

/// Layers with one algorithm.
struct Group<'a> {
    algorithm: &'static str,
    size: Option<usize>,
    modules: Vec<&'a str>,
}

impl Group<'_> {
    /// Returns its entry for each layer.
    fn entry(&self) -> Value {
        let mut entry = json!({"quant_algo": self.algorithm});
        if let Some(size) = self.size {
            entry["group_size"] = size.into();
        }
        entry
    }

    /// The group in `config_groups`, where ModelOpt has one for the algorithm.
    fn config(&self) -> Option<Value> {
        let size = self.size;
        let four = json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": size});
        let eight = json!({"dynamic": false, "num_bits": 8, "type": "float"});
        match self.algorithm {
            "FP8" => Some(json!({"input_activations": eight, "weights": eight})),
            "NVFP4" => Some(json!({"input_activations": four, "weights": four})),
            "W4A16_NVFP4" => Some(json!({"weights": four})),
            "W4A8_NVFP4_FP8" => Some(json!({"input_activations": eight, "weights": four})),
            _ => None,
        }
    }
}

pub(super) fn describe(contents: &Contents) -> Description {
    let groups = contents.alike();
    let mut groups: Vec<Group<'_>> = groups
        .iter()
        .map(|alike| Group {
            algorithm: algorithm(alike.format, alike.inputs),
            size: (alike.format == Format::Nvfp4).then_some(alike.group),
            modules: alike.weights.iter().map(|weight| weight.module()).collect(),
        })
        .collect();
    if !contents.extras.others.is_empty() {
        let modules = contents.extras.others.iter().map(|other| other.module.as_str()).collect();
        groups.push(Group { algorithm: "FP8", size: None, modules });
    }
    for group in &mut groups {
        group.modules.sort_unstable();
        group.modules.dedup();
    }
    let producer = json!({"name": "nvfp4", "version": env!("CARGO_PKG_VERSION")});
    let mut config = json!({"quant_method": "modelopt", "producer": producer});
    let mut quantization = json!({"kv_cache_quant_algo": null});
    match groups.as_slice() {
        [only] => {
            quantization["quant_algo"] = only.algorithm.into();
            if let Some(size) = only.size {
                quantization["group_size"] = size.into();
            }
            quantization["exclude_modules"] = json!(contents.left);
            config["quant_algo"] = only.algorithm.into();
            config["ignore"] = json!(contents.left);
            // An export with FP8 inputs has no groups.
            if let Some(mut group) = only.config().filter(|_| !only.algorithm.starts_with("W4A8")) {
                group["targets"] = json!(["Linear"]);
                config["config_groups"] = json!({"group_0": group});
            }
        }
        several => {
            let layers: BTreeMap<&str, Value> = several
                .iter()
                .flat_map(|group| group.modules.iter().map(|module| (*module, group.entry())))
                .collect();
            let mut config_groups = serde_json::Map::new();
            for (at, group) in several.iter().enumerate() {
                let mut value =
                    group.config().unwrap_or_else(|| json!({"quant_algo": group.algorithm}));
                value["targets"] = json!(group.modules);
                config_groups.insert(format!("group_{at}"), value);
            }
            quantization["quant_algo"] = "MIXED_PRECISION".into();
            quantization["quantized_layers"] = json!(layers);
            config["quant_algo"] = "MIXED_PRECISION".into();
            config["quantized_layers"] = json!(layers);
            config["config_groups"] = config_groups.into();
            config["ignore"] = json!([]);
        }
    }
    if contents.extras.kv_fp8 {
        quantization["kv_cache_quant_algo"] = "FP8".into();
        config["kv_cache_scheme"] = json!({"dynamic": false, "num_bits": 8, "type": "float"});
    }
    Description {
        expert_dtype: None,
        quantization: None,
        quantization_config: Some(config),
        files: vec![(
            "hf_quant_config.json",
            json!({"producer": producer, "quantization": quantization}),
        )],
    }
}
