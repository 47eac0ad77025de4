//! The device's heap: memory that kernels allocate with `malloc` and give back with `free`.
//!
//! A block stays where it is while launches run, so that other threads of the host may use it; a freed one is kept
//! apart, so that later accesses to it are found, until [`QUARANTINE`] bytes are freed. Between launches
//! freed blocks are forgotten. Addresses are as aligned as CUDA promises, 16 bytes, and no more.

use super::{Block, BlockId, MemoryError};
use crate::memory::POISON;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a heap unless others are asked for (`cudaLimitMallocHeapSize`).
const DEFAULT_LIMIT: u64 = 8 << 20;
/// Addresses of the heap, above those that drivers and hosts give out.
const FIRST: u64 = 1 << 52;
const END: u64 = 1 << 53;
/// The index of its first block: other blocks have lower ones.
const FIRST_ID: BlockId = 1 << 40;
/// Bytes left free between blocks at least.
const GAP: u64 = 64;
/// Freed bytes from which on freed blocks are used again.
const QUARANTINE: u64 = 64 << 20;
/// Freed blocks that are looked at for one of the right size.
const LOOKS: usize = 256;
/// Blocks of the first chunk; each chunk has twice as many as the one before.
const CHUNK: usize = 1024;

type Chunk = OnceLock<Box<[OnceLock<Block>]>>;

/// The heap.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// Bytes that may be allocated at a time; `None`: as many as by default.
    limit: Option<u64>,
    chunks: [Chunk; 28],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Allocated blocks: address and number.
    live: BTreeMap<u64, usize>,
    /// Freed blocks that are kept apart, and in which order they were freed.
    freed: BTreeMap<u64, usize>,
    order: VecDeque<u64>,
    freed_bytes: u64,
    used: u64,
    /// Blocks made.
    made: usize,
    /// Least address of the next block, counted from the heap's start.
    next: u64,
}

/// The reason why memory was not freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotFreed {
    /// The memory was freed before.
    Twice,
    /// `malloc` never gave the address.
    Unknown,
}

impl Heap {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_limit(&mut self, bytes: u64) {
        self.limit = Some(bytes);
    }

    /// The chunk of a block and its place there.
    fn place(number: usize) -> (usize, usize) {
        let chunk = ((number + CHUNK) / CHUNK).ilog2() as usize;
        (chunk, number + CHUNK - (CHUNK << chunk))
    }

    fn numbered(&self, number: usize) -> &Block {
        let (chunk, at) = Self::place(number);
        let block = self.chunks[chunk].get().and_then(|blocks| blocks[at].get());
        block.expect("a block is made before its number is known")
    }

    /// Keeps a block under its number, if there is room for one more.
    fn keep(&self, number: usize, block: Block) -> Option<()> {
        let (chunk, at) = Self::place(number);
        let blocks = self
            .chunks
            .get(chunk)?
            .get_or_init(|| (0..CHUNK << chunk).map(|_| OnceLock::new()).collect());
        blocks[at].set(block).ok()
    }

    /// Allocates memory that is uninitialised; `None`: the heap is full.
    pub(super) fn allocate(&self, bytes: u64) -> Option<u64> {
        let mut state = self.state();
        let free = self.limit.unwrap_or(DEFAULT_LIMIT) - state.used;
        if bytes == 0 || bytes > free {
            return None;
        }
        let again = match state.freed_bytes >= QUARANTINE {
            true => self.take_freed(&mut state, bytes),
            false => None,
        };
        let address = match again {
            Some(address) => address,
            None => self.make(&mut state, bytes)?,
        };
        state.used += bytes;
        Some(address)
    }

    /// A freed block of that size, uninitialised again.
    fn take_freed(&self, state: &mut State, bytes: u64) -> Option<u64> {
        let fits = |address: &&u64| self.numbered(state.freed[*address]).len == bytes;
        let at = state.order.iter().take(LOOKS).position(|address| fits(&address))?;
        let address = state.order.remove(at)?;
        let number = state.freed.remove(&address)?;
        state.freed_bytes -= bytes;
        state.live.insert(address, number);
        let block = self.numbered(number);
        block.copy_in(address, &vec![POISON; bytes as usize], true);
        block.forget(address, bytes);
        Some(address)
    }

    fn make(&self, state: &mut State, bytes: u64) -> Option<u64> {
        // 16 bytes behind a multiple of 32, and so of no larger power of two.
        let address = FIRST + state.next.next_multiple_of(32) + 16;
        let end = address.checked_add(bytes)?.checked_add(GAP)?;
        if end > END {
            return None;
        }
        let block = Block::new("memory of the device's heap", address, bytes).ok()?;
        self.keep(state.made, block)?;
        state.live.insert(address, state.made);
        state.made += 1;
        state.next = end - FIRST;
        Some(address)
    }

    /// Frees the block that begins at an address.
    pub(super) fn free(&self, address: u64) -> Result<(), NotFreed> {
        let mut state = self.state();
        let Some(number) = state.live.remove(&address) else {
            let freed = state.freed.contains_key(&address);
            return Err(if freed { NotFreed::Twice } else { NotFreed::Unknown });
        };
        let bytes = self.numbered(number).len;
        state.used -= bytes;
        state.freed_bytes += bytes;
        state.freed.insert(address, number);
        state.order.push_back(address);
        Ok(())
    }

