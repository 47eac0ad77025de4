//! Quantises on a device, with the same bytes as on the CPU.
//!
//! A [`Quantizer`] is made once per shape and launched any number of times. It owns the outputs and
//! the workspace (largest magnitudes, tensor parameters, and the word in which the kernels report
//! an element that is not finite), and a launch does not allocate.
//!
//! # Example
//! Without a GPU, this runs on the emulator. With `None` in place of the folder, kernels are looked
//! for beside the program.
//! ```
//! use std::path::Path;
//!
//! use fp4_formats::FloatType;
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::quantize::device::{Input, Quantizer};
//! use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! // Where `cargo xtask build-kernels` puts them.
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let options = QuantizeOptions::new(recipe_by_name(Format::Nvfp4, "te")?);
//! let quantizer = Quantizer::new(&kernels, 4, 64, Input::plain(FloatType::F32), &options)?;
//!
//! let values: Vec<f32> = (0..4 * 64).map(|at| (at as f32).sin()).collect();
//! let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
//! let x = DeviceBuffer::upload(&device, "x", &bytes)?;
//! quantizer.launch(&x, None)?;
//! let expected = quantize_matrix("x", &values, Dims::new(1, 4, 64)?, &options)?;
//! assert_eq!(quantizer.result("x")?.difference(&expected), None);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use fp4_formats::Arch;
use fp4_formats::params::bytes;
use fp4_formats::quantize::{
    self as contract, AmaxParams, NO_ERROR, QuantizeParams, Recipe, ScaleSource,
};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout};
use serde::Serialize;

use super::{QuantizeOptions, QuantizedMatrix, TensorScale};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, LaunchSpec, Queue, Target};
use crate::error::{Error, Result, filled};
use crate::floats;
use crate::shape::MAX_DIM;
use crate::stream::FirstStream;
use crate::tensor::Dims;

/// One kernel of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedKernel {
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// CTAs.
    pub ctas: u32,
    /// Threads of a CTA.
    pub threads: u32,
}

/// The plan by which a matrix is quantised or dequantised on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The operation, `quantize` or `dequantize`.
    pub op: &'static str,
    /// Architecture of the kernels.
    pub arch: Arch,
    /// The kernels in the order of their launches.
    pub steps: Vec<PlannedKernel>,
    /// The reasons, one sentence each.
    pub why: Vec<String>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, PlannedKernel { kernel, ctas, threads }) in self.steps.iter().enumerate() {
            let then = if at == 0 { "" } else { ", then " };
            write!(f, "{then}{kernel}: {ctas} CTAs of {threads} threads")?;
        }
        write!(f, " for {}", self.arch)?;
        self.why.iter().try_for_each(|reason| write!(f, "\n  - {reason}"))
    }
}

/// The input of a quantiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Element type.
    pub element: FloatType,
    /// Whether the input is `silu(gate) * up` of two matrices instead of one matrix.
    pub gated: bool,
}

impl Input {
    /// A plain matrix.
    #[must_use]
    pub fn plain(element: FloatType) -> Self {
        Self { element, gated: false }
    }
}

/// The quantisation of a matrix, prepared on a device.
#[derive(Debug)]
pub struct Quantizer {
    kernels: Kernels,
    plan: Plan,
    /// The kernels of the plan's steps.
    found: Vec<FoundKernel>,
    input: Input,
    options: QuantizeOptions,
    rows: u32,
    cols: u32,
    /// [`QuantizeParams::depth`]
    depth: u32,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    /// Largest magnitudes, if they are computed.
    maxima: Option<DeviceBuffer>,
    parameters: Option<DeviceBuffer>,
    errors: DeviceBuffer,
    /// Held while the kernels of a launch are queued, so that those of two threads do not mingle. The
    /// stream that the memory above belongs to.
    launching: Mutex<FirstStream>,
}

/// Rows and columns as the kernels take them.
pub(crate) fn sizes(rows: usize, cols: usize, block: usize) -> Result<(u32, u32)> {
    let size = |field: &str, value: usize| match u32::try_from(value) {
        Ok(value) if (1..=MAX_DIM).contains(&u64::from(value)) => Ok(value),
        _ => Err(Error::shape(field, format!("from 1 to {MAX_DIM}"), value)),
    };
    let (rows, cols) = (size("M", rows)?, size("K", cols)?);
    let elements = u64::from(rows) * u64::from(cols);
    if elements > contract::MAX_ELEMENTS {
        return Err(Error::shape("M K", format!("at most {}", contract::MAX_ELEMENTS), elements));
    }
    if (cols as usize).is_multiple_of(block) {
        Ok((rows, cols))
    } else {
        Err(Error::shape("K", format!("a multiple of {block}"), cols))
    }
}

