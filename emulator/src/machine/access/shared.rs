//! Accesses to the CTA's shared memory, and the bank conflicts they have.

use super::{Words, is_linear, is_uniform, lanes};
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Space};
use crate::machine::context::Context;
use crate::machine::regs::{FULL, LANES};
use crate::machine::{RANK_SHIFT, SHARED_BASE};

impl Context<'_> {
    /// Offset in this CTA's shared memory.
    #[inline(always)]
    fn shared_offset(&self, addr: u64, bytes: usize, kind: AccessKind, lane: usize) -> Exec<usize> {
        let rank = addr >> RANK_SHIFT;
        let offset = (addr & ((1 << RANK_SHIFT) - 1)) as usize;
        if offset & (bytes - 1) != 0 {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, Space::Shared, addr, bytes, kind, lane));
        }
        let len = self.shared[self.place.rank as usize].len();
        if rank != u64::from(self.place.rank)
            || offset < SHARED_BASE as usize
            || offset + bytes > len
        {
            return Err(self.fault(
                DiagnosticKind::OutOfBounds,
                Space::Shared,
                addr,
                bytes,
                kind,
                lane,
            ));
        }
        Ok(offset)
    }

    #[inline(always)]
    pub(super) fn load_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut Words,
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, false);
        let rank = self.place.rank as usize;
        if mask == FULL && is_uniform(addrs) {
            let offset = self.shared_offset(addrs[0], bytes, AccessKind::Read, 0)?;
            let memory = &self.shared[rank];
            if let Some(first) = memory.first_uninitialised(offset, bytes) {
                let first = addrs[0] - offset as u64 + first as u64;
                return Err(self.uninitialised(Space::Shared, addrs[0], first, bytes, 0));
            }
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                *row = [word; LANES];
            }
            return Ok(());
        }
        if mask == FULL && self.load_shared_whole(addrs, bytes, out) {
            return Ok(());
        }
        for lane in lanes(mask) {
            let offset = self.shared_offset(addrs[lane], bytes, AccessKind::Read, lane)?;
            let memory = &self.shared[rank];
            if let Some(first) = memory.first_uninitialised(offset, bytes) {
                let first = addrs[lane] - offset as u64 + first as u64;
                return Err(self.uninitialised(Space::Shared, addrs[lane], first, bytes, lane));
            }
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        Ok(())
    }

    /// A load of all lanes whose checks are joined. False if one fails; the
    /// caller then finds out which.
    #[inline(always)]
    fn load_shared_whole(&self, addrs: &[u64; LANES], bytes: usize, out: &mut Words) -> bool {
        let memory = &self.shared[self.place.rank as usize];
        let window = u64::from(self.place.rank) << RANK_SHIFT;
        let least = u64::from(SHARED_BASE);
        let Some(most) = (memory.len() as u64).checked_sub(bytes as u64) else {
            return false;
        };
        let mut bad = 0;
        for addr in addrs {
            let offset = addr ^ window;
            // A difference that is negative has its top bit set.
            bad |= (offset & (bytes as u64 - 1))
                | (offset.wrapping_sub(least) | most.wrapping_sub(offset)) >> 63;
        }
        if bad != 0 {
            return false;
        }
        let mut missing = 0;
        for (lane, addr) in addrs.iter().enumerate() {
            let offset = (addr ^ window) as usize;
            missing |= memory.uninitialised_bits(offset, bytes);
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        missing == 0
    }

    #[inline(always)]
    pub(super) fn store_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, true);
        let rank = self.place.rank as usize;
        for lane in lanes(mask) {
            let offset = self.shared_offset(addrs[lane], bytes, AccessKind::Write, lane)?;
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            self.shared[rank].store(offset, bytes, &value);
        }
        Ok(())
    }

    #[inline(always)]
    fn count_shared(&mut self, addrs: &[u64; LANES], mask: u32, bytes: usize, write: bool) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Shared);
        if write {
            count.writes += 1;
            count.bytes_written += total;
        } else {
            count.reads += 1;
            count.bytes_read += total;
        }
        let (passes, ideal) = if mask == FULL && is_uniform(addrs) {
            (1, 1)
        } else if mask == FULL && is_linear(addrs, bytes as u64) {
            let passes = (bytes as u64 / 4).max(1);
            (passes, passes)
        } else {
            wavefronts(addrs, mask, bytes)
        };
        self.stats.wavefronts += passes;
        self.stats.wavefronts_ideal += ideal;
    }
}

/// Passes over the 32 banks that a shared access takes, and how many it would
/// take without conflicts. Accesses wider than 4 bytes go in groups of lanes
/// that move 128 bytes; an aligned access of `b` bytes then occupies one of
/// `128 / b` groups of banks.
#[inline]
fn wavefronts(addrs: &[u64; LANES], mask: u32, bytes: usize) -> (u64, u64) {
    let bytes = bytes.clamp(4, 32);
    let shift = bytes.trailing_zeros();
    let group = 128 / bytes;
    let (mut passes, mut ideal) = (0, 0);
    for first in (0..LANES).step_by(group) {
        let here = mask >> first & (((1u64 << group) - 1) as u32);
        if here == 0 {
            continue;
        }
        ideal += 1;
        let mut owner = [u64::MAX; 32];
        let mut conflicts = 0;
        for lane in 0..group {
            let unit = addrs[first + lane] >> shift;
            let bank = &mut owner[unit as usize % group];
            if here >> lane & 1 != 0 {
                conflicts |= u64::from(*bank != u64::MAX && *bank != unit);
                *bank = unit;
            }
        }
        passes += if conflicts == 0 { 1 } else { deepest_bank(addrs, first, here, shift, group) };
    }
    (passes, ideal)
}

/// Largest number of distinct units that lanes of a group want of one bank.
#[cold]
fn deepest_bank(addrs: &[u64; LANES], first: usize, here: u32, shift: u32, group: usize) -> u64 {
    let mut units = [0; LANES];
    let mut len = 0;
    let mut depth = [0u64; 32];
    for lane in lanes(here) {
        let unit = addrs[first + lane] >> shift;
        if !units[..len].contains(&unit) {
            units[len] = unit;
            len += 1;
            depth[unit as usize % group] += 1;
        }
    }
    depth.iter().max().copied().unwrap_or(1)
}
