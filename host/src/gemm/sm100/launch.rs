//! Launching on sm_100a: activations are laid out where they must be, and maps made of all
//! operands.

use fp4_formats::gemm::sm100::prepare::{PrepareGroupedScales, PreparedBlocks};
use fp4_formats::gemm::sm100::store::RESULT_ALIGN;
use fp4_formats::gemm::sm100::{
    Side, Sm100GroupedParams, Sm100Params, TokenBlocks, codes_map, elements_map, result_map,
    scales_map,
};
use fp4_formats::gemm::{EvenRuns, Groups, Problem};
use fp4_formats::params::bytes;
use fp4_formats::tensor_map::{TensorMap, TensorMapShape};
use fp4_formats::{Divisor, ScaleLayout};

use super::kernel::Sm100Kernel;
use super::prepared;
use crate::device::{Device, LaunchSpec, Queue};
use crate::error::{Error, Result};
use crate::gemm::Output;
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::family::{Launch, Stored};
use crate::gemm::fp8::{self, PlacedBytes};
use crate::gemm::strides::{Entries, Strides};
use crate::plan::sm100::Estimate;
use crate::quantize::device::launch_step;

/// One operand's place in device memory.
pub(super) struct Placed {
    pub blocks: PreparedBlocks,
    /// Address of the codes, rows padded.
    pub codes: u64,
    /// Address of the 128x4 scales.
    pub scales: u64,
    /// Bytes from one matrix of codes to the next.
    pub code_stride: u64,
    /// Bytes from one matrix of scales to the next.
    pub scale_stride: u64,
    /// Rows and matrices of the scales.
    pub scale_sizes: [u32; 2],
    /// Order of scales that the kernel loads.
    pub loaded: Option<ScaleLayout>,
}

impl Placed {
    /// The maps of codes and scales, of what the copy engine brings.
    pub fn maps(&self, device: &Device, choice: &Estimate, side: Side) -> Result<[TensorMap; 2]> {
        let PreparedBlocks { rows, columns, batch, .. } = self.blocks;
        let sizes = [rows, columns, batch];
        let row = self.blocks.row_stride();
        let codes = if self.tokens().codes == 0 {
            let codes = codes_map(choice.config, side, sizes, row, self.code_stride);
            device.tensor_map(&codes, self.codes)?
        } else {
            TensorMap::NONE
        };
        let [rows, batch] = self.scale_sizes;
        let sizes = [rows, columns, batch];
        let scales = if self.loaded.is_none() {
            let scales = scales_map(choice.config, side, sizes, self.scale_stride);
            device.tensor_map(&scales, self.scales)?
        } else {
            TensorMap::NONE
        };
        Ok([codes, scales])
    }

    /// Returns the token blocks that the kernel loads.
    pub const fn tokens(&self) -> TokenBlocks {
        let (at, strides) = ([self.codes, self.scales], [self.code_stride, self.scale_stride]);
        match self.loaded {
            Some(layout) => TokenBlocks::new(self.blocks.columns, layout, at, strides),
            None => TokenBlocks::NONE,
        }
    }
}

/// The map by which the copy engine stores the result, if it can. Boxes hold a result for each
/// column of a tile, and gated products have half as many.
fn result_shape(kernel: &Sm100Kernel, stored: Stored) -> Option<TensorMapShape> {
    let Stored { output: Output::Floats(output), gated: false, stride } = stored else {
        return None;
    };
    let Estimate { config, swapped, .. } = kernel.choice;
    result_map(config, swapped, output, &kernel.problem, stride)
}

/// The map of a result of this shape at `out`, where the copy engine can store it there.
///
/// # Errors
/// [`DeviceError`](crate::device::DeviceError).
pub(super) fn map_result(
    device: &Device,
    shape: Option<TensorMapShape>,
    out: u64,
) -> Result<Option<TensorMap>> {
    let shape = shape.filter(|_| out.is_multiple_of(RESULT_ALIGN));
    shape.map(|shape| device.tensor_map(&shape, out)).transpose()
}

/// Returns a sentence for the plan about the path of results to memory.
pub(super) fn store_path(kernel: &Sm100Kernel, stored: Stored) -> &'static str {
    let is_boxed = result_shape(kernel, stored).is_some();
    if is_boxed && kernel.groups.is_some() {
        "results go through shared memory; the copy engine stores boxes of them that are inside a \
         group, threads the others"
    } else if is_boxed {
        "results go through shared memory; the copy engine stores boxes of them"
    } else if stored.output.blocks().is_some() {
        "threads store the blocks of the result"
    } else if stored.gated {
        "two columns of a tile make one of the result: threads store it"
    } else {
        "rows or matrices of the result are not multiples of 16 bytes apart: threads store it"
    }
}

