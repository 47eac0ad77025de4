//! Graphs: operations, and which of them come before which.

mod copy;
pub(crate) mod parameters;
mod run;

pub(crate) use run::{host_function, launch};

use crate::abi::Callback;
use crate::errors::{Failure, INVALID_VALUE};
use crate::launch::Launch;
use crate::memory::Direction;
use crate::modules::unknown;
use crate::state::State;

/// An operation of a stream or a graph.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Launch(Launch),
    /// Rows of bytes, to and from; one row for a plain copy, several layers in three dimensions.
    Copy {
        layers: Vec<[Rows; 2]>,
        direction: Direction,
    },
    /// A pattern, so many times in each row.
    Fill {
        to: Rows,
        pattern: Vec<u8>,
    },
    Host(Callback),
    /// An empty node.
    Nothing,
    /// Another graph, which belongs to the node.
    Child(u64),
    /// Records an event.
    Record(u64),
    /// Waits for an event.
    Wait(u64),
    /// Puts memory at an address that was reserved for it.
    Allocate {
        address: u64,
        bytes: u64,
    },
    /// Frees memory.
    Free(u64),
}

impl Operation {
    /// A copy of rows.
    pub(crate) fn copy(to: Rows, from: Rows, direction: Direction) -> Self {
        Self::Copy { layers: vec![[to, from]], direction }
    }

    /// The runtime's number of the node's type.
    pub(crate) const fn kind(&self) -> i32 {
        match self {
            Self::Launch(_) => 0,
            Self::Copy { .. } => 1,
            Self::Fill { .. } => 2,
            Self::Host(_) => 3,
            Self::Child(_) => 4,
            Self::Nothing => 5,
            Self::Wait(_) => 6,
            Self::Record(_) => 7,
            Self::Allocate { .. } => 10,
            Self::Free(_) => 11,
        }
    }
}

/// Rows of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) address: u64,
    /// Distance of rows, bytes.
    pub(crate) pitch: u64,
    /// Bytes of a row; elements of one for a pattern.
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Rows {
    /// One row.
    pub(crate) fn one(address: u64, width: u64) -> Self {
        Self { address, pitch: width, width, height: 1 }
    }
}

/// An operation of a graph.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) operation: Operation,
    /// Handles of the nodes that come before it.
    pub(crate) before: Vec<u64>,
    /// Whether a launch runs it.
    pub(crate) enabled: bool,
    /// The node that it is a copy of.
    origin: u64,
    /// Arguments of a kernel where the program may read them: values, and pointers to them.
    shown: Vec<Box<[u64]>>,
}

/// A graph, or a graph that can be launched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// The flags of one that can be launched, whose nodes have the handles of the graph that it was made from.
    pub(crate) executable: Option<u64>,
}

impl Graph {
    fn place(&self, node: u64) -> Result<usize, Failure> {
        let found = self.nodes.iter().position(|known| known.handle == node);
        found.ok_or_else(|| unknown("node of the graph", node))
    }

    /// A node of the graph.
    pub(crate) fn node(&self, node: u64) -> Result<&Node, Failure> {
        Ok(&self.nodes[self.place(node)?])
    }

    /// Pairs of nodes, of which the first comes before the second.
    pub(crate) fn edges(&self) -> Vec<[u64; 2]> {
        let of = |node: &Node| node.before.iter().map(|before| [*before, node.handle]).collect();
        self.nodes.iter().flat_map(|node| -> Vec<[u64; 2]> { of(node) }).collect()
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(INVALID_VALUE, message))
}

impl State {
    /// A graph without operations.
    pub(crate) fn create_graph(&mut self) -> u64 {
        let handle = self.handle();
        self.graphs.insert(handle, Graph::default());
        handle
    }

    /// Forgets a graph and those in it.
    pub(crate) fn destroy_graph(&mut self, handle: u64) -> Result<(), Failure> {
        let graph = self.graphs.remove(&handle).ok_or_else(|| unknown("graph", handle))?;
        for node in graph.nodes {
            if let Operation::Child(child) = node.operation {
                self.destroy_graph(child)?;
            }
        }
        Ok(())
    }

    pub(crate) fn graph(&self, handle: u64) -> Result<&Graph, Failure> {
        self.graphs.get(&handle).ok_or_else(|| unknown("graph", handle))
    }

    fn graph_mut(&mut self, handle: u64) -> Result<&mut Graph, Failure> {
        self.graphs.get_mut(&handle).ok_or_else(|| unknown("graph", handle))
    }

    /// Adds an operation that comes after others of the graph; its handle.
    pub(crate) fn add_node(
        &mut self,
        graph: u64,
        after: &[u64],
        operation: Operation,
    ) -> Result<u64, Failure> {
        let handle = self.handle();
        let graph = self.graph_mut(graph)?;
        for (at, before) in after.iter().enumerate() {
            graph.place(*before)?;
            if after[..at].contains(before) {
                return wrong(format!("dependencies: node {before:#x} is named twice"));
            }
        }
        graph.nodes.push(Node {
            handle,
            operation,
            before: after.to_vec(),
            enabled: true,
            origin: 0,
            shown: Vec::new(),
        });
        Ok(handle)
    }

