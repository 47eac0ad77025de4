//! Accesses to local memory, constants and parameters.

use super::{Words, is_uniform, lanes};
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Space};
use crate::machine::context::Context;
use crate::machine::regs::LANES;
use crate::memory::{Plain, Value};

impl Context<'_> {
    fn local_offset(&self, addr: u64, bytes: usize, kind: AccessKind, lane: usize) -> Exec<usize> {
        if !addr.is_multiple_of(bytes as u64) {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, Space::Local, addr, bytes, kind, lane));
        }
        if addr >= self.local.len() as u64 || addr + bytes as u64 > self.local.len() as u64 {
            return Err(self.fault(
                DiagnosticKind::OutOfBounds,
                Space::Local,
                addr,
                bytes,
                kind,
                lane,
            ));
        }
        Ok(addr as usize)
    }

    pub(super) fn store_local(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        self.count_local(mask, bytes, true);
        for lane in lanes(mask) {
            let offset = self.local_offset(addrs[lane], bytes, AccessKind::Write, lane)?;
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            self.local.store(lane, offset, bytes, &value);
        }
        Ok(())
    }

    /// Local, constant and parameter loads.
    pub(super) fn load_other(
        &mut self,
        space: Space,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        if space == Space::Local {
            self.count_local(mask, bytes, false);
        } else {
            let count = self.stats.space(space);
            count.reads += 1;
            count.bytes_read += u64::from(mask.count_ones()) * bytes as u64;
            if is_uniform(addrs) {
                let value =
                    self.load_bank(space, addrs[0], bytes, mask.trailing_zeros() as usize & 31)?;
                for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                    *row = [word; LANES];
                }
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let value = match space {
                Space::Local => {
                    let offset = self.local_offset(addr, bytes, AccessKind::Read, lane)?;
                    if let Some(first) = self.local.first_uninitialised(lane, offset, bytes) {
                        self.unwritten_local(offset, first, bytes, lane)?;
                    }
                    self.local.load(lane, offset, bytes)
                }
                _ => self.load_bank(space, addr, bytes, lane)?,
            };
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        Ok(())
    }

    /// A lane reads bytes of local memory of which `first` was never written. A load whose registers are
    /// followed may do so.
    #[cold]
    fn unwritten_local(&mut self, offset: usize, first: usize, bytes: usize, lane: usize) -> Exec {
        let (addr, first) = (offset as u64, first as u64);
        if !self.regs.watch.unwritten.followed {
            return self.unwritten(Space::Local, addr, first, bytes, lane);
        }
        let missing =
            (0..bytes).filter(|at| self.local.first_uninitialised(lane, offset + at, 1).is_some());
        let missing = missing.fold(0, |all, at| all | 1 << at);
        self.regs.watch.unwritten.note(1 << lane, missing);
        if !self.regs.watch.undefined.has_load(self.pc) {
            let kind = DiagnosticKind::UninitialisedRead { first, user: None };
            let fault = self.fault(kind, Space::Local, addr, bytes, AccessKind::Read, lane);
            self.regs.watch.undefined.add_load(self.pc, fault);
        }
        Ok(())
    }

    fn bank(&self, space: Space) -> &Plain {
        if space == Space::Param { &self.env.params } else { &self.env.consts }
    }

    pub(super) fn load_bank(
        &self,
        space: Space,
        addr: u64,
        bytes: usize,
        lane: usize,
    ) -> Exec<Value> {
        let memory = self.bank(space);
        let kind = AccessKind::Read;
        if !addr.is_multiple_of(bytes as u64) {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, space, addr, bytes, kind, lane));
        }
        let len = memory.len() as u64;
        if addr >= len || addr + bytes as u64 > len {
            return Err(self.fault(DiagnosticKind::OutOfBounds, space, addr, bytes, kind, lane));
        }
        if let Some(first) = memory.first_uninitialised(addr as usize, bytes) {
            self.unwritten(space, addr, first as u64, bytes, lane)?;
        }
        Ok(memory.load(addr as usize, bytes))
    }

    fn count_local(&mut self, mask: u32, bytes: usize, write: bool) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Local);
        if write {
            count.writes += 1;
            count.bytes_written += total;
            count.sectors_written += total.div_ceil(32);
        } else {
            count.reads += 1;
            count.bytes_read += total;
            count.sectors_read += total.div_ceil(32);
        }
    }
}
