//! GEMM on sm_100a: 4-bit operands stay as they are, multiplied with their scales by the
//! tensor core; beside 16-bit activations, weights are decoded on the way there.
//!
//! Weights are padded once at load: rows of codes to multiples of 16 bytes, scales to whole
//! tiles of the 128x4 layout. Activations that need it are laid out in the workspace by
//! launches before the product.

use fp4_formats::gemm::blackwell::choose::{self, Candidate as Choice, Limit};
use fp4_formats::gemm::blackwell::prepare::{
    self, CODES_NAME, PrepareCodes, PrepareScales, PreparedBlocks, SCALES_NAME,
};
use fp4_formats::gemm::blackwell::store::RESULT_ALIGN;
use fp4_formats::gemm::blackwell::{
    BlackwellParams, CONFIGS, Side, codes_map, halves_map, result_map, scales_map,
};
use fp4_formats::gemm::hopper::Operand;
use fp4_formats::gemm::{Epilogue, Problem, ResultType};
use fp4_formats::quantize::Format;
use fp4_formats::tensor_map::{MapElement, TensorMap, TensorMapShape};
use fp4_formats::{BlockFormat, ScaleLayout, Swizzle};
use ptx_emu::LaunchReport;
use ptx_emu::tensor_map::{self, ElementType, L2Promotion};

use super::plan::{Candidate, Chosen, FLOATS, Source, with_work};
use super::weights::scheme;
use super::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOverrides, GemmPlan, Output,
    Workspace, format_of,
};
use crate::device::{Device, LaunchSpec, Machine};
use crate::error::{Error, Result, filled};
use crate::quantize::device::{Step, launch_step, scale_bytes};
use crate::shape::MAX_DIM;
use crate::tensor::BlockScaled;
use crate::tune::TuneProblem;

/// The type of 16-bit activations; none for activations in the weights' format.
///
/// # Errors
/// [`Error::Shape`] for activations that have no kernel.
fn left(format: Format, kind: ActivationKind) -> Result<Option<Operand>> {
    match kind {
        ActivationKind::Halves(operand) => scheme(format, operand).map(|_| Some(operand)),
        ActivationKind::Blocks { format: of_activations, .. } if of_activations == format => {
            Ok(None)
        }
        ActivationKind::Blocks { .. } => {
            let required = format!("{}, as the weights", format.name());
            Err(Error::shape("format of activations", required, kind.name()))
        }
    }
}

/// Pads `weights` for the kernels.
///
/// # Errors
/// [`Error::Shape`] for activations or sizes that no kernel takes, [`Error::Memory`].
pub(super) fn repack<F: BlockFormat>(
    weights: &BlockScaled<F>,
    kind: ActivationKind,
) -> Result<(PreparedBlocks, Vec<u8>)> {
    let format = format_of::<F>();
    left(format, kind)?;
    let dims = weights.dims();
    let size = |field: &str, value: usize| match u32::try_from(value) {
        Ok(size) if u64::from(size) <= MAX_DIM => Ok(size),
        _ => Err(Error::shape(field, format!("at most {MAX_DIM}"), value)),
    };
    let blocks = PreparedBlocks {
        format,
        rows: size("N", dims.rows())?,
        columns: size("K", dims.cols())?,
        batch: size("batch", dims.batch())?,
    };
    let total = blocks.bytes().and_then(|bytes| usize::try_from(bytes).ok());
    let total = total.ok_or_else(|| Error::Overflow {
        what: format!("repacked `{}`", weights.name()),
        detail: format!("{} x {} x {}", dims.batch(), dims.rows(), dims.cols()),
    })?;
    let mut bytes = filled("repacked weights", total, 0u8)?;
    let stride = blocks.row_stride() as usize;
    for batch in 0..dims.batch() {
        for row in 0..dims.rows() {
            let codes = weights.row_codes(batch, row);
            bytes[(batch * dims.rows() + row) * stride..][..codes.len()].copy_from_slice(codes);
        }
    }
    let scales = weights.to_layout(ScaleLayout::Blocked128x4)?;
    let codes = blocks.code_stride() * u64::from(blocks.batch);
    bytes[PreparedBlocks::scales_at(codes) as usize..].copy_from_slice(scales.scales());
    Ok((blocks, bytes))
}

