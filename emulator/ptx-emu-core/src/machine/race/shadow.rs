//! The recorded accesses to a CTA's shared memory.
//!
//! A [`History`] is a list of accesses that later ones must still be compared
//! with. An access that comes after an older one and conflicts with everything
//! the older one conflicts with replaces it, so a list holds at most a few
//! entries for each agent. Memory is remembered by line of 128 bytes as long as
//! all its accesses are of whole lines, as those of coalesced warps and of bulk
//! copies are; the first other access splits the line into words of 4 bytes,
//! whose entries have byte masks. A plain write of the whole line joins it
//! again.

use super::lanes::Known;
use crate::machine::access::lanes;

/// Bytes of a line.
pub(super) const LINE: usize = 128;
/// Bytes of a chunk, and bits of a mask.
pub(super) const CHUNK: usize = 4;
/// Chunks of a line.
const CHUNKS: usize = LINE / CHUNK;
/// All bytes of a chunk.
const WHOLE: u16 = (1 << CHUNK) - 1;
/// `Record::step` of an access that is not spread over lanes: all of `Record::lanes` access all of it.
const SAME_BYTES: u8 = u8::MAX;

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
    /// The kinds that conflict with all that this one conflicts with: those of a number in all bits but
    /// some.
    #[inline(always)]
    pub(super) const fn stand_ins(self) -> (u8, u8) {
        match self {
            Self::Read => (Self::Read as u8, 1),
            Self::Write => (Self::Write as u8, 0),
            Self::StrongRead => (0, 3),
            Self::StrongWrite => (Self::Write as u8, 2),
        }
    }

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
    /// Lanes of an access that is not spread over them.
    lanes: u32,
    /// Number of the warp instruction that it is a part of, as far as that fits; 0: none.
    pub(super) instruction: u16,
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
        step: SAME_BYTES,
        lanes: 0,
        instruction: 0,
    };

    /// An access of `agent` in its present epoch, all of it by one lane.
    pub(super) fn new(agent: u16, epoch: u32, kind: Kind, pc: u32, warp: u16, lane: u32) -> Self {
        let lanes = 1u32.checked_shl(lane).unwrap_or(0);
        let (mask, lane, step) = (WHOLE, lane as i8, SAME_BYTES);
        Self { epoch, pc, agent, warp, mask, kind, lane, step, lanes, instruction: 0 }
    }

    /// The same by several lanes, at least one, to the same bytes.
    pub(super) fn by_several(self, lanes: u32) -> Self {
        Self { lane: lanes.trailing_zeros() as i8, lanes, step: SAME_BYTES, ..self }
    }

    /// The same by consecutive lanes from `lane` on, each `bytes`, a power of
    /// two.
    pub(super) fn by_lanes(self, lane: usize, bytes: usize) -> Self {
        Self { lane: lane as i8, step: bytes.trailing_zeros() as u8, ..self }
    }

    /// The lanes of an access to whole words: the first one, how many more access the same bytes, and log2 of the bytes after
    /// which it is the next one. `None` if several lanes share a word in another way.
    #[inline(always)]
    pub(super) fn word_lanes(&self) -> Option<(u32, u32, u32)> {
        if self.step != SAME_BYTES {
            let whole = 1usize << self.step >= CHUNK;
            return whole.then_some((self.lane as u32, 0, self.step.into()));
        }
        let first = self.lanes.trailing_zeros();
        let run = self.lanes.checked_shr(first)?;
        let consecutive = run & run.wrapping_add(1) == 0;
        consecutive.then_some((first, run.count_ones() - 1, 31))
    }

    /// Lanes that `bytes` bytes take.
    fn lanes(&self, bytes: usize) -> i8 {
        if self.step == SAME_BYTES { 0 } else { (bytes >> self.step) as i8 }
    }

    /// The part of the access that starts `bytes` on.
    pub(super) fn after(self, bytes: usize) -> Self {
        Self { lane: self.lane + self.lanes(bytes), ..self }
    }

    /// The access as one of bytes `from` to `to` of a chunk.
    fn within(self, from: usize, to: usize) -> Self {
        let mask = (WHOLE >> (CHUNK - (to - from))) << from;
        Self { mask, lane: self.lane - self.lanes(from), ..self }
    }

    /// The same for a chunk that one lane accesses alone, so that it can be joined with others.
    #[inline(always)]
    fn of_chunk(self) -> Self {
        let alone = self.step != SAME_BYTES && 1 << self.step >= CHUNK;
        if alone && self.mask != 0 { self.by_several(1 << (self.lane & 31)) } else { self }
    }

    /// Lane of a byte of the line or chunk.
    fn lane_at(&self, byte: usize) -> u32 {
        (self.lane + self.lanes(byte)) as u32
    }

    /// Lanes that accessed a byte of the line or chunk.
    pub(super) fn lanes_at(&self, byte: usize) -> u32 {
        if self.step == SAME_BYTES { self.lanes } else { 1 << (self.lane_at(byte) % 32) }
    }

    /// Whether both are parts of one warp instruction.
    #[inline(always)]
    pub(super) fn is_part_of(&self, new: &Self) -> bool {
        new.instruction != 0
            && (self.instruction, self.pc, self.epoch) == (new.instruction, new.pc, new.epoch)
    }

    /// Whether each byte of `new` is accessed by lanes that access it here.
    #[inline(always)]
    pub(super) fn has_lanes_of(&self, new: &Self) -> bool {
        self.step == new.step
            && if self.step == SAME_BYTES {
                new.lanes & !self.lanes == 0
            } else {
                self.lane == new.lane
            }
    }

    /// Whether no byte is accessed by several lanes.
    #[inline(always)]
    pub(super) fn is_by_one(&self) -> bool {
        self.step != SAME_BYTES || self.lanes & self.lanes.wrapping_sub(1) == 0
    }

    /// Takes up the lanes of another access of the same epoch to the same bytes, if that says as
    /// much as two records.
    fn takes(&mut self, new: &Self) -> bool {
        let same = self.step == SAME_BYTES
            && new.step == SAME_BYTES
            && (self.agent, self.epoch, self.mask, self.kind)
                == (new.agent, new.epoch, new.mask, new.kind);
        if same {
            self.lanes |= new.lanes;
        }
        same
    }

    /// Whether the access races with a later one. Forgets what that one stands for.
    #[inline(always)]
    fn compare(&mut self, new: &Self, known: &Known<'_>, bytes: usize) -> bool {
        let both = self.mask & new.mask;
        // Reads of several agents, or of one epoch, say nothing about each other.
        let reads = self.kind == Kind::Read && new.kind == Kind::Read;
        if both == 0 || reads && (self.agent != new.agent || self.epoch == new.epoch) {
            return false;
        }
        let shared = (0..bytes).filter(move |byte| bytes == LINE || both >> byte & 1 != 0);
        let ordered = if self.agent == new.agent {
            known.own_before(self, new, shared.clone())
        } else {
            known.knows(self, shared.clone())
        };
        if ordered {
            known.check_fenced(self, shared);
            if new.kind.covers() & self.kind.bit() != 0 {
                self.mask &= !new.mask;
            }
            return false;
        }
        // Lanes of one instruction do not race by this, but one does not stand for another.
        if self.agent == new.agent && self.is_part_of(new) {
            return false;
        }
        new.kind.conflicts() & self.kind.bit() != 0
    }

    /// Whether `self` says all that `new` would: the same agent in the same
    /// epoch. Whatever conflicted with it since was compared then. `whole`: lanes of the agent are
    /// not told apart.
    #[inline(always)]
    fn says(&self, new: &Self, whole: bool) -> bool {
        self.epoch == new.epoch
            && self.agent == new.agent
            && self.mask & new.mask == new.mask
            && self.kind.covers() & new.kind.bit() != 0
            && (whole || self.has_lanes_of(new))
    }
}

