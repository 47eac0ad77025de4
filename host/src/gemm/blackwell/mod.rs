//! GEMM on sm_100a: 4-bit operands stay as they are, multiplied with their scales by the
//! tensor core; beside 16-bit activations, weights are decoded on the way there.
//!
//! Weights are padded once at load: rows of codes to multiples of 16 bytes, scales to whole
//! tiles of the 128x4 layout. Activations that need it are laid out in the workspace by
//! launches before the product.

mod kernel;
mod launch;
mod prepare;

use std::sync::Arc;

use fp4_formats::gemm::blackwell::choose::{self, Rates};
use fp4_formats::gemm::blackwell::prepare::PreparedBlocks;
use fp4_formats::gemm::blackwell::{BlackwellConfig, CONFIGS};
use fp4_formats::quantize::Format;
use fp4_formats::{HalfType, TensorFamily};

use super::check::formats;
use super::family::{Family, GroupRequest, Kernel};
use super::plan::Request;
use super::weights::BlockRows;
use super::{ActivationKind, WeightForm};
use crate::error::{Error, Result};
use kernel::BlackwellKernel;

/// `tcgen05`.
pub(super) struct Blackwell;

/// The type of 16-bit activations; none for activations in the weights' format.
fn halves(kind: ActivationKind) -> Option<HalfType> {
    match kind {
        ActivationKind::Halves(operand) => Some(operand),
        ActivationKind::Blocks { .. } => None,
    }
}

/// The kernels that take weights in `format` and activations of `kind`.
fn configs(format: Format, kind: ActivationKind) -> impl Iterator<Item = &'static BlackwellConfig> {
    let activations = halves(kind);
    CONFIGS
        .iter()
        .filter(move |config| config.format == format && config.activations == activations)
}

/// `batch` matrices in the order of these kernels.
fn prepared(form: &WeightForm, batch: u32) -> PreparedBlocks {
    let &WeightForm { format, rows, columns, .. } = form;
    PreparedBlocks { format, rows, columns, batch }
}

impl Family for Blackwell {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let (format, kind) = (asked.format, asked.activations);
        formats(format, kind)?;
        request.check_kernel(configs(format, kind).map(|config| config.name))?;
        let machine = Rates { clusters: machine.clusters.at_least_one(), ..Rates::B200 };
        let result = asked.output.planned();
        let mut found: Vec<_> = choose::candidates(format, halves(kind), problem, result, &machine)
            .filter(|found| request.may_be(found.config.name))
            .filter(|found| !asked.gated || found.config.stores_gated(found.swapped))
            .filter(|found| overrides.split.is_none_or(|split| split == found.config.split))
            .collect();
        found.sort_by_key(|found| (found.clocks, found.bytes));
        // Of a configuration's two orientations only the better one.
        let mut seen = Vec::new();
        found.retain(|found| {
            let new = !seen.contains(&found.config.name);
            seen.push(found.config.name);
            new
        });
        let kernel = |choice| BlackwellKernel { problem: *problem, choice };
        Ok(found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect())
    }

    fn grouped(&self, _: &Request<'_>, groups: &GroupRequest) -> Result<Vec<Arc<dyn Kernel>>> {
        let required = "none, as kernels of this architecture take no groups";
        Err(Error::shape("groups", required, groups.problems))
    }

    fn token_tiles(&self, format: Format, kind: ActivationKind) -> Vec<usize> {
        configs(format, kind).map(|config| config.columns as usize).collect()
    }

    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        [rows, columns]: [u32; 2],
    ) -> Result<WeightForm> {
        formats(format, kind)?;
        let tensor = TensorFamily::Tcgen05;
        Ok(WeightForm { tensor, format, activations: None, rows, columns, gated: None })
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        usize::try_from(prepared(form, u32::try_from(batch).ok()?).bytes()?).ok()
    }

    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<()> {
        let dims = weights.dims();
        let blocks = prepared(form, dims.batch() as u32);
        let stride = blocks.row_stride() as usize;
        for batch in 0..dims.batch() {
            for row in 0..dims.rows() {
                let codes = weights.row_codes(batch, row);
                bytes[(batch * dims.rows() + row) * stride..][..codes.len()].copy_from_slice(codes);
            }
        }
        let codes = blocks.code_stride() * u64::from(blocks.batch);
        let scales = PreparedBlocks::scales_at(codes) as usize;
        bytes[scales..].copy_from_slice(&weights.blocked_scales()?);
        Ok(())
    }
}
