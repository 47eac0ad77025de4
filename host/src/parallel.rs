//! Weights of which each of several devices has a part (tensor parallelism).
//!
//! | split | each device has | its result |
//! | --- | --- | --- |
//! | [rows](Cut::Rows) of `W` | some of the N outputs | those columns of the product |
//! | [columns](Cut::Columns) of `W` | some of the K inputs | a term of the product: all devices' add up to it |
//! | [experts](Cut::Experts) | some of the matrices | the rows of its experts ([`MoeShape`](crate::moe::MoeShape)) |
//!
//! A gated MLP splits gate and up by rows and the matrix back by the same columns, so that nothing is
//! exchanged but one sum of results (the example `tensor_parallel`). A tensor with both halves of a gate
//! [stacked](crate::gemm::GatedWeights::stacked) is cut into its halves first; if they are
//! [interleaved](crate::gemm::GatedWeights::interleaved), a part of the rows has both.
//!
//! ```
//! use nvfp4::ScaleLayout;
//! use nvfp4::parallel::{Cut, Part};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::Result<()> {
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("down", &[0.5; 64 * 96], Dims::new(1, 64, 96)?, scale, layout)?;
//! let second = Part::new(1, 2)?;
//! assert_eq!(second.range("K", 96, 16)?, 48..96);
//! assert_eq!(weight.part(Cut::Columns, second)?.dims(), Dims::new(1, 64, 48)?);
//! // Blocks stay whole.
//! let error = weight.part(Cut::Columns, Part::new(0, 4)?).expect_err("1.5 blocks");
//! assert_eq!(
//!     error.to_string(),
//!     "K of `down` must be a multiple of 64, 4 parts of whole units of 16, but is 96"
//! );
//! # Ok(())
//! # }
//! ```

use std::ops::Range;

use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::{BlockFormat, ScaleLayout};

#[cfg(feature = "checkpoint")]
use crate::checkpoint::Weight;
use crate::error::{Error, Result, filled};
use crate::tensor::{BlockScaled, Blocks, Dims, byte_counts};

/// One of several parts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    rank: usize,
    ranks: usize,
}

impl Part {
    /// Part `rank` of `ranks`.
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

    /// How many parts there are.
    #[must_use]
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// What this part has of `len` things that are cut at multiples of `unit`. Errors call them `what`.
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

/// How weights are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Into rows of `W`, outputs.
    Rows,
    /// Into columns of `W`, inputs, at the bounds of blocks.
    Columns,
    /// Into matrices.
    Experts,
}

impl<F: BlockFormat> BlockScaled<F> {
    /// A part of the weights.
    ///
    /// # Errors
    /// [`Error::Shape`] where parts would not be equal or would cut a block; those of
    /// [`cut`](Self::cut).
    pub fn part(&self, cut: Cut, part: Part) -> Result<Self> {
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
    /// As there.
    pub fn part(&self, cut: Cut, part: Part) -> Result<Self> {
        Ok(match self {
            Self::Nvfp4(tensor) => Self::Nvfp4(tensor.part(cut, part)?),
            Self::Mxfp4(tensor) => Self::Mxfp4(tensor.part(cut, part)?),
        })
    }
}

#[cfg(feature = "checkpoint")]
impl Weight {
    /// A part of a weight as it was loaded, with the tensor-level scales of its own experts.
    ///
    /// # Errors
    /// As [`BlockScaled::part`].
    pub fn part(&self, cut: Cut, part: Part) -> Result<Self> {
        let blocks = self.blocks.part(cut, part)?;
        let dims = blocks.dims();
        let mut own = self.clone();
        let shape = [dims.batch(), dims.rows(), dims.cols()];
        let leading = shape.len() - own.spec.shape.len().min(shape.len());
        own.spec.shape = shape[leading..].to_vec();
        if let (Cut::Experts, Some(scales)) = (cut, &self.experts) {
            own.experts = Some(scales[part.experts(scales.len())?].to_vec());
        }
        Ok(Self { blocks, ..own })
    }
}

#[cfg(test)]
mod tests {
    use fp4_formats::{Mxfp4, Nvfp4};

