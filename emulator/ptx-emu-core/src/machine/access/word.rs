//! Loads and stores of 4 bytes by all lanes, the usual ones, whose checks are joined. Others, which do not pass
//! them, are left to the accesses of any size, which find out why.

use super::{is_linear, is_uniform, lanes};
use crate::diagnostic::{Exec, Space};
use crate::machine::context::Context;
use crate::machine::regs::{FULL, LANES};
use crate::machine::{RANK_SHIFT, SHARED_BASE};
use crate::memory::Value;

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
                self.count_shared(addrs, FULL, BYTES, false);
                self.race_words(addrs)?;
                Ok(Some(words))
            }
            Space::Const | Space::Param if is_uniform(addrs) => {
                let word = self.load_bank(space, addrs[0], BYTES, 0)?[0] as u32;
                let count = self.stats.space(space);
                count.reads += 1;
                count.bytes_read += ALL as u64;
                Ok(Some([word; LANES]))
            }
            Space::Local | Space::Const | Space::Param => Ok(None),
        }
    }

    /// The same of the CTA's shared memory, by addresses of 32 bits that are consecutive or all the same.
    /// `None` also if they are neither.
    #[inline(always)]
    pub(crate) fn load_word_shared_row(
        &mut self,
        addrs: &[u32; LANES],
    ) -> Exec<Option<[u32; LANES]>> {
        let first = addrs[0];
        let (mut spread, mut uneven) = (0, 0);
        for (lane, addr) in addrs.iter().enumerate() {
            spread |= addr ^ first;
            uneven |= addr ^ first.wrapping_add((BYTES * lane) as u32);
        }
        let bytes = match (spread, uneven) {
            (0, _) => BYTES,
            (_, 0) => ALL,
            _ => return Ok(None),
        };
        let rank = self.place.rank;
        let memory = &self.shared[rank as usize];
        let offset = (first ^ rank << RANK_SHIFT) as usize;
        let fits = offset >= SHARED_BASE as usize
            && offset.is_multiple_of(BYTES)
            && offset + bytes <= memory.len()
            && !self.units.busy();
        if !fits {
            return Ok(None);
        }
        let words = if bytes == ALL {
            if !memory.has_words32(offset) {
                return Ok(None);
            }
            memory.words32(offset)
        } else {
            if memory.uninitialised_bits(offset, BYTES) != 0 {
                return Ok(None);
            }
            [memory.load(offset, BYTES)[0] as u32; LANES]
        };
        let count = self.stats.space(Space::Shared);
        count.reads += 1;
        count.bytes_read += ALL as u64;
        self.stats.wavefronts += 1;
        self.stats.wavefronts_ideal += 1;
        if !self.race_row(offset, bytes) {
            let mut wide = [0; LANES];
            for (wide, addr) in wide.iter_mut().zip(addrs) {
                *wide = u64::from(*addr);
            }
            self.race_shared(&wide, FULL, BYTES, None)?;
        }
        Ok(Some(words))
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
        for (word, addr) in words.iter_mut().zip(addrs) {
            let offset = (addr ^ window) as usize;
            missing |= memory.uninitialised_bits(offset, BYTES);
            *word = memory.load(offset, BYTES)[0] as u32;
        }
        (missing == 0).then_some(words)
    }

    /// A read-modify-write of 4 or 8 bytes of the CTA's shared memory by each lane of `mask`, as
    /// [`atomic`](Self::atomic). False: it does not pass the checks of all lanes, and nothing was done or
    /// counted.
    #[inline(always)]
    pub(super) fn atomic_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        update: &mut impl FnMut(usize, Space, &Value) -> Option<Value>,
    ) -> Exec<bool> {
        let rank = self.place.rank as usize;
        let window = u64::from(self.place.rank) << RANK_SHIFT;
        let offset = |lane: usize| (addrs[lane] ^ window) as usize;
        let memory = &self.shared[rank];
        let fits = |lane: usize| {
            let at = offset(lane);
            at >= SHARED_BASE as usize
                && at.is_multiple_of(bytes)
                && at < memory.len()
                && bytes <= memory.len() - at
                && memory.uninitialised_bits(at, bytes) == 0
        };
        let simple = matches!(bytes, 4 | 8)
            && !self.units.busy()
            && !self.units.proxies.tracking()
            && lanes(mask).all(fits);
        if !simple {
            return Ok(false);
        }
        let repeated = self.race_repeated();
        let (mut reads, mut writes) = (0, 0);
        for lane in lanes(mask) {
            let known = match &repeated {
                None => true,
                Some(repeated) => {
                    bytes == BYTES && self.race_repeats_atomic(offset(lane), repeated)
                }
            };
            let look = |cx: &mut Self, stored: Option<u64>| {
                if known {
                    return Ok(());
                }
                let mut at = [0; LANES];
                at[lane] = addrs[lane];
                let mut words = [[0; LANES]; 4];
                words[0][lane] = stored.unwrap_or(0);
                cx.race_shared(&at, 1 << lane, bytes, stored.is_some().then_some(&words))
            };
            look(self, None)?;
            reads += 1;
            let old = self.shared[rank].load(offset(lane), bytes);
            if let Some(new) = update(lane, Space::Shared, &old) {
                look(self, Some(new[0]))?;
                writes += 1;
                self.shared[rank].store(offset(lane), bytes, &new);
            }
        }
        let count = self.stats.space(Space::Shared);
        count.reads += u64::from(reads != 0);
        count.writes += u64::from(writes != 0);
        count.bytes_read += reads * bytes as u64;
        count.bytes_written += writes * bytes as u64;
        self.stats.wavefronts += reads + writes;
        self.stats.wavefronts_ideal += reads + writes;
        Ok(true)
    }
}
