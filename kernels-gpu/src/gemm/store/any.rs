//! The store of tiles whose results are more than sums times factors of rows, or NVFP4 or MXFP4.
//!
//! Eight results of a token are made at a time, by the same code for all: in a gated product, from the
//! eight sums of the gate and then from the eight of `up`.

use cuda_std::ptx::{float, marker, memory as words};
use cuda_std::warp;

use super::{Piece, Staged, Store};
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::combine::combine;
use crate::gemm::epilogue::line::Line;
use crate::gemm::epilogue::{self, COLUMNS, blocks, direct, largest};
use crate::gemm::work::WorkList;

/// Bytes of a sum.
const F32_BYTES: u32 = size_of::<f32>() as u32;

impl<T: Staged, L: WorkList> Store<'_, T, L> {
    /// Stores floats in aligned rows, or NVFP4 or MXFP4, of which two or four neighbouring lanes have a
    /// block. It is for kernels of few tokens, whose main loops this leaves alone; for more tokens
    /// [`Self::store_blocks`] is faster.
    ///
    /// # Safety
    /// As [`store_tile`](super::store_tile).
    #[inline(always)]
    pub(super) unsafe fn store_halves(&self) {
        let (tile, part, result, gated) = (self.tile, self.part, self.result, self.gated());
        let sink = self.sink;
        // SAFETY: all consumers are here.
        unsafe { self.pad() };
        let piece = self.piece(gated, 0);
        let (first, end) = part.range(part.rank);
        // As in `store_blocks`.
        let mut ahead = 0;
        while first + ahead < end {
            let token = first + piece.ahead + ahead;
            let exists = piece.n < result.n && token < end;
            // Pinned, so that values that follow from it take no registers from one token to the
            // next.
            let place = [tile.token + token, marker::pin(piece.n)];
            let (mut results, mut found) = ([0.0; COLUMNS], 0.0);
            if exists {
                // SAFETY: the token's factor, all eight columns' and the sums.
                results = unsafe { self.eight(&piece, token, place, 0, &mut found) };
            }
            // The largest is raised in each round: the largest of all rounds would take a register
            // from one to the next. SAFETY: all lanes are here.
            unsafe { largest::raise(sink, || found) };
            if epilogue::is_blocks(sink) {
                let mut amax = blocks::magnitude(results);
                // SAFETY: all lanes are here. The rest of a block is in the next lane, of MXFP4 in the
                // next three.
                unsafe {
                    amax = float::max_nan_f32(amax, warp::shuffle_xor_f32(amax, 1));
                    if epilogue::is_mxfp4(sink) {
                        amax = float::max_nan_f32(amax, warp::shuffle_xor_f32(amax, 2));
                    }
                    if marker::pin(u32::from(exists)) != 0 {
                        blocks::store_eight(sink, result, tile.matrix, place, results, amax);
                    }
                }
            } else if exists {
                // SAFETY: all eight exist, aligned.
                unsafe { direct::store_aligned_row(sink, result, tile.matrix, place, results) };
            }
            // Pinned, so that the loop is not unrolled: it would run out of registers.
            ahead = marker::pin(ahead + piece.step);
        }
    }

    /// Writes the padding of a 128x4 result's scales below the last token, if the CTA has it.
    ///
    /// # Safety
    /// As [`store_tile`](super::store_tile).
    #[inline(always)]
    unsafe fn pad(&self) {
        let (tile, part, sink) = (self.tile, self.part, self.sink);
        if epilogue::is_blocks(sink) && tile.token + part.tokens == self.result.m {
            let count = blocks::count(sink, T::rows(self.cta.config)) >> self.gated();
            let columns = [tile.row_tile * count, count];
            let threads = [part.rank * T::THREADS + self.thread, part.ctas() * T::THREADS];
            // SAFETY: the result has blocks, and these are its columns of them.
            unsafe { blocks::pad_rows(sink, self.result, tile.matrix, columns, threads) };
        }
    }

    /// Stores floats in aligned rows, or NVFP4 or MXFP4, of which a thread has sixteen columns.
    /// Returns the largest magnitude, if it is asked for.
    ///
    /// # Safety
    /// As [`store_tile`](super::store_tile).
    #[inline(always)]
    pub(super) unsafe fn store_blocks(&self) -> f32 {
        let (tile, part, result, gated) = (self.tile, self.part, self.result, self.gated());
        let sink = self.sink;
        // SAFETY: all consumers are here.
        unsafe { self.pad() };
        let is_blocks = epilogue::is_blocks(sink);
        let eights = if is_blocks { 2 } else { 1 };
        let plain_blocks = is_blocks && T::is_plain(self.cta.config, self.cta.params);
        // All threads do as many rounds as the one with most tokens. The lanes of a warp stay
        // together, and ptxas knows it: otherwise no address of the main loop would be in a
        // uniform register.
        let ((mut first, end), mut found) = (part.range(part.rank), 0.0);
        while first < end {
            // Pinned, so that values that follow from it take no registers from one token to the
            // next.
            let piece =
                Self { thread: marker::pin(self.thread), ..*self }.piece(gated, eights >> 1);
            let token = first + piece.ahead;
            let place = [tile.token + token, piece.n];
            let exists = piece.n < result.n && token < end;
            let mut results = [[0.0; COLUMNS]; 2];
            if exists {
                // SAFETY: the token and the columns exist; floats are aligned.
                unsafe {
                    results = if plain_blocks {
                        self.plain_block(&piece, token, place[0])
                    } else {
                        self.any(&piece, token, place, eights, &mut found)
                    };
                }
            }
            if is_blocks {
                let [one, other] = results.map(blocks::magnitude);
                let mut amax = float::max_nan_f32(one, other);
                // SAFETY: all lanes are here. The other half of a block of MXFP4 is in the next lane.
                unsafe {
                    if epilogue::is_mxfp4(sink) {
                        amax = float::max_nan_f32(amax, warp::shuffle_xor_f32(amax, 1));
                    }
                    if marker::pin(u32::from(exists)) != 0 {
                        blocks::store(sink, result, tile.matrix, place, results, amax);
                    }
                }
            }
            // Pinned, so that the loop is not unrolled: it would run out of registers.
            first = marker::pin(first + piece.step);
        }
        found
    }

    /// Sixteen results of an epilogue that [is plain](fp4_formats::gemm::Epilogue::is_plain).
    ///
    /// # Safety
    /// Their sums exist, and the token's factor.
    #[inline(always)]
    unsafe fn plain_block(&self, piece: &Piece, token: u32, m: u32) -> [[f32; COLUMNS]; 2] {
        let columns = [piece.column, piece.column + COLUMNS as u32];
        // SAFETY: as the caller says.
        let (row, sums) = unsafe {
            let row = if L::OWN_FACTORS {
                affine::row_factor(&self.affine(0), m)
            } else {
                affine::row_factor(&self.cta.head().epilogue.affine, m)
            };
            (row, self.sums::<2, 1>(piece, columns, [token; 2]))
        };
        sums.map(|eight| eight.map(|sum| affine::value(sum, self.unit, row, Column::NONE)))
    }

    /// Makes `eights` times eight results of a token of the piece, which begins at `place` of the result.
    /// Eight are stored, as floats; sixteen, a block or half of one, are returned. `found` is raised to
    /// their largest magnitude, if that is asked for.
    ///
    /// # Safety
    /// Their sums, factors and biases exist; floats are aligned.
    #[inline(always)]
    unsafe fn any(
        &self,
        piece: &Piece,
        token: u32,
        place: [u32; 2],
        eights: u32,
        found: &mut f32,
    ) -> [[f32; COLUMNS]; 2] {
        // With sixteen, both halves wait in shared memory: registers are few. Their place is that of
        // sums that only this thread needs.
        let block = self.address(self.part.rank, token) + piece.column * F32_BYTES;
        let sink = self.sink;
        let half = |eight: u32| block + eight * COLUMNS as u32 * F32_BYTES;
        let mut eight = 0;
        while eight < eights {
            // SAFETY: the token and the columns exist; floats are aligned.
            unsafe {
                let results = self.eight(piece, token, place, eight, found);
                if eights > 1 {
                    put_eight(half(eight), results);
                } else {
                    let matrix = self.tile.matrix;
                    direct::store_aligned_row(sink, self.result, matrix, place, results);
                }
            }
            eight = marker::pin(eight + 1);
        }
        if eights == 1 {
            return [[0.0; COLUMNS]; 2];
        }
        // SAFETY: the results are there.
        unsafe { [take_eight(half(0)), take_eight(half(1))] }
    }

    /// Results `8 eight ..` of a token of the piece, which begins at `place` of the result, finished.
    /// `found` is raised to their largest magnitude, if that is asked for.
    ///
    /// # Safety
    /// Their sums, factors and biases exist; they are made once.
    #[inline(always)]
    unsafe fn eight(
        &self,
        piece: &Piece,
        token: u32,
        [m, n]: [u32; 2],
        eight: u32,
        found: &mut f32,
    ) -> [f32; COLUMNS] {
        let n = n + eight * COLUMNS as u32;
        let epilogue = self.cta.head().epilogue;
        let gated = self.gated();
        let (mut results, mut half) = ([0.0; COLUMNS], 0);
        loop {
            let affine = self.affine(half);
            let column = piece.column + ((eight << gated) + half) * COLUMNS as u32;
            // SAFETY: the token's factor, all eight columns' and the sums.
            let values = unsafe {
                let [sums] = self.sums::<1, 1>(piece, [column], [token]);
                let row = affine::row_factor(&affine, m);
                affine::values(&affine, self.unit, row, n, sums)
            };
            results = combine(&epilogue.combine, half, results, values);
            // Not unrolled: one copy of this code serves gated products and others.
            half = marker::pin(half + 1);
            if half > gated {
                break;
            }
        }
        let line = Line::eight(self.tile.matrix, [m, n]);
        // SAFETY: all eight are inside the result.
        unsafe { line.finish(self.sink, self.result, results, found) }
    }
}

/// Writes eight results to shared memory.
///
/// # Safety
/// There is place for them, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn put_eight(at: u32, results: [f32; COLUMNS]) {
    let [a, b, c, d, e, f, g, h] = results.map(f32::to_bits);
    // SAFETY: as the caller says.
    unsafe {
        words::st_shared_v4_b32(at, [a, b, c, d]);
        words::st_shared_v4_b32(at + 16, [e, f, g, h]);
    }
}

/// Reads eight results from shared memory.
///
/// # Safety
/// They are there, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn take_eight(at: u32) -> [f32; COLUMNS] {
    // SAFETY: as the caller says.
    let ([a, b, c, d], [e, f, g, h]) =
        unsafe { (words::ld_shared_v4_b32(at), words::ld_shared_v4_b32(at + 16)) };
    [a, b, c, d, e, f, g, h].map(f32::from_bits)
}
