//! Running a planned GEMM.

use fp4_formats::gemm::hopper::config::BOX_COLUMNS;
use fp4_formats::gemm::hopper::{HopperConfig, HopperParams, Operand, Scheme, WeightLayout};
use fp4_formats::gemm::{Epilogue, OutputType, Problem};
use fp4_formats::quantize::{DequantizeParams, Format, ScaleSource};
use fp4_formats::tensor_map::TensorMap;
use fp4_formats::{BlockFormat, ScaleLayout};
use ptx_emu::LaunchReport;
use ptx_emu::tensor_map::{self, ElementType, L2Promotion, Swizzle};

use super::oracle::check_operands;
use super::plan::{Chosen, HopperChoice};
use super::{
    ActivationKind, Activations, DeviceWeights, GemmOptions, GemmPlan, GemmResult, Output,
    Repacked, ResultBuffers, WeightForm, blackwell, tuned,
};
use crate::buffer::{ALIGNMENT, DeviceBuffer};
use crate::device::{Device, Kernels, LaunchSpec};
use crate::error::{Error, Result};
use crate::gemv::combined_scale;
use crate::quantize::device::{launch_step, scale_bytes};
use crate::shape::GemmShape;
use crate::tensor::{BlockScaled, Dims};

/// The decoded activations of MXFP4 are times this: its largest scales exceed bf16, its
/// smallest do not need all of bf16's subnormals.
const MXFP4_DECODED: f32 = 0.125;

/// The left operand on a device. Buffers start at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub enum ActivationBuffers<'a> {
    /// Packed codes `[L, M, K/2]` and their scales, a padded matrix a batch entry.
    Blocks {
        /// Codes.
        codes: &'a DeviceBuffer,
        /// Scales, in the layout that was planned for.
        scales: &'a DeviceBuffer,
    },
    /// `[L, M, K]` elements.
    Halves(&'a DeviceBuffer),
}

/// Vectors of the epilogue on a device, f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vectors<'a> {
    /// A factor for each row of `A`, `[M]`.
    pub row_factors: Option<&'a DeviceBuffer>,
    /// A factor for each row of `B`, `[N]`.
    pub column_factors: Option<&'a DeviceBuffer>,
    /// What is added to each column, `[N]`.
    pub bias: Option<&'a DeviceBuffer>,
}

/// Device memory that a GEMM needs besides its operands and its result.
///
/// One serves all launches of a stream, one after the other, of any plan that it is large enough
/// for, those recorded in graphs included. Launches that may run at the same time need one each:
/// two streams, and two graphs replayed on two streams.
///
/// What the kernels count in it must be zero when a launch begins. It is in a new workspace, and
/// after a launch that ran to its end; a launch that was refused has not touched it. A kernel that
/// was stopped halfway, by the emulator's diagnostic for one, leaves anything:
/// [`reset`](Self::reset) makes the workspace usable again. (An error of a kernel on a GPU leaves
/// nothing of its context to be used.)
#[derive(Debug)]
pub struct Workspace(DeviceBuffer);

impl Workspace {
    /// Allocates `bytes` bytes (at least one) for launches on any stream of the device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(Self(DeviceBuffer::zeroed(device, "workspace", bytes)?))
    }

    /// Takes memory that is there: a buffer, or a view of the caller's, at a multiple of
    /// [`ALIGNMENT`](crate::buffer::ALIGNMENT). Queues clearing it, as [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`Error::Shape`] for another alignment; [`DeviceError`](crate::device::DeviceError).
    pub fn over(buffer: DeviceBuffer) -> Result<Self> {
        if !buffer.address().is_multiple_of(ALIGNMENT) {
            let required = format!("a multiple of {ALIGNMENT}");
            let address = format!("{:#x}", buffer.address());
            return Err(Error::shape("address of the workspace", required, address));
        }
        let workspace = Self(buffer);
        workspace.reset()?;
        Ok(workspace)
    }

    /// Queues setting all of it to zero, on the stream of the device handle that its memory was
    /// made from, without waiting; may be recorded. Needed after a launch that was stopped.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn reset(&self) -> Result<()> {
        self.0.fill(0)
    }

    /// Its size.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn address(&self) -> u64 {
        self.0.address()
    }
}

