//! Nodes of graphs whose parameters are the runtime's own.

use super::memory::{Copy3d, copy_3d, parameters_3d, variable};
use crate::abi::{Dim3, In, Out, exports};
use crate::arguments::{Attributes, Shape};
use crate::errors::Failure;
use crate::graphs::parameters::{
    AnyNode, FillNode, Own, PART, Place, any, conditional, fill, other_kind, set, set_in,
};
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

/// The runtime's forms of a kernel's and a copy's parameters.
const OWN: Own = Own {
    launch: |state, node| launch(state, node.part(PART)),
    copy: |node| copy_3d(node.part::<Copy3d>(2 * PART).get()?),
};

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

/// Functions that add a node: `$operation` says which, with the arguments behind the number of dependencies.
macro_rules! adding {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) |$state:ident| $operation:expr;)*) => {
        exports! { runtime;
            $(call $name(
                node: Out<u64>, graph: u64, after: In<u64>, count: u64, $($arg: $ty),*
            ) |$state| {
                Place { node, graph, after, count }.add($state, |$state| $operation)
            })*
        }
    };
}

adding! {
    cudaGraphAddKernelNode(parameters: In<KernelNode>) |state| launch(state, parameters);
    cudaGraphAddMemcpyNode(parameters: In<Copy3d>) |_state| copy_3d(parameters.get()?);
    cudaGraphAddMemcpyNode1D(to: u64, from: u64, bytes: u64, kind: i32) |_state| copy_1d(to, from, bytes, kind);
    cudaGraphAddMemcpyNodeToSymbol(symbol: u64, from: u64, bytes: u64, offset: u64, _kind: i32) |state|
        copy_symbol(state, symbol, from, (bytes, offset), true);
    cudaGraphAddMemcpyNodeFromSymbol(to: u64, symbol: u64, bytes: u64, offset: u64, _kind: i32) |state|
        copy_symbol(state, symbol, to, (bytes, offset), false);
    cudaGraphAddMemsetNode(parameters: In<FillNode>) |_state| fill(parameters);
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
    cudaGraphNodeSetParams cudaGraphExecNodeSetParams(parameters: In<AnyNode>) |state| any(state, parameters, &OWN);
}

exports! { runtime;
    call cudaGraphAddNode(
        node: Out<u64>, graph: u64, after: In<u64>, edges: u64, count: u64, parameters: In<AnyNode>,
    ) |state| {
        Place { node, graph, after, count }.add_any(state, edges, parameters, &OWN)
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

    query cudaGraphConditionalHandleCreate(_handle: u64, _graph: u64, _value: u32, _flags: u32) |_state| {
        conditional()
    }
}
