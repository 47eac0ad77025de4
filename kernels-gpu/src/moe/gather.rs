//! Gathering: each slot's token to the slot's row.
//!
//! # Contract
//! The parameters are [`GatherParams`]; any grid of [`THREADS`] threads. CTAs take rows in turn.

use cuda_std::ptx::memory;
use cuda_std::{kernel, thread};
use fp4_formats::moe::{GATHER_BYTES, GatherParams, NOWHERE, THREADS};

use crate::pipeline::{follow_stream, release_stream};

/// Gathering.
///
/// # Safety
/// As [`GatherParams`] says.
#[kernel(threads = THREADS)]
pub unsafe fn moe_gather(p: GatherParams) {
    release_stream();
    follow_stream();
    let mut row = thread::block_idx_x();
    while row < p.rows {
        // SAFETY: an element of the sources.
        let slot = unsafe { memory::ld_global_b32(p.sources + u64::from(row) * 4) };
        let token = p.top_k.divide(slot).0;
        let from = p.from + u64::from(token) * u64::from(p.row_bytes);
        let to = p.to + u64::from(row) * u64::from(p.row_bytes);
        let mut at = thread::thread_idx_x() * GATHER_BYTES;
        while at < p.row_bytes {
            // SAFETY: inside the token and the row.
            unsafe {
                let bytes = if slot == NOWHERE {
                    [0; 4]
                } else {
                    memory::ld_global_v4_b32(from + u64::from(at))
                };
                memory::st_global_v4_b32(to + u64::from(at), bytes);
            }
            at += THREADS * GATHER_BYTES;
        }
        row += thread::grid_dim_x();
    }
}