/// Bytes of the scales of a format.
pub(crate) fn scale_bytes(
    format: contract::Format,
    rows: usize,
    cols: usize,
    layout: ScaleLayout,
) -> Result<usize> {
    match format {
        contract::Format::Nvfp4 => Nvfp4::scale_bytes(rows, cols, layout),
        contract::Format::Mxfp4 => Mxfp4::scale_bytes(rows, cols, layout),
    }
    .map_err(|error| Error::overflow("scales", error))
}

/// The quantisation of a matrix as planned, before anything is allocated.
pub(crate) struct Planned {
    plan: Plan,
    rows: u32,
    cols: u32,
    /// [`QuantizeParams::depth`]
    depth: u32,
    source: ScaleSource,
    code_bytes: usize,
    scale_bytes: usize,
}

impl Planned {
    /// Plans for a target.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Scalar`], [`Error::Overflow`].
    pub fn new(
        &Target { arch, machine }: &Target,
        rows: usize,
        cols: usize,
        input: Input,
        options: &QuantizeOptions,
    ) -> Result<Self> {
        let format = options.recipe.format();
        let (m, k) = sizes(rows, cols, format.block() as usize)?;
        options.check("input")?;
        let sms = machine.sms.max(1);
        let config = contract::quantize_config(options.recipe, input.element, input.gated);
        let mut steps = Vec::new();
        let source = scale_source(options);
        if source != ScaleSource::Given {
            let amax = contract::amax_config(input.element, input.gated);
            let per_row = source == ScaleSource::RowAmax;
            let ctas = amax.grid(m, k, per_row, sms);
            steps.push(PlannedKernel { kernel: amax.name, ctas, threads: amax.threads() });
        }
        let (ctas, depth) = config.launch(m, k, options.layout, sms);
        steps.push(PlannedKernel { kernel: config.name, ctas, threads: config.threads() });
        let passes = match source {
            ScaleSource::Given => "the tensor-level scale is known: one pass over the input",
            ScaleSource::TensorAmax => "the tensor's largest magnitude takes a pass before",
            ScaleSource::RowAmax => "the rows' largest magnitudes take a pass before",
        };
        let why = vec![
            format!(
                "{} by recipe {} from {}, {} scales",
                format.name(),
                options.recipe.name(),
                input.element.name(),
                options.layout
            ),
            passes.into(),
        ];
        let plan = Plan { op: "quantize", arch, steps, why };
        let scale_bytes = scale_bytes(format, rows, cols, options.layout)?;
        let code_bytes = rows * (cols / 2);
        Ok(Self { plan, rows: m, cols: k, depth, source, code_bytes, scale_bytes })
    }
}