/// Accesses to one place that later ones are compared with.
#[derive(Debug, Clone)]
struct History {
    /// Records without an allocation: most often the last write and some readers.
    few: [Record; 4],
    more: Vec<Record>,
    /// Bits of the agents, by the last digits of their numbers, that may have a read here.
    readers: u32,
    /// Bits of `few` that may be more than reads.
    writes: u8,
    /// Records of `more` may be more than reads.
    more_writes: bool,
}

impl History {
    const EMPTY: Self = Self {
        few: [Record::NONE; 4],
        more: Vec::new(),
        readers: 0,
        writes: 0,
        more_writes: false,
    };

    /// There are no accesses.
    fn is_empty(&self) -> bool {
        self.few.iter().chain(&self.more).all(|record| record.mask == 0)
    }

    fn clear(&mut self) {
        self.few = [Record::NONE; 4];
        self.more.clear();
        (self.readers, self.writes, self.more_writes) = (0, 0, false);
    }

    /// Becomes a copy of another one for the part of it that starts `bytes` on.
    #[inline(always)]
    fn become_part(&mut self, of: &Self, bytes: usize) {
        let Self { few, more, readers, writes, more_writes } = of;
        let part = |record: Record| record.after(bytes).of_chunk();
        self.few = few.map(part);
        self.more.clear();
        self.more.extend(more.iter().copied().map(part));
        (self.readers, self.writes, self.more_writes) = (*readers, *writes, *more_writes);
    }

