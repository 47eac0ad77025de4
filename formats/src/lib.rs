//! Element formats, scale layouts and tile configurations of block-scaled 4-bit floating point.
//!
//! GPU kernels, the host library and the emulator share this crate. Everything that depends on the
//! layout of a byte or the rounding of a value is defined here once. The crate is `no_std`,
//! allocates nothing and has no dependencies (except `serde` if the host asks for it). Nearly all
//! functions are `const fn`, so the same function sizes a host buffer, fills a kernel's constant
//! table and checks a golden file.
//!
//! | module | what it defines | source |
//! | --- | --- | --- |
//! | [`arch`] | the targets that kernels are compiled for, and their capabilities | PTX ISA |
//! | [`e2m1`] | the 4-bit element | PTX ISA, "Alternate Floating-Point Data Formats" |
//! | [`e4m3`] | NVFP4's block scale | same |
//! | [`ue8m0`] | MXFP4's block scale | same |
//! | [`float`] | types of floats that are not block-scaled | IEEE 754; bfloat16 |
//! | [`pack`] | two elements per byte, element `2j` in the low nibble | same |
//! | [`block`] | NVFP4 and MXFP4 as types: block size, scale format, byte counts | OCP MX 1.0; PTX ISA, block scaling |
//! | [`layout`] | the place of a block's scale in memory | cuBLAS, "1D Block Scaling Factors Layout" |
//! | [`swizzle`] | K-major shared-memory layouts of matrix operands | PTX ISA, "Swizzling Modes" |
//! | [`tensor_map`] | a tensor map as a member of a parameter block | CUDA driver API |
//! | [`params`] | parameter blocks as bytes | CUDA driver API |
//! | [`divisor`] | division by multiplication | published algorithm |
//! | [`family`] | which kernels are compiled and loaded together | this project |
//! | [`attention`] | the parameter block and configurations of attention of one token | this project |
//! | [`ceiling`] | the parameter block of the kernel that only reads | this project |
//! | [`gemm`] | tile configurations, parameter blocks and weight layouts of the GEMM kernels | this project |
//! | [`gemv`] | tile configurations and the parameter block of the GEMV kernels | this project |
//! | [`quantize`] | the same for the quantise, dequantise and amax kernels | this project |
//! | [`rows`] | the same for the kernels of norm, activation and rotation before a quantiser | this project |
//! | [`stamp`] | which version of this crate a module was compiled with | this project |
//! | [`recipe`] | how other projects quantise, bit for bit | those projects |
#![no_std]

pub mod arch;
pub mod attention;
pub mod block;
pub mod ceiling;
pub mod divisor;
pub mod e2m1;
pub mod e4m3;
pub mod family;
pub mod float;
pub mod gemm;
pub mod gemv;
pub mod layout;
pub mod moe;
pub mod pack;
pub mod params;
pub mod quantize;
pub mod recipe;
pub mod rows;
#[cfg(feature = "serde")]
mod serialised;
pub mod stamp;
pub mod swizzle;
pub mod tensor_map;
pub mod ue8m0;

pub use arch::{Arch, TensorFamily};
pub use block::{BlockFormat, Mxfp4, Nvfp4};
pub use divisor::Divisor;
pub use family::Family;
pub use float::{FloatType, HalfType, Operand};
pub use layout::{ScaleLayout, SizeOverflow};
pub use swizzle::Swizzle;
pub use tensor_map::TensorMap;

/// Lanes of a warp, on every GPU.
pub const WARP: u32 = 32;
