//! Planning with what was measured: the tuning table first, then the comparator's model.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use fp4_formats::Arch;
use fp4_formats::quantize::Format;

use super::epilogue::Steps;
use super::families::family;
use super::plan::{Source, plan_from};
use super::remembered::Plans;
use super::{ActivationKind, GemmOptions, GemmOverrides, GemmPlan};
use crate::device::{DeviceProperties, Kernels, Target};
use crate::error::Result;
use crate::shape::GemmShape;
use crate::tune::{Measured, Table, TuneError, TuneProblem};

/// Plans a GEMM with weights in `format` for `kernels`, with what was measured for them. With
/// [`GemmOptions::up`] it is a gated one, whose N is that of the result.
///
/// Choices in `options` come first. Without that the problem is looked up in the kernels' tuning
/// table ([`crate::tune`]): the same format, activations, layout of scales, kind of result, N, K
/// and L, gated or not, and
///
/// 1. the same M, or else
/// 2. the nearest M (of two the larger) that was measured in the same *class of tokens*: those
///    for which the smallest tile that holds them all is the same, and beyond the largest tile
///    those that take as many of it. Within a class, kernels of that tile and larger ones make
///    the same tiles, read the same weights and multiply as often, whatever M is. A grouped
///    product's class is that of the mean of its groups' tokens.
///
/// If there is no such entry, or it names a kernel that does not take the problem, the comparator's
/// model decides, as in [`plan`](super::plan). [`GemmPlan::source`] and [`GemmPlan::why`] say which
/// it was. Plans are remembered by the kernels: the last [`MAX_PLANS`](crate::tune::MAX_PLANS)
/// problems.
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::FloatType;
/// use fp4_formats::gemm::{Adding, Split};
/// use fp4_formats::HalfType;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{ActivationKind, GemmOptions, Source, plan_for};
/// use nvfp4::quantize::Format;
/// use nvfp4::shape::GemmShape;
/// use nvfp4::tune::{Measured, Table, TuneProblem, Tuning};
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let (format, activations) = (Format::Nvfp4, ActivationKind::Halves(HalfType::Bf16));
/// let (output, shape) = (FloatType::F16.into(), GemmShape::of(64, 7168, 2048));
///
/// // `nvfp4 bench --tune` writes such tables; this one is made up.
/// let mut table = Table::new(kernels.tune_key().clone());
/// let kernel = "gemm_sm90_nvfp4_bf16_128x64".into();
/// let measured = Measured { kernel, split: Split::Cluster(2), median_ns: 12_300 };
/// let (gated, groups, adding) = (false, None, Adding::default());
/// let problem = TuneProblem { format, activations, output, gated, shape, groups, adding };
/// table.insert(problem, measured);
/// let kernels = kernels.with_tuning(Tuning::new(table));
///
/// let (fewer, options) = (GemmShape { m: 60, ..shape }, GemmOptions::default());
/// let plan = plan_for(&kernels, fewer, format, activations, &options)?;
/// assert_eq!((plan.source, plan.split), (Source::Table { m: 64 }, Split::Cluster(2)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The same as [`plan`](super::plan), and [`Error::Shape`](crate::error::Error::Shape) for a result in NVFP4
/// of an N that is no multiple of 16, [`Error::Scalar`](crate::error::Error::Scalar) for an
/// activation that no kernel takes. A faulty table is no error.
pub fn plan_for(
    kernels: &Kernels,
    shape: GemmShape,
    format: Format,
    kind: ActivationKind,
    options: &GemmOptions,
) -> Result<GemmPlan> {
    let (output, steps) = (options.output.into(), Steps::new(options)?);
    let (activations, gated, groups) = (kind, steps.is_gated(), None);
    let adding = options.adding;
    let problem = TuneProblem { format, activations, output, gated, shape, groups, adding };
    plan_problem(kernels, problem, &options.overrides, &steps)
}

/// [`plan_for`] for any product, grouped or not.
pub(super) fn plan_problem(
    kernels: &Kernels,
    problem: TuneProblem,
    overrides: &GemmOverrides,
    steps: &Steps,
) -> Result<GemmPlan> {
    let target = kernels.into();
    if overrides.names_any() {
        return plan_by_model(&target, &problem, overrides, steps);
    }
    let invariant = overrides.batch_invariant;
    let mut plan = kernels.kept::<Plans>().plan((problem, invariant), || match invariant {
        true => plan_from(&problem, target.arch, target.machine, overrides, Source::Model),
        false => look_up(kernels, &problem, &target),
    })?;
    plan.why.extend(steps.reason());
    Ok(plan)
}

