//! Options of quantising a model, and of writing a checkpoint.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Recipe;
use nvfp4::quantize::TensorScale;

use super::calibration::QuantizedInputs;
use super::parts::Layout;
use super::pattern;

/// Size of a shard, the same as in Hugging Face's tools.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Tensors that are left out unless asked for otherwise, and why: the list of ModelOpt 0.47 and more, of
/// tensors that are no linear layer, that other formats of the model never quantise, or that cost too much
/// accuracy. Additions of an architecture are in `families`.
pub const DEFAULT_EXCLUDES: [(&str, &str); 33] = [
    ("*embed*", "an embedding"),
    ("*wte.weight", "an embedding"),
    ("*wpe.weight", "an embedding of positions"),
    ("*token_embd*", "an embedding"),
    ("*lm_head*", "the output head"),
    ("output.weight", "the output head"),
    ("*.output.weight", "the output head"),
    ("*output_layer*", "the output head"),
    ("*proj_out*", "the output head"),
    ("score.weight", "a classifier"),
    ("*.score.weight", "a classifier"),
    ("*classifier*", "a classifier"),
    ("*router*", "a router"),
    ("*.gate.weight", "a router"),
    ("*.gate.wg.weight", "a router"),
    ("*moe_gate*", "a router"),
    ("*shared_expert_gate*", "the gate of the shared expert, one row"),
    ("*conv1d*", "a convolution"),
    ("*linear_attn.in_proj_a.*", "gates of linear attention, a few rows"),
    ("*linear_attn.in_proj_b.*", "gates of linear attention, a few rows"),
    ("*linear_attn.in_proj_ba.*", "gates of linear attention, a few rows"),
    ("mtp.*", "a multi-token predictor"),
    ("*.mtp.*", "a multi-token predictor"),
    ("visual.*", "the encoder of images"),
    ("*.visual.*", "the encoder of images"),
    ("*vision_tower*", "the encoder of images"),
    ("*vision_model*", "the encoder of images"),
    ("*vision_encoder*", "the encoder of images"),
    ("*audio_tower*", "the encoder of sound"),
    ("*multi_modal_projector*", "the projector of other inputs"),
    ("*mm_projector*", "the projector of other inputs"),
    ("*vision_adapter*", "the projector of other inputs"),
    ("*relative_attention_bias*", "a bias of positions"),
];

/// Whether a tensor is an embedding, by its name.
pub(super) fn is_embedding(name: &str) -> bool {
    is_excluded_as("an embedding", name)
}

/// Whether a tensor is a router, by its name.
pub(super) fn is_router(name: &str) -> bool {
    is_excluded_as("a router", name)
}

fn is_excluded_as(what: &str, name: &str) -> bool {
    let mut excludes = DEFAULT_EXCLUDES.iter();
    excludes.any(|(pattern, why)| why.starts_with(what) && pattern::matches(pattern, name))
}

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
    /// Whether [`DEFAULT_EXCLUDES`] and those of the model's architecture are left, too.
    pub default_excludes: bool,
    /// Whether only experts are quantised: `[experts, .., ..]`, and for [`Layout::DeepSeek`] a matrix of each.
    pub experts_only: bool,
    /// Whether each block scale of NVFP4 is the one with the least squared error, from the recipe's up to 1.5 times
    /// that. For recipes that choose no scale themselves.
    pub search: bool,
    /// The quantisation of layers' inputs.
    pub inputs: QuantizedInputs,
    /// Options of writing the result.
    pub save: SaveOptions,
}

impl ModelOptions {
    /// A recipe in its usual form, with [`DEFAULT_EXCLUDES`] and those of the architecture; for [`Layout::GptOss`] and
    /// [`Layout::DeepSeek`] experts only,
    /// because its readers take every other weight for an unquantised one; for [`Layout::Mlx`] with one level,
    /// because it has no place for a tensor-level scale; for [`Layout::Gguf`] with a search for block scales, because
    /// ggml has no recipe whose bytes could be expected.
    #[must_use]
    pub fn new(recipe: Recipe, layout: Layout) -> Self {
        let scale = match layout {
            Layout::Mlx => TensorScale::OneLevel,
            _ => TensorScale::FromAmax,
        };
        Self {
            recipe,
            scale,
            exclude: Vec::new(),
            default_excludes: true,
            experts_only: matches!(layout, Layout::GptOss | Layout::DeepSeek),
            inputs: QuantizedInputs::Float,
            search: layout == Layout::Gguf && matches!(recipe, Recipe::Nvfp4(_)),
            save: SaveOptions::new(layout),
        }
    }
}

nvfp4::setters!(ModelOptions {
    scale: TensorScale,
    exclude: impl Into<Vec<String>>,
    default_excludes: bool,
    experts_only: bool,
    search: bool,
    inputs: QuantizedInputs,
    save: SaveOptions,
});

/// Options of writing a checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveOptions {
    /// Names, types and conventions.
    pub layout: Layout,
    /// Layout of block scales; TorchAO's and ModelOpt's layouts have 128x4 tiles, too.
    pub scales: ScaleLayout,
    /// Whether an existing checkpoint at the output path is replaced.
    pub force: bool,
    /// Size of a shard.
    pub shard_bytes: u64,
    /// Whether stored weights that readers of the layout join get one tensor-level scale, even if
    /// that changes values. Weights that are quantised get one anyway.
    pub share_scales: bool,
    /// Whether scales of inputs that are zero or not finite, those of experts that calibration never
    /// reached, become the largest of the same layer's experts.
    pub repair_input_scales: bool,
    /// Whether weights in NVFP4 with scales that are no numbers and can mean nothing but zeros become zeros.
    pub repair_zero_layers: bool,
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
            repair_input_scales: false,
            repair_zero_layers: false,
        }
    }
}

nvfp4::setters!(SaveOptions {
    scales: ScaleLayout,
    force: bool,
    shard_bytes: u64,
    share_scales: bool,
    repair_input_scales: bool,
    repair_zero_layers: bool,
});
