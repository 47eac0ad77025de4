//! The copies of a stage: each thread brings a few pieces of 16 bytes.
//!
//! A stage of two blocks of columns takes a chunk of weights as it is; one of a single block takes half of the
//! codes and scales of each chunk of the tile. The activations of a token are 128 bytes of each block; piece `p`
//! of token `t` goes to place `p ^ t % 8`, so that the eight rows of a matrix that `ldmatrix` reads are in
//! different banks. Columns beyond K become zeros: weights there are zeros, too, but a NaN times zero is not.
//! Tokens beyond the tile's last are copies of it, whose results nobody stores.

use cuda_std::ptx::{cp_async, marker};
use cuda_std::thread;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::repack::{
    BLOCK_CODE_BYTES, BLOCK_COLUMNS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, CHUNK_COLUMNS, CHUNK_ROWS,
};
use fp4_formats::gemm::sm80::config::{PIECE_BYTES, Sm80Config, THREADS, TOKEN_BYTES};
use fp4_formats::gemm::work::CtaTile;

use super::Cta;
use super::memory::Memory;
use crate::gemm::work::WorkList;

/// Pieces of a token in a block of columns.
const PIECES: u32 = TOKEN_BYTES / PIECE_BYTES;
/// Columns of a piece.
const PIECE_COLUMNS: u32 = BLOCK_COLUMNS / PIECES;
/// Pieces of the codes of 64 rows; all threads bring those of a chunk's block column at a time.
const CODE_PIECES: u32 = BLOCK_CODE_BYTES / PIECE_BYTES;
const _: () = assert!(CODE_PIECES * CHUNK_BLOCKS == THREADS);

/// Activations that a thread brings of a stage: the most of all configurations.
const MOST_ROUNDS: usize = 4;

/// The sources of a thread's pieces of an item's next step.
#[derive(Clone, Copy)]
pub struct Sources {
    memory: Memory,
    /// Address of the first of the thread's pieces of weights.
    weights: u64,
    /// The same of scales, if threads bring some beside codes.
    scales: u64,
    /// Bytes from one chunk of rows to the next.
    row_bytes: u64,
    /// Bytes that a piece has in the chunks of rows behind the first: none if they do not exist.
    others: u32,
    /// Address of the thread's piece of the tile's first token.
    activations: u64,
    /// Bytes from there to the thread's tokens.
    tokens: [u32; MOST_ROUNDS],
    /// Columns of the matrices behind the thread's first.
    columns: i32,
    /// The step whose weights are next, one ahead of the activations', and the one after the item's last.
    weight_step: u32,
    end: u32,
    /// Offset of the thread's first piece of activations in a stage.
    place: u32,
}

