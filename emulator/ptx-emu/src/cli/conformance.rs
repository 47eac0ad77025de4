//! `ptx-emu conformance`: probes on a device, recordings on the emulator.

use clap::{Args, Subcommand};
use ptx_emu_conformance::{
    Family, FamilyReport, Outcome, Probe, ProbeReport, Recording, RecordingError, check, probes,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod record;
mod worker;

/// Compares the emulator with real hardware.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the probes on a CUDA device and writes a recording a family.
    Record(record::RecordArgs),
    /// Runs the probes on the emulator and compares with recordings.
    Check(CheckArgs),
    /// Writes the probes as PTX modules, one per family.
    Ptx(PtxArgs),
    /// The process that `record` runs.
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Folder with recordings; by default the ones of the checkout.
    dir: Option<PathBuf>,
    /// Family; may be repeated. By default all.
    #[arg(long, value_name = "NAME")]
    family: Vec<Family>,
    /// Differences to show of each probe.
    #[arg(long, value_name = "N", default_value_t = 3)]
    show: usize,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct PtxArgs {
    /// Folder for the modules.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// A command that could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConformanceError {
    /// A recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// No folder of recordings.
    #[error(
        "no folder of recordings: required {DEFAULT} above the working folder or the program, \
         or a folder as argument, actual none"
    )]
    NoFolder,
    /// A folder that is not there.
    #[error("{}: required a folder of recordings, actual no folder", .0.display())]
    NotAFolder(PathBuf),
    /// An output that cannot be written.
    #[error("{}: cannot be written: {source}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// No device to record on.
    #[error("cuda:{ordinal}: {reason}")]
    Device { ordinal: u32, reason: String },
    /// A device of an architecture that the probes are not for.
    #[error("cuda:{ordinal} ({name}): architecture: required sm_90a, actual {actual}")]
    Architecture { ordinal: u32, name: String, actual: String },
    /// A process of our own that does not start.
    #[error("a process that runs probes cannot be started: {0}")]
    Start(std::io::Error),
}

/// The text for standard output, and the exit code.
pub(crate) type Printed = (String, u8);

/// Runs the command.
pub(crate) fn run(args: &ConformanceArgs) -> Result<Printed, ConformanceError> {
    match &args.command {
        Command::Record(args) => record::record(args),
        Command::Worker(args) => Ok((String::new(), worker::work(args))),
        Command::Check(args) => check_all(args),
        Command::Ptx(args) => write_modules(&args.out),
    }
}

/// The families asked for.
fn families(asked: &[Family]) -> &[Family] {
    if asked.is_empty() { Family::ALL } else { asked }
}

/// The folder of a checkout's recordings.
const DEFAULT: &str = "tests/data/conformance";

/// The first folder [`DEFAULT`] at or above the working folder or the program.
fn default_folder() -> Option<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let found = starts.iter().flatten().flat_map(|start| start.ancestors());
    found.map(|folder| folder.join(DEFAULT)).find(|folder| folder.is_dir())
}

fn check_all(args: &CheckArgs) -> Result<Printed, ConformanceError> {
    let folder = match &args.dir {
        Some(folder) if !folder.is_dir() => {
            return Err(ConformanceError::NotAFolder(folder.clone()));
        }
        Some(folder) => folder.clone(),
        None => default_folder().ok_or(ConformanceError::NoFolder)?,
    };
    let mut reports = Vec::new();
    for &family in families(&args.family) {
        let recording = Recording::read(&folder, family)?;
        reports.push(check(family, recording.as_ref(), args.show));
    }
    let good = reports.iter().all(FamilyReport::is_good);
    let text = if args.json { json(&folder, &reports) } else { text(&reports) };
    Ok((text, u8::from(!good)))
}

/// Prints one line per family, and each probe that differs from its recording.
fn text(reports: &[FamilyReport]) -> String {
    let mut text = String::new();
    let mut totals = Counts::default();
    for report in reports {
        let counts = Counts::of(report);
        let device = report.device.as_deref().unwrap_or("not recorded");
        let _ = writeln!(text, "{}: {counts} ({device})", report.family);
        for probe in &report.probes {
            details(&mut text, probe);
        }
        for name in &report.unknown {
            let _ = writeln!(text, "  {name}: recorded, and no such probe");
        }
        totals.add(&counts);
    }
    let _ = write!(text, "{totals}");
    text
}

