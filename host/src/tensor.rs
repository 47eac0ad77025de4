//! Block-scaled matrices in host memory.

mod blocks;
mod scale;

use std::marker::PhantomData;

use fp4_formats::layout::TILE_ROWS;
use fp4_formats::{BlockFormat, ScaleLayout, e2m1, pack};
use rayon::prelude::*;

pub use self::blocks::{Blocks, Convention, GlobalScale};
pub(crate) use self::scale::combined_scale;
use crate::error::{Error, Position, Result, filled};

/// Shape of a batch of matrices; no dimension is zero and the element count fits `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    batch: usize,
    rows: usize,
    cols: usize,
}

impl Dims {
    /// A batch of `batch` matrices of `rows` x `cols` (K).
    ///
    /// # Errors
    /// [`Error::Shape`] for a zero, [`Error::Overflow`] if the element count does not fit.
    pub fn new(batch: usize, rows: usize, cols: usize) -> Result<Self> {
        for (field, value) in [("batch", batch), ("rows", rows), ("columns", cols)] {
            if value == 0 {
                return Err(Error::shape(field, "at least 1", value));
            }
        }
        batch.checked_mul(rows).and_then(|n| n.checked_mul(cols)).ok_or_else(|| {
            Error::Overflow {
                what: "number of elements".into(),
                detail: format!("{batch} x {rows} x {cols} does not fit {} bits", usize::BITS),
            }
        })?;
        Ok(Self { batch, rows, cols })
    }

    /// Matrices.
    #[must_use]
    pub fn batch(self) -> usize {
        self.batch
    }

    /// Rows of each matrix.
    #[must_use]
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Columns of each matrix, K: the dimension of the blocks.
    #[must_use]
    pub fn cols(self) -> usize {
        self.cols
    }

    /// Elements of all matrices.
    #[must_use]
    pub fn elements(self) -> usize {
        self.batch * self.rows * self.cols
    }

    /// Batch, row and column of the element with row-major index `index`.
    pub(crate) fn position(self, index: usize) -> Position {
        let (row, column) = (index / self.cols, index % self.cols);
        Position { batch: row / self.rows, row: row % self.rows, column }
    }
}

/// A batch of matrices in a block-scaled format: packed e2m1 codes, one scale byte per block, and
/// one f32 scale for the tensor.
///
/// The value of element `(l, r, k)` is `code * (global * scale)`.
///
/// | part | shape | layout |
/// | --- | --- | --- |
/// | codes | `[batch, rows, cols / 2]` bytes | row-major, element `2j` in the low nibble |
/// | scales | `batch` matrices of `[rows, cols / BLOCK]` | each in [`layout`](Self::layout), padding included |
///
/// A value of this type is valid: the lengths agree, K is a multiple of the block, and every scale
/// is finite and unsigned. Padding bytes of the 128x4 layout are not checked.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockScaled<F> {
    name: String,
    dims: Dims,
    layout: ScaleLayout,
    codes: Vec<u8>,
    scales: Vec<u8>,
    global_scale: f32,
    format: PhantomData<F>,
}

impl<F: BlockFormat> BlockScaled<F> {
    /// A tensor of these parts, after checking them. `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Shape`] for a K that is not a multiple of the block or a wrong length,
    /// [`Error::ScaleNotFinite`] and [`Error::ScaleNegative`] for the first bad scale,
    /// [`Error::Scalar`] for a global scale that is not finite or negative, [`Error::Overflow`]
    /// for sizes beyond the address space.
    pub fn new(
        name: impl Into<String>,
        dims: Dims,
        layout: ScaleLayout,
        codes: Vec<u8>,
        scales: Vec<u8>,
        global_scale: f32,
    ) -> Result<Self> {
        let name = name.into();
        let (code_bytes, scale_bytes) = byte_counts::<F>(&name, dims, layout)?;
        for (part, required, actual) in
            [("codes", code_bytes, codes.len()), ("scales", scale_bytes, scales.len())]
        {
            if required != actual {
                let required = format!(
                    "{required} bytes for {} x {} x {} {} with {layout} scales",
                    dims.batch,
                    dims.rows,
                    dims.cols,
                    F::NAME
                );
                return Err(Error::shape(format!("length of `{name}` {part}"), required, actual));
            }
        }
        if !(global_scale.is_finite() && global_scale >= 0.0) {
            return Err(Error::Scalar {
                field: format!("global scale of `{name}`"),
                required: "finite and not negative",
                actual: f64::from(global_scale),
            });
        }
        let tensor = Self { name, dims, layout, codes, scales, global_scale, format: PhantomData };
        tensor.check_scales()?;
        Ok(tensor)
    }

