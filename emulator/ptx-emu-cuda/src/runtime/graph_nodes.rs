//! Nodes of graphs, each kind with its parameters.

use super::graphs::no_edge_data;
use super::memory::{Copy3d, copy_3d, parameters_3d, variable};
use crate::abi::{Callback, Dim3, In, Out, exports, set_host_bytes};
use crate::arguments::{Attributes, Shape};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{Operation, Rows};
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

/// The same with addresses as the program reads them.
#[repr(C)]
struct ShownKernel {
    function: u64,
    grid: Dim3,
    block: Dim3,
    dynamic_shared: u32,
    arguments: u64,
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

/// `cudaMemAllocNodeParams`
#[repr(C)]
#[derive(Clone, Copy)]
struct AllocationNode {
    /// Properties of the pool.
    pool: [u64; 11],
    access: u64,
    access_count: u64,
    bytes: u64,
    address: u64,
}

/// `cudaChildGraphNodeParams`
#[repr(C)]
#[derive(Clone, Copy)]
struct ChildNode {
    graph: u64,
    /// 0: the node has a copy; 1: it has the graph itself.
    ownership: i32,
}

/// `cudaGraphNodeParams`: the parameters of the kind begin 16 bytes behind its start.
#[repr(C)]
#[derive(Clone, Copy)]
struct AnyNode {
    kind: i32,
    reserved: [i32; 3],
    words: [u64; 29],
    last: u64,
}

/// The start of the parameters in [`AnyNode`], and of a copy's in those of a copy's node, bytes.
const PART: usize = 16;

fn launch(state: &mut State, node: In<KernelNode>) -> Result<Operation, Failure> {
    let KernelNode { function, grid, block, dynamic_shared, arguments, extra } = node.get()?;
    if extra != 0 {
        return Err(Failure::not_modelled("a kernel node with extra arguments"));
    }
    let kernel = state.registered_kernel(function)?;
    let dynamic_shared = dynamic_shared.into();
    let shape = Shape { grid: grid.into(), block: block.into(), dynamic_shared, stream: 0 };
    let launch = state.launch_of(kernel, shape, Attributes::default(), arguments)?;
    state.check_launch(&launch)?;
    Ok(Operation::Launch(launch))
}

fn fill(node: In<FillNode>) -> Result<Operation, Failure> {
    let FillNode { to, pitch, value, element, width, height } = node.get()?;
    if ![1, 2, 4].contains(&element) {
        let message = format!("element size: required 1, 2 or 4, actual {element}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    let pattern = value.to_le_bytes()[..element as usize].to_vec();
    Ok(Operation::Fill { to: Rows { address: to, pitch, width, height }, pattern })
}

fn host(node: In<HostNode>) -> Result<Operation, Failure> {
    let HostNode { function, argument } = node.get()?;
    Ok(Operation::Host(Callback::Host { function, argument }))
}

fn copy_1d(to: u64, from: u64, bytes: u64, kind: i32) -> Result<Operation, Failure> {
    Ok(Operation::copy(Rows::one(to, bytes), Rows::one(from, bytes), Direction::of(kind)?))
}

/// A copy to or from the variable that a host variable stands for.
fn copy_symbol(
    state: &mut State,
    symbol: u64,
    other: u64,
    (bytes, offset): (u64, u64),
    to_symbol: bool,
) -> Result<Operation, Failure> {
    let here = variable(state, symbol, bytes, offset)?;
    let (to, from) = if to_symbol { (here, other) } else { (other, here) };
    Ok(Operation::copy(Rows::one(to, bytes), Rows::one(from, bytes), Direction::ANY))
}

/// Reserves the address of memory that a node allocates, and tells the program.
fn allocation(state: &mut State, node: In<AllocationNode>) -> Result<Operation, Failure> {
    let bytes = node.get()?.bytes;
    if bytes == 0 {
        return Err(Failure::new(INVALID_VALUE, "bytes: required at least 1, actual 0"));
    }
    let address = state.memory.reserve_for(bytes)?;
    let place = std::mem::offset_of!(AllocationNode, address) as u64;
    set_host_bytes(node.address() + place, &address.to_le_bytes());
    Ok(Operation::Allocate { address, bytes })
}

/// The operation of an event's node.
fn event(state: &mut State, event: u64, make: fn(u64) -> Operation) -> Result<Operation, Failure> {
    state.event(event)?;
    Ok(make(event))
}

fn child(state: &mut State, node: ChildNode) -> Result<Operation, Failure> {
    match node.ownership {
        0 => Ok(Operation::Child(state.copy_graph(node.graph, None)?)),
        1 => state.graph(node.graph).map(|_| Operation::Child(node.graph)),
        other => {
            let message = format!("ownership: required 0 or 1, actual {other}");
            Err(Failure::new(INVALID_VALUE, message))
        }
    }
}

/// The operation of a node of any kind.
fn any(state: &mut State, node: In<AnyNode>) -> Result<Operation, Failure> {
    let word = || node.part::<u64>(PART).get();
    match node.get()?.kind {
        0 => launch(state, node.part(PART)),
        1 => copy_3d(node.part::<Copy3d>(2 * PART).get()?),
        2 => fill(node.part(PART)),
        3 => host(node.part(PART)),
        4 => child(state, node.part::<ChildNode>(PART).get()?),
        5 => Ok(Operation::Nothing),
        6 => event(state, word()?, Operation::Wait),
        7 => event(state, word()?, Operation::Record),
        8 | 9 => Err(Failure::not_modelled("a node with external semaphores")),
        10 => allocation(state, node.part(PART)),
        11 => Ok(Operation::Free(word()?)),
        13 => Err(Failure::not_modelled("a conditional node of a graph")),
        kind => {
            let message = format!("type of the node: required 0 to 13, actual {kind}");
            Err(Failure::new(INVALID_VALUE, message))
        }
    }
}

/// Gives a node of a graph another operation.
fn set(state: &mut State, node: u64, operation: Operation) -> Result<(), Failure> {
    if matches!(operation, Operation::Allocate { .. } | Operation::Free(_)) {
        return Err(Failure::not_modelled("other parameters of a node that allocates or frees"));
    }
    let graph = state.graph_of(node)?;
    state.replace(graph, node, operation)
}

/// Gives a node of a graph that can be launched another operation.
fn set_in(
    state: &mut State,
    executable: u64,
    node: u64,
    operation: Operation,
) -> Result<(), Failure> {
    state.executable(executable)?;
    if matches!(operation, Operation::Allocate { .. } | Operation::Free(_)) {
        return Err(Failure::not_modelled("other parameters of a node that allocates or frees"));
    }
    state.replace(executable, node, operation)
}

fn other_kind<T>(required: &str) -> Result<T, Failure> {
    Err(Failure::new(INVALID_VALUE, format!("node: required {required}, actual another type")))
}

/// Functions that add a node: `$operation` says which, with the arguments behind the number of dependencies.
macro_rules! adding {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) |$state:ident| $operation:expr;)*) => {
        exports! { runtime;
            $(call $name(
                node: Out<u64>, graph: u64, after: In<u64>, count: u64, $($arg: $ty),*
            ) |$state| {
                let after = after.all(count as usize)?;
                $state.graph(graph)?;
                let operation = $operation?;
                node.set($state.add_node(graph, &after, operation)?)
            })*
        }
    };
}

