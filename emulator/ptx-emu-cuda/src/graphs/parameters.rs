//! Parameters of graphs' nodes that driver and runtime have alike.

use crate::abi::{Callback, In, Out, set_host_bytes};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{Operation, Rows};
use crate::state::State;

/// `cudaMemsetParams`, `CUDA_MEMSET_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FillNode {
    to: u64,
    pitch: u64,
    value: u32,
    element: u32,
    width: u64,
    height: u64,
}

/// `cudaHostNodeParams`, `CUDA_HOST_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostNode {
    function: extern "C" fn(u64),
    argument: u64,
}

/// `cudaMemAllocNodeParams`, `CUDA_MEM_ALLOC_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationNode {
    /// Properties of the pool.
    pool: [u64; 11],
    access: u64,
    access_count: u64,
    bytes: u64,
    address: u64,
}

/// `cudaChildGraphNodeParams`, `CUDA_CHILD_GRAPH_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ChildNode {
    graph: u64,
    /// 0: the node has a copy; 1: it has the graph itself.
    ownership: i32,
}

impl ChildNode {
    /// A node that has a copy of a graph.
    pub(crate) const fn copy_of(graph: u64) -> Self {
        Self { graph, ownership: 0 }
    }
}

/// `cudaGraphNodeParams`, `CUgraphNodeParams`: the parameters of the kind begin 16 bytes behind its start.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AnyNode {
    kind: i32,
    reserved: [i32; 3],
    words: [u64; 29],
    last: u64,
}

/// The start of the parameters in [`AnyNode`], and of a copy's in those of a copy's node, bytes.
pub(crate) const PART: usize = 16;

/// Readers of those parameters in [`AnyNode`] that driver and runtime have in different forms.
pub(crate) struct Own {
    pub(crate) launch: fn(&mut State, In<AnyNode>) -> Result<Operation, Failure>,
    pub(crate) copy: fn(In<AnyNode>) -> Result<Operation, Failure>,
}

