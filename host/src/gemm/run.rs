//! A GEMM with device memory of its own.

use fp4_formats::BlockFormat;
use ptx_emu::LaunchReport;

use super::check::{check_operands, same_columns};
use super::epilogue::OwnedVectors;
use super::{
    ActivationBuffers, Activations, DeviceWeights, GatedWeights, Gemm, GemmOptions, GemmPlan,
    GemmResult, Output, Repacked, ResultBuffers, Workspace,
};
use crate::buffer::DeviceBuffer;
use crate::device::Kernels;
use crate::error::{Error, Result};
use crate::tensor::BlockScaled;

/// A GEMM with operands, result and workspace of its own on a device, ready to launch any number
/// of times.
#[derive(Debug)]
pub struct GemmRun {
    gemm: Gemm,
    weights: DeviceWeights,
    activations: Vec<DeviceBuffer>,
    vectors: OwnedVectors,
    workspace: Option<Workspace>,
    out: DeviceBuffer,
    /// Of a result in NVFP4.
    out_scales: Option<DeviceBuffer>,
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
/// let up = UpOptions { bias: Some(vec![-28.0; 40]), ..UpOptions::default() };
/// let options =
///     GemmOptions { activation: Activation::Silu, up: Some(up), ..GemmOptions::default() };
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
    /// As [`Gemm::new`]; [`Error::Shape`] where the vectors' lengths are not those of the
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
        let gemm = Gemm::new(kernels, &weights, rows, a.kind(), a.global_scale(), options)?;
        let activations = match a {
            Activations::Blocks(blocks) => vec![
                DeviceBuffer::upload(device, "a codes", blocks.codes())?,
                DeviceBuffer::upload(device, "a scales", blocks.scales())?,
            ],
            Activations::Halves(halves) => vec![DeviceBuffer::upload(device, "a", halves.bytes())?],
        };
        let workspace = match gemm.workspace_bytes() {
            0 => None,
            bytes => Some(Workspace::new(device, bytes)?),
        };
        let [out_bytes, out_scale_bytes] = gemm.out_bytes()?;
        let out_scales = match gemm.epilogue.output {
            Output::Floats(_) => None,
            Output::Nvfp4 { .. } => {
                Some(DeviceBuffer::poisoned(device, "c scales", out_scale_bytes)?)
            }
        };
        Ok(Self {
            vectors: OwnedVectors::upload(device, options)?,
            out: DeviceBuffer::poisoned(device, "c", out_bytes)?,
            out_scales,
            gemm,
            weights,
            activations,
            workspace,
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
    pub fn launch(&self) -> Result<Vec<LaunchReport>> {
        let a = match self.activations.as_slice() {
            [codes, scales] => ActivationBuffers::Blocks { codes, scales },
            [halves] => ActivationBuffers::Halves(halves),
            other => return Err(Error::shape("buffers of activations", "1 or 2", other.len())),
        };
        let out = match &self.out_scales {
            Some(scales) => ResultBuffers::Blocks { codes: &self.out, scales },
            None => ResultBuffers::Floats(&self.out),
        };
        self.gemm.launch(a, &self.weights, out, self.workspace.as_ref(), self.vectors.vectors())
    }

    /// Launches and brings the result back.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): also what the emulator diagnoses, and on it a
    /// result that the kernel did not write.
    pub fn run(&self) -> Result<GemmResult> {
        let reports = self.launch()?;
        Ok(GemmResult { reports, ..self.result()? })
    }

    /// Brings back the result of what was launched before, without launching.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn result(&self) -> Result<GemmResult> {
        Ok(GemmResult {
            bytes: self.out.read()?,
            scales: self.out_scales.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read)?,
            dims: self.gemm.result_dims()?,
            output: self.gemm.epilogue.output,
            plan: self.gemm.plan.clone(),
            reports: Vec::new(),
        })
    }

    /// Bytes of operands and result on the device, padding included, workspace left out.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let buffers = self.activations.iter().chain([self.weights.buffer(), &self.out]);
        let buffers = buffers.chain(&self.out_scales);
        self.vectors.bytes() + buffers.map(|buffer| buffer.len() as u64).sum::<u64>()
    }
}
