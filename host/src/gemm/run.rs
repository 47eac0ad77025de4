//! A GEMM with device memory of its own.

use fp4_formats::BlockFormat;

use super::check::{check_operands, same_columns};
use super::epilogue::OwnedVectors;
use super::{
    ActivationBuffers, Activations, DeviceWeights, GatedWeights, Gemm, GemmOptions, GemmPlan,
    GemmResult, Output, Repacked, ResultBuffers, Workspace,
};
use crate::buffer::DeviceBuffer;
use crate::device::{Device, Kernels};
use crate::error::Result;
use crate::tensor::BlockScaled;

/// A GEMM with operands, result and workspace of its own on a device, ready to launch any number
/// of times.
#[derive(Debug)]
pub struct GemmRun {
    gemm: Gemm,
    weights: DeviceWeights,
    activations: OwnedActivations,
    vectors: OwnedVectors,
    workspace: Option<Workspace>,
    out: OwnedResult,
}

/// Activations on a device.
#[derive(Debug)]
pub(super) enum OwnedActivations {
    Blocks { codes: DeviceBuffer, scales: DeviceBuffer },
    Halves(DeviceBuffer),
}

impl OwnedActivations {
    /// Copies them.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn upload<F: BlockFormat>(device: &Device, a: &Activations<'_, F>) -> Result<Self> {
        let upload = |name: &str, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes);
        Ok(match a {
            Activations::Blocks(blocks) => Self::Blocks {
                codes: upload("a codes", blocks.codes())?,
                scales: upload("a scales", blocks.scales())?,
            },
            Activations::Halves(halves) => Self::Halves(upload("a", halves.bytes())?),
        })
    }

    /// For a launch.
    pub fn buffers(&self) -> ActivationBuffers<'_> {
        match self {
            Self::Blocks { codes, scales } => ActivationBuffers::Blocks { codes, scales },
            Self::Halves(halves) => ActivationBuffers::Halves(halves),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Blocks { codes, scales } => codes.len() + scales.len(),
            Self::Halves(halves) => halves.len(),
        }
    }
}

/// Memory of a product's result.
#[derive(Debug)]
pub(super) struct OwnedResult {
    elements: DeviceBuffer,
    /// Of a result in NVFP4.
    scales: Option<DeviceBuffer>,
}

impl OwnedResult {
    /// Of a product, poisoned.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(device: &Device, gemm: &Gemm) -> Result<Self> {
        let [bytes, scale_bytes] = gemm.out_bytes()?;
        let scales = match gemm.epilogue.output {
            Output::Floats(_) => None,
            Output::Nvfp4 { .. } => Some(DeviceBuffer::poisoned(device, "c scales", scale_bytes)?),
        };
        Ok(Self { elements: DeviceBuffer::poisoned(device, "c", bytes)?, scales })
    }

    /// For a launch.
    pub fn buffers(&self) -> ResultBuffers<'_> {
        match &self.scales {
            Some(scales) => ResultBuffers::Blocks { codes: &self.elements, scales },
            None => ResultBuffers::Floats(&self.elements),
        }
    }

    /// Brings back what `gemm` left in it.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn read(&self, gemm: &Gemm) -> Result<GemmResult> {
        Ok(GemmResult {
            bytes: self.elements.read()?,
            scales: self.scales.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read)?,
            dims: gemm.result_dims()?,
            output: gemm.epilogue.output,
            plan: gemm.plan.clone(),
        })
    }

    fn bytes(&self) -> usize {
        self.elements.len() + self.scales.as_ref().map_or(0, DeviceBuffer::len)
    }
}

/// The options of a product of `a`, which has a scale of its own.
pub(super) fn scaled<F: BlockFormat>(a: &Activations<'_, F>, options: &GemmOptions) -> GemmOptions {
    options.clone().activation_scale(options.activation_scale * a.global_scale())
}

/// The workspace of a product, if it takes one.
///
/// # Errors
/// [`DeviceError`](crate::device::DeviceError).
pub(super) fn owned_workspace(device: &Device, gemm: &Gemm) -> Result<Option<Workspace>> {
    match gemm.workspace_bytes() {
        0 => Ok(None),
        bytes => Workspace::new(device, bytes).map(Some),
    }
}

/// Runs one GEMM: repacks the weights, copies, launches and brings the result back.
///
/// # Errors
/// As [`GemmRun::new`] and [`GemmRun::run`].
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
/// As [`GemmRun::new`] and [`GemmRun::run`].
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
    /// As [`Gemm::new`]; [`Error::Shape`](crate::error::Error::Shape) where the vectors' lengths are not those of the
    /// result; [`DeviceError`](crate::device::DeviceError).
    pub fn new<F: BlockFormat>(
        kernels: &Kernels,
        a: &Activations<'_, F>,
        weights: &Repacked,
        options: &GemmOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let dims = a.dims();
        let columns = weights.form().columns;
        let required = format_args!("{columns}, the weights' K");
        same_columns(a.name(), dims.cols(), required, columns as usize)?;
        let weights = weights.upload(device)?;
        let rows = [dims.batch(), dims.rows()];
        let gemm = Gemm::new(kernels, &weights, rows, a.kind(), &scaled(a, options))?;
        Ok(Self {
            activations: OwnedActivations::upload(device, a)?,
            vectors: OwnedVectors::upload(device, options)?,
            workspace: owned_workspace(device, &gemm)?,
            out: OwnedResult::new(device, &gemm)?,
            gemm,
            weights,
        })
    }

    /// How it will be run.
    #[must_use]
    pub fn plan(&self) -> &GemmPlan {
        self.gemm.plan()
    }

    /// Launches without waiting for the result, also while a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        let (a, out) = (self.activations.buffers(), self.out.buffers());
        self.gemm.launch(a, &self.weights, out, self.workspace.as_ref(), self.vectors.vectors())
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
    /// As [`run`](Self::run).
    pub fn result(&self) -> Result<GemmResult> {
        self.out.read(&self.gemm)
    }

    /// Bytes of operands and result on the device, padding included, workspace left out.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let bytes = self.activations.bytes() + self.weights.len() + self.out.bytes();
        self.vectors.bytes() + bytes as u64
    }
}
