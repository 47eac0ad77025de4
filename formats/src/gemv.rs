//! The contract between the GEMV kernels and whoever launches them: parameter
//! block, tile configurations, and the launch geometry that follows from them.
//!
//! `C[l, m] = alpha * sum_k A[l, m, k] * B[l, k]`, `A` and `B` in NVFP4.
//!
//! A warp owns `rows_per_warp` rows and walks K in *steps*: in one step each
//! lane reads one *chunk* of `load_bytes` bytes of every row. The vector is
//! decoded once a CTA into shared memory, at most [`PANEL`] elements at a time.

use crate::arch::{Arch, Conversion};
use crate::{BlockFormat, Nvfp4, ScaleLayout, WARP};

/// Elements of the vector that are resident in shared memory at a time. Longer
/// vectors are walked panel by panel.
pub const PANEL: u32 = 16384;

/// Parameter block of every GEMV kernel, passed by value. Pointers are device
/// addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `a_codes` | `[L, M, K/2]` bytes | row-major, dense, aligned to the configuration's `load_bytes` |
/// | `a_scales` | L matrices of `[M, K/16]` | the configuration's [`ScaleLayout`] |
/// | `b_codes` | `[L, K/2]` bytes | dense, aligned to `load_bytes` |
/// | `b_scales` | L matrices of `[1, K/16]` | `b_blocked` |
/// | `out` | `[L, M]` of `out_type` | dense, aligned to its element |
///
/// With 16-byte loads scales are read in pairs, so they start at even addresses;
/// 128x4 scales start at a multiple of 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct GemvParams {
    /// Packed e2m1 codes of the matrix.
    pub a_codes: u64,
    /// e4m3 scales of the matrix.
    pub a_scales: u64,
    /// Packed e2m1 codes of the vectors.
    pub b_codes: u64,
    /// e4m3 scales of the vectors.
    pub b_scales: u64,
    /// Result.
    pub out: u64,
    /// Bytes from one batch entry's matrix scales to the next.
    pub a_scale_stride: u64,
    /// Bytes from one batch entry's vector scales to the next.
    pub b_scale_stride: u64,
    /// Rows of a matrix.
    pub m: u32,
    /// Columns of a matrix, a multiple of 16.
    pub k: u32,
    /// Batch entries.
    pub l: u32,
    /// Factor of the result: the product of both tensor scales and the caller's.
    pub alpha: f32,
    /// A [`FloatType`](crate::FloatType).
    pub out_type: u32,
    /// 1 if `b_scales` is in the 128x4 layout, 0 if linear.
    pub b_blocked: u32,
}

impl GemvParams {
    /// The block as the kernel's `.param` space holds it: C layout, little endian,
    /// no padding.
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let wide = [
            self.a_codes,
            self.a_scales,
            self.b_codes,
            self.b_scales,
            self.out,
            self.a_scale_stride,
            self.b_scale_stride,
        ];
        let narrow = [self.m, self.k, self.l, self.alpha.to_bits(), self.out_type, self.b_blocked];
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

/// How one GEMV kernel was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Warps of a CTA.
    pub warps: u32,
    /// Rows that a warp carries at a time.
    pub rows_per_warp: u32,
    /// Bytes of codes that a lane reads from a row in one instruction: 16, or 8
    /// where rows are only 8-byte aligned (K an odd multiple of 16).
    pub load_bytes: u32,
    /// Layout of the matrix's scales.
    pub scale_layout: ScaleLayout,
    /// CTAs that must fit an SM together; bounds the registers.
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

    /// Scales that belong to one chunk.
    pub const fn chunk_blocks(&self) -> u32 {
        self.chunk_elements() / Nvfp4::BLOCK as u32
    }

    /// Distance between the rows of one warp. In the 128x4 layout rows 32
    /// apart share 16 bytes, so that one load brings the scales of four rows.
    pub const fn row_step(&self) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => 1,
            ScaleLayout::Blocked128x4 => 32,
        }
    }

    /// Row groups (a warp's work) of one matrix with `m` rows.
    ///
    /// Linear: group `g` holds rows `g*R ..`. 128x4: group `g` holds rows
    /// `(g/32)*128 + g%32 + 32*i`; groups of a last partial tile whose first
    /// row exists.
    pub const fn row_groups(&self, m: u32) -> u32 {
        match self.scale_layout {
            ScaleLayout::Linear => m.div_ceil(self.rows_per_warp),
            ScaleLayout::Blocked128x4 => {
                let tail = m % 128;
                m / 128 * 32 + if tail < 32 { tail } else { 32 }
            }
        }
    }

    /// CTAs' worth of work in one batch entry.
    pub const fn tiles(&self, m: u32) -> u32 {
        self.row_groups(m).div_ceil(self.warps)
    }

    /// f32 additions, one after the other, that lead to a result: those of a
    /// lane's blocks, then log2(32) across the warp. Bounds the rounding error.
    pub const fn additions(&self, k: u32) -> u32 {
        let panels = k / PANEL;
        let steps = (PANEL / self.chunk_elements()).div_ceil(WARP) * panels
            + (k % PANEL / self.chunk_elements()).div_ceil(WARP);
        steps * self.chunk_blocks() + WARP.ilog2()
    }

    /// Whether rows of `k` elements are aligned enough for this configuration.
    pub const fn takes_k(&self, k: u32) -> bool {
        k > 0 && k.is_multiple_of(self.chunk_elements())
    }
}

