//! The behaviour of single threads and warps: arithmetic, memory, control flow, exchanges.

mod arithmetic;
mod diagnostics;
mod flow;
mod memory;
mod programs;
mod warp;
