//! The contract between the GEMV kernels and whoever launches them: parameter block, kernels, and
//! the launch geometry that follows from a shape.
//!
//! `C[l, m] = alpha * sum_k A[l, k] * B[l, m, k]`: `A` are the activations, one vector per batch
//! entry; `B` are the weights, one row per output. Both are NVFP4. The number of outputs is called
//! M, as in the shape string `gemv:MxKxL`; a GEMM calls it N.
//!
//! The threads of a CTA share a row: K is divided among them in *chunks* of `load_bytes` bytes of
//! codes. A thread decodes its chunk of the activations once, keeps it in registers, and multiplies
//! it with its chunk of one row after the other. A row with more chunks than a CTA may have threads
//! is taken *panel* by panel: all rows of the CTA in the first panel, then all in the next.

use crate::{BlockFormat, Nvfp4, ScaleLayout, WARP};

/// Warps of a CTA at most. With [`MIN_BLOCKS`] it bounds the registers of a thread.
pub const MAX_WARPS: u32 = 16;

/// CTAs of [`MAX_WARPS`] warps that one SM must hold at the same time.
pub const MIN_BLOCKS: u32 = 2;

/// Rows that a CTA has in flight: the loads of a thread that are not complete.
pub const ROWS: u32 = 4;

/// Rows of a CTA at most, which bounds the shared memory: an f32 for each row and warp.
pub const MAX_ROWS: u32 = 256;

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
/// Where a launch overlaps the kernel before it, that kernel may write activations and use the
/// result's memory; the weights must be there.
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
    /// [`Geometry::panel`].
    pub panel: u32,
    /// [`Geometry::share`].
    pub share: u32,
    /// [`Geometry::rest`].
    pub rest: u32,
}

impl GemvParams {
    /// The block as the kernel's `.param` space holds it: C layout, little endian, no padding.
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let wide = [
            self.b_codes,
            self.b_scales,
            self.a_codes,
            self.a_scales,
            self.out,
            self.b_scale_stride,
            self.a_scale_stride,
        ];
        let narrow = [
            self.m,
            self.k,
            self.alpha.to_bits(),
            self.out_type,
            self.a_blocked,
            self.panel,
            self.share,
            self.rest,
        ];
        const { assert!(size_of::<Self>() == size_of::<[u64; 7]>() + size_of::<[u32; 8]>()) };
        let mut bytes = [0; size_of::<Self>()];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = if at < 7 * size_of::<u64>() {
                wide[at / 8].to_le_bytes()[at % 8]
            } else {
                narrow[(at - 7 * size_of::<u64>()) / 4].to_le_bytes()[at % 4]
            };
            at += 1;
        }
        bytes
    }
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

    /// The launch for weights of shape `[l, m, k]`, all at least 1, on a GPU of `sms` SMs.
    ///
    /// A wave of resident CTAs shares the batch entries, or fewer, so that each has a multiple of
    /// the rows in flight: on an H200 that is faster, for few rows as well (`benches/record`), and
    /// leaves room in which the stream's next kernel starts. If `ctas` are given, so many share a
    /// batch entry.
    #[must_use]
    pub const fn geometry(&self, m: u32, k: u32, l: u32, sms: u32, ctas: Option<u32>) -> Geometry {
        let chunks = k / self.chunk_elements();
        let panels = chunks.div_ceil(MAX_WARPS * WARP);
        let panel = chunks.div_ceil(panels);
        let warps = panel.div_ceil(WARP);
        let ctas_per_sm = MAX_WARPS * MIN_BLOCKS / warps;
        let groups = self.row_groups(m);
        let ctas = match ctas {
            Some(ctas) => ctas,
            None => {
                let wave = sms * ctas_per_sm / l;
                let share = groups.div_ceil(if wave == 0 { 1 } else { wave });
                let share = share.next_multiple_of(self.groups_in_flight());
                let most = MAX_ROWS / self.group_rows();
                groups.div_ceil(if share < most { share } else { most })
            }
        };
        let (share, rest) = (groups / ctas, groups % ctas);
        let rows = groups.div_ceil(ctas) as u64 * self.group_rows() as u64;
        Geometry { panel, panels, warps, ctas_per_sm, ctas, share, rest, rows }
    }
}

/// How a launch divides a GEMV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Chunks of a panel: a thread has at most one of them. The last panel may have fewer.
    pub panel: u32,
    /// Panels of a row.
    pub panels: u32,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that an SM holds at the same time.
    pub ctas_per_sm: u32,
    /// CTAs that share the row groups of a batch entry.
    pub ctas: u32,
    /// Row groups of a CTA, but for the first `rest` CTAs, which have one more.
    pub share: u32,
    /// CTAs with one row group more.
    pub rest: u32,
    /// Rows of a CTA, those included that do not exist in its row groups. More than [`MAX_ROWS`]
    /// only where the number of CTAs was asked for.
    pub rows: u64,
}

impl Geometry {
    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// Dynamic shared memory of a CTA in bytes: an f32 for each row and warp.
    pub const fn shared_bytes(&self) -> u32 {
        self.rows as u32 * self.warps * size_of::<f32>() as u32
    }

    /// Length of the longest chain of dependent f32 additions behind a result: one for each block
    /// of a thread's chunk, log2(32) across the warp, one for each further panel, and one for each
    /// warp. It bounds the rounding error.
    pub const fn additions(&self, config: &GemvConfig) -> u32 {
        config.chunk_blocks() + WARP.ilog2() + self.panels - 1 + self.warps
    }
}

/// Why a kernel was chosen.
pub type Reason = &'static str;