/// Bytes that one decoded element of the vector takes in shared memory: a
/// signed byte for the integer path, an f16 for the conversion path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorElement {
    /// Twice the value as i8, where e2m1 is not converted in hardware: products are integer.
    I8 = 1,
    /// The value as f16, where it is.
    F16 = 2,
}

impl VectorElement {
    /// What the kernels for `arch` decode the vector to.
    pub const fn of(arch: Arch) -> Self {
        match arch.e2m1() {
            Conversion::Emulated => Self::I8,
            Conversion::Hardware => Self::F16,
        }
    }
}

/// Dynamic shared memory of a CTA, bytes: one panel of decoded elements, then
/// one f32 scale a block.
pub const fn shared_bytes(k: u32, element: VectorElement) -> u32 {
    let resident = if k < PANEL { k } else { PANEL };
    resident * element as u32 + resident / Nvfp4::BLOCK as u32 * size_of::<f32>() as u32
}

/// What a launch geometry depends on besides the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Shared memory of one, bytes.
    pub shared_bytes: u32,
    /// What its kernels decode the vector to.
    pub element: VectorElement,
}

impl GemvConfig {
    /// CTAs that one SM holds: what registers were bounded for, less where
    /// shared memory does not suffice. The system keeps 1 KiB a CTA.
    pub const fn ctas_per_sm(&self, k: u32, machine: &Machine) -> u32 {
        let by_shared = machine.shared_bytes / (shared_bytes(k, machine.element) + 1024);
        let ctas = if by_shared < self.min_blocks { by_shared } else { self.min_blocks };
        if ctas == 0 { 1 } else { ctas }
    }

    /// CTAs of one batch entry: one wave of resident CTAs over all entries, at
    /// most one a tile.
    pub const fn grid_x(&self, m: u32, k: u32, l: u32, machine: &Machine) -> u32 {
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

/// The configuration for `A` of [l, m, k] with scales in `layout`, and why.
/// `None` if k is not a positive multiple of 16.
///
/// First tuning, measured on an H200 (`benches/record`).
pub const fn choose(
    m: u32,
    k: u32,
    l: u32,
    layout: ScaleLayout,
    machine: &Machine,
) -> Option<(&'static GemvConfig, Reason)> {
    if k == 0 || !k.is_multiple_of(Nvfp4::BLOCK as u32) {
        return None;
    }
    let wide = k.is_multiple_of(32);
    let rows = m as u64 * l as u64;
    // Warps to give every SM sixteen when each carries two rows.
    let few_rows = rows < 2 * 16 * machine.sms as u64;
    Some(match layout {
        ScaleLayout::Linear => match (wide, few_rows) {
            (false, false) => (&CONFIGS[3], "rows are only 8-byte aligned"),
            (false, true) => (&CONFIGS[4], "rows are only 8-byte aligned, and few"),
            (true, true) => (&CONFIGS[2], "few rows: one a warp, to occupy more SMs"),
            (true, false) if k > 4096 => {
                (&CONFIGS[0], "long rows: more warps share a staged vector")
            }
            (true, false) => (&CONFIGS[1], "short rows: small CTAs start and end independently"),
        },
        ScaleLayout::Blocked128x4 => match wide {
            false => (&CONFIGS[7], "128x4 scales, rows are only 8-byte aligned"),
            true if k > 8192 && !few_rows => {
                (&CONFIGS[5], "128x4 scales, long rows: more warps share a staged vector")
            }
            true => (&CONFIGS[6], "128x4 scales: four rows share a scale word"),
        },
    })
}

/// All configurations; a kernel for each is in the PTX of both architectures.
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

    const H200: Machine = Machine { sms: 132, shared_bytes: 233_472, element: VectorElement::I8 };

    /// Every row belongs to exactly one row group, and groups have only rows
    /// whose first exists.
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
            a_codes: 1,
            a_scales: 2,
            b_codes: 3,
            b_scales: 4,
            out: 5,
            a_scale_stride: 6,
            b_scale_stride: 0x0102_0304_0506_0708,
            m: 8,
            k: 9,
            l: 10,
            alpha: f32::from_bits(11),
            out_type: 12,
            b_blocked: 0x0d0e_0f10,
        };
        let bytes = params.to_bytes();
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let narrow = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_codes)), 1);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_scales)), 2);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_codes)), 3);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_scales)), 4);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, out)), 5);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, a_scale_stride)), 6);
        assert_eq!(wide(core::mem::offset_of!(GemvParams, b_scale_stride)), params.b_scale_stride);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, m)), 8);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, k)), 9);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, l)), 10);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, alpha)), 11);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, out_type)), 12);
        assert_eq!(narrow(core::mem::offset_of!(GemvParams, b_blocked)), 0x0d0e_0f10);
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
        // 512 chunks of two blocks over 32 lanes, then five exchanges.
        assert_eq!(CONFIGS[0].additions(16384), 16 * 2 + 5);
        assert_eq!(CONFIGS[0].additions(32), 2 + 5);
        assert_eq!(CONFIGS[0].additions(16384 + 32), 17 * 2 + 5);
        assert_eq!(CONFIGS[3].additions(16), 1 + 5);
    }

    #[test]
    fn shared_memory_is_bounded_by_the_panel() {
        assert_eq!(shared_bytes(16, VectorElement::I8), 16 + 4);
        assert_eq!(shared_bytes(16384, VectorElement::I8), 16384 + 4096);
        assert_eq!(shared_bytes(1 << 20, VectorElement::F16), 2 * 16384 + 4096);
    }
}
