//! Arithmetic and layouts of tensor cores.

mod aligned;
mod golden;
mod product;
mod shared;
