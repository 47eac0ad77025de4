//! One verified operation on rows, with times or counters.
//!
//! Norms and rotations must equal the CPU's bit for bit, gated activations must be near the exact values, before anything
//! is timed, and again for every input set that was timed. The ceiling is a device-to-device copy of as many bytes in the
//! same run; beside it is the time of the quantiser alone for a matrix of the same size.

use std::fmt;

use fp4_formats::HalfType;
use rayon::prelude::*;
use serde::Serialize;

use super::quantize::CopyTiming;
use super::timing::{SetTimes, input_sets, microseconds};
use super::{Emulated, HostCost, Protocol};
use crate::rng::SplitMix64;
use crate::rows::{exact, first_wrong};
use crate::shape::RowsShape;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Backend, Choice, Kernels};
use nvfp4::error::{Result, filled, require_memory};
use nvfp4::floats;
use nvfp4::quantize::QuantizeOptions;
use nvfp4::quantize::device::{Input, Plan, Quantizer};
use nvfp4::rows::{Operands, Reference, Results, Rows, RowsOptions, Source, reference};

/// Launches in the graph that measures the least time of a launch.
const FLOOR_LAUNCHES: usize = 64;

/// Options of a bench of operations on rows.
#[derive(Clone, Debug)]
pub struct RowsBench {
    /// Type of the input.
    pub element: HalfType,
    /// Source, results, rotation. Without an index.
    pub options: RowsOptions,
    /// Seed of the inputs, which are standard normal.
    pub seed: u64,
    /// The protocol of timing; only on a GPU.
    pub protocol: Protocol,
}

/// Measured times of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowsTiming {
    /// The operation, and a copy.
    #[serde(flatten)]
    pub copied: CopyTiming,
    /// The quantiser alone of a matrix of the same size and type, by the same recipe; none for other results.
    pub quantize_alone: Option<SetTimes>,
    /// The operation's time divided by the quantiser's.
    pub ratio_to_quantize: Option<f64>,
}

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct RowsReport {
    /// The operation.
    pub op: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// The source.
    pub source: &'static str,
    /// The kind of the results.
    pub results: &'static str,
    /// The recipe, if the results have one.
    pub recipe: Option<&'static str>,
    /// Type of the input.
    pub dtype: &'static str,
    /// Layout of the block scales, if there are any.
    pub layout: Option<&'static str>,
    /// Whether elements are rotated.
    pub rotated: bool,
    /// The device, and why it was chosen.
    pub device: Choice,
    /// The plan.
    pub plan: Plan,
    /// The PTX file.
    pub kernels: String,
    /// Seed of the inputs.
    pub seed: u64,
    /// Whether the results are right.
    pub verified: bool,
    /// The first one that is not.
    pub difference: Option<String>,
    /// Bytes that must be read or written at least once.
    pub bytes: u64,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<RowsTiming>,
    /// The cost of a launch on the host, if it was asked for.
    pub host: Option<HostCost>,
    /// Counters; only from the emulator.
    pub emulated: Option<Emulated>,
}

/// The operands, and the expected results.
struct Data {
    input: Vec<u8>,
    /// The second factor, or the residual.
    other: Option<Vec<u8>>,
    weight: Option<Vec<u8>>,
    bias: Option<Vec<u8>>,
    expected: Reference,
    /// Exact values, of gated activations.
    exact: Option<Vec<f64>>,
}

impl Data {
    fn new(shape: RowsShape, bench: &RowsBench) -> Result<Self> {
        let RowsShape { m, k, .. } = shape;
        let (element, options) = (bench.element.float(), &bench.options);
        let mut turn = 0u64;
        let mut matrix = |rows: usize| -> Result<Vec<u8>> {
            turn += 1;
            let mut bytes = filled("input", rows * k * 2, 0u8)?;
            bytes.par_chunks_exact_mut(k * 2).enumerate().for_each(|(row, out)| {
                let seed = bench.seed.wrapping_add(turn << 56).wrapping_add((row as u64) << 24);
                let mut rng = SplitMix64::new(seed);
                out.copy_from_slice(&floats::encode(element, (0..k).map(|_| rng.normal())));
            });
            Ok(bytes)
        };
        let source = options.source;
        let input = matrix(m)?;
        let has_other = source.is_gated() || source.has_residual();
        let other = has_other.then(|| matrix(m)).transpose()?;
        let has_norm = matches!(source, Source::RmsNorm { .. } | Source::LayerNorm { .. });
        let weight = has_norm.then(|| matrix(1)).transpose()?;
        let has_bias = matches!(source, Source::LayerNorm { bias: true, .. });
        let bias = has_bias.then(|| matrix(1)).transpose()?;
        let operands = operands(source, &input[..], &other, &weight, &bias);
        let expected = reference(m, k, bench.element, options, &operands)?;
        let exact = source
            .is_gated()
            .then(|| exact(m, k, bench.element, options, &operands))
            .transpose()?;
        Ok(Self { input, other, weight, bias, expected, exact })
    }
}

