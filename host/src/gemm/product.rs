//! A GEMM of one shape: checked and planned once, launched any number of times.

use fp4_formats::gemm::{Epilogue, Groups, Problem, Sink};
use fp4_formats::quantize::Format;
use fp4_formats::{Operand, TensorFamily};

use super::check::{multiplied, operands};
use super::described::{self, Planned, Planner};
use super::epilogue::{Steps, check_no_row_factors, scaling_rows};
use super::family::{Kernel, Launch, Stored};
use super::groups::PlannedGroups;
use super::strides::{Entries, Strides};
use super::{
    ActivationBuffers, ActivationKind, BatchStrides, DeviceWeights, GemmOptions, GemmPlan, Output,
    ResultBuffers, Vectors, Workspace,
};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels};
use crate::error::{Error, Result};
use crate::tensor::{Dims, combined_scale};

/// A GEMM of one shape, checked and planned.
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::ScaleLayout;
/// use fp4_formats::HalfType;
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{
///     ActivationBuffers, ActivationKind, Gemm, GemmOptions, HalfMatrix, Repacked, ResultBuffers,
///     Vectors,
/// };
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&DeviceRequest::Auto)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let kind = ActivationKind::Halves(HalfType::F16);
///
/// // Once per weight.
/// let dims = Dims::new(1, 40, 64)?;
/// let weight =
///     quantize("w", &[0.25; 40 * 64], dims, TensorScale::FromAmax, ScaleLayout::Linear)?;
/// let weights = Repacked::for_device(&device, &weight, kind)?.upload(&device)?;
///
/// // Once per shape: one matrix of 5 tokens.
/// let product = Gemm::new(&kernels, &weights, [1, 5], kind, &GemmOptions::default())?;
/// let [bytes, _] = product.out_bytes()?;
/// let out = DeviceBuffer::poisoned(&device, "c", bytes)?;
/// assert_eq!(product.workspace_bytes(), 0);
///
/// // Once per product.
/// let input = HalfMatrix::round("x", Dims::new(1, 5, 64)?, HalfType::F16, &[3.0; 5 * 64])?;
/// let input = DeviceBuffer::upload(&device, "x", input.bytes())?;
/// let (input, result) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
/// product.launch(input, &weights, result, None, Vectors::default())?;
/// assert_eq!(out.read()?.len(), 5 * 40 * 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gemm {
    pub(super) kernels: Kernels,
    pub(super) plan: GemmPlan,
    /// The plan's kernel.
    pub(super) found: FoundKernel,
    /// The kernels of the plan's launches before the product.
    found_before: Vec<FoundKernel>,
    pub(super) kind: ActivationKind,
    /// The steps of the epilogue.
    pub(super) epilogue: Steps,
    /// The strides of the batch's matrices.
    pub(super) strides: Strides,
    /// The groups of a grouped product.
    pub(super) groups: Option<PlannedGroups>,
}

impl Gemm {
    /// Checks and plans the product of `batch` matrices of `m` tokens with `weights`, or with others
    /// of their sizes, format and order, and takes alphas, activation, output type and overrides from
    /// `options`. Loads the kernels; launches and allocates
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that no kernel takes and weights repacked for another type of
    /// activations or another architecture, for a result in NVFP4 an N that is no multiple of 16,
    /// and where weights or options are gated and the other is not; [`Error::Scalar`] where the
    /// product of alpha and the scales is not representable, for a scale of the result that its
    /// recipe does not accept, and for an activation's parameter that is not finite or is a limit
    /// of 0 or less.
    pub fn new(
        kernels: &Kernels,
        weights: &DeviceWeights,
        [batch, m]: [usize; 2],
        kind: ActivationKind,
        options: &GemmOptions,
    ) -> Result<Self> {
        check_kind(weights, kind)?;
        check_batch(weights, batch)?;
        let (planner, sizes) = (Planner::Kernels(kernels), weights.sizes());
        let planned = described::uniform(planner, sizes, [batch, m], kind, options)?;
        Self::planned(kernels, weights, planned)
    }

    /// The product of a plan.
    ///
    /// # Errors
    /// The same as [`Gemm::new`].
    pub(super) fn planned(
        kernels: &Kernels,
        weights: &DeviceWeights,
        planned: Planned,
    ) -> Result<Self> {
        let Planned { plan, kind, epilogue, strides, groups } = planned;
        let found = kernels.find(plan.kernel)?;
        let found_before = kernels.find_all(plan.before.iter().map(|step| step.kernel))?;
        let kernels = kernels.clone();
        let mut product =
            Self { kernels, plan, found, found_before, kind, epilogue, strides, groups };
        product.plan.why.extend(product.store_path().map(String::from));
        product.check_weights(weights)?;
        product.factors(weights)?;
        Ok(product)
    }

