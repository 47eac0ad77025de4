//! GEMM on tensor cores that take weights from registers: the kernel loads them as fragments, or decodes them to
//! those; a launch before it decodes block-scaled activations that are not multiplied as they are, or quantises
//! floats to e4m3.
//!
//! | file | topic |
//! | --- | --- |
//! | [`kernel`] | a kernel with a schedule for one problem |
//! | [`launch`] | its launches |
//! | [`order`] | repacking weights |
//!
//! Tensor cores differ in what [`Fragments`] asks for.

mod kernel;
mod launch;
mod order;

use std::marker::PhantomData;
use std::sync::Arc;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::{Adding, GroupedParams, NextWeights, Operands, Problem, Split};
use fp4_formats::params::Block;
use fp4_formats::quantize::Format;
use fp4_formats::{Divisor, TensorFamily};

use super::candidate::Request;
use super::check::{check_unsplit, multiplied, operands};
use super::family::{Family, Kernel};
use super::form::{BlockRows, PlacedWeights};
use super::groups::{GroupRequest, GroupedRuns};
use super::{ActivationKind, WeightForm};
use crate::device::{Device, DeviceProperties};
use crate::error::{Error, Result};
use crate::plan::fragments::{self as estimate, Costs, Estimate};
use crate::shape::MAX_DIM;
pub(super) use kernel::FragmentKernel;
pub(super) use launch::Placed;

/// Tensor cores that take weights from registers, by the configurations of their kernels.
pub(super) trait Fragments: Costs {
    /// The tensor cores.
    const TENSOR: TensorFamily;
    /// Chunks of weights at the beginning of each row tile that a launch before a product brings to L2; 0 where
    /// launches do not overlap.
    const NEXT_CHUNKS: u32;
    /// Most bytes of a tile's tokens that kernels can address; none if the copy engine addresses them.
    const TOKEN_BYTES: Option<u64>;
    /// Whether weights beside activations in e4m3 are folded with their scales to e4m3. Otherwise they are multiplied as
    /// they are, in the order of those beside blocks.
    const FOLDS: bool;
    /// The parameter block that all kernels take.
    type Params: Block;
    /// The block that kernels of grouped products take.
    type GroupedParams: Block + From<GroupedParams<Self::Params>>;

    /// The parameters of a launch with these operands.
    ///
    /// # Errors
    /// The errors of the device.
    fn params(
        kernel: &FragmentKernel<Self>,
        placed: Placed,
        device: &Device,
    ) -> Result<Self::Params>;
}

/// The family of tensor cores with the configurations `C`.
pub(super) struct FragmentFamily<C>(pub PhantomData<C>);

/// The names of a pair of formats' kernels in `table`.
fn names<C: Fragments>(
    table: &'static [C],
    operands: Operands,
    adding: Adding,
) -> impl Iterator<Item = &'static str> {
    estimate::of(table, operands, adding).map(C::name)
}

/// Leaves the estimates whose kernels can address their tokens of `problem`, and whose CTAs get their shared memory on
/// a machine.
///
/// # Errors
/// [`Error::Shape`] if there were some, and none of them fits.
fn fitting<C: Fragments>(
    mut found: Vec<Estimate<C>>,
    problem: &Problem,
    machine: DeviceProperties,
) -> Result<Vec<Estimate<C>>> {
    let most_columns = |found: &Estimate<C>| {
        let bits = found.config.operands().activations.map_or(4, |operand| 8 * operand.bytes());
        let columns = |bytes| bytes * 8 / u64::from(bits * found.config.tile().tokens);
        C::TOKEN_BYTES.map_or(MAX_DIM, columns)
    };
    if let Some(most) = found.iter().map(most_columns).max()
        && u64::from(problem.k) > most
    {
        return Err(Error::shape("K", format!("at most {most} for these kernels"), problem.k));
    }
    found.retain(|found| u64::from(problem.k) <= most_columns(found));
    let shared = |found: &Estimate<C>| found.config.launch_shared_bytes(found.resident);
    let Some(least) = found.iter().map(shared).min() else { return Ok(found) };
    let most = machine.shared_per_block;
    if least > most {
        let required = format!("at most {most} bytes, which this device has");
        return Err(Error::shape("shared memory of a CTA", required, least));
    }
    found.retain(|found| shared(found) <= most);
    Ok(found)
}

