//! Attention of one token of each text; the contract of the data is [`fp4_formats::attention`].
//!
//! # Contract
//! Parameters: [`AttentionParams`]. CTAs: splits in x, heads of keys of all texts in y; [`THREADS`] threads;
//! [`Shared::of`] the group and the head's elements. Reads the cache from the first place that a text's token sees to the place
//! before it, writes key and value of the token's place, and the result. Tokens whose place the cache does not have write
//! nothing to it, and get NaN.
//!
//! # Roles
//! Warps first prepare queries, and in the CTA that has the token's own place its key and value ([`heads`]). Then each takes
//! [`TILE`] places in turn, with sums of its own ([`tile`]), which the CTA adds. With several splits the last CTA of a head to
//! be ready adds those of all, in their order ([`merge`]).
//!
//! Operands come from global memory to the registers that the tensor cores take them from. A dot product may add its elements
//! in any order, and a lane has 16 consecutive bytes of a key, elements `8 j ..` of each 32: queries have the same order.
//! Elements of a value are columns, which may have any order, too: column `n` of product `t` is element `8 n + t` of 64.
//!
//! # Shared memory
//! | buffer | what |
//! |---|---|
//! | queries | one row for each head of the group |
//! | sums | products with values of each warp |
//! | rows | largest scores and sums of shares of each warp |
//! | last | whether this CTA is the last of its head |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | 0, heads ready | all threads | all threads | queries in shared memory; the token's key and value in the cache |
//! | 0, sums ready | all threads | all threads | sums and rows of each warp |
//! | 0, split stored | all threads | all threads | the split's sums, before it is counted |
//! | 0, split counted | all threads | all threads | the word `last` |
//!
//! # Dependent launches
//! The next kernel may start at once; it waits before it reads results. This one prefetches what it expects of the cache into
//! L2, where writes of kernels before still reach it, and waits for those kernels.

mod element;
mod heads;
mod merge;
mod tile;

use cuda_std::ptx::memory;
use cuda_std::{kernel, thread, warp};
use fp4_formats::HalfType;
use fp4_formats::attention::{ATTENTION, AttentionParams, NO_WINDOW, Shared, THREADS, TILE, WARPS};

use crate::pipeline::{follow_stream, release_stream};
use element::{Bf16, Element, F16};
use tile::{Loaded, Sums};

/// Bytes of a line of L2.
const LINE: u64 = 128;

/// The part of the work that a CTA has.
#[derive(Clone, Copy)]
pub struct Cta {
    /// Number of the head of keys among those of all texts.
    head: u32,
    text: u32,
    /// Number of the head of keys in its text.
    of_text: u32,
    split: u32,
    splits: u32,
    warp: u32,
    lane: u32,
}

impl Cta {
    #[inline(always)]
    fn new(p: &AttentionParams) -> Self {
        let (head, thread) = (thread::block_idx_y(), thread::thread_idx_x());
        // Neither is 0, which the compiler does not know.
        let text = head.checked_div(p.kv_heads).unwrap_or(0);
        Self {
            head,
            text,
            of_text: head - text * p.kv_heads,
            split: thread::block_idx_x(),
            splits: thread::grid_dim_x(),
            warp: thread / warp::LANES,
            lane: warp::lane_id(),
        }
    }

    /// Bytes before the head's part of a cache.
    #[inline(always)]
    fn cached<const DIM: usize>(&self, p: &AttentionParams) -> u64 {
        u64::from(self.head) * u64::from(p.capacity) * (DIM as u64 * 2)
    }
}

/// The places that a token sees: from `first` to its own.
#[derive(Clone, Copy)]
pub struct Seen {
    first: u32,
    place: u32,
    /// The token's position in its text.
    position: u32,
}

impl Seen {
    /// # Safety
    /// `p` keeps the module's contract.
    #[inline(always)]
    unsafe fn of(p: &AttentionParams, cta: &Cta) -> Self {
        // SAFETY: the words exist.
        let (place, begin) = unsafe {
            let place = memory::ld_global_b32(p.place);
            let begins = p.begins + u64::from(cta.text) * 4;
            (place, if p.begins == 0 { 0 } else { memory::ld_global_b32(begins) })
        };
        // A text that has not begun sees its own place.
        let begin = begin.min(place);
        let hidden = if p.window == NO_WINDOW { 0 } else { (place + 1).saturating_sub(p.window) };
        Self { first: hidden.max(begin), place, position: place - begin }
    }

