//! A kernel that only reads. Its time is the ceiling with which memory-bound kernels that
//! read as many bytes are compared.

use cuda_std::{kernel, ptx::memory, thread};
use fp4_formats::ceiling::{LOADS_IN_FLIGHT, ReadParams, SENTINEL, THREADS};

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
