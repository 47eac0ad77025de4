//! The data movement of `cp.async`, bulk and tensor copies, `st.async` and their
//! reductions.
//!
//! A copy copies the initialisation state of its source too: copying bytes
//! that were never written is not an error, but reading the copy is.

use super::engine::{StepContext, Work};
use super::flight::{Home, Range};
use super::mbarrier::At;
use crate::diagnostic::{Exec, Space};
use crate::tensor_map::{ElementType, Reduction};

/// The source of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Global memory.
    Global(u64),
    /// Shared memory.
    Shared(At),
    /// The fill pattern.
    Fill,
    /// Bytes of [`Transfer::immediate`], from this one on.
    Immediate(u32),
}

/// The target of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Global memory.
    Global(u64),
    /// This offset in the shared memory of each CTA of [`Transfer::ranks`].
    Shared(u32),
}

/// Bytes that are contiguous on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) bytes: u32,
}

/// A copy.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) pieces: Vec<Piece>,
    /// CTAs of shared targets.
    pub(crate) ranks: Vec<u32>,
    /// The operation on the old bytes; `None` replaces them.
    pub(crate) reduction: Option<Reduction>,
    /// Pattern of [`Source::Fill`].
    pub(crate) fill: [u8; 2],
    /// Data of [`Source::Immediate`].
    pub(crate) immediate: Vec<u8>,
    /// Elements that the copy rounds to tf32.
    pub(crate) convert: Option<ElementType>,
}

/// A copy under way.
#[derive(Debug)]
struct Moving {
    transfer: Transfer,
    /// The bytes that were read, piece after piece.
    data: Vec<u8>,
    /// Its uninitialised bytes: start, length.
    unknown: Vec<(usize, usize)>,
    /// The last sector of global memory that was counted: a swizzle cuts rows into pieces
    /// of half a sector, but the copy engine moves rows.
    counted: Option<u64>,
}

/// Sorts ranges and joins those that touch.
fn merge(pieces: impl Iterator<Item = Range>) -> Vec<Range> {
    // Most follow or precede the piece before, also where a swizzle exchanges them.
    let mut ranges: Vec<Range> = Vec::new();
    for range in pieces.filter(|range| range.bytes != 0) {
        match ranges.last_mut() {
            Some(last) if last.home == range.home && last.start + last.bytes == range.start => {
                last.bytes += range.bytes;
            }
            Some(last) if last.home == range.home && range.start + range.bytes == last.start => {
                last.start = range.start;
                last.bytes += range.bytes;
            }
            _ => ranges.push(range),
        }
    }
    let key = |range: &Range| {
        let rank = match range.home {
            Home::Global => 0,
            Home::Shared(rank) | Home::Tensor(rank) => rank + 1,
        };
        (rank, range.start)
    };
    ranges.sort_unstable_by_key(key);
    let mut merged: Vec<Range> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.home == range.home && range.start <= last.start + last.bytes => {
                let end = (last.start + last.bytes).max(range.start + range.bytes);
                last.bytes = end - last.start;
            }
            _ => merged.push(range),
        }
    }
    merged
}

impl Transfer {
    /// One piece.
    pub(crate) fn one(piece: Piece, ranks: Vec<u32>) -> Self {
        Self { pieces: vec![piece], ranks, ..Self::default() }
    }

    /// Memory that the copy reads.
    pub(crate) fn reads(&self) -> Vec<Range> {
        let range = |piece: &Piece| {
            let (home, start) = match piece.source {
                Source::Global(addr) => (Home::Global, addr),
                Source::Shared(at) => (Home::Shared(at.rank), at.offset.into()),
                Source::Fill | Source::Immediate(_) => return None,
            };
            Some(Range { home, start, bytes: piece.bytes.into() })
        };
        merge(self.pieces.iter().filter_map(range))
    }

    /// Memory that the copy writes.
    pub(crate) fn writes(&self) -> Vec<Range> {
        let global = self.pieces.iter().filter_map(|piece| match piece.target {
            Target::Global(start) => {
                Some(Range { home: Home::Global, start, bytes: piece.bytes.into() })
            }
            Target::Shared(_) => None,
        });
        let shared = self.ranks.iter().flat_map(|&rank| {
            self.pieces.iter().filter_map(move |piece| match piece.target {
                Target::Global(_) => None,
                Target::Shared(offset) => {
                    let (home, start) = (Home::Shared(rank), offset.into());
                    Some(Range { home, start, bytes: piece.bytes.into() })
                }
            })
        });
        merge(global.chain(shared))
    }

    /// Bytes moved, to one destination.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
    }

    /// The copy as an operation's work.
    pub(crate) fn work(self) -> Box<dyn Work> {
        Box::new(Moving { transfer: self, data: Vec::new(), unknown: Vec::new(), counted: None })
    }
}

