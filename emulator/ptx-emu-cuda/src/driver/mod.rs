//! The CUDA driver's functions.

mod copies;
mod device;
mod execution;
mod graph_nodes;
mod graphs;
mod link;
mod memory;
mod module;
mod streams;
mod tensor_map;

use crate::abi::Pointer;

pub(crate) use link::Link;

/// All of them by name.
pub(crate) fn exports() -> impl Iterator<Item = &'static (&'static str, Pointer)> {
    [
        copies::EXPORTS,
        device::EXPORTS,
        execution::EXPORTS,
        graph_nodes::EXPORTS,
        graphs::EXPORTS,
        link::EXPORTS,
        memory::EXPORTS,
        module::EXPORTS,
        streams::EXPORTS,
        tensor_map::EXPORTS,
    ]
    .into_iter()
    .chain(crate::shared::EXPORTS)
    .flatten()
}
