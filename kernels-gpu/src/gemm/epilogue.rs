//! From f32 sums to results: factors, bias, conversion, store.

use cuda_std::ptx::{convert, memory};
use fp4_formats::FloatType;
use fp4_formats::gemm::{Epilogue, Problem};

/// Neighbouring columns that a thread stores together: 16 bytes of 16-bit results.
pub const COLUMNS: usize = 8;

/// Bytes of the widest store.
const STORE: u64 = 16;

/// Applies factors and bias to the sums of row `m`, columns `n..n + 8`, and stores those
/// that exist. `unit` is the value of a sum's 1.
///
/// # Safety
/// `m` is a row of batch entry `batch` of `problem`; the pointers of `epilogue` are what its
/// documentation says for this problem.
#[inline(always)]
pub unsafe fn store(
    epilogue: &Epilogue,
    problem: &Problem,
    unit: f32,
    batch: u32,
    [m, n]: [u32; 2],
    sums: [f32; COLUMNS],
) {
    if n >= problem.n {
        return;
    }
    let exist = problem.n - n;
    // SAFETY: row `m` and the columns that exist are inside the vectors.
    let results = unsafe { apply(epilogue, unit, [m, n], exist, sums) };
    let element =
        u64::from(batch) * epilogue.out_stride + u64::from(m) * u64::from(problem.n) + u64::from(n);
    if epilogue.out_type == FloatType::F32 as u32 {
        let address = epilogue.out + element * u64::from(FloatType::F32.bytes());
        // SAFETY: the results that exist are inside the output.
        unsafe { store_wide(address, exist, results) }
    } else {
        let address = epilogue.out + element * u64::from(FloatType::F16.bytes());
        let bf16 = epilogue.out_type == FloatType::Bf16 as u32;
        // SAFETY: as above.
        unsafe { store_narrow(address, exist, bf16, results) }
    }
}

/// Whether 16 bytes of every row start at a multiple of 16, at columns that are a multiple
/// of 8.
#[inline(always)]
pub fn rows_aligned(epilogue: &Epilogue, problem: &Problem) -> bool {
    let bytes = element_bytes(epilogue);
    let strides = u64::from(problem.n) | epilogue.out_stride;
    (epilogue.out | (strides * bytes)).is_multiple_of(STORE)
}

/// [`store`] of columns that all exist, where there are neither column factors nor bias and
/// [`rows_aligned`] holds; `n` is a multiple of 8.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_whole_row<const N: usize>(
    epilogue: &Epilogue,
    problem: &Problem,
    unit: f32,
    batch: u32,
    [m, n]: [u32; 2],
    sums: [f32; N],
) {
    const { assert!(N.is_multiple_of(COLUMNS)) };
    // SAFETY: a row of the vector.
    let factor = unsafe { row_factor(epilogue, m) };
    let address =
        epilogue.out + element(epilogue, problem, batch, [m, n]) * element_bytes(epilogue);
    let results = sums.map(|sum| sum * unit * factor);
    // SAFETY: all exist, aligned.
    unsafe {
        if epilogue.out_type == FloatType::F32 as u32 {
            for i in 0..N / 4 {
                let word = core::array::from_fn(|j| results[4 * i + j].to_bits());
                memory::st_global_v4_b32(address + STORE * i as u64, word);
            }
        } else if epilogue.out_type == FloatType::Bf16 as u32 {
            store_pairs(address, results, convert::cvt_rn_bf16x2_f32);
        } else {
            store_pairs(address, results, convert::cvt_rn_f16x2_f32);
        }
    }
}

/// Stores neighbouring 16-bit results, `pair` of the higher and the lower of two.
///
/// # Safety
/// `address` is a multiple of 16 and names room for `N`, a multiple of 8.
#[inline(always)]
unsafe fn store_pairs<const N: usize>(
    address: u64,
    results: [f32; N],
    pair: impl Fn(f32, f32) -> u32,
) {
    for i in 0..N / COLUMNS {
        let first = i * COLUMNS;
        let word =
            core::array::from_fn(|j| pair(results[first + 2 * j + 1], results[first + 2 * j]));
        // SAFETY: the caller's.
        unsafe { memory::st_global_v4_b32(address + STORE * i as u64, word) };
    }
}

/// Applies factors and bias to the sums of column `n`, rows `m..`, and stores those that
/// exist. Lanes with neighbouring columns store neighbouring elements.
///
/// # Safety
/// As [`store`]; `n` is a column.
#[inline(always)]
pub unsafe fn store_column<const ROWS: usize>(
    epilogue: &Epilogue,
    problem: &Problem,
    unit: f32,
    batch: u32,
    [m, n]: [u32; 2],
    sums: [f32; ROWS],
) {
    // SAFETY: a column of the vectors.
    let results = unsafe { column_results(epilogue, problem, unit, [m, n], sums) };
    let exist = problem.m - m;
    // SAFETY: those that exist are inside the result.
    unsafe { store_down(epilogue, problem, batch, [m, n], exist, results) };
}

