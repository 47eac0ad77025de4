//! The place of a tile.

use fp4_formats::gemm::work::CtaTile;

use crate::gemm::cta::Cta;
use crate::gemm::warps::Warps;
use crate::gemm::work::WorkList;

/// Tile number `index` of the work list.
#[inline(always)]
pub fn find<T: Warps, L: WorkList>(cta: &Cta<'_, T, L>, index: u32) -> CtaTile {
    let (tile, width) = (L::tile(cta, index), T::tokens(cta.config));
    CtaTile {
        problem: tile.problem,
        matrix: tile.tokens.matrix,
        row_tile: tile.row_tile,
        token: tile.tokens.first + tile.token_tile * width,
        end: tile.tokens.first + tile.tokens.count,
        rows: tile.tokens.rows,
        width,
    }
}
