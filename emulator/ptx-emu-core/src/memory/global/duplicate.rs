//! Copies of whole device memories, for runs from one and the same start.

use super::{Block, GlobalMemory, MemoryError, atomics};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

impl Block {
    pub(super) fn duplicate(&self) -> Result<Self, MemoryError> {
        let copy = |from: &[std::sync::atomic::AtomicU64]| {
            let to = atomics(&self.name, self.addr, from.len() as u64, 0)?;
            for (to, from) in to.iter().zip(from) {
                to.store(from.load(Relaxed), Relaxed);
            }
            Ok::<_, MemoryError>(to)
        };
        Ok(Self {
            name: self.name.clone(),
            addr: self.addr,
            len: self.len,
            base: self.base,
            words: copy(&self.words)?,
            init: copy(&self.init)?,
            full: AtomicBool::new(self.full.load(Relaxed)),
            read: copy(&self.read)?,
            written: copy(&self.written)?,
        })
    }
}

impl GlobalMemory {
    /// A second memory with the same allocations, contents and knowledge of
    /// what was written.
    ///
    /// # Errors
    /// The host's memory does not hold it.
    pub fn duplicate(&self) -> Result<Self, MemoryError> {
        Ok(Self {
            blocks: self.blocks.iter().map(Block::duplicate).collect::<Result<_, _>>()?,
            next: self.next,
            modules: self.modules.clone(),
            heap: self.heap.duplicate()?,
        })
    }

    /// Copies `bytes` bytes from one place to another. Bytes that were never written at `from`
    /// count as never written at `to` afterwards.
    ///
    /// # Errors
    /// A range is not inside one allocation.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        let parts = self.written(from, bytes)?;
        let contents = self.read_raw(from, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let target = self.holding(to, bytes)?;
        if parts.len() != 1 || parts[0] != (from..from + bytes) {
            target.forget(to, bytes);
        }
        for part in parts {
            let offset = part.start - from;
            let length = (part.end - part.start) as usize;
            target.write_bytes(to + offset, &contents[offset as usize..][..length]);
        }
        Ok(())
    }

    /// Bytes of the host's memory that a copy takes, about.
    #[must_use]
    pub fn footprint(&self) -> u64 {
        self.blocks.iter().map(|block| block.len / 4 * 5 + 4096).sum()
    }
}
