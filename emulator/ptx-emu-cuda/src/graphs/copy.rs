//! Copies of graphs: clones, and graphs that can be launched.

use super::{Graph, Node, Operation};
use crate::errors::{Failure, GRAPH_EXEC_UPDATE_FAILURE};
use crate::modules::unknown;
use crate::state::State;
use std::collections::HashMap;

impl State {
    /// A copy of a graph with those in it. With flags it can be launched, and its nodes keep their handles.
    pub(crate) fn copy_graph(
        &mut self,
        graph: u64,
        executable: Option<u64>,
    ) -> Result<u64, Failure> {
        let mut copy = self.graph(graph)?.clone();
        copy.executable = executable;
        for node in &mut copy.nodes {
            node.shown = Vec::new();
            node.origin = node.handle;
            if let Operation::Child(child) = &mut node.operation {
                *child = self.copy_graph(*child, executable)?;
            }
        }
        if executable.is_none() {
            let handles: Vec<u64> = copy.nodes.iter().map(|_| self.handle()).collect();
            let places: Vec<Vec<usize>> = copy
                .nodes
                .iter()
                .map(|node| node.before.iter().map(|node| copy.place(*node)).collect())
                .collect::<Result<_, _>>()?;
            for ((node, handle), before) in copy.nodes.iter_mut().zip(&handles).zip(places) {
                node.handle = *handle;
                node.before = before.into_iter().map(|at| handles[at]).collect();
            }
        }
        let handle = self.handle();
        self.graphs.insert(handle, copy);
        Ok(handle)
    }

    /// A copy of a graph that can be launched; an error if its nodes depend on each other in a circle.
    pub(crate) fn instantiate(&mut self, graph: u64, flags: u64) -> Result<u64, Failure> {
        self.check_order(graph)?;
        self.copy_graph(graph, Some(flags))
    }

    fn check_order(&self, graph: u64) -> Result<(), Failure> {
        let graph = self.graph(graph)?;
        graph.order()?;
        graph.nodes.iter().try_for_each(|node| match node.operation {
            Operation::Child(child) => self.check_order(child),
            _ => Ok(()),
        })
    }

    /// The node of a clone that a node of the original became.
    pub(crate) fn find_in_clone(&self, original: u64, clone: u64) -> Result<u64, Failure> {
        let found = self.graph(clone)?.nodes.iter().find(|node| node.origin == original);
        found.map(|node| node.handle).ok_or_else(|| unknown("node of the clone", original))
    }

    /// Gives a graph that can be launched the operations of another one. The error has the node that is at fault
    /// and the reason's number.
    pub(crate) fn update(
        &mut self,
        executable: u64,
        graph: u64,
    ) -> Result<(), (Failure, i32, u64)> {
        let failed = |why: &str, reason, node| {
            let message = format!("the graph cannot be updated: {why}");
            (Failure::new(GRAPH_EXEC_UPDATE_FAILURE, message), reason, node)
        };
        let other = |failure| (failure, 1, 0);
        let flags = self.executable(executable).map_err(other)?;
        let (old, new) =
            (self.graph(executable).map_err(other)?, self.graph(graph).map_err(other)?);
        if old.nodes.len() != new.nodes.len() {
            return Err(failed("it has another number of nodes", 2, 0));
        }
        for (old_node, new_node) in old.nodes.iter().zip(&new.nodes) {
            if old_node.operation.kind() != new_node.operation.kind() {
                return Err(failed("a node has another type", 3, new_node.handle));
            }
            let places = |graph: &Graph, node: &Node| {
                let mut places: Vec<_> =
                    node.before.iter().filter_map(|node| graph.place(*node).ok()).collect();
                places.sort_unstable();
                places
            };
            if places(old, old_node) != places(new, new_node) {
                return Err(failed("a node has other dependencies", 2, new_node.handle));
            }
        }
        let handles: Vec<(u64, bool)> =
            old.nodes.iter().map(|node| (node.handle, node.enabled)).collect();
        let copy = self.copy_graph(graph, Some(flags)).map_err(other)?;
        let Some(mut copy) = self.graphs.remove(&copy) else { return Ok(()) };
        let renamed: HashMap<u64, u64> =
            copy.nodes.iter().zip(&handles).map(|(node, (old, _))| (node.handle, *old)).collect();
        for (node, (handle, enabled)) in copy.nodes.iter_mut().zip(&handles) {
            (node.handle, node.enabled) = (*handle, *enabled);
            node.before.iter_mut().for_each(|before| *before = renamed[before]);
        }
        self.destroy_graph(executable).map_err(other)?;
        self.graphs.insert(executable, copy);
        Ok(())
    }
}
