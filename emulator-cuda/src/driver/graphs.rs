//! Graphs.

use crate::abi::{Out, exports};
use crate::graphs;
use crate::modules::unknown;

exports! { driver;
    call cuGraphCreate(graph: Out<u64>, _flags: u32) |state| {
        let handle = state.handle();
        state.graphs.insert(handle, graphs::Graph::default());
        graph.set(handle)
    }

    call cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, _flags: u64) |state| {
        executable.set(state.instantiate(graph)?)
    }

    call cuGraphInstantiate_v2(executable: Out<u64>, graph: u64, _node: u64, _log: u64, _bytes: u64) |state| {
        executable.set(state.instantiate(graph)?)
    }

    free cuGraphLaunch | cuGraphLaunch_ptsz(executable: u64, stream: u64) |_state| {
        graphs::launch(executable, stream)
    }

    call cuGraphUpload | cuGraphUpload_ptsz(executable: u64, _stream: u64) |state| {
        state.graphs.get(&executable).map(drop).ok_or_else(|| unknown("graph", executable))
    }

    call cuGraphDestroy | cuGraphExecDestroy(graph: u64) |state| {
        state.graphs.remove(&graph).map(drop).ok_or_else(|| unknown("graph", graph))
    }
}
