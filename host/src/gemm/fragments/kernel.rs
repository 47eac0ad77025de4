//! A kernel with a schedule for one problem.

use fp4_formats::Operand;
use fp4_formats::gemm::fragments::Tile;
use fp4_formats::gemm::{Adding, Operands, Problem, ResultType, Tiles};
use fp4_formats::params::bytes;

use super::{Fragments, order};
use crate::device::Queue;
use crate::error::Result;
use crate::gemm::family::{Kernel, Launch, LaunchShape, Stored};
use crate::gemm::groups::GroupedRuns;
use crate::gemm::parts::{Partials, WorkspaceParts, Zeroed};
use crate::gemm::strides::Entries;
use crate::gemm::{ActivationKind, Candidate, Reads, WeightForm, decoded, fp8};
use crate::plan::fragments::Estimate;
use crate::quantize::device::PlannedKernel;

/// A kernel with a schedule for one problem.
#[derive(Debug)]
pub(in crate::gemm) struct FragmentKernel<C: Fragments> {
    /// Sizes; of a grouped product, those of its matrices.
    pub problem: Problem,
    /// The runs of a grouped product.
    pub groups: Option<GroupedRuns>,
    /// Whether it is one of several products of sizes of their own.
    pub mixed: bool,
    /// Streaming multiprocessors that the estimate was made for.
    pub sms: u32,
    pub estimate: Estimate<C>,
}

impl<C: Fragments> FragmentKernel<C> {
    /// Returns the layout of the workspace.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::error::Error::Overflow).
    pub fn workspace(&self, kind: ActivationKind) -> Result<WorkspaceParts> {
        let Estimate { config, schedule, ctas, .. } = &self.estimate;
        let most_ctas = self.sms as usize * C::MAX_BLOCKS as usize;
        let zeroed = Zeroed {
            flags: most_ctas * size_of::<u32>(),
            marked: most_ctas * C::MARKED_BYTES as usize,
        };
        let made = match kind {
            _ if self.takes_blocks() => Some([0; 2]),
            ActivationKind::Blocks { .. } => {
                decoded::bytes_of_all(&self.problem, kind.operand()).map(|bytes| [bytes, 0])
            }
            ActivationKind::Fp8(from) if self.decodes_bytes(kind) => {
                fp8::decoded_bytes(&self.problem, from.is_some())
            }
            ActivationKind::Fp8(Some(_)) => fp8::made_bytes(&self.problem),
            ActivationKind::Halves(_) | ActivationKind::Fp8(None) => Some([0; 2]),
        };
        let has_fix_up = self.groups.is_some() || schedule.has_fix_up();
        let tile = config.tile();
        let partials = match (has_fix_up, tile.marks_partials) {
            (false, _) => Partials::None,
            (true, true) => Partials::Marked,
            (true, false) => Partials::Flagged(*ctas * u64::from(tile.partial_bytes)),
        };
        WorkspaceParts::new(&self.problem, zeroed, made, partials)
    }

    /// Whether activations are multiplied in blocks, as they are.
    pub fn takes_blocks(&self) -> bool {
        let Operands { weights: _, activations } = self.estimate.config.operands();
        activations.is_none()
    }

    /// The sizes that are counted with: of a grouped product, the expected ones.
    fn expected(&self) -> Problem {
        match self.groups {
            Some(GroupedRuns { expected: [l, m], .. }) => Problem { m, l, ..self.problem },
            None => self.problem,
        }
    }

    /// Whether activations in e4m3 are decoded before the product, because the tensor cores do not multiply them.
    pub fn decodes_bytes(&self, kind: ActivationKind) -> bool {
        let Operands { weights: _, activations } = self.estimate.config.operands();
        match (kind, activations) {
            (ActivationKind::Fp8(_), Some(Operand::Half(_))) => true,
            (ActivationKind::Fp8(_), Some(Operand::E4m3) | None)
            | (ActivationKind::Halves(_) | ActivationKind::Blocks { .. }, _) => false,
        }
    }

    /// The tiles of the problem; those of a multicast count as one.
    pub fn tiles(&self) -> Tiles {
        self.estimate.config.tiles(&self.problem)
    }
}

impl<C: Fragments> Kernel for FragmentKernel<C> {
    fn candidate(&self) -> Candidate {
        let Estimate { config, split, ctas, waves, cycles, bound, .. } = self.estimate;
        Candidate { kernel: config.name(), split, ctas, waves, cycles, bound }
    }

    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn shape(&self) -> LaunchShape {
        let Estimate { config, schedule, ctas, resident, .. } = self.estimate;
        let Tile { rows, tokens, multicast, threads, stages, .. } = config.tile();
        LaunchShape {
            ctas,
            cluster: schedule.cluster().value() * multicast,
            threads,
            dynamic_shared: config.launch_shared_bytes(resident),
            stages,
            tile: [rows, tokens],
        }
    }

    /// Counts activations as they are multiplied, and repacked weights, for the steps of all tiles.
    fn reads(&self) -> Reads {
        let (config, problem) = (self.estimate.config, &self.expected());
        let (tile, tiles) = (config.tile(), config.tiles(problem));
        Reads {
            activation_passes: tiles.row_tiles().into(),
            weight_passes: tiles.token_tiles().into(),
            bytes: tiles.count() * u64::from(tile.steps(problem)) * u64::from(tile.step_bytes),
        }
    }

    fn additions(&self) -> u32 {
        match self.groups {
            Some(GroupedRuns { least, .. }) => self.estimate.grouped_additions(least),
            None => self.estimate.additions(),
        }
    }

