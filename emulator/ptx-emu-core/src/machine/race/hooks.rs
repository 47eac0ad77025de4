//! The interface between executing instructions and race detection, and its reports.

use super::plain::{Access, Knowledge};
use super::shadow::{CHUNK, LINE};
use super::stamps::Repeated;
use super::{AgentId, Clash, Fence, Flag, Found, Kind, Origin, Place, Races, Record};
use crate::diagnostic::{
    AsyncFault, DataRace, DiagnosticKind, Exec, Fault, MissingOrder, RaceAccess, RaceSite,
    TensorFault,
};
use crate::machine::access::{Words, is_linear, is_uniform, lanes};
use crate::machine::code::BarrierOp;
use crate::machine::launch::Env;
use crate::machine::regs::{FULL, LANES};
use crate::machine::units::{At, MBARRIER_BYTES, Range, Reader, Site, Units, tensor_memory};
use crate::machine::{Barriers, Context, RANK_SHIFT};

/// Ordering semantics of a memory access (PTX ISA 8.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// `.weak`
    #[default]
    Weak,
    /// `.relaxed`, `.volatile`, `.mmio`
    Relaxed,
    /// `.acquire`
    Acquire,
    /// `.release`
    Release,
    /// `.acq_rel`
    AcqRel,
}

impl Order {
    /// Parses a modifier, if it is one of these.
    pub(crate) fn parse(modifier: &str) -> Option<Self> {
        Some(match modifier {
            "weak" => Self::Weak,
            "relaxed" | "volatile" | "mmio" => Self::Relaxed,
            "acquire" => Self::Acquire,
            "release" => Self::Release,
            "acq_rel" => Self::AcqRel,
            _ => return None,
        })
    }

    /// Later accesses come after what was published there.
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcqRel)
    }

    /// Publishes earlier accesses.
    pub(crate) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcqRel)
    }

    fn kind(self, write: bool) -> Kind {
        match (self, write) {
            (Self::Weak, false) => Kind::Read,
            (Self::Weak, true) => Kind::Write,
            (_, false) => Kind::StrongRead,
            (_, true) => Kind::StrongWrite,
        }
    }
}

