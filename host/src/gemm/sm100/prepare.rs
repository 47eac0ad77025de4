//! The launches that lay out block-scaled activations before a product on sm_100a.

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::prepare::{
    self, CODES_NAME, GROUPED_SCALES_NAME, PrepareCodes, PrepareGroupedScales, PrepareScales,
    PreparedBlocks, SCALES_NAME,
};
use fp4_formats::gemm::{Groups, Problem};
use fp4_formats::layout::TILE_ROWS;

use crate::gemm::ActivationKind;
use crate::gemm::strides::Entries;
use crate::quantize::device::PlannedKernel;

/// The part of the activations that is laid out before the product, and its place behind
/// [`Sm100Workspace::activations`](super::workspace::Sm100Workspace::activations): nothing if the
/// kernel loads them.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    /// The matrices that are different.
    pub blocks: PreparedBlocks,
    /// Launches that pad codes: one, or one a matrix where something is between them.
    code_launches: u32,
    pub layout: ScaleLayout,
    /// The groups of a grouped product, with nothing in memory.
    groups: Option<Groups>,
    /// Offset of the padded codes.
    pub codes: Option<u64>,
    /// Offset of the laid-out scales.
    pub scales: Option<u64>,
    pub bytes: u64,
}

impl Preparation {
    /// None for activations that are not block-scaled.
    pub fn of(
        config: &Sm100Config,
        problem: &Problem,
        kind: ActivationKind,
        entries: Entries,
        groups: Option<Groups>,
    ) -> Option<Self> {
        match kind {
            ActivationKind::Blocks { layout, .. } => {
                Some(Self::new(config, problem, layout, entries, groups))
            }
            ActivationKind::Halves(_) | ActivationKind::Fp8(_) => None,
        }
    }

    pub fn new(
        config: &Sm100Config,
        problem: &Problem,
        layout: ScaleLayout,
        entries: Entries,
        groups: Option<Groups>,
    ) -> Self {
        let Problem { m: rows, k: columns, l, .. } = *problem;
        let (batch, code_launches) = match entries {
            Entries::Dense => (l, 1),
            Entries::Shared => (1, 1),
            Entries::Apart => (l, l),
        };
        let (format, loads) = (config.format, config.loads_tokens());
        let blocks = PreparedBlocks { format, beside_bytes: false, rows, columns, batch };
        let codes = (!loads && prepare::codes_need_it(columns)).then_some(0);
        let code_bytes = if codes.is_some() { blocks.code_bytes() * u64::from(batch) } else { 0 };
        let at = PreparedBlocks::scales_at(code_bytes);
        // Scales of a problem begin where its tokens do: perhaps inside a tile.
        let needed =
            groups.is_some() || !loads && prepare::scales_need_it(format, layout, rows, columns);
        let scale_bytes = match &groups {
            Some(groups) => PrepareGroupedScales::bytes(groups, columns / format.block()),
            None => blocks.scale_bytes() * u64::from(batch),
        };
        let bytes = if needed { at + scale_bytes } else { code_bytes };
        let scales = needed.then_some(at);
        Self { blocks, code_launches, layout, groups, codes, scales, bytes }
    }

    /// Rows and matrices of the scales as the product takes them.
    pub fn scale_sizes(&self) -> [u32; 2] {
        match &self.groups {
            // Their bytes fit the workspace.
            Some(groups) => [groups.scale_tiles() as u32 * TILE_ROWS as u32, 1],
            None => [self.blocks.rows, self.blocks.batch],
        }
    }

    /// Launch `index` of [`code_launches`](Self::code_launches); matrices are `from_stride` bytes apart.
    pub fn code_params(&self, index: u32, from: u64, from_stride: u64, to: u64) -> PrepareCodes {
        let index = u64::from(index);
        PrepareCodes {
            from: from + index * from_stride,
            to: to + index * self.blocks.code_bytes(),
            rows: u64::from(self.blocks.rows) * u64::from(self.blocks.batch / self.code_launches),
            row_bytes: self.blocks.columns / 2,
            reserved: 0,
        }
    }

    pub fn scale_params(&self, from: u64, from_stride: u64, to: u64) -> PrepareScales {
        PrepareScales {
            from,
            to,
            from_stride,
            to_stride: self.blocks.scale_bytes(),
            rows: self.blocks.rows,
            blocks: self.blocks.columns / self.blocks.format.block(),
            batch: self.blocks.batch,
            blocked: u32::from(self.layout == ScaleLayout::Blocked128x4),
            row_tiles: PrepareScales::row_tiles(self.blocks.rows),
            reserved: 0,
        }
    }

    /// Launches that pad codes.
    pub fn code_launches(&self) -> u32 {
        if self.codes.is_some() { self.code_launches } else { 0 }
    }

    fn code_steps(&self) -> Vec<PlannedKernel> {
        let ctas = self.code_params(0, 0, 0, 0).grid();
        let step = PlannedKernel { kernel: CODES_NAME, ctas, threads: prepare::THREADS };
        vec![step; self.code_launches() as usize]
    }

    fn scale_step(&self) -> Option<PlannedKernel> {
        let scales = self.scale_params(0, 0, 0);
        let (kernel, ctas) = match self.groups {
            Some(groups) => (GROUPED_SCALES_NAME, PrepareGroupedScales { scales, groups }.grid()),
            None => (SCALES_NAME, scales.grid()),
        };
        self.scales.map(|_| PlannedKernel { kernel, ctas, threads: prepare::THREADS })
    }

    /// All launches, in order.
    pub fn steps(&self) -> Vec<PlannedKernel> {
        let mut steps = self.code_steps();
        steps.extend(self.scale_step());
        steps
    }
}
