//! One wrapper for each PTX instruction, named after it.
//!
//! The documentation of a wrapper states, in this order, the PTX spelling, the section of
//! the PTX ISA, the targets, the threads that execute it, and its effect. Two rules keep
//! the wrappers sound, because rustc does not mark inline assembly convergent:
//!
//! * wrappers of synchronising or communicating instructions never use
//!   `nomem`, `readonly` or `pure`: to the compiler they read and write all
//!   memory, so it neither moves nor duplicates them across one another;
//! * the number of synchronising instructions of each kernel is compared with the
//!   expected one (`tests/data/kernels/synchronisation.json`) by `cargo xtask test`,
//!   because the compiler may still duplicate or drop one.
//!
//! Loads of read-only data are `pure, readonly`, and arithmetic is `pure, nomem`, so the
//! compiler may move, merge and drop them.

pub mod barrier;
pub mod bulk;
pub mod cluster;
pub mod control;
pub mod convert;
pub mod cp_async;
pub mod fence;
pub mod float;
pub mod grid;
pub mod half;
pub mod integer;
pub mod marker;
pub mod mbarrier;
pub mod memory;
pub mod mma;
pub mod reduce;
pub mod registers;
pub mod remote;
pub mod scoped;
pub mod shuffle;
pub mod special;
#[cfg(gpu_tensor = "tcgen05")]
pub mod tcgen05;
pub mod tensor_copy;
#[cfg(gpu_tensor = "wgmma")]
pub mod wgmma;