impl Quantizer {
    /// Plans, and allocates outputs (poisoned) and workspace for matrices of `rows` x `cols`.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that no kernel takes, [`Error::Scalar`] for a given parameter
    /// that the recipe does not accept, [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        rows: usize,
        cols: usize,
        input: Input,
        options: &QuantizeOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let planned = Planned::new(&device.into(), rows, cols, input, options)?;
        let Planned { plan, rows: m, cols: k, depth, source, code_bytes, scale_bytes } = planned;
        let found = kernels.find_all(plan.steps.iter().map(|step| step.kernel))?;
        let levels = if source == ScaleSource::RowAmax { rows } else { 1 };
        let f32s = |name| DeviceBuffer::poisoned(device, name, levels * size_of::<f32>());
        let errors = DeviceBuffer::upload(device, "errors", &NO_ERROR.to_le_bytes())?;
        Ok(Self {
            kernels: kernels.clone(),
            plan,
            found,
            input,
            options: *options,
            rows: m,
            cols: k,
            depth,
            codes: DeviceBuffer::poisoned(device, "codes", code_bytes)?,
            scales: DeviceBuffer::poisoned(device, "scales", scale_bytes)?,
            maxima: (source != ScaleSource::Given).then(|| f32s("maxima")).transpose()?,
            parameters: (options.recipe.parameter_of().is_some())
                .then(|| f32s("parameters"))
                .transpose()?,
            errors,
            launching: Mutex::default(),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The buffer of the packed codes, `[rows, cols / 2]`.
    #[must_use]
    pub fn codes(&self) -> &DeviceBuffer {
        &self.codes
    }

    /// The buffer of the block scales, in the options' layout.
    #[must_use]
    pub fn scales(&self) -> &DeviceBuffer {
        &self.scales
    }

    /// The buffer of the rows' scales, f32 `[rows]`, as products take them
    /// ([`ActivationBuffers::Blocks`](crate::gemm::ActivationBuffers)): of a quantiser with a [scale for each
    /// row](TensorScale::PerRow) by a recipe whose parameter is a multiplier (TorchAO's, ModelOpt's). [`Rows`](crate::rows::Rows)
    /// makes them by all recipes, in one pass.
    #[must_use]
    pub fn row_scales(&self) -> Option<&DeviceBuffer> {
        let project = self.options.recipe.parameter_of()?;
        let of_rows = self.options.scale == TensorScale::PerRow && !project.parameter_is_divisor();
        self.parameters.as_ref().filter(|_| of_rows)
    }

    /// Bytes that the operation must read or write at least once: inputs, codes and scales.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let outputs = (self.codes.len() + self.scales.len()) as u64;
        self.input_bytes() * if self.input.gated { 2 } else { 1 } + outputs
    }

    fn input_bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols) * u64::from(self.input.element.bytes())
    }

    /// The address of an input of a launch.
    ///
    /// # Errors
    /// [`Error::Shape`] for another size, [`Error::WrongDevice`].
    fn place_input(&self, what: &str, input: &DeviceBuffer) -> Result<u64> {
        let required = usize::try_from(self.input_bytes()).unwrap_or(usize::MAX);
        input.checked(what, required, self.kernels.device())
    }

    /// Queues the quantisation of `input`, or with `up` of `silu(input) * up`, without waiting for
    /// the result; it may be called while a CUDA graph is recorded. On the emulator the launches
    /// are complete when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for an input of another size or on another device, or if `up` is given to a
    /// quantiser that is not gated or is missing for one that is, and where kernels of another thread's
    /// own stream use the quantiser's memory;
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self, input: &DeviceBuffer, up: Option<&DeviceBuffer>) -> Result<()> {
        self.launch_into(input, up, &self.codes, &self.scales)
    }

    /// [`launch`](Self::launch) with codes and scales in buffers of the caller's, as large as
    /// [`codes`](Self::codes) and [`scales`](Self::scales). Largest magnitudes, parameters and the
    /// place of an element that is not finite stay in the quantiser's own.
    ///
    /// # Errors
    /// The same.
    pub fn launch_into(
        &self,
        input: &DeviceBuffer,
        up: Option<&DeviceBuffer>,
        codes: &DeviceBuffer,
        scales: &DeviceBuffer,
    ) -> Result<()> {
        let launching = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.give(&mut AtOnce, &launching, [Some(input), up], [codes, scales])
    }

    /// [`launch`](Self::launch) of one input, given to a queue.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn prepare<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        input: &DeviceBuffer,
    ) -> Result<()> {
        let launching = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.give(queue, &launching, [Some(input), None], [&self.codes, &self.scales])
    }

    /// Checks the arguments of a launch and gives its steps to a queue; `launching` is the quantiser's own.
    fn give<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        launching: &FirstStream,
        [input, up]: [Option<&DeviceBuffer>; 2],
        [codes, scales]: [&DeviceBuffer; 2],
    ) -> Result<()> {
        let is_gated = up.is_some();
        let device = self.kernels.device();
        let place = |what: &str, buffer: Option<&DeviceBuffer>| {
            buffer.map_or(Ok(0), |buffer| self.place_input(what, buffer))
        };
        let (input, up) = (place("`input`", input)?, place("`up`", up)?);
        if is_gated != self.input.gated {
            let required = if self.input.gated { "given" } else { "absent" };
            let found = if is_gated { "given" } else { "absent" };
            return Err(Error::shape("the second input", required, found));
        }
        let own_memory =
            self.maxima.is_some() || self.parameters.is_some() || ptr::eq(codes, &self.codes);
        let codes = codes.checked("the codes", self.codes.len(), device)?;
        let scales = scales.checked("the scales", self.scales.len(), device)?;
        let source = scale_source(&self.options);
        let address = |buffer: Option<&DeviceBuffer>| buffer.map_or(0, DeviceBuffer::address);
        if own_memory {
            launching.require("quantiser", device)?;
        }
        let mut steps = self.plan.steps.iter().zip(&self.found);
        if let (Some(maxima), 2) = (&self.maxima, steps.len())
            && let Some(amax) = steps.next()
        {
            let per_row = source == ScaleSource::RowAmax;
            if !per_row {
                maxima.fill(0)?;
            }
            let params = AmaxParams {
                input,
                up,
                out: maxima.address(),
                m: self.rows,
                k: self.cols,
                per_row: per_row.into(),
                reserved: 0,
            };
            // SAFETY: the buffers have the sizes that the parameters state (the input's was
            // checked above). They are alive until the launch is complete, because freeing device
            // memory waits for launches.
            unsafe { launch_step(queue, &self.kernels, amax, per_row, bytes(&params))? };
        }
        let params = QuantizeParams {
            input,
            up,
            codes,
            scales,
            tensor: address(self.maxima.as_ref()),
            tensor_out: address(self.parameters.as_ref()),
            errors: self.errors.address(),
            m: self.rows,
            k: self.cols,
            given: match self.options.scale {
                TensorScale::Given(given) => given,
                _ => 1.0,
            },
            source: source as u32,
            blocked: u32::from(self.options.layout == ScaleLayout::Blocked128x4),
            recipe: self.options.recipe.code(),
            depth: self.depth,
            element: self.input.element as u32,
        };
        if let Some(quantize) = steps.next() {
            // SAFETY: the buffers have the sizes that the parameters state and are alive until the
            // launch is complete, because freeing device memory waits for launches.
            unsafe { launch_step(queue, &self.kernels, quantize, true, bytes(&params))? };
        }
        Ok(())
    }

    /// Copies the result of the last launch to the host. Errors name the input `name`.
    ///
    /// # Errors
    /// [`Error::NonFiniteAt`] for the first element that is not finite;
    /// [`DeviceError`](crate::device::DeviceError), which includes the emulator's diagnostics,
    /// among them a byte that the kernel did not write.
    pub fn result(&self, name: &str) -> Result<QuantizedMatrix> {
        self.check(name)?;
        let parameters = match &self.parameters {
            Some(buffer) => floats::decode(FloatType::F32, &buffer.read()?),
            None => Vec::new(),
        };
        Ok(QuantizedMatrix {
            options: self.options,
            rows: self.rows as usize,
            cols: self.cols as usize,
            codes: self.codes.read()?,
            scales: self.scales.read()?,
            parameters,
        })
    }

    /// Waits, and fails if an input of a launch since the last check was not finite.
    ///
    /// # Errors
    /// [`Error::NonFiniteAt`]; [`DeviceError`](crate::device::DeviceError).
    pub fn check(&self, name: &str) -> Result<()> {
        let word = self.errors.read()?;
        let index = word.first_chunk().map_or(NO_ERROR, |word| u64::from_le_bytes(*word));
        if index == NO_ERROR {
            return Ok(());
        }
        self.errors.fill(u8::MAX)?;
        let dims = Dims::new(1, self.rows as usize, self.cols as usize)?;
        let index = dims.position(usize::try_from(index).unwrap_or(usize::MAX));
        Err(Error::NonFiniteAt { tensor: name.into(), index })
    }
}

