//! Products of the narrowest width that has room for a tile's tokens: in kernels of grouped products whose
//! tiles have several.

use cuda_std::ptx::{marker, memory as words};
use fp4_formats::gemm::sm90::config::TRIMMED_TOKENS;

use super::consumer::Consumer;
use super::memory::Memory;
use super::operands::{Narrow, STEPS};
use crate::pipeline::Cursor;

impl<W: Narrow, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Sums the products of the next `count` steps, at least one, of a tile of `width` tokens: by
    /// the narrowest product that has room for them.
    ///
    /// # Safety
    /// As [`sum_steps`](Self::sum_steps).
    #[inline(always)]
    pub unsafe fn sum_width(
        &mut self,
        memory: Memory,
        width: u32,
        count: u32,
        cursor: &mut Cursor,
    ) {
        let config = memory.config;
        // SAFETY: the caller's.
        unsafe {
            if config.trims() {
                const { assert!(matches!(TRIMMED_TOKENS, [32, 40, 48])) };
                match width {
                    ..=32 => self.sum_steps::<16>(memory, count, cursor),
                    33..=40 => self.sum_steps::<20>(memory, count, cursor),
                    41.. => self.sum_steps::<24>(memory, count, cursor),
                }
                return self.keep_operands(memory, count);
            }
            if !config.is_wide() {
                match width {
                    ..=96 => self.sum_steps::<48>(memory, count, cursor),
                    97..=112 => self.sum_steps::<56>(memory, count, cursor),
                    113.. => self.sum_steps::<64>(memory, count, cursor),
                }
                return self.keep_operands(memory, count);
            }
            // A product of 144 tokens takes longer than one of 160.
            match width {
                ..=48 => self.sum_steps::<24>(memory, count, cursor),
                49..=64 => self.sum_steps::<32>(memory, count, cursor),
                65..=80 => self.sum_steps::<40>(memory, count, cursor),
                81..=96 => self.sum_steps::<48>(memory, count, cursor),
                97..=112 => self.sum_steps::<56>(memory, count, cursor),
                113..=128 => self.sum_steps::<64>(memory, count, cursor),
                129..=160 => self.sum_steps::<80>(memory, count, cursor),
                161..=176 => self.sum_steps::<88>(memory, count, cursor),
                177..=192 => self.sum_steps::<96>(memory, count, cursor),
                193..=208 => self.sum_steps::<104>(memory, count, cursor),
                209..=224 => self.sum_steps::<112>(memory, count, cursor),
                225..=240 => self.sum_steps::<120>(memory, count, cursor),
                241.. => self.sum_steps::<128>(memory, count, cursor),
            }
            self.keep_operands(memory, count);
        }
    }

    /// Uses the operands of the last two units at the place where the loops of all widths meet, so that
    /// ptxas keeps the operands of all loops in the same registers. Without it, each product of the
    /// kernel has separate registers for its operand, which are not enough. It is never executed: there
    /// is a step.
    ///
    /// # Safety
    /// The products are finished.
    #[inline(always)]
    unsafe fn keep_operands(&self, memory: Memory, count: u32) {
        if marker::pin(count) == 0 {
            let mut at = memory.base;
            for unit in 0..2 {
                for k in 0..STEPS {
                    // SAFETY: inside the first stage.
                    unsafe { words::st_shared_v4_b32(at, self.operands[unit][k]) };
                    at += size_of::<[u32; 4]>() as u32;
                }
            }
        }
    }
}