impl Sources {
    /// The sources of an item's first step.
    #[inline(always)]
    pub fn new<L: WorkList>(cta: &Cta<'_, L>, tile: &CtaTile, item: &Item) -> Self {
        let (config, params) = (cta.config, cta.params);
        let thread = thread::thread_idx_x();
        let k = params.problem.k;
        let chunk_bytes = config.scheme.chunk_bytes();
        let row_bytes = u64::from(k.div_ceil(CHUNK_COLUMNS)) * u64::from(chunk_bytes);
        let first = tile.row_tile * config.chunks();
        let weights = params.weights
            + u64::from(tile.problem) * params.weight_stride
            + u64::from(first) * row_bytes;
        let (weights, scales) = if config.blocks == CHUNK_BLOCKS {
            (weights + u64::from(item.first) * u64::from(chunk_bytes), 0)
        } else {
            let (chunk, half) = (item.first / CHUNK_BLOCKS, item.first % CHUNK_BLOCKS);
            let weights = weights + u64::from(chunk) * u64::from(chunk_bytes);
            let (block, piece) = (thread / scale_pieces(config), thread % scale_pieces(config));
            let scales = CHUNK_CODE_BYTES
                + (block * CHUNK_BLOCKS + half) * config.scheme.block_scale_bytes()
                + piece * PIECE_BYTES;
            let (block, piece) = (thread / CODE_PIECES, thread % CODE_PIECES);
            let codes = (block * CHUNK_BLOCKS + half) * BLOCK_CODE_BYTES + piece * PIECE_BYTES;
            // The thread's number is added below.
            let codes = codes.wrapping_sub(thread * PIECE_BYTES) as i32;
            (weights.wrapping_add_signed(codes.into()), weights + u64::from(scales))
        };
        let (token, piece) = own_piece(config);
        let token_bytes = k * (TOKEN_BYTES / BLOCK_COLUMNS);
        let activations = params.activations
            + u64::from(tile.matrix) * params.activation_stride
            + u64::from(tile.token) * u64::from(token_bytes)
            + u64::from(item.first) * u64::from(config.blocks * TOKEN_BYTES)
            + u64::from(piece * PIECE_BYTES);
        let last = tile.tokens() - 1;
        let tokens = core::array::from_fn(|round| {
            let token = token + round as u32 * tokens_at_once(config);
            token.min(last) * token_bytes
        });
        let (block, of_block) = (piece / PIECES, piece % PIECES);
        let exist = params.problem.n.div_ceil(CHUNK_ROWS) - first;
        Self {
            memory: cta.memory,
            weights: weights + u64::from(thread * PIECE_BYTES),
            scales,
            row_bytes,
            others: if config.chunks() <= exist { PIECE_BYTES } else { 0 },
            activations,
            tokens,
            columns: k as i32 - (piece * PIECE_COLUMNS + item.first * config.k_step()) as i32,
            weight_step: item.first,
            end: item.end,
            place: (block * config.tokens + token) * TOKEN_BYTES
                + (of_block ^ (token % PIECES)) * PIECE_BYTES,
        }
    }

    /// Starts the copies of the next step's weights to a stage, and goes on to those of the step behind it. Behind
    /// the item's last step, the stage becomes zeros.
    ///
    /// # Safety
    /// All threads have loaded what they need of the stage.
    #[inline(always)]
    pub unsafe fn copy_weights(&mut self, stage: u32) {
        let config = self.memory.config;
        let bytes = if self.weight_step < self.end { PIECE_BYTES } else { 0 };
        let to = self.memory.weights(stage) + thread::thread_idx_x() * PIECE_BYTES;
        let chunk_bytes = config.scheme.chunk_bytes();
        // SAFETY: the caller's.
        unsafe {
            if config.blocks == CHUNK_BLOCKS {
                self.copy_chunk(to, bytes);
                self.weights += u64::from(chunk_bytes);
            } else {
                self.copy_halves(to, bytes);
                // From the first half of a chunk to its second, or to the next chunk.
                let is_second = !self.weight_step.is_multiple_of(CHUNK_BLOCKS);
                let to_next = |half: u32| if is_second { chunk_bytes - half } else { half };
                self.weights += u64::from(to_next(BLOCK_CODE_BYTES));
                self.scales += u64::from(to_next(config.scheme.block_scale_bytes()));
            }
        }
        self.weight_step = marker::pin(self.weight_step + 1);
    }

    /// Starts the copies of a step's activations to stage `stage`, and of the weights of the step behind it to
    /// their stage, and goes on to the next step. Behind the item's last step, the stages become zeros.
    ///
    /// # Safety
    /// All threads have loaded what they need of the stages.
    #[inline(always)]
    pub unsafe fn copy(&mut self, stage: u32, weights: u32) {
        let config = self.memory.config;
        let bytes = if self.weight_step <= self.end { PIECE_BYTES } else { 0 };
        let to = self.memory.activations(stage) + self.place;
        let bytes = if self.columns > 0 { bytes } else { 0 };
        // SAFETY: the caller's.
        unsafe { self.copy_weights(weights) };
        let at_once = tokens_at_once(config);
        for round in 0..config.tokens.div_ceil(at_once) {
            let before = round * at_once;
            let to = to + before * TOKEN_BYTES;
            let from = self.activations + u64::from(self.tokens[round as usize]);
            // SAFETY: inside the matrix and the stage.
            unsafe {
                if before + at_once <= config.tokens {
                    cp_async::cp_async_cg_shared_global_16_zfill(to, from, bytes);
                } else {
                    let copy = before + own_piece(config).0 < config.tokens;
                    cp_async::cp_async_cg_shared_global_16_zfill_if(copy, to, from, bytes);
                }
            }
        }
        self.activations += u64::from(config.blocks * TOKEN_BYTES);
        self.columns -= config.k_step() as i32;
    }

