//! Accesses to global memory.

use super::{Words, is_linear, lanes};
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Fault, Space};
use crate::machine::context::Context;
use crate::machine::regs::{FULL, LANES};
use crate::memory::BlockId;
use std::sync::atomic::Ordering::Relaxed;

impl Context<'_> {
    /// Block that holds the access, or why none does.
    #[inline(always)]
    fn block_for(
        &mut self,
        addr: u64,
        bytes: u64,
        kind: AccessKind,
        each: usize,
        lane: usize,
    ) -> Exec<BlockId> {
        if !addr.is_multiple_of(each as u64) {
            let required = DiagnosticKind::Misaligned { required: each as u32 };
            return Err(self.fault(required, Space::Global, addr, each, kind, lane));
        }
        let id = self.block;
        if id < self.env.global.count() && self.env.global.block(id).holds(addr, bytes) {
            return Ok(id);
        }
        match self.env.global.find(addr) {
            Some(id) if self.env.global.block(id).holds(addr, bytes) => {
                self.block = id;
                Ok(id)
            }
            _ => {
                Err(self.fault(DiagnosticKind::OutOfBounds, Space::Global, addr, each, kind, lane))
            }
        }
    }

    #[inline(always)]
    pub(super) fn load_global(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        let count = self.stats.space(Space::Global);
        count.reads += 1;
        count.bytes_read += u64::from(mask.count_ones()) * bytes as u64;
        if self.units.busy() {
            self.check_flight(None, addrs, mask, bytes, false)?;
        }
        if mask == FULL && bytes >= 4 && is_linear(addrs, bytes as u64) {
            return self.load_global_linear(addrs[0], bytes, out);
        }
        let mut sectors = Sectors::default();
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let id = self.block_for(addr, bytes as u64, AccessKind::Read, bytes, lane)?;
            let block = self.env.global.block(id);
            if let Some(first) = block.first_uninitialised(addr, bytes) {
                self.unwritten_global(addr, first, bytes, lane)?;
            }
            let value = block.load(addr, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
            if sectors.add(addr) {
                block.touch(addr, bytes as u64, false, self.env.exclusive);
            }
        }
        self.stats.space(Space::Global).sectors_read += sectors.count;
        Ok(())
    }

    #[inline(always)]
    fn load_global_linear(&mut self, addr: u64, bytes: usize, out: &mut [[u64; LANES]]) -> Exec {
        let total = (bytes * LANES) as u64;
        let env = self.env;
        // An access that leaves its block fails at its first lane outside.
        let id = match self.block_for(addr, total, AccessKind::Read, bytes, 0) {
            Ok(id) => id,
            Err(fault) => {
                return Err(self.first_bad_lane(addr, bytes, AccessKind::Read).unwrap_or(fault));
            }
        };
        let block = env.global.block(id);
        if block.first_uninitialised_in(addr, total).is_some() {
            for lane in 0..LANES {
                let at = addr + (lane * bytes) as u64;
                if let Some(first) = block.first_uninitialised_in(at, bytes as u64) {
                    self.unwritten_global(at, first, bytes, lane)?;
                }
            }
        }
        match bytes {
            4 if addr.is_multiple_of(8) => {
                for (pair, word) in block.words_from(addr, LANES / 2).iter().enumerate() {
                    let word = word.load(Relaxed);
                    out[0][2 * pair] = word & 0xffff_ffff;
                    out[0][2 * pair + 1] = word >> 32;
                }
            }
            4 => {
                for (lane, value) in out[0].iter_mut().enumerate() {
                    *value = block.load(addr + 4 * lane as u64, 4)[0];
                }
            }
            8 => {
                for (value, word) in out[0].iter_mut().zip(block.words_from(addr, LANES)) {
                    *value = word.load(Relaxed);
                }
            }
            16 => {
                let words: &[_] = block.words_from(addr, LANES * 2);
                for (lane, pair) in words.chunks_exact(2).enumerate() {
                    out[0][lane] = pair[0].load(Relaxed);
                    out[1][lane] = pair[1].load(Relaxed);
                }
            }
            _ => {
                let words: &[_] = block.words_from(addr, LANES * 4);
                for (lane, four) in words.chunks_exact(4).enumerate() {
                    for (row, word) in out.iter_mut().zip(four) {
                        row[lane] = word.load(Relaxed);
                    }
                }
            }
        }
        block.touch(addr, total, false, env.exclusive);
        self.stats.space(Space::Global).sectors_read += ((addr + total - 1) >> 5) - (addr >> 5) + 1;
        Ok(())
    }

    /// Fault of the first lane of a linear access that is not inside a block.
    fn first_bad_lane(&mut self, addr: u64, bytes: usize, kind: AccessKind) -> Option<Box<Fault>> {
        (0..LANES).find_map(|lane| {
            let at = addr.wrapping_add((lane * bytes) as u64);
            self.block_for(at, bytes as u64, kind, bytes, lane).err()
        })
    }

    #[inline(always)]
    pub(super) fn store_global(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        let count = self.stats.space(Space::Global);
        count.writes += 1;
        count.bytes_written += u64::from(mask.count_ones()) * bytes as u64;
        if self.units.busy() {
            self.check_flight(None, addrs, mask, bytes, true)?;
        }
        if mask == FULL
            && bytes == 4
            && is_linear(addrs, 4)
            && self.store_global_linear(addrs, values)
        {
            return Ok(());
        }
        let mut sectors = Sectors::default();
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let id = self.block_for(addr, bytes as u64, AccessKind::Write, bytes, lane)?;
            let block = self.env.global.block(id);
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            block.store(addr, bytes, &value, self.env.exclusive);
            if sectors.add(addr) {
                block.touch(addr, bytes as u64, true, self.env.exclusive);
            }
        }
        self.stats.space(Space::Global).sectors_written += sectors.count;
        if self.units.proxies.tracking() {
            self.note_stores(None, addrs, mask, bytes);
        }
        Ok(())
    }

    /// A store of 4 bytes by all lanes to consecutive addresses of the block that was accessed last. False:
    /// they are not in it, or not aligned, and nothing was stored.
    #[inline(always)]
    fn store_global_linear(&mut self, addrs: &[u64; LANES], values: &Words) -> bool {
        let (addr, total, env) = (addrs[0], 4 * LANES as u64, self.env);
        if !addr.is_multiple_of(4) || self.block >= env.global.count() {
            return false;
        }
        let block = env.global.block(self.block);
        if !block.holds(addr, total) {
            return false;
        }
        block.store_words32(addr, &values[0], env.exclusive);
        block.touch(addr, total, true, env.exclusive);
        let sectors = ((addr + total - 1) >> 5) - (addr >> 5) + 1;
        self.stats.space(Space::Global).sectors_written += sectors;
        if self.units.proxies.tracking() {
            self.note_stores(None, addrs, FULL, 4);
        }
        true
    }
}

/// Distinct 32-byte sectors of a warp access. Accesses are aligned, so one lane
/// touches one sector.
struct Sectors {
    seen: [u64; LANES],
    len: usize,
    count: u64,
}

impl Default for Sectors {
    fn default() -> Self {
        Self { seen: [0; LANES], len: 0, count: 0 }
    }
}

impl Sectors {
    /// Adds the sector of an address; whether it is new.
    #[inline(always)]
    fn add(&mut self, addr: u64) -> bool {
        let sector = addr >> 5;
        // Most often the same sector as the lane before, or a new one.
        if self.seen[..self.len].iter().rev().any(|&seen| seen == sector) {
            return false;
        }
        self.seen[self.len] = sector;
        self.len += 1;
        self.count += 1;
        true
    }
}
