//! Operations on rows on a device.

use std::sync::{Mutex, PoisonError};

use fp4_formats::gemm::Activation;
use fp4_formats::params::bytes;
use fp4_formats::quantize::{MAX_ELEMENTS, NO_ERROR, QuantizeParams, ScaleSource, quantize_config};
use fp4_formats::rows::{Rotation, RowsConfig, RowsParams, RowsSource, rows_config};
use fp4_formats::{FloatType, HalfType, ScaleLayout};

use super::{
    Checked, Made, Operands, Outputs, Results, RowsOptions, Source, half_bytes, operands_given,
};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, Queue, Target};
use crate::error::{Error, Result};
use crate::floats;
use crate::quantize::device::{Input, Plan, PlannedKernel, launch_step, scale_bytes};
use crate::quantize::{QuantizeOptions, QuantizedMatrix, Recipe, TensorScale};
use crate::stream::FirstStream;
use crate::tensor::Dims;

/// An operation on rows, prepared on a device, with its results.
#[derive(Debug)]
pub struct Rows {
    kernels: Kernels,
    plan: Plan,
    found: FoundKernel,
    options: RowsOptions,
    element: HalfType,
    checked: Checked,
    /// [`Planned::alone`].
    alone: Option<u32>,
    elements: DeviceBuffer,
    scales: Option<DeviceBuffer>,
    multipliers: Option<DeviceBuffer>,
    /// Parameters of NVFP4: one, or one for each row.
    parameters: Option<DeviceBuffer>,
    errors: DeviceBuffer,
    /// Held while a launch is queued. The stream that the memory above belongs to.
    launching: Mutex<FirstStream>,
}

/// An operation on rows as planned, before anything is allocated.
pub(crate) struct Planned {
    plan: Plan,
    checked: Checked,
    /// Bytes of the elements.
    elements: usize,
    /// Bytes of the block scales.
    scales: Option<usize>,
    /// Parameters of NVFP4.
    levels: Option<usize>,
    /// [`QuantizeParams::depth`] of a quantiser's kernel, which the operation is alone.
    alone: Option<u32>,
}