/// What of the activations is laid out before the product, and where in the workspace.
struct Preparation {
    blocks: PreparedBlocks,
    layout: ScaleLayout,
    /// Offset of the padded codes.
    codes: Option<u64>,
    /// Offset of the laid-out scales.
    scales: Option<u64>,
    bytes: u64,
}

impl Preparation {
    /// None for 16-bit activations, which are taken as they are.
    fn of(problem: &Problem, format: Format, kind: ActivationKind) -> Option<Self> {
        match kind {
            ActivationKind::Blocks { layout, .. } => Some(Self::new(problem, format, layout)),
            ActivationKind::Halves(_) => None,
        }
    }

    fn new(problem: &Problem, format: Format, layout: ScaleLayout) -> Self {
        let Problem { m: rows, k: columns, l: batch, .. } = *problem;
        let blocks = PreparedBlocks { format, rows, columns, batch };
        let codes = prepare::codes_need_it(columns).then_some(0);
        let code_bytes = if codes.is_some() { blocks.code_stride() * u64::from(batch) } else { 0 };
        let at = PreparedBlocks::scales_at(code_bytes);
        let scales = prepare::scales_need_it(format, layout, rows, columns).then_some(at);
        let scale_bytes = blocks.scale_stride() * u64::from(batch);
        let bytes = if scales.is_some() { at + scale_bytes } else { code_bytes };
        Self { blocks, layout, codes, scales, bytes }
    }

    fn code_params(&self, from: u64, to: u64) -> PrepareCodes {
        let rows = u64::from(self.blocks.rows) * u64::from(self.blocks.batch);
        PrepareCodes { from, to, rows, row_bytes: self.blocks.columns / 2, reserved: 0 }
    }

    fn scale_params(&self, from: u64, from_stride: u64, to: u64) -> PrepareScales {
        PrepareScales {
            from,
            to,
            from_stride,
            to_stride: self.blocks.scale_stride(),
            rows: self.blocks.rows,
            blocks: self.blocks.columns / self.blocks.format.block(),
            batch: self.blocks.batch,
            blocked: u32::from(self.layout == ScaleLayout::Blocked128x4),
        }
    }

    fn code_step(&self) -> Option<Step> {
        let ctas = self.code_params(0, 0).grid();
        self.codes.map(|_| Step { kernel: CODES_NAME, ctas, threads: prepare::THREADS })
    }

    fn scale_step(&self) -> Option<Step> {
        let ctas = self.scale_params(0, 0, 0).grid();
        self.scales.map(|_| Step { kernel: SCALES_NAME, ctas, threads: prepare::THREADS })
    }
}

