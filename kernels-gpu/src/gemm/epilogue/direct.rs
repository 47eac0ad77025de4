//! The sink for floats in which threads store: eight neighbours at a time, along a row of the
//! result or down a column.

use cuda_std::ptx::{convert, memory};
use fp4_formats::FloatType;
use fp4_formats::gemm::{Problem, Sink};

use super::line::Line;
use super::{COLUMNS, element, element_bytes, is_f32};

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
        if is_f32(sink) {
            return Self::Single(results.map(f32::to_bits));
        }
        Self::Half(halves(sink, results))
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

    /// Stores the first `exist` results: element `element` of `out`, and every `step`-th element
    /// from it on.
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

/// Eight results in f16 or bf16, the first one lowest.
#[inline(always)]
fn halves(sink: &Sink, results: [f32; COLUMNS]) -> [u32; COLUMNS / 2] {
    let pair = |i: usize| (results[2 * i + 1], results[2 * i]);
    if sink.out_type == FloatType::Bf16 as u32 {
        core::array::from_fn(|i| convert::cvt_rn_bf16x2_f32(pair(i).0, pair(i).1))
    } else {
        core::array::from_fn(|i| convert::cvt_rn_f16x2_f32(pair(i).0, pair(i).1))
    }
}

/// Whether eight elements of every row start at a multiple of 16 bytes, at columns that are a
/// multiple of 8.
#[inline(always)]
pub fn rows_aligned(sink: &Sink, sizes: &Problem) -> bool {
    let strides = u64::from(sizes.n) | sink.out_stride;
    (sink.out | (strides * element_bytes(sink))).is_multiple_of(STORE)
}

/// Stores a line of eight results as far as they exist. Down columns, neighbouring lanes store
/// neighbouring elements. `sizes` are the result's, here and below.
///
/// # Safety
/// They are inside the result.
#[inline(always)]
pub unsafe fn store_line(sink: &Sink, sizes: &Problem, line: Line, results: [f32; COLUMNS]) {
    let (step, exist) = (line.step(sizes), line.exist);
    let element = element(sink, sizes.n, line.matrix, line.place);
    let bits = Bits::of(sink, results);
    let aligned = (sink.out + element * bits.bytes()).is_multiple_of(STORE);
    // SAFETY: those that exist are inside the result.
    unsafe {
        if step == 1 && exist >= COLUMNS as u32 && aligned {
            bits.store(sink.out, element);
        } else {
            bits.store_each(sink.out, element, step.into(), exist);
        }
    }
}

/// Stores the eight results of row `m` from column `n` on. All exist, [`rows_aligned`] holds, and
/// `n` is a multiple of 8.
///
/// # Safety
/// They are inside matrix `matrix` of the result.
#[inline(always)]
pub unsafe fn store_aligned_row(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    place: [u32; 2],
    results: [f32; COLUMNS],
) {
    let element = element(sink, sizes.n, matrix, place);
    // `Bits` would keep registers for both kinds. SAFETY: all exist, at multiples of 16 bytes.
    unsafe {
        if is_f32(sink) {
            Bits::Single(results.map(f32::to_bits)).store(sink.out, element);
        } else {
            Bits::Half(halves(sink, results)).store(sink.out, element);
        }
    }
}

/// Stores the result of row `m`, column `n`.
///
/// # Safety
/// It is inside matrix `matrix` of the result.
#[inline(always)]
pub unsafe fn store_element(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    place: [u32; 2],
    result: f32,
) {
    let element = element(sink, sizes.n, matrix, place);
    // SAFETY: the element is inside the result.
    unsafe {
        if is_f32(sink) {
            memory::st_global_b32(sink.out + element * element_bytes(sink), result.to_bits());
        } else {
            store_half(sink, element, result);
        }
    }
}

/// Stores element `element` of a result of 16 bits.
///
/// # Safety
/// It is inside the result.
#[inline(always)]
pub unsafe fn store_half(sink: &Sink, element: u64, result: f32) {
    let [half, ..] = halves(sink, [result, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let address = sink.out + element * u64::from(FloatType::F16.bytes());
    // SAFETY: the element is inside the result.
    unsafe { memory::st_global_b16(address, half as u16) };
}
