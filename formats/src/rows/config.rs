//! Configurations of the kernels.

use super::CHUNK;
use super::arithmetic::GROUP;
use crate::layout::{ScaleLayout, TILE_ROWS};
use crate::{HalfType, WARP};

/// The kind of a kernel's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowsSink {
    /// NVFP4 by a recipe whose block scales depend on the largest magnitude.
    Nvfp4,
    /// NVFP4 by a recipe with adaptive block scales.
    Adaptive,
    /// MXFP4.
    Mxfp4,
    /// e4m3 with a scale for each row.
    E4m3,
    /// The input's type.
    Half,
}

impl RowsSink {
    /// All of them, in the order of [`ROWS`].
    pub const ALL: [Self; 5] = [Self::Nvfp4, Self::Adaptive, Self::Mxfp4, Self::E4m3, Self::Half];

    /// Elements of a row come in multiples of this.
    #[must_use]
    pub const fn granularity(self) -> u32 {
        match self {
            Self::Nvfp4 | Self::Adaptive | Self::E4m3 | Self::Half => CHUNK as u32,
            Self::Mxfp4 => 2 * CHUNK as u32,
        }
    }
}

/// The configuration of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsConfig {
    /// Entry name in the PTX module of every architecture.
    pub name: &'static str,
    /// Kind of the results.
    pub sink: RowsSink,
    /// Whether the input is two matrices, `act(gate) * up`, instead of one.
    pub gated: bool,
    /// Type of the input.
    pub input: HalfType,
}

impl RowsConfig {
    /// Most threads of a CTA, and threads that an SM has at a time; bounds the registers.
    pub const MAX_THREADS: u32 = 512;
    /// Chunks of a row that a thread keeps in registers; further ones it reads again, from L2, for each pass over the row.
    pub const KEPT: usize = 2;

    /// Elements of a row that a CTA of so many threads keeps in registers.
    #[must_use]
    pub const fn kept(threads: u32) -> u32 {
        threads * (Self::KEPT * CHUNK) as u32
    }

    /// The launch for `m` rows of `k` elements on a GPU with `sms` SMs: CTAs, and their threads.
    ///
    /// A CTA takes rows in turn. If there are fewer rows than SMs, it has a thread for each chunk, so that all loads are
    /// on their way at once; otherwise threads keep [`KEPT`](Self::KEPT) chunks, and more CTAs share an SM. With 128x4
    /// scales the rows of padding count, too.
    #[must_use]
    pub const fn launch([m, k]: [u32; 2], layout: ScaleLayout, sms: u32) -> (u32, u32) {
        let groups = (k / CHUNK as u32).div_ceil(GROUP as u32);
        let warps = if m <= sms { groups } else { groups.div_ceil(Self::KEPT as u32) };
        let most = Self::MAX_THREADS / WARP;
        let threads = if warps > most { most } else { warps } * WARP;
        let rows = match layout {
            ScaleLayout::Linear => m,
            ScaleLayout::Blocked128x4 => m.next_multiple_of(TILE_ROWS as u32),
        };
        let together = Self::MAX_THREADS / threads;
        let resident = sms as u64 * together as u64;
        (if (rows as u64) < resident { rows } else { resident as u32 }, threads)
    }
}

macro_rules! rows {
    ($($sink:ident: $f16:literal, $bf16:literal, $gated_f16:literal, $gated_bf16:literal;)*) => {
        [$(
            RowsConfig { name: $f16, sink: RowsSink::$sink, gated: false, input: HalfType::F16 },
            RowsConfig { name: $bf16, sink: RowsSink::$sink, gated: false, input: HalfType::Bf16 },
            RowsConfig { name: $gated_f16, sink: RowsSink::$sink, gated: true, input: HalfType::F16 },
            RowsConfig { name: $gated_bf16, sink: RowsSink::$sink, gated: true, input: HalfType::Bf16 },
        )*]
    };
}

/// All configurations. The PTX of each architecture has one kernel for each.
pub const ROWS: [RowsConfig; 20] = rows! {
    Nvfp4: "rows_nvfp4_f16", "rows_nvfp4_bf16", "rows_gated_nvfp4_f16", "rows_gated_nvfp4_bf16";
    Adaptive: "rows_adaptive_f16", "rows_adaptive_bf16", "rows_gated_adaptive_f16", "rows_gated_adaptive_bf16";
    Mxfp4: "rows_mxfp4_f16", "rows_mxfp4_bf16", "rows_gated_mxfp4_f16", "rows_gated_mxfp4_bf16";
    E4m3: "rows_e4m3_f16", "rows_e4m3_bf16", "rows_gated_e4m3_f16", "rows_gated_e4m3_bf16";
    Half: "rows_half_f16", "rows_half_bf16", "rows_gated_half_f16", "rows_gated_half_bf16";
};

/// The configuration for these results of one matrix, or gated of two.
#[must_use]
pub const fn rows_config(sink: RowsSink, gated: bool, input: HalfType) -> &'static RowsConfig {
    let half = match input {
        HalfType::F16 => 0,
        HalfType::Bf16 => 1,
    };
    &ROWS[sink as usize * 4 + gated as usize * 2 + half]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_what_was_asked_for() {
        for sink in RowsSink::ALL {
            for gated in [false, true] {
                for input in [HalfType::F16, HalfType::Bf16] {
                    let config = rows_config(sink, gated, input);
                    assert_eq!((config.sink, config.gated, config.input), (sink, gated, input));
                }
            }
        }
    }

    #[test]
    fn launches_fit_the_rows() {
        let launch = |m, k| RowsConfig::launch([m, k], ScaleLayout::Linear, 132);
        assert_eq!(launch(1, 16), (1, 32));
        assert_eq!(launch(64, 7168), (64, 448));
        assert_eq!(launch(4096, 7168), (2 * 132, 224));
        assert_eq!(launch(4096, 65536), (132, 512));
        assert_eq!(launch(8192, 128), (16 * 132, 32));
        let padded = RowsConfig::launch([129, 16], ScaleLayout::Blocked128x4, 132);
        assert_eq!(padded, (256, 32));
    }
}
