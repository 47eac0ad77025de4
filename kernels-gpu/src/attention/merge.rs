//! The sums of a CTA's warps, of a head's splits, and the result.

use cuda_std::ptx::{float, memory, scoped};
use cuda_std::{shared, thread};
use fp4_formats::attention::{AttentionParams, MAX_GROUP, Shared, THREADS, WARPS};

use super::Cta;
use super::element::Element;
use super::tile::finite_base;

/// log2(e).
const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// Columns that a thread adds at a time.
const COLUMNS: u32 = 4;

/// Sums of a row over some places: its largest score, the sum of shares relative to that, and four columns of products.
#[derive(Clone, Copy)]
struct Row {
    largest: f32,
    shares: f32,
    products: [f32; 4],
}

impl Row {
    const NOTHING: Self = Self { largest: f32::NEG_INFINITY, shares: 0.0, products: [0.0; 4] };

    #[inline(always)]
    fn of([largest, shares]: [u32; 2], products: [u32; 4]) -> Self {
        let (largest, shares) = (f32::from_bits(largest), f32::from_bits(shares));
        Self { largest, shares, products: products.map(f32::from_bits) }
    }

    /// The sums over the places of both.
    #[inline(always)]
    fn and(&self, other: &Self) -> Self {
        let largest = float::max_nan_f32(self.largest, other.largest);
        let base = finite_base(largest);
        let [own, others] = [self, other].map(|row| float::ex2_approx_ftz_f32(row.largest - base));
        let mut products = [0.0; 4];
        for i in 0..4 {
            products[i] = self.products[i] * own + other.products[i] * others;
        }
        Self { largest, shares: self.shares * own + other.shares * others, products }
    }
}

/// Adds the sums of the CTA's warps, with those of other splits in the last CTA of a head, and stores the result.
///
/// # Safety
/// The launch satisfies the module's contract; all threads of the CTA are here, and the sums are ready.
#[inline(always)]
pub unsafe fn merge<E: Element, const DIM: usize>(p: &AttentionParams, cta: &Cta, places: &Shared) {
    let thread = thread::thread_idx_x();
    let items = p.group * (DIM as u32 / COLUMNS);
    let head = Head { p, cta };
    // SAFETY: the caller's promise; items are rows and columns that exist.
    unsafe {
        if cta.splits == 1 {
            let mut item = thread;
            while item < items {
                head.finish::<E, DIM>(item, of_warps::<DIM>(p, places, item));
                item += THREADS;
            }
            return;
        }
        let mut item = thread;
        while item < items {
            head.keep::<DIM>(item, of_warps::<DIM>(p, places, item));
            item += THREADS;
        }
        thread::sync_threads();
        let last = shared::dynamic::<16>() + places.last;
        if thread == 0 {
            // The count begins again with the last.
            let ready = p.ready + u64::from(cta.head) * 4;
            let before = scoped::atom_acq_rel_gpu_global_inc_u32(ready, cta.splits - 1);
            memory::st_shared_b32(last, u32::from(before == cta.splits - 1));
        }
        thread::sync_threads();
        if memory::ld_shared_b32(last) != 0 {
            let mut item = thread;
            while item < items {
                let mut row = Row::NOTHING;
                for split in 0..cta.splits {
                    row = row.and(&head.kept::<DIM>(split, item));
                }
                head.finish::<E, DIM>(item, row);
                item += THREADS;
            }
        }
    }
}

/// The sums of all warps for a row's four columns.
///
/// # Safety
/// The launch satisfies the module's contract, the sums are ready, and the item exists.
#[inline(always)]
unsafe fn of_warps<const DIM: usize>(p: &AttentionParams, places: &Shared, item: u32) -> Row {
    let memory = shared::dynamic::<16>();
    let (of_row, mut sum) = (item / (DIM as u32 / COLUMNS), Row::NOTHING);
    for warp in 0..WARPS {
        let row = memory + places.rows + (warp * MAX_GROUP + of_row) * 8;
        let products = memory + places.sums + warp * (p.group * DIM as u32 * 4) + item * 16;
        // SAFETY: the row exists in both buffers.
        let of_warp =
            unsafe { Row::of(memory::ld_shared_v2_b32(row), memory::ld_shared_v4_b32(products)) };
        sum = sum.and(&of_warp);
    }
    sum
}

