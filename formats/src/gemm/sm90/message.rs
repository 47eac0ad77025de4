//! The message of a grouped product's producer to the consumers for each tile: finding a tile in the
//! table takes the better part of a microsecond, which passes for the producer while stages are full.

/// A tile of a CTA: its weights, its tokens and their place in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Tile {
    /// Problem whose weights it takes.
    pub problem: u32,
    /// Matrix of activations and result.
    pub matrix: u32,
    /// Tile along the rows of `B`. CTA `rank` of a multicast computes row tile
    /// `multicast * group + rank`; the last group's second tile may not exist.
    pub row_tile: u32,
    /// First token.
    pub token: u32,
    /// The token after the problem's last.
    pub end: u32,
    /// The token after the last one of a problem of the matrix.
    pub rows: u32,
    /// Tokens that the tile has room for; in a trimmed tile, the tokens that it has.
    pub width: u32,
}

impl Tile {
    /// Tokens of the tile that exist.
    #[inline(always)]
    pub fn tokens(&self) -> u32 {
        (self.end - self.token).min(self.width)
    }
}

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
