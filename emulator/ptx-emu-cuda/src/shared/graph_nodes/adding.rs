//! Functions that add a node.

use crate::abi::{In, Out, both};
use crate::errors::Failure;
use crate::graphs::Operation;
use crate::graphs::parameters::{
    AllocationNode, ChildNode, HostNode, Place, allocation, child, event, host,
};

/// `$operation` says which node, with the arguments behind the number of dependencies.
macro_rules! adding {
    ($($runtime:ident = $driver:ident($($arg:ident: $ty:ty),* $(,)?) |$state:ident| $operation:expr;)*) => {
        both! {
            $(call $runtime = $driver(
                node: Out<u64>, graph: u64, after: In<u64>, count: u64, $($arg: $ty),*
            ) |$state| {
                Place { node, graph, after, count }.add($state, |$state| $operation)
            })*
        }
    };
}

adding! {
    cudaGraphAddHostNode = cuGraphAddHostNode(parameters: In<HostNode>) |_state| host(parameters);
    cudaGraphAddEmptyNode = cuGraphAddEmptyNode() |_state| Ok::<_, Failure>(Operation::Nothing);
    cudaGraphAddChildGraphNode = cuGraphAddChildGraphNode(within: u64) |state|
        child(state, ChildNode::copy_of(within));
    cudaGraphAddEventRecordNode = cuGraphAddEventRecordNode(which: u64) |state|
        event(state, which, Operation::Record);
    cudaGraphAddEventWaitNode = cuGraphAddEventWaitNode(which: u64) |state|
        event(state, which, Operation::Wait);
    cudaGraphAddMemAllocNode = cuGraphAddMemAllocNode(parameters: In<AllocationNode>) |state|
        allocation(state, parameters);
    cudaGraphAddMemFreeNode = cuGraphAddMemFreeNode(address: u64) |_state|
        Ok::<_, Failure>(Operation::Free(address));
}
