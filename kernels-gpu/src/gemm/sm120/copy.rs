//! The copies of a stage: each thread brings a few pieces of 16 bytes, and a word of scales.
//!
//! A stage takes the chunks of weights of its 128 columns as they are. The codes of a token are 64 bytes, or 128 of e4m3;
//! the [place](Sm120Config::place) of a piece among those of its token depends on the token, so that what the lanes of a
//! warp load together is in different banks. A token's scales are in words of four, where a lane's
//! [load](super::main_loop) finds them; e4m3 has none.
//! Codes and scales of columns beyond K become zeros: weights there are zeros, too, but a NaN times zero is not, and
//! bytes that pad scales may be anything. Tokens beyond the tile's last are copies of it, whose results nobody
//! stores.

use cuda_std::ptx::{cp_async, marker, memory};
use cuda_std::thread;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::blocks::WORD_BYTES;
use fp4_formats::gemm::fragments::repack::{CHUNK_COLUMNS, CHUNK_ROWS};
use fp4_formats::gemm::sm120::config::{
    LANE_CHOICES, MMA_TOKENS, PIECE_BYTES, Sm120Config, THREADS,
};
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::layout::{TILE_BLOCKS, TILE_BYTES, TILE_ROWS};

use super::Cta;
use super::memory::Memory;
use crate::gemm::work::WorkList;

/// Pieces of tokens that a thread brings of a stage: the most of all configurations.
const MOST_ROUNDS: usize = 4;
/// Half a piece, to which rows are aligned where K is an odd multiple of 16.
const HALF_BYTES: u32 = PIECE_BYTES / 2;

const _: () = assert!(TILE_BLOCKS == WORD_BYTES as usize);

/// Tokens of which all threads bring a piece at a time.
#[inline(always)]
const fn tokens_at_once(config: &Sm120Config) -> u32 {
    THREADS / config.pieces()
}

/// The sources of a thread's pieces, from a step of an item on.
#[derive(Clone, Copy)]
pub struct Sources {
    memory: Memory,
    /// Steps of the item that are left.
    left: u32,
    /// Address of the first of the thread's pieces of weights.
    weights: u64,
    /// Bytes from one chunk of rows to the next.
    row_bytes: u64,
    /// Bytes that a piece has in the chunks of rows behind the first: none if they do not exist.
    others: u32,
    /// Address of the thread's piece of the tile's first token.
    codes: u64,
    /// Bytes from there to the thread's tokens.
    tokens: [u32; MOST_ROUNDS],
    /// Columns of the matrices behind the piece's first.
    columns: i32,
    /// Whether rows begin at whole pieces.
    whole_pieces: bool,
    /// Address of the thread's word of scales, and the word's distance from one step's to the next's.
    scales: u64,
    scale_step: u32,
    /// Scales of the row behind the word's first.
    blocks: i32,
    /// Whether scales can be copied by whole words.
    whole_words: bool,
    /// Offsets in a stage of the thread's first piece of tokens, and of its word of scales.
    place: u32,
    scale_place: u32,
}

