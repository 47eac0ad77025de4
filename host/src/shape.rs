//! Sizes of products.

use std::fmt;

use fp4_formats::{BlockFormat, Nvfp4};
use serde::Serialize;

/// Largest dimension: kernels take 32-bit sizes.
pub const MAX_DIM: u64 = i32::MAX as u64;

/// Sizes of a batched GEMV, `C[l, m] = sum_k A[l, k] * B[l, m, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemvShape {
    /// Rows of each batch entry's weights: outputs, which a GEMM calls N.
    pub m: usize,
    /// Elements of a row, a multiple of 16.
    pub k: usize,
    /// Batch entries.
    pub l: usize,
}

impl GemvShape {
    /// A shape from its three sizes, unchecked.
    #[must_use]
    pub const fn of(m: usize, k: usize, l: usize) -> Self {
        Self { m, k, l }
    }

    /// Bytes that the operation must read or write at least once: codes, scales without padding,
    /// and the result in elements of `output_bytes`.
    #[must_use]
    pub fn bytes(self, output_bytes: usize) -> u64 {
        let row = (self.k / 2 + self.k / Nvfp4::BLOCK) as u64;
        self.l as u64 * ((self.m as u64 + 1) * row + (self.m * output_bytes) as u64)
    }

    /// Additions and multiplications.
    #[must_use]
    pub fn flops(self) -> f64 {
        2.0 * self.l as f64 * self.m as f64 * self.k as f64
    }
}

impl fmt::Display for GemvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gemv:{}x{}x{}", self.m, self.k, self.l)
    }
}

/// Sizes of a batched GEMM, `C[l, m, n] = sum_k A[l, m, k] * B[l, n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemmShape {
    /// Rows of each `A`: tokens.
    pub m: usize,
    /// Rows of each `B`: output columns.
    pub n: usize,
    /// Columns of both, a multiple of the format's block.
    pub k: usize,
    /// Batch entries; the string of a plain product always means one.
    pub l: usize,
}

impl GemmShape {
    /// A shape of one batch entry, unchecked.
    #[must_use]
    pub const fn of(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, l: 1 }
    }

    /// Additions and multiplications.
    #[must_use]
    pub fn flops(self) -> f64 {
        2.0 * self.l as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl GemmShape {
    /// The shape as text, of a product that is gated or not.
    #[must_use]
    pub fn text(self, gated: bool) -> String {
        let Self { m, n, k, l } = self;
        match (gated, l) {
            (false, 1) => format!("gemm:{m}x{n}x{k}"),
            (false, _) => format!("gemm:{m}x{n}x{k}, {l} batch entries"),
            (true, 1) => format!("dual:{m}x{n}x{k}"),
            (true, _) => format!("dual:{m}x{n}x{k}x{l}"),
        }
    }
}

impl fmt::Display for GemmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false))
    }
}