impl Moving {
    /// Reads the source of a piece into `data[start..]`.
    fn gather(&mut self, piece: &Piece, start: usize, context: &mut StepContext<'_>) {
        let bytes = piece.bytes as usize;
        let out = &mut self.data[start..start + bytes];
        match piece.source {
            Source::Global(addr) => {
                let env = context.env;
                // Found at issue; allocations stay while a kernel runs.
                let Some(id) = env.global.find(addr) else {
                    return;
                };
                let block = env.global.block(id);
                block.copy_out(addr, out);
                block.touch(addr, bytes as u64, false, env.exclusive);
                let count = context.stats.space(Space::Global);
                count.bytes_read += bytes as u64;
                count.sectors_read += sectors(addr, bytes, &mut self.counted);
                let end = addr + bytes as u64;
                let mut at = addr;
                while let Some(first) = block.first_uninitialised_in(at, end - at) {
                    self.unknown.push((start + (first - addr) as usize, 1));
                    at = first + 1;
                }
            }
            Source::Shared(from) => {
                let (memory, offset) = (&context.shared[from.rank as usize], from.offset as usize);
                memory.copy_out(offset, out);
                context.stats.space(Space::Shared).bytes_read += bytes as u64;
                let mut at = offset;
                while let Some(first) = memory.first_uninitialised_in(at, offset + bytes - at) {
                    self.unknown.push((start + first - offset, 1));
                    at = first + 1;
                }
            }
            Source::Fill => {
                for (at, byte) in out.iter_mut().enumerate() {
                    *byte = self.transfer.fill[at & 1];
                }
            }
            Source::Immediate(from) => {
                let from = from as usize;
                out.copy_from_slice(&self.transfer.immediate[from..from + bytes]);
            }
        }
    }

    /// Writes a piece.
    fn scatter(&mut self, piece: &Piece, start: usize, context: &mut StepContext<'_>) {
        let data = &self.data[start..start + piece.bytes as usize];
        let bytes = data.len();
        let unknown = self.unknown.iter().filter_map(|&(from, len)| {
            let (from, end) = (from.max(start), (from + len).min(start + bytes));
            (from < end).then(|| (from - start, end - from))
        });
        let mut combined = Vec::new();
        match piece.target {
            Target::Global(addr) => {
                let env = context.env;
                let Some(id) = env.global.find(addr) else {
                    return;
                };
                let block = env.global.block(id);
                let data = match &self.transfer.reduction {
                    None => data,
                    Some(reduction) => {
                        combined.resize(bytes, 0);
                        block.copy_out(addr, &mut combined);
                        reduction.apply(&mut combined, data);
                        combined.as_slice()
                    }
                };
                block.copy_in(addr, data, env.exclusive);
                block.touch(addr, bytes as u64, true, env.exclusive);
                let count = context.stats.space(Space::Global);
                count.bytes_written += bytes as u64;
                count.sectors_written += sectors(addr, bytes, &mut self.counted);
                for (at, len) in unknown {
                    block.forget(addr + at as u64, len as u64);
                }
            }
            Target::Shared(offset) => {
                for &rank in &self.transfer.ranks {
                    let memory = &mut context.shared[rank as usize];
                    let data = match &self.transfer.reduction {
                        None => data,
                        Some(reduction) => {
                            combined.resize(bytes, 0);
                            memory.copy_out(offset as usize, &mut combined);
                            reduction.apply(&mut combined, data);
                            combined.as_slice()
                        }
                    };
                    memory.copy_in(offset as usize, data);
                    for (at, len) in unknown.clone() {
                        memory.forget(offset as usize + at, len);
                    }
                }
                context.stats.space(Space::Shared).bytes_written +=
                    (bytes * self.transfer.ranks.len()) as u64;
            }
        }
    }
}

/// Sectors of a piece, without its first one if that is the one `counted` last.
fn sectors(addr: u64, bytes: usize, counted: &mut Option<u64>) -> u64 {
    let (first, last) = (addr >> 5, (addr + bytes as u64 - 1) >> 5);
    let again = counted.replace(last) == Some(first);
    last - first + u64::from(!again)
}

impl Work for Moving {
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec {
        self.data.resize(self.transfer.bytes() as usize, 0);
        let pieces = std::mem::take(&mut self.transfer.pieces);
        let mut start = 0;
        let mut rest = pieces.iter().filter(|piece| piece.bytes != 0).peekable();
        while let Some(&(mut piece)) = rest.next() {
            // Bytes that follow in the same allocation are read with it.
            let allocation = match piece.source {
                Source::Global(addr) => context.env.global.find(addr),
                _ => None,
            };
            let allocation = allocation.map(|id| context.env.global.block(id));
            while let (Source::Global(addr), Some(next)) = (piece.source, rest.peek())
                && next.source == Source::Global(addr + u64::from(piece.bytes))
                && allocation
                    .is_some_and(|all| all.holds(addr, u64::from(piece.bytes + next.bytes)))
            {
                piece.bytes += next.bytes;
                rest.next();
            }
            self.gather(&piece, start, context);
            let end = start + piece.bytes as usize;
            // Pieces are of whole elements, and what fills is not converted.
            if let (Some(element), Source::Global(_)) = (self.transfer.convert, piece.source) {
                element.convert_loaded(&mut self.data[start..end]);
            }
            start = end;
        }
        self.transfer.pieces = pieces;
        Ok(())
    }

    fn write(&mut self, context: &mut StepContext<'_>) -> Exec {
        self.counted = None;
        let pieces = std::mem::take(&mut self.transfer.pieces);
        let mut start = 0;
        for piece in pieces.iter().filter(|piece| piece.bytes != 0) {
            self.scatter(piece, start, context);
            start += piece.bytes as usize;
        }
        self.transfer.pieces = pieces;
        Ok(())
    }
}
