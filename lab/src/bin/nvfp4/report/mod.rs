//! Reports: one page with a table and charts, from a bench that has just run or from recorded files.

mod csv;
mod document;
mod history;
mod html;
mod machine;
mod panels;
mod raw;
mod roofline;
mod row;
mod scale;
mod svg;
mod table;
mod times;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use nvfp4::device::Kernels;
use nvfp4_lab::bench::ActivationInput;
use nvfp4_lab::shape;
use serde_json::Value;
use thiserror::Error;

use self::document::{About, Document, Source};
use self::history::History;
use self::row::Row;

/// The folder of records of machines, each in a folder of its name.
const RECORDS: &str = "benches/record";
/// Width of the chart that is a separate file.
const FILE_WIDTH: f64 = 840.0;

/// The files of a report.
const PAGE: &str = "report.html";
const DATA: &str = "report.json";
const CHART: &str = "times.svg";

/// The reason why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A file or a folder cannot be read.
    #[error("reading {path}: {source}", path = path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file or a folder cannot be written.
    #[error("writing {path}: {source}", path = path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file has something else in it.
    #[error("{path} must have runs as `bench --json` writes them, a report's data or a record's rows: {why}", path = path.display())]
    Contents {
        /// The path.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// Nothing is left to show.
    #[error("no run of the files is of {asked}")]
    Nothing {
        /// The selection.
        asked: String,
    },
}

/// Make a report from recorded runs, without running anything.
///
/// DIR/report.html is one page without anything from elsewhere: a table of all runs, times against floor
/// and peer by shape, a roofline, and the history of the record. DIR/report.json has the data that the
/// page is made from, and can be given to --from again; DIR/times.svg is the first chart as a file of its
/// own.
#[derive(Debug, Args)]
pub struct Options {
    /// Files that `bench --json` wrote, report.json of earlier reports, or CSV files of a record. A date
    /// that a file's name begins with (2026-11-22-gemm.json) is that of its runs.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    from: Vec<PathBuf>,
    /// The folder to write to, made if need be.
    #[arg(long, value_name = "DIR", required_unless_present = "csv")]
    report: Option<PathBuf>,
    /// Write the runs as rows of a record: a CSV file, one row per run, a run named by its file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Only these runs of a record, each named by its columns date and run: 2026-11-28-gemm-f16; can be
    /// repeated.
    #[arg(long, num_args = 1.., value_name = "DATE-RUN")]
    run: Vec<String>,
    /// Folder with dated files of the same machine, for the history [default: benches/record/GPU, such
    /// as h200, below the working folder, if it is there].
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Only shapes of this set; can be repeated.
    #[arg(long, value_name = "NAME")]
    set: Vec<String>,
    /// Only runs with these activations: fp4, f16, bf16; runs without a choice of activations stay.
    #[arg(long)]
    activations: Option<ActivationInput>,
}

/// The report of a bench.
#[derive(Debug, Args)]
pub struct BenchOptions {
    /// Also write a report of all shapes: DIR/report.html, one page with a table and charts,
    /// DIR/report.json, its data, and DIR/times.svg, its first chart. On an emulated device it has
    /// counted lower bounds and no times. `nvfp4 report` makes one from recorded runs.
    #[arg(long, value_name = "DIR", conflicts_with = "tune")]
    pub report: Option<PathBuf>,
    /// Folder with dated files of the same machine, for the report's history [default:
    /// benches/record/GPU, such as h200, below the working folder, if it is there].
    #[arg(long, value_name = "DIR", requires = "report")]
    record: Option<PathBuf>,
}

/// A report that waits for its runs.
pub struct Pending {
    folder: PathBuf,
    record: Option<PathBuf>,
    source: Source,
}

impl BenchOptions {
    /// Makes the folder, so that a bench does not run for a report that cannot be written. `None` if none
    /// is asked for.
    pub fn begin(&self, kernels: &Kernels) -> Result<Option<Pending>, ReportError> {
        let Some(folder) = &self.report else { return Ok(None) };
        make(folder)?;
        let source = Source { about: About::this(kernels), runs: Vec::new() };
        Ok(Some(Pending { folder: folder.clone(), record: self.record.clone(), source }))
    }
}

impl Pending {
    /// Adds a run as `--json` prints it.
    pub fn add(&mut self, run: Value) {
        self.source.runs.push(run);
    }

    /// Writes the report.
    pub fn write(self) -> Result<(), ReportError> {
        let document = Document::new(vec![self.source]);
        write(document, self.record.as_deref(), &self.folder)
    }
}

