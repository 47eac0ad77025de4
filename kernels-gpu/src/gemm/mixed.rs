//! Mixed products: several of different sizes, each with a parameter block in memory. Both
//! architectures share this; the contract is [`fp4_formats::gemm::mixed`].
//!
//! The table in shared memory has, for each product, how many tiles precede it.

use cuda_std::ptx::{fence, marker, memory};
use cuda_std::warp;
use fp4_formats::gemm::Mixed;
use fp4_formats::gemm::mixed::block_stride;
use fp4_formats::tensor_map::TENSOR_MAP_BYTES;

/// Bytes of a word.
const WORD: u32 = size_of::<u32>() as u32;

/// The products of a launch, and the shared address of a CTA's table of them.
#[derive(Clone, Copy)]
pub struct MixedTable<'a> {
    /// The products.
    pub mixed: &'a Mixed,
    /// Shared address of the table.
    pub table: u32,
}

impl MixedTable<'_> {
    /// Copies the table, which the kernel before in the stream does not write.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the table behind a barrier.
    #[inline(always)]
    pub unsafe fn make(self) {
        let mut at = warp::lane_id();
        while at < self.mixed.products {
            // SAFETY: there is a word for each product, here and there.
            unsafe {
                let first = memory::ld_global_b32(self.mixed.firsts + u64::from(at * WORD));
                memory::st_shared_b32(self.table + at * WORD, first);
            }
            at += warp::LANES;
        }
        // SAFETY: the warp is whole.
        unsafe { warp::sync() };
    }

    /// The product of tile number `index`, and the tile's number there.
    #[inline(always)]
    pub fn locate(self, index: u32) -> (u32, u32) {
        self.mixed.locate(index, |product| {
            // SAFETY: the table is made, and has a word for each product.
            unsafe { memory::ld_shared_b32(self.table + product * WORD) }
        })
    }

    /// The parameter block of product `product`.
    ///
    /// # Safety
    /// There is such a product, and its block is of this type.
    #[inline(always)]
    pub unsafe fn block<'a, P>(self, product: u32) -> &'a P {
        let address = self.mixed.blocks + u64::from(product) * block_stride::<P>() as u64;
        // SAFETY: the host wrote the block before the launch, aligned, and nobody writes it since.
        unsafe { &*(address as *const P) }
    }
}

/// Makes tensor maps `first..end` of the block at `address` known to copies of this thread.
///
/// # Safety
/// There are such maps.
#[inline(always)]
pub unsafe fn acquire_maps(address: u64, [first, end]: [u32; 2]) {
    let mut index = first;
    while index < end {
        // SAFETY: the caller's.
        unsafe {
            let map = address + u64::from(index * TENSOR_MAP_BYTES as u32);
            fence::fence_proxy_tensormap_generic_acquire_sys(map);
        }
        // Not unrolled: this runs once for each product.
        index = marker::pin(index + 1);
    }
}
