//! sm_100a's context of a role: its answers to the work list, and the CTA's rows, columns and K steps of a
//! tile.

use super::RESULT;
use super::memory::Memory;
use crate::gemm::cta::{self, Head, Target};
use crate::gemm::work::WorkList;
use cuda_std::{shared, thread, warp};
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::sm100::config::{CTA_ROWS, STORE_WARPS};
use fp4_formats::gemm::sm100::{Sm100Config, Sm100Params};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Item, Problem, TileOrder, TileShape};
use fp4_formats::quantize::Format;
use fp4_formats::tensor_map::TENSOR_MAP_BYTES;

/// sm_100a's kernels.
#[derive(Clone, Copy)]
pub enum Sm100 {}

/// Context of every role, on sm_100a.
pub type Cta<'a, L> = cta::Cta<'a, Sm100, L>;

impl Target for Sm100 {
    type Config = Sm100Config;
    type Params = Sm100Params;
    type Memory = Memory;

    const THREADS: u32 = STORE_WARPS * warp::LANES;
    const GROUPED_RUNS: bool = false;
    const MIXED_TABLE_WAITS: bool = true;

    #[inline(always)]
    fn head(params: &Sm100Params) -> Head<'_> {
        let Sm100Params {
            problem,
            schedule,
            walk,
            epilogue,
            partials,
            flags,
            row_factor_stride,
            ..
        } = params;
        Head {
            problem,
            schedule,
            walk,
            epilogue,
            partials: *partials,
            flags: *flags,
            row_factor_stride: *row_factor_stride,
        }
    }

    #[inline(always)]
    fn table(config: &Sm100Config) -> u32 {
        Memory::new(config, shared::dynamic::<1024>()).table()
    }

    #[inline(always)]
    fn tiles(config: &Sm100Config, params: &Sm100Params) -> (TileShape, TileOrder) {
        let swapped = config.is_swapped(params.swapped);
        (config.work_shape(swapped), Sm100Config::order(swapped))
    }

    #[inline(always)]
    fn tiling(config: &Sm100Config, params: &Sm100Params) -> Tiling {
        let (TileShape { tokens, .. }, _) = Self::tiles(config, params);
        Tiling::of(tokens)
    }

    #[inline(always)]
    fn run_index(config: &Sm100Config) -> u32 {
        thread::block_idx_x() / config.cluster()
    }

    #[inline(always)]
    fn cta_of<L>(cta: &Cta<'_, L>, run: u32) -> u32 {
        run * cta.config.cluster() + cta.rank % cta.config.cta_group
    }

    #[inline(always)]
    fn partial_bytes(config: &Sm100Config) -> u32 {
        config.partial_bytes()
    }
}

