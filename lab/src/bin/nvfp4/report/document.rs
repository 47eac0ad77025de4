//! The data of a report: sources, each with its runs, and the record's history. `report.json` has it
//! whole, so that the page follows from that file alone.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ReportError;
use super::csv;
use super::history::History;
use super::raw;
use super::row::Row;

/// The version of `report.json`.
const VERSION: u32 = 1;

/// All of a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// Version of the file.
    nvfp4_report: u32,
    pub sources: Vec<Source>,
    /// The history in the machine's record, as far as there is one.
    #[serde(default)]
    pub history: History,
}

/// Runs of one program start, or of one recorded file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Source {
    #[serde(default)]
    pub about: About,
    /// Runs as `bench --json` prints them.
    pub runs: Vec<Value>,
}

/// The origin of runs. Missing fields were not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Name of the recorded file, or of the record's run: `2026-11-22-gemm-f16`.
    pub file: Option<String>,
    /// UTC: `2026-11-22`, or with the time `2026-11-22 10:30`.
    pub date: Option<String>,
    /// The device as it was asked for: `cuda:0`.
    pub device: Option<String>,
    /// The GPU, or the machine that is emulated.
    pub gpu: Option<String>,
    /// Architecture of its kernels.
    pub arch: Option<String>,
    /// CUDA version and release of the driver.
    pub driver: Option<String>,
    pub sms: Option<u32>,
    /// Peak clock of the SMs and of the memory, MHz.
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// Processor and system of the host.
    pub host: Option<String>,
    /// Version of the program, and the commit that it was built from.
    pub program: Option<String>,
    pub commit: Option<String>,
    /// Fingerprint of the kernels.
    pub kernels: Option<String>,
    pub command: Option<String>,
}

impl About {
    /// The day, `YYYY-MM-DD`.
    pub fn day(&self) -> Option<&str> {
        self.date.as_deref().and_then(|date| date.get(..10))
    }
}

impl Document {
    pub fn new(sources: Vec<Source>) -> Self {
        Self { nvfp4_report: VERSION, sources, history: History::default() }
    }

    /// The sources of a file: a report's, or the one that the file is.
    pub fn read(path: &Path) -> Result<Vec<Source>, ReportError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ReportError::Read { path: path.to_owned(), source })?;
        let bad = |why: String| ReportError::Contents { path: path.to_owned(), why };
        if path.extension().is_some_and(|extension| extension == "csv") {
            let sources = csv::read(&text).map_err(bad)?;
            for source in &sources {
                source.rows().map_err(bad)?;
            }
            return Ok(sources);
        }
        let value: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if value.get("nvfp4_report").is_some() {
            let document: Self =
                serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
            let version = document.nvfp4_report;
            if version != VERSION {
                return Err(bad(format!("nvfp4_report must be {VERSION}, but is {version}")));
            }
            document.rows().map_err(bad)?;
            return Ok(document.sources);
        }
        let runs = raw::runs(value).map_err(bad)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let date = name.as_deref().and_then(date_of);
        let mut about = About { file: name, date, ..About::default() };
        if let Some(first) = runs.first() {
            // Facts that all runs of a file have in common.
            let first: raw::Run =
                raw::Run::deserialize(first).map_err(|error| bad(error.to_string()))?;
            if let Some(device) = first.device {
                let named = |text: String| Some(text).filter(|text| !text.is_empty());
                about.device = named(device.device);
                about.gpu = named(device.name);
                about.arch = named(device.arch);
            }
        }
        let source = Source { about, runs };
        source.rows().map_err(bad)?;
        Ok(vec![source])
    }

    /// All rows, each with the number of its source.
    pub fn rows(&self) -> Result<Vec<(usize, Row)>, String> {
        let mut rows = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            rows.extend(source.rows()?.into_iter().map(|row| (index, row)));
        }
        Ok(rows)
    }

    /// Names of the GPUs, each once, in order.
    pub fn gpus(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for name in self.sources.iter().filter_map(|source| source.about.gpu.as_deref()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The GPUs and the first and the last day: `NVIDIA H200, 2026-11-20 to 2026-11-22`.
    pub fn where_and_when(&self) -> String {
        let mut days: Vec<&str> =
            self.sources.iter().filter_map(|source| source.about.day()).collect();
        days.sort_unstable();
        let gpus = self.gpus().join(", ");
        let gpus = if gpus.is_empty() { "GPU not recorded" } else { &gpus };
        match (days.first(), days.last()) {
            (Some(first), Some(last)) if first == last => format!("{gpus}, {first}"),
            (Some(first), Some(last)) => format!("{gpus}, {first} to {last}"),
            _ => format!("{gpus}, date not recorded"),
        }
    }
}

impl Source {
    pub fn rows(&self) -> Result<Vec<Row>, String> {
        self.runs.iter().map(Row::new).collect()
    }
}

/// The day that a file's name begins with.
pub fn date_of(name: &str) -> Option<String> {
    let day = name.get(..10)?;
    super::history::days(day).map(|_| day.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_days() {
        assert_eq!(date_of("2026-11-22-gemm.json").as_deref(), Some("2026-11-22"));
        for bad in ["gemm.json", "2026-13-22-gemm.json", "2026-11-2", "20261122-gemm.json", "ä"] {
            assert_eq!(date_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_caption_has_the_gpus_and_the_days() {
        let source = |gpu: &str, date: &str| Source {
            about: About { gpu: Some(gpu.into()), date: Some(date.into()), ..About::default() },
            runs: Vec::new(),
        };
        let of = |sources| Document::new(sources).where_and_when();
        let [a, b] = [source("H200", "2026-11-22 10:30"), source("H200", "2026-11-20")];
        assert_eq!(of(vec![a.clone()]), "H200, 2026-11-22");
        assert_eq!(of(vec![a, b]), "H200, 2026-11-20 to 2026-11-22");
        assert_eq!(of(vec![]), "GPU not recorded, date not recorded");
    }
}
