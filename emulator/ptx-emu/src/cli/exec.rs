//! `ptx-emu exec`: a CUDA program on the emulator.
//!
//! The program finds the stand-in library (package `ptx-emu-cuda`) instead of the driver's and
//! the runtime's: a folder with their names comes first on `LD_LIBRARY_PATH`. The stand-in is told
//! what to do in `PTX_EMU_EXEC`, and tells what came of launches in a file of that folder.

mod explore;

use super::checks::{self, ChecksArgs};
use super::program::{self, ProgramError, Streams};
use super::run::MachineArgs;
use super::sarif::SarifArgs;
use super::{console, stub};
use clap::Args;
use ptx_emu::Schedule;
use ptx_emu::sarif::{Fault, Lines, Log};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The stand-in library.
const LIBRARY: &str = "libptx_emu_cuda.so";
/// The runtime libraries that it stands in for.
const RUNTIMES: [&str; 1] = ["libcudart.so.13"];

/// Runs a CUDA program on the emulator: no GPU, no driver.
///
/// The program has its kernels as PTX and the CUDA runtime as a shared library:
/// nvcc -cudart shared -gencode arch=compute_100a,code=compute_100a. A launch with a denied
/// finding makes the program's later calls fail. The exit code is 1 if there was one, 2 if a
/// launch did not run and the program did not mind, else the program's; with --explore that of the
/// first schedule that goes wrong, and 1 if that one only prints something else.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Interleaving of warps and completion of asynchronous operations.
    #[arg(long, value_name = "eager|lazy|random:SEED", default_value = "eager")]
    schedule: Schedule,
    /// Run the program under eager, lazy and N seeds, each time with an empty standard input; stop at
    /// the first schedule under which a finding is denied, a launch does not run, or the program ends
    /// with an error or prints another standard output than under eager.
    #[arg(long, value_name = "N", conflicts_with_all = ["schedule", "capture"])]
    explore: Option<u64>,
    /// Standard output may differ between schedules.
    #[arg(long, requires = "explore")]
    allow_different: bool,
    #[command(flatten)]
    checks: ChecksArgs,
    /// The time between two events: not a number, zero, or the lower bound that follows from what the
    /// launches between them counted.
    #[arg(long, value_name = "nan|zero|cycles", value_enum, default_value = "nan")]
    event_times: EventTimes,
    /// Write each launch as a bundle below this folder, for `ptx-emu replay`.
    #[arg(long, value_name = "DIR")]
    capture: Option<PathBuf>,
    #[command(flatten)]
    sarif: SarifArgs,
    /// The library that stands in for CUDA's; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    stand_in: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The time between two events.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum EventTimes {
    Nan,
    Zero,
    Cycles,
}

impl EventTimes {
    const fn word(self) -> &'static str {
        match self {
            Self::Nan => "nan",
            Self::Zero => "zero",
            Self::Cycles => "cycles",
        }
    }
}

/// The reports of the stand-in.
#[derive(Debug, Default, PartialEq)]
struct Told {
    launches: usize,
    refused: usize,
    /// Launches that did not run for another reason, and of which the program may not know.
    lost: usize,
    denied: usize,
    warned: usize,
    findings: Vec<Value>,
}

impl Told {
    fn parse(text: &str) -> Self {
        let count = |word: &str| text.lines().filter(|line| *line == word).count();
        let (asked, launches) = (count("asked"), count("launch"));
        let ended_before = asked.saturating_sub(launches);
        let findings = text.lines().filter_map(|line| line.strip_prefix("finding "));
        Self {
            launches,
            refused: count("refused"),
            lost: count("lost").saturating_sub(count("seen")) + ended_before,
            denied: count("denied"),
            warned: count("warned"),
            findings: findings.filter_map(|json| serde_json::from_str(json).ok()).collect(),
        }
    }

    /// The counts in words.
    fn summary(&self) -> String {
        let Self { launches, refused, denied, warned, lost: _, findings: _ } = self;
        format!(
            "{launches} launches emulated, {refused} not modelled; findings: {denied} errors, {warned} warnings"
        )
    }
}

/// A run of the program.
struct Ran {
    status: ExitStatus,
    told: Told,
    /// Standard output and standard error, if they were kept.
    printed: [Vec<u8>; 2],
}

impl Ran {
    /// Adds to a log what was found, and faults that no finding is about.
    fn add(&self, log: &mut Log, program: &Path, replay: Option<&str>) {
        for finding in &self.told.findings {
            log.finding(finding, Lines::Program(program), replay);
        }
        let again = replay.map_or_else(String::new, |replay| format!("\nReplay: {replay}"));
        let missing = self.told.refused + self.told.lost;
        if missing > 0 {
            log.fault(Fault::Launch, &format!("{missing} launches did not run{again}"), program);
        }
        let code = program::exit_code(self.status);
        if code != 0 && self.told.denied == 0 {
            log.fault(Fault::Program, &format!("the exit code is {code}{again}"), program);
        }
    }
}