/// The kernels whose sums have the same bits for all numbers of tokens, the cheapest first.
///
/// # Errors
/// [`Error::Shape`] for a kernel and a split that are not so.
fn invariant<C: Fragments>(
    request: &Request<'_>,
    operands: Operands,
) -> Result<Vec<Arc<dyn Kernel>>> {
    let &Request { problem, asked, machine, overrides } = request;
    request.check_kernel(estimate::in_order::<C>(operands).map(C::name))?;
    let (sms, result) = (machine.sms.max(1), asked.output.planned());
    let of_all = |asked| estimate::invariant_split::<C>(operands, &problem, sms, result, asked);
    let Some(split) = of_all(overrides.split) else {
        if let (Some(split), Some(_)) = (overrides.split, of_all(None)) {
            let required = "none, or cluster:N of kernels that split K so, for batch invariance";
            return Err(Error::shape("split of K", required, split));
        }
        return Ok(Vec::new());
    };
    let found = estimate::invariant(operands, &problem, sms, result, split)
        .filter(|found: &Estimate<C>| request.may_be(found.config.name()))
        .collect();
    let found = fitting(found, &problem, machine)?;
    Ok(cheapest_first(found, |estimate| FragmentKernel {
        problem,
        groups: None,
        mixed: false,
        sms,
        estimate,
    }))
}

/// The kernels with these estimates, the cheapest first.
fn cheapest_first<C: Fragments>(
    mut found: Vec<Estimate<C>>,
    kernel: impl Fn(Estimate<C>) -> FragmentKernel<C>,
) -> Vec<Arc<dyn Kernel>> {
    found.sort_by_key(|found| found.cycles);
    found.into_iter().map(|found| Arc::new(kernel(found)) as Arc<dyn Kernel>).collect()
}

impl<C: Fragments> Family for FragmentFamily<C> {
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>> {
        let Request { problem, asked, machine, overrides } = request;
        let operands = operands(C::TENSOR, asked.format, asked.activations)?;
        if overrides.batch_invariant {
            return invariant::<C>(request, operands);
        }
        request.check_kernel(names(C::CONFIGS, operands, asked.adding))?;
        let may_be = |config: &C| request.may_be(config.name());
        let splits =
            estimate::of(C::CONFIGS, operands, asked.adding).filter(|config| may_be(config));
        let splits = splits.map(|config| config.max_split().min(config.tile().steps(problem)));
        let most = splits.max().unwrap_or(1);
        if let Some(split @ Split::Cluster(ctas)) = overrides.split
            && !(2..=most).contains(&ctas)
        {
            let required = match most {
                1 => "none or stream-k".into(),
                most => format!("none, stream-k, or cluster:N with N of at most {most}"),
            };
            return Err(Error::shape("split of K", required, split));
        }
        let sms = machine.sms.max(1);
        let found =
            estimate::candidates(operands, asked.adding, problem, sms, asked.output.planned())
                .filter(|found| may_be(found.config))
                .filter(|found| overrides.split.is_none_or(|split| split == found.split))
                .collect();
        let (found, problem) = (fitting(found, problem, *machine)?, *problem);
        Ok(cheapest_first(found, |estimate| FragmentKernel {
            problem,
            groups: None,
            mixed: false,
            sms,
            estimate,
        }))
    }

