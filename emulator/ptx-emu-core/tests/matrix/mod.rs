//! Products of a warp, and the instructions that load their fragments.

mod ldmatrix;
mod mma;
mod ring;
mod wmma;
