//! Where a tile is, and the memory of a CTA.

use fp4_formats::gemm::hopper::config::HopperConfig;
use fp4_formats::gemm::hopper::params::HopperParams;

use super::sharing;

/// A tile. Those of one row tile follow one another, so that its weights come from L2 for
/// all but the first. Where CTAs share activations, those of a group of row tiles follow one
/// another; a CTA's is the one of its rank, and may be past the last row.
#[derive(Clone, Copy)]
pub struct Tile {
    /// First token.
    pub token: u32,
    /// Tile along the weight rows.
    pub row_tile: u32,
    pub batch: u32,
}

impl Tile {
    #[inline(always)]
    pub fn of(config: &HopperConfig, p: &HopperParams, index: u32) -> Self {
        // At least 1, which the compiler does not know: it would guard each division.
        let token_tiles = config.token_tiles(p.problem.m).max(1);
        let row_groups = config.row_groups(p.problem.n).max(1);
        // A division takes longer than all else before the first copy.
        let (row, token) = match token_tiles {
            1 => (index, 0),
            _ => (index / token_tiles, index % token_tiles),
        };
        let (batch, group) =
            if row < row_groups { (0, row) } else { (row / row_groups, row % row_groups) };
        let row_tile = group * config.sharers + sharing::rank(config);
        Self { token: token * config.tokens, row_tile, batch }
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

    /// Weights of a stage.
    #[inline(always)]
    pub fn weights(self, config: &HopperConfig, stage: u32) -> u32 {
        self.base + config.weights_offset() + stage * config.weight_bytes()
    }
}
