//! The kernels, one folder for each operation. Architectures that differ have a trait with one
//! implementation for each capability.
//!
//! The crate is compiled for each architecture with the `cfg`s of its capabilities
//! (`fp4_formats::Arch::cfgs`), once for each family of kernels (`fp4_formats::Family`).

#![no_std]
#![feature(abi_ptx)]

/// Asserts that each entry has the name of its configuration.
macro_rules! assert_names {
    ([$($name:ident),*], $configs:expr) => {
        const _: () = {
            let names = [$(stringify!($name)),*];
            assert!(names.len() == $configs.len());
            let mut i = 0;
            while i < names.len() {
                assert!(
                    crate::same(names[i], $configs[i].name),
                    "an entry's name differs from its configuration's"
                );
                i += 1;
            }
        };
    };
}
use assert_names;

// A module of a family's kernels is compiled without the folders that they do not need, so that a
// change there does not make it stale.
#[cfg(any(not(cuda_builder_module), gpu_operation = "attention"))]
pub mod attention;
#[cfg(any(not(cuda_builder_module), gpu_operation = "ceiling"))]
pub mod ceiling;
#[cfg(any(not(cuda_builder_module), gpu_operation = "dequantize"))]
pub mod dequantize;
pub mod floats;
#[cfg(any(not(cuda_builder_module), gpu_operation = "gemm"))]
pub mod gemm;
#[cfg(any(not(cuda_builder_module), gpu_operation = "gemv"))]
pub mod gemv;
#[cfg(any(not(cuda_builder_module), gpu_operation = "moe"))]
pub mod moe;
pub mod pipeline;
// GEMMs and rows convert as quantisers do.
#[cfg(any(
    not(cuda_builder_module),
    gpu_operation = "quantize",
    gpu_operation = "gemm",
    gpu_operation = "rows"
))]
pub mod quantize;
#[cfg(any(not(cuda_builder_module), gpu_operation = "rows"))]
pub mod rows;

/// The stamp of the contract that this module was compiled with: the host compares it before it
/// loads a module. The name is [`fp4_formats::stamp::SYMBOL`].
#[unsafe(no_mangle)]
pub static NVFP4_STAMP: u64 = fp4_formats::stamp::STAMP;

/// String equality in a constant expression.
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}