    /// Whether the token sees a place.
    #[inline(always)]
    fn has(&self, place: u32) -> bool {
        self.first <= place && place <= self.place
    }

    /// The first tile.
    #[inline(always)]
    fn begin(&self) -> u32 {
        self.first / TILE
    }

    /// The tile of the token's own place.
    #[inline(always)]
    fn last(&self) -> u32 {
        self.place / TILE
    }

    /// Whether the CTA has the token's own place.
    #[inline(always)]
    fn is_last(&self, cta: &Cta) -> bool {
        let share = (self.last() - self.begin()) / WARPS;
        share.checked_rem(cta.splits) == Some(cta.split)
    }
}

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn attend<E: Element, const DIM: usize>(p: &AttentionParams) {
    release_stream();
    let (cta, shared) = (Cta::new(p), Shared::of(p.group, DIM as u32));
    // SAFETY: the parameters keep the contract, and all threads of the CTA are here; those of a CTA agree about its place.
    unsafe {
        prefetch::<DIM>(p, &cta);
        follow_stream();
        let seen = Seen::of(p, &cta);
        if seen.place >= p.capacity {
            return merge::refuse::<E, DIM>(p, &cta);
        }
        let mut tile = seen.begin() + cta.split * WARPS + cta.warp;
        let mut loaded = Loaded::NOTHING;
        // The last tile waits for the token's own key and value; others are on their way meanwhile.
        let mut is_loaded = tile < seen.last();
        if is_loaded {
            loaded = Loaded::of::<DIM>(p, &cta, &seen, tile * TILE);
        }
        heads::prepare::<E, DIM>(p, &cta, &seen, &shared);
        thread::sync_threads();
        let queries = heads::load::<DIM>(p, &cta, &shared);
        let mut sums = Sums::NOTHING;
        while tile <= seen.last() {
            if !is_loaded {
                loaded = Loaded::of::<DIM>(p, &cta, &seen, tile * TILE);
            }
            is_loaded = false;
            sums.add::<E, DIM>(p, (&seen, cta.lane % 4), &queries, (tile * TILE, &loaded));
            tile += cta.splits * WARPS;
        }
        sums.store::<DIM>(p, &cta, &shared);
        thread::sync_threads();
        merge::merge::<E, DIM>(p, &cta, &shared);
    }
}

/// Prefetches the CTA's part of the expected places into L2.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn prefetch<const DIM: usize>(p: &AttentionParams, cta: &Cta) {
    let end = if p.expected < p.capacity { p.expected } else { p.capacity };
    let begin = if p.window == NO_WINDOW { 0 } else { end.saturating_sub(p.window) };
    let row = DIM as u64 * 2;
    let (from, bytes) =
        (cta.cached::<DIM>(p) + u64::from(begin) * row, u64::from(end - begin) * row);
    let thread = cta.split * THREADS + cta.warp * warp::LANES + cta.lane;
    let mut at = u64::from(thread) * LINE;
    while at < bytes {
        // SAFETY: the head's part of each cache has the bytes.
        unsafe {
            memory::prefetch_global_l2(p.keys + from + at);
            memory::prefetch_global_l2(p.values + from + at);
        }
        at += u64::from(cta.splits * THREADS) * LINE;
    }
}

/// Entry points: name, index in [`ATTENTION`], type, elements of a head.
macro_rules! entries {
    ($($name:ident = $index:literal, $element:ident, $dim:literal;)*) => {
        $(
            #[doc = concat!("[`ATTENTION`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(threads = THREADS)]
            pub unsafe fn $name(params: AttentionParams) {
                const { assert!(ATTENTION[$index].half as u32 == HalfType::$element as u32) };
                const { assert!(ATTENTION[$index].dim == $dim) };
                // SAFETY: the caller guarantees the contract.
                unsafe { attend::<$element, $dim>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], ATTENTION);
    };
}

entries! {
    attention_f16_32 = 0, F16, 32;
    attention_f16_64 = 1, F16, 64;
    attention_f16_128 = 2, F16, 128;
    attention_bf16_32 = 3, Bf16, 32;
    attention_bf16_64 = 4, Bf16, 64;
    attention_bf16_128 = 5, Bf16, 128;
}