/// A GEMM of one shape, checked and planned.
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::ScaleLayout;
/// use fp4_formats::gemm::hopper::Operand;
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
/// let kind = ActivationKind::Halves(Operand::F16);
///
/// // Once a weight.
/// let dims = Dims::new(1, 40, 64)?;
/// let weight =
///     quantize("w", &[0.25; 40 * 64], dims, TensorScale::FromAmax, ScaleLayout::Linear)?;
/// let weights = Repacked::for_device(&device, &weight, kind)?.upload(&device)?;
///
/// // Once a shape: one matrix of 5 tokens.
/// let product = Gemm::new(&kernels, &weights, [1, 5], kind, 1.0, &GemmOptions::default())?;
/// let [bytes, _] = product.out_bytes()?;
/// let out = DeviceBuffer::poisoned(&device, "c", bytes)?;
/// assert_eq!(product.workspace_bytes(), 0);
///
/// // Once a product.
/// let input = HalfMatrix::round("x", Dims::new(1, 5, 64)?, Operand::F16, &[3.0; 5 * 64])?;
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
    pub(super) problem: Problem,
    pub(super) kind: ActivationKind,
    pub(super) output: Output,
    alpha: f32,
}

/// How many launches decode `l` batch entries of activations.
pub(super) fn decode_launches(layout: ScaleLayout, l: usize) -> usize {
    match layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Blocked128x4 => l,
    }
}

impl Gemm {
    /// Checks and plans the product of `batch` matrices of `m` tokens with `weights`, and takes
    /// alpha, output type and overrides from `options`. `a_scale` is the scale of the whole left
    /// operand. Launches and allocates nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that no kernel takes and weights repacked for another type of
    /// activations, and for a result in NVFP4 an N that is no multiple of 16; [`Error::Scalar`]
    /// where the product of alpha and the scales is not representable, and for a scale of the
    /// result that its recipe does not accept.
    pub fn new(
        kernels: &Kernels,
        weights: &DeviceWeights,
        [batch, m]: [usize; 2],
        kind: ActivationKind,
        a_scale: f32,
        options: &GemmOptions,
    ) -> Result<Self> {
        let form = weights.form();
        let shape = GemmShape { m, n: form.rows() as usize, k: form.columns() as usize, l: batch };
        let format = form.format();
        if let WeightForm::Hopper(WeightLayout { scheme: Scheme { operand, .. }, .. }) = form
            && kind.operand() != operand
        {
            let field = "type of activations";
            let required = format!("{}, which the weights were repacked for", operand.name());
            return Err(Error::shape(field, required, kind.operand().name()));
        }
        if let ActivationKind::Blocks { format: of_activations, .. } = kind
            && of_activations != format
        {
            let required = format!("{}, as the weights", format.name());
            return Err(Error::shape("format of activations", required, of_activations.name()));
        }
        if weights.batch() != 1 && weights.batch() != batch {
            let required = format!("1 or {batch}, the batch");
            return Err(Error::shape("matrices of weights", required, weights.batch()));
        }
        let mut plan = tuned::plan_for(kernels, shape, format, kind, options)?;
        let mut alpha = combined_scale(options.alpha, a_scale, weights.global_scale())?;
        if matches!(plan.chosen, Chosen::Hopper(_)) && decoded_scale(kind) != 1.0 {
            alpha = combined_scale(alpha, decoded_scale(kind).recip(), 1.0)?;
        }
        // The plan has checked that these fit.
        let problem = Problem { m: m as u32, n: form.rows(), k: form.columns(), l: batch as u32 };
        if let Chosen::Blackwell(choice) = plan.chosen {
            plan.why.push(blackwell::way_out(&choice, &problem, options.output).into());
        }
        let kernels = kernels.clone();
        let output = options.output;
        output.check()?;
        output.bytes(Dims::new(batch, m, form.rows() as usize)?)?;
        Ok(Self { kernels, plan, problem, kind, output, alpha })
    }

    /// How it will be run.
    #[must_use]
    pub fn plan(&self) -> &GemmPlan {
        &self.plan
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
        let Problem { m, n, l, .. } = self.problem;
        Dims::new(l as usize, m as usize, n as usize)
    }

