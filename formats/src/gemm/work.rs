//! The work list of a launch: which tiles there are, of which problems, and in which order.
//!
//! A launch computes products that have N and K in common, its *problems*. They are *uniform*,
//! with M tokens each (one problem is a dense product, several are a batch), or *grouped*, with a
//! token count of their own each, which may be 0. Tiles are numbered problem after problem, and
//! within a problem in a [`TileOrder`]; the [`Schedule`](super::Schedule) says which CTA computes which K steps of
//! which tile number.
//!
//! ```text
//! CTA --Schedule--> (tile number, K steps) --Tiles--> (problem, row tile, token tile)
//! ```

use super::Problem;
use crate::Divisor;

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

/// Where the tokens of a problem are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRange {
    /// Matrix of a batch of matrices `[matrices, tokens, K]`, and of the result.
    pub matrix: u32,
    /// First token in that matrix.
    pub first: u32,
    /// How many.
    pub count: u32,
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

/// The token counts of the problems of a launch.
pub trait TokenCounts {
    /// How many problems there are.
    fn problems(&self) -> u32;

    /// The tokens of a problem.
    fn range(&self, problem: u32) -> TokenRange;

    /// Tiles of all problems, of `row_tiles` along the rows of `B` for every `tile_tokens` tokens.
    fn tiles(&self, row_tiles: u32, tile_tokens: u32) -> u64;

    /// Tile number `index` of those in `order`: its problem, row tile and token tile.
    fn locate(
        &self,
        row_tiles: u32,
        tile_tokens: u32,
        order: TileOrder,
        index: u32,
    ) -> (u32, u32, u32);
}

/// All problems have the same number of tokens, each in a matrix of its own.
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
}

impl TokenCounts for Uniform {
    #[inline(always)]
    fn problems(&self) -> u32 {
        self.problems
    }

    #[inline(always)]
    fn range(&self, problem: u32) -> TokenRange {
        TokenRange { matrix: problem, first: 0, count: self.tokens }
    }

    #[inline(always)]
    fn tiles(&self, row_tiles: u32, tile_tokens: u32) -> u64 {
        // Of three factors of 32 bits only the last product can exceed 64: it is then more than any
        // launch has.
        (u64::from(row_tiles) * u64::from(self.tokens.div_ceil(tile_tokens)))
            .saturating_mul(self.problems.into())
    }

    #[inline(always)]
    fn locate(&self, _: u32, _: u32, order: TileOrder, index: u32) -> (u32, u32, u32) {
        let (problem, within) = self.walk.tiles.divide(index);
        let (row_tile, token_tile) = self.walk.place(order, within);
        (problem, row_tile, token_tile)
    }
}

/// Problem `p` has the tokens `offsets[p]..offsets[p + 1]` of one matrix. Offsets that decrease,
/// or exceed `bound`, end the problem where it begins, or at the bound.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<F> {
    /// Reads an offset; there is one more than problems.
    pub offsets: F,
    /// Problems.
    pub problems: u32,
    /// Tokens of the matrix.
    pub bound: u32,
}

impl<F: Fn(u32) -> u32> TokenCounts for Grouped<F> {
    #[inline(always)]
    fn problems(&self) -> u32 {
        self.problems
    }

    #[inline(always)]
    fn range(&self, problem: u32) -> TokenRange {
        let first = (self.offsets)(problem).min(self.bound);
        let end = (self.offsets)(problem + 1).min(self.bound);
        TokenRange { matrix: 0, first, count: end.saturating_sub(first) }
    }

    fn tiles(&self, row_tiles: u32, tile_tokens: u32) -> u64 {
        let token_tiles = |problem| u64::from(self.range(problem).count.div_ceil(tile_tokens));
        u64::from(row_tiles) * (0..self.problems).map(token_tiles).sum::<u64>()
    }

    #[inline(always)]
    fn locate(
        &self,
        row_tiles: u32,
        tile_tokens: u32,
        order: TileOrder,
        index: u32,
    ) -> (u32, u32, u32) {
        let (mut problem, mut before) = (0, 0);
        loop {
            let token_tiles = self.range(problem).count.div_ceil(tile_tokens);
            let tiles = row_tiles * token_tiles;
            if index - before < tiles || problem + 1 >= self.problems {
                let walk = Walk::new(order, row_tiles, token_tiles);
                let (row_tile, token_tile) = walk.place(order, index - before);
                return (problem, row_tile, token_tile);
            }
            before += tiles;
            problem += 1;
        }
    }
}