    /// The same product of matrices that do not follow each other, or of activations that all
    /// entries of the batch share, instead of whatever strides it had. Buffers may be longer than
    /// it takes, where their stride is given.
    ///
    /// Kernel and workspace stay those of a dense batch. Block-scaled activations that are laid out
    /// or decoded before the product take a launch for each entry, if they are not shared.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use fp4_formats::ScaleLayout;
    /// use fp4_formats::HalfType;
    /// use nvfp4::buffer::DeviceBuffer;
    /// use nvfp4::device::{Device, DeviceRequest};
    /// use nvfp4::gemm::{
    ///     ActivationBuffers, ActivationKind, BatchStrides, Gemm, GemmOptions, HalfMatrix, Repacked,
    ///     ResultBuffers, Vectors,
    /// };
    /// use nvfp4::quantize::{TensorScale, quantize};
    /// use nvfp4::tensor::Dims;
    ///
    /// # fn main() -> nvfp4::error::Result<()> {
    /// let device = Device::open(&DeviceRequest::Auto)?;
    /// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
    /// let kind = ActivationKind::Halves(HalfType::F16);
    /// let dims = Dims::new(1, 40, 64)?;
    /// let weight =
    ///     quantize("w", &[0.25; 40 * 64], dims, TensorScale::FromAmax, ScaleLayout::Linear)?;
    /// let weights = Repacked::for_device(&device, &weight, kind)?.upload(&device)?;
    ///
    /// // Two sequences of 5 tokens, in slots for 8.
    /// let slots = HalfMatrix::round("x", Dims::new(2, 8, 64)?, HalfType::F16, &[3.0; 2 * 8 * 64])?;
    /// let slots = DeviceBuffer::upload(&device, "x", slots.bytes())?;
    /// let out = DeviceBuffer::upload(&device, "c", &[0; 2 * 8 * 40 * 2])?;
    ///
    /// let product = Gemm::new(&kernels, &weights, [2, 5], kind, &GemmOptions::default())?;
    /// let strides = BatchStrides::new().activations(8 * 64).result(8 * 40);
    /// let product = product.with_strides(strides)?;
    /// let (input, result) = (ActivationBuffers::Halves(&slots), ResultBuffers::Floats(&out));
    /// product.launch(input, &weights, result, None, Vectors::default())?;
    /// for slot in out.read()?.chunks_exact(8 * 40 * 2) {
    ///     let (tokens, unused) = slot.split_at(5 * 40 * 2);
    ///     assert!(tokens.chunks_exact(2).all(|element| element != [0; 2]));
    ///     assert!(unused.iter().all(|&byte| byte == 0));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for strides that [`BatchStrides`] does not allow: too small, not multiples of
    /// what the kernels read and write at once, or of scales that there are not;
    /// [`Error::Overflow`].
    pub fn with_strides(mut self, strides: BatchStrides) -> Result<Self> {
        let before = self.store_path();
        let (problem, result) = (self.plan.problem(), self.plan.result_dims()?);
        self.strides = Strides::new(strides, problem, result, self.kind, self.epilogue.output)?;
        self.plan.before = self.kernel().before(self.kind, self.strides.entries())?;
        let names = self.plan.before.iter().map(|step| step.kernel);
        self.found_before = self.kernels.find_all(names)?;
        if let (Some(before), Some(now)) = (before, self.store_path()) {
            let reasons = self.plan.why.iter_mut().filter(|reason| *reason == before);
            reasons.for_each(|reason| *reason = now.into());
        }
        Ok(self)
    }

    /// The plan's kernel.
    pub(super) fn kernel(&self) -> &dyn Kernel {
        &*self.plan.chosen.0
    }

