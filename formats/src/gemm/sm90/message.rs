//! The message of a grouped product's producer to the consumers for each tile: finding a tile in the
//! table takes the better part of a microsecond, which passes for the producer while stages are full.

pub use crate::gemm::work::CtaTile as Tile;

/// An item of a CTA's run, as the producer hands it over in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// First K step.
    pub first_step: u32,
    /// The K step after the last.
    pub end_step: u32,
    /// Flags: [`OWNED`] and [`LAST`].
    pub flags: u32,
    /// The first CTA that computes steps of the tile.
    pub first_cta: u32,
    /// The item's tile.
    pub tile: Tile,
    /// Alpha of each half of the tile's problem, as the bits of an f32, with the problem's factors.
    pub alphas: [u32; 2],
}

/// The CTA stores the tile.
pub const OWNED: u32 = 1 << 0;
/// The item is the last of the CTA's run.
pub const LAST: u32 = 1 << 1;

/// The number of messages beyond the stages: one for the tile whose results the consumers store,
/// whose stages are all read, and one that the producer writes before it waits for a stage.
pub const MORE_MESSAGES: u32 = 2;
