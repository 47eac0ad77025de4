//! The multiplying lane: scales to tensor memory, then the products of a K step.

use super::schedule::Scheduled;
use super::{Cta, WorkList};
use crate::gemm::walk::Walk;
use crate::pipeline::Cursor;
use cuda_std::ptx::{mbarrier, tcgen05};
use fp4_formats::gemm::sm100::config::{GROUP_ROWS, PRODUCT_K, SCALE_TILE_COLUMNS};
use fp4_formats::gemm::sm100::{STEP, Sm100Config, descriptor};
use fp4_formats::layout::{TILE_BYTES, TILE_ROWS};
use fp4_formats::quantize::Format;

/// The CTAs of the first pair of a cluster, by their number.
const PAIR_MASK: [u16; 2] = [0b1, 0b11];
/// Products of a K step.
const PRODUCTS: u32 = STEP / PRODUCT_K;
/// Bytes of a row that one product takes.
const PRODUCT_BYTES: u32 = PRODUCT_K / 2;

/// # Safety
/// One lane of the multiplying warp, of a pair in the first CTA; `tensor` is the
/// allocation.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, tensor: u32) {
    let config = cta.config;
    let (ring, accumulators) = (cta.memory.ring(), cta.memory.accumulators());
    let mut cursor = ring.consumer();
    let mut accumulator = accumulators.producer();
    let mut walk = Walk::<Scheduled<false>>::start(cta);
    let mut which = 0;
    let pair = PAIR_MASK[config.cta_group as usize - 1] << cta.leader();
    let readers = if config.multicast > 1 { (1 << config.cluster()) - 1 } else { pair };
    let mut scales = ScaleBuffers::new(config, tensor, ring.consumer());
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        let tile = L::tile(cta, item.tile);
        // SAFETY: the tile's problem exists.
        let cta = unsafe { cta.at(tile.problem) };
        let (first, end) = cta.steps_of(&item);
        let d = tensor + which * config.accumulator_step();
        let group = first_group(config, cta.y_scale_row(tile));
        // SAFETY: the accumulator is free, the stage full; both before the products.
        unsafe {
            accumulators.wait_empty(&accumulator);
            for step in first..end {
                ring.wait_full(&cursor);
                let columns = scales.next(config, |stage| ring.empty(stage));
                tcgen05::tcgen05_fence_after_thread_sync();
                let stage = descriptor::start(cta.memory.stage(cursor.stage));
                copy_scales(config, stage, columns);
                let products = (cta.params.problem.k - step * STEP).div_ceil(PRODUCT_K);
                multiply(config, stage, columns, d, group, products, step > first);
                commit(config, ring.empty(cursor.stage), readers);
                cursor.advance();
            }
            commit(config, accumulators.full(accumulator.stage), pair);
            accumulator.advance();
            which ^= 1;
            walk.advance(&cta, &item);
        }
    }
}

/// The sets of scale columns in tensor memory, used in turn. A set is free again when
/// the K step that used it last is multiplied, which its stage's empty barrier says.
pub struct ScaleBuffers {
    base: u32,
    index: u32,
    /// K steps until sets are used again.
    unused: u32,
    /// Stage of the K step that used the next set last.
    last_user: Cursor,
}

impl ScaleBuffers {
    /// Starts with no set in use; products begin at `last_user`.
    #[inline(always)]
    pub fn new(config: &Sm100Config, tensor: u32, last_user: Cursor) -> Self {
        Self { base: tensor + config.buffer_base(), index: 0, unused: config.buffers(), last_user }
    }

    /// The next set's first column, once it is free.
    ///
    /// # Safety
    /// `empty` gives initialised barriers, whose phases end with the caller's commits.
    #[inline(always)]
    pub unsafe fn next(&mut self, config: &Sm100Config, empty: impl Fn(u32) -> u32) -> u32 {
        if self.unused > 0 {
            self.unused -= 1;
        } else {
            // SAFETY: the caller's; no later phase of that barrier can be over, since
            // there are no more sets than stages.
            unsafe { mbarrier::wait_parity(empty(self.last_user.stage), self.last_user.parity) };
            self.last_user.advance();
        }
        let columns = self.base + self.index * config.buffer_columns();
        self.index = if self.index + 1 == config.buffers() { 0 } else { self.index + 1 };
        columns
    }
}

