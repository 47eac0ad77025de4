//! The work list of a launch: its tiles, their problems, and their order.
//!
//! A launch computes products that have N and K in common, its *problems*. They are *uniform*, with
//! M tokens each (one problem is a dense product, several are a batch), or
//! [grouped](super::groups), each with its token count, which may be 0. Tiles are numbered problem
//! after problem, and within a problem in a [`TileOrder`]; the [`Schedule`](super::Schedule)
//! assigns K steps of tile numbers to CTAs.
//!
//! ```text
//! CTA --Schedule--> (tile number, K steps) --Tiles--> (problem, row tile, token tile)
//! ```

use super::Problem;
use crate::Divisor;
use crate::params::blocks;

/// Rows of `B` and tokens that one CTA, or one cluster that shares operands, computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileShape {
    /// Rows of `B`: columns of the result.
    pub rows: u32,
    /// Rows of `A`: rows of the result.
    pub tokens: u32,
}

/// The order of a problem's tiles: one dimension is walked innermost, in bands of so many tiles
/// along it, and within a band the other dimension outermost. CTAs at work at the same time then
/// share rows of both operands in L2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileOrder {
    /// The dimension that is walked innermost.
    pub inner: Dimension,
    /// Tiles of a band along it.
    pub band: u32,
}

/// A dimension of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Rows of `A`.
    Tokens,
    /// Rows of `B`.
    Rows,
}

impl TileOrder {
    /// All token tiles of a row tile follow one another, so that its weights come from L2 for all
    /// but the first.
    pub const TOKENS_INNERMOST: Self = Self { inner: Dimension::Tokens, band: u32::MAX };
}

/// The range of a problem's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRange {
    /// Matrix of a batch of matrices `[matrices, tokens, K]`, and of the result.
    pub matrix: u32,
    /// First token in that matrix.
    pub first: u32,
    /// The number of tokens.
    pub count: u32,
    /// Tokens of the matrix up to the problem's last one.
    pub rows: u32,
}

/// One tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Its problem: which weights, factors and bias.
    pub problem: u32,
    /// Index of the tile along the rows of `B`.
    pub row_tile: u32,
    /// Index of the tile along the problem's tokens.
    pub token_tile: u32,
    /// The tokens of the problem.
    pub tokens: TokenRange,
}

/// All problems have the same number of tokens, each in its own matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uniform {
    /// Tokens of a problem.
    pub tokens: u32,
    /// Problems.
    pub problems: u32,
    /// The walk over their tiles.
    pub walk: Walk,
}

impl Uniform {
    /// The problems of a dense or batched product.
    #[inline(always)]
    pub const fn new(problem: &Problem, walk: Walk) -> Self {
        Self { tokens: problem.m, problems: problem.l, walk }
    }

    /// The tiles of a launch that was made, whose number the host has checked.
    #[inline(always)]
    pub const fn launched(&self) -> u32 {
        self.walk.tiles.value() * self.problems
    }

    /// The tokens of a problem.
    #[inline(always)]
    pub const fn range(&self, problem: u32) -> TokenRange {
        TokenRange { matrix: problem, first: 0, count: self.tokens, rows: self.tokens }
    }
}

/// The tiles of a dense or batched product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Rows of `B`.
    pub rows: u32,
    /// Tokens of the problems.
    pub counts: Uniform,
    /// Size of a tile.
    pub shape: TileShape,
    /// Order of a problem's tiles.
    pub order: TileOrder,
}

impl Tiles {
    /// The tiles of a problem.
    pub const fn uniform(problem: &Problem, shape: TileShape, order: TileOrder) -> Self {
        let walk =
            Walk::new(order, problem.n.div_ceil(shape.rows), problem.m.div_ceil(shape.tokens));
        Self::walked(problem, shape, order, walk)
    }

    /// Makes [`Tiles::uniform`] with a known walk: without a division.
    #[inline(always)]
    pub const fn walked(problem: &Problem, shape: TileShape, order: TileOrder, walk: Walk) -> Self {
        Self { rows: problem.n, counts: Uniform::new(problem, walk), shape, order }
    }

    /// Tiles of a problem along the rows of `B`.
    #[inline(always)]
    pub const fn row_tiles(&self) -> u32 {
        self.rows.div_ceil(self.shape.rows)
    }

    /// Tiles of a problem along its tokens.
    #[inline(always)]
    pub const fn token_tiles(&self) -> u32 {
        self.counts.tokens.div_ceil(self.shape.tokens)
    }

    /// Number of tiles of all problems.
    #[inline(always)]
    pub const fn count(&self) -> u64 {
        // The last product of three factors of 32 bits is the only one that can exceed 64: it is
        // then more than any launch has.
        (self.row_tiles() as u64 * self.token_tiles() as u64)
            .saturating_mul(self.counts.problems as u64)
    }

    /// Tile number `index`, below [`count`](Self::count) and [`Divisor::DIVIDENDS`].
    #[inline(always)]
    pub const fn tile(&self, index: u32) -> Tile {
        let (problem, within) = self.counts.walk.tiles.divide(index);
        let (row_tile, token_tile) = self.counts.walk.place(self.order, within);
        Tile { problem, row_tile, token_tile, tokens: self.counts.range(problem) }
    }
}