adding! {
    cudaGraphAddKernelNode(parameters: In<KernelNode>) |state| launch(state, parameters);
    cudaGraphAddMemcpyNode(parameters: In<Copy3d>) |state| copy_3d(parameters.get()?);
    cudaGraphAddMemcpyNode1D(to: u64, from: u64, bytes: u64, kind: i32) |state| copy_1d(to, from, bytes, kind);
    cudaGraphAddMemcpyNodeToSymbol(symbol: u64, from: u64, bytes: u64, offset: u64, _kind: i32) |state|
        copy_symbol(state, symbol, from, (bytes, offset), true);
    cudaGraphAddMemcpyNodeFromSymbol(to: u64, symbol: u64, bytes: u64, offset: u64, _kind: i32) |state|
        copy_symbol(state, symbol, to, (bytes, offset), false);
    cudaGraphAddMemsetNode(parameters: In<FillNode>) |state| fill(parameters);
    cudaGraphAddHostNode(parameters: In<HostNode>) |state| host(parameters);
    cudaGraphAddEmptyNode() |state| Ok::<_, Failure>(Operation::Nothing);
    cudaGraphAddChildGraphNode(graph_within: u64) |state|
        child(state, ChildNode { graph: graph_within, ownership: 0 });
    cudaGraphAddEventRecordNode(which: u64) |state| event(state, which, Operation::Record);
    cudaGraphAddEventWaitNode(which: u64) |state| event(state, which, Operation::Wait);
    cudaGraphAddMemAllocNode(parameters: In<AllocationNode>) |state| allocation(state, parameters);
    cudaGraphAddMemFreeNode(address: u64) |state| Ok::<_, Failure>(Operation::Free(address));
}

/// Functions that give a node other parameters: one for a node of a graph, one for that of a graph that can be launched.
macro_rules! setting {
    ($($name:ident $executable:ident($($arg:ident: $ty:ty),* $(,)?) |$state:ident| $operation:expr;)*) => {
        exports! { runtime;
            $(
                call $name(node: u64, $($arg: $ty),*) |$state| {
                    let operation = $operation?;
                    set($state, node, operation)
                }

                call $executable(executable: u64, node: u64, $($arg: $ty),*) |$state| {
                    let operation = $operation?;
                    set_in($state, executable, node, operation)
                }
            )*
        }
    };
}

