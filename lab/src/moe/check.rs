//! The memory that each step of a layer must leave.
//!
//! Every step is compared on its own inputs, as the steps before left them: bounds stay those of one
//! product, and an error is named with its step.

use std::ops::Range;

use fp4_formats::BlockFormat;
use fp4_formats::quantize::tokens;
use serde::Serialize;

use super::MoeOperands;
use super::operands::HostRoutes;
use crate::gemm::Verify;
use crate::oracle::Verification;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::error::{Error, Result};
use nvfp4::floats;
use nvfp4::gemm::{Gemm, GemmActivations, GemmResult, HalfMatrix, RowScaled};
use nvfp4::moe::{MoeLayer, MoeMemory, MoeStep, TokenFormat};
use nvfp4::tensor::{BlockScaled, Dims};

/// The position of an absent row, or of an absent choice.
const NOWHERE: usize = u32::MAX as usize;

/// A comparison of one step.
#[derive(Clone, Debug, Serialize)]
pub struct StepCheck {
    /// The step.
    pub step: &'static str,
    /// Whether all is as it must be.
    pub verified: bool,
    /// The distance of results from the f64 oracle, for steps that round. None where no token chose
    /// an expert of this device, and nothing is multiplied.
    pub verification: Option<Verification>,
}

impl std::fmt::Display for StepCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step, verified, verification } = self;
        let verdict = match (verified, verification) {
            (_, Some(verification)) => verification.summary(),
            (true, None) => "verified  all bytes".into(),
            (false, None) => "WRONG     some bytes".into(),
        };
        write!(f, "{verdict} ({step})")
    }
}

/// Compares what a launch with these operands left in `memory` and `out`, step by step.
///
/// # Errors
/// [`DeviceError`](nvfp4::device::DeviceError), [`Error::Memory`], [`Error::Shape`] for memory of
/// another layer.
pub fn check<F: BlockFormat>(
    layer: &MoeLayer,
    operands: &MoeOperands<'_, F>,
    memory: &MoeMemory,
    out: &DeviceBuffer,
) -> Result<Vec<StepCheck>> {
    let routes = operands.route();
    let HostRoutes { order, ranges } = &routes;
    let quantized = operands.quantized_tokens()?;
    let any = !order.is_empty();
    let gathered = any.then(|| operands.gathered(order, quantized.as_ref())).transpose()?;
    let [first, second] = layer.products();
    let arch = first.plan().arch;
    let row_bytes = operands.hidden() * operands.options.rows.bytes() as usize;
    // Rows of choices that are elsewhere are not written.
    let rows = || -> Result<Vec<u8>> {
        let of = |rows: Range<usize>| {
            memory.rows().read_range(rows.start * row_bytes..rows.end * row_bytes)
        };
        match any {
            true if layer.chooses() => {
                let each: Result<Vec<_>> = order.iter().map(|&row| of(row..row + 1)).collect();
                Ok(each?.concat())
            }
            true => of(0..order.len()),
            false => Ok(Vec::new()),
        }
    };
    let mut checks = Vec::new();
    for step in layer.steps() {
        let (verified, verification) = match (step, &gathered) {
            (MoeStep::Route, _) => (routed(&routes, operands, memory)?, None),
            (MoeStep::Quantize, _) => {
                let (Some(right), Some(found)) = (&quantized, memory.quantized()?) else {
                    return Err(Error::shape("memory", "of this layer", "of another one"));
                };
                (found.difference(right).is_none(), None)
            }
            (MoeStep::Gather, gathered) => {
                let Some(got) = memory.gathered()? else {
                    return Err(Error::shape("memory", "of this layer", "of another one"));
                };
                if let Some(TokenFormat::ScaledRows) = operands.options.quantized {
                    let right = operands.scaled_slots(order)?;
                    let (codes, scales) = (right.blocks().codes(), right.blocks().scales());
                    let same =
                        [codes, scales, &right.scale_bytes()] == got.each_ref().map(|got| &got[..]);
                    checks.push(StepCheck {
                        step: step.name(),
                        verified: same,
                        verification: None,
                    });
                    continue;
                }
                let right = gathered.as_ref().map(GemmActivations::bytes).unwrap_or_default();
                // Rows behind the last choice are zeros, and a row of zeros in e4m3 has a scale, too.
                let of_zeros = match operands.options.quantized {
                    Some(TokenFormat::Fp8) => tokens::scale(0.0).to_le_bytes(),
                    None | Some(TokenFormat::Blocks(_) | TokenFormat::ScaledRows) => [0; 4],
                };
                let same = |got: &[u8], right: &[u8], behind: [u8; 4]| {
                    let (rows, rest) = got.split_at(right.len().min(got.len()));
                    let behind = behind.iter().cycle();
                    rows == right && rest.iter().zip(behind).all(|(byte, zero)| byte == zero)
                };
                let [elements, scales] = &right;
                (same(&got[0], elements, [0; 4]) && same(&got[1], scales, of_zeros), None)
            }
            (MoeStep::First | MoeStep::Second, None) => (true, None),
            (MoeStep::First, Some(gathered)) => {
                let reference = operands.first_product(arch, gathered, ranges)?;
                let reference = reference.with_additions(first.plan().additions);
                let found = between(layer, memory, order)?.verify(&reference);
                (found.passed(), Some(found))
            }
            (MoeStep::Second, Some(_)) => {
                let a = next_activations(layer, operands, memory, order)?;
                let reference = operands.second_product(arch, &a, ranges)?;
                let reference = reference.with_additions(second.plan().additions);
                let found = result(second, [rows()?, Vec::new()], order.len())?;
                let found = found.verify(&reference);
                (found.passed(), Some(found))
            }
            (MoeStep::Combine, _) => {
                let rows = floats::decode(operands.options.rows, &rows()?);
                let output = operands.options.output;
                let got = floats::decode(output, &out.read()?);
                let found = operands.combined(order, &rows).verify(&got, output);
                (found.passed(), Some(found))
            }
        };
        checks.push(StepCheck { step: step.name(), verified, verification });
    }
    Ok(checks)
}