/// The walk over a problem's tiles in a [`TileOrder`]: its divisors, from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Walk {
    /// Tiles of a problem.
    tiles: Divisor,
    /// Tiles of a band that is not the last.
    band: Divisor,
    /// Tiles of the last band along the inner dimension.
    last: Divisor,
    /// Number of the last band.
    last_band: u32,
}

impl Walk {
    /// The walk over `row_tiles` by `token_tiles` tiles. More of them than can be numbered are not
    /// walked as they should be: who launches checks their count.
    pub const fn new(order: TileOrder, row_tiles: u32, token_tiles: u32) -> Self {
        let (inner, outer) = match order.inner {
            Dimension::Tokens => (token_tiles, row_tiles),
            Dimension::Rows => (row_tiles, token_tiles),
        };
        let last_band = if inner == 0 { 0 } else { (inner - 1) / order.band };
        Self {
            tiles: Divisor::nearest(inner.saturating_mul(outer)),
            band: Divisor::nearest(order.band.saturating_mul(outer)),
            last: Divisor::nearest(inner - last_band * order.band),
            last_band,
        }
    }

    /// Row tile and token tile of number `index` of a problem.
    #[inline(always)]
    pub const fn place(self, order: TileOrder, index: u32) -> (u32, u32) {
        let (band, rest) =
            if order.band == u32::MAX { (0, index) } else { self.band.divide(index) };
        // The band's width is a constant, but for the last band.
        let (outer, inner) = if order.band == u32::MAX || band == self.last_band {
            self.last.divide(rest)
        } else {
            (rest / order.band, rest % order.band)
        };
        let inner = if order.band == u32::MAX { inner } else { band * order.band + inner };
        match order.inner {
            Dimension::Tokens => (outer, inner),
            Dimension::Rows => (inner, outer),
        }
    }
}

blocks! {
    Walk { tiles, band, last, last_band }
}

/// A tile of a CTA: its weights, its tokens and their place in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CtaTile {
    /// Problem whose weights it takes.
    pub problem: u32,
    /// Matrix of activations and result.
    pub matrix: u32,
    /// Tile along the rows of `B`. CTA `rank` of a multicast computes row tile
    /// `multicast * group + rank`; the last group's second tile may not exist.
    pub row_tile: u32,
    /// First token.
    pub token: u32,
    /// The token after the problem's last.
    pub end: u32,
    /// The token after the last one of a problem of the matrix.
    pub rows: u32,
    /// Tokens that the tile has room for; in a trimmed tile, the tokens that it has.
    pub width: u32,
}

impl CtaTile {
    /// Tokens of the tile that exist.
    #[inline(always)]
    pub fn tokens(&self) -> u32 {
        (self.end - self.token).min(self.width)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    const ORDERS: [TileOrder; 4] = [
        TileOrder::TOKENS_INNERMOST,
        TileOrder { inner: Dimension::Rows, band: u32::MAX },
        TileOrder { inner: Dimension::Tokens, band: 8 },
        TileOrder { inner: Dimension::Rows, band: 3 },
    ];

    /// Every tile of every problem has one number, and problems follow one another.
    fn check(tiles: Tiles) {
        let Tiles { order, shape, rows, .. } = tiles;
        let count = u32::try_from(tiles.count()).unwrap();
        let all: Vec<Tile> = (0..count).map(|index| tiles.tile(index)).collect();
        let distinct: HashSet<_> =
            all.iter().map(|tile| (tile.problem, tile.row_tile, tile.token_tile)).collect();
        assert_eq!(distinct.len(), all.len(), "{order:?}");
        assert!(all.is_sorted_by_key(|tile| tile.problem), "{order:?}");
        for tile in all {
            assert_eq!(tile.tokens, tiles.counts.range(tile.problem));
            assert!(tile.token_tile * shape.tokens < tile.tokens.count, "{order:?} {tile:?}");
            assert!(tile.row_tile * shape.rows < rows, "{order:?} {tile:?}");
        }
    }

    #[test]
    fn uniform_problems() {
        for (rows, tokens, problems) in [(1, 1, 1), (300, 129, 3), (1025, 40, 2), (64, 4000, 1)] {
            for shape in [TileShape { rows: 128, tokens: 8 }, TileShape { rows: 64, tokens: 256 }] {
                for order in ORDERS {
                    let problem = Problem { m: tokens, n: rows, k: 64, l: problems };
                    check(Tiles::uniform(&problem, shape, order));
                }
            }
        }
    }

    /// More tiles than 64 bits can number are more than any launch has, not few.
    #[test]
    fn too_many_tiles_are_not_few() {
        let all = u32::MAX;
        let problem = Problem { m: all, n: all, k: 64, l: all };
        let shape = TileShape { rows: 1, tokens: 1 };
        assert_eq!(Tiles::uniform(&problem, shape, ORDERS[0]).count(), u64::MAX);
        let problem = Problem { m: 300, n: 129, k: 64, l: 3 };
        let tiles = Tiles::uniform(&problem, TileShape { rows: 64, tokens: 8 }, ORDERS[0]);
        assert_eq!(u64::from(tiles.counts.launched()), tiles.count());
    }
}