    /// Returns the path of results to memory, if plans name it.
    fn store_path(&self) -> Option<&'static str> {
        self.kernel().store_path(self.stored())
    }

    /// The result, as far as it decides how the kernel stores it.
    fn stored(&self) -> Stored {
        let (output, gated) = (self.epilogue.output, self.epilogue.is_gated());
        Stored { output, gated, stride: self.strides.out_stride(output) }
    }

    /// Factors of the kernels' sums, of both halves.
    ///
    /// # Errors
    /// [`Error::Scalar`] where one is not representable.
    fn factors(&self, weights: &DeviceWeights) -> Result<[f32; 2]> {
        let decoded = self.kernel().decoded_scale(self.kind);
        self.epilogue.factors(|alpha, half| {
            let factor =
                combined_scale(alpha, self.epilogue.activation_scale, weights.half_scale(half))?;
            if decoded == 1.0 { Ok(factor) } else { combined_scale(factor, decoded.recip(), 1.0) }
        })
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &GemmPlan {
        &self.plan
    }

    /// Type of the result.
    #[must_use]
    pub fn output(&self) -> Output {
        self.epilogue.output
    }

    /// Bytes of the workspace that a launch needs; 0 for none.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.plan.workspace_bytes
    }

    /// Batch, M and N of the result.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn result_dims(&self) -> Result<Dims> {
        self.plan.result_dims()
    }

    /// Bytes of the result: of its elements, or of its codes and its scales; what is between
    /// strided matrices included.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn out_bytes(&self) -> Result<[usize; 2]> {
        Ok([self.strides.result.span, self.strides.result_scales.span])
    }

    /// Queues the product `out = A weights^T` on the kernels' stream without waiting for it, also
    /// while a CUDA graph is recorded; allocates no device memory. The emulator runs it to its
    /// end. `workspace` holds at least [`workspace_bytes`](Self::workspace_bytes); see there
    /// who can share one.
    ///
    /// On a GPU all arguments must live until the product is done, and those that a recorded graph
    /// uses as long as it is replayed. Buffers that own their memory do: freeing it waits.
    /// Earlier work of the stream may write any argument except the weights, which the kernels
    /// begin to read while that work still runs
    /// ([`Device::with_stream`](crate::device::Device::with_stream)).
    ///
    /// # Errors
    /// [`Error::Shape`] for weights or buffers of other sizes or kinds than planned, or on another
    /// device, and for activations and gated products where the kernels have none;
    /// [`Error::Scalar`] where the product of alpha and the scales is not representable;
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(
        &self,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
    ) -> Result<()> {
        if self.groups.is_some() {
            return Err(Error::shape("product", "not grouped", "grouped"));
        }
        let launch = self.arguments(a, weights, out, workspace, vectors, None)?;
        self.kernel().launch(&launch, &mut AtOnce)
    }

    /// The arguments of a launch; `groups` are a grouped one's, with their number where column factors and
    /// biases are each group's own.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub(super) fn arguments(
        &self,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
        groups: Option<(Groups, Option<usize>)>,
    ) -> Result<Launch<'_>> {
        self.check_weights(weights)?;
        let epilogue = self.epilogue(weights, out, vectors, groups.map(|(_, own)| own))?;
        let groups = groups.map(|(groups, _)| groups);
        let workspace = Workspace::place(workspace, self.workspace_bytes(), self.kernels.device())?;
        self.checked(a, weights, epilogue, workspace, groups)
    }

    /// The arguments of a launch of which all but the activations are checked.
    ///
    /// # Errors
    /// [`Error::Shape`] for activations of other sizes or kinds than planned, or on another device.
    pub(super) fn checked(
        &self,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        epilogue: Epilogue,
        workspace: u64,
        groups: Option<Groups>,
    ) -> Result<Launch<'_>> {
        let Self { kernels, found, found_before, kind, strides, .. } = self;
        let activations = a.check(*kind, strides, kernels.device())?;
        let epilogue = match a.row_scales() {
            Some(scales) => self.scale_rows(scales, epilogue, groups.is_some())?,
            None => epilogue,
        };
        Ok(Launch {
            kernels,
            kernel: found,
            before: &self.plan.before,
            before_kernels: found_before,
            kind: *kind,
            strides,
            activations,
            weights: weights.placed(),
            workspace,
            epilogue,
            stored: self.stored(),
            groups,
        })
    }

    /// The epilogue of block-scaled activations that have a scale for each row.
    ///
    /// # Errors
    /// [`Error::Shape`] beside row factors, for another number of scales, for a format without them, and for a batch of
    /// separate matrices, whose kernels have row factors of one.
    fn scale_rows(
        &self,
        scales: &DeviceBuffer,
        epilogue: Epilogue,
        grouped: bool,
    ) -> Result<Epilogue> {
        const WHAT: &str = "the rows' scales";
        check_no_row_factors(&epilogue)?;
        if let ActivationKind::Blocks { format: Format::Mxfp4, .. } = self.kind {
            return Err(Error::shape(WHAT, "absent, as mxfp4 has none", "there"));
        }
        let &Problem { m, l, .. } = self.plan.problem();
        let shared = self.strides.entries() == Entries::Shared;
        if !grouped && l > 1 && !shared {
            let required = "of one matrix, or of one that all entries share";
            return Err(Error::shape(WHAT, required, format!("of {l} matrices")));
        }
        let rows = m as usize * if grouped { l as usize } else { 1 };
        let bytes = rows * size_of::<f32>();
        let address = scales.checked(WHAT, bytes, self.kernels.device())?;
        Ok(scaling_rows(epilogue, address))
    }

    /// Returns the epilogue of a launch, with buffers and weights checked but for the weights' sizes.
    /// `groups` are a grouped product's: their number where column factors and biases are each
    /// group's own.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    pub(super) fn epilogue(
        &self,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        vectors: Vectors<'_>,
        groups: Option<Option<usize>>,
    ) -> Result<Epilogue> {
        let device = self.kernels.device();
        let output = self.epilogue.output;
        let (out, scales) = out.place(output, &self.strides, device)?;
        let dims = self.plan.result_dims()?;
        let place = [out, self.strides.out_stride(output)];
        let sink = Sink::of(place, output.code(), dims.cols() as u32, scales);
        let factors = self.factors(weights)?;
        let own = groups.flatten().unwrap_or(1);
        // The problems of a uniform product share row factors; tokens of groups have their own.
        let rows = if groups.is_some() { dims.batch() * dims.rows() } else { dims.rows() };
        let lengths = [rows, own * dims.cols()];
        let sink = vectors.place_in(sink, (dims, &self.strides), device)?;
        self.epilogue.place(factors, vectors, lengths, sink, device)
    }

    /// Checks that the plan is one for these weights.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(super) fn check_weights(&self, weights: &DeviceWeights) -> Result<()> {
        let form = weights.form();
        let (Problem { k, l, .. }, columns) = (*self.plan.problem(), self.plan.columns);
        if form.is_gated() != self.epilogue.is_gated() {
            let name = |gated| if gated { "gated" } else { "not gated" };
            let required = format!("{}, as planned", name(self.epilogue.is_gated()));
            return Err(Error::shape("weights", required, name(form.is_gated())));
        }
        for (field, found, required) in
            [("N", form.result_columns(), columns), ("K", form.columns, k)]
        {
            if found != required {
                let required = format!("{required}, as planned");
                return Err(Error::shape(format!("{field} of the weights"), required, found));
            }
        }
        let planned = self.kernel().weight_form();
        if !form.same_order(&planned) {
            let required = format!("{}, as planned", planned.order());
            return Err(Error::shape("order of the weights", required, form.order()));
        }
        match self.groups {
            Some(PlannedGroups { matrices, .. }) => {
                if weights.batch() != matrices as usize {
                    let required = format!("{matrices}, as planned");
                    return Err(Error::shape("matrices of weights", required, weights.batch()));
                }
            }
            None => {
                check_batch(weights, l as usize)?;
                weights.require_one_scale()?;
            }
        }
        weights.buffer().require_on("the weights", self.kernels.device())
    }
}