fn details(text: &mut String, probe: &ProbeReport) {
    let _ = match &probe.outcome {
        Outcome::Equal => Ok(()),
        Outcome::Close { inexact, worst_ulp } => writeln!(
            text,
            "  {}: within tolerance: {inexact} of {} differ, by at most {worst_ulp:.1} ulp",
            probe.name, probe.elements
        ),
        Outcome::Different { count, first } => {
            let _ = writeln!(text, "  {}: {count} of {} differ", probe.name, probe.elements);
            for difference in first {
                let inputs: Vec<String> =
                    difference.inputs.iter().map(|input| format!("{input:#x}")).collect();
                let _ = writeln!(
                    text,
                    "    [{}] inputs ({}): recorded {:#x}, got {:#x}",
                    difference.index,
                    inputs.join(", "),
                    difference.expected,
                    difference.actual
                );
            }
            Ok(())
        }
        Outcome::NotRecorded => writeln!(text, "  {}: not recorded", probe.name),
        Outcome::Stale(stale) => writeln!(text, "  {}: {stale}", probe.name),
        Outcome::Failed(failure) => writeln!(text, "  {}: {failure}", probe.name),
    };
}

/// Probes by outcome.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    equal: usize,
    close: usize,
    different: usize,
    not_recorded: usize,
    stale: usize,
    failed: usize,
}

impl Counts {
    fn of(report: &FamilyReport) -> Self {
        let mut counts = Self::default();
        for probe in &report.probes {
            *match &probe.outcome {
                Outcome::Equal => &mut counts.equal,
                Outcome::Close { .. } => &mut counts.close,
                Outcome::Different { .. } => &mut counts.different,
                Outcome::NotRecorded => &mut counts.not_recorded,
                Outcome::Stale(_) => &mut counts.stale,
                Outcome::Failed(_) => &mut counts.failed,
            } += 1;
        }
        counts
    }

    fn add(&mut self, other: &Self) {
        self.equal += other.equal;
        self.close += other.close;
        self.different += other.different;
        self.not_recorded += other.not_recorded;
        self.stale += other.stale;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} equal, {} within tolerance, {} different, {} failed, {} stale, {} not recorded",
            self.equal, self.close, self.different, self.failed, self.stale, self.not_recorded
        )
    }
}

fn json(folder: &Path, reports: &[FamilyReport]) -> String {
    let probe = |probe: &ProbeReport| -> Value {
        let (status, more) = match &probe.outcome {
            Outcome::Equal => ("equal", json!({})),
            Outcome::Close { inexact, worst_ulp } => {
                ("within tolerance", json!({ "inexact": inexact, "worst_ulp": worst_ulp }))
            }
            Outcome::Different { count, first } => {
                let first: Vec<Value> = first
                    .iter()
                    .map(|difference| {
                        json!({
                            "index": difference.index,
                            "inputs": difference.inputs,
                            "expected": difference.expected,
                            "actual": difference.actual,
                        })
                    })
                    .collect();
                ("different", json!({ "count": count, "first": first }))
            }
            Outcome::NotRecorded => ("not recorded", json!({})),
            Outcome::Stale(stale) => ("stale", json!({ "error": stale.to_string() })),
            Outcome::Failed(failure) => ("failed", json!({ "error": failure.to_string() })),
        };
        json!({
            "name": probe.name,
            "elements": probe.elements,
            "status": status,
            "details": more,
        })
    };
    let families: Vec<Value> = reports
        .iter()
        .map(|report| {
            json!({
                "family": report.family.name(),
                "device": report.device,
                "good": report.is_good(),
                "unknown": report.unknown,
                "probes": report.probes.iter().map(probe).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "status": if reports.iter().all(FamilyReport::is_good) { "done" } else { "different" },
        "recordings": folder.display().to_string(),
        "families": families,
    })
    .to_string()
}

fn write_modules(folder: &Path) -> Result<Printed, ConformanceError> {
    let mut text = String::new();
    std::fs::create_dir_all(folder)
        .map_err(|source| ConformanceError::Write { path: folder.to_owned(), source })?;
    for &family in Family::ALL {
        let probes = probes(family);
        let module: String = std::iter::once(Probe::HEAD)
            .chain(probes.iter().flat_map(|probe| [probe.kernel.as_str(), "\n"]))
            .collect();
        let path = folder.join(format!("{family}.ptx"));
        std::fs::write(&path, module)
            .map_err(|source| ConformanceError::Write { path: path.clone(), source })?;
        let _ = writeln!(text, "{} ({} kernels)", path.display(), probes.len());
    }
    Ok((text.trim_end().to_owned(), 0))
}
