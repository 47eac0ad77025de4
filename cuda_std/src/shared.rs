//! Shared memory, by its 32-bit address in the shared window.
//!
//! Rust has no address spaces: a reference to shared memory would be a generic
//! pointer, and its loads would be generic loads. Kernels therefore use 32-bit shared
//! addresses with the functions `ld_shared_*` and `st_shared_*` of [`crate::ptx::memory`].

use crate::ptx;

/// Start of the CTA's dynamic shared memory.
///
/// `ALIGN` is the alignment of the PTX symbol. `cuda_builder` declares the symbol with the
/// largest alignment that any kernel asks for.
#[inline(always)]
pub fn dynamic<const ALIGN: u32>() -> u32 {
    const { assert!(ALIGN.is_power_of_two() && ALIGN <= 1024) };
    ptx::marker::dynamic_shared::<ALIGN>()
}

/// Start of a statically allocated buffer of `BYTES` bytes.
///
/// Calls with the same `ID` name the same buffer. `cuda_builder` declares it
/// once and refuses two sizes or alignments for one `ID`. It takes shared memory only in
/// kernels that use it.
#[inline(always)]
pub fn fixed<const ID: u32, const BYTES: u32, const ALIGN: u32>() -> u32 {
    const { assert!(ALIGN.is_power_of_two() && ALIGN <= 1024 && BYTES > 0) };
    ptx::marker::static_shared::<ID, BYTES, ALIGN>()
}
