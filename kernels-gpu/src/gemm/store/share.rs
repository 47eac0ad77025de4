//! The part of a tile that a CTA stores, if several computed parts of its K.

use fp4_formats::Divisor;

/// The part of a tile that a CTA stores.
#[derive(Clone, Copy)]
pub struct Share {
    /// CTAs that computed parts of the tile's K.
    pub cluster: Divisor,
    /// The rank of this one.
    pub rank: u32,
    /// Tokens of the tile that exist.
    pub tokens: u32,
}

impl Share {
    /// All of the tile.
    #[inline(always)]
    pub fn whole(tokens: u32) -> Self {
        Self { cluster: Divisor::ONE, rank: 0, tokens }
    }

    /// CTAs that computed parts of the tile's K.
    #[inline(always)]
    pub fn ctas(&self) -> u32 {
        self.cluster.value()
    }

    /// Tokens that CTA `rank` stores: the first and the one after the last.
    #[inline(always)]
    pub fn range(&self, rank: u32) -> (u32, u32) {
        self.cluster.part(self.tokens, rank)
    }
}