/// The input of a quantiser that does all that the options ask for: elements as they are, or the product with SiLU, with
/// nothing to be found in a row before. Its kernel needs no row to be in one CTA, and is faster.
fn quantised_alone<'a>(
    options: &'a RowsOptions,
    element: HalfType,
    checked: &Checked,
) -> Option<(Input, &'a QuantizeOptions)> {
    let RowsOptions { source, results, rotation: None, gather: None } = options else {
        return None;
    };
    let gated = match source {
        Source::Plain => false,
        Source::Gated(Activation::Silu) => true,
        Source::Gated(_) | Source::RmsNorm { .. } | Source::LayerNorm { .. } => return None,
    };
    let Results::Blocks(options) = results else { return None };
    let is_known = match options.recipe {
        Recipe::Nvfp4(_) => options.scale != TensorScale::PerRow,
        Recipe::Mxfp4(_) => true,
        Recipe::Adaptive(_) => false,
    };
    let fits = u64::from(checked.m) * u64::from(checked.k) <= MAX_ELEMENTS;
    (is_known && fits).then_some((Input { element: element.float(), gated }, options))
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
        element: HalfType,
        options: &RowsOptions,
    ) -> Result<Self> {
        let checked = options.check(rows, cols)?;
        let (results, source) = (&options.results, &options.source);
        let (shape, layout) = ([checked.m, checked.k], results.layout());
        let sms = machine.sms.max(1);
        let is_bare = options.gather.is_none() && options.rotation.is_none();
        let few = match source {
            Source::RmsNorm { .. } if is_bare => RowsConfig::few(shape, layout, sms),
            _ => None,
        };
        let kind = match (few, source.is_gated()) {
            (Some(_), _) => RowsSource::Few,
            (None, true) => RowsSource::Gated,
            (None, false) => RowsSource::One,
        };
        let config = rows_config(results.sink(), kind, element);
        let (ctas, threads) = few.unwrap_or_else(|| RowsConfig::launch(shape, layout, sms));
        let mut why =
            vec![format!("{} of {} to {}", source.name(), element.name(), results.name())];
        if let Results::Blocks(options) = results {
            why.push(format!("recipe {}, {} scales", options.recipe.name(), options.layout));
        }
        if let Source::Gated(activation) = source {
            why.push(format!("activation {activation}"));
        }
        if let Some(Rotation { signs }) = options.rotation {
            why.push(format!("each 16 elements are rotated, signs {signs:#06x}"));
        }
        if few.is_some() {
            why.push(format!(
                "few rows: {} CTAs share each",
                ctas / RowsConfig::padded(checked.m, layout)
            ));
        }
        let kept = RowsConfig::kept(threads);
        let mut step = PlannedKernel { kernel: config.name, ctas, threads };
        let mut alone = None;
        if let Some((input, options)) = quantised_alone(options, element, &checked) {
            let config = quantize_config(options.recipe, input.element, input.gated);
            let (ctas, depth) = config.launch(checked.m, checked.k, options.layout, sms);
            step = PlannedKernel { kernel: config.name, ctas, threads: config.threads() };
            alone = Some(depth);
            why.push("nothing but quantising: the quantiser's kernel".into());
        } else if cols > kept as usize {
            why.push(format!("a CTA keeps {kept} elements of a row and reads the rest again"));
        }
        let plan = Plan { op: "rows", arch, steps: vec![step], why };
        let elements = match results {
            Results::Blocks(_) => half_bytes(rows, cols)? / 4,
            Results::E4m3 => half_bytes(rows, cols)? / 2,
            Results::Half => half_bytes(rows, cols)?,
        };
        let (mut scales, mut levels) = (None, None);
        if let Results::Blocks(of) = results {
            scales = Some(scale_bytes(of.recipe.format(), rows, cols, of.layout)?);
            if of.recipe.parameter_of().is_some() {
                levels = Some(if of.scale == TensorScale::PerRow { rows } else { 1 });
            }
        }
        Ok(Self { plan, checked, elements, scales, levels, alone })
    }
}

impl Rows {
    /// Plans, and allocates results (poisoned) for matrices of `rows` x `cols` of type `element`.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that no kernel takes, a tensor-level scale that depends on all rows, and an index beside a
    /// residual; [`Error::Scalar`] for an epsilon, an activation or a given parameter that is not usable;
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        rows: usize,
        cols: usize,
        element: HalfType,
        options: &RowsOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let planned = Planned::new(&device.into(), rows, cols, element, options)?;
        let Planned { plan, checked, elements, scales, levels, alone } = planned;
        let found = kernels.find_all(plan.steps.iter().map(|step| step.kernel))?.remove(0);
        let sized = |name, bytes| DeviceBuffer::poisoned(device, name, bytes);
        let scales = scales.map(|bytes| sized("scales", bytes)).transpose()?;
        let parameters = levels.map(|levels| sized("parameters", levels * size_of::<f32>()));
        let parameters = parameters.transpose()?;
        let multipliers = options.results.has_multipliers();
        Ok(Self {
            kernels: kernels.clone(),
            plan,
            found,
            options: *options,
            element,
            checked,
            alone,
            elements: sized("elements", elements)?,
            scales,
            multipliers: multipliers
                .then(|| sized("multipliers", rows * size_of::<f32>()))
                .transpose()?,
            parameters,
            errors: DeviceBuffer::upload(device, "errors", &NO_ERROR.to_le_bytes())?,
            launching: Mutex::default(),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The buffers of the results.
    #[must_use]
    pub fn outputs(&self) -> Outputs<'_> {
        Outputs {
            elements: &self.elements,
            scales: self.scales.as_ref(),
            multipliers: self.multipliers.as_ref(),
        }
    }

    /// Bytes that the operation must read or write at least once: operands and results.
    ///
    /// # Errors
    /// [`Error::Shape`] where they cannot be counted.
    pub fn bytes(&self) -> Result<u64> {
        let Checked { m, k, from_rows, divisor: _ } = self.checked;
        let matrix = |rows: usize| half_bytes(rows, k as usize).map(|bytes| bytes as u64);
        let all = matrix(m as usize)?;
        // A gathered row is read as often as it is named.
        let inputs = if self.options.gather.is_some() { all.min(matrix(from_rows)?) } else { all };
        let residual = if self.options.source.has_residual() { 2 * all } else { 0 };
        let weights = match self.options.source {
            Source::Plain | Source::Gated(_) => 0,
            Source::RmsNorm { .. } | Source::LayerNorm { bias: false, .. } => 1,
            Source::LayerNorm { bias: true, .. } => 2,
        };
        let made = [Some(&self.elements), self.scales.as_ref(), self.multipliers.as_ref()];
        let made: usize = made.into_iter().flatten().map(DeviceBuffer::len).sum();
        let inputs = if self.options.source.is_gated() { 2 * inputs } else { inputs };
        Ok(inputs + residual + weights * 2 * u64::from(k) + made as u64)
    }

    /// Queues the operation without waiting for the result; it may be called while a CUDA graph is recorded. On the
    /// emulator it is complete when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of other sizes, on another device, missing, or that the options do not ask for, and
    /// where kernels of another thread's own stream use the results' memory; [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self, operands: &Operands<'_, DeviceBuffer>) -> Result<()> {
        self.launch_into(operands, &self.outputs())
    }

