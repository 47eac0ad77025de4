//! Memory accesses of a warp: checking, moving, counting.
//!
//! Every access is checked for bounds, alignment and (loads) initialisation.
//! Warps whose lanes touch consecutive addresses, or all the same one, are
//! checked once; everything else goes lane by lane.
//!
//! Accesses of one warp instruction happen in lane order. Shared memory of
//! other CTAs of a cluster is out of bounds here.

use super::context::Context;
use super::regs::{FULL, LANES};
use super::{RANK_SHIFT, SHARED_BASE, window};
use crate::diagnostic::{Access, AccessKind, AllocationSite, DiagnosticKind, Exec, Fault, Space};
use crate::memory::{BlockId, Plain, Value};
use std::sync::atomic::Ordering::Relaxed;

/// State space an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressSpace {
    /// A space.
    One(Space),
    /// None named: the address says which.
    Generic,
}

/// Values of an access: word `w` of every lane in row `w`.
pub(crate) type Words = [[u64; LANES]; 4];

/// Whether lane `i` accesses `addrs[0] + i * bytes`.
#[inline(always)]
pub(crate) fn is_linear(addrs: &[u64; LANES], bytes: u64) -> bool {
    let mut difference = 0;
    let mut expected = addrs[0];
    for addr in addrs {
        difference |= addr ^ expected;
        expected = expected.wrapping_add(bytes);
    }
    difference == 0
}

#[inline(always)]
fn is_uniform(addrs: &[u64; LANES]) -> bool {
    let mut difference = 0;
    for addr in addrs {
        difference |= addr ^ addrs[0];
    }
    difference == 0
}

/// Lanes of a mask, lowest first.
#[inline(always)]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            lane
        })
    })
}

fn window_space(tag: u64) -> Option<Space> {
    match tag {
        0 => Some(Space::Global),
        window::SHARED => Some(Space::Shared),
        window::LOCAL => Some(Space::Local),
        window::PARAM => Some(Space::Param),
        window::CONST => Some(Space::Const),
        _ => None,
    }
}