/// Runs the program; the exit code.
pub(crate) fn run(args: &ExecArgs) -> u8 {
    let mut log = Log::new();
    let code = match args.explore {
        Some(seeds) => explore::run(args, seeds, &mut log),
        None => run_once(args, &mut log),
    };
    let code = code.unwrap_or_else(|error| {
        console::complain(&error);
        log.failed(&error.to_string());
        2
    });
    args.sarif.write(&log, code)
}

/// The program, as it was named.
fn named(args: &ExecArgs) -> &Path {
    args.program.first().map_or(Path::new(""), Path::new)
}

fn run_once(args: &ExecArgs, log: &mut Log) -> Result<u8, ProgramError> {
    let ran = execute(args, args.schedule, Streams::Shared)?;
    ran.add(log, named(args), None);
    let Ran { status, told, printed: _ } = ran;
    console::complain(told.summary());
    if told.lost > 0 {
        console::complain(format_args!(
            "{} launches did not run: the messages above say why, or the program ended before they \
             began",
            told.lost
        ));
    }
    if told.launches > 0 && told.denied == 0 {
        let tried = checks::Tried::Program(args.schedule);
        console::complain(checks::not_looked_for(tried, args.checks.model()));
    }
    Ok(exit_code(status, &told))
}

fn exit_code(status: ExitStatus, told: &Told) -> u8 {
    if told.denied > 0 {
        return 1;
    }
    match program::exit_code(status) {
        0 if told.refused > 0 || told.lost > 0 => 2,
        code => code,
    }
}

fn execute(args: &ExecArgs, schedule: Schedule, streams: Streams) -> Result<Ran, ProgramError> {
    let library = program::library(args.stand_in.as_deref(), LIBRARY, "ptx-emu-cuda")?;
    program::in_folder(|folder| in_folder(args, &library, folder, schedule, streams))
}

fn in_folder(
    args: &ExecArgs,
    library: &Path,
    folder: &Path,
    schedule: Schedule,
    streams: Streams,
) -> Result<Ran, ProgramError> {
    let failed = |source| ProgramError::Folder { path: folder.to_owned(), source };
    std::os::unix::fs::symlink(library, folder.join(stub::DRIVER)).map_err(failed)?;
    for runtime in RUNTIMES {
        std::fs::write(folder.join(runtime), stub::library(runtime, &[stub::DRIVER]))
            .map_err(failed)?;
    }
    let report = folder.join("report");
    let capture = match &args.capture {
        Some(capture) => Some(std::path::absolute(capture).map_err(failed)?),
        None => None,
    };
    let settings = json!({
        "gpu": args.machine.named().map(|gpu| gpu.name),
        "lax": args.machine.lax(),
        "schedule": schedule.to_string(),
        "model": args.checks.model().to_string(),
        "levels": args.checks.named(),
        "max_findings": args.checks.most(),
        "event_times": args.event_times.word(),
        "capture": capture,
        "report": report,
    });
    let variable = ("PTX_EMU_EXEC", settings.to_string());
    let status = program::run(&args.program, folder, variable, streams)?;
    let told = Told::parse(&std::fs::read_to_string(report).unwrap_or_default());
    let printed = match streams {
        Streams::Shared => [Vec::new(), Vec::new()],
        Streams::Kept => {
            ["stdout", "stderr"].map(|name| std::fs::read(folder.join(name)).unwrap_or_default())
        }
    };
    Ok(Ran { status, told, printed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn exit_codes_say_the_worst() {
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        let told = |text| Told::parse(text);
        assert_eq!(exit_code(ended(0), &told("launch\nwarned\n")), 0);
        assert_eq!(exit_code(ended(3), &told("launch\n")), 3);
        assert_eq!(exit_code(ended(3), &told("launch\ndenied\n")), 1);
        assert_eq!(exit_code(ended(0), &told("refused\n")), 2);
        assert_eq!(exit_code(ended(7), &told("refused\n")), 7);
        assert_eq!(exit_code(ended(0), &told("asked\nlaunch\nlost\n")), 2);
        assert_eq!(exit_code(ended(0), &told("lost\nseen\nasked\nlaunch\n")), 0);
        assert_eq!(exit_code(ended(0), &told("asked\nasked\nlaunch\n")), 2);
        assert_eq!(exit_code(ended(0), &told("asked\nasked\nlaunch\ndenied\n")), 1);
        assert_eq!(exit_code(ExitStatus::from_raw(11), &told("")), 139);
    }
}