/// Plans a checked problem; `stored` is what a result in NVFP4 takes of memory.
///
/// # Errors
/// As [`super::plan`].
pub(super) fn plan(
    problem: &Problem,
    asked: &TuneProblem,
    stored: Option<String>,
    arch: &str,
    machine: Machine,
    overrides: &GemmOverrides,
    source: Source,
) -> Result<GemmPlan> {
    let TuneProblem { format, activations: kind, output, .. } = *asked;
    let (left, result) = (left(format, kind)?, output.planned());
    let cards = choose::Machine { sms: machine.sms.max(8), ..choose::Machine::B200 };
    let candidates = candidates(format, left, problem, &cards, result, overrides)?;
    let Some(best) = candidates.first().copied() else {
        let sizes = format!("{problem:?} with {overrides:?}");
        return Err(Error::shape("GEMM", "a configuration that takes it", sizes));
    };
    let config = best.config;
    let preparation = Preparation::of(problem, format, kind);
    let bytes = preparation.as_ref().map_or(0, |preparation| preparation.bytes);
    let workspace_bytes = usize::try_from(bytes).map_err(|_| Error::Overflow {
        what: "workspace".into(),
        detail: format!("{bytes} bytes"),
    })?;
    let weights = if best.swapped { "rows" } else { "columns" };
    let order = if best.dynamic { "asked for by the CTAs" } else { "one after the other" };
    let mut why = vec![
        format!(
            "{}: {} tiles {order}, bound by {}",
            source.reason("the shortest estimate"),
            best.tiling.count,
            best.limit.name(),
        ),
        format!("weights are the {weights} of the tensor core's tiles"),
    ];
    if left.is_some() {
        why.push("weights are decoded to the activations' type, exactly".into());
    }
    let mut before = Vec::new();
    if let Some(step) = preparation.as_ref().and_then(Preparation::code_step) {
        why.push("rows of activations are not multiples of 16 bytes: padded before".into());
        before.push(step);
    }
    if let Some(step) = preparation.as_ref().and_then(Preparation::scale_step) {
        why.push("scales of activations are laid out in whole 128x4 tiles before".into());
        before.push(step);
    }
    if !before.is_empty() {
        why.push("the product begins to copy weights while that is done".into());
    }
    let tile = [config.rows(), config.columns];
    Ok(GemmPlan {
        op: "gemm",
        kernel: config.name,
        arch: arch.into(),
        before,
        grid: [best.clusters * config.cluster(), 1],
        cluster: config.cluster(),
        splits: config.splits,
        threads: config.threads(),
        dynamic_shared: config.shared_bytes(),
        tile: if best.swapped { tile } else { [tile[1], tile[0]] },
        stages: config.stages(),
        workspace_bytes,
        // The order of sums within the tensor core is not specified.
        additions: problem.k,
        repack: "weights, once at load",
        result: stored.map(|stored| {
            let most = choose::store_clocks(config, best.swapped, result);
            let floats = choose::store_clocks(config, best.swapped, FLOATS);
            with_work(&stored, [most, floats])
        }),
        source,
        why,
        candidates: candidates.into_iter().map(Candidate::from).collect(),
        chosen: Chosen::Blackwell(best),
    })
}

/// The candidates that the overrides leave, the shortest first. Of a configuration's two
/// orientations only the better one.
fn candidates(
    format: Format,
    left: Option<Operand>,
    problem: &Problem,
    machine: &choose::Machine,
    result: ResultType,
    overrides: &GemmOverrides,
) -> Result<Vec<Choice>> {
    let suitable =
        || CONFIGS.iter().filter(|config| config.format == format && config.left == left);
    if let Some(name) = &overrides.kernel
        && !suitable().any(|config| config.name == name)
    {
        let names: Vec<&str> = suitable().map(|config| config.name).collect();
        return Err(Error::shape("kernel", format!("one of {}", names.join(", ")), name));
    }
    let mut found: Vec<Choice> = choose::candidates(format, left, problem, result, machine)
        .filter(|choice| overrides.kernel.as_ref().is_none_or(|name| name == choice.config.name))
        .filter(|choice| overrides.splits.is_none_or(|splits| splits == choice.config.splits))
        .collect();
    found.sort_by_key(|choice| (choice.clocks, choice.bytes));
    let mut seen = Vec::new();
    found.retain(|choice| {
        let new = !seen.contains(&choice.config.name);
        seen.push(choice.config.name);
        new
    });
    Ok(found)
}

impl From<Choice> for Candidate {
    fn from(from: Choice) -> Self {
        let resident = if from.dynamic { from.resident } else { from.clusters };
        Self {
            kernel: from.config.name,
            splits: from.config.splits,
            ctas: u64::from(from.clusters) * u64::from(from.config.cluster()),
            waves: u64::from(from.tiling.count.div_ceil(resident.max(1))),
            cycles: from.clocks,
            bound: match from.limit {
                Limit::Dram => "DRAM",
                Limit::L2 => "L2",
                Limit::Copies => "copies into shared memory",
                Limit::Products => "tensor cores",
                Limit::Decode => "decoding of weights",
                Limit::Results => "quantising of results",
            },
        }
    }
}

/// One operand's place in device memory.
struct Placed {
    blocks: PreparedBlocks,
    codes: u64,
    scales: u64,
}

