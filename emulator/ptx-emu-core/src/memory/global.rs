//! Device memory: named allocations that several host threads may use at once.
//!
//! The words are relaxed atomics. On every host a relaxed load or store of a
//! word is an ordinary one, so clusters that run on different host threads pay
//! nothing for it, and kernels that race have a defined (if unspecified)
//! outcome. A store narrower than a word is a read-modify-write; it needs a
//! locked instruction only while other host threads run (`exclusive` false).

mod duplicate;
mod heap;

pub(crate) use heap::NotFreed;

use heap::Heap;

use super::{MemoryError, POISON_WORD, Value, bit_mask, byte_mask, copy_words_out, word_of};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// First address handed out; small addresses stay invalid.
const FIRST: u64 = 0x7_0000_0000;
/// Bytes left free between allocations, so that an overrun meets none.
const GAP: u64 = 4096;
/// Addresses from here on belong to the windows of other state spaces.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << 56;

/// Index of a block.
pub(crate) type BlockId = usize;

/// One allocation.
#[derive(Debug)]
pub(crate) struct Block {
    /// Name for diagnostics.
    pub(crate) name: String,
    /// First byte.
    pub(crate) addr: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// `addr` rounded down to 64: where `words[0]` and `init[0]` start.
    base: u64,
    words: Box<[AtomicU64]>,
    init: Box<[AtomicU64]>,
    /// Every byte is initialised, the bits need not be looked at.
    full: AtomicBool,
    /// Bit `s` of entry `g`: the 32-byte sector `64 * g + s` was read.
    read: Box<[AtomicU64]>,
    written: Box<[AtomicU64]>,
}

/// Global memory of one device: allocations, their contents and which bytes
/// were ever written.
#[derive(Debug, Default)]
pub struct GlobalMemory {
    /// Sorted by address.
    blocks: Vec<Block>,
    next: u64,
    /// Addresses of a module's `.global` variables, by module identity.
    modules: HashMap<u64, Vec<u64>>,
    heap: Heap,
}

fn atomics(name: &str, addr: u64, count: u64, value: u64) -> Result<Box<[AtomicU64]>, MemoryError> {
    let too_large =
        || MemoryError::TooLarge { name: name.to_owned(), addr, bytes: count.saturating_mul(8) };
    let count = usize::try_from(count).map_err(|_| too_large())?;
    let mut words = Vec::new();
    words.try_reserve_exact(count).map_err(|_| too_large())?;
    words.extend((0..count).map(|_| AtomicU64::new(value)));
    Ok(words.into_boxed_slice())
}

impl Block {
    fn new(name: &str, addr: u64, len: u64) -> Result<Self, MemoryError> {
        let base = addr & !63;
        let groups = (addr - base + len).div_ceil(64);
        Ok(Self {
            name: name.to_owned(),
            addr,
            len,
            base,
            words: atomics(name, addr, groups * 8, POISON_WORD)?,
            init: atomics(name, addr, groups, 0)?,
            full: AtomicBool::new(false),
            read: atomics(name, addr, groups.div_ceil(32), 0)?,
            written: atomics(name, addr, groups.div_ceil(32), 0)?,
        })
    }

    /// Whether `[addr, addr + bytes)` lies inside.
    #[inline(always)]
    pub(crate) fn holds(&self, addr: u64, bytes: u64) -> bool {
        // Underflow makes the difference huge, which fails the comparison.
        let offset = addr.wrapping_sub(self.addr);
        offset < self.len && bytes <= self.len - offset
    }

    #[inline(always)]
    fn offset(&self, addr: u64) -> usize {
        (addr - self.base) as usize
    }

    /// First byte of an access of at most 32 aligned bytes never written.
    #[inline(always)]
    pub(crate) fn first_uninitialised(&self, addr: u64, bytes: usize) -> Option<u64> {
        if self.full.load(Relaxed) {
            return None;
        }
        let offset = self.offset(addr);
        let want = bit_mask(bytes) << (offset & 63);
        let missing = want & !self.init[offset >> 6].load(Relaxed);
        (missing != 0).then(|| (addr & !63) + u64::from(missing.trailing_zeros()))
    }

