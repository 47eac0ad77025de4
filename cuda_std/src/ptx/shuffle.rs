//! Data exchange between the lanes of a warp.

use core::arch::asm;

/// `shfl.sync.bfly.b32 d, a, xor, 0x1f, mask;` ISA 9.7.9.6. All targets. All
/// lanes named in `mask`.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn shfl_sync_bfly_b32(value: u32, xor: u32, mask: u32) -> u32 {
    let result;
    // SAFETY: the caller vouches for the lanes; no nomem/readonly/pure, so
    // the exchange is not moved under a condition.
    unsafe {
        asm!(
            "shfl.sync.bfly.b32 {}, {}, {}, 0x1f, {};",
            out(reg32) result, in(reg32) value, in(reg32) xor, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}
