//! Experts in one tensor, as one matrix for each expert.
//!
//! Exporters of compressed-tensors' layout, and of ModelOpt's for models that have experts as
//! `[experts, N, K]`, write a matrix for each expert and for each of gate and up:
//! `experts.0.gate_proj.weight`. In `gate_up_proj` the rows of the gate come first; gpt-oss has the
//! gate's rows at even places. ModelOpt keeps experts that the model has as `[experts, K, N]`
//! together.

use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};
use safetensors::tensor::Dtype;

use super::contents::Extras;
use super::model::Model;
use super::orientation::EXPERTS;
use super::parts::Layout;
use super::weight::{Blocks, GlobalScale, Order, Weight, WeightSpec, module};
use super::write::TensorSpec;
use crate::error::Result;
use nvfp4::tensor::{BlockScaled, Dims};

/// The rows of one expert that become a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// The module of the matrix.
    pub module: String,
    pub expert: usize,
    /// Index of the first row, distance of rows, their number.
    rows: [usize; 3],
}

/// Whether the rows of gate and up alternate; `None` if nothing says so.
pub(super) fn interleaved(model: &Model, from: Option<Layout>) -> Option<bool> {
    match model.config().and_then(|config| config["model_type"].as_str()) {
        Some(kind) => Some(kind == "gpt_oss"),
        None => (from == Some(Layout::GptOss)).then_some(true),
    }
}

/// The matrices of a weight; `None` if it stays in one tensor.
///
/// # Errors
/// The reason why it cannot be taken apart although it must.
pub(super) fn slices(
    layout: Layout,
    spec: &WeightSpec,
    extras: &Extras,
) -> Result<Option<Vec<Slice>>, String> {
    let &[experts, rows, _] = spec.shape.as_slice() else { return Ok(None) };
    let whole = match layout {
        Layout::ModelOpt => spec.order != Order::OutputFirst,
        Layout::CompressedTensors | Layout::Gguf | Layout::Mlx => false,
        Layout::TorchAo | Layout::GptOss | Layout::DeepSeek | Layout::Quark | Layout::AutoRound => {
            true
        }
    };
    if whole {
        return Ok(None);
    }
    if spec.order == Order::AlongOutput {
        return Err("its blocks run along the output dimension".into());
    }
    // No exporter has experts in one tensor under other names.
    if !spec.name.ends_with(EXPERTS) {
        return Ok(None);
    }
    let of = module(&spec.name);
    let joined = spec.name.strip_suffix("gate_up_proj").is_some();
    let halves: Vec<(&str, [usize; 3])> = match joined {
        false => vec![(&spec.name[(of.len() + 1).min(spec.name.len())..], [0, 1, rows])],
        true if rows % 2 != 0 => return Err(format!("{rows} rows are not a gate's and as many")),
        true => match (extras.interleaved, spec.order) {
            (Some(true), _) => {
                vec![("gate_proj", [0, 2, rows / 2]), ("up_proj", [1, 2, rows / 2])]
            }
            (Some(false), _) | (None, Order::OutputFirst) => {
                vec![("gate_proj", [0, 1, rows / 2]), ("up_proj", [rows / 2, 1, rows / 2])]
            }
            (None, Order::InputFirst | Order::AlongOutput) => {
                let reason = "it has a matrix for each expert's gate and up, and without the \
                              model_type of config.json it is not known which rows are whose";
                return Err(reason.into());
            }
        },
    };
    let slice = |expert: usize| {
        halves.iter().map(move |(name, rows)| Slice {
            module: format!("{of}.{expert}.{}", extras.family.projection(layout, name)),
            expert,
            rows: *rows,
        })
    };
    Ok(Some((0..experts).flat_map(slice).collect()))
}

impl Slice {
    /// The matrix, of this weight.
    pub fn spec(&self, whole: &WeightSpec) -> WeightSpec {
        WeightSpec {
            name: format!("{}.weight", self.module),
            shape: vec![self.rows[2], whole.cols()],
            order: Order::OutputFirst,
            expert_scales: false,
            ..whole.clone()
        }
    }

    /// Its bias.
    pub fn bias(&self, dtype: Dtype) -> TensorSpec {
        TensorSpec { name: format!("{}.bias", self.module), dtype, shape: vec![self.rows[2]] }
    }

    /// The elements of `[experts, N]` that belong to it, each of `width` bytes.
    pub fn bytes(&self, data: &[u8], rows: usize, width: usize) -> Vec<u8> {
        let [start, step, count] = self.rows;
        let first = self.expert * rows + start;
        let rows = (0..count).filter_map(|row| {
            let at = (first + row * step) * width;
            data.get(at..at + width)
        });
        rows.flatten().copied().collect()
    }

    /// Its rows of a weight.
    pub fn weight(&self, whole: &Weight) -> Result<Weight> {
        let spec = self.spec(&whole.spec);
        let dims = Dims::new(1, self.rows[2], spec.cols())?;
        let own = whole.experts.as_ref().and_then(|scales| scales.get(self.expert)).copied();
        let global = own.or(whole.global);
        let multiplier = global.map_or(1.0, GlobalScale::multiplier);
        let how = (whole.blocks.dims().rows(), multiplier);
        fn cut<F: BlockFormat>(
            slice: &Slice,
            tensor: &BlockScaled<F>,
            name: &str,
            dims: Dims,
            (all, multiplier): (usize, f32),
        ) -> Result<BlockScaled<F>> {
            let codes = slice.bytes(tensor.codes(), all, dims.cols() / 2);
            let scales = slice.bytes(tensor.scales(), all, tensor.kblocks());
            let linear = ScaleLayout::Linear;
            Ok(BlockScaled::new(name, dims, linear, codes, scales, multiplier)?)
        }
        let blocks = match &whole.blocks {
            Blocks::Nvfp4(tensor) => {
                Blocks::Nvfp4(cut::<Nvfp4>(self, tensor, &spec.name, dims, how)?)
            }
            Blocks::Mxfp4(tensor) => {
                Blocks::Mxfp4(cut::<Mxfp4>(self, tensor, &spec.name, dims, how)?)
            }
        };
        let own = whole.inputs.as_ref().and_then(|scales| scales.get(self.expert)).copied();
        let input = own.or(whole.input);
        Ok(Weight { spec, blocks, global, experts: None, input, inputs: None })
    }
}
