//! The work list of a CTA's roles: dense and batched products, whose sizes the host knows
//! ([`uniform`]), and grouped or mixed ones, which are tables in shared memory ([`tables`]). Both
//! architectures share it; the answers that differ are [`Target`]'s.

pub mod tables;
pub mod uniform;

use cuda_std::ptx::marker;
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue, Item, Problem, Run, Tiles};
use fp4_formats::tensor_map::TENSOR_MAP_ALIGN;

pub use uniform::{Scaled, Uniform};

use super::cta::{Cta, Target};
use super::epilogue::combine::affine_of;
use crate::pipeline;

/// A work list. All threads of a CTA, and of CTAs that compute tiles together, get the same answers.
///
/// A CTA takes *items* of a *run*, the last one first, or tiles in turn, by their numbers from 0 up to
/// [`count`](Self::count).
pub trait WorkList: Copy {
    /// Whether a table in shared memory says which tiles there are, so that nothing can be copied
    /// before it is made.
    const GROUPED: bool;

    /// Whether problems have their own parameters.
    const MIXED: bool = false;

    /// Whether CTAs take whole tiles alone.
    const WHOLE_TILES: bool = Self::MIXED;

    /// Whether problems have their own factors.
    const OWN_FACTORS: bool = Self::GROUPED;

    /// Lets the next kernel of the stream begin, unless [`begin`](Self::begin) does: as soon as it may read the
    /// token counts that this one reads.
    #[inline(always)]
    fn release() {
        if !Self::GROUPED || Self::MIXED {
            pipeline::release_stream();
        }
    }

    /// The parameters of problem `problem`, from those of the launch.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    unsafe fn params<T: Target>(self, launch: &T::Params, _: u32) -> &T::Params {
        launch
    }

    /// Generic address of the tensor maps at the head of these parameters, the problem's.
    #[inline(always)]
    fn maps<T: Target>(self, _: &T::Params) -> u64 {
        marker::kernel_parameter::<0, { TENSOR_MAP_ALIGN as u32 }>()
    }

    /// Makes maps `first..end` of the tensor maps at this [address](Self::maps) known to copies of this
    /// thread.
    ///
    /// # Safety
    /// There are such maps.
    #[inline(always)]
    unsafe fn acquire(self, _: u64, _: [u32; 2]) {}

    /// Whether weights are copied before the kernels before have ended. They are not if the choice of
    /// weights depends on those kernels.
    #[inline(always)]
    fn begins_early(self) -> bool {
        !Self::GROUPED
    }

    /// Prepares the list for the other functions. With token counts on the device, it also lets the next
    /// kernel begin.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the work list behind a barrier.
    #[inline(always)]
    unsafe fn begin<T: Target>(_: &Cta<'_, T, Self>) {}

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All [storing threads](Target::storing_thread) of all CTAs call it.
    #[inline(always)]
    unsafe fn refuse<T: Target>(_: &Cta<'_, T, Self>) {}

    /// Whether the CTA brings weights of the next launch to L2.
    #[inline(always)]
    fn prefetches_next<T: Target>(_: &Cta<'_, T, Self>) -> bool {
        false
    }

    /// Brings to L2 the first data that this CTA's part of the next launch reads.
    ///
    /// # Safety
    /// One thread of a CTA that [does so](Self::prefetches_next).
    #[inline(always)]
    unsafe fn prefetch_next<T: Target>(_: &Cta<'_, T, Self>) {}

    /// Returns the number of tiles.
    fn count<T: Target>(cta: &Cta<'_, T, Self>) -> u32;

    /// This CTA's run; all CTAs of a multicast have the same.
    fn run<T: Target>(cta: &Cta<'_, T, Self>) -> Run;

    /// Returns the rest of it if the steps from `end` on are done.
    #[inline(always)]
    fn rest<T: Target>(cta: &Cta<'_, T, Self>, end: u32) -> Run {
        Run { end, ..Self::run(cta) }
    }

    /// Takes the rest of a run's last tile. It is not empty.
    #[inline(always)]
    fn take<T: Target>(cta: &Cta<'_, T, Self>, run: &mut Run) -> Item {
        run.take(cta.head().schedule)
    }

    /// Returns the end of the rest of the run when `item`, which was its last, is done.
    #[inline(always)]
    fn end<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> u32 {
        cta.head().schedule.start(item)
    }

    /// Whether this CTA stores the tile of an item.
    #[inline(always)]
    fn owned<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> bool {
        item.owned(cta.head().schedule)
    }

    /// The first CTA that computes steps of an item's tile; this CTA computes the last.
    fn first_cta<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> u32;

    /// Tile number `index`.
    fn tile<T: Target>(cta: &Cta<'_, T, Self>, index: u32) -> Tile;

    /// Returns the matrix of the activations' scales, and its row with the scales of the first
    /// token of a tile's problem, if 4-bit activations are laid out for the launch.
    #[inline(always)]
    fn scales(self, tile: &Tile) -> (u32, u32) {
        (tile.tokens.matrix, tile.tokens.first)
    }

    /// Factors of the sums of both halves of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn alphas(self, epilogue: &Epilogue, problem: u32) -> [f32; 2];

    /// Factors and bias of half `half` of problem `problem`, whose [`alphas`](Self::alphas) these are.
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, alphas: [f32; 2]) -> Affine;
}

/// The tiles of a product of these sizes, whose context this is.
#[inline(always)]
fn tiles<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, sizes: &Problem) -> Tiles {
    let (shape, order) = T::tiles(cta.config, cta.params);
    Tiles::walked(sizes, shape, order, *cta.head().walk)
}

/// Factors of the sums of both halves of a product without factors of its own.
#[inline(always)]
fn alphas_of(epilogue: &Epilogue) -> [f32; 2] {
    [affine_of(epilogue, 0).alpha, affine_of(epilogue, 1).alpha]
}
