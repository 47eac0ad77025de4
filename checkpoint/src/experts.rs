//! The order in which readers of a layout expect a model's experts, which differs from model to
//! model.
//!
//! A checkpoint may have a matrix for each expert, `experts.0.gate_proj.weight`, or all of them in
//! one tensor. transformers builds the model that `config.json` names and looks for the names that
//! this model has in this layout; anything else stays unread.
//!
//! | layout | experts |
//! | --- | --- |
//! | ModelOpt | a matrix each; Mixtral's and MiniMax's are called `w1`, `w3`, `w2`; gpt-oss's are in one tensor |
//! | compressed-tensors | a matrix each, under either names |
//! | TorchAO | in one tensor |
//! | gpt-oss | in one tensor, and nothing else is quantised |
//! | GGUF, MLX | a matrix each here, which the files have in one tensor |
//!
//! If `config.json` does not name the model, no reader builds it from that file, and any order is
//! as good.

use super::error::CheckpointError;
use super::expert_names::{Matrix, numbered};
use super::families::{self, Architecture, ExpertNames, FloatExperts, Kept, Mlx};
use super::model::Model;
use super::parts::Layout;
use super::pattern;
use super::weight::WeightSpec;
use crate::error::Result;

/// The family of a model, as far as its configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    /// Nothing says so.
    #[default]
    Unknown,
    /// One of `families`.
    Known(&'static Architecture),
    /// A model that is in none of them.
    Other,
}

impl Family {
    /// The model that `config.json` names.
    pub fn of(model: &Model) -> Self {
        let (types, classes) = families::stated(model.config());
        match Architecture::find(&types, &classes) {
            Some(architecture) => Self::Known(architecture),
            None if types.is_empty() && classes.is_empty() => Self::Unknown,
            None => Self::Other,
        }
    }

    /// The names of its experts in ModelOpt's export; `None` if nothing names the model.
    pub fn experts(self) -> Option<ExpertNames> {
        match self {
            Self::Unknown => None,
            Self::Known(architecture) => Some(architecture.experts),
            Self::Other => Some(ExpertNames::General),
        }
    }

    /// The name of an expert's `gate_proj`, `up_proj` or `down_proj` in a layout.
    pub fn projection(self, layout: Layout, name: &str) -> &str {
        if layout == Layout::ModelOpt { self.numbered(name) } else { name }
    }

    /// The family, if it is one of `families`.
    pub fn known(self) -> Option<&'static Architecture> {
        match self {
            Self::Known(architecture) => Some(architecture),
            Self::Unknown | Self::Other => None,
        }
    }

    /// The name that the model itself has for an expert's `gate_proj`, `up_proj` or `down_proj`.
    fn numbered(self, name: &str) -> &str {
        numbered(self.known(), name)
    }

    /// Its experts in transformers' files of floats.
    pub fn float_experts(self) -> FloatExperts {
        match self {
            Self::Known(architecture) => architecture.float_experts,
            Self::Unknown | Self::Other => FloatExperts::Matrices,
        }
    }

    /// Its form in mlx-lm; the general one for a model that is not known.
    pub fn mlx(self) -> &'static Mlx {
        match self.known() {
            Some(architecture) => &architecture.mlx,
            None => &families::SWITCH_MLP,
        }
    }

    /// The reason why a matrix stays floats in MLX's layout.
    pub fn stays_float_in_mlx(self, name: &str) -> Option<&'static Kept> {
        self.mlx().floats.iter().find(|(pattern, _)| pattern::matches(pattern, name))
    }

    /// A tensor or module under the name that a layout has for it.
    pub fn renamed(self, layout: Layout, name: &str) -> String {
        if layout == Layout::ModelOpt { self.own(name) } else { name.into() }
    }

    /// A tensor or module under the name that the model itself has for it.
    pub fn own(self, name: &str) -> String {
        let Some(Matrix { experts, index, projection, ending }) = Matrix::of(name) else {
            return name.into();
        };
        format!("{experts}.{index}.{}{ending}", self.numbered(projection))
    }
}

/// Whether a tensor is a matrix of one expert.
pub(super) fn is_matrix(name: &str) -> bool {
    Matrix::of(name).is_some()
}

