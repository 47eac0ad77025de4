//! The f64 reference of a GEMM; see [`crate::oracle`] for what a kernel may differ by.
//!
//! A product of two operands has at most 17 significant bits and is exact in f64. Its sum over K
//! errs by far less than f32's rounding, which bounds a kernel's error. The epilogue, and how it
//! changes the bound, is in `exact`.

use std::ops::Range;

use fp4_formats::gemm::Adding;
use fp4_formats::gemm::Half;
use fp4_formats::gemm::sm90::config::{FOLDED_ADDITIONS, K_STEP, PROMOTED_STEPS};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, Operand, TensorFamily, e2m1, pack};
use ptx_emu_simd::dot;
use rayon::prelude::*;

use super::exact::Exact;
use crate::oracle::Reference;
use nvfp4::error::{Error, Result, filled};
use nvfp4::gemm::{
    Activations, Fp8Matrix, GemmOptions, Weights, check_gated, check_operands, check_residual,
    check_vectors, folded_row, format_of,
};
use nvfp4::tensor::BlockScaled;

/// Rows of weights that share a pass over the activations.
const ROWS: usize = 8;

/// The GEMM of [`nvfp4::gemm`]'s formula, `[L, M, N]`, plain or gated. Weights of one batch entry are
/// shared. Beside activations in e4m3, weights of NVFP4 are those that are
/// [folded](fp4_formats::gemm::fold), and those of MXFP4 as they are.
///
/// # Errors
/// [`Error::Shape`] where operands or vectors do not fit each other, [`Error::Scalar`] for an
/// activation that no kernel takes, [`Error::Memory`].
pub fn reference<'b, F: BlockFormat>(
    a: &Activations<'_, F>,
    b: impl Into<Weights<'b, F>>,
    options: &GemmOptions,
) -> Result<Reference> {
    of_values(TensorFamily::Tcgen05, a, b.into(), options)
}

/// [`reference()`] with the weights as the kernels of a target take them that
/// [`Repacked::rounded`](nvfp4::gemm::Repacked::rounded) has made: beside activations in e4m3, MXFP4 is rounded on sm_90a
/// where it is not within what folding holds, and nothing is folded on sm_80.
///
/// # Errors
/// The same as [`reference()`].
pub fn reference_for<'b, F: BlockFormat>(
    arch: Arch,
    a: &Activations<'_, F>,
    b: impl Into<Weights<'b, F>>,
    options: &GemmOptions,
) -> Result<Reference> {
    of_values(arch.tensor(), a, b.into(), options)
}

/// Whether tensor cores take weights in `format` beside activations in e4m3 folded.
fn folds(tensor: TensorFamily, format: Format) -> bool {
    match (tensor, format) {
        (TensorFamily::MmaSync | TensorFamily::MmaSyncScaled, _)
        | (TensorFamily::Tcgen05, Format::Mxfp4) => false,
        (TensorFamily::Wgmma, _) | (TensorFamily::Tcgen05, Format::Nvfp4) => true,
    }
}

fn of_values<F: BlockFormat>(
    tensor: TensorFamily,
    a: &Activations<'_, F>,
    b: Weights<'_, F>,
    options: &GemmOptions,
) -> Result<Reference> {
    check_operands(a, b, options)?;
    options.check()?;
    let (da, db) = (a.dims(), b.dims());
    let (m, n, k) = (da.rows(), db.rows(), da.cols());
    let outputs = da.batch() * m * n;
    let mut values = filled("reference", outputs, 0f64)?;
    let mut magnitudes = filled("reference", outputs, 0f64)?;
    let scale = f64::from(a.global_scale()) * f64::from(options.activation_scale);
    let scales = b.global_scales().map(|of_weights| scale * f64::from(of_weights));
    let (folded, additions) = products(a, tensor, options.adding);
    let exact = Exact::new(options, scales, additions);
    for batch in 0..da.batch() {
        let tokens = decode_activations(a, batch)?;
        let shared = if db.batch() == 1 { 0 } else { batch };
        let results = Results { values: &mut values, magnitudes: &mut magnitudes, rows: n };
        results
            .fill(&tokens, [batch * m, 0], k, &exact, |row| decode_column(&b, shared, row, folded));
    }
    Ok(Reference { values, magnitudes, rows: n, additions })
}

