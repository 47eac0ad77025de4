//! Timelines ([`Trace`]) in the Trace Event Format, which Perfetto and Chrome display: one
//! process per CTA, and threads for its warps, its asynchronous units and its barriers.

pub use ptx_emu_core::trace::{Line, Place, Record, Trace};

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Threads of a process: warps from 0, each with room for rows of waits that
/// overlap, then units, then barriers.
const WARP_ROWS: u64 = 64;
const UNITS: u64 = 1 << 20;
const UNIT_ROWS: u64 = 1 << 10;
const BARRIERS: u64 = 1 << 30;

/// A span before it has a row.
struct Span {
    from: u64,
    to: u64,
    name: String,
    args: Value,
}

/// Spans and instants by process, and by thread or group of rows.
#[derive(Default)]
struct Tracks {
    warps: BTreeMap<(usize, u32), (Vec<Span>, Vec<Span>)>,
    units: BTreeMap<(usize, String), Vec<Span>>,
    /// Units that a warp gave work.
    roles: BTreeMap<(usize, u32), BTreeSet<String>>,
    flights: BTreeMap<usize, Vec<(u64, i64)>>,
    instants: BTreeMap<usize, Vec<Value>>,
}

/// The timeline as JSON in the Trace Event Format, events in order of time.
#[must_use]
pub fn to_json(trace: &Trace) -> Value {
    let ctas: BTreeSet<[u32; 3]> = trace.records.iter().map(|r| sortable(r.place())).collect();
    let ctas: Vec<[u32; 3]> = ctas.into_iter().collect();
    let process = |place: &Place| 1 + ctas.binary_search(&sortable(place)).unwrap_or_default();
    let mut tracks = Tracks::default();
    for record in &trace.records {
        tracks.add(process(record.place()), record);
    }
    let mut events: Vec<Value> = Vec::new();
    let mut names: Vec<Value> = Vec::new();
    for (index, [z, y, x]) in ctas.iter().enumerate() {
        let name = format!("CTA ({x}, {y}, {z})");
        names.push(metadata("process_name", index + 1, 0, json!({ "name": name })));
        names.push(metadata("process_sort_index", index + 1, 0, json!({ "sort_index": index })));
    }
    tracks.emit(&mut names, &mut events);
    events.sort_by_key(|event| event["ts"].as_u64().unwrap_or_default());
    names.append(&mut events);
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "kernel": trace.kernel,
            "schedule": trace.schedule.to_string(),
            "emulated": true,
            "time_axis": "steps: warp instructions that the cluster has run, each cluster \
                          from 0, one step shown as a microsecond; no time on hardware",
            "cut": trace.is_cut(),
            "dropped": trace.dropped,
        },
        "traceEvents": names,
    })
}

/// CTAs in the order of the grid, x fastest.
fn sortable(place: &Place) -> [u32; 3] {
    let [x, y, z] = place.cta;
    [z, y, x]
}

fn metadata(name: &str, process: usize, thread: u64, args: Value) -> Value {
    json!({ "ph": "M", "name": name, "pid": process, "tid": thread, "ts": 0, "args": args })
}

fn at(line: &Line) -> String {
    format!("{}: {}", line.number, line.text)
}

impl Tracks {
    fn add(&mut self, process: usize, record: &Record) {
        match record {
            Record::Run { place, from, to, first, last } => {
                let name = "run".to_owned();
                let args = json!({ "from": at(first), "to": at(last) });
                let span = Span { from: *from, to: *to, name, args };
                self.warps.entry((process, place.warp)).or_default().0.push(span);
            }
            Record::Wait { place, lanes, from, to, line, name, reason, ended_by } => {
                let args = json!({
                    "line": at(line),
                    "lanes": format!("{lanes:#010x}"),
                    "for": reason,
                    "ended_by": ended_by,
                });
                let span = Span { from: *from, to: *to, name: format!("wait: {name}"), args };
                self.warps.entry((process, place.warp)).or_default().1.push(span);
            }
            Record::Operation { place, id, name, from, read, to, line, bytes, complete } => {
                let args = json!({
                    "operation": id,
                    "issued_by": format!("warp {}", place.warp),
                    "line": at(line),
                    "bytes": bytes,
                    "sources_read_at": read,
                    "complete": complete,
                });
                let unit = unit(name).to_owned();
                self.roles.entry((process, place.warp)).or_default().insert(unit.clone());
                let span = Span { from: *from, to: *to, name: (*name).to_owned(), args };
                self.units.entry((process, unit)).or_default().push(span);
                self.flights.entry(process).or_default().extend([(*from, 1), (*to, -1)]);
            }
            Record::Phase { at, name, phase, by, .. } => {
                let event = json!({
                    "ph": "i", "s": "t", "name": format!("{name}: phase {phase} over"),
                    "cat": "barrier", "pid": process, "tid": BARRIERS, "ts": at,
                    "args": { "phase": phase, "ended_by": by },
                });
                self.instants.entry(process).or_default().push(event);
            }
        }
    }