    fn grouped(
        &self,
        request: &Request<'_>,
        groups: &GroupRequest,
    ) -> Result<Vec<Arc<dyn Kernel>>> {
        let &Request { problem, asked, machine, overrides } = request;
        let operands = operands(C::TENSOR, asked.format, asked.activations)?;
        let whole = overrides.batch_invariant;
        let may_be = |config: &C| !whole || config.adds_in_order();
        let suitable =
            estimate::of(C::GROUPED, operands, asked.adding).filter(|config| may_be(config));
        request.check_kernel(suitable.map(C::name))?;
        if let Some(split) = overrides.split
            && split != Split::StreamK
        {
            return Err(Error::shape("split of K", "stream-k, for a grouped product", split));
        }
        let sms = machine.sms.max(1);
        let expected = Problem { m: groups.expected[1], l: groups.expected[0], ..problem };
        let found: Vec<_> =
            estimate::grouped::<C>(operands, asked.adding, &expected, sms, asked.output.planned())
                .filter(|found| may_be(found.config) && request.may_be(found.config.name()))
                .map(|found| Estimate { split: Split::StreamK, ..found })
                .collect();
        let found = fitting(found, &problem, machine)?;
        for Estimate { config, ctas, .. } in &found {
            let tile = config.tile();
            let row_tiles = u64::from(problem.n.div_ceil(tile.rows));
            let tiles = groups.most_token_tiles(&problem, tile.tokens) * row_tiles;
            let most = u64::from(Divisor::DIVIDENDS) - ctas;
            let weight = u64::from(tile.tiling.most_weight());
            let work = tiles.saturating_mul(u64::from(tile.steps(&problem)) * weight);
            if work >= most {
                let required = format!("less than {most}");
                return Err(Error::shape("work of all tiles", required, work));
            }
        }
        Ok(cheapest_first(found, |estimate| {
            let steps = estimate.config.tile().steps(&problem);
            let least = steps.div_ceil(GroupedRuns::MOST_PARTS);
            let groups = Some(GroupedRuns { expected: groups.expected, least, whole });
            FragmentKernel { problem, groups, mixed: false, sms, estimate }
        }))
    }

    fn mixed(&self, requests: &[Request<'_>]) -> Result<Vec<Arc<dyn Kernel>>> {
        let kernel = |request: &Request<'_>| {
            let &Request { problem, asked, machine, overrides } = request;
            let operands = operands(C::TENSOR, asked.format, asked.activations)?;
            request.check_kernel(names(C::MIXED, operands, asked.adding))?;
            check_unsplit(overrides)?;
            let sms = machine.sms.max(1);
            let found =
                estimate::mixed::<C>(operands, asked.adding, &problem, sms, asked.output.planned());
            let estimate =
                fitting(Vec::from_iter(found), &problem, machine)?.pop().ok_or_else(|| {
                    Error::shape("GEMM", "a configuration that takes it", format!("{problem:?}"))
                })?;
            let kernel = FragmentKernel { problem, groups: None, mixed: true, sms, estimate };
            Ok(Arc::new(kernel) as Arc<dyn Kernel>)
        };
        requests.iter().map(kernel).collect()
    }

    fn token_tiles(&self, format: Format, kind: ActivationKind, adding: Adding) -> Vec<usize> {
        let operands = multiplied(C::TENSOR, format, kind);
        estimate::of(C::CONFIGS, operands, adding)
            .map(|config| config.tile().tokens as usize)
            .collect()
    }

    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        sizes: [u32; 2],
    ) -> Result<WeightForm> {
        Ok(order::form::<C>(operands(C::TENSOR, format, kind)?, sizes))
    }

    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize> {
        order::bytes(form, batch)
    }

    fn next_weights(&self, weights: PlacedWeights) -> NextWeights {
        if C::NEXT_CHUNKS == 0 {
            return NextWeights::NONE;
        }
        let layout = order::layout(&weights.form);
        let most = C::NEXT_CHUNKS * layout.chunk_bytes();
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
        Ok(order::repack(form, weights, bytes))
    }
}
