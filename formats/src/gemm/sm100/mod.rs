//! sm_100a: `tcgen05.mma` on block-scaled 4-bit operands.
//!
//! The kernel knows two operands, `X` and `Y`, both K-major, and computes tiles of
//! `X Y^T`: rows of `X` are the tensor core's M (128 a CTA), rows of `Y` its N
//! ([`Sm100Config::columns`]). Plain, `X` is `A` (activations) and `Y` is `B`
//! (weights); swapped, the other way round, so that few tokens do not leave most of M
//! empty. A K step is [`STEP`] elements, 128 bytes of a row.
//!
//! With 16-bit activations, `X` is the weights, which warps decode to the activations'
//! type ([`decode`]), and a K step is [`config::HALF_STEP`] elements. With activations in e4m3, `X` is the
//! weights, too: MXFP4 as it is, or NVFP4 that warps bring to e4m3 ([`folded`]); a K step is
//! [`config::BYTE_STEP`] elements.
//!
//! | file | topic |
//! | --- | --- |
//! | [`config`] | tile configurations and the sizes that follow from them |
//! | [`decode`] | weights as 16-bit floats |
//! | [`descriptor`] | the bits that describe operands to `tcgen05` |
//! | [`folded`] | weights as e4m3 |
//! | [`params`] | the parameter block and its tensor maps |
//! | [`prepare`] | operands that the copy engine cannot take as they are |
//! | [`tokens`] | activations that kernels take as they are in memory |
//! | [`store`] | boxes of results that the copy engine stores |

pub mod config;
pub mod decode;
pub mod descriptor;
pub mod folded;
pub mod params;
pub mod prepare;
pub mod store;
pub mod tokens;

pub use config::{CONFIGS, GROUPED, MIXED, STEP, STEP_BYTES, Sm100Config, all, operands};
pub use params::{Side, Sm100GroupedParams, Sm100Params, codes_map, elements_map, scales_map};
pub use store::result_map;
pub use tokens::TokenBlocks;
