//! GEMM on sm_120f: block-scaled products by `mma.sync` for activations in blocks, and in e4m3 beside MXFP4; sm_80's
//! kernels for others.

use std::marker::PhantomData;
use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::sm80::Sm80Config;
use fp4_formats::gemm::sm120::{Sm120Config, Sm120GroupedParams, Sm120Own, Sm120Params};
use fp4_formats::gemm::{Adding, NextWeights};
use fp4_formats::layout::TILE_BLOCKS;
use fp4_formats::quantize::Format;
use fp4_formats::{Operand, ScaleLayout, TensorFamily};

use super::candidate::Request;
use super::check::multiplied;
use super::family::{Family, Kernel};
use super::form::{BlockRows, PlacedWeights};
use super::fragments::{FragmentFamily, FragmentKernel, Fragments, Placed};
use super::groups::GroupRequest;
use super::{ActivationKind, WeightForm};
use crate::device::Device;
use crate::error::Result;

/// The kernels of sm_120f. Repacked weights beside 16-bit activations are those of [`TensorFamily::MmaSync`], whose
/// family has all that follows from their order.
pub(super) struct Sm120;

/// The kernels of block-scaled products, and those of others.
const BLOCKS: FragmentFamily<Sm120Config> = FragmentFamily(PhantomData);
const OTHERS: FragmentFamily<Sm80Config> = FragmentFamily(PhantomData);

/// The kernels that take activations of `kind` beside weights in `format`.
fn of_kind(format: Format, kind: ActivationKind) -> &'static dyn Family {
    match multiplied(TensorFamily::MmaSyncScaled, format, kind).activations {
        None | Some(Operand::E4m3) => &BLOCKS,
        Some(Operand::Half(_)) => &OTHERS,
    }
}

/// The kernels that take what is asked for.
fn of_request(request: &Request<'_>) -> &'static dyn Family {
    of_kind(request.asked.format, request.asked.activations)
}

impl Family for Sm120 {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        of_request(request).candidates(request)
    }

    fn grouped(
        &self,
        request: &Request<'_>,
        groups: &GroupRequest,
    ) -> Result<Vec<Arc<dyn Kernel>>> {
        of_request(request).grouped(request, groups)
    }

    fn mixed(&self, requests: &[Request<'_>]) -> Result<Vec<Arc<dyn Kernel>>> {
        // All products of a launch have operands of the same formats.
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        of_request(first).mixed(requests)
    }

    fn token_tiles(&self, format: Format, kind: ActivationKind, adding: Adding) -> Vec<usize> {
        of_kind(format, kind).token_tiles(format, kind, adding)
    }

    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        sizes: [u32; 2],
    ) -> Result<WeightForm> {
        of_kind(format, kind).weight_form(format, kind, sizes)
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        BLOCKS.weight_bytes(form, batch)
    }

    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<Lost> {
        BLOCKS.repack(form, weights, bytes)
    }

    fn next_weights(&self, weights: PlacedWeights) -> NextWeights {
        BLOCKS.next_weights(weights)
    }
}

impl Fragments for Sm120Config {
    const TENSOR: TensorFamily = TensorFamily::MmaSyncScaled;
    const NEXT_CHUNKS: u32 = 0;
    const TOKEN_BYTES: Option<u64> = Some(u32::MAX as u64);
    const FOLDS: bool = false;
    type Params = Sm120Params;
    type GroupedParams = Sm120GroupedParams;

    fn params(kernel: &FragmentKernel<Self>, placed: Placed, _: &Device) -> Result<Sm120Params> {
        // Blocks always have scales, and e4m3 has none of blocks.
        let (scales, layout, scale_stride) = placed.blocks.unwrap_or((0, ScaleLayout::Linear, 0));
        let in_row = u64::from(kernel.problem.k / kernel.estimate.config.format.block());
        let aligned = |value: u64| value.is_multiple_of(TILE_BLOCKS as u64);
        let rows_aligned = match layout {
            ScaleLayout::Linear => aligned(in_row),
            ScaleLayout::Blocked128x4 => true,
        };
        let whole_words = rows_aligned && aligned(scales) && aligned(scale_stride);
        let own = Sm120Own {
            scales,
            scale_stride,
            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            whole_words: u32::from(whole_words),
        };
        Ok(placed.params(kernel, own))
    }
}
