//! Streams and events. All streams together run their work in the order of the calls.

use crate::errors::{
    CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Failure, ILLEGAL_STATE,
};
use crate::graphs::Operation;
use crate::modules::unknown;
use crate::settings::EventTimes;
use crate::state::State;
use std::collections::{HashMap, HashSet};

/// A stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stream {
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The graph that it is captured in.
    pub(crate) graph: Option<u64>,
    /// The capture was begun here, not joined.
    pub(crate) origin: bool,
}

/// An event.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Event {
    /// Seconds that the launches before it took at least.
    pub(crate) seconds: f64,
    pub(crate) flags: u32,
    pub(crate) recorded: bool,
    /// The graph in which the stream that recorded it was captured.
    pub(crate) graph: Option<u64>,
}

/// Nodes of captured graphs after which the next ones come.
#[derive(Debug, Default)]
pub(crate) struct Fronts {
    /// Nodes of a stream that is captured.
    streams: HashMap<u64, Vec<u64>>,
    /// Nodes of a stream when it recorded an event.
    events: HashMap<u64, Vec<u64>>,
}

/// Adds nodes that are not there yet.
fn join(front: &mut Vec<u64>, nodes: &[u64]) {
    for node in nodes {
        if !front.contains(node) {
            front.push(*node);
        }
    }
}

/// `CU_EVENT_DISABLE_TIMING`
pub(crate) const DISABLE_TIMING: u32 = 2;

/// A stream that every program has: the default one, the legacy one, a thread's.
fn is_default(stream: u64) -> bool {
    stream <= 2
}

impl State {
    pub(crate) fn create_stream(&mut self, flags: u32, priority: i32) -> u64 {
        let handle = self.handle();
        self.streams.insert(handle, Stream { flags, priority, ..Stream::default() });
        handle
    }

    pub(crate) fn destroy_stream(&mut self, handle: u64) -> Result<(), Failure> {
        self.streams.remove(&handle).map(drop).ok_or_else(|| unknown("stream", handle))
    }

