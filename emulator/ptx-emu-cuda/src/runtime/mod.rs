//! The CUDA runtime's functions.

mod device;
mod graph_attributes;
mod graph_nodes;
mod graphs;
mod launch;
mod memory;
mod register;
mod streams;
mod texts;