    /// Same for a range of any length and alignment.
    pub(crate) fn first_uninitialised_in(&self, addr: u64, bytes: u64) -> Option<u64> {
        if self.full.load(Relaxed) {
            return None;
        }
        let mut at = addr;
        while at < addr + bytes {
            let offset = self.offset(at);
            let here = (64 - (offset & 63)).min((addr + bytes - at) as usize);
            let want = bit_mask(here) << (offset & 63);
            let missing = want & !self.init[offset >> 6].load(Relaxed);
            if missing != 0 {
                return Some((at & !63) + u64::from(missing.trailing_zeros()));
            }
            at += here as u64;
        }
        None
    }

    /// The words from the one that holds `addr`, a multiple of 8.
    #[inline(always)]
    pub(crate) fn words_from(&self, addr: u64, count: usize) -> &[AtomicU64] {
        let first = self.offset(addr) >> 3;
        &self.words[first..first + count]
    }

    /// The 32 words of 4 bytes from an address on, a multiple of 4, in bounds.
    #[inline(always)]
    pub(crate) fn words32(&self, addr: u64) -> [u32; 32] {
        let mut out = [0; 32];
        if addr.is_multiple_of(8) {
            let words = self.words_from(addr, 16);
            for (pair, word) in out.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                let word = word.load(Relaxed);
                *pair = [word as u32, (word >> 32) as u32];
            }
        } else {
            let words = self.words_from(addr, 17);
            for (pair, two) in out.as_chunks_mut::<2>().0.iter_mut().zip(words.windows(2)) {
                *pair = [(two[0].load(Relaxed) >> 32) as u32, two[1].load(Relaxed) as u32];
            }
        }
        out
    }

    /// Stores the low halves of 32 words from an address on, a multiple of 4, in bounds. `exclusive`: no
    /// other host thread runs.
    #[inline(always)]
    pub(crate) fn store_words32(&self, addr: u64, values: &[u64; 32], exclusive: bool) {
        let pair = |pair: &[u64; 2]| pair[0] & 0xffff_ffff | pair[1] << 32;
        let mut rest = values.as_slice();
        let mut at = addr;
        if !addr.is_multiple_of(8) {
            self.store(addr, 4, &[values[0], 0, 0, 0], exclusive);
            self.store(addr + 124, 4, &[values[31], 0, 0, 0], exclusive);
            rest = &values[1..31];
            at += 4;
        }
        let pairs = rest.as_chunks::<2>().0;
        for (word, two) in self.words_from(at, pairs.len()).iter().zip(pairs) {
            word.store(pair(two), Relaxed);
        }
        if !self.full.load(Relaxed) {
            let (mut offset, end) = (self.offset(at), self.offset(at) + 8 * pairs.len());
            while offset < end {
                let here = (64 - (offset & 63)).min(end - offset);
                or_bits(&self.init[offset >> 6], bit_mask(here) << (offset & 63), exclusive);
                offset += here;
            }
        }
    }

    /// An aligned, in-bounds read.
    #[inline(always)]
    pub(crate) fn load(&self, addr: u64, bytes: usize) -> Value {
        let offset = self.offset(addr);
        let mut value = [0; 4];
        if bytes <= 8 {
            value[0] =
                (self.words[offset >> 3].load(Relaxed) >> ((offset & 7) * 8)) & byte_mask(bytes);
        } else {
            let words = &self.words[offset >> 3..][..bytes / 8];
            for (out, word) in value.iter_mut().zip(words) {
                *out = word.load(Relaxed);
            }
        }
        value
    }

    /// An aligned, in-bounds write. `exclusive`: no other host thread runs.
    #[inline(always)]
    pub(crate) fn store(&self, addr: u64, bytes: usize, value: &Value, exclusive: bool) {
        let offset = self.offset(addr);
        if bytes < 8 {
            let shift = (offset & 7) * 8;
            let mask = byte_mask(bytes) << shift;
            let word = &self.words[offset >> 3];
            let merge = |old: u64| (old & !mask) | ((value[0] << shift) & mask);
            if exclusive {
                word.store(merge(word.load(Relaxed)), Relaxed);
            } else {
                let mut old = word.load(Relaxed);
                while let Err(now) = word.compare_exchange_weak(old, merge(old), Relaxed, Relaxed) {
                    old = now;
                }
            }
        } else {
            let words = &self.words[offset >> 3..][..bytes / 8];
            for (word, &new) in words.iter().zip(value) {
                word.store(new, Relaxed);
            }
        }
        self.mark_initialised(offset, bytes, exclusive);
    }

    #[inline(always)]
    fn mark_initialised(&self, offset: usize, bytes: usize, exclusive: bool) {
        if self.full.load(Relaxed) {
            return;
        }
        or_bits(&self.init[offset >> 6], bit_mask(bytes) << (offset & 63), exclusive);
    }

    /// Notes that the sectors of `[addr, addr + bytes)` were read or written.
    #[inline(always)]
    pub(crate) fn touch(&self, addr: u64, bytes: u64, write: bool, exclusive: bool) {
        let marks = if write { &self.written } else { &self.read };
        let first = self.offset(addr) >> 5;
        let last = self.offset(addr + bytes - 1) >> 5;
        let mut sector = first;
        while sector <= last {
            let here = (64 - (sector & 63)).min(last - sector + 1);
            or_bits(&marks[sector >> 6], bit_mask(here) << (sector & 63), exclusive);
            sector += here;
        }
    }

    /// Copies an in-bounds range of any alignment out, whatever is known of it.
    pub(crate) fn copy_out(&self, addr: u64, out: &mut [u8]) {
        copy_words_out(self.offset(addr), out, |word| self.words[word].load(Relaxed));
    }

    /// Writes an in-bounds range of any alignment. `exclusive`: no other host
    /// thread runs.
    pub(crate) fn copy_in(&self, addr: u64, bytes: &[u8], exclusive: bool) {
        let mut at = addr;
        let mut rest = bytes;
        while !rest.is_empty() {
            // The largest aligned power of two that fits.
            let aligned = 1 << at.trailing_zeros().min(3);
            let fits = 1 << rest.len().min(8).ilog2();
            let (chunk, tail) = rest.split_at(aligned.min(fits));
            self.store(at, chunk.len(), &[word_of(chunk), 0, 0, 0], exclusive);
            at += chunk.len() as u64;
            rest = tail;
        }
    }

    /// Makes an in-bounds range uninitialised again.
    pub(crate) fn forget(&self, addr: u64, bytes: u64) {
        self.full.store(false, Relaxed);
        for at in addr..addr + bytes {
            let offset = self.offset(at);
            self.init[offset >> 6].fetch_and(!(1 << (offset & 63)), Relaxed);
        }
    }

    fn reset_touched(&mut self) {
        for marks in [&mut self.read, &mut self.written] {
            for word in marks.iter_mut() {
                *word.get_mut() = 0;
            }
        }
    }

    fn write_bytes(&self, addr: u64, bytes: &[u8]) {
        let mut at = addr;
        let mut rest = bytes;
        while !rest.is_empty() {
            let aligned = at.is_multiple_of(8) && rest.len() >= 8;
            let (chunk, tail) = rest.split_at(if aligned { 8 } else { 1 });
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store(at, chunk.len(), &[u64::from_le_bytes(word), 0, 0, 0], true);
            at += chunk.len() as u64;
            rest = tail;
        }
        self.note_written(addr, bytes.len() as u64);
    }

    /// A write of the whole block initialises all of it.
    fn note_written(&self, addr: u64, bytes: u64) {
        if addr == self.addr && bytes == self.len {
            self.full.store(true, Relaxed);
        }
    }

    fn read_bytes(&self, addr: u64, bytes: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes as usize + 8);
        let start = addr & !7;
        let mut at = start;
        while at < addr + bytes {
            let word = self.words[self.offset(at.max(self.base)) >> 3].load(Relaxed);
            out.extend_from_slice(&word.to_le_bytes());
            at += 8;
        }
        out.drain(..(addr - start) as usize);
        out.truncate(bytes as usize);
        out
    }
}

