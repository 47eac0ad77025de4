//! The library: devices, buffers, plans, quantising, tuning tables, refusals.

mod buffer;
mod device;
mod gemm_refused;
mod modules;
mod packages;
mod parallel;
mod plan;
mod quantize;
mod quantize_device;
#[path = "../../checkpoint/tests/support/mod.rs"]
mod support;
mod supports;
mod tensor;
mod threads;
mod tune;
