//! The last access to each word of a CTA's shared memory, if it may be repeated for nothing: what a warp
//! did in its present epoch needs no second look, since nobody can have learned of that epoch, and
//! whoever has touched the word since was compared with it then.
//!
//! Only warps whose lanes are together have stamps, in accesses of whole words. A stamp says less than the
//! histories and flags, never more: where it is gone, those are asked.

use super::shadow::{CHUNK as WORD, Record};
use super::{AgentId, Flag, Order};
use crate::machine::regs::LANES;

/// The lower of the two bits of a stamp that are the kind.
const KIND: u32 = 48;
/// Eras before stamps are cleared: what fits beside a kind, an agent and an epoch.
const ERAS: u64 = 1 << 14;

/// The stamps of a CTA's shared memory.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// Cluster that the stamps are of; 0 is of none.
    era: u64,
    /// Era, kind, agent and epoch of a recorded access to each word.
    accesses: Vec<u64>,
    /// Era, warp and epoch of the relaxed write and of the relaxed read of each word as a flag after
    /// which nothing about it has changed.
    flags: Vec<[u64; 2]>,
}

impl Stamps {
    /// Forgets everything.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.era += 1;
        let words = bytes.div_ceil(WORD);
        if self.era == ERAS || self.accesses.len() != words {
            self.era = 1;
            self.accesses.clear();
            self.accesses.resize(words, 0);
            self.flags.clear();
            self.flags.resize(words, [0; 2]);
        }
    }

    #[inline(always)]
    fn key(&self, agent: usize, epoch: u32) -> u64 {
        self.era << 50 | (agent as u64 & 0xffff) << 32 | u64::from(epoch)
    }

    /// The bits that the stamp of a word has, and which of them count, if its access says all that `new` does.
    #[inline(always)]
    fn wanted(&self, new: &Record) -> (u64, u64) {
        let key = self.key(new.agent.into(), new.epoch);
        let (kind, either) = new.kind.stand_ins();
        (key | u64::from(kind) << KIND, !(u64::from(either) << KIND))
    }

    /// Whether an access to the words of a range says nothing new about any of them.
    #[inline(always)]
    pub(super) fn repeats(&self, offset: usize, bytes: usize, new: &Record) -> bool {
        let words = offset / WORD..(offset + bytes).div_ceil(WORD);
        let Some(stamps) = self.accesses.get(words) else { return false };
        let (wanted, bits) = self.wanted(new);
        stamps.iter().fold(0, |other, stamp| other | (stamp ^ wanted) & bits) == 0
    }

    /// The lanes of `mask` whose access to at most a word, at these offsets, says something new.
    #[inline(always)]
    pub(super) fn news(&self, offsets: &[u32; LANES], mask: u32, new: &Record) -> u32 {
        let (wanted, bits) = self.wanted(new);
        let mut news = 0;
        for (lane, offset) in offsets.iter().enumerate() {
            let stamp = self.accesses.get(*offset as usize / WORD).copied().unwrap_or(0);
            news |= u32::from((stamp ^ wanted) & bits != 0) << lane;
        }
        news & mask
    }

    /// Notes that an access to the words of a range was recorded.
    #[inline(always)]
    pub(super) fn note(&mut self, offset: usize, bytes: usize, new: &Record) {
        let stamp = self.key(new.agent.into(), new.epoch) | (new.kind as u64) << KIND;
        let words = offset.div_ceil(WORD)..(offset + bytes) / WORD;
        if let Some(words) = self.accesses.get_mut(words) {
            words.fill(stamp);
        }
    }

    /// Whether a warp's access to a flag in its present epoch changes nothing. If it does, and is
    /// `quiet`, the next one of its kind will not, until somebody writes the flag.
    #[inline(always)]
    pub(super) fn repeats_flag(
        &mut self,
        word: usize,
        (warp, epoch): (AgentId, u32),
        write: bool,
        quiet: bool,
    ) -> bool {
        let key = self.key(warp, epoch);
        let Some([written, read]) = self.flags.get_mut(word) else { return false };
        let last = if write { &mut *written } else { &mut *read };
        if quiet && *last == key {
            return true;
        }
        *last = if quiet { key } else { 0 };
        if write {
            *read = 0;
        }
        false
    }
}

impl super::Races {
    /// Whether a strong access of a warp to a flag may be repeated for nothing.
    #[inline(always)]
    fn quiet_flag(&self, warp: AgentId, order: Order, write: bool) -> bool {
        order == Order::Relaxed
            && !self.lanes.are_parted(warp)
            && (!write || self.tensor.is_silent(warp))
    }