impl Placed {
    fn maps(&self, device: &Device, choice: &Choice, side: Side) -> Result<[TensorMap; 2]> {
        let PreparedBlocks { rows, columns, batch, .. } = self.blocks;
        let sizes = [rows, columns, batch];
        let (row, matrix) = (self.blocks.row_stride(), self.blocks.code_stride());
        let codes = codes_map(choice.config, side, sizes, row, matrix);
        let scales = scales_map(choice.config, side, sizes, self.blocks.scale_stride());
        Ok([encode(device, &codes, self.codes)?, encode(device, &scales, self.scales)?])
    }
}

/// Encodes a map for a tensor at `address`.
fn encode(device: &Device, shape: &TensorMapShape, address: u64) -> Result<TensorMap> {
    let element = match shape.element {
        MapElement::U8 => ElementType::U8,
        MapElement::U16 => ElementType::U16,
        MapElement::U32 => ElementType::U32,
    };
    let rank = shape.rank;
    let map = tensor_map::TensorMap {
        swizzle: match shape.swizzle {
            Swizzle::None => tensor_map::Swizzle::None,
            Swizzle::B32 => tensor_map::Swizzle::B32,
            Swizzle::B64 => tensor_map::Swizzle::B64,
            Swizzle::B128 => tensor_map::Swizzle::B128,
        },
        l2_promotion: L2Promotion::B256,
        ..tensor_map::TensorMap::tiled(
            element,
            address,
            &shape.dims[..rank],
            &shape.strides[..rank - 1],
            &shape.box_dims[..rank],
        )
    };
    Ok(TensorMap::from_bytes(&device.encode_tensor_map(&map)?))
}

/// The map by which the copy engine stores the result, dense, if it can.
fn result_shape(choice: &Choice, problem: &Problem, output: Output) -> Option<TensorMapShape> {
    let Output::Floats(output) = output else { return None };
    let stride = u64::from(problem.m) * u64::from(problem.n);
    result_map(choice.config, choice.swapped, output, problem, stride)
}

/// How results get to memory, a sentence for the plan.
pub(super) fn way_out(choice: &Choice, problem: &Problem, output: Output) -> &'static str {
    if result_shape(choice, problem, output).is_some() {
        "results go through shared memory; the copy engine stores boxes of them"
    } else if matches!(output, Output::Nvfp4 { .. }) {
        "threads store the blocks of the result"
    } else {
        "rows of the result are not multiples of 16 bytes: threads store it"
    }
}

/// [`Gemm::launch`] on sm_100a, sizes of result and vectors checked.
///
/// # Errors
/// As there.
pub(super) fn launch(
    gemm: &Gemm,
    choice: &Choice,
    a: ActivationBuffers<'_>,
    weights: &DeviceWeights,
    blocks: &PreparedBlocks,
    workspace: Option<&Workspace>,
    epilogue: Epilogue,
) -> Result<Vec<LaunchReport>> {
    let config = choice.config;
    let (activations, mut reports) = place(gemm, config.format, a, workspace)?;
    let code_bytes = blocks.code_stride() * u64::from(blocks.batch);
    let base = weights.buffer().address();
    let scales = base + PreparedBlocks::scales_at(code_bytes);
    let weights = Placed { blocks: *blocks, codes: base, scales };
    let device = gemm.kernels.device();
    let (side, other) = if choice.swapped { (Side::X, Side::Y) } else { (Side::Y, Side::X) };
    let weight_maps = weights.maps(device, choice, side)?;
    let left_maps = match activations {
        Left::Blocks(placed) => placed.maps(device, choice, other)?,
        Left::Halves(address) => {
            let Problem { m, k, l, .. } = gemm.problem;
            [encode(device, &halves_map(config, [m, k, l]), address)?, TensorMap::NONE]
        }
    };
    let shared = u32::from(blocks.batch != gemm.problem.l);
    let (x_shared, y_shared) = if choice.swapped { (shared, 0) } else { (0, shared) };
    let [[x_codes, x_scales], [y_codes, y_scales]] =
        if choice.swapped { [weight_maps, left_maps] } else { [left_maps, weight_maps] };
    let result = result_shape(choice, &gemm.problem, gemm.output)
        .filter(|_| epilogue.out.is_multiple_of(RESULT_ALIGN))
        .map(|shape| encode(device, &shape, epilogue.out))
        .transpose()?;
    let params = BlackwellParams {
        x_codes,
        y_codes,
        x_scales,
        y_scales,
        result: result.unwrap_or(TensorMap::NONE),
        epilogue,
        problem: gemm.problem,
        swapped: u32::from(choice.swapped),
        dynamic: u32::from(choice.dynamic),
        x_once: u32::from(choice.tiling.y == 1 && x_shared == 0),
        y_once: u32::from(choice.tiling.x == 1 && y_shared == 0),
        x_shared,
        y_shared,
        copied: u32::from(result.is_some()),
        reserved: 0,
    };
    let spec = LaunchSpec {
        entry: config.name,
        grid: [choice.clusters * config.cluster(), 1, 1],
        block: [config.threads(), 1, 1],
        cluster: None,
        overlaps: true,
        dynamic_shared: config.shared_bytes(),
        params: &params.to_bytes(),
    };
    // SAFETY: the maps name the operands, whose sizes were checked here and at repacking; result
    // and vectors were checked by the caller; all are alive, and freeing waits for launches.
    reports.extend(unsafe { gemm.kernels.launch(&spec)? });
    Ok(reports)
}

