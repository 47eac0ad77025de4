//! Quantising and dequantising against the CPU and against recordings.

mod arithmetic;
mod checksums;
mod dequantize;
mod golden;
mod results;
mod rows;
