//! Launching on sm_90a: block-scaled activations are decoded first, and floats that become e4m3 are
//! quantised.

use fp4_formats::Divisor;
use fp4_formats::gemm::sm90::{Sm90GroupedParams, Sm90Params, activations_map};
use fp4_formats::gemm::{EvenRuns, Groups, NextWeights};
use fp4_formats::params::bytes;

use super::kernel::Sm90Kernel;
use crate::device::{LaunchSpec, Queue};
use crate::error::Result;
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::family::{Kernel, Launch, LaunchShape};
use crate::gemm::fp8::{self, PlacedBytes, matrix_bytes};
use crate::gemm::groups::GroupedRuns;
use crate::gemm::parts::WorkspaceParts;
use crate::gemm::{decoded, fragments};
use crate::plan::sm90 as estimate;

impl Sm90Kernel {
    /// Gives the launches of a product to a queue.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn give<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let LaunchShape { ctas, cluster, threads, dynamic_shared, .. } = self.shape();
        // The plan has checked that a launch has so many.
        let ctas = ctas as u32;
        let params = self.params(launch)?;
        self.make_before(launch, queue)?;
        let grouped;
        let params: &[u8] = match (launch.groups, self.groups) {
            (Some(groups), Some(GroupedRuns { least, .. })) => {
                // CTAs of a multicast have a run together.
                let runs = Divisor::nearest(ctas / config.multicast);
                let tile = Divisor::nearest(schedule.steps());
                let weight = config.tiling().most_weight();
                let slack = estimate::whole_tile_slack(config) * weight;
                let least = least * weight;
                let runs = EvenRuns { ctas: runs, tile, least, slack };
                let row_tiles = Divisor::nearest(self.problem.n.div_ceil(config.work_shape().rows));
                // The kernel numbers the next product's tiles as its own.
                let next = groups.next.row_tiles.value();
                let tiles = groups.most_token_tiles(config.tokens).saturating_mul(next.into());
                let numbered = tiles + u64::from(runs.ctas.value()) < Divisor::DIVIDENDS.into();
                let next = if numbered { groups.next } else { NextWeights::NONE };
                let groups = Groups { row_tiles, runs, next, ..groups };
                grouped = Sm90GroupedParams { gemm: params, groups };
                bytes(&grouped)
            }
            (Some(_), None) | (None, _) => bytes(&params),
        };
        let spec = LaunchSpec {
            entry: launch.kernel.name(),
            grid: [ctas, 1, 1],
            block: [threads, 1, 1],
            cluster: (cluster > 1).then_some([cluster, 1, 1]),
            dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state: they were checked when the arguments were made, and when the weights were
        // repacked. Freeing device memory waits for launches.
        unsafe { queue.launch(launch.kernels, launch.kernel, &spec) }
    }

    /// Offsets in a workspace that is large enough.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::error::Error::Overflow), which planning would have met.
    fn parts(&self, launch: &Launch<'_>) -> Result<WorkspaceParts> {
        self.workspace(launch.kind)
    }

    /// Addresses of decoded or quantised activations, and of their tokens' scales.
    fn made(&self, launch: &Launch<'_>) -> Result<[u64; 2]> {
        let parts = self.parts(launch)?;
        Ok([parts.activations, parts.scales].map(|at| launch.workspace + at as u64))
    }

    /// The parameters that all kernels take.
    ///
    /// # Errors
    /// The errors of the device; [`Error::Shape`](crate::error::Error::Shape) for row factors beside
    /// tokens' scales.
    pub fn params(&self, launch: &Launch<'_>) -> Result<Sm90Params> {
        let &Launch { weights, mut epilogue, workspace, .. } = launch;
        let (parts, made) = (self.parts(launch)?, self.made(launch)?);
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let device = launch.kernels.device();
        let spacing = launch.strides.activations;
        let mut row_factor_stride = 0;
        let mut scaled = |bytes: PlacedBytes| {
            epilogue = bytes.scaling(epilogue);
            row_factor_stride = bytes.scale_stride;
            (bytes.elements, bytes.stride)
        };
        let (activations, stride) = match launch.activations {
            CheckedActivations::Halves(address) => (address, spacing.stride as u64),
            CheckedActivations::Blocks { .. } => {
                let matrix = matrix_bytes(&self.problem, config.scheme.operand);
                (made[0], if spacing.stride == 0 { 0 } else { matrix })
            }
            CheckedActivations::ToFp8(_) => scaled(PlacedBytes::made(launch, &self.problem, made)),
            CheckedActivations::Fp8(addresses) => scaled(PlacedBytes::given(launch, addresses)?),
        };
        let map = activations_map(config, &self.problem, stride);
        let matrix = fragments::layout(&weights.form).bytes().unwrap_or(0);
        Ok(Sm90Params {
            activations: device.tensor_map(&map, activations)?,
            weights: weights.address,
            weight_stride: if weights.batch == 1 { 0 } else { matrix },
            partials: workspace + parts.partials as u64,
            flags: workspace,
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

    /// Gives a queue decoding block-scaled activations, or quantising floats to e4m3, to the workspace; nothing
    /// for others.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn make_before<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        match launch.activations {
            CheckedActivations::Halves(_) | CheckedActivations::Fp8(_) => Ok(()),
            CheckedActivations::ToFp8(input) => {
                fp8::quantize(launch, &self.problem, input, self.made(launch)?, queue)
            }
            CheckedActivations::Blocks { codes, scales, layout } => {
                let out = self.made(launch)?[0];
                decoded::decode(&self.problem, launch, [codes, scales], layout, out, queue)
            }
        }
    }
}