impl Races {
    /// An access of a warp to shared memory: `bytes`, a power of two, at the
    /// shared address of each lane of `mask`.
    pub(super) fn warp_access(
        &mut self,
        warp: AgentId,
        pc: usize,
        kind: Kind,
        addrs: &[u64; LANES],
        (mask, bytes): (u32, usize),
    ) -> Result<(), Found> {
        let mut record = self.record(warp, Origin { pc, warp, lane: 0 }, kind);
        let whole = !self.lanes.are_parted(warp);
        let linear = mask == FULL && is_linear(addrs, bytes as u64);
        self.instructions = self.instructions.wrapping_add(1);
        record.instruction = self.instructions as u16;
        self.lanes.accessed[warp] = record.epoch;
        if linear || mask == FULL && is_uniform(addrs) {
            let (total, part) = if linear {
                (bytes * LANES, record.by_lanes(0, bytes))
            } else {
                (bytes, record.by_several(FULL))
            };
            return self.touch_stamped(addrs[0], total, part, whole);
        }
        let mut rest = mask;
        if whole && bytes == CHUNK && matches!(kind, Kind::Read | Kind::Write) {
            let rank = (addrs[mask.trailing_zeros() as usize & 31] >> RANK_SHIFT) as u32;
            // Words of another CTA are outside.
            let base = u64::from(rank) << RANK_SHIFT;
            let offsets = addrs.map(|addr| u32::try_from(addr ^ base).unwrap_or(u32::MAX));
            rest &= !self.touch_lanes(rank, &offsets, mask, &record);
        }
        // Lanes whose bytes follow each other are one access; lanes that share
        // an address are too.
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let start = addrs[first];
            let mut lane = first + 1;
            while lane < LANES
                && rest >> lane & 1 != 0
                && addrs[lane] == start.wrapping_add(((lane - first) * bytes) as u64)
            {
                lane += 1;
            }
            let mut total = (lane - first) * bytes;
            if lane == first + 1 {
                while lane < LANES && rest >> lane & 1 != 0 && addrs[lane] == start {
                    lane += 1;
                }
                total = bytes;
            }
            let part = match lane - first {
                1 => record.by_several(1 << first),
                count if total == bytes => record.by_several((FULL >> (32 - count)) << first),
                _ => record.by_lanes(first, bytes),
            };
            self.touch_stamped(start, total, part, whole)?;
            rest &= u32::MAX.checked_shl(lane as u32).unwrap_or(0);
        }
        Ok(())
    }

    /// The lanes of a warp's access of at most a word each that say something new. An access that may have the
    /// record of a line is not looked up.
    #[inline(always)]
    pub(super) fn news(
        &self,
        addrs: &[u64; LANES],
        (mask, bytes): (u32, usize),
        record: &Record,
    ) -> u32 {
        let first = addrs[mask.trailing_zeros() as usize & 31];
        let (rank, line) = (first >> RANK_SHIFT, (bytes * LANES) as u64);
        let Some(stamps) = self.stamps.get(rank as usize) else { return mask };
        if bytes > CHUNK || self.lanes.are_parted(record.agent.into()) {
            return mask;
        }
        if mask == FULL && first.is_multiple_of(line) && is_linear(addrs, bytes as u64) {
            return mask;
        }
        if mask & mask.wrapping_sub(1) == 0 || mask == FULL && is_uniform(addrs) {
            let offset = (first & ((1 << RANK_SHIFT) - 1)) as usize;
            return if stamps.repeats(offset, bytes, record) { 0 } else { mask };
        }
        let (mut offsets, mut elsewhere) = ([0; LANES], 0);
        for (lane, (offset, addr)) in offsets.iter_mut().zip(addrs).enumerate() {
            *offset = (addr & ((1 << RANK_SHIFT) - 1)) as u32;
            elsewhere |= u32::from(addr >> RANK_SHIFT != rank) << lane;
        }
        if elsewhere & mask == 0 { stamps.news(&offsets, mask, record) } else { mask }
    }

    /// An access to consecutive shared addresses. Words get stamps where the lanes of the warp are together.
    #[inline(always)]
    fn touch_stamped(
        &mut self,
        addr: u64,
        bytes: usize,
        record: Record,
        whole: bool,
    ) -> Result<(), Found> {
        let rank = (addr >> RANK_SHIFT) as u32;
        let offset = (addr & ((1 << RANK_SHIFT) - 1)) as usize;
        if !(whole && self.touch_plain(rank, (offset, bytes), &record)) {
            self.touch(rank, offset, bytes, record)?;
        }
        if whole
            && bytes < LINE
            && let Some(stamps) = self.stamps.get_mut(rank as usize)
        {
            stamps.note(offset, bytes, &record);
        }
        Ok(())
    }

    /// Remembers an access of single lanes to a word each, at offsets in the memory of the CTA of `rank`, in its tables.
    /// Returns the lanes, the first ones of the mask, for which this is all.
    #[inline(never)]
    fn touch_lanes(
        &mut self,
        rank: u32,
        offsets: &[u32; LANES],
        mask: u32,
        record: &Record,
    ) -> u32 {
        #[cfg(test)]
        if self.without_tables {
            return 0;
        }
        let (rank, agent) = (rank as usize, usize::from(record.agent));
        let first = rank * self.warps_per_cta;
        let Some(warp) = agent.checked_sub(first).filter(|&warp| warp < self.warps_per_cta) else {
            return 0;
        };
        let part = record.by_lanes(0, CHUNK);
        let Some(access) = Access::new(&part, warp, self.instructions) else { return 0 };
        let all = (self.shadows.get(rank), self.tables.get_mut(rank), self.stamps.get_mut(rank));
        let (Some(shadow), Some(tables), Some(stamps)) = all else { return 0 };
        let mut same = 0;
        for (lane, pair) in offsets.windows(2).enumerate() {
            same |= u32::from(pair[0] == pair[1]) << lane;
        }
        if same & mask & mask >> 1 != 0 {
            return 0;
        }
        let known = Knowledge { clock: &self.agents[agent], first };
        let done = tables.access_lanes(shadow, (offsets, mask), &access, known);
        for lane in lanes(done) {
            stamps.note(offsets[lane] as usize, CHUNK, record);
        }
        done
    }

    /// Remembers a weak load of a word by all lanes of a warp. Returns those for which there is more to do.
    #[inline(always)]
    pub(super) fn read_words(&mut self, warp: AgentId, pc: usize, addrs: &[u64; LANES]) -> u32 {
        if self.lanes.are_parted(warp) {
            return FULL;
        }
        let rank = (addrs[0] >> RANK_SHIFT) as u32;
        let base = u64::from(rank) << RANK_SHIFT;
        let (mut offsets, mut elsewhere) = ([0; LANES], 0);
        let (mut spread, mut uneven) = (0, 0);
        for (lane, (offset, addr)) in offsets.iter_mut().zip(addrs).enumerate() {
            elsewhere |= (addr ^ base) >> RANK_SHIFT;
            *offset = (addr ^ base) as u32;
            spread |= addr ^ addrs[0];
            uneven |= addr ^ addrs[0].wrapping_add((CHUNK * lane) as u64);
        }
        if elsewhere != 0 {
            return FULL;
        }
        if spread == 0 || uneven == 0 {
            let bytes = if spread == 0 { CHUNK } else { LINE };
            return if self.read_row(warp, pc, rank, (offsets[0], bytes)) { 0 } else { FULL };
        }
        let Some(stamps) = self.stamps.get(rank as usize) else { return FULL };
        let mut record = self.record(warp, Origin { pc, warp, lane: 0 }, Kind::Read);
        let news = stamps.news(&offsets, FULL, &record);
        if news == 0 {
            return 0;
        }
        self.instructions = self.instructions.wrapping_add(1);
        record.instruction = self.instructions as u16;
        self.lanes.accessed[warp] = record.epoch;
        news & !self.touch_lanes(rank, &offsets, news, &record)
    }

    /// The same of a word for all lanes, or of consecutive ones. False: it has to be looked at.
    #[inline(always)]
    fn read_row(
        &mut self,
        warp: AgentId,
        pc: usize,
        rank: u32,
        (offset, bytes): (u32, usize),
    ) -> bool {
        let mut record = self.record(warp, Origin { pc, warp, lane: 0 }, Kind::Read);
        let place = (offset as usize, bytes);
        let Some(stamps) = self.stamps.get(rank as usize) else { return false };
        // Lines have no stamps.
        let line = bytes == LINE && place.0.is_multiple_of(LINE);
        if !line && stamps.repeats(place.0, bytes, &record) {
            return true;
        }
        self.instructions = self.instructions.wrapping_add(1);
        record.instruction = self.instructions as u16;
        self.lanes.accessed[warp] = record.epoch;
        let part = if bytes == LINE { record.by_lanes(0, CHUNK) } else { record.by_several(FULL) };
        let done = self.touch_plain(rank, place, &part);
        if done
            && !line
            && let Some(stamps) = self.stamps.get_mut(rank as usize)
        {
            stamps.note(place.0, bytes, &record);
        }
        done
    }

    /// Remembers an access of a warp in the tables of its CTA. False: it has no place there.
    #[inline(always)]
    fn touch_plain(&mut self, rank: u32, place: (usize, usize), record: &Record) -> bool {
        let (rank, agent) = (rank as usize, usize::from(record.agent));
        let first = rank * self.warps_per_cta;
        if agent < first || agent >= first + self.warps_per_cta {
            return false;
        }
        #[cfg(test)]
        if self.without_tables {
            return false;
        }
        let (Some(shadow), Some(tables)) = (self.shadows.get(rank), self.tables.get_mut(rank))
        else {
            return false;
        };
        let Some(access) = Access::new(record, agent - first, self.instructions) else {
            return false;
        };
        tables.access(shadow, place, &access, Knowledge { clock: &self.agents[agent], first })
    }

    /// Lanes of a weak store that write different values to one place, of which any may stay.
    fn stores_differ(
        &self,
        warp: AgentId,
        pc: usize,
        addrs: &[u64; LANES],
        (mask, bytes): (u32, usize),
        values: &Words,
    ) -> Result<(), Found> {
        if mask == FULL && is_linear(addrs, bytes as u64) {
            return Ok(());
        }
        // Most often every lane has a place of its own, which few bits tell.
        let shift = bytes.trailing_zeros();
        let places = lanes(mask).fold(0u64, |all, lane| all | 1 << (addrs[lane] >> shift & 63));
        if places.count_ones() == mask.count_ones() {
            return Ok(());
        }
        let keep = if bytes < 8 { u64::MAX >> (64 - 8 * bytes) } else { u64::MAX };
        let value = |lane: usize| {
            let words: [u64; 4] = std::array::from_fn(|word| match word {
                0 => values[0][lane] & keep,
                _ if word < bytes.div_ceil(8) => values[word][lane],
                _ => 0,
            });
            words
        };
        for lane in lanes(mask) {
            let before = lanes(mask & ((1 << lane) - 1));
            let same = |other: &usize| addrs[*other] == addrs[lane];
            if let Some(other) = before.filter(same).find(|&other| value(other) != value(lane)) {
                let (rank, offset) =
                    ((addrs[lane] >> RANK_SHIFT) as u32, addrs[lane] & ((1 << RANK_SHIFT) - 1));
                let record = self.record(warp, Origin { pc, warp, lane: 0 }, Kind::Write);
                let pair = (other as u32, lane as u32);
                let clash = Clash::of_instruction(offset as usize, record, pair);
                return Err(Found { at_once: true, ..self.found(Place::Shared(rank), clash) });
            }
        }
        Ok(())
    }

    /// A strong access uses the words at the lanes' addresses as flags.
    fn flags(
        &mut self,
        warp: AgentId,
        order: Order,
        write: bool,
        addrs: &[u64; LANES],
        (mask, bytes): (u32, usize),
    ) {
        for lane in lanes(mask) {
            let first = addrs[lane] >> 2;
            for word in first..first + bytes.div_ceil(4) as u64 {
                let shift = RANK_SHIFT - 2;
                let flag = Flag::Shared((word >> shift) as u32, word as u32 & ((1 << shift) - 1));
                if !self.repeats_flag(warp, order, write, flag) {
                    self.flag((warp, mask), order, write, flag);
                }
            }
        }
    }

    fn flag(&mut self, (warp, lanes): (AgentId, u32), order: Order, write: bool, flag: Flag) {
        if write {
            self.write_flag(warp, lanes, flag, order.releases());
        } else {
            self.read_flag(warp, flag, order.acquires());
        }
    }
}

