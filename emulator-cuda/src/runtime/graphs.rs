//! Graphs.

use crate::abi::{Out, exports};
use crate::graphs;
use crate::modules::unknown;

exports! { runtime;
    call cudaGraphCreate(graph: Out<u64>, _flags: u32) |state| {
        let handle = state.handle();
        state.graphs.insert(handle, graphs::Graph::default());
        graph.set(handle)
    }

    call cudaGraphInstantiate | cudaGraphInstantiateWithFlags(
        executable: Out<u64>, graph: u64, _flags: u64,
    ) |state| {
        executable.set(state.instantiate(graph)?)
    }

    call cudaGraphClone(clone: Out<u64>, graph: u64) |state| {
        clone.set(state.instantiate(graph)?)
    }

    free cudaGraphLaunch | cudaGraphLaunch_ptsz(executable: u64, stream: u64) |_state| {
        graphs::launch(executable, stream)
    }

    call cudaGraphUpload | cudaGraphUpload_ptsz(executable: u64, _stream: u64) |state| {
        state.graphs.get(&executable).map(drop).ok_or_else(|| unknown("graph", executable))
    }

    call cudaGraphDestroy | cudaGraphExecDestroy(graph: u64) |state| {
        state.graphs.remove(&graph).map(drop).ok_or_else(|| unknown("graph", graph))
    }

    call cudaGraphGetNodes(graph: u64, nodes: u64, count: Out<u64>) |state| {
        if nodes != 0 {
            return Err(crate::errors::Failure::not_modelled("a list of a graph's nodes"));
        }
        let found = state.graphs.get(&graph).ok_or_else(|| unknown("graph", graph))?;
        count.set(found.operations.len() as u64)
    }
}
