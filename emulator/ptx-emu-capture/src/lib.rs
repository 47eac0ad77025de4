//! Watches the CUDA driver of a machine with a GPU. `ptx-emu capture` lets programs find this library
//! before the driver's own; what a program launches runs on the GPU, and is written as a bundle
//! with the memory that it found and what the hardware made of it.
//!
//! This library has only the driver's functions that are watched: those that load modules,
//! allocate memory, encode tensor maps and launch kernels. Each calls the driver's own. All others are
//! found in the driver's library, which comes next in the order in which the linker looks; those
//! that the runtime gets from `cuGetProcAddress` are the driver's, too, but for the watched ones.
//!
//! Around a launch the device is waited for and all its memory copied, so launches do not overlap.
//!
//! # Not captured, and reported by name
//!
//! * Kernels of modules without PTX for the GPU: cuBLAS and other libraries that ship machine code.
//! * Launches in a stream that is recorded into a graph, and those of graphs.
//! * Memory that the host cannot copy: arrays, memory of other contexts.
//!
//! # Unsafe code
//!
//! All of it is in `abi`: the program's pointers are read there, and the driver's functions called.

#![allow(non_snake_case, reason = "exported functions have CUDA's names")]

mod abi;
mod driver;
mod hooks;
mod launch;
mod modules;
mod settings;
mod state;
