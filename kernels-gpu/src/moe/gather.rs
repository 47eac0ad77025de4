//! Gathering: each slot's token to the slot's row.
//!
//! # Contract
//! The parameters are [`GatherParams`]; any grid of [`THREADS`] threads. CTAs take rows in turn.

use cuda_std::ptx::memory;
use cuda_std::{kernel, thread};
use fp4_formats::moe::{GATHER_BYTES, GatherParams, NOWHERE, THREADS};

use crate::pipeline::{follow_stream, release_stream};

/// Copies a piece of a row, or writes zeros where there is nothing to copy.
///
/// # Safety
/// `piece` is one of [`GatherParams::piece`]'s; both addresses are multiples of it and have as many
/// bytes.
#[inline(always)]
unsafe fn copy(piece: u32, exists: bool, from: u64, to: u64) {
    // SAFETY: as the caller says.
    unsafe {
        if piece == GATHER_BYTES {
            let bytes = if exists { memory::ld_global_v4_b32(from) } else { [0; 4] };
            memory::st_global_v4_b32(to, bytes);
        } else if piece == 1 {
            let byte = if exists { memory::ld_global_u8(from) } else { 0 };
            memory::st_global_b8(to, byte);
        } else {
            let bytes = if exists { memory::ld_global_b32(from) } else { 0 };
            memory::st_global_b32(to, bytes);
        }
    }
}

/// Gathering.
///
/// # Safety
/// As [`GatherParams`] says.
#[kernel(threads = THREADS)]
pub unsafe fn moe_gather(p: GatherParams) {
    // In this order: what starts while this runs finds the routes complete.
    follow_stream();
    release_stream();
    let mut row = thread::block_idx_x();
    while row < p.rows {
        // SAFETY: an element of the sources.
        let slot = unsafe { memory::ld_global_b32(p.sources + u64::from(row) * 4) };
        let token = p.top_k.divide(slot).0;
        for matrix in 0..p.from.len() {
            let row_bytes = p.row_bytes[matrix];
            let from = p.from[matrix] + u64::from(token) * u64::from(row_bytes);
            let to = p.to[matrix] + u64::from(row) * u64::from(row_bytes);
            let piece = GatherParams::piece(row_bytes);
            let mut at = thread::thread_idx_x() * piece;
            while at < row_bytes {
                // SAFETY: inside the token and the row, which begin at multiples of `piece`.
                unsafe { copy(piece, slot != NOWHERE, from + u64::from(at), to + u64::from(at)) };
                at += THREADS * piece;
            }
        }
        row += thread::grid_dim_x();
    }
}
