//! Runs PTX modules for Hopper and Blackwell GPUs on a CPU.

pub mod num;
pub mod syntax;
