//! Running operations: one after another, in an order that a graph's dependencies allow.

use super::{Graph, Operation, Rows};
use crate::abi::Callback;
use crate::errors::Failure;
use crate::memory::Kind;
use crate::state::{self, State};

/// `cudaGraphInstantiateFlagAutoFreeOnLaunch`
const AUTO_FREE: u64 = 1;

impl State {
    /// Runs an operation that needs no call of the program's functions.
    pub(crate) fn perform(&mut self, operation: &Operation) -> Result<(), Failure> {
        if let Operation::Launch(launch) = operation {
            return self.run(launch.clone());
        }
        self.settle()?;
        match operation {
            Operation::Launch(_) | Operation::Nothing => Ok(()),
            Operation::Copy { layers, direction } => {
                for [to, from] in layers {
                    // One copy where rows follow each other: fewer checks.
                    if to.pitch == to.width && from.pitch == from.width {
                        let bytes = to.width * to.height;
                        self.memory.copy(to.address, from.address, bytes, *direction)?;
                        continue;
                    }
                    for (to_row, from_row) in to.addresses().zip(from.addresses()) {
                        self.memory.copy(to_row, from_row, to.width, *direction)?;
                    }
                }
                Ok(())
            }
            Operation::Fill { to, pattern } => {
                to.addresses().try_for_each(|row| self.memory.fill(row, pattern, to.width))
            }
            Operation::Record(event) => self.record_event(*event, 0),
            // Work comes after the event anyhow.
            Operation::Wait(event) => self.event(*event).map(drop),
            Operation::Allocate { address, bytes } => self.memory.place(*address, *bytes),
            Operation::Free(address) => self.memory.free(*address, &[Kind::Device, Kind::Managed]),
            Operation::Host(_) => Err(Failure::not_modelled("a host function here")),
            Operation::Child(_) => Err(Failure::not_modelled("a graph here")),
        }
    }

    /// The operations of a graph and of those in it, in an order that the dependencies allow.
    fn plan(&self, handle: u64, all: &mut Vec<Operation>) -> Result<(), Failure> {
        let graph = self.graph(handle)?;
        for at in graph.order()? {
            let node = &graph.nodes[at];
            match &node.operation {
                _ if !node.enabled => {}
                Operation::Child(child) => self.plan(*child, all)?,
                other => all.push(other.clone()),
            }
        }
        Ok(())
    }

    /// The operations that a launch of a graph runs; memory that an earlier launch left is freed if the graph is to do so.
    fn launched(&mut self, handle: u64) -> Result<Vec<Operation>, Failure> {
        let flags = self.executable(handle)?;
        let mut all = Vec::new();
        self.plan(handle, &mut all)?;
        if flags & AUTO_FREE != 0 {
            for operation in &all {
                if let Operation::Allocate { address, .. } = operation
                    && self.memory.ranges.contains_key(address)
                {
                    self.memory.free(*address, &[Kind::Device])?;
                }
            }
        }
        Ok(all)
    }

    /// The flags of a graph that can be launched.
    pub(crate) fn executable(&self, handle: u64) -> Result<u64, Failure> {
        let flags = self.graph(handle)?.executable;
        flags.ok_or_else(|| crate::modules::unknown("graph that can be launched", handle))
    }
}

/// Launches a graph. The state must not be locked: the graph may have functions of the program.
pub(crate) fn launch(graph: u64, stream: u64) -> Result<(), Failure> {
    let operations = {
        let mut state = state::lock();
        state.settle()?;
        if state.capturing(stream)?.is_some() {
            state.executable(graph)?;
            let child = state.copy_graph(graph, None)?;
            return state.enqueue(stream, Operation::Child(child));
        }
        state.launched(graph)?
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
        if state.capturing(stream)?.is_some() {
            return state.enqueue(stream, Operation::Host(callback));
        }
    }
    callback.call();
    Ok(())
}

impl Rows {
    fn addresses(self) -> impl Iterator<Item = u64> {
        (0..self.height).map(move |row| self.address + row * self.pitch)
    }
}

impl Graph {
    /// The places of the nodes in the order in which they run: each after those that it depends on, otherwise as
    /// they were added.
    pub(super) fn order(&self) -> Result<Vec<usize>, Failure> {
        use std::collections::{BTreeSet, HashMap};
        let places: HashMap<u64, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
        let mut missing: Vec<usize> = self.nodes.iter().map(|node| node.before.len()).collect();
        let mut after = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for before in &node.before {
                after[places[before]].push(at);
            }
        }
        let free = missing.iter().enumerate().filter(|(_, count)| **count == 0);
        let mut ready: BTreeSet<usize> = free.map(|(at, _)| at).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(at) = ready.pop_first() {
            order.push(at);
            for &next in &after[at] {
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready.insert(next);
                }
            }
        }
        if order.len() < self.nodes.len() {
            let message = "the graph's nodes depend on each other in a circle";
            return Err(Failure::new(crate::errors::INVALID_VALUE, message));
        }
        Ok(order)
    }
}
