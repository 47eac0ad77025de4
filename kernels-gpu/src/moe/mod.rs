//! The kernels around the grouped products of a mixture of experts; their contract is
//! [`fp4_formats::moe`].
//!
//! Each waits for the kernels before it; combining reads routes that are settled before that. Gathering and packing let
//! the next one start when they have waited, the others at once.

mod combine;
mod gather;
mod pack;
mod route;
