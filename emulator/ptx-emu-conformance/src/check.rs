//! Runs probes on the emulator and compares with recordings.

use super::compare::{Comparison, compare};
use super::probe::{Family, Probe, probes};
use super::recording::{RecordedProbe, Recording};
use ptx_emu_core::tensor_map::TensorMapError;
use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Launch, LaunchError, LoadError, MemoryError, Model, Module, Schedule,
};

/// Warp instructions that a probe may run; they all need far less.
const LIMIT: u64 = 10_000_000;

/// A probe that the emulator cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EmulatorFailure {
    /// The module is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The launch is refused or stopped.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A buffer does not fit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A tensor map breaks the driver's rules.
    #[error(transparent)]
    Map(#[from] TensorMapError),
}

/// Runs a probe on the emulated H200: the output buffer afterwards.
///
/// # Errors
/// The emulator's error.
pub fn emulate(probe: &Probe, schedule: Schedule) -> Result<Vec<u8>, EmulatorFailure> {
    let module = Module::load(&probe.text(), &Gpu::h200())?;
    let mut memory = GlobalMemory::new();
    let mut addresses = Vec::new();
    for (index, input) in probe.inputs.iter().enumerate() {
        addresses.push(memory.alloc_from(&format!("input {index}"), &input.bytes)?);
    }
    let output = memory.alloc_from("output", &probe.output)?;
    addresses.push(output);
    let params = probe.params(&addresses)?;
    module.launch(
        &mut memory,
        &Launch {
            entry: &probe.entry,
            grid: probe.grid,
            block: probe.block,
            cluster: probe.cluster,
            dynamic_shared: probe.dynamic_shared,
            params: &params,
            schedule,
            threads: Some(1),
            instruction_limit: Some(LIMIT),
            checks: Checks::new(match probe.family {
                Family::Hardware => Model::Hardware,
                _ => Model::Ptx,
            }),
        },
    )?;
    Ok(memory.read(output, probe.output.len() as u64)?)
}

/// An element of an output that is not what was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Element of the output, from 0.
    pub index: usize,
    /// Inputs of the thread that wrote it, where inputs are values per thread.
    pub inputs: Vec<u64>,
    /// Recorded bits.
    pub expected: u64,
    /// The emulator's bits.
    pub actual: u64,
}

/// A recording of another version of a probe: its text, launch or inputs have changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stale recording: {field}: required {required}, actual {actual}")]
pub struct StaleRecording {
    /// The field that does not fit.
    pub field: &'static str,
    /// The probe's value.
    pub required: String,
    /// The recording's value.
    pub actual: String,
}

impl StaleRecording {
    /// The first thing in which `recorded` is of another probe than `probe`.
    fn find(probe: &Probe, recorded: &RecordedProbe) -> Option<Self> {
        let [required, actual] = [probe.checksum(), recorded.checksum];
        if required != actual {
            let [required, actual] = [required, actual].map(|sum| format!("{sum:016x}"));
            return Some(Self { field: "checksum of text, launch and inputs", required, actual });
        }
        let [required, actual] = [&probe.output, &recorded.output].map(Vec::len);
        let lengths = [required, actual].map(|length| format!("{length} bytes"));
        let [required_text, actual_text] = lengths;
        (required != actual).then_some(Self {
            field: "length of the output",
            required: required_text,
            actual: actual_text,
        })
    }
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The same bits everywhere.
    Equal,
    /// Within the stated tolerance.
    Close {
        /// Elements whose bits differ.
        inexact: usize,
        /// Largest distance in units in the last place.
        worst_ulp: f64,
    },
    /// Some elements differ more than they may.
    Different {
        /// The number of them.
        count: usize,
        /// The first of them.
        first: Vec<Difference>,
    },
    /// There is no recording of it yet.
    NotRecorded,
    /// The recording is of another version of the probe and says nothing of this one.
    Stale(StaleRecording),
    /// The emulator could not run it.
    Failed(EmulatorFailure),
}

impl Outcome {
    /// Whether nothing speaks against the emulator: it did what the recording says, or
    /// there is none.
    #[must_use]
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Equal | Self::Close { .. } | Self::NotRecorded)
    }
}

/// A probe and how it fared.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    /// [`Probe::name`].
    pub name: String,
    /// Elements of its output.
    pub elements: usize,
    /// The outcome.
    pub outcome: Outcome,
}

/// A family and how its probes fared.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilyReport {
    /// Family.
    pub family: Family,
    /// Device that it was recorded on, if it was.
    pub device: Option<String>,
    /// All its probes.
    pub probes: Vec<ProbeReport>,
    /// Recorded probes that do not exist any more.
    pub unknown: Vec<String>,
}

impl FamilyReport {
    /// Whether every recording is of a probe that exists and came out right.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.unknown.is_empty() && self.probes.iter().all(|probe| probe.outcome.is_good())
    }

    /// Probes without a recording, which nothing is known of.
    pub fn not_recorded(&self) -> impl Iterator<Item = &ProbeReport> {
        self.probes.iter().filter(|probe| probe.outcome == Outcome::NotRecorded)
    }
}

/// Compares the emulator with the recording of one probe.
#[must_use]
pub fn check_probe(probe: &Probe, recorded: Option<&RecordedProbe>, most: usize) -> Outcome {
    let Some(recorded) = recorded else { return Outcome::NotRecorded };
    if let Some(stale) = StaleRecording::find(probe, recorded) {
        return Outcome::Stale(stale);
    }
    let actual = match emulate(probe, Schedule::Eager) {
        Ok(actual) => actual,
        Err(failure) => return Outcome::Failed(failure),
    };
    let compared = compare(probe.comparison, probe.element, &recorded.output, &actual);
    if !compared.mismatches.is_empty() {
        let per_thread = probe.output.len() / probe.threads().max(1);
        let thread = |index: usize| {
            (index * probe.element.bytes()).checked_div(per_thread).unwrap_or(usize::MAX)
        };
        let first = compared.mismatches.iter().take(most).map(|mismatch| Difference {
            index: mismatch.index,
            inputs: probe.inputs_of(thread(mismatch.index)),
            expected: mismatch.expected,
            actual: mismatch.actual,
        });
        return Outcome::Different { count: compared.mismatches.len(), first: first.collect() };
    }
    match (probe.comparison, compared.inexact) {
        (Comparison::Exact, _) | (_, 0) => Outcome::Equal,
        (_, inexact) => Outcome::Close { inexact, worst_ulp: compared.worst_ulp },
    }
}

/// Compares the emulator with a family's recording, which may not exist. At most
/// `most` differences a probe are kept.
#[must_use]
pub fn check(family: Family, recording: Option<&Recording>, most: usize) -> FamilyReport {
    let probes = probes(family);
    let reports = probes.iter().map(|probe| ProbeReport {
        name: probe.name.clone(),
        elements: probe.output.len() / probe.element.bytes(),
        outcome: check_probe(probe, recording.and_then(|r| r.of(probe)), most),
    });
    let known = |name: &String| probes.iter().any(|probe| probe.name == *name);
    let recorded = recording.iter().flat_map(|recording| &recording.probes);
    FamilyReport {
        family,
        device: recording.map(|recording| recording.device.clone()),
        unknown: recorded.map(|r| r.name.clone()).filter(|name| !known(name)).collect(),
        probes: reports.collect(),
    }
}
