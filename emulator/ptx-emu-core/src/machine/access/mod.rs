//! Memory accesses of a warp: checking, moving, counting.
//!
//! Every access is checked for bounds, alignment and (loads) initialisation.
//! Warps whose lanes touch consecutive addresses, or all the same one, are
//! checked once; everything else goes lane by lane.
//!
//! Accesses of one warp instruction happen in lane order. `.shared::cta` is
//! that of the executing CTA, `.shared::cluster` and generic addresses reach
//! that of the whole cluster.

mod banks;
mod global;
mod other;
mod shared;
mod word;

pub(crate) use banks::Banks;

use super::context::Context;
use super::regs::LANES;
use super::units::generic_shared;
use super::{RANK_SHIFT, SHARED_BASE, window};
use crate::checks::Kind;
use crate::diagnostic::{Access, AccessKind, AllocationSite, DiagnosticKind, Exec, Fault, Space};
use crate::memory::Value;

/// State space an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressSpace {
    /// A space.
    One(Space),
    /// `.shared::cluster`: shared memory of any CTA of the cluster.
    Cluster,
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
pub(crate) fn is_uniform(addrs: &[u64; LANES]) -> bool {
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

impl AddressSpace {
    /// The space that a generic address was found to be in.
    const fn found(space: Space) -> Self {
        match space {
            Space::Shared => Self::Cluster,
            other => Self::One(other),
        }
    }
}

impl Context<'_> {
    /// Loads `bytes` (a power of two up to 32) a lane. The usual spaces are expanded where it is called, for
    /// the host's vectors.
    #[inline(always)]
    pub(crate) fn load_on_host(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global) => {
                self.race_global(false, mask);
                self.load_global(addrs, mask, bytes, out)
            }
            AddressSpace::One(Space::Shared) => {
                match self.load_shared(self.place.rank, addrs, mask, bytes, out) {
                    Ok(()) => self.race_shared(addrs, mask, bytes, None),
                    Err(fault) => self.load_low(fault, addrs, mask, bytes, out),
                }
            }
            other => self.load(other, addrs, mask, bytes, out),
        }
    }

    /// Loads once more what failed in `.shared::cta`, by the low halves of generic addresses.
    #[cold]
    fn load_low(
        &mut self,
        fault: Box<Fault>,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        let low = self.low_halves(fault, addrs, mask, bytes, false)?;
        self.load(AddressSpace::One(Space::Shared), &low, mask, bytes, out)
    }

    /// Loads `bytes` (a power of two up to 32) a lane.
    pub(crate) fn load(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        out: &mut [[u64; LANES]],
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global | Space::Shared) => {
                self.load_on_host(space, addrs, mask, bytes, out)
            }
            AddressSpace::Cluster => {
                self.by_rank(addrs, mask, bytes, AccessKind::Read, |cx, rank, mask| {
                    cx.load_shared(rank, addrs, mask, bytes, out)?;
                    cx.race_shared(addrs, mask, bytes, None)
                })
            }
            AddressSpace::One(space) => self.load_other(space, addrs, mask, bytes, out),
            AddressSpace::Generic => {
                self.by_window(addrs, mask, bytes, AccessKind::Read, |cx, space, addrs, mask| {
                    cx.load(AddressSpace::found(space), addrs, mask, bytes, out)
                })
            }
        }
    }

    /// Stores `bytes` (a power of two up to 32) a lane. The usual spaces are expanded where it is called, for
    /// the host's vectors.
    #[inline(always)]
    pub(crate) fn store_on_host(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global) => {
                self.race_global(true, mask);
                self.store_global(addrs, mask, bytes, values)
            }
            AddressSpace::One(Space::Shared) => self
                .store_shared(self.place.rank, addrs, mask, bytes, values)
                .or_else(|fault| self.store_low(fault, addrs, mask, bytes, values)),
            other => self.store(other, addrs, mask, bytes, values),
        }
    }

    /// Stores once more what failed in `.shared::cta`, by the low halves of generic addresses.
    #[cold]
    fn store_low(
        &mut self,
        fault: Box<Fault>,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        let low = self.low_halves(fault, addrs, mask, bytes, true)?;
        self.store(AddressSpace::One(Space::Shared), &low, mask, bytes, values)
    }

    /// Stores `bytes` (a power of two up to 32) a lane.
    pub(crate) fn store(
        &mut self,
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        values: &Words,
    ) -> Exec {
        match space {
            AddressSpace::One(Space::Global | Space::Shared) => {
                self.store_on_host(space, addrs, mask, bytes, values)
            }
            AddressSpace::Cluster => {
                self.by_rank(addrs, mask, bytes, AccessKind::Write, |cx, rank, mask| {
                    cx.store_shared(rank, addrs, mask, bytes, values)
                })
            }
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
                    cx.store(AddressSpace::found(space), addrs, mask, bytes, values)
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
        if space == AddressSpace::One(Space::Shared)
            && self.atomic_shared(addrs, mask, bytes, &mut update)?
        {
            return Ok(());
        }
        let before = self.stats.spaces;
        let atomic = |mut fault: Box<Fault>| {
            if let Some(access) = &mut fault.access {
                access.kind = AccessKind::Atomic;
            }
            fault
        };
        for lane in lanes(mask) {
            let one = 1 << lane;
            let mut old = [[0; LANES]; 4];
            let kind = AccessKind::Atomic;
            let named = space;
            let (space, addr) = self.resolve(named, addrs[lane], bytes, kind, lane)?;
            let reached = match named {
                AddressSpace::One(space) => AddressSpace::One(space),
                _ => AddressSpace::found(space),
            };
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
            self.load(reached, &at, one, bytes, &mut old).map_err(atomic)?;
            let value = [old[0][lane], old[1][lane], old[2][lane], old[3][lane]];
            if let Some(new) = update(lane, space, &value) {
                for (row, word) in old.iter_mut().zip(new) {
                    row[lane] = word;
                }
                self.store(reached, &at, one, bytes, &old).map_err(atomic)?;
            }
        }
        // Lanes are served one by one, but it is one warp instruction.
        for (count, before) in self.stats.spaces.iter_mut().zip(before) {
            count.reads = count.reads.min(before.reads + 1);
            count.writes = count.writes.min(before.writes + 1);
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
            AddressSpace::Cluster => Ok((Space::Shared, addr)),
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

    /// The addresses of an access of `.shared::cta` that failed, if they are generic ones of shared
    /// memory: what the instruction takes of them.
    ///
    /// # Errors
    /// The fault, if there is another reason for it.
    #[cold]
    fn low_halves(
        &mut self,
        fault: Box<Fault>,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        write: bool,
    ) -> Exec<[u64; LANES]> {
        let generic = |lane: &usize| window::tag(addrs[*lane]) == window::SHARED;
        match lanes(mask).find(generic) {
            Some(lane) if lanes(mask).all(|lane| generic(&lane)) => {
                self.report(generic_shared(addrs[lane], lane))?;
                self.uncount_shared(addrs, mask, bytes, write);
                Ok(addrs.map(|addr| addr & window::LOW))
            }
            _ => Err(fault),
        }
    }

    /// A lane reads bytes of global memory of which `first` was never written. If it loads words of 8 bytes and
    /// something was written to each of them, the rest is padding of a structure.
    #[cold]
    pub(super) fn unwritten_global(
        &self,
        addr: u64,
        first: u64,
        bytes: usize,
        lane: usize,
    ) -> Exec {
        let written = |word: u64| {
            let block = self.env.global.find(addr).map(|id| self.env.global.block(id));
            block.is_some_and(|block| {
                (word..word + 8).any(|at| block.first_uninitialised_in(at, 1).is_none())
            })
        };
        let words = self.env.module.words.contains(&self.pc)
            && bytes.is_multiple_of(8)
            && (addr..addr + bytes as u64).step_by(8).all(written);
        if !words {
            return self.unwritten(Space::Global, addr, first, bytes, lane);
        }
        if self.units.is_known(self.env, Kind::UninitialisedPadding, self.pc, 0) {
            return Ok(());
        }
        let kind = DiagnosticKind::UninitialisedPadding { first };
        self.report(self.fault(kind, Space::Global, addr, bytes, AccessKind::Read, lane))
    }

    /// A lane reads bytes of which `first` was never written.
    #[cold]
    pub(super) fn unwritten(
        &self,
        space: Space,
        addr: u64,
        first: u64,
        bytes: usize,
        lane: usize,
    ) -> Exec {
        if self.units.is_known(self.env, Kind::UninitialisedRead, self.pc, 0) {
            return Ok(());
        }
        let kind = DiagnosticKind::UninitialisedRead { first, user: None };
        self.report(self.fault(kind, space, addr, bytes, AccessKind::Read, lane))
    }

    /// Describes an access outside every allocation.
    fn outside(&self, space: Space, address: u64) -> DiagnosticKind {
        // No allocation is that low.
        const NULL_END: u64 = 1 << 16;
        match space {
            Space::Global if address < NULL_END => DiagnosticKind::NullPointer,
            Space::Shared
                if self.env.dynamic_shared == 0 && self.env.module.uses_dynamic(self.env.entry) =>
            {
                let offset = (address & ((1 << RANK_SHIFT) - 1)) as u32;
                if offset >= self.env.shared_bytes {
                    DiagnosticKind::NoDynamicShared
                } else {
                    DiagnosticKind::OutOfBounds
                }
            }
            _ => DiagnosticKind::OutOfBounds,
        }
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
        let kind = match kind {
            DiagnosticKind::OutOfBounds => self.outside(space, address),
            other => other,
        };
        let whole = |name: &str, start: u64, bytes: u64| {
            Some(AllocationSite { name: name.to_owned(), start, bytes })
        };
        let allocation = match space {
            Space::Global => self
                .env
                .global
                .nearest(address)
                .map(|(name, start, bytes)| AllocationSite { name, start, bytes }),
            Space::Shared => {
                let named = (address >> RANK_SHIFT) as u32;
                let inside = (named as usize) < self.shared.len();
                let rank = if inside { named } else { self.place.rank };
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
            site: None,
        })
    }
}
