//! What of block-scaled activations is laid out before a product on sm_100a.

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::Problem;
use fp4_formats::gemm::blackwell::prepare::{
    self, CODES_NAME, PrepareCodes, PrepareScales, PreparedBlocks, SCALES_NAME,
};
use fp4_formats::quantize::Format;

use crate::gemm::ActivationKind;
use crate::quantize::device::Step;

/// What of the activations is laid out before the product, and where in the workspace.
pub(super) struct Preparation {
    pub blocks: PreparedBlocks,
    layout: ScaleLayout,
    /// Offset of the padded codes.
    pub codes: Option<u64>,
    /// Offset of the laid-out scales.
    pub scales: Option<u64>,
    pub bytes: u64,
}

impl Preparation {
    /// None for 16-bit activations, which are taken as they are.
    pub fn of(problem: &Problem, format: Format, kind: ActivationKind) -> Option<Self> {
        match kind {
            ActivationKind::Blocks { layout, .. } => Some(Self::new(problem, format, layout)),
            ActivationKind::Halves(_) => None,
        }
    }

    pub fn new(problem: &Problem, format: Format, layout: ScaleLayout) -> Self {
        let Problem { m: rows, k: columns, l: batch, .. } = *problem;
        let blocks = PreparedBlocks { format, rows, columns, batch };
        let codes = prepare::codes_need_it(columns).then_some(0);
        let code_bytes = if codes.is_some() { blocks.code_stride() * u64::from(batch) } else { 0 };
        let at = PreparedBlocks::scales_at(code_bytes);
        let scales = prepare::scales_need_it(format, layout, rows, columns).then_some(at);
        let scale_bytes = blocks.scale_stride() * u64::from(batch);
        let bytes = if scales.is_some() { at + scale_bytes } else { code_bytes };
        Self { blocks, layout, codes, scales, bytes }
    }

    pub fn code_params(&self, from: u64, to: u64) -> PrepareCodes {
        let rows = u64::from(self.blocks.rows) * u64::from(self.blocks.batch);
        PrepareCodes { from, to, rows, row_bytes: self.blocks.columns / 2, reserved: 0 }
    }

    pub fn scale_params(&self, from: u64, from_stride: u64, to: u64) -> PrepareScales {
        PrepareScales {
            from,
            to,
            from_stride,
            to_stride: self.blocks.scale_stride(),
            rows: self.blocks.rows,
            blocks: self.blocks.columns / self.blocks.format.block(),
            batch: self.blocks.batch,
            blocked: u32::from(self.layout == ScaleLayout::Blocked128x4),
        }
    }

    pub fn code_step(&self) -> Option<Step> {
        let ctas = self.code_params(0, 0).grid();
        self.codes.map(|_| Step { kernel: CODES_NAME, ctas, threads: prepare::THREADS })
    }

    pub fn scale_step(&self) -> Option<Step> {
        let ctas = self.scale_params(0, 0, 0).grid();
        self.scales.map(|_| Step { kernel: SCALES_NAME, ctas, threads: prepare::THREADS })
    }
}
