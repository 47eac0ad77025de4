//! The operations on the CPU. Norms and rotations have the kernels' bits. Gated activations are the kernels' formula with
//! the CPU's exponential and quotients, of which the kernels have approximations ([`fp4_formats::gemm::combine`]).

use fp4_formats::gemm::Combine;
use fp4_formats::gemm::combine::Machine;
use fp4_formats::quantize::tokens;
use fp4_formats::rows::Norm;
use fp4_formats::rows::arithmetic::{
    CHUNK, Chunk, Statistics, centred, factor, normalised, rotated, row_sum, squares, sum,
};
use fp4_formats::{HalfType, e4m3, moe};
use half::{bf16, f16};
use rayon::prelude::*;

use super::{Checked, Made, Operands, Results, RowsOptions, Source, half_bytes, type_name};
use crate::error::{Error, Result, filled};
use crate::floats;
use crate::quantize::quantize_matrix;
use crate::tensor::Dims;

/// The results of [`reference()`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The results.
    pub made: Made,
    /// The updated residual, if there is one.
    pub residual: Option<Vec<u8>>,
}

/// The results of an operation for `rows` x `cols` results of an input of type `element`. The operands' place of the sums
/// is not looked at.
///
/// # Errors
/// The errors of [`Rows::new`](super::Rows::new) and of [`Rows::launch`](super::Rows::launch) that do not come from a
/// device, [`Error::NonFinite`] for values without codes in a block format.
pub fn reference(
    rows: usize,
    cols: usize,
    element: HalfType,
    options: &RowsOptions,
    operands: &Operands<'_, [u8]>,
) -> Result<Reference> {
    let (values, residual) = values(rows, cols, element, options, operands)?;
    let made = match &options.results {
        Results::Blocks(with) => {
            Made::Blocks(quantize_matrix("input", &values, Dims::new(1, rows, cols)?, with)?)
        }
        Results::E4m3 => {
            let mut codes = filled("codes", rows * cols, 0u8)?;
            let mut scales = filled("scales", rows, 0f32)?;
            let of_rows = codes.par_chunks_exact_mut(cols).zip(&mut scales);
            of_rows.zip(values.par_chunks_exact(cols)).for_each(|((codes, scale), values)| {
                // Not `f32::max`, which ignores NaN.
                let bits = values.iter().fold(0, |max, x| x.abs().to_bits().max(max));
                let amax = f32::from_bits(bits);
                *scale = tokens::scale(amax);
                let factor = tokens::to_codes(amax);
                for (code, x) in codes.iter_mut().zip(values) {
                    *code = e4m3::encode(x * factor);
                }
            });
            Made::E4m3 { codes, scales }
        }
        Results::Half => {
            let mut bytes = filled("elements", half_bytes(rows, cols)?, 0u8)?;
            encode_to(element, &values, &mut bytes);
            Made::Half(bytes)
        }
    };
    Ok(Reference { made, residual })
}

/// The values that [`reference()`] quantises, `[rows, cols]`, and the updated residual.
///
/// # Errors
/// The same, but for values that are not finite.
pub fn values(
    rows: usize,
    cols: usize,
    element: HalfType,
    options: &RowsOptions,
    operands: &Operands<'_, [u8]>,
) -> Result<(Vec<f32>, Option<Vec<u8>>)> {
    let checked = options.check(rows, cols)?;
    let vectors = Vectors::new(&checked, element, options, operands)?;
    let mut values = filled("values", rows * cols, 0f32)?;
    let row_bytes = cols * 2;
    let mut sums = match vectors.residual {
        Some(_) => filled("residual", half_bytes(rows, cols)?, 0u8)?,
        None => Vec::new(),
    };
    if vectors.residual.is_some() {
        let of_rows = values.par_chunks_exact_mut(cols).zip(sums.par_chunks_exact_mut(row_bytes));
        of_rows.enumerate().for_each(|(row, (values, sums))| vectors.row(row, values, Some(sums)));
    } else {
        let of_rows = values.par_chunks_exact_mut(cols).enumerate();
        of_rows.for_each(|(row, values)| vectors.row(row, values, None));
    }
    let residual = vectors.residual.is_some().then_some(sums);
    Ok((values, residual))
}

