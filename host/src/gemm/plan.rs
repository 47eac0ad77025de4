//! Which kernel runs a GEMM, in how many CTAs, and why.

use std::fmt;

use fp4_formats::gemm::blackwell::choose;
use fp4_formats::gemm::hopper::config::{
    self, CONFIGS, Estimate, HopperConfig, K_STEP, MAX_BLOCKS, MAX_SPLITS, THREADS,
};
use fp4_formats::gemm::hopper::{Division, Operand, Scheme};
use fp4_formats::gemm::{Problem, ResultType};
use fp4_formats::quantize::{Format, dequantize_config};
use serde::Serialize;

use super::weights::scheme;
use super::{ActivationKind, Output, blackwell};
use crate::device::Machine;
use crate::error::{Error, Result};
use crate::output::OutputType;
use crate::plan::MAX_GRID_Y;
use crate::quantize::device::Step;
use crate::shape::{GemmShape, MAX_DIM};
use crate::tensor::Dims;
use crate::tune::{ResultKind, TuneProblem};

/// What results in NVFP4 are compared with.
pub(super) const FLOATS: ResultType = ResultType::Floats(OutputType::F16);

/// What a caller may fix instead of leaving it to the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GemmOverrides {
    /// Kernel by name.
    pub kernel: Option<String>,
    /// CTAs that share a tile, each with a part of K. On sm_90a they are a cluster; 1 is a CTA a
    /// tile, or fewer where tiles exceed the SMs; 0 divides all tiles' K evenly among all SMs.
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

/// How a GEMM will be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemmPlan {
    /// The operation, `gemm`.
    pub op: &'static str,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// Architecture of the kernel.
    pub arch: String,
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

/// A choice on sm_90a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HopperChoice {
    pub config: &'static HopperConfig,
    pub division: Division,
    pub workspace: HopperWorkspace,
}

/// What is where in the workspace on sm_90a: flags at its start, whatever the plan, so that
/// plans can share one; then decoded activations or given sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HopperWorkspace {
    /// Offset of the decoded activations.
    pub activations: usize,
    /// Offset of the given sums.
    pub partials: usize,
    /// Bytes of all; 0 where none is needed.
    pub bytes: usize,
}

impl HopperWorkspace {
    /// Copies and vector loads start at multiples of this.
    const ALIGNMENT: usize = 256;

