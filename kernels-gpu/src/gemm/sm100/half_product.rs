//! The multiplying lane of kernels whose `Y` has 16 bits: decoded `X` in tensor memory times `Y` in
//! shared memory. Each CTA of a pair holds its rows of `X` and half of `Y`.

use super::product::commit;
use super::schedule::Scheduled;
use super::{Cta, WorkList};
use crate::gemm::walk::Walk;
use cuda_std::ptx::tcgen05;
use fp4_formats::HalfType;
use fp4_formats::gemm::sm100::config::{DECODED_COLUMNS, HALF_BOX, HALF_PRODUCT_K, HALF_STEP};
use fp4_formats::gemm::sm100::{STEP_BYTES, Sm100Config, descriptor};

/// Products of a K step, and of one box of `Y`.
const PRODUCTS: u32 = HALF_STEP / HALF_PRODUCT_K;
const BOX_PRODUCTS: u32 = HALF_BOX / HALF_PRODUCT_K;

/// # Safety
/// One lane of the multiplying warp, of a pair in the first CTA; `tensor` is the
/// allocation, `half` the type of the operands.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, tensor: u32, half: HalfType) {
    let config = cta.config;
    let (ring, accumulators) = (cta.memory.ring(), cta.memory.accumulators());
    let decoded = cta.memory.decoded();
    let mut cursor = ring.consumer();
    let mut buffer = decoded.consumer();
    let mut accumulator = accumulators.producer();
    let mut walk = Walk::<Scheduled<false>>::start(cta);
    let mut which = 0;
    let pair = ((1 << config.cta_group) - 1) << cta.leader();
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        // SAFETY: the item's problem exists.
        let cta = unsafe { cta.of(&item) };
        let (first, end) = cta.steps_of(&item);
        let d = tensor + which * config.accumulator_step();
        // SAFETY: the accumulator is free, the stage full, its `X` decoded; all before
        // the products.
        unsafe {
            accumulators.wait_empty(&accumulator);
            for step in first..end {
                ring.wait_full(&cursor);
                decoded.wait_full(&buffer);
                tcgen05::tcgen05_fence_after_thread_sync();
                let x = tensor + config.buffer_base() + buffer.stage * DECODED_COLUMNS;
                let y = cta.memory.stage(cursor.stage) + config.x_bytes();
                let products = (cta.params.problem.k - step * HALF_STEP).div_ceil(HALF_PRODUCT_K);
                multiply(config, half, [x, y], d, products, step > first);
                commit(config, ring.empty(cursor.stage), pair);
                commit(config, decoded.empty(buffer.stage), pair);
                cursor.advance();
                buffer.advance();
            }
            commit(config, accumulators.full(accumulator.stage), pair);
            accumulator.advance();
            which ^= 1;
            walk.advance(&cta, &item);
        }
    }
}

/// Issues the first `products` products of a K step.
///
/// # Safety
/// `x` is decoded, the stage that `y` is in is full, `d` is free.
#[inline(always)]
unsafe fn multiply(
    config: &Sm100Config,
    half: HalfType,
    [x, y]: [u32; 2],
    d: u32,
    products: u32,
    accumulate: bool,
) {
    let y = descriptor::codes() + descriptor::start(y);
    for i in 0..PRODUCTS {
        if i < products {
            let from = i / BOX_PRODUCTS * config.cta_columns() * STEP_BYTES
                + i % BOX_PRODUCTS * 2 * HALF_PRODUCT_K;
            // SAFETY: the caller's.
            unsafe {
                for_group!(
                    config,
                    tcgen05::tcgen05_mma_f16_tensor_a(
                        d,
                        x + i * HALF_PRODUCT_K / 2,
                        y + descriptor::distance(from),
                        descriptor::half_instruction(half, config.rows(), config.columns),
                        accumulate || i > 0,
                    )
                );
            }
        }
    }
}
