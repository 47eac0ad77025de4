//! The kernels around the grouped products of a mixture of experts; their contract is
//! [`fp4_formats::moe`].
//!
//! Each waits for the kernels before it with its first access to memory, or, of routes that are settled, with
//! its second, and lets the next one start at once.

mod combine;
mod gather;
mod route;
