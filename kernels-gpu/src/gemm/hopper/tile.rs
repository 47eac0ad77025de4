//! Where a tile is, and the memory of a CTA.

use cuda_std::ptx::marker;
use fp4_formats::gemm::hopper::config::HopperConfig;
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::place::Place;

use super::multicast;
use super::work::Work;

/// A CTA's tile.
#[derive(Clone, Copy)]
pub struct Tile {
    /// Problem whose weights it takes, and matrix of activations and result.
    pub problem: u32,
    pub matrix: u32,
    /// Tile along the rows of `B`. CTA `rank` of a multicast computes row tile
    /// `multicast * group + rank`; the last group's second tile may not exist.
    pub row_tile: u32,
    /// First token, the one after the problem's last, and the one after the last of those that
    /// belong to a problem of the matrix.
    pub token: u32,
    pub end: u32,
    pub rows: u32,
    /// Tokens that it has room for.
    pub width: u32,
}

impl Tile {
    /// Tile number `index` of the work list.
    #[inline(always)]
    pub fn of<W: Work>(work: W, config: &HopperConfig, p: &HopperParams, index: u32) -> Self {
        // Pinned: where the tile is would otherwise stay in registers from before its main loop.
        let tile = work.tile(config, p, marker::pin(index));
        let width =
            if config.narrows() { config.tiling().width(tile.tokens.count) } else { config.tokens };
        Self {
            problem: tile.problem,
            matrix: tile.tokens.matrix,
            row_tile: tile.row_tile * config.multicast + multicast::rank(config),
            token: tile.tokens.first + tile.token_tile * width,
            end: tile.tokens.first + tile.tokens.count,
            rows: tile.tokens.rows,
            width,
        }
    }

    /// Tokens of the tile that exist.
    #[inline(always)]
    pub fn tokens(&self) -> u32 {
        (self.end - self.token).min(self.width)
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
    pub fn activations(self, config: &HopperConfig, stage: u32) -> u32 {
        self.base + stage * config.activation_bytes()
    }

    /// Place number `index` of a grouped product's tiles.
    #[inline(always)]
    pub fn place(self, config: &HopperConfig, index: u32) -> u32 {
        self.base + config.places_offset() + index * size_of::<Place>() as u32
    }

    /// Sums of a token.
    #[inline(always)]
    pub fn sums(self, config: &HopperConfig, token: u32) -> u32 {
        self.base + config.sums_offset() + token * config.sum_pitch() * size_of::<f32>() as u32
    }

    /// Weights of a stage.
    #[inline(always)]
    pub fn weights(self, config: &HopperConfig, stage: u32) -> u32 {
        self.base + config.weights_offset() + stage * config.weight_bytes()
    }
}
