//! Graphs: their nodes as a whole, and launches.

use crate::abi::{In, Out, both, host_bytes, set_host_bytes};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs;
use crate::graphs::parameters::no_edge_data;
use crate::state::State;

/// `cudaGraphInstantiateParams`, `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
struct Instantiation {
    flags: u64,
    upload: u64,
    node: u64,
    result: u32,
}

/// `cudaGraphExecUpdateResultInfo`, `CUgraphExecUpdateResultInfo`
#[repr(C)]
struct UpdateResult {
    result: i32,
    node: u64,
    from: u64,
}

/// Answers a call that asks for lists of the same length: the program says how long its lists are, and learns how much
/// was written; without lists, how much there is.
fn lists(count: u64, lists: &[(u64, Vec<u64>)]) -> Result<(), Failure> {
    if count == 0 {
        return Err(Failure::new(INVALID_VALUE, "the pointer to the number is null"));
    }
    let there = lists.first().map_or(0, |(_, values)| values.len());
    let mut number = there;
    let wanted = lists.iter().any(|(address, _)| *address != 0);
    if wanted {
        let room =
            host_bytes(count, 8).iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        number = usize::try_from(room).unwrap_or(usize::MAX).min(there);
        for (address, values) in lists.iter().filter(|(address, _)| *address != 0) {
            let bytes: Vec<u8> =
                values[..number].iter().flat_map(|value| value.to_le_bytes()).collect();
            set_host_bytes(*address, &bytes);
        }
    }
    set_host_bytes(count, &(number as u64).to_le_bytes());
    Ok(())
}

/// Makes a graph that can be launched from another one.
fn instantiate(state: &mut State, graph: u64, flags: u64, parameters: u64) -> Result<u64, Failure> {
    let made = state.instantiate(graph, flags);
    if parameters != 0 {
        // No node is named. Circles are the structure's fault.
        set_host_bytes(parameters + 16, &0u64.to_le_bytes());
        set_host_bytes(parameters + 24, &if made.is_ok() { 0u32 } else { 2 }.to_le_bytes());
    }
    made
}

/// Answers with the edges of a graph: the lists of their ends and of their data, which is 0.
pub(crate) fn edges(
    state: &State,
    graph: u64,
    [from, to, data]: [u64; 3],
    count: u64,
) -> Result<(), Failure> {
    let edges = state.graph(graph)?.edges();
    let end = |at: usize| edges.iter().map(|edge| edge[at]).collect();
    lists(count, &[(from, end(0)), (to, end(1)), (data, vec![0; edges.len()])])
}

/// Answers with the nodes that come right before a node, and the data of the edges, which is 0.
pub(crate) fn nodes_before(
    state: &State,
    node: u64,
    [nodes, data]: [u64; 2],
    count: u64,
) -> Result<(), Failure> {
    let before = state.graph(state.graph_of(node)?)?.node(node)?.before.clone();
    let none = vec![0; before.len()];
    lists(count, &[(nodes, before), (data, none)])
}

/// Answers with the nodes that come right behind a node, and the data of the edges, which is 0.
pub(crate) fn nodes_after(
    state: &State,
    node: u64,
    [nodes, data]: [u64; 2],
    count: u64,
) -> Result<(), Failure> {
    let edges = state.graph(state.graph_of(node)?)?.edges();
    let after: Vec<u64> =
        edges.iter().filter(|[from, _]| *from == node).map(|edge| edge[1]).collect();
    let none = vec![0; after.len()];
    lists(count, &[(nodes, after), (data, none)])
}

/// Pairs each node of one list of `count` nodes with the node at the same place of the other.
fn pairs(
    from: In<u64>,
    to: In<u64>,
    count: u64,
) -> Result<impl Iterator<Item = (u64, u64)>, Failure> {
    Ok(from.all(count as usize)?.into_iter().zip(to.all(count as usize)?))
}

/// Makes the nodes of one list come before those of the other.
pub(crate) fn depend(
    state: &mut State,
    graph: u64,
    from: In<u64>,
    to: In<u64>,
    count: u64,
) -> Result<(), Failure> {
    pairs(from, to, count)?.try_for_each(|(before, after)| state.depend(graph, before, after))
}

/// Takes dependencies away.
pub(crate) fn undepend(
    state: &mut State,
    graph: u64,
    from: In<u64>,
    to: In<u64>,
    count: u64,
) -> Result<(), Failure> {
    pairs(from, to, count)?.try_for_each(|(before, after)| state.undepend(graph, before, after))
}

