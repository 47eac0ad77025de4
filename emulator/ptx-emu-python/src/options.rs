//! Options that the functions have in common: PTX, extents, machine, schedule, model and levels.

use crate::error::{bad, file, shown};
use ptx_emu::experiment::Conditions;
use ptx_emu::{Checks, Gpu, Kind, Level, LoadError, Model, Schedule, entry_names};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use std::path::PathBuf;

/// The text of a module: a string, or the path of a file.
pub fn ptx(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return text.extract();
    }
    let path = path("ptx", value, "str with PTX, or the path of a file (os.PathLike)")?;
    std::fs::read_to_string(&path).map_err(|error| file(&path, &error))
}

/// A path that is not a string with something else.
fn path(field: &str, value: &Bound<'_, PyAny>, required: &str) -> PyResult<PathBuf> {
    if !value.hasattr("__fspath__")? {
        return Err(bad(field, required, shown(value)));
    }
    value.extract()
}

/// A folder: a string or a path.
pub fn folder(field: &str, value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(PathBuf::from(text.extract::<String>()?));
    }
    path(field, value, "a folder: str or os.PathLike")
}

/// A string.
fn text(field: &str, value: &Bound<'_, PyAny>, required: &str) -> PyResult<String> {
    let text = value.cast::<PyString>().map_err(|_| bad(field, required, shown(value)))?;
    text.extract()
}

/// The kernel of that name, or the only one of the module.
pub fn entry(ptx: &str, entry: Given<'_, '_>) -> PyResult<String> {
    if let Some(entry) = entry {
        return text("entry", entry, "str, or None for a module with one kernel");
    }
    let names = entry_names(ptx).map_err(|error| crate::error::load(&error.into(), ptx))?;
    match names.as_slice() {
        [only] => Ok(only.clone()),
        _ => {
            let (required, actual) = (names.join(", "), "None".to_owned());
            Err(crate::error::load(&LoadError::Entry { required, actual }, ptx))
        }
    }
}

/// A number from `least` to `most`: an int, or what Python accepts as an index.
pub fn integer(field: &str, value: &Bound<'_, PyAny>, least: u64, most: u64) -> PyResult<u64> {
    let number = index(value).and_then(|number| number.extract::<u64>().ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| bad(field, format!("an integer from {least} to {most}"), shown(value)))
}

/// An int, or a NumPy integer as one.
fn index<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyInt>> {
    if let Ok(number) = value.cast::<PyInt>() {
        return Some(number.clone());
    }
    value.call_method0("__index__").ok()?.cast_into().ok()
}

/// One to three numbers of at least 1, in x, y, z.
pub fn extent(field: &str, value: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
    let most = u64::from(u32::MAX);
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    if index(value).is_some() {
        return Ok([narrow(integer(field, value, 1, most)?), 1, 1]);
    }
    let wrong = || bad(field, "an integer, or 1 to 3 of them (x, y, z)", shown(value));
    if value.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    let parts: Vec<Bound<'_, PyAny>> =
        value.try_iter().and_then(Iterator::collect).map_err(|_| wrong())?;
    let mut extent = [1; 3];
    if parts.is_empty() || parts.len() > 3 {
        return Err(wrong());
    }
    for (at, (slot, part)) in extent.iter_mut().zip(&parts).enumerate() {
        *slot = narrow(integer(&format!("{field}[{at}]"), part, 1, most)?);
    }
    Ok(extent)
}

/// A kind of finding by its name.
pub fn named(field: &str, value: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let required = "the name of a kind of finding (ptx_emu.kinds() has them)";
    text(field, value, required)?.parse().map_err(|_| bad(field, required, shown(value)))
}

/// The kinds of a keyword: one name, or several.
fn kinds(field: &str, value: Given<'_, '_>) -> PyResult<Vec<Kind>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    if value.is_instance_of::<PyString>() {
        return Ok(vec![named(field, value)?]);
    }
    let names: Vec<Bound<'_, PyAny>> = value
        .try_iter()
        .and_then(Iterator::collect)
        .map_err(|_| bad(field, "names of kinds of findings", shown(value)))?;
    let one = |(at, name)| named(&format!("{field}[{at}]"), name);
    names.iter().enumerate().map(one).collect()
}

