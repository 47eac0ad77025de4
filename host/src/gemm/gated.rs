//! The weights of a product: one matrix, or the two of a gated product.

use fp4_formats::gemm::{Half, PairedRows};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, ScaleLayout};

use super::form::{BlockRows, format_of};
use crate::error::{Error, Result, filled};
use crate::tensor::{BlockScaled, Dims, byte_counts};

/// The weights of a gated product, `act(A gate^T) * (A up^T)`: two matrices of N rows for each batch
/// entry.
///
/// | constructor | form |
/// | --- | --- |
/// | [`pair`](Self::pair) | two tensors `[L, N, K]`, each with its own scale |
/// | [`stacked`](Self::stacked) | one tensor `[L, 2N, K]`, the gate's rows first |
/// | [`interleaved`](Self::interleaved) | one tensor `[L, 2N, K]`: even rows are the gate's, odd ones `up`'s (gpt-oss) |
#[derive(Debug)]
pub struct GatedWeights<'a, F> {
    tensors: [&'a BlockScaled<F>; 2],
    order: Order,
    dims: Dims,
}

impl<F> Clone for GatedWeights<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for GatedWeights<'_, F> {}

/// The order of the rows of both halves.
#[derive(Clone, Copy, Debug)]
enum Order {
    Pair,
    Stacked,
    Interleaved,
}

impl<'a, F: BlockFormat> GatedWeights<'a, F> {
    /// Two tensors.
    ///
    /// # Errors
    /// [`Error::Shape`] if their sizes differ.
    pub fn pair(gate: &'a BlockScaled<F>, up: &'a BlockScaled<F>) -> Result<Self> {
        let (dims, found) = (gate.dims(), up.dims());
        for (letter, required, found) in [
            ("batch", dims.batch(), found.batch()),
            ("rows", dims.rows(), found.rows()),
            ("K", dims.cols(), found.cols()),
        ] {
            if found != required {
                let required = format!("{required}, as in `{}`", gate.name());
                return Err(Error::shape(format!("{letter} of `{}`", up.name()), required, found));
            }
        }
        Ok(Self { tensors: [gate, up], order: Order::Pair, dims })
    }

    /// One tensor, whose first half of rows is the gate.
    ///
    /// # Errors
    /// [`Error::Shape`] for an odd number of rows.
    pub fn stacked(both: &'a BlockScaled<F>) -> Result<Self> {
        Self::halves(both, Order::Stacked)
    }

    /// One tensor, whose even rows are the gate.
    ///
    /// # Errors
    /// [`Error::Shape`] for an odd number of rows.
    pub fn interleaved(both: &'a BlockScaled<F>) -> Result<Self> {
        Self::halves(both, Order::Interleaved)
    }

    fn halves(both: &'a BlockScaled<F>, order: Order) -> Result<Self> {
        let dims = both.dims();
        if !dims.rows().is_multiple_of(2) {
            let field = format!("rows of `{}`", both.name());
            return Err(Error::shape(field, "even, for a gate and as many of up", dims.rows()));
        }
        let dims = Dims::new(dims.batch(), dims.rows() / 2, dims.cols())?;
        Ok(Self { tensors: [both; 2], order, dims })
    }

    /// Returns batch, N and K of each half.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// Returns the name in errors.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.tensors[0].name()
    }

    /// Scale of the tensor that a half is in.
    #[must_use]
    pub fn global_scale(&self, half: Half) -> f32 {
        self.tensor(half).global_scale()
    }

    fn tensor(&self, half: Half) -> &'a BlockScaled<F> {
        let [gate, up] = self.tensors;
        match half {
            Half::Gate => gate,
            Half::Up => up,
        }
    }

    /// The tensor with row `row` of a half, and the row's index there.
    #[must_use]
    pub fn row(&self, half: Half, row: usize) -> (&'a BlockScaled<F>, usize) {
        let second = usize::from(half == Half::Up);
        let index = match self.order {
            Order::Pair => row,
            Order::Stacked => second * self.dims.rows() + row,
            Order::Interleaved => 2 * row + second,
        };
        (self.tensor(half), index)
    }
}

