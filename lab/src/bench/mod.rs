//! One verified run of a shape, with times from a GPU or counters from the emulator.
//!
//! Inputs are random, the output is poisoned, and nothing is timed before it has been compared
//! with the f64 oracle. The emulator's lower bound is computed from a machine description; it is
//! not a measurement.

mod experts;
mod gemm;
mod gpu;
mod grouped;
mod host;
mod mixed;
mod mlp;
mod moe;
mod quantize;
mod rows;
mod timing;
mod tune;

use std::fmt;

use fp4_formats::ScaleLayout;
use ptx_emu_core::{Counters, LaunchReport, LowerBound};
use serde::Serialize;

pub use gemm::{FoldedWeights, GemmBench, GemmReport, GemmTiming, Head, Swept, gemm};
pub use gpu::{Protocol, Timing};
pub use grouped::grouped;
pub use host::{HostCost, HostTimes};
pub use mixed::{MixedReport, mixed};
pub use mlp::{MlpReport, MlpTiming, mlp};
pub use moe::{MoeReport, MoeTiming, StepTime, moe};
pub use nvfp4::gemm::ActivationInput;
pub use quantize::{CopyTiming, Direction, QuantizeBench, QuantizeBenchReport, quantize};
pub use rows::{RowsBench, RowsReport, RowsTiming, rows};
pub use timing::{Peer, Peers, ReadCeiling, SetTimes};
pub use tune::{TuneReport, TuneSummary, TuneTarget, fastest, tune};

use crate::generate::Generator;
use crate::oracle::{self, Verification};
use crate::shape::GemvShape;
use nvfp4::device::{Backend, Choice, Device, Kernels};
use nvfp4::error::{Result, require_memory};
use nvfp4::gemv::{GemvOptions, GemvPlan, GemvRun, Repacked, fastest_layout};

/// Options of a GEMV bench.
#[derive(Clone, Debug)]
pub struct GemvBench {
    /// The generator of the inputs.
    pub generator: Generator,
    /// Their seed.
    pub seed: u64,
    /// Layouts of the activations' and the weights' scales.
    pub layouts: [ScaleLayout; 2],
    /// Whether kernels read the weights' scales as they are stored. Otherwise they are put in the order of
    /// [`fastest_layout`] at load, which is not timed.
    pub as_stored: bool,
    /// alpha, output type, overrides.
    pub options: GemvOptions,
    /// The protocol of timing; only on a GPU.
    pub protocol: Protocol,
}

impl Default for GemvBench {
    fn default() -> Self {
        Self {
            generator: Generator::FullRange,
            seed: 1,
            layouts: [ScaleLayout::Linear; 2],
            as_stored: false,
            options: GemvOptions::default(),
            protocol: Protocol::default(),
        }
    }
}

/// The emulator's counts of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Emulated {
    /// The schedule: `eager`, `lazy` or `random:SEED`.
    pub schedule: String,
    /// Counters of the launch.
    pub counters: Counters,
    /// The least time that the GPU could take; not a measurement.
    pub lower_bound: LowerBound,
}

impl Emulated {
    /// The counts from the reports of one operation on `device`; `None` on a GPU, which does not
    /// count. If an operation has several launches (more than 65,535 batch entries), they are those
    /// of the first launch; the others are equal.
    #[must_use]
    pub fn of(device: &Device, reports: &[LaunchReport]) -> Option<Self> {
        let (Backend::Emulator(emulator), [report, ..]) = (device.backend(), reports) else {
            return None;
        };
        Some(Self {
            schedule: emulator.schedule.to_string(),
            lower_bound: report.counters.lower_bound(&emulator.gpu),
            counters: report.counters.clone(),
        })
    }
}

impl Emulated {
    /// The counts of each launch.
    #[must_use]
    pub fn each(device: &Device, reports: &[LaunchReport]) -> Vec<Self> {
        reports.chunks(1).filter_map(|report| Self::of(device, report)).collect()
    }
}

