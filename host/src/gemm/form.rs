//! The order of weights in memory, and the matrices that are brought into it.

use fp4_formats::gemm::fold::{Folded, Range};
use fp4_formats::gemm::fragments::repack::CHUNK_COLUMNS;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Operand, ScaleLayout, TensorFamily, pack};

use crate::error::Result;
use crate::tensor::{BlockScaled, Dims};

/// The value that names a format's type.
#[must_use]
pub fn format_of<F: BlockFormat>() -> Format {
    if F::NAME == Format::Nvfp4.name() { Format::Nvfp4 } else { Format::Mxfp4 }
}

/// Matrices of repacked weights in device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedWeights {
    /// Their order.
    pub form: WeightForm,
    /// The number of problems.
    pub batch: u32,
    /// The address of the first.
    pub address: u64,
}

/// The order of repacked weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightForm {
    /// The tensor cores whose kernels read it.
    pub tensor: TensorFamily,
    /// Format that the weights were repacked from.
    pub format: Format,
    /// The type of activations that the order depends on: the type that weights are decoded to, and
    /// e4m3. `None` for blocks, if all but e4m3 take the same order, and for e4m3 where it takes that of blocks.
    pub activations: Option<Operand>,
    /// Rows of a matrix: N, or the rows of both halves of gated weights.
    pub rows: u32,
    /// Columns of a matrix, K.
    pub columns: u32,
    /// The result's N, for gated weights, whose gate and up rows alternate. `None` otherwise.
    pub gated: Option<u32>,
}

impl WeightForm {
    /// Whether two rows make a column of the result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated.is_some()
    }

    /// N of the result.
    #[must_use]
    pub fn result_columns(&self) -> u32 {
        self.gated.unwrap_or(self.rows)
    }

    /// The order, sizes left out.
    pub(super) fn order(&self) -> String {
        let Self { tensor, format, activations, .. } = self;
        let activations = activations.map_or(String::new(), |activations| {
            format!(" for {} activations", activations.name())
        });
        format!("{} in the order of {}{activations}", format.name(), tensor.name())
    }

    /// Whether it differs from `other` in sizes at most, and in whether it is gated.
    pub(super) fn same_order(&self, other: &Self) -> bool {
        let &Self { rows, columns, gated, .. } = other;
        Self { rows, columns, gated, ..*self } == *other
    }
}

/// A batch of block-scaled matrices, whatever their format.
pub(super) trait BlockRows: Sync {
    /// Format of codes and scales.
    fn format(&self) -> Format;
    /// Batch, rows, columns.
    fn dims(&self) -> Dims;
    /// Packed codes of a row.
    fn row_codes(&self, batch: usize, row: usize) -> &[u8];
    /// A scale byte.
    fn scale_byte(&self, batch: usize, row: usize, block: usize) -> u8;
    /// All scales in the 128x4 layout, zeros in the padding.
    ///
    /// # Errors
    /// [`Error::Memory`].
    fn blocked_scales(&self) -> Result<Vec<u8>>;
}

impl<F: BlockFormat> BlockRows for BlockScaled<F> {
    fn format(&self) -> Format {
        format_of::<F>()
    }

    fn dims(&self) -> Dims {
        self.dims()
    }

    fn row_codes(&self, batch: usize, row: usize) -> &[u8] {
        self.row_codes(batch, row)
    }

    fn scale_byte(&self, batch: usize, row: usize, block: usize) -> u8 {
        self.scale_byte(batch, row, block)
    }

    fn blocked_scales(&self) -> Result<Vec<u8>> {
        Ok(self.to_layout(ScaleLayout::Blocked128x4)?.scales().to_vec())
    }
}

/// The range of a row of weights.
pub(super) fn range(weights: &dyn BlockRows, batch: usize, row: usize) -> Range {
    let bytes = weights.format().block() as usize / 2;
    let blocks = weights.row_codes(batch, row).chunks(bytes);
    blocks.enumerate().fold(Range::default(), |range, (block, codes)| {
        let is_empty = codes.iter().all(|pair| pair & 0x77 == 0);
        range.with(weights.format(), weights.scale_byte(batch, row, block), is_empty)
    })
}

/// The columns from `first` on of a row of weights, folded to e4m3 in a row of this range.
pub(super) fn fold(
    weights: &dyn BlockRows,
    (batch, row): (usize, usize),
    first: usize,
    range: Range,
) -> Folded {
    let (dims, block) = (weights.dims(), weights.format().block() as usize);
    let codes = weights.row_codes(batch, row);
    Folded::new(
        weights.format(),
        &std::array::from_fn(|column| {
            let column = first + column;
            let pair = codes.get(column / 2).map_or((0, 0), |&byte| pack::unpair(byte));
            if column.is_multiple_of(2) { pair.0 } else { pair.1 }
        }),
        |index| {
            let index = first / block + index as usize;
            if index < dims.cols() / block { weights.scale_byte(batch, row, index) } else { 0 }
        },
        range,
    )
}

/// Values of a row of weights [folded](fp4_formats::gemm::fold) to e4m3, without the tensor's
/// scale: the operand of kernels that take activations in e4m3.
#[must_use]
pub fn folded_row<F: BlockFormat>(x: &BlockScaled<F>, batch: usize, row: usize) -> Vec<f64> {
    const CHUNK: usize = CHUNK_COLUMNS as usize;
    let columns = x.dims().cols();
    let range = range(x, batch, row);
    let chunks = (0..columns).step_by(CHUNK).flat_map(|first| {
        let folded = fold(x, (batch, row), first, range);
        (0..CHUNK.min(columns - first))
            .map(move |column| f64::from(folded.operand(column)) * f64::from(folded.factor()))
    });
    chunks.collect()
}