both! {
    call cudaGraphCreate = cuGraphCreate(graph: Out<u64>, _flags: u32) |state| {
        graph.set(state.create_graph())
    }

    call cudaGraphInstantiate | cudaGraphInstantiateWithFlags = cuGraphInstantiateWithFlags(
        executable: Out<u64>, graph: u64, flags: u64,
    ) |state| {
        executable.set(instantiate(state, graph, flags, 0)?)
    }

    call cudaGraphInstantiateWithParams | cudaGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        executable: Out<u64>, graph: u64, parameters: In<Instantiation>,
    ) |state| {
        let flags = parameters.get()?.flags;
        executable.set(instantiate(state, graph, flags, parameters.address())?)
    }

    query cudaGraphExecGetFlags = cuGraphExecGetFlags(executable: u64, flags: Out<u64>) |state| {
        flags.set(state.executable(executable)?)
    }

    call cudaGraphClone = cuGraphClone(clone: Out<u64>, graph: u64) |state| {
        clone.set(state.copy_graph(graph, None)?)
    }

    query cudaGraphNodeFindInClone = cuGraphNodeFindInClone(node: Out<u64>, original: u64, clone: u64) |state| {
        node.set(state.find_in_clone(original, clone)?)
    }

    call cudaGraphExecUpdate = cuGraphExecUpdate_v2(executable: u64, graph: u64, info: Out<UpdateResult>) |state| {
        let updated = state.update(executable, graph);
        let (result, from) = updated.as_ref().err().map_or((0, 0), |(_, reason, node)| (*reason, *node));
        info.set_if_wanted(UpdateResult { result, node: 0, from });
        updated.map_err(|(failure, ..)| failure)
    }

    free cudaGraphLaunch | cudaGraphLaunch_ptsz = cuGraphLaunch | cuGraphLaunch_ptsz(executable: u64, stream: u64) |_state| {
        graphs::launch(executable, stream)
    }

    call cudaGraphUpload | cudaGraphUpload_ptsz = cuGraphUpload | cuGraphUpload_ptsz(executable: u64, _stream: u64) |state| {
        state.executable(executable).map(drop)
    }

    call cudaGraphDestroy | cudaGraphExecDestroy = cuGraphDestroy | cuGraphExecDestroy(graph: u64) |state| {
        state.destroy_graph(graph)
    }

    query cudaGraphGetNodes = cuGraphGetNodes(graph: u64, nodes: u64, count: u64) |state| {
        let all = state.graph(graph)?.nodes.iter().map(|node| node.handle).collect();
        lists(count, &[(nodes, all)])
    }

    query cudaGraphGetRootNodes = cuGraphGetRootNodes(graph: u64, nodes: u64, count: u64) |state| {
        let roots = state.graph(graph)?.nodes.iter().filter(|node| node.before.is_empty());
        lists(count, &[(nodes, roots.map(|node| node.handle).collect())])
    }

    query cudaGraphGetEdges = cuGraphGetEdges_v2(graph: u64, from: u64, to: u64, data: u64, count: u64) |state| {
        edges(state, graph, [from, to, data], count)
    }

    query cudaGraphNodeGetDependencies = cuGraphNodeGetDependencies_v2(
        node: u64, nodes: u64, data: u64, count: u64,
    ) |state| {
        nodes_before(state, node, [nodes, data], count)
    }

    query cudaGraphNodeGetDependentNodes = cuGraphNodeGetDependentNodes_v2(
        node: u64, nodes: u64, data: u64, count: u64,
    ) |state| {
        nodes_after(state, node, [nodes, data], count)
    }

    call cudaGraphAddDependencies = cuGraphAddDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, edges: u64, count: u64,
    ) |state| {
        no_edge_data(edges)?;
        depend(state, graph, from, to, count)
    }

    call cudaGraphRemoveDependencies = cuGraphRemoveDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, edges: u64, count: u64,
    ) |state| {
        no_edge_data(edges)?;
        undepend(state, graph, from, to, count)
    }

    call cudaGraphDestroyNode = cuGraphDestroyNode(node: u64) |state| {
        state.destroy_node(node)
    }

    query cudaGraphNodeGetType = cuGraphNodeGetType(node: u64, kind: Out<i32>) |state| {
        kind.set(state.operation(node)?.kind())
    }

    call cudaGraphNodeSetEnabled = cuGraphNodeSetEnabled(executable: u64, node: u64, enabled: u32) |state| {
        state.executable(executable)?;
        let kind = state.graph(executable)?.node(node)?.operation.kind();
        if !(0..3).contains(&kind) {
            return Err(Failure::new(INVALID_VALUE, "node: required a kernel, a copy or a fill"));
        }
        state.enable(executable, node, enabled != 0)
    }

    query cudaGraphNodeGetEnabled = cuGraphNodeGetEnabled(executable: u64, node: u64, enabled: Out<u32>) |state| {
        state.executable(executable)?;
        enabled.set(state.graph(executable)?.node(node)?.enabled.into())
    }

    // Memory of graphs is freed where it is freed.
    query cudaDeviceGraphMemTrim = cuDeviceGraphMemTrim(device: i32) |_state| {
        crate::state::device(device)
    }

    // Used now and at most, set aside now and at most: nothing is set aside that is not used.
    query cudaDeviceGetGraphMemAttribute = cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>) |state| {
        crate::state::device(device)?;
        match attribute {
            0 | 2 => value.set(state.memory.of_graphs.used),
            1 | 3 => value.set(state.memory.of_graphs.most),
            _ => Err(Failure::new(INVALID_VALUE, format!("attribute: required 0 to 3, actual {attribute}"))),
        }
    }

    call cudaDeviceSetGraphMemAttribute = cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: In<u64>) |state| {
        crate::state::device(device)?;
        if ![1, 3].contains(&attribute) || value.get()? != 0 {
            let message = "required 0 for attribute 1 or 3, the most bytes of graphs";
            return Err(Failure::new(INVALID_VALUE, message));
        }
        state.memory.of_graphs.most = state.memory.of_graphs.used;
        Ok(())
    }
}