/// Checks that readers of the layout find these weights, which are all of an output's, in a model of `family`.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with the first of those that they do not find.
pub(super) fn check(layout: Layout, weights: &[WeightSpec], family: Family) -> Result<()> {
    let matrix = |weight: &&WeightSpec| weight.shape.len() == 2;
    let expert = |weight: &&WeightSpec| matrix(weight) && Matrix::of(&weight.name).is_some();
    let doubtful =
        |weight: &&WeightSpec| Matrix::of(&weight.name).is_some_and(|matrix| matrix.is_doubtful());
    let experts = family.experts();
    let (found, reason): (Vec<&WeightSpec>, _) = match (layout, experts) {
        (Layout::ModelOpt, Some(ExpertNames::Joint)) => (
            weights.iter().filter(expert).collect(),
            "of one expert of gpt-oss, and readers of this layout expect all in one tensor; layout \
             compressed-tensors has a matrix for each",
        ),
        (Layout::ModelOpt, None | Some(ExpertNames::General)) => (
            weights.iter().filter(doubtful).collect(),
            "of one expert, and only for Mixtral and MiniMax is it known that readers of this layout \
             call it w1, w3 or w2; layout compressed-tensors holds it, or a config.json whose \
             model_type is mixtral or minimax_m2",
        ),
        (Layout::TorchAo, Some(_)) => (
            weights.iter().filter(expert).collect(),
            "of one expert, and readers of this layout expect all in one tensor; layout \
             compressed-tensors has a matrix for each, and quantize leaves experts as they are \
             with --exclude '*.experts.*'",
        ),
        (Layout::GptOss, Some(ExpertNames::Joint)) => (
            weights.iter().filter(matrix).collect(),
            "a matrix, and readers of this layout expect all experts in one tensor and the rest \
             unquantised; layout compressed-tensors holds it",
        ),
        (Layout::GptOss, Some(ExpertNames::General | ExpertNames::Numbered)) => (
            weights.iter().collect(),
            "of another model than gpt-oss, whose experts alone readers of this layout expect; \
             layouts compressed-tensors and modelopt hold it",
        ),
        (Layout::Mlx, _) if family.mlx().differs.is_some() => {
            (weights.iter().collect(), family.mlx().differs.unwrap_or_default())
        }
        (Layout::Mlx, _) if matches!(family, Family::Known(_)) => return Ok(()),
        (Layout::Mlx, _) => (
            weights.iter().filter(|weight| weight.name.contains("experts.")).collect(),
            "of experts, and without a config.json that names a known family it is not known where MLX has all \
             of a layer, in `switch_mlp` or elsewhere; quantize leaves experts as they are with --exclude \
             '*.experts.*'",
        ),
        (Layout::DeepSeek, _) => (
            weights.iter().filter(|weight| !expert(weight)).collect(),
            "no matrix of a routed expert, and readers of this layout have those alone in 4 bits",
        ),
        (Layout::ModelOpt, Some(ExpertNames::Numbered))
        | (Layout::TorchAo | Layout::GptOss, None)
        | (Layout::CompressedTensors | Layout::Gguf | Layout::Quark | Layout::AutoRound, _) => {
            return Ok(());
        }
    };
    let Some(first) = found.first() else { return Ok(()) };
    let reason = match found.len() - 1 {
        0 => format!("it is {reason}"),
        others => format!("it and {others} more are each {reason}"),
    };
    let (layout, tensor) = (layout.name(), first.name.clone());
    Err(CheckpointError::Unsupported { layout, tensor, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_experts_are_renamed_for_modelopt_alone() {
        let family = |kind| Family::Known(Architecture::find(&[kind], &[]).expect("known"));
        let general = "model.layers.0.block_sparse_moe.experts.12.up_proj.weight";
        let numbered = "model.layers.0.block_sparse_moe.experts.12.w3.weight";
        for kind in ["mixtral", "minimax_m2"] {
            let family = family(kind);
            assert_eq!(family.renamed(Layout::ModelOpt, general), numbered);
            assert_eq!(family.renamed(Layout::ModelOpt, numbered), numbered);
            assert_eq!(family.renamed(Layout::CompressedTensors, general), general);
            for other in
                ["m.mlp.up_proj.weight", "m.shared_experts.up_proj.weight", "experts.0", ""]
            {
                assert_eq!(family.renamed(Layout::ModelOpt, other), other);
            }
            assert_eq!(family.renamed(Layout::ModelOpt, "experts.0.down_proj"), "experts.0.w2");
        }
        for other in [Family::Other, Family::Unknown, family("llama"), family("gpt_oss")] {
            assert_eq!(other.renamed(Layout::ModelOpt, general), general);
        }
    }
}
