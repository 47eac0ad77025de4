//! The kernel of a GEMV and the division of its launch among CTAs.

use fp4_formats::gemv::{CONFIGS, GemvConfig, MAX_WARPS, MIN_BLOCKS};
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, WARP};

/// Rows of a CTA at most, which bounds the shared memory: an f32 for each row and warp.
pub const MAX_ROWS: u32 = 256;

/// Division of a GEMV among the CTAs of a launch.
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
    /// Divides the launch for weights of shape `[l, m, k]`, all at least 1, on a GPU of `sms` SMs.
    ///
    /// A wave of resident CTAs shares the batch entries, or fewer, so that each has a multiple of
    /// the rows in flight: on an H200 that is faster, for few rows as well, and
    /// leaves room in which the stream's next kernel starts. If `ctas` are given, so many share a
    /// batch entry.
    #[must_use]
    pub const fn new(
        config: &GemvConfig,
        [m, k, l]: [u32; 3],
        sms: u32,
        ctas: Option<u32>,
    ) -> Self {
        let chunks = k / config.chunk_elements();
        let panels = chunks.div_ceil(MAX_WARPS * WARP);
        let panel = chunks.div_ceil(panels);
        let warps = panel.div_ceil(WARP);
        let ctas_per_sm = MAX_WARPS * MIN_BLOCKS / warps;
        let groups = config.row_groups(m);
        let ctas = match ctas {
            Some(ctas) => ctas,
            None => {
                let wave = sms * ctas_per_sm / l;
                let share = groups.div_ceil(if wave == 0 { 1 } else { wave });
                let share = share.next_multiple_of(config.groups_in_flight());
                let most = MAX_ROWS / config.group_rows();
                groups.div_ceil(if share < most { share } else { most })
            }
        };
        let (share, rest) = (groups / ctas, groups % ctas);
        let rows = groups.div_ceil(ctas) as u64 * config.group_rows() as u64;
        Self { panel, panels, warps, ctas_per_sm, ctas, share, rest, rows }
    }

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

/// The kernel for rows of `k` elements with scales in `layout`, and why. `None` if `k` is not a
/// positive multiple of 16.
pub const fn choose(k: u32, layout: ScaleLayout) -> Option<(&'static GemvConfig, &'static str)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use fp4_formats::ScaleLayout::{Blocked128x4, Linear};

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
                        let g = Geometry::new(config, [m, k, l], 132, None);
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
        let geometry = |m, k, l| Geometry::new(&CONFIGS[0], [m, k, l], 132, None);
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
            |config: &GemvConfig, k| Geometry::new(config, [1, k, 1], 132, None).additions(config);
        assert_eq!(additions(&CONFIGS[0], 32), 2 + 5 + 1);
        assert_eq!(additions(&CONFIGS[0], 16384), 2 + 5 + 16);
        assert_eq!(additions(&CONFIGS[0], 16384 + 32), 2 + 5 + 1 + 9);
        assert_eq!(additions(&CONFIGS[1], 16), 1 + 5 + 1);
    }
}
