//! Nodes of graphs whose parameters are the driver's own.

use super::copies::Copy3d;
use crate::abi::{In, Out, exports};
use crate::arguments::{Attributes, Shape};
use crate::errors::Failure;
use crate::graphs::Operation;
use crate::graphs::parameters::{
    AnyNode, FillNode, Own, PART, Place, any, fill, other_kind, set, set_in,
};
use crate::state::{PRIMARY, State};

/// `CUDA_KERNEL_NODE_PARAMS_v1`
#[repr(C)]
#[derive(Clone, Copy)]
struct OldKernelNode {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    arguments: In<u64>,
    extra: In<u64>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2` and `_v3`
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelNode {
    kernel: OldKernelNode,
    /// A kernel of a library, if there is no function.
    library_kernel: u64,
    context: u64,
}

/// The first version with addresses as the program reads them.
#[repr(C)]
struct ShownOldKernel {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    arguments: u64,
    extra: u64,
}

/// The second one.
#[repr(C)]
struct ShownKernel {
    kernel: ShownOldKernel,
    library_kernel: u64,
    context: u64,
}

fn launch_old(state: &mut State, node: OldKernelNode) -> Result<Operation, Failure> {
    let OldKernelNode { function, grid, block, dynamic_shared, arguments, extra } = node;
    let shape = Shape { grid, block, dynamic_shared: dynamic_shared.into(), stream: 0 };
    let launch =
        state.launch_of_either(function, shape, Attributes::default(), arguments, extra)?;
    state.check_launch(&launch)?;
    Ok(Operation::Launch(launch))
}

fn launch(state: &mut State, node: KernelNode) -> Result<Operation, Failure> {
    let KernelNode { mut kernel, library_kernel, context: _ } = node;
    if kernel.function == 0 {
        kernel.function = library_kernel;
    }
    launch_old(state, kernel)
}

fn shown(state: &mut State, node: u64) -> Result<ShownOldKernel, Failure> {
    let arguments = state.show_arguments(node)?;
    let Operation::Launch(launch) = state.operation(node)? else {
        return other_kind("a kernel's");
    };
    Ok(ShownOldKernel {
        function: launch.kernel,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared as u32,
        arguments,
        extra: 0,
    })
}

/// The driver's forms of a kernel's and a copy's parameters.
const OWN: Own = Own {
    launch: |state, node| launch(state, node.part::<KernelNode>(PART).get()?),
    copy: |node| node.part::<Copy3d>(2 * PART).get()?.operation(),
};

exports! { driver;
    call cuGraphAddKernelNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<OldKernelNode>,
    ) |state| {
        let place = Place { node, graph, after, count };
        place.add(state, |state| launch_old(state, parameters.get()?))
    }

    call cuGraphAddKernelNode_v2(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<KernelNode>,
    ) |state| {
        let place = Place { node, graph, after, count };
        place.add(state, |state| launch(state, parameters.get()?))
    }

    call cuGraphAddMemcpyNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<Copy3d>, _context: u64,
    ) |state| {
        Place { node, graph, after, count }.add(state, |_| parameters.get()?.operation())
    }

    call cuGraphAddMemsetNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<FillNode>, _context: u64,
    ) |state| {
        Place { node, graph, after, count }.add(state, |_| fill(parameters))
    }

    call cuGraphAddNode(
        node: Out<u64>, graph: u64, after: In<u64>, count: u64, parameters: In<AnyNode>,
    ) |state| {
        Place { node, graph, after, count }.add_any(state, 0, parameters, &OWN)
    }

    call cuGraphAddNode_v2(
        node: Out<u64>, graph: u64, after: In<u64>, edges: u64, count: u64, parameters: In<AnyNode>,
    ) |state| {
        Place { node, graph, after, count }.add_any(state, edges, parameters, &OWN)
    }

    call cuGraphKernelNodeSetParams(node: u64, parameters: In<OldKernelNode>) |state| {
        let operation = launch_old(state, parameters.get()?)?;
        set(state, node, operation)
    }

    call cuGraphKernelNodeSetParams_v2(node: u64, parameters: In<KernelNode>) |state| {
        let operation = launch(state, parameters.get()?)?;
        set(state, node, operation)
    }

    call cuGraphExecKernelNodeSetParams(executable: u64, node: u64, parameters: In<OldKernelNode>) |state| {
        let operation = launch_old(state, parameters.get()?)?;
        set_in(state, executable, node, operation)
    }

    call cuGraphExecKernelNodeSetParams_v2(executable: u64, node: u64, parameters: In<KernelNode>) |state| {
        let operation = launch(state, parameters.get()?)?;
        set_in(state, executable, node, operation)
    }

    call cuGraphMemcpyNodeSetParams(node: u64, parameters: In<Copy3d>) |state| {
        let operation = parameters.get()?.operation()?;
        set(state, node, operation)
    }

    call cuGraphExecMemcpyNodeSetParams(
        executable: u64, node: u64, parameters: In<Copy3d>, _context: u64,
    ) |state| {
        let operation = parameters.get()?.operation()?;
        set_in(state, executable, node, operation)
    }

    call cuGraphMemsetNodeSetParams(node: u64, parameters: In<FillNode>) |state| {
        let operation = fill(parameters)?;
        set(state, node, operation)
    }

    call cuGraphExecMemsetNodeSetParams(
        executable: u64, node: u64, parameters: In<FillNode>, _context: u64,
    ) |state| {
        let operation = fill(parameters)?;
        set_in(state, executable, node, operation)
    }

    call cuGraphNodeSetParams(node: u64, parameters: In<AnyNode>) |state| {
        let operation = any(state, parameters, &OWN)?;
        set(state, node, operation)
    }

    call cuGraphExecNodeSetParams(executable: u64, node: u64, parameters: In<AnyNode>) |state| {
        let operation = any(state, parameters, &OWN)?;
        set_in(state, executable, node, operation)
    }

    query cuGraphKernelNodeGetParams(node: u64, parameters: Out<ShownOldKernel>) |state| {
        parameters.set(shown(state, node)?)
    }

    query cuGraphKernelNodeGetParams_v2(node: u64, parameters: Out<ShownKernel>) |state| {
        let kernel = shown(state, node)?;
        parameters.set(ShownKernel { kernel, library_kernel: 0, context: PRIMARY })
    }

    query cuGraphMemcpyNodeGetParams(node: u64, parameters: Out<Copy3d>) |state| {
        match state.operation(node)? {
            Operation::Copy { layers, direction } => parameters.set(Copy3d::of(layers, *direction)),
            _ => other_kind("a copy's"),
        }
    }
}
