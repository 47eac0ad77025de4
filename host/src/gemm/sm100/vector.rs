//! A GEMV by the kernels of this architecture: a product of one token, whose weights lie as those of a GEMV
//! do, codes and 128x4 scales in their own buffers.

use fp4_formats::gemm::sm100::prepare::PreparedBlocks;
use fp4_formats::gemm::sm100::{Side, Sm100Config, Sm100Params, result_map};
use fp4_formats::gemm::{Affine, Epilogue, Problem, ResultScales, ResultType, Sink};
use fp4_formats::params::bytes;
use fp4_formats::quantize::Format;
use fp4_formats::tensor_map::TensorMap;
use fp4_formats::{FloatType, ScaleLayout};

use super::launch::{Placed, map_result};
use super::prepare::Preparation;
use super::workspace::Sm100Workspace;
use crate::device::{AtOnce, DeviceProperties, FoundKernel, Kernels, LaunchSpec};
use crate::error::Result;
use crate::gemm::ActivationKind;
use crate::gemm::strides::Entries;
use crate::plan::sm100::{Estimate, Rates};
use crate::plan::vector;
use crate::quantize::device::{PlannedKernel, launch_step};

/// A GEMV on the tensor cores, planned.
#[derive(Clone, Debug)]
pub(crate) struct VectorProduct {
    problem: Problem,
    choice: Estimate,
    /// Lays out the scales of activations, where the kernel does not load them: those of one token
    /// are never a whole tile.
    before: Option<PlannedKernel>,
    preparation: Preparation,
    workspace: Sm100Workspace,
    workspace_bytes: usize,
}

/// The device memory of a launch, checked.
pub(crate) struct VectorOperands {
    pub a_codes: u64,
    pub a_scales: u64,
    /// Bytes from one entry's scales of the activations to the next.
    pub a_scale_stride: u64,
    pub b_codes: u64,
    pub b_scales: u64,
    pub out: u64,
    pub output: FloatType,
    /// Factor of the result.
    pub alpha: f32,
    /// [`VectorProduct::workspace_bytes`].
    pub workspace: u64,
}

impl VectorProduct {
    /// The best one, or that of the kernel of this name. None for sizes that no kernel takes.
    pub fn plan(
        problem: Problem,
        activations: ScaleLayout,
        result: ResultType,
        machine: DeviceProperties,
        name: Option<&str>,
    ) -> Option<Self> {
        let rates = rates(machine);
        let choice = match name {
            None => vector::product(&problem, result, &rates)?,
            Some(name) => {
                let config = configs().find(|config| config.name == name)?;
                vector::by(config, &problem, result, &rates)?
            }
        };
        let preparation =
            Preparation::new(choice.config, &problem, activations, Entries::Dense, None);
        let before = preparation.steps().pop();
        let workspace = Sm100Workspace::new(machine.sms, &choice);
        let workspace_bytes = workspace.bytes(preparation.bytes)?;
        Some(Self { problem, choice, before, preparation, workspace, workspace_bytes })
    }