/// Gives the launches of a product to a queue.
///
/// # Errors
/// The errors of the device; [`Error::Shape`] for row factors beside tokens' scales.
pub(super) fn give<'k>(
    kernel: &Sm100Kernel,
    launch: &Launch<'k>,
    queue: &mut dyn Queue<'k>,
) -> Result<()> {
    let choice = &kernel.choice;
    let config = choice.config;
    let params = params(kernel, launch)?;
    lay_out(kernel, launch, queue)?;
    let ctas = choice.clusters * config.cluster();
    let (uniform, grouped);
    let params: &[u8] = match launch.groups {
        Some(groups) => {
            let row_tiles = kernel.problem.n.div_ceil(config.work_shape(choice.swapped).rows);
            // The unit of work is a tile.
            let (ctas, tile) = (Divisor::nearest(ctas), Divisor::ONE);
            let runs = EvenRuns { ctas, tile, least: 1, slack: 0 };
            let groups = Groups { row_tiles: Divisor::nearest(row_tiles), runs, ..groups };
            grouped = Sm100GroupedParams { gemm: params, groups };
            bytes(&grouped)
        }
        None => {
            uniform = params;
            bytes(&uniform)
        }
    };
    let spec = LaunchSpec {
        entry: launch.kernel.name(),
        grid: [ctas, 1, 1],
        block: [config.threads(), 1, 1],
        cluster: None,
        overlaps: true,
        dynamic_shared: config.shared_bytes(),
        params,
    };
    // SAFETY: the maps name the operands, whose sizes were checked when the arguments were made and
    // at repacking, as were those of result and vectors; all are alive, and freeing waits for launches.
    unsafe { queue.launch(launch.kernels, launch.kernel, &spec) }
}

/// The parameters that all kernels take.
///
/// # Errors
/// The errors of the device; [`Error::Shape`] for row factors beside tokens' scales.
pub(super) fn params(kernel: &Sm100Kernel, launch: &Launch<'_>) -> Result<Sm100Params> {
    let &Launch { weights, mut epilogue, workspace, groups, .. } = launch;
    let choice = &kernel.choice;
    let (config, problem) = (choice.config, kernel.problem);
    let parts = kernel.workspace();
    let made_at = workspace + parts.activations;
    let blocks = prepared(&weights.form, weights.batch);
    let base = weights.address;
    let weights = Placed {
        blocks,
        codes: base,
        scales: base + PreparedBlocks::scales_at(blocks.code_bytes()),
        code_stride: blocks.matrix_bytes(),
        scale_stride: blocks.matrix_bytes(),
        scale_sizes: [blocks.rows, blocks.batch],
        loaded: None,
    };
    let device = launch.kernels.device();
    let (side, other) = if choice.swapped { (Side::X, Side::Y) } else { (Side::Y, Side::X) };
    let weight_maps = weights.maps(device, choice, side)?;
    let elements = |address: u64, stride: u64| -> Result<[TensorMap; 2]> {
        let Problem { m, k, l, .. } = problem;
        let shape = elements_map(config, [m, k, if stride == 0 { 1 } else { l }], stride);
        Ok([device.tensor_map(&shape, address)?, TensorMap::NONE])
    };
    let mut row_factor_stride = 0;
    let mut scaled = |bytes: PlacedBytes| {
        epilogue = bytes.scaling(epilogue);
        row_factor_stride = bytes.scale_stride;
        elements(bytes.elements, bytes.stride)
    };
    let mut tokens = TokenBlocks::NONE;
    let activation_maps = match launch.activations {
        CheckedActivations::Blocks { codes, scales, .. } => {
            let placed = place_blocks(kernel, launch, [codes, scales], made_at)?;
            tokens = placed.tokens();
            placed.maps(device, choice, other)?
        }
        CheckedActivations::Halves(address) => {
            elements(address, launch.strides.activations.stride as u64)?
        }
        CheckedActivations::ToFp8(_) => {
            scaled(PlacedBytes::made(launch, &problem, made(kernel, made_at)))?
        }
        CheckedActivations::Fp8(addresses) => scaled(PlacedBytes::given(launch, addresses)?)?,
    };
    // Each problem of a grouped product has a matrix.
    let weights_shared = u32::from(groups.is_none() && blocks.batch != problem.l);
    let activations_shared = u32::from(launch.strides.entries() == Entries::Shared);
    let (x_shared, y_shared) = if choice.swapped {
        (weights_shared, activations_shared)
    } else {
        (activations_shared, weights_shared)
    };
    let passes = [choice.tiles.token_tiles(), choice.tiles.row_tiles()];
    let [x_passes, y_passes] = if choice.swapped { passes } else { [passes[1], passes[0]] };
    let [[x_codes, x_scales], [y_codes, y_scales]] = if choice.swapped {
        [weight_maps, activation_maps]
    } else {
        [activation_maps, weight_maps]
    };
    let result = map_result(device, result_shape(kernel, launch.stored), epilogue.sink.out)?;
    // A mixed product's number is no matrix: the maps of its block have one each.
    let one_matrix = u32::from(kernel.mixed);
    Ok(Sm100Params {
        x_codes,
        y_codes,
        x_scales,
        y_scales,
        result: result.unwrap_or(TensorMap::NONE),
        epilogue,
        partials: workspace + parts.partials,
        flags: workspace,
        tokens,
        problem,
        swapped: u32::from(choice.swapped),
        dynamic: u32::from(choice.dynamic),
        x_once: u32::from(x_passes == 1 && x_shared == 0),
        y_once: u32::from(y_passes == 1 && y_shared == 0),
        x_shared: x_shared | one_matrix,
        y_shared: y_shared | one_matrix,
        copied: u32::from(result.is_some()),
        row_factor_stride,
        walk: choice.tiles.counts.walk,
        schedule: choice.schedule,
    })
}