/// The head whose results a CTA makes.
struct Head<'a> {
    p: &'a AttentionParams,
    cta: &'a Cta,
}

impl Head<'_> {
    /// Places of a split's sums for an item: row, products.
    #[inline(always)]
    fn places<const DIM: usize>(&self, split: u32, item: u32) -> [u64; 2] {
        let Self { p, cta } = self;
        let rows =
            (u64::from(cta.head) * u64::from(cta.splits) + u64::from(split)) * u64::from(p.group);
        let row = rows + u64::from(item / (DIM as u32 / COLUMNS));
        [p.rows + row * 8, p.sums + rows * (DIM as u64 * 4) + u64::from(item) * 16]
    }

    /// Keeps the sums of this CTA's split.
    ///
    /// # Safety
    /// The launch satisfies the module's contract, and the item exists.
    #[inline(always)]
    unsafe fn keep<const DIM: usize>(&self, item: u32, sums: Row) {
        let [row, products] = self.places::<DIM>(self.cta.split, item);
        // SAFETY: the places exist; the threads of a row's columns store the same row.
        unsafe {
            if item.is_multiple_of(DIM as u32 / COLUMNS) {
                memory::st_global_v2_b32(row, [sums.largest.to_bits(), sums.shares.to_bits()]);
            }
            memory::st_global_v4_b32(products, sums.products.map(f32::to_bits));
        }
    }

    /// The sums of a split that has been counted.
    ///
    /// # Safety
    /// The same, and all splits have been counted.
    #[inline(always)]
    unsafe fn kept<const DIM: usize>(&self, split: u32, item: u32) -> Row {
        let [row, products] = self.places::<DIM>(split, item);
        // SAFETY: the places exist, and have been written.
        unsafe { Row::of(memory::ld_global_v2_b32(row), memory::ld_global_v4_b32(products)) }
    }

    /// Stores the result of a row's four columns.
    ///
    /// # Safety
    /// The same as for [`keep`](Self::keep).
    #[inline(always)]
    unsafe fn finish<E: Element, const DIM: usize>(&self, item: u32, sums: Row) {
        let Self { p, cta } = self;
        let of_row = item / (DIM as u32 / COLUMNS);
        let mut sums = sums;
        if p.sinks != 0 {
            let at = p.sinks + u64::from(cta.of_text * p.group + of_row) * 2;
            // SAFETY: the head has one.
            let sink = E::value(unsafe { memory::ld_global_u16(at) }) * LOG2_E;
            sums = sums.and(&Row { largest: sink, shares: 1.0, products: [0.0; 4] });
        }
        let mut results = [0.0; 4];
        for i in 0..4 {
            results[i] = sums.products[i] / sums.shares;
        }
        // SAFETY: the columns exist.
        unsafe { self.store::<E, DIM>(item, results) };
    }

    /// Stores a row's four columns.
    ///
    /// # Safety
    /// The launch satisfies the module's contract, and the item exists.
    #[inline(always)]
    unsafe fn store<E: Element, const DIM: usize>(&self, item: u32, results: [f32; 4]) {
        let Self { p, cta } = self;
        let rows = u64::from(cta.head) * u64::from(p.group);
        let at = p.out + rows * (DIM as u64 * 2) + u64::from(item) * 8;
        let words = [E::pair(results[1], results[0]), E::pair(results[3], results[2])];
        // SAFETY: the columns exist.
        unsafe { memory::st_global_v2_b32(at, words) };
    }
}

/// Stores NaN for tokens whose place the cache does not have.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
pub unsafe fn refuse<E: Element, const DIM: usize>(p: &AttentionParams, cta: &Cta) {
    let mut item = thread::thread_idx_x();
    while cta.split == 0 && item < p.group * (DIM as u32 / COLUMNS) {
        // SAFETY: the item exists.
        unsafe { Head { p, cta }.store::<E, DIM>(item, [f32::NAN; 4]) };
        item += THREADS;
    }
}