/// The signed distance of an address from the nearer end of a block: negative before its start, from 0 behind its end.
fn distance(block: &Block, addr: u64) -> i64 {
    if addr < block.addr {
        -((block.addr - addr) as i64)
    } else {
        (addr - block.addr).saturating_sub(block.len) as i64
    }
}

#[inline(always)]
fn or_bits(word: &AtomicU64, bits: u64, exclusive: bool) {
    let old = word.load(Relaxed);
    if old & bits == bits {
        return;
    }
    if exclusive {
        word.store(old | bits, Relaxed);
    } else {
        word.fetch_or(bits, Relaxed);
    }
}

impl GlobalMemory {
    /// No allocations.
    #[must_use]
    pub fn new() -> Self {
        Self { next: FIRST, ..Self::default() }
    }

    /// Allocates `bytes` uninitialised bytes at a multiple of `align` (at least
    /// 256, as a driver does) and returns the address.
    ///
    /// # Errors
    /// A size of 0, an alignment that is not a power of two, no room.
    pub fn alloc(&mut self, name: &str, bytes: u64, align: u64) -> Result<u64, MemoryError> {
        if !align.is_power_of_two() {
            return Err(MemoryError::Align { name: name.to_owned(), align });
        }
        let align = align.max(256);
        let mut addr = self.next;
        loop {
            addr = addr.checked_next_multiple_of(align).ok_or_else(|| MemoryError::TooLarge {
                name: name.to_owned(),
                addr,
                bytes,
            })?;
            let end = addr.saturating_add(bytes).saturating_add(GAP);
            // Fixed-address allocations may lie ahead.
            match self.overlapping(addr, end - addr) {
                Some(block) => addr = block.addr + block.len + GAP,
                None => break,
            }
        }
        let addr = self.alloc_at(addr, name, bytes)?;
        self.next = addr + bytes + GAP;
        Ok(addr)
    }

