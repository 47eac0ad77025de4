//! The contract between the GEMM kernels and whoever launches them.
//!
//! `C[l, m, n] = factors * sum_k A[l, m, k] B[l, n, k] + bias[n]`: `A` are the
//! activations, its rows the tokens; `B` are the weights, its rows the output
//! columns. Both are K-major.
//!
//! What the architectures share is here: the sizes and what happens to a sum on
//! its way to memory. [`hopper`] holds the rest of sm_90a's contract.

pub mod blackwell;
pub mod hopper;

pub use crate::gemv::OutputType;

/// Sizes of a GEMM as kernels take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Problem {
    /// Rows of `A` and of the result: tokens.
    pub m: u32,
    /// Rows of `B`, columns of the result.
    pub n: u32,
    /// Columns of `A` and `B`, a multiple of the format's block.
    pub k: u32,
    /// Batch entries.
    pub l: u32,
}

/// What a kernel does with the sums, `C = alpha * row[m] * column[n] * sum + bias[n]`,
/// and where it puts them. Pointers are device addresses; 0 where a vector is
/// absent. Vectors are shared by the batch.
///
/// | field | shape | type |
/// |---|---|---|
/// | `out` | `[L, M, N]`, batch entries `out_stride` elements apart | `out_type` |
/// | `row_factors` | `[M]` | f32 |
/// | `column_factors` | `[N]` | f32 |
/// | `bias` | `[N]` | `bias_type` |
///
/// Each is aligned to its element. Factors and bias are applied in f32 in the
/// order of the formula, then the result is rounded to `out_type`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Epilogue {
    /// Result.
    pub out: u64,
    /// Elements from one batch entry's result to the next.
    pub out_stride: u64,
    /// A factor for each row of `A`, or 0.
    pub row_factors: u64,
    /// A factor for each row of `B`, or 0.
    pub column_factors: u64,
    /// What is added to each column, or 0.
    pub bias: u64,
    /// Factor of all results.
    pub alpha: f32,
    /// An [`OutputType`].
    pub out_type: u32,
    /// An [`OutputType`]; any where there is no bias.
    pub bias_type: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

impl Epilogue {
    /// The fields' bits in order, as 32-bit words (low half first).
    pub const fn words(&self) -> [u32; size_of::<Self>() / 4] {
        let wide = [self.out, self.out_stride, self.row_factors, self.column_factors, self.bias];
        let narrow = [self.alpha.to_bits(), self.out_type, self.bias_type, self.reserved];
        let mut words = [0; size_of::<Self>() / 4];
        let mut i = 0;
        while i < words.len() {
            words[i] = if i < 2 * wide.len() {
                (wide[i / 2] >> (32 * (i % 2))) as u32
            } else {
                narrow[i - 2 * wide.len()]
            };
            i += 1;
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epilogue_words_follow_the_layout() {
        let epilogue = Epilogue {
            out: 0x0000_0002_0000_0001,
            out_stride: 3,
            row_factors: 4,
            column_factors: 5,
            bias: 6,
            alpha: f32::from_bits(7),
            out_type: 8,
            bias_type: 9,
            reserved: 0,
        };
        let words = epilogue.words();
        let at = |offset: usize| words[offset / 4];
        assert_eq!(words[..2], [1, 2]);
        assert_eq!(at(core::mem::offset_of!(Epilogue, out_stride)), 3);
        assert_eq!(at(core::mem::offset_of!(Epilogue, row_factors)), 4);
        assert_eq!(at(core::mem::offset_of!(Epilogue, column_factors)), 5);
        assert_eq!(at(core::mem::offset_of!(Epilogue, bias)), 6);
        assert_eq!(at(core::mem::offset_of!(Epilogue, alpha)), 7);
        assert_eq!(at(core::mem::offset_of!(Epilogue, out_type)), 8);
        assert_eq!(at(core::mem::offset_of!(Epilogue, bias_type)), 9);
    }
}