/// The activations in device memory.
enum Left {
    Blocks(Placed),
    /// Address of 16-bit elements.
    Halves(u64),
}

/// Checks the activations and lays them out where they must be.
fn place(
    gemm: &Gemm,
    format: Format,
    a: ActivationBuffers<'_>,
    workspace: Option<&Workspace>,
) -> Result<(Left, Vec<LaunchReport>)> {
    let (codes, scales, layout) = match (a, gemm.kind) {
        (ActivationBuffers::Blocks { codes, scales }, ActivationKind::Blocks { layout, .. }) => {
            (codes, scales, layout)
        }
        (ActivationBuffers::Halves(buffer), ActivationKind::Halves(_)) => {
            let Problem { m, k, l, .. } = gemm.problem;
            let required = l as usize * m as usize * k as usize * 2;
            if buffer.len() != required {
                let field = "bytes of the activations";
                return Err(Error::shape(field, required.to_string(), buffer.len()));
            }
            return Ok((Left::Halves(buffer.address()), Vec::new()));
        }
        (given, _) => {
            let given = match given {
                ActivationBuffers::Blocks { .. } => "codes and scales",
                ActivationBuffers::Halves(_) => "16-bit elements",
            };
            return Err(Error::shape("activations", gemm.kind.name(), given));
        }
    };
    let Problem { m, k, l, .. } = gemm.problem;
    let stride = scale_bytes(format, m as usize, k as usize, layout)?;
    let sizes = [
        ("codes", codes.len(), l as usize * m as usize * (k as usize / 2)),
        ("scales", scales.len(), l as usize * stride),
    ];
    for (field, found, required) in sizes {
        if found != required {
            let field = format!("bytes of the activations' {field}");
            return Err(Error::shape(field, required.to_string(), found));
        }
    }
    let preparation = Preparation::new(&gemm.problem, format, layout);
    let base = match workspace {
        _ if preparation.bytes == 0 => 0,
        Some(workspace) if workspace.len() as u64 >= preparation.bytes => workspace.address(),
        other => {
            let required = format!("at least {} bytes", preparation.bytes);
            return Err(Error::shape("workspace", required, other.map_or(0, Workspace::len)));
        }
    };
    let mut placed =
        Placed { blocks: preparation.blocks, codes: codes.address(), scales: scales.address() };
    let mut reports = Vec::new();
    if let (Some(step), Some(at)) = (preparation.code_step(), preparation.codes) {
        let params = preparation.code_params(placed.codes, base + at).to_bytes();
        // SAFETY: source and workspace have the sizes that the parameters state.
        reports.extend(unsafe { launch_step(&gemm.kernels, &step, true, &params)? });
        placed.codes = base + at;
    }
    if let (Some(step), Some(at)) = (preparation.scale_step(), preparation.scales) {
        let params = preparation.scale_params(placed.scales, stride as u64, base + at).to_bytes();
        // SAFETY: as above.
        reports.extend(unsafe { launch_step(&gemm.kernels, &step, true, &params)? });
        placed.scales = base + at;
    }
    Ok((Left::Blocks(placed), reports))
}
