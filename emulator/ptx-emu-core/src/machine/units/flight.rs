//! Memory that operations in flight will still read or write.
//!
//! For shared memory there is a count per granule of 16 bytes, so that an access that touches
//! no operation costs one look-up; for global memory there is one interval around the ranges
//! that are read, and one around those that are written. A hit is then compared exactly with the
//! operations of the queue.

use super::engine::Operation;

/// Bytes of a granule of shared memory.
pub(crate) const GRANULE: u64 = 16;

/// The memory of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// Global memory.
    Global,
    /// Shared memory of the CTA of this rank; addresses are offsets in its
    /// window.
    Shared(u32),
    /// Tensor memory of the CTA of this rank, numbered as `tensor_memory` says.
    Tensor(u32),
}

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) home: Home,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Range {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.home == other.home
            && self.start < other.start + other.bytes
            && other.start < self.start + self.bytes
    }
}

/// An operation's use of a range that an access meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The operation has yet to read it.
    Source,
    /// The operation has yet to write it, or to say that it did.
    Destination,
}

/// A number of ranges of global memory, and an interval that holds them all.
#[derive(Debug, Default)]
struct Extent {
    ranges: usize,
    low: u64,
    high: u64,
}

impl Extent {
    fn add(&mut self, range: &Range) {
        let end = range.start + range.bytes;
        let empty = self.ranges == 0;
        self.low = if empty { range.start } else { self.low.min(range.start) };
        self.high = if empty { end } else { self.high.max(end) };
        self.ranges += 1;
    }

    fn may_touch(&self, range: &Range) -> bool {
        self.ranges != 0 && range.start < self.high && self.low < range.start + range.bytes
    }
}

/// The approximate places of the ranges of queued operations.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    operations: usize,
    /// Operations that use each granule, by CTA rank.
    granules: Vec<Vec<u16>>,
    /// Global ranges that operations read, and those that they write.
    global_reads: Extent,
    global_writes: Extent,
    /// Operations with ranges in tensor memory.
    tensor: usize,
}

fn span(range: &Range) -> std::ops::Range<usize> {
    (range.start / GRANULE) as usize..(range.start + range.bytes).div_ceil(GRANULE) as usize
}

/// The ranges that an operation uses, and whether it writes them.
fn uses(operation: &Operation) -> impl Iterator<Item = (&Range, bool)> {
    let reads = operation.reads.iter().map(|range| (range, false));
    let writes = operation.writes.iter().map(|range| (range, true));
    reads.chain(writes).filter(|(range, _)| range.bytes != 0)
}

impl Flight {
    /// Nothing in flight, in `ctas` CTAs.
    pub(crate) fn reset(&mut self, ctas: usize) {
        self.operations = 0;
        self.global_reads.ranges = 0;
        self.global_writes.ranges = 0;
        self.tensor = 0;
        self.granules.resize_with(ctas, Vec::new);
        self.granules.iter_mut().for_each(|granules| granules.fill(0));
    }

    /// Whether anything is in flight.
    #[inline(always)]
    pub(crate) fn busy(&self) -> bool {
        self.operations != 0
    }

    pub(super) fn add(&mut self, operation: &Operation) {
        self.operations += 1;
        let mut tensor = false;
        for (range, written) in uses(operation) {
            match range.home {
                Home::Shared(rank) => {
                    let granules = &mut self.granules[rank as usize];
                    let span = span(range);
                    if granules.len() < span.end {
                        granules.resize(span.end, 0);
                    }
                    for count in &mut granules[span] {
                        *count += 1;
                    }
                }
                Home::Global => self.global(written).add(range),
                Home::Tensor(_) => tensor = true,
            }
        }
        self.tensor += usize::from(tensor);
    }

    pub(super) fn remove(&mut self, operation: &Operation) {
        self.operations -= 1;
        let mut tensor = false;
        for (range, written) in uses(operation) {
            match range.home {
                Home::Shared(rank) => {
                    for count in &mut self.granules[rank as usize][span(range)] {
                        *count -= 1;
                    }
                }
                Home::Global => self.global(written).ranges -= 1,
                Home::Tensor(_) => tensor = true,
            }
        }
        self.tensor -= usize::from(tensor);
    }

    fn global(&mut self, written: bool) -> &mut Extent {
        if written { &mut self.global_writes } else { &mut self.global_reads }
    }

    /// Whether an operation in flight may use a part of `range` so that an access would disturb it. Shared
    /// and tensor memory that operations only read counts for reads too.
    #[inline]
    pub(crate) fn may_touch(&self, range: &Range, write: bool) -> bool {
        match range.home {
            Home::Global => {
                self.global_writes.may_touch(range) || write && self.global_reads.may_touch(range)
            }
            Home::Tensor(_) => self.tensor != 0,
            Home::Shared(rank) => self.granules.get(rank as usize).is_some_and(|granules| {
                let span = span(range);
                let end = span.end.min(granules.len());
                span.start < end && granules[span.start..end].iter().any(|&count| count != 0)
            }),
        }
    }
}
