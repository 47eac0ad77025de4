//! Where a tile is, and the memory of a CTA.

use fp4_formats::gemm::hopper::config::HopperConfig;
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::schedule::{Item, Run};

/// A tile. Those of one row tile follow one another, so that its weights come from L2 for
/// all but the first.
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
        let row_tiles = config.row_tiles(p.problem.n).max(1);
        let row = index / token_tiles;
        Self {
            token: index % token_tiles * config.tokens,
            row_tile: row % row_tiles,
            batch: row / row_tiles,
        }
    }
}

/// A walk over the steps of a CTA's run: tile by tile from the back, the steps of each in
/// order.
#[derive(Clone, Copy)]
pub struct Walk {
    run: Run,
    /// What is being walked.
    pub item: Item,
    /// Where it is.
    pub tile: Tile,
    /// The step within the tile.
    pub step: u32,
}

impl Walk {
    /// The start of a run, which is not empty.
    #[inline(always)]
    pub fn start(config: &HopperConfig, p: &HopperParams, cta: u32) -> Self {
        let mut run = p.division.run(cta);
        let item = run.take(&p.division);
        Self { run, item, tile: Tile::of(config, p, item.tile), step: item.first }
    }

    /// Whether the steps of this item are done.
    #[inline(always)]
    pub fn at_end(&self) -> bool {
        self.step == self.item.end
    }

    /// Whether this item is the last.
    #[inline(always)]
    pub fn is_last(&self) -> bool {
        self.run.is_empty()
    }

    /// On to the next item; this one is not the last.
    #[inline(always)]
    pub fn turn(&mut self, config: &HopperConfig, p: &HopperParams) {
        self.item = self.run.take(&p.division);
        self.tile = Tile::of(config, p, self.item.tile);
        self.step = self.item.first;
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