impl<L: WorkList> Cta<'_, L> {
    /// Returns the context of a tile's problem, whose tensor maps `first..end` are known to copies of this
    /// thread. `known` is the problem whose maps are.
    ///
    /// # Safety
    /// There are such a tile and such maps.
    #[inline(always)]
    pub unsafe fn acquire(&self, tile: &Tile, maps: [u32; 2], known: &mut u32) -> Self {
        // SAFETY: the caller's.
        let cta = unsafe { self.at(tile.problem) };
        if *known != tile.problem {
            *known = tile.problem;
            // SAFETY: the caller's.
            unsafe { cta.list.acquire(cta.maps, maps) };
        }
        cta
    }

    /// Generic address of tensor map `index` of the parameter block.
    #[inline(always)]
    pub fn map(&self, index: u32) -> u64 {
        const { assert!(core::mem::offset_of!(Sm100Params, x_codes) == 0) };
        const {
            let result = core::mem::offset_of!(Sm100Params, result);
            assert!(result == RESULT as usize * TENSOR_MAP_BYTES);
        }
        self.maps + u64::from(index) * TENSOR_MAP_BYTES as u64
    }

    /// Whether `X` is the weights.
    #[inline(always)]
    pub fn swapped(&self) -> bool {
        self.config.is_swapped(self.params.swapped)
    }

    /// Whether a warp brings the codes of `Y` to the stages because the copy engine does not take
    /// their rows; it always takes rows of MXFP4.
    #[inline(always)]
    pub fn loads_codes(&self) -> bool {
        match self.config.format {
            Format::Nvfp4 => self.config.loads_tokens() && self.params.tokens.codes != 0,
            Format::Mxfp4 => false,
        }
    }

    /// Rows of `X`.
    #[inline(always)]
    pub fn x_rows(&self) -> u32 {
        let problem = &self.params.problem;
        if self.swapped() { problem.n } else { problem.m }
    }

    /// Rows of `Y`.
    #[inline(always)]
    pub fn y_rows(&self) -> u32 {
        let problem = &self.params.problem;
        if self.swapped() { problem.m } else { problem.n }
    }

    /// Whether two values make a result.
    #[inline(always)]
    pub fn gated(&self) -> bool {
        self.params.epilogue.combine.gated != 0
    }

    /// Sizes of the result, of whose rows the first `m` count.
    #[inline(always)]
    pub fn result(&self, m: u32) -> Problem {
        Problem { m, n: self.params.epilogue.sink.columns, ..self.params.problem }
    }

    /// Index of the CTA in its pair.
    #[inline(always)]
    pub fn pair_rank(&self) -> u32 {
        self.rank % self.config.cta_group
    }

    /// Rank of the first CTA of the CTA's pair.
    #[inline(always)]
    pub fn leader(&self) -> u32 {
        self.rank - self.pair_rank()
    }

    /// Index of the CTA's part of the K steps, and then of the columns.
    #[inline(always)]
    pub fn split(&self) -> u32 {
        if self.config.k_parts() > 1 { self.rank / self.config.cta_group } else { 0 }
    }

    /// Index of the CTA's tile among the cluster's, and of its share of their `X`.
    #[inline(always)]
    pub fn multicast_rank(&self) -> u32 {
        if self.config.multicast > 1 { self.rank / self.config.cta_group } else { 0 }
    }

    /// First row of `X` of the CTA's part of `tile`.
    #[inline(always)]
    pub fn x_row(&self, tile: Tile) -> u32 {
        self.x_row_from(tile, tile.tokens.first)
    }

    /// The same among the rows of the scales of `X`.
    #[inline(always)]
    pub fn x_scale_row(&self, tile: Tile) -> u32 {
        self.x_row_from(tile, self.list.scales(&tile).1)
    }

    /// Returns the same if the problem's tokens begin at `token`.
    #[inline(always)]
    pub fn x_row_from(&self, tile: Tile, token: u32) -> u32 {
        let (x, first) = if self.swapped() { (tile.row_tile, 0) } else { (tile.token_tile, token) };
        first + x * self.config.rows() + self.pair_rank() * CTA_ROWS
    }

    /// First row of `Y` of the CTA's tile in `tile`.
    #[inline(always)]
    pub fn y_row(&self, tile: Tile) -> u32 {
        self.y_row_from(tile, tile.tokens.first)
    }

    /// The same among the rows of the scales of `Y`.
    #[inline(always)]
    pub fn y_scale_row(&self, tile: Tile) -> u32 {
        self.y_row_from(tile, self.list.scales(&tile).1)
    }

    /// Returns the same if the problem's tokens begin at `token`.
    #[inline(always)]
    pub fn y_row_from(&self, tile: Tile, token: u32) -> u32 {
        let (y, first) = if self.swapped() { (tile.token_tile, token) } else { (tile.row_tile, 0) };
        first + (y * self.config.multicast + self.multicast_rank()) * self.config.columns
    }

    /// Returns the context of an item's problem.
    ///
    /// # Safety
    /// There is such an item.
    #[inline(always)]
    pub unsafe fn of(&self, item: &Item) -> Self {
        if !L::MIXED {
            return *self;
        }
        // SAFETY: the item's problem exists.
        unsafe { self.at(L::tile(self, item.tile).problem) }
    }

    /// The CTA's K steps of an item, whose problem's context this is: first, and one past the last.
    #[inline(always)]
    pub fn steps_of(&self, item: &Item) -> (u32, u32) {
        // The item has the steps of the first of several problems.
        if L::MIXED { self.steps() } else { (item.first, item.end) }
    }

    /// The CTA's K steps of a tile: first, and one past the last.
    #[inline(always)]
    pub fn steps(&self) -> (u32, u32) {
        self.config.k_part(self.params.problem.k, self.split())
    }
}
