//! Several devices: parts of weights (tensor parallelism), and [`Experts`] to whose devices tokens go.
//!
//! # Parts of weights
//! | split | each device has | its result |
//! | --- | --- | --- |
//! | [rows](Cut::Rows) of `W` | some of the N outputs | those columns of the product |
//! | [columns](Cut::Columns) of `W` | some of the K inputs | a term of the product: all devices' add up to it |
//! | [experts](Cut::Experts) | some of the matrices | the rows of its experts ([`MoeShape`](crate::moe::MoeShape)) |
//!
//! Experts on several devices need not add up whole results: [`Experts`] sends rows to them and back, by a
//! [`Transport`] (example `expert_parallel`).
//!
//! A gated MLP splits gate and up by rows and the matrix back by the same columns, so that nothing is
//! exchanged but one sum of results (the example `tensor_parallel`). A tensor with both halves of a gate
//! [stacked](crate::gemm::GatedWeights::stacked) is cut into its halves first; if they are
//! [interleaved](crate::gemm::GatedWeights::interleaved), a part of the rows has both.
//!
//! ```
//! use nvfp4::ScaleLayout;
//! use nvfp4::parallel::{Cut, Shard};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::Result<()> {
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("down", &[0.5; 64 * 96], Dims::new(1, 64, 96)?, scale, layout)?;
//! let second = Shard::new(1, 2)?;
//! assert_eq!(second.range("K", 96, 16)?, 48..96);
//! assert_eq!(weight.part(Cut::Columns, second)?.dims(), Dims::new(1, 64, 48)?);
//! // Blocks stay whole.
//! let error = weight.part(Cut::Columns, Shard::new(0, 4)?).expect_err("1.5 blocks");
//! assert_eq!(
//!     error.to_string(),
//!     "K of `down` must be a multiple of 64, 4 parts of whole units of 16, but is 96"
//! );
//! # Ok(())
//! # }
//! ```

mod experts;
mod places;
mod transport;

pub use experts::{Experts, ExpertsMemory, ExpertsShape, ExpertsStep};
pub use places::ExpertPlaces;
#[cfg(feature = "nccl")]
pub(crate) use transport::check_parts;
pub use transport::{HostExchange, Transport};

use std::ops::Range;

use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::{BlockFormat, ScaleLayout};

use crate::error::{Error, Result, filled};
use crate::tensor::{BlockScaled, Blocks, Dims, byte_counts};

/// One of several parts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    rank: usize,
    ranks: usize,
}

impl Shard {
    /// Shard `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not below the number of parts.
    pub fn new(rank: usize, ranks: usize) -> Result<Self> {
        if rank < ranks {
            return Ok(Self { rank, ranks });
        }
        Err(Error::shape("rank", format!("below {ranks}, the number of parts"), rank))
    }

    /// The part's place among all.
    #[must_use]
    pub fn rank(self) -> usize {
        self.rank
    }

    /// Returns the number of parts.
    #[must_use]
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Returns this part's range of `len` things that are cut at multiples of `unit`. Errors call them
    /// `what`.
    ///
    /// # Errors
    /// [`Error::Shape`] where parts would not be equal.
    pub fn range(self, what: &str, len: usize, unit: usize) -> Result<Range<usize>> {
        let all = self.ranks.saturating_mul(unit);
        if len == 0 || !len.is_multiple_of(all) {
            let units = match unit {
                1 => String::new(),
                _ => format!(" of whole units of {unit}"),
            };
            let required = format!("a multiple of {all}, {} parts{units}", self.ranks);
            return Err(Error::shape(what, required, len));
        }
        let each = len / self.ranks;
        Ok(self.rank * each..(self.rank + 1) * each)
    }

    /// This part's experts, of which parts have the same number, or one more or less.
    ///
    /// # Errors
    /// [`Error::Shape`] where there are fewer experts than parts.
    pub fn experts(self, experts: usize) -> Result<Range<usize>> {
        if experts < self.ranks {
            let required = format!("at least {}, the number of parts", self.ranks);
            return Err(Error::shape("experts", required, experts));
        }
        let first = |rank: usize| rank * (experts / self.ranks) + rank.min(experts % self.ranks);
        Ok(first(self.rank)..first(self.rank + 1))
    }
}

/// The cut of weights into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Rows of `W`, outputs.
    Rows,
    /// Columns of `W`, inputs, at the bounds of blocks.
    Columns,
    /// Matrices of experts.
    Experts,
}

