//! Which sm_90a kernel, and which CTA does what.

use fp4_formats::FloatType;
use fp4_formats::gemm::hopper::config::{self, CONFIGS, HopperConfig, K_STEP, MAX_BLOCKS, THREADS};
use fp4_formats::gemm::hopper::estimate::{self, Estimate};
use fp4_formats::gemm::hopper::{Division, Operand, Scheme};
use fp4_formats::gemm::{Problem, ResultType};
use fp4_formats::quantize::dequantize_config;

use super::decode_launches;
use crate::error::{Error, Result};
use crate::gemm::check::formats;
use crate::gemm::plan::{Candidate, Chosen, FLOATS, Reads, Request, with_work};
use crate::gemm::strides::Entries;
use crate::gemm::{ActivationKind, GemmPlan};
use crate::quantize::device::Step;
use crate::shape::{GemmShape, MAX_DIM};
use crate::tune::TuneProblem;

/// A choice on sm_90a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gemm) struct HopperChoice {
    pub config: &'static HopperConfig,
    pub division: Division,
    pub workspace: HopperWorkspace,
}

/// What is where in the workspace on sm_90a: flags at its start, whatever the plan, so that
/// plans can share one; then decoded activations or given sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gemm) struct HopperWorkspace {
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
        machine: &estimate::Machine,
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