    /// The kernels that a product can have.
    pub fn names() -> impl Iterator<Item = &'static str> {
        configs().map(|config| config.name)
    }

    /// Estimated clocks, laying out activations included.
    pub fn clocks(&self) -> u64 {
        self.choice.clocks
    }

    /// Its sizes.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The kernel.
    pub fn kernel(&self) -> &'static str {
        self.choice.config.name
    }

    /// The launch before it, if there is one.
    pub fn before(&self) -> Option<&PlannedKernel> {
        self.before.as_ref()
    }

    /// CTAs, threads of each, dynamic shared memory, and rows of weights of a tile.
    pub fn shape(&self) -> [u32; 4] {
        let config = self.choice.config;
        let ctas = self.choice.clusters * config.cluster();
        [ctas, config.threads(), config.shared_bytes(), config.rows()]
    }

    /// f32 additions that lead to a result. The order of sums within the tensor core is not specified.
    pub fn additions(&self) -> u32 {
        self.problem.k
    }

    /// Tiles, and what bounds them, in words.
    pub fn why(&self) -> String {
        let Estimate { count, schedule, dynamic, limit, .. } = &self.choice;
        let order = if *dynamic {
            ", asked for while the kernel runs"
        } else if schedule.has_fix_up() {
            ", in even runs of their K steps, whose partial sums meet in the workspace"
        } else {
            ""
        };
        format!("{count} tiles of all batch entries{order}, bound by {}", limit.name())
    }

    /// Bytes of the workspace, or 0: flags, partial sums, and the scales of activations as tensor
    /// cores take them, where they are laid out.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Queues laying out the scales of activations, where that must be, and the product. The
    /// operands were checked: they have the sizes of the problem, and the weights' scales are 128x4
    /// with zeros in all padding. If it `overlaps` the kernel before, it reads weights while that
    /// runs.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(
        &self,
        kernels: &Kernels,
        (before, found): (Option<&FoundKernel>, &FoundKernel),
        operands: &VectorOperands,
        overlaps: bool,
    ) -> Result<()> {
        let params = self.params(kernels, operands)?;
        let before = self.before.as_ref().zip(before);
        if let Some((step, before)) = before {
            let VectorOperands { a_scales, a_scale_stride, .. } = *operands;
            let to = self.made_at(operands);
            let scales = self.preparation.scale_params(a_scales, a_scale_stride, to);
            // It begins when the stream's earlier work has ended, which may write the weights: the
            // product, which overlaps it, copies them at once.
            // SAFETY: scales and workspace have the sizes that the parameters state.
            unsafe { launch_step(&mut AtOnce, kernels, (step, before), false, bytes(&scales))? };
        }
        let [ctas, threads, dynamic_shared, _] = self.shape();
        let spec = LaunchSpec {
            entry: found.name(),
            grid: [ctas, 1, 1],
            block: [threads, 1, 1],
            cluster: None,
            overlaps: overlaps || before.is_some(),
            dynamic_shared,
            params: bytes(&params),
        };
        // SAFETY: the maps name the operands, whose sizes the caller has checked; freeing them waits for
        // launches.
        unsafe { kernels.launch_found(found, &spec) }
    }

    /// The address of the scales that are laid out.
    const fn made_at(&self, operands: &VectorOperands) -> u64 {
        operands.workspace + self.workspace.activations
    }

    fn params(&self, kernels: &Kernels, operands: &VectorOperands) -> Result<Sm100Params> {
        let (problem, choice) = (self.problem, &self.choice);
        let Problem { n, k, l, .. } = problem;
        let format = Format::Nvfp4;
        let device = kernels.device();
        let weights = PreparedBlocks { format, beside_bytes: false, rows: n, columns: k, batch: l };
        let place = |blocks: PreparedBlocks, codes, scales| Placed {
            blocks,
            codes,
            scales,
            code_stride: blocks.code_bytes(),
            scale_stride: blocks.scale_bytes(),
            scale_sizes: [blocks.rows, blocks.batch],
            loaded: None,
        };
        let weights = place(weights, operands.b_codes, operands.b_scales);
        let made = place(self.preparation.blocks, operands.a_codes, self.made_at(operands));
        let tokens = if choice.config.loads_tokens() {
            let (scales, scale_stride) = (operands.a_scales, operands.a_scale_stride);
            Placed { scales, scale_stride, loaded: Some(self.preparation.layout), ..made }
        } else {
            made
        };
        let [x_codes, x_scales] = weights.maps(device, choice, Side::X)?;
        let [y_codes, y_scales] = tokens.maps(device, choice, Side::Y)?;
        let place = [operands.out, u64::from(n)];
        let sink = Sink::of(place, operands.output as u32, n, ResultScales::NONE);
        let affine = Affine {
            row_factors: 0,
            column_factors: 0,
            bias: 0,
            alpha: operands.alpha,
            bias_type: FloatType::F32 as u32,
        };
        let result = result_map(choice.config, true, operands.output, &problem, u64::from(n));
        let result = map_result(device, result, operands.out)?;
        Ok(Sm100Params {
            x_codes,
            y_codes,
            x_scales,
            y_scales,
            result: result.unwrap_or(TensorMap::NONE),
            epilogue: Epilogue::of(affine, sink),
            partials: operands.workspace + self.workspace.partials,
            flags: operands.workspace,
            tokens: tokens.tokens(),
            problem,
            swapped: 1,
            dynamic: u32::from(choice.dynamic),
            x_once: 1,
            y_once: u32::from(choice.tiles.row_tiles() == 1),
            x_shared: 0,
            y_shared: 0,
            copied: u32::from(result.is_some()),
            row_factor_stride: 0,
            walk: choice.tiles.counts.walk,
            schedule: choice.schedule,
        })
    }
}

/// Returns the rates that the estimates are made for.
pub(crate) fn rates(machine: DeviceProperties) -> Rates {
    Rates { clusters: machine.clusters.at_least_one(), ..Rates::B200 }
}

/// The configurations of products of two NVFP4 operands.
fn configs() -> impl Iterator<Item = &'static Sm100Config> {
    let (format, layout) = (Format::Nvfp4, ScaleLayout::Linear);
    super::configs(format, ActivationKind::Blocks { format, layout })
}