/// The grouped GEMM: the tokens `groups[g]`, counted over all matrices of `a`, with the weights `b[g]`
/// and `options[g]`, whose row factors are for all tokens. Rows that belong to no group are 0. Types
/// of results are those of the first group.
///
/// # Errors
/// The same as [`reference()`]; [`Error::Shape`] where there are not as many groups as weights and options, and
/// for groups that are not within `a`.
pub fn reference_grouped<F: BlockFormat>(
    a: &Activations<'_, F>,
    b: &[Weights<'_, F>],
    groups: &[Range<usize>],
    options: &[GemmOptions],
) -> Result<Reference> {
    grouped_of_values(TensorFamily::Tcgen05, a, b, groups, options)
}

/// [`reference_grouped`] with the weights as [`reference_for`] takes them.
///
/// # Errors
/// The same as [`reference_grouped`].
pub fn reference_grouped_for<F: BlockFormat>(
    arch: Arch,
    a: &Activations<'_, F>,
    b: &[Weights<'_, F>],
    groups: &[Range<usize>],
    options: &[GemmOptions],
) -> Result<Reference> {
    grouped_of_values(arch.tensor(), a, b, groups, options)
}

fn grouped_of_values<F: BlockFormat>(
    tensor: TensorFamily,
    a: &Activations<'_, F>,
    b: &[Weights<'_, F>],
    groups: &[Range<usize>],
    options: &[GemmOptions],
) -> Result<Reference> {
    let da = a.dims();
    let (k, total) = (da.cols(), da.batch() * da.rows());
    for (what, found) in [("groups", groups.len()), ("options of groups", options.len())] {
        if found != b.len() {
            return Err(Error::shape(what, format!("{}, as matrices of weights", b.len()), found));
        }
    }
    let n = b.first().map_or(0, |weights| weights.dims().rows());
    let adding = options.first().map_or(Adding::default(), |options| options.adding);
    let (folded, additions) = products(a, tensor, adding);
    let mut values = filled("reference", total * n, 0f64)?;
    let mut magnitudes = filled("reference", total * n, 0f64)?;
    let mut tokens = Vec::new();
    for batch in 0..da.batch() {
        tokens.extend(decode_activations(a, batch)?);
    }
    for ((weights, range), options) in b.iter().zip(groups).zip(options) {
        check_gated(weights.is_gated(), options)?;
        check_residual(options, [1, total, n])?;
        check_vectors(options, total, n)?;
        options.check()?;
        let (rows, columns) = (weights.dims().rows(), weights.dims().cols());
        if [rows, columns] != [n, k] || weights.dims().batch() != 1 {
            let what = format!("sizes of `{}`", weights.name());
            let found = format!("{} x {rows} x {columns}", weights.dims().batch());
            return Err(Error::shape(what, format!("1 x {n} x {k}"), found));
        }
        if range.start > range.end || range.end > total {
            let required = format!("within the {total} tokens");
            return Err(Error::shape("tokens of a group", required, format!("{range:?}")));
        }
        let scale = f64::from(a.global_scale()) * f64::from(options.activation_scale);
        let scales = weights.global_scales().map(|of_weights| scale * f64::from(of_weights));
        let exact = Exact::new(options, scales, additions);
        let results = Results { values: &mut values, magnitudes: &mut magnitudes, rows: n };
        let own = &tokens[range.start * k..range.end * k];
        results
            .fill(own, [range.start; 2], k, &exact, |row| decode_column(weights, 0, row, folded));
    }
    Ok(Reference { values, magnitudes, rows: n, additions })
}

/// Whether the product takes folded weights, and the f32 additions, one after the other, that may lead to
/// a result. Tensor cores truncate where they add, which counts twice.
fn products<F: BlockFormat>(
    a: &Activations<'_, F>,
    tensor: TensorFamily,
    adding: Adding,
) -> (bool, usize) {
    let k = a.dims().cols();
    match a.kind().operand() {
        Operand::Half(_) => (false, 2 * k),
        Operand::E4m3 => {
            let folded = folds(tensor, format_of::<F>());
            let promoted = match adding {
                Adding::Promoted => 1,
                Adding::Fast => k.div_ceil((PROMOTED_STEPS * K_STEP) as usize),
            };
            (folded, 2 * k + promoted * FOLDED_ADDITIONS as usize)
        }
    }
}

/// Results and bounds, `[rows, N]`.
struct Results<'a> {
    values: &'a mut [f64],
    magnitudes: &'a mut [f64],
    /// N.
    rows: usize,
}

impl Results<'_> {
    /// Computes the results of `tokens`, `[rows, K]`. The first one's are row `first` here, and its row
    /// factor is number `factor`; `weights` are the rows of weights of a column.
    fn fill(
        self,
        tokens: &[f64],
        [first, factor]: [usize; 2],
        k: usize,
        exact: &Exact<'_>,
        weights: impl Fn(usize) -> Vec<Vec<f64>> + Sync,
    ) {
        let n = self.rows;
        let count = tokens.len() / k;
        let groups: Vec<Vec<[f64; 2]>> = (0..n.div_ceil(ROWS))
            .into_par_iter()
            .map(|group| {
                let columns = group * ROWS..n.min((group + 1) * ROWS);
                let rows: Vec<Vec<Vec<f64>>> = columns.clone().map(&weights).collect();
                let mut results = Vec::with_capacity(count * rows.len());
                for (row, token) in tokens.chunks_exact(k).enumerate() {
                    for (column, rows) in columns.clone().zip(&rows) {
                        let sums: Vec<[f64; 2]> = rows.iter().map(|row| dot(token, row)).collect();
                        let index = (first + row) * n + column;
                        results.push(exact.result([factor + row, column], index, &sums));
                    }
                }
                results
            })
            .collect();
        for (group, results) in groups.iter().enumerate() {
            let columns = (n - group * ROWS).min(ROWS);
            for (index, result) in results.iter().enumerate() {
                let column = group * ROWS + index % columns;
                let at = (first + index / columns) * n + column;
                [self.values[at], self.magnitudes[at]] = *result;
            }
        }
    }
}

/// The rows of weights that make a column of the result: one, or that of the gate and that of up.
fn decode_column<F: BlockFormat>(
    b: &Weights<'_, F>,
    batch: usize,
    column: usize,
    folded: bool,
) -> Vec<Vec<f64>> {
    match b {
        Weights::Plain(weights) => vec![weight_row(weights, batch, column, folded)],
        Weights::Gated(weights) => [Half::Gate, Half::Up]
            .map(|half| {
                let (tensor, row) = weights.row(half, column);
                weight_row(tensor, batch, row, folded)
            })
            .into(),
    }
}

/// Values of a row of weights without the tensor's scale, as the product takes them.
fn weight_row<F: BlockFormat>(
    x: &BlockScaled<F>,
    batch: usize,
    row: usize,
    folded: bool,
) -> Vec<f64> {
    if folded { folded_row(x, batch, row) } else { decode_row(x, batch, row) }
}

/// Values of a row without the tensor's scale.
fn decode_row<F: BlockFormat>(x: &BlockScaled<F>, batch: usize, row: usize) -> Vec<f64> {
    let blocks = x.row_codes(batch, row).chunks_exact(F::BLOCK_BYTES).enumerate();
    let values = blocks.flat_map(|(kb, codes)| {
        let scale = f64::from(F::decode_scale(x.scale_byte(batch, row, kb)));
        codes.iter().flat_map(move |&byte| {
            let (low, high) = pack::unpair(byte);
            [low, high].map(|code| f64::from(e2m1::decode(code)) * scale)
        })
    });
    values.collect()
}

fn decode_activations<F: BlockFormat>(a: &Activations<'_, F>, batch: usize) -> Result<Vec<f64>> {
    let (m, k) = (a.dims().rows(), a.dims().cols());
    if let Activations::ToFp8(halves) = a {
        return decode_activations::<F>(&Activations::Fp8(&Fp8Matrix::quantize(halves)?), batch);
    }
    let mut values = filled("activations", m * k, 0f64)?;
    let copy = |out: &mut [f64], values: &mut dyn Iterator<Item = f64>| {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    };
    values.par_chunks_exact_mut(k).enumerate().for_each(|(row, out)| match a {
        Activations::Blocks(blocks) => out.copy_from_slice(&decode_row(blocks, batch, row)),
        Activations::ScaledRows(scaled) => {
            let scale = f64::from(scaled.scales()[batch * m + row]);
            let values = decode_row(scaled.blocks(), batch, row);
            copy(out, &mut values.into_iter().map(|value| value * scale));
        }
        Activations::Halves(halves) => copy(out, &mut halves.row(batch * m + row)),
        Activations::Fp8(bytes) => copy(out, &mut bytes.row(batch * m + row)),
        // As it was quantised above.
        Activations::ToFp8(_) => {}
    });
    Ok(values)
}
