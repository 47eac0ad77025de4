//! GEMM on sm_90a: the kernel decodes weights; a launch before it decodes block-scaled activations.

mod kernel;
mod launch;

use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::sm90::config::{CONFIGS, GROUPED, K_STEP, MAX_STAGES, MIXED, Sm90Config};
use fp4_formats::gemm::sm90::repack::{CHUNK_COLUMNS, CHUNK_ROWS};
use fp4_formats::gemm::sm90::{Scheme, WeightLayout};
use fp4_formats::gemm::{NextWeights, Operands, Problem, Split};
use fp4_formats::pack;
use fp4_formats::quantize::Format;
use fp4_formats::{Divisor, TensorFamily};
use rayon::prelude::*;

use super::candidate::Request;
use super::check::{check_unsplit, operands};
use super::family::{Family, Kernel};
use super::form::{BlockRows, PlacedWeights};
use super::groups::GroupRequest;
use super::{ActivationKind, WeightForm};
use crate::error::{Error, Result};
use crate::plan::sm90::{self as estimate, Estimate};
use kernel::{GroupedRuns, Sm90Kernel};

/// `wgmma`.
pub(super) struct Sm90;

/// The kernels of a scheme.
fn configs(scheme: Scheme) -> impl Iterator<Item = &'static Sm90Config> {
    CONFIGS.iter().filter(move |config| config.scheme == scheme)
}

/// Checks that there are kernels for the formats, and returns the scheme of the weights.
///
/// # Errors
/// [`Error::Shape`].
fn scheme(format: Format, kind: ActivationKind) -> Result<Scheme> {
    let Operands { weights, .. } = operands(TensorFamily::Wgmma, format, kind)?;
    Ok(Scheme { format: weights, operand: kind.operand() })
}

/// The layout of a matrix in an order of `wgmma`'s.
fn layout(form: &WeightForm) -> WeightLayout {
    let &WeightForm { format, activations, rows, columns, .. } = form;
    // Every order that `weight_form` makes names the activations.
    let operand = activations.unwrap_or(Scheme::NVFP4_F16.operand);
    WeightLayout { scheme: Scheme { format, operand }, rows, columns }
}

