//! Functions that driver and runtime have with the same arguments.

mod graph_attributes;
mod graph_nodes;
pub(crate) mod graphs;

use crate::abi::Pointer;

/// The driver's among them, by name.
pub(crate) const EXPORTS: [&[(&str, Pointer)]; 5] = [
    graph_attributes::EXPORTS,
    graph_nodes::ADDING,
    graph_nodes::CHANGING,
    graph_nodes::READING,
    graphs::EXPORTS,
];
