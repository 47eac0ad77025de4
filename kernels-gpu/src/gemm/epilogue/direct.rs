//! The sink for floats in which threads store: eight neighbours at a time, along a row of the
//! result or down a column.

use cuda_std::ptx::{convert, memory};
use fp4_formats::FloatType;
use fp4_formats::gemm::{Problem, Sink};

use super::{COLUMNS, element, element_bytes};

/// Bytes of the widest store.
const STORE: u64 = 16;

/// Eight results in the bits of the result's type, the first one lowest.
#[derive(Clone, Copy)]
pub enum Bits {
    /// f16 or bf16.
    Half([u32; COLUMNS / 2]),
    /// f32.
    Single([u32; COLUMNS]),
}

impl Bits {
    /// Rounds `results` to the type of the result.
    #[inline(always)]
    pub fn of(sink: &Sink, results: [f32; COLUMNS]) -> Self {
        if sink.out_type == FloatType::F32 as u32 {
            return Self::Single(results.map(f32::to_bits));
        }
        let pair = |i: usize| (results[2 * i + 1], results[2 * i]);
        Self::Half(if sink.out_type == FloatType::Bf16 as u32 {
            core::array::from_fn(|i| convert::cvt_rn_bf16x2_f32(pair(i).0, pair(i).1))
        } else {
            core::array::from_fn(|i| convert::cvt_rn_f16x2_f32(pair(i).0, pair(i).1))
        })
    }

    /// Bytes of an element.
    #[inline(always)]
    fn bytes(self) -> u64 {
        match self {
            Self::Half(_) => FloatType::F16.bytes().into(),
            Self::Single(_) => FloatType::F32.bytes().into(),
        }
    }

    /// Stores all eight as the elements from `element` of `out` on.
    ///
    /// # Safety
    /// Their address is a multiple of 16, and all eight are inside the result.
    #[inline(always)]
    unsafe fn store(self, out: u64, element: u64) {
        let address = out + element * self.bytes();
        // SAFETY: aligned and inside, as the caller says.
        unsafe {
            match self {
                Self::Half(pairs) => memory::st_global_v4_b32(address, pairs),
                Self::Single([a, b, c, d, e, f, g, h]) => {
                    memory::st_global_v4_b32(address, [a, b, c, d]);
                    memory::st_global_v4_b32(address + STORE, [e, f, g, h]);
                }
            }
        }
    }

    /// Stores the first `exist` as element `element` of `out` and those `step` elements apart.
    ///
    /// # Safety
    /// They are inside the result.
    #[inline(always)]
    unsafe fn store_each(self, out: u64, element: u64, step: u64, exist: u32) {
        let mut address = out + element * self.bytes();
        for i in 0..COLUMNS {
            if (i as u32) < exist {
                // SAFETY: this element is inside the result.
                unsafe {
                    match self {
                        Self::Half(pairs) => {
                            let half = (pairs[i / 2] >> (16 * (i % 2))) as u16;
                            memory::st_global_b16(address, half);
                        }
                        Self::Single(bits) => memory::st_global_b32(address, bits[i]),
                    }
                }
            }
            address += step * self.bytes();
        }
    }
}

/// Whether eight elements of every row start at a multiple of 16 bytes, at columns that are a
/// multiple of 8.
#[inline(always)]
pub fn rows_aligned(sink: &Sink, problem: &Problem) -> bool {
    let strides = u64::from(problem.n) | sink.out_stride;
    (sink.out | (strides * element_bytes(sink))).is_multiple_of(STORE)
}

/// Stores the results of row `m`, columns `n..`, of which the first `exist` exist.
///
/// # Safety
/// They are inside matrix `matrix` of the result.
#[inline(always)]
pub unsafe fn store_row(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    place: [u32; 2],
    exist: u32,
    results: [f32; COLUMNS],
) {
    let element = element(sink, problem.n, matrix, place);
    let bits = Bits::of(sink, results);
    let aligned = (sink.out + element * bits.bytes()).is_multiple_of(STORE);
    // SAFETY: those that exist are inside the result.
    unsafe {
        if exist >= COLUMNS as u32 && aligned {
            bits.store(sink.out, element);
        } else {
            bits.store_each(sink.out, element, 1, exist);
        }
    }
}

/// [`store_row`] where all exist and [`rows_aligned`] holds; `n` is a multiple of 8.
///
/// # Safety
/// As [`store_row`].
#[inline(always)]
pub unsafe fn store_aligned_row<const N: usize>(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    place: [u32; 2],
    results: [f32; N],
) {
    const { assert!(N.is_multiple_of(COLUMNS)) };
    let element = element(sink, problem.n, matrix, place);
    let (parts, _) = results.as_chunks();
    for i in 0..N / COLUMNS {
        // SAFETY: all exist, at multiples of 16 bytes.
        unsafe { Bits::of(sink, parts[i]).store(sink.out, element + (i * COLUMNS) as u64) };
    }
}

/// Stores the results of column `n`, rows `m..`, of which the first `exist` exist. Lanes with
/// neighbouring columns store neighbouring elements.
///
/// # Safety
/// They are inside matrix `matrix` of the result.
#[inline(always)]
pub unsafe fn store_column<const N: usize>(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    place: [u32; 2],
    exist: u32,
    results: [f32; N],
) {
    const { assert!(N.is_multiple_of(COLUMNS)) };
    let step = u64::from(problem.n);
    let mut element = element(sink, problem.n, matrix, place);
    let (parts, _) = results.as_chunks();
    for i in 0..N / COLUMNS {
        let exist = exist.saturating_sub((i * COLUMNS) as u32);
        // SAFETY: those that exist are inside the result.
        unsafe { Bits::of(sink, parts[i]).store_each(sink.out, element, step, exist) };
        element += step * COLUMNS as u64;
    }
}