    fn check_scales(&self) -> Result<()> {
        // Padding may be anything, so that this does not tell which scale is bad, if any.
        if !self.scales.iter().fold(false, |bad, &byte| bad | !F::scale_is_valid(byte)) {
            return Ok(());
        }
        for batch in 0..self.dims.batch {
            for row in 0..self.dims.rows {
                for column in 0..self.kblocks() {
                    let byte = self.scale_byte(batch, row, column);
                    if F::scale_is_valid(byte) {
                        continue;
                    }
                    let (tensor, index) = (self.name.clone(), Position { batch, row, column });
                    return Err(if F::decode_scale(byte).is_finite() {
                        Error::ScaleNegative { tensor, index, byte }
                    } else {
                        Error::ScaleNotFinite { tensor, index, byte }
                    });
                }
            }
        }
        Ok(())
    }

    /// The name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape in elements.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// Order of the scales.
    #[must_use]
    pub fn layout(&self) -> ScaleLayout {
        self.layout
    }

    /// Packed codes of all matrices.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scales of all matrices, padding included.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        self.global_scale
    }

    /// Blocks along K.
    #[must_use]
    pub fn kblocks(&self) -> usize {
        self.dims.cols / F::BLOCK
    }

    /// Bytes from one matrix's scales to those of the next matrix.
    #[must_use]
    pub fn scale_stride(&self) -> usize {
        self.scales.len() / self.dims.batch
    }

    /// Packed codes of one row.
    ///
    /// # Panics
    /// If `batch` or `row` is outside the tensor.
    #[must_use]
    pub fn row_codes(&self, batch: usize, row: usize) -> &[u8] {
        let len = pack::packed_len(self.dims.cols);
        &self.codes[(batch * self.dims.rows + row) * len..][..len]
    }

    /// Scale byte of block `kb` of one row.
    ///
    /// # Panics
    /// If the indices are outside the tensor.
    #[must_use]
    pub fn scale_byte(&self, batch: usize, row: usize, kb: usize) -> u8 {
        let matrix = &self.scales[batch * self.scale_stride()..][..self.scale_stride()];
        matrix[self.layout.offset(row, kb, self.kblocks())]
    }

    /// The same tensor with its scales in another layout; new padding bytes are zero.
    ///
    /// # Errors
    /// [`Error::Overflow`] or [`Error::Memory`] if the padded scales do not fit.
    pub fn to_layout(&self, layout: ScaleLayout) -> Result<Self> {
        let scales = relaid(&self.scales, self.dims, self.kblocks(), [self.layout, layout])?;
        Ok(Self { layout, scales, ..self.clone() })
    }

    /// All values in f32, row-major: `code * (global * scale)`, rounded after each product in the
    /// same order as in TorchAO.
    ///
    /// # Errors
    /// [`Error::Memory`] if the result does not fit.
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let mut values = filled("dequantised tensor", self.dims.elements(), 0f32)?;
        let (kblocks, stride) = (self.kblocks(), self.scale_stride());
        let rows = values.par_chunks_exact_mut(self.dims.cols);
        rows.zip(self.codes.par_chunks_exact(self.dims.cols / 2)).enumerate().for_each(
            |(row, (values, codes))| {
                let scales = &self.scales[row / self.dims.rows * stride..][..stride];
                let row = row % self.dims.rows;
                let blocks = values.chunks_exact_mut(F::BLOCK).zip(codes.chunks(F::BLOCK_BYTES));
                for (kb, (values, codes)) in blocks.enumerate() {
                    let byte = scales[self.layout.offset(row, kb, kblocks)];
                    let scale = self.global_scale * F::decode_scale(byte);
                    for (pair, &byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *pair = e2m1::PAIRS[usize::from(byte)].map(|value| value * scale);
                    }
                }
            },
        );
        Ok(values)
    }
}

