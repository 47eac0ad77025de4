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

    /// The problem that tile number `index` belongs to, and its number among that problem's, if
    /// a problem has `row_tiles` tiles along the rows of `B` for every `tile_tokens` tokens.
    fn locate(&self, row_tiles: u32, tile_tokens: u32, index: u32) -> (u32, u32);
}

/// All problems have the same number of tokens, each in a matrix of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uniform {
    /// Tokens of a problem.
    pub tokens: u32,
    /// Problems.
    pub problems: u32,
}

impl Uniform {
    /// The problems of a dense or batched product.
    #[inline(always)]
    pub const fn of(problem: &Problem) -> Self {
        Self { tokens: problem.m, problems: problem.l }
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
    fn locate(&self, row_tiles: u32, tile_tokens: u32, index: u32) -> (u32, u32) {
        // At least 1, which the compiler does not know: it would guard the division.
        let each = (row_tiles * self.tokens.div_ceil(tile_tokens)).max(1);
        // Without this branch a division would take longer than the rest of the work before the
        // first copy of a launch.
        if index < each { (0, index) } else { (index / each, index % each) }
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

    #[inline(always)]
    fn locate(&self, row_tiles: u32, tile_tokens: u32, index: u32) -> (u32, u32) {
        let (mut problem, mut before) = (0, 0);
        loop {
            let tiles = row_tiles * self.range(problem).count.div_ceil(tile_tokens);
            if index - before < tiles || problem + 1 >= self.problems {
                return (problem, index - before);
            }
            before += tiles;
            problem += 1;
        }
    }
}

/// The tiles of a launch.
#[derive(Debug, Clone, Copy)]
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
    pub fn count(&self) -> u64 {
        let tokens: u64 =
            (0..self.counts.problems()).map(|problem| u64::from(self.token_tiles(problem))).sum();
        u64::from(self.row_tiles()) * tokens
    }

    /// Tile number `index`, below [`count`](Self::count).
    #[inline(always)]
    pub fn tile(&self, index: u32) -> Tile {
        // At least 1, which the compiler does not know: it would guard each division.
        let row_tiles = self.row_tiles().max(1);
        let (problem, within) = self.counts.locate(row_tiles, self.shape.tokens, index);
        let tokens = self.counts.range(problem);
        let token_tiles = tokens.count.div_ceil(self.shape.tokens).max(1);
        let (row_tile, token_tile) = self.order.place(row_tiles, token_tiles, within);
        Tile { problem, row_tile, token_tile, tokens }
    }
}

impl TileOrder {
    /// Row tile and token tile of number `index` of a problem of `row_tiles` by `token_tiles`.
    #[inline(always)]
    pub const fn place(self, row_tiles: u32, token_tiles: u32, index: u32) -> (u32, u32) {
        let (inner, outer) = match self.inner {
            Dimension::Tokens => (token_tiles, row_tiles),
            Dimension::Rows => (row_tiles, token_tiles),
        };
        let (at_inner, at_outer) = self.walk(inner, outer, index);
        match self.inner {
            Dimension::Tokens => (at_outer, at_inner),
            Dimension::Rows => (at_inner, at_outer),
        }
    }

    /// Inner and outer index of number `index` of a problem of `inner` by `outer` tiles.
    #[inline(always)]
    pub const fn walk(self, inner: u32, outer: u32, index: u32) -> (u32, u32) {
        if self.band == u32::MAX {
            // Without this branch a division would take longer than the rest of the work before the
            // first copy of a launch.
            return match inner {
                1 => (0, index),
                _ => (index % inner, index / inner),
            };
        }
        let of_band = self.band * outer;
        let (band, rest) = (index / of_band, index % of_band);
        let first = band * self.band;
        let width = if inner - first < self.band { inner - first } else { self.band };
        (first + rest % width, rest / width)
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
    fn check<C: TokenCounts + Copy>(rows: u32, counts: C, shape: TileShape) {
        for order in ORDERS {
            let tiles = Tiles { rows, counts, shape, order };
            let count = u32::try_from(tiles.count()).unwrap();
            let all: Vec<Tile> = (0..count).map(|index| tiles.tile(index)).collect();
            let distinct: HashSet<_> =
                all.iter().map(|tile| (tile.problem, tile.row_tile, tile.token_tile)).collect();
            assert_eq!(distinct.len(), all.len(), "{order:?}");
            assert!(all.is_sorted_by_key(|tile| tile.problem), "{order:?}");
            for tile in all {
                assert_eq!(tile.tokens, counts.range(tile.problem));
                assert!(tile.token_tile * shape.tokens < tile.tokens.count, "{order:?} {tile:?}");
                assert!(tile.row_tile * shape.rows < rows, "{order:?} {tile:?}");
            }
        }
    }

    #[test]
    fn uniform_problems() {
        for (rows, tokens, problems) in [(1, 1, 1), (300, 129, 3), (1025, 40, 2), (64, 4000, 1)] {
            for shape in [TileShape { rows: 128, tokens: 8 }, TileShape { rows: 64, tokens: 256 }] {
                check(rows, Uniform { tokens, problems }, shape);
            }
        }
    }

    /// Groups of equal counts are numbered as uniform problems are, and empty groups have no tile.
    #[test]
    fn grouped_problems() {
        let shape = TileShape { rows: 128, tokens: 16 };
        for counts in [&[5u32, 0, 0, 33, 16, 1, 0][..], &[0, 7], &[40, 40, 40], &[1]] {
            let offsets = |at: u32| counts[..at as usize].iter().sum();
            let bound = counts.iter().sum();
            let grouped = Grouped { offsets, problems: counts.len() as u32, bound };
            check(300, grouped, shape);
            for (problem, &count) in (0..).zip(counts) {
                assert_eq!(grouped.range(problem).count, count);
            }
        }
        for order in ORDERS {
            let grouped = Grouped { offsets: |at| 40 * at, problems: 3, bound: 120 };
            let grouped = Tiles { rows: 300, counts: grouped, shape, order };
            let uniform = Uniform { tokens: 40, problems: 3 };
            let uniform = Tiles { rows: 300, counts: uniform, shape, order };
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