/// The kernel for rows of `k` elements with scales in `layout`, and why. `None` if `k` is not a
/// positive multiple of 16.
pub const fn choose(k: u32, layout: ScaleLayout) -> Option<(&'static GemvConfig, Reason)> {
    if k == 0 || !k.is_multiple_of(Nvfp4::BLOCK as u32) {
        return None;
    }
    Some(match (layout, k.is_multiple_of(32)) {
        (ScaleLayout::Linear, true) => (&CONFIGS[0], "rows are 16-byte aligned"),
        (ScaleLayout::Linear, false) => (&CONFIGS[1], "rows are only 8-byte aligned"),
        (ScaleLayout::Blocked128x4, true) => {
            (&CONFIGS[2], "128x4 scales: rows whose scales share a sector are taken together")
        }
        (ScaleLayout::Blocked128x4, false) => {
            (&CONFIGS[3], "128x4 scales, rows are only 8-byte aligned")
        }
    })
}

/// All kernels. The PTX of each architecture has one for each.
pub const CONFIGS: [GemvConfig; 4] = [
    GemvConfig::new("gemv_nvfp4_linear", 16, ScaleLayout::Linear),
    GemvConfig::new("gemv_nvfp4_linear_k16", 8, ScaleLayout::Linear),
    GemvConfig::new("gemv_nvfp4_128x4", 16, ScaleLayout::Blocked128x4),
    GemvConfig::new("gemv_nvfp4_128x4_k16", 8, ScaleLayout::Blocked128x4),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScaleLayout::{Blocked128x4, Linear};

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

    #[test]
    fn parameter_bytes_follow_the_layout() {
        let params = GemvParams {
            b_codes: 1,
            b_scales: 2,
            a_codes: 3,
            a_scales: 4,
            out: 5,
            b_scale_stride: 6,
            a_scale_stride: 0x0102_0304_0506_0708,
            m: 8,
            k: 9,
            alpha: f32::from_bits(10),
            out_type: 11,
            a_blocked: 12,
            panel: 13,
            share: 14,
            rest: 0x0d0e_0f10,
        };
        let bytes = params.to_bytes();
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let narrow = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_codes)), 1);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_scales)), 2);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_codes)), 3);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_scales)), 4);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, out)), 5);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_scale_stride)), 6);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_scale_stride)), params.a_scale_stride);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, m)), 8);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, k)), 9);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, alpha)), 10);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, out_type)), 11);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, a_blocked)), 12);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, panel)), 13);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, share)), 14);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, rest)), 0x0d0e_0f10);
    }

    #[test]
    fn choices_of_the_table() {
        let pick = |k, layout| choose(k, layout).map(|c| c.0.name);
        assert_eq!(pick(16384, Linear), Some("gemv_nvfp4_linear"));
        assert_eq!(pick(7184, Linear), Some("gemv_nvfp4_linear_k16"));
        assert_eq!(pick(32, Blocked128x4), Some("gemv_nvfp4_128x4"));
        assert_eq!(pick(48, Blocked128x4), Some("gemv_nvfp4_128x4_k16"));
        for k in [0, 8, 17, 40] {
            assert_eq!(pick(k, Linear), None, "k={k}");
        }
    }

    /// Every chunk has a thread, CTAs fit an SM, and they have rows, not too many.
    #[test]
    fn geometries_fit() {
        for layout in ScaleLayout::ALL {
            for m in [1, 3, 129, 7168, 1 << 20, i32::MAX as u32] {
                for k in (16..2048).step_by(16).chain([7168, 7184, 16384, 16400, 65536, 1 << 20]) {
                    for l in [1, 3, 8, 300, 65_535] {
                        let (config, _) = choose(k, layout).unwrap();
                        assert!(config.takes_k(k) && config.scale_layout == layout);
                        let g = config.geometry(m, k, l, 132, None);
                        let chunks = k / config.chunk_elements();
                        assert!(g.panel <= g.warps * WARP, "{g:?}");
                        assert!(g.panel * (g.panels - 1) < chunks, "{g:?}");
                        assert!(g.panel * g.panels >= chunks, "{g:?}");
                        assert!(g.threads() <= MAX_WARPS * WARP, "{g:?}");
                        assert!(g.ctas_per_sm * g.threads() <= 1024, "{g:?}");
                        assert!(g.rows >= 1 && g.rows <= u64::from(MAX_ROWS), "{g:?}");
                        assert!(g.ctas >= 1 && g.ctas <= config.row_groups(m), "{g:?}");
                        assert!(g.shared_bytes() * g.ctas_per_sm <= 32 << 10, "{g:?}");
                    }
                }
            }
        }
    }

    /// One wave of CTAs with equally many rows.
    #[test]
    fn contest_shapes() {
        let geometry = |m, k, l| CONFIGS[0].geometry(m, k, l, 132, None);
        let g = geometry(7168, 16384, 1);
        assert_eq!((g.warps, g.ctas, g.rows), (16, 256, 28));
        let g = geometry(4096, 7168, 8);
        assert_eq!((g.warps, g.ctas, g.rows), (7, 64, 64));
        let g = geometry(7168, 2048, 4);
        assert_eq!((g.warps, g.ctas, g.rows), (2, 448, 16));
    }

    #[test]
    fn additions_are_those_of_the_longest_chain() {
        let additions =
            |config: &GemvConfig, k| config.geometry(1, k, 1, 132, None).additions(config);
        assert_eq!(additions(&CONFIGS[0], 32), 2 + 5 + 1);
        assert_eq!(additions(&CONFIGS[0], 16384), 2 + 5 + 16);
        assert_eq!(additions(&CONFIGS[0], 16384 + 32), 2 + 5 + 1 + 9);
        assert_eq!(additions(&CONFIGS[1], 16), 1 + 5 + 1);
    }
}
