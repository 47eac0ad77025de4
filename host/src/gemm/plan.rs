//! Which kernel runs a GEMM, in how many CTAs, and why.

use std::fmt;

use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::blackwell::choose;
use fp4_formats::gemm::{Problem, ResultType};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType};
use serde::Serialize;

use super::check::problem;
use super::hopper::HopperChoice;
use super::{ActivationKind, Output, blackwell, hopper};
use crate::device::Machine;
use crate::error::{Error, Result};
use crate::quantize::device::Step;
use crate::shape::GemmShape;
use crate::tensor::Dims;
use crate::tune::{ResultKind, TuneProblem};

/// What results in NVFP4 are compared with.
pub(super) const FLOATS: ResultType = ResultType::Floats(FloatType::F16);

/// What a caller may fix instead of leaving it to the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GemmOverrides {
    /// Kernel by name.
    pub kernel: Option<String>,
    /// CTAs that share a tile, each with a part of K. On sm_90a they are a cluster; 1 is a CTA a
    /// tile, or fewer where tiles exceed the SMs; 0 divides all tiles' K evenly among all SMs.
    /// Kernels whose CTAs share activations take 0 and 1.
    pub splits: Option<u32>,
}

/// Who chose the kernel of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The comparator's model.
    Model,
    /// The caller, by overrides.
    Asked,
    /// A tuning table ([`crate::tune`]).
    Table {
        /// Tokens of the problem that was measured.
        m: usize,
    },
}

impl Source {
    /// The start of a plan's first reason; `model` is what the model's choice is called.
    pub(super) fn reason(self, model: &str) -> String {
        match self {
            Self::Model => model.into(),
            Self::Asked => "asked for".into(),
            Self::Table { m } => format!("the fastest of those measured with M = {m}"),
        }
    }
}

/// What a product copies of its operands, the launches before it aside: how often, from L2 or
/// from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// Times that each matrix of activations is read.
    pub activation_passes: u64,
    /// Times that the weights of a batch entry are read; where entries share weights, by each.
    pub weight_passes: u64,
    /// Bytes of all of it: whole stages, what is beyond the edges included.
    pub bytes: u64,
}

impl Reads {
    /// In words.
    pub(super) fn reason(&self) -> String {
        let times = |count: u64| if count == 1 { "once".into() } else { format!("{count} times") };
        let (activations, weights) = (times(self.activation_passes), times(self.weight_passes));
        let bytes = self.bytes;
        format!(
            "activations are read {activations}, weights {weights}: {bytes} bytes in whole stages"
        )
    }
}

/// How a GEMM will be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemmPlan {
    /// The operation, `gemm`.
    pub op: &'static str,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// Architecture of the kernel.
    pub arch: Arch,
    /// Launches before it, where activations are decoded.
    pub before: Vec<Step>,
    /// CTAs in x and y; y is the batch.
    pub grid: [u32; 2],
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Parts of a cluster that share a tile, each with a part of K.
    pub splits: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// Rows of weights and tokens of a tile.
    pub tile: [u32; 2],
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is copied of the operands.
    pub reads: Reads,
    /// Bytes of device memory that a launch needs besides operands and result.
    pub workspace_bytes: usize,
    /// f32 additions, one after the other, that lead to a result.
    pub additions: u32,
    /// Whether operands are rearranged before the launch.
    pub repack: &'static str,
    /// What a result in NVFP4 takes in place of one in f16; none for floats.
    pub result: Option<String>,
    /// Who chose it.
    pub source: Source,
    /// Why this kernel and this grid, a sentence each.
    pub why: Vec<String>,
    /// What all candidates are expected to cost, the best first; where overrides leave only some,
    /// those.
    pub candidates: Vec<Candidate>,
    #[serde(skip)]
    pub(super) chosen: Chosen,
}

/// What an architecture's launch needs of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Hopper(HopperChoice),
    Blackwell(choose::Candidate),
}

/// One candidate of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Kernel name.
    pub kernel: &'static str,
    /// CTAs that share a tile.
    pub splits: u32,
    /// CTAs of the launch.
    pub ctas: u64,
    /// Times that the machine is filled with them.
    pub waves: u64,
    /// Cycles of the comparator's model; for ranking, not a prediction.
    pub cycles: u64,
    /// What the model's main loop waits for.
    pub bound: &'static str,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, splits, ctas, waves, cycles, bound } = self;
        write!(f, "{cycles:>9} cycles: {kernel} x {splits}, {ctas} CTAs in {waves} waves, {bound}")
    }
}

impl GemmPlan {
    /// Who chose, what a result in NVFP4 takes, and the candidates, a line each.
    #[must_use]
    pub fn explain(&self) -> String {
        let Self { kernel, splits, .. } = self;
        let chosen = self.source.reason("the best by the model");
        let mut text = format!("chosen: {kernel} x {splits}, {chosen}\n");
        text.extend(self.result.iter().map(|result| format!("result: {result}\n")));
        for candidate in &self.candidates {
            text += &format!("{candidate}\n");
        }
        text
    }
}

