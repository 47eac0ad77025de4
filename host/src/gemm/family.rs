//! The interface of a family of tensor cores to a GEMM: its kernels as candidates of a plan, the
//! order of its weights, and its launch. Everything else is common to all families.

use std::fmt;
use std::sync::Arc;

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::{Adding, Epilogue, Groups, NextWeights, Problem, ResultType};
use fp4_formats::quantize::Format;

use super::buffers::CheckedActivations;
use super::candidate::Request;
use super::form::{BlockRows, PlacedWeights};
use super::groups::GroupRequest;
use super::strides::{Entries, Strides};
use super::{ActivationKind, Candidate, Output, Reads, WeightForm};
use crate::device::{FoundKernel, Kernels, Queue};
use crate::error::Result;
use crate::quantize::device::PlannedKernel;

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
    fn token_tiles(&self, format: Format, kind: ActivationKind, adding: Adding) -> Vec<usize>;

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
    fn next_weights(&self, weights: PlacedWeights) -> NextWeights;
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

    /// The sizes, checked; of a grouped product, those of its matrices.
    fn problem(&self) -> &Problem;

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
    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<PlannedKernel>>;

    /// Cycles of the model in which a CTA stores its part of a tile.
    fn store_cycles(&self, result: ResultType) -> u64;

    /// Returns the reasons for its way of running, one sentence each; `chosen` says who chose it.
    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String>;

    /// Returns the path of results to memory, if it depends on the result's place.
    fn store_path(&self, stored: Stored) -> Option<&'static str>;

    /// Tiles of the product; of a cluster, those that its CTAs compute together count as one. Not of
    /// grouped ones.
    fn tiles(&self) -> u64;

    /// Gives the launches of a product, whose arguments are checked, to a queue.
    ///
    /// # Errors
    /// The errors of the device; [`Error::Shape`](crate::error::Error::Shape) for factors that the kernel does
    /// not take.
    fn launch<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()>;

    /// Gives the launches before a product, [`before`](Self::before)'s, to a queue.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    fn prepare<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()>;

    /// The parameter block that the product itself is launched with.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    fn block(&self, launch: &Launch<'_>) -> Result<Vec<u8>>;
}

/// The result of a product, as far as it decides how a kernel stores it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub output: Output,
    /// Whether two sums make one value.
    pub gated: bool,
    /// [`Strides::out_stride`] of the result.
    pub stride: u64,
}

/// The arguments of a product's launch. All are checked: buffers are on the kernels' device and have the sizes
/// that the kernel was planned for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch<'a> {
    pub kernels: &'a Kernels,
    /// The product's own kernel.
    pub kernel: &'a FoundKernel,
    /// The launches before the product.
    pub before: &'a [PlannedKernel],
    /// Their kernels.
    pub before_kernels: &'a [FoundKernel],
    pub kind: ActivationKind,
    pub strides: &'a Strides,
    pub activations: CheckedActivations,
    pub weights: PlacedWeights,
    /// Address of the workspace; 0 where none is needed.
    pub workspace: u64,
    pub epilogue: Epilogue,
    pub stored: Stored,
    /// The problems of a grouped product, in memory. Row tiles and runs are not set.
    pub groups: Option<Groups>,
}

impl<'a> Launch<'a> {
    /// The launches before the product with their kernels, in order.
    pub fn steps(&self) -> impl Iterator<Item = (&'a PlannedKernel, &'a FoundKernel)> + use<'a> {
        self.before.iter().zip(self.before_kernels)
    }
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
