//! Gathering: each slot's token to the slot's row.
//!
//! # Contract
//! The parameters are [`GatherParams`]; any grid of [`THREADS`] threads. CTAs take rows in turn.

use core::array::from_fn;

use cuda_std::ptx::memory;
use cuda_std::{kernel, thread};
use fp4_formats::moe::{BAD, GATHER_BYTES, GatherParams, THREADS};

use crate::pipeline::{follow_stream, release_stream};

const WORD: u32 = size_of::<u32>() as u32;

/// Pieces of a row that a thread has on their way at the same time.
const AHEAD: usize = 4;

/// A piece of `PIECE` bytes, in as many words of the four as it fills.
///
/// # Safety
/// `address` is a multiple of `PIECE`, one of [`GatherParams::piece`]'s, and has as many readable bytes.
#[inline(always)]
unsafe fn load<const PIECE: u32>(address: u64) -> [u32; 4] {
    // SAFETY: as the caller says.
    unsafe {
        match PIECE {
            GATHER_BYTES => memory::ld_global_v4_b32(address),
            WORD => [memory::ld_global_b32(address), 0, 0, 0],
            _ => {
                const { assert!(PIECE == GATHER_BYTES || PIECE == WORD || PIECE == 1) };
                [u32::from(memory::ld_global_u8(address)), 0, 0, 0]
            }
        }
    }
}

/// Stores what [`load`] has.
///
/// # Safety
/// The same as there, of writable bytes.
#[inline(always)]
unsafe fn store<const PIECE: u32>(address: u64, piece: [u32; 4]) {
    // SAFETY: as the caller says.
    unsafe {
        match PIECE {
            GATHER_BYTES => memory::st_global_v4_b32(address, piece),
            WORD => memory::st_global_b32(address, piece[0]),
            _ => memory::st_global_b8(address, piece[0] as u16),
        }
    }
}

/// Copies a row of `bytes` bytes with all threads of the CTA, or makes it zeros where there is nothing to
/// copy.
///
/// # Safety
/// Both rows begin at multiples of `PIECE` bytes, and are multiples of it.
#[inline(always)]
unsafe fn copy_row<const PIECE: u32>(exists: bool, from: u64, to: u64, bytes: u32) {
    let mut at = thread::thread_idx_x() * PIECE;
    while at < bytes {
        let place = |i: usize| at + i as u32 * THREADS * PIECE;
        // SAFETY: inside both rows.
        unsafe {
            let pieces: [_; AHEAD] = from_fn(|i| {
                if exists && place(i) < bytes {
                    load::<PIECE>(from + u64::from(place(i)))
                } else {
                    [0; 4]
                }
            });
            for (i, piece) in pieces.into_iter().enumerate() {
                if place(i) < bytes {
                    store::<PIECE>(to + u64::from(place(i)), piece);
                }
            }
        }
        at += AHEAD as u32 * THREADS * PIECE;
    }
}

/// Whether a source is a slot.
#[inline(always)]
pub const fn is_slot(source: u32) -> bool {
    // `NOWHERE` is above.
    source < BAD
}

/// Copies the token of slot `slot` to row `row`, or makes the row zeros where that is none and the row does not keep
/// what it is, with all threads of the CTA.
///
/// # Safety
/// The same as [`GatherParams`] says; there are such a slot and such a row.
#[inline(always)]
pub unsafe fn gather_row(p: &GatherParams, row: u32, slot: u32) {
    let token = p.top_k.divide(slot).0;
    let exists = is_slot(slot);
    if !exists && p.keeps != 0 {
        return;
    }
    for matrix in 0..p.from.len() {
        let bytes = p.row_bytes[matrix];
        let from = p.from[matrix] + u64::from(token) * u64::from(p.from_stride[matrix]);
        let to = p.to[matrix] + u64::from(row) * u64::from(p.to_stride[matrix]);
        // SAFETY: the token and the row, which begin at multiples of the piece.
        unsafe {
            match GatherParams::piece(bytes) {
                GATHER_BYTES => copy_row::<GATHER_BYTES>(exists, from, to, bytes),
                WORD => copy_row::<WORD>(exists, from, to, bytes),
                _ => copy_row::<1>(exists, from, to, bytes),
            }
        }
    }
}

/// Gathering.
///
/// # Safety
/// The same as [`GatherParams`] says.
#[kernel(threads = THREADS)]
pub unsafe fn moe_gather(p: GatherParams) {
    // In this order: what starts while this runs finds the routes complete.
    follow_stream();
    release_stream();
    let mut row = thread::block_idx_x();
    while row < p.rows {
        // SAFETY: an element of the sources, and its row.
        unsafe {
            let slot = memory::ld_global_b32(p.sources + u64::from(row) * u64::from(WORD));
            gather_row(&p, row, slot);
        }
        row += thread::grid_dim_x();
    }
}
