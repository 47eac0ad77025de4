//! The choice of a GEMM's kernel and number of CTAs, with reasons.

use std::fmt;
use std::sync::Arc;

use fp4_formats::gemm::{Adding, Problem, ResultType, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType};
use serde::Serialize;

use super::candidate::{Request, display};
use super::check::problem;
use super::families::family;
use super::family::{Kernel, LaunchShape};
use super::groups::GroupRequest;
use super::strides::Entries;
use super::{ActivationKind, Candidate, GemmOverrides, Output, Reads};
use crate::device::DeviceProperties;
use crate::error::{Error, Result};
use crate::quantize::device::PlannedKernel;
use crate::shape::GemmShape;
use crate::tensor::Dims;
use crate::tune::{ResultKind, TuneProblem};

/// The result type that results in NVFP4 are compared with.
pub(super) const FLOATS: ResultType = ResultType::Floats(FloatType::F16);

/// The source of a plan's kernel.
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

/// The plan of a GEMM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemmPlan {
    /// The operation: `gemm`, `dual` for a gated product, or either of them `grouped`.
    pub op: &'static str,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// Architecture of the kernel.
    pub arch: Arch,
    /// Launches before it, where activations are decoded.
    pub before: Vec<PlannedKernel>,
    /// CTAs in x and y; y is the batch.
    pub grid: [u32; 2],
    /// CTAs of a cluster.
    pub cluster: u32,
    /// The split of K among CTAs.
    #[serde(serialize_with = "display")]
    pub split: Split,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// Rows of weights and tokens of a tile.
    pub tile: [u32; 2],
    /// Stages of the pipeline.
    pub stages: u32,
    /// Copies of the operands.
    pub reads: Reads,
    /// Bytes of device memory that a launch needs besides operands and result.
    pub workspace_bytes: usize,
    /// f32 additions, one after the other, that lead to a result.
    pub additions: u32,
    /// Whether operands are rearranged before the launch.
    pub repack: &'static str,
    /// The cost of a result in NVFP4 over one in f16; none for floats.
    pub result: Option<String>,
    /// The source of the choice.
    pub source: Source,
    /// The reasons for this kernel and this grid, one sentence each.
    pub why: Vec<String>,
    /// The candidates with their expected cost, the best first; with overrides, only those that the
    /// overrides allow.
    pub candidates: Vec<Candidate>,
    /// N of the result: half the weights' rows where the product is gated.
    #[serde(skip)]
    pub(super) columns: u32,
    #[serde(skip)]
    pub(super) chosen: Chosen,
}

/// The kernel of a plan, with what its launch needs.
#[derive(Clone, Debug)]
pub(super) struct Chosen(pub Arc<dyn Kernel>);

/// The plan's other fields distinguish kernels that take the same problem.
impl PartialEq for Chosen {
    fn eq(&self, other: &Self) -> bool {
        self.0.problem() == other.0.problem()
    }
}

impl Eq for Chosen {}

impl GemmPlan {
    /// Batch, M and N of the result.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub(super) fn result_dims(&self) -> Result<Dims> {
        let &Problem { m, l, .. } = self.problem();
        Dims::new(l as usize, m as usize, self.columns as usize)
    }

    /// The sizes, checked; of a grouped product, those of its matrices.
    pub(super) fn problem(&self) -> &Problem {
        self.chosen.0.problem()
    }

    /// Explains the choice: its source, the cost of a result in NVFP4, and the candidates, one per
    /// line.
    #[must_use]
    pub fn explain(&self) -> String {
        let Self { kernel, split, .. } = self;
        let chosen = self.source.reason("the best by the model");
        let mut text = format!("chosen: {kernel}, split {split}, {chosen}\n");
        text.extend(self.result.iter().map(|result| format!("result: {result}\n")));
        for candidate in &self.candidates {
            text += &format!("{candidate}\n");
        }
        text
    }
}

