//! GEMM on sm_100a: 4-bit operands stay as they are, multiplied with their scales by the
//! tensor core; beside 16-bit activations, weights are decoded on the way there. Beside activations in
//! e4m3, MXFP4 weights stay as they are and NVFP4 weights are folded to e4m3.
//!
//! Weights are padded once at load, one matrix after the other: rows of codes to multiples of 16
//! bytes, and behind them scales to whole tiles of the 128x4 layout. Activations that need it are
//! laid out in the workspace by launches before the product.

mod kernel;
mod launch;
mod prepare;
mod vector;
mod workspace;

use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::sm100::prepare::PreparedBlocks;
use fp4_formats::gemm::sm100::{CONFIGS, GROUPED, MIXED, STEP_BYTES, Sm100Config, folded};
use fp4_formats::gemm::{Adding, NextWeights, Problem, Split};
use fp4_formats::layout::TILE_ROWS;
use fp4_formats::quantize::Format;
use fp4_formats::{Divisor, Operand, TensorFamily};
use rayon::prelude::*;

use super::candidate::Request;
use super::check::{check_unsplit, operands};
use super::family::{Family, Kernel};
use super::form::{BlockRows, PlacedWeights, fold, range};
use super::groups::GroupRequest;
use super::{ActivationKind, WeightForm};
use crate::error::{Error, Result};
use crate::plan::sm100::{self as estimate, Estimate};
use kernel::Sm100Kernel;
pub(crate) use vector::{VectorOperands, VectorProduct, rates};

/// `tcgen05`.
pub(super) struct Sm100;

/// The type of the activations that are multiplied; none for those in the weights' format.
fn operand(kind: ActivationKind) -> Option<Operand> {
    match kind {
        ActivationKind::Halves(half) => Some(Operand::Half(half)),
        ActivationKind::Blocks { .. } => None,
        ActivationKind::Fp8(_) => Some(Operand::E4m3),
    }
}

/// The kernels that take weights in `format` and activations of `kind`.
fn configs(format: Format, kind: ActivationKind) -> impl Iterator<Item = &'static Sm100Config> {
    let activations = operand(kind);
    CONFIGS
        .iter()
        .filter(move |config| config.format == format && config.activations == activations)
}

/// Sorts by cost, and leaves of a configuration's two orientations with the same split only the better one.
fn best_first(found: &mut Vec<Estimate>) {
    found.sort_by_key(Estimate::rank);
    let mut seen = Vec::new();
    found.retain(|found| {
        let way = (found.config.name, found.split);
        let new = !seen.contains(&way);
        seen.push(way);
        new
    });
}

/// `batch` matrices in the order of these kernels.
fn prepared(form: &WeightForm, batch: u32) -> PreparedBlocks {
    let &WeightForm { format, activations, rows, columns, .. } = form;
    PreparedBlocks { format, beside_bytes: activations.is_some(), rows, columns, batch }
}

/// Folds a matrix of NVFP4 to its rows of codes, `stride` bytes each, and the tiles behind them.
fn fold_matrix(
    weights: &dyn BlockRows,
    batch: usize,
    (codes, tiles): (&mut [u8], &mut [u8]),
    stride: usize,
) -> Lost {
    let rows = weights.dims().rows();
    let steps = stride / folded::ROW_BYTES;
    let groups = codes.par_chunks_mut(TILE_ROWS * stride);
    let groups = groups.zip(tiles.par_chunks_exact_mut(steps * folded::TILES_BYTES));
    let lost = groups.enumerate().map(|(group, (codes, tiles))| {
        let (tiles, _) = tiles.as_chunks_mut();
        let mut lost = Lost::default();
        for row in 0..TILE_ROWS.min(rows - group * TILE_ROWS) {
            let (codes, _) = codes[row * stride..][..stride].as_chunks_mut();
            let at = (batch, group * TILE_ROWS + row);
            let range = range(weights, at.0, at.1);
            for (step, (codes, tiles)) in codes.iter_mut().zip(&mut *tiles).enumerate() {
                let first = step * STEP_BYTES as usize;
                let folded = fold(weights, at, first, range);
                folded::write(&folded, row, codes, tiles);
                lost = lost.and(folded.lost);
            }
        }
        lost
    });
    lost.reduce(Lost::default, Lost::and)
}