/// Returns the addresses of activations that become e4m3, and of their tokens' scales, behind `at`.
fn made(kernel: &Sm100Kernel, at: u64) -> [u64; 2] {
    // The workspace was counted when the product was planned.
    let (offsets, _) = kernel.made().unwrap_or_default();
    offsets.map(|offset| at + offset as u64)
}

/// Returns the addresses of block-scaled activations when [`lay_out`] is done, which lays them out behind
/// `made_at`.
fn place_blocks(
    kernel: &Sm100Kernel,
    launch: &Launch<'_>,
    [codes, scales]: [u64; 2],
    made_at: u64,
) -> Result<Placed> {
    let Some(preparation) = kernel.preparation(launch.kind, launch.strides.entries()) else {
        return Err(Error::shape("activations", launch.kind.name(), "codes and scales"));
    };
    let blocks = preparation.blocks;
    let Strides { activations, activation_scales, .. } = launch.strides;
    let (code_stride, scale_stride) = (activations.stride as u64, activation_scales.stride as u64);
    let scale_sizes = preparation.scale_sizes();
    let loaded = kernel.choice.config.loads_tokens().then_some(preparation.layout);
    let mut placed =
        Placed { blocks, codes, scales, code_stride, scale_stride, scale_sizes, loaded };
    if let Some(at) = preparation.codes {
        (placed.codes, placed.code_stride) = (made_at + at, blocks.code_bytes());
    }
    if let Some(at) = preparation.scales {
        (placed.scales, placed.scale_stride) = (made_at + at, blocks.scale_bytes());
    }
    Ok(placed)
}

/// Queues laying out the activations in the workspace, or quantising them to e4m3, where
/// that must be.
///
/// # Errors
/// The errors of the device.
pub(super) fn lay_out<'k>(
    kernel: &Sm100Kernel,
    launch: &Launch<'k>,
    queue: &mut dyn Queue<'k>,
) -> Result<()> {
    let made_at = launch.workspace + kernel.workspace().activations;
    let (codes, scales) = match launch.activations {
        CheckedActivations::Blocks { codes, scales, .. } => (codes, scales),
        CheckedActivations::ToFp8(input) => {
            let made = made(kernel, made_at);
            return fp8::quantize(launch, &kernel.problem, input, made, launch.steps(), queue);
        }
        CheckedActivations::Halves(_) | CheckedActivations::Fp8(_) => return Ok(()),
    };
    let Some(preparation) = kernel.preparation(launch.kind, launch.strides.entries()) else {
        return Ok(());
    };
    let Strides { activations, activation_scales, .. } = launch.strides;
    let (code_stride, scale_stride) = (activations.stride as u64, activation_scales.stride as u64);
    // The steps of the codes, then that of the scales.
    let mut steps = launch.steps();
    if let Some(at) = preparation.codes {
        for (index, step) in (0..preparation.code_launches()).zip(&mut steps) {
            let to = made_at + at;
            let params = preparation.code_params(index, codes, code_stride, to);
            // SAFETY: source and workspace have the sizes that the parameters state.
            unsafe { launch_step(queue, launch.kernels, step, true, bytes(&params))? };
        }
    }
    if let (Some(at), Some(step)) = (preparation.scales, steps.next()) {
        let scales = preparation.scale_params(scales, scale_stride, made_at + at);
        let (uniform, grouped);
        let params: &[u8] = match launch.groups {
            Some(groups) => {
                grouped = PrepareGroupedScales { scales, groups };
                bytes(&grouped)
            }
            None => {
                uniform = scales;
                bytes(&uniform)
            }
        };
        // SAFETY: as above.
        unsafe { launch_step(queue, launch.kernels, step, true, params)? };
    }
    Ok(())
}
