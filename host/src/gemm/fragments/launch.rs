//! The launches of a product: block-scaled activations are decoded first, and floats that become e4m3 are
//! quantised.

use fp4_formats::gemm::fragments::WarpParams;
use fp4_formats::gemm::{Epilogue, EvenRuns, GroupedParams, Groups, NextWeights};
use fp4_formats::params::bytes;
use fp4_formats::{Divisor, Operand, ScaleLayout};

use super::{FragmentKernel, Fragments, order};
use crate::device::{LaunchSpec, Queue};
use crate::error::Result;
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::decoded;
use crate::gemm::family::{Kernel, Launch, LaunchShape};
use crate::gemm::fp8::{self, PlacedBytes, matrix_bytes};
use crate::gemm::groups::GroupedRuns;

/// The operands and results of a launch, as its parameters state them.
pub(in crate::gemm) struct Placed {
    /// Address of the activations that are multiplied; of blocks, of their codes.
    pub activations: u64,
    /// Bytes from one batch entry's activations to the next; 0 where all share them.
    pub activation_stride: u64,
    /// Address of the scales of blocks that are multiplied as they are, their layout, and bytes from one batch
    /// entry's to the next's; nothing for others.
    pub blocks: Option<(u64, ScaleLayout, u64)>,
    /// Address of the repacked weights.
    pub weights: u64,
    /// Bytes from one batch entry's weights to the next; 0 where all share them.
    pub weight_stride: u64,
    /// Address of the partial sums of tiles that several CTAs compute.
    pub partials: u64,
    /// Address of the CTAs' flags.
    pub flags: u64,
    /// The epilogue. Tokens' scales of activations in e4m3 are in the place of row factors.
    pub epilogue: Epilogue,
    /// Scales from one batch entry's tokens to the next's; 0 without scales, and where all share them.
    pub scale_stride: u32,
}

impl Placed {
    /// The parameters of a kernel whose warps all do the same, beside which it has its `own`; blocks, if they are multiplied
    /// as they are, have their scales there.
    pub fn params<C: Fragments, T>(self, kernel: &FragmentKernel<C>, own: T) -> WarpParams<T> {
        let Self {
            activations,
            activation_stride,
            blocks: _,
            weights,
            weight_stride,
            partials,
            flags,
            epilogue,
            scale_stride,
        } = self;
        WarpParams {
            activations,
            activation_stride,
            weights,
            weight_stride,
            partials,
            flags,
            epilogue,
            problem: kernel.problem,
            schedule: kernel.estimate.schedule,
            row_factor_stride: scale_stride,
            plain: u32::from(epilogue.is_plain()),
            own,
            walk: kernel.tiles().counts.walk,
        }
    }
}

