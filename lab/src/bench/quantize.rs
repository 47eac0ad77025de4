//! One verified quantisation or dequantisation of a matrix, with times or counters.
//!
//! The result must equal the CPU's bit for bit before anything is timed, and again for every
//! input set that was timed. The ceiling is a device-to-device copy of as many bytes in the same
//! run.

use std::fmt;

use fp4_formats::FloatType;
use rayon::prelude::*;
use serde::Serialize;

use super::timing::{SetTimes, input_sets, microseconds, write_limit};
use super::{Emulated, HostCost, Protocol};
use crate::rng::SplitMix64;
use crate::shape::QuantizeShape;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::cuda::{ReadRate, Times};
use nvfp4::dequantize::{Dequantizer, Multiplier, dequantize_matrix};
use nvfp4::device::{Backend, Choice, Kernels};
use nvfp4::error::{Result, filled, require_memory};
use nvfp4::floats;
use nvfp4::quantize::device::{Input, Plan, Quantizer};
use nvfp4::quantize::{QuantizeOptions, QuantizedMatrix, TensorScale, quantize_matrix};
use nvfp4::tensor::Dims;

/// Launches in the graph that measures the least time of a launch.
const FLOOR_LAUNCHES: usize = 64;

/// Direction of the conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Floats to codes and scales.
    #[default]
    Quantize,
    /// Codes and scales to floats.
    Dequantize,
}

/// Options of a quantisation bench.
#[derive(Clone, Debug)]
pub struct QuantizeBench {
    /// Direction of the conversion.
    pub direction: Direction,
    /// Type of the floats.
    pub element: FloatType,
    /// Recipe, tensor-level scale, layout.
    pub options: QuantizeOptions,
    /// Seed of the inputs, which are standard normal.
    pub seed: u64,
    /// The protocol of timing; only on a GPU.
    pub protocol: Protocol,
}

/// Measured times of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyTiming {
    /// Over input sets in rotation.
    #[serde(flatten)]
    pub measured: SetTimes,
    /// Bytes that must be read or written at least once, divided by the median; bytes per second.
    pub bytes_per_second: f64,
    /// A device-to-device copy of as many bytes.
    pub copy: Option<ReadRate>,
    /// The copy's time divided by ours; 1 is the speed of a copy.
    pub ratio_to_copy: Option<f64>,
    /// Seconds of a launch of the same kernels on a single block.
    pub launch_floor: Times,
}

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizeBenchReport {
    /// The operation.
    pub op: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// The block format.
    pub format: &'static str,
    /// The recipe.
    pub recipe: &'static str,
    /// Type of the floats.
    pub dtype: &'static str,
    /// Layout of the block scales.
    pub layout: &'static str,
    /// Source of the tensor-level scale.
    pub scale: &'static str,
    /// The device, and why it was chosen.
    pub device: Choice,
    /// The plan.
    pub plan: Plan,
    /// The PTX file.
    pub kernels: String,
    /// Seed of the inputs.
    pub seed: u64,
    /// Whether the result equals the CPU's bit for bit.
    pub verified: bool,
    /// The first difference, if there is one.
    pub difference: Option<String>,
    /// Bytes that must be read or written at least once.
    pub bytes: u64,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<CopyTiming>,
    /// The cost of a launch on the host, if it was asked for.
    pub host: Option<HostCost>,
    /// Counters of the last kernel; only from the emulator.
    pub emulated: Option<Emulated>,
}

/// The tensor-level scale's name in reports.
fn scale_name(scale: TensorScale) -> &'static str {
    match scale {
        TensorScale::OneLevel => "one",
        TensorScale::FromAmax => "amax",
        TensorScale::PerRow => "row",
        TensorScale::Given(_) => "given",
    }
}

/// One prepared operation with its inputs on the device.
enum Prepared {
    Quantize(Box<(Quantizer, DeviceBuffer)>),
    Dequantize(Box<Dequantizing>),
}

/// A dequantisation with its inputs.
struct Dequantizing {
    operation: Dequantizer,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    levels: Levels,
}

/// The tensor-level multiplier of a dequantisation.
enum Levels {
    Given(f32),
    Rows(Box<DeviceBuffer>),
}

/// The inputs of an operation: the floats and their quantised form.
struct Data {
    floats: Vec<u8>,
    quantized: QuantizedMatrix,
    /// Expected result of dequantising; empty for the other direction.
    dequantized: Vec<u8>,
}

