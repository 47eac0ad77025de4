//! Launch attributes of kernels' nodes in graphs.

use crate::abi::{In, Out, both};
use crate::arguments::{Attribute, Attributes};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::Operation;
use crate::launch::Launch;
use crate::state::State;

/// The launch of a kernel's node.
fn launch(state: &State, node: u64) -> Result<Launch, Failure> {
    match state.operation(node)? {
        Operation::Launch(launch) => Ok(launch.clone()),
        _ => Err(Failure::new(INVALID_VALUE, "node: required a kernel's, actual another type")),
    }
}

/// Gives a kernel's node a launch with other attributes, if the kernel can have them.
fn set(state: &mut State, node: u64, launch: Launch) -> Result<(), Failure> {
    state.check_launch(&launch)?;
    let graph = state.graph_of(node)?;
    state.set_operation(graph, node, Operation::Launch(launch))
}

both! {
    call cudaGraphKernelNodeSetAttribute = cuGraphKernelNodeSetAttribute(node: u64, id: u32, value: In<[u64; 8]>) |state| {
        let mut launch = launch(state, node)?;
        let read = Attributes::read(&[Attribute::new(id, value.get()?)])?;
        let Attributes { cluster, cooperative, programmatic } = read;
        match id {
            Attribute::COOPERATIVE => launch.cooperative = cooperative,
            Attribute::CLUSTER => launch.cluster = cluster,
            Attribute::PROGRAMMATIC => launch.programmatic = programmatic,
            // A hint.
            _ => return Ok(()),
        }
        set(state, node, launch)
    }

    query cudaGraphKernelNodeGetAttribute = cuGraphKernelNodeGetAttribute(node: u64, id: u32, value: Out<[u64; 8]>) |state| {
        let launch = launch(state, node)?;
        let mut words = [0; 8];
        match id {
            Attribute::COOPERATIVE => words[0] = launch.cooperative.into(),
            Attribute::CLUSTER => {
                let [x, y, z] = launch.cluster.unwrap_or_default().map(u64::from);
                (words[0], words[1]) = (x | y << 32, z);
            }
            Attribute::PROGRAMMATIC => words[0] = launch.programmatic.into(),
            _ => return Err(Failure::not_modelled(&format!("the value of launch attribute {id}"))),
        }
        value.set(words)
    }

    call cudaGraphKernelNodeCopyAttributes = cuGraphKernelNodeCopyAttributes(to: u64, from: u64) |state| {
        let Launch { cluster, cooperative, programmatic, .. } = launch(state, from)?;
        let launch = Launch { cluster, cooperative, programmatic, ..launch(state, to)? };
        set(state, to, launch)
    }
}
