//! The sizes that follow alike from all configurations whose kernels decode weights to fragments.

/// Padding, in f32, after a token's row of sums: with it the lanes of a warp, four tokens times
/// eight rows, access different banks.
pub(in crate::gemm) const SUM_PADDING: u32 = 4;

/// Defines the methods of a configuration that follow from its scheme and its tile, which is that of its
/// `work_shape`.
macro_rules! fragment_config {
    ($Config:ident) => {
        impl $Config {
            /// Order of a problem's tiles.
            pub const ORDER: $crate::gemm::TileOrder = $crate::gemm::TileOrder::TOKENS_INNERMOST;

            /// Returns the formats of weights and activations.
            pub const fn operands(&self) -> $crate::gemm::Operands {
                let $crate::gemm::fragments::Scheme { format, operand } = self.scheme;
                $crate::gemm::Operands { weights: format, activations: Some(operand) }
            }

            /// Rows of the weights and tokens of a CTA's tile.
            pub const fn extents(&self) -> [u32; 2] {
                [self.rows, self.tokens]
            }

            /// The tiles of a dense or batched problem; those that CTAs compute together count as one.
            pub const fn tiles(&self, problem: &$crate::gemm::Problem) -> $crate::gemm::Tiles {
                $crate::gemm::Tiles::uniform(problem, self.work_shape(), Self::ORDER)
            }

            /// Bytes of the partial sums of a tile that a contributor sends: a vector of four sums of
            /// each thread that multiplies, one after the other, then the next vector of each.
            pub const fn partial_bytes(&self) -> u32 {
                self.tokens * self.rows * size_of::<f32>() as u32
            }

            /// f32 from one token's sums to the next's in shared memory.
            #[inline(always)]
            pub const fn sum_pitch(&self) -> u32 {
                self.rows + $crate::gemm::fragments::config::SUM_PADDING
            }
        }
    };
}
pub(in crate::gemm) use fragment_config;

/// Checks that sums of a warp's lanes, tokens 2t and rows g, are in different banks.
#[cfg(test)]
pub(in crate::gemm) fn no_bank_twice(name: &str, pitch: u32) {
    let mut banks = [false; 32];
    for (t, g) in (0..4).flat_map(|t| (0..8).map(move |g| (t, g))) {
        let bank = (2 * t * pitch + g) % 32;
        assert!(!core::mem::replace(&mut banks[bank as usize], true), "{name}");
    }
}
