//! Weights in the order of the A fragments of products.

use fp4_formats::gemm::Operands;
use fp4_formats::gemm::fold::{Lost, Range};
use fp4_formats::gemm::fragments::WeightLayout;
use fp4_formats::gemm::fragments::repack::{CHUNK_COLUMNS, CHUNK_ROWS};
use fp4_formats::{Operand, pack};
use rayon::prelude::*;

use super::Fragments;
use crate::gemm::WeightForm;
use crate::gemm::form::{BlockRows, range};

/// The weights of `rows` by `columns` that the kernels of `C` take for a pair of formats.
pub(super) fn form<C: Fragments>(operands: Operands, [rows, columns]: [u32; 2]) -> WeightForm {
    let Operands { weights: format, activations } = operands;
    let activations = match activations {
        Some(Operand::E4m3) if !C::FOLDS => None,
        None | Some(Operand::E4m3 | Operand::Half(_)) => activations,
    };
    let tensor = C::TENSOR;
    WeightForm { tensor, format, activations, rows, columns, gated: None }
}

/// The layout of a matrix in an order of fragments.
pub(super) fn layout(form: &WeightForm) -> WeightLayout {
    let &WeightForm { format, activations, rows, columns, .. } = form;
    WeightLayout { operands: Operands { weights: format, activations }, rows, columns }
}

/// Bytes of `batch` matrices; `None` where they cannot be counted.
pub(super) fn bytes(form: &WeightForm, batch: usize) -> Option<usize> {
    usize::try_from(layout(form).bytes()?).ok()?.checked_mul(batch)
}

/// Fills `bytes`, zeroed and of the matrices' size, with those of `weights`, on all cores. Returns what folding
/// changed of them.
pub(super) fn repack(form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Lost {
    let layout = layout(form);
    let dims = weights.dims();
    let ranges: Vec<Range> = match form.activations {
        Some(Operand::E4m3) => (0..dims.batch() * dims.rows())
            .into_par_iter()
            .map(|row| range(weights, row / dims.rows(), row % dims.rows()))
            .collect(),
        None | Some(Operand::Half(_)) => Vec::new(),
    };
    let chunks = bytes.par_chunks_exact_mut(layout.chunk_bytes() as usize);
    let across = layout.column_chunks() as usize;
    let down = layout.row_chunks() as usize;
    let lost = chunks.enumerate().map(|(index, chunk)| {
        let (row_chunk, column_chunk) = (index / across, index % across);
        let (batch, row_chunk) = (row_chunk / down, row_chunk % down);
        let corner = [row_chunk * CHUNK_ROWS as usize, column_chunk * CHUNK_COLUMNS as usize];
        let ranges = &ranges[(batch * dims.rows()).min(ranges.len())..];
        fill(&layout, chunk, (weights, ranges), batch, corner)
    });
    lost.reduce(Lost::default, Lost::and)
}

/// Makes one chunk, whose first row and column are `corner`.
fn fill(
    layout: &WeightLayout,
    chunk: &mut [u8],
    (weights, ranges): (&dyn BlockRows, &[Range]),
    batch: usize,
    [row, column]: [usize; 2],
) -> Lost {
    let dims = weights.dims();
    let block = weights.format().block() as usize;
    let blocks = dims.cols() / block;
    let rows: Vec<&[u8]> = (row..dims.rows().min(row + CHUNK_ROWS as usize))
        .map(|row| weights.row_codes(batch, row))
        .collect();
    let code = |r: u32, c: u32| {
        let (row, column) = (r as usize, column + c as usize);
        if row >= rows.len() || column >= dims.cols() {
            return 0;
        }
        let (low, high) = pack::unpair(rows[row][column / 2]);
        if column.is_multiple_of(2) { low } else { high }
    };
    let scale = |r: u32, index: u32| {
        let (row, index) = (row + r as usize, column / block + index as usize);
        if row >= dims.rows() || index >= blocks {
            return 0;
        }
        weights.scale_byte(batch, row, index)
    };
    let range = |r: u32| {
        let row = row + r as usize;
        if row < dims.rows() { ranges[row] } else { Range::default() }
    };
    layout.fill_chunk(chunk, code, scale, range)
}