/// The operands by their parts.
fn operands<'a, T: ?Sized, O: std::ops::Deref<Target = T>>(
    source: Source,
    input: &'a T,
    other: &'a Option<O>,
    weight: &'a Option<O>,
    bias: &'a Option<O>,
) -> Operands<'a, T> {
    let mut operands = Operands::plain(input);
    if source.is_gated() {
        operands.up = other.as_deref();
    } else {
        operands.residual = other.as_deref();
    }
    (operands.weight, operands.bias) = (weight.as_deref(), bias.as_deref());
    operands
}

/// One prepared operation with its operands on the device.
struct Prepared {
    operation: Rows,
    source: Source,
    input: DeviceBuffer,
    other: Option<Box<DeviceBuffer>>,
    /// The sums, which are not in the residual's place, so that every launch has the same operands.
    sums: Option<DeviceBuffer>,
    weight: Option<Box<DeviceBuffer>>,
    bias: Option<Box<DeviceBuffer>>,
}

impl Prepared {
    fn new(kernels: &Kernels, shape: RowsShape, data: &Data, bench: &RowsBench) -> Result<Self> {
        let device = kernels.device();
        let upload = |name: &str, bytes: &Option<Vec<u8>>| -> Result<Option<Box<DeviceBuffer>>> {
            let buffer = bytes.as_ref().map(|bytes| DeviceBuffer::upload(device, name, bytes));
            Ok(buffer.transpose()?.map(Box::new))
        };
        let RowsShape { m, k, .. } = shape;
        let source = bench.options.source;
        let sums = source.has_residual();
        Ok(Self {
            operation: Rows::new(kernels, m, k, bench.element, &bench.options)?,
            source,
            input: DeviceBuffer::upload(device, "input", &data.input)?,
            other: upload("other", &data.other)?,
            sums: sums
                .then(|| DeviceBuffer::poisoned(device, "sums", data.input.len()))
                .transpose()?,
            weight: upload("weight", &data.weight)?,
            bias: upload("bias", &data.bias)?,
        })
    }

    fn launch(&self) -> Result<()> {
        let Self { operation, source, input, other, sums, weight, bias } = self;
        let mut operands = operands(*source, input, other, weight, bias);
        operands.residual_out = sums.as_ref();
        operation.launch(&operands)
    }

    /// The first wrong result of the last launch.
    fn difference(&self, data: &Data, bench: &RowsBench) -> Result<Option<String>> {
        if let (Some(sums), Some(expected)) = (&self.sums, &data.expected.residual)
            && sums.read()? != *expected
        {
            return Ok(Some("the updated residual".into()));
        }
        let made = self.operation.result("input")?;
        Ok(match &data.exact {
            Some(exact) => first_wrong(&made, &data.expected.made, exact, bench.element),
            None => made.difference(&data.expected.made).map(|difference| difference.to_string()),
        })
    }
}

/// Runs `shape` on random inputs, verifies it, and on a GPU times it.
///
/// # Errors
/// Errors for bad sizes and options, and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an error: it is
/// reported, and nothing is timed.
pub fn rows(kernels: &Kernels, shape: RowsShape, bench: &RowsBench) -> Result<RowsReport> {
    let device = kernels.device();
    let elements = shape.m as u64 * shape.k as u64;
    // Operands, values as f32, exact ones, and the emulator's memory.
    let copies = if matches!(device.backend(), Backend::Emulator(_)) { 24 } else { 20 };
    require_memory(&format!("running {shape}"), elements.saturating_mul(copies))?;
    let data = Data::new(shape, bench)?;
    let (observed, reports) = kernels.observed();
    let prepared = Prepared::new(&observed, shape, &data, bench)?;
    prepared.launch()?;
    let reports = reports.take();
    let difference = prepared.difference(&data, bench)?;
    let verified = difference.is_none();
    let on_gpu = matches!(device.backend(), Backend::Cuda(_));
    let times = (on_gpu && verified && bench.protocol.replays > 0)
        .then(|| time(kernels, shape, &data, bench))
        .transpose()?;
    let make = |kernels: &Kernels| Prepared::new(kernels, shape, &data, bench);
    let host = HostCost::measure(kernels, bench.protocol, verified, make, Prepared::launch)?;
    let blocks = blocks(bench);
    Ok(RowsReport {
        op: shape.op(),
        shape: shape.to_string(),
        source: bench.options.source.name(),
        results: bench.options.results.name(),
        recipe: blocks.map(|options| options.recipe.name()),
        dtype: bench.element.name(),
        layout: blocks.map(|options| options.layout.name()),
        rotated: bench.options.rotation.is_some(),
        device: device.choice().clone(),
        plan: prepared.operation.plan().clone(),
        kernels: kernels.files().place().to_string(),
        seed: bench.seed,
        verified,
        difference,
        bytes: prepared.operation.bytes()?,
        times,
        host,
        emulated: Emulated::of(device, &reports),
    })
}

