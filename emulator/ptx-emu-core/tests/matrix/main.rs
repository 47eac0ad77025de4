//! Products of a warp, and the instructions that load their fragments.

#[path = "../support/mod.rs"]
mod support;

mod ldmatrix;
mod mma;
mod wmma;
