//! The report of a run on standard output.

use super::checks::{Tried, not_looked_for};
use super::error::CliError;
use super::run::Done;
use ptx_emu::bundle::OutputReport;
use ptx_emu::{Diagnostic, LaunchError, LoadError, Model, Unsupported, readable_name};
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
    let mut value = json!({
        "status": "done",
        "kernel": done.kernel,
        "kernel_name": readable_name(&done.kernel),
        "gpu": done.gpu,
        "emulated": true,
        "schedule": done.schedule.to_string(),
        "grid": done.grid,
        "block": done.block,
        "counters": done.counters,
        "lower_bound": done.lower_bound,
        "outputs": outputs,
        "compared": done.compared.iter().map(output).collect::<Vec<_>>(),
        "model": done.model.to_string(),
        "findings": findings(&done.findings),
        "findings_left_out": done.findings_left_out,
        "not_looked_for": not_looked_for(Tried::One(done.schedule), done.model),
    });
    if !done.is_right() {
        value["status"] = json!("different");
    }
    if let Some(denied) = done.denied() {
        value["status"] = json!("diagnostic");
        value["error"] = json!(denied.to_string());
    }
    value.to_string()
}

/// A failed run by a model, as JSON; without one, a command that has none.
pub(crate) fn failure(error: &CliError, model: Option<Model>) -> String {
    match error {
        CliError::Launch(LaunchError::Diagnostic(found)) => failed(found, model),
        CliError::Load { source: LoadError::Unsupported(items), .. } => {
            unsupported(&error.to_string(), items)
        }
        _ => json!({ "status": "bad input", "error": error.to_string() }),
    }
    .to_string()
}

/// Findings of a run.
pub(crate) fn findings(all: &[Diagnostic]) -> Vec<Value> {
    all.iter().map(Diagnostic::to_json).collect()
}

/// A run by a model that went wrong with a diagnostic, and perhaps others.
pub(crate) fn failed(diagnostic: &Diagnostic, model: Option<Model>) -> Value {
    let mut value = diagnostic.to_json();
    value["status"] = json!("diagnostic");
    value["model"] = json!(model.map(|model| model.to_string()));
    let mut all = findings(std::slice::from_ref(diagnostic));
    all.extend(findings(&diagnostic.others));
    value["findings"] = json!(all);
    value
}

/// Returns the comparison of an output.
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

/// Appends a line about an output: how it compares.
pub(crate) fn comparison(text: &mut String, output: &OutputReport) {
    let OutputReport { name, elements, mismatches, first, max_error } = output;
    let _ = match first {
        None => write!(text, "\n{name}: {elements} elements as expected"),
        Some(first) => write!(
            text,
            "\n{name}: {mismatches} of {elements} elements differ, first [{}]: expected {}, got {}",
            first.index, first.expected, first.actual
        ),
    };
    if *max_error > 0.0 {
        let _ = write!(text, ", largest error {max_error:.3e}");
    }
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
        readable_name(&done.kernel),
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
    done.compared.iter().for_each(|output| comparison(&mut text, output));
    if done.is_right() {
        let _ = write!(text, "\n{}", not_looked_for(Tried::One(done.schedule), done.model));
    }
    text
}