    /// Records an allocation in the graph that a stream is captured in; the address that the memory will have in each
    /// launch.
    pub(crate) fn capture_allocation(&mut self, bytes: u64, stream: u64) -> Result<u64, Failure> {
        let address = self.memory.reserve_for(bytes)?;
        self.enqueue(stream, Operation::Allocate { address, bytes })?;
        Ok(address)
    }

    /// The graph that a node is in; not one that can be launched, which has no nodes of its own.
    pub(crate) fn graph_of(&self, node: u64) -> Result<u64, Failure> {
        let has = |graph: &Graph| graph.executable.is_none() && graph.place(node).is_ok();
        let found = self.graphs.iter().find(|(_, graph)| has(graph));
        found.map(|(handle, _)| *handle).ok_or_else(|| unknown("node of a graph", node))
    }

    /// A node's operation.
    pub(crate) fn operation(&self, node: u64) -> Result<&Operation, Failure> {
        Ok(&self.graph(self.graph_of(node)?)?.node(node)?.operation)
    }

    /// Makes one node come after another.
    pub(crate) fn depend(&mut self, graph: u64, before: u64, after: u64) -> Result<(), Failure> {
        let graph = self.graph_mut(graph)?;
        graph.place(before)?;
        let after = graph.place(after)?;
        let known = &mut graph.nodes[after].before;
        if known.contains(&before) {
            return wrong("the dependency is there already");
        }
        known.push(before);
        Ok(())
    }

    /// Removes a dependency.
    pub(crate) fn undepend(&mut self, graph: u64, before: u64, after: u64) -> Result<(), Failure> {
        let graph = self.graph_mut(graph)?;
        let after = graph.place(after)?;
        let known = &mut graph.nodes[after].before;
        let Some(at) = known.iter().position(|node| *node == before) else {
            return wrong("there is no such dependency");
        };
        known.remove(at);
        Ok(())
    }

    /// Removes a node and its dependencies.
    pub(crate) fn destroy_node(&mut self, node: u64) -> Result<(), Failure> {
        let graph = self.graph_of(node)?;
        if matches!(self.operation(node)?, Operation::Allocate { .. } | Operation::Free(_)) {
            return Err(Failure::not_modelled("removing a node that allocates or frees memory"));
        }
        let graph = self.graph_mut(graph)?;
        let removed = graph.nodes.remove(graph.place(node)?);
        for other in &mut graph.nodes {
            other.before.retain(|before| *before != node);
        }
        match removed.operation {
            Operation::Child(child) => self.destroy_graph(child),
            _ => Ok(()),
        }
    }

    /// Gives a node another operation of the same kind; a kernel's keeps its launch attributes. `graph`: the node's,
    /// or one made from it that can be launched.
    pub(crate) fn replace(
        &mut self,
        graph: u64,
        node: u64,
        mut operation: Operation,
    ) -> Result<(), Failure> {
        if let (Operation::Launch(new), Operation::Launch(old)) =
            (&mut operation, &self.graph(graph)?.node(node)?.operation)
        {
            new.cluster = old.cluster;
            (new.cooperative, new.programmatic) = (old.cooperative, old.programmatic);
        }
        self.set_operation(graph, node, operation)
    }

    /// Gives a node another operation of the same kind, as [`replace`](Self::replace) does, with its attributes.
    pub(crate) fn set_operation(
        &mut self,
        graph: u64,
        node: u64,
        operation: Operation,
    ) -> Result<(), Failure> {
        let graph = self.graph_mut(graph)?;
        let place = graph.place(node)?;
        let kept = &mut graph.nodes[place];
        if kept.operation.kind() != operation.kind() {
            return wrong(format!(
                "node: required one of type {}, actual {}",
                operation.kind(),
                kept.operation.kind()
            ));
        }
        let old = std::mem::replace(&mut kept.operation, operation);
        match old {
            Operation::Child(child) => self.destroy_graph(child),
            _ => Ok(()),
        }
    }

    /// Says whether launches run a node.
    pub(crate) fn enable(&mut self, graph: u64, node: u64, enabled: bool) -> Result<(), Failure> {
        let graph = self.graph_mut(graph)?;
        let place = graph.place(node)?;
        graph.nodes[place].enabled = enabled;
        Ok(())
    }

    /// The address of an array of pointers to the arguments of a kernel's node, one for each parameter. It holds
    /// until the node changes.
    pub(crate) fn show_arguments(&mut self, node: u64) -> Result<u64, Failure> {
        let handle = self.graph_of(node)?;
        let Operation::Launch(launch) = self.operation(node)? else {
            return wrong("node: required one that launches a kernel");
        };
        let (kernel, params) = (launch.kernel, launch.params.clone());
        let offsets: Vec<u64> =
            self.kernel_info(kernel)?.params.iter().map(|param| param.offset.into()).collect();
        let words = params.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let values: Box<[u64]> = words.collect();
        let start = values.as_ptr() as u64;
        let pointers: Box<[u64]> = offsets.iter().map(|offset| start + offset).collect();
        let address = pointers.as_ptr() as u64;
        let graph = self.graph_mut(handle)?;
        let place = graph.place(node)?;
        graph.nodes[place].shown = vec![values, pointers];
        Ok(address)
    }
}
