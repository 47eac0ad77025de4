//! The kernels around the grouped products of a mixture of experts; their contract is
//! [`fp4_formats::moe`].
//!
//! Each waits for the kernels before it; combining reads routes that are settled before that. Gathering lets
//! the next one start when it has waited, the others at once.

mod combine;
mod gather;
mod route;
