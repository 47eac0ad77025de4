//! The library: devices, buffers, plans, quantising, tuning tables, refusals.

mod buffer;
#[path = "../../checkpoint/tests/support/mod.rs"]
mod checkpoint_support;
mod device;
mod gemm_refused;
mod modules;
mod packages;
mod parallel;
mod plan;
mod quantize;
mod quantize_device;
mod support;
mod tensor;
mod threads;
mod tune;