impl Data {
    fn new(rows: usize, cols: usize, bench: &QuantizeBench) -> Result<Self> {
        let width = bench.element.bytes() as usize;
        let mut floats = filled("input", rows * cols * width, 0u8)?;
        floats.par_chunks_exact_mut(cols * width).enumerate().for_each(|(row, out)| {
            let mut rng = SplitMix64::new(bench.seed.wrapping_add((row as u64) << 32));
            out.copy_from_slice(&floats::encode(bench.element, (0..cols).map(|_| rng.normal())));
        });
        let values = floats::decode(bench.element, &floats);
        let quantized =
            quantize_matrix("input", &values, Dims::new(1, rows, cols)?, &bench.options)?;
        let dequantized = match bench.direction {
            Direction::Quantize => Vec::new(),
            Direction::Dequantize => dequantize_matrix(&quantized, bench.element)?,
        };
        Ok(Self { floats, quantized, dequantized })
    }
}

impl Prepared {
    fn new(kernels: &Kernels, data: &Data, bench: &QuantizeBench) -> Result<Self> {
        let device = kernels.device();
        let QuantizedMatrix { rows, cols, options, .. } = data.quantized;
        Ok(match bench.direction {
            Direction::Quantize => {
                let input = Input::plain(bench.element);
                let quantizer = Quantizer::new(kernels, rows, cols, input, &options)?;
                let input = DeviceBuffer::upload(device, "input", &data.floats)?;
                Self::Quantize(Box::new((quantizer, input)))
            }
            Direction::Dequantize => {
                let (format, layout) = (options.recipe.format(), options.layout);
                let operation =
                    Dequantizer::new(kernels, rows, cols, format, layout, bench.element)?;
                let multipliers = data.quantized.multipliers();
                let levels = match multipliers.as_slice() {
                    [] => Levels::Given(1.0),
                    [only] => Levels::Given(*only),
                    rows => {
                        let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                        Levels::Rows(Box::new(DeviceBuffer::upload(device, "multipliers", &bytes)?))
                    }
                };
                let codes = DeviceBuffer::upload(device, "codes", &data.quantized.codes)?;
                let scales = DeviceBuffer::upload(device, "scales", &data.quantized.scales)?;
                Self::Dequantize(Box::new(Dequantizing { operation, codes, scales, levels }))
            }
        })
    }

    fn plan(&self) -> &Plan {
        match self {
            Self::Quantize(prepared) => prepared.0.plan(),
            Self::Dequantize(prepared) => prepared.operation.plan(),
        }
    }

    fn bytes(&self) -> Result<u64> {
        match self {
            Self::Quantize(prepared) => Ok(prepared.0.bytes()),
            Self::Dequantize(prepared) => prepared.operation.bytes(),
        }
    }

    fn launch(&self) -> Result<()> {
        match self {
            Self::Quantize(prepared) => prepared.0.launch(&prepared.1, None),
            Self::Dequantize(prepared) => {
                let Dequantizing { operation, codes, scales, levels } = &**prepared;
                let multiplier = match levels {
                    Levels::Given(value) => Multiplier::Given(*value),
                    Levels::Rows(buffer) => Multiplier::Rows(buffer),
                };
                operation.launch(codes, scales, multiplier)
            }
        }
    }

    /// The first difference between the last launch's result and the expected one.
    fn difference(&self, data: &Data) -> Result<Option<String>> {
        Ok(match self {
            Self::Quantize(prepared) => {
                let found = prepared.0.result("input")?;
                found.difference(&data.quantized).map(|difference| difference.to_string())
            }
            Self::Dequantize(prepared) => {
                let (found, expected) = (prepared.operation.result()?, &data.dequantized);
                let at = found.iter().zip(expected).position(|(x, y)| x != y);
                at.map(|at| {
                    let (x, y) = (found[at], expected[at]);
                    format!("byte {at} of the result is {x:#04x}, expected {y:#04x}")
                })
            }
        })
    }
}

