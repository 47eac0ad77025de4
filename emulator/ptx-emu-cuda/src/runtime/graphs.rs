//! Graphs.

use crate::abi::{Callback, Dim3, In, Out, exports};
use crate::arguments::{Attributes, Shape};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{self, Operation, Rows};
use crate::launch::Launch;
use crate::memory::Direction;
use crate::state::State;

/// `cudaKernelNodeParams`
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelNode {
    function: u64,
    grid: Dim3,
    block: Dim3,
    dynamic_shared: u32,
    arguments: In<u64>,
    extra: u64,
}

/// `cudaMemsetParams`
#[repr(C)]
#[derive(Clone, Copy)]
struct FillNode {
    to: u64,
    pitch: u64,
    value: u32,
    element: u32,
    width: u64,
    height: u64,
}

/// `cudaHostNodeParams`
#[repr(C)]
#[derive(Clone, Copy)]
struct HostNode {
    function: extern "C" fn(u64),
    argument: u64,
}

fn launch(state: &mut State, node: KernelNode) -> Result<Launch, Failure> {
    if node.extra != 0 {
        return Err(Failure::not_modelled("a kernel node with extra arguments"));
    }
    let kernel = state.registered_kernel(node.function)?;
    let dynamic_shared = node.dynamic_shared.into();
    let shape =
        Shape { grid: node.grid.into(), block: node.block.into(), dynamic_shared, stream: 0 };
    let launch = state.launch_of(kernel, shape, Attributes::default(), node.arguments)?;
    state.check_launch(&launch)?;
    Ok(launch)
}

/// Adds a node behind others of the graph.
fn add(
    state: &mut State,
    node: Out<u64>,
    graph: u64,
    after: &[u64],
    operation: Operation,
) -> Result<(), Failure> {
    let added = state.add_node(graph, operation)?;
    after.iter().try_for_each(|before| state.depend(graph, *before, added))?;
    node.set(added)
}

exports! { runtime;
    call cudaGraphCreate(graph: Out<u64>, _flags: u32) |state| {
        graph.set(state.create_graph())
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
        state.graph(executable).map(drop)
    }

    call cudaGraphDestroy | cudaGraphExecDestroy(graph: u64) |state| {
        state.destroy_graph(graph)
    }

    call cudaGraphGetNodes(graph: u64, nodes: u64, count: Out<u64>) |state| {
        if nodes != 0 {
            return Err(Failure::not_modelled("a list of a graph's nodes"));
        }
        count.set(state.graph(graph)?.operations.len() as u64)
    }

    call cudaGraphAddKernelNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<KernelNode>,
    ) |state| {
        let launch = launch(state, parameters.get()?)?;
        add(state, node, graph, &after.all(count as usize)?, Operation::Launch(launch))
    }

    call cudaGraphAddMemcpyNode1D(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, to: u64, from: u64, bytes: u64, kind: i32,
    ) |state| {
        let (to, from) = (Rows::one(to, bytes), Rows::one(from, bytes));
        let copy = Operation::Copy { to, from, direction: Direction::of(kind)? };
        add(state, node, graph, &after.all(count as usize)?, copy)
    }

    call cudaGraphAddMemsetNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<FillNode>,
    ) |state| {
        let FillNode { to, pitch, value, element, width, height } = parameters.get()?;
        if ![1, 2, 4].contains(&element) {
            let message = format!("element size: required 1, 2 or 4, actual {element}");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        let pattern = value.to_le_bytes()[..element as usize].to_vec();
        let to = Rows { address: to, pitch, width, height };
        add(state, node, graph, &after.all(count as usize)?, Operation::Fill { to, pattern })
    }

    call cudaGraphAddHostNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<HostNode>,
    ) |state| {
        let HostNode { function, argument } = parameters.get()?;
        let host = Operation::Host(Callback::Host { function, argument });
        add(state, node, graph, &after.all(count as usize)?, host)
    }

    call cudaGraphAddEmptyNode(node: Out<u64>, graph: u64, after: In<u64>, count: u64) |state| {
        add(state, node, graph, &after.all(count as usize)?, Operation::Nothing)
    }

    call cudaGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, edges: u64, count: u64) |state| {
        if edges != 0 {
            return Err(Failure::not_modelled("data of a graph's edges"));
        }
        let pairs = from.all(count as usize)?.into_iter().zip(to.all(count as usize)?);
        pairs.into_iter().try_for_each(|(before, after)| state.depend(graph, before, after))
    }

    call cudaGraphExecKernelNodeSetParams(executable: u64, node: u64, parameters: In<KernelNode>) |state| {
        let launch = launch(state, parameters.get()?)?;
        state.replace(executable, node, launch)
    }
}
