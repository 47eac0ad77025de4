//! The contract between the GEMV kernels and whoever launches them: parameter block, tile
//! configurations, and the launch geometry that follows from them.
//!
//! `C[l, m] = alpha * sum_k A[l, k] * B[l, m, k]`: `A` are the activations, one vector per batch
//! entry; `B` are the weights, one row per output. Both are NVFP4. The number of outputs is called
//! M, as in the shape string `gemv:MxKxL`; a GEMM calls it N.
//!
//! A warp computes `rows_per_warp` rows of the weights at a time and walks along K in *steps*: in
//! one step each lane reads one *chunk* of `load_bytes` bytes of every row. The activations are
//! decoded into shared memory once per CTA, at most [`PANEL`] elements at a time.

use crate::arch::{Arch, Conversion};
use crate::{BlockFormat, Nvfp4, ScaleLayout, WARP};

/// Elements of the activations that are resident in shared memory at a time. A longer vector is
/// processed panel by panel.
pub const PANEL: u32 = 16384;

/// Parameter block of every GEMV kernel, passed by value. Pointers are device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `b_codes` | `[L, M, K/2]` bytes | row-major, dense, aligned to the configuration's `load_bytes` |
/// | `b_scales` | L matrices of `[M, K/16]` | the configuration's [`ScaleLayout`] |
/// | `a_codes` | `[L, K/2]` bytes | dense, aligned to `load_bytes` |
/// | `a_scales` | L matrices of `[1, K/16]` | `a_blocked` |
/// | `out` | `[L, M]` of `out_type` | dense, aligned to its element |
///
/// Configurations with 16-byte loads read scales in pairs, so linear scales start at an even
/// address; 128x4 scales start at a multiple of 16 bytes.
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
    /// Batch entries.
    pub l: u32,
    /// Factor of the result: the product of both tensor scales and the caller's alpha.
    pub alpha: f32,
    /// A [`FloatType`](crate::FloatType).
    pub out_type: u32,
    /// 1 if `a_scales` is in the 128x4 layout, 0 if linear.
    pub a_blocked: u32,
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
        let narrow = [self.m, self.k, self.l, self.alpha.to_bits(), self.out_type, self.a_blocked];
        const { assert!(size_of::<Self>() == 7 * size_of::<u64>() + 6 * size_of::<u32>()) };
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

/// The configuration of one GEMV kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Warps of a CTA.
    pub warps: u32,
    /// Rows of the weights that a warp computes at a time.
    pub rows_per_warp: u32,
    /// Bytes of codes that a lane reads from a row in one instruction: 16, or 8 where rows are only
    /// 8-byte aligned (K an odd multiple of 16).
    pub load_bytes: u32,
    /// Layout of the weights' scales.
    pub scale_layout: ScaleLayout,
    /// CTAs that one SM must hold at the same time; bounds the registers.
    pub min_blocks: u32,
}

impl GemvConfig {
    const fn new(
        name: &'static str,
        warps: u32,
        rows_per_warp: u32,
        load_bytes: u32,
        scale_layout: ScaleLayout,
        min_blocks: u32,
    ) -> Self {
        Self { name, warps, rows_per_warp, load_bytes, scale_layout, min_blocks }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// Elements of one chunk.
    pub const fn chunk_elements(&self) -> u32 {
        self.load_bytes * 2
    }

    /// Blocks of one chunk, each with its scale.
    pub const fn chunk_blocks(&self) -> u32 {
        self.chunk_elements() / Nvfp4::BLOCK as u32
    }

    /// Distance between the rows of one warp. In the 128x4 layout the scales of rows `r`, `r + 32`,
    /// `r + 64` and `r + 96` share 16 bytes, so one load brings the scales of four rows.
    pub const fn row_step(&self) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => 1,
            ScaleLayout::Blocked128x4 => 32,
        }
    }

    /// Row groups of one batch entry with `m` rows; a warp computes one group at a time.
    ///
    /// With R rows per warp, group `g` holds the rows `g*R + i` where scales are linear, and
    /// `(g/32)*128 + g%32 + 32*i` where they are 128x4. A group exists if its first row does.
    pub const fn row_groups(&self, m: u32) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => m.div_ceil(self.rows_per_warp),
            ScaleLayout::Blocked128x4 => {
                let tail = m % 128;
                m / 128 * 32 + if tail < 32 { tail } else { 32 }
            }
        }
    }

    /// Tiles of one batch entry. A tile is what a CTA computes at a time: one row group per warp.
    pub const fn tiles(&self, m: u32) -> u32 {
        self.row_groups(m).div_ceil(self.warps)
    }

    /// Length of the longest chain of dependent f32 additions behind a result: one for each block
    /// of a lane, then log2(32) across the warp. It bounds the rounding error.
    pub const fn additions(&self, k: u32) -> u32 {
        let panels = k / PANEL;
        let steps = (PANEL / self.chunk_elements()).div_ceil(WARP) * panels
            + (k % PANEL / self.chunk_elements()).div_ceil(WARP);
        steps * self.chunk_blocks() + WARP.ilog2()
    }

    /// Whether rows of `k` elements are sufficiently aligned for this configuration.
    pub const fn takes_k(&self, k: u32) -> bool {
        k > 0 && k.is_multiple_of(self.chunk_elements())
    }
}

