//! A kernel of sm_80 with a schedule for one problem, and its launch.

use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm80::config::{self, MAX_BLOCKS, THREADS};
use fp4_formats::gemm::sm80::{Sm80GroupedParams, Sm80Params};
use fp4_formats::gemm::{EvenRuns, Groups, NextWeights, Problem, ResultType};
use fp4_formats::params::bytes;
use fp4_formats::{Divisor, TensorFamily};

use crate::device::{LaunchSpec, Queue};
use crate::error::{Error, Result};
use crate::gemm::buffers::CheckedActivations;
use crate::gemm::family::{Kernel, Launch, LaunchShape, Stored};
use crate::gemm::fp8::matrix_bytes;
use crate::gemm::groups::GroupedRuns;
use crate::gemm::parts::WorkspaceParts;
use crate::gemm::strides::Entries;
use crate::gemm::{ActivationKind, Candidate, Reads, WeightForm, decoded, fragments};
use crate::plan::sm80::{self as estimate, Estimate};
use crate::quantize::device::PlannedKernel;

/// A kernel of sm_80 with a schedule for one problem.
#[derive(Debug)]
pub(super) struct Sm80Kernel {
    /// Sizes; of a grouped product, those of its matrices.
    pub problem: Problem,
    /// The runs of a grouped product.
    pub groups: Option<GroupedRuns>,
    /// Whether it is one of several products of sizes of their own.
    pub mixed: bool,
    /// Streaming multiprocessors that the estimate was made for.
    pub sms: u32,
    pub estimate: Estimate,
}

impl Sm80Kernel {
    /// Returns the layout of the workspace.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    fn workspace(&self, kind: ActivationKind) -> Result<WorkspaceParts> {
        let Estimate { config, schedule, ctas, .. } = &self.estimate;
        let flags = self.sms as usize * MAX_BLOCKS as usize * size_of::<u32>();
        let made = match kind {
            ActivationKind::Blocks { .. } => {
                decoded::bytes_of_all(&self.problem, kind.operand()).map(|bytes| [bytes, 0])
            }
            ActivationKind::Halves(_) | ActivationKind::Fp8(_) => Some([0; 2]),
        };
        let has_fix_up = self.groups.is_some() || schedule.has_fix_up();
        let sums = if has_fix_up { *ctas * u64::from(config.partial_bytes()) } else { 0 };
        WorkspaceParts::new(&self.problem, flags, made, sums)
    }

    /// The sizes that are counted with: of a grouped product, the expected ones.
    fn expected(&self) -> Problem {
        match self.groups {
            Some(GroupedRuns { expected: [l, m], .. }) => Problem { m, l, ..self.problem },
            None => self.problem,
        }
    }

    /// The parameters that all kernels take.
    ///
    /// # Errors
    /// [`Error::Overflow`], which planning would have met.
    fn params(&self, launch: &Launch<'_>) -> Result<Sm80Params> {
        let &Launch { weights, epilogue, workspace, .. } = launch;
        let parts = self.workspace(launch.kind)?;
        let Estimate { config, schedule, .. } = self.estimate;
        let spacing = launch.strides.activations;
        let (activations, activation_stride) = match launch.activations {
            CheckedActivations::Halves(address) => (address, spacing.stride as u64),
            CheckedActivations::Blocks { .. } => {
                let matrix = matrix_bytes(&self.problem, config.scheme.operand);
                let made = workspace + parts.activations as u64;
                (made, if spacing.stride == 0 { 0 } else { matrix })
            }
            CheckedActivations::ToFp8(_) | CheckedActivations::Fp8(_) => return Err(no_fp8()),
        };
        let matrix = fragments::layout(&weights.form).bytes().unwrap_or(0);
        Ok(Sm80Params {
            activations,
            activation_stride,
            weights: weights.address,
            weight_stride: if weights.batch == 1 { 0 } else { matrix },
            partials: workspace + parts.partials as u64,
            flags: workspace,
            epilogue,
            problem: self.problem,
            schedule,
            plain: u32::from(epilogue.is_plain()),
            one: 1,
            walk: config.tiles(&self.problem).counts.walk,
        })
    }
}

/// The error for activations in e4m3, for which no kernel is planned.
fn no_fp8() -> Error {
    Error::shape("type of activations", "f16, bf16, or the weights' own format", "fp8")
}

impl Kernel for Sm80Kernel {
    fn candidate(&self) -> Candidate {
        let Estimate { config, split, ctas, waves, cycles, bound, .. } = self.estimate;
        Candidate { kernel: config.name, split, ctas, waves, cycles, bound }
    }

    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn shape(&self) -> LaunchShape {
        let Estimate { config, ctas, .. } = self.estimate;
        LaunchShape {
            ctas,
            cluster: 1,
            threads: THREADS,
            dynamic_shared: config.shared_bytes(),
            stages: config.stages(),
            tile: [config.rows, config.tokens],
        }
    }

    /// Counts 16-bit or decoded activations and repacked weights, for the steps of all tiles.
    fn reads(&self) -> Reads {
        let (config, problem) = (self.estimate.config, &self.expected());
        let tiles = config.tiles(problem);
        let steps = tiles.count() * u64::from(problem.k.div_ceil(config.k_step()));
        Reads {
            activation_passes: tiles.row_tiles().into(),
            weight_passes: config.token_tiles(problem.m).into(),
            bytes: steps * u64::from(config.stage_bytes()),
        }
    }

