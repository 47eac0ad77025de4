//! Weights in the order of the A fragments of products: decoded ones, which `mma.sync` and `wgmma` have alike, and
//! those of block-scaled products of `mma.sync`.
//!
//! A load of 16 bytes gives a thread the codes of its fragments of four products. One order serves every family of
//! tensor cores whose kernels decode weights into registers, so weights that were repacked for one are those of the
//! others.
//!
//! | file | topic |
//! | --- | --- |
//! | [`scheme`] | the types of weights and of what they are decoded to |
//! | [`word`] | eight codes in the bits from which a thread decodes them |
//! | [`repack`] | the order of codes and scales in memory |
//! | [`blocks`] | the order of those that are multiplied as they are |
//! | [`config`] | what configurations for all tensor cores have alike |
//! | [`warps`] | what those for `mma.sync` have alike |
//! | [`params`] | the parameter block of their kernels |

pub mod blocks;
pub mod config;
pub mod params;
pub mod repack;
pub mod scheme;
pub mod warps;
pub mod word;

pub use config::{FragmentConfig, Tile};
pub use params::WarpParams;
pub use repack::WeightLayout;
pub use scheme::Scheme;