    fn new(
        chosen: &Estimate,
        kind: ActivationKind,
        shape: GemmShape,
        machine: &config::Machine,
    ) -> Result<Self> {
        let flags = machine.sms as usize * MAX_BLOCKS as usize * size_of::<u32>();
        let decoded = match kind {
            ActivationKind::Blocks { .. } => elements(shape)?,
            ActivationKind::Halves(_) => 0,
        };
        let shares = chosen.division.share < chosen.division.steps
            || chosen.division.longer > 0
            || !chosen.division.share.is_multiple_of(chosen.division.steps);
        let sums =
            if shares { chosen.ctas as usize * chosen.config.partial_bytes() as usize } else { 0 };
        let overflow = || Error::Overflow {
            what: "workspace".into(),
            detail: format!("{decoded} bytes of activations and {sums} of sums"),
        };
        let align = |bytes: usize| bytes.checked_next_multiple_of(Self::ALIGNMENT);
        let activations = align(flags).ok_or_else(overflow)?;
        let partials = activations.checked_add(decoded).and_then(align).ok_or_else(overflow)?;
        let bytes = match partials.checked_add(sums).ok_or_else(overflow)? {
            _ if decoded + sums == 0 => 0,
            bytes => bytes,
        };
        Ok(Self { activations, partials, bytes })
    }
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

impl From<Estimate> for Candidate {
    fn from(from: Estimate) -> Self {
        let Estimate { config, splits, ctas, waves, cycles, bound, .. } = from;
        Self { kernel: config.name, splits, ctas, waves, cycles, bound }
    }
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
/// use fp4_formats::gemm::hopper::Operand;
/// use nvfp4::device::Machine;
/// use nvfp4::gemm::{ActivationKind, GemmOverrides, plan};
/// use nvfp4::quantize::Format;
/// use nvfp4::shape::GemmShape;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let h200 = Machine { sms: 132, shared_per_sm: 228 << 10, l2_bytes: 50 << 20 };
/// let (shape, kind) = (GemmShape::of(128, 7168, 2048), ActivationKind::Halves(Operand::Bf16));
/// let plan = plan(shape, Format::Nvfp4, kind, "sm_90a", h200, &GemmOverrides::default())?;
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
    arch: &str,
    machine: Machine,
    overrides: &GemmOverrides,
) -> Result<GemmPlan> {
    let source = if *overrides == GemmOverrides::default() { Source::Model } else { Source::Asked };
    let output = OutputType::F16.into();
    let problem = TuneProblem { format, activations: kind, output, shape };
    plan_from(&problem, arch, machine, overrides, source)
}

/// [`plan`] for any result, where `source` is who made the overrides.
pub(super) fn plan_from(
    asked: &TuneProblem,
    arch: &str,
    machine: Machine,
    overrides: &GemmOverrides,
    source: Source,
) -> Result<GemmPlan> {
    let TuneProblem { format, activations: kind, output, shape } = *asked;
    let problem = problem(shape, format)?;
    let stored = stored(&problem, output)?;
    match arch {
        "sm_90a" => {}
        "sm_100a" => {
            return blackwell::plan(&problem, asked, stored, arch, machine, overrides, source);
        }
        _ => return Err(Error::shape("architecture for GEMM", "sm_90a or sm_100a", arch)),
    }
    let scheme = scheme(format, kind.operand())?;
    let cards = config::Machine { sms: machine.sms.max(1) };
    let result = output.planned();
    let candidates = candidates(scheme, &problem, &cards, result, overrides)?;
    let Some(best) = candidates.first().copied() else {
        let required = format!("at most {} steps of K, of all tiles", u32::MAX);
        return Err(Error::shape("GEMM", required, shape));
    };
    let config = best.config;
    let before = decode_steps(shape, kind, cards.sms)?;
    let workspace = HopperWorkspace::new(&best, kind, shape, &cards)?;
    let division = best.division;
    let grid_x = u32::try_from(best.ctas).ok().filter(|&ctas| i32::try_from(ctas).is_ok());
    let grid_x = grid_x.ok_or_else(|| {
        Error::shape("CTAs of a launch", format!("at most {}", i32::MAX), best.ctas)
    })?;
    let chosen = source.reason("the cheapest candidate by the model");
    let mut why = vec![format!(
        "{chosen}: {} tiles of {} steps of K = {K_STEP}, at most {} steps a CTA, {} CTAs in {} \
         waves on {} SMs, the main loop bound by {}",
        config.tiles(&problem) * u64::from(problem.l),
        division.steps,
        division.most(),
        best.ctas,
        best.waves,
        cards.sms,
        best.bound
    )];
    if division.parts() > 1 {
        let place = if division.gives() { "the workspace" } else { "shared memory" };
        why.push(format!(
            "up to {} CTAs share a tile; their sums meet in {place}",
            division.parts()
        ));
    }
    if !before.is_empty() {
        why.push(format!("activations are decoded to {}, exactly", scheme.operand.name()));
    }
    Ok(GemmPlan {
        op: "gemm",
        kernel: config.name,
        arch: arch.into(),
        before,
        grid: [grid_x, 1],
        cluster: division.cluster,
        splits: best.splits,
        threads: THREADS,
        dynamic_shared: config.launch_shared_bytes(best.resident),
        tile: [config.rows, config.tokens],
        stages: config.stages(),
        workspace_bytes: workspace.bytes,
        additions: config::additions(&division),
        repack: "weights, once at load",
        result: stored.map(|stored| {
            let most = config::store_cycles(config, division.cluster, result);
            let floats = config::store_cycles(config, division.cluster, FLOATS);
            with_work(&stored, [most, floats])
        }),
        source,
        why,
        candidates: candidates.into_iter().map(Candidate::from).collect(),
        chosen: Chosen::Hopper(HopperChoice { config, division, workspace }),
    })
}

/// The candidates that the overrides leave, the cheapest first; of equals the one that
/// [`config::choose`] takes.
fn candidates(
    scheme: Scheme,
    problem: &Problem,
    machine: &config::Machine,
    result: ResultType,
    overrides: &GemmOverrides,
) -> Result<Vec<Estimate>> {
    let suitable = || CONFIGS.iter().filter(|config| config.scheme == scheme);
    if let Some(name) = &overrides.kernel
        && !suitable().any(|config| config.name == name)
    {
        let names: Vec<&str> = suitable().map(|config| config.name).collect();
        return Err(Error::shape("kernel", format!("one of {}", names.join(", ")), name));
    }
    let most = MAX_SPLITS.min(problem.k.div_ceil(K_STEP));
    if let Some(splits) = overrides.splits
        && splits > most
    {
        return Err(Error::shape("parts of K", format!("from 0 to {most}"), splits));
    }
    let splits = |parts: &u32| overrides.splits.is_none_or(|splits| splits == *parts);
    let named =
        |config: &&HopperConfig| overrides.kernel.as_ref().is_none_or(|name| name == config.name);
    let mut found: Vec<Estimate> = suitable()
        .filter(named)
        .flat_map(|config| {
            let parts = (0..=most).filter(splits);
            parts.filter_map(move |parts| config::estimate(config, parts, problem, machine, result))
        })
        .collect();
    found.sort_by_key(|estimate| estimate.cycles);
    Ok(found)
}

fn problem(shape: GemmShape, format: Format) -> Result<Problem> {
    let size = |field: &str, value: usize, most: u64| match u32::try_from(value) {
        Ok(size) if (1..=most).contains(&u64::from(size)) => Ok(size),
        _ => Err(Error::shape(field, format!("from 1 to {most}"), value)),
    };
    let problem = Problem {
        m: size("M", shape.m, MAX_DIM)?,
        n: size("N", shape.n, MAX_DIM)?,
        k: size("K", shape.k, MAX_DIM)?,
        l: size("batch", shape.l, MAX_GRID_Y as u64)?,
    };
    if problem.k.is_multiple_of(format.block()) {
        Ok(problem)
    } else {
        Err(Error::shape("K", format!("a multiple of {}", format.block()), problem.k))
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
    let floats = bytes(OutputType::F16.into())?;
    Ok(Some(format!(
        "a result in nvfp4, which all configurations make: {blocks} bytes instead of {floats} in f16"
    )))
}

/// [`stored`], with the cycles in which a CTA stores its part of a tile, as blocks and as floats.
pub(super) fn with_work(stored: &str, [blocks, floats]: [u64; 2]) -> String {
    format!("{stored}; {blocks} cycles of the model to store a tile's, instead of {floats}")
}

/// Bytes of the decoded activations.
fn elements(shape: GemmShape) -> Result<usize> {
    let bytes = shape.l.checked_mul(shape.m).and_then(|n| n.checked_mul(shape.k * 2));
    bytes.ok_or_else(|| Error::Overflow {
        what: "decoded activations".into(),
        detail: format!("{} x {} x {} elements", shape.l, shape.m, shape.k),
    })
}

/// The launches that decode activations: one, or with 128x4 scales one a batch entry,
/// because each entry's scales are padded.
fn decode_steps(shape: GemmShape, kind: ActivationKind, sms: u32) -> Result<Vec<Step>> {
    let ActivationKind::Blocks { format, layout } = kind else {
        return Ok(Vec::new());
    };
    let output = match kind.operand() {
        Operand::F16 => OutputType::F16,
        Operand::Bf16 => OutputType::Bf16,
    };
    let config = dequantize_config(format, output);
    let launches = super::run::decode_launches(layout, shape.l);
    let rows = shape.l / launches * shape.m;
    let rows = u32::try_from(rows).ok().filter(|&rows| u64::from(rows) <= MAX_DIM);
    let rows = rows.ok_or_else(|| {
        Error::shape("rows of activations", format!("at most {MAX_DIM}"), shape.l * shape.m)
    })?;
    let ctas = config.grid(rows, shape.k as u32, layout, sms);
    let step = Step { kernel: config.name, ctas, threads: config.threads() };
    Ok(vec![step; launches])
}
