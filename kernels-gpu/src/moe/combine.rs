//! Combining: the rows of a token's slots times their weights, added in the order of the slots.
//!
//! # Contract
//! The parameters are [`CombineParams`]; CTAs of [`THREADS`] threads, [`CombineParams::row_ctas`] of them
//! along `y` for the columns of a token, any number along `x`, which take tokens in turn.
//!
//! # Arithmetic
//! Each product is rounded to f32, and so is each sum; `shared` is added last, in f32 as well, and the sum is
//! rounded to the result's type once. Results depend on nothing but the operands.

use core::array::from_fn;

use cuda_std::ptx::{convert, memory};
use cuda_std::{kernel, thread};
use fp4_formats::FloatType;
use fp4_formats::moe::{
    BAD, COMBINE_COLUMNS, CombineParams, NOWHERE, STATUS_BAD_ID, STATUS_NAN_WEIGHT, THREADS,
};

use crate::pipeline::{follow_stream, release_stream};

/// Elements that a thread makes at a time.
const COLUMNS: usize = COMBINE_COLUMNS as usize;

/// The bytes of eight elements, those of 16 bits in the first half.
type Raw = [[u32; 4]; 2];

/// Eight elements of a type from `element` of `array` on; zeros where they do not `exist`.
///
/// # Safety
/// If they do, they are at a multiple of 16 bytes.
#[inline(always)]
unsafe fn load(of: u32, exist: bool, array: u64, element: u64) -> Raw {
    // SAFETY: as the caller says.
    unsafe {
        let wide = of == FloatType::F32 as u32;
        let address = array + element * if wide { 4 } else { 2 };
        [
            memory::ld_global_v4_b32_if(exist, address),
            memory::ld_global_v4_b32_if(exist && wide, address + 16),
        ]
    }
}

/// The values of eight elements.
#[inline(always)]
fn values(of: u32, [low, high]: Raw) -> [f32; COLUMNS] {
    if of == FloatType::F32 as u32 {
        return from_fn(|i| f32::from_bits(if i < 4 { low[i] } else { high[i - 4] }));
    }
    from_fn(|i| {
        let half = (low[i / 2] >> (16 * (i % 2))) as u16;
        if of == FloatType::F16 as u32 {
            convert::cvt_f32_f16(half)
        } else {
            f32::from_bits(u32::from(half) << 16)
        }
    })
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
const CHOICES: usize = 8;

/// Choices of a token from one on: their rows and weights; [`NOWHERE`] and 0 behind the last.
#[derive(Clone, Copy)]
struct Choices {
    rows: [u32; CHOICES],
    weights: [f32; CHOICES],
}

/// Loads choices from `first` on. A token behind the last one has none.
///
/// # Safety
/// As [`CombineParams`] says.
#[inline(always)]
unsafe fn choices(p: &CombineParams, token: u32, first: u32) -> Choices {
    let last = p.tokens * p.top_k - 1;
    let exists = |i: usize| token < p.tokens && first + (i as u32) < p.top_k;
    // Past the last choice, it is loaded again: branches would wait for each load.
    let word = |array: u64, i: usize| {
        let slot = (token * p.top_k + first + i as u32).min(last);
        // SAFETY: the slot exists.
        unsafe { memory::ld_global_b32(array + u64::from(slot) * 4) }
    };
    let rows: [u32; CHOICES] = from_fn(|i| word(p.positions, i));
    let weights: [u32; CHOICES] = from_fn(|i| word(p.weights, i));
    let row = |i: usize| {
        if !p.chosen.is_given() {
            return rows[i];
        }
        let expert = p.chosen.experts.local(rows[i]);
        let is_here = expert < p.chosen.experts.count;
        if is_here { token * p.top_k + first + i as u32 } else { expert }
    };
    Choices {
        rows: from_fn(|i| if exists(i) { row(i) } else { NOWHERE }),
        weights: from_fn(|i| if exists(i) { f32::from_bits(weights[i]) } else { 0.0 }),
    }
}

/// Eight results of a token. `next` are its first choices, and become those of the CTA's next token.
///
/// # Safety
/// As [`CombineParams`] says; the columns exist.
#[inline(always)]
unsafe fn eight(p: &CombineParams, token: u32, column: u32, next: &mut Choices) -> [f32; COLUMNS] {
    let mut sums = [0.0; COLUMNS];
    let columns = u64::from(p.columns);
    let mut first = 0;
    while first < p.top_k {
        let Choices { rows, weights } = *next;
        // SAFETY: as above; the rows of slots that have any can be read.
        let raw: [Raw; CHOICES] = unsafe {
            let raw = from_fn(|i| {
                let exists = rows[i] != NOWHERE && rows[i] != BAD;
                let element = u64::from(rows[i]) * columns + u64::from(column);
                load(p.from_type, exists, p.from, element)
            });
            // Found while these rows are on their way.
            let after = first + CHOICES as u32;
            let following = (token + thread::grid_dim_x(), 0);
            let (token, first) = if after < p.top_k { (token, after) } else { following };
            *next = choices(p, token, first);
            raw
        };
        for choice in 0..CHOICES {
            if rows[choice] == BAD {
                sums = [f32::NAN; COLUMNS];
                // Otherwise routing says so.
                if p.chosen.is_given() && p.status != 0 && column == 0 {
                    // SAFETY: the status word exists.
                    unsafe { memory::st_global_b32(p.status, STATUS_BAD_ID) };
                }
            } else if rows[choice] != NOWHERE {
                let values = values(p.from_type, raw[choice]);
                for i in 0..COLUMNS {
                    sums[i] += weights[choice] * values[i];
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
        let shared = unsafe {
            let element = u64::from(token) * columns + u64::from(column);
            values(p.shared_type, load(p.shared_type, true, p.shared, element))
        };
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
    if p.settled == 0 {
        follow_stream();
    }
    let column = thread::block_idx_y() * CombineParams::CTA_COLUMNS
        + thread::thread_idx_x() * COMBINE_COLUMNS;
    let mut token = thread::block_idx_x();
    // SAFETY: a token of the launch's.
    let mut next = unsafe { choices(&p, token, 0) };
    if p.settled != 0 {
        follow_stream();
    }
    if column >= p.columns {
        return;
    }
    while token < p.tokens {
        let element = u64::from(token) * u64::from(p.columns) + u64::from(column);
        // SAFETY: the token and the columns exist.
        unsafe {
            let results = eight(&p, token, column, &mut next);
            store(p.out_type, p.out, element, results);
        }
        token += thread::grid_dim_x();
    }
}
