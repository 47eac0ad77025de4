//! Which sm_100a kernel, and which operand is where in its tiles.

use fp4_formats::gemm::ResultType;
use fp4_formats::gemm::blackwell::CONFIGS;
use fp4_formats::gemm::blackwell::choose::{self, Candidate as Choice, Limit};
use fp4_formats::gemm::hopper::Operand;
use fp4_formats::quantize::Format;

use super::left;
use super::prepare::Preparation;
use crate::error::{Error, Result};
use crate::gemm::GemmPlan;
use crate::gemm::plan::{Candidate, Chosen, FLOATS, Reads, Request, with_work};
use crate::gemm::strides::Entries;
use crate::tune::TuneProblem;

/// Plans a checked problem.
///
/// # Errors
/// As [`plan`](super::super::plan).
pub(in crate::gemm) fn plan(request: &Request<'_>) -> Result<GemmPlan> {
    let Request { problem, asked, stored, arch, machine, overrides, source } = request;
    let TuneProblem { format, activations: kind, output, .. } = **asked;
    let (left, result) = (left(format, kind)?, output.planned());
    let cards = choose::Machine { sms: machine.sms.max(8), ..choose::Machine::B200 };
    let candidates = candidates(format, left, request, &cards, result)?;
    let Some(best) = candidates.first().copied() else {
        let sizes = format!("{problem:?} with {overrides:?}");
        return Err(Error::shape("GEMM", "a configuration that takes it", sizes));
    };
    let config = best.config;
    let preparation = Preparation::of(problem, kind, Entries::Dense);
    let bytes = preparation.as_ref().map_or(0, |preparation| preparation.bytes);
    let workspace_bytes = usize::try_from(bytes).map_err(|_| Error::Overflow {
        what: "workspace".into(),
        detail: format!("{bytes} bytes"),
    })?;
    let weights = if best.swapped { "rows" } else { "columns" };
    let order = if best.dynamic { "asked for by the CTAs" } else { "one after the other" };
    let mut why = vec![
        format!(
            "{}: {} tiles {order}, bound by {}",
            source.reason("the shortest estimate"),
            best.tiling.count,
            best.limit.name(),
        ),
        format!("weights are the {weights} of the tensor core's tiles"),
    ];
    let reads = reads(&best, problem.k);
    why.push(reads.reason());
    if left.is_some() {
        why.push("weights are decoded to the activations' type, exactly".into());
    }
    if preparation.as_ref().is_some_and(|preparation| preparation.codes.is_some()) {
        why.push("rows of activations are not multiples of 16 bytes: padded before".into());
    }
    if preparation.as_ref().is_some_and(|preparation| preparation.scales.is_some()) {
        why.push("scales of activations are laid out in whole 128x4 tiles before".into());
    }
    let before = preparation.map_or(Vec::new(), |preparation| preparation.steps());
    if !before.is_empty() {
        why.push("the product begins to copy weights while that is done".into());
    }
    let tile = [config.rows(), config.columns];
    Ok(GemmPlan {
        op: "gemm",
        kernel: config.name,
        arch: *arch,
        before,
        grid: [best.clusters * config.cluster(), 1],
        cluster: config.cluster(),
        splits: config.splits,
        threads: config.threads(),
        dynamic_shared: config.shared_bytes(),
        tile: if best.swapped { tile } else { [tile[1], tile[0]] },
        stages: config.stages(),
        reads,
        workspace_bytes,
        // The order of sums within the tensor core is not specified.
        additions: problem.k,
        repack: "weights, once at load",
        result: stored.as_ref().map(|stored| {
            let most = choose::store_clocks(config, best.swapped, result);
            let floats = choose::store_clocks(config, best.swapped, FLOATS);
            with_work(stored, [most, floats])
        }),
        source: *source,
        why,
        candidates: candidates.into_iter().map(Candidate::from).collect(),
        chosen: Chosen::Blackwell(best),
    })
}

/// What is copied of the operands: rows of `X` once a cluster, of `Y` once a tile.
fn reads(choice: &Choice, k: u32) -> Reads {
    let Choice { config, tiling, .. } = choice;
    let [x_passes, y_passes] = [tiling.y, tiling.x].map(u64::from);
    let (activation_passes, weight_passes) =
        if choice.swapped { (y_passes, x_passes) } else { (x_passes, y_passes) };
    let copying = u64::from(config.pair * config.share);
    let steps = u64::from(tiling.count) * u64::from(config.steps(k));
    Reads {
        activation_passes,
        weight_passes,
        bytes: steps * copying * u64::from(config.read_bytes()),
    }
}

/// The candidates that the overrides leave, the shortest first. Of a configuration's two
/// orientations only the better one.
fn candidates(
    format: Format,
    left: Option<Operand>,
    request: &Request<'_>,
    machine: &choose::Machine,
    result: ResultType,
) -> Result<Vec<Choice>> {
    let suitable = CONFIGS.iter().filter(|config| config.format == format && config.left == left);
    request.check_kernel(suitable.map(|config| config.name))?;
    let Request { problem, overrides, .. } = request;
    let mut found: Vec<Choice> = choose::candidates(format, left, problem, result, machine)
        .filter(|choice| request.may_be(choice.config.name))
        .filter(|choice| overrides.splits.is_none_or(|splits| splits == choice.config.splits))
        .collect();
    found.sort_by_key(|choice| (choice.clocks, choice.bytes));
    let mut seen = Vec::new();
    found.retain(|choice| {
        let new = !seen.contains(&choice.config.name);
        seen.push(choice.config.name);
        new
    });
    Ok(found)
}

impl From<Choice> for Candidate {
    fn from(from: Choice) -> Self {
        let resident = if from.dynamic { from.resident } else { from.clusters };
        Self {
            kernel: from.config.name,
            splits: from.config.splits,
            ctas: u64::from(from.clusters) * u64::from(from.config.cluster()),
            waves: u64::from(from.tiling.count.div_ceil(resident.max(1))),
            cycles: from.clocks,
            bound: match from.limit {
                Limit::Dram => "DRAM",
                Limit::L2 => "L2",
                Limit::Copies => "copies into shared memory",
                Limit::Products => "tensor cores",
                Limit::Decode => "decoding of weights",
                Limit::Results => "quantising of results",
            },
        }
    }
}