fn columns_flag(rank: u32, group: u32) -> Flag {
    if group == 2 { Flag::Columns(rank & !1, true) } else { Flag::Columns(rank, false) }
}

impl Context<'_> {
    /// Runs an access with ordering semantics.
    #[inline(always)]
    pub(crate) fn ordered<R>(&mut self, order: Order, access: impl FnOnce(&mut Self) -> R) -> R {
        self.set_order(order);
        let result = access(self);
        self.set_order(Order::Weak);
        result
    }

    /// Gives the accesses that follow ordering semantics, where a closure would not be compiled for the host's
    /// vectors. They are to be weak again afterwards.
    #[inline(always)]
    pub(crate) fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// Looks for races of an access to shared memory that is in bounds: of a load, or of a store
    /// of `stored` that is still to be done.
    #[inline(always)]
    pub(in crate::machine) fn race_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        stored: Option<&Words>,
    ) -> Exec {
        let Some(races) = &self.units.races else { return Ok(()) };
        let warp = self.warp();
        let origin = Origin { pc: self.pc, warp, lane: 0 };
        let record = races.record(warp, origin, self.order.kind(stored.is_some()));
        let news = races.news(addrs, (mask, bytes), &record);
        self.look(addrs, (mask, news), bytes, stored)
    }

    /// The same of a weak load of words by all lanes. Most say nothing new, or something that is soon remembered.
    #[inline(always)]
    pub(in crate::machine) fn race_words(&mut self, addrs: &[u64; LANES]) -> Exec {
        let warp = self.warp();
        let Some(races) = &mut self.units.races else { return Ok(()) };
        let mut news = FULL;
        if !self.units.proxies.has_responses() {
            news = races.read_words(warp, self.pc, addrs);
            if news == 0 {
                return Ok(());
            }
        }
        self.look(addrs, (FULL, news), CHUNK, None)
    }

    /// The same at an offset in the CTA's shared memory: one word for all lanes, or consecutive ones. False: it has to be
    /// looked at.
    #[inline(always)]
    pub(in crate::machine) fn race_row(&mut self, offset: usize, bytes: usize) -> bool {
        let (warp, rank) = (self.warp(), self.place.rank);
        let Some(races) = &mut self.units.races else { return true };
        !self.units.proxies.has_responses()
            && !races.lanes.are_parted(warp)
            && races.read_row(warp, self.pc, rank, (offset as u32, bytes))
    }

    /// The stamps by which an atomic of the executing warp says nothing new; `None`: nobody looks.
    #[inline(always)]
    pub(in crate::machine) fn race_repeated(&self) -> Option<Repeated> {
        let races = self.units.races.as_ref()?;
        let may = !self.units.proxies.has_responses();
        let warp = self.warp();
        let origin = Origin { pc: 0, warp, lane: 0 };
        let record = races.record(warp, origin, self.order.kind(true));
        Some(races.repeated(warp, self.order, may, &record, self.place.rank))
    }

    /// Whether it does at an offset in the shared memory of its CTA.
    #[inline(always)]
    pub(in crate::machine) fn race_repeats_atomic(&self, offset: usize, of: &Repeated) -> bool {
        let races = self.units.races.as_ref();
        races.is_some_and(|races| races.repeats_atomic(self.place.rank, offset, of))
    }

    #[inline(never)]
    fn look(
        &mut self,
        addrs: &[u64; LANES],
        (mask, news): (u32, u32),
        bytes: usize,
        stored: Option<&Words>,
    ) -> Exec {
        let (warp, order, write) = (self.warp(), self.order, stored.is_some());
        let Some(races) = &mut self.units.races else {
            return Ok(());
        };
        let rank = (addrs[mask.trailing_zeros() as usize & 31] >> RANK_SHIFT) as u32;
        // A load is taken to be over when it is issued.
        if write && rank != self.place.rank {
            races.reached(rank, warp, mask, self.pc);
        }
        if !write && self.units.proxies.has_responses() {
            let epoch = races.epoch(warp);
            for at in lanes(mask) {
                let rank = (addrs[at] >> RANK_SHIFT) as u32;
                let offset = addrs[at] & ((1 << RANK_SHIFT) - 1);
                let reader = Reader { pc: self.pc, warp, lanes: mask, epoch, fences: Vec::new() };
                self.units.proxies.read(rank, offset, reader);
            }
        }
        let kind = order.kind(write);
        let looked = match news {
            0 => Ok(()),
            news => races.warp_access(warp, self.pc, kind, addrs, (news, bytes)),
        };
        let differ = match stored {
            Some(values) if order == Order::Weak && mask & mask.wrapping_sub(1) != 0 => {
                races.stores_differ(warp, self.pc, addrs, (mask, bytes), values)
            }
            _ => Ok(()),
        };
        if order != Order::Weak {
            races.flags(warp, order, write, addrs, (mask, bytes));
        }
        let looked = looked.map_err(|found| match stored {
            Some(values) if found.is_of_warps() => {
                Found { unchanged: self.changes_nothing(addrs, mask, bytes, values), ..found }
            }
            _ => found,
        });
        // Lanes of one instruction that store one value give it in any order.
        let looked = match looked {
            Err(found) if found.unchanged && found.is_of_one_instruction() => Ok(()),
            looked => looked,
        };
        self.units.race_result(self.env, (self.pc, warp), looked)?;
        self.units.race_result(self.env, (self.pc, warp), differ)
    }

    /// A strong access to global memory may be one of a flag.
    #[inline(always)]
    pub(in crate::machine) fn race_global(&mut self, write: bool, mask: u32) {
        if self.order != Order::Weak {
            let (warp, order) = (self.warp(), self.order);
            if let Some(races) = &mut self.units.races {
                races.flag((warp, mask), order, write, Flag::Global);
            }
        }
    }

    /// Lanes of the warp execute a fence.
    pub(crate) fn race_fence(&mut self, mask: u32) {
        let warp = self.warp();
        if let Some(races) = &mut self.units.races {
            races.fence(warp, mask);
        }
    }

    /// Lanes of the warp met.
    pub(crate) fn race_met(&mut self, lanes: u32) {
        let warp = self.warp();
        if let Some(races) = &mut self.units.races {
            races.meet_some(warp, lanes);
        }
    }

    /// Whether it matters that lanes of the warp execute an instruction with `.sync` together.
    #[inline(always)]
    pub(in crate::machine) fn race_may_join(&self) -> bool {
        let warp = self.warp();
        self.units.races.as_ref().is_some_and(|races| races.may_join(warp))
    }

    /// Lanes of the warp execute an instruction with `.sync` or `.aligned` together.
    #[inline(always)]
    pub(in crate::machine) fn race_synchronised(&mut self, lanes: u32) {
        if self.units.races.is_some() {
            let warp = self.warp();
            if let Some(races) = &mut self.units.races {
                races.synchronised(warp, lanes);
            }
        }
    }

    /// The lanes of the warp part.
    pub(in crate::machine) fn race_branch(&mut self) {
        let warp = self.warp();
        if let Some(races) = &mut self.units.races {
            races.branch(warp);
        }
    }

    /// Lanes of the warp execute a fence of `tcgen05`.
    pub(crate) fn race_tensor_fence(&mut self, fence: Fence, mask: u32) {
        let warp = self.warp();
        if let Some(races) = &mut self.units.races {
            match fence {
                Fence::Before => races.fence_before(warp, mask),
                Fence::After => races.fence_after(warp),
            }
        }
    }

    /// A lane uses an mbarrier object: only `init` and `inval` are no atomic
    /// accesses.
    #[inline]
    pub(crate) fn race_barrier_object(&mut self, at: At, kind: Kind, lane: usize) -> Exec {
        let warp = self.warp();
        if let Some(trace) = &mut self.units.trace {
            trace.acts(warp, self.clock, self.pc);
        }
        let Some(races) = &mut self.units.races else {
            return Ok(());
        };
        let origin = Origin { pc: self.pc, warp, lane: lane as u32 };
        let range = (at.offset.into(), MBARRIER_BYTES as u64);
        let looked = races.access(warp, origin, kind, at.rank, range);
        self.units.race_result(self.env, (self.pc, warp), looked)
    }

    /// A lane of the warp arrives at an mbarrier, which must outlast that.
    pub(crate) fn race_arrives(&mut self, at: At, lanes: u32) {
        let warp = self.warp();
        if let Some(races) = &mut self.units.races
            && at.rank != self.place.rank
        {
            races.reached(at.rank, warp, lanes, self.pc);
        }
    }

    /// The warp allocated tensor memory: what was freed before may be it.
    pub(crate) fn race_allocated(&mut self, group: u32) {
        let (rank, warp) = (self.place.rank, self.warp());
        if let Some(races) = &mut self.units.races {
            races.read_flag(warp, columns_flag(rank, group), true);
        }
    }

    /// The warp frees tensor memory: all uses of it must come before.
    pub(crate) fn race_freed(&mut self, group: u32, cells: &[Range]) -> Exec {
        let (rank, warp) = (self.place.rank, self.warp());
        let Some(races) = &mut self.units.races else {
            return Ok(());
        };
        let origin = Origin { pc: self.pc, warp, lane: 0 };
        let spans = cells.iter().map(|range| (range.start, range.bytes));
        let looked: Vec<Result<(), Found>> =
            spans.map(|span| races.tensor_access(warp, origin, Kind::Write, rank, span)).collect();
        races.write_flag(warp, u32::MAX, columns_flag(rank, group), true);
        looked
            .into_iter()
            .try_for_each(|one| self.units.race_result(self.env, (self.pc, warp), one))
    }

    /// Lanes of the warp arrived at CTA barrier `id`; `completed`, it is
    /// complete.
    pub(in crate::machine) fn race_barrier(
        &mut self,
        id: u32,
        op: &BarrierOp,
        lanes: u32,
        completed: bool,
    ) {
        let (rank, warp) = (self.place.rank, self.warp());
        if let Some(races) = &mut self.units.races {
            races.arrive(rank, id as usize, (warp, lanes), op.wait);
            if completed {
                races.complete(rank, id as usize, op.count.is_none());
            }
        }
    }

    /// Lanes of the warp exit, which `exit` reports to the CTA's barriers.
    pub(in crate::machine) fn race_exit(&mut self, mask: u32, exit: impl FnOnce(&mut Barriers)) {
        let (rank, warp) = (self.place.rank, self.warp());
        let Some(races) = &mut self.units.races else {
            return exit(self.barriers);
        };
        races.exit(rank, warp, mask);
        let before: [u64; 16] = std::array::from_fn(|id| self.barriers.generation(id as u8));
        exit(self.barriers);
        for (id, before) in before.into_iter().enumerate() {
            if self.barriers.generation(id as u8) != before {
                races.complete(rank, id, true);
            }
        }
    }
}