/// The scales of a batch of matrices of `dims`, `kblocks` of them per row, from the first layout to the
/// second, on all cores. Padding is not read; new padding bytes are zero.
///
/// # Errors
/// [`Error::Shape`] where `scales` has another size than the first layout, [`Error::Overflow`] and
/// [`Error::Memory`] if the second does not fit.
pub(crate) fn relaid(
    scales: &[u8],
    dims: Dims,
    kblocks: usize,
    [from, to]: [ScaleLayout; 2],
) -> Result<Vec<u8>> {
    let bytes = |layout: ScaleLayout, rows| {
        layout.bytes(rows, kblocks).map_err(|error| Error::overflow("scales", error))
    };
    let [old, new] = [bytes(from, dims.rows)?, bytes(to, dims.rows)?];
    let overflow = || Error::Overflow { what: "scales".into(), detail: format!("{dims:?}") };
    let total = |matrix: usize| matrix.checked_mul(dims.batch).ok_or_else(overflow);
    if scales.len() != total(old)? {
        return Err(Error::shape("bytes of scales", total(old)?.to_string(), scales.len()));
    }
    let mut relaid = filled("scales", total(new)?, 0u8)?;
    // In both layouts a tile's rows are consecutive bytes.
    let [old_rows, new_rows] = [bytes(from, TILE_ROWS)?, bytes(to, TILE_ROWS)?];
    let matrices = relaid.par_chunks_exact_mut(new).zip(scales.par_chunks_exact(old));
    matrices.for_each(|(relaid, scales)| {
        let tiles = relaid.par_chunks_mut(new_rows).zip(scales.par_chunks(old_rows));
        tiles.enumerate().for_each(|(tile, (relaid, scales))| {
            for row in 0..TILE_ROWS.min(dims.rows - tile * TILE_ROWS) {
                for kb in 0..kblocks {
                    relaid[to.offset(row, kb, kblocks)] = scales[from.offset(row, kb, kblocks)];
                }
            }
        });
    });
    Ok(relaid)
}

/// Bytes of codes and of scales of a tensor; checks K and the sizes.
///
/// # Errors
/// [`Error::Shape`] for a K that is not whole blocks, [`Error::Overflow`].
pub fn byte_counts<F: BlockFormat>(
    name: &str,
    dims: Dims,
    layout: ScaleLayout,
) -> Result<(usize, usize)> {
    if F::blocks(dims.cols).is_none() {
        let required = format!("a multiple of {} ({})", F::BLOCK, F::NAME);
        return Err(Error::shape(format!("K of `{name}`"), required, dims.cols));
    }
    let all_rows = dims.batch * dims.rows;
    let codes = F::code_bytes(all_rows, dims.cols)
        .map_err(|e| Error::overflow(format!("codes of `{name}`"), e))?;
    let scales = F::scale_bytes(dims.rows, dims.cols, layout)
        .map_err(|e| Error::overflow(format!("scales of `{name}`"), e))?
        .checked_mul(dims.batch)
        .ok_or_else(|| Error::Overflow {
            what: format!("scales of `{name}`"),
            detail: format!("{} x {} x {} padded scales", dims.batch, dims.rows, dims.cols),
        })?;
    Ok((codes, scales))
}
