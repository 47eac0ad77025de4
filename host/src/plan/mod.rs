//! Cost models, and the choices by them: the kernel and the division of work for a problem.
//!
//! The contract ([`formats`](crate::formats)) has the tables of kernels, this module has the preferences
//! among them. No kernel is compiled from it: a constant of an estimate changes plans, but neither the
//! kernels nor their stamp.
//!
//! | file | topic |
//! | --- | --- |
//! | `activations` | [`ActivationKind`], [`ActivationInput`]: activations without their values |
//! | [`fragments`] | products whose kernels take weights in the order of fragments, and the choice among them |
//! | [`sm120`] | block-scaled products by `mma.sync`: cycles of each configuration, by the rates of the hardware |
//! | [`sm80`] | products by `mma.sync`: cycles of each configuration, as measured on an H200 |
//! | [`sm90`] | products on sm_90a: cycles of each configuration and schedule, as measured on an H200 |
//! | [`sm100`] | products on sm_100a: clocks of each configuration, by published rates |
//! | [`warps`] | what the costs of products by `mma.sync` have alike |
//! | [`vector`] | a GEMV as a product of one token, on sm_100a |
//! | [`gemv`] | the kernels of a GEMV |

mod activations;
pub mod fragments;
pub mod gemv;
pub mod sm100;
pub mod sm120;
pub mod sm80;
pub mod sm90;
pub mod vector;
pub mod warps;

pub use activations::{ActivationInput, ActivationKind};