    /// Bytes of the result: of its elements, or of its codes and its scales.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn out_bytes(&self) -> Result<[usize; 2]> {
        self.output.bytes(self.result_dims()?)
    }

    /// Queues the product `out = A weights^T` on the kernels' stream without waiting for it, also
    /// while a CUDA graph is recorded; allocates no device memory. The emulator's reports come back
    /// at once. `workspace` holds at least [`workspace_bytes`](Self::workspace_bytes); see there
    /// who can share one.
    ///
    /// On a GPU all that is given must live until the product is done, and what a recorded graph
    /// uses as long as it is replayed. Buffers that own their memory do: freeing it waits.
    /// Everything may be written by work before it in the stream, but the weights, which the
    /// kernels begin to read while that work still runs ([`Device::with_stream`]).
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes or kinds than planned,
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(
        &self,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
    ) -> Result<Vec<LaunchReport>> {
        let Problem { m, n, k, .. } = self.problem;
        let form = weights.form();
        if (form.rows(), form.columns()) != (n, k) {
            return Err(Error::shape("weights", "those planned for", format!("{form:?}")));
        }
        let (out, scales) = out.place(self.output, self.result_dims()?)?;
        let length = |len: u32| len as usize * size_of::<f32>();
        let given = [
            ("the row factors", vectors.row_factors, length(m)),
            ("the column factors", vectors.column_factors, length(n)),
            ("the bias", vectors.bias, length(n)),
        ];
        let sizes = given.into_iter().filter_map(|(f, buffer, len)| Some((f, buffer?.len(), len)));
        for (field, found, required) in sizes {
            if found != required {
                let field = format!("bytes of {field}");
                return Err(Error::shape(field, required.to_string(), found));
            }
        }
        let address = |buffer: Option<&DeviceBuffer>| buffer.map_or(0, DeviceBuffer::address);
        let epilogue = Epilogue {
            out,
            out_stride: u64::from(m) * u64::from(n),
            row_factors: address(vectors.row_factors),
            column_factors: address(vectors.column_factors),
            bias: address(vectors.bias),
            alpha: self.alpha,
            out_type: self.output.code(),
            bias_type: OutputType::F32 as u32,
            reserved: 0,
            scales,
        };
        match (self.plan.chosen, form) {
            (Chosen::Hopper(chosen), WeightForm::Hopper(layout))
                if layout.scheme == chosen.config.scheme =>
            {
                self.launch_hopper(&chosen, a, weights, &layout, workspace, epilogue)
            }
            (Chosen::Blackwell(candidate), WeightForm::Blackwell(blocks))
                if blocks.format == candidate.config.format =>
            {
                blackwell::launch(self, &candidate, a, weights, &blocks, workspace, epilogue)
            }
            _ => Err(Error::shape("weights", "those planned for", format!("{form:?}"))),
        }
    }

    /// [`launch`](Self::launch) on sm_90a, sizes of result and vectors checked.
    fn launch_hopper(
        &self,
        chosen: &HopperChoice,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        layout: &WeightLayout,
        workspace: Option<&Workspace>,
        epilogue: Epilogue,
    ) -> Result<Vec<LaunchReport>> {
        let Problem { m, k, l, .. } = self.problem;
        let &HopperChoice { config, division, workspace: parts } = chosen;
        let workspace = match workspace {
            _ if parts.bytes == 0 => 0,
            Some(workspace) if workspace.len() >= parts.bytes => workspace.address(),
            other => {
                let required = format!("at least {} bytes", parts.bytes);
                let found = other.map_or(0, Workspace::len);
                return Err(Error::shape("workspace", required, found));
            }
        };
        let mut reports = Vec::new();
        let activations = match a {
            ActivationBuffers::Halves(buffer) => {
                let required = l as usize * m as usize * k as usize * 2;
                let is_planned = matches!(self.kind, ActivationKind::Halves(_));
                if !is_planned || buffer.len() != required {
                    return Err(Error::shape(
                        "activations",
                        format!("{required} bytes of {}", self.kind.name()),
                        format!("{} bytes of 16-bit elements", buffer.len()),
                    ));
                }
                buffer.address()
            }
            ActivationBuffers::Blocks { codes, scales } => {
                let decoded = workspace + parts.activations as u64;
                reports = self.decode(codes, scales, decoded)?;
                decoded
            }
        };
        let params = HopperParams {
            activations: self.tensor_map(config, activations)?,
            weights: weights.buffer().address(),
            weight_stride: if weights.batch() == 1 { 0 } else { layout.bytes().unwrap_or(0) },
            partials: workspace + parts.partials as u64,
            flags: workspace,
            epilogue,
            problem: self.problem,
            division,
        };
        let spec = LaunchSpec {
            entry: self.plan.kernel,
            grid: [self.plan.grid[0], self.plan.grid[1], 1],
            block: [self.plan.threads, 1, 1],
            cluster: (division.cluster > 1).then_some([division.cluster, 1, 1]),
            dynamic_shared: self.plan.dynamic_shared,
            overlaps: true,
            params: &params.to_bytes(),
        };
        // SAFETY: all buffers have the sizes that the parameters state, as checked above and
        // when the weights were repacked, and are alive; freeing device memory waits for launches.
        reports.extend(unsafe { self.kernels.launch(&spec)? });
        Ok(reports)
    }

    /// Queues decoding block-scaled activations to 16-bit floats at `out`.
    fn decode(
        &self,
        codes: &DeviceBuffer,
        scales: &DeviceBuffer,
        out: u64,
    ) -> Result<Vec<LaunchReport>> {
        let ActivationKind::Blocks { format, layout } = self.kind else {
            return Err(Error::shape("activations", self.kind.name(), "block-scaled"));
        };
        let Problem { m, k, l, .. } = self.problem;
        let (rows, cols) = (m as usize, k as usize);
        let stride = scale_bytes(format, rows, cols, layout)?;
        let sizes = [
            ("codes", codes.len(), l as usize * rows * (cols / 2)),
            ("scales", scales.len(), l as usize * stride),
        ];
        for (field, found, required) in sizes {
            if found != required {
                let field = format!("bytes of the activations' {field}");
                return Err(Error::shape(field, required.to_string(), found));
            }
        }
        let each = l / self.plan.before.len().max(1) as u32;
        let mut reports = Vec::new();
        for (index, step) in (0u64..).zip(&self.plan.before) {
            let first = index * u64::from(each);
            let params = DequantizeParams {
                codes: codes.address() + first * u64::from(m) * u64::from(k / 2),
                scales: scales.address() + first * stride as u64,
                tensor: 0,
                out: out + first * u64::from(m) * u64::from(k) * 2,
                m: m * each,
                k,
                given: decoded_scale(self.kind),
                source: ScaleSource::Given as u32,
                blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            };
            // SAFETY: codes and scales have the sizes that the parameters state, as checked
            // above; `out` is the workspace, which is large enough.
            reports.extend(unsafe { launch_step(&self.kernels, step, true, &params.to_bytes())? });
        }
        Ok(reports)
    }

    /// The map of `[L, M, K]` activations at `address` for the plan's boxes.
    fn tensor_map(&self, config: &HopperConfig, address: u64) -> Result<TensorMap> {
        let Problem { m, k, l, .. } = self.problem;
        let (m, k, l) = (u64::from(m), u64::from(k), u64::from(l));
        let element = match self.kind.operand() {
            Operand::F16 => ElementType::F16,
            Operand::Bf16 => ElementType::Bf16,
        };
        let map = tensor_map::TensorMap {
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::B256,
            ..tensor_map::TensorMap::tiled(
                element,
                address,
                &[k, m, l],
                &[2 * k, 2 * k * m],
                &[BOX_COLUMNS, config.tokens, 1],
            )
        };
        Ok(TensorMap::from_bytes(&self.kernels.device().encode_tensor_map(&map)?))
    }
}

