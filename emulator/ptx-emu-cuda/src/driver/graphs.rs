//! Graphs: the driver's functions that have other arguments than the runtime's.

use crate::abi::{In, Out, exports};
use crate::graphs::parameters::conditional;
use crate::shared::graphs::{depend, edges, nodes_after, nodes_before, undepend};

exports! { driver;
    call cuGraphInstantiate_v2(executable: Out<u64>, graph: u64, _node: u64, _log: u64, _bytes: u64) |state| {
        executable.set(state.instantiate(graph, 0)?)
    }

    call cuGraphExecUpdate(executable: u64, graph: u64, node: Out<u64>, result: Out<i32>) |state| {
        let updated = state.update(executable, graph);
        let (reason, from) = updated.as_ref().err().map_or((0, 0), |(_, reason, node)| (*reason, *node));
        node.set_if_wanted(from);
        result.set_if_wanted(reason);
        updated.map_err(|(failure, ..)| failure)
    }

    query cuGraphGetEdges(graph: u64, from: u64, to: u64, count: u64) |state| {
        edges(state, graph, [from, to, 0], count)
    }

    query cuGraphNodeGetDependencies(node: u64, nodes: u64, count: u64) |state| {
        nodes_before(state, node, [nodes, 0], count)
    }

    query cuGraphNodeGetDependentNodes(node: u64, nodes: u64, count: u64) |state| {
        nodes_after(state, node, [nodes, 0], count)
    }

    call cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: u64) |state| {
        depend(state, graph, from, to, count)
    }

    call cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: u64) |state| {
        undepend(state, graph, from, to, count)
    }

    query cuGraphConditionalHandleCreate(
        _handle: u64, _graph: u64, _context: u64, _value: u32, _flags: u32,
    ) |_state| {
        conditional()
    }
}
