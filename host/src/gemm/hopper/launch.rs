//! Launching on sm_90a: block-scaled activations are decoded first.

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::hopper::config::BOX_COLUMNS;
use fp4_formats::gemm::hopper::{HopperConfig, HopperParams, Operand, WeightLayout};
use fp4_formats::gemm::{Epilogue, Problem};
use fp4_formats::quantize::{DequantizeParams, ScaleSource};
use fp4_formats::tensor_map::TensorMap;
use ptx_emu::LaunchReport;
use ptx_emu::tensor_map::{self, ElementType, L2Promotion, Swizzle};

use super::{HopperChoice, decode_launches, decoded_scale};
use crate::device::LaunchSpec;
use crate::error::Result;
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::strides::Strides;
use crate::gemm::{ActivationBuffers, DeviceWeights, Gemm, Workspace};
use crate::quantize::device::launch_step;

/// [`Gemm::launch`] on sm_90a; weights, result and vectors are checked.
///
/// # Errors
/// As there.
pub(in crate::gemm) fn launch(
    gemm: &Gemm,
    chosen: &HopperChoice,
    a: ActivationBuffers<'_>,
    weights: &DeviceWeights,
    layout: &WeightLayout,
    workspace: Option<&Workspace>,
    epilogue: Epilogue,
) -> Result<Vec<LaunchReport>> {
    let &HopperChoice { config, division, workspace: parts } = chosen;
    let device = gemm.kernels.device();
    let workspace = Workspace::place(workspace, parts.bytes, device)?;
    let mut reports = Vec::new();
    let spacing = gemm.strides.activations;
    let (activations, stride) = match a.check(gemm.kind, &gemm.strides, device)? {
        CheckedActivations::Halves(address) => (address, spacing.stride as u64),
        CheckedActivations::Blocks { codes, scales, layout, .. } => {
            let decoded = workspace + parts.activations as u64;
            reports = decode(gemm, [codes, scales], layout, decoded)?;
            (decoded, if spacing.stride == 0 { 0 } else { decoded_bytes(&gemm.problem) })
        }
    };
    let params = HopperParams {
        activations: tensor_map(gemm, config, activations, stride)?,
        weights: weights.buffer().address(),
        weight_stride: if weights.batch() == 1 { 0 } else { layout.bytes().unwrap_or(0) },
        partials: workspace + parts.partials as u64,
        flags: workspace,
        epilogue,
        problem: gemm.problem,
        division,
    };
    let spec = LaunchSpec {
        entry: gemm.plan.kernel,
        grid: [gemm.plan.grid[0], gemm.plan.grid[1], 1],
        block: [gemm.plan.threads, 1, 1],
        cluster: (gemm.plan.cluster > 1).then_some([gemm.plan.cluster, 1, 1]),
        dynamic_shared: gemm.plan.dynamic_shared,
        overlaps: true,
        params: &params.to_bytes(),
    };
    // SAFETY: all buffers are of this device and have the sizes that the parameters state, as
    // checked above, by the caller and when the weights were repacked, and are alive; freeing device memory waits for launches.
    reports.extend(unsafe { gemm.kernels.launch(&spec)? });
    Ok(reports)
}

/// Bytes of a batch entry's decoded activations.
fn decoded_bytes(problem: &Problem) -> u64 {
    2 * u64::from(problem.m) * u64::from(problem.k)
}

/// Queues decoding block-scaled activations to 16-bit floats at `out`, `[L, M, K]`, or `[M, K]`
/// where entries share them.
fn decode(
    gemm: &Gemm,
    [codes, scales]: [u64; 2],
    layout: ScaleLayout,
    out: u64,
) -> Result<Vec<LaunchReport>> {
    let Strides { activations, activation_scales, .. } = &gemm.strides;
    // Checked when the launches were planned.
    let (_, rows) = decode_launches(&gemm.problem, layout, gemm.strides.entries());
    let mut reports = Vec::new();
    for (index, step) in (0u64..).zip(&gemm.plan.before) {
        let params = DequantizeParams {
            codes: codes + index * activations.stride as u64,
            scales: scales + index * activation_scales.stride as u64,
            tensor: 0,
            out: out + index * decoded_bytes(&gemm.problem),
            m: rows as u32,
            k: gemm.problem.k,
            given: decoded_scale(gemm.kind),
            source: ScaleSource::Given as u32,
            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
        };
        // SAFETY: codes and scales have the sizes that the parameters state, as checked
        // by the caller; `out` is the workspace, which is large enough.
        reports.extend(unsafe { launch_step(&gemm.kernels, step, true, &params.to_bytes())? });
    }
    Ok(reports)
}

/// The map of `[L, M, K]` activations at `address`, batch entries `stride` bytes apart, for the
/// plan's boxes.
fn tensor_map(gemm: &Gemm, config: &HopperConfig, address: u64, stride: u64) -> Result<TensorMap> {
    let Problem { m, k, l, .. } = gemm.problem;
    let (m, k, l) = (u64::from(m), u64::from(k), u64::from(l));
    let element = match gemm.kind.operand() {
        Operand::F16 => ElementType::F16,
        Operand::Bf16 => ElementType::Bf16,
    };
    let map = tensor_map::TensorMap {
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B256,
        ..tensor_map::TensorMap::tiled(
            element,
            address,
            &[k, m, l],
            &[2 * k, stride],
            &[BOX_COLUMNS, config.box_tokens(), 1],
        )
    };
    Ok(TensorMap::from_bytes(&gemm.kernels.device().encode_tensor_map(&map)?))
}
