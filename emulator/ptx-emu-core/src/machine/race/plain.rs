//! Weak accesses to whole words by warps of the CTA whose lanes are together: most accesses of ordinary code. Each word has
//! its last write and the last read of each warp since, in tables, so that most first accesses are a few stores
//! for a whole row of lanes.
//!
//! A table says what the history of the shadow would, for words that are *owned*. Whatever else touches a word, or would
//! race with what is in the tables, moves that to the shadow first and is looked at there.

use super::clock::Clock;
use super::shadow::{CHUNK as WORD, Kind, LINE, Record, Shadow};
use crate::machine::access::lanes;
use crate::machine::regs::LANES;

/// Words of a line.
const WORDS: usize = LINE / WORD;
/// Bits of what a table says beside the epoch: the first lane, the number of further lanes, the instruction.
const LANE_BITS: u32 = 5;
const PC_BITS: u32 = 32 - 2 * LANE_BITS;
/// Place of the era in the key of a write, and eras before the tables are cleared.
const ERA: u32 = 48;
const ERAS: u64 = 1 << (64 - ERA);
/// The key of a line of which a part was accessed since it was last written.
const MIXED: u64 = 0;

/// An access to a word without its epoch: an instruction, a lane and how many follow it.
const fn what(pc: u32, first: u32, more: u32) -> u32 {
    pc << (2 * LANE_BITS) | more << LANE_BITS | first
}

/// The record of an access to a word.
fn record(agent: u16, epoch: u32, kind: Kind, what: u32) -> Record {
    let first = what & 31;
    let lanes = (u32::MAX >> (31 - (what >> LANE_BITS & 31))) << first;
    Record::new(agent, epoch, kind, what >> (2 * LANE_BITS), agent, 0).by_several(lanes)
}

/// The last write of a word, and who has read it since.
#[derive(Debug, Default, Clone, Copy)]
struct Word {
    /// Era, warp and epoch of the write; warp and epoch are 0 if there was none, the era if the word is not owned.
    writer: u64,
    what: u32,
    /// Warps of the CTA.
    readers: u32,
}

impl Word {
    fn record(&self) -> Option<Record> {
        let (agent, epoch) = ((self.writer >> 32) as u16, self.writer as u32);
        (epoch != 0).then(|| record(agent, epoch, Kind::Write, self.what))
    }
}

/// The last read of a word, or of all words of a line, by a warp.
#[derive(Debug, Default, Clone, Copy)]
struct Read {
    epoch: u32,
    what: u32,
    /// Number of the instruction that was the first since the last write.
    since: u32,
    /// log2 of the bytes of a line after which it is the next lane.
    step: u32,
}

impl Read {
    fn record(&self, agent: usize) -> Record {
        record(agent as u16, self.epoch, Kind::Read, self.what)
    }
}

/// A line of words.
#[derive(Debug, Default, Clone, Copy)]
struct Line {
    /// Words that are owned. Tables say nothing of the rest.
    owned: u32,
    /// Warps that read the whole line since it was last written.
    readers: u32,
    /// The writer of all its words.
    writer: u64,
    /// log2 of the bytes after which it is the next lane.
    step: u32,
}

/// An access that may have a place in the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    agent: u16,
    /// Number of the warp in its CTA, below 32.
    warp: usize,
    epoch: u32,
    write: bool,
    /// Number of the instruction.
    time: u32,
    /// The instruction and lanes of the first word, and log2 of the bytes after which it is the next lane.
    what: u32,
    step: u32,
}

impl Access {
    /// `None`: the shadow has to look at it.
    #[inline(always)]
    pub(super) fn new(record: &Record, warp: usize, time: u32) -> Option<Self> {
        let write = match record.kind {
            Kind::Read => false,
            Kind::Write => true,
            Kind::StrongRead | Kind::StrongWrite => return None,
        };
        let (first, more, step) = record.word_lanes()?;
        if warp >= 32 || record.pc >> PC_BITS != 0 {
            return None;
        }
        let what = what(record.pc, first, more);
        let (agent, epoch) = (record.agent, record.epoch);
        Some(Self { agent, warp, epoch, write, time, what, step })
    }

    /// The instruction and lanes of a word, the number of which is counted from the first one.
    #[inline(always)]
    fn what(&self, word: usize) -> u32 {
        self.what + ((WORD * word) as u32 >> self.step)
    }

    #[inline(always)]
    fn bit(&self) -> u32 {
        1 << self.warp
    }
}

