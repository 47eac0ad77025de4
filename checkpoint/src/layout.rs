//! The layouts of quantised weights in safetensors and GGUF: names, types, shapes, conventions.
//!
//! | layout | formats | tensors of `m.weight` | tensor-level scale |
//! | --- | --- | --- | --- |
//! | [`ModelOpt`](Layout::ModelOpt) | nvfp4, mxfp4 | `m.weight`, `m.weight_scale`, `m.weight_scale_2`, `m.input_scale` | multiplier |
//! | [`CompressedTensors`](Layout::CompressedTensors) | nvfp4, mxfp4 | `m.weight_packed`, `m.weight_scale`, `m.weight_global_scale`, `m.input_global_scale` | divisor |
//! | [`TorchAo`](Layout::TorchAo) | nvfp4, mxfp4 | `m._weight_qdata`, `m._weight_scale`, `m._weight_per_tensor_scale`, `m._weight_act_per_tensor_scale` | multiplier |
//! | [`GptOss`](Layout::GptOss) | mxfp4 | `m.weight.blocks`, `m.weight.scales`, or `x_proj_blocks`, `x_proj_scales` | none |
//! | [`Gguf`](Layout::Gguf) | nvfp4, mxfp4 | `m.weight`, `m.scale`, `m.input_scale` | multiplier |
//! | [`Mlx`](Layout::Mlx) | nvfp4, mxfp4 | `m.weight`, `m.scales` | none |
//! | [`DeepSeek`](Layout::DeepSeek) | mxfp4 | `m.weight`, `m.scale` | none |
//! | [`Quark`](Layout::Quark) | nvfp4, mxfp4 | `m.weight`, `m.weight_scale`, `m.weight_scale_2`, `m.input_scale_2` | multiplier |
//! | [`AutoRound`](Layout::AutoRound) | nvfp4, mxfp4 | as compressed-tensors | divisor |
//!
//! Each layout is a module that finds weights by name and lists the tensors of a weight. Reading
//! and writing the bytes is common to all (the modules `load` and `save`). In those of safetensors,
//! packed codes are `U8`, in MLX's `U32`, in DeepSeek's `I8`, with the element of lower index in the low nibble.

use std::collections::BTreeMap;

use fp4_formats::ScaleLayout;

use super::contents::{Contents, Description, Extras};
use super::error::CheckpointError;
use super::model::Model;
use super::parts::{Layout, Parts, Piece};
use super::weight::{Order, WeightSpec};
use super::{
    auto_round, auto_round_config, compressed_tensors, deepseek, gguf, gpt_oss, mlx, modelopt,
    quark, quark_config, torchao,
};

impl Layout {
    /// The layout of a checkpoint's tensors, or `None` if none of them is quantised.
    #[must_use]
    pub fn detect(model: &Model) -> Option<Self> {
        Self::detect_weights(model).map(|(layout, _)| layout)
    }

    /// The layout of a checkpoint's tensors with its quantised weights, sorted by name.
    pub(super) fn detect_weights(model: &Model) -> Option<(Self, Vec<Parts>)> {
        // Quark and AutoRound have others' names, and a configuration that says so. ModelOpt's names are the least
        // distinctive, so they come last.
        let order = [
            Self::Gguf,
            Self::Mlx,
            Self::Quark,
            Self::AutoRound,
            Self::CompressedTensors,
            Self::TorchAo,
            Self::GptOss,
            Self::DeepSeek,
            Self::ModelOpt,
        ];
        // Tensors that Quark's or AutoRound's configuration does not call one of this crate's formats have other scales.
        let others_names = [quark_config::METHOD, auto_round_config::METHOD];
        let method = model.quantization_config().and_then(|x| x["quant_method"].as_str());
        let theirs = method.is_some_and(|method| others_names.contains(&method));
        let resembling = |layout: &Self| matches!(layout, Self::ModelOpt | Self::CompressedTensors);
        let order = order.into_iter().filter(|layout| !(theirs && resembling(layout)));
        let mut found = order.map(|layout| (layout, layout.find(model)));
        found.find(|(_, parts)| !parts.is_empty())
    }

