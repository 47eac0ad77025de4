//! Activations in e4m3 on their way to a product: where elements and tokens' scales are, and the launches
//! that make them of 16-bit floats.

use fp4_formats::gemm::{Epilogue, Problem};
use fp4_formats::params::bytes;
use fp4_formats::quantize::tokens::{
    DECODE_NAME, DECODED_TOGETHER, DecodeTokensParams, TokensConfig, TokensParams, decode_ctas,
    tokens_config,
};
use fp4_formats::{Divisor, HalfType, Operand, ScaleLayout};

use super::epilogue::{check_no_row_factors, scaling_rows};
use super::family::{Launch, launches};
use super::parts::WorkspaceParts;
use super::strides::Entries;
use crate::device::FoundKernel;
use crate::device::Queue;
use crate::error::{Error, Result};
use crate::quantize::device::{PlannedKernel, launch_step};
use crate::shape::MAX_DIM;

/// A launch before a product, with its kernel.
type Step<'k> = (&'k PlannedKernel, &'k FoundKernel);

/// Bytes of one matrix of activations of this type.
pub(super) fn matrix_bytes(problem: &Problem, operand: Operand) -> u64 {
    u64::from(operand.bytes()) * u64::from(problem.m) * u64::from(problem.k)
}

/// Bytes of the elements and of the scales of all tokens; none where they do not fit.
pub(super) fn made_bytes(problem: &Problem) -> Option<[usize; 2]> {
    let elements = matrix_bytes(problem, Operand::E4m3).checked_mul(problem.l.into())?;
    let scales = size_of::<f32>().checked_mul(problem.m as usize)?;
    Some([usize::try_from(elements).ok()?, scales.checked_mul(problem.l as usize)?])
}

/// The launches that quantise 16-bit floats.
///
/// # Errors
/// [`Error::Shape`] for more tokens than a launch takes.
pub(super) fn steps(
    problem: &Problem,
    input: HalfType,
    entries: Entries,
) -> Result<Vec<PlannedKernel>> {
    let (launches, rows) = launches(problem, ScaleLayout::Linear, entries);
    let ctas = rows_of_launch(rows)?;
    let (kernel, threads) = (tokens_config(input).name, TokensConfig::THREADS);
    Ok(vec![PlannedKernel { kernel, ctas, threads }; launches as usize])
}

/// Bytes of the decoded elements of all tokens; and of their scales and codes, if these are [made](quantize), too. `None`
/// where they cannot be counted.
pub(super) fn decoded_bytes(problem: &Problem, are_made: bool) -> Option<[usize; 2]> {
    let [elements, scales] = made_bytes(problem)?;
    let behind = codes_offset(problem)?.checked_add(elements)?;
    debug_assert!(behind >= scales);
    Some([elements.checked_mul(Operand::BF16.bytes() as usize)?, if are_made { behind } else { 0 }])
}

/// Offset of the codes that are decoded behind their tokens' scales, aligned to what kernels read together; `None` where
/// scales cannot be counted.
pub(super) fn codes_offset(problem: &Problem) -> Option<usize> {
    made_bytes(problem)?[1].checked_next_multiple_of(WorkspaceParts::ALIGNMENT)
}

/// The launches that decode elements in e4m3 to bf16, for tensor cores that do not multiply them.
///
/// # Errors
/// [`Error::Shape`] for more elements than a launch takes.
pub(super) fn decoding_steps(problem: &Problem, entries: Entries) -> Result<Vec<PlannedKernel>> {
    let (launches, rows) = launches(problem, ScaleLayout::Linear, entries);
    let codes = rows * u64::from(problem.k);
    let ctas = decode_ctas(codes).ok_or_else(|| {
        Error::shape("elements of activations in e4m3", "as many as one launch decodes", codes)
    })?;
    let step = PlannedKernel { kernel: DECODE_NAME, ctas, threads: TokensConfig::THREADS };
    Ok(vec![step; launches as usize])
}

/// Gives a queue decoding elements in e4m3, whose matrices are `stride` bytes apart, to bf16 at `out`, `[L, M, K]`, or
/// `[M, K]` where entries share them; `steps` are [those planned for it](decoding_steps), with their kernels.
///
/// # Errors
/// The errors of the device.
pub(super) fn decode<'k>(
    launch: &Launch<'k>,
    problem: &Problem,
    steps: impl Iterator<Item = Step<'k>>,
    (codes, stride): (u64, u64),
    out: u64,
    queue: &mut dyn Queue<'k>,
) -> Result<()> {
    let (_, rows) = launches(problem, ScaleLayout::Linear, launch.strides.entries());
    let words = rows * u64::from(problem.k) / u64::from(DECODED_TOGETHER);
    for (index, step) in (0u64..).zip(steps) {
        let params = DecodeTokensParams {
            codes: codes + index * stride,
            out: out + index * matrix_bytes(problem, Operand::BF16),
            words,
        };
        // SAFETY: the codes have the planned sizes, as checked by the caller; `out` is in the workspace, which
        // is large enough.
        unsafe { launch_step(queue, launch.kernels, step, true, bytes(&params))? };
    }
    Ok(())
}