impl Units {
    /// Returns the race of a warp's access, if there is one.
    #[inline]
    pub(in crate::machine) fn race_result(
        &self,
        env: &Env<'_>,
        at: (usize, usize),
        looked: Result<(), Found>,
    ) -> Exec {
        match looked {
            Ok(()) => Ok(()),
            Err(found) => self.raced(env, at, None, &found),
        }
    }

    /// Reports a race of an instruction, or of an operation from elsewhere.
    #[cold]
    pub(in crate::machine) fn raced(
        &self,
        env: &Env<'_>,
        at: (usize, usize),
        operation: Option<Site>,
        found: &Found,
    ) -> Exec {
        let kind = match (found.fence, found.place) {
            (Some(_), _) => crate::checks::Kind::MissingTcgen05Fence,
            (None, Place::Shared(_)) if found.unchanged => crate::checks::Kind::SameValueRace,
            (None, Place::Shared(_)) => crate::checks::Kind::DataRace,
            (None, Place::Tensor(_)) => crate::checks::Kind::TensorMemoryRace,
        };
        if self.is_known(env, kind, at.0, env.code[found.clash.old.pc as usize].line) {
            return Ok(());
        }
        let fault = self.race_fault(env, found);
        let fault = match operation {
            Some(site) => fault.at(site),
            None => fault,
        };
        self.report(env, at, fault)
    }

