//! The interface between executing instructions and the asynchronous units: addresses, issue,
//! checks.

use super::Site;
use super::engine::{OpId, Operation, StepContext};
use super::flight::{Home, Range};
use super::mbarrier::{At, BYTES};
use super::proxy::{Fenced, SECTOR};
use super::{AsyncFault, Units};
use crate::checks::Kind;
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Fault, Space};
use crate::machine::access::lanes;
use crate::machine::regs::LANES;
use crate::machine::{Context, RANK_SHIFT, SHARED_BASE, window};

/// The shared memory that an address operand can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// `.shared`, `.shared::cta`: that of the executing CTA.
    Own,
    /// `.shared::cluster`: that of any CTA of the cluster.
    Cluster,
    /// No state space: a generic address, or a 32-bit shared one.
    Generic,
}

/// An access to memory, for checks and messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) bytes: u64,
    /// Required alignment, bytes.
    pub(crate) align: u64,
    pub(crate) kind: AccessKind,
    pub(crate) lane: usize,
}

/// The kind of finding that an access to a range in flight is.
pub(super) const fn flight_kind(range: &Range) -> Kind {
    match range.home {
        Home::Global | Home::Shared(_) => Kind::MemoryInFlight,
        Home::Tensor(_) => Kind::TensorMemoryInFlight,
    }
}

/// The fault of a generic address where one of `.shared::cta` belongs.
pub(in crate::machine) fn generic_shared(address: u64, lane: usize) -> Box<Fault> {
    let fault = AsyncFault::GenericShared { address };
    Fault::lane(DiagnosticKind::Async(fault), lane as u32)
}