    /// Adds a record that stands beside the others.
    #[inline(always)]
    fn push(&mut self, new: &Record) {
        let writes = new.kind != Kind::Read;
        if !writes {
            self.readers |= 1 << (new.agent % 32);
        }
        match self.few.iter().position(|slot| slot.mask == 0) {
            Some(at) => {
                self.few[at] = *new;
                self.writes = self.writes & !(1 << at) | u8::from(writes) << at;
            }
            None => {
                self.more.push(*new);
                self.more_writes |= writes;
            }
        }
    }

    /// Counts the agents and kinds of what is left behind a write.
    fn recount(&mut self) {
        let all = self.few.iter().chain(&self.more).filter(|old| old.mask != 0);
        let reads = all.filter(|old| old.kind == Kind::Read);
        self.readers = reads.fold(0, |all, old| all | 1 << (old.agent % 32));
        self.more_writes = self.more.iter().any(|old| old.kind != Kind::Read);
    }

    /// Adds a read by an agent that has none here: it is compared with what is more than a read.
    #[inline(always)]
    fn first_read(&mut self, new: &Record, known: &Known<'_>, bytes: usize) -> Option<Record> {
        let mut rest = self.writes;
        while rest != 0 {
            let old = &mut self.few[rest.trailing_zeros() as usize];
            if old.says(new, known.whole) {
                return None;
            }
            if old.compare(new, known, bytes) {
                return Some(*old);
            }
            rest &= rest - 1;
        }
        self.push(new);
        None
    }

    /// Adds an access of an agent that knows `known`, to a line or chunk of `bytes` bytes;
    /// `Some` is an access that it races with.
    #[inline(always)]
    fn access(&mut self, new: &Record, known: &Known<'_>, bytes: usize) -> Option<Record> {
        let reader = self.readers >> (new.agent % 32) & 1 != 0;
        if known.whole && new.kind == Kind::Read && !reader && !self.more_writes {
            return self.first_read(new, known, bytes);
        }
        let says = |old: &Record| old.says(new, known.whole);
        if self.few.iter().any(says) || self.more.iter().any(says) {
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
            let mut gone = false;
            for old in &mut self.more {
                if old.compare(new, known, bytes) {
                    return Some(*old);
                }
                gone |= old.mask == 0;
            }
            if gone {
                self.more.retain(|old| old.mask != 0);
            }
        }
        let merges = !known.whole && new.step == SAME_BYTES;
        if merges && self.few.iter_mut().chain(&mut self.more).any(|old| old.takes(new)) {
            return None;
        }
        self.push(new);
        if new.kind != Kind::Read {
            self.recount();
        }
        None
    }
}

/// A line of shared memory.
#[derive(Debug, Clone)]
struct Line {
    /// Era of the shadow in which the rest has a meaning.
    era: u64,
    /// The chunks have their own histories, those of `own` already.
    split: bool,
    own: u32,
    /// The history of the line, while it is split as it was then.
    whole: History,
    /// Kept when the line is joined.
    chunks: Option<Box<[History; CHUNKS]>>,
}

impl Line {
    fn join(&mut self) {
        self.split = false;
        self.whole.clear();
    }