impl Sources {
    /// The sources of an item's first step.
    #[inline(always)]
    pub fn new<L: WorkList>(cta: &Cta<'_, L>, tile: &CtaTile, item: &Item) -> Self {
        let (config, params) = (cta.config, cta.params);
        let thread = thread::thread_idx_x();
        let k = params.problem.k;
        let chunk_bytes = u64::from(config.chunk_bytes());
        let row_bytes = u64::from(k.div_ceil(CHUNK_COLUMNS)) * chunk_bytes;
        let first = tile.row_tile * config.chunks();
        let weights = params.weights
            + u64::from(tile.problem) * params.weight_stride
            + u64::from(first) * row_bytes
            + u64::from(item.first) * chunk_bytes
            + u64::from(thread * PIECE_BYTES);
        let exist = params.problem.n.div_ceil(CHUNK_ROWS) - first;
        let last = tile.tokens() - 1;

        let pieces = config.pieces();
        let (token, piece) = (thread / pieces, thread % pieces);
        let token_bytes = k / (CHUNK_COLUMNS / config.code_bytes());
        let codes = params.activations
            + u64::from(tile.matrix) * params.activation_stride
            + u64::from(tile.token) * u64::from(token_bytes)
            + u64::from(item.first * config.code_bytes())
            + u64::from(piece * PIECE_BYTES);
        let tokens = core::array::from_fn(|round| {
            (token + round as u32 * tokens_at_once(config)).min(last) * token_bytes
        });

        // Without scales, what follows from them is not used.
        let words = config.token_words().max(1);
        let (of_tile, word) = (thread / words, thread % words);
        let row = tile.token + of_tile.min(last);
        let (in_row, at) = (k / config.format.block(), item.first * words + word);
        let (offset, step) = if params.own.blocked != 0 {
            let (row, rows) = (row % TILE_ROWS as u32, row / TILE_ROWS as u32);
            let tiles = rows * in_row.div_ceil(TILE_BLOCKS as u32) + at;
            let in_tile = row % 32 * 16 + row / 32 * WORD_BYTES;
            (u64::from(tiles) * TILE_BYTES as u64 + u64::from(in_tile), TILE_BYTES as u32)
        } else {
            (u64::from(row) * u64::from(in_row) + u64::from(at * WORD_BYTES), WORD_BYTES)
        };
        let eight = of_tile / MMA_TOKENS;
        let together = config.scale_eights();
        let lane = of_tile % MMA_TOKENS * LANE_CHOICES + eight % together * words + word;
        let scale_place = eight / together * (MMA_TOKENS * LANE_CHOICES) + lane;
        Self {
            memory: cta.memory,
            left: item.count(),
            weights,
            row_bytes,
            others: if config.chunks() <= exist { PIECE_BYTES } else { 0 },
            codes,
            tokens,
            columns: k as i32
                - (piece * config.piece_columns() + item.first * CHUNK_COLUMNS) as i32,
            whole_pieces: config.format.block().is_multiple_of(config.piece_columns())
                || k.is_multiple_of(config.piece_columns()),
            scales: params.own.scales + u64::from(tile.matrix) * params.own.scale_stride + offset,
            scale_step: step * words,
            blocks: in_row as i32 - (at * WORD_BYTES) as i32,
            whole_words: params.own.whole_words != 0,
            place: token * config.code_bytes() + config.place(token, piece) * PIECE_BYTES,
            scale_place: config.token_scales_offset() + scale_place * WORD_BYTES,
        }
    }

    /// Goes on to the next step.
    #[inline(always)]
    pub fn advance(&mut self) {
        let config = self.memory.config;
        self.left = marker::pin(self.left - 1);
        self.weights += u64::from(config.chunk_bytes());
        self.codes += u64::from(config.code_bytes());
        self.columns -= CHUNK_COLUMNS as i32;
        self.scales += u64::from(self.scale_step);
        self.blocks -= (config.token_words() * WORD_BYTES) as i32;
    }

    /// Starts the copies of the weights of the step that is `ahead` to a stage; none behind the item's last.
    ///
    /// # Safety
    /// All threads have loaded what they need of the stage.
    #[inline(always)]
    pub unsafe fn copy_weights(&self, stage: u32, ahead: u32) {
        if self.left <= ahead {
            return;
        }
        let config = self.memory.config;
        let to = self.memory.stage(stage)
            + config.weights_offset()
            + thread::thread_idx_x() * PIECE_BYTES;
        let from = self.weights + u64::from(ahead * config.chunk_bytes());
        for chunk in 0..config.chunks() {
            // The tile may end behind the matrix: zeros there make no result.
            let bytes = if chunk == 0 { PIECE_BYTES } else { self.others };
            let to = to + chunk * config.chunk_bytes();
            let from = from + u64::from(chunk) * self.row_bytes;
            // SAFETY: inside the matrix, unless there is nothing to copy, and the stage.
            unsafe {
                copy_round(config, 0, to, from, bytes);
                copy_round(config, 1, to, from, bytes);
                copy_round(config, 2, to, from, bytes);
            }
        }
    }