fn scale_source(options: &QuantizeOptions) -> ScaleSource {
    match (options.recipe, options.scale) {
        (Recipe::Mxfp4(_), _) | (_, TensorScale::OneLevel | TensorScale::Given(_)) => {
            ScaleSource::Given
        }
        (_, TensorScale::FromAmax) => ScaleSource::TensorAmax,
        (_, TensorScale::PerRow) => ScaleSource::RowAmax,
    }
}

/// Gives one step to a queue, by its kernel. `overlaps` states that the stream's last operation is a kernel and
/// that the step itself waits for it.
///
/// # Safety
/// The obligations of [`Queue::launch`] hold.
pub(crate) unsafe fn launch_step<'k>(
    queue: &mut dyn Queue<'k>,
    kernels: &'k Kernels,
    (step, kernel): (&PlannedKernel, &'k FoundKernel),
    overlaps: bool,
    params: &[u8],
) -> Result<()> {
    let spec = LaunchSpec {
        entry: kernel.name(),
        grid: [step.ctas, 1, 1],
        block: [step.threads, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        overlaps,
        params,
    };
    // SAFETY: the caller guarantees the obligations.
    unsafe { queue.launch(kernels, kernel, &spec) }
}

/// Quantises the little-endian elements `data` of type `dtype`, a matrix or a batch with
/// consecutive rows, and copies the result to the host.
///
/// # Errors
/// The errors of [`Quantizer`], and [`Error::Shape`] if the length disagrees with `dims`.
pub fn quantize_once(
    kernels: &Kernels,
    data: &[u8],
    dtype: FloatType,
    dims: Dims,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix> {
    let rows = dims.batch() * dims.rows();
    let input = Input::plain(dtype);
    let quantizer = Quantizer::new(kernels, rows, dims.cols(), input, options)?;
    let buffer = DeviceBuffer::upload(kernels.device(), "input", data)?;
    quantizer.launch(&buffer, None)?;
    quantizer.result("input")
}

/// `silu(gate) * up` in f64, rounded to f32, where `silu(x) = x / (1 + exp(-x))`. Gated kernels
/// quantise the same values up to their rounding.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn gated_product(gate: &[f32], up: &[f32]) -> Result<Vec<f32>> {
    if gate.len() != up.len() {
        return Err(Error::shape("length of `up`", gate.len().to_string(), up.len()));
    }
    let mut product = filled("gated product", gate.len(), 0f32)?;
    for (out, (&gate, &up)) in product.iter_mut().zip(gate.iter().zip(up)) {
        let x = f64::from(gate);
        *out = (x / (1.0 + (-x).exp()) * f64::from(up)) as f32;
    }
    Ok(product)
}