/// What decoded activations are times.
fn decoded_scale(kind: ActivationKind) -> f32 {
    match kind {
        ActivationKind::Blocks { format: Format::Mxfp4, .. } => MXFP4_DECODED,
        _ => 1.0,
    }
}

/// A GEMM with operands, result and workspace of its own on a device, ready to launch any number
/// of times.
#[derive(Debug)]
pub struct GemmRun {
    gemm: Gemm,
    weights: DeviceWeights,
    activations: Vec<DeviceBuffer>,
    row_factors: Option<DeviceBuffer>,
    column_factors: Option<DeviceBuffer>,
    bias: Option<DeviceBuffer>,
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
    check_operands(a, b, options)?;
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
        let columns = weights.form().columns();
        if dims.cols() != columns as usize {
            let required = format!("{columns}, the weights' K");
            return Err(Error::shape(format!("K of `{}`", a.name()), required, dims.cols()));
        }
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
        let vector = |name: &str, vector: &Option<Vec<f32>>| -> Result<Option<DeviceBuffer>> {
            let Some(vector) = vector else { return Ok(None) };
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            DeviceBuffer::upload(device, name, &bytes).map(Some)
        };
        let workspace = match gemm.workspace_bytes() {
            0 => None,
            bytes => Some(Workspace::new(device, bytes)?),
        };
        let [out_bytes, out_scale_bytes] = gemm.out_bytes()?;
        let out_scales = match gemm.output {
            Output::Floats(_) => None,
            Output::Nvfp4 { .. } => {
                Some(DeviceBuffer::poisoned(device, "c scales", out_scale_bytes)?)
            }
        };
        Ok(Self {
            row_factors: vector("row factors", &options.row_factors)?,
            column_factors: vector("column factors", &options.column_factors)?,
            bias: vector("bias", &options.bias)?,
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
        let vectors = Vectors {
            row_factors: self.row_factors.as_ref(),
            column_factors: self.column_factors.as_ref(),
            bias: self.bias.as_ref(),
        };
        let out = match &self.out_scales {
            Some(scales) => ResultBuffers::Blocks { codes: &self.out, scales },
            None => ResultBuffers::Floats(&self.out),
        };
        self.gemm.launch(a, &self.weights, out, self.workspace.as_ref(), vectors)
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
            output: self.gemm.output,
            plan: self.gemm.plan.clone(),
            reports: Vec::new(),
        })
    }

    /// Bytes of operands and result on the device, padding included, workspace left out.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let optional = [&self.row_factors, &self.column_factors, &self.bias, &self.out_scales];
        let buffers = self.activations.iter().chain([self.weights.buffer(), &self.out]);
        buffers.chain(optional.into_iter().flatten()).map(|buffer| buffer.len() as u64).sum()
    }
}