    fn emit(mut self, names: &mut Vec<Value>, events: &mut Vec<Value>) {
        for ((process, warp), (runs, waits)) in std::mem::take(&mut self.warps) {
            let role = self.roles.get(&(process, warp)).map_or_else(String::new, |units| {
                let units: Vec<&str> = units.iter().map(String::as_str).collect();
                format!(": {}", units.join(", "))
            });
            let first = u64::from(warp) * WARP_ROWS;
            for (row, spans) in rows(runs, waits).into_iter().enumerate() {
                let thread = first + (row as u64).min(WARP_ROWS - 1);
                let name = match row {
                    0 => format!("warp {warp}{role}"),
                    row => format!("warp {warp}, other lanes {row}"),
                };
                thread_names(names, process, thread, &name);
                emit(events, process, thread, "warp", spans);
            }
        }
        let mut count: BTreeMap<usize, u64> = BTreeMap::new();
        for ((process, unit), spans) in self.units {
            let index = count.entry(process).or_default();
            for (row, spans) in rows(Vec::new(), spans).into_iter().enumerate() {
                let thread = UNITS + *index * UNIT_ROWS + row as u64;
                let name = if row == 0 { unit.clone() } else { format!("{unit} {}", row + 1) };
                thread_names(names, process, thread, &name);
                emit(events, process, thread, "operation", spans);
            }
            *index += 1;
        }
        for (process, mut changes) in self.flights {
            // Completions before issues at the same step.
            changes.sort_unstable();
            let mut flying = 0;
            for (at, change) in changes {
                flying += change;
                events.push(json!({
                    "ph": "C", "name": "operations in flight", "pid": process, "tid": 0, "ts": at,
                    "args": { "operations": flying.max(0) },
                }));
            }
        }
        for (process, mut instants) in self.instants {
            thread_names(names, process, BARRIERS, "barriers");
            events.append(&mut instants);
        }
    }
}

fn thread_names(names: &mut Vec<Value>, process: usize, thread: u64, name: &str) {
    names.push(metadata("thread_name", process, thread, json!({ "name": name })));
    names.push(metadata("thread_sort_index", process, thread, json!({ "sort_index": thread })));
}

/// Spans in rows in which none overlaps another: `fixed`, which do not overlap,
/// in the first one, and the others wherever they fit.
fn rows(fixed: Vec<Span>, mut others: Vec<Span>) -> Vec<Vec<Span>> {
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    taken.extend(fixed.iter().map(|span| (span.from, span.to)));
    let mut rows = vec![fixed];
    let mut ends: Vec<u64> = vec![0];
    others.sort_by_key(|span| (span.from, span.to));
    for span in others {
        let fits_runs = |span: &Span| {
            let before = taken.range(..span.to.max(span.from + 1)).next_back();
            before.is_none_or(|(_, &end)| end <= span.from)
        };
        let row = (0..ends.len())
            .find(|&row| ends[row] <= span.from && (row != 0 || fits_runs(&span)))
            .unwrap_or_else(|| {
                rows.push(Vec::new());
                ends.push(0);
                ends.len() - 1
            });
        ends[row] = span.to;
        rows[row].push(span);
    }
    for row in &mut rows {
        row.sort_by_key(|span| (span.from, span.to));
    }
    rows
}

fn emit(events: &mut Vec<Value>, process: usize, thread: u64, category: &str, spans: Vec<Span>) {
    for Span { from, to, name, args } in spans {
        events.push(json!({
            "ph": "B", "name": name, "cat": category,
            "pid": process, "tid": thread, "ts": from, "args": args,
        }));
        events.push(json!({
            "ph": "E", "name": name, "cat": category, "pid": process, "tid": thread, "ts": to,
        }));
    }
}

/// Unit that works on an operation of this name.
fn unit(operation: &str) -> &str {
    const UNITS: [(&str, &str); 6] = [
        ("cp.async.bulk.tensor", "tensor copies"),
        ("cp.reduce.async.bulk.tensor", "tensor copies"),
        ("cp.async.bulk", "bulk copies"),
        ("cp.reduce.async.bulk", "bulk copies"),
        ("cp.async", "cp.async"),
        ("wgmma", "wgmma"),
    ];
    if operation.starts_with("tcgen05") {
        return operation.split_inclusive('.').nth(1).map_or("tcgen05", |_| {
            let second = operation.match_indices('.').nth(1).map_or(operation.len(), |(at, _)| at);
            &operation[..second]
        });
    }
    UNITS.iter().find(|(start, _)| operation.starts_with(start)).map_or(operation, |(_, unit)| unit)
}
