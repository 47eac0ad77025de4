//! The contract between the GEMV kernels and whoever launches them: parameter block and kernels.
//!
//! `C[l, m] = alpha * sum_k A[l, k] * B[l, m, k]`: `A` are the activations, one vector per batch
//! entry; `B` are the weights, one row per output. Both are NVFP4. The number of outputs is called
//! M, as in the shape string `gemv:MxKxL`; a GEMM calls it N.
//!
//! The threads of a CTA share a row: K is divided among them in *chunks* of `load_bytes` bytes of
//! codes. A thread decodes its chunk of the activations once, keeps it in registers, and multiplies
//! it with its chunk of one row after the other. A row with more chunks than a CTA may have threads
//! is taken *panel* by panel: all rows of the CTA in the first panel, then all in the next.

use crate::params::blocks;
use crate::{BlockFormat, Nvfp4, ScaleLayout};

/// Warps of a CTA at most. With [`MIN_BLOCKS`] it bounds the registers of a thread.
pub const MAX_WARPS: u32 = 16;

/// CTAs of [`MAX_WARPS`] warps that one SM must hold at the same time.
pub const MIN_BLOCKS: u32 = 2;

/// Rows that a CTA has in flight: the loads of a thread that are not complete.
pub const ROWS: u32 = 4;

/// Parameter block of every GEMV kernel, passed by value. Pointers are device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `b_codes` | `[L, M, K/2]` bytes | row-major, dense, aligned to the kernel's `load_bytes` |
/// | `b_scales` | L matrices of `[M, K/16]` | the kernel's [`ScaleLayout`] |
/// | `a_codes` | `[L, K/2]` bytes | dense, aligned to `load_bytes` |
/// | `a_scales` | L matrices of `[1, K/16]` | `a_blocked` |
/// | `out` | `[L, M]` of `out_type` | dense, aligned to its element |
///
/// Kernels with 16-byte loads read scales in pairs, so linear scales start at an even address;
/// 128x4 scales start at a multiple of 16 bytes.
///
/// Parameters of a GEMV. If a launch overlaps the kernel before it, that kernel may write
/// activations and use the result's memory; the weights must be there.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct GemvParams {
    /// Packed e2m1 codes of the weights.
    pub b_codes: u64,
    /// e4m3 scales of the weights.
    pub b_scales: u64,
    /// Packed e2m1 codes of the activations.
    pub a_codes: u64,
    /// e4m3 scales of the activations.
    pub a_scales: u64,
    /// Result.
    pub out: u64,
    /// Bytes from the weights' scales of one batch entry to those of the next.
    pub b_scale_stride: u64,
    /// Bytes from the activations' scales of one batch entry to those of the next.
    pub a_scale_stride: u64,
    /// Rows of the weights of one batch entry: outputs.
    pub m: u32,
    /// Elements of a row, a multiple of 16.
    pub k: u32,
    /// Factor of the result: the product of both tensor scales and the caller's alpha.
    pub alpha: f32,
    /// A [`FloatType`](crate::FloatType).
    pub out_type: u32,
    /// 1 if `a_scales` is in the 128x4 layout, 0 if linear.
    pub a_blocked: u32,
    /// Chunks of a panel: a thread has at most one of them. The last panel may have fewer.
    pub panel: u32,
    /// Row groups of a CTA, but for the first `rest` CTAs, which have one more.
    pub share: u32,
    /// CTAs with one row group more.
    pub rest: u32,
}

/// One GEMV kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Bytes of codes that a thread reads from a row in one instruction: 16, or 8 where rows are
    /// only 8-byte aligned (K an odd multiple of 16).
    pub load_bytes: u32,
    /// Layout of the weights' scales.
    pub scale_layout: ScaleLayout,
}

impl GemvConfig {
    const fn new(name: &'static str, load_bytes: u32, scale_layout: ScaleLayout) -> Self {
        Self { name, load_bytes, scale_layout }
    }

    /// Elements of one chunk.
    pub const fn chunk_elements(&self) -> u32 {
        self.load_bytes * 2
    }

    /// Blocks of one chunk, each with its scale.
    pub const fn chunk_blocks(&self) -> u32 {
        self.chunk_elements() / Nvfp4::BLOCK as u32
    }

    /// Rows of a *row group*, whose scales are read together because they share a sector. In the
    /// 128x4 layout the scales of rows `r`, `r + 32`, `r + 64` and `r + 96` share 16 bytes.
    pub const fn group_rows(&self) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => 1,
            ScaleLayout::Blocked128x4 => ROWS,
        }
    }

    /// Distance between the rows in flight.
    pub const fn row_step(&self) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => 1,
            ScaleLayout::Blocked128x4 => 32,
        }
    }

    /// Row groups that a CTA has in flight.
    pub const fn groups_in_flight(&self) -> u32 {
        ROWS / self.group_rows()
    }

    /// Row groups of one batch entry with `m` rows. A group exists if its first row does.
    pub const fn row_groups(&self, m: u32) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => m,
            ScaleLayout::Blocked128x4 => {
                let tail = m % 128;
                m / 128 * 32 + if tail < 32 { tail } else { 32 }
            }
        }
    }

    /// Row `i` of row group `group`; past the last row, it does not exist.
    #[inline(always)]
    pub const fn row(&self, group: u32, i: u32) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => group,
            ScaleLayout::Blocked128x4 => group / 32 * 128 + group % 32 + self.row_step() * i,
        }
    }

    /// Whether rows of `k` elements are sufficiently aligned for this kernel.
    pub const fn takes_k(&self, k: u32) -> bool {
        k > 0 && k.is_multiple_of(self.chunk_elements())
    }
}

/// All kernels. The PTX of each architecture has one for each.
pub const CONFIGS: [GemvConfig; 4] = [
    GemvConfig::new("gemv_nvfp4_linear", 16, ScaleLayout::Linear),
    GemvConfig::new("gemv_nvfp4_linear_k16", 8, ScaleLayout::Linear),
    GemvConfig::new("gemv_nvfp4_128x4", 16, ScaleLayout::Blocked128x4),
    GemvConfig::new("gemv_nvfp4_128x4_k16", 8, ScaleLayout::Blocked128x4),
];

blocks! {
    GemvParams {
        b_codes, b_scales, a_codes, a_scales, out, b_scale_stride, a_scale_stride, m, k, alpha, out_type, a_blocked,
        panel, share, rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row belongs to exactly one row group, and the first row of each group exists.
    #[test]
    fn row_groups_partition_the_rows() {
        for config in &CONFIGS {
            for m in [1, 2, 3, 31, 32, 33, 64, 96, 97, 127, 128, 129, 160, 161, 300, 2432] {
                let mut seen = [0u8; 2432];
                for group in 0..config.row_groups(m) {
                    assert!(config.row(group, 0) < m, "{} m={m}: {group} is empty", config.name);
                    for i in 0..config.group_rows() {
                        let row = config.row(group, i);
                        if row < m {
                            seen[row as usize] += 1;
                        }
                    }
                }
                let wrong = (0..m).find(|&r| seen[r as usize] != 1);
                assert_eq!(wrong, None, "{} m={m}: row covered not once", config.name);
            }
        }
    }
}