    /// Allocates `bytes` uninitialised bytes at a given address.
    ///
    /// # Errors
    /// A size of 0, a range that is taken, leaves the address space or does not
    /// fit the host's memory.
    pub fn alloc_at(&mut self, addr: u64, name: &str, bytes: u64) -> Result<u64, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty { name: name.to_owned() });
        }
        if addr.checked_add(bytes).is_none_or(|end| end > ADDRESS_LIMIT) {
            return Err(MemoryError::TooLarge { name: name.to_owned(), addr, bytes });
        }
        if let Some(other) = self.overlapping(addr, bytes) {
            return Err(MemoryError::Overlap {
                name: name.to_owned(),
                addr,
                bytes,
                other: other.name.clone(),
                other_addr: other.addr,
            });
        }
        let block = Block::new(name, addr, bytes)?;
        let at = self.blocks.partition_point(|other| other.addr < addr);
        self.blocks.insert(at, block);
        Ok(addr)
    }

    /// Allocates and fills with `bytes`.
    ///
    /// # Errors
    /// The same as [`alloc`](Self::alloc).
    pub fn alloc_from(&mut self, name: &str, bytes: &[u8]) -> Result<u64, MemoryError> {
        let addr = self.alloc(name, bytes.len() as u64, 256)?;
        self.write(addr, bytes)?;
        Ok(addr)
    }

    /// Writes bytes into one allocation.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        if !bytes.is_empty() {
            self.holding(addr, bytes.len() as u64)?.write_bytes(addr, bytes);
        }
        Ok(())
    }

    /// Fills `bytes` bytes with `value`.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn fill(&mut self, addr: u64, bytes: u64, value: u8) -> Result<(), MemoryError> {
        if bytes != 0 {
            const CHUNK: u64 = 1 << 16;
            let block = self.holding(addr, bytes)?;
            let chunk = vec![value; bytes.min(CHUNK) as usize];
            for at in (0..bytes).step_by(CHUNK as usize) {
                block.write_bytes(addr + at, &chunk[..(bytes - at).min(CHUNK) as usize]);
            }
            block.note_written(addr, bytes);
        }
        Ok(())
    }

    /// Reads bytes that must all have been written.
    ///
    /// # Errors
    /// The range is not inside one allocation, or a byte of it (the first is
    /// named) was never written.
    pub fn read(&self, addr: u64, bytes: u64) -> Result<Vec<u8>, MemoryError> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let block = self.holding(addr, bytes)?;
        if let Some(first) = block.first_uninitialised_in(addr, bytes) {
            return Err(MemoryError::Uninitialised {
                name: block.name.clone(),
                offset: first - block.addr,
                addr: first,
            });
        }
        Ok(block.read_bytes(addr, bytes))
    }

    /// Reads bytes; those never written read as 0xCB.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn read_raw(&self, addr: u64, bytes: u64) -> Result<Vec<u8>, MemoryError> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        Ok(self.holding(addr, bytes)?.read_bytes(addr, bytes))
    }

    /// Allocations in the order of their addresses, without the `.global` variables
    /// of modules: name, address, length in bytes.
    pub fn allocations(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let of_module = |addr| self.modules.values().flatten().any(|&global| global == addr);
        self.blocks
            .iter()
            .filter(move |block| !of_module(block.addr))
            .map(|block| (block.name.as_str(), block.addr, block.len))
    }

    /// The parts of a range that were written, each as long as it can be.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn written(&self, addr: u64, bytes: u64) -> Result<Vec<Range<u64>>, MemoryError> {
        let end = addr.saturating_add(bytes);
        let mut parts = Vec::new();
        if bytes == 0 {
            return Ok(parts);
        }
        let block = self.holding(addr, bytes)?;
        let mut at = addr;
        while at < end {
            let stop = block.first_uninitialised_in(at, end - at).unwrap_or(end);
            if stop > at {
                parts.push(at..stop);
            }
            at = stop;
            while at < end && block.first_uninitialised_in(at, 1).is_some() {
                at += 1;
            }
        }
        Ok(parts)
    }

    /// Frees the allocation that starts at `addr`.
    ///
    /// # Errors
    /// None starts there.
    pub fn free(&mut self, addr: u64) -> Result<(), MemoryError> {
        let at = self
            .blocks
            .binary_search_by_key(&addr, |block| block.addr)
            .map_err(|_| MemoryError::NotAllocated { addr })?;
        self.blocks.remove(at);
        Ok(())
    }

    fn overlapping(&self, addr: u64, bytes: u64) -> Option<&Block> {
        let after = self.blocks.partition_point(|block| block.addr < addr);
        let before = after.checked_sub(1).map(|at| &self.blocks[at]);
        before.filter(|block| block.addr + block.len > addr).or_else(|| {
            self.blocks.get(after).filter(|block| block.addr < addr.saturating_add(bytes))
        })
    }

    fn holding(&self, addr: u64, bytes: u64) -> Result<&Block, MemoryError> {
        self.find(addr)
            .map(|id| self.block(id))
            .filter(|block| block.holds(addr, bytes))
            .ok_or(MemoryError::OutOfBounds { addr, bytes })
    }

    /// Block that holds the byte at `addr`.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<BlockId> {
        let at = self.blocks.partition_point(|block| block.addr <= addr);
        match at.checked_sub(1).filter(|id| self.blocks[*id].holds(addr, 1)) {
            Some(id) => Some(id),
            None => self.heap.find(addr),
        }
    }

    /// A block by index.
    #[inline(always)]
    pub(crate) fn block(&self, id: BlockId) -> &Block {
        match self.blocks.get(id) {
            Some(block) => block,
            None => self.heap.block(id),
        }
    }

    /// Allocates memory of the device's heap; `None`: it is full.
    pub(crate) fn heap_allocate(&self, bytes: u64) -> Option<u64> {
        self.heap.allocate(bytes)
    }

    /// Frees memory of the device's heap.
    pub(crate) fn heap_free(&self, addr: u64) -> Result<(), NotFreed> {
        self.heap.free(addr)
    }

    /// Sets how many bytes kernels may have allocated at a time with `malloc`; 8 MiB unless it is set.
    pub fn set_heap_limit(&mut self, bytes: u64) {
        self.heap.set_limit(bytes);
    }

    /// Number of blocks without the heap's.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Name, address and length of the allocation nearest to an address.
    pub(crate) fn nearest(&self, addr: u64) -> Option<(String, u64, u64)> {
        let described = |block: &Block, name: String| (name, block.addr, block.len);
        if let Some((block, freed)) = self.heap.nearest(addr) {
            let name = if freed { format!("{}, freed", block.name) } else { block.name.clone() };
            return Some(described(block, name));
        }
        let after = self.blocks.partition_point(|block| block.addr <= addr);
        let around = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let blocks = around.filter_map(|at| self.blocks.get(at));
        let nearest = blocks.min_by_key(|block| distance(block, addr).unsigned_abs())?;
        Some(described(nearest, nearest.name.clone()))
    }

    /// Forgets which sectors were read and written.
    pub(crate) fn reset_touched(&mut self) {
        self.blocks.iter_mut().for_each(Block::reset_touched);
        self.heap.begin_launch();
    }

    /// Bytes of the distinct 32-byte sectors read and written since the reset.
    pub(crate) fn touched_bytes(&self) -> (u64, u64) {
        let count = |marks: &[AtomicU64]| -> u64 {
            marks.iter().map(|word| u64::from(word.load(Relaxed).count_ones()) * 32).sum()
        };
        self.blocks.iter().chain(self.heap.blocks()).fold((0, 0), |(read, written), block| {
            // The first and last sector may stick out of a small allocation.
            (
                read + count(&block.read).min(block.len),
                written + count(&block.written).min(block.len),
            )
        })
    }

    /// Addresses given to a module's `.global` variables, if it was here before.
    pub(crate) fn module_globals(&self, module: u64) -> Option<&[u64]> {
        self.modules.get(&module).map(Vec::as_slice)
    }

    /// Remembers the addresses of a module's `.global` variables.
    pub(crate) fn set_module_globals(&mut self, module: u64, addresses: Vec<u64>) {
        self.modules.insert(module, addresses);
    }
}