impl<C: Fragments> FragmentKernel<C> {
    /// Gives the launches of a product to a queue.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn give<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        let LaunchShape { ctas, cluster, threads, dynamic_shared, .. } = self.shape();
        // The plan has checked that a launch has so many.
        let ctas = ctas as u32;
        let params = self.params(launch)?;
        self.make_before(launch, queue)?;
        let grouped;
        let params: &[u8] = match (launch.groups, self.groups) {
            (Some(groups), Some(runs)) => {
                let groups = self.runs(groups, runs);
                grouped = C::GroupedParams::from(GroupedParams { gemm: params, groups });
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

    /// The groups with their row tiles and runs.
    fn runs(&self, groups: Groups, runs: GroupedRuns) -> Groups {
        let GroupedRuns { expected: _, least, whole } = runs;
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let tile = config.tile();
        let weight = tile.tiling.most_weight();
        let runs = EvenRuns {
            // CTAs of a multicast have a run together.
            ctas: Divisor::nearest(self.estimate.ctas as u32 / tile.multicast),
            tile: Divisor::nearest(schedule.steps()),
            least: least * weight,
            slack: match whole {
                true => GroupedRuns::MOST_SLACK,
                false => config.whole_tile_slack() * weight,
            },
        };
        let row_tiles = Divisor::nearest(self.problem.n.div_ceil(tile.rows * tile.multicast));
        // The kernel numbers the next product's tiles as its own.
        let next = groups.next.row_tiles.value();
        let tiles = groups.most_token_tiles(tile.tokens).saturating_mul(next.into());
        let numbered = tiles + u64::from(runs.ctas.value()) < Divisor::DIVIDENDS.into();
        let next = if numbered { groups.next } else { NextWeights::NONE };
        Groups { row_tiles, runs, next, ..groups }
    }

    /// Addresses of decoded or quantised activations, and of their tokens' scales.
    fn made(&self, launch: &Launch<'_>) -> Result<[u64; 2]> {
        let parts = self.workspace(launch.kind)?;
        Ok([parts.activations, parts.scales].map(|at| launch.workspace + at as u64))
    }

    /// The parameters that all kernels take.
    ///
    /// # Errors
    /// The errors of the device; [`Error::Shape`](crate::error::Error::Shape) for row factors beside
    /// tokens' scales.
    pub fn params(&self, launch: &Launch<'_>) -> Result<C::Params> {
        let &Launch { weights, mut epilogue, workspace, .. } = launch;
        let (parts, made) = (self.workspace(launch.kind)?, self.made(launch)?);
        let spacing = launch.strides.activations;
        let (mut scale_stride, mut blocks) = (0, None);
        let mut placed_bytes = |bytes: PlacedBytes| {
            let decoded = self.decodes_bytes(launch.kind);
            let bytes = if decoded { bytes.decoded(&self.problem, made[0]) } else { bytes };
            epilogue = bytes.scaling(epilogue);
            scale_stride = bytes.scale_stride;
            (bytes.elements, bytes.stride)
        };
        let (activations, activation_stride) = match launch.activations {
            CheckedActivations::Halves(address) => (address, spacing.stride as u64),
            CheckedActivations::Blocks { codes, scales, layout } if self.takes_blocks() => {
                let stride = launch.strides.activation_scales.stride as u64;
                blocks = Some((scales, layout, stride));
                (codes, spacing.stride as u64)
            }
            CheckedActivations::Blocks { .. } => {
                let matrix = matrix_bytes(&self.problem, launch.kind.operand());
                (made[0], if spacing.stride == 0 { 0 } else { matrix })
            }
            CheckedActivations::ToFp8(_) => {
                placed_bytes(PlacedBytes::made(launch, &self.problem, made))
            }
            CheckedActivations::Fp8(addresses) => {
                placed_bytes(PlacedBytes::given(launch, addresses)?)
            }
        };
        let matrix = order::layout(&weights.form).bytes().unwrap_or(0);
        let placed = Placed {
            activations,
            activation_stride,
            blocks,
            weights: weights.address,
            weight_stride: if weights.batch == 1 { 0 } else { matrix },
            partials: workspace + parts.partials as u64,
            flags: workspace,
            epilogue,
            scale_stride,
        };
        C::params(self, placed, launch.kernels.device())
    }

    /// Gives a queue decoding block-scaled activations, or quantising floats to e4m3, to the workspace; nothing
    /// for others.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn make_before<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        match launch.activations {
            CheckedActivations::Halves(_) => Ok(()),
            CheckedActivations::Fp8([codes, _]) => {
                if self.decodes_bytes(launch.kind) {
                    let (from, out) =
                        (launch.strides.activations.stride as u64, self.made(launch)?[0]);
                    fp8::decode(launch, &self.problem, launch.steps(), (codes, from), out, queue)?;
                }
                Ok(())
            }
            CheckedActivations::ToFp8(input) => {
                let (problem, [elements, scales]) = (&self.problem, self.made(launch)?);
                if !self.decodes_bytes(launch.kind) {
                    let made = [elements, scales];
                    return fp8::quantize(launch, problem, input, made, launch.steps(), queue);
                }
                // As many launches quantise as decode. The workspace has been counted.
                let each = launch.before.len() / 2;
                let codes = scales + fp8::codes_offset(problem).unwrap_or(0) as u64;
                let (quantising, decoding) = (launch.steps().take(each), launch.steps().skip(each));
                fp8::quantize(launch, problem, input, [codes, scales], quantising, queue)?;
                let from = (codes, matrix_bytes(problem, Operand::E4m3));
                fp8::decode(launch, problem, decoding, from, elements, queue)
            }
            CheckedActivations::Blocks { codes, scales, layout } => {
                let out = self.made(launch)?[0];
                decoded::decode(&self.problem, launch, [codes, scales], layout, out, queue)
            }
        }
    }
}