    /// Starts the copies of the tokens and their scales of the step that is `ahead` to a stage; none behind the
    /// item's last.
    ///
    /// # Safety
    /// All threads have loaded what they need of the stage; the kernels before have ended.
    #[inline(always)]
    pub unsafe fn copy_tokens(&self, stage: u32, ahead: u32) {
        if self.left <= ahead {
            return;
        }
        let (config, stage) = (self.memory.config, self.memory.stage(stage));
        let columns = self.columns - (ahead * CHUNK_COLUMNS) as i32;
        let codes = self.codes + u64::from(ahead * config.code_bytes());
        let at_once = tokens_at_once(config);
        for round in 0..config.tokens.div_ceil(at_once) {
            let before = round * at_once;
            let to = stage + self.place + before * config.code_bytes();
            let from = codes + u64::from(self.tokens[round as usize]);
            let copies = before + at_once <= config.tokens
                || before + thread::thread_idx_x() / config.pieces() < config.tokens;
            if copies {
                // SAFETY: inside the matrix, unless there is nothing to copy, and the stage.
                unsafe { self.copy_piece(to, from, columns) };
            }
        }
        let words = config.token_words();
        if thread::thread_idx_x() < config.tokens * words {
            let blocks = self.blocks - (ahead * words * WORD_BYTES) as i32;
            let from = self.scales + u64::from(ahead * self.scale_step);
            // SAFETY: scales of the token, unless there are none, and inside the stage.
            unsafe { self.copy_scales(stage + self.scale_place, from, blocks) };
        }
    }

    /// Copies a piece of a token, behind whose first column the matrix has `columns`.
    ///
    /// # Safety
    /// These columns, as far as they are in the piece, are at `from`; `to` is the piece's place.
    #[inline(always)]
    unsafe fn copy_piece(&self, to: u32, from: u64, columns: i32) {
        // SAFETY: the caller's.
        unsafe {
            if self.whole_pieces {
                let bytes = if columns > 0 { PIECE_BYTES } else { 0 };
                cp_async::cp_async_cg_shared_global_16_zfill(to, from, bytes);
            } else {
                let half = |first: u32| {
                    if columns > (2 * first) as i32 { HALF_BYTES } else { 0 }
                };
                let second = from + u64::from(HALF_BYTES);
                cp_async::cp_async_ca_shared_global_zfill::<HALF_BYTES>(to, from, half(0));
                cp_async::cp_async_ca_shared_global_zfill::<HALF_BYTES>(
                    to + HALF_BYTES,
                    second,
                    half(HALF_BYTES),
                );
            }
        }
    }

    /// Copies a word of scales, from whose first on the row has `blocks`.
    ///
    /// # Safety
    /// These scales, as far as they are in the word, are at `from`; `to` is the word's place.
    #[inline(always)]
    unsafe fn copy_scales(&self, to: u32, from: u64, blocks: i32) {
        let count = blocks.clamp(0, WORD_BYTES as i32) as u32;
        // SAFETY: the caller's.
        unsafe {
            if self.whole_words {
                cp_async::cp_async_ca_shared_global_zfill::<WORD_BYTES>(to, from, count);
            } else {
                let mut word = 0;
                for byte in 0..WORD_BYTES {
                    if byte < count {
                        let scale = memory::ld_global_u8(from + u64::from(byte));
                        word |= u32::from(scale) << (8 * byte);
                    }
                }
                memory::st_shared_b32(to, word);
            }
        }
    }
}

/// Copies `bytes` of the pieces of a chunk that all threads bring at a time, number `round`, if there are so many.
///
/// # Safety
/// The chunk is at `from`, if it is copied; `to` is the thread's place.
#[inline(always)]
unsafe fn copy_round(config: &Sm120Config, round: u32, to: u32, from: u64, bytes: u32) {
    let pieces = config.chunk_bytes() / PIECE_BYTES;
    let before = round * THREADS;
    let to = to + before * PIECE_BYTES;
    let from = from + u64::from(before * PIECE_BYTES);
    // SAFETY: the caller's.
    unsafe {
        if before + THREADS <= pieces {
            cp_async::cp_async_cg_shared_global_16_zfill(to, from, bytes);
        } else if before < pieces {
            let copy = thread::thread_idx_x() < pieces - before;
            cp_async::cp_async_cg_shared_global_16_zfill_if(copy, to, from, bytes);
        }
    }
}
