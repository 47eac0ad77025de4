//! The report of a run on standard output.

use super::error::CliError;
use super::run::Done;
use ptx_emu::bundle::OutputReport;
use ptx_emu::{Diagnostic, LaunchError, LoadError, Unsupported};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A finished run, as JSON.
pub(crate) fn json(done: &Done) -> String {
    let outputs: Vec<Value> = done
        .outputs
        .iter()
        .map(|written| {
            json!({
                "argument": written.output.argument,
                "parameter": written.output.parameter,
                "file": written.output.path.display().to_string(),
                "bytes": written.output.bytes,
                "first_uninitialised": written.first_uninitialised,
            })
        })
        .collect();
    json!({
        "status": "done",
        "kernel": done.kernel,
        "gpu": done.gpu,
        "emulated": true,
        "schedule": done.schedule.to_string(),
        "grid": done.grid,
        "block": done.block,
        "counters": done.counters,
        "lower_bound": done.lower_bound,
        "outputs": outputs,
    })
    .to_string()
}

/// A failed run, as JSON.
pub(crate) fn failure(error: &CliError) -> String {
    match error {
        CliError::Launch(LaunchError::Diagnostic(found)) => diagnostic(found),
        CliError::Load { source: LoadError::Unsupported(items), .. } => {
            unsupported(&error.to_string(), items)
        }
        _ => json!({ "status": "bad input", "error": error.to_string() }),
    }
    .to_string()
}

/// The error of a kernel.
pub(crate) fn diagnostic(diagnostic: &Diagnostic) -> Value {
    json!({
        "status": "diagnostic",
        "error": diagnostic.to_string(),
        "kernel": diagnostic.kernel,
        "line": diagnostic.line,
        "instruction": diagnostic.instruction,
        "cta": diagnostic.cta,
        "warp": diagnostic.warp,
        "lane": diagnostic.lane,
        "schedule": diagnostic.schedule.to_string(),
    })
}

/// How an output compares.
pub(crate) fn output(output: &OutputReport) -> Value {
    let first = output.first.as_ref().map(
        |first| json!({ "index": first.index, "expected": first.expected, "actual": first.actual }),
    );
    json!({
        "name": output.name,
        "elements": output.elements,
        "mismatches": output.mismatches,
        "first": first,
        "max_error": output.max_error,
    })
}

/// A module with instructions that are not modelled.
pub(crate) fn unsupported(message: &str, items: &[Unsupported]) -> Value {
    let items: Vec<Value> = items
        .iter()
        .map(|item| json!({ "line": item.line, "instruction": item.instruction, "why": item.why }))
        .collect();
    json!({ "status": "bad input", "error": message, "unsupported": items })
}

/// A finished run, for people.
pub(crate) fn text(done: &Done) -> String {
    let counters = &done.counters;
    let size = |[x, y, z]: [u32; 3]| format!("{x} x {y} x {z}");
    let mut text = format!(
        "`{}` ran on the emulator as {}: grid {}, block {}, schedule {}\n",
        done.kernel,
        done.gpu,
        size(done.grid),
        size(done.block),
        done.schedule,
    );
    let _ = writeln!(
        text,
        "instructions: {} warp, {} lane",
        counters.warp_instructions, counters.lane_instructions
    );
    let _ = writeln!(
        text,
        "global memory: {} bytes read, {} written (distinct sectors)",
        counters.global_unique_bytes_read, counters.global_unique_bytes_written
    );
    let _ = write!(
        text,
        "lower bound on time, no measurement: {:.3} us ({})",
        done.lower_bound.seconds * 1e6,
        done.lower_bound.by
    );
    for written in &done.outputs {
        let _ = write!(
            text,
            "\nwrote {} ({} bytes)",
            written.output.path.display(),
            written.output.bytes
        );
    }
    text
}