    /// [`launch`](Self::launch) with results in buffers of the caller's, as large as [`outputs`](Self::outputs).
    /// Parameters and the place of a value that is not finite stay in the operation's own.
    ///
    /// # Errors
    /// The same.
    pub fn launch_into(
        &self,
        operands: &Operands<'_, DeviceBuffer>,
        outputs: &Outputs<'_>,
    ) -> Result<()> {
        let launching = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.give(&mut AtOnce, &launching, operands, outputs)
    }

    /// [`launch`](Self::launch), given to a queue.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn prepare<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        operands: &Operands<'_, DeviceBuffer>,
    ) -> Result<()> {
        let launching = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.give(queue, &launching, operands, &self.outputs())
    }

    /// Checks the arguments of a launch and gives it to a queue.
    fn give<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        launching: &FirstStream,
        operands: &Operands<'_, DeviceBuffer>,
        outputs: &Outputs<'_>,
    ) -> Result<()> {
        let device = self.kernels.device();
        let params = self.parameter_block(operands, outputs)?;
        launching.require("operation", device)?;
        if let Some(step) = self.plan.steps.first() {
            // SAFETY: the buffers have the sizes that the parameters state, and are alive until the launch is complete,
            // because freeing device memory waits for launches. An index is the caller's to keep in range.
            unsafe {
                let params = match self.alone {
                    Some(_) => bytes(&params.quantize),
                    None => bytes(&params),
                };
                launch_step(queue, &self.kernels, (step, &self.found), true, params)?
            };
        }
        Ok(())
    }

    fn parameter_block(
        &self,
        operands: &Operands<'_, DeviceBuffer>,
        outputs: &Outputs<'_>,
    ) -> Result<RowsParams> {
        let device = self.kernels.device();
        let Checked { m, k, from_rows, divisor } = self.checked;
        let (rows, cols) = (m as usize, k as usize);
        let Operands { input, up, residual, residual_out, weight, bias, index } =
            operands_given(&self.options, operands)?;
        let place = |what: &str, buffer: Option<&DeviceBuffer>, bytes: usize| {
            buffer.map_or(Ok(0), |buffer| buffer.checked(what, bytes, device))
        };
        let (from, all) = (half_bytes(from_rows, cols)?, half_bytes(rows, cols)?);
        let up = place("`up`", up, from)?;
        let on_side = place("`residual`", residual, all)?;
        let sums = place("the place of the sums", residual_out.or(residual), all)?;
        let own = self.outputs();
        let same = |what: &str, given: Option<&DeviceBuffer>, own: Option<&DeviceBuffer>| match (
            given, own,
        ) {
            (Some(given), Some(own)) => given.checked(what, own.len(), device),
            (None, None) => Ok(0),
            (Some(_), None) => Err(Error::shape(what, "absent", "there")),
            (None, Some(_)) => Err(Error::shape(what, "there", "absent")),
        };
        let (norm, epsilon) = self.options.source.norm();
        let (recipe, source, given) = match &self.options.results {
            Results::Blocks(options) => {
                let (source, given) = match options.scale {
                    TensorScale::PerRow => (ScaleSource::RowAmax, 1.0),
                    TensorScale::Given(given) => (ScaleSource::Given, given),
                    // The first is MXFP4's, which has none.
                    TensorScale::FromAmax | TensorScale::OneLevel => (ScaleSource::Given, 1.0),
                };
                (options.recipe.code(), source, given)
            }
            Results::E4m3 | Results::Half => (0, ScaleSource::Given, 1.0),
        };
        let activation = match self.options.source {
            Source::Gated(activation) => activation,
            Source::Plain | Source::RmsNorm { .. } | Source::LayerNorm { .. } => {
                Activation::Identity
            }
        };
        let blocked = self.options.results.layout() == ScaleLayout::Blocked128x4;
        Ok(RowsParams {
            quantize: QuantizeParams {
                input: input.checked("`input`", from, device)?,
                up: if self.options.source.is_gated() { up } else { on_side },
                codes: outputs.elements.checked("the elements", self.elements.len(), device)?,
                scales: same("the scales", outputs.scales, own.scales)?,
                tensor: 0,
                tensor_out: self.parameters.as_ref().map_or(0, DeviceBuffer::address),
                errors: self.errors.address(),
                m,
                k,
                given,
                source: source as u32,
                blocked: blocked.into(),
                recipe,
                depth: self.alone.unwrap_or(0),
                element: self.element.float() as u32,
            },
            residual_out: sums,
            index: place("the index", index, rows * size_of::<u32>())?,
            weight: place("the weights", weight, half_bytes(1, cols)?)?,
            bias: place("the bias", bias, half_bytes(1, cols)?)?,
            multipliers: same("the multipliers", outputs.multipliers, own.multipliers)?,
            index_divisor: divisor,
            norm: norm as u32,
            epsilon,
            rotation: Rotation::word(self.options.rotation),
            combine: activation.combine(self.options.source.is_gated()),
        })
    }

    /// Copies the result of the last launch to the host. Errors name the input `name`.
    ///
    /// # Errors
    /// [`Error::NonFiniteAt`] for the first value, of a block format, that is not finite;
    /// [`DeviceError`](crate::device::DeviceError), which includes the emulator's diagnostics, among them a byte that the
    /// kernel did not write.
    pub fn result(&self, name: &str) -> Result<Made> {
        self.check(name)?;
        let floats = |buffer: &Option<DeviceBuffer>| match buffer {
            Some(buffer) => Ok(floats::decode(FloatType::F32, &buffer.read()?)),
            None => Ok::<_, Error>(Vec::new()),
        };
        let elements = self.elements.read()?;
        Ok(match &self.options.results {
            Results::Blocks(options) => Made::Blocks(QuantizedMatrix {
                options: *options,
                rows: self.checked.m as usize,
                cols: self.checked.k as usize,
                codes: elements,
                scales: self.scales.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read)?,
                parameters: floats(&self.parameters)?,
            }),
            Results::E4m3 => Made::E4m3 { codes: elements, scales: floats(&self.multipliers)? },
            Results::Half => Made::Half(elements),
        })
    }

    /// Waits, and fails if a value of a launch since the last check, for a block format, was not finite.
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
        let dims = Dims::new(1, self.checked.m as usize, self.checked.k as usize)?;
        let index = dims.position(usize::try_from(index).unwrap_or(usize::MAX));
        Err(Error::NonFiniteAt { tensor: name.into(), index })
    }
}
