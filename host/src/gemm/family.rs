//! The interface of a family of tensor cores to a GEMM: its kernels as candidates of a plan, the
//! order of its weights, and its launch. Everything else is common to all families.

use std::fmt;
use std::sync::Arc;

use fp4_formats::gemm::sm90::fold::Lost;
use fp4_formats::gemm::{Epilogue, EvenRuns, Groups, NextWeights, Problem, ResultType};
use fp4_formats::moe::Chosen;
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, Divisor, ScaleLayout, TensorFamily};

use super::plan::{Candidate, Reads, Request};
use super::strides::Entries;
use super::weights::BlockRows;
use super::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, Grouping, WeightForm, Workspace, sm90,
    sm100,
};
use crate::error::Result;
use crate::quantize::device::Step;

/// A family of tensor cores.
pub(super) trait Family: Sync {
    /// The kernels that take the problem and are not ruled out by overrides, the cheapest first.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) where no kernel takes the formats, and for
    /// overrides that name an unknown kernel or a split that no kernel makes.
    fn candidates(&self, request: &Request<'_>) -> Result<Vec<Arc<dyn Kernel>>>;

    /// The same for a grouped product, whose matrices have the sizes of the request's problem.
    ///
    /// # Errors
    /// The same as [`candidates`](Self::candidates), and for more tiles than can be numbered.
    fn grouped(&self, request: &Request<'_>, groups: &GroupRequest)
    -> Result<Vec<Arc<dyn Kernel>>>;

    /// The kernels of several products of sizes of their own in one launch, one for each request; all
    /// are the same but for the sizes.
    ///
    /// # Errors
    /// The same as [`candidates`](Self::candidates).
    fn mixed(&self, requests: &[Request<'_>]) -> Result<Vec<Arc<dyn Kernel>>>;

    /// Tokens of the tiles of all kernels that take these formats, in any order.
    fn token_tiles(&self, format: Format, kind: ActivationKind) -> Vec<usize>;

    /// The order of repacked weights for activations of `kind`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) where no kernel takes the formats.
    fn weight_form(
        &self,
        format: Format,
        kind: ActivationKind,
        sizes: [u32; 2],
    ) -> Result<WeightForm>;

    /// Bytes of `batch` matrices in that order; `None` where they cannot be counted.
    fn weight_bytes(&self, form: &WeightForm, batch: usize) -> Option<usize>;

    /// Fills `bytes`, zeroed and of [`weight_bytes`](Self::weight_bytes), with the matrices of
    /// `weights`, on all cores. Returns what folding changed of them.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory).
    fn repack(&self, form: &WeightForm, weights: &dyn BlockRows, bytes: &mut [u8]) -> Result<Lost>;

    /// Returns the part of `weights` that a launch before a product with them brings to L2.
    fn next_weights(&self, weights: &DeviceWeights) -> NextWeights;
}

/// The family of a target.
pub(super) fn family(arch: Arch) -> &'static dyn Family {
    of_tensor(arch.tensor())
}

/// The family of the targets with these tensor cores.
pub(super) fn of_tensor(tensor: TensorFamily) -> &'static dyn Family {
    match tensor {
        TensorFamily::Wgmma => &sm90::Sm90,
        TensorFamily::Tcgen05 => &sm100::Sm100,
    }
}

/// The problems of a grouped product, as far as the host knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupRequest {
    /// The number of problems.
    pub problems: u32,
    /// The order of their tokens.
    pub grouping: Grouping,
    /// The number of problems that are expected to have tokens, and the tokens of each.
    pub expected: [u32; 2],
}

impl GroupRequest {
    /// The most token tiles of all problems; `matrix` are the sizes of a matrix.
    pub fn most_token_tiles(&self, matrix: &Problem, tile_tokens: u32) -> u64 {
        self.memory(matrix).most_token_tiles(tile_tokens)
    }