/// How a decoded element of the activations is stored in shared memory. The discriminant is its
/// size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodedElement {
    /// Twice the value as i8, if there is no conversion of e2m1 in hardware; products are integers.
    I8 = 1,
    /// The value as f16, if there is.
    F16 = 2,
}

impl DecodedElement {
    /// How the kernels for `arch` store decoded activations.
    pub const fn of(arch: Arch) -> Self {
        match arch.e2m1() {
            Conversion::Emulated => Self::I8,
            Conversion::Hardware => Self::F16,
        }
    }
}

/// Dynamic shared memory of a CTA in bytes: one panel of decoded elements, then one f32 scale per
/// block.
pub const fn shared_bytes(k: u32, element: DecodedElement) -> u32 {
    let resident = if k < PANEL { k } else { PANEL };
    resident * element as u32 + resident / Nvfp4::BLOCK as u32 * size_of::<f32>() as u32
}

/// The properties of a GPU that the launch geometry depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvMachine {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Shared memory of one SM, bytes.
    pub shared_bytes: u32,
    /// How its kernels store decoded activations.
    pub element: DecodedElement,
}

impl GemvConfig {
    /// CTAs that one SM holds at the same time: `min_blocks`, or fewer where shared memory does not
    /// suffice. CUDA reserves 1 KiB of shared memory per CTA.
    pub const fn ctas_per_sm(&self, k: u32, machine: &GemvMachine) -> u32 {
        let by_shared = machine.shared_bytes / (shared_bytes(k, machine.element) + 1024);
        let ctas = if by_shared < self.min_blocks { by_shared } else { self.min_blocks };
        if ctas == 0 { 1 } else { ctas }
    }

    /// CTAs of one batch entry: one wave of resident CTAs divided among the entries, and at most
    /// one CTA per tile.
    pub const fn grid_x(&self, m: u32, k: u32, l: u32, machine: &GemvMachine) -> u32 {
        let wave = machine.sms * self.ctas_per_sm(k, machine) / l;
        let tiles = self.tiles(m);
        if wave == 0 {
            1
        } else if wave < tiles {
            wave
        } else {
            tiles
        }
    }
}

/// Why a configuration was chosen.
pub type Reason = &'static str;

/// The configuration for weights of shape `[l, m, k]` with scales in `layout`, and why. `None` if
/// `k` is not a positive multiple of 16.
///
/// The thresholds were measured on an H200 (`benches/record`).
pub const fn choose(
    m: u32,
    k: u32,
    l: u32,
    layout: ScaleLayout,
    machine: &GemvMachine,
) -> Option<(&'static GemvConfig, Reason)> {
    if k == 0 || !k.is_multiple_of(Nvfp4::BLOCK as u32) {
        return None;
    }
    let wide = k.is_multiple_of(32);
    let rows = m as u64 * l as u64;
    // Fewer than sixteen warps per SM if each warp computes two rows.
    let few_rows = rows < 2 * 16 * machine.sms as u64;
    Some(match layout {
        ScaleLayout::Linear => match (wide, few_rows) {
            (false, false) => (&CONFIGS[3], "rows are only 8-byte aligned"),
            (false, true) => (&CONFIGS[4], "rows are only 8-byte aligned, and few"),
            (true, true) => (&CONFIGS[2], "few rows: one per warp, to occupy more SMs"),
            (true, false) if k > 4096 => {
                (&CONFIGS[0], "long rows: more warps share the decoded activations")
            }
            (true, false) => (&CONFIGS[1], "short rows: small CTAs start and end independently"),
        },
        ScaleLayout::Blocked128x4 => match wide {
            false => (&CONFIGS[7], "128x4 scales, rows are only 8-byte aligned"),
            true if k > 8192 && !few_rows => {
                (&CONFIGS[5], "128x4 scales, long rows: more warps share the decoded activations")
            }
            true => (&CONFIGS[6], "128x4 scales: one 16-byte load brings the scales of four rows"),
        },
    })
}

