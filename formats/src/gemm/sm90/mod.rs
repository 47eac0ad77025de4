//! sm_90a: `wgmma` on weights that are decoded into registers.
//!
//! The kernel computes `C^T = B A^T`: weights are `wgmma`'s register operand, 64 rows at a time for
//! each warpgroup; activations are its shared-memory operand. The order of the weights is that of
//! [`fragments`](super::fragments).
//!
//! | file | topic |
//! | --- | --- |
//! | [`config`] | tile configurations and the sizes that follow from them |
//! | [`params`] | the parameter block |
//! | [`message`] | the message of a grouped product's producer to the consumers of a tile |

pub mod config;
pub mod message;
pub mod params;

pub use config::{CONFIGS, GROUPED, MIXED, Sm90Config, all, operands};
pub use params::{Sm90GroupedParams, Sm90Params, activations_map};
