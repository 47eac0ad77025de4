//! The recorded accesses to a CTA's shared memory.
//!
//! A [`History`] is a list of accesses that later ones must still be compared
//! with. An access that comes after an older one and conflicts with everything
//! the older one conflicts with replaces it, so a list holds at most a few
//! entries for each agent. Memory is remembered by line of 128 bytes as long as
//! all its accesses are of whole lines, as those of coalesced warps and of bulk
//! copies are; the first other access splits the line into chunks of 16 bytes,
//! whose entries have byte masks. A plain write of the whole line joins it
//! again.

use super::lanes::Known;

/// Bytes of a line.
const LINE: usize = 128;
/// Bytes of a chunk, and bits of a mask.
const CHUNK: usize = 16;
/// Chunks of a line.
const CHUNKS: usize = LINE / CHUNK;
/// All bytes of a chunk.
const WHOLE: u16 = u16::MAX;
/// `Record::step` of an access that is not spread over lanes.
const ONE_LANE: u8 = u8::MAX;
/// The same of one by several lanes to the same bytes.
const SAME_BYTES: u8 = u8::MAX - 1;

/// The order that an access gives. Strong ones are atomic with respect to each other (PTX ISA
/// 8.2.1, 8.7.1): atomics, volatile, relaxed, acquire, release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Weak load.
    Read,
    /// Weak store.
    Write,
    /// Strong load.
    StrongRead,
    /// Strong store, atomic.
    StrongWrite,
}

impl Kind {
    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Kinds that race with this one when they are not ordered.
    const fn conflicts(self) -> u8 {
        match self {
            Self::Read => Self::Write.bit() | Self::StrongWrite.bit(),
            Self::Write => 0xf,
            Self::StrongRead => Self::Write.bit(),
            Self::StrongWrite => Self::Read.bit() | Self::Write.bit(),
        }
    }

    /// Kinds that conflict with nothing that this one does not conflict with.
    const fn covers(self) -> u8 {
        match self {
            Self::Read => Self::Read.bit() | Self::StrongRead.bit(),
            Self::Write => 0xf,
            Self::StrongRead => Self::StrongRead.bit(),
            Self::StrongWrite => Self::StrongWrite.bit() | Self::StrongRead.bit(),
        }
    }
}

/// An access to a line, or to a part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) epoch: u32,
    pub(super) pc: u32,
    pub(super) agent: u16,
    /// Warp of the cluster that executed or issued it.
    pub(super) warp: u16,
    /// Bytes of the chunk; 0 for no access at all.
    mask: u16,
    pub(super) kind: Kind,
    /// Lane of the first byte of the line or chunk, if there were one.
    lane: i8,
    /// log2 of the bytes that each lane accesses, lane after lane.
    step: u8,
}

impl Record {
    const NONE: Self = Self {
        epoch: 0,
        pc: 0,
        agent: 0,
        warp: 0,
        mask: 0,
        kind: Kind::Read,
        lane: 0,
        step: ONE_LANE,
    };

    /// An access of `agent` in its present epoch, all of it by one lane.
    pub(super) fn new(agent: u16, epoch: u32, kind: Kind, pc: u32, warp: u16, lane: u32) -> Self {
        Self { epoch, pc, agent, warp, mask: WHOLE, kind, lane: lane as i8, step: ONE_LANE }
    }

    /// The same by another lane.
    pub(super) fn by_lane(self, lane: usize) -> Self {
        Self { lane: lane as i8, ..self }
    }

    /// The same by several lanes, the first of which is `lane`, to the same bytes.
    pub(super) fn by_several(self, lane: usize) -> Self {
        Self { lane: lane as i8, step: SAME_BYTES, ..self }
    }

    /// The same by consecutive lanes from `lane` on, each `bytes`, a power of
    /// two.
    pub(super) fn by_lanes(self, lane: usize, bytes: usize) -> Self {
        Self { lane: lane as i8, step: bytes.trailing_zeros() as u8, ..self }
    }

    /// Lanes that `bytes` bytes take.
    fn lanes(&self, bytes: usize) -> i8 {
        if self.step >= SAME_BYTES { 0 } else { (bytes >> self.step) as i8 }
    }

    /// The part of the access that starts `bytes` on.
    fn after(self, bytes: usize) -> Self {
        Self { lane: self.lane + self.lanes(bytes), ..self }
    }

    /// The access as one of bytes `from` to `to` of a chunk.
    fn within(self, from: usize, to: usize) -> Self {
        let mask = (WHOLE >> (CHUNK - (to - from))) << from;
        Self { mask, lane: self.lane - self.lanes(from), ..self }
    }

    /// Lane of a byte of the line or chunk.
    fn lane_at(&self, byte: usize) -> u32 {
        (self.lane + self.lanes(byte)) as u32
    }

    /// The same if no other lane accessed it.
    pub(super) fn only_lane_at(&self, byte: usize) -> Option<u32> {
        (self.step != SAME_BYTES).then(|| self.lane_at(byte))
    }

    /// Whether the access races with a later one. Forgets what that one stands for.
    #[inline(always)]
    fn compare(&mut self, new: &Self, known: &Known<'_>, bytes: usize) -> bool {
        let both = self.mask & new.mask;
        if both == 0 {
            return false;
        }
        let shared = (0..bytes).filter(move |byte| bytes == LINE || both >> byte & 1 != 0);
        if self.agent == new.agent || known.knows(self, shared.clone()) {
            known.check_fenced(self, shared);
            if new.kind.covers() & self.kind.bit() != 0 {
                self.mask &= !new.mask;
            }
            return false;
        }
        new.kind.conflicts() & self.kind.bit() != 0
    }

