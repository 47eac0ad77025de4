//! GEMM on sm_90a: the kernel decodes weights; a launch before it decodes block-scaled activations.

mod kernel;
mod launch;

use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm90::config::{CONFIGS, GROUPED, K_STEP, MAX_STAGES, MIXED, Sm90Config};
use fp4_formats::gemm::{NextWeights, Operands, Problem, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{Divisor, TensorFamily};

use super::candidate::Request;
use super::check::{check_unsplit, operands};
use super::family::{Family, Kernel};
use super::form::{BlockRows, PlacedWeights};
use super::groups::{GroupRequest, GroupedRuns};
use super::{ActivationKind, WeightForm, fragments};
use crate::error::{Error, Result};
use crate::plan::sm90::{self as estimate, Estimate};
use kernel::Sm90Kernel;

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
        let least = steps.div_ceil(GroupedRuns::MOST_PARTS);
        let runs = GroupedRuns { expected: groups.expected, least };
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
        fragments::bytes(form, batch)
    }

    fn next_weights(&self, weights: PlacedWeights) -> NextWeights {
        let layout = fragments::layout(&weights.form);
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
        Ok(fragments::repack(form, weights, bytes))
    }
}
