//! The contract between the GEMM kernels and whoever launches them.
//!
//! `C[l, m, n] = alpha * row[m] * column[n] * sum_k A[l, m, k] B[l, n, k] + bias[n]`: `A` are the
//! activations, its rows the tokens; `B` are the weights, its rows the columns of the result. Both
//! are K-major.
//!
//! | module | topic |
//! | --- | --- |
//! | [`work`], [`schedule`], [`split`] | the work list: which CTA computes which tiles and K steps |
//! | [`groups`] | the same for problems with their own token counts |
//! | [`mixed`] | the same for problems with different N and K, too |
//! | [`next`] | prefetching for the next launch |
//! | [`epilogue`] | from a sum to a result in memory |
//! | [`combine`] | activations, and pairs of sums that make one result |
//! | [`operands`] | pairs of formats of weights and activations |
//! | [`adding`] | how products of e4m3 are added |
//! | [`fold`] | weights and their block scales as e4m3 |
//! | [`table`] | which kernels there are: tiles by types, and their names |
//! | [`fragments`] | weights in the order of the fragments that kernels decode them to |
//! | [`sm80`] | sm_80: tile configurations and parameters |
//! | [`sm90`] | sm_90a: the same |
//! | [`sm100`] | sm_100a: the same, and the order of its weights |
//! | [`sm120`] | sm_120f: the same |

pub mod adding;
pub mod combine;
pub mod epilogue;
pub mod fold;
pub mod fragments;
pub mod groups;
pub mod mixed;
pub mod next;
pub mod operands;
pub mod schedule;
pub mod sm100;
pub mod sm120;
pub mod sm80;
pub mod sm90;
pub mod split;
pub mod table;
pub mod work;

pub use adding::Adding;
pub use combine::{Activation, Combine, Half, PairedRows};
pub use epilogue::{
    Affine, Epilogue, OUT_MX_RECIPE, OUT_MXFP4, OUT_NVFP4, OUT_RECIPE, ResultScales, ResultType,
    Sink,
};
pub use groups::{EvenRuns, GroupedParams, Groups};
pub use mixed::Mixed;
pub use next::NextWeights;
pub use operands::Operands;
pub use schedule::{Item, Run, Schedule};
pub use split::Split;
pub use table::Problems;
pub use work::{Dimension, TileOrder, TileShape, Tiles, Uniform, Walk};

use crate::params::blocks;

/// Sizes of a GEMM as kernels take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Problem {
    /// Rows of `A` and of the result: tokens.
    pub m: u32,
    /// Rows of `B`, columns of the result.
    pub n: u32,
    /// Columns of `A` and `B`, a multiple of the format's block.
    pub k: u32,
    /// Batch entries.
    pub l: u32,
}

blocks! {
    Problem { m, n, k, l }
}