    /// The fault that a race is.
    #[cold]
    fn race_fault(&self, env: &Env<'_>, found: &Found) -> Box<Fault> {
        if let Some(fence) = found.fence {
            return self.fence_fault(env, found, fence);
        }
        let (old, new) = (&found.clash.old, &found.clash.new);
        let access = |record: &Record, asynchronous: bool| match (record.kind, asynchronous) {
            (Kind::Read | Kind::StrongRead, true) => RaceAccess::AsyncRead,
            (Kind::Write | Kind::StrongWrite, true) => RaceAccess::AsyncWrite,
            (Kind::Read, false) => RaceAccess::Read,
            (Kind::Write, false) => RaceAccess::Write,
            (Kind::StrongRead, false) => RaceAccess::StrongRead,
            (Kind::StrongWrite, false) => RaceAccess::StrongWrite,
        };
        let (cta, warp) = self.place(old.warp.into());
        let line = env.code[old.pc as usize].line;
        let earlier = RaceSite {
            kind: access(old, found.asynchronous.0),
            line,
            instruction: env.source_line(line).to_owned(),
            source: env.module.source_of(line),
            cta,
            warp,
            lane: found.clash.lanes.0,
        };
        let waited = self.races.as_ref().and_then(|races| races.waited_for(found));
        let missing = if found.asynchronous.0 {
            match waited.map(|warp| self.place(warp)) {
                Some((cta, warp)) => MissingOrder::Release { cta, warp },
                None => MissingOrder::Completion,
            }
        } else if found.at_once {
            MissingOrder::OneInstruction
        } else if old.agent == new.agent {
            MissingOrder::WarpBarrier
        } else if self.place(new.warp.into()).0 == cta {
            MissingOrder::CtaBarrier
        } else {
            MissingOrder::ClusterBarrier
        };
        let (address, tensor) = match found.place {
            Place::Shared(rank) => {
                (u64::from(rank) << RANK_SHIFT | found.clash.offset as u64, false)
            }
            Place::Tensor(_) => {
                let (lane, column) = tensor_memory::place(found.clash.offset as u64);
                (u64::from(lane << 16 | column), true)
            }
        };
        let race = DataRace {
            address,
            tensor,
            kind: access(new, found.asynchronous.1),
            unchanged: found.unchanged,
            earlier,
            missing,
        };
        Fault::lane(DiagnosticKind::Race(Box::new(race)), found.clash.lanes.1)
    }
    /// The fault that a missing fence of `tcgen05` is.
    fn fence_fault(&self, env: &Env<'_>, found: &Found, fence: Fence) -> Box<Fault> {
        const NAMES: [&str; 5] =
            ["tcgen05.mma", "tcgen05.ld", "tcgen05.st", "tcgen05.cp", "tcgen05.shift"];
        let old = &found.clash.old;
        let (_, column) = tensor_memory::place(found.clash.offset as u64);
        let text = env.source_line(env.code[old.pc as usize].line);
        let name = NAMES.into_iter().find(|name| text.contains(name)).unwrap_or("tcgen05");
        let site = Site { pc: old.pc as usize, warp: old.warp.into(), lane: 0 };
        let fault = TensorFault::MissingThreadFence {
            column,
            written: matches!(old.kind, Kind::Write | Kind::StrongWrite),
            before: fence == Fence::Before,
            operation: self.site(env, name, site),
        };
        let kind = DiagnosticKind::Async(AsyncFault::Tensor(fault));
        Fault::lane(kind, found.clash.lanes.1)
    }
}