    /// The history of a chunk of a line that is split, or is from here on: that of the line until its own
    /// first access.
    #[inline(always)]
    fn chunk(&mut self, at: usize) -> &mut History {
        if !self.split {
            self.split = true;
            self.own = 0;
        }
        let chunks = self.chunks.get_or_insert_with(|| Box::new([History::EMPTY; CHUNKS]));
        let chunk = &mut chunks[at];
        if self.own >> at & 1 == 0 {
            self.own |= 1 << at;
            chunk.become_part(&self.whole, CHUNK * at);
        }
        chunk
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
    /// A clash in the line or chunk of `bytes` bytes at `base`.
    #[cold]
    fn new(base: usize, bytes: usize, old: Record, new: Record) -> Self {
        let shared = old.mask & new.mask;
        let first = shared.trailing_zeros() as usize;
        let mut clash = Self {
            offset: base + first,
            old,
            new,
            lanes: (old.lane_at(first) % 32, new.lane_at(first) % 32),
        };
        if old.agent == new.agent {
            // Lanes of one warp: two of them.
            for byte in (0..bytes).filter(|byte| bytes == LINE || shared >> byte & 1 != 0) {
                let (theirs, mine) = (old.lanes_at(byte), new.lanes_at(byte));
                if theirs | mine != 0 && (theirs | mine).count_ones() > 1 {
                    let here = mine.trailing_zeros();
                    let others = theirs & !(1 << here);
                    let (there, here) = if others == 0 {
                        (here, (mine & !theirs).trailing_zeros())
                    } else {
                        (others.trailing_zeros(), here)
                    };
                    clash.offset = base + byte;
                    clash.lanes = (there % 32, here % 32);
                    break;
                }
            }
        }
        clash
    }

    /// Two lanes of one instruction store different values at `offset`.
    pub(super) fn of_instruction(offset: usize, record: Record, lanes: (u32, u32)) -> Self {
        let [old, new] = [lanes.0, lanes.1].map(|lane| record.by_several(1 << lane));
        Self { offset, old, new, lanes }
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
        let line = Line { era: 0, split: false, own: 0, whole: History::EMPTY, chunks: None };
        self.lines.resize(bytes.div_ceil(LINE), line);
    }

    /// Whether nothing is remembered of some words of a line.
    pub(super) fn is_clear(&self, line: usize, words: u32) -> bool {
        let line = &self.lines[line];
        if line.era != self.era {
            return true;
        }
        let own = if line.split { line.own & words } else { 0 };
        let own_is_clear = |chunks: &[History; CHUNKS]| lanes(own).all(|at| chunks[at].is_empty());
        (words & !own == 0 || line.whole.is_empty())
            && (own == 0 || line.chunks.as_deref().is_none_or(own_is_clear))
    }

    /// The line in the present era.
    #[inline(always)]
    fn line(&mut self, at: usize) -> &mut Line {
        let line = &mut self.lines[at];
        if line.era != self.era {
            line.era = self.era;
            line.join();
        }
        line
    }

    /// Takes up all that is to be remembered of a word of which nothing is.
    pub(super) fn put(&mut self, word: usize, records: impl Iterator<Item = Record>) {
        let chunk = self.line(word / CHUNKS).chunk(word % CHUNKS);
        records.for_each(|record| chunk.push(&record));
    }

    /// The same of a line.
    pub(super) fn put_line(&mut self, line: usize, records: impl Iterator<Item = Record>) {
        let line = self.line(line);
        line.join();
        records.for_each(|record| line.whole.push(&record));
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
            let line = self.line(at / LINE);
            let stop = (at / LINE * LINE + LINE).min(end);
            let here = new.after(at - offset);
            let full = stop - at == LINE;
            if full && !line.split {
                if let Some(old) = line.whole.access(&here, known, LINE) {
                    return Err(Clash::new(at, LINE, old, here));
                }
            } else {
                access_chunks(line, at, stop, here, known)?;
                if full && new.kind == Kind::Write {
                    line.join();
                    line.whole.push(&here);
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
    let mut at = start;
    while at < stop {
        let base = at / CHUNK * CHUNK;
        let next = (base + CHUNK).min(stop);
        let here = new.after(at - start).within(at - base, next - base).of_chunk();
        if let Some(old) = line.chunk(at % LINE / CHUNK).access(&here, known, CHUNK) {
            return Err(Clash::new(base, CHUNK, old, here));
        }
        at = next;
    }
    Ok(())
}