impl Family for Sm90 {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let scheme = scheme(asked.format, asked.activations)?;
        request.check_kernel(configs(scheme).map(|config| config.name))?;
        let may_be = |config: &Sm90Config| request.may_be(config.name);
        let most = configs(scheme).filter(|config| may_be(config)).map(Sm90Config::max_split);
        let most = most.max().unwrap_or(1).min(problem.k.div_ceil(K_STEP));
        if let Some(split) = overrides.split
            && split.cluster() > most
        {
            let required = match most {
                1 => "none or stream-k".into(),
                most => format!("none, stream-k, or cluster:N with N of at most {most}"),
            };
            return Err(Error::shape("split of K", required, split));
        }
        let sms = machine.sms.max(1);
        let mut found: Vec<_> = estimate::candidates(scheme, problem, sms, asked.output.planned())
            .filter(|found| may_be(found.config))
            .filter(|found| overrides.split.is_none_or(|split| split == found.split))
            .collect();
        found.sort_by_key(|found| found.cycles);
        let kernel =
            |estimate| Sm90Kernel { problem: *problem, groups: None, mixed: false, sms, estimate };
        Ok(found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect())
    }

    fn grouped(
        &self,
        request: &Request<'_>,
        groups: &GroupRequest,
    ) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let scheme = scheme(asked.format, asked.activations)?;
        let configs = || GROUPED.iter().filter(|config| config.scheme == scheme);
        request.check_kernel(configs().map(|config| config.name))?;
        if let Some(split) = overrides.split
            && split != Split::StreamK
        {
            return Err(Error::shape("split of K", "stream-k, for a grouped product", split));
        }
        let (sms, steps) = (machine.sms.max(1), problem.k.div_ceil(K_STEP));
        let expected = Problem { m: groups.expected[1], l: groups.expected[0], ..*problem };
        let mut found: Vec<_> = estimate::grouped(scheme, &expected, sms, asked.output.planned())
            .filter(|found| request.may_be(found.config.name))
            .map(|found| Estimate { split: Split::StreamK, ..found })
            .collect();
        found.sort_by_key(|found| found.cycles);
        for Estimate { config, ctas, .. } in &found {
            let row_tiles = u64::from(problem.n.div_ceil(config.rows));
            let tiles = groups.most_token_tiles(problem, config.tokens) * row_tiles;
            let most = u64::from(Divisor::DIVIDENDS) - ctas;
            let weight = u64::from(config.tiling().most_weight());
            let work = tiles.saturating_mul(u64::from(steps) * weight);
            if work >= most {
                let required = format!("less than {most}");
                return Err(Error::shape("work of all tiles", required, work));
            }
        }
        // A tile's partial sums are added one after the other: at most so many.
        const MOST_PARTS: u32 = 8;
        let runs = GroupedRuns { expected: groups.expected, least: steps.div_ceil(MOST_PARTS) };
        let kernel = |estimate| Sm90Kernel {
            problem: *problem,
            groups: Some(runs),
            mixed: false,
            sms,
            estimate,
        };
        Ok(found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect())
    }

    fn mixed(&self, requests: &[Request<'_>]) -> Result<Vec<Arc<dyn Kernel>>> {
        let kernel = |request: &Request<'_>| {
            let Request { problem, asked, machine, overrides } = request;
            let scheme = scheme(asked.format, asked.activations)?;
            let configs = MIXED.iter().filter(|config| config.scheme == scheme);
            request.check_kernel(configs.map(|config| config.name))?;
            check_unsplit(overrides)?;
            let sms = machine.sms.max(1);
            let found = estimate::mixed(scheme, problem, sms, asked.output.planned());
            let estimate = found.ok_or_else(|| {
                Error::shape("GEMM", "a configuration that takes it", format!("{problem:?}"))
            })?;
            let kernel = Sm90Kernel { problem: *problem, groups: None, mixed: true, sms, estimate };
            Ok(Arc::new(kernel) as Arc<dyn Kernel>)
        };
        requests.iter().map(kernel).collect()
    }

    fn token_tiles(&self, format: Format, kind: ActivationKind) -> Vec<usize> {
        let scheme = Scheme { format, operand: kind.operand() };
        configs(scheme).map(|config| config.tokens as usize).collect()
    }

    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        [rows, columns]: [u32; 2],
    ) -> Result<WeightForm> {
        let Scheme { format, operand } = scheme(format, kind)?;
        let activations = Some(operand);
        Ok(WeightForm {
            tensor: TensorFamily::Wgmma,
            format,
            activations,
            rows,
            columns,
            gated: None,
        })
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        usize::try_from(layout(form).bytes()?).ok()?.checked_mul(batch)
    }

    fn next_weights(&self, weights: PlacedWeights) -> NextWeights {
        let layout = layout(&weights.form);
        // Half of what the stages of a CTA hold. On an H200 a layer of one token then takes 0.9 us less, and 1.0 with
        // as much as they hold; of 64 tokens, 2.3 us less, and with as much as they hold as long as without.
        let most = MAX_STAGES / 2 * layout.scheme.chunk_bytes();
        let bytes = layout.row_bytes().min(u64::from(most));
        NextWeights {
            weights: weights.address,
            problem_stride: layout.bytes().unwrap_or(0),
            row_stride: layout.row_bytes(),
            bytes: bytes as u32,
            row_tiles: Divisor::nearest(layout.row_chunks()),
        }
    }

    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<Lost> {
        let layout = layout(form);
        let chunks = bytes.par_chunks_exact_mut(layout.scheme.chunk_bytes() as usize);
        let across = layout.column_chunks() as usize;
        let down = layout.row_chunks() as usize;
        let lost = chunks.enumerate().map(|(index, chunk)| {
            let (row_chunk, column_chunk) = (index / across, index % across);
            let (batch, row_chunk) = (row_chunk / down, row_chunk % down);
            let corner = [row_chunk * CHUNK_ROWS as usize, column_chunk * CHUNK_COLUMNS as usize];
            fill(layout.scheme, chunk, weights, batch, corner)
        });
        Ok(lost.reduce(Lost::default, Lost::and))
    }
}

/// Makes one chunk, whose first row and column are `corner`.
fn fill(
    scheme: Scheme,
    chunk: &mut [u8],
    weights: &dyn BlockRows,
    batch: usize,
    [row, column]: [usize; 2],
) -> Lost {
    let dims = weights.dims();
    let block = weights.format().block() as usize;
    let blocks = dims.cols() / block;
    let rows: Vec<&[u8]> = (row..dims.rows().min(row + CHUNK_ROWS as usize))
        .map(|row| weights.row_codes(batch, row))
        .collect();
    let code = |r: u32, c: u32| {
        let (row, column) = (r as usize, column + c as usize);
        if row >= rows.len() || column >= dims.cols() {
            return 0;
        }
        let (low, high) = pack::unpair(rows[row][column / 2]);
        if column.is_multiple_of(2) { low } else { high }
    };
    let scale = |r: u32, index: u32| {
        let (row, index) = (row + r as usize, column / block + index as usize);
        if row >= dims.rows() || index >= blocks {
            return 0;
        }
        weights.scale_byte(batch, row, index)
    };
    scheme.fill_chunk(chunk, code, scale)
}