impl Context<'_> {
    /// Loads `bytes` (a power of two up to 32) a lane.
    #[inline(always)]
    pub(crate) fn load(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut Words,
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global) => self.load_global(addrs, mask, bytes, out),
            AddressSpace::One(Space::Shared) => self.load_shared(addrs, mask, bytes, out),
            AddressSpace::One(space) => self.load_other(space, addrs, mask, bytes, out),
            AddressSpace::Generic => {
                self.by_window(addrs, mask, bytes, AccessKind::Read, |cx, space, addrs, mask| {
                    cx.load(AddressSpace::One(space), addrs, mask, bytes, out)
                })
            }
        }
    }

    /// Stores `bytes` (a power of two up to 32) a lane.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global) => self.store_global(addrs, mask, bytes, values),
            AddressSpace::One(Space::Shared) => self.store_shared(addrs, mask, bytes, values),
            AddressSpace::One(Space::Local) => self.store_local(addrs, mask, bytes, values),
            AddressSpace::One(space) => {
                let lane = mask.trailing_zeros() as usize;
                Err(self.fault(
                    DiagnosticKind::ReadOnly,
                    space,
                    addrs[lane],
                    bytes,
                    AccessKind::Write,
                    lane,
                ))
            }
            AddressSpace::Generic => {
                self.by_window(addrs, mask, bytes, AccessKind::Write, |cx, space, addrs, mask| {
                    cx.store(AddressSpace::One(space), addrs, mask, bytes, values)
                })
            }
        }
    }

    /// Read-modify-write of `bytes` a lane, in lane order: `update` gets the
    /// lane, the space it is in and the old value, and returns the new one
    /// (`None`: unchanged).
    pub(crate) fn atomic(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        mut update: impl FnMut(usize, Space, &Value) -> Option<Value>,
    ) -> Exec {
        self.stats.atomics += u64::from(mask.count_ones());
        for lane in lanes(mask) {
            let one = 1 << lane;
            let mut old = [[0; LANES]; 4];
            let kind = AccessKind::Atomic;
            let (space, addr) = self.resolve(space, addrs[lane], bytes, kind, lane)?;
            if !matches!(space, Space::Global | Space::Shared) {
                return Err(self.fault(
                    DiagnosticKind::OutOfBounds,
                    space,
                    addr,
                    bytes,
                    kind,
                    lane,
                ));
            }
            let mut at = [0; LANES];
            at[lane] = addr;
            self.load(AddressSpace::One(space), &at, one, bytes, &mut old)?;
            let value = [old[0][lane], old[1][lane], old[2][lane], old[3][lane]];
            if let Some(new) = update(lane, space, &value) {
                for (row, word) in old.iter_mut().zip(new) {
                    row[lane] = word;
                }
                self.store(AddressSpace::One(space), &at, one, bytes, &old)?;
            }
        }
        Ok(())
    }

    /// State space and address in it.
    fn resolve(
        &self,
        space: AddressSpace,
        addr: u64,
        bytes: usize,
        kind: AccessKind,
        lane: usize,
    ) -> Exec<(Space, u64)> {
        match space {
            AddressSpace::One(space) => Ok((space, addr)),
            AddressSpace::Generic => match window_space(window::tag(addr)) {
                Some(space) => Ok((space, addr & !(0xff << 56))),
                None => Err(self.fault(
                    DiagnosticKind::OutOfBounds,
                    Space::Global,
                    addr,
                    bytes,
                    kind,
                    lane,
                )),
            },
        }
    }

    /// Sorts generic addresses by the window they are in.
    fn by_window(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        kind: AccessKind,
        mut access: impl FnMut(&mut Self, Space, &[u64; LANES], u32) -> Exec,
    ) -> Exec {
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let tag = window::tag(addrs[first]);
            let (space, _) =
                self.resolve(AddressSpace::Generic, addrs[first], bytes, kind, first)?;
            let mut here = 0;
            let mut inside = [0; LANES];
            for lane in 0..LANES {
                inside[lane] = addrs[lane] & !(0xff << 56);
                here |= u32::from(window::tag(addrs[lane]) == tag) << lane;
            }
            here &= rest;
            access(self, space, &inside, here)?;
            rest &= !here;
        }
        Ok(())
    }

    /// Block that holds the access, or why none does.
    #[inline(always)]
    fn block_for(
        &mut self,
        addr: u64,
        bytes: u64,
        kind: AccessKind,
        each: usize,
        lane: usize,
    ) -> Exec<BlockId> {
        if !addr.is_multiple_of(each as u64) {
            let required = DiagnosticKind::Misaligned { required: each as u32 };
            return Err(self.fault(required, Space::Global, addr, each, kind, lane));
        }
        let id = self.block;
        if id < self.env.global.count() && self.env.global.block(id).holds(addr, bytes) {
            return Ok(id);
        }
        match self.env.global.find(addr) {
            Some(id) if self.env.global.block(id).holds(addr, bytes) => {
                self.block = id;
                Ok(id)
            }
            _ => {
                Err(self.fault(DiagnosticKind::OutOfBounds, Space::Global, addr, each, kind, lane))
            }
        }
    }

    #[inline(always)]
    fn load_global(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut Words,
    ) -> Exec {
        let count = self.stats.space(Space::Global);
        count.reads += 1;
        count.bytes_read += u64::from(mask.count_ones()) * bytes as u64;
        if mask == FULL && bytes >= 4 && is_linear(addrs, bytes as u64) {
            return self.load_global_linear(addrs[0], bytes, out);
        }
        let mut sectors = Sectors::default();
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let id = self.block_for(addr, bytes as u64, AccessKind::Read, bytes, lane)?;
            let block = self.env.global.block(id);
            if let Some(first) = block.first_uninitialised(addr, bytes) {
                return Err(self.uninitialised(Space::Global, addr, first, bytes, lane));
            }
            let value = block.load(addr, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
            if sectors.add(addr) {
                block.touch(addr, bytes as u64, false, self.env.exclusive);
            }
        }
        self.stats.space(Space::Global).sectors_read += sectors.count;
        Ok(())
    }

    #[inline(always)]
    fn load_global_linear(&mut self, addr: u64, bytes: usize, out: &mut Words) -> Exec {
        let total = (bytes * LANES) as u64;
        let env = self.env;
        // An access that leaves its block fails at its first lane outside.
        let id = match self.block_for(addr, total, AccessKind::Read, bytes, 0) {
            Ok(id) => id,
            Err(fault) => {
                return Err(self.first_bad_lane(addr, bytes, AccessKind::Read).unwrap_or(fault));
            }
        };
        let block = env.global.block(id);
        if let Some(first) = block.first_uninitialised_in(addr, total) {
            let lane = ((first - addr) as usize) / bytes;
            return Err(self.uninitialised(
                Space::Global,
                addr + (lane * bytes) as u64,
                first,
                bytes,
                lane,
            ));
        }
        match bytes {
            4 if addr.is_multiple_of(8) => {
                for (pair, word) in block.words_from(addr, LANES / 2).iter().enumerate() {
                    let word = word.load(Relaxed);
                    out[0][2 * pair] = word & 0xffff_ffff;
                    out[0][2 * pair + 1] = word >> 32;
                }
            }
            4 => {
                for (lane, value) in out[0].iter_mut().enumerate() {
                    *value = block.load(addr + 4 * lane as u64, 4)[0];
                }
            }
            8 => {
                for (value, word) in out[0].iter_mut().zip(block.words_from(addr, LANES)) {
                    *value = word.load(Relaxed);
                }
            }
            16 => {
                let words: &[_] = block.words_from(addr, LANES * 2);
                for (lane, pair) in words.chunks_exact(2).enumerate() {
                    out[0][lane] = pair[0].load(Relaxed);
                    out[1][lane] = pair[1].load(Relaxed);
                }
            }
            _ => {
                let words: &[_] = block.words_from(addr, LANES * 4);
                for (lane, four) in words.chunks_exact(4).enumerate() {
                    for (row, word) in out.iter_mut().zip(four) {
                        row[lane] = word.load(Relaxed);
                    }
                }
            }
        }
        block.touch(addr, total, false, env.exclusive);
        self.stats.space(Space::Global).sectors_read += ((addr + total - 1) >> 5) - (addr >> 5) + 1;
        Ok(())
    }

    /// Fault of the first lane of a linear access that is not inside a block.
    fn first_bad_lane(&mut self, addr: u64, bytes: usize, kind: AccessKind) -> Option<Box<Fault>> {
        (0..LANES).find_map(|lane| {
            let at = addr.wrapping_add((lane * bytes) as u64);
            self.block_for(at, bytes as u64, kind, bytes, lane).err()
        })
    }

    #[inline(always)]
    fn store_global(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        let count = self.stats.space(Space::Global);
        count.writes += 1;
        count.bytes_written += u64::from(mask.count_ones()) * bytes as u64;
        let mut sectors = Sectors::default();
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let id = self.block_for(addr, bytes as u64, AccessKind::Write, bytes, lane)?;
            let block = self.env.global.block(id);
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            block.store(addr, bytes, &value, self.env.exclusive);
            if sectors.add(addr) {
                block.touch(addr, bytes as u64, true, self.env.exclusive);
            }
        }
        self.stats.space(Space::Global).sectors_written += sectors.count;
        Ok(())
    }

    /// Offset in this CTA's shared memory.
    #[inline(always)]
    fn shared_offset(&self, addr: u64, bytes: usize, kind: AccessKind, lane: usize) -> Exec<usize> {
        let rank = addr >> RANK_SHIFT;
        let offset = (addr & ((1 << RANK_SHIFT) - 1)) as usize;
        if offset & (bytes - 1) != 0 {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, Space::Shared, addr, bytes, kind, lane));
        }
        let len = self.shared[self.place.rank as usize].len();
        if rank != u64::from(self.place.rank)
            || offset < SHARED_BASE as usize
            || offset + bytes > len
        {
            return Err(self.fault(
                DiagnosticKind::OutOfBounds,
                Space::Shared,
                addr,
                bytes,
                kind,
                lane,
            ));
        }
        Ok(offset)
    }

    #[inline(always)]
    fn load_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut Words,
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, false);
        let rank = self.place.rank as usize;
        if mask == FULL && is_uniform(addrs) {
            let offset = self.shared_offset(addrs[0], bytes, AccessKind::Read, 0)?;
            let memory = &self.shared[rank];
            if let Some(first) = memory.first_uninitialised(offset, bytes) {
                let first = addrs[0] - offset as u64 + first as u64;
                return Err(self.uninitialised(Space::Shared, addrs[0], first, bytes, 0));
            }
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                *row = [word; LANES];
            }
            return Ok(());
        }
        if mask == FULL && self.load_shared_whole(addrs, bytes, out) {
            return Ok(());
        }
        for lane in lanes(mask) {
            let offset = self.shared_offset(addrs[lane], bytes, AccessKind::Read, lane)?;
            let memory = &self.shared[rank];
            if let Some(first) = memory.first_uninitialised(offset, bytes) {
                let first = addrs[lane] - offset as u64 + first as u64;
                return Err(self.uninitialised(Space::Shared, addrs[lane], first, bytes, lane));
            }
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        Ok(())
    }

    /// A load of all lanes whose checks are joined. False if one fails; the
    /// caller then finds out which.
    #[inline(always)]
    fn load_shared_whole(&self, addrs: &[u64; LANES], bytes: usize, out: &mut Words) -> bool {
        let memory = &self.shared[self.place.rank as usize];
        let window = u64::from(self.place.rank) << RANK_SHIFT;
        let least = u64::from(SHARED_BASE);
        let Some(most) = (memory.len() as u64).checked_sub(bytes as u64) else {
            return false;
        };
        let mut bad = 0;
        for addr in addrs {
            let offset = addr ^ window;
            // A difference that is negative has its top bit set.
            bad |= (offset & (bytes as u64 - 1))
                | (offset.wrapping_sub(least) | most.wrapping_sub(offset)) >> 63;
        }
        if bad != 0 {
            return false;
        }
        let mut missing = 0;
        for (lane, addr) in addrs.iter().enumerate() {
            let offset = (addr ^ window) as usize;
            missing |= memory.uninitialised_bits(offset, bytes);
            let value = memory.load(offset, bytes);
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        missing == 0
    }

    #[inline(always)]
    fn store_shared(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        self.count_shared(addrs, mask, bytes, true);
        let rank = self.place.rank as usize;
        for lane in lanes(mask) {
            let offset = self.shared_offset(addrs[lane], bytes, AccessKind::Write, lane)?;
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            self.shared[rank].store(offset, bytes, &value);
        }
        Ok(())
    }

    fn local_offset(&self, addr: u64, bytes: usize, kind: AccessKind, lane: usize) -> Exec<usize> {
        if !addr.is_multiple_of(bytes as u64) {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, Space::Local, addr, bytes, kind, lane));
        }
        if addr >= self.local.len() as u64 || addr + bytes as u64 > self.local.len() as u64 {
            return Err(self.fault(
                DiagnosticKind::OutOfBounds,
                Space::Local,
                addr,
                bytes,
                kind,
                lane,
            ));
        }
        Ok(addr as usize)
    }

    fn store_local(
        &mut self,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        self.count_local(mask, bytes, true);
        for lane in lanes(mask) {
            let offset = self.local_offset(addrs[lane], bytes, AccessKind::Write, lane)?;
            let value = [values[0][lane], values[1][lane], values[2][lane], values[3][lane]];
            self.local.store(lane, offset, bytes, &value);
        }
        Ok(())
    }

    /// Local, constant and parameter loads.
    fn load_other(
        &mut self,
        space: Space,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut Words,
    ) -> Exec {
        if space == Space::Local {
            self.count_local(mask, bytes, false);
        } else {
            let count = self.stats.space(space);
            count.reads += 1;
            count.bytes_read += u64::from(mask.count_ones()) * bytes as u64;
        }
        for lane in lanes(mask) {
            let addr = addrs[lane];
            let value = match space {
                Space::Local => {
                    let offset = self.local_offset(addr, bytes, AccessKind::Read, lane)?;
                    if let Some(first) = self.local.first_uninitialised(lane, offset, bytes) {
                        return Err(self.uninitialised(space, addr, first as u64, bytes, lane));
                    }
                    self.local.load(lane, offset, bytes)
                }
                _ => self.load_bank(space, addr, bytes, lane)?,
            };
            for (row, word) in out.iter_mut().zip(value).take(bytes.div_ceil(8)) {
                row[lane] = word;
            }
        }
        Ok(())
    }

    fn bank(&self, space: Space) -> &Plain {
        if space == Space::Param { &self.env.params } else { &self.env.consts }
    }

    fn load_bank(&self, space: Space, addr: u64, bytes: usize, lane: usize) -> Exec<Value> {
        let memory = self.bank(space);
        let kind = AccessKind::Read;
        if !addr.is_multiple_of(bytes as u64) {
            let required = DiagnosticKind::Misaligned { required: bytes as u32 };
            return Err(self.fault(required, space, addr, bytes, kind, lane));
        }
        let len = memory.len() as u64;
        if addr >= len || addr + bytes as u64 > len {
            return Err(self.fault(DiagnosticKind::OutOfBounds, space, addr, bytes, kind, lane));
        }
        if let Some(first) = memory.first_uninitialised(addr as usize, bytes) {
            return Err(self.uninitialised(space, addr, first as u64, bytes, lane));
        }
        Ok(memory.load(addr as usize, bytes))
    }

    fn count_local(&mut self, mask: u32, bytes: usize, write: bool) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Local);
        if write {
            count.writes += 1;
            count.bytes_written += total;
            count.sectors_written += total.div_ceil(32);
        } else {
            count.reads += 1;
            count.bytes_read += total;
            count.sectors_read += total.div_ceil(32);
        }
    }

    #[inline(always)]
    fn count_shared(&mut self, addrs: &[u64; LANES], mask: u32, bytes: usize, write: bool) {
        let total = u64::from(mask.count_ones()) * bytes as u64;
        let count = self.stats.space(Space::Shared);
        if write {
            count.writes += 1;
            count.bytes_written += total;
        } else {
            count.reads += 1;
            count.bytes_read += total;
        }
        let (passes, ideal) = if mask == FULL && is_uniform(addrs) {
            (1, 1)
        } else if mask == FULL && is_linear(addrs, bytes as u64) {
            let passes = (bytes as u64 / 4).max(1);
            (passes, passes)
        } else {
            wavefronts(addrs, mask, bytes)
        };
        self.stats.wavefronts += passes;
        self.stats.wavefronts_ideal += ideal;
    }

    fn uninitialised(
        &self,
        space: Space,
        addr: u64,
        first: u64,
        bytes: usize,
        lane: usize,
    ) -> Box<Fault> {
        let kind = DiagnosticKind::UninitialisedRead { first };
        self.fault(kind, space, addr, bytes, AccessKind::Read, lane)
    }

    #[cold]
    pub(crate) fn fault(
        &self,
        kind: DiagnosticKind,
        space: Space,
        address: u64,
        bytes: usize,
        access: AccessKind,
        lane: usize,
    ) -> Box<Fault> {
        let whole = |name: &str, start: u64, bytes: u64| {
            Some(AllocationSite { name: name.to_owned(), start, bytes })
        };
        let allocation =
            match space {
                Space::Global => self.env.global.nearest(address).map(|(block, _)| {
                    AllocationSite { name: block.name.clone(), start: block.addr, bytes: block.len }
                }),
                Space::Shared => {
                    let rank = self.place.rank;
                    let start = u64::from((rank << RANK_SHIFT) | SHARED_BASE);
                    let len = self.shared[rank as usize].len() as u64;
                    whole("shared memory of the CTA", start, len - u64::from(SHARED_BASE))
                }
                Space::Local => whole("local memory of the thread", 0, self.local.len() as u64),
                Space::Param => whole("kernel parameters", 0, self.env.params.len() as u64),
                Space::Const => whole("constants of the module", 0, self.env.consts.len() as u64),
            };
        Box::new(Fault {
            kind,
            lane: Some(lane as u32),
            access: Some(Access { address, bytes: bytes as u32, space, kind: access, allocation }),
        })
    }
}

