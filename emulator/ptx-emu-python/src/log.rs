//! `sarif`: findings as a log for code hosts.

use crate::error::{bad, shown};
use crate::finding::Finding;
use ptx_emu::Kind;
use ptx_emu::sarif::{Fault, Lines, Log};
use pyo3::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

const REQUIRED: &str = "pairs of a Finding (or what its to_dict gave) and the path of a file";

/// A log of findings in the format SARIF 2.1.0, which code hosts show beside the source.
///
/// `found` has pairs of a `Finding`, or what its `to_dict` gave, and the path of a file: the PTX module, or
/// another file that stands for it. A result is at the line of source that the PTX names, else at the line of the
/// module. A dictionary whose `kind` is `outputs-differ` is about outputs; its `error` says which.
#[pyfunction]
pub fn sarif(found: &Bound<'_, PyAny>) -> PyResult<String> {
    let pairs: Vec<Bound<'_, PyAny>> = found
        .try_iter()
        .and_then(Iterator::collect)
        .map_err(|_| bad("found", REQUIRED, shown(found)))?;
    let mut log = Log::new();
    for (at, pair) in pairs.iter().enumerate() {
        let wrong = || bad(&format!("found[{at}]"), REQUIRED, shown(pair));
        let (finding, file) = pair.extract::<(Bound<'_, PyAny>, PathBuf)>().map_err(|_| wrong())?;
        let finding = json(&finding)?.ok_or_else(wrong)?;
        add(&mut log, &finding, &file).ok_or_else(wrong)?;
    }
    Ok(format!("{:#}\n", log.to_json()))
}

/// A finding as JSON; `None` if it is neither an object of that class nor a dictionary.
fn json(finding: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    if let Ok(finding) = finding.cast::<Finding>() {
        return Ok(Some(finding.get().diagnostic().to_json()));
    }
    let text = finding.py().import("json")?.call_method1("dumps", (finding,));
    let value = text.and_then(|text| text.extract::<String>()).ok();
    Ok(value.and_then(|text| serde_json::from_str(&text).ok()).filter(Value::is_object))
}

/// Adds a finding or a fault; `None` if it is neither.
fn add(log: &mut Log, finding: &Value, file: &Path) -> Option<()> {
    let kind = finding["kind"].as_str()?;
    let message = finding["error"].as_str()?;
    if kind == "outputs-differ" {
        log.fault(Fault::Outputs, message, file);
        return Some(());
    }
    kind.parse::<Kind>().ok()?;
    let module = file.extension().is_some_and(|extension| extension == "ptx");
    log.finding(finding, if module { Lines::Module(file) } else { Lines::Program(file) }, None);
    Some(())
}
