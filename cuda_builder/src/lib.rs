//! Compiles a GPU crate written in Rust to PTX.
//!
//! The names follow rust-cuda's `cuda_builder`; the compiler is rustc's own
//! NVPTX back end (target `nvptx64-nvidia-cuda`), because rust-cuda's code
//! generator cannot name sm_100a.
//!
//! ```no_run
//! use cuda_builder::CudaBuilder;
//! let built = CudaBuilder::new("kernels-gpu", "sm_90a").build()?;
//! for kernel in &built.kernels {
//!     println!("{} {:?}", kernel.name, kernel.threads);
//! }
//! # Ok::<(), cuda_builder::BuildError>(())
//! ```
//!
//! A build is four steps, one module each: [`compiler`] finds a rustc that has
//! the source of `core`, [`build`] runs cargo with it, [`ptx`] turns the markers
//! that `cuda_std` leaves into directives and checks the result, and [`ptxas`]
//! reports registers, spills and shared memory where ptxas is at hand; [`nvdisasm`]
//! prints machine code, and [`toolkit`] finds such programs or installs them.

pub mod build;
pub mod compiler;
pub mod error;
pub mod nvdisasm;
pub mod ptx;
pub mod ptxas;
pub mod toolkit;

pub use build::{Built, BuiltModule, CudaBuilder, ModuleSpec, Prepared};
pub use compiler::{Compiler, Fetch};
pub use error::BuildError;
pub use ptx::Kernel;

/// Writes a line to standard error, where somebody may read it.
pub(crate) fn note(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}