    /// Whether `self` says all that `new` would: the same agent in the same
    /// epoch. Whatever conflicted with it since was compared then.
    #[inline(always)]
    fn says(&self, new: &Self) -> bool {
        self.epoch == new.epoch
            && self.agent == new.agent
            && self.mask & new.mask == new.mask
            && self.kind.covers() & new.kind.bit() != 0
    }
}

/// Accesses to one place that later ones are compared with.
#[derive(Debug, Clone)]
struct History {
    /// Records without an allocation: most often the last write and some readers.
    few: [Record; 4],
    more: Vec<Record>,
}

impl History {
    const EMPTY: Self = Self { few: [Record::NONE; 4], more: Vec::new() };

    fn clear(&mut self) {
        self.few = [Record::NONE; 4];
        self.more.clear();
    }

    /// Adds an access of an agent that knows `known`, to a line or chunk of `bytes` bytes;
    /// `Some` is an access that it races with.
    #[inline(always)]
    fn access(&mut self, new: &Record, known: &Known<'_>, bytes: usize) -> Option<Record> {
        if self.few.iter().any(|old| old.says(new)) {
            return None;
        }
        self.compare(new, known, bytes)
    }

    fn compare(&mut self, new: &Record, known: &Known<'_>, bytes: usize) -> Option<Record> {
        for old in &mut self.few {
            if old.compare(new, known, bytes) {
                return Some(*old);
            }
        }
        if !self.more.is_empty() {
            if self.more.iter().any(|old| old.says(new)) {
                return None;
            }
            for old in &mut self.more {
                if old.compare(new, known, bytes) {
                    return Some(*old);
                }
            }
            self.more.retain(|old| old.mask != 0);
        }
        match self.few.iter_mut().find(|slot| slot.mask == 0) {
            Some(slot) => *slot = *new,
            None => self.more.push(*new),
        }
        None
    }
}

/// A line of shared memory.
#[derive(Debug, Clone)]
struct Line {
    /// Era of the shadow in which the rest has a meaning.
    era: u64,
    /// The chunks have their own histories.
    split: bool,
    whole: History,
    /// Kept when the line is joined.
    chunks: Option<Box<[History; CHUNKS]>>,
}

impl Line {
    fn join(&mut self) {
        self.split = false;
        self.whole.clear();
    }

    #[inline(always)]
    fn chunks(&mut self) -> &mut [History; CHUNKS] {
        let chunks = self.chunks.get_or_insert_with(|| Box::new([History::EMPTY; CHUNKS]));
        if !self.split {
            self.split = true;
            for (at, chunk) in chunks.iter_mut().enumerate() {
                let part = |record: Record| record.after(CHUNK * at);
                chunk.few = self.whole.few.map(part);
                chunk.more.clear();
                chunk.more.extend(self.whole.more.iter().copied().map(part));
            }
        }
        chunks
    }
}

/// Two accesses that are not ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clash {
    /// First byte that both touch.
    pub(super) offset: usize,
    pub(super) old: Record,
    pub(super) new: Record,
    /// Their lanes there.
    pub(super) lanes: (u32, u32),
}

impl Clash {
    /// A clash in the line or chunk at `base`.
    #[cold]
    fn new(base: usize, old: Record, new: Record) -> Self {
        let byte = (old.mask & new.mask).trailing_zeros() as usize;
        Self { offset: base + byte, old, new, lanes: (old.lane_at(byte), new.lane_at(byte)) }
    }
}

/// The accesses to a CTA's shared memory.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    era: u64,
    lines: Vec<Line>,
}

impl Shadow {
    /// Forgets all accesses.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.era += 1;
        let line = Line { era: 0, split: false, whole: History::EMPTY, chunks: None };
        self.lines.resize(bytes.div_ceil(LINE), line);
    }

    /// Adds an access to `[offset, offset + bytes)`. Bytes outside the memory are not remembered.
    pub(super) fn access(
        &mut self,
        offset: usize,
        bytes: usize,
        new: Record,
        known: &Known<'_>,
    ) -> Result<(), Clash> {
        let end = (offset + bytes).min(self.lines.len() * LINE);
        let mut at = offset;
        while at < end {
            let line = &mut self.lines[at / LINE];
            if line.era != self.era {
                line.era = self.era;
                line.join();
            }
            let stop = (at / LINE * LINE + LINE).min(end);
            let here = new.after(at - offset);
            let full = stop - at == LINE;
            if full && !line.split {
                if let Some(old) = line.whole.access(&here, known, LINE) {
                    return Err(Clash::new(at, old, here));
                }
            } else {
                access_chunks(line, at, stop, here, known)?;
                if full && new.kind == Kind::Write {
                    line.join();
                    line.whole.few[0] = here;
                }
            }
            at = stop;
        }
        Ok(())
    }
}

/// An access to `[start, stop)` within one line.
#[inline(always)]
fn access_chunks(
    line: &mut Line,
    start: usize,
    stop: usize,
    new: Record,
    known: &Known<'_>,
) -> Result<(), Clash> {
    let chunks = line.chunks();
    let mut at = start;
    while at < stop {
        let base = at / CHUNK * CHUNK;
        let next = (base + CHUNK).min(stop);
        let here = new.after(at - start).within(at - base, next - base);
        if let Some(old) = chunks[at % LINE / CHUNK].access(&here, known, CHUNK) {
            return Err(Clash::new(base, old, here));
        }
        at = next;
    }
    Ok(())
}
