//! Packing: each slot's token to the slot's record, for another device.
//!
//! # Contract
//! The parameters are [`PackParams`]; any grid of [`THREADS`] threads. CTAs take records in turn.

use cuda_std::ptx::memory;
use cuda_std::{kernel, thread};
use fp4_formats::moe::record::Header;
use fp4_formats::moe::{PackParams, THREADS};

use super::gather::{gather_row, is_slot};
use crate::pipeline::{follow_stream, release_stream};

/// Element `at` of an array of words.
///
/// # Safety
/// There is one.
#[inline(always)]
unsafe fn word(array: u64, at: u32) -> u32 {
    // SAFETY: as the caller says.
    unsafe { memory::ld_global_b32(array + u64::from(at) * size_of::<u32>() as u64) }
}

/// The header of slot `slot`, which may be none.
///
/// # Safety
/// As [`PackParams`] says.
#[inline(always)]
unsafe fn header(p: &PackParams, slot: u32) -> Header {
    if !is_slot(slot) {
        return Header::NONE;
    }
    // SAFETY: the slot exists and has an expert, because a row has it.
    unsafe {
        let expert = word(p.locals, word(p.ids, slot));
        let weight = f32::from_bits(word(p.weights, slot));
        let token = p.gather.top_k.divide(slot).0;
        let scale = if p.row_scales == 0 { 1.0 } else { f32::from_bits(word(p.row_scales, token)) };
        Header { expert, place: slot, weight, scale }
    }
}

/// Packing.
///
/// # Safety
/// The same as [`PackParams`] says.
#[kernel(threads = THREADS)]
pub unsafe fn moe_pack(p: PackParams) {
    // In this order: what starts while this runs finds the routes complete.
    follow_stream();
    release_stream();
    let mut row = thread::block_idx_x();
    while row < p.gather.rows {
        // SAFETY: an element of the sources, and its record.
        unsafe {
            let slot = word(p.gather.sources, row);
            if thread::thread_idx_x() == 0 {
                let record = p.records + u64::from(row) * u64::from(p.record_bytes);
                memory::st_global_v4_b32(record, header(&p, slot).words());
            }
            gather_row(&p.gather, row, slot);
        }
        row += thread::grid_dim_x();
    }
}