impl Context<'_> {
    /// Number of the executing warp in its cluster.
    #[inline]
    pub(crate) fn warp(&self) -> usize {
        self.units.warp_index(self.place.rank, self.place.warp)
    }

    /// The executing instruction.
    pub(crate) fn site(&self, lane: usize) -> Site {
        Site { pc: self.pc, warp: self.warp(), lane: lane as u32 }
    }

    /// The units, and the memory they work on.
    pub(crate) fn with_units<R>(
        &mut self,
        f: impl FnOnce(&mut Units, &mut StepContext<'_>) -> R,
    ) -> R {
        let mut context = StepContext {
            shared: self.shared,
            env: self.env,
            stats: self.stats,
            faults: Vec::new(),
        };
        f(self.units, &mut context)
    }

    /// Issues an operation.
    pub(crate) fn issue(&mut self, operation: Operation) -> Exec<OpId> {
        let clock = self.clock;
        self.with_units(|units, context| units.issue(context, clock, operation))
    }

    /// Barriers of any kind completed so far, as far as the CTA took part.
    pub(crate) fn syncs(&self) -> u64 {
        self.barriers.completions()
            + self.units.barriers.completed()
            + self.units.cluster.generation()
    }

    /// The place that a shared address names.
    pub(crate) fn shared_at(&self, reach: Reach, addr: u64, touch: Touch) -> Exec<At> {
        let Touch { bytes, align, kind, lane } = touch;
        let out_of_bounds = |addr| {
            self.fault(DiagnosticKind::OutOfBounds, Space::Shared, addr, bytes as usize, kind, lane)
        };
        let addr = match (reach, window::tag(addr)) {
            (Reach::Generic, window::SHARED) => addr & !(0xff << 56),
            (Reach::Own, window::SHARED) => {
                self.report(generic_shared(addr, lane))?;
                addr & window::LOW
            }
            (_, 0) => addr,
            _ => return Err(out_of_bounds(addr)),
        };
        let offset = addr & ((1 << RANK_SHIFT) - 1);
        let rank = addr >> RANK_SHIFT;
        if !offset.is_multiple_of(align) {
            let required = DiagnosticKind::Misaligned { required: align as u32 };
            return Err(self.fault(required, Space::Shared, addr, bytes as usize, kind, lane));
        }
        let inside = self.shared.get(rank as usize).is_some_and(|memory| {
            offset >= SHARED_BASE.into() && offset.saturating_add(bytes) <= memory.len() as u64
        });
        if !inside || reach == Reach::Own && rank != u64::from(self.place.rank) {
            return Err(out_of_bounds(addr));
        }
        if rank != u64::from(self.place.rank) {
            self.check_peer(rank as u32, lane)?;
        }
        Ok(At { rank: rank as u32, offset: offset as u32 })
    }

    /// The executing instruction looked at memory and found `words`. True when
    /// others should run.
    pub(crate) fn looked(
        &mut self,
        addrs: &[u64; LANES],
        words: &[[u64; LANES]; 4],
        mask: u32,
    ) -> bool {
        let warp = self.warp();
        self.units.spins.looked(warp, self.pc, addrs, &words[0], mask)
    }

    /// The mbarrier object that an address names.
    pub(crate) fn mbarrier_at(&self, reach: Reach, addr: u64, lane: usize) -> Exec<At> {
        let bytes = BYTES as u64;
        self.shared_at(reach, addr, Touch { bytes, align: bytes, kind: AccessKind::Atomic, lane })
    }

    /// A global range must lie in one allocation. Returns its address.
    pub(crate) fn global_at(&self, addr: u64, touch: Touch) -> Exec<u64> {
        let Touch { bytes, align, kind, lane } = touch;
        let fault = |why| self.fault(why, Space::Global, addr, bytes as usize, kind, lane);
        if !addr.is_multiple_of(align) {
            return Err(fault(DiagnosticKind::Misaligned { required: align as u32 }));
        }
        let held = self
            .env
            .global
            .find(addr)
            .is_some_and(|id| self.env.global.block(id).holds(addr, bytes));
        if held { Ok(addr) } else { Err(fault(DiagnosticKind::OutOfBounds)) }
    }

    /// An operand that the instruction cannot use.
    pub(crate) fn bad_operand(
        &self,
        lane: usize,
        operand: &'static str,
        required: impl Into<String>,
        actual: impl ToString,
    ) -> Box<Fault> {
        let fault =
            AsyncFault::Operand { operand, required: required.into(), actual: actual.to_string() };
        Fault::lane(DiagnosticKind::Async(fault), lane as u32)
    }

    /// A range of `home` that a lane of the executing warp accesses must not be
    /// in flight.
    pub(crate) fn check_flight_at(&self, range: &Range, write: bool, lane: usize) -> Exec {
        match self.units.disturbed(range, write) {
            None => Ok(()),
            Some((queued, role)) => {
                let line = self.env.code[queued.operation.site.pc].line;
                if self.units.is_known(self.env, flight_kind(range), self.pc, line) {
                    return Ok(());
                }
                let kind = self.units.in_flight(self.env, queued, role, range, write);
                self.report(Fault::lane(kind, lane as u32))
            }
        }
    }

    /// Checks a warp's generic access against the operations in flight. `rank`:
    /// whose shared memory; `None` for global.
    #[cold]
    pub(in crate::machine) fn check_flight(
        &self,
        rank: Option<u32>,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
        write: bool,
    ) -> Exec {
        for lane in lanes(mask) {
            let (home, start) = match rank {
                None => (Home::Global, addrs[lane]),
                Some(rank) => (Home::Shared(rank), addrs[lane] & ((1 << RANK_SHIFT) - 1)),
            };
            self.check_flight_at(&Range { home, start, bytes: bytes as u64 }, write, lane)?;
        }
        Ok(())
    }

    /// Tells the proxies about a warp's generic stores, which were in bounds.
    #[cold]
    pub(in crate::machine) fn note_stores(
        &mut self,
        rank: Option<u32>,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
    ) {
        let memory = if rank.is_some() { Fenced::Shared } else { Fenced::Global };
        let mark = self.units.proxies.mark(memory, self.pc, self.warp(), self.syncs());
        let mut sector = None;
        for lane in lanes(mask) {
            match rank {
                None => {
                    if sector.replace(addrs[lane] / SECTOR) != Some(addrs[lane] / SECTOR) {
                        self.units.proxies.wrote_global(addrs[lane], mark);
                    }
                }
                Some(rank) => {
                    let offset = addrs[lane] & ((1 << RANK_SHIFT) - 1);
                    self.units.proxies.wrote_shared(rank, offset, bytes as u64, mark);
                }
            }
        }
    }

    /// 128 bytes of a tensor map at a generic address, which must be a multiple
    /// of 64.
    pub(crate) fn tensor_map_bytes(&self, addr: u64, lane: usize) -> Exec<[u8; 128]> {
        const BYTES: usize = crate::tensor_map::TENSOR_MAP_BYTES;
        let kind = AccessKind::Read;
        let touch = Touch { bytes: BYTES as u64, align: 64, kind, lane };
        let mut bytes = [0; BYTES];
        let tag = window::tag(addr);
        let inside = addr & !(0xff << 56);
        let (space, memory) = match tag {
            0 => {
                let addr = self.global_at(addr, touch)?;
                if !self.units.proxies.map_acquired(self.place.rank, addr) {
                    let fault = AsyncFault::MissingTensormapFence { address: addr };
                    self.report(Fault::lane(DiagnosticKind::Async(fault), lane as u32))?;
                }
                if let Some(id) = self.env.global.find(addr) {
                    let block = self.env.global.block(id);
                    if let Some(first) = block.first_uninitialised_in(addr, BYTES as u64) {
                        let why = DiagnosticKind::UninitialisedRead { first, user: None };
                        self.report(self.fault(why, Space::Global, addr, BYTES, kind, lane))?;
                    }
                    block.copy_out(addr, &mut bytes);
                }
                return Ok(bytes);
            }
            window::PARAM => (Space::Param, &self.env.params),
            window::CONST => (Space::Const, &self.env.consts),
            _ => {
                return Err(self.bad_operand(
                    lane,
                    "tensor map",
                    "a generic address in .param, .const or .global",
                    format!("{addr:#x}"),
                ));
            }
        };
        if !inside.is_multiple_of(64) {
            let why = DiagnosticKind::Misaligned { required: 64 };
            return Err(self.fault(why, space, inside, BYTES, kind, lane));
        }
        if inside.saturating_add(BYTES as u64) > memory.len() as u64 {
            return Err(self.fault(DiagnosticKind::OutOfBounds, space, inside, BYTES, kind, lane));
        }
        memory.copy_out(inside as usize, &mut bytes);
        Ok(bytes)
    }
}
