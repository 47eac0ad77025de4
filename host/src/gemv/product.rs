//! A planned GEMV, launched on buffers of the caller's.

use fp4_formats::gemv::GemvParams;
use fp4_formats::params::bytes;
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, ScaleLayout};

use super::tensor::{self, Target};
use super::{DeviceWeights, GemvOptions, GemvPlan, WeightForm, plan};
use crate::buffer::DeviceBuffer;
use crate::device::{self, FoundKernel, Kernels, LaunchSpec, MAX_GRID_Y};
use crate::error::{Error, Result};
use crate::gemm::{VectorOperands, VectorProduct, Workspace};
use crate::quantize::device::scale_bytes;
use crate::shape::GemvShape;
use crate::tensor::combined_scale;

/// The layouts of the scales of both operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemvLayouts {
    /// Layout of the activations' scales.
    pub activations: ScaleLayout,
    /// Layout of the weights' scales.
    pub weights: ScaleLayout,
}

/// The device memory of a launch. Buffers start at multiples of 16 bytes, and the matrices of a batch
/// follow each other.
#[derive(Clone, Copy, Debug)]
pub struct GemvBuffers<'a> {
    /// Packed codes `[L, K/2]` of the activations.
    pub a_codes: &'a DeviceBuffer,
    /// Their scales: a matrix of one row for each batch entry.
    pub a_scales: &'a DeviceBuffer,
    /// Packed codes `[L, M, K/2]` of the weights.
    pub b_codes: &'a DeviceBuffer,
    /// Their scales: a matrix of M rows for each batch entry.
    pub b_scales: &'a DeviceBuffer,
    /// The result `[L, M]`.
    pub out: &'a DeviceBuffer,
}

/// A planned GEMV: made once for a shape, launched any number of times on buffers of the caller's,
/// also while a CUDA graph is recorded. A launch allocates nothing and waits for nothing.
///
/// ```
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemv::{Gemv, GemvBuffers, GemvLayouts, GemvOptions};
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::shape::GemvShape;
/// use nvfp4::tensor::Dims;
/// use nvfp4::{FloatType, ScaleLayout, formats};
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&DeviceRequest::Auto)?;
/// let kernels = device.kernels(None)?;
/// let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
/// let weight = quantize("w", &[0.5; 40 * 64], Dims::new(1, 40, 64)?, scale, layout)?;
/// let input = quantize("x", &[3.0; 64], Dims::new(1, 1, 64)?, scale, layout)?;
///
/// // Once per shape.
/// let shape = GemvShape { m: 40, k: 64, l: 1 };
/// let layouts = GemvLayouts { activations: layout, weights: layout };
/// let options = GemvOptions::new()
///     .output(FloatType::F32)
///     .activation_scale(input.global_scale())
///     .weight_scale(weight.global_scale());
/// let product = Gemv::new(&kernels, shape, layouts, options)?;
///
/// // Once per tensor.
/// let a_codes = DeviceBuffer::upload(&device, "a codes", input.codes())?;
/// let a_scales = DeviceBuffer::upload(&device, "a scales", input.scales())?;
/// let b_codes = DeviceBuffer::upload(&device, "b codes", weight.codes())?;
/// let b_scales = DeviceBuffer::upload(&device, "b scales", weight.scales())?;
/// let out = DeviceBuffer::poisoned(&device, "c", product.out_bytes())?;
///
/// // Once per product.
/// let (a_codes, a_scales) = (&a_codes, &a_scales);
/// let (b_codes, b_scales) = (&b_codes, &b_scales);
/// product.launch(GemvBuffers { a_codes, a_scales, b_codes, b_scales, out: &out })?;
/// let values = nvfp4::floats::decode(FloatType::F32, &out.read()?);
/// assert!(values.iter().all(|c| (c - 96.0).abs() < 0.1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gemv {
    kernels: Kernels,
    plan: GemvPlan,
    kernel: FoundKernel,
    /// A product on the tensor cores, with the kernel that is launched before, if one is.
    tensor: Option<(VectorProduct, Option<FoundKernel>)>,
    form: WeightForm,
    activations: ScaleLayout,
    output: FloatType,
    /// Factors of the result: alpha, and the scales of the activations and of the weights.
    factors: [f32; 3],
    /// Bytes of the scales of a matrix, of the activations and of the weights.
    scale_strides: [usize; 2],
    out_bytes: usize,
}

