//! Loads and stores of 4 bytes by all lanes, the usual ones, whose checks are joined. What does not pass
//! them is left to the accesses of any size, which find out why.

use super::{is_linear, is_uniform};
use crate::diagnostic::{Exec, Space};
use crate::machine::context::Context;
use crate::machine::regs::LANES;
use crate::machine::{RANK_SHIFT, SHARED_BASE};

const BYTES: usize = 4;
/// Bytes of an access to consecutive addresses.
const ALL: usize = BYTES * LANES;

impl Context<'_> {
    /// A weak load of 4 bytes by all lanes. `None`: nothing was done or counted.
    #[inline(always)]
    pub(crate) fn load_word(
        &mut self,
        space: Space,
        addrs: &[u64; LANES],
    ) -> Exec<Option<[u32; LANES]>> {
        if self.units.busy() {
            return Ok(None);
        }
        match space {
            Space::Global => Ok(self.load_word_global(addrs)),
            Space::Shared => {
                let Some(words) = self.load_word_shared(addrs) else { return Ok(None) };
                self.count_shared(addrs, u32::MAX, BYTES, false);
                self.race_shared(addrs, u32::MAX, BYTES, None)?;
                Ok(Some(words))
            }
            Space::Local | Space::Const | Space::Param => Ok(None),
        }
    }

    #[inline(always)]
    fn load_word_global(&mut self, addrs: &[u64; LANES]) -> Option<[u32; LANES]> {
        let (addr, env) = (addrs[0], self.env);
        if !addr.is_multiple_of(BYTES as u64) || self.block >= env.global.count() {
            return None;
        }
        let block = env.global.block(self.block);
        let (words, bytes) = if is_linear(addrs, BYTES as u64) {
            let bytes = ALL as u64;
            if !block.holds(addr, bytes) || block.first_uninitialised_in(addr, bytes).is_some() {
                return None;
            }
            (block.words32(addr), bytes)
        } else if is_uniform(addrs) {
            let bytes = BYTES as u64;
            if !block.holds(addr, bytes) || block.first_uninitialised(addr, BYTES).is_some() {
                return None;
            }
            ([block.load(addr, BYTES)[0] as u32; LANES], bytes)
        } else {
            return None;
        };
        block.touch(addr, bytes, false, env.exclusive);
        let count = self.stats.space(Space::Global);
        count.reads += 1;
        count.bytes_read += ALL as u64;
        count.sectors_read += ((addr + bytes - 1) >> 5) - (addr >> 5) + 1;
        Some(words)
    }

    #[inline(always)]
    fn load_word_shared(&self, addrs: &[u64; LANES]) -> Option<[u32; LANES]> {
        let rank = self.place.rank;
        let memory = &self.shared[rank as usize];
        let window = u64::from(rank) << RANK_SHIFT;
        let least = u64::from(SHARED_BASE);
        let most = (memory.len() as u64).checked_sub(BYTES as u64)?;
        let start = addrs[0] ^ window;
        if is_linear(addrs, BYTES as u64) {
            let most = (memory.len() as u64).checked_sub(ALL as u64)?;
            let offset = start as usize;
            let fits = start >= least && start <= most && offset.is_multiple_of(BYTES);
            return (fits && memory.first_uninitialised_in(offset, ALL).is_none())
                .then(|| memory.words32(offset));
        }
        let mut bad = 0;
        for addr in addrs {
            let offset = addr ^ window;
            // A difference that is negative has its top bit set.
            bad |= (offset & (BYTES as u64 - 1))
                | (offset.wrapping_sub(least) | most.wrapping_sub(offset)) >> 63;
        }
        if bad != 0 {
            return None;
        }
        let mut words = [0; LANES];
        let mut missing = 0;
        if is_uniform(addrs) {
            let offset = start as usize;
            missing = memory.uninitialised_bits(offset, BYTES);
            words = [memory.load(offset, BYTES)[0] as u32; LANES];
        } else {
            for (word, addr) in words.iter_mut().zip(addrs) {
                let offset = (addr ^ window) as usize;
                missing |= memory.uninitialised_bits(offset, BYTES);
                *word = memory.load(offset, BYTES)[0] as u32;
            }
        }
        (missing == 0).then_some(words)
    }
}
