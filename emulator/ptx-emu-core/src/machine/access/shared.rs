//! Accesses to shared memory of the cluster, and their bank conflicts.

use super::{Words, is_linear, is_uniform, lanes};
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Space};
use crate::machine::context::Context;
use crate::machine::regs::{FULL, LANES};
use crate::machine::{RANK_SHIFT, SHARED_BASE};
use crate::memory::Plain;

impl Context<'_> {
    /// Sorts lanes by the CTA that their shared addresses name.
    pub(super) fn by_rank(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        kind: AccessKind,
        mut access: impl FnMut(&mut Self, u32, u32) -> Exec,
    ) -> Exec {
        let mut rest = mask;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let rank = addrs[lane] >> RANK_SHIFT;
            if rank != u64::from(self.place.rank) {
                if rank >= self.shared.len() as u64 {
                    let kind_of = DiagnosticKind::OutOfBounds;
                    return Err(self.fault(kind_of, Space::Shared, addrs[lane], bytes, kind, lane));
                }
                self.check_peer(rank as u32, lane)?;
            }
            let mut here = 0;
            for (lane, addr) in addrs.iter().enumerate() {
                here |= u32::from(addr >> RANK_SHIFT == rank) << lane;
            }
            here &= rest;
            if rank != u64::from(self.place.rank) {
                let lanes = u64::from(here.count_ones());
                let count = &mut self.stats.asynchronous.cluster_accesses;
                count.operations += lanes;
                count.bytes += lanes * bytes as u64;
            }
            access(self, rank as u32, here)?;
            rest &= !here;
        }
        Ok(())
    }

    /// Offset in the shared memory of the CTA `rank`, which an address must
    /// name.
    #[inline(always)]
    fn shared_offset(
        &self,
        rank: u32,
        addr: u64,
        bytes: usize,
        kind: AccessKind,
        lane: usize,
    ) -> Exec<usize> {
        let named = addr >> RANK_SHIFT;
        let offset = (addr & ((1 << RANK_SHIFT) - 1)) as usize;
        if offset & (bytes - 1) != 0 {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, Space::Shared, addr, bytes, kind, lane));
        }
        let len = self.shared[rank as usize].len();
        if named != u64::from(rank) || offset < SHARED_BASE as usize || offset + bytes > len {
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
        rank: u32,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, false);
        if self.units.busy() {
            self.check_flight(Some(rank), addrs, mask, bytes, false)?;
        }
        if mask == FULL && is_uniform(addrs) {
            let offset = self.shared_offset(rank, addrs[0], bytes, AccessKind::Read, 0)?;
            if let Some(first) = self.shared[rank as usize].first_uninitialised(offset, bytes) {
                self.unwritten_shared(rank, addrs[0], (offset, first), bytes, FULL)?;
            }
            let value = self.shared[rank as usize].load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                *row = [word; LANES];
            }
            return Ok(());
        }
        if mask == FULL && self.load_shared_whole(rank, addrs, bytes, out) {
            return Ok(());
        }
        for lane in lanes(mask) {
            let offset = self.shared_offset(rank, addrs[lane], bytes, AccessKind::Read, lane)?;
            if let Some(first) = self.shared[rank as usize].first_uninitialised(offset, bytes) {
                self.unwritten_shared(rank, addrs[lane], (offset, first), bytes, 1 << lane)?;
            }
            let value = self.shared[rank as usize].load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        Ok(())
    }

    /// Lanes read bytes of which `first` was never written. A load whose registers are followed may
    /// do so.
    #[cold]
    fn unwritten_shared(
        &mut self,
        rank: u32,
        addr: u64,
        (offset, first): (usize, usize),
        bytes: usize,
        mask: u32,
    ) -> Exec {
        let lane = mask.trailing_zeros() as usize;
        let first = addr - offset as u64 + first as u64;
        if !self.regs.watch.unwritten.followed {
            return self.unwritten(Space::Shared, addr, first, bytes, lane);
        }
        let missing = self.shared[rank as usize].uninitialised_bits(offset, bytes);
        self.regs.watch.unwritten.note(mask, (missing >> (offset & 63)) as u32);
        if !self.regs.watch.undefined.has_load(self.pc) {
            let kind = DiagnosticKind::UninitialisedRead { first, user: None };
            let fault = self.fault(kind, Space::Shared, addr, bytes, AccessKind::Read, lane);
            self.regs.watch.undefined.add_load(self.pc, fault);
        }
        Ok(())
    }

    /// Makes bytes at a shared address undefined again, which a store of a value that nothing
    /// defines has just written.
    #[cold]
    pub(in crate::machine) fn forget_shared(&mut self, addr: u64, bytes: usize) {
        let (rank, offset) = (addr >> RANK_SHIFT, addr & ((1 << RANK_SHIFT) - 1));
        if let Some(memory) = self.shared.get_mut(rank as usize) {
            memory.forget(offset as usize, bytes);
        }
    }

    /// A load of all lanes whose checks are joined. False if one fails; the
    /// caller then finds out which.
    #[inline(always)]
    fn load_shared_whole(
        &self,
        rank: u32,
        addrs: &[u64; LANES],
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> bool {
        let memory = &self.shared[rank as usize];
        let window = u64::from(rank) << RANK_SHIFT;
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
        match bytes {
            8 => load_words::<1>(memory, window, addrs, out),
            16 => load_words::<2>(memory, window, addrs, out),
            32 => load_words::<4>(memory, window, addrs, out),
            _ => {
                let mut missing = 0;
                for (lane, addr) in addrs.iter().enumerate() {
                    let offset = (addr ^ window) as usize;
                    missing |= memory.uninitialised_bits(offset, bytes);
                    out[0][lane] = memory.load(offset, bytes)[0];
                }
                missing == 0
            }
        }
    }

    #[inline(always)]
    pub(super) fn store_shared(
        &mut self,
        rank: u32,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, true);
        if self.units.busy() {
            self.check_flight(Some(rank), addrs, mask, bytes, true)?;
        }
        if self.units.races.is_some() {
            // Races are looked for only where all lanes are in bounds, and see what is there before.
            for lane in lanes(mask) {
                self.shared_offset(rank, addrs[lane], bytes, AccessKind::Write, lane)?;
            }
            self.race_shared(addrs, mask, bytes, Some(values))?;
        }
        if mask == FULL && bytes == 4 && is_linear(addrs, 4) {
            let offset = self.shared_offset(rank, addrs[0], bytes, AccessKind::Write, 0)?;
            let memory = &mut self.shared[rank as usize];
            if offset + 4 * LANES <= memory.len() {
                memory.store_words32(offset, &values[0]);
                if self.units.proxies.tracking() {
                    self.note_stores(Some(rank), addrs, mask, bytes);
                }
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let offset = self.shared_offset(rank, addrs[lane], bytes, AccessKind::Write, lane)?;
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            self.shared[rank as usize].store(offset, bytes, &value);
        }
        if self.units.proxies.tracking() {
            self.note_stores(Some(rank), addrs, mask, bytes);
        }
        Ok(())
    }

    /// Whether a store, which is in bounds, writes what is there already.
    #[cold]
    pub(in crate::machine) fn changes_nothing(
        &self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> bool {
        lanes(mask).all(|lane| {
            let Some(memory) = self.shared.get((addrs[lane] >> RANK_SHIFT) as usize) else {
                return false;
            };
            let offset = (addrs[lane] & ((1 << RANK_SHIFT) - 1)) as usize;
            let new = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            memory.first_uninitialised(offset, bytes).is_none() && memory.holds(offset, bytes, &new)
        })
    }

    #[inline(always)]
    pub(super) fn count_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        write: bool,
    ) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Shared);
        if write {
            count.writes += 1;
            count.bytes_written += total;
        } else {
            count.reads += 1;
            count.bytes_read += total;
        }
        let (passes, ideal) = self.stats.banks.wavefronts(self.pc, addrs, mask, bytes);
        self.stats.wavefronts += passes;
        self.stats.wavefronts_ideal += ideal;
    }

    /// Takes back what `count_shared` counted of an access that is made again.
    #[cold]
    pub(super) fn uncount_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        write: bool,
    ) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Shared);
        if write {
            count.writes -= 1;
            count.bytes_written -= total;
        } else {
            count.reads -= 1;
            count.bytes_read -= total;
        }
        let (passes, ideal) = self.stats.banks.wavefronts(self.pc, addrs, mask, bytes);
        self.stats.wavefronts -= passes;
        self.stats.wavefronts_ideal -= ideal;
    }
}

/// Loads `N` words a lane, all in bounds. Whether they were initialised.
#[inline(always)]
fn load_words<const N: usize>(
    memory: &Plain,
    window: u64,
    addrs: &[u64; LANES],
    out: &mut [[u64; LANES]],
) -> bool {
    let mut missing = 0;
    for (lane, addr) in addrs.iter().enumerate() {
        let offset = (addr ^ window) as usize;
        missing |= memory.uninitialised_bits(offset, 8 * N);
        let words: [u64; N] = memory.load_words(offset);
        for (row, word) in out.iter_mut().zip(words) {
            row[lane] = word;
        }
    }
    missing == 0
}