/// What [`store_column`] stores, as f32.
///
/// # Safety
/// Column `n` exists, and row `m`.
#[inline(always)]
pub unsafe fn column_results<const ROWS: usize>(
    epilogue: &Epilogue,
    problem: &Problem,
    unit: f32,
    [m, n]: [u32; 2],
    sums: [f32; ROWS],
) -> [f32; ROWS] {
    // SAFETY: a column of the vectors.
    let (column, added) = unsafe { column_factors(epilogue, n) };
    let exist = problem.m - m;
    let mut results = sums.map(|sum| sum * unit * epilogue.alpha);
    if epilogue.row_factors != 0 {
        for i in 0..ROWS {
            if (i as u32) < exist {
                // SAFETY: this row exists.
                results[i] = sums[i] * unit * unsafe { row_factor(epilogue, m + i as u32) };
            }
        }
    }
    results.map(|result| result * column + added)
}

/// [`store_column`] of rows that all exist, where there are no row factors.
///
/// # Safety
/// As [`store_column`].
#[inline(always)]
pub unsafe fn store_whole_column<const ROWS: usize>(
    epilogue: &Epilogue,
    problem: &Problem,
    unit: f32,
    batch: u32,
    [m, n]: [u32; 2],
    sums: [f32; ROWS],
) {
    // SAFETY: a column of the vectors.
    let (column, added) = unsafe { column_factors(epilogue, n) };
    let results = sums.map(|sum| sum * unit * epilogue.alpha * column + added);
    // SAFETY: all exist.
    unsafe { store_down(epilogue, problem, batch, [m, n], ROWS as u32, results) };
}

/// Stores the first `exist` results of column `n`, rows `m..`.
///
/// # Safety
/// They are inside the result.
#[inline(always)]
unsafe fn store_down<const ROWS: usize>(
    epilogue: &Epilogue,
    problem: &Problem,
    batch: u32,
    [m, n]: [u32; 2],
    exist: u32,
    results: [f32; ROWS],
) {
    let bytes = element_bytes(epilogue);
    let step = u64::from(problem.n) * bytes;
    let first = epilogue.out + element(epilogue, problem, batch, [m, n]) * bytes;
    // SAFETY: those that exist are inside the result.
    unsafe {
        if epilogue.out_type == FloatType::F32 as u32 {
            down(first, step, exist, results, |at, result| {
                memory::st_global_b32(at, result.to_bits())
            });
        } else if epilogue.out_type == FloatType::Bf16 as u32 {
            down(first, step, exist, results, |at, result| {
                memory::st_global_b16(at, convert::cvt_rn_bf16_f32(result))
            });
        } else {
            down(first, step, exist, results, |at, result| {
                memory::st_global_b16(at, convert::cvt_rn_f16_f32(result))
            });
        }
    }
}

/// Calls `store` with the address and the value of each of the first `exist` results,
/// `step` bytes apart.
#[inline(always)]
fn down<const ROWS: usize>(
    first: u64,
    step: u64,
    exist: u32,
    results: [f32; ROWS],
    store: impl Fn(u64, f32),
) {
    let mut address = first;
    for i in 0..ROWS {
        if (i as u32) < exist {
            store(address, results[i]);
        }
        address += step;
    }
}

/// Index of element `[m, n]` of batch entry `batch` of the result.
#[inline(always)]
pub fn element(epilogue: &Epilogue, problem: &Problem, batch: u32, [m, n]: [u32; 2]) -> u64 {
    u64::from(batch) * epilogue.out_stride + u64::from(m) * u64::from(problem.n) + u64::from(n)
}

/// Bytes of an element of the result.
#[inline(always)]
fn element_bytes(epilogue: &Epilogue) -> u64 {
    if epilogue.out_type == FloatType::F32 as u32 { 4 } else { 2 }
}

/// alpha times row `m`'s factor.
///
/// # Safety
/// The row exists.
#[inline(always)]
pub unsafe fn row_factor(epilogue: &Epilogue, m: u32) -> f32 {
    if epilogue.row_factors == 0 {
        return epilogue.alpha;
    }
    let address = epilogue.row_factors + u64::from(m) * 4;
    // SAFETY: a row of the vector.
    epilogue.alpha * f32::from_bits(unsafe { memory::ld_global_nc_b32(address) })
}