/// `nvfp4 report`.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut sources = Vec::new();
    for path in &options.from {
        sources.extend(Document::read(path)?);
    }
    let sets: Vec<shape::Shape> =
        options.set.iter().map(|name| shape::set(name)).collect::<Result<Vec<_>, _>>()?.concat();
    let wanted = |run: &Value| {
        let text = |name: &str| run.get(name).and_then(Value::as_str);
        let shape = text("shape").and_then(|text| text.parse::<shape::Shape>().ok());
        let of_sets = sets.is_empty() || shape.is_some_and(|shape| sets.contains(&shape));
        let asked = options.activations.map(|asked| asked.to_string());
        let of_activations = match (asked, text("activations")) {
            (Some(asked), Some(found)) => asked == found,
            _ => true,
        };
        of_sets && of_activations
    };
    for name in &options.run {
        if !sources.iter().any(|source| source.about.file.as_ref() == Some(name)) {
            return Err(ReportError::Nothing { asked: name.clone() }.into());
        }
    }
    if !options.run.is_empty() {
        let named = |file: &String| options.run.contains(file);
        sources.retain(|source| source.about.file.as_ref().is_some_and(named));
        // In the order that was asked for.
        let place = |source: &Source| {
            options.run.iter().position(|name| source.about.file.as_ref() == Some(name))
        };
        sources.sort_by_key(place);
    }
    for source in &mut sources {
        source.runs.retain(wanted);
    }
    sources.retain(|source| !source.runs.is_empty());
    if sources.is_empty() {
        let activations = options.activations.map(|asked| format!("{asked} activations"));
        let asked: Vec<String> = options.set.iter().cloned().chain(activations).collect();
        let asked = if asked.is_empty() { "any shape".to_owned() } else { asked.join(", ") };
        return Err(ReportError::Nothing { asked }.into());
    }
    if let Some(path) = &options.csv {
        let bad = |why: String| ReportError::Contents { path: path.clone(), why };
        let text = csv::write(&sources).map_err(bad)?;
        let failed = |source| ReportError::Write { path: path.clone(), source };
        std::fs::write(path, text).map_err(failed)?;
    }
    if let Some(folder) = &options.report {
        make(folder)?;
        write(Document::new(sources), options.record.as_deref(), folder)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn make(folder: &Path) -> Result<(), ReportError> {
    let failed = |source| ReportError::Write { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)
}

/// Writes the files of a report.
fn write(mut document: Document, record: Option<&Path>, folder: &Path) -> Result<(), ReportError> {
    let bad = |why: String| ReportError::Contents { path: folder.join(DATA), why };
    let rows = document.rows().map_err(bad)?;
    document.history = with_record(&document, &rows, record)?;
    let data = serde_json::to_string_pretty(&document).map_err(|error| bad(error.to_string()))?;
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|source| ReportError::Write { path, source })
    };
    put(DATA, &format!("{data}\n"))?;
    put(PAGE, &html::page(&document, &rows))?;
    let only: Vec<&Row> = rows.iter().map(|(_, row)| row).collect();
    let caption = document.where_and_when();
    match times::chart(&only, FILE_WIDTH, Some(&caption)) {
        Some(chart) => put(CHART, &chart.file(&caption, html::CHART_STYLE)),
        // That of an earlier report would be taken for this one's.
        None => match std::fs::remove_file(folder.join(CHART)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ReportError::Write { path: folder.join(CHART), source })
            }
            _ => Ok(()),
        },
    }
}

/// The record's history with the document's own runs.
fn with_record(
    document: &Document,
    rows: &[(usize, Row)],
    record: Option<&Path>,
) -> Result<History, ReportError> {
    let none = |why: String| History { none: Some(why), ..History::default() };
    let gpu = match document.gpus().as_slice() {
        [gpu] => (*gpu).to_owned(),
        [] => return Ok(none("No history: the GPU was not recorded.".into())),
        _ => return Ok(none("No history: the runs are of several GPUs.".into())),
    };
    if rows.iter().all(|(_, row)| row.time.is_none()) {
        return Ok(none("No history: no run of this report was timed.".into()));
    }
    let default = || {
        let name = gpu.rsplit(' ').next().unwrap_or(&gpu).to_lowercase();
        Path::new(RECORDS).join(name)
    };
    let mut history = match record {
        Some(folder) => History::read(folder, &gpu)?,
        None if default().is_dir() => History::read(&default(), &gpu)?,
        None => none(format!("No record: there is no folder {}.", default().display())),
    };
    for (index, source) in document.sources.iter().enumerate() {
        if let Some(day) = source.about.day() {
            let own: Vec<Row> =
                rows.iter().filter(|(of, _)| *of == index).map(|(_, row)| row.clone()).collect();
            history.add(&own, day);
        }
    }
    Ok(history)
}
