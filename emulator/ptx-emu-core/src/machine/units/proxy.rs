//! Proxies: PTX ISA 8.3 and 9.7.13.4 (`fence.proxy.async`,
//! `fence.proxy.tensormap`).
//!
//! Shared memory remembers, per granule of 16 bytes, which instruction of which
//! warp wrote it last through the generic proxy; global memory per sector of 32
//! bytes. A read through the async proxy, and of shared memory a write, needs a
//! `fence.proxy.async` since: by the writing warp, or by any warp of its CTA after a barrier (CTA barrier,
//! cluster barrier or mbarrier phase) completed behind the write. Tensor maps
//! that `tensormap.cp_fenceproxy` wrote need a
//! `fence.proxy.tensormap::generic.acquire` in the using CTA.
//!
//! A response that `clusterlaunchcontrol.try_cancel` wrote may only be overwritten by a later one
//! behind a proxy fence between it and every generic read: by any warp that knows of the read, if
//! the asking one knows of the fence. That is asked where vector clocks are (`machine::race`). Bulk
//! copies over what was read generically need such a fence too; most kernels have none, so that is
//! only a warning, and kept apart: vector clocks remember the reads that a fence follows
//! (`Races::fence_reads`).
//!
//! Limits: an earlier writer of a granule that another warp wrote later; a fence by lanes that are
//! not the writing ones of a warp; a barrier that the writer took no part in; generic writes to
//! global memory that an async write follows; generic reads of global memory that one follows;
//! writes of other clusters; tensor maps changed by plain stores.

use super::Site;
use super::flight::GRANULE;
use std::collections::BTreeMap;

/// Bytes of a remembered piece of global memory.
pub(super) const SECTOR: u64 = 32;

/// Memory that a proxy fence covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fenced {
    /// Shared memory.
    Shared,
    /// Global memory.
    Global,
}

/// The generic write that touched a place last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// Instruction, plus 1; 0 for none.
    pc: u32,
    warp: u32,
    /// Fences of its memory that the warp had executed.
    fences: u64,
    /// Synchronisation count of the CTA.
    syncs: u64,
}

/// The writer of a granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) pc: usize,
    pub(crate) warp: usize,
}

/// A generic read of a response.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) pc: usize,
    pub(crate) warp: usize,
    pub(crate) lanes: u32,
    /// The warp's epoch in race detection.
    pub(crate) epoch: u32,
    /// Warps that have fenced it, their lanes that did, and their epochs then.
    pub(crate) fences: Vec<(usize, u32, u32)>,
}

/// Generic writes that the async proxy may not see yet.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    /// The module has instructions that read through the async proxy.
    tracking: bool,
    warps_per_cta: usize,
    shared: Vec<Vec<Mark>>,
    global: BTreeMap<u64, Mark>,
    /// Proxy fences executed, by warp, for each [`Fenced`]. Never reset, so that marks of an earlier
    /// cluster count as fenced.
    fences: Vec<[u64; 2]>,
    /// Writes before this synchronisation count are fenced, by CTA.
    fenced: Vec<[u64; 2]>,
    /// Tensor maps written in this launch, and the CTAs that acquired them.
    maps: BTreeMap<u64, Vec<bool>>,
    /// Readers of the granules that responses were written to, by CTA rank and number.
    responses: BTreeMap<(u32, u64), Vec<Reader>>,
}

impl Proxies {
    pub(crate) fn reset(
        &mut self,
        tracking: bool,
        ctas: usize,
        warps_per_cta: usize,
        shared_bytes: usize,
    ) {
        self.tracking = tracking;
        self.warps_per_cta = warps_per_cta;
        self.global.clear();
        self.maps.clear();
        self.responses.clear();
        self.fenced.clear();
        self.fenced.resize(ctas, [0; 2]);
        self.fences.resize(ctas * warps_per_cta, [0; 2]);
        self.fences.iter_mut().flatten().for_each(|count| *count += 1);
        if tracking {
            let granules = shared_bytes.div_ceil(GRANULE as usize);
            self.shared.resize_with(ctas, || vec![Mark::default(); granules]);
        }
    }

    /// Whether generic writes have to be reported.
    #[inline(always)]
    pub(crate) fn tracking(&self) -> bool {
        self.tracking
    }

    /// The mark of a write.
    pub(crate) fn mark(&self, memory: Fenced, pc: usize, warp: usize, syncs: u64) -> Mark {
        let fences = self.fences[warp][memory as usize];
        Mark { pc: pc as u32 + 1, warp: warp as u32, fences, syncs }
    }

