//! sm_120f: block-scaled products of `mma.sync`, of weights and activations that are multiplied as they are.
//!
//! The kernel computes `C^T = B A^T`: weights are the A operand, 16 rows at a time for each warp; activations
//! are the B operand, in the weights' format, or in e4m3 beside MXFP4. The order of the weights is that of
//! [`blocks`](super::fragments::blocks), whichever they are. Weights beside 16-bit activations are multiplied by
//! [`sm80`]'s kernels, compiled for this target, and so is NVFP4 beside e4m3, decoded to bf16 before: the products that
//! take e4m3 have one scale for 32 columns, and NVFP4 has two.
//!
//! | file | topic |
//! | --- | --- |
//! | [`config`] | tile configurations and the sizes that follow from them |
//! | [`params`] | the parameter block |

pub mod config;
pub mod params;

use super::sm80;
use super::table::Kernel;

pub use config::{CONFIGS, GROUPED, MIXED, Sm120Config, all, operands};
pub use params::{Sm120GroupedParams, Sm120Own, Sm120Params};

/// All kernels of the target: those for block-scaled products, and sm_80's.
pub(in crate::gemm) static KERNELS: [Kernel; COUNT] = {
    let tables: [&[Kernel]; 2] = [&config::KERNELS, &sm80::config::KERNELS];
    let (mut kernels, mut at, mut table) = ([tables[0][0]; COUNT], 0, 0);
    while table < tables.len() {
        let mut i = 0;
        while i < tables[table].len() {
            kernels[at] = tables[table][i];
            (at, i) = (at + 1, i + 1);
        }
        table += 1;
    }
    assert!(at == COUNT);
    kernels
};

const COUNT: usize = config::KERNELS.len() + sm80::config::KERNELS.len();
