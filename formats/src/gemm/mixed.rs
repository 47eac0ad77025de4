//! Mixed products: several in one launch, like grouped products whose N and K differ, too. The host
//! knows all sizes.
//!
//! Each product has a parameter block in device memory, the one that a launch of it alone would have,
//! at a multiple of [`BLOCK_ALIGN`]. Tiles are numbered product after product, and CTAs take whole
//! ones: their numbers in steps of how many CTAs there are, the highest first.
//!
//! ```text
//! firsts in memory --table, once per CTA--> first tile of each product
//! CTA --Mixed::end--> tile number --table--> (product, tile of the product) --block--> place, K steps
//! ```
//!
//! The host puts the products with the longest tiles last, so that none of them begins late.

use super::Run;
use super::groups::last_at_most;
use crate::Divisor;
use crate::params::blocks;

/// Parameter blocks are at multiples of this many bytes: that of the tensor maps in them, and of the
/// fence that acquires one.
pub const BLOCK_ALIGN: usize = 128;

/// Bytes from a block of type `P` to the next.
#[must_use]
pub const fn block_stride<P>() -> usize {
    size_of::<P>().next_multiple_of(BLOCK_ALIGN)
}

/// Parameter block of every kernel of mixed products, passed by value. Pointers are device addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Mixed {
    /// Address of the products' parameter blocks, at distances of [`block_stride`].
    pub blocks: u64,
    /// Address of the number of tiles before each product, `[products]` u32.
    pub firsts: u64,
    /// The number of products, from 1 to [`MAX_PROBLEMS`](super::groups::MAX_PROBLEMS).
    pub products: u32,
    /// Tiles of all. With the CTAs they are below [`Divisor::DIVIDENDS`].
    pub tiles: u32,
    /// CTAs of the launch, or clusters, at most as many as tiles.
    pub ctas: Divisor,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

impl Mixed {
    /// The tiles of CTA `cta`: the numbers from the last one on, each [`Self::ctas`] lower than the one
    /// before, down to the CTA's own.
    #[inline(always)]
    #[must_use]
    pub const fn run(&self, cta: u32) -> Run {
        let more = self.ctas.divide(self.tiles - 1 - cta).0;
        Run { first: cta, end: cta + more * self.ctas.value() + 1 }
    }

    /// Returns the end of a run whose tile `tile` is done.
    #[inline(always)]
    #[must_use]
    pub const fn end(&self, tile: u32) -> u32 {
        (tile + 1).saturating_sub(self.ctas.value())
    }

    /// The product of tile `tile`, and the tile's number there; `before` says how many tiles precede a
    /// product.
    #[inline(always)]
    pub fn locate(&self, tile: u32, before: impl Fn(u32) -> u32) -> (u32, u32) {
        let product = last_at_most(self.products, tile, &before);
        (product, tile - before(product))
    }
}

blocks! {
    Mixed { blocks, firsts, products, tiles, ctas, reserved }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    fn mixed(products: u32, tiles: u32, ctas: u32) -> Mixed {
        let ctas = Divisor::nearest(ctas);
        Mixed { blocks: 0x0807_0605_0403_0201, firsts: 9, products, tiles, ctas, reserved: 0 }
    }

    /// Every tile is in one CTA's run.
    #[test]
    fn every_tile_is_computed_once() {
        for (tiles, ctas) in [(1, 1), (5, 5), (6, 5), (132, 132), (133, 132), (1000, 132), (7, 2)] {
            let mixed = mixed(1, tiles, ctas);
            let mut done = vec![0; tiles as usize];
            for cta in 0..ctas {
                let mut run = mixed.run(cta);
                assert!(!run.is_empty());
                while !run.is_empty() {
                    let tile = run.end - 1;
                    done[tile as usize] += 1;
                    run.end = mixed.end(tile);
                }
            }
            assert!(done.iter().all(|&times| times == 1), "{tiles} by {ctas}: {done:?}");
        }
    }

    #[test]
    fn tiles_are_located() {
        let firsts = [0, 3, 4, 9];
        let mixed = mixed(4, 10, 3);
        let located: [_; 10] =
            core::array::from_fn(|tile| mixed.locate(tile as u32, |p| firsts[p as usize]));
        let expected =
            [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (3, 0)];
        assert_eq!(located, expected);
    }
}
