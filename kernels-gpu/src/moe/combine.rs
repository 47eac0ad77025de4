//! Combining: the rows of a token's slots times their weights, added in the order of the slots.
//!
//! # Contract
//! The parameters are [`CombineParams`]; CTAs of [`THREADS`] threads, [`CombineParams::row_ctas`] of them
//! along `y` for the columns of a token, any number along `x`, which take tokens in turn.
//!
//! # Arithmetic
//! Each product is rounded to f32, and so is each sum; `shared` is added last. Results depend on
//! nothing but the operands.

use core::array::from_fn;

use cuda_std::ptx::{convert, memory};
use cuda_std::{kernel, thread};
use fp4_formats::FloatType;
use fp4_formats::moe::{BAD, COMBINE_COLUMNS, CombineParams, NOWHERE, STATUS_NAN_WEIGHT, THREADS};

use crate::pipeline::{follow_stream, release_stream};

/// Elements that a thread makes at a time.
const COLUMNS: usize = COMBINE_COLUMNS as usize;

/// Eight elements of a type from `element` of `array` on.
///
/// # Safety
/// They exist, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn load(of: u32, array: u64, element: u64) -> [f32; COLUMNS] {
    // SAFETY: as the caller says.
    unsafe {
        if of == FloatType::F32 as u32 {
            let [a, b, c, d] = memory::ld_global_v4_b32(array + element * 4);
            let [e, f, g, h] = memory::ld_global_v4_b32(array + element * 4 + 16);
            return [a, b, c, d, e, f, g, h].map(f32::from_bits);
        }
        let pairs = memory::ld_global_v4_b32(array + element * 2);
        core::array::from_fn(|i| {
            let half = (pairs[i / 2] >> (16 * (i % 2))) as u16;
            if of == FloatType::F16 as u32 {
                convert::cvt_f32_f16(half)
            } else {
                f32::from_bits(u32::from(half) << 16)
            }
        })
    }
}

/// Stores eight elements of a type.
///
/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn store(of: u32, array: u64, element: u64, values: [f32; COLUMNS]) {
    // SAFETY: as the caller says.
    unsafe {
        if of == FloatType::F32 as u32 {
            let [a, b, c, d, e, f, g, h] = values.map(f32::to_bits);
            memory::st_global_v4_b32(array + element * 4, [a, b, c, d]);
            memory::st_global_v4_b32(array + element * 4 + 16, [e, f, g, h]);
            return;
        }
        let pairs = core::array::from_fn(|i| {
            let (high, low) = (values[2 * i + 1], values[2 * i]);
            if of == FloatType::F16 as u32 {
                convert::cvt_rn_f16x2_f32(high, low)
            } else {
                convert::cvt_rn_bf16x2_f32(high, low)
            }
        });
        memory::st_global_v4_b32(array + element * 2, pairs);
    }
}

/// Choices whose rows are on their way at the same time.
const CHOICES: usize = 4;

/// Rows and weights of a token's choices from `first` on; [`NOWHERE`] and 0 behind the last.
///
/// # Safety
/// As [`CombineParams`] says.
#[inline(always)]
unsafe fn choices(p: &CombineParams, token: u32, first: u32) -> ([u32; CHOICES], [f32; CHOICES]) {
    let slot = |i: usize| u64::from(token) * u64::from(p.top_k) + u64::from(first + i as u32);
    let exists = |i: usize| first + (i as u32) < p.top_k;
    // SAFETY: the slot exists.
    let word = |array: u64, i: usize| unsafe { memory::ld_global_b32(array + slot(i) * 4) };
    let rows = from_fn(|i| if exists(i) { word(p.positions, i) } else { NOWHERE });
    let weights = from_fn(|i| if exists(i) { f32::from_bits(word(p.weights, i)) } else { 0.0 });
    (rows, weights)
}

/// Eight results of a token.
///
/// # Safety
/// As [`CombineParams`] says; the columns exist.
#[inline(always)]
unsafe fn eight(p: &CombineParams, token: u32, column: u32) -> [f32; COLUMNS] {
    let mut sums = [0.0; COLUMNS];
    let columns = u64::from(p.columns);
    // SAFETY: the caller's.
    let mut next = unsafe { choices(p, token, 0) };
    let mut first = 0;
    while first < p.top_k {
        let (rows, weights) = next;
        // SAFETY: as above; the rows of slots that have any can be read.
        let values: [[f32; COLUMNS]; CHOICES] = unsafe {
            let values = from_fn(|i| {
                if rows[i] == NOWHERE || rows[i] == BAD {
                    [0.0; COLUMNS]
                } else {
                    load(p.from_type, p.from, u64::from(rows[i]) * columns + u64::from(column))
                }
            });
            // Found while these rows are on their way.
            next = choices(p, token, first + CHOICES as u32);
            values
        };
        for choice in 0..CHOICES {
            if rows[choice] == BAD {
                sums = [f32::NAN; COLUMNS];
            } else if rows[choice] != NOWHERE {
                for i in 0..COLUMNS {
                    sums[i] += weights[choice] * values[choice][i];
                }
                if weights[choice].is_nan() && p.status != 0 && column == 0 {
                    // SAFETY: the status word exists.
                    unsafe { memory::st_global_b32(p.status, STATUS_NAN_WEIGHT) };
                }
            }
        }
        first += CHOICES as u32;
    }
    if p.shared != 0 {
        // SAFETY: the token's elements exist.
        let shared =
            unsafe { load(p.out_type, p.shared, u64::from(token) * columns + u64::from(column)) };
        for i in 0..COLUMNS {
            sums[i] += shared[i];
        }
    }
    sums
}

/// Combining.
///
/// # Safety
/// As [`CombineParams`] says.
#[kernel(threads = THREADS)]
pub unsafe fn moe_combine(p: CombineParams) {
    release_stream();
    follow_stream();
    let column = thread::block_idx_y() * CombineParams::CTA_COLUMNS
        + thread::thread_idx_x() * COMBINE_COLUMNS;
    if column >= p.columns {
        return;
    }
    let mut token = thread::block_idx_x();
    while token < p.tokens {
        let element = u64::from(token) * u64::from(p.columns) + u64::from(column);
        // SAFETY: the token and the columns exist.
        unsafe {
            let results = eight(&p, token, column);
            store(p.out_type, p.out, element, results);
        }
        token += thread::grid_dim_x();
    }
}
