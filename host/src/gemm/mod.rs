//! GEMM with block-scaled 4-bit weights on a device.
//!
//! `C[l, m, n] = alpha * ga * gb * row[m] * column[n] * sum_k A[l, m, k] B[l, n, k] + bias[n]`, for any
//! M, N and L of at least 1 and K a multiple of the block. The weights `B` are NVFP4 or MXFP4; the
//! activations `A` are in the same format (W4A4), or f16 or bf16 (W4A16; MXFP4 weights take bf16), or
//! e4m3 with a scale for each token (W4A8; weights of NVFP4 are folded to e4m3, which rounds them, and on
//! sm_90a those of MXFP4, too).
//! The result is f16, bf16, f32, or NVFP4 with scales ([`Output`]).
//!
//! With [`GemmOptions::activation`] the result is `act(C)`. Gated ([`GatedWeights`],
//! [`GemmOptions::up`]), it is `act(C_gate) * C_up`, each with its own alpha, column factors and
//! bias, from one pass over the activations.
//!
//! | step | type |
//! | --- | --- |
//! | once per weight | [`Repacked`], [`DeviceWeights`]: rearranged for the kernels, on the device |
//! | once per shape | [`Gemm`]: checked and planned ([`plan_for`]: with what was measured, if anything was); knows its workspace, and where the matrices of a batch are ([`BatchStrides`]) |
//! | or once per set of products | [`MixedGemm`]: several products of any sizes in one launch, on buffers that it remembers |
//! | once per product | [`Gemm::launch`]: on buffers of the caller, allocates nothing and waits for nothing |
//!
//! [`gemm`] and [`gemm_gated`] do all three.
//!
//! # Example
//! On a machine without a GPU, this runs on the emulator. `None` in place of the folder looks
//! beside the program.
//! ```
//! use std::path::Path;
//!
//! use fp4_formats::ScaleLayout;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::gemm::{Activations, GemmOptions, gemm};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! // Where `cargo xtask build-kernels` puts them.
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("w", &[0.5; 64 * 256], Dims::new(1, 64, 256)?, scale, layout)?;
//! let input = quantize("x", &[1.0; 3 * 256], Dims::new(1, 3, 256)?, scale, layout)?;
//! let options = GemmOptions::new().bias(vec![2.0; 64]);
//! let result = gemm(&kernels, &Activations::Blocks(&input), &weight, &options)?;
//! println!("{}", result.plan);
//! assert_eq!(result.values().len(), 3 * 64);
//! assert!(result.values().iter().all(|c| (c - 130.0).abs() < 0.25));
//! # Ok(())
//! # }
//! ```

mod activations;
mod buffers;
mod check;
mod epilogue;
mod family;
mod fp8;
mod gated;
mod grouped;
mod grouped_run;
mod mixed;
mod plan;
mod product;
mod remembered;
mod result;
mod run;
mod sm100;
mod sm90;
mod strides;
mod tokens;
mod tuned;
mod weights;

pub use activations::{Activations, Fp8Matrix, GemmActivations, HalfMatrix};
pub use buffers::{ActivationBuffers, Workspace};
pub use check::{check_gated, check_operands};
pub use epilogue::{Vectors, check_vectors, group_options, scale_options};
pub use fp4_formats::gemm::Activation;
pub use gated::{GatedWeights, Weights};
pub use grouped::{ChosenRows, GroupBuffers, Grouping, SettledCounts, group_offsets};
pub use grouped_run::GroupedRun;
pub use mixed::{MixedGemm, MixedProduct};
pub use plan::{Candidate, GemmOverrides, GemmPlan, Reads, Source, plan};
pub use product::Gemm;
pub use result::{GemmResult, Output, ResultBuffers};
pub use run::{GemmRun, gemm, gemm_gated};
pub(crate) use sm100::{VectorOperands, VectorProduct, rates};
pub use strides::BatchStrides;
pub(crate) use tokens::TokenBuffers;
pub use tuned::{check_table, plan_for};
pub use weights::{DeviceWeights, Repacked, WeightForm, folded_row};