    fn additions(&self) -> u32 {
        let Estimate { config, schedule, .. } = &self.estimate;
        match self.groups {
            Some(GroupedRuns { least, .. }) => {
                config::grouped_additions(config, schedule.steps(), least)
            }
            None => config::additions(config, schedule),
        }
    }

    fn weight_form(&self) -> WeightForm {
        let Scheme { format, operand } = self.estimate.config.scheme;
        let (activations, Problem { n, k, .. }) = (Some(operand), self.problem);
        let tensor = TensorFamily::MmaSync;
        WeightForm { tensor, format, activations, rows: n, columns: k, gated: None }
    }

    fn decoded_scale(&self, kind: ActivationKind) -> f32 {
        decoded::scale(kind)
    }

    fn workspace_bytes(&self, kind: ActivationKind) -> Result<usize> {
        Ok(self.workspace(kind)?.bytes)
    }

    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<PlannedKernel>> {
        match kind {
            ActivationKind::Halves(_) => Ok(Vec::new()),
            ActivationKind::Fp8(_) => Err(no_fp8()),
            ActivationKind::Blocks { format, layout } => {
                decoded::steps(&self.problem, (format, kind.operand()), layout, entries, self.sms)
            }
        }
    }

    fn store_cycles(&self, result: ResultType) -> u64 {
        estimate::store_cycles(self.estimate.config, result)
    }

    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String> {
        let Estimate { config, schedule, ctas, waves, bound, .. } = &self.estimate;
        let (steps, k_step, sms) = (schedule.steps(), config.k_step(), self.sms);
        let mut why = if let Some(GroupedRuns { expected: [groups, tokens], least }) = self.groups {
            vec![format!(
                "{chosen} for {tokens} tokens of each of {groups} groups: tiles of {steps} steps of \
                 K = {k_step} in even runs of {least} or more for {ctas} CTAs on {sms} SMs; the kernel \
                 finds out how many tiles there are"
            )]
        } else if self.mixed {
            vec![format!(
                "{} tiles of {steps} steps of K = {k_step} beside those of other products: {ctas} CTAs \
                 or fewer on {sms} SMs take whole tiles in turn, the longest first",
                self.tiles(),
            )]
        } else {
            vec![format!(
                "{chosen}: {} tiles of {steps} steps of K = {k_step}, at most {} steps per CTA, {ctas} \
                 CTAs in {waves} waves on {sms} SMs, the main loop bound by {bound}",
                self.tiles(),
                schedule.most(),
            )]
        };
        if self.groups.is_none() && schedule.parts() > 1 {
            why.push(format!(
                "up to {} CTAs split the K of a tile; their partial sums meet in the workspace",
                schedule.parts()
            ));
        }
        if let ActivationKind::Blocks { .. } = kind {
            why.push(format!("activations are decoded to {}, exactly", kind.operand().name()));
        }
        why
    }

    fn store_path(&self, _: Stored) -> Option<&'static str> {
        None
    }

    fn tiles(&self) -> u64 {
        self.estimate.config.tiles(&self.problem).count()
    }

    fn launch<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        let Estimate { config, schedule, .. } = self.estimate;
        let LaunchShape { ctas, threads, dynamic_shared, .. } = self.shape();
        // The plan has checked that a launch has so many.
        let ctas = ctas as u32;
        let params = self.params(launch)?;
        self.prepare(launch, queue)?;
        let grouped;
        let params: &[u8] = match (launch.groups, self.groups) {
            (Some(groups), Some(GroupedRuns { least, .. })) => {
                let runs = EvenRuns {
                    ctas: Divisor::nearest(ctas),
                    tile: Divisor::nearest(schedule.steps()),
                    least,
                    slack: estimate::whole_tile_slack(config),
                };
                let row_tiles = Divisor::nearest(self.problem.n.div_ceil(config.rows));
                let groups = Groups { row_tiles, runs, next: NextWeights::NONE, ..groups };
                grouped = Sm80GroupedParams { gemm: params, groups };
                bytes(&grouped)
            }
            (Some(_), None) | (None, _) => bytes(&params),
        };
        let spec = LaunchSpec {
            entry: launch.kernel.name(),
            grid: [ctas, 1, 1],
            block: [threads, 1, 1],
            cluster: None,
            dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state: they were checked when the arguments were made, and when the weights were
        // repacked. Freeing device memory waits for launches.
        unsafe { queue.launch(launch.kernels, launch.kernel, &spec) }
    }

    fn prepare<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        match launch.activations {
            CheckedActivations::Halves(_) => Ok(()),
            CheckedActivations::ToFp8(_) | CheckedActivations::Fp8(_) => Err(no_fp8()),
            CheckedActivations::Blocks { codes, scales, layout } => {
                let out = launch.workspace + self.workspace(launch.kind)?.activations as u64;
                decoded::decode(&self.problem, launch, [codes, scales], layout, out, queue)
            }
        }
    }

    fn block(&self, launch: &Launch<'_>) -> Result<Vec<u8>> {
        Ok(bytes(&self.params(launch)?).to_vec())
    }
}
