//! The CUDA runtime's functions.

mod device;
mod graph_nodes;
mod launch;
mod memory;
mod register;
mod streams;
mod texts;
