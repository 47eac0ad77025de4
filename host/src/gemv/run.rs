//! A GEMV of tensors in host memory.

use fp4_formats::Nvfp4;

use super::{DeviceWeights, Gemv, GemvOptions, GemvPlan, GemvResult, Repacked, check_activations};
use crate::buffer::DeviceBuffer;
use crate::device::Kernels;
use crate::error::Result;
use crate::gemm::Workspace;
use crate::tensor::BlockScaled;

/// A GEMV with its operands on a device, ready to launch any number of times.
#[derive(Debug)]
pub struct GemvRun {
    product: Gemv,
    a_codes: DeviceBuffer,
    a_scales: DeviceBuffer,
    weights: DeviceWeights,
    out: DeviceBuffer,
    /// The workspace, if the plan needs one.
    workspace: Option<Workspace>,
}

impl GemvRun {
    /// Checks the activations `a` and the weights `b`, plans, and copies them to the device, scales in
    /// the layouts that they are in. It launches nothing.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) for operands that do not fit each other, and the
    /// errors of [`Gemv::new`].
    pub fn new(
        kernels: &Kernels,
        a: &BlockScaled<Nvfp4>,
        b: &BlockScaled<Nvfp4>,
        options: GemvOptions,
    ) -> Result<Self> {
        Self::of_weights(kernels, a, &Repacked::new(b, b.layout())?, options)
    }

    /// [`new`](Self::new) with weights whose scales may have been put in another layout.
    ///
    /// # Errors
    /// The same as [`new`](Self::new).
    pub fn of_weights(
        kernels: &Kernels,
        a: &BlockScaled<Nvfp4>,
        weights: &Repacked<'_>,
        options: GemvOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let form = weights.form();
        check_activations(a, weights.name(), form.shape)?;
        let options = GemvOptions {
            activation_scale: options.activation_scale * a.global_scale(),
            ..options
        };
        let product = Gemv::with_workspace(kernels, form, a.layout(), options)?;
        product.alpha(weights.global_scale())?;
        let a_codes = DeviceBuffer::upload(device, "a codes", a.codes())?;
        let a_scales = DeviceBuffer::upload(device, "a scales", a.scales())?;
        let weights = weights.upload(device)?;
        let out = DeviceBuffer::poisoned(device, "c", product.out_bytes())?;
        let workspace = match product.workspace_bytes() {
            0 => None,
            bytes => Some(Workspace::new(device, bytes)?),
        };
        Ok(Self { product, a_codes, a_scales, weights, out, workspace })
    }

    /// The plan that it runs by.
    #[must_use]
    pub fn plan(&self) -> &GemvPlan {
        self.product.plan()
    }

    /// Launches without waiting for the result, as [`Gemv::launch`].
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        let Self { a_codes, a_scales, weights, out, product, workspace } = self;
        product.launch_weights_in([a_codes, a_scales], weights, out, workspace.as_ref())
    }

    /// Launches, waits, and copies the result to the host.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), which includes the emulator's diagnostics, among
    /// them a result that the kernel did not write.
    pub fn run(&self) -> Result<GemvResult> {
        self.launch()?;
        self.result()
    }

    /// Waits for the launches so far and copies the result to the host.
    ///
    /// # Errors
    /// The same as of [`run`](Self::run).
    pub fn result(&self) -> Result<GemvResult> {
        let bytes = self.out.read()?;
        let (output, plan) = (self.product.output(), self.plan().clone());
        Ok(GemvResult { bytes, output, plan })
    }

    /// Bytes of operands and result on the device, padding included.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let Self { a_codes, a_scales, weights, out, .. } = self;
        [a_codes, a_scales, weights.codes(), weights.scales(), out]
            .iter()
            .map(|buffer| buffer.len() as u64)
            .sum()
    }
}