/// The weights of a product.
#[derive(Debug)]
pub enum Weights<'a, F> {
    /// A matrix for each batch entry, or one for all.
    Plain(&'a BlockScaled<F>),
    /// Two matrices.
    Gated(GatedWeights<'a, F>),
}

impl<F> Clone for Weights<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Weights<'_, F> {}

impl<'a, F> From<&'a BlockScaled<F>> for Weights<'a, F> {
    fn from(weights: &'a BlockScaled<F>) -> Self {
        Self::Plain(weights)
    }
}

impl<'a, F> From<GatedWeights<'a, F>> for Weights<'a, F> {
    fn from(weights: GatedWeights<'a, F>) -> Self {
        Self::Gated(weights)
    }
}

impl<'a, F: BlockFormat> Weights<'a, F> {
    /// Batch, N of the result, and K.
    #[must_use]
    pub fn dims(&self) -> Dims {
        match self {
            Self::Plain(weights) => weights.dims(),
            Self::Gated(weights) => weights.dims(),
        }
    }

    /// Returns the name in errors.
    #[must_use]
    pub fn name(&self) -> &'a str {
        match self {
            Self::Plain(weights) => weights.name(),
            Self::Gated(weights) => weights.name(),
        }
    }

    /// Whether two matrices make one result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Gated(_) => true,
        }
    }

    /// Scales of the tensors of both halves; of plain weights, the tensor's scale twice.
    #[must_use]
    pub fn global_scales(&self) -> [f32; 2] {
        match self {
            Self::Plain(weights) => [weights.global_scale(); 2],
            Self::Gated(weights) => [Half::Gate, Half::Up].map(|half| weights.global_scale(half)),
        }
    }
}

/// Gated weights in the order of [`PairedRows`]: one matrix, in which rows of both halves alternate,
/// zeros past the last.
pub(super) struct Paired<'a, F> {
    weights: GatedWeights<'a, F>,
    dims: Dims,
    /// The codes of a row past the last.
    zeros: Vec<u8>,
}

impl<'a, F: BlockFormat> Paired<'a, F> {
    /// `rows` is [`PairedRows::rows`] of the weights' N.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(weights: GatedWeights<'a, F>, rows: u32) -> Result<Self> {
        let of_half = weights.dims();
        let dims = Dims::new(of_half.batch(), rows as usize, of_half.cols())?;
        let zeros = filled("a row of zeros", of_half.cols().div_ceil(2), 0u8)?;
        Ok(Self { weights, dims, zeros })
    }

    /// The tensor with a row, and its index there; none past the last row of a half.
    fn source(&self, row: usize) -> Option<(&'a BlockScaled<F>, usize)> {
        // As many rows as kernels take: it fits.
        let (half, column) = PairedRows::source(row as u32);
        let column = column as usize;
        (column < self.weights.dims().rows()).then(|| self.weights.row(half, column))
    }
}

impl<F: BlockFormat> BlockRows for Paired<'_, F> {
    fn format(&self) -> Format {
        format_of::<F>()
    }

    fn dims(&self) -> Dims {
        self.dims
    }

    fn row_codes(&self, batch: usize, row: usize) -> &[u8] {
        self.source(row).map_or(&self.zeros, |(tensor, row)| tensor.row_codes(batch, row))
    }

    fn scale_byte(&self, batch: usize, row: usize, block: usize) -> u8 {
        self.source(row).map_or(0, |(tensor, row)| tensor.scale_byte(batch, row, block))
    }

    fn blocked_scales(&self) -> Result<Vec<u8>> {
        let (dims, layout) = (self.dims, ScaleLayout::Blocked128x4);
        let (_, bytes) = byte_counts::<F>(self.weights.name(), dims, layout)?;
        let mut scales = filled("scales", bytes, 0u8)?;
        let (matrix, blocks) = (bytes / dims.batch(), dims.cols() / F::BLOCK);
        for batch in 0..dims.batch() {
            for row in 0..dims.rows() {
                for block in 0..blocks {
                    let at = batch * matrix + layout.offset(row, block, blocks);
                    scales[at] = self.scale_byte(batch, row, block);
                }
            }
        }
        Ok(scales)
    }
}

#[cfg(test)]
mod tests {
    use fp4_formats::Mxfp4;
    use fp4_formats::Nvfp4;

    use super::*;