/// The tables of a CTA's shared memory.
#[derive(Debug, Default)]
pub(super) struct Tables {
    era: u64,
    lines: Vec<Line>,
    words: Vec<Word>,
    /// Reads of words and of lines by each warp.
    reads: Vec<Vec<Read>>,
    line_reads: Vec<Vec<Read>>,
}

/// Knowledge of an access: epochs of all agents, and the first agent of the CTA's warps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knowledge<'a> {
    pub(super) clock: &'a Clock,
    pub(super) first: usize,
}

impl Knowledge<'_> {
    #[inline(always)]
    fn has_read(&self, warp: usize, read: &Read) -> bool {
        self.clock.get(self.first + warp) >= read.epoch
    }

    /// Whether a write in an era comes before an access.
    #[inline(always)]
    fn has_write(&self, writer: u64, era: u64, new: &Access) -> bool {
        let (agent, epoch) = ((writer >> 32) as u16, writer as u32);
        writer >> ERA == era && (agent == new.agent || self.clock.get(agent.into()) >= epoch)
    }
}

/// The bits of some words of a line.
const fn bits(from: usize, to: usize) -> u32 {
    (u32::MAX >> (WORDS - (to - from))) << from
}

/// Whether all parts of a range of words, each in one line, are as they have to be: the line, and the words.
#[inline(always)]
fn all_parts(
    words: &std::ops::Range<usize>,
    mut are: impl FnMut(usize, std::ops::Range<usize>) -> bool,
) -> bool {
    let mut at = words.start;
    while at < words.end {
        let (from, line) = (at, at / WORDS);
        at = ((line + 1) * WORDS).min(words.end);
        if !are(line, from..at) {
            return false;
        }
    }
    true
}

/// Whether all lanes, or warps, of a mask are as they have to be.
#[inline(always)]
fn all_of(mask: u32, are: impl Fn(usize) -> bool) -> bool {
    let mut rest = mask;
    while rest != 0 {
        if !are(rest.trailing_zeros() as usize) {
            return false;
        }
        rest &= rest - 1;
    }
    true
}

impl Tables {
    /// Forgets everything: the CTA has `warps` warps.
    pub(super) fn reset(&mut self, bytes: usize, warps: usize) {
        let lines = bytes.div_ceil(LINE);
        self.era += 1;
        if self.era == ERAS || self.lines.len() != lines {
            self.era = 1;
            self.words.clear();
            self.words.resize(lines * WORDS, Word::default());
            (self.reads, self.line_reads) = (Vec::new(), Vec::new());
        }
        self.lines.clear();
        self.lines.resize(lines, Line::default());
        let warps = warps.max(self.reads.len());
        self.reads.resize_with(warps, Vec::new);
        self.line_reads.resize_with(warps, Vec::new);
    }

    /// Remembers an access to a range of bytes. False: nothing was done, the shadow has to look at it.
    #[inline(always)]
    pub(super) fn access(
        &mut self,
        shadow: &Shadow,
        (offset, bytes): (usize, usize),
        new: &Access,
        known: Knowledge<'_>,
    ) -> bool {
        if (offset | bytes) % WORD != 0 || offset + bytes > WORD * self.words.len() {
            return false;
        }
        let words = offset / WORD..(offset + bytes) / WORD;
        let owned = all_parts(&words, |line, part| {
            let here = bits(part.start % WORDS, part.start % WORDS + part.len());
            if self.lines[line].owned & here != here && !self.own(shadow, line, here) {
                return false;
            }
            if here != u32::MAX {
                self.lines[line].writer = MIXED;
            }
            true
        });
        if !owned {
            return false;
        }
        if new.write { self.write(words, new, known) } else { self.read(words, new, known) }
    }

    /// Remembers that lanes of a mask access a word each, none the same as the lane before it. Returns the first lanes of
    /// those, for which this could be done. The access says that it starts at lane 0.
    #[inline(always)]
    pub(super) fn access_lanes(
        &mut self,
        shadow: &Shadow,
        (offsets, mask): (&[u32; LANES], u32),
        new: &Access,
        known: Knowledge<'_>,
    ) -> u32 {
        let own = self.key(new);
        self.make_room(new.warp);
        let (mut done, mut last) = (0, own);
        for lane in lanes(mask) {
            let (offset, at) = (offsets[lane], offsets[lane] as usize / WORD);
            if !(offset as usize).is_multiple_of(WORD) || at >= self.words.len() {
                break;
            }
            if self.words[at].writer >> ERA != self.era
                && !self.own(shadow, at / WORDS, 1 << (at % WORDS))
            {
                break;
            }
            let word = &mut self.words[at];
            if word.writer != last {
                if !known.has_write(word.writer, self.era, new) {
                    break;
                }
                last = word.writer;
            }
            self.lines[at / WORDS].writer = MIXED;
            if !new.write {
                self.read_word(at, lane, own, new);
            } else if word.writer != own {
                let readers = word.readers & !new.bit();
                if self.lines[at / WORDS].readers != 0
                    || !all_of(readers, |of| known.has_read(of, &self.reads[of][at]))
                {
                    break;
                }
                *word = Word { writer: own, what: new.what(lane), readers: 0 };
            }
            done |= 1 << lane;
        }
        done
    }