impl Family for Sm100 {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let (format, kind) = (asked.format, asked.activations);
        operands(TensorFamily::Tcgen05, format, kind)?;
        request.check_kernel(configs(format, kind).map(|config| config.name))?;
        let sms = machine.sms;
        let machine = rates(*machine);
        let result = asked.output.planned();
        let mut split = overrides.split;
        if overrides.batch_invariant {
            split =
                estimate::invariant_split(format, operand(kind), problem, result, &machine, split);
            match (split, overrides.split) {
                (Some(_), _) => {}
                (None, None) => return Ok(Vec::new()),
                (None, Some(asked)) => {
                    let required =
                        "none, or cluster:N of kernels that split K so, for batch invariance";
                    return Err(Error::shape("split of K", required, asked));
                }
            }
        }
        // Weights are then always the same operand of the instruction.
        let may_turn = !overrides.batch_invariant;
        let mut found: Vec<_> =
            estimate::candidates(format, operand(kind), problem, result, &machine)
                .filter(|found| request.may_be(found.config.name))
                .filter(|found| found.config.stores(result, asked.gated, found.swapped))
                .filter(|found| split.is_none_or(|split| split == found.split))
                .filter(|found| found.swapped || may_turn)
                .collect();
        best_first(&mut found);
        let kernel =
            |choice| Sm100Kernel { problem: *problem, groups: None, mixed: false, sms, choice };
        Ok(found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect())
    }

    fn grouped(
        &self,
        request: &Request<'_>,
        groups: &GroupRequest,
    ) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let (format, kind) = (asked.format, asked.activations);
        operands(TensorFamily::Tcgen05, format, kind)?;
        let configs = GROUPED
            .iter()
            .filter(|config| config.format == format && config.activations == operand(kind));
        request.check_kernel(configs.map(|config| config.name))?;
        if let Some(split) = overrides.split
            && split != Split::None
        {
            return Err(Error::shape("split of K", "none, for a grouped product", split));
        }
        let sms = machine.sms;
        let machine = rates(*machine);
        let result = asked.output.planned();
        let expected = Problem { m: groups.expected[1], l: groups.expected[0], ..*problem };
        let mut found: Vec<_> =
            estimate::grouped(format, operand(kind), &expected, result, &machine)
                .filter(|found| request.may_be(found.config.name))
                .filter(|found| found.config.stores(result, asked.gated, found.swapped))
                .filter(|found| found.swapped || !overrides.batch_invariant)
                .collect();
        best_first(&mut found);
        for choice in &mut found {
            let shape = choice.config.work_shape(choice.swapped);
            let row_tiles = u64::from(problem.n.div_ceil(shape.rows));
            let tiles = groups.most_token_tiles(problem, shape.tokens).saturating_mul(row_tiles);
            // A walk goes one grid beyond the last tile.
            let most = u64::from(Divisor::DIVIDENDS - choice.clusters);
            if tiles >= most {
                return Err(Error::shape("tiles", format!("fewer than {most}"), tiles));
            }
            choice.clusters = choice.clusters.min(tiles.max(1) as u32);
        }
        let kernel = |choice| Sm100Kernel {
            problem: *problem,
            groups: Some(*groups),
            mixed: false,
            sms,
            choice,
        };
        Ok(found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect())
    }

    fn mixed(&self, requests: &[Request<'_>]) -> Result<Vec<Arc<dyn Kernel>>> {
        let mut found: [Vec<Sm100Kernel>; 2] = Default::default();
        for request in requests {
            let Request { problem, asked, machine, overrides } = request;
            let (format, kind) = (asked.format, asked.activations);
            operands(TensorFamily::Tcgen05, format, kind)?;
            let configs = MIXED
                .iter()
                .filter(|config| config.format == format && config.activations == operand(kind));
            request.check_kernel(configs.map(|config| config.name))?;
            check_unsplit(overrides)?;
            let sms = machine.sms;
            let machine = rates(*machine);
            let result = asked.output.planned();
            let choices = estimate::mixed(format, operand(kind), problem, result, &machine);
            for choice in choices {
                if choice.config.stores(result, asked.gated, choice.swapped) {
                    let (problem, groups) = (*problem, None);
                    let kernel = Sm100Kernel { problem, groups, mixed: true, sms, choice };
                    found[usize::from(choice.swapped)].push(kernel);
                }
            }
        }
        // All have the same orientation: the one in which they take least time.
        // The second have the weights as the rows of the tensor core's tiles.
        let turned = requests.iter().any(|request| request.overrides.batch_invariant);
        let takes_all = found.into_iter().skip(usize::from(turned));
        let takes_all = takes_all.filter(|kernels| kernels.len() == requests.len());
        let clocks = |kernels: &Vec<Sm100Kernel>| -> u64 {
            kernels.iter().map(|kernel| kernel.choice.clocks).sum()
        };
        let best = takes_all.min_by_key(clocks).ok_or_else(|| {
            let sizes: Vec<_> = requests.iter().map(|request| request.problem).collect();
            Error::shape("GEMM", "a configuration that takes it", format!("{sizes:?}"))
        })?;
        Ok(best.into_iter().map(|kernel| Arc::new(kernel) as Arc<dyn Kernel>).collect())
    }

    fn token_tiles(&self, format: Format, kind: ActivationKind, _: Adding) -> Vec<usize> {
        configs(format, kind).map(|config| config.columns as usize).collect()
    }

    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        [rows, columns]: [u32; 2],
    ) -> Result<WeightForm> {
        operands(TensorFamily::Tcgen05, format, kind)?;
        let tensor = TensorFamily::Tcgen05;
        // All others take weights as they are.
        let activations = operand(kind).filter(|operand| *operand == Operand::E4m3);
        Ok(WeightForm { tensor, format, activations, rows, columns, gated: None })
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        usize::try_from(prepared(form, u32::try_from(batch).ok()?).bytes()?).ok()
    }

    fn next_weights(&self, _: PlacedWeights) -> NextWeights {
        NextWeights::NONE
    }

    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<Lost> {
        let dims = weights.dims();
        let blocks = prepared(form, dims.batch() as u32);
        let stride = blocks.row_stride() as usize;
        let scales_at = PreparedBlocks::scales_at(blocks.code_bytes()) as usize;
        if blocks.beside_bytes && form.format == Format::Nvfp4 {
            let matrices = bytes.chunks_exact_mut(blocks.matrix_bytes() as usize);
            return Ok(matrices.enumerate().fold(Lost::default(), |lost, (batch, matrix)| {
                lost.and(fold_matrix(weights, batch, matrix.split_at_mut(scales_at), stride))
            }));
        }
        let all = weights.blocked_scales()?;
        let scales = all.chunks_exact(blocks.scale_bytes() as usize);
        let matrices = bytes.chunks_exact_mut(blocks.matrix_bytes() as usize);
        for (batch, (matrix, scales)) in matrices.zip(scales).enumerate() {
            let (rows, rest) = matrix.split_at_mut(scales_at);
            for row in 0..dims.rows() {
                let codes = weights.row_codes(batch, row);
                rows[row * stride..][..codes.len()].copy_from_slice(codes);
            }
            rest.copy_from_slice(scales);
        }
        Ok(Lost::default())
    }
}
