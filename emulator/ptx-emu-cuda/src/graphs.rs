//! Graphs: operations in the order in which they were captured or added, which is one that their
//! dependencies allow.

use crate::abi::Callback;
use crate::errors::Failure;
use crate::launch::Launch;
use crate::memory::Direction;
use crate::modules::unknown;
use crate::state::{self, State};

/// An operation of a stream or a graph.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Launch(Launch),
    /// Rows of bytes; one row for a plain copy.
    Copy {
        to: Rows,
        from: Rows,
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

    fn addresses(self) -> impl Iterator<Item = u64> {
        (0..self.height).map(move |row| self.address + row * self.pitch)
    }
}

/// A graph, or a graph that can be launched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) operations: Vec<Operation>,
    /// Their handles.
    pub(crate) nodes: Vec<u64>,
}

impl Graph {
    fn place(&self, node: u64) -> Result<usize, Failure> {
        let found = self.nodes.iter().position(|known| *known == node);
        found.ok_or_else(|| unknown("node of the graph", node))
    }
}

impl State {
    /// A graph without operations.
    pub(crate) fn create_graph(&mut self) -> u64 {
        let handle = self.handle();
        self.graphs.insert(handle, Graph::default());
        handle
    }

    pub(crate) fn destroy_graph(&mut self, handle: u64) -> Result<(), Failure> {
        self.graphs.remove(&handle).map(drop).ok_or_else(|| unknown("graph", handle))
    }

    pub(crate) fn graph(&self, handle: u64) -> Result<&Graph, Failure> {
        self.graphs.get(&handle).ok_or_else(|| unknown("graph", handle))
    }

    /// Adds an operation to a graph.
    pub(crate) fn record(&mut self, graph: u64, operation: Operation) -> Result<(), Failure> {
        self.add_node(graph, operation).map(drop)
    }

    /// Adds an operation as [`record`](Self::record) does and returns its handle.
    pub(crate) fn add_node(&mut self, graph: u64, operation: Operation) -> Result<u64, Failure> {
        let node = self.handle();
        let graph = self.graphs.get_mut(&graph).ok_or_else(|| unknown("graph", graph))?;
        graph.operations.push(operation);
        graph.nodes.push(node);
        Ok(node)
    }

    /// Notes that one node comes after another, which it must do anyhow.
    pub(crate) fn depend(&self, graph: u64, before: u64, after: u64) -> Result<(), Failure> {
        let graph = self.graph(graph)?;
        let [before, after] = [before, after].map(|node| graph.place(node));
        if before? < after? {
            return Ok(());
        }
        Err(Failure::not_modelled("a dependency on a node that was added later"))
    }

    /// Replaces the launch of a node.
    pub(crate) fn replace(&mut self, graph: u64, node: u64, launch: Launch) -> Result<(), Failure> {
        let graph = self.graphs.get_mut(&graph).ok_or_else(|| unknown("graph", graph))?;
        let place = graph.place(node)?;
        graph.operations[place] = Operation::Launch(launch);
        Ok(())
    }

    /// Runs an operation that needs no call of the program's functions.
    pub(crate) fn perform(&mut self, operation: &Operation) -> Result<(), Failure> {
        if let Operation::Launch(launch) = operation {
            return self.run(launch.clone());
        }
        self.settle()?;
        match operation {
            Operation::Launch(_) | Operation::Nothing => Ok(()),
            Operation::Copy { to, from, direction } => {
                // One copy where rows follow each other: fewer checks.
                if to.pitch == to.width && from.pitch == from.width {
                    let bytes = to.width * to.height;
                    return self.memory.copy(to.address, from.address, bytes, *direction);
                }
                for (to_row, from_row) in to.addresses().zip(from.addresses()) {
                    self.memory.copy(to_row, from_row, to.width, *direction)?;
                }
                Ok(())
            }
            Operation::Fill { to, pattern } => {
                to.addresses().try_for_each(|row| self.memory.fill(row, pattern, to.width))
            }
            Operation::Host(_) => Err(Failure::not_modelled("a host function here")),
        }
    }

    /// A copy of a graph that can be launched.
    pub(crate) fn instantiate(&mut self, graph: u64) -> Result<u64, Failure> {
        let copy = self.graph(graph)?.clone();
        let handle = self.handle();
        self.graphs.insert(handle, copy);
        Ok(handle)
    }
}

/// Launches a graph. The state must not be locked: the graph may have functions of the program.
pub(crate) fn launch(graph: u64, stream: u64) -> Result<(), Failure> {
    let operations = {
        let mut state = state::lock();
        state.settle()?;
        let operations = state.graph(graph)?.operations.clone();
        if let Some(outer) = state.capturing(stream)? {
            return operations.into_iter().try_for_each(|one| state.record(outer, one));
        }
        operations
    };
    for operation in operations {
        match operation {
            Operation::Host(callback) => {
                state::lock().settle()?;
                callback.call();
            }
            other => state::lock().perform(&other)?,
        }
    }
    Ok(())
}

/// Calls a function of the program after what the stream was given before, or records it.
pub(crate) fn host_function(stream: u64, callback: Callback) -> Result<(), Failure> {
    {
        let mut state = state::lock();
        state.settle()?;
        if let Some(graph) = state.capturing(stream)? {
            return state.record(graph, Operation::Host(callback));
        }
    }
    callback.call();
    Ok(())
}
