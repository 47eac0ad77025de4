//! A kernel that only reads, and one that only multiplies. Their times are the ceilings with which kernels that are
//! bound by memory or by products of `mma.sync` are compared.

use cuda_std::ptx::{marker, memory, mma};
use cuda_std::{kernel, thread};
use fp4_formats::ceiling::{
    LOADS_IN_FLIGHT, PRODUCTS_IN_FLIGHT, ProductsParams, ReadParams, SENTINEL, THREADS,
};

/// XORs all 16-byte words of the buffer. A thread stores its result if it equals [`SENTINEL`],
/// so that the compiler does not remove the loads.
///
/// # Safety
/// The buffers are those that [`ReadParams`] describes, and `bytes` is a multiple of 16.
#[kernel(threads = THREADS, min_blocks = 4)]
pub unsafe fn ceiling_read(params: ReadParams) {
    let words = params.bytes / 16;
    let stride = u64::from(thread::grid_dim_x()) * u64::from(THREADS);
    let mut index =
        u64::from(thread::block_idx_x()) * u64::from(THREADS) + u64::from(thread::thread_idx_x());
    let mut folded = 0;
    while index + stride * (LOADS_IN_FLIGHT as u64 - 1) < words {
        let mut loaded = [[0; 4]; LOADS_IN_FLIGHT];
        for (i, word) in loaded.iter_mut().enumerate() {
            // SAFETY: the last of these indices is below `words`.
            *word = unsafe { load(&params, index + stride * i as u64) };
        }
        for word in loaded {
            folded ^= fold(word);
        }
        index += stride * LOADS_IN_FLIGHT as u64;
    }
    while index < words {
        // SAFETY: `index` is below `words`.
        folded ^= fold(unsafe { load(&params, index) });
        index += stride;
    }
    if folded == SENTINEL {
        // SAFETY: `out` is the address of four writable bytes.
        unsafe { memory::st_global_b32(params.out, folded) };
    }
}

/// Multiplies f16 operands in registers, the sums in f32. Operands are finite and differ by lane, since products of
/// zeros take less power.
///
/// # Safety
/// `out` is the address of four writable bytes.
#[kernel(threads = THREADS, min_blocks = 2)]
pub unsafe fn ceiling_products(params: ProductsParams) {
    let seed = thread::thread_idx_x().wrapping_mul(0x9E37_79B9);
    let operand = |turn: u32| marker::pin(seed.rotate_left(turn) & FINITE);
    let a = [0, 5, 11, 17].map(operand);
    let b = [3, 23].map(operand);
    let mut sums = [[0.0; 4]; PRODUCTS_IN_FLIGHT];
    let mut left = params.rounds;
    while left > 0 {
        for sums in &mut sums {
            // SAFETY: all threads of the warp are here.
            unsafe { mma::mma_m16n8k16_f32_f16_f16(sums, a, b) };
        }
        left -= 1;
    }
    let folded = sums.iter().flatten().fold(0, |folded, sum| folded ^ sum.to_bits());
    if folded == SENTINEL {
        // SAFETY: the caller's.
        unsafe { memory::st_global_b32(params.out, folded) };
    }
}

/// Bits of two f16 values below 2 in magnitude.
const FINITE: u32 = 0xBFFF_BFFF;

/// # Safety
/// `index` is below `params.bytes / 16`.
#[inline(always)]
unsafe fn load(params: &ReadParams, index: u64) -> [u32; 4] {
    // SAFETY: the word is inside the buffer, which is 16-byte aligned.
    unsafe { memory::ld_global_nc_no_allocate_v4_b32(params.data + index * 16) }
}

#[inline(always)]
fn fold([a, b, c, d]: [u32; 4]) -> u32 {
    a ^ b ^ c ^ d
}