impl fmt::Display for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, counters, lower_bound } = self;
        writeln!(
            f,
            "  counted   {} warp instructions, {} lane instructions, {} distinct bytes read; \
             schedule {schedule}",
            counters.warp_instructions,
            counters.lane_instructions,
            counters.global_unique_bytes_read,
        )?;
        let levels = &counters.levels;
        writeln!(
            f,
            "  moved     shared memory {} read, {} written; L2 at most {} read, {} written (bytes)",
            levels.shared.read, levels.shared.written, levels.l2.read, levels.l2.written,
        )?;
        if counters.tensor.instructions != 0 {
            let tensor = &counters.tensor;
            writeln!(
                f,
                "  tensor    {} instructions; multiply-adds: {} f16, {} 8-bit, {} 4-bit",
                tensor.instructions,
                tensor.half,
                tensor.byte + tensor.integer,
                tensor.nibble,
            )?;
        }
        writeln!(
            f,
            "  bound     at least {:.2} us on {}, by {} (computed, not measured)",
            lower_bound.seconds * 1e6,
            lower_bound.gpu,
            lower_bound.by
        )
    }
}

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The operation.
    pub op: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// The device, and why it was chosen.
    pub device: Choice,
    /// The plan.
    pub plan: GemvPlan,
    /// The PTX file.
    pub kernels: String,
    /// The generator of the inputs.
    pub generator: String,
    /// Their seed.
    pub seed: u64,
    /// Layout of the activations' scales.
    pub a_scale_layout: &'static str,
    /// Layout in which the weights' scales are stored; the plan says whether that is the kernel's.
    pub b_scale_layout: &'static str,
    /// Element type of the result.
    pub output: &'static str,
    /// Whether every result is within its bound.
    pub verified: bool,
    /// Largest absolute error against the f64 oracle.
    pub max_error: f64,
    /// The whole comparison.
    pub verification: Verification,
    /// Bytes that must be read or written at least once.
    pub bytes: u64,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<Timing>,
    /// The cost of a launch on the host, if it was asked for.
    pub host: Option<HostCost>,
    /// Counters; only from the emulator.
    pub emulated: Option<Emulated>,
}

/// Runs a GEMV of `shape` on random inputs, verifies it, and on a GPU times it.
///
/// # Errors
/// Errors for bad sizes, and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an
/// error: it is reported, and nothing is timed.
pub fn gemv(kernels: &Kernels, shape: GemvShape, bench: &GemvBench) -> Result<Report> {
    let device = kernels.device();
    let bytes = shape.bytes(bench.options.output.bytes() as usize);
    // The emulator's memory is a second copy, with one more bit per byte.
    let copies = if matches!(device.backend(), Backend::Emulator(_)) { 3 } else { 1 };
    require_memory(&format!("running {shape}"), bytes.saturating_mul(copies))?;
    let (a, b) = bench.generator.gemv(shape, bench.layouts, bench.seed)?;
    let reference = oracle::gemv(&a, &b, bench.options.alpha)?;
    let (observed, reports) = kernels.observed();
    let (arch, machine) = (device.choice().arch, device.properties());
    let GemvOptions { output, overrides, .. } = &bench.options;
    let read = match bench.as_stored {
        true => b.layout(),
        false => fastest_layout(shape, *output, arch, machine, overrides),
    };
    let weights = Repacked::new(&b, read)?;
    let make =
        |kernels: &Kernels| GemvRun::of_weights(kernels, &a, &weights, bench.options.clone());
    let result = make(&observed)?.run()?;
    let reference = reference.with_additions(result.plan.additions);
    let verification = reference.verify(&result.values(), result.output);

    let mut times = None;
    let emulated = Emulated::of(device, &reports.take());
    if matches!(device.backend(), Backend::Cuda(_))
        && verification.passed()
        && bench.protocol.replays > 0
    {
        times = Some(gpu::time(kernels, shape, (&a, &b, &weights), bench, &reference)?);
    }
    let verified = verification.passed();
    let host = HostCost::measure(kernels, bench.protocol, verified, make, GemvRun::launch)?;
    Ok(Report {
        op: "gemv",
        shape: shape.to_string(),
        device: device.choice().clone(),
        plan: result.plan,
        kernels: kernels.folder().display().to_string(),
        generator: bench.generator.to_string(),
        seed: bench.seed,
        a_scale_layout: bench.layouts[0].name(),
        b_scale_layout: bench.layouts[1].name(),
        output: result.output.name(),
        verified,
        max_error: verification.max_abs_error,
        bytes,
        verification,
        times,
        host,
        emulated,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.shape)?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        writeln!(f, "  {}", self.verification.summary())?;
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
        }
        if let Some(host) = &self.host {
            write!(f, "{host}")?;
        }
        if let Some(emulated) = &self.emulated {
            write!(f, "{emulated}")?;
        }
        Ok(())
    }
}