    /// Takes words of a line that nobody has accessed.
    #[inline(never)]
    fn own(&mut self, shadow: &Shadow, line: usize, here: u32) -> bool {
        let all = !self.lines[line].owned;
        let missing = if shadow.is_clear(line, all) { all } else { here & all };
        if !shadow.is_clear(line, missing) {
            return false;
        }
        self.spread_reads(line);
        let nobody = Word { writer: self.era << ERA, what: 0, readers: 0 };
        for at in lanes(missing) {
            self.words[line * WORDS + at] = nobody;
        }
        let of = &mut self.lines[line];
        of.writer = if missing == u32::MAX { nobody.writer } else { MIXED };
        of.step = WORD.trailing_zeros();
        of.owned |= missing;
        true
    }

    /// Whether all that wrote these words is known.
    #[inline(always)]
    fn knows_writes(&self, words: &[Word], new: &Access, known: Knowledge<'_>) -> bool {
        let mut last = MIXED;
        for word in words {
            if word.writer != last {
                if !known.has_write(word.writer, self.era, new) {
                    return false;
                }
                last = word.writer;
            }
        }
        true
    }

    /// The key of a write.
    #[inline(always)]
    fn key(&self, new: &Access) -> u64 {
        self.era << ERA | u64::from(new.agent) << 32 | u64::from(new.epoch)
    }

    /// Makes room for reads by a warp.
    #[inline(always)]
    fn make_room(&mut self, warp: usize) {
        if self.reads[warp].is_empty() {
            self.add_room(warp);
        }
    }

    #[cold]
    fn add_room(&mut self, warp: usize) {
        self.reads[warp].resize(self.words.len(), Read::default());
        self.line_reads[warp].resize(self.lines.len(), Read::default());
    }

    /// Whether all that wrote a part of a line is known.
    #[inline(always)]
    fn knows_part(
        &self,
        line: usize,
        part: &std::ops::Range<usize>,
        new: &Access,
        known: Knowledge<'_>,
    ) -> bool {
        match self.lines[line].writer {
            MIXED => self.knows_writes(&self.words[part.clone()], new, known),
            writer => known.has_write(writer, self.era, new),
        }
    }

    #[inline(always)]
    fn read(&mut self, words: std::ops::Range<usize>, new: &Access, known: Knowledge<'_>) -> bool {
        if !all_parts(&words, |line, part| self.knows_part(line, &part, new, known)) {
            return false;
        }
        let own = self.key(new);
        self.make_room(new.warp);
        all_parts(&words, |line, part| {
            if self.lines[line].writer == MIXED {
                for at in part {
                    self.read_word(at, at - words.start, own, new);
                }
            } else if self.lines[line].writer != own {
                self.read_line(line, part.start - words.start, new);
            }
            true
        })
    }

    /// Remembers the read of a word, a part of the access, after a write that is known.
    #[inline(always)]
    fn read_word(&mut self, at: usize, part: usize, own: u64, new: &Access) {
        let (word, line) = (&mut self.words[at], at / WORDS);
        if word.writer == own {
            return;
        }
        let read = &mut self.reads[new.warp][at];
        let before = word.readers & new.bit() != 0;
        if before && read.epoch == new.epoch {
            return;
        }
        let mut since = new.time;
        if self.lines[line].readers & new.bit() != 0 {
            let row = &self.line_reads[new.warp][line];
            if row.epoch == new.epoch {
                return;
            }
            since = row.since;
        }
        if before {
            since = read.since;
        }
        *read = Read { epoch: new.epoch, what: new.what(part), since, step: 0 };
        word.readers |= new.bit();
    }

    /// Remembers the read of a whole line, a part of the access.
    #[inline(always)]
    fn read_line(&mut self, at: usize, part: usize, new: &Access) {
        let (line, read) = (&mut self.lines[at], &mut self.line_reads[new.warp][at]);
        let before = line.readers & new.bit() != 0;
        if !before || read.epoch != new.epoch {
            let since = if before { read.since } else { new.time };
            *read = Read { epoch: new.epoch, what: new.what(part), since, step: new.step };
            line.readers |= new.bit();
        }
    }

