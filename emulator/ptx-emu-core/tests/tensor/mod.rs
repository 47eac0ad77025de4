//! Arithmetic and layouts of tensor cores.

mod aligned;
pub mod golden;
mod product;
mod shared;
