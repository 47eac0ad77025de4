//! GEMM on sm_80 and later: the kernel decodes weights; a launch before it decodes block-scaled activations.

mod kernel;

use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm80::config::{CONFIGS, GROUPED, MIXED, Sm80Config};
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
use crate::plan::sm80::{self as estimate, Estimate};
use kernel::Sm80Kernel;

/// `mma.sync`.
pub(super) struct Sm80;

/// The kernels of a scheme.
fn configs(scheme: Scheme) -> impl Iterator<Item = &'static Sm80Config> {
    CONFIGS.iter().filter(move |config| config.scheme == scheme)
}

/// Checks that there are kernels for the formats, and returns the scheme of the weights.
///
/// # Errors
/// [`Error::Shape`].
fn scheme(format: Format, kind: ActivationKind) -> Result<Scheme> {
    let Operands { weights, .. } = operands(TensorFamily::MmaSync, format, kind)?;
    Ok(Scheme { format: weights, operand: kind.operand() })
}

impl Family for Sm80 {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let scheme = scheme(asked.format, asked.activations)?;
        request.check_kernel(configs(scheme).map(|config| config.name))?;
        if let Some(split @ Split::Cluster(_)) = overrides.split {
            return Err(Error::shape("split of K", "none or stream-k", split));
        }
        let sms = machine.sms.max(1);
        let mut found: Vec<_> = estimate::candidates(scheme, problem, sms, asked.output.planned())
            .filter(|found| request.may_be(found.config.name))
            .filter(|found| overrides.split.is_none_or(|split| split == found.split))
            .collect();
        found.sort_by_key(|found| found.cycles);
        let kernel =
            |estimate| Sm80Kernel { problem: *problem, groups: None, mixed: false, sms, estimate };
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
        let sms = machine.sms.max(1);
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
            let steps = problem.k.div_ceil(config.k_step());
            let work = tiles.saturating_mul(u64::from(steps));
            if work >= most {
                let required = format!("less than {most}");
                return Err(Error::shape("work of all tiles", required, work));
            }
        }
        let kernel = |estimate: Estimate| {
            let steps = problem.k.div_ceil(estimate.config.k_step());
            let least = steps.div_ceil(GroupedRuns::MOST_PARTS);
            let groups = Some(GroupedRuns { expected: groups.expected, least });
            Sm80Kernel { problem: *problem, groups, mixed: false, sms, estimate }
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
            let kernel = Sm80Kernel { problem: *problem, groups: None, mixed: true, sms, estimate };
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
        let (tensor, activations) = (TensorFamily::MmaSync, Some(operand));
        Ok(WeightForm { tensor, format, activations, rows, columns, gated: None })
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        fragments::bytes(form, batch)
    }

    /// Nothing: launches of a stream do not overlap.
    fn next_weights(&self, _: PlacedWeights) -> NextWeights {
        NextWeights::NONE
    }

    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<Lost> {
        Ok(fragments::repack(form, weights, bytes))
    }
}