/// A GEMV as planned, before anything is loaded.
pub(crate) struct Planned {
    plan: GemvPlan,
    /// The product on the tensor cores, if it is one.
    product: Option<VectorProduct>,
    factors: [f32; 3],
    scale_strides: [usize; 2],
    out_bytes: usize,
}

impl Planned {
    /// Plans for a target. Launches have a workspace where `workspace` says so.
    ///
    /// # Errors
    /// The same as [`Gemv::new`], but for the device's.
    pub fn new(
        &device::Target { arch, machine }: &device::Target,
        form: &WeightForm,
        activations: ScaleLayout,
        options: &GemvOptions,
        workspace: bool,
    ) -> Result<Self> {
        let (plan, product) = if workspace {
            let target = Target { activations, output: options.output, arch, machine };
            tensor::choose(form, target, &options.overrides)?
        } else {
            let plan = plan(form.shape, form.scales, arch, machine, &options.overrides)?;
            (plan.of_weights(form)?, None)
        };
        let GemvShape { m, k, l } = form.shape;
        let out_bytes = m.checked_mul(l);
        let out_bytes = out_bytes.and_then(|n| n.checked_mul(options.output.bytes() as usize));
        let out_bytes = out_bytes.ok_or_else(|| Error::Overflow {
            what: "result".into(),
            detail: format!("{l} x {m} elements"),
        })?;
        let scale_strides = [
            scale_bytes(Format::Nvfp4, 1, k, activations)?,
            scale_bytes(Format::Nvfp4, m, k, form.scales)?,
        ];
        let factors = [options.alpha, options.activation_scale, options.weight_scale];
        alpha(factors, 1.0)?;
        Ok(Self { plan, product, factors, scale_strides, out_bytes })
    }
}

/// The factor of the result, of alpha, the scales of activations and weights, and a further one of the weights.
///
/// # Errors
/// [`Error::Scalar`].
fn alpha([alpha, activation_scale, weight_scale]: [f32; 3], weights: f32) -> Result<f32> {
    combined_scale(alpha, weight_scale * weights, activation_scale)
}