/// Returns how results are quantised, if they are block-scaled.
fn blocks(bench: &RowsBench) -> Option<&QuantizeOptions> {
    match &bench.options.results {
        Results::Blocks(options) => Some(options),
        Results::E4m3 | Results::Half => None,
    }
}

/// Times an operation that has been verified once, and verifies every input set again.
fn time(kernels: &Kernels, shape: RowsShape, data: &Data, bench: &RowsBench) -> Result<RowsTiming> {
    let gpu = kernels.device().gpu("timing")?;
    let Protocol { warmup, replays, ceiling, .. } = bench.protocol;
    let make = || Prepared::new(kernels, shape, data, bench);
    let bytes = make()?.operation.bytes()?;
    let (sets, cold) = input_sets(kernels, bytes, make)?;
    let wrong = |set: &Prepared| -> Result<_> {
        Ok(set.difference(data, bench)?.map(|difference| format!(" ({difference})")))
    };
    // SAFETY: operands and results belong to the sets, and `kernels` has the module.
    let measured =
        unsafe { SetTimes::measure(gpu, (&sets, cold), bench.protocol, Prepared::launch, wrong)? };
    let median = measured.times.median;
    drop(sets);

    let tiny = RowsShape { m: 1, k: 32, ..shape };
    let tiny = Prepared::new(kernels, tiny, &Data::new(tiny, bench)?, bench)?;
    let graph = gpu.capture(|| (0..FLOOR_LAUNCHES).try_for_each(|_| tiny.launch()))?;
    // SAFETY: operands and results belong to `tiny`; the call waits for its replays.
    let launch_floor = unsafe { graph.time(FLOOR_LAUNCHES, warmup, replays)? };
    let copy = ceiling.then(|| gpu.time_copies(bytes, warmup, replays)).transpose()?;
    let quantize_alone = match (ceiling, blocks(bench)) {
        (true, Some(options)) => Some(alone(kernels, shape, data, bench, options)?),
        _ => None,
    };
    Ok(RowsTiming {
        ratio_to_quantize: quantize_alone.as_ref().map(|alone| median / alone.times.median),
        copied: CopyTiming {
            measured,
            bytes_per_second: bytes as f64 / median,
            ratio_to_copy: copy.as_ref().map(|copy| copy.times.median / median),
            copy,
            launch_floor,
        },
        quantize_alone,
    })
}

/// Times the quantiser alone of the input. Its results are those of another operation, which has its own bench.
fn alone(
    kernels: &Kernels,
    shape: RowsShape,
    data: &Data,
    bench: &RowsBench,
    options: &QuantizeOptions,
) -> Result<SetTimes> {
    let RowsShape { m, k, .. } = shape;
    let input = Input::plain(bench.element.float());
    let make = || -> Result<(Quantizer, DeviceBuffer)> {
        let quantizer = Quantizer::new(kernels, m, k, input, options)?;
        let input = DeviceBuffer::upload(kernels.device(), "input", &data.input)?;
        Ok((quantizer, input))
    };
    let (sets, cold) = input_sets(kernels, make()?.0.bytes(), make)?;
    let launch = |(quantizer, input): &(Quantizer, DeviceBuffer)| quantizer.launch(input, None);
    let gpu = kernels.device().gpu("timing")?;
    let wrong = |(quantizer, _): &(Quantizer, DeviceBuffer)| -> Result<Option<String>> {
        quantizer.check("input").map(|()| None)
    };
    // SAFETY: inputs and results belong to the sets, and `kernels` has the module.
    unsafe { SetTimes::measure(gpu, (&sets, cold), bench.protocol, launch, wrong) }
}

impl fmt::Display for RowsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, source, results, recipe, dtype, layout, rotated, .. } = self;
        write!(f, "{shape}: {source}, {dtype}")?;
        if *rotated {
            write!(f, ", rotated")?;
        }
        write!(f, " to {results}")?;
        if let (Some(recipe), Some(layout)) = (recipe, layout) {
            write!(f, ", recipe {recipe}, {layout} scales")?;
        }
        writeln!(f)?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        match &self.difference {
            None => writeln!(f, "  verified  against the CPU's result")?,
            Some(difference) => writeln!(f, "  WRONG     {difference}")?,
        }
        if let Some(times) = &self.times {
            write!(f, "{}", times.copied)?;
            if let (Some(alone), Some(ratio)) = (&times.quantize_alone, times.ratio_to_quantize) {
                let median = microseconds(alone.times.median);
                writeln!(
                    f,
                    "  quantise  {median:.3} us alone; this takes {ratio:.3} times as long"
                )?;
            }
        }
        if let Some(host) = &self.host {
            write!(f, "{host}")?;
        }
        if let Some(emulated) = &self.emulated {
            write!(f, "{emulated}")?;
        }
        Ok(())
    }
}
