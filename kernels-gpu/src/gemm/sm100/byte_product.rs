//! The multiplying lane of kernels whose `Y` is e4m3: `X` is in MXFP4 with its scales, or folded to e4m3 in
//! tensor memory with its rows' factors as scales. The scales of `Y` are 1: its rows' scales are applied to
//! the results. Each CTA of a pair holds its rows of `X` and half of `Y`.

use super::product::{ScaleBuffers, commit};
use super::schedule::Scheduled;
use super::{Cta, WorkList};
use crate::gemm::walk::Walk;
use cuda_std::ptx::tcgen05;
use fp4_formats::gemm::sm100::config::{
    BYTE_PRODUCT_K, BYTE_STEP, FOLDED_COLUMNS, Products, SCALE_TILE_COLUMNS,
};
use fp4_formats::gemm::sm100::descriptor::ByteWeights;
use fp4_formats::gemm::sm100::{Sm100Config, descriptor, folded};

/// Products of a K step.
const PRODUCTS: u32 = BYTE_STEP / BYTE_PRODUCT_K;

/// # Safety
/// One lane of the multiplying warp, of a pair in the first CTA; `tensor` is the
/// allocation.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, tensor: u32) {
    let config = cta.config;
    let (ring, accumulators) = (cta.memory.ring(), cta.memory.accumulators());
    let decoded = cta.memory.decoded();
    let mut cursor = ring.consumer();
    let mut buffer = decoded.consumer();
    let mut scales = ScaleBuffers::new(config, tensor, ring.consumer());
    let mut accumulator = accumulators.producer();
    let mut walk = Walk::<Scheduled<false>>::start(cta);
    let mut which = 0;
    let pair = ((1 << config.cta_group) - 1) << cta.leader();
    let ones = tensor + config.accumulator_columns();
    // Without a tile nothing would wait for the copies.
    if !walk.is_done(cta) {
        // SAFETY: the tile of scales was filled before the threads of the cluster met.
        unsafe { copy_ones(config, cta.memory.ones(), ones) };
    }
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        // SAFETY: the item's problem exists.
        let cta = unsafe { cta.of(&item) };
        let (first, end) = cta.steps_of(&item);
        let d = tensor + which * config.accumulator_step();
        // SAFETY: the accumulator is free, the stage full, `X` decoded if it is; all before
        // the products.
        unsafe {
            accumulators.wait_empty(&accumulator);
            for step in first..end {
                ring.wait_full(&cursor);
                let columns = if config.decodes() {
                    decoded.wait_full(&buffer);
                    tensor + config.buffer_base() + buffer.stage * config.buffer_columns()
                } else {
                    scales.next(config, |stage| ring.empty(stage))
                };
                tcgen05::tcgen05_fence_after_thread_sync();
                let stage = cta.memory.stage(cursor.stage);
                let operands = Operands { stage: descriptor::start(stage), columns, ones, d };
                let products = (cta.params.problem.k - step * BYTE_STEP).div_ceil(BYTE_PRODUCT_K);
                operands.copy_scales(config);
                operands.multiply(config, products, step > first);
                commit(config, ring.empty(cursor.stage), pair);
                if config.decodes() {
                    commit(config, decoded.empty(buffer.stage), pair);
                    buffer.advance();
                }
                cursor.advance();
            }
            commit(config, accumulators.full(accumulator.stage), pair);
            accumulator.advance();
            which ^= 1;
            walk.advance(&cta, &item);
        }
    }
}

/// Copies the tile of scales of 1 at the shared address `from` to the columns for the scales of `Y`.
///
/// # Safety
/// The tile is filled, the columns are allocated.
#[inline(always)]
unsafe fn copy_ones(config: &Sm100Config, from: u32, columns: u32) {
    let from = descriptor::scales() + descriptor::start(from);
    for group in 0..config.y_groups() {
        let to = columns + group * SCALE_TILE_COLUMNS;
        // SAFETY: the caller's.
        unsafe { for_group!(config, tcgen05::tcgen05_cp_32x128b_warpx4(to, from)) };
    }
}

/// Addresses of a K step's operands.
struct Operands {
    /// [`descriptor::start`] of the stage.
    stage: u64,
    /// Columns of the step: scales of `X`; or `X` in e4m3, then the factors of its rows.
    columns: u32,
    /// Columns of scales of 1.
    ones: u32,
    /// The accumulator.
    d: u32,
}

impl Operands {
    /// Returns the first column of the scales of `X`, and their place in a stage.
    #[inline(always)]
    fn scales(&self, config: &Sm100Config) -> (u32, u32) {
        let tiles = config.x_scales_at();
        if config.decodes() {
            (self.columns + FOLDED_COLUMNS, tiles + folded::FACTORS_AT)
        } else {
            (self.columns, tiles)
        }
    }

    /// Copies the tile of scales of `X` to tensor memory.
    ///
    /// # Safety
    /// The stage is full, the columns are free.
    #[inline(always)]
    unsafe fn copy_scales(&self, config: &Sm100Config) {
        let (to, at) = self.scales(config);
        let from = descriptor::scales() + self.stage + descriptor::distance(at);
        // SAFETY: the caller's.
        unsafe { for_group!(config, tcgen05::tcgen05_cp_32x128b_warpx4(to, from)) };
    }

    /// Issues the first `products` products of the step.
    ///
    /// # Safety
    /// The stage is full, its scales are copied, its `X` is decoded if it is; `d` is free.
    #[inline(always)]
    unsafe fn multiply(&self, config: &Sm100Config, products: u32, accumulate: bool) {
        let x = descriptor::codes() + self.stage;
        let y = x + descriptor::distance(config.x_bytes());
        let (a_scales, _) = self.scales(config);
        let weights = match config.products() {
            Products::Bytes => ByteWeights::E2m1,
            Products::Blocks | Products::Halves(_) | Products::Folded => ByteWeights::E4m3,
        };
        for i in 0..PRODUCTS {
            if i < products {
                // Elements of either operand take a byte in shared memory; each product takes its own
                // scale of a cell.
                let from = descriptor::distance(i * BYTE_PRODUCT_K);
                let instruction =
                    descriptor::byte_instruction(weights, config.rows(), config.columns, i);
                let (d, b, b_scales) = (self.d, y + from, self.ones);
                let accumulate = accumulate || i > 0;
                // SAFETY: the caller's.
                unsafe {
                    if config.decodes() {
                        let a = self.columns + i * BYTE_PRODUCT_K / 4;
                        let operands = tcgen05::BlockScaled {
                            d,
                            a,
                            b,
                            instruction,
                            a_scales,
                            b_scales,
                            accumulate,
                        };
                        for_group!(
                            config,
                            tcgen05::tcgen05_mma_mxf8f6f4_block_scale_1x_tensor_a(operands)
                        );
                    } else {
                        let a = x + from;
                        let operands = tcgen05::BlockScaled {
                            d,
                            a,
                            b,
                            instruction,
                            a_scales,
                            b_scales,
                            accumulate,
                        };
                        for_group!(config, tcgen05::tcgen05_mma_mxf8f6f4_block_scale_1x(operands));
                    }
                }
            }
        }
    }
}
