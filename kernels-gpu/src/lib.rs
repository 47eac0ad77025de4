//! The kernels, one folder for each operation. Where architectures differ, there is a trait with
//! one implementation for each capability.
//!
//! The crate is compiled once for each architecture, with the `cfg`s of its capabilities
//! (`fp4_formats::Arch::cfgs`).

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

pub mod ceiling;
pub mod dequantize;
pub mod gemm;
pub mod gemv;
pub mod pipeline;
pub mod quantize;

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