use fp4_formats::BlockFormat;
use fp4_formats::quantize::Format;

use crate::error::Result;
pub use crate::plan::{ActivationInput, ActivationKind};
use crate::setters::setters;

/// Choices of a GEMM besides its operands.
///
/// ```
/// use nvfp4::FloatType;
/// use nvfp4::gemm::{Activation, GemmOptions};
///
/// let options = GemmOptions::new().output(FloatType::Bf16).activation(Activation::Silu).alpha(0.5);
/// assert_eq!(options.alpha, 0.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GemmOptions {
    /// Factor of the sums; of a gated product, of the gate's.
    pub alpha: f32,
    /// Scale of the whole tensor of activations, of both halves' sums; 1 where the activations are a
    /// tensor of this crate's, which has its own.
    pub activation_scale: f32,
    /// Type of the result.
    pub output: Output,
    /// A factor for each row of `A`, `[M]`.
    pub row_factors: Option<Vec<f32>>,
    /// A factor for each row of `B`, `[N]`; of a gated product, of the gate.
    pub column_factors: Option<Vec<f32>>,
    /// The bias: added to each column, `[N]`; of a gated product, of the gate.
    pub bias: Option<Vec<f32>>,
    /// Activation function of the values; of a gated product, of the gate's.
    pub activation: Activation,
    /// Options of the other half, for gated weights.
    pub up: Option<UpOptions>,
    /// Whether a [`GemmRun`] or [`GroupedRun`] finds the [largest magnitude](GemmResult::magnitude) of
    /// the results. Launches on buffers of the caller's name its place, [`Vectors::magnitude`].
    pub magnitude: bool,
    /// Choices that override the plan's.
    pub overrides: GemmOverrides,
}

impl Default for GemmOptions {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            activation_scale: 1.0,
            output: Output::default(),
            row_factors: None,
            column_factors: None,
            bias: None,
            activation: Activation::default(),
            up: None,
            magnitude: false,
            overrides: GemmOverrides::default(),
        }
    }
}

/// Choices for the half of a gated product that the gate is multiplied with. Row factors are those
/// of [`GemmOptions`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UpOptions {
    /// Factor of its sums.
    pub alpha: f32,
    /// A factor for each of its rows, `[N]`.
    pub column_factors: Option<Vec<f32>>,
    /// The bias: added to each column, `[N]`.
    pub bias: Option<Vec<f32>>,
}

impl Default for UpOptions {
    fn default() -> Self {
        Self { alpha: 1.0, column_factors: None, bias: None }
    }
}

impl GemmOptions {
    /// The usual choices: f16, and nothing but the product.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the choices that do not depend on the operands.
    ///
    /// # Errors
    /// [`Error::Scalar`](crate::error::Error::Scalar).
    pub fn check(&self) -> Result<()> {
        epilogue::Steps::new(self).map(|_| ())
    }
}

impl UpOptions {
    /// The usual choices: nothing but the product.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(GemmOptions {
    alpha: f32,
    activation_scale: f32,
    output: impl Into<Output>,
    row_factors: impl Into<Option<Vec<f32>>>,
    column_factors: impl Into<Option<Vec<f32>>>,
    bias: impl Into<Option<Vec<f32>>>,
    activation: Activation,
    up: impl Into<Option<UpOptions>>,
    magnitude: bool,
    overrides: GemmOverrides,
});

setters!(UpOptions {
    alpha: f32,
    column_factors: impl Into<Option<Vec<f32>>>,
    bias: impl Into<Option<Vec<f32>>>,
});

/// The value that names a format's type.
#[must_use]
pub fn format_of<F: BlockFormat>() -> Format {
    if F::NAME == Format::Nvfp4.name() { Format::Nvfp4 } else { Format::Mxfp4 }
}