/// Runs `shape` on random inputs, compares with the CPU bit for bit, and on a GPU times it.
///
/// # Errors
/// Errors for bad sizes, and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an
/// error: it is reported, and nothing is timed.
pub fn quantize(
    kernels: &Kernels,
    shape: QuantizeShape,
    bench: &QuantizeBench,
) -> Result<QuantizeBenchReport> {
    let device = kernels.device();
    // Floats as bytes and as f32, the expected results, and the emulator's memory, which has one
    // more bit per byte.
    let elements = shape.m as u64 * shape.k as u64;
    let copies = if matches!(device.backend(), Backend::Emulator(_)) { 16 } else { 12 };
    require_memory(&format!("running {shape}"), elements.saturating_mul(copies))?;
    let data = Data::new(shape.m, shape.k, bench)?;
    let (observed, reports) = kernels.observed();
    let prepared = Prepared::new(&observed, &data, bench)?;
    prepared.launch()?;
    let reports = reports.take();
    let difference = prepared.difference(&data)?;
    let on_gpu = matches!(device.backend(), Backend::Cuda(_));
    let times = if on_gpu && difference.is_none() && bench.protocol.replays > 0 {
        Some(time(kernels, &data, bench)?)
    } else {
        None
    };
    let verified = difference.is_none();
    let make = |kernels: &Kernels| Prepared::new(kernels, &data, bench);
    let host = HostCost::measure(kernels, bench.protocol, verified, make, Prepared::launch)?;
    let last = reports.len().saturating_sub(1);
    Ok(QuantizeBenchReport {
        op: prepared.plan().op,
        shape: shape.to_string(),
        format: bench.options.recipe.format().name(),
        recipe: bench.options.recipe.name(),
        dtype: bench.element.name(),
        layout: bench.options.layout.name(),
        scale: scale_name(bench.options.scale),
        device: device.choice().clone(),
        plan: prepared.plan().clone(),
        kernels: kernels.files().place().to_string(),
        seed: bench.seed,
        verified,
        difference,
        bytes: prepared.bytes()?,
        times,
        host,
        emulated: Emulated::of(device, &reports[last..]),
    })
}

/// Times an operation that has been verified once, and verifies every input set again.
fn time(kernels: &Kernels, data: &Data, bench: &QuantizeBench) -> Result<CopyTiming> {
    let device = kernels.device();
    let gpu = device.gpu("timing")?;
    let Protocol { warmup, replays, ceiling, .. } = bench.protocol;
    let make = || Prepared::new(kernels, data, bench);
    let bytes = make()?.bytes()?;
    let (sets, cold) = input_sets(kernels, bytes, make)?;
    let wrong = |set: &Prepared| -> Result<_> {
        Ok(set.difference(data)?.map(|difference| format!(" ({difference})")))
    };
    let launch = |set: &Prepared| set.launch();
    // SAFETY: inputs and results belong to the sets, and `kernels` has the module.
    let measured = unsafe { SetTimes::measure(gpu, (&sets, cold), bench.protocol, launch, wrong)? };
    let median = measured.times.median;
    drop(sets);

    let block = bench.options.recipe.format().block() as usize;
    let tiny_data = Data::new(1, block, bench)?;
    let tiny = Prepared::new(kernels, &tiny_data, bench)?;
    let graph = gpu.capture(|| (0..FLOOR_LAUNCHES).try_for_each(|_| tiny.launch()))?;
    // SAFETY: inputs and results belong to `tiny`; the call waits for its replays.
    let launch_floor = unsafe { graph.time(FLOOR_LAUNCHES, warmup, replays)? };
    let copy = ceiling.then(|| gpu.time_copies(bytes, warmup, replays)).transpose()?;
    Ok(CopyTiming {
        measured,
        bytes_per_second: bytes as f64 / median,
        ratio_to_copy: copy.as_ref().map(|copy| copy.times.median / median),
        copy,
        launch_floor,
    })
}

impl fmt::Display for QuantizeBenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, shape, format, recipe, dtype, layout, scale, .. } = self;
        writeln!(
            f,
            "{shape}: {op} {format}, recipe {recipe}, {dtype}, {layout} scales, tensor scale {scale}"
        )?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        match &self.difference {
            None => writeln!(f, "  verified  equal to the CPU's result bit for bit")?,
            Some(difference) => writeln!(f, "  WRONG     {difference}")?,
        }
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
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

impl fmt::Display for CopyTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bytes_per_second * 1e-9;
        self.measured.write(f, format_args!("{rate:.1} GB/s read and written"))?;
        if let (Some(copy), Some(ratio)) = (&self.copy, self.ratio_to_copy) {
            write_limit(f, "copy", "for", copy, ratio)?;
        }
        let floor = microseconds(self.launch_floor.median);
        writeln!(f, "  floor     {floor:.3} us for a launch of one block")
    }
}