/// The operands, checked.
struct Vectors<'a> {
    k: u32,
    element: HalfType,
    options: &'a RowsOptions,
    divisor: u32,
    input: &'a [u8],
    up: Option<&'a [u8]>,
    residual: Option<&'a [u8]>,
    index: Option<&'a [u8]>,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl<'a> Vectors<'a> {
    fn new(
        checked: &Checked,
        element: HalfType,
        options: &'a RowsOptions,
        operands: &Operands<'a, [u8]>,
    ) -> Result<Self> {
        let &Checked { m, k, from_rows, divisor } = checked;
        let sized = |what: &str, bytes: &'a [u8], required: usize| {
            if bytes.len() == required {
                return Ok(bytes);
            }
            let required = format!("{required} ({})", type_name(element));
            Err(Error::shape(format!("bytes of {what}"), required, bytes.len()))
        };
        let (rows, cols) = (m as usize, k as usize);
        let (from, all) = (half_bytes(from_rows, cols)?, half_bytes(rows, cols)?);
        let given = super::operands_given(options, operands)?;
        let optional = |what: &str, bytes: Option<&'a [u8]>, required: usize| {
            bytes.map(|bytes| sized(what, bytes, required)).transpose()
        };
        let vector = |what: &str, bytes: Option<&'a [u8]>| -> Result<Option<Vec<f32>>> {
            let bytes = optional(what, bytes, cols * 2)?;
            Ok(bytes.map(|bytes| floats::decode(element.float(), bytes)))
        };
        Ok(Self {
            k,
            element,
            options,
            divisor: divisor.value(),
            input: sized("`input`", given.input, from)?,
            up: optional("`up`", given.up, from)?,
            residual: optional("`residual`", given.residual, all)?,
            index: optional("the index", given.index, rows * 4)?,
            weight: vector("the weights", given.weight)?.unwrap_or_default(),
            bias: vector("the bias", given.bias)?,
        })
    }

    /// Elements of a row of a matrix.
    fn elements(&self, matrix: &[u8], row: usize) -> Vec<f32> {
        let bytes = self.k as usize * 2;
        floats::decode(self.element.float(), &matrix[row * bytes..(row + 1) * bytes])
    }

    /// Computes the values of a row, and the sums with the residual.
    fn row(&self, row: usize, values: &mut [f32], sums: Option<&mut [u8]>) {
        let from = match self.index {
            None => Some(row),
            Some(index) => {
                let at =
                    index[row * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                (at != moe::NOWHERE).then(|| (at / self.divisor) as usize)
            }
        };
        let of = |matrix: &[u8]| match from {
            Some(from) => self.elements(matrix, from),
            None => vec![0.0; values.len()],
        };
        let mut elements = of(self.input);
        if let (Some(residual), Some(sums)) = (self.residual, sums) {
            for (x, y) in elements.iter_mut().zip(self.elements(residual, row)) {
                *x += y;
            }
            encode_to(self.element, &elements, sums);
            elements = floats::decode(self.element.float(), sums);
        }
        if let (Some(up), Source::Gated(activation)) = (self.up, self.options.source) {
            let combine = activation.combine(true);
            for (gate, up) in elements.iter_mut().zip(of(up)) {
                *gate = gated(&combine, *gate, up);
            }
        }
        self.normalise(&mut elements);
        for (to, chunk) in values.chunks_exact_mut(CHUNK).zip(elements.chunks_exact(CHUNK)) {
            let mut chunk = chunk_of(chunk);
            if let Some(rotation) = self.options.rotation {
                chunk = rotated(&chunk, rotation.signs.into());
            }
            to.copy_from_slice(chunk.as_flattened());
        }
    }

    fn normalise(&self, elements: &mut [f32]) {
        let (norm, epsilon) = self.options.source.norm();
        let chunks = elements.len() / CHUNK;
        let chunk = |at: usize| chunk_of(&elements[at * CHUNK..(at + 1) * CHUNK]);
        let mean = match norm {
            Norm::None => return,
            Norm::Rms => 0.0,
            Norm::Layer => row_sum(chunks, |at| sum(&chunk(at))) / self.k as f32,
        };
        let mut statistics = Statistics { mean, factor: 1.0 };
        for x in elements.iter_mut() {
            *x = centred(*x, &statistics);
        }
        let chunk = |at: usize| chunk_of(&elements[at * CHUNK..(at + 1) * CHUNK]);
        let total = row_sum(chunks, |at| squares(&chunk(at), f32::mul_add));
        statistics.factor = factor(total, self.k, epsilon, f32::sqrt);
        for (x, &weight) in elements.iter_mut().zip(&self.weight) {
            *x = normalised(*x, &statistics, weight);
        }
        if let Some(bias) = &self.bias {
            for (x, bias) in elements.iter_mut().zip(bias) {
                *x += bias;
            }
        }
    }
}

/// Sixteen elements as the kernels have them.
fn chunk_of(elements: &[f32]) -> Chunk {
    let mut chunk = [[0.0; 8]; 2];
    for (to, x) in chunk.as_flattened_mut().iter_mut().zip(elements) {
        *to = *x;
    }
    chunk
}

/// Rounds numbers to little-endian elements.
fn encode_to(element: HalfType, values: &[f32], bytes: &mut [u8]) {
    let pairs = bytes.as_chunks_mut::<2>().0.par_iter_mut().zip(values);
    match element {
        HalfType::F16 => pairs.for_each(|(to, &x)| *to = f16::from_f32(x).to_le_bytes()),
        HalfType::Bf16 => pairs.for_each(|(to, &x)| *to = bf16::from_f32(x).to_le_bytes()),
    }
}

/// The CPU's operations, with the nearest results of `exp2` and of quotients that it has.
struct Nearest;

impl Machine for Nearest {
    fn exp2(x: f32) -> f32 {
        f64::from(x).exp2() as f32
    }

    fn reciprocal(x: f32) -> f32 {
        1.0 / x
    }

    fn minimum(x: f32, y: f32) -> f32 {
        if x.is_nan() || y.is_nan() { f32::NAN } else { x.min(y) }
    }

    fn maximum(x: f32, y: f32) -> f32 {
        if x.is_nan() || y.is_nan() { f32::NAN } else { x.max(y) }
    }
}

/// A gated product.
fn gated(combine: &Combine, gate: f32, up: f32) -> f32 {
    let [product] = combine.gate::<Nearest, 1>(combine.activate::<Nearest, 1>([gate]), [up]);
    product
}