/// Plans a checked problem.
///
/// # Errors
/// As [`plan`](super::super::plan).
pub(in crate::gemm) fn plan(request: &Request<'_>) -> Result<GemmPlan> {
    let Request { problem, asked, stored, arch, machine, source, .. } = request;
    let TuneProblem { format, activations: kind, output, shape } = **asked;
    let scheme = formats(format, kind)?;
    let cards = estimate::Machine { sms: machine.sms.max(1) };
    let result = output.planned();
    let candidates = candidates(scheme, request, &cards, result)?;
    let Some(best) = candidates.first().copied() else {
        let required = format!("at most {} steps of K, of all tiles", u32::MAX);
        return Err(Error::shape("GEMM", required, shape));
    };
    let config = best.config;
    let before = decode_steps(problem, kind, Entries::Dense, cards.sms)?;
    let workspace = HopperWorkspace::new(&best, kind, shape, &cards)?;
    let division = best.division;
    let grid_x = u32::try_from(best.ctas).ok().filter(|&ctas| i32::try_from(ctas).is_ok());
    let grid_x = grid_x.ok_or_else(|| {
        Error::shape("CTAs of a launch", format!("at most {}", i32::MAX), best.ctas)
    })?;
    let chosen = source.reason("the cheapest candidate by the model");
    let mut why = vec![format!(
        "{chosen}: {} {} of {} steps of K = {K_STEP}, at most {} steps a CTA, {} CTAs in {} \
         waves on {} SMs, the main loop bound by {}",
        config.tiles(problem) * u64::from(problem.l),
        if config.sharers > 1 { "pairs of tiles" } else { "tiles" },
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
    let reads = reads(config, problem);
    why.push(reads.reason());
    if config.sharers > 1 {
        why.push(format!(
            "{} CTAs of a cluster have tiles of neighbouring rows; each copies {} of the {} tokens \
             for both",
            config.sharers,
            config.box_tokens(),
            config.tokens
        ));
    }
    if !before.is_empty() {
        why.push(format!("activations are decoded to {}, exactly", scheme.operand.name()));
    }
    Ok(GemmPlan {
        op: "gemm",
        kernel: config.name,
        arch: *arch,
        before,
        grid: [grid_x, 1],
        cluster: division.cluster * config.sharers,
        splits: best.splits,
        threads: THREADS,
        dynamic_shared: config.launch_shared_bytes(best.resident),
        tile: [config.rows, config.tokens],
        stages: config.stages(),
        reads,
        workspace_bytes: workspace.bytes,
        additions: config::additions(&division),
        repack: "weights, once at load",
        result: stored.as_ref().map(|stored| {
            let most = estimate::store_cycles(config, division.cluster, result);
            let floats = estimate::store_cycles(config, division.cluster, FLOATS);
            with_work(stored, [most, floats])
        }),
        source: *source,
        why,
        candidates: candidates.into_iter().map(Candidate::from).collect(),
        chosen: Chosen::Hopper(HopperChoice { config, division, workspace }),
    })
}

impl From<Estimate> for Candidate {
    fn from(from: Estimate) -> Self {
        let Estimate { config, splits, ctas, waves, cycles, bound, .. } = from;
        Self { kernel: config.name, splits, ctas, waves, cycles, bound }
    }
}

/// The candidates that the overrides leave, the cheapest first; of equals the one that
/// [`estimate::choose`] takes.
fn candidates(
    scheme: Scheme,
    request: &Request<'_>,
    machine: &estimate::Machine,
    result: ResultType,
) -> Result<Vec<Estimate>> {
    let suitable = || CONFIGS.iter().filter(|config| config.scheme == scheme);
    request.check_kernel(suitable().map(|config| config.name))?;
    let Request { problem, overrides, .. } = request;
    let asked = || suitable().filter(|config| request.may_be(config.name));
    let most = asked().map(HopperConfig::max_splits).max().unwrap_or(1);
    let most = most.min(problem.k.div_ceil(K_STEP));
    if let Some(splits) = overrides.splits
        && splits > most
    {
        return Err(Error::shape("parts of K", format!("from 0 to {most}"), splits));
    }
    let splits = |parts: &u32| overrides.splits.is_none_or(|splits| splits == *parts);
    let mut found: Vec<Estimate> = asked()
        .flat_map(|config| {
            let parts = (0..=most).filter(splits);
            parts.filter_map(move |parts| {
                estimate::estimate(config, parts, problem, machine, result)
            })
        })
        .collect();
    found.sort_by_key(|estimate| estimate.cycles);
    Ok(found)
}

/// What is copied of 16-bit or decoded activations and of repacked weights: the steps of all
/// tiles, whoever does them.
fn reads(config: &HopperConfig, problem: &Problem) -> Reads {
    let steps =
        config.tiles(problem) * u64::from(problem.l) * u64::from(problem.k.div_ceil(K_STEP));
    Reads {
        activation_passes: config.row_groups(problem.n).into(),
        weight_passes: config.token_tiles(problem.m).into(),
        bytes: steps
            * u64::from(config.sharers * config.weight_bytes() + config.activation_bytes()),
    }
}

/// Bytes of the decoded activations.
fn elements(shape: GemmShape) -> Result<usize> {
    let bytes = shape.l.checked_mul(shape.m).and_then(|n| n.checked_mul(shape.k * 2));
    bytes.ok_or_else(|| Error::Overflow {
        what: "decoded activations".into(),
        detail: format!("{} x {} x {} elements", shape.l, shape.m, shape.k),
    })
}

/// The launches that decode activations: of all entries of the batch, or one of each.
///
/// # Errors
/// [`Error::Shape`] for more rows than a launch takes.
pub(in crate::gemm) fn decode_steps(
    problem: &Problem,
    kind: ActivationKind,
    entries: Entries,
    sms: u32,
) -> Result<Vec<Step>> {
    let ActivationKind::Blocks { format, layout } = kind else {
        return Ok(Vec::new());
    };
    let output = match kind.operand() {
        Operand::F16 => FloatType::F16,
        Operand::Bf16 => FloatType::Bf16,
    };
    let config = dequantize_config(format, output);
    let (launches, rows) = decode_launches(problem, layout, entries);
    if rows > MAX_DIM {
        return Err(Error::shape("rows of activations", format!("at most {MAX_DIM}"), rows));
    }
    let ctas = config.grid(rows as u32, problem.k, layout, sms);
    let step = Step { kernel: config.name, ctas, threads: config.threads() };
    Ok(vec![step; launches as usize])
}