impl<F: BlockFormat> BlockScaled<F> {
    /// A part of the weights.
    ///
    /// # Errors
    /// [`Error::Shape`] where parts would not be equal or would cut a block; those of
    /// [`cut`](Self::cut).
    pub fn part(&self, cut: Cut, part: Shard) -> Result<Self> {
        let (dims, name) = (self.dims(), self.name());
        match cut {
            Cut::Rows => self.cut(cut, part.range(&format!("N of `{name}`"), dims.rows(), 1)?),
            Cut::Columns => {
                self.cut(cut, part.range(&format!("K of `{name}`"), dims.cols(), F::BLOCK)?)
            }
            Cut::Experts => self.cut(cut, part.experts(dims.batch())?),
        }
    }

    /// Some of the rows, columns or matrices, with the same layout of scales.
    ///
    /// # Errors
    /// [`Error::Shape`] for a range that is empty or reaches beyond the tensor, for columns that cut a
    /// block, and for scales in the 128x4 layout where the range cuts a tile of 128 rows and 4 blocks:
    /// [`to_layout`](Self::to_layout) makes them linear. [`Error::Memory`].
    pub fn cut(&self, cut: Cut, range: Range<usize>) -> Result<Self> {
        let dims = self.dims();
        let (what, len, unit, tile) = match cut {
            Cut::Rows => ("rows", dims.rows(), 1, TILE_ROWS),
            Cut::Columns => ("columns", dims.cols(), F::BLOCK, TILE_BLOCKS * F::BLOCK),
            Cut::Experts => ("matrices", dims.batch(), 1, 1),
        };
        let field = || format!("{what} of `{}`", self.name());
        if range.is_empty() || range.end > len {
            return Err(Error::shape(field(), format!("some of {len}"), format!("{range:?}")));
        }
        let (unit, of) = match self.layout() {
            ScaleLayout::Linear => (unit, "a block"),
            ScaleLayout::Blocked128x4 => (tile, "a tile of 128x4 scales"),
        };
        let whole = |at: usize| at.is_multiple_of(unit) || at == len;
        if !whole(range.start) || !whole(range.end) {
            let required = format!("cut at multiples of {unit}, not within {of}");
            return Err(Error::shape(field(), required, format!("{range:?}")));
        }
        let all = [0..dims.batch(), 0..dims.rows(), 0..dims.cols()];
        let [batches, rows, cols] = match cut {
            Cut::Experts => [range, all[1].clone(), all[2].clone()],
            Cut::Rows => [all[0].clone(), range, all[2].clone()],
            Cut::Columns => [all[0].clone(), all[1].clone(), range],
        };
        let part = Dims::new(batches.len(), rows.len(), cols.len())?;
        let (code_bytes, scale_bytes) = byte_counts::<F>(self.name(), part, self.layout())?;
        let mut codes = filled("a part's codes", code_bytes, 0u8)?;
        let mut scales = filled("a part's scales", scale_bytes, 0u8)?;
        let (stride, blocks) = (scale_bytes / part.batch(), part.cols() / F::BLOCK);
        let first = cols.start / F::BLOCK;
        let of_all = batches.enumerate().flat_map(|(to, from)| {
            rows.clone().enumerate().map(move |(to_row, row)| (to, from, to_row, row))
        });
        let row_codes = part.cols() / 2;
        for ((to, batch, to_row, row), codes) in of_all.zip(codes.chunks_exact_mut(row_codes)) {
            codes.copy_from_slice(&self.row_codes(batch, row)[cols.start / 2..][..row_codes]);
            for block in 0..blocks {
                let at = to * stride + self.layout().offset(to_row, block, blocks);
                scales[at] = self.scale_byte(batch, row, first + block);
            }
        }
        Self::new(self.name(), part, self.layout(), codes, scales, self.global_scale())
    }
}

impl Blocks {
    /// A part of the weights; see [`BlockScaled::part`].
    ///
    /// # Errors
    /// The same as there.
    pub fn part(&self, cut: Cut, part: Shard) -> Result<Self> {
        Ok(match self {
            Self::Nvfp4(tensor) => Self::Nvfp4(tensor.part(cut, part)?),
            Self::Mxfp4(tensor) => Self::Mxfp4(tensor.part(cut, part)?),
        })
    }
}
