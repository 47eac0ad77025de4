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

/// The source of a kernel's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowsSource {
    /// One matrix.
    One,
    /// One matrix with RMSNorm, rows as they are, unrotated, where CTAs [share rows](RowsConfig::few).
    Few,
    /// Two matrices: `act(gate) * up`.
    Gated,
}

impl RowsSource {
    /// All of them, in the order of [`ROWS`].
    pub const ALL: [Self; 3] = [Self::One, Self::Few, Self::Gated];
}

/// The configuration of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsConfig {
    /// Entry name in the PTX module of every architecture.
    pub name: &'static str,
    /// Kind of the results.
    pub sink: RowsSink,
    /// Their source.
    pub source: RowsSource,
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

    /// CTAs that share a row at most.
    pub const MAX_PARTS: u32 = 8;

    /// Groups of 32 chunks, the last of which may have fewer.
    const fn groups(k: u32) -> u32 {
        (k / CHUNK as u32).div_ceil(GROUP as u32)
    }

    /// Rows of results and of the padding of 128x4 scales.
    #[must_use]
    #[inline(always)]
    pub const fn padded(m: u32, layout: ScaleLayout) -> u32 {
        match layout {
            ScaleLayout::Linear => m,
            ScaleLayout::Blocked128x4 => m.next_multiple_of(TILE_ROWS as u32),
        }
    }

    /// The launch for `m` rows of `k` elements on a GPU with `sms` SMs: CTAs, and their threads.
    ///
    /// A CTA takes rows in turn. If there are fewer rows than SMs, it has a thread for each chunk, so that all loads are
    /// on their way at once; otherwise threads keep [`KEPT`](Self::KEPT) chunks, and more CTAs share an SM. With 128x4
    /// scales the rows of padding count, too.
    #[must_use]
    pub const fn launch([m, k]: [u32; 2], layout: ScaleLayout, sms: u32) -> (u32, u32) {
        let groups = Self::groups(k);
        let warps = if m <= sms { groups } else { groups.div_ceil(Self::KEPT as u32) };
        let most = Self::MAX_THREADS / WARP;
        let threads = if warps > most { most } else { warps } * WARP;
        let rows = Self::padded(m, layout);
        let together = Self::MAX_THREADS / threads;
        let resident = sms as u64 * together as u64;
        (if (rows as u64) < resident { rows } else { resident as u32 }, threads)
    }

    /// The launch of a kernel with [`RowsSource::Few`], if there are SMs for two CTAs a row or more, and a CTA's threads have a chunk
    /// each. With 128x4 scales the rows of padding count, too.
    #[must_use]
    pub const fn few([m, k]: [u32; 2], layout: ScaleLayout, sms: u32) -> Option<(u32, u32)> {
        let (rows, threads) = (Self::padded(m, layout), Self::groups(k) * WARP);
        let parts = Self::parts(rows, sms);
        if parts == 1 || threads > Self::MAX_THREADS {
            return None;
        }
        Some((rows * parts, threads))
    }

    /// CTAs that share each of `rows` rows, padding included, in a launch of `ctas` or on so many SMs: a power of two.
    #[must_use]
    #[inline(always)]
    pub const fn parts(rows: u32, ctas: u32) -> u32 {
        let mut parts = 1;
        while parts < Self::MAX_PARTS && 2 * parts as u64 * rows as u64 <= ctas as u64 {
            parts *= 2;
        }
        parts
    }

    /// The part that warp `warp` of a CTA works for, of `parts`, which are [a power of two](Self::parts). Warps of a part are of
    /// different quarters of an SM, and the first 8 or 16 warps are dealt out evenly.
    #[must_use]
    #[inline(always)]
    pub const fn part_of(warp: u32, parts: u32) -> u32 {
        (warp & 4 | (warp + warp / 4) & 3) & (parts - 1)
    }
}

macro_rules! rows {
    ($($sink:ident, $source:ident: $f16:literal, $bf16:literal;)*) => {
        [$(
            RowsConfig { name: $f16, sink: RowsSink::$sink, source: RowsSource::$source, input: HalfType::F16 },
            RowsConfig { name: $bf16, sink: RowsSink::$sink, source: RowsSource::$source, input: HalfType::Bf16 },
        )*]
    };
}