    /// The allocated block that holds the byte at an address.
    #[cold]
    pub(super) fn find(&self, address: u64) -> Option<BlockId> {
        if !(FIRST..END).contains(&address) {
            return None;
        }
        let state = self.state();
        let (_, &number) = state.live.range(..=address).next_back()?;
        self.numbered(number).holds(address, 1).then_some(FIRST_ID + number)
    }

    /// A block by its index.
    #[cold]
    pub(super) fn block(&self, id: BlockId) -> &Block {
        self.numbered(id - FIRST_ID)
    }

    /// The block nearest to an address of the heap, and whether it was freed.
    pub(super) fn nearest(&self, address: u64) -> Option<(&Block, bool)> {
        if !(FIRST..END).contains(&address) {
            return None;
        }
        let state = self.state();
        let around = |blocks: &BTreeMap<u64, usize>, freed| {
            let before = blocks.range(..=address).next_back();
            let after = blocks.range(address..).next();
            let found = [before, after].into_iter().flatten();
            found.map(move |(_, number)| (*number, freed)).collect::<Vec<_>>()
        };
        let mut all = around(&state.live, false);
        all.extend(around(&state.freed, true));
        let blocks = all.into_iter().map(|(number, freed)| (self.numbered(number), freed));
        blocks.min_by_key(|(block, _)| super::distance(block, address).unsigned_abs())
    }

    /// All blocks, the freed ones included.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        (0..self.state().made).map(|number| self.numbered(number))
    }

    /// Forgets freed blocks, and which sectors were read and written.
    pub(super) fn begin_launch(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.made == 0 {
            return;
        }
        let chunks = std::mem::take(&mut self.chunks);
        let blocks = chunks.into_iter().filter_map(OnceLock::into_inner).flatten();
        let live = std::mem::take(&mut state.live);
        (state.freed, state.order) = (BTreeMap::new(), VecDeque::new());
        (state.freed_bytes, state.made) = (0, 0);
        let kept =
            blocks.filter_map(OnceLock::into_inner).filter(|block| live.contains_key(&block.addr));
        for (number, mut block) in kept.collect::<Vec<_>>().into_iter().enumerate() {
            block.reset_touched();
            let address = block.addr;
            if self.keep(number, block).is_some() {
                let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                state.live.insert(address, number);
                state.made = number + 1;
            }
        }
    }

    /// A second heap with the same blocks.
    pub(super) fn duplicate(&self) -> Result<Self, MemoryError> {
        let copy = Self { limit: self.limit, ..Self::default() };
        let state = self.state();
        for (at, (address, number)) in state.live.iter().enumerate() {
            if copy.keep(at, self.numbered(*number).duplicate()?).is_some() {
                let mut copied = copy.state();
                copied.live.insert(*address, at);
                copied.made = at + 1;
            }
        }
        let mut copied = copy.state();
        (copied.used, copied.next) = (state.used, state.next);
        drop(copied);
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_blocks_are_distinct() {
        assert_eq!(Heap::place(0), (0, 0));
        assert_eq!(Heap::place(CHUNK - 1), (0, CHUNK - 1));
        assert_eq!(Heap::place(CHUNK), (1, 0));
        assert_eq!(Heap::place(3 * CHUNK - 1), (1, 2 * CHUNK - 1));
        assert_eq!(Heap::place(3 * CHUNK), (2, 0));
    }

    #[test]
    fn memory_is_given_out_taken_back_and_kept_apart() {
        let mut heap = Heap::default();
        heap.set_limit(100);
        let a = heap.allocate(60).expect("room");
        assert_eq!((a % 16, a % 32), (0, 16));
        assert_eq!((heap.allocate(41), heap.allocate(0)), (None, None));
        let b = heap.allocate(40).expect("room");
        assert!(b >= a + 60 + GAP);
        assert_eq!(heap.block(heap.find(a + 59).expect("inside")).addr, a);
        assert_eq!(heap.find(a + 60), None);
        assert_eq!(heap.free(a + 4), Err(NotFreed::Unknown));
        assert_eq!((heap.free(a), heap.free(a)), (Ok(()), Err(NotFreed::Twice)));
        assert_eq!(heap.find(a), None);
        let (block, freed) = heap.nearest(a + 8).expect("one");
        assert_eq!((block.addr, freed), (a, true));
        // There is room again, elsewhere.
        let c = heap.allocate(60).expect("room");
        assert!(c > b);
        let copy = heap.duplicate().expect("room");
        assert_eq!((copy.allocate(1), copy.find(c).is_some(), copy.find(a)), (None, true, None));
        heap.begin_launch();
        assert_eq!((heap.blocks().count(), heap.free(a)), (2, Err(NotFreed::Unknown)));
        assert!(heap.find(b).is_some() && heap.find(c).is_some());
        assert_eq!(heap.free(c), Ok(()));
    }

    #[test]
    fn freed_memory_is_used_again_and_uninitialised() {
        let heap = Heap::default();
        let big = 4 << 20;
        let first = heap.allocate(big).expect("room");
        let block = heap.block(heap.find(first).expect("there"));
        block.copy_in(first, &[1; 64], true);
        heap.free(first).expect("allocated");
        let freed = (1..QUARANTINE / big).map(|_| {
            let address = heap.allocate(big).expect("room");
            assert_ne!(address, first);
            heap.free(address)
        });
        assert!(freed.collect::<Vec<_>>().iter().all(Result::is_ok));
        assert_eq!(heap.allocate(big), Some(first));
        let block = heap.block(heap.find(first).expect("there"));
        assert_eq!(block.first_uninitialised(first, 16), Some(first));
    }
}