    /// The kernels' parameters, of which row tiles and runs are not set, with nothing in memory.
    pub fn memory(&self, matrix: &Problem) -> Groups {
        let (slot, bound) = match self.grouping {
            Grouping::Contiguous { .. } => (0, matrix.m),
            Grouping::Slots { .. } | Grouping::Chosen(_) => {
                (matrix.m, matrix.m.saturating_mul(matrix.l))
            }
        };
        Groups {
            counts: 0,
            status: 0,
            factors: [[0; 2]; 2],
            next: NextWeights::NONE,
            problems: self.problems,
            slot,
            bound,
            vector_stride: 0,
            settled: 0,
            chosen: Chosen::NONE,
            row_tiles: Divisor::ONE,
            runs: EvenRuns { ctas: Divisor::ONE, tile: Divisor::ONE, least: 1, slack: 0 },
        }
    }
}

/// Grid and resources of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchShape {
    pub ctas: u64,
    pub cluster: u32,
    pub threads: u32,
    pub dynamic_shared: u32,
    pub stages: u32,
    /// Rows of `B` and tokens of a CTA's tile.
    pub tile: [u32; 2],
}

/// A kernel with a way to run one problem: a candidate of a plan.
pub(super) trait Kernel: fmt::Debug + Send + Sync {
    /// Its name and its estimated cost.
    fn candidate(&self) -> Candidate;

    /// Its launch.
    fn shape(&self) -> LaunchShape;

    /// Returns its copies of the operands.
    fn reads(&self) -> Reads;

    /// f32 additions, one after the other, that lead to a result.
    fn additions(&self) -> u32;

    /// The weights that it takes.
    fn weight_form(&self) -> WeightForm;

    /// Returns the factor of decoded activations before the product.
    fn decoded_scale(&self, kind: ActivationKind) -> f32;

    /// Bytes of workspace for activations of `kind`.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::error::Error::Overflow).
    fn workspace_bytes(&self, kind: ActivationKind) -> Result<usize>;

    /// The launches that decode activations or lay them out, before the product.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) for more rows than they take.
    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<Step>>;

    /// Cycles of the model in which a CTA stores its part of a tile.
    fn store_cycles(&self, result: ResultType) -> u64;

    /// Returns the reasons for its way of running, one sentence each; `chosen` says who chose it.
    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String>;

    /// Returns the path of results to memory, if it depends on the result's place.
    fn store_path(&self, gemm: &Gemm) -> Option<&'static str>;

    /// Tiles of the product; of a cluster, those that its CTAs compute together count as one. Not of
    /// grouped ones.
    fn tiles(&self) -> u64;

    /// Queues the launches of a product.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Queues the launches before a product, [`before`](Self::before)'s. `workspace` is the address of
    /// one that is large enough.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    fn prepare(&self, launch: &Launch<'_>, workspace: u64) -> Result<()>;

    /// The parameter block that the product itself is launched with.
    ///
    /// # Errors
    /// The same as [`Gemm::launch`].
    fn block(&self, launch: &Launch<'_>, workspace: u64) -> Result<Vec<u8>>;
}

/// The arguments of a product's launch. Sizes of weights, result and vectors are checked; those of the
/// activations and the workspace are not.
pub(super) struct Launch<'a> {
    pub gemm: &'a Gemm,
    pub activations: ActivationBuffers<'a>,
    pub weights: &'a DeviceWeights,
    pub workspace: Option<&'a Workspace>,
    pub epilogue: Epilogue,
    /// The problems of a grouped product, in memory. Row tiles and runs are not set.
    pub groups: Option<Groups>,
}

/// Rows that one launch before the product takes, and how many launches there are: one for all
/// matrices where they follow each other, or are one, else one for each.
pub(super) fn launches(problem: &Problem, layout: ScaleLayout, entries: Entries) -> (u32, u64) {
    let &Problem { m, l, .. } = problem;
    match (entries, layout) {
        (Entries::Dense, ScaleLayout::Linear) => (1, u64::from(l) * u64::from(m)),
        (Entries::Shared, _) => (1, m.into()),
        // Each entry's scales are padded in the 128x4 layout.
        (Entries::Dense, ScaleLayout::Blocked128x4)
        | (Entries::Apart, ScaleLayout::Linear | ScaleLayout::Blocked128x4) => (l, m.into()),
    }
}