impl Gemv {
    /// Plans the product of `shape` and loads its kernel. The scales of the operands' tensors are in
    /// the options. It launches and allocates nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for a shape that no kernel takes, [`Error::Scalar`] if the product of alpha
    /// and the scales is not representable, [`Error::Overflow`], and
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        shape: GemvShape,
        layouts: GemvLayouts,
        options: GemvOptions,
    ) -> Result<Self> {
        let form = WeightForm::as_stored(shape, layouts.weights);
        Self::of_weights(kernels, form, layouts.activations, options)
    }

    /// [`new`](Self::new) for weights of this form, launched by
    /// [`launch_weights`](Self::launch_weights). Scales of `activations` are in this layout. The tensor's
    /// scale of the weights is theirs, and the options' `weight_scale` a further factor.
    ///
    /// # Errors
    /// The same as [`new`](Self::new).
    pub fn of_weights(
        kernels: &Kernels,
        form: WeightForm,
        activations: ScaleLayout,
        options: GemvOptions,
    ) -> Result<Self> {
        Self::planned(kernels, form, activations, &options, false)
    }

    /// [`of_weights`](Self::of_weights) where launches have a workspace, by
    /// [`launch_weights_in`](Self::launch_weights_in): on sm_100a the plan may then be a product on the tensor
    /// cores ([`plan_with_workspace`](super::plan_with_workspace)).
    ///
    /// # Errors
    /// The same as [`of_weights`](Self::of_weights).
    pub fn with_workspace(
        kernels: &Kernels,
        form: WeightForm,
        activations: ScaleLayout,
        options: GemvOptions,
    ) -> Result<Self> {
        Self::planned(kernels, form, activations, &options, true)
    }

    /// Plans for launches with or without a workspace, and loads the kernels.
    fn planned(
        kernels: &Kernels,
        form: WeightForm,
        activations: ScaleLayout,
        options: &GemvOptions,
        workspace: bool,
    ) -> Result<Self> {
        let planned = Planned::new(&kernels.into(), &form, activations, options, workspace)?;
        let Planned { plan, product, factors, scale_strides, out_bytes } = planned;
        let kernel = kernels.find(plan.kernel)?;
        let tensor = match product {
            Some(product) => {
                let before =
                    product.before().map(|before| kernels.find(before.kernel)).transpose()?;
                Some((product, before))
            }
            None => None,
        };
        let (kernels, output) = (kernels.clone(), options.output);
        Ok(Self {
            kernels,
            plan,
            kernel,
            tensor,
            form,
            activations,
            output,
            factors,
            scale_strides,
            out_bytes,
        })
    }

    /// The factor of the result of weights whose tensor has this scale.
    ///
    /// # Errors
    /// [`Error::Scalar`].
    pub(super) fn alpha(&self, weights: f32) -> Result<f32> {
        alpha(self.factors, weights)
    }

    /// The plan that it runs by.
    #[must_use]
    pub fn plan(&self) -> &GemvPlan {
        &self.plan
    }

    /// Bytes of the workspace that a launch needs; 0 for none, and always without
    /// [`with_workspace`](Self::with_workspace).
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.plan.workspace_bytes
    }

    /// Bytes of the result.
    #[must_use]
    pub fn out_bytes(&self) -> usize {
        self.out_bytes
    }

    /// The type of the result's elements.
    #[must_use]
    pub fn output(&self) -> FloatType {
        self.output
    }

    /// Queues the product on the kernels' stream without waiting for it. On the emulator it is
    /// complete when this returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes or on another device, and where the plan needs a
    /// workspace; [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self, buffers: GemvBuffers<'_>) -> Result<()> {
        // The kernel before may be writing the weights.
        let overlaps = false;
        self.queue(&self.params(buffers, self.alpha(1.0)?)?, overlaps, None)
    }

    /// [`launch`](Self::launch) of activations, codes and scales, and weights on the device, whose
    /// tensor's scale is a factor of the result. The kernel may begin, and read weights, while the one
    /// before it runs.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch); [`Error::Shape`] for weights of another form than the plan's, and
    /// [`Error::Scalar`] where the product of alpha and the scales is not representable.
    pub fn launch_weights(
        &self,
        [a_codes, a_scales]: [&DeviceBuffer; 2],
        weights: &DeviceWeights,
        out: &DeviceBuffer,
    ) -> Result<()> {
        self.launch_weights_in([a_codes, a_scales], weights, out, None)
    }

    /// [`launch_weights`](Self::launch_weights) with a workspace of at least
    /// [`workspace_bytes`](Self::workspace_bytes).
    ///
    /// # Errors
    /// The same as [`launch_weights`](Self::launch_weights); [`Error::Shape`] for a workspace that is absent or too
    /// small where one is needed, or another stream's.
    pub fn launch_weights_in(
        &self,
        [a_codes, a_scales]: [&DeviceBuffer; 2],
        weights: &DeviceWeights,
        out: &DeviceBuffer,
        workspace: Option<&Workspace>,
    ) -> Result<()> {
        let found = weights.form();
        let text =
            |form: &WeightForm| format!("those of {} with {} scales", form.shape, form.scales);
        if (found.shape, found.scales) != (self.form.shape, self.form.scales) {
            return Err(Error::shape("weights", text(&self.form), text(&found)));
        }
        // The padding of 128x4 scales depends on where they were put in that layout.
        if self.tensor.is_some() && found.stored != self.form.stored {
            let text =
                |form: &WeightForm| format!("those whose scales were stored {}", form.stored);
            return Err(Error::shape("weights", text(&self.form), text(&found)));
        }
        let (b_codes, b_scales) = (weights.codes(), weights.scales());
        let buffers = GemvBuffers { a_codes, a_scales, b_codes, b_scales, out };
        // The weights were complete when `DeviceWeights` was made.
        let overlaps = true;
        self.queue(&self.params(buffers, self.alpha(weights.global_scale())?)?, overlaps, workspace)
    }

    /// Launches. If it `overlaps` the kernel before, it reads weights while that runs.
    fn queue(
        &self,
        params: &GemvParams,
        overlaps: bool,
        workspace: Option<&Workspace>,
    ) -> Result<()> {
        let device = self.kernels.device();
        if let Some((product, before)) = &self.tensor {
            let operands = VectorOperands {
                a_codes: params.a_codes,
                a_scales: params.a_scales,
                a_scale_stride: params.a_scale_stride,
                b_codes: params.b_codes,
                b_scales: params.b_scales,
                out: params.out,
                output: self.output,
                alpha: params.alpha,
                workspace: Workspace::place(workspace, self.plan.workspace_bytes, device)?,
            };
            let found = (before.as_ref(), &self.kernel);
            return product.launch(&self.kernels, found, &operands, overlaps);
        }
        let batch = self.form.shape.l;
        for first in (0..batch).step_by(MAX_GRID_Y) {
            let batches = (batch - first).min(MAX_GRID_Y) as u32;
            let params = self.part(params, first as u64);
            let spec = LaunchSpec {
                entry: self.kernel.name(),
                grid: [self.plan.grid[0], batches, 1],
                block: [self.plan.threads, 1, 1],
                cluster: None,
                dynamic_shared: self.plan.dynamic_shared,
                overlaps,
                params: bytes(&params),
            };
            // SAFETY: the buffers have the sizes that the parameters state, as checked; by its
            // contract the kernel reads and writes only within them. Freeing device memory waits
            // for launches, so one that is running when they are dropped completes first.
            unsafe { self.kernels.launch_found(&self.kernel, &spec)? };
        }
        Ok(())
    }

    /// The parameters for all batch entries.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn params(&self, buffers: GemvBuffers<'_>, alpha: f32) -> Result<GemvParams> {
        let GemvShape { m, k, l } = self.form.shape;
        let [a_scale_stride, b_scale_stride] = self.scale_strides;
        let device = self.kernels.device();
        let place = |name: &str, buffer: &DeviceBuffer, bytes: Option<usize>| {
            let overflow =
                || Error::Overflow { what: name.into(), detail: format!("{l} x {m} x {k}") };
            buffer.checked(name, bytes.ok_or_else(overflow)?, device)
        };
        let a_codes = l.checked_mul(k / 2);
        let b_codes = a_codes.and_then(|bytes| bytes.checked_mul(m));
        Ok(GemvParams {
            b_codes: place("the weights' codes", buffers.b_codes, b_codes)?,
            b_scales: place(
                "the weights' scales",
                buffers.b_scales,
                b_scale_stride.checked_mul(l),
            )?,
            a_codes: place("the activations' codes", buffers.a_codes, a_codes)?,
            a_scales: place(
                "the activations' scales",
                buffers.a_scales,
                a_scale_stride.checked_mul(l),
            )?,
            out: place("the result", buffers.out, Some(self.out_bytes))?,
            b_scale_stride: b_scale_stride as u64,
            a_scale_stride: a_scale_stride as u64,
            // The plan has checked that these fit.
            m: m as u32,
            k: k as u32,
            alpha,
            out_type: self.output as u32,
            a_blocked: u32::from(self.activations == ScaleLayout::Blocked128x4),
            panel: self.plan.panel,
            share: self.plan.share,
            rest: self.plan.rest,
        })
    }

    /// The parameters for batch entries from `first` on.
    fn part(&self, p: &GemvParams, first: u64) -> GemvParams {
        let (m, k) = (u64::from(p.m), u64::from(p.k));
        GemvParams {
            b_codes: p.b_codes + first * m * (k / 2),
            b_scales: p.b_scales + first * p.b_scale_stride,
            a_codes: p.a_codes + first * (k / 2),
            a_scales: p.a_scales + first * p.a_scale_stride,
            out: p.out + first * m * u64::from(self.output.bytes()),
            ..*p
        }
    }
}
