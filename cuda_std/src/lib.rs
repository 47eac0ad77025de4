//! Device standard library for kernels written in Rust and compiled with
//! rustc's own NVPTX back end.
//!
//! Names and calling conventions follow rust-cuda's `cuda_std`, so that kernels
//! stay portable to it. The difference is that [`ptx`] has one wrapper for each PTX
//! instruction, and inline assembly appears nowhere else.
//!
//! A crate that uses this one is `#![no_std]`, is built by `cuda_builder`, and
//! enables `#![feature(abi_ptx)]` for [`kernel`].

#![no_std]
#![feature(asm_experimental_arch)]

pub mod ptx;
pub mod shared;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::kernel;
#[doc(hidden)]
pub use ptx::marker::launch_bounds;

/// A panic in a kernel executes `trap`, so the launch fails with an error.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    ptx::control::trap()
}