    pub(crate) fn create_event(&mut self, flags: u32) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Event { flags, ..Event::default() });
        handle
    }

    pub(crate) fn destroy_event(&mut self, handle: u64) -> Result<(), Failure> {
        self.events.remove(&handle).map(drop).ok_or_else(|| unknown("event", handle))
    }

    pub(crate) fn stream(&self, handle: u64) -> Result<Stream, Failure> {
        if is_default(handle) {
            return Ok(self.streams.get(&handle).copied().unwrap_or_default());
        }
        self.streams.get(&handle).copied().ok_or_else(|| unknown("stream", handle))
    }

    pub(crate) fn event(&mut self, handle: u64) -> Result<&mut Event, Failure> {
        self.events.get_mut(&handle).ok_or_else(|| unknown("event", handle))
    }

    /// The graph that a stream is captured in.
    pub(crate) fn capturing(&self, stream: u64) -> Result<Option<u64>, Failure> {
        Ok(self.stream(stream)?.graph)
    }

    /// Runs an operation, or records it in the graph that the stream is captured in, behind what the stream was
    /// given before.
    pub(crate) fn enqueue(&mut self, stream: u64, operation: Operation) -> Result<(), Failure> {
        let Some(graph) = self.capturing(stream)? else { return self.perform(&operation) };
        let before = self.fronts.streams.get(&stream).cloned().unwrap_or_default();
        let node = self.add_node(graph, &before, operation)?;
        self.fronts.streams.insert(stream, vec![node]);
        Ok(())
    }

    /// A call that may not be made of a stream while it is captured.
    pub(crate) fn not_captured(&self, stream: u64) -> Result<(), Failure> {
        match self.capturing(stream)? {
            None => Ok(()),
            Some(_) => Err(Failure::new(CAPTURE_UNSUPPORTED, "the stream is being captured")),
        }
    }

    pub(crate) fn begin_capture(&mut self, stream: u64) -> Result<(), Failure> {
        self.not_captured(stream)?;
        if stream < 2 {
            let message = "the default stream cannot be captured";
            return Err(Failure::new(CAPTURE_UNSUPPORTED, message));
        }
        let graph = self.create_graph();
        self.capture_to(stream, graph, Vec::new());
        Ok(())
    }

    /// Begins a capture that adds nodes to a graph, behind some of its nodes.
    pub(crate) fn begin_capture_to(
        &mut self,
        stream: u64,
        graph: u64,
        after: Vec<u64>,
    ) -> Result<(), Failure> {
        self.not_captured(stream)?;
        let found = self.graph(graph)?;
        after.iter().try_for_each(|node| found.node(*node).map(drop))?;
        self.capture_to(stream, graph, after);
        Ok(())
    }

    fn capture_to(&mut self, stream: u64, graph: u64, after: Vec<u64>) {
        let captured = self.streams.entry(stream).or_default();
        (captured.graph, captured.origin) = (Some(graph), true);
        self.fronts.streams.insert(stream, after);
    }

    /// Changes what the next node of a captured stream comes after: other nodes as well, or instead.
    pub(crate) fn update_capture(
        &mut self,
        stream: u64,
        nodes: Vec<u64>,
        instead: bool,
    ) -> Result<(), Failure> {
        let Some(graph) = self.capturing(stream)? else {
            return Err(Failure::new(ILLEGAL_STATE, "the stream is not being captured"));
        };
        let found = self.graph(graph)?;
        nodes.iter().try_for_each(|node| found.node(*node).map(drop))?;
        let front = self.fronts.streams.entry(stream).or_default();
        if instead {
            front.clear();
        }
        join(front, &nodes);
        Ok(())
    }

    /// The nodes that the next one of a captured stream comes after.
    pub(crate) fn front(&self, stream: u64) -> &[u64] {
        self.fronts.streams.get(&stream).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Result<u64, Failure> {
        let Stream { graph: Some(graph), origin: true, .. } = self.stream(stream)? else {
            let message = "the stream is not one in which a capture was begun";
            return Err(Failure::new(CAPTURE_UNMATCHED, message));
        };
        let joined = self.before(graph, self.front(stream).to_vec())?;
        let mut unjoined = None;
        for (handle, other) in &mut self.streams {
            if other.graph == Some(graph) {
                (other.graph, other.origin) = (None, false);
                let front = self.fronts.streams.remove(handle).unwrap_or_default();
                if front.iter().any(|node| !joined.contains(node)) {
                    unjoined = Some(*handle);
                }
            }
        }
        if let Some(other) = unjoined {
            self.destroy_graph(graph)?;
            let message = format!(
                "stream {other:#x} has captured work that the stream in which the capture was begun does not wait for"
            );
            return Err(Failure::new(CAPTURE_UNJOINED, message));
        }
        Ok(graph)
    }

    /// Nodes of a graph and all that come before them.
    fn before(&self, graph: u64, nodes: Vec<u64>) -> Result<HashSet<u64>, Failure> {
        let graph = self.graph(graph)?;
        let before: HashMap<u64, &Vec<u64>> =
            graph.nodes.iter().map(|node| (node.handle, &node.before)).collect();
        let (mut all, mut next) = (HashSet::new(), nodes);
        while let Some(node) = next.pop() {
            if all.insert(node) {
                next.extend(before.get(&node).copied().into_iter().flatten());
            }
        }
        Ok(all)
    }

    pub(crate) fn record_event(&mut self, handle: u64, stream: u64) -> Result<(), Failure> {
        let graph = self.capturing(stream)?;
        let seconds = self.seconds;
        let event = self.event(handle)?;
        (event.recorded, event.graph, event.seconds) = (true, graph, seconds);
        if graph.is_some() {
            let front = self.front(stream).to_vec();
            self.fronts.events.insert(handle, front);
        }
        Ok(())
    }

    /// Later work of a stream comes after an event, which it does anyhow. Captures spread.
    pub(crate) fn wait_event(&mut self, stream: u64, event: u64) -> Result<(), Failure> {
        let Some(graph) = self.event(event)?.graph else { return Ok(()) };
        if self.streams.values().any(|other| other.origin && other.graph == Some(graph)) {
            self.stream(stream)?;
            self.streams.entry(stream).or_default().graph = Some(graph);
            let front = self.fronts.events.get(&event).cloned().unwrap_or_default();
            join(self.fronts.streams.entry(stream).or_default(), &front);
        }
        Ok(())
    }

    /// The milliseconds between two events, if a program may ask for them. Standard error says once which they are.
    pub(crate) fn elapsed(&mut self, events: [u64; 2]) -> Result<f32, Failure> {
        static SAID: std::sync::Once = std::sync::Once::new();
        let mut times = [0.0; 2];
        for (event, time) in events.into_iter().zip(&mut times) {
            let Event { seconds, flags, recorded, graph: _ } = *self.event(event)?;
            *time = seconds;
            if flags & DISABLE_TIMING != 0 || !recorded {
                return Err(Failure::new(
                    crate::errors::INVALID_HANDLE,
                    "required two events that take the time and were recorded",
                ));
            }
        }
        let (milliseconds, what) = match self.settings.event_times {
            EventTimes::Nan => (
                f32::NAN,
                "NaN: an emulator has no times of a GPU (`--event-times` gives others)".to_owned(),
            ),
            EventTimes::Zero => (0.0, "0".to_owned()),
            EventTimes::Cycles => (
                ((times[1] - times[0]) * 1e3) as f32,
                format!(
                    "lower bounds for {} from counted operations, not measured",
                    self.gpu().name
                ),
            ),
        };
        SAID.call_once(|| {
            crate::report::complain(format_args!("elapsed times of events are {what}"));
        });
        Ok(milliseconds)
    }
}
