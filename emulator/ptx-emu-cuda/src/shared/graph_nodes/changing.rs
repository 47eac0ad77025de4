//! Functions that give a node other parameters.

use crate::abi::{In, both};
use crate::graphs::Operation;
use crate::graphs::parameters::{HostNode, event, host, set, set_in};

/// Two functions: one for a node of a graph, one for that of a graph that can be launched.
macro_rules! setting {
    ($(
        $runtime:ident = $driver:ident, $runtime_in:ident = $driver_in:ident($($arg:ident: $ty:ty),* $(,)?)
        |$state:ident| $operation:expr;
    )*) => {
        both! {
            $(
                call $runtime = $driver(node: u64, $($arg: $ty),*) |$state| {
                    let operation = $operation?;
                    set($state, node, operation)
                }

                call $runtime_in = $driver_in(executable: u64, node: u64, $($arg: $ty),*) |$state| {
                    let operation = $operation?;
                    set_in($state, executable, node, operation)
                }
            )*

            call cudaGraphExecChildGraphNodeSetParams = cuGraphExecChildGraphNodeSetParams(
                executable: u64, node: u64, graph: u64,
            ) |state| {
                state.executable(executable)?;
                state.graph(graph)?;
                let copy = state.instantiate(graph, 0)?;
                state.replace(executable, node, Operation::Child(copy))
            }
        }
    };
}

setting! {
    cudaGraphHostNodeSetParams = cuGraphHostNodeSetParams,
    cudaGraphExecHostNodeSetParams = cuGraphExecHostNodeSetParams(parameters: In<HostNode>)
        |state| host(parameters);
    cudaGraphEventRecordNodeSetEvent = cuGraphEventRecordNodeSetEvent,
    cudaGraphExecEventRecordNodeSetEvent = cuGraphExecEventRecordNodeSetEvent(which: u64)
        |state| event(state, which, Operation::Record);
    cudaGraphEventWaitNodeSetEvent = cuGraphEventWaitNodeSetEvent,
    cudaGraphExecEventWaitNodeSetEvent = cuGraphExecEventWaitNodeSetEvent(which: u64)
        |state| event(state, which, Operation::Wait);
}