/// Distinct 32-byte sectors of a warp access. Accesses are aligned, so one lane
/// touches one sector.
struct Sectors {
    seen: [u64; LANES],
    len: usize,
    count: u64,
}

impl Default for Sectors {
    fn default() -> Self {
        Self { seen: [0; LANES], len: 0, count: 0 }
    }
}

impl Sectors {
    /// Adds the sector of an address; whether it is new.
    #[inline(always)]
    fn add(&mut self, addr: u64) -> bool {
        let sector = addr >> 5;
        // Most often the same sector as the lane before, or a new one.
        if self.seen[..self.len].iter().rev().any(|&seen| seen == sector) {
            return false;
        }
        self.seen[self.len] = sector;
        self.len += 1;
        self.count += 1;
        true
    }
}

/// Passes over the 32 banks that a shared access takes, and how many it would
/// take without conflicts. Accesses wider than 4 bytes go in groups of lanes
/// that move 128 bytes; an aligned access of `b` bytes then occupies one of
/// `128 / b` groups of banks.
#[inline]
fn wavefronts(addrs: &[u64; LANES], mask: u32, bytes: usize) -> (u64, u64) {
    let bytes = bytes.clamp(4, 32);
    let shift = bytes.trailing_zeros();
    let group = 128 / bytes;
    let (mut passes, mut ideal) = (0, 0);
    for first in (0..LANES).step_by(group) {
        let here = mask >> first & (((1u64 << group) - 1) as u32);
        if here == 0 {
            continue;
        }
        ideal += 1;
        let mut owner = [u64::MAX; 32];
        let mut conflicts = 0;
        for lane in 0..group {
            let unit = addrs[first + lane] >> shift;
            let bank = &mut owner[unit as usize % group];
            if here >> lane & 1 != 0 {
                conflicts |= u64::from(*bank != u64::MAX && *bank != unit);
                *bank = unit;
            }
        }
        passes += if conflicts == 0 { 1 } else { deepest_bank(addrs, first, here, shift, group) };
    }
    (passes, ideal)
}

/// Largest number of distinct units that lanes of a group want of one bank.
#[cold]
fn deepest_bank(addrs: &[u64; LANES], first: usize, here: u32, shift: u32, group: usize) -> u64 {
    let mut units = [0; LANES];
    let mut len = 0;
    let mut depth = [0u64; 32];
    for lane in lanes(here) {
        let unit = addrs[first + lane] >> shift;
        if !units[..len].contains(&unit) {
            units[len] = unit;
            len += 1;
            depth[unit as usize % group] += 1;
        }
    }
    depth.iter().max().copied().unwrap_or(1)
}
