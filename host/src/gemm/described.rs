//! Products without operands: all that decides whether there is a kernel, and which. Products on a device and
//! [`supports`](crate::supports()) are planned by the same functions.

use fp4_formats::Divisor;
use fp4_formats::gemm::groups::MAX_PROBLEMS;
use fp4_formats::moe::Chosen;
use fp4_formats::quantize::Format;

use super::candidate::Request;
use super::check::{self, check_gated, size};
use super::epilogue::Steps;
use super::families::family;
use super::family::LaunchShape;
use super::groups::{GroupRequest, PlannedGroups};
use super::plan::{Source, finish};
use super::strides::Strides;
use super::tuned::{plan_by_model, plan_problem};
use super::{
    ActivationKind, BatchStrides, ChosenRows, DeviceWeights, GemmOptions, GemmOverrides, GemmPlan,
    Grouping,
};
use crate::device::{Kernels, Target};
use crate::error::{Error, Result};
use crate::shape::{GemmShape, MAX_DIM};
use crate::tune::{TuneGroups, TuneProblem};

/// Weights, as far as a plan depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// N of the result.
    pub n: usize,
    pub k: usize,
    /// The number of matrices.
    pub matrices: usize,
    pub format: Format,
    /// Whether two rows make a column of the result.
    pub gated: bool,
}

impl DeviceWeights {
    /// Returns all that plans depend on.
    pub(super) fn sizes(&self) -> Sizes {
        let form = self.form();
        Sizes {
            n: form.result_columns() as usize,
            k: form.columns as usize,
            matrices: self.batch(),
            format: form.format,
            gated: form.is_gated(),
        }
    }
}

/// The source of a plan.
#[derive(Clone, Copy)]
pub(crate) enum Planner<'a> {
    /// Kernels with what was measured for them, and the plans of the last problems.
    Kernels(&'a Kernels),
    /// The model.
    Model(&'a Target),
}

impl Planner<'_> {
    fn plan(
        self,
        problem: TuneProblem,
        overrides: &GemmOverrides,
        steps: &Steps,
    ) -> Result<GemmPlan> {
        match self {
            Self::Kernels(kernels) => plan_problem(kernels, problem, overrides, steps),
            Self::Model(target) => plan_by_model(target, &problem, overrides, steps),
        }
    }
}

/// A product as planned, before anything is loaded.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(super) plan: GemmPlan,
    pub(super) kind: ActivationKind,
    /// The steps of the epilogue.
    pub(super) epilogue: Steps,
    pub(super) strides: Strides,
    /// The groups of a grouped product.
    pub(super) groups: Option<PlannedGroups>,
}

impl Planned {
    /// Checks what a plan leaves open.
    fn new(
        plan: GemmPlan,
        kind: ActivationKind,
        epilogue: Steps,
        groups: Option<PlannedGroups>,
    ) -> Result<Self> {
        let (result, output) = (plan.result_dims()?, epilogue.output);
        output.bytes(result)?;
        let strides = Strides::new(BatchStrides::default(), plan.problem(), result, kind, output)?;
        Ok(Self { plan, kind, epilogue, strides, groups })
    }
}

/// Plans `batch` products of `m` tokens.
///
/// # Errors
/// The same as [`Gemm::new`](super::Gemm::new), but for those of weights and devices.
pub(crate) fn uniform(
    planner: Planner<'_>,
    sizes: Sizes,
    [batch, m]: [usize; 2],
    kind: ActivationKind,
    options: &GemmOptions,
) -> Result<Planned> {
    let Sizes { n, k, matrices: _, format, gated } = sizes;
    let shape = GemmShape { m, n, k, l: batch };
    check_gated(gated, options)?;
    let steps = Steps::new(options)?;
    let (output, groups, adding) = (options.output.into(), None, options.adding);
    let problem = TuneProblem { format, activations: kind, output, gated, shape, groups, adding };
    let plan = planner.plan(problem, &options.overrides, &steps)?;
    Planned::new(plan, kind, steps, None)
}

