//! Options of quantising a model, and of writing a checkpoint.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Recipe;
use nvfp4::quantize::TensorScale;

use super::parts::Layout;
#[cfg(doc)]
use super::pattern;

/// Size of a shard, the same as in Hugging Face's tools.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Names that are left out unless asked for otherwise: what the projects' own tools leave out,
/// because it is no linear layer or costs too much accuracy.
pub const DEFAULT_EXCLUDES: [&str; 5] =
    ["*embed*", "*lm_head*", "*router*", "*.gate.weight", "*relative_attention_bias*"];

/// Options of quantising a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelOptions {
    /// The recipe whose arithmetic is used.
    pub recipe: Recipe,
    /// Tensor-level scale of NVFP4; rows cannot have their own scales in any layout.
    pub scale: TensorScale,
    /// Patterns of tensors to leave as they are; see [`pattern::matches`].
    pub exclude: Vec<String>,
    /// Whether only experts are quantised, `[experts, .., ..]`.
    pub experts_only: bool,
    /// Options of writing the result.
    pub save: SaveOptions,
}

impl ModelOptions {
    /// A recipe in its usual form, with [`DEFAULT_EXCLUDES`]; for [`Layout::GptOss`] experts only,
    /// because its readers take every other weight for an unquantised one.
    #[must_use]
    pub fn new(recipe: Recipe, layout: Layout) -> Self {
        Self {
            recipe,
            scale: TensorScale::FromAmax,
            exclude: DEFAULT_EXCLUDES.map(str::to_owned).to_vec(),
            experts_only: layout == Layout::GptOss,
            save: SaveOptions::new(layout),
        }
    }
}

nvfp4::setters!(ModelOptions {
    scale: TensorScale,
    exclude: impl Into<Vec<String>>,
    experts_only: bool,
    save: SaveOptions,
});

/// Options of writing a checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveOptions {
    /// Names, types and conventions.
    pub layout: Layout,
    /// Layout of block scales; only TorchAO's layout has another than linear.
    pub scales: ScaleLayout,
    /// Whether an existing checkpoint at the output path is replaced.
    pub force: bool,
    /// Size of a shard.
    pub shard_bytes: u64,
    /// Whether stored weights that readers of the layout join get one tensor-level scale, even if
    /// that changes values. Weights that are quantised get one anyway.
    pub share_scales: bool,
}

impl SaveOptions {
    /// Linear scales, shards of [`SHARD_BYTES`], and no replacement.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            scales: ScaleLayout::Linear,
            force: false,
            shard_bytes: SHARD_BYTES,
            share_scales: false,
        }
    }
}

nvfp4::setters!(SaveOptions {
    scales: ScaleLayout,
    force: bool,
    shard_bytes: u64,
    share_scales: bool,
});
