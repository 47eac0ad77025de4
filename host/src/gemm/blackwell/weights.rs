//! Weights for sm_100a: padded for the copy engine.

use fp4_formats::gemm::blackwell::prepare::PreparedBlocks;
use fp4_formats::{BlockFormat, ScaleLayout};

use crate::error::{Error, Result, filled};
use crate::gemm::check::{formats, size};
use crate::gemm::{ActivationKind, format_of};
use crate::shape::MAX_DIM;
use crate::tensor::BlockScaled;

/// Pads `weights` for the kernels.
///
/// # Errors
/// [`Error::Shape`] for activations or sizes that no kernel takes, [`Error::Memory`].
pub(in crate::gemm) fn repack<F: BlockFormat>(
    weights: &BlockScaled<F>,
    kind: ActivationKind,
) -> Result<(PreparedBlocks, Vec<u8>)> {
    let format = format_of::<F>();
    formats(format, kind)?;
    let dims = weights.dims();
    let blocks = PreparedBlocks {
        format,
        rows: size("N", dims.rows(), MAX_DIM)?,
        columns: size("K", dims.cols(), MAX_DIM)?,
        batch: size("batch", dims.batch(), MAX_DIM)?,
    };
    let total = blocks.bytes().and_then(|bytes| usize::try_from(bytes).ok());
    let total = total.ok_or_else(|| Error::Overflow {
        what: format!("repacked `{}`", weights.name()),
        detail: format!("{} x {} x {}", dims.batch(), dims.rows(), dims.cols()),
    })?;
    let mut bytes = filled("repacked weights", total, 0u8)?;
    let stride = blocks.row_stride() as usize;
    for batch in 0..dims.batch() {
        for row in 0..dims.rows() {
            let codes = weights.row_codes(batch, row);
            bytes[(batch * dims.rows() + row) * stride..][..codes.len()].copy_from_slice(codes);
        }
    }
    let scales = weights.to_layout(ScaleLayout::Blocked128x4)?;
    let codes = blocks.code_stride() * u64::from(blocks.batch);
    bytes[PreparedBlocks::scales_at(codes) as usize..].copy_from_slice(scales.scales());
    Ok((blocks, bytes))
}
