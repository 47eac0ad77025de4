//! The CUDA runtime's functions.

mod device;
mod graphs;
mod launch;
mod memory;
mod register;
mod streams;
mod texts;