    #[inline(always)]
    fn write(&mut self, words: std::ops::Range<usize>, new: &Access, known: Knowledge<'_>) -> bool {
        let own = self.key(new);
        let known = all_parts(&words, |line, part| {
            self.knows_part(line, &part, new, known)
                && (self.lines[line].writer != MIXED || {
                    let readers_of = |at: usize| self.words[at].readers & !new.bit();
                    let has_read = |at, of: usize| known.has_read(of, &self.reads[of][at]);
                    part.into_iter().all(|at| all_of(readers_of(at), |of| has_read(at, of)))
                })
                && all_of(self.lines[line].readers & !new.bit(), |of| {
                    known.has_read(of, &self.line_reads[of][line])
                })
        });
        if !known {
            return false;
        }
        let start = words.start;
        all_parts(&words, |line, part| {
            let whole = part.len() == WORDS;
            if whole && self.lines[line].writer == own {
                return true;
            }
            if !whole && self.lines[line].readers != 0 {
                self.spread_reads(line);
            }
            for at in part {
                // A write of a whole line takes the place of the words' own.
                if whole || self.words[at].writer != own {
                    self.words[at] = Word { writer: own, what: new.what(at - start), readers: 0 };
                }
            }
            if whole {
                let line = &mut self.lines[line];
                (line.readers, line.writer, line.step) = (0, own, new.step);
            }
            true
        })
    }

    /// Reads of a whole line become reads of its words.
    fn spread_reads(&mut self, line: usize) {
        for of in lanes(std::mem::take(&mut self.lines[line].readers)) {
            let row = self.line_reads[of][line];
            for (lane, at) in (line * WORDS..(line + 1) * WORDS).enumerate() {
                let (word, read) = (&mut self.words[at], &mut self.reads[of][at]);
                let before = word.readers >> of & 1 != 0;
                let since = if before { read.since.min(row.since) } else { row.since };
                if !before || read.epoch < row.epoch {
                    *read = Read { what: row.what + ((WORD * lane) as u32 >> row.step), ..row };
                }
                read.since = since;
                word.readers |= 1 << of;
            }
        }
    }

    /// Moves what is known of a range of bytes to the shadow. `first` is the first agent of the CTA's warps.
    #[inline(always)]
    pub(super) fn leave(
        &mut self,
        shadow: &mut Shadow,
        (offset, bytes): (usize, usize),
        first: usize,
    ) {
        let end = (offset + bytes).div_ceil(WORD).min(self.words.len());
        all_parts(&(offset / WORD..end), |line, part| {
            let here = bits(part.start % WORDS, part.start % WORDS + part.len());
            if self.lines[line].owned & here != 0 {
                self.leave_line(shadow, line, here, first);
            }
            true
        });
    }

    #[inline(never)]
    fn leave_line(&mut self, shadow: &mut Shadow, line: usize, here: u32, first: usize) {
        if here & self.lines[line].owned == u32::MAX && self.leave_whole(shadow, line, first) {
            return;
        }
        self.spread_reads(line);
        let leaving = here & self.lines[line].owned;
        self.lines[line].owned &= !here;
        for at in lanes(leaving) {
            let at = line * WORDS + at;
            let word = std::mem::take(&mut self.words[at]);
            let mut readers: Vec<usize> = lanes(word.readers).collect();
            readers.sort_by_key(|&of| self.reads[of][at].since);
            let reads = readers.into_iter().map(|of| self.reads[of][at].record(first + of));
            shadow.put(at, word.record().into_iter().chain(reads));
        }
    }

    /// The same of a line no part of which was accessed alone.
    fn leave_whole(&mut self, shadow: &mut Shadow, line: usize, first: usize) -> bool {
        let Line { readers, writer, step, .. } = self.lines[line];
        if writer == MIXED || !shadow.is_clear(line, u32::MAX) {
            return false;
        }
        let words = &mut self.words[line * WORDS..(line + 1) * WORDS];
        let spread =
            |record: Record, what: u32, step: u32| record.by_lanes(what as usize & 31, 1 << step);
        let write = words[0].record().map(|write| spread(write, words[0].what, step));
        words.fill(Word::default());
        self.lines[line] = Line::default();
        let mut readers: Vec<usize> = lanes(readers).collect();
        readers.sort_by_key(|&of| self.line_reads[of][line].since);
        let reads = readers.into_iter().map(|of| {
            let read = &self.line_reads[of][line];
            spread(read.record(first + of), read.what, read.step)
        });
        shadow.put_line(line, write.into_iter().chain(reads));
        true
    }
}