    /// Copies `bytes` of each piece of a chunk of weights, all or none.
    ///
    /// # Safety
    /// As [`copy`](Self::copy); `to` is the thread's place.
    #[inline(always)]
    unsafe fn copy_chunk(&self, to: u32, bytes: u32) {
        // Not a loop, which the compiler would keep.
        // SAFETY: the caller's.
        unsafe {
            self.copy_of_chunk(0, to, bytes);
            self.copy_of_chunk(1, to, bytes);
            self.copy_of_chunk(2, to, bytes);
        }
    }

    /// Copies the pieces of a chunk that all threads bring at a time, number `round`, if there are so many.
    ///
    /// # Safety
    /// As [`copy_chunk`](Self::copy_chunk).
    #[inline(always)]
    unsafe fn copy_of_chunk(&self, round: u32, to: u32, bytes: u32) {
        let pieces = self.memory.config.scheme.chunk_bytes() / PIECE_BYTES;
        let before = round * THREADS;
        let to = to + before * PIECE_BYTES;
        let from = self.weights + u64::from(before * PIECE_BYTES);
        // SAFETY: inside the chunk and the stage.
        unsafe {
            if before + THREADS <= pieces {
                cp_async::cp_async_cg_shared_global_16_zfill(to, from, bytes);
            } else if before < pieces {
                let copy = thread::thread_idx_x() < pieces - before;
                cp_async::cp_async_cg_shared_global_16_zfill_if(copy, to, from, bytes);
            }
        }
    }

    /// Copies `bytes` of each piece of half of the columns of all chunks of the tile, all or none.
    ///
    /// # Safety
    /// As [`copy`](Self::copy); `to` is the thread's place.
    #[inline(always)]
    unsafe fn copy_halves(&self, to: u32, bytes: u32) {
        let config = self.memory.config;
        let has_scales = thread::thread_idx_x() < CHUNK_BLOCKS * scale_pieces(config);
        for chunk in 0..config.chunks() {
            let before = CHUNK_BLOCKS * config.scheme.block_scale_bytes();
            let to_codes = to + chunk * THREADS * PIECE_BYTES;
            let to_scales = to + config.code_bytes() + chunk * before;
            // The tile may end behind the matrix: zeros there make no result.
            let bytes = if chunk == 0 { bytes } else { bytes.min(self.others) };
            let rows = u64::from(chunk) * self.row_bytes;
            let (codes, scales) = (self.weights + rows, self.scales + rows);
            // SAFETY: inside the matrix, unless there is nothing to copy, and the stage.
            unsafe {
                cp_async::cp_async_cg_shared_global_16_zfill(to_codes, codes, bytes);
                cp_async::cp_async_cg_shared_global_16_zfill_if(
                    has_scales, to_scales, scales, bytes,
                );
            }
        }
    }
}

/// Tokens of which all threads bring a piece at a time.
#[inline(always)]
const fn tokens_at_once(config: &Sm80Config) -> u32 {
    THREADS / (config.blocks * PIECES)
}

/// The first token of which the thread brings a piece, and which of the token's pieces in a stage.
#[inline(always)]
fn own_piece(config: &Sm80Config) -> (u32, u32) {
    let thread = thread::thread_idx_x();
    (thread / (config.blocks * PIECES), thread % (config.blocks * PIECES))
}

/// Pieces of the scales of 64 rows by 64 columns.
#[inline(always)]
const fn scale_pieces(config: &Sm80Config) -> u32 {
    config.scheme.block_scale_bytes() / PIECE_BYTES
}
