//! Parameter blocks as bytes: a kernel's `.param` space holds what memory holds.

use crate::{Divisor, TensorMap};

/// A structure whose bytes in memory, on a little-endian machine, are those of a kernel's parameter block.
///
/// # Safety
/// It has the C layout, its fields fill it without padding, and all of them are integers and floats.
pub unsafe trait Block: Copy {}

/// The block as the kernel's `.param` space holds it.
pub const fn bytes<B: Block>(block: &B) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "GPUs are little-endian, as their hosts are") };
    // SAFETY: all of the block's bytes are initialised, as it has no padding, and they are borrowed
    // as long as it is.
    unsafe { core::slice::from_raw_parts((&raw const *block).cast(), size_of::<B>()) }
}

// SAFETY: integers.
unsafe impl Block for u32 {}
// SAFETY: integers.
unsafe impl Block for u64 {}
// SAFETY: floats.
unsafe impl Block for f32 {}
// SAFETY: arrays have no padding.
unsafe impl<T: Block, const N: usize> Block for [T; N] {}

/// The size of a field that may be part of a block.
pub(crate) const fn field_bytes<S, F: Block>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Implements [`Block`] for structures in the C layout, whose fields are named. One that is forgotten, or
/// padding, does not compile.
macro_rules! blocks {
    ($($block:ident { $($field:tt),* $(,)? })*) => {
        $(
            // SAFETY: it has the C layout; its fields are blocks, and as long as it is.
            unsafe impl $crate::params::Block for $block {}

            const _: () = {
                let fields = 0 $(+ $crate::params::field_bytes(|block: &$block| &block.$field))*;
                assert!(fields == size_of::<$block>());
            };
        )*
    };
}
pub(crate) use blocks;

blocks! {
    TensorMap { 0 }
    Divisor { value, multiplier, shift }
}