/// All configurations. The PTX of each architecture has one kernel for each.
pub const CONFIGS: [GemvConfig; 8] = [
    GemvConfig::new("gemv_nvfp4_linear_r2w8", 8, 2, 16, ScaleLayout::Linear, 4),
    GemvConfig::new("gemv_nvfp4_linear_r2w4", 4, 2, 16, ScaleLayout::Linear, 8),
    GemvConfig::new("gemv_nvfp4_linear_r1w4", 4, 1, 16, ScaleLayout::Linear, 10),
    GemvConfig::new("gemv_nvfp4_linear_r2w4_k16", 4, 2, 8, ScaleLayout::Linear, 8),
    GemvConfig::new("gemv_nvfp4_linear_r1w4_k16", 4, 1, 8, ScaleLayout::Linear, 10),
    GemvConfig::new("gemv_nvfp4_128x4_r4w8", 8, 4, 16, ScaleLayout::Blocked128x4, 2),
    GemvConfig::new("gemv_nvfp4_128x4_r4w4", 4, 4, 16, ScaleLayout::Blocked128x4, 4),
    GemvConfig::new("gemv_nvfp4_128x4_r4w4_k16", 4, 4, 8, ScaleLayout::Blocked128x4, 4),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScaleLayout::{Blocked128x4, Linear};

    const H200: GemvMachine =
        GemvMachine { sms: 132, shared_bytes: 233_472, element: DecodedElement::I8 };

    /// Every row belongs to exactly one row group, and the first row of each group exists.
    #[test]
    fn row_groups_partition_the_rows() {
        for config in &CONFIGS {
            for m in [1, 2, 3, 31, 32, 33, 64, 96, 97, 127, 128, 129, 160, 161, 300, 2432] {
                let mut seen = [0u8; 2432];
                for group in 0..config.row_groups(m) {
                    let first = match config.scale_layout {
                        Linear => group * config.rows_per_warp,
                        Blocked128x4 => group / 32 * 128 + group % 32,
                    };
                    assert!(first < m, "{} m={m}: group {group} is empty", config.name);
                    for i in 0..config.rows_per_warp {
                        let row = first + i * config.row_step();
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
            l: 10,
            alpha: f32::from_bits(11),
            out_type: 12,
            a_blocked: 0x0d0e_0f10,
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
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, l)), 10);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, alpha)), 11);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, out_type)), 12);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, a_blocked)), 0x0d0e_0f10);
    }

    #[test]
    fn choices_of_the_table() {
        let pick = |m, k, l, layout| choose(m, k, l, layout, &H200).map(|c| c.0.name);
        assert_eq!(pick(7168, 16384, 1, Linear), Some("gemv_nvfp4_linear_r2w8"));
        assert_eq!(pick(4096, 7168, 8, Linear), Some("gemv_nvfp4_linear_r2w8"));
        assert_eq!(pick(7168, 2048, 4, Linear), Some("gemv_nvfp4_linear_r2w4"));
        assert_eq!(pick(128, 256, 1, Linear), Some("gemv_nvfp4_linear_r1w4"));
        assert_eq!(pick(9000, 7184, 1, Linear), Some("gemv_nvfp4_linear_r2w4_k16"));
        assert_eq!(pick(3, 48, 1, Linear), Some("gemv_nvfp4_linear_r1w4_k16"));
        assert_eq!(pick(7168, 16384, 1, Blocked128x4), Some("gemv_nvfp4_128x4_r4w8"));
        assert_eq!(pick(4096, 7168, 8, Blocked128x4), Some("gemv_nvfp4_128x4_r4w4"));
        assert_eq!(pick(3, 48, 1, Blocked128x4), Some("gemv_nvfp4_128x4_r4w4_k16"));
        for k in [0, 8, 17, 40] {
            assert_eq!(pick(1, k, 1, Linear), None, "k={k}");
        }
    }

    #[test]
    fn a_chosen_configuration_takes_the_problem() {
        for layout in ScaleLayout::ALL {
            for m in [1, 129, 7168] {
                for k in (16..2048).step_by(16).chain([7168, 7184, 16384, 65536]) {
                    let (config, _) = choose(m, k, 1, layout, &H200).unwrap();
                    assert!(config.takes_k(k), "{} k={k}", config.name);
                    assert_eq!(config.scale_layout, layout);
                    let grid = config.grid_x(m, k, 1, &H200);
                    assert!(grid >= 1 && grid <= config.tiles(m), "{} m={m} k={k}", config.name);
                }
            }
        }
    }

    #[test]
    fn additions_are_those_of_the_busiest_lane() {
        // 512 chunks of two blocks over 32 lanes, then five shuffles.
        assert_eq!(CONFIGS[0].additions(16384), 16 * 2 + 5);
        assert_eq!(CONFIGS[0].additions(32), 2 + 5);
        assert_eq!(CONFIGS[0].additions(16384 + 32), 17 * 2 + 5);
        assert_eq!(CONFIGS[3].additions(16), 1 + 5);
    }

    #[test]
    fn shared_memory_is_bounded_by_the_panel() {
        assert_eq!(shared_bytes(16, DecodedElement::I8), 16 + 4);
        assert_eq!(shared_bytes(16384, DecodedElement::I8), 16384 + 4096);
        assert_eq!(shared_bytes(1 << 20, DecodedElement::F16), 2 * 16384 + 4096);
    }
}
