//! The machine from the outside: modules that load, launches, instructions by family, findings.

mod async_support;
mod copies;
mod findings;
mod gemm_kernels;
mod launch;
mod load;
mod matrix;
mod num;
mod programs;
mod race;
#[path = "support/races.rs"]
mod races;
#[path = "support/roundings.rs"]
mod roundings;
mod support;
mod syntax;
mod tcgen05;
mod tensor;
mod tensor_cores;
mod tensor_map;
mod threads;
mod wgmma;
