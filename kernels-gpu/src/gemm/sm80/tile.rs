//! The place of a tile.

use fp4_formats::gemm::work::CtaTile;

use super::Cta;
use crate::gemm::work::WorkList;

/// Tile number `index` of the work list.
#[inline(always)]
pub fn find<L: WorkList>(cta: &Cta<'_, L>, index: u32) -> CtaTile {
    let tile = L::tile(cta, index);
    CtaTile {
        problem: tile.problem,
        matrix: tile.tokens.matrix,
        row_tile: tile.row_tile,
        token: tile.tokens.first + tile.token_tile * cta.config.tokens,
        end: tile.tokens.first + tile.tokens.count,
        rows: tile.tokens.rows,
        width: cta.config.tokens,
    }
}