/// The 32-row group of a scale tile in which the scales of a tile's rows of `Y` begin, which is a
/// column of tensor memory. The stages of tokens that are loaded begin with the tile's own.
#[inline(always)]
fn first_group(config: &Sm100Config, row: u32) -> u32 {
    if config.loads_tokens() { 0 } else { row % TILE_ROWS as u32 / GROUP_ROWS }
}

/// Returns the columns from the scales of `Y` of one scale tile along K to the next tile's. In
/// tokens that are loaded, a column of a group of rows is a tile along K
/// ([`fp4_formats::gemm::sm100::tokens`]).
#[inline(always)]
const fn y_tile_columns(config: &Sm100Config) -> u32 {
    if config.loads_tokens() { 1 } else { config.y_groups() * SCALE_TILE_COLUMNS }
}

/// Copies the scale tiles of the stage whose [`descriptor::start`] is `stage` to `columns`: `X`'s,
/// then for each tile along K the tiles of all of `Y`'s groups, or the one of tokens that are
/// loaded.
///
/// # Safety
/// The stage is full, the columns are free.
#[inline(always)]
unsafe fn copy_scales(config: &Sm100Config, stage: u64, columns: u32) {
    let scales = descriptor::scales() + stage;
    let (x, y) = (config.x_scales_at(), config.y_scales_at());
    let (tiles, groups) = (config.scale_tiles(), config.y_groups());
    let y_columns = columns + tiles * SCALE_TILE_COLUMNS;
    // SAFETY: the caller's.
    let copy = |to: u32, from: u32| unsafe {
        for_group!(
            config,
            tcgen05::tcgen05_cp_32x128b_warpx4(to, scales + descriptor::distance(from))
        );
    };
    if config.loads_tokens() {
        copy(y_columns, y);
    }
    for tile in 0..tiles {
        copy(columns + tile * SCALE_TILE_COLUMNS, x + tile * TILE_BYTES as u32);
        for group in 0..if config.loads_tokens() { 0 } else { groups } {
            let place = tile * groups + group;
            // Each CTA of a pair copied some of the tiles along K, of all groups.
            let each = config.y_box_tiles();
            let from = (tile / each * groups + group) * each + tile % each;
            let to = y_columns + place * SCALE_TILE_COLUMNS;
            copy(to, y + from * TILE_BYTES as u32);
        }
    }
}

/// Issues the first `products` products of the K step in the stage whose [`descriptor::start`]
/// is `stage`.
///
/// # Safety
/// The stage is full and its scales are in `columns`; `d` is free.
#[inline(always)]
unsafe fn multiply(
    config: &Sm100Config,
    stage: u64,
    columns: u32,
    d: u32,
    group: u32,
    products: u32,
    accumulate: bool,
) {
    let x = descriptor::codes() + stage;
    let y = x + descriptor::distance(config.y_codes_at());
    let y_columns = columns + config.scale_tiles() * SCALE_TILE_COLUMNS + group;
    let each = config.products_per_scale_tile();
    for i in 0..PRODUCTS {
        if i < products {
            let tile = i / each;
            // Two products on one tile take its lower and its upper two bytes.
            let id = i % each * 2;
            let operands = tcgen05::BlockScaled {
                d,
                a: x + descriptor::distance(i * PRODUCT_BYTES),
                b: y + descriptor::distance(i * PRODUCT_BYTES),
                instruction: descriptor::instruction(
                    config.format,
                    config.rows(),
                    config.columns,
                    id,
                ),
                a_scales: columns + tile * SCALE_TILE_COLUMNS,
                b_scales: y_columns + tile * y_tile_columns(config),
                accumulate: accumulate || i > 0,
            };
            // SAFETY: the caller's.
            unsafe {
                match config.format {
                    Format::Nvfp4 => {
                        for_group!(config, tcgen05::tcgen05_mma_mxf4nvf4_block_scale_4x(operands));
                    }
                    Format::Mxfp4 => {
                        for_group!(config, tcgen05::tcgen05_mma_mxf4_block_scale_2x(operands))
                    }
                }
            }
        }
    }
}

/// One arrival at `barrier` in each of `ctas` when the products are complete.
///
/// # Safety
/// The barriers expect it.
#[inline(always)]
pub unsafe fn commit(config: &Sm100Config, barrier: u32, ctas: u16) {
    // SAFETY: the caller's.
    unsafe {
        if config.cta_group * config.multicast == 1 {
            tcgen05::tcgen05_commit::<1>(barrier);
        } else {
            for_group!(config, tcgen05::tcgen05_commit_multicast(barrier, ctas));
        }
    }
}