/// The operation of a fill's node.
pub(crate) fn fill(node: In<FillNode>) -> Result<Operation, Failure> {
    let FillNode { to, pitch, value, element, width, height } = node.get()?;
    if ![1, 2, 4].contains(&element) {
        let message = format!("element size: required 1, 2 or 4, actual {element}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    let pattern = value.to_le_bytes()[..element as usize].to_vec();
    Ok(Operation::Fill { to: Rows { address: to, pitch, width, height }, pattern })
}

/// The parameters of a fill's node.
pub(crate) fn shown_fill(operation: &Operation) -> Result<FillNode, Failure> {
    let Operation::Fill { to, pattern } = operation else { return other_kind("a fill's") };
    let Rows { address, pitch, width, height } = *to;
    let value = pattern.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
    let element = pattern.len() as u32;
    Ok(FillNode { to: address, pitch, value, element, width, height })
}

/// The operation of a host function's node.
pub(crate) fn host(node: In<HostNode>) -> Result<Operation, Failure> {
    let HostNode { function, argument } = node.get()?;
    Ok(Operation::Host(Callback::Host { function, argument }))
}

/// The parameters of a host function's node.
pub(crate) fn shown_host(operation: &Operation) -> Result<HostNode, Failure> {
    match *operation {
        Operation::Host(Callback::Host { function, argument }) => {
            Ok(HostNode { function, argument })
        }
        _ => other_kind("a host function's"),
    }
}

/// Reserves the address of memory that a node allocates, and tells the program.
pub(crate) fn allocation(
    state: &mut State,
    node: In<AllocationNode>,
) -> Result<Operation, Failure> {
    let bytes = node.get()?.bytes;
    if bytes == 0 {
        return Err(Failure::new(INVALID_VALUE, "bytes: required at least 1, actual 0"));
    }
    let address = state.memory.reserve_for(bytes)?;
    let place = std::mem::offset_of!(AllocationNode, address) as u64;
    set_host_bytes(node.address() + place, &address.to_le_bytes());
    Ok(Operation::Allocate { address, bytes })
}

/// The parameters of a node that allocates.
pub(crate) fn shown_allocation(operation: &Operation) -> Result<AllocationNode, Failure> {
    let Operation::Allocate { address, bytes } = *operation else {
        return other_kind("one that allocates");
    };
    // The pool's memory is pinned on device 0.
    let mut pool = [0; 11];
    (pool[0], pool[1]) = (1, 1);
    Ok(AllocationNode { pool, access: 0, access_count: 0, bytes, address })
}

/// The operation of an event's node.
pub(crate) fn event(
    state: &mut State,
    event: u64,
    make: fn(u64) -> Operation,
) -> Result<Operation, Failure> {
    state.event(event)?;
    Ok(make(event))
}

/// The operation of a node that has a graph.
pub(crate) fn child(state: &mut State, node: ChildNode) -> Result<Operation, Failure> {
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
pub(crate) fn any(state: &mut State, node: In<AnyNode>, own: &Own) -> Result<Operation, Failure> {
    let word = || node.part::<u64>(PART).get();
    match node.get()?.kind {
        0 => (own.launch)(state, node),
        1 => (own.copy)(node),
        2 => fill(node.part(PART)),
        3 => host(node.part(PART)),
        4 => child(state, node.part::<ChildNode>(PART).get()?),
        5 => Ok(Operation::Nothing),
        6 => event(state, word()?, Operation::Wait),
        7 => event(state, word()?, Operation::Record),
        8 | 9 => Err(Failure::not_modelled("a node with external semaphores")),
        10 => allocation(state, node.part(PART)),
        11 => Ok(Operation::Free(word()?)),
        12 => Err(Failure::not_modelled("a node of batched memory operations")),
        13 => conditional(),
        kind => {
            let message = format!("type of the node: required 0 to 13, actual {kind}");
            Err(Failure::new(INVALID_VALUE, message))
        }
    }
}

/// The answer to a call that asks for a conditional node.
pub(crate) fn conditional<T>() -> Result<T, Failure> {
    Err(Failure::not_modelled("a conditional node of a graph"))
}

/// A place in a graph: where the program learns a new node's handle, the graph, and the nodes that come before.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) node: Out<u64>,
    pub(crate) graph: u64,
    pub(crate) after: In<u64>,
    pub(crate) count: u64,
}

impl Place {
    /// Adds a node with the operation that `make` makes.
    pub(crate) fn add(
        self,
        state: &mut State,
        make: impl FnOnce(&mut State) -> Result<Operation, Failure>,
    ) -> Result<(), Failure> {
        let Self { node, graph, after, count } = self;
        let after = after.all(count as usize)?;
        state.graph(graph)?;
        let operation = make(state)?;
        node.set(state.add_node(graph, &after, operation)?)
    }

    /// Adds a node of any kind.
    pub(crate) fn add_any(
        self,
        state: &mut State,
        edges: u64,
        node: In<AnyNode>,
        own: &Own,
    ) -> Result<(), Failure> {
        no_edge_data(edges)?;
        self.add(state, |state| {
            let operation = any(state, node, own)?;
            if let Operation::Child(child) = operation {
                // The program learns which graph the node has.
                set_host_bytes(node.address() + PART as u64, &child.to_le_bytes());
            }
            Ok(operation)
        })
    }
}

/// Refuses data of edges: ports of programmatic dependence between nodes are not modelled.
pub(crate) fn no_edge_data(edges: u64) -> Result<(), Failure> {
    if edges != 0 {
        return Err(Failure::not_modelled("data of a graph's edges"));
    }
    Ok(())
}

/// Refuses other parameters of a node that allocates or frees.
fn may_change(operation: &Operation) -> Result<(), Failure> {
    if matches!(operation, Operation::Allocate { .. } | Operation::Free(_)) {
        return Err(Failure::not_modelled("other parameters of a node that allocates or frees"));
    }
    Ok(())
}

/// Gives a node of a graph another operation.
pub(crate) fn set(state: &mut State, node: u64, operation: Operation) -> Result<(), Failure> {
    may_change(&operation)?;
    let graph = state.graph_of(node)?;
    state.replace(graph, node, operation)
}

/// Gives a node of a graph that can be launched another operation.
pub(crate) fn set_in(
    state: &mut State,
    executable: u64,
    node: u64,
    operation: Operation,
) -> Result<(), Failure> {
    state.executable(executable)?;
    may_change(&operation)?;
    state.replace(executable, node, operation)
}

/// The error of a node that is of another kind than the call's.
pub(crate) fn other_kind<T>(required: &str) -> Result<T, Failure> {
    Err(Failure::new(INVALID_VALUE, format!("node: required {required}, actual another type")))
}