/// Checks that the weights take activations of `kind`.
pub(super) fn check_kind(weights: &DeviceWeights, kind: ActivationKind) -> Result<()> {
    let form = weights.form();
    let (fits, wanted) = match (form.activations, form.tensor) {
        (Some(operand), _) => {
            let multiplied = operands(form.tensor, form.format, kind)?.activations;
            (multiplied == Some(operand), operand.name())
        }
        (None, TensorFamily::MmaSyncScaled) => {
            let decoded = multiplied(form.tensor, form.format, kind).activations;
            let wanted = match form.format {
                Format::Nvfp4 => "the weights' own format",
                Format::Mxfp4 => "fp8 or the weights' own format",
            };
            (decoded.is_none_or(|operand| operand.half().is_none()), wanted)
        }
        (None, TensorFamily::MmaSync | TensorFamily::Wgmma | TensorFamily::Tcgen05) => {
            (kind.operand() != Operand::E4m3, "f16, bf16 or the weights' own format")
        }
    };
    if !fits {
        let required = format!("{wanted}, which the weights were repacked for");
        return Err(Error::shape("type of activations", required, kind.operand().name()));
    }
    operands(form.tensor, form.format, kind).map(drop)
}

/// Checks that there is a matrix of weights for each batch entry, or one for all.
fn check_batch(weights: &DeviceWeights, batch: usize) -> Result<()> {
    if weights.batch() == 1 || weights.batch() == batch {
        return Ok(());
    }
    let required = format!("1 or {batch}, the batch");
    Err(Error::shape("matrices of weights", required, weights.batch()))
}
