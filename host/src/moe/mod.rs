//! A mixture of experts: from activations, and the experts that each token chose, to the layer's
//! result.
//!
//! | step | what | alone |
//! | --- | --- | --- |
//! | route | orders the tokens' choices by expert | [`Routing::route`] |
//! | quantise | where products take the weights' format: to it, each token once | [`Quantizer`](crate::quantize::device::Quantizer) |
//! | gather | copies each choice's token to the choice's row, or quantises it by row on the way | [`Routing::gather`], [`Routing::gather_blocks`], [`Rows`](crate::rows::Rows) |
//! | first product | grouped and gated, `act(x gate^T) * (x up^T)` | [`Gemm::grouped`](crate::gemm::Gemm::grouped) |
//! | second product | grouped, back to the hidden size | [`Gemm::grouped`](crate::gemm::Gemm::grouped) |
//! | combine | adds up each token's rows times their weights, in the order of its choices | [`Routing::combine`] |
//!
//! A layer for one token neither routes nor gathers, unless its activations are quantised: each choice is a row, and
//! rows choose their experts' weights by id ([`Grouping::Chosen`](crate::gemm::Grouping)). Combining takes the ids,
//! too ([`Routing::combine_choices`]).
//!
//! [`MoeLayer`] does all steps, having checked the arguments of all, or one ([`MoeLayer::launch_step`]). Everything
//! depends on the device's memory alone: a launch reads nothing back and allocates nothing, and may be recorded in a
//! graph. Experts that are on other devices add nothing, so that the results of all devices add up to
//! the layer's; a device has a range of all experts, or those of a [map](ExpertMap). Ids of -1 add nothing either.
//! [`parallel::Experts`](crate::parallel::Experts) sends tokens to the devices of their experts instead. Weights are applied behind the second product, where they cost no precision, and in a
//! fixed order, so that results do not depend on timing.

mod arrival;
mod layer;
mod map;
mod routing;

pub(crate) use arrival::Packed;
pub(crate) use layer::{LayerSizes, PlannedLayer, scaled_rows};
pub use layer::{
    MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeStep, TokenFormat, TokenScales,
};
pub use map::ExpertMap;
pub(crate) use routing::{CombineOperands, Part, Rows};
pub use routing::{CombineTypes, MoeProblem, MoeShape, Routes, Routing};

use fp4_formats::FloatType;

/// Bytes of an index, a weight and the status word.
const WORD: usize = size_of::<u32>();
/// Bytes of a 16-bit element.
const HALF_BYTES: usize = FloatType::F16.bytes() as usize;
