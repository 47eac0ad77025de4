//! A GEMM with device memory of its own.

use fp4_formats::BlockFormat;

use super::check::{check_operands, same_columns};
use super::epilogue::OwnedVectors;
use super::tokens::TokenBuffers;
use super::{
    Activations, DeviceWeights, GatedWeights, Gemm, GemmOptions, GemmPlan, GemmResult,
    GroupBuffers, Repacked, Workspace,
};
use crate::buffer::DeviceBuffer;
use crate::device::{Device, Kernels};
use crate::error::Result;
use crate::tensor::BlockScaled;

/// A product with operands, result and workspace of its own on a device.
#[derive(Debug)]
pub(super) struct Owned {
    pub gemm: Gemm,
    weights: DeviceWeights,
    activations: TokenBuffers,
    vectors: OwnedVectors,
    workspace: Option<Workspace>,
    out: TokenBuffers,
}

impl Owned {
    /// Checks K, makes a plan by `plan`, and copies the operands.
    ///
    /// # Errors
    /// As `plan`; [`Error::Shape`](crate::error::Error::Shape) for another K than the weights',
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new<F: BlockFormat>(
        device: &Device,
        a: &Activations<'_, F>,
        weights: &Repacked,
        options: &GemmOptions,
        plan: impl FnOnce(&DeviceWeights) -> Result<Gemm>,
    ) -> Result<Self> {
        let columns = weights.form().columns;
        let required = format_args!("{columns}, the weights' K");
        same_columns(a.name(), a.dims().cols(), required, columns as usize)?;
        let weights = weights.upload(device)?;
        let gemm = plan(&weights)?;
        let workspace = match gemm.workspace_bytes() {
            0 => None,
            bytes => Some(Workspace::new(device, bytes)?),
        };
        let poisoned = |name: &str, bytes| DeviceBuffer::poisoned(device, name, bytes);
        Ok(Self {
            activations: TokenBuffers::upload(device, a)?,
            vectors: OwnedVectors::upload(device, options)?,
            workspace,
            out: TokenBuffers::of("c", gemm.out_bytes()?, poisoned)?,
            gemm,
            weights,
        })
    }

    /// Launches, a grouped product with `groups`, without waiting for the result.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`] and [`Gemm::launch_grouped`].
    pub fn launch(&self, groups: Option<GroupBuffers<'_>>) -> Result<()> {
        let Self { gemm, weights, .. } = self;
        let (a, out) = (self.activations.activations(), self.out.result());
        let (workspace, vectors) = (self.workspace.as_ref(), self.vectors.vectors());
        match groups {
            None => gemm.launch(a, weights, out, workspace, vectors),
            Some(groups) => gemm.launch_grouped(groups, a, weights, out, workspace, vectors),
        }
    }

    /// Brings back the result of what was launched before.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn result(&self) -> Result<GemmResult> {
        let [bytes, scales] = self.out.read()?;
        let (dims, output) = (self.gemm.result_dims()?, self.gemm.epilogue.output);
        let (plan, magnitude) = (self.gemm.plan.clone(), self.vectors.largest()?);
        Ok(GemmResult { bytes, scales, dims, output, magnitude, plan })
    }
}

/// The options of a product of `a`, which has its own scale.
pub(super) fn scaled<F: BlockFormat>(a: &Activations<'_, F>, options: &GemmOptions) -> GemmOptions {
    options.clone().activation_scale(options.activation_scale * a.global_scale())
}

/// A GEMM with operands, result and workspace of its own on a device, ready to launch any number
/// of times.
#[derive(Debug)]
pub struct GemmRun(Owned);

/// Runs one GEMM: repacks the weights, copies, launches and brings the result back.
///
/// # Errors
/// The same as [`GemmRun::new`] and [`GemmRun::run`].
pub fn gemm<F: BlockFormat>(
    kernels: &Kernels,
    a: &Activations<'_, F>,
    b: &BlockScaled<F>,
    options: &GemmOptions,
) -> Result<GemmResult> {
    let weights = Repacked::for_device(kernels.device(), b, a.kind())?;
    check_operands(a, b.into(), options)?;
    GemmRun::new(kernels, a, &weights, options)?.run()
}

/// Runs one gated GEMM, `act(A gate^T) * (A up^T)`, as [`gemm`] does a plain one; `options` have
/// an [`up`](GemmOptions::up).
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::ScaleLayout;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{
///     Activation, Activations, GatedWeights, GemmOptions, UpOptions, gemm_gated,
/// };
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&DeviceRequest::Auto)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let (scale, layout, dims) = (TensorScale::FromAmax, ScaleLayout::Linear, Dims::new(1, 40, 256)?);
/// let gate = quantize("gate", &[1.0 / 64.0; 40 * 256], dims, scale, layout)?;
/// let up = quantize("up", &[0.5; 40 * 256], dims, scale, layout)?;
/// let input = quantize("x", &[1.0; 3 * 256], Dims::new(1, 3, 256)?, scale, layout)?;
///
/// // gpt-oss has both in one tensor: `GatedWeights::interleaved(&gate_up)`.
/// let weights = GatedWeights::pair(&gate, &up)?;
/// let up = UpOptions::new().bias(vec![-28.0; 40]);
/// let options = GemmOptions::new().activation(Activation::Silu).up(up);
/// let result = gemm_gated(&kernels, &Activations::Blocks(&input), &weights, &options)?;
/// // silu(4) * (128 - 28)
/// assert_eq!(result.values().len(), 3 * 40);
/// assert!(result.values().iter().all(|c| (c - 392.8).abs() < 2.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The same as [`GemmRun::new`] and [`GemmRun::run`].
pub fn gemm_gated<F: BlockFormat>(
    kernels: &Kernels,
    a: &Activations<'_, F>,
    b: &GatedWeights<'_, F>,
    options: &GemmOptions,
) -> Result<GemmResult> {
    let weights = Repacked::gated(kernels.device(), b, a.kind())?;
    check_operands(a, (*b).into(), options)?;
    GemmRun::new(kernels, a, &weights, options)?.run()
}

impl GemmRun {
    /// Checks, plans, and copies the operands to the device; launches nothing.
    ///
    /// # Errors
    /// The same as [`Gemm::new`]; [`Error::Shape`](crate::error::Error::Shape) where the vectors'
    /// lengths are not those of the result; [`DeviceError`](crate::device::DeviceError).
    pub fn new<F: BlockFormat>(
        kernels: &Kernels,
        a: &Activations<'_, F>,
        weights: &Repacked,
        options: &GemmOptions,
    ) -> Result<Self> {
        let rows = [a.dims().batch(), a.dims().rows()];
        let plan = |weights: &DeviceWeights| {
            Gemm::new(kernels, weights, rows, a.kind(), &scaled(a, options))
        };
        Owned::new(kernels.device(), a, weights, options, plan).map(Self)
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &GemmPlan {
        self.0.gemm.plan()
    }

    /// Launches without waiting for the result, also while a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        self.0.launch(None)
    }

    /// Launches and brings the result back.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): also what the emulator diagnoses, and on it a
    /// result that the kernel did not write.
    pub fn run(&self) -> Result<GemmResult> {
        self.launch()?;
        self.result()
    }

    /// Brings back the result of what was launched before, without launching.
    ///
    /// # Errors
    /// The same as [`run`](Self::run).
    pub fn result(&self) -> Result<GemmResult> {
        self.0.result()
    }

    /// Bytes of operands and result on the device, padding included, workspace left out.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let Owned { activations, weights, out, vectors, .. } = &self.0;
        vectors.bytes() + (activations.bytes() + weights.len() + out.bytes()) as u64
    }
}
