//! Where a tile is, and the memory of a CTA.

use cuda_std::ptx::marker;
use fp4_formats::gemm::sm90::config::Sm90Config;
use fp4_formats::gemm::sm90::params::Sm90Params;
use fp4_formats::gemm::sm90::place::Place;
pub use fp4_formats::gemm::sm90::place::Tile;

use super::multicast;
use super::work::Work;

/// Tile number `index` of the work list, as this CTA computes it.
#[inline(always)]
pub fn find<W: Work>(work: W, config: &Sm90Config, p: &Sm90Params, index: u32) -> Tile {
    // Pinned: where the tile is would otherwise stay in registers from before its main loop.
    let tile = work.tile(config, p, marker::pin(index));
    let room =
        if config.narrows() { config.tiling().width(tile.tokens.count) } else { config.tokens };
    let before = tile.token_tile * room;
    let width = if config.trims() { room.min(tile.tokens.count - before) } else { room };
    Tile {
        problem: tile.problem,
        matrix: tile.tokens.matrix,
        row_tile: tile.row_tile * config.multicast + multicast::rank(config),
        token: tile.tokens.first + before,
        end: tile.tokens.first + tile.tokens.count,
        rows: tile.tokens.rows,
        width,
    }
}

/// Shared addresses of the CTA.
#[derive(Clone, Copy)]
pub struct Memory {
    pub base: u32,
}

impl Memory {
    /// Activations of a stage.
    #[inline(always)]
    pub fn activations(self, config: &Sm90Config, stage: u32) -> u32 {
        self.base + stage * config.activation_bytes()
    }

    /// Place number `index` of a grouped product's tiles.
    #[inline(always)]
    pub fn place(self, config: &Sm90Config, index: u32) -> u32 {
        self.base + config.places_offset() + index * size_of::<Place>() as u32
    }

    /// Sums of a token.
    #[inline(always)]
    pub fn sums(self, config: &Sm90Config, token: u32) -> u32 {
        self.base + config.sums_offset() + token * config.sum_pitch() * size_of::<f32>() as u32
    }

    /// Weights of a stage.
    #[inline(always)]
    pub fn weights(self, config: &Sm90Config, stage: u32) -> u32 {
        self.base + config.weights_offset() + stage * config.weight_bytes()
    }
}
