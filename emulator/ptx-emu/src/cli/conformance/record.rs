//! `ptx-emu conformance record`: runs every probe on a device and writes one file per family.
//!
//! Probes run in separate processes, several at a time, so that a probe that faults or never
//! ends loses only its own output: its process is abandoned and replaced by another. The file
//! of a family is written as soon as its last probe is complete.

use super::worker::Answer;
use super::{ConformanceError, Printed, families};
use crate::cli::console;
use clap::Args;
use ptx_emu_conformance::{Family, Probe, RecordedProbe, Recording, RecordingError, probes};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// Family; may be repeated. By default all.
    #[arg(long, value_name = "NAME")]
    family: Vec<Family>,
    /// Folder for the recordings.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The driver's number of the device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Seconds that a probe may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    limit: u64,
    /// Program that runs probes, instead of this one.
    #[arg(long, value_name = "FILE", hide = true)]
    worker: Option<PathBuf>,
}

/// Seconds until a device is open.
const OPENING: Duration = Duration::from_secs(60);
/// The time for which an ended process is waited for.
const ENDING: Duration = Duration::from_secs(2);

/// An answer and the bytes after it.
type Frame = (Answer, Vec<u8>);

/// A process that runs probes.
struct Worker {
    child: Child,
    requests: ChildStdin,
    frames: Receiver<Frame>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also one that the driver does not let go of must not hold us up.
        let _ = self.child.kill();
        let mut waited = Duration::ZERO;
        while waited < ENDING && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
            waited += Duration::from_millis(20);
        }
    }
}

/// Reads answers until there are none.
fn listen(mut from: impl BufRead, to: &Sender<Frame>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer: Answer = serde_json::from_str(&line)?;
        let mut bytes = Vec::new();
        if let Answer::Output { bytes: count } = answer {
            bytes.resize(count, 0);
            from.read_exact(&mut bytes)?;
        }
        if to.send((answer, bytes)).is_err() {
            return Ok(());
        }
    }
}

impl Worker {
    /// Starts one and waits until its device is open.
    fn start(args: &RecordArgs) -> Result<(Self, Device), ConformanceError> {
        let device = args.device;
        let program = match &args.worker {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(ConformanceError::Start)?,
        };
        let mut child = Command::new(program)
            .args(["conformance", "worker", "--device", &device.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(ConformanceError::Start)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let Some((requests, answers)) = pipes else {
            return Err(ConformanceError::Start(io::ErrorKind::BrokenPipe.into()));
        };
        let (sender, frames) = channel();
        std::thread::spawn(move || listen(BufReader::new(answers), &sender));
        let worker = Self { child, requests, frames };
        let failed = |reason| ConformanceError::Device { ordinal: device, reason };
        match worker.next(OPENING) {
            Ok((Answer::Ready { name, arch, driver }, _)) if arch == "sm_90a" => {
                Ok((worker, Device { name, arch, driver }))
            }
            Ok((Answer::Ready { name, arch, .. }, _)) => {
                Err(ConformanceError::Architecture { ordinal: device, name, actual: arch })
            }
            Ok((Answer::NoDevice { reason }, _)) => Err(failed(reason)),
            Ok((answer, _)) => Err(failed(format!("answered {answer:?} before it was ready"))),
            Err(reason) => Err(failed(reason)),
        }
    }

    fn next(&self, limit: Duration) -> Result<Frame, String> {
        self.frames.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {} s", limit.as_secs()),
            RecvTimeoutError::Disconnected => "the process ended without an answer".to_owned(),
        })
    }

    /// Sends the worker one probe. If the returned flag is false, the worker is lost and must be
    /// restarted. With an error in the second place it is of no more use.
    fn run(&mut self, family: Family, index: usize, limit: Duration) -> (Ran, bool) {
        let asked =
            writeln!(self.requests, "{family} {index}").and_then(|()| self.requests.flush());
        if let Err(error) = asked {
            return (Err(error.to_string()), false);
        }
        match self.next(limit) {
            Ok((Answer::Output { .. }, output)) => (Ok(output), true),
            Ok((Answer::Refused { reason }, _)) => (Err(reason), true),
            Ok((Answer::Fault { reason }, _)) => (Err(reason), false),
            Ok((answer, _)) => (Err(format!("answered {answer:?}")), false),
            Err(reason) => (Err(reason), false),
        }
    }
}

/// The names of a device.
#[derive(Debug, Clone)]
struct Device {
    name: String,
    arch: String,
    driver: String,
}

/// The output of a probe, or why there is none.
type Ran = Result<Vec<u8>, String>;

/// A family on its way.
struct Progress {
    family: Family,
    probes: Vec<Probe>,
    outputs: Vec<Option<Ran>>,
    missing: usize,
}

/// The open work, and the outcome of the rest.
struct Work {
    families: Vec<Progress>,
    /// Next family and probe.
    next: (usize, usize),
    report: String,
    left_out: usize,
    failure: Option<RecordingError>,
}

impl Work {
    fn new(asked: &[Family]) -> Self {
        let progress = |&family: &Family| {
            let probes = probes(family);
            let (outputs, missing) = (vec![None; probes.len()], probes.len());
            Progress { family, probes, outputs, missing }
        };
        let families = families(asked).iter().map(progress).collect();
        Self { families, next: (0, 0), report: String::new(), left_out: 0, failure: None }
    }