/// Plans any product by the model, or as overrides say.
pub(super) fn plan_by_model(
    &Target { arch, machine }: &Target,
    problem: &TuneProblem,
    overrides: &GemmOverrides,
    steps: &Steps,
) -> Result<GemmPlan> {
    let source = if overrides.names_any() { Source::Asked } else { Source::Model };
    let mut plan = plan_from(problem, arch, machine, overrides, source)?;
    plan.why.extend(steps.reason());
    Ok(plan)
}

fn look_up(
    kernels: &Kernels,
    problem: &TuneProblem,
    &Target { arch, machine }: &Target,
) -> Result<GemmPlan> {
    let nothing = GemmOverrides::default();
    let mut model = plan_from(problem, arch, machine, &nothing, Source::Model)?;
    let tuning = kernels.tuning();
    let Some(table) = tuning.table() else {
        model.why.extend(tuning.ignored().map(str::to_owned));
        return Ok(model);
    };
    let origin = tuning.origin();
    let Some((m, measured)) = nearest(table, problem, arch) else {
        model.why.push(format!("{origin} has nothing for this problem"));
        return Ok(model);
    };
    let source = Source::Table { m };
    match suit(problem, measured, arch, machine, source) {
        Ok(mut plan) => {
            let Measured { kernel, split, median_ns } = measured;
            let us = *median_ns as f64 * 1e-3;
            let by_model = (model.kernel, model.split);
            let agrees = if by_model == (kernel.as_str(), *split) {
                "as the model has it".into()
            } else {
                format!("the model has {}, split {}", by_model.0, by_model.1)
            };
            plan.why.push(format!("{origin}: {us:.3} us at M = {m}; {agrees}"));
            plan.candidates = model.candidates;
            Ok(plan)
        }
        Err(error) => {
            model.why.push(format!("{origin}, entry for M = {m}, is rejected: {error}"));
            Ok(model)
        }
    }
}

/// The plan that an entry stands for, whatever problem it is for.
fn suit(
    problem: &TuneProblem,
    measured: &Measured,
    arch: Arch,
    machine: DeviceProperties,
    source: Source,
) -> Result<GemmPlan> {
    let overrides = GemmOverrides::new().kernel(measured.kernel.clone()).split(measured.split);
    plan_from(problem, arch, machine, &overrides, source)
}

/// Checks that every entry of a table names a kernel of `kernels` that takes its problem; errors
/// call the table `origin`.
///
/// # Errors
/// [`TuneError::Unsuitable`].
pub fn check_table(kernels: &Kernels, table: &Table, origin: &str) -> Result<(), TuneError> {
    let device = kernels.device();
    let (arch, machine) = (device.choice().arch, device.properties());
    for (problem, measured) in table.entries() {
        suit(problem, measured, arch, machine, Source::Asked).map_err(|error| {
            let (problem, reason) = (problem.to_string(), error.to_string());
            TuneError::Unsuitable { origin: origin.into(), problem, reason }
        })?;
    }
    Ok(())
}

/// The entry for the nearest M of the problem's class of tokens, with that M.
fn nearest<'a>(
    table: &'a Table,
    problem: &TuneProblem,
    arch: Arch,
) -> Option<(usize, &'a Measured)> {
    let m = problem.shape.m;
    let class = token_class(problem, arch);
    table
        .entries()
        .filter(|(entry, _)| entry.with_tokens(m) == *problem && class.contains(&entry.shape.m))
        .map(|(entry, measured)| (entry.shape.m, measured))
        .min_by_key(|&(other, _)| (other.abs_diff(m), Reverse(other)))
}

/// The numbers of tokens that are in one class with those of a problem.
fn token_class(problem: &TuneProblem, arch: Arch) -> RangeInclusive<usize> {
    let TuneProblem { format, activations, shape, groups, adding, .. } = *problem;
    let mut tiles = family(arch).token_tiles(format, activations, adding);
    tiles.sort_unstable();
    // Groups that share a matrix: the mean of those that have tokens is looked at.
    let groups = groups.filter(|groups| !groups.slots).map_or(1, |groups| groups.count.max(1));
    let m = shape.m.div_ceil(groups);
    let class = match tiles.iter().position(|&tile| m <= tile) {
        Some(at) => at.checked_sub(1).map_or(1, |below| tiles[below] + 1)..=tiles[at],
        None => {
            let tile = tiles.last().copied().unwrap_or(1);
            let before = m.saturating_sub(1) / tile * tile;
            before + 1..=before.saturating_add(tile)
        }
    };
    (class.start() - 1).saturating_mul(groups) + 1..=class.end().saturating_mul(groups)
}
