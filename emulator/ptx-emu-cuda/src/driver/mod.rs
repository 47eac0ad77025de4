//! The CUDA driver's functions.

mod device;
mod execution;
mod graphs;
mod memory;
mod module;
mod streams;
mod tensor_map;

use crate::abi::Pointer;

/// All of them by name.
pub(crate) fn exports() -> impl Iterator<Item = &'static (&'static str, Pointer)> {
    [
        device::EXPORTS,
        execution::EXPORTS,
        graphs::EXPORTS,
        memory::EXPORTS,
        module::EXPORTS,
        streams::EXPORTS,
        tensor_map::EXPORTS,
    ]
    .into_iter()
    .flatten()
}