setting! {
    cudaGraphKernelNodeSetParams cudaGraphExecKernelNodeSetParams(parameters: In<KernelNode>) |state|
        launch(state, parameters);
    cudaGraphMemcpyNodeSetParams cudaGraphExecMemcpyNodeSetParams(parameters: In<Copy3d>) |state|
        copy_3d(parameters.get()?);
    cudaGraphMemcpyNodeSetParams1D cudaGraphExecMemcpyNodeSetParams1D(
        to: u64, from: u64, bytes: u64, kind: i32,
    ) |state| copy_1d(to, from, bytes, kind);
    cudaGraphMemcpyNodeSetParamsToSymbol cudaGraphExecMemcpyNodeSetParamsToSymbol(
        symbol: u64, from: u64, bytes: u64, offset: u64, _kind: i32,
    ) |state| copy_symbol(state, symbol, from, (bytes, offset), true);
    cudaGraphMemcpyNodeSetParamsFromSymbol cudaGraphExecMemcpyNodeSetParamsFromSymbol(
        to: u64, symbol: u64, bytes: u64, offset: u64, _kind: i32,
    ) |state| copy_symbol(state, symbol, to, (bytes, offset), false);
    cudaGraphMemsetNodeSetParams cudaGraphExecMemsetNodeSetParams(parameters: In<FillNode>) |state| fill(parameters);
    cudaGraphHostNodeSetParams cudaGraphExecHostNodeSetParams(parameters: In<HostNode>) |state| host(parameters);
    cudaGraphEventRecordNodeSetEvent cudaGraphExecEventRecordNodeSetEvent(which: u64) |state|
        event(state, which, Operation::Record);
    cudaGraphEventWaitNodeSetEvent cudaGraphExecEventWaitNodeSetEvent(which: u64) |state|
        event(state, which, Operation::Wait);
    cudaGraphNodeSetParams cudaGraphExecNodeSetParams(parameters: In<AnyNode>) |state| any(state, parameters);
}

exports! { runtime;
    call cudaGraphAddNode(
        node: Out<u64>, graph: u64, after: In<u64>, edges: u64, count: u64, parameters: In<AnyNode>,
    ) |state| {
        no_edge_data(edges)?;
        let after = after.all(count as usize)?;
        state.graph(graph)?;
        let operation = any(state, parameters)?;
        if let Operation::Child(child) = operation {
            // The program learns which graph the node has.
            set_host_bytes(parameters.address() + PART as u64, &child.to_le_bytes());
        }
        node.set(state.add_node(graph, &after, operation)?)
    }

    call cudaGraphExecChildGraphNodeSetParams(executable: u64, node: u64, graph: u64) |state| {
        state.executable(executable)?;
        state.graph(graph)?;
        let copy = state.instantiate(graph, 0)?;
        state.replace(executable, node, Operation::Child(copy))
    }

    query cudaGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Child(child) => graph.set(*child),
            _ => other_kind("a graph's"),
        }
    }

    query cudaGraphKernelNodeGetParams(node: u64, parameters: Out<ShownKernel>) |state| {
        let arguments = state.show_arguments(node)?;
        let Operation::Launch(launch) = state.operation(node)? else { return other_kind("a kernel's") };
        let dim = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        parameters.set(ShownKernel {
            function: launch.kernel,
            grid: dim(launch.grid),
            block: dim(launch.block),
            dynamic_shared: launch.dynamic_shared as u32,
            arguments,
            extra: 0,
        })
    }

    query cudaGraphMemcpyNodeGetParams(node: u64, parameters: Out<Copy3d>) |state| {
        match state.operation(node)? {
            Operation::Copy { layers, direction } => parameters.set(parameters_3d(layers, *direction)),
            _ => other_kind("a copy's"),
        }
    }

    query cudaGraphMemsetNodeGetParams(node: u64, parameters: Out<FillNode>) |state| {
        let Operation::Fill { to, pattern } = state.operation(node)? else { return other_kind("a fill's") };
        let Rows { address, pitch, width, height } = *to;
        let value = pattern.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
        let element = pattern.len() as u32;
        parameters.set(FillNode { to: address, pitch, value, element, width, height })
    }

    query cudaGraphHostNodeGetParams(node: u64, parameters: Out<HostNode>) |state| {
        match *state.operation(node)? {
            Operation::Host(Callback::Host { function, argument }) => {
                parameters.set(HostNode { function, argument })
            }
            _ => other_kind("a host function's"),
        }
    }

    query cudaGraphEventRecordNodeGetEvent(node: u64, event: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Record(which) => event.set(*which),
            _ => other_kind("one that records an event"),
        }
    }

    query cudaGraphEventWaitNodeGetEvent(node: u64, event: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Wait(which) => event.set(*which),
            _ => other_kind("one that waits for an event"),
        }
    }

    query cudaGraphMemAllocNodeGetParams(node: u64, parameters: Out<AllocationNode>) |state| {
        let Operation::Allocate { address, bytes } = *state.operation(node)? else {
            return other_kind("one that allocates");
        };
        // The pool's memory is pinned on device 0.
        let mut pool = [0; 11];
        (pool[0], pool[1]) = (1, 1);
        parameters.set(AllocationNode { pool, access: 0, access_count: 0, bytes, address })
    }

    query cudaGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) |state| {
        match state.operation(node)? {
            Operation::Free(which) => address.set(*which),
            _ => other_kind("one that frees"),
        }
    }
}
