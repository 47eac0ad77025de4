//! Launching on sm_90a: block-scaled activations are decoded first, and floats that become e4m3 are
//! quantised.

use fp4_formats::gemm::sm90::{Sm90GroupedParams, Sm90Params, activations_map};
use fp4_formats::gemm::{EvenRuns, Groups, NextWeights};
use fp4_formats::quantize::{DequantizeParams, ScaleSource};
use fp4_formats::{Divisor, ScaleLayout};

use super::kernel::{GroupedRuns, Sm90Kernel, Sm90Workspace};
use super::layout;
use crate::device::LaunchSpec;
use crate::error::Result;
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::family::{Kernel, Launch, launches};
use crate::gemm::fp8::{self, PlacedBytes, matrix_bytes};
use crate::gemm::strides::Strides;
use crate::gemm::{Gemm, Workspace};
use crate::params::bytes;
use crate::plan::sm90 as estimate;
use crate::quantize::device::launch_step;

/// The operands of a launch that depend on its activations.
pub(super) struct Place {
    parts: Sm90Workspace,
    /// Address of the workspace.
    workspace: u64,
    activations: CheckedActivations,
}

impl Place {
    /// Addresses of decoded or quantised activations, and of their tokens' scales.
    fn made(&self) -> [u64; 2] {
        [self.parts.activations, self.parts.scales].map(|at| self.workspace + at as u64)
    }
}

impl Sm90Kernel {
    /// Queues the launches of a product.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    pub fn queue(&self, launch: &Launch<'_>) -> Result<()> {
        let gemm = launch.gemm;
        let plan = &gemm.plan;
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let device = gemm.kernels.device();
        let workspace = Workspace::place(launch.workspace, gemm.workspace_bytes(), device)?;
        let place = self.place(launch, workspace)?;
        let params = self.params(launch, &place)?;
        self.make_before(launch, &place)?;
        let grouped;
        let params: &[u8] = match (launch.groups, self.groups) {
            (Some(groups), Some(GroupedRuns { least, .. })) => {
                // CTAs of a multicast have a run together.
                let ctas = Divisor::nearest(plan.grid[0] / config.multicast);
                let tile = Divisor::nearest(schedule.steps());
                let weight = config.tiling().most_weight();
                let slack = estimate::whole_tile_slack(config) * weight;
                let least = least * weight;
                let runs = EvenRuns { ctas, tile, least, slack };
                let row_tiles = Divisor::nearest(self.problem.n.div_ceil(config.work_shape().rows));
                // The kernel numbers the next product's tiles as its own.
                let next = groups.next.row_tiles.value();
                let tiles = groups.most_token_tiles(config.tokens).saturating_mul(next.into());
                let numbered = tiles + u64::from(ctas.value()) < Divisor::DIVIDENDS.into();
                let next = if numbered { groups.next } else { NextWeights::NONE };
                let groups = Groups { row_tiles, runs, next, ..groups };
                grouped = Sm90GroupedParams { gemm: params, groups };
                bytes(&grouped)
            }
            (Some(_), None) | (None, _) => bytes(&params),
        };
        let spec = LaunchSpec {
            entry: gemm.found.name(),
            grid: [plan.grid[0], plan.grid[1], 1],
            block: [plan.threads, 1, 1],
            cluster: (plan.cluster > 1).then_some([plan.cluster, 1, 1]),
            dynamic_shared: plan.dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state: those of the activations and the workspace were checked above, the others by
        // `Gemm::launch` and when the weights were repacked. Freeing device memory waits for
        // launches.
        unsafe { gemm.kernels.launch_found(&gemm.found, &spec) }
    }

    /// The activations of a launch, with the workspace at this address.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    pub fn place(&self, launch: &Launch<'_>, workspace: u64) -> Result<Place> {
        let parts = self.workspace(launch.gemm.kind)?;
        Ok(Place { parts, workspace, activations: fp8::check(launch)? })
    }

    /// The parameters that all kernels take.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    pub fn params(&self, launch: &Launch<'_>, place: &Place) -> Result<Sm90Params> {
        let &Launch { gemm, weights, mut epilogue, .. } = launch;
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let device = gemm.kernels.device();
        let spacing = gemm.strides.activations;
        let mut row_factor_stride = 0;
        let mut scaled = |bytes: PlacedBytes| {
            epilogue = bytes.scaling(epilogue);
            row_factor_stride = bytes.scale_stride;
            (bytes.elements, bytes.stride)
        };
        let (activations, stride) = match place.activations {
            CheckedActivations::Halves(address) => (address, spacing.stride as u64),
            CheckedActivations::Blocks { .. } => {
                let matrix = matrix_bytes(&self.problem, config.scheme.operand);
                (place.made()[0], if spacing.stride == 0 { 0 } else { matrix })
            }
            CheckedActivations::ToFp8(_) => {
                scaled(PlacedBytes::made(launch, &self.problem, place.made()))
            }
            CheckedActivations::Fp8(addresses) => scaled(PlacedBytes::given(launch, addresses)?),
        };
        let map = activations_map(config, &self.problem, stride);
        let matrix = layout(&weights.form()).bytes().unwrap_or(0);
        Ok(Sm90Params {
            activations: device.tensor_map(&map, activations)?,
            weights: weights.address(),
            weight_stride: if weights.batch() == 1 { 0 } else { matrix },
            partials: place.workspace + place.parts.partials as u64,
            flags: place.workspace,
            epilogue,
            problem: self.problem,
            schedule,
            row_factor_stride,
            from_registers: u32::from(!self.mixed && config.stores_from_registers(&epilogue)),
            plain: u32::from(epilogue.is_plain()),
            one: 1,
            walk: config.tiles(&self.problem).counts.walk,
        })
    }

    /// Queues decoding block-scaled activations, or quantising floats to e4m3, to the workspace; nothing
    /// for others.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    pub fn make_before(&self, launch: &Launch<'_>, place: &Place) -> Result<()> {
        match place.activations {
            CheckedActivations::Halves(_) | CheckedActivations::Fp8(_) => Ok(()),
            CheckedActivations::ToFp8(input) => {
                fp8::quantize(launch, &self.problem, input, place.made())
            }
            CheckedActivations::Blocks { codes, scales, layout } => {
                self.decode(launch.gemm, [codes, scales], layout, place.made()[0])
            }
        }
    }

    /// Queues decoding block-scaled activations to 16-bit floats at `out`, `[L, M, K]`, or `[M, K]`
    /// where entries share them.
    fn decode(
        &self,
        gemm: &Gemm,
        [codes, scales]: [u64; 2],
        layout: ScaleLayout,
        out: u64,
    ) -> Result<()> {
        let Strides { activations, activation_scales, .. } = &gemm.strides;
        // The rows fit: they were checked when the launches were planned.
        let (_, rows) = launches(&self.problem, layout, gemm.strides.entries());
        for (index, step) in (0u64..).zip(gemm.before()) {
            let params = DequantizeParams {
                codes: codes + index * activations.stride as u64,
                scales: scales + index * activation_scales.stride as u64,
                tensor: 0,
                out: out + index * matrix_bytes(&self.problem, gemm.kind.operand()),
                m: rows as u32,
                k: self.problem.k,
                given: self.decoded_scale(gemm.kind),
                source: ScaleSource::Given as u32,
                blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            };
            // SAFETY: codes and scales have the sizes that the parameters state, as checked by
            // the caller; `out` is the workspace, which is large enough.
            unsafe { launch_step(&gemm.kernels, step, true, &params.to_bytes())? };
        }
        Ok(())
    }
}