    /// Codes and scales that look random and differ between seeds.
    fn random<F: BlockFormat>([batch, rows, k]: [usize; 3], seed: u64) -> BlockScaled<F> {
        let dims = Dims::new(batch, rows, k).expect("dims");
        let layout = ScaleLayout::ALL[seed as usize % 2];
        let (codes, scales) = byte_counts::<F>("w", dims, layout).expect("whole blocks");
        let bytes = |count: usize, most: u64| -> Vec<u8> {
            let hash = |at: usize| (at as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            (0..count).map(|at| (hash(at) % most) as u8).collect()
        };
        // Codes are any bytes; scales are finite and positive in both formats.
        BlockScaled::new("w", dims, layout, bytes(codes, 256), bytes(scales, 127), 1.0)
            .expect("valid")
    }

    /// Codes and scales of a row, in order.
    fn row(rows: &dyn BlockRows, batch: usize, row: usize) -> (Vec<u8>, Vec<u8>) {
        let blocks = rows.dims().cols() / rows.format().block() as usize;
        let scales = (0..blocks).map(|block| rows.scale_byte(batch, row, block)).collect();
        (rows.row_codes(batch, row).to_vec(), scales)
    }

    fn check<F: BlockFormat>(n: usize) {
        let k = 3 * F::BLOCK;
        let (gate, up) = (random::<F>([2, n, k], 1), random::<F>([2, n, k], 2));
        let both = random::<F>([2, 2 * n, k], 3);
        let forms = [
            (GatedWeights::pair(&gate, &up), [(&gate, 0, 1), (&up, 0, 1)]),
            (GatedWeights::stacked(&both), [(&both, 0, 1), (&both, n, 1)]),
            (GatedWeights::interleaved(&both), [(&both, 0, 2), (&both, 1, 2)]),
        ];
        for (weights, halves) in forms {
            let weights = weights.expect("valid");
            let rows = PairedRows::rows(n as u32);
            let paired = Paired::new(weights, rows).expect("small");
            assert_eq!(paired.dims(), Dims::new(2, rows as usize, k).expect("dims"));
            let blocked = paired.blocked_scales().expect("small");
            let layout = ScaleLayout::Blocked128x4;
            for batch in 0..2 {
                for at in 0..rows as usize {
                    // Eight rows of the gate, eight of up.
                    let (half, column) = (at / 8 % 2, at / 16 * 8 + at % 8);
                    let got = row(&paired, batch, at);
                    let (tensor, first, step) = halves[half];
                    if column < n {
                        assert_eq!(got, row(tensor, batch, first + column * step), "{n} {at}");
                    } else {
                        assert_eq!(got, (vec![0; k / 2], vec![0; 3]), "{n} {at}");
                    }
                    for (block, byte) in got.1.into_iter().enumerate() {
                        let offset = batch * blocked.len() / 2 + layout.offset(at, block, 3);
                        assert_eq!(blocked[offset], byte, "{n} {at} {block}");
                    }
                }
            }
            assert_eq!(blocked.len(), 2 * F::scale_bytes(rows as usize, k, layout).expect("small"));
        }
    }

    #[test]
    fn rows_of_gate_and_up_alternate() {
        for n in [1, 7, 8, 9, 40, 129] {
            check::<Nvfp4>(n);
            check::<Mxfp4>(n);
        }
    }

    #[test]
    fn halves_that_do_not_fit_each_other() {
        let refused = |result: Result<GatedWeights<'_, Nvfp4>>, text: &str| {
            assert_eq!(result.expect_err("refused").to_string(), text);
        };
        let gate = random::<Nvfp4>([2, 5, 32], 1);
        let other = |sizes| random::<Nvfp4>(sizes, 1);
        let text = "batch of `w` must be 2, as in `w`, but is 1";
        refused(GatedWeights::pair(&gate, &other([1, 5, 32])), text);
        let text = "rows of `w` must be 5, as in `w`, but is 6";
        refused(GatedWeights::pair(&gate, &other([2, 6, 32])), text);
        let text = "K of `w` must be 32, as in `w`, but is 48";
        refused(GatedWeights::pair(&gate, &other([2, 5, 48])), text);
        let text = "rows of `w` must be even, for a gate and as many of up, but is 5";
        refused(GatedWeights::stacked(&gate), text);
        refused(GatedWeights::interleaved(&gate), text);
    }
}
