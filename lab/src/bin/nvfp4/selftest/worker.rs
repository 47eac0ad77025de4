//! The process that runs steps: what a kernel does to it, a fault or a hang, stays in it.
//!
//! It writes lines of JSON: [`Said::Ready`] once, and [`Said::Done`] after each step.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use nvfp4::buffer::DeviceBuffer;
use nvfp4::cuda::{CudaDevice, PtxBuffer, PtxLaunch, run_ptx};
use nvfp4::device::{Choice, Device, Kernels};
use nvfp4::error::{Error, ErrorKind, Result};
use nvfp4::gemm::{Activations, GemmOptions, GemmRun, HalfMatrix, Repacked};
use nvfp4::gemv::{GemvOptions, GemvRun};
use nvfp4::tensor::Dims;
use nvfp4::{Arch, BlockFormat, HalfType, Nvfp4, ScaleLayout};
use nvfp4_lab::bench::{self, HostTimes};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::shape::{GemmShape, GemvShape};
use ptx_emu_conformance::{Family, Outcome as Probed, Probe, RecordedProbe, check_probe, probes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Options;
use super::steps::{Check, Subject, steps};
use crate::common::open;
use crate::progress::Progress;

/// Bytes that are copied to the device and back.
const COPIED: usize = 64 << 20;
/// The number of a probe's differences that are reported.
const SHOWN: usize = 2;

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The result is right.
    Passed,
    /// The result is wrong, or its kernel stopped with an error.
    Failed,
    /// The library does not do this: the kernels take no such problem.
    Refused,
    /// The step did not end.
    Hung,
    /// Its process ended without a word.
    Crashed,
}

/// A step's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepReport {
    pub stage: String,
    pub name: String,
    pub outcome: Outcome,
    /// The reason why it did not pass, or another remark.
    pub detail: Option<String>,
    /// The kernel that was chosen or asked for.
    pub kernel: Option<String>,
    pub max_error: Option<f64>,
    /// Microseconds, the median; only where it was timed.
    pub microseconds: Option<f64>,
    /// Time of reading or copying as many bytes, divided by this one's.
    pub ratio_to_ceiling: Option<f64>,
    /// Time of cuBLAS, divided by this one's.
    pub ratio_to_peer: Option<f64>,
    /// The whole report of a timed step.
    pub report: Option<Value>,
    /// Seconds that the step took, on the host.
    pub seconds: f64,
}

/// A line of the worker's.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The device is open.
    Ready { device: DeviceSaid, steps: Vec<(String, String)> },
    /// A step has ended.
    Done(Box<StepReport>),
}

/// The device as the report has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceSaid {
    pub device: String,
    pub name: String,
    /// Major and minor number.
    pub compute_capability: (u32, u32),
    /// Target of the kernels.
    pub arch: String,
    /// The reason for that target.
    pub code: String,
    pub reason: String,
    pub driver: Option<String>,
    /// The place of the kernels.
    pub kernels: String,
}

impl DeviceSaid {
    fn of(kernels: &Kernels) -> Self {
        let device = kernels.device();
        let Choice { device: request, name, arch, code, reason } = device.choice().clone();
        let driver = device.gpu("asking").ok().and_then(|_| nvfp4::cuda::probe().ok());
        Self {
            device: request,
            name,
            compute_capability: device.compute_capability(),
            arch: arch.to_string(),
            code,
            reason,
            driver: driver.map(|driver| format!("CUDA {}", driver.version)),
            kernels: kernels.files().place().to_string(),
        }
    }
}

