//! The context of a kernel's roles: which configuration it is, what it was launched with, and where the
//! CTA's shared memory is.

use cuda_std::thread;
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::work::Walk;
use fp4_formats::gemm::{Epilogue, Problem, Schedule, TileOrder, TileShape};

use super::work::WorkList;

/// The main loop of an architecture: the types of what its roles share, and the answers that a
/// [work list](super::work) needs.
pub trait Target: Copy {
    /// A row of its tables of configurations.
    type Config: Copy + 'static;
    /// Its parameter block.
    type Params: Copy + 'static;
    /// The map of a CTA's shared memory.
    type Memory: Copy;

    /// Threads of a CTA that hold the sums of a tile.
    const THREADS: u32;

    /// Whether the table of groups says which run of K steps a CTA has; otherwise CTAs take whole tiles
    /// in turn.
    const GROUPED_RUNS: bool;

    /// Whether the warp that makes the table of mixed products waits for the kernels before, on behalf
    /// of all roles; otherwise each role waits itself.
    const MIXED_TABLE_WAITS: bool;

    /// Number of this thread's vector of partial sums among those of all threads.
    #[inline(always)]
    fn vector() -> u32 {
        thread::thread_idx_x()
    }

    /// The members of a parameter block that say which tiles there are and what their results are.
    fn head(params: &Self::Params) -> Head<'_>;

    /// Shared address of the table of a grouped or mixed product.
    fn table(config: &Self::Config) -> u32;

    /// Whether the table of groups [sorts](super::groups::GroupTable::sorts) them.
    #[inline(always)]
    fn sorts(_: &Self::Config) -> bool {
        false
    }

    /// Shape and order of the tiles, of which those of a cluster count as one.
    fn tiles(config: &Self::Config, params: &Self::Params) -> (TileShape, TileOrder);

    /// The division of a grouped product's tokens into tiles.
    fn tiling(config: &Self::Config, params: &Self::Params) -> Tiling;

    /// The number of this CTA's run; CTAs of a cluster that compute tiles together have the same. Without clusters,
    /// its own number.
    #[inline(always)]
    fn run_index(_: &Self::Config) -> u32 {
        thread::block_idx_x()
    }

    /// The CTA of run `run` with the same rank as this one. Without clusters, the one of that number.
    #[inline(always)]
    fn cta_of<L>(_: &Cta<'_, Self, L>, run: u32) -> u32 {
        run
    }

    /// Bytes of a CTA's partial sums.
    fn partial_bytes(config: &Self::Config) -> u32;

    /// The number of the CTA, or of its cluster, and this thread's among the threads that store there,
    /// with their number. [`WorkList::refuse`] divides the result among all of them.
    #[inline(always)]
    fn storing_thread<L>(_: &Cta<'_, Self, L>) -> (u32, [u32; 2]) {
        (thread::block_idx_x(), [thread::thread_idx_x(), Self::THREADS])
    }

    /// Whether CTAs bring the first weights of the next launch to L2.
    #[inline(always)]
    fn prefetches_next(_: &Self::Config) -> bool {
        false
    }
}

/// The members of a parameter block that say which tiles there are and what their results are.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// Sizes.
    pub problem: &'a Problem,
    /// The assignment of K steps and tiles.
    pub schedule: &'a Schedule,
    /// The numbering of tiles.
    pub walk: &'a Walk,
    /// The epilogue.
    pub epilogue: &'a Epilogue,
    /// Address of the partial sums of stream-K.
    pub partials: u64,
    /// Address of its flags.
    pub flags: u64,
    /// Distance of the row factors of two batch entries, of activations in e4m3.
    pub row_factor_stride: u32,
}

/// Context of every role: the configuration, the parameters, the list, the memory and the rank. `L`
/// is the launch's work list.
#[derive(Clone, Copy)]
pub struct Cta<'a, T: Target, L> {
    /// The kernel's configuration.
    pub config: &'static T::Config,
    /// The parameters of the launch, or of the problem that a role works at.
    pub params: &'a T::Params,
    /// Generic address of the tensor maps at the head of those parameters.
    pub maps: u64,
    /// The list of tiles, and the CTA's share of them.
    pub list: L,
    /// The map of shared memory.
    pub memory: T::Memory,
    /// Rank of the CTA among those that work together.
    pub rank: u32,
}

impl<'a, T: Target, L: WorkList> Cta<'a, T, L> {
    /// The context of a launch.
    #[inline(always)]
    pub fn new(
        config: &'static T::Config,
        params: &'a T::Params,
        list: L,
        memory: T::Memory,
        rank: u32,
    ) -> Self {
        Self { config, params, maps: list.maps::<T>(params), list, memory, rank }
    }

    /// The same with the parameters of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn at(&self, problem: u32) -> Self {
        if !L::MIXED {
            return *self;
        }
        // SAFETY: the caller's.
        let params = unsafe { self.list.params::<T>(self.params, problem) };
        Self { params, maps: self.list.maps::<T>(params), ..*self }
    }

    /// The same with another work list.
    #[inline(always)]
    pub fn with<M>(&self, list: M) -> Cta<'a, T, M> {
        let Self { config, params, maps, memory, rank, .. } = *self;
        Cta { config, params, maps, list, memory, rank }
    }

    /// The members of the parameters that all architectures have.
    #[inline(always)]
    pub fn head(&self) -> Head<'a> {
        T::head(self.params)
    }

    /// Factors of the sums of both halves of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn alphas(&self, problem: u32) -> [f32; 2] {
        // SAFETY: the caller's.
        unsafe { self.list.alphas(self.at(problem).head().epilogue, problem) }
    }
}
