//! Functions that say what the parameters of a node are.

use crate::abi::{Out, both};
use crate::graphs::Operation;
use crate::graphs::parameters::{
    AllocationNode, FillNode, HostNode, other_kind, shown_allocation, shown_fill, shown_host,
};

both! {
    query cudaGraphChildGraphNodeGetGraph = cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Child(child) => graph.set(*child),
            _ => other_kind("a graph's"),
        }
    }

    query cudaGraphMemsetNodeGetParams = cuGraphMemsetNodeGetParams(
        node: u64, parameters: Out<FillNode>,
    ) |state| {
        parameters.set(shown_fill(state.operation(node)?)?)
    }

    query cudaGraphHostNodeGetParams = cuGraphHostNodeGetParams(
        node: u64, parameters: Out<HostNode>,
    ) |state| {
        parameters.set(shown_host(state.operation(node)?)?)
    }

    query cudaGraphEventRecordNodeGetEvent = cuGraphEventRecordNodeGetEvent(
        node: u64, event: Out<u64>,
    ) |state| {
        match state.operation(node)? {
            Operation::Record(which) => event.set(*which),
            _ => other_kind("one that records an event"),
        }
    }

    query cudaGraphEventWaitNodeGetEvent = cuGraphEventWaitNodeGetEvent(node: u64, event: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Wait(which) => event.set(*which),
            _ => other_kind("one that waits for an event"),
        }
    }

    query cudaGraphMemAllocNodeGetParams = cuGraphMemAllocNodeGetParams(
        node: u64, parameters: Out<AllocationNode>,
    ) |state| {
        parameters.set(shown_allocation(state.operation(node)?)?)
    }

    query cudaGraphMemFreeNodeGetParams = cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Free(which) => address.set(*which),
            _ => other_kind("one that frees"),
        }
    }
}
