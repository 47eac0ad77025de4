//! A thread's line of results, neighbours along a row of the result or down a column, and the last
//! operations on them in f32, which are the same for every sink.

use fp4_formats::gemm::{Problem, Sink};

use super::{COLUMNS, direct, largest, residual};

/// Results of one thread: element `place` of matrix `matrix`, and its neighbours.
#[derive(Clone, Copy)]
pub struct Line {
    /// Matrix of the result.
    pub matrix: u32,
    /// Row and column of the first one.
    pub place: [u32; 2],
    /// Whether the others are below it, rather than behind it in its row.
    pub down: bool,
    /// The number of results that lie inside the result; the others are arbitrary.
    pub exist: u32,
    /// Whether all lie inside, in rows for which [`rows_aligned`] holds, from a multiple of eight
    /// columns on. Without the answer, elements are looked at one by one.
    pub aligned: bool,
}

impl Line {
    /// One result.
    #[inline(always)]
    pub fn one(matrix: u32, place: [u32; 2]) -> Self {
        Self { matrix, place, down: false, exist: 1, aligned: false }
    }

    /// Eight results of an [aligned](Self::aligned) row.
    #[inline(always)]
    pub fn eight(matrix: u32, place: [u32; 2]) -> Self {
        Self { matrix, place, down: false, exist: COLUMNS as u32, aligned: true }
    }

    /// The line without its first `count` results.
    #[inline(always)]
    pub fn behind(self, count: u32) -> Self {
        let [m, n] = self.place;
        let place = if self.down { [m + count, n] } else { [m, n + count] };
        Self { place, exist: self.exist.saturating_sub(count), ..self }
    }

    /// Elements from one to the next in a result of these sizes.
    #[inline(always)]
    pub fn step(&self, sizes: &Problem) -> u32 {
        if self.down { sizes.n } else { 1 }
    }

    /// Finishes the results in f32, before they are rounded or quantised: adds the residual, if there
    /// is one, and raises `found` to their largest magnitude, if that is asked for. `sizes` are the
    /// result's.
    ///
    /// # Safety
    /// The results that exist are inside the result of [`Sink`]; each is finished once, before it is
    /// stored.
    #[inline(always)]
    pub unsafe fn finish<const N: usize>(
        &self,
        sink: &Sink,
        sizes: &Problem,
        results: [f32; N],
        found: &mut f32,
    ) -> [f32; N] {
        // SAFETY: as the caller says; nobody else stores these elements.
        let results = unsafe { residual::add(self, sink, sizes, results) };
        if largest::is_wanted(sink) {
            *found = largest::with(*found, results, self.exist);
        }
        results
    }
}

/// Whether [`Line::finish`] has something to do.
#[inline(always)]
pub fn is_asked(sink: &Sink) -> bool {
    residual::is_given(sink) || largest::is_wanted(sink)
}

/// Whether eight elements of every row, of the result and of the residual, start at a multiple of 16
/// bytes at columns that are a multiple of 8.
#[inline(always)]
pub fn rows_aligned(sink: &Sink, sizes: &Problem) -> bool {
    direct::rows_aligned(sink, sizes) && residual::rows_aligned(sink)
}