/// Rows of activations that one launch takes.
///
/// # Errors
/// [`Error::Shape`] for more than it can.
pub(super) fn rows_of_launch(rows: u64) -> Result<u32> {
    if rows > MAX_DIM {
        return Err(Error::shape("rows of activations", format!("at most {MAX_DIM}"), rows));
    }
    Ok(rows as u32)
}

/// Elements in e4m3 in memory, and the scales of their tokens.
pub(super) struct PlacedBytes {
    /// Address of the elements.
    pub elements: u64,
    /// Bytes from one matrix to the next; 0 where all batch entries have the same.
    pub stride: u64,
    /// Address of the scales.
    scales: u64,
    /// Scales from one matrix to the next.
    pub scale_stride: u32,
}

impl PlacedBytes {
    /// Activations in e4m3 that were given, with elements and scales at these addresses.
    ///
    /// # Errors
    /// [`Error::Shape`] where the product has row factors, too, and for scales too far apart.
    pub fn given(launch: &Launch<'_>, [elements, scales]: [u64; 2]) -> Result<Self> {
        check_no_row_factors(&launch.epilogue)?;
        let strides = &launch.strides;
        let scale_stride = strides.activation_scales.stride / size_of::<f32>();
        let scale_stride = u32::try_from(scale_stride).map_err(|_| {
            let what = "batch stride of the tokens' scales";
            Error::shape(what, "below 2^34 bytes", strides.activation_scales.stride)
        })?;
        Ok(Self { elements, stride: strides.activations.stride as u64, scales, scale_stride })
    }

    /// Activations that [`quantize`] makes at these addresses.
    pub fn made(launch: &Launch<'_>, problem: &Problem, [elements, scales]: [u64; 2]) -> Self {
        let shared = launch.strides.activations.stride == 0;
        let (stride, scale_stride) =
            if shared { (0, 0) } else { (matrix_bytes(problem, Operand::E4m3), problem.m) };
        Self { elements, stride, scales, scale_stride }
    }

    /// The same tokens with elements that were [decoded](decode) to bf16 at `elements`.
    pub fn decoded(self, problem: &Problem, elements: u64) -> Self {
        let stride = if self.stride == 0 { 0 } else { matrix_bytes(problem, Operand::BF16) };
        Self { elements, stride, ..self }
    }

    /// The epilogue with the scales in the place of row factors.
    pub fn scaling(&self, epilogue: Epilogue) -> Epilogue {
        scaling_rows(epilogue, self.scales)
    }
}

/// Gives a queue quantising 16-bit floats at `input` to e4m3, `[L, M, K]`, or `[M, K]` where entries share them,
/// with scales for each row, into which row factors are multiplied, by these [steps](steps).
///
/// # Errors
/// The same as [`Gemm::launch`](super::Gemm::launch).
pub(super) fn quantize<'k>(
    launch: &Launch<'k>,
    problem: &Problem,
    input: u64,
    [elements, scales]: [u64; 2],
    steps: impl Iterator<Item = Step<'k>>,
    queue: &mut dyn Queue<'k>,
) -> Result<()> {
    let &Problem { m, k, l, .. } = problem;
    let matrix = matrix_bytes(problem, Operand::E4m3);
    for (index, step) in (0u64..).zip(steps) {
        let params = TokensParams {
            input: input + index * launch.strides.activations.stride as u64,
            factors: launch.epilogue.affine.row_factors,
            codes: elements + index * matrix,
            scales: scales + index * u64::from(m) * size_of::<f32>() as u64,
            k,
            // The problems of a uniform product share row factors.
            factor_rows: Divisor::nearest(match launch.groups {
                Some(_) => m.saturating_mul(l),
                None => m,
            }),
        };
        // SAFETY: the input has the planned sizes, as checked by the caller, and so have the row
        // factors; elements and scales are in the workspace, which is large enough.
        unsafe { launch_step(queue, launch.kernels, step, true, bytes(&params))? };
    }
    Ok(())
}

/// Returns a plan's line about activations that become e4m3.
pub(super) fn why(input: HalfType) -> String {
    let from = input.name();
    format!(
        "activations are quantised from {from} to e4m3 with a scale for each token, by a launch before"
    )
}