    /// Whether a strong access of a warp to a flag changes nothing; if it does, it has to follow.
    pub(super) fn repeats_flag(
        &mut self,
        warp: AgentId,
        order: Order,
        write: bool,
        flag: Flag,
    ) -> bool {
        let Flag::Shared(rank, word) = flag else { return false };
        let (quiet, epoch) = (self.quiet_flag(warp, order, write), self.epoch(warp));
        let Some(stamps) = self.stamps.get_mut(rank as usize) else { return false };
        stamps.repeats_flag(word as usize, (warp, epoch), write, quiet)
    }

    /// The stamps that a word has if an atomic of a warp, whose store is `record`, says nothing new.
    #[inline(always)]
    pub(super) fn repeated(
        &self,
        warp: AgentId,
        order: Order,
        may: bool,
        record: &Record,
        rank: u32,
    ) -> Repeated {
        let none = Repeated { access: (0, 0), flag: None };
        let Some(stamps) = self.stamps.get(rank as usize) else { return none };
        if !may || !self.quiet_flag(warp, order, true) {
            return none;
        }
        let flag = Some(stamps.key(warp, record.epoch));
        Repeated { access: stamps.wanted(record), flag }
    }

    /// Whether a word has such stamps.
    #[inline(always)]
    pub(super) fn repeats_atomic(&self, rank: u32, offset: usize, of: &Repeated) -> bool {
        let (Some(key), Some(stamps)) = (of.flag, self.stamps.get(rank as usize)) else {
            return false;
        };
        let (wanted, bits) = of.access;
        let access = stamps.accesses.get(offset / WORD);
        access.is_some_and(|stamp| (stamp ^ wanted) & bits == 0)
            && stamps.flags.get(offset / WORD) == Some(&[key; 2])
    }
}

/// The stamps that a word has if an atomic says nothing new.
#[derive(Debug, Clone, Copy)]
pub(in crate::machine) struct Repeated {
    /// The bits of the access's stamp, and which of them count.
    access: (u64, u64),
    /// The stamps of both accesses to the flag; `None`: every atomic is to be looked at.
    flag: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::super::shadow::Kind;
    use super::{ERAS, Record, Stamps};

    #[test]
    fn an_access_is_repeated_by_its_warp_in_its_epoch() {
        let mut stamps = Stamps::default();
        stamps.reset(64);
        let record = |agent, epoch, kind| Record::new(agent, epoch, kind, 7, agent, 0);
        stamps.note(6, 8, &record(1, 5, Kind::Write));
        assert!(!stamps.repeats(4, 4, &record(1, 5, Kind::Read)), "a part of the word");
        assert!(stamps.repeats(8, 4, &record(1, 5, Kind::Read)));
        assert!(stamps.repeats(10, 2, &record(1, 5, Kind::StrongWrite)));
        assert!(!stamps.repeats(8, 8, &record(1, 5, Kind::Read)), "the next word too");
        assert!(!stamps.repeats(8, 4, &record(2, 5, Kind::Read)));
        assert!(!stamps.repeats(8, 4, &record(1, 6, Kind::Read)));
        assert!(!stamps.repeats(12, 4, &record(1, 5, Kind::Read)));
        stamps.note(8, 4, &record(1, 5, Kind::StrongRead));
        assert!(!stamps.repeats(8, 4, &record(1, 5, Kind::Read)));
        for _ in 0..2 * ERAS {
            stamps.reset(64);
            assert!(!stamps.repeats(8, 4, &record(1, 5, Kind::StrongRead)));
        }
        assert!(!stamps.repeats(64, 4, &record(1, 5, Kind::Read)), "outside");
    }

    #[test]
    fn a_flag_is_repeated_until_it_is_written() {
        let mut stamps = Stamps::default();
        stamps.reset(64);
        let mut look = |warp, write, quiet| stamps.repeats_flag(3, (warp, 9), write, quiet);
        assert!(!look(1, true, true));
        assert!(!look(1, false, true));
        assert!(look(1, true, true) && look(1, false, true));
        assert!(!look(2, false, true));
        assert!(look(1, true, true), "a read changes nothing");
        assert!(!look(2, true, true));
        assert!(!look(2, false, true), "what it wrote is to be read");
        assert!(!look(1, true, true));
        assert!(!look(1, true, false) && !look(1, true, true));
    }
}