fn say(said: &Said) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Runs the steps from number `first` on, until one breaks the device.
pub fn work(options: &Options, first: usize) -> anyhow::Result<ExitCode> {
    let kernels = open(&options.target, None, &Progress::new())?;
    let on_gpu = kernels.device().gpu("asking").is_ok();
    let arch = kernels.device().choice().arch;
    let all = steps(arch, options.quick, on_gpu);
    let names = all.iter().map(|step| (step.stage.to_owned(), step.name.clone())).collect();
    say(&Said::Ready { device: DeviceSaid::of(&kernels), steps: names })?;
    for step in all.into_iter().skip(first) {
        let (report, broken) = run(&kernels, arch, step);
        say(&Said::Done(Box::new(report)))?;
        if broken {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a step; whether the device is broken afterwards.
fn run(kernels: &Kernels, arch: Arch, step: Check) -> (StepReport, bool) {
    let start = Instant::now();
    let Check { stage, name, subject } = step;
    let mut report = StepReport::new(stage, &name, Outcome::Passed);
    let mut broken = false;
    if let Err(error) = perform(kernels, arch, subject, &mut report) {
        broken = error.exit_code() == 1 && error.kind() != ErrorKind::Wrong;
        let refused = error.kind() == ErrorKind::InvalidArgument;
        report.outcome = if refused { Outcome::Refused } else { Outcome::Failed };
        report.detail = Some(error.to_string());
    }
    report.seconds = start.elapsed().as_secs_f64();
    (report, broken)
}

fn verdict(report: &mut StepReport, verified: bool, why: impl FnOnce() -> String) {
    if !verified {
        report.outcome = Outcome::Failed;
        report.detail = Some(why());
    }
}

fn micros(seconds: f64) -> Option<f64> {
    Some(seconds * 1e6)
}

fn perform(kernels: &Kernels, arch: Arch, subject: Subject, report: &mut StepReport) -> Result<()> {
    let (timed, json): (bool, _) = match subject {
        Subject::Copies => return copies(kernels.device(), report),
        Subject::Probes(family) => {
            return probe_all(kernels.device().gpu("probes")?, arch, family, report);
        }
        Subject::LaunchCost(gemm, gemv) => return launch_cost(kernels, gemm, gemv, report),
        Subject::Gemv(shape, bench) => {
            let result = bench::gemv(kernels, shape, &bench)?;
            report.kernel = Some(result.plan.kernel.into());
            report.max_error = Some(result.max_error);
            verdict(report, result.verified, || result.verification.summary().to_string());
            if let Some(times) = &result.times {
                report.microseconds = micros(times.measured.times.median);
                report.ratio_to_ceiling = times.read.ratio_to_ceiling;
                report.ratio_to_peer = times.peers.cublas.as_ref().map(|peer| peer.ratio);
            }
            (result.times.is_some(), serde_json::to_value(&result))
        }
        Subject::Gemm(shape, bench) => of_gemm(bench::gemm(kernels, shape, &bench)?, report),
        Subject::Grouped(shape, bench) => of_gemm(bench::grouped(kernels, &shape, &bench)?, report),
        Subject::Mixed(shapes, kernel, bench) => {
            return of_mixed(&bench::mixed(kernels, &shapes, &bench)?, kernel, report);
        }
        Subject::Moe(shape, bench) => {
            let result = bench::moe(kernels, shape, &bench)?;
            let wrong = result.steps.iter().find(|step| !step.verified).map(|step| step.step);
            verdict(report, result.head.verified, || format!("step {wrong:?} is wrong"));
            report.microseconds =
                result.times.as_ref().and_then(|t| micros(t.measured.times.median));
            (result.times.is_some(), serde_json::to_value(&result))
        }
        Subject::Rows(shape, bench) => {
            let result = bench::rows(kernels, shape, &bench)?;
            report.kernel = result.plan.steps.last().map(|step| step.kernel.to_owned());
            verdict(report, result.verified, || result.difference.clone().unwrap_or_default());
            if let Some(times) = &result.times {
                report.microseconds = micros(times.copied.measured.times.median);
                report.ratio_to_ceiling = times.copied.ratio_to_copy;
            }
            (result.times.is_some(), serde_json::to_value(&result))
        }
        Subject::Quantize(shape, bench) => {
            let result = bench::quantize(kernels, shape, &bench)?;
            report.kernel = result.plan.steps.last().map(|step| step.kernel.to_owned());
            verdict(report, result.verified, || result.difference.clone().unwrap_or_default());
            if let Some(times) = &result.times {
                report.microseconds = micros(times.measured.times.median);
                report.ratio_to_ceiling = times.ratio_to_copy;
            }
            (result.times.is_some(), serde_json::to_value(&result))
        }
    };
    report.report = json.ok().filter(|_| timed);
    Ok(())
}

type Whole = (bool, serde_json::Result<Value>);

/// Products are right if each one is, and `kernel` ran all of them.
fn of_mixed(result: &bench::MixedReport, kernel: &str, report: &mut StepReport) -> Result<()> {
    let errors = result.verifications.iter().map(|found| found.max_abs_error);
    report.kernel = result.kernels.first().map(|kernel| (*kernel).into());
    report.max_error = errors.reduce(f64::max);
    let other = result.kernels.iter().find(|found| **found != kernel);
    let wrong = result.verifications.iter().find(|found| !found.passed());
    verdict(report, other.is_none() && wrong.is_none(), || match (other, wrong) {
        (Some(other), _) => format!("ran {other} and not {kernel}"),
        (None, found) => found.map(|found| found.summary().to_string()).unwrap_or_default(),
    });
    Ok(())
}

fn of_gemm(result: bench::GemmReport, report: &mut StepReport) -> Whole {
    report.kernel = Some(result.plan.kernel.into());
    report.max_error = Some(result.max_error);
    verdict(report, result.head.verified, || result.verification.summary().to_string());
    if let Some(times) = &result.times {
        report.microseconds = micros(times.measured.times.median);
        report.ratio_to_ceiling = times.read.ratio_to_ceiling;
        report.ratio_to_peer = times.peers.cublas.as_ref().map(|peer| peer.ratio);
        report.detail.clone_from(&times.peers.cublas_error);
    }
    (result.times.is_some(), serde_json::to_value(&result))
}

/// Bytes to the device and back.
fn copies(device: &Device, report: &mut StepReport) -> Result<()> {
    let mut rng = SplitMix64::new(1);
    let bytes: Vec<u8> = (0..COPIED / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let buffer = DeviceBuffer::upload(device, "copies", &bytes)?;
    let same = buffer.read()? == bytes;
    buffer.fill(0x5a)?;
    let filled = buffer.read()?.iter().all(|&byte| byte == 0x5a);
    verdict(report, same && filled, || format!("copied back: {same}, filled: {filled}"));
    Ok(())
}

/// The probes of a family on the GPU, each compared with the emulator.
fn probe_all(gpu: &CudaDevice, arch: Arch, family: Family, report: &mut StepReport) -> Result<()> {
    let (mut equal, mut close, mut refused, mut different) = (0, 0, Vec::new(), Vec::new());
    for probe in probes(family) {
        let output = match on_gpu(gpu, arch, &probe) {
            Ok(output) => output,
            // Instructions of another architecture.
            Err(error) if !error.kind().eq(&ErrorKind::Driver) || refuses(&error) => {
                refused.push(probe.name.clone());
                continue;
            }
            Err(error) => return Err(error),
        };
        let recorded =
            RecordedProbe { name: probe.name.clone(), checksum: probe.checksum(), output };
        match check_probe(&probe, Some(&recorded), SHOWN) {
            Probed::Equal => equal += 1,
            Probed::Close { .. } => close += 1,
            other @ (Probed::Different { .. }
            | Probed::NotRecorded
            | Probed::Stale(_)
            | Probed::Failed(_)) => different.push(format!("{}: {other:?}", probe.name)),
        }
    }
    let mut detail = format!("{equal} equal, {close} within tolerance");
    if !refused.is_empty() {
        detail += &format!(", {} not taken by the driver: {}", refused.len(), refused.join(", "));
    }
    report.detail = Some(detail.clone());
    verdict(report, different.is_empty(), || format!("{detail}; {}", different.join("; ")));
    Ok(())
}

fn refuses(error: &Error) -> bool {
    use nvfp4::cuda::CudaError;
    use nvfp4::device::DeviceError;
    matches!(
        error,
        Error::Device(DeviceError::Cuda(CudaError::Module { .. } | CudaError::BadLaunch { .. }))
    )
}

/// Runs a probe as code of the target whose kernels the GPU is given, in the target's version of PTX: a driver
/// that loads those kernels loads the probe, unless its instructions are of another target.
fn on_gpu(gpu: &CudaDevice, arch: Arch, probe: &Probe) -> Result<Vec<u8>> {
    let text = probe.text_for(arch.ptx_version(), arch);
    let launch = PtxLaunch {
        entry: &probe.entry,
        grid: probe.grid,
        block: probe.block,
        cluster: probe.cluster,
        dynamic_shared: probe.dynamic_shared,
        ..PtxLaunch::default()
    };
    let buffers: Vec<PtxBuffer<'_>> = probe.buffers().into_iter().map(Into::into).collect();
    let arguments = |addresses: &[u64]| probe.arguments(addresses).map_err(Error::from);
    // SAFETY: probes are the emulator's own kernels, and keep to their buffers: the emulator, which
    // checks every access, runs all of them in its tests.
    let mut after = unsafe { run_ptx(gpu, &text, &launch, &buffers, arguments)? };
    Ok(after.pop().unwrap_or_default())
}

/// Measures the cost of launches on the host.
fn launch_cost(
    kernels: &Kernels,
    gemm: GemmShape,
    gemv: GemvShape,
    report: &mut StepReport,
) -> Result<()> {
    let mut rng = SplitMix64::new(1);
    let linear = ScaleLayout::Linear;
    let mut matrix = |name, rows, columns| {
        let dims = Dims::new(1, rows, columns)?;
        Generator::FullRange.blocks::<Nvfp4>(name, dims, linear, &mut rng)
    };
    let x = HalfMatrix::round(
        "x",
        Dims::new(1, gemm.m, gemm.k)?,
        HalfType::Bf16,
        &vec![0.0; gemm.m * gemm.k],
    )?;
    let x = Activations::<Nvfp4>::Halves(&x);
    let weights = matrix("b", gemm.n, gemm.k)?;
    let weights = Repacked::for_device(kernels.device(), &weights, x.kind())?;
    let options = GemmOptions::new();
    let make = |kernels: &Kernels| GemmRun::new(kernels, &x, &weights, &options);
    let of_gemm = HostTimes::measure(kernels, make, GemmRun::launch)?;

    let (a, b) = (matrix("a", 1, gemv.k)?, matrix("b", gemv.m, gemv.k)?);
    let make = |kernels: &Kernels| GemvRun::new(kernels, &a, &b, GemvOptions::new());
    let of_gemv = HostTimes::measure(kernels, make, GemvRun::launch)?;
    report.detail = Some(format!("{}: GEMM {of_gemm}; GEMV {of_gemv}", Nvfp4::NAME));
    report.report = Some(serde_json::json!({ "gemm": of_gemm, "gemv": of_gemv }));
    Ok(())
}