impl fmt::Display for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { kernel, ctas, threads } in &self.before {
            write!(f, "{kernel}: {ctas} CTAs of {threads} threads, then ")?;
        }
        let ([x, y], [rows, tokens]) = (self.grid, self.tile);
        write!(
            f,
            "{} for {}: {x} x {y} CTAs of {} threads in clusters of {}, tiles of {rows} rows by \
             {tokens} tokens, {} stages, {} bytes of shared memory, {} of workspace, repacking: {}",
            self.kernel,
            self.arch,
            self.threads,
            self.cluster,
            self.stages,
            self.dynamic_shared,
            self.workspace_bytes,
            self.repack,
        )?;
        let reasons = self.why.iter().chain(&self.result);
        reasons.into_iter().try_for_each(|reason| write!(f, "\n  - {reason}"))
    }
}

/// Plans a GEMM with weights in `format` for a machine that runs kernels of `arch`, by the
/// comparator's model alone; [`plan_for`](super::plan_for) looks at measurements first.
///
/// ```
/// use fp4_formats::Arch;
/// use fp4_formats::gemm::hopper::Operand;
/// use nvfp4::device::Machine;
/// use nvfp4::gemm::{ActivationKind, GemmOverrides, plan};
/// use nvfp4::quantize::Format;
/// use nvfp4::shape::GemmShape;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let h200 = Machine { sms: 132, shared_per_sm: 228 << 10, l2_bytes: 50 << 20 };
/// let (shape, kind) = (GemmShape::of(128, 7168, 2048), ActivationKind::Halves(Operand::Bf16));
/// let plan = plan(shape, Format::Nvfp4, kind, Arch::Sm90a, h200, &GemmOverrides::default())?;
/// println!("{plan}\n{}", plan.explain());
/// assert!(plan.candidates.len() > 1 && plan.before.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Shape`] where no kernel takes the problem, or an override names an unknown or
/// unsuitable kernel or a number of parts that K does not have.
pub fn plan(
    shape: GemmShape,
    format: Format,
    kind: ActivationKind,
    arch: Arch,
    machine: Machine,
    overrides: &GemmOverrides,
) -> Result<GemmPlan> {
    let source = if *overrides == GemmOverrides::default() { Source::Model } else { Source::Asked };
    let output = FloatType::F16.into();
    let problem = TuneProblem { format, activations: kind, output, shape };
    plan_from(&problem, arch, machine, overrides, source)
}

/// What an architecture's plan is made for.
pub(super) struct Request<'a> {
    /// The sizes, checked.
    pub problem: Problem,
    /// Types, formats and sizes.
    pub asked: &'a TuneProblem,
    /// [`stored`] of it.
    pub stored: Option<String>,
    pub arch: Arch,
    pub machine: Machine,
    pub overrides: &'a GemmOverrides,
    pub source: Source,
}

impl Request<'_> {
    /// Checks that the kernel that is asked for, if one is, is one of `suitable`.
    ///
    /// # Errors
    /// [`Error::Shape`] with their names.
    pub fn check_kernel(&self, suitable: impl Iterator<Item = &'static str>) -> Result<()> {
        let Some(name) = &self.overrides.kernel else { return Ok(()) };
        let names: Vec<&str> = suitable.collect();
        if names.contains(&name.as_str()) {
            return Ok(());
        }
        Err(Error::shape("kernel", format!("one of {}", names.join(", ")), name))
    }

    /// Whether `kernel` is not ruled out by what is asked for.
    pub fn may_be(&self, kernel: &str) -> bool {
        self.overrides.kernel.as_ref().is_none_or(|name| name == kernel)
    }
}

/// [`plan`] for any result, where `source` is who made the overrides.
pub(super) fn plan_from(
    asked: &TuneProblem,
    arch: Arch,
    machine: Machine,
    overrides: &GemmOverrides,
    source: Source,
) -> Result<GemmPlan> {
    let problem = problem(asked.shape, asked.format)?;
    let stored = stored(&problem, asked.output)?;
    let request = Request { problem, asked, stored, arch, machine, overrides, source };
    match arch.tensor() {
        TensorFamily::Wgmma => hopper::plan(&request),
        TensorFamily::Tcgen05 => blackwell::plan(&request),
    }
}

/// What a result in NVFP4 takes of memory, in words; none for floats.
///
/// # Errors
/// [`Error::Shape`] for an N that is no multiple of 16, [`Error::Overflow`].
fn stored(problem: &Problem, output: ResultKind) -> Result<Option<String>> {
    let ResultKind::Nvfp4(layout) = output else { return Ok(None) };
    let dims = Dims::new(problem.l as usize, problem.m as usize, problem.n as usize)?;
    let bytes = |output: Output| Ok::<_, Error>(output.bytes(dims)?.iter().sum::<usize>());
    let blocks = bytes(Output::Nvfp4 { scale: 1.0, layout })?;
    let floats = bytes(FloatType::F16.into())?;
    Ok(Some(format!(
        "a result in nvfp4, which all configurations make: {blocks} bytes instead of {floats} in f16"
    )))
}

/// [`stored`], with the cycles in which a CTA stores its part of a tile, as blocks and as floats.
pub(super) fn with_work(stored: &str, [blocks, floats]: [u64; 2]) -> String {
    format!("{stored}; {blocks} cycles of the model to store a tile's, instead of {floats}")
}
