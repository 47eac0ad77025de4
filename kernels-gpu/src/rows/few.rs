//! Few rows with RMSNorm: two CTAs or more for each row, and one chunk for each thread. The code behind the wait for the kernel
//! before is executed once, so that its length is its time: it has no loop over chunks.
//!
//! CTAs that share a row all add its squares, and each makes the results of its own [warps](RowsConfig::part_of), which then
//! leave from several SMs. If results take the place of inputs, the first CTA makes them all, because the others may read later.

use super::passes::values;
use super::reduce::Meeting;
use super::sink::Sink;
use super::source::{self, Narrow, One, Source};
use super::steps::{Added, Alone, Any, Steps};
use super::{Place, padded};
use crate::pipeline::{follow_stream, release_stream};
use core::marker::PhantomData;
use cuda_std::ptx::float;
use cuda_std::thread;
use fp4_formats::rows::arithmetic::{Statistics, factor, squares};
use fp4_formats::rows::{RowsConfig, RowsParams};

/// A CTA's share of a row.
#[derive(Clone, Copy)]
struct Share {
    row: u32,
    /// The number of the part; a CTA that is not needed has the number of parts.
    part: u32,
    parts: u32,
}

impl Share {
    /// This CTA's; the row may not exist, nor the part.
    #[inline(always)]
    fn new(p: &RowsParams, is_in_place: bool) -> Self {
        let rows = padded(p);
        let parts = if is_in_place { 1 } else { RowsConfig::parts(rows, thread::grid_dim_x()) };
        let (mut row, mut part) = (thread::block_idx_x(), 0);
        while row >= rows && part < parts {
            row -= rows;
            part += 1;
        }
        Self { row, part, parts }
    }
}

/// A matrix in memory: where it begins, and where it ends.
#[derive(Clone, Copy)]
struct Span(u64, u64);

impl Span {
    /// The span of M x K elements of so many bits.
    #[inline(always)]
    fn new(p: &RowsParams, address: u64, bits: u32) -> Self {
        let elements = u64::from(p.quantize.m) * u64::from(p.quantize.k);
        Self(address, address + elements * u64::from(bits) / 8)
    }

    #[inline(always)]
    fn overlaps(self, other: Self) -> bool {
        self.0 < other.1 && other.0 < self.1
    }
}

/// Whether an element or a sum is written to a place that an operand of the same row is read from.
#[inline(always)]
fn is_in_place<S: Source, K: Sink>(p: &RowsParams) -> bool {
    let half = |address| Span::new(p, address, 16);
    let (input, elements) = (half(p.quantize.input), Span::new(p, p.quantize.codes, K::BITS));
    if input.overlaps(elements) {
        return true;
    }
    let (residual, sums) = (half(p.quantize.up), half(p.residual_out));
    S::Steps::has_residual(p)
        && (residual.overlaps(elements) || residual.overlaps(sums) || input.overlaps(sums))
}

/// The kernels of rows that CTAs share.
pub struct Few<I, T>(PhantomData<(I, T)>);

impl<I: Narrow> Few<I, Any> {
    /// The kernel body in the copy for the operation.
    ///
    /// # Safety
    /// The launch satisfies the module's contract, with [`RowsConfig::few`].
    #[inline(always)]
    pub unsafe fn run<K: Sink>(p: &RowsParams) {
        // SAFETY: the copies have the steps that the parameters ask for.
        unsafe {
            match (K::is_usual(&p.quantize), p.quantize.up) {
                (true, 0) => rows::<One<I, Alone>, K::Usual>(p),
                (true, _) => rows::<One<I, Added>, K::Usual>(p),
                (false, 0) => rows::<One<I, Alone>, K>(p),
                (false, _) => rows::<One<I, Added>, K>(p),
            }
        }
    }
}

/// The kernel body of an operation with RMSNorm.
///
/// # Safety
/// The launch satisfies the module's contract, with [`RowsConfig::few`]; it asks for no step that `S` has not, nor for a recipe
/// that `K` has not. `S` makes zeros of zeros, without a load.
#[inline(always)]
unsafe fn rows<S: Source, K: Sink>(p: &RowsParams) {
    release_stream();
    let thread = thread::thread_idx_x();
    let Share { row, part, parts } = Share::new(p, is_in_place::<S, K>(p));
    if part == parts {
        return;
    }
    let place = Place::new(p, row, thread);
    let chunk = place.kept(0);
    let (exists, has_row) = (chunk < place.chunks, row < p.quantize.m);
    let is_own = RowsConfig::part_of(place.warp, parts) == part;
    // SAFETY: the parameters keep the contract. The row is the same for all threads of the CTA, which has a warp for each group.
    // A chunk exists, or its elements are zeros and nothing is loaded; one part writes it, and if others read it, elsewhere.
    unsafe {
        if exists {
            source::prefetch_weights(p, chunk);
        }
        follow_stream();
        if has_row {
            let (mut elements, mut weights) = ([[0.0; 8]; 2], source::NOTHING);
            if exists {
                let raw = S::fetch(p, &place, chunk);
                weights = source::weights::<S>(p, chunk);
                elements = S::take(p, &place, chunk, &raw, is_own);
            }
            let mut meeting = Meeting::new();
            meeting.add(place.warp, squares(&elements, float::fma_rn_f32));
            let sum = meeting.sum_of_few(place.groups);
            let factor = factor(sum, p.quantize.k, p.epsilon, float::sqrt_rn_f32);
            let statistics = Statistics { mean: 0.0, factor };
            let made = values::<S>(p, &statistics, &elements, &weights, chunk);
            let amax = match K::reduces(&p.quantize) {
                true => meeting.largest(super::magnitude(&made), place.warps),
                false => 0.0,
            };
            let shared = K::row(p, amax);
            if thread == 0 && part == 0 {
                K::note(p, row, amax);
            }
            if is_own {
                K::store(p, &shared, &place, chunk, &made);
            }
        }
        if part == 0 {
            K::pad(p, row, thread);
        }
    }
}
