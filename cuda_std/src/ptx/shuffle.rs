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
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the shuffle is not moved under a condition.
    unsafe {
        asm!(
            "shfl.sync.bfly.b32 {}, {}, {}, 0x1f, {};",
            out(reg32) result, in(reg32) value, in(reg32) xor, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// `shfl.sync.idx.b32 d, a, lane, 0x1f, mask;` ISA 9.7.9.6. All targets. All lanes named
/// in `mask`.
///
/// # Safety
/// Every lane named in `mask`, the caller and `lane` among them, reaches this same call.
#[inline(always)]
pub unsafe fn shfl_sync_idx_b32(value: u32, lane: u32, mask: u32) -> u32 {
    let result;
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the shuffle is not moved under a condition.
    unsafe {
        asm!(
            "shfl.sync.idx.b32 {}, {}, {}, 0x1f, {};",
            out(reg32) result, in(reg32) value, in(reg32) lane, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// `shfl.sync.up.b32 d, a, distance, 0, mask;` ISA 9.7.9.6. All targets. All lanes named in
/// `mask`. Lanes below `distance` get their own value.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call, and for each of them
/// the lane `distance` below it is named, if there is one.
#[inline(always)]
pub unsafe fn shfl_sync_up_b32(value: u32, distance: u32, mask: u32) -> u32 {
    let result;
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the shuffle is not moved under a condition.
    unsafe {
        asm!(
            "shfl.sync.up.b32 {}, {}, {}, 0, {};",
            out(reg32) result, in(reg32) value, in(reg32) distance, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// `redux.sync.max.u32 d, a, mask;` ISA 9.7.13.7. sm_80+. All lanes named in
/// `mask`. The largest of their values, returned to each of them.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn redux_sync_max_u32(value: u32, mask: u32) -> u32 {
    let result;
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the shuffle is not moved under a condition.
    unsafe {
        asm!(
            "redux.sync.max.u32 {}, {}, {};",
            out(reg32) result, in(reg32) value, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// `elect.sync _|p, mask;` ISA 9.7.13.14. sm_90+. All lanes named in `mask`. True in
/// one of them, which is the same one in each call.
///
/// The result is a predicate, a class that inline assembly cannot name, so the wrapper
/// includes a `selp`.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn elect_sync(mask: u32) -> bool {
    let leader: u32;
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the election is not moved under a condition.
    unsafe {
        asm!(
            "{{ .reg .pred leader;",
            "elect.sync _|leader, {1};",
            "selp.b32 {0}, 1, 0, leader; }}",
            out(reg32) leader, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    leader != 0
}

/// `match.any.sync.b32 d, a, mask;` ISA 9.7.13.9. sm_70+. All lanes named in `mask`. The lanes that
/// have the same value.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn match_any_sync_b32(value: u32, mask: u32) -> u32 {
    let result;
    // SAFETY: the caller guarantees the lanes; without nomem, readonly
    // and pure, the match is not moved under a condition.
    unsafe {
        asm!(
            "match.any.sync.b32 {}, {}, {};",
            out(reg32) result, in(reg32) value, in(reg32) mask,
            options(nostack, preserves_flags),
        );
    }
    result
}