    /// All quantised weights, sorted by name. Their pieces may be missing or wrong.
    #[must_use]
    pub fn find(self, model: &Model) -> Vec<Parts> {
        match self {
            Self::ModelOpt => modelopt::find(model),
            Self::CompressedTensors => compressed_tensors::find(model),
            Self::TorchAo => torchao::find(model),
            Self::GptOss => gpt_oss::find(model),
            Self::Gguf => gguf::find(model),
            Self::Mlx => mlx::find(model),
            Self::DeepSeek => deepseek::find(model),
            Self::Quark => quark::find(model),
            Self::AutoRound => auto_round::find(model),
        }
    }

    /// The tensors that store a weight.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`].
    pub fn pieces(
        self,
        weight: &WeightSpec,
        scales: ScaleLayout,
    ) -> Result<Vec<Piece>, CheckpointError> {
        let refuse = |reason: String| CheckpointError::Unsupported {
            layout: self.name(),
            tensor: weight.name.clone(),
            reason,
        };
        if !self.supports(weight.format) {
            return Err(refuse(format!("it has no form of {}", weight.format.name())));
        }
        let tiles = matches!(self, Self::TorchAo | Self::ModelOpt);
        if scales != ScaleLayout::Linear && !tiles {
            return Err(refuse(format!("its scales are linear, not {scales}")));
        }
        if weight.order == Order::AlongOutput && self != Self::ModelOpt {
            return Err(refuse("its blocks run along the output dimension".into()));
        }
        if weight.expert_scales && self != Self::TorchAo {
            let reason = "each expert has a tensor-level scale of its own";
            return Err(refuse(reason.into()));
        }
        if weight.order == Order::InputFirst && self == Self::TorchAo {
            let reason = "the model has it as [experts, K, N], and it is quantised as \
                          [experts, N, K], which readers of this layout do not expect";
            return Err(refuse(reason.into()));
        }
        match self {
            Self::ModelOpt => modelopt::pieces(weight, scales).map_err(refuse),
            Self::CompressedTensors | Self::AutoRound => Ok(compressed_tensors::pieces(weight)),
            Self::TorchAo => torchao::pieces(weight, scales).map_err(refuse),
            Self::GptOss => Ok(gpt_oss::pieces(weight)),
            Self::Gguf => gguf::pieces(weight).map_err(refuse),
            Self::Mlx => mlx::pieces(weight).map_err(refuse),
            Self::DeepSeek => deepseek::pieces(weight).map_err(refuse),
            Self::Quark => quark::pieces(weight, scales).map_err(refuse),
        }
    }

    /// Metadata of a file that holds these weights and these other tensors.
    pub(super) fn metadata(
        self,
        weights: &[(WeightSpec, ScaleLayout)],
        others: &[String],
        extras: &Extras,
    ) -> BTreeMap<String, String> {
        let mut metadata = match self {
            Self::TorchAo => torchao::metadata(weights, others, extras),
            Self::ModelOpt => modelopt::metadata(weights),
            Self::CompressedTensors
            | Self::GptOss
            | Self::Gguf
            | Self::Mlx
            | Self::DeepSeek
            | Self::Quark
            | Self::AutoRound => BTreeMap::new(),
        };
        // Hugging Face's loader requires it.
        let format = if self == Self::Mlx { "mlx" } else { "pt" };
        metadata.insert("format".into(), format.into());
        metadata
    }

    pub(super) fn describe(self, contents: &Contents) -> Description {
        match self {
            Self::ModelOpt => modelopt::describe(contents),
            Self::CompressedTensors => compressed_tensors::describe(contents),
            Self::TorchAo => torchao::describe(contents),
            Self::GptOss => gpt_oss::describe(contents),
            // The types of its tensors say all, or the input's configuration is copied.
            Self::Gguf | Self::Quark | Self::AutoRound => Description::default(),
            Self::Mlx => mlx::describe(contents),
            Self::DeepSeek => deepseek::describe(contents),
        }
    }
}
