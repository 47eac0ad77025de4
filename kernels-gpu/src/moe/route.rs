//! Routing: slots in the order of their experts.
//!
//! # Contract
//! The parameters are [`RouteParams`]; one CTA of [`RouteParams::threads`] threads with
//! [`RouteParams::shared_bytes`].
//!
//! # Pipeline
//! ```text
//! each warp counts its slots by expert | counts become first places | each warp places its slots
//! ```
//! A warp has consecutive slots, and takes 32 at a time: lanes with the same expert find one another
//! by `match`, so that the order of slots is that of lanes. Nothing depends on timing.
//!
//! # Shared memory
//! `counts[warp][expert]`, then `offsets[expert]`, words.
//!
//! # Capacity
//! Without one, an expert's rows begin at its offset; with one, at the expert's number times the capacity. Offsets are
//! the same in both cases, so that the counts follow from them.

use cuda_std::ptx::{memory, shuffle};
use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::moe::{
    BAD, NOWHERE, ROUTE_THREADS, RouteParams, STATUS_BAD_ID, STATUS_OVER_CAPACITY,
};

use crate::pipeline::{follow_stream, release_stream};

const WORD: u32 = size_of::<u32>() as u32;

/// The context of every step.
struct Route<'a> {
    p: &'a RouteParams,
    /// Shared address of the counters.
    counts: u32,
}