#[cfg(test)]
mod tests {
    use super::GlobalMemory;

    #[test]
    fn written_parts_of_an_allocation() {
        let mut memory = GlobalMemory::new();
        let a = memory.alloc("a", 200, 256).expect("room");
        let b = memory.alloc_from("b", &[1; 70]).expect("room");
        memory.write(a + 3, &[1, 2]).expect("inside");
        memory.write(a + 63, &[3; 130]).expect("inside");
        let parts = memory.written(a, 200).expect("inside");
        assert_eq!(parts, [a + 3..a + 5, a + 63..a + 193]);
        assert_eq!(memory.written(a + 4, 60).expect("inside"), [a + 4..a + 5, a + 63..a + 64]);
        assert_eq!(memory.written(b, 70).expect("inside").first(), Some(&(b..b + 70)));
        assert!(memory.written(a, 201).is_err());
        let all: Vec<_> = memory.allocations().collect();
        assert_eq!(all, [("a", a, 200), ("b", b, 70)]);
    }

    /// Rows of 32 words are what single words are, wherever they begin.
    #[test]
    fn rows_of_words() {
        let values: [u64; 32] =
            std::array::from_fn(|lane| 0xffff_ffff_0000_0000 | (3 * lane as u64));
        for at in (0..=200 - 128).step_by(4) {
            for exclusive in [false, true] {
                let mut memory = GlobalMemory::new();
                let [row, single] =
                    ["row", "single"].map(|name| memory.alloc(name, 200, 256).expect("room"));
                let block = |addr| memory.block(memory.find(addr).expect("it is there"));
                block(row).store_words32(row + at, &values, exclusive);
                for (lane, value) in values.iter().enumerate() {
                    let addr = single + at + 4 * lane as u64;
                    block(single).store(addr, 4, &[*value, 0, 0, 0], exclusive);
                }
                let all = |addr| memory.read_raw(addr, 200).expect("inside");
                assert_eq!(all(row), all(single), "{at}");
                let written = memory.written(row, 200).expect("inside");
                assert_eq!(written.first(), Some(&(row + at..row + at + 128)));
                assert_eq!(written.len(), 1);
                assert_eq!(block(row).words32(row + at), values.map(|value| value as u32));
            }
        }
    }
}