    /// A generic write to shared memory.
    #[inline]
    pub(crate) fn wrote_shared(&mut self, rank: u32, offset: u64, bytes: u64, mark: Mark) {
        let marks = &mut self.shared[rank as usize];
        let last = (offset + bytes - 1) / GRANULE;
        for granule in offset / GRANULE..=last {
            marks[granule as usize] = mark;
        }
    }

    /// A generic write to global memory, within a sector.
    #[inline]
    pub(crate) fn wrote_global(&mut self, addr: u64, mark: Mark) {
        self.global.insert(addr / SECTOR, mark);
    }

    /// A write of `cp.async`, which is generic, when it completes.
    pub(super) fn copied(&mut self, rank: u32, start: u64, bytes: u64, site: Site) {
        if self.tracking && bytes != 0 {
            // Only a fence behind a later barrier covers it for other warps.
            let syncs = self.fenced[rank as usize][Fenced::Shared as usize];
            let mark = self.mark(Fenced::Shared, site.pc, site.warp, syncs);
            self.wrote_shared(rank, start, bytes, mark);
        }
    }

    /// A write through the async proxy: later reads need no fence.
    pub(crate) fn clean(&mut self, rank: u32, start: u64, bytes: u64) {
        if self.tracking && bytes != 0 {
            let span = (start / GRANULE) as usize..(start + bytes).div_ceil(GRANULE) as usize;
            self.shared[rank as usize][span].fill(Mark::default());
        }
    }

    /// `fence.proxy.async` of a warp, at a synchronisation count of its CTA.
    pub(crate) fn fence(&mut self, memory: Fenced, warp: usize, syncs: u64) {
        self.fences[warp][memory as usize] += 1;
        let fenced = &mut self.fenced[warp / self.warps_per_cta][memory as usize];
        *fenced = (*fenced).max(syncs);
    }

    fn unfenced(&self, memory: Fenced, mark: &Mark) -> Option<Writer> {
        let writer = Writer { pc: (mark.pc as usize).checked_sub(1)?, warp: mark.warp as usize };
        let fenced = self.fences[writer.warp][memory as usize] > mark.fences
            || self.fenced[writer.warp / self.warps_per_cta][memory as usize] > mark.syncs;
        (!fenced).then_some(writer)
    }

    /// First address of a shared range whose generic write the async proxy may not
    /// see, and who wrote it.
    pub(crate) fn stale_shared(&self, rank: u32, start: u64, bytes: u64) -> Option<(u64, Writer)> {
        let marks = self.shared.get(rank as usize)?;
        (start / GRANULE..(start + bytes).div_ceil(GRANULE)).find_map(|granule| {
            let writer = self.unfenced(Fenced::Shared, marks.get(granule as usize)?)?;
            Some(((granule * GRANULE).max(start), writer))
        })
    }

    /// The same for global memory.
    pub(crate) fn stale_global(&self, start: u64, bytes: u64) -> Option<(u64, Writer)> {
        if self.global.is_empty() || bytes == 0 {
            return None;
        }
        let last = (start + bytes - 1) / SECTOR;
        self.global.range(start / SECTOR..=last).find_map(|(sector, mark)| {
            Some(((sector * SECTOR).max(start), self.unfenced(Fenced::Global, mark)?))
        })
    }

    /// Whether generic reads of shared memory have to be reported.
    #[inline(always)]
    pub(crate) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// A generic read of shared memory.
    pub(crate) fn read(&mut self, rank: u32, offset: u64, reader: Reader) {
        if let Some(readers) = self.responses.get_mut(&(rank, offset / GRANULE)) {
            readers.retain(|old| (old.warp, old.lanes) != (reader.warp, reader.lanes));
            readers.push(reader);
        }
    }

    /// Returns the readers of responses.
    pub(crate) fn readers(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.responses.values_mut().flatten()
    }

    /// A response is written to a granule: those who read the last one.
    pub(crate) fn respond(&mut self, rank: u32, offset: u64) -> Vec<Reader> {
        std::mem::take(self.responses.entry((rank, offset / GRANULE)).or_default())
    }

    /// A tensor map in global memory was written on the device.
    pub(crate) fn wrote_map(&mut self, addr: u64) {
        self.maps.insert(addr, vec![false; self.fenced.len()]);
    }

    /// `fence.proxy.tensormap::generic.acquire` on `[addr, addr + bytes)`.
    pub(crate) fn acquire_map(&mut self, rank: u32, addr: u64, bytes: u64) {
        for (_, acquired) in self.maps.range_mut(addr..addr.saturating_add(bytes)) {
            acquired[rank as usize] = true;
        }
    }

    /// Whether a CTA may use the tensor map at a global address.
    pub(crate) fn map_acquired(&self, rank: u32, addr: u64) -> bool {
        self.maps.get(&addr).is_none_or(|acquired| acquired[rank as usize])
    }
}
