//! The behaviour of single threads and warps: arithmetic, memory, control flow, exchanges.

#[path = "../support/mod.rs"]
mod support;

mod arithmetic;
mod diagnostics;
mod flow;
mod memory;
mod programs;
mod warp;