    use super::*;
    use crate::generate::Generator;
    use crate::rng::SplitMix64;

    fn random<F: BlockFormat>([batch, rows, k]: [usize; 3], layout: ScaleLayout) -> BlockScaled<F> {
        let dims = Dims::new(batch, rows, k).expect("dims");
        let mut rng = SplitMix64::new(7);
        Generator::FullRange.blocks("w", dims, layout, &mut rng).expect("whole blocks")
    }

    /// Values of all parts, put together by index, are those of the whole.
    fn check<F: BlockFormat>(sizes: [usize; 3], layout: ScaleLayout, ranks: usize) {
        let whole = random::<F>(sizes, layout);
        let values = whole.dequantize().expect("small");
        for (axis, cut) in [(0, Cut::Experts), (1, Cut::Rows), (2, Cut::Columns)] {
            let mut start = 0;
            for rank in 0..ranks {
                let part = whole.part(cut, Part::new(rank, ranks).expect("valid")).expect("whole");
                let dims = part.dims();
                let own = [dims.batch(), dims.rows(), dims.cols()];
                for (index, value) in part.dequantize().expect("small").into_iter().enumerate() {
                    let mut at = [index / own[2] / own[1], index / own[2] % own[1], index % own[2]];
                    at[axis] += start;
                    let expected = values[(at[0] * sizes[1] + at[1]) * sizes[2] + at[2]];
                    assert_eq!(value.to_bits(), expected.to_bits(), "{cut:?} {rank} {at:?}");
                }
                start += own[axis];
            }
            assert_eq!(start, sizes[axis], "{cut:?}");
        }
    }

    #[test]
    fn parts_make_up_the_whole() {
        check::<Nvfp4>([3, 10, 96], ScaleLayout::Linear, 2);
        check::<Mxfp4>([2, 6, 192], ScaleLayout::Linear, 2);
        check::<Nvfp4>([4, 256, 256], ScaleLayout::Blocked128x4, 2);
        check::<Mxfp4>([3, 384, 384], ScaleLayout::Blocked128x4, 3);
    }

    #[test]
    fn what_cannot_be_cut() {
        let part = |rank, ranks| Part::new(rank, ranks).expect("valid");
        let refused = |result: Result<BlockScaled<Nvfp4>>, text: &str| {
            assert_eq!(result.expect_err("refused").to_string(), text);
        };
        let linear = random::<Nvfp4>([2, 10, 96], ScaleLayout::Linear);
        let text = "N of `w` must be a multiple of 4, 4 parts, but is 10";
        refused(linear.part(Cut::Rows, part(0, 4)), text);
        let text =
            "columns of `w` must be cut at multiples of 16, not within a block, but is 0..24";
        refused(linear.cut(Cut::Columns, 0..24), text);
        let text = "rows of `w` must be some of 10, but is 8..11";
        refused(linear.cut(Cut::Rows, 8..11), text);
        let text = "experts must be at least 3, the number of parts, but is 2";
        refused(linear.part(Cut::Experts, part(0, 3)), text);
        let tiles = random::<Nvfp4>([1, 200, 128], ScaleLayout::Blocked128x4);
        let text = "rows of `w` must be cut at multiples of 128, not within a tile of 128x4 scales, \
                    but is 0..100";
        refused(tiles.part(Cut::Rows, part(0, 2)), text);
        tiles.cut(Cut::Rows, 128..200).expect("whole tiles, up to the end");
        let text = "columns of `w` must be cut at multiples of 64, not within a tile of 128x4 scales, \
                    but is 0..32";
        refused(tiles.part(Cut::Columns, part(0, 4)), text);
        let error = Part::new(2, 2).expect_err("refused").to_string();
        assert_eq!(error, "rank must be below 2, the number of parts, but is 2");
    }

    #[test]
    fn experts_are_divided_about_evenly() {
        let ranges = (0..3).map(|rank| Part::new(rank, 3).and_then(|part| part.experts(8)));
        let ranges: Vec<_> = ranges.map(|range| range.expect("enough")).collect();
        assert_eq!(ranges, [0..3, 3..6, 6..8]);
    }
}
