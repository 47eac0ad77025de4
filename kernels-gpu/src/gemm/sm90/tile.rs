//! The place of a tile.

use cuda_std::ptx::marker;
pub use fp4_formats::gemm::sm90::message::Tile;

use super::Cta;
use crate::gemm::work::WorkList;

/// Tile number `index` of the work list, as this CTA computes it.
#[inline(always)]
pub fn find<L: WorkList>(cta: &Cta<'_, L>, index: u32) -> Tile {
    let config = cta.config;
    // Pinned: the tile's place would otherwise stay in registers from before its main loop.
    let tile = L::tile(cta, marker::pin(index));
    let room =
        if config.narrows() { config.tiling().width(tile.tokens.count) } else { config.tokens };
    let before = tile.token_tile * room;
    let width = if config.trims() { room.min(tile.tokens.count - before) } else { room };
    Tile {
        problem: tile.problem,
        matrix: tile.tokens.matrix,
        row_tile: tile.row_tile * config.multicast + cta.rank,
        token: tile.tokens.first + before,
        end: tile.tokens.first + tile.tokens.count,
        rows: tile.tokens.rows,
        width,
    }
}
