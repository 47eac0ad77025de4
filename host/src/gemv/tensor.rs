//! Plans that may be products of one token on the tensor cores of sm_100a.
//!
//! They may need a workspace, for partial sums, and weights that the copy engine takes: rows of
//! codes that are multiples of 16 bytes, and 128x4 scales with numbers in their padding. The
//! product loads the scales of activations; only in the wide tiles of kernels that are asked for by
//! name does a launch before lay them out in the workspace.

use fp4_formats::gemm::sm100::prepare;
use fp4_formats::gemm::{Problem, ResultType};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, ScaleLayout, TensorFamily};

use super::plan::{self, dimension};
use super::{GemvOverrides, GemvPlan, WeightForm};
use crate::device::DeviceProperties;
use crate::error::{Error, Result};
use crate::gemm::{VectorProduct, rates};
use crate::plan::vector;
use crate::shape::GemvShape;

/// The target of plans, besides sizes and weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Layout of the activations' scales.
    pub activations: ScaleLayout,
    pub output: FloatType,
    pub arch: Arch,
    pub machine: DeviceProperties,
}

/// Plans a GEMV of weights of this form where a launch has a workspace: by the kernels of a GEMV, as
/// [`plan`](super::plan), or on sm_100a as a product of one token on the tensor cores, where the model says
/// that it is sooner.
///
/// # Errors
/// The same as [`plan`](super::plan); [`Error::Shape`] where an override names a kernel of the tensor cores and the
/// weights are not such that it takes them, or CTAs as well.
pub fn plan_with_workspace(
    form: &WeightForm,
    activations: ScaleLayout,
    output: FloatType,
    arch: Arch,
    machine: DeviceProperties,
    overrides: &GemvOverrides,
) -> Result<GemvPlan> {
    let target = Target { activations, output, arch, machine };
    Ok(choose(form, target, overrides)?.0)
}

/// The layout of the weights' scales, to which they may be put at load, by which a GEMV of `shape` with a
/// workspace is soonest: 128x4 where that is a product on the tensor cores, by the model or because its kernel
/// is asked for, and linear elsewhere.
#[must_use]
pub fn fastest_layout(
    shape: GemvShape,
    output: FloatType,
    arch: Arch,
    machine: DeviceProperties,
    overrides: &GemvOverrides,
) -> ScaleLayout {
    let (stored, scales) = (ScaleLayout::Linear, ScaleLayout::Blocked128x4);
    let target = Target { activations: ScaleLayout::Linear, output, arch, machine };
    let blocked = WeightForm { shape, stored, scales };
    let product = choose(&blocked, target, overrides).ok().and_then(|(_, product)| product);
    let Some(product) = product else { return stored };
    let linear = vector::own_clocks(product.problem(), stored, target.result(), &rates(machine));
    if overrides.kernel.is_some() || product.clocks() < linear { scales } else { stored }
}

impl Target {
    fn result(&self) -> ResultType {
        ResultType::Floats(self.output)
    }

    fn product(&self, problem: Problem, name: Option<&str>) -> Option<VectorProduct> {
        VectorProduct::plan(problem, self.activations, self.result(), self.machine, name)
    }
}

/// [`plan_with_workspace`], with the product if it is one.
pub(super) fn choose(
    form: &WeightForm,
    target: Target,
    overrides: &GemvOverrides,
) -> Result<(GemvPlan, Option<VectorProduct>)> {
    let GemvShape { m, k, l } = form.shape;
    let Target { arch, machine, .. } = target;
    let own = || plan::plan(form.shape, form.scales, arch, machine, overrides);
    match arch.tensor() {
        TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => {
            return Ok((own()?.of_weights(form)?, None));
        }
        TensorFamily::Tcgen05 => {}
    }
    let problem = vector::problem(dimension("M", m)?, dimension("K", k)?, dimension("L", l)?);
    if let Some(name) = &overrides.kernel
        && VectorProduct::names().any(|product| product == name)
    {
        if let Some(reason) = refused(form) {
            let required = "those that tensor cores take, as asked for by the kernel's name";
            return Err(Error::shape("weights", required, format!("others: {reason}")));
        }
        if let Some(ctas) = overrides.ctas {
            let required = "absent, for a product on the tensor cores";
            return Err(Error::shape("number of CTAs", required, ctas));
        }
        let product = target.product(problem, Some(name)).ok_or_else(|| {
            Error::shape("kernel", format!("one that takes {}", form.shape), name)
        })?;
        let reason = "the kernel was asked for by name".to_owned();
        return Ok((of_product(form, arch, &product, reason)?, Some(product)));
    }
    let mut own = own()?;
    if *overrides != GemvOverrides::default() {
        return Ok((own.of_weights(form)?, None));
    }
    if let Some(reason) = refused(form) {
        own.why.push(format!("not a product on the tensor cores: {reason}"));
        return Ok((own.of_weights(form)?, None));
    }
    let clocks = vector::own_clocks(&problem, form.scales, target.result(), &rates(machine));
    let Some(product) = target.product(problem, None) else {
        own.why.push("not a product on the tensor cores: no kernel takes the sizes".into());
        return Ok((own.of_weights(form)?, None));
    };
    let estimates =
        format!("the model gives it {} clocks, and {} {clocks}", product.clocks(), own.kernel);
    if product.clocks() < clocks {
        let reason = format!("a product of one token on the tensor cores: {estimates}");
        return Ok((of_product(form, arch, &product, reason)?, Some(product)));
    }
    own.why.push(format!("not a product on the tensor cores: {estimates}"));
    Ok((own.of_weights(form)?, None))
}

/// Returns the reason why tensor cores do not take weights of this form, if they do not.
fn refused(form: &WeightForm) -> Option<&'static str> {
    let GemvShape { m, k, .. } = form.shape;
    let (Ok(m), Ok(k)) = (u32::try_from(m), u32::try_from(k)) else {
        return Some("sizes do not fit 32 bits");
    };
    if !vector::takes_k(k) {
        return Some("rows of the weights are not multiples of 16 bytes");
    }
    match form.scales {
        ScaleLayout::Linear => Some("the weights' scales are linear"),
        // Scales that are made at load have zeros in the padding.
        ScaleLayout::Blocked128x4 if form.is_repacked() => None,
        ScaleLayout::Blocked128x4 => {
            prepare::scales_need_it(Format::Nvfp4, ScaleLayout::Blocked128x4, m, k)
                .then_some("padding of the weights' scales, as they are stored, may hold anything")
        }
    }
}

/// The plan of a product, chosen for this reason.
fn of_product(
    form: &WeightForm,
    arch: Arch,
    product: &VectorProduct,
    reason: String,
) -> Result<GemvPlan> {
    let [ctas, threads, dynamic_shared, tile_rows] = product.shape();
    let scales = match product.before() {
        Some(_) => {
            "scales of activations are laid out in whole 128x4 tiles before; the product begins to \
             copy weights while that is done"
        }
        None => "the product loads scales of activations as they are in memory",
    };
    let why = vec![reason, product.why(), scales.to_owned()];
    let plan = GemvPlan {
        op: "gemv",
        kernel: product.kernel(),
        arch,
        grid: [ctas, 1],
        threads,
        dynamic_shared,
        launches: 1,
        tile_rows,
        load_bytes: 0,
        panel: 0,
        share: 0,
        rest: 0,
        before: product.before().into_iter().cloned().collect(),
        workspace_bytes: product.workspace_bytes(),
        additions: product.additions(),
        repack: "none",
        why,
    };
    plan.of_weights(form)
}