/// A keyword's value; `None` if it was not given or is Python's None.
pub type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// Keywords that all functions that run a kernel have, as they were given.
pub struct Keywords<'a, 'py> {
    /// Machine.
    pub gpu: Given<'a, 'py>,
    /// Whether modules are loaded that ptxas refuses.
    pub lax: bool,
    /// Interleaving.
    pub schedule: Given<'a, 'py>,
    /// The orders that hold.
    pub model: Given<'a, 'py>,
    /// Kinds that are not mentioned.
    pub allow: Given<'a, 'py>,
    /// Kinds that are mentioned only.
    pub warn: Given<'a, 'py>,
    /// Kinds that make a run wrong.
    pub deny: Given<'a, 'py>,
    /// Most findings of a run.
    pub max_findings: Given<'a, 'py>,
    /// Warp instructions that a cluster may run.
    pub instruction_limit: Given<'a, 'py>,
}

/// The values of the keywords.
pub struct Options {
    gpu: Option<Gpu>,
    lax: bool,
    /// Schedule, limit and checks.
    pub conditions: Conditions,
}

impl Keywords<'_, '_> {
    /// Reads all of them.
    pub fn read(&self) -> PyResult<Options> {
        let schedule = match self.schedule {
            Some(schedule) => self::schedule(schedule)?,
            None => Schedule::Eager,
        };
        let instruction_limit = match self.instruction_limit {
            Some(limit) => Some(integer("instruction_limit", limit, 1, u64::MAX)?),
            None => None,
        };
        let gpu = self.gpu.map(gpu).transpose()?;
        let checks = self.checks()?;
        let conditions = Conditions { schedule, threads: None, instruction_limit, checks };
        Ok(Options { gpu, lax: self.lax, conditions })
    }

    /// The checks of a model: a finding does not end the run unless it must. The strictest level
    /// counts where a kind is named more than once.
    fn checks(&self) -> PyResult<Checks> {
        let model = match self.model {
            Some(model) => self::model(model)?,
            None => Model::Hardware,
        };
        let mut checks = Checks::new(model);
        for (kinds, level) in [
            (kinds("allow", self.allow)?, Level::Allow),
            (kinds("warn", self.warn)?, Level::Warn),
            (kinds("deny", self.deny)?, Level::Deny),
        ] {
            for kind in kinds {
                checks = checks.with(kind, level);
            }
        }
        let most = match self.max_findings {
            Some(most) => integer("max_findings", most, 0, u32::MAX.into())?,
            None => Checks::MOST as u64,
        };
        Ok(checks.collecting(usize::try_from(most).unwrap_or(usize::MAX)))
    }
}

impl Options {
    /// The machine: the one that was asked for, or the one that the module is for.
    pub fn machine(&self, ptx: &str) -> Gpu {
        machine(self.gpu.clone(), self.lax, ptx)
    }
}

/// The machine that was asked for, or the one that the module is for. `lax`: it loads modules that ptxas refuses.
pub fn machine(gpu: Option<Gpu>, lax: bool, ptx: &str) -> Gpu {
    Gpu { lax, ..gpu.unwrap_or_else(|| Gpu::for_module(ptx)) }
}

/// A machine by its name.
pub fn gpu(value: &Bound<'_, PyAny>) -> PyResult<Gpu> {
    let names = Gpu::ALL.map(|gpu| format!("\"{}\"", gpu.name)).join(", ");
    let required = format!("{names}, or None for the one that the module is for");
    let found = Gpu::by_name(&text("gpu", value, &required)?);
    found.ok_or_else(|| bad("gpu", required, shown(value)))
}

fn model(value: &Bound<'_, PyAny>) -> PyResult<Model> {
    let required = "\"hardware\" or \"ptx\"";
    let text = text("model", value, required)?;
    text.parse().map_err(|_| bad("model", required, shown(value)))
}

fn schedule(value: &Bound<'_, PyAny>) -> PyResult<Schedule> {
    let required = "\"eager\", \"lazy\" or \"random:SEED\" (an unsigned 64-bit number)";
    let text = text("schedule", value, required)?;
    text.parse().map_err(|_| bad("schedule", required, shown(value)))
}