/// Reads the rows that the first product left for the choices in `order`.
fn between(layer: &MoeLayer, memory: &MoeMemory, order: &[usize]) -> Result<GemmResult> {
    let [first, _] = layer.products();
    let mut parts = memory.between()?;
    if layer.chooses() {
        let dims = first.result_dims()?;
        parts = parts.map(|bytes| rows_of(&bytes, dims.batch() * dims.rows(), order));
    }
    result(first, parts, order.len())
}

/// The same as the next product's activations.
fn next_activations<F: BlockFormat>(
    layer: &MoeLayer,
    operands: &MoeOperands<'_, F>,
    memory: &MoeMemory,
    order: &[usize],
) -> Result<GemmActivations<F>> {
    const NAME: &str = "between";
    let GemmResult { bytes, scales, dims, output, .. } = between(layer, memory, order)?;
    Ok(match output.blocks() {
        None => {
            let half = operands.tokens.operand();
            let halves = HalfMatrix::new(NAME, dims, half, bytes)?;
            match operands.options.quantized {
                Some(TokenFormat::Fp8) => GemmActivations::ToFp8(halves),
                Some(TokenFormat::ScaledRows) => {
                    GemmActivations::ScaledRows(RowScaled::quantize(&halves)?)
                }
                None | Some(TokenFormat::Blocks(_)) => GemmActivations::Halves(halves),
            }
        }
        Some((_, scale, layout)) => {
            let blocks = BlockScaled::new(NAME, dims, layout, bytes, scales, scale)?;
            GemmActivations::Blocks(blocks)
        }
    })
}

/// Returns the rows in `order` among `count`.
fn rows_of(bytes: &[u8], count: usize, order: &[usize]) -> Vec<u8> {
    let row = bytes.len() / count;
    order.iter().flat_map(|&at| &bytes[at * row..][..row]).copied().collect()
}

/// The first `rows` rows of what a product left.
fn result(product: &Gemm, parts: [Vec<u8>; 2], rows: usize) -> Result<GemmResult> {
    let (dims, output) = (product.result_dims()?, product.output());
    let dims = Dims::new(1, rows, dims.cols())?;
    let lengths = output.bytes(dims)?;
    let [mut bytes, mut scales] = parts;
    bytes.truncate(lengths[0]);
    scales.truncate(lengths[1]);
    let plan = product.plan().clone();
    Ok(GemmResult { bytes, scales, dims, output, magnitude: None, plan })
}

/// Whether choices were routed as on the host.
fn routed<F: BlockFormat>(
    HostRoutes { order, ranges }: &HostRoutes,
    operands: &MoeOperands<'_, F>,
    memory: &MoeMemory,
) -> Result<bool> {
    let words = |buffer: &DeviceBuffer| -> Result<Vec<usize>> {
        let bytes = buffer.read()?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as usize).collect())
    };
    let slots = operands.ids.len();
    let (mut positions, mut sources) = (vec![NOWHERE; slots], order.clone());
    for (row, &slot) in order.iter().enumerate() {
        positions[slot] = row;
    }
    sources.resize(slots, NOWHERE);
    let offsets: Vec<usize> = ranges.iter().map(|range| range.start).chain([order.len()]).collect();
    let routes = &memory.routes;
    Ok(words(&routes.sources)? == sources
        && words(&routes.positions)? == positions
        && words(&routes.offsets)? == offsets)
}