impl fmt::Display for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedKernel { kernel, ctas, threads } in &self.before {
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
/// use fp4_formats::HalfType;
/// use nvfp4::device::ResidentClusters;
/// use nvfp4::device::DeviceProperties;
/// use nvfp4::gemm::{ActivationKind, GemmOverrides, plan};
/// use nvfp4::quantize::Format;
/// use nvfp4::shape::GemmShape;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let clusters = ResidentClusters::of_sms(132);
/// let h200 =
///     DeviceProperties { sms: 132, clusters, l2_bytes: 50 << 20, shared_per_block: 227 << 10 };
/// let (shape, kind) = (GemmShape::of(128, 7168, 2048), ActivationKind::Halves(HalfType::Bf16));
/// let plan = plan(shape, Format::Nvfp4, kind, Arch::Sm90a, h200, &GemmOverrides::default())?;
/// println!("{plan}\n{}", plan.explain());
/// assert!(plan.candidates.len() > 1 && plan.before.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Shape`] where no kernel takes the problem, or an override names an unknown or
/// unsuitable kernel or a split that K does not have.
pub fn plan(
    shape: GemmShape,
    format: Format,
    kind: ActivationKind,
    arch: Arch,
    machine: DeviceProperties,
    overrides: &GemmOverrides,
) -> Result<GemmPlan> {
    let source = if overrides.names_any() { Source::Asked } else { Source::Model };
    let output = FloatType::F16.into();
    let (gated, groups, adding) = (false, None, Adding::default());
    let problem = TuneProblem { format, activations: kind, output, gated, shape, groups, adding };
    plan_from(&problem, arch, machine, overrides, source)
}

/// [`plan`] for any result, where `source` is who made the overrides.
pub(super) fn plan_from(
    asked: &TuneProblem,
    arch: Arch,
    machine: DeviceProperties,
    overrides: &GemmOverrides,
    source: Source,
) -> Result<GemmPlan> {
    let problem = problem(asked.shape, asked.gated, asked.format)?;
    let request = Request { problem, asked, machine, overrides };
    let found = match GroupRequest::of(asked)? {
        None => family(arch).candidates(&request)?,
        Some(groups) => family(arch).grouped(&request, &groups)?,
    };
    finish(&request, arch, found, source)
}

/// The plan of a request: the first of `kernels`, which take it.
///
/// # Errors
/// The same as [`plan`].
pub(super) fn finish(
    request: &Request<'_>,
    arch: Arch,
    kernels: Vec<Arc<dyn Kernel>>,
    source: Source,
) -> Result<GemmPlan> {
    let &Request { problem, asked, overrides, .. } = request;
    let GemmShape { m, n, l, .. } = asked.shape;
    let stored = stored(Dims::new(l, m, n)?, asked.output)?;
    let kind = asked.activations;
    let Some(kernel) = kernels.first() else {
        let sizes = format!("{problem:?} with {overrides:?}");
        return Err(Error::shape("GEMM", "a configuration that takes it", sizes));
    };
    let candidates: Vec<Candidate> = kernels.iter().map(|kernel| kernel.candidate()).collect();
    let LaunchShape { ctas, cluster, threads, dynamic_shared, stages, tile } = kernel.shape();
    let grid_x = u32::try_from(ctas).ok().filter(|&ctas| i32::try_from(ctas).is_ok());
    let grid_x = grid_x
        .ok_or_else(|| Error::shape("CTAs of a launch", format!("at most {}", i32::MAX), ctas))?;
    let reads = kernel.reads();
    let mut why = kernel.why(&source.reason("the cheapest candidate by the model"), kind);
    why.push(reads.reason());
    if overrides.batch_invariant {
        why.push(format!(
            "batch invariant: K is added in one order for all M, split {}; tuning tables are not looked at",
            candidates[0].split
        ));
    }
    Ok(GemmPlan {
        op: asked.op(),
        kernel: candidates[0].kernel,
        arch,
        before: kernel.before(kind, Entries::Dense)?,
        grid: [grid_x, 1],
        cluster,
        split: candidates[0].split,
        threads,
        dynamic_shared,
        tile,
        stages,
        reads,
        workspace_bytes: kernel.workspace_bytes(kind)?,
        additions: kernel.additions(),
        repack: "weights, once at load",
        result: stored.map(|stored| {
            let [blocks, floats] =
                [asked.output.planned(), FLOATS].map(|result| kernel.store_cycles(result));
            format!("{stored}; {blocks} cycles of the model to store a tile's, instead of {floats}")
        }),
        source,
        why,
        candidates,
        columns: n as u32,
        chosen: Chosen(kernel.clone()),
    })
}

/// A description of the memory that a result in NVFP4 or MXFP4 takes; none for floats.
///
/// # Errors
/// [`Error::Shape`] for an N that is no multiple of a block, [`Error::Overflow`].
fn stored(dims: Dims, output: ResultKind) -> Result<Option<String>> {
    if let ResultKind::Floats(_) = output {
        return Ok(None);
    }
    let bytes = |output: Output| Ok::<_, Error>(output.bytes(dims)?.iter().sum::<usize>());
    let (blocks, floats) = (bytes(output.output(1.0))?, bytes(FloatType::F16.into())?);
    let name = output.name();
    Ok(Some(format!("a result in {name}: {blocks} bytes instead of {floats} in f16")))
}
