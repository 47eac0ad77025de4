//! The store of few tokens' results from the registers of the threads that have their sums. It is done warp by warp: no
//! thread waits for another, and the stages are left alone, so that they are filled for the next tile meanwhile.
//!
//! A thread has the sums of two rows of weights, eight apart, of two of every eight tokens: two columns of the result,
//! or, as the gate and `up` are eight rows apart ([`PairedRows`](fp4_formats::gemm::combine::PairedRows)), one column of
//! a gated product. Eight threads store eight columns of a token side by side.

use cuda_std::ptx::{marker, memory};
use cuda_std::warp;
use fp4_formats::FloatType;
use fp4_formats::gemm::Sink;
use fp4_formats::gemm::combine::GATE_ROWS;
use fp4_formats::gemm::epilogue::Residual;
use fp4_formats::gemm::fragments::repack::BLOCK_ROWS;

use super::Cta;
use super::operands::Weights;
use super::stage::{first_block, lane};
use super::tile::Tile;
use crate::gemm::epilogue::{self, affine, combine, direct, floats};
use crate::gemm::work::WorkList;

/// Rows of weights of a warp, and of those the distance of a thread's two.
const WARP_ROWS: u32 = 16;
const APART: u32 = WARP_ROWS / 2;
const _: () = assert!(APART == GATE_ROWS);

/// Neighbouring tokens whose sums a thread has.
const NEIGHBOURS: usize = 2;
/// Sums of a thread of eight tokens: those of both rows, of two tokens each.
const EIGHTS_SUMS: usize = 2 * NEIGHBOURS;

/// Stores the results of the tile whose sums the consumers have.
///
/// # Safety
/// The warp is converged, and its products are finished; the launch [stores few
/// tokens](fp4_formats::gemm::sm90::Sm90Config::stores_few) from registers.
#[inline(always)]
pub unsafe fn store_tile<W: Weights, L: WorkList, const SUMS: usize, const BLOCKS: usize>(
    cta: &Cta<'_, L>,
    (tile, alphas): (&Tile, [f32; 2]),
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let (config, epilogue) = (cta.config, &cta.params.epilogue);
    let sink = &epilogue.sink;
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    // Pinned, so that values that follow from it take no register during the main loop.
    let lane = marker::pin(lane());
    let row = lane / warp::LANES * WARP_ROWS + lane % warp::LANES / 4;
    let first = lane % 4 * NEIGHBOURS as u32;
    let scaled = |sum: f32, half: usize| affine::scaled(sum, unit, alphas[half]);
    let is_gated = marker::pin(epilogue.combine.gated) != 0;
    for block in 0..BLOCKS {
        let row = (first_block::<BLOCKS>() + block as u32) * BLOCK_ROWS + row;
        let row = tile.row_tile * config.rows + row;
        let n = if is_gated { row / WARP_ROWS * APART + row % APART } else { row };
        for i in 0..SUMS / EIGHTS_SUMS * NEIGHBOURS {
            let (eight, i) = (i / NEIGHBOURS, i % NEIGHBOURS);
            let token = first + (8 * eight + i) as u32;
            if token >= tile.tokens() {
                continue;
            }
            let both = [0, NEIGHBOURS].map(|half| sums[block][eight * EIGHTS_SUMS + half + i]);
            let first = scaled(both[0], 0);
            let m = tile.token + token;
            // SAFETY: the token exists.
            unsafe {
                if is_gated {
                    let up = scaled(both[1], 1);
                    let [result] = combine::by_sigmoid(&epilogue.combine, [first], [up]);
                    store(sink, tile.matrix, [m, n], result);
                } else {
                    store(sink, tile.matrix, [m, n], first);
                    store(sink, tile.matrix, [m, n + APART], scaled(both[1], 0));
                }
            }
        }
    }
}

/// Stores the result of 16 bits of row `m`, column `n`, if there is such a column, with the residual's, if there is one.
///
/// # Safety
/// Matrix `matrix` of the result has such a row; a residual has the result's type.
#[inline(always)]
unsafe fn store(sink: &Sink, matrix: u32, [m, n]: [u32; 2], result: f32) {
    if n >= sink.columns {
        return;
    }
    let bytes = u64::from(FloatType::F16.bytes());
    let Residual { address, stride, float_type: _, aligned: _ } = sink.residual;
    let mut result = result;
    // SAFETY: the element is inside the result, and inside the residual.
    unsafe {
        if address != 0 {
            let row = u64::from(m) * u64::from(sink.columns) + u64::from(n);
            let at = address + (u64::from(matrix) * stride + row) * bytes;
            let [residual] = floats::widened(sink.out_type, [memory::ld_global_u16(at)]);
            result += residual;
        }
        direct::store_half(sink, epilogue::element(sink, sink.columns, matrix, [m, n]), result);
    }
}