/// Column `n`'s factor, and what is added to it.
///
/// # Safety
/// The column exists.
#[inline(always)]
pub unsafe fn column_factors(epilogue: &Epilogue, n: u32) -> (f32, f32) {
    let (mut factor, mut added) = (1.0, 0.0);
    // SAFETY: a column of the vectors.
    unsafe {
        if epilogue.column_factors != 0 {
            let address = epilogue.column_factors + u64::from(n) * 4;
            factor = f32::from_bits(memory::ld_global_nc_b32(address));
        }
        if epilogue.bias != 0 {
            added = bias(epilogue, n);
        }
    }
    (factor, added)
}

/// `alpha * row * column * sum + bias` of the columns that exist: what [`store`] stores, as
/// f32.
///
/// # Safety
/// As [`store`]; `exist` columns follow `n`.
#[inline(always)]
pub unsafe fn apply(
    epilogue: &Epilogue,
    unit: f32,
    [m, n]: [u32; 2],
    exist: u32,
    mut sums: [f32; COLUMNS],
) -> [f32; COLUMNS] {
    let mut factor = epilogue.alpha;
    if epilogue.row_factors != 0 {
        let address = epilogue.row_factors + u64::from(m) * 4;
        // SAFETY: a row of the vector.
        factor *= f32::from_bits(unsafe { memory::ld_global_nc_b32(address) });
    }
    for i in 0..COLUMNS {
        sums[i] = sums[i] * unit * factor;
    }
    if epilogue.column_factors != 0 {
        for i in 0..COLUMNS as u32 {
            if i < exist {
                let address = epilogue.column_factors + u64::from(n + i) * 4;
                // SAFETY: a column of the vector.
                sums[i as usize] *= f32::from_bits(unsafe { memory::ld_global_nc_b32(address) });
            }
        }
    }
    if epilogue.bias != 0 {
        for i in 0..COLUMNS as u32 {
            if i < exist {
                // SAFETY: a column of the vector.
                sums[i as usize] += unsafe { bias(epilogue, n + i) };
            }
        }
    }
    sums
}

/// Element `n` of the bias.
///
/// # Safety
/// It exists.
#[inline(always)]
unsafe fn bias(epilogue: &Epilogue, n: u32) -> f32 {
    // SAFETY: the caller's; the vector has elements of its type.
    unsafe {
        if epilogue.bias_type == FloatType::F32 as u32 {
            f32::from_bits(memory::ld_global_nc_b32(epilogue.bias + u64::from(n) * 4))
        } else {
            let half = memory::ld_global_nc_u16(epilogue.bias + u64::from(n) * 2);
            if epilogue.bias_type == FloatType::F16 as u32 {
                convert::cvt_f32_f16(half)
            } else {
                f32::from_bits(u32::from(half) << 16)
            }
        }
    }
}

/// # Safety
/// `exist` elements of 4 bytes, at most 8 of them, at `address` are writable.
#[inline(always)]
unsafe fn store_wide(address: u64, exist: u32, results: [f32; COLUMNS]) {
    let bits = results.map(f32::to_bits);
    if exist >= COLUMNS as u32 && address.is_multiple_of(STORE) {
        let [a, b, c, d, e, f, g, h] = bits;
        // SAFETY: all eight exist, and both addresses are aligned.
        unsafe {
            memory::st_global_v4_b32(address, [a, b, c, d]);
            memory::st_global_v4_b32(address + STORE, [e, f, g, h]);
        }
        return;
    }
    for i in 0..COLUMNS {
        if (i as u32) < exist {
            // SAFETY: this one exists.
            unsafe { memory::st_global_b32(address + 4 * i as u64, bits[i]) }
        }
    }
}

/// # Safety
/// `exist` elements of 2 bytes, at most 8 of them, at `address` are writable.
#[inline(always)]
unsafe fn store_narrow(address: u64, exist: u32, bf16: bool, results: [f32; COLUMNS]) {
    let mut pairs = [0; COLUMNS / 2];
    for i in 0..COLUMNS / 2 {
        let (low, high) = (results[2 * i], results[2 * i + 1]);
        pairs[i] = if bf16 {
            convert::cvt_rn_bf16x2_f32(high, low)
        } else {
            convert::cvt_rn_f16x2_f32(high, low)
        };
    }
    if exist >= COLUMNS as u32 && address.is_multiple_of(STORE) {
        // SAFETY: all eight exist, and the address is aligned.
        unsafe { memory::st_global_v4_b32(address, pairs) };
        return;
    }
    for i in 0..COLUMNS {
        if (i as u32) < exist {
            let half = (pairs[i / 2] >> (16 * (i % 2))) as u16;
            // SAFETY: this one exists.
            unsafe { memory::st_global_b16(address + 2 * i as u64, half) }
        }
    }
}
