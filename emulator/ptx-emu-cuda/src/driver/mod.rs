//! The CUDA driver's functions.

mod device;
mod execution;
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
        device::EXPORTS,
        execution::EXPORTS,
        graphs::EXPORTS,
        link::EXPORTS,
        memory::EXPORTS,
        module::EXPORTS,
        streams::EXPORTS,
        tensor_map::EXPORTS,
    ]
    .into_iter()
    .flatten()
}