/// Plans a grouped product.
///
/// # Errors
/// The same as [`Gemm::grouped`](super::Gemm::grouped), but for those of weights and devices.
pub(crate) fn grouped(
    planner: Planner<'_>,
    sizes: Sizes,
    grouping: Grouping,
    kind: ActivationKind,
    options: &GemmOptions,
) -> Result<Planned> {
    let Sizes { n, k, matrices: count, format, gated } = sizes;
    let matrices = size("groups", count, MAX_PROBLEMS.into())?;
    let (batch, m) = match grouping {
        Grouping::Contiguous { bound } => (1, bound),
        Grouping::Slots { tokens } => (count, tokens),
        Grouping::Chosen(ChosenRows { rows, .. }) => (rows, 1),
    };
    let (problems, chosen) = match grouping {
        Grouping::Contiguous { .. } | Grouping::Slots { .. } => (matrices, Chosen::NONE),
        Grouping::Chosen(choice) => {
            let ActivationKind::Halves(_) = kind else {
                let what = "type of activations of chosen rows";
                return Err(Error::shape(what, "f16 or bf16", kind.operand().name()));
            };
            let rows = size("chosen rows", choice.rows, MAX_PROBLEMS.into())?;
            (rows, Chosen::of(choice.experts(count)?))
        }
    };
    let shape = GemmShape { m, n, k, l: batch };
    // Token counts and their sum are i32.
    size("tokens", batch.saturating_mul(m), MAX_DIM)?;
    check_gated(gated, options)?;
    let steps = Steps::new(options)?;
    let slots = match grouping {
        Grouping::Contiguous { .. } => false,
        Grouping::Slots { .. } | Grouping::Chosen(_) => true,
    };
    let groups = Some(TuneGroups { count: problems as usize, slots });
    let (output, adding) = (options.output.into(), options.adding);
    let asked = TuneProblem { format, activations: kind, output, gated, shape, groups, adding };
    let request = GroupRequest::of(&asked)?.ok_or_else(not_grouped)?;
    let plan = planner.plan(asked, &options.overrides, &steps)?;
    let groups = Some(PlannedGroups { request, matrices, chosen });
    let mut planned = Planned::new(plan, kind, steps, groups)?;
    if let Grouping::Chosen(ChosenRows { shared: true, .. }) = grouping {
        planned.strides.share_activations();
    }
    Ok(planned)
}

/// Plans several products in one launch: for each, its weights, tokens and options. None for those without tokens.
///
/// # Errors
/// The same as [`MixedGemm::new`](super::MixedGemm::new), but for those of operands and devices.
pub(crate) fn mixed(
    target: &Target,
    products: &[(Sizes, usize, &GemmOptions)],
    kind: ActivationKind,
) -> Result<Vec<Option<Planned>>> {
    check::size("products", products.len(), MAX_PROBLEMS.into())?;
    let &Target { arch, machine } = target;
    let Some((Sizes { format, .. }, ..)) = products.first() else { return Ok(Vec::new()) };
    let mut asked = Vec::new();
    for (index, &(sizes, tokens, options)) in products.iter().enumerate() {
        let Sizes { n, k, matrices, format: found, gated } = sizes;
        if found != *format {
            let what = format!("format of the weights of product {index}");
            let required = format!("{}, as of the first", format.name());
            return Err(Error::shape(what, required, found.name()));
        }
        if matrices != 1 {
            let what = format!("matrices of weights of product {index}");
            return Err(Error::shape(what, "1", matrices));
        }
        check_gated(gated, options)?;
        let steps = Steps::new(options)?;
        if tokens == 0 {
            asked.push(None);
            continue;
        }
        let shape = GemmShape { m: tokens, n, k, l: 1 };
        let (format, output, groups) = (*format, options.output.into(), None);
        let adding = options.adding;
        let problem = check::problem(shape, gated, format)?;
        let asked_for =
            TuneProblem { format, activations: kind, output, gated, shape, groups, adding };
        asked.push(Some((asked_for, problem, steps)));
    }
    let requests: Vec<Request<'_>> = asked
        .iter()
        .zip(products)
        .filter_map(|(asked, (.., options))| {
            let (asked, problem, _) = asked.as_ref()?;
            Some(Request { problem: *problem, asked, machine, overrides: &options.overrides })
        })
        .collect();
    let mut found = if requests.is_empty() {
        Vec::new().into_iter()
    } else {
        family(arch).mixed(&requests)?.into_iter()
    };
    if let Some(first) = found.as_slice().first() {
        let LaunchShape { ctas, cluster, .. } = first.shape();
        let kernels = found.as_slice().iter();
        let tiles = kernels.fold(0u64, |tiles, kernel| tiles.saturating_add(kernel.tiles()));
        let most = u64::from(Divisor::DIVIDENDS) - ctas / u64::from(cluster);
        if tiles >= most {
            return Err(Error::shape("tiles of all products", format!("fewer than {most}"), tiles));
        }
    }
    let mut requests = requests.iter();
    let part = |asked: &Option<(TuneProblem, _, Steps)>| {
        let Some((asked, _, steps)) = asked else { return Ok(None) };
        let (Some(request), Some(kernel)) = (requests.next(), found.next()) else {
            return Ok(None);
        };
        let mut plan = finish(request, arch, vec![kernel], Source::Model)?;
        plan.op = if asked.gated { "mixed dual" } else { "mixed" };
        plan.why.extend(steps.reason());
        Planned::new(plan, kind, *steps, None).map(Some)
    };
    asked.iter().map(part).collect()
}

/// Returns the error of a product that has no groups.
pub(super) fn not_grouped() -> Error {
    Error::shape("product", "grouped", "not grouped")
}
