//! Batched NVFP4 GEMV on a device.
//!
//! `C[l, m] = alpha * ga * gb * sum_k a[l, k] * sa[l, k/16] * b[l, m, k] * sb[l, m, k/16]`: `a` are
//! the activations, one vector per batch entry; `b` are the weights, one row per output; `ga` and
//! `gb` are their global scales. M and L are at least 1, K is a multiple of 16. The scales of
//! activations and weights are linear or 128x4, independently of each other.
//! The oracle of the crate `nvfp4-lab` states the tolerance of the result.
//!
//! [`gemv`] does all in one call. An engine makes a [`Gemv`] once for a shape, and launches it on
//! its own buffers, on its stream and in its graph.
//!
//! Linear scales of the weights are faster than 128x4 ones. [`Repacked`] puts them in linear order when
//! weights are loaded; [`Gemv::new`] and [`gemv`] read scales as they are stored.
//!
//! On sm_100a large weights with 128x4 scales may be multiplied by the tensor cores, as a GEMM of one token for
//! each batch entry. That needs a workspace: [`Gemv::with_workspace`]. [`fastest_layout`] says which layout
//! is then the faster one. [`GemvRun`] has its own workspace.

mod plan;
mod product;
mod run;
mod tensor;
mod weights;

pub use plan::{GemvOverrides, GemvPlan, plan};
pub(crate) use product::Planned;
pub use product::{Gemv, GemvBuffers, GemvLayouts};
pub use run::GemvRun;
pub use tensor::{fastest_layout, plan_with_workspace};
pub use weights::{DeviceWeights, Repacked, WeightForm};

use fp4_formats::{BlockFormat, FloatType, Nvfp4};

use crate::device::Kernels;
use crate::error::{Error, Result};
use crate::floats;
use crate::setters::setters;
use crate::shape::GemvShape;
use crate::tensor::BlockScaled;

/// Options of a GEMV.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GemvOptions {
    /// Factor of the result.
    pub alpha: f32,
    /// Scale of the whole tensor of activations; 1 where they are a tensor of this crate's, which has
    /// its own.
    pub activation_scale: f32,
    /// The same of the weights.
    pub weight_scale: f32,
    /// Element type of the result.
    pub output: FloatType,
    /// Choices made instead of the plan's.
    pub overrides: GemvOverrides,
}

impl Default for GemvOptions {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            activation_scale: 1.0,
            weight_scale: 1.0,
            output: FloatType::F16,
            overrides: GemvOverrides::default(),
        }
    }
}

impl GemvOptions {
    /// The usual choices: f16, and nothing but the product.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(GemvOptions {
    alpha: f32,
    activation_scale: f32,
    weight_scale: f32,
    output: FloatType,
    overrides: GemvOverrides,
});

/// The result `[L, M]` of a GEMV.
#[derive(Clone, Debug)]
pub struct GemvResult {
    /// Little-endian elements of [`output`](Self::output), row-major.
    pub bytes: Vec<u8>,
    /// Their type.
    pub output: FloatType,
    /// The plan that it was computed by.
    pub plan: GemvPlan,
}

impl GemvResult {
    /// The elements as f32.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        floats::decode(self.output, &self.bytes)
    }
}

/// Checks the operands of a GEMV, activations `a` and weights `b`, and returns its shape.
///
/// # Errors
/// [`Error::Shape`] if they do not fit each other.
pub fn shape<F: BlockFormat>(a: &BlockScaled<F>, b: &BlockScaled<F>) -> Result<GemvShape> {
    let dims = b.dims();
    let shape = GemvShape { m: dims.rows(), k: dims.cols(), l: dims.batch() };
    check_activations(a, b.name(), shape)?;
    Ok(shape)
}

/// Checks that the activations `a` fit the weights called `b`.
///
/// # Errors
/// [`Error::Shape`].
fn check_activations<F: BlockFormat>(a: &BlockScaled<F>, b: &str, shape: GemvShape) -> Result<()> {
    let (dims, a) = (a.dims(), a.name());
    if dims.rows() != 1 {
        let required = "1: a GEMV has one vector of activations per batch entry";
        return Err(Error::shape(format!("rows of `{a}`"), required, dims.rows()));
    }
    if dims.cols() != shape.k {
        let required = format!("{}, the K of `{b}`", shape.k);
        return Err(Error::shape(format!("K of `{a}`"), required, dims.cols()));
    }
    if dims.batch() != shape.l {
        let required = format!("{}, the batch of `{b}`", shape.l);
        return Err(Error::shape(format!("batch of `{a}`"), required, dims.batch()));
    }
    Ok(())
}

/// Multiplies the activations `a` with the weights `b`, whose scales are read as they are stored:
/// [`GemvRun::new`], then [`GemvRun::run`].
///
/// # Errors
/// The same.
pub fn gemv(
    kernels: &Kernels,
    a: &BlockScaled<Nvfp4>,
    b: &BlockScaled<Nvfp4>,
    options: GemvOptions,
) -> Result<GemvResult> {
    GemvRun::new(kernels, a, b, options)?.run()
}