    /// The next probe: place of its family, family, index.
    fn take(&mut self) -> Option<(usize, Family, usize)> {
        loop {
            let (place, index) = self.next;
            let progress = self.families.get(place)?;
            if index < progress.probes.len() {
                self.next.1 += 1;
                return Some((place, progress.family, index));
            }
            self.next = (place + 1, 0);
        }
    }

    /// Notes an output; writes the family's file with the last one.
    fn done(&mut self, (place, index): (usize, usize), ran: Ran, device: &Device, out: &Path) {
        let progress = &mut self.families[place];
        progress.outputs[index] = Some(ran);
        progress.missing -= 1;
        if progress.missing > 0 {
            return;
        }
        let family = progress.family;
        let mut recording = Recording {
            family,
            device: device.name.clone(),
            arch: device.arch.clone(),
            driver: device.driver.clone(),
            probes: Vec::new(),
        };
        for (probe, ran) in progress.probes.iter().zip(progress.outputs.drain(..)) {
            match ran {
                Some(Ok(output)) => recording.probes.push(RecordedProbe {
                    name: probe.name.clone(),
                    checksum: probe.checksum(),
                    output,
                }),
                Some(Err(reason)) => {
                    self.left_out += 1;
                    let _ = writeln!(self.report, "{family}: {} left out: {reason}", probe.name);
                }
                None => {}
            }
        }
        match recording.write(out) {
            Ok(path) => {
                let bytes: usize = recording.probes.iter().map(|probe| probe.output.len()).sum();
                let count = recording.probes.len();
                let path = path.display();
                let _ = writeln!(self.report, "{path}: {count} probes, {bytes} bytes of outputs");
                let all = progress.probes.len();
                console::complain(format_args!("{family}: {count} of {all} probes recorded"));
            }
            Err(error) => self.failure = Some(error),
        }
    }
}

/// A lock that a panicking thread leaves usable: what it guards is always whole.
fn lock(work: &Mutex<Work>) -> std::sync::MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs probes until there are none left, or no worker starts any more.
fn drain(work: &Mutex<Work>, device: &Device, args: &RecordArgs, first: Option<Worker>) {
    let mut worker = first;
    loop {
        let Some((place, family, index)) = lock(work).take() else { return };
        let mut started = Ok(());
        if worker.is_none() {
            started = Worker::start(args).map(|(fresh, _)| worker = Some(fresh));
        }
        let (ran, usable) = match (&mut worker, started) {
            (Some(worker), Ok(())) => worker.run(family, index, Duration::from_secs(args.limit)),
            (_, Err(error)) => (Err(error.to_string()), false),
            (None, Ok(())) => (Err("no process".to_owned()), false),
        };
        if !usable {
            worker = None;
        }
        lock(work).done((place, index), ran, device, &args.out);
    }
}

/// Records; a probe without an output is named and left out, and the exit code is
/// then 1.
pub(super) fn record(args: &RecordArgs) -> Result<Printed, ConformanceError> {
    let (first, device) = Worker::start(args)?;
    let work = Mutex::new(Work::new(&args.family));
    std::thread::scope(|scope| {
        let (work, device) = (&work, &device);
        for _ in 1..args.jobs {
            scope.spawn(move || drain(work, device, args, None));
        }
        drain(work, device, args, Some(first));
    });
    let work = work.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(error) = work.failure {
        return Err(error.into());
    }
    let mut text = work.report;
    let _ = write!(text, "recorded on {} with {} left out", device.name, work.left_out);
    Ok((text, u8::from(work.left_out > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_their_bytes_are_told_apart() {
        let text = b"{\"Ready\":{\"name\":\"n\",\"arch\":\"a\",\"driver\":\"d\"}}\n\
                     {\"Output\":{\"bytes\":3}}\n\n\n1{\"Fault\":{\"reason\":\"r\"}}\n";
        let (sender, frames) = channel();
        listen(&text[..], &sender).expect("whole answers");
        drop(sender);
        let frames: Vec<Frame> = frames.iter().collect();
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[1], (Answer::Output { bytes: 3 }, b"\n\n1".to_vec()));
        assert_eq!(frames[2].0, Answer::Fault { reason: "r".to_owned() });
    }

    #[test]
    fn every_probe_is_taken_once_and_a_family_is_written_when_whole() {
        let folder = std::env::temp_dir().join(format!("ptx-emu-record-{}", std::process::id()));
        let device = Device { name: "d".into(), arch: "sm_90a".into(), driver: "r".into() };
        let mut work = Work::new(&[Family::Narrow, Family::Bits]);
        let mut taken = Vec::new();
        while let Some((place, family, index)) = work.take() {
            taken.push((family, index));
            let size = work.families[place].probes[index].output.len();
            let ran = if index == 0 { Err("broken".to_owned()) } else { Ok(vec![0; size]) };
            let path = Recording::path(&folder, family);
            assert!(!path.exists(), "{family} {index}");
            work.done((place, index), ran, &device, &folder);
        }
        let counts = [Family::Narrow, Family::Bits].map(|family| probes(family).len());
        assert_eq!(taken.len(), counts[0] + counts[1]);
        assert_eq!((work.left_out, work.failure.is_none()), (2, true));
        let read = Recording::read(&folder, Family::Bits).expect("whole").expect("there");
        assert_eq!(read.probes.len(), counts[1] - 1);
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
