//! The passes over a row: the sums of a norm, the largest magnitude, the results.

use super::reduce::Meeting;
use super::sink::Sink;
use super::source::{self, Source};
use super::steps::Steps;
use super::{Place, magnitude};
use core::marker::PhantomData;
use cuda_std::ptx::{float, marker};
use fp4_formats::rows::arithmetic::{self, Chunk, Statistics, rotated};
use fp4_formats::rows::{Norm, RowsConfig, RowsParams};

/// A row's elements as far as this thread has them: its first chunks, and the weights of these.
struct Held<'a> {
    elements: &'a [Chunk; RowsConfig::KEPT],
    weights: &'a [source::Words; RowsConfig::KEPT],
}

/// Makes the results of a row.
///
/// # Safety
/// The launch satisfies the module's contract; all threads of the CTA are here, and the row exists.
#[inline(always)]
pub unsafe fn finish<S: Source, K: Sink>(
    p: &RowsParams,
    place: &Place,
    elements: &[Chunk; RowsConfig::KEPT],
    weights: &[source::Words; RowsConfig::KEPT],
    of_all: &K::Row,
    meeting: &mut Meeting,
) {
    let held = Held { elements, weights };
    let mut again = false;
    // SAFETY: all threads are here, and every chunk is taken once before it is read again.
    unsafe {
        let statistics = statistics::<S>(p, place, &held, &mut again, meeting);
        let (mut amax, mut shared) = (0.0, *of_all);
        if K::reduces(&p.quantize) {
            let sink = PhantomData::<K>;
            let mut pass = Largest { statistics: &statistics, amax: 0.0, sink };
            each::<S, _>(p, place, &held, again, &mut pass);
            amax = meeting.largest(pass.amax, place.warps);
            shared = K::row(p, amax);
            again = true;
        }
        if place.warp + place.lane == 0 {
            K::note(p, place.row, amax);
        }
        let mut pass = Stores::<K> { statistics: &statistics, shared: &shared };
        each::<S, _>(p, place, &held, again, &mut pass);
    }
}

/// A pass over a row, by what it does with a chunk: a method and no closure, which the compiler does not inline where it is
/// called more than once.
trait Pass<S: Source> {
    /// Whether it loads the weights of each chunk, which are not held then.
    const LOADS: bool = false;

    /// Takes a chunk, which may be past the row's end, of a group.
    ///
    /// # Safety
    /// `p` keeps the module's contract; all lanes of the warp are here, each with its own chunk.
    unsafe fn take(
        &mut self,
        p: &RowsParams,
        place: &Place,
        at: ChunkOf,
        elements: &Chunk,
        weights: &source::Words,
    );
}

/// A chunk and its group.
#[derive(Clone, Copy)]
struct ChunkOf {
    chunk: u32,
    group: u32,
}

impl ChunkOf {
    /// The lane's chunk of a group.
    #[inline(always)]
    fn new(place: &Place, group: u32) -> Self {
        Self { chunk: place.chunk(group), group }
    }
}

/// Finds the largest magnitude for the sink `K`.
struct Largest<'a, K> {
    statistics: &'a Statistics,
    amax: f32,
    sink: PhantomData<K>,
}

impl<S: Source, K: Sink> Pass<S> for Largest<'_, K> {
    const LOADS: bool = !K::HOLDS;

    #[inline(always)]
    unsafe fn take(
        &mut self,
        p: &RowsParams,
        place: &Place,
        ChunkOf { chunk, group: _ }: ChunkOf,
        elements: &Chunk,
        weights: &source::Words,
    ) {
        if S::Steps::AHEAD || chunk < place.chunks {
            // SAFETY: the chunk exists, or its elements are zeros and nothing is loaded.
            let values = unsafe { values::<S>(p, self.statistics, elements, weights, chunk) };
            self.amax = float::max_nan_f32(self.amax, magnitude(&values));
        }
    }
}

/// Quantises and stores.
struct Stores<'a, K: Sink> {
    statistics: &'a Statistics,
    shared: &'a K::Row,
}

impl<S: Source, K: Sink> Pass<S> for Stores<'_, K> {
    const LOADS: bool = !K::HOLDS;

    #[inline(always)]
    unsafe fn take(
        &mut self,
        p: &RowsParams,
        place: &Place,
        ChunkOf { chunk, group: _ }: ChunkOf,
        elements: &Chunk,
        weights: &source::Words,
    ) {
        let mut made = [[0.0; 8]; 2];
        // SAFETY: the chunk exists, or its elements are zeros and nothing is loaded; the rest is the caller's.
        unsafe {
            if S::Steps::AHEAD || chunk < place.chunks {
                made = values::<S>(p, self.statistics, elements, weights, chunk);
            }
            K::store(p, self.shared, place, chunk, &made);
        }
    }
}

/// Adds a number of each chunk to its group.
struct Adds<'a, N> {
    number: N,
    meeting: &'a Meeting,
}

impl<S: Source, N: Fn(&Chunk) -> f32> Pass<S> for Adds<'_, N> {
    #[inline(always)]
    unsafe fn take(
        &mut self,
        _p: &RowsParams,
        place: &Place,
        ChunkOf { chunk, group }: ChunkOf,
        elements: &Chunk,
        _weights: &source::Words,
    ) {
        let number = if chunk < place.chunks { (self.number)(elements) } else { 0.0 };
        // SAFETY: all lanes are here, and the group is this warp's.
        unsafe { self.meeting.add(group, number) };
    }
}

