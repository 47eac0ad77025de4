//! sm_80 and later: `mma.sync` on weights that are decoded into registers, with nothing that a later target
//! than sm_80 is needed for.
//!
//! The kernel computes `C^T = B A^T`: weights are the A operand, 16 rows at a time for each warp; activations
//! are the B operand. The order of the weights is that of [`fragments`](super::fragments).
//!
//! | file | topic |
//! | --- | --- |
//! | [`config`] | tile configurations and the sizes that follow from them |
//! | [`params`] | the parameter block |

pub mod config;
pub mod params;

pub use config::{CONFIGS, GROUPED, MIXED, Sm80Config, all, operands};
pub use params::{Sm80GroupedParams, Sm80Own, Sm80Params};
