//! Graphs.

use crate::abi::{Out, exports};
use crate::graphs;

exports! { driver;
    call cuGraphCreate(graph: Out<u64>, _flags: u32) |state| {
        graph.set(state.create_graph())
    }

    call cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) |state| {
        executable.set(state.instantiate(graph, flags)?)
    }

    call cuGraphInstantiate_v2(executable: Out<u64>, graph: u64, _node: u64, _log: u64, _bytes: u64) |state| {
        executable.set(state.instantiate(graph, 0)?)
    }

    free cuGraphLaunch | cuGraphLaunch_ptsz(executable: u64, stream: u64) |_state| {
        graphs::launch(executable, stream)
    }

    call cuGraphUpload | cuGraphUpload_ptsz(executable: u64, _stream: u64) |state| {
        state.executable(executable).map(drop)
    }

    call cuGraphDestroy | cuGraphExecDestroy(graph: u64) |state| {
        state.destroy_graph(graph)
    }
}
