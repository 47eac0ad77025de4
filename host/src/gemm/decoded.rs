//! Decoding block-scaled activations to 16-bit floats in a launch before the product, for tensor cores that
//! multiply no blocks.

use fp4_formats::gemm::Problem;
use fp4_formats::params::bytes;
use fp4_formats::quantize::{DequantizeParams, Format, ScaleSource, dequantize_config};
use fp4_formats::{HalfType, Operand, ScaleLayout};

use super::ActivationKind;
use super::family::{Launch, launches};
use super::fp8::{self, matrix_bytes};
use super::strides::{Entries, Strides};
use crate::device::Queue;
use crate::error::Result;
use crate::quantize::device::{PlannedKernel, launch_step};

/// Factor of the decoded activations of MXFP4: its largest scales exceed bf16, its
/// smallest do not need all of bf16's subnormals.
const MXFP4_DECODED: f32 = 0.125;

/// The factor of decoded activations before the product.
pub(super) fn scale(kind: ActivationKind) -> f32 {
    match kind {
        ActivationKind::Blocks { format: Format::Mxfp4, .. } => MXFP4_DECODED,
        ActivationKind::Blocks { format: Format::Nvfp4, .. }
        | ActivationKind::Halves(_)
        | ActivationKind::Fp8(_) => 1.0,
    }
}

/// The launches that decode activations in `format`.
///
/// # Errors
/// [`Error::Shape`](crate::error::Error::Shape) for more rows than they take.
pub(super) fn steps(
    problem: &Problem,
    (format, operand): (Format, Operand),
    layout: ScaleLayout,
    entries: Entries,
    sms: u32,
) -> Result<Vec<PlannedKernel>> {
    let half = operand.half().unwrap_or(HalfType::F16);
    let config = dequantize_config(format, half.float());
    let (launches, rows) = launches(problem, layout, entries);
    let ctas = config.grid(fp8::rows_of_launch(rows)?, problem.k, layout, sms);
    let step = PlannedKernel { kernel: config.name, ctas, threads: config.threads() };
    Ok(vec![step; launches as usize])
}

/// Bytes of all decoded activations; `None` where they cannot be counted.
pub(super) fn bytes_of_all(problem: &Problem, operand: Operand) -> Option<usize> {
    let matrix = matrix_bytes(problem, operand);
    usize::try_from(matrix.checked_mul(problem.l.into())?).ok()
}

/// Gives a queue decoding block-scaled activations to 16-bit floats at `out`, `[L, M, K]`, or `[M, K]`
/// where entries share them.
pub(super) fn decode<'k>(
    problem: &Problem,
    launch: &Launch<'k>,
    [codes, scales]: [u64; 2],
    layout: ScaleLayout,
    out: u64,
    queue: &mut dyn Queue<'k>,
) -> Result<()> {
    let Strides { activations, activation_scales, .. } = launch.strides;
    // The rows fit: they were checked when the launches were planned.
    let (_, rows) = launches(problem, layout, launch.strides.entries());
    for (index, step) in (0u64..).zip(launch.steps()) {
        let params = DequantizeParams {
            codes: codes + index * activations.stride as u64,
            scales: scales + index * activation_scales.stride as u64,
            tensor: 0,
            out: out + index * matrix_bytes(problem, launch.kind.operand()),
            m: rows as u32,
            k: problem.k,
            given: scale(launch.kind),
            source: ScaleSource::Given as u32,
            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            reserved: 0,
        };
        // SAFETY: codes and scales have the sizes that the parameters state, as checked by
        // the caller; `out` is the workspace, which is large enough.
        unsafe { launch_step(queue, launch.kernels, step, true, bytes(&params))? };
    }
    Ok(())
}