impl Route<'_> {
    /// Returns the address at which a warp counts the slots of an expert.
    #[inline(always)]
    fn count(&self, warp: u32, expert: u32) -> u32 {
        self.counts + (warp * self.p.experts.count + expert) * WORD
    }

    /// Returns the address of an expert's first row.
    #[inline(always)]
    fn offset(&self, expert: u32) -> u32 {
        self.count(self.p.warps(), expert)
    }

    /// Loads the id of a slot, or with a map the id's entry there, [`BAD`] if it is no expert's; [`NOWHERE`] where the
    /// slot is not below `end`.
    ///
    /// # Safety
    /// The same as [`each`](Self::each).
    #[inline(always)]
    unsafe fn id(&self, slot: u32, end: u32) -> u32 {
        if slot >= end {
            return NOWHERE;
        }
        // SAFETY: an element of the ids, and of the map.
        unsafe {
            let at = u64::from(slot) * u64::from(self.p.id_stride);
            let id = memory::ld_global_b32(self.p.ids + at);
            if self.p.map == 0 || id == NOWHERE {
                id
            } else if id < self.p.experts.all {
                memory::ld_global_b32(self.p.map + u64::from(id) * u64::from(WORD))
            } else {
                BAD
            }
        }
    }

    /// The expert of what [`id`](Self::id) loads.
    #[inline(always)]
    fn expert(&self, id: u32) -> u32 {
        if self.p.map == 0 { self.p.experts.local(id) } else { id }
    }

    /// Calls `f` for the warp's slots, 32 at a time: with the slot, its expert, [`NOWHERE`] where the
    /// lane has no slot, and of the lanes with this expert those below and all. Lanes have met
    /// before and after each call. `id` is that of the lane's first slot.
    ///
    /// # Safety
    /// Whole warps; the kernels before have ended.
    #[inline(always)]
    unsafe fn each(&self, mut id: u32, mut f: impl FnMut(u32, u32, u32, u32)) {
        let (lane, own) = (warp::lane_id(), thread::thread_idx_x() / warp::LANES);
        let (mut at, end) = self.p.part(own);
        while at < end {
            let slot = at + lane;
            // SAFETY: all lanes are here.
            unsafe {
                let expert = if slot < end { self.expert(id) } else { NOWHERE };
                // On its way while these slots are looked at.
                id = self.id(slot + warp::LANES, end);
                warp::sync();
                let same = shuffle::match_any_sync_b32(expert, warp::ALL);
                let below = (same & ((1 << lane) - 1)).count_ones();
                f(slot, expert, below, same.count_ones());
                warp::sync();
            }
            at += warp::LANES;
        }
    }

    /// Counts the warp's slots by expert.
    ///
    /// # Safety
    /// The same as [`each`](Self::each); the counters are 0.
    #[inline(always)]
    unsafe fn count_slots(&self, id: u32) {
        let own = thread::thread_idx_x() / warp::LANES;
        // SAFETY: of the lanes with one expert the first alone changes its counter.
        unsafe {
            self.each(id, |_, expert, below, all| {
                if expert < self.p.experts.count && below == 0 {
                    let at = self.count(own, expert);
                    memory::st_shared_b32(at, memory::ld_shared_b32(at) + all);
                }
            });
        }
    }

    /// Turns counts into how many slots of the same expert warps before have, and totals into
    /// offsets.
    ///
    /// # Safety
    /// All threads, behind [`count_slots`](Self::count_slots) and a barrier; another one follows.
    #[inline(always)]
    unsafe fn sum(&self) {
        let thread = thread::thread_idx_x();
        // SAFETY: each thread has its own experts' counters; then one warp has the totals.
        unsafe {
            let mut expert = thread;
            while expert < self.p.experts.count {
                let mut before = 0;
                for warp in 0..self.p.warps() {
                    let at = self.count(warp, expert);
                    let count = memory::ld_shared_b32(at);
                    memory::st_shared_b32(at, before);
                    before += count;
                }
                memory::st_shared_b32(self.offset(expert), before);
                self.note_count(expert, before);
                expert += thread::block_dim_x();
            }
            thread::sync_threads();
            if thread >= warp::LANES {
                return;
            }
            // Each lane has experts that follow each other: one sum over the lanes is enough.
            let each = self.p.experts.count.div_ceil(warp::LANES);
            let first = (thread * each).min(self.p.experts.count);
            let end = (first + each).min(self.p.experts.count);
            let mut own = 0;
            for expert in first..end {
                own += memory::ld_shared_b32(self.offset(expert));
            }
            warp::sync();
            let mut row = warp::prefix_sum_u32(own) - own;
            for expert in first..end {
                let total = memory::ld_shared_b32(self.offset(expert));
                self.put_offset(expert, row);
                row += total;
            }
            if thread == warp::LANES - 1 {
                self.put_offset(self.p.experts.count, row);
            }
            warp::sync();
        }
    }

    /// Keeps the most slots that an expert has had.
    ///
    /// # Safety
    /// There is such an expert, whose thread this is.
    #[inline(always)]
    unsafe fn note_count(&self, expert: u32, slots: u32) {
        if self.p.most == 0 {
            return;
        }
        let at = self.p.most + u64::from(expert) * u64::from(WORD);
        // SAFETY: an element of the array.
        unsafe {
            if memory::ld_global_b32(at) < slots {
                memory::st_global_b32(at, slots);
            }
        }
    }

    /// Writes an offset to both memories.
    ///
    /// # Safety
    /// There is such an offset.
    #[inline(always)]
    unsafe fn put_offset(&self, expert: u32, row: u32) {
        // SAFETY: as the caller says.
        unsafe {
            memory::st_shared_b32(self.offset(expert), row);
            self.put(self.p.offsets, expert, row);
        }
    }

    /// Gives each slot its row.
    ///
    /// # Safety
    /// The same as [`each`](Self::each), behind [`sum`](Self::sum) and a barrier.
    #[inline(always)]
    unsafe fn place_slots(&self, id: u32) {
        let own = thread::thread_idx_x() / warp::LANES;
        // SAFETY: rows are below the number of slots; of the lanes with one expert the first alone
        // changes its counter, behind all lanes' reads.
        unsafe {
            self.each(id, |slot, expert, below, all| {
                let is_here = expert < self.p.experts.count;
                let mut before = 0;
                if is_here {
                    before = memory::ld_shared_b32(self.count(own, expert));
                    let row = self.first_row(expert) + before + below;
                    if self.p.capacity == 0 || before + below < self.p.capacity {
                        self.put(self.p.positions, slot, row);
                        self.put(self.p.sources, row, slot);
                    } else {
                        self.put(self.p.positions, slot, BAD);
                        self.put_status(STATUS_OVER_CAPACITY);
                    }
                } else if slot < self.p.slots {
                    self.put(self.p.positions, slot, expert);
                    if expert == BAD {
                        self.put_status(STATUS_BAD_ID);
                    }
                }
                warp::sync();
                if is_here && below == 0 {
                    memory::st_shared_b32(self.count(own, expert), before + all);
                }
            });
        }
    }

    /// The first row of an expert.
    ///
    /// # Safety
    /// Behind [`sum`](Self::sum) and a barrier.
    #[inline(always)]
    unsafe fn first_row(&self, expert: u32) -> u32 {
        if self.p.capacity > 0 {
            return expert * self.p.capacity;
        }
        // SAFETY: the offset is written.
        unsafe { memory::ld_shared_b32(self.offset(expert)) }
    }

    /// Marks the rows that no slot has.
    ///
    /// # Safety
    /// The same as [`first_row`](Self::first_row).
    #[inline(always)]
    unsafe fn mark_rest(&self) {
        let (p, thread) = (self.p, thread::thread_idx_x());
        // Without a capacity, the rows of all experts are one part.
        let (parts, rows) =
            if p.capacity == 0 { (1, p.slots) } else { (p.experts.count, p.capacity) };
        for part in 0..parts {
            // SAFETY: offsets are written; the rows are below the sources' number.
            unsafe {
                let (first, next) =
                    if p.capacity == 0 { (0, p.experts.count) } else { (part, part + 1) };
                let begin = memory::ld_shared_b32(self.offset(first));
                let mut row = memory::ld_shared_b32(self.offset(next)) - begin + thread;
                while row < rows {
                    self.put(p.sources, part * rows + row, NOWHERE);
                    row += thread::block_dim_x();
                }
            }
        }
    }

    /// Writes the status word, if there is one.
    ///
    /// # Safety
    /// The same as [`RouteParams`] says.
    #[inline(always)]
    unsafe fn put_status(&self, status: u32) {
        if self.p.status != 0 {
            // SAFETY: there is one.
            unsafe { memory::st_global_b32(self.p.status, status) };
        }
    }

    /// Writes element `at` of an array of words.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn put(&self, array: u64, at: u32, value: u32) {
        // SAFETY: as the caller says.
        unsafe { memory::st_global_b32(array + u64::from(at) * u64::from(WORD), value) };
    }
}

/// Routing.
///
/// # Safety
/// The same as [`RouteParams`] says.
#[kernel(max_threads = ROUTE_THREADS)]
pub unsafe fn moe_route(p: RouteParams) {
    release_stream();
    let (p, thread) = (&p, thread::thread_idx_x());
    let route = Route { p, counts: shared::dynamic::<16>() };
    // SAFETY: all threads are here at every barrier; the arrays have the sizes that `p` states.
    unsafe {
        let mut at = thread;
        while at < p.warps() * p.experts.count {
            memory::st_shared_b32(route.counts + at * WORD, 0);
            at += thread::block_dim_x();
        }
        follow_stream();
        let (first, end) = p.part(thread / warp::LANES);
        let id = route.id(first + thread % warp::LANES, end);
        thread::sync_threads();
        route.count_slots(id);
        thread::sync_threads();
        route.sum();
        thread::sync_threads();
        route.place_slots(id);
        route.mark_rest();
    }
}
