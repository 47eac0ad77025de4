//! Launching on sm_90a: block-scaled activations are decoded first, and floats that become e4m3 are
//! quantised.

use fp4_formats::gemm::hopper::{HopperGroupedParams, HopperParams, activations_map, estimate};
use fp4_formats::gemm::{EvenRuns, Groups, Problem};
use fp4_formats::quantize::tokens::TokensParams;
use fp4_formats::quantize::{DequantizeParams, ScaleSource};
use fp4_formats::{Divisor, Operand, ScaleLayout};

use super::kernel::{GroupedRuns, HopperKernel, matrix_bytes};
use super::layout;
use crate::device::LaunchSpec;
use crate::error::{Error, Result};
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::family::{Kernel, Launch, launches};
use crate::gemm::strides::Strides;
use crate::gemm::{Gemm, Workspace};
use crate::params::bytes;
use crate::quantize::device::launch_step;

impl HopperKernel {
    /// Queues the launches of a product.
    ///
    /// # Errors
    /// As [`Gemm::launch`].
    pub fn queue(&self, launch: &Launch<'_>) -> Result<()> {
        let gemm = launch.gemm;
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let needed = self.workspace(gemm.kind)?.bytes;
        let workspace = Workspace::place(launch.workspace, needed, gemm.kernels.device())?;
        let params = self.params(launch, workspace)?;
        self.decode_before(launch, workspace)?;
        let shape = self.shape();
        let (uniform, grouped);
        let params: &[u8] = match (launch.groups, self.groups) {
            (Some(groups), Some(GroupedRuns { least, .. })) => {
                let ctas = Divisor::nearest(gemm.plan.grid[0]);
                let tile = Divisor::nearest(schedule.steps());
                let weight = config.tiling().most_weight();
                let slack = estimate::whole_tile_slack(config) * weight;
                let least = least * weight;
                let runs = EvenRuns { ctas, tile, least, slack, reserved: 0 };
                let row_tiles = Divisor::nearest(self.problem.n.div_ceil(config.rows));
                let groups = Groups { row_tiles, runs, ..groups };
                grouped = HopperGroupedParams { gemm: params, groups };
                bytes(&grouped)
            }
            (Some(_), None) | (None, _) => {
                uniform = params;
                bytes(&uniform)
            }
        };
        let spec = LaunchSpec {
            entry: gemm.found.name(),
            grid: [gemm.plan.grid[0], gemm.plan.grid[1], 1],
            block: [shape.threads, 1, 1],
            cluster: (shape.cluster > 1).then_some([shape.cluster, 1, 1]),
            dynamic_shared: shape.dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state: those of the activations and the workspace were checked above, the others by
        // `Gemm::launch` and when the weights were repacked. Freeing device memory waits for
        // launches.
        unsafe { gemm.kernels.launch_found(&gemm.found, &spec) }
    }

    /// The parameters that all kernels take, with the workspace at this address.
    ///
    /// # Errors
    /// As [`Gemm::launch`].
    pub fn params(&self, launch: &Launch<'_>, workspace: u64) -> Result<HopperParams> {
        let &Launch { gemm, activations, weights, epilogue, .. } = launch;
        let (config, schedule) = (self.estimate.config, self.estimate.schedule);
        let device = gemm.kernels.device();
        let parts = self.workspace(gemm.kind)?;
        let spacing = gemm.strides.activations;
        let operand = config.scheme.operand;
        let made = workspace + parts.activations as u64;
        let shared = spacing.stride == 0;
        let made_stride = if shared { 0 } else { matrix_bytes(&self.problem, operand) };
        let mut scales = None;
        let (activations, stride) = match activations.check(gemm.kind, &gemm.strides, device)? {
            CheckedActivations::Halves(address) if gemm.kind.operand().half().is_some() => {
                (address, spacing.stride as u64)
            }
            CheckedActivations::Halves(_) => {
                let rows = if shared { 0 } else { self.problem.m };
                scales = Some((workspace + parts.scales as u64, rows));
                (made, made_stride)
            }
            CheckedActivations::Blocks { .. } => (made, made_stride),
            CheckedActivations::Fp8([codes, of_rows]) => {
                if epilogue.affine.row_factors != 0 {
                    let required = "absent: the tokens' scales take their place";
                    return Err(Error::shape("row factors", required, "there"));
                }
                let stride = gemm.strides.activation_scales.stride / size_of::<f32>();
                let stride = u32::try_from(stride).map_err(|_| {
                    Error::shape("batch stride of the tokens' scales", "below 2^34 bytes", stride)
                })?;
                scales = Some((of_rows, stride));
                (codes, spacing.stride as u64)
            }
        };
        let (mut epilogue, mut row_factor_stride) = (epilogue, 0);
        if let Some((scales, stride)) = scales {
            epilogue.affine.row_factors = scales;
            epilogue.up.row_factors = scales;
            row_factor_stride = stride;
        }
        let map = activations_map(config, &self.problem, stride);
        let matrix = layout(&weights.form()).bytes().unwrap_or(0);
        Ok(HopperParams {
            activations: device.tensor_map(&map, activations)?,
            weights: weights.address(),
            weight_stride: if weights.batch() == 1 { 0 } else { matrix },
            partials: workspace + parts.partials as u64,
            flags: workspace,
            epilogue,
            problem: self.problem,
            schedule,
            row_factor_stride,
            walk: config.tiles(&self.problem).counts.walk,
        })
    }

    /// Queues decoding block-scaled activations, or quantising floats to e4m3, to the workspace at this
    /// address; nothing for others.
    ///
    /// # Errors
    /// As [`Gemm::launch`].
    pub fn decode_before(&self, launch: &Launch<'_>, workspace: u64) -> Result<()> {
        let &Launch { gemm, activations, .. } = launch;
        let parts = self.workspace(gemm.kind)?;
        let made = workspace + parts.activations as u64;
        match activations.check(gemm.kind, &gemm.strides, gemm.kernels.device())? {
            CheckedActivations::Halves(_) if gemm.kind.operand().half().is_some() => Ok(()),
            CheckedActivations::Fp8(_) => Ok(()),
            CheckedActivations::Halves(input) => {
                let scales = workspace + parts.scales as u64;
                self.quantize(launch, input, [made, scales])
            }
            CheckedActivations::Blocks { codes, scales, layout, .. } => {
                self.decode(gemm, [codes, scales], layout, made)
            }
        }
    }

    /// Queues quantising floats to e4m3 at `codes`, `[L, M, K]`, or `[M, K]` where entries share them,
    /// with scales for each row.
    fn quantize(&self, launch: &Launch<'_>, input: u64, [codes, scales]: [u64; 2]) -> Result<()> {
        let gemm = launch.gemm;
        let Problem { m, k, l, .. } = self.problem;
        let matrix = matrix_bytes(&self.problem, Operand::E4m3);
        for (index, step) in (0u64..).zip(gemm.before()) {
            let params = TokensParams {
                input: input + index * gemm.strides.activations.stride as u64,
                factors: launch.epilogue.affine.row_factors,
                codes: codes + index * matrix,
                scales: scales + index * u64::from(m) * size_of::<f32>() as u64,
                k,
                // The problems of a uniform product share row factors.
                factor_rows: Divisor::nearest(match launch.groups {
                    Some(_) => m.saturating_mul(l),
                    None => m,
                }),
            };
            // SAFETY: the input has the planned sizes, as checked by the caller, and so have the row
            // factors; codes and scales are in the workspace, which is large enough.
            unsafe { launch_step(&gemm.kernels, step, true, bytes(&params))? };
        }
        Ok(())
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