/// The tiles of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles<C> {
    /// Rows of `B`.
    pub rows: u32,
    /// Tokens of the problems.
    pub counts: C,
    /// Size of a tile.
    pub shape: TileShape,
    /// Order of a problem's tiles.
    pub order: TileOrder,
}

impl<C: TokenCounts> Tiles<C> {
    /// Tiles of a problem along the rows of `B`.
    #[inline(always)]
    pub const fn row_tiles(&self) -> u32 {
        self.rows.div_ceil(self.shape.rows)
    }

    /// Tiles of problem `problem` along its tokens.
    #[inline(always)]
    pub fn token_tiles(&self, problem: u32) -> u32 {
        self.counts.range(problem).count.div_ceil(self.shape.tokens)
    }

    /// Number of tiles of all problems.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.counts.tiles(self.row_tiles(), self.shape.tokens)
    }

    /// Tile number `index`, below [`count`](Self::count) and [`Divisor::DIVIDENDS`].
    #[inline(always)]
    pub fn tile(&self, index: u32) -> Tile {
        let (problem, row_tile, token_tile) =
            self.counts.locate(self.row_tiles(), self.shape.tokens, self.order, index);
        Tile { problem, row_tile, token_tile, tokens: self.counts.range(problem) }
    }
}

impl Tiles<Uniform> {
    /// The tiles of a dense or batched product.
    pub const fn uniform(problem: &Problem, shape: TileShape, order: TileOrder) -> Self {
        let walk =
            Walk::new(order, problem.n.div_ceil(shape.rows), problem.m.div_ceil(shape.tokens));
        Self::walked(problem, shape, order, walk)
    }

    /// [`Tiles::uniform`] whose walk is known: without a division.
    #[inline(always)]
    pub const fn walked(problem: &Problem, shape: TileShape, order: TileOrder, walk: Walk) -> Self {
        Self { rows: problem.n, counts: Uniform::new(problem, walk), shape, order }
    }
}

/// The walk over a problem's tiles in a [`TileOrder`]: what it divides by, from the host.
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

    /// The C layout.
    pub const fn words(&self) -> [u32; size_of::<Self>() / 4] {
        let [a, b, c] = self.tiles.words();
        let [d, e, f] = self.band.words();
        let [g, h, i] = self.last.words();
        [a, b, c, d, e, f, g, h, i, self.last_band]
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
    fn check<C: TokenCounts>(tiles: Tiles<C>) {
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

    /// Groups of equal counts are numbered as uniform problems are, and empty groups have no tile.
    #[test]
    fn grouped_problems() {
        let shape = TileShape { rows: 128, tokens: 16 };
        for counts in [&[5u32, 0, 0, 33, 16, 1, 0][..], &[0, 7], &[40, 40, 40], &[1]] {
            let offsets = |at: u32| counts[..at as usize].iter().sum();
            let bound = counts.iter().sum();
            let grouped = Grouped { offsets, problems: counts.len() as u32, bound };
            for order in ORDERS {
                check(Tiles { rows: 300, counts: grouped, shape, order });
            }
            for (problem, &count) in (0..).zip(counts) {
                assert_eq!(grouped.range(problem).count, count);
            }
        }
        for order in ORDERS {
            let grouped = Grouped { offsets: |at| 40 * at, problems: 3, bound: 120 };
            let grouped = Tiles { rows: 300, counts: grouped, shape, order };
            let problem = Problem { m: 40, n: 300, k: 64, l: 3 };
            let uniform = Tiles::uniform(&problem, shape, order);
            assert_eq!(grouped.count(), uniform.count());
            for index in 0..uniform.count() as u32 {
                let key = |tile: Tile| (tile.problem, tile.row_tile, tile.token_tile);
                assert_eq!(key(grouped.tile(index)), key(uniform.tile(index)), "{order:?}");
            }
        }
    }

    /// Offsets that decrease or exceed the bound never lead outside the matrix.
    #[test]
    fn bad_offsets_stay_in_bounds() {
        let offsets = [0u32, 30, 10, u32::MAX, 5, 64];
        let grouped = Grouped { offsets: |at| offsets[at as usize], problems: 5, bound: 50 };
        for problem in 0..5 {
            let TokenRange { first, count, .. } = grouped.range(problem);
            assert!(first + count <= 50, "{problem}");
        }
        let counts: Vec<u32> = (0..5).map(|problem| grouped.range(problem).count).collect();
        assert_eq!(counts, [30, 0, 40, 0, 45]);
    }
}