/// All configurations. The PTX of each architecture has one kernel for each.
pub const ROWS: [RowsConfig; 30] = rows! {
    Nvfp4, One: "rows_nvfp4_f16", "rows_nvfp4_bf16";
    Nvfp4, Few: "rows_few_nvfp4_f16", "rows_few_nvfp4_bf16";
    Nvfp4, Gated: "rows_gated_nvfp4_f16", "rows_gated_nvfp4_bf16";
    Adaptive, One: "rows_adaptive_f16", "rows_adaptive_bf16";
    Adaptive, Few: "rows_few_adaptive_f16", "rows_few_adaptive_bf16";
    Adaptive, Gated: "rows_gated_adaptive_f16", "rows_gated_adaptive_bf16";
    Mxfp4, One: "rows_mxfp4_f16", "rows_mxfp4_bf16";
    Mxfp4, Few: "rows_few_mxfp4_f16", "rows_few_mxfp4_bf16";
    Mxfp4, Gated: "rows_gated_mxfp4_f16", "rows_gated_mxfp4_bf16";
    E4m3, One: "rows_e4m3_f16", "rows_e4m3_bf16";
    E4m3, Few: "rows_few_e4m3_f16", "rows_few_e4m3_bf16";
    E4m3, Gated: "rows_gated_e4m3_f16", "rows_gated_e4m3_bf16";
    Half, One: "rows_half_f16", "rows_half_bf16";
    Half, Few: "rows_few_half_f16", "rows_few_half_bf16";
    Half, Gated: "rows_gated_half_f16", "rows_gated_half_bf16";
};

/// The configuration for these results.
#[must_use]
pub const fn rows_config(
    sink: RowsSink,
    source: RowsSource,
    input: HalfType,
) -> &'static RowsConfig {
    let half = match input {
        HalfType::F16 => 0,
        HalfType::Bf16 => 1,
    };
    &ROWS[(sink as usize * RowsSource::ALL.len() + source as usize) * 2 + half]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_what_was_asked_for() {
        for sink in RowsSink::ALL {
            for source in RowsSource::ALL {
                for input in [HalfType::F16, HalfType::Bf16] {
                    let config = rows_config(sink, source, input);
                    assert_eq!((config.sink, config.source, config.input), (sink, source, input));
                }
            }
        }
    }

    #[test]
    fn few_rows_are_shared() {
        let few = |m, k, layout| RowsConfig::few([m, k], layout, 132);
        assert_eq!(few(1, 16, ScaleLayout::Linear), Some((8, 32)));
        assert_eq!(few(16, 8192, ScaleLayout::Linear), Some((128, 512)));
        assert_eq!(few(33, 8192, ScaleLayout::Linear), Some((132, 512)));
        assert_eq!(few(34, 7168, ScaleLayout::Linear), Some((68, 448)));
        assert_eq!(few(66, 7168, ScaleLayout::Linear), Some((132, 448)));
        assert_eq!(few(67, 7168, ScaleLayout::Linear), None);
        assert_eq!(few(1, 8208, ScaleLayout::Linear), None);
        assert_eq!(few(1, 16, ScaleLayout::Blocked128x4), None);
        let large = RowsConfig::few([1, 16], ScaleLayout::Blocked128x4, 256);
        assert_eq!(large, Some((256, 32)));
        for parts in [1, 2, 4, 8] {
            for warps in [8, 16] {
                let own =
                    |part| (0..warps).filter(move |&warp| RowsConfig::part_of(warp, parts) == part);
                assert!(
                    (0..parts).all(|part| own(part).count() as u32 == warps / parts),
                    "{parts}"
                );
                // Four quarters of an SM, or as many as there are warps.
                let quarters = |part| own(part).fold(0u32, |seen, warp| seen | 1 << (warp % 4));
                let least = (warps / parts).min(4);
                assert!(
                    (0..parts).all(|part| quarters(part).count_ones() == least),
                    "{parts} {warps}"
                );
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