    fn weight_form(&self) -> WeightForm {
        let Problem { n, k, .. } = self.problem;
        order::form::<C>(self.estimate.config.operands(), [n, k])
    }

    fn decoded_scale(&self, kind: ActivationKind) -> f32 {
        if self.takes_blocks() { 1.0 } else { decoded::scale(kind) }
    }

    fn workspace_bytes(&self, kind: ActivationKind) -> Result<usize> {
        Ok(self.workspace(kind)?.bytes)
    }

    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<PlannedKernel>> {
        match kind {
            _ if self.takes_blocks() => Ok(Vec::new()),
            ActivationKind::Halves(_) => Ok(Vec::new()),
            ActivationKind::Fp8(from) => {
                let quantised = from.map(|input| fp8::steps(&self.problem, input, entries));
                let mut steps = quantised.transpose()?.unwrap_or_default();
                if self.decodes_bytes(kind) {
                    steps.extend(fp8::decoding_steps(&self.problem, entries)?);
                }
                Ok(steps)
            }
            ActivationKind::Blocks { format, layout } => {
                decoded::steps(&self.problem, (format, kind.operand()), layout, entries, self.sms)
            }
        }
    }

    fn store_cycles(&self, result: ResultType) -> u64 {
        let Estimate { config, schedule, .. } = &self.estimate;
        config.store_cycles(schedule.cluster().value(), result)
    }

    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String> {
        let Estimate { config, schedule, ctas, waves, bound, .. } = &self.estimate;
        let (tile, sms) = (config.tile(), self.sms);
        let (steps, k_step) = (schedule.steps(), tile.k_step);
        let mut why = Vec::new();
        if let Some(GroupedRuns { expected: [groups, tokens], least, whole }) = self.groups {
            let order = match whole {
                true => "one after the other".into(),
                false => format!("in even runs of {least} or more"),
            };
            why.push(format!(
                "{chosen} for {tokens} tokens of each of {groups} groups: tiles of {steps} steps of K = \
                 {k_step} {order} for {ctas} CTAs on {sms} SMs; the kernel finds out how many tiles there are"
            ));
        } else if self.mixed {
            why.push(format!(
                "{} tiles of {steps} steps of K = {k_step} beside those of other products: {ctas} CTAs \
                 or fewer on {sms} SMs take whole tiles in turn, the longest first",
                self.tiles().count(),
            ));
        } else {
            why.push(format!(
                "{chosen}: {} {} of {steps} steps of K = {k_step}, at most {} steps per CTA, {ctas} CTAs \
                 in {waves} waves on {sms} SMs, the main loop bound by {bound}",
                self.tiles().count(),
                if tile.multicast > 1 { "pairs of tiles" } else { "tiles" },
                schedule.most(),
            ));
            let place = match (schedule.has_fix_up(), schedule.is_split()) {
                (true, _) => Some("the workspace"),
                (false, true) => Some("shared memory"),
                (false, false) => None,
            };
            if let Some(place) = place {
                why.push(format!(
                    "up to {} CTAs split the K of a tile; their partial sums meet in {place}",
                    schedule.parts()
                ));
            }
            if tile.multicast > 1 {
                why.push(format!(
                    "{} CTAs of a cluster compute tiles of neighbouring rows; each copies {} of the {} \
                     tokens to all by multicast",
                    tile.multicast,
                    tile.tokens / tile.multicast,
                    tile.tokens
                ));
            }
        }
        if !self.takes_blocks() {
            why.extend(made::<C>(kind, self.decodes_bytes(kind), self.estimate.config.adding()));
        }
        why
    }

    fn store_path(&self, _: Stored) -> Option<&'static str> {
        None
    }

    fn tiles(&self) -> u64 {
        self.tiles().count()
    }

    fn launch<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        self.give(launch, queue)
    }

    fn prepare<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        self.make_before(launch, queue)
    }

    fn block(&self, launch: &Launch<'_>) -> Result<Vec<u8>> {
        Ok(bytes(&self.params(launch)?).to_vec())
    }
}

/// Returns a plan's lines about operands that are not multiplied as they are, and about e4m3; `decodes` says whether
/// that is decoded.
fn made<C: Fragments>(kind: ActivationKind, decodes: bool, adding: Adding) -> Vec<String> {
    let exact = "weights are multiplied with their block scales as they are, exactly; weights are not folded";
    let decoded = "activations in e4m3 are decoded to bf16, exactly, by a launch before; weights are not folded";
    let folded = "weights are folded with their block scales to e4m3: those of MXFP4 exactly where the \
                  scales of a row are within 2^11, those of NVFP4 rounded to a mantissa of 3 bits";
    let added = match adding {
        Adding::Promoted => "sums are promoted to f32 every 512 columns",
        Adding::Fast => {
            "the tensor core adds all columns of a CTA, and keeps fewer bits of sums than f32 has"
        }
    };
    match kind {
        ActivationKind::Halves(_) => Vec::new(),
        ActivationKind::Blocks { .. } => {
            vec![format!("activations are decoded to {}, exactly", kind.operand().name())]
        }
        ActivationKind::Fp8(from) => {
            let of_bytes = match (decodes, C::FOLDS) {
                (true, _) => decoded.to_owned(),
                (false, true) => format!("{folded}; {added}"),
                (false, false) => exact.to_owned(),
            };
            from.map(fp8::why).into_iter().chain([of_bytes]).collect()
        }
    }
}