/// The values of a chunk, rotated if the steps say so.
///
/// # Safety
/// The same as [`Source::values`].
#[inline(always)]
pub unsafe fn values<S: Source>(
    p: &RowsParams,
    statistics: &Statistics,
    elements: &Chunk,
    weights: &source::Words,
    chunk: u32,
) -> Chunk {
    // SAFETY: the same as the caller's.
    let values = unsafe { S::values(p, statistics, elements, weights, chunk) };
    match S::Steps::rotation(p) {
        Some(signs) => rotated(&values, signs),
        None => values,
    }
}

/// Gives a pass each of the thread's chunks, with its elements and its weights: held, or loaded, `again` if all have been
/// taken before. All lanes of a warp have as many; the last may be past the row's end.
///
/// # Safety
/// `p` keeps the module's contract; the first chunks are held.
#[inline(always)]
unsafe fn each<S: Source, P: Pass<S>>(
    p: &RowsParams,
    place: &Place,
    held: &Held<'_>,
    again: bool,
    pass: &mut P,
) {
    const { assert!(RowsConfig::KEPT == 2) };
    let mut group = place.warp;
    if S::Steps::AHEAD {
        // SAFETY: the same as the caller's.
        unsafe {
            first::<S, P>(p, place, held, 0, group, pass);
            group += place.warps;
            if group < place.groups {
                first::<S, P>(p, place, held, 1, group, pass);
                group += place.warps;
            }
        }
    }
    let (mut i, mut elements) = (0, held.elements[0]);
    while group < place.groups {
        let at = ChunkOf::new(place, group);
        let chunk = at.chunk;
        let mut weights = source::NOTHING;
        if chunk < place.chunks {
            // SAFETY: the chunk exists.
            unsafe {
                weights = source::weights::<S>(p, chunk);
                if S::Steps::AHEAD || i > 1 {
                    elements = if again {
                        S::reload(p, place, chunk)
                    } else {
                        S::take(p, place, chunk, &S::fetch(p, place, chunk), true)
                    };
                }
            }
        }
        // SAFETY: the same as the caller's.
        unsafe { pass.take(p, place, at, &elements, &weights) };
        group += place.warps;
        // The pin keeps the compiler from unrolling the loop.
        i = marker::pin(i + 1);
        elements = held.elements[1];
    }
}

/// Gives a pass the thread's `i`-th chunk, which is held.
///
/// # Safety
/// The same as [`each`].
#[inline(always)]
unsafe fn first<S: Source, P: Pass<S>>(
    p: &RowsParams,
    place: &Place,
    held: &Held<'_>,
    i: usize,
    group: u32,
    pass: &mut P,
) {
    let at = ChunkOf::new(place, group);
    let mut weights = held.weights[i];
    // SAFETY: the chunk exists if its weights are loaded; the rest is the caller's.
    unsafe {
        if P::LOADS && at.chunk < place.chunks {
            weights = source::weights::<S>(p, at.chunk);
        }
        pass.take(p, place, at, &held.elements[i], &weights);
    }
}

/// The statistics of the norm of a row, whose first chunks are held; `again` becomes true if all have been taken.
///
/// # Safety
/// The same as [`finish`].
#[inline(always)]
unsafe fn statistics<S: Source>(
    p: &RowsParams,
    place: &Place,
    held: &Held<'_>,
    again: &mut bool,
    meeting: &mut Meeting,
) -> Statistics {
    let mut statistics = Statistics { mean: 0.0, factor: 1.0 };
    let norm = S::Steps::norm(p);
    if !S::NORMS || norm == Norm::None as u32 {
        return statistics;
    }
    let k = p.quantize.k;
    // SAFETY: all threads are here; groups are the same for all lanes of a warp, and every group is one warp's.
    unsafe {
        if norm == Norm::Layer as u32 {
            let sum = |elements: &Chunk| arithmetic::sum(elements);
            add::<S>(p, place, held, *again, meeting, sum);
            statistics.mean = meeting.sum(place.groups) / k as f32;
            *again = true;
        }
        let squares = |elements: &Chunk| {
            let centred = centred::<S::Steps>(p, &statistics, *elements);
            arithmetic::squares(&centred, float::fma_rn_f32)
        };
        add::<S>(p, place, held, *again, meeting, squares);
        let squares = meeting.sum(place.groups);
        statistics.factor = arithmetic::factor(squares, k, p.epsilon, float::sqrt_rn_f32);
        *again = true;
    }
    statistics
}

/// Adds a number of each of the thread's chunks for the next [`Meeting::sum`]. That of zeros is 0 if the steps are known.
///
/// # Safety
/// The same as [`each`]; all lanes of the warp are here.
#[inline(always)]
unsafe fn add<S: Source>(
    p: &RowsParams,
    place: &Place,
    held: &Held<'_>,
    again: bool,
    meeting: &Meeting,
    number: impl Fn(&Chunk) -> f32,
) {
    // SAFETY: the same as the caller's; a chunk past the row's end adds 0.
    unsafe {
        if S::Steps::AHEAD && place.groups <= RowsConfig::KEPT as u32 * place.warps {
            // Chunks past the row's end are zeros, whose squares add nothing.
            let of_lanes = [number(&held.elements[0]), number(&held.elements[1])];
            let groups = [place.warp, place.warp + place.warps];
            meeting.add_both(groups, groups[1] < place.groups, of_lanes);
            return;
        }
        each::<S, _>(p, place, held, again, &mut Adds { number, meeting });
    }
}

/// The chunk's distances from the mean, if it is not 0 by definition.
#[inline(always)]
pub fn centred<T: Steps>(p: &RowsParams, statistics: &Statistics, mut values: Chunk) -> Chunk {
    // A branch, because most norms have no mean.
    if T::norm(p) == Norm::Layer as u32 {
        for half in 0..2 {
            for i in 0..8 {
                values[half][i] = arithmetic::centred(values[half][i], statistics);
            }
        }
    }
    values
}
