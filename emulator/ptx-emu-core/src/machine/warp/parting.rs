//! Divergence without a branch, by which the random schedule finds code that relies on a warp
//! running as a whole.

use super::{Fragment, Wait, Warp};
use crate::schedule::SplitMix;

/// One of so many turns of the random schedule begins with lanes that stay
/// behind.
const PARTINGS: usize = 16;
/// The longest time that fragments stay behind: a power of two of turns, less than the one of this
/// exponent: short for fragments that stand close, long for the next round of a loop.
const LONGEST_HELD: usize = 6;

impl Warp {
    /// Lanes of a warp need not run together (PTX ISA 3.1): now and then the
    /// lanes of `mask` stay behind where they are, until the others cannot go on
    /// or chance lets them go.
    pub(crate) fn part_ways(&mut self, random: &mut SplitMix) {
        if self.fragments.iter().any(|fragment| fragment.wait == Wait::Held) {
            self.held -= 1;
            if self.held == 0 {
                self.let_go(true);
            }
            return;
        }
        if random.below(PARTINGS) != 0 {
            return;
        }
        let mask = random.next() as u32;
        let splits =
            |f: &Fragment| f.wait == Wait::Ready && f.mask & mask != 0 && f.mask & !mask != 0;
        if let Some(index) = self.fragments.iter().position(splits) {
            let fragment = &mut self.fragments[index];
            let mut behind = fragment.sibling(fragment.pc, fragment.mask & mask);
            fragment.mask &= !mask;
            behind.wait = Wait::Held;
            self.held = 1 << random.below(LONGEST_HELD);
            self.fragments.push(behind);
        }
    }

    /// Lanes that stayed behind go on, if no others can or at once.
    pub(super) fn let_go(&mut self, at_once: bool) {
        if at_once || self.fragments.iter().all(|fragment| fragment.wait != Wait::Ready) {
            for fragment in self.fragments.iter_mut().filter(|f| f.wait == Wait::Held) {
                fragment.wait = Wait::Ready;
            }
        }
    }
}
