//! `nvfp4 selftest`: every operation and configuration on a device, one report.
//!
//! Steps run in a separate process (`worker`). If a kernel hangs or breaks the device, the step is
//! reported and a new process goes on with the next one.

mod report;
mod steps;
mod worker;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use nvfp4::error::Error;

use self::report::Report;
use self::worker::{DeviceSaid, Outcome, Said, StepReport};
use crate::common::{Target, exit, print};
use crate::progress::Steps;

/// Run every operation and configuration, and say what is right, wrong or slow on this machine.
///
/// First what an unknown GPU should meet first, then the emulator's conformance probes on the GPU, then
/// every kernel on exact and on ragged inputs, then times beside the machine's limits and cuBLAS. A step
/// that hangs or breaks the GPU is reported, and the next one runs in a new process. Results are one page
/// of text and, with --report, a JSON file.
#[derive(Clone, Debug, ClapArgs)]
pub struct Options {
    #[command(flatten)]
    pub target: Target,
    /// Write the whole report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Only the first, a middle and the last step of each stage.
    #[arg(long)]
    pub quick: bool,
    /// Seconds after which a step hangs.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub limit: u64,
    /// Run the steps from this number on, and write them as lines of JSON.
    #[arg(long, hide = true, value_name = "FIRST")]
    pub worker: Option<usize>,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(first) = options.worker {
        return worker::work(options, first);
    }
    let start = Instant::now();
    if let Some(path) = &options.report {
        // Found out before an hour of tests, not after.
        write(path, "")?;
    }
    let mut progress = None;
    let mut device = None;
    let mut reports: Vec<StepReport> = Vec::new();
    loop {
        let mut worker = Worker::start(options, reports.len())?;
        let (said, names) = worker.ready(options)?;
        let progress = progress.get_or_insert_with(|| Steps::new(names.len()));
        device.get_or_insert(said);
        while let Some((stage, name)) = names.get(reports.len()) {
            progress.step(format!("{stage}: {name}"));
            match worker.next(options) {
                Ok(report) => reports.push(report),
                Err(None) if worker.has_reported => break,
                Err(outcome) => {
                    let (outcome, detail) = match outcome {
                        Some(()) => (Outcome::Hung, format!("no end after {} s", options.limit)),
                        None => (Outcome::Crashed, worker.last_words()),
                    };
                    reports.push(StepReport::lost(stage, name, outcome, detail));
                    break;
                }
            }
        }
        worker.end();
        if reports.len() >= names.len() {
            break;
        }
    }
    drop(progress);
    let device = device.context("no device")?;
    let report = Report::new(device, reports, options.quick, start.elapsed());
    if let Some(path) = &options.report {
        write(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    print(&report, options.target.json)?;
    Ok(exit(report.passed()))
}

fn write(path: &PathBuf, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::Io {
        action: "write",
        path: path.clone(),
        source,
    })
}

/// A process that runs steps.
struct Worker {
    child: Child,
    said: Receiver<Said>,
    stderr: Receiver<String>,
    /// Whether it has reported a step.
    has_reported: bool,
}

impl Worker {
    fn start(options: &Options, first: usize) -> anyhow::Result<Self> {
        let Target { device, arch, schedule, kernels, json: _ } = &options.target;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["selftest", "--device", &device.to_string()]);
        command.args(["--schedule", &schedule.to_string(), "--worker", &first.to_string()]);
        command.args(arch.iter().flat_map(|arch| ["--arch", arch.name()]));
        command.args(kernels.iter().flat_map(|folder| ["--kernels".as_ref(), folder.as_os_str()]));
        command.args(options.quick.then_some("--quick"));
        // The choices are this program's: a table of measurements would change them.
        command.env("NVFP4_TUNE", "off");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting a process for the steps")?;
        let (lines, said) = channel();
        let stdout = child.stdout.take().context("the process has no output")?;
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(said) = serde_json::from_str(&line) else { continue };
                if lines.send(said).is_err() {
                    return;
                }
            }
        });
        let (words, stderr) = channel();
        let mut errors = child.stderr.take().context("the process has no messages")?;
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            let _ = words.send(String::from_utf8_lossy(&bytes).trim().to_owned());
        });
        Ok(Self { child, said, stderr, has_reported: false })
    }

    /// Waits until the device is open.
    fn ready(&mut self, options: &Options) -> anyhow::Result<(DeviceSaid, Vec<(String, String)>)> {
        match self.said.recv_timeout(Duration::from_secs(options.limit)) {
            Ok(Said::Ready { device, steps }) => Ok((device, steps)),
            Ok(Said::Done(_)) => bail!("a step without a device"),
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                bail!("the device does not open within {} s", options.limit)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let words = self.last_words();
                bail!("{}", words.strip_prefix("error: ").unwrap_or(&words))
            }
        }
    }

    /// The next step's report; the error is `Some` if it does not end, `None` if the process has ended.
    fn next(&mut self, options: &Options) -> Result<StepReport, Option<()>> {
        loop {
            match self.said.recv_timeout(Duration::from_secs(options.limit)) {
                Ok(Said::Done(report)) => {
                    self.has_reported = true;
                    return Ok(*report);
                }
                Ok(Said::Ready { .. }) => {}
                Err(RecvTimeoutError::Timeout) => return Err(Some(())),
                Err(RecvTimeoutError::Disconnected) => return Err(None),
            }
        }
    }

    /// Returns its exit status, and its text on standard error.
    fn last_words(&mut self) -> String {
        let status = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let words = self.stderr.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
        if words.is_empty() { status } else { words }
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}
