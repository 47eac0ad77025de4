//! The warp that loads tokens, in kernels for few of them: it brings the scales of activations from
//! memory to the stages, and codes whose rows the copy engine does not take. Their order in a stage
//! is [`fp4_formats::gemm::sm100::tokens`]'s; each lane has a token's row.

use super::memory::Memory;
use super::schedule::Scheduled;
use super::{Cta, WorkList};
use crate::gemm::walk::Walk;
use crate::pipeline::Cursor;
use cuda_std::ptx::{fence, grid, marker, memory};
use cuda_std::warp;
use fp4_formats::ScaleLayout;
use fp4_formats::gemm::Problem;
use fp4_formats::gemm::sm100::tokens::{Pieces, ROW_BYTES, ROW_WORDS};
use fp4_formats::gemm::sm100::{STEP, STEP_BYTES, Sm100Config};
use fp4_formats::gemm::work::Tile;
use fp4_formats::layout::TILE_BLOCKS;
use fp4_formats::quantize::Format;
use fp4_formats::swizzle::{CHUNK_BYTES, Swizzle};

/// Prefetch distance in K steps: a load from memory takes as long as the copies of two or three.
const AHEAD: usize = 4;

/// A token's scales of a K step.
type Row = [u32; ROW_WORDS];

/// A token's scales of a K step as they are loaded. They are used only when the loads of the step
/// [`AHEAD`] are issued, because a use waits for its load.
trait Loaded: Copy {
    /// Before anything is loaded.
    const NONE: Self;
}

impl Loaded for Row {
    const NONE: Self = [0; ROW_WORDS];
}

impl Loaded for [u16; ROW_BYTES as usize] {
    const NONE: Self = [0; ROW_BYTES as usize];
}

/// # Safety
/// The warp that loads tokens, as a whole.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>) {
    let mut cursor = cta.memory.ring().producer();
    let mut walk = Walk::<Scheduled<true>>::start(cta);
    let pieces = cta.params.tokens.pieces(cta.config.format, cta.params.problem.k);
    // The kernel before may make the activations.
    grid::griddepcontrol_wait();
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        let tile = L::tile(cta, item.tile);
        let steps = cta.steps_of(&item);
        let tokens = Tokens::new(cta, tile);
        // SAFETY: the tile's tokens and K steps; whole warps take the branches.
        unsafe {
            match pieces {
                Pieces::Rows | Pieces::Words => {
                    let whole = pieces == Pieces::Rows;
                    let load = |step| tokens.load(step, whole);
                    let put = |_, _, row| row;
                    fill::<AHEAD, _>(cta.memory, cta.config, &mut cursor, steps, load, put);
                }
                // As few instructions as will do: rows are seldom like that.
                Pieces::Bytes => {
                    let load = |step| tokens.load_bytes(step);
                    let put = |step, stage, bytes| {
                        if cta.loads_codes() {
                            tokens.copy_codes(step, stage);
                        }
                        tokens.row_of_bytes(step, bytes)
                    };
                    fill::<1, _>(cta.memory, cta.config, &mut cursor, steps, load, put);
                }
            }
            walk.advance(cta, &item);
        }
    }
}

/// Loads scales of the K steps `first..end`, `N` at a time, and writes them to their stages while
/// the next loads are in flight. `put` is called with each step, its empty stage and the loaded
/// scales, and makes the row of scales.
///
/// # Safety
/// The warp that loads tokens, as a whole; the copying lane copies these steps next.
#[inline(always)]
unsafe fn fill<const N: usize, T: Loaded>(
    memory: Memory,
    config: &Sm100Config,
    cursor: &mut Cursor,
    (first, end): (u32, u32),
    load: impl Fn(u32) -> T,
    put: impl Fn(u32, u32, T) -> Row,
) {
    let ring = memory.ring();
    let (mut step, mut count, mut next) = (first, 0, [T::NONE; N]);
    loop {
        let (loaded, begin, before) = (next, step - count, count);
        count = (end - step).min(N as u32);
        for i in 0..N {
            if (i as u32) < count {
                next[i] = load(step + i as u32);
            }
        }
        step += count;
        for i in 0..N {
            if (i as u32) < before {
                // SAFETY: the stage is empty before it is written, and each lane writes its row;
                // what all lanes wrote is fenced for the tensor core before one of them says so.
                unsafe {
                    ring.wait_empty(cursor);
                    let stage = memory.stage(cursor.stage);
                    let row = put(begin + i as u32, stage, loaded[i]);
                    let at = stage + config.y_scales_at() + warp::lane_id() * ROW_BYTES;
                    memory::st_shared_v4_b32(at, row);
                    fence::fence_proxy_async_shared_cta();
                    warp::sync();
                    if warp::lane_id() == 0 {
                        ring.arrive_full(cursor);
                    }
                }
                cursor.advance();
            }
        }
        if count == 0 {
            return;
        }
    }
}

/// The tokens of a tile, and the one whose scales the lane loads. Lanes without one load the last
/// one's, so that all do the same and no more is read: rows without a token have codes that are 0.
struct Tokens<'a, L> {
    cta: Cta<'a, L>,
    /// The tile's first token, and its batch entry.
    first: u32,
    matrix: u64,
    /// Address of the first scale of the lane's token.
    scales: u64,
    /// Scales of a row.
    blocks: u32,
    layout: ScaleLayout,
}

impl<'a, L: WorkList> Tokens<'a, L> {
    #[inline(always)]
    fn new(cta: &Cta<'a, L>, tile: Tile) -> Self {
        let (config, tokens) = (cta.config, &cta.params.tokens);
        let Problem { m, k, .. } = cta.params.problem;
        let blocks = k / config.format.block();
        let matrix = u64::from(if cta.params.y_shared != 0 { 0 } else { tile.tokens.matrix });
        let (first, lane) = (cta.y_row(tile), warp::lane_id());
        let token = (first + lane.min(config.columns - 1)).min(m - 1);
        let layout = tokens.layout();
        let row = layout.offset(token as usize, 0, blocks as usize) as u64;
        let scales = tokens.scales + matrix * tokens.scale_stride + row;
        Self { cta: *cta, first, matrix, scales, blocks, layout }
    }

    /// Scales of a K step in the order of memory.
    #[inline(always)]
    fn step_blocks(&self) -> u32 {
        STEP / self.cta.config.format.block()
    }

    /// Loads the token's scales of K step `step`, at once if they are `whole`, and else by fours.
    ///
    /// # Safety
    /// [`Pieces`] say so.
    #[inline(always)]
    unsafe fn load(&self, step: u32, whole: bool) -> Row {
        let first = step * self.step_blocks();
        let words = self.step_blocks() as usize / TILE_BLOCKS;
        let mut row = Row::NONE;
        // SAFETY: scales that there are, aligned as the caller says.
        unsafe {
            if whole {
                let at = self.scales + u64::from(first);
                match self.cta.config.format {
                    Format::Nvfp4 => row = memory::ld_global_v4_b32(at),
                    Format::Mxfp4 => [row[0], row[1]] = memory::ld_global_v2_b32(at),
                }
            } else {
                let stride = self.layout.offset(0, TILE_BLOCKS, self.blocks as usize) as u64;
                let mut at = self.scales + u64::from(first / TILE_BLOCKS as u32) * stride;
                // A step has one block, and four blocks at a time make its word.
                for (i, word) in row[..words].iter_mut().enumerate() {
                    if i == 0 || first + ((i * TILE_BLOCKS) as u32) < self.blocks {
                        *word = memory::ld_global_b32(at);
                    }
                    at += stride;
                }
            }
        }
        row
    }

    /// The token's scales of K step `step`, loaded one by one. In place of scales behind the row's
    /// last one that is loaded again.
    ///
    /// # Safety
    /// The step is one of the problem's.
    #[inline(always)]
    unsafe fn load_bytes(&self, step: u32) -> [u16; ROW_BYTES as usize] {
        let mut bytes = [0; ROW_BYTES as usize];
        for (i, byte) in (0..self.step_blocks()).zip(&mut bytes) {
            let block = (step * self.step_blocks() + i).min(self.blocks - 1) as usize;
            // The layouts' offsets of row and block add up.
            let at = self.scales + self.layout.offset(0, block, self.blocks as usize) as u64;
            // SAFETY: a scale that there is.
            *byte = unsafe { memory::ld_global_u8(at) };
        }
        bytes
    }

    /// The row of scales that were loaded so.
    #[inline(always)]
    fn row_of_bytes(&self, step: u32, bytes: [u16; ROW_BYTES as usize]) -> Row {
        let first = step * self.step_blocks();
        core::array::from_fn(|i| {
            let mut word = 0;
            for j in 0..TILE_BLOCKS {
                let at = i * TILE_BLOCKS + j;
                let exists = first + (at as u32) < self.blocks;
                word |= if exists { u32::from(bytes[at]) << (8 * j) } else { 0 };
            }
            word
        })
    }

    /// Copies codes of the tile's tokens of K step `step` to a stage, in the swizzle's order, with
    /// zeros past the last token.
    ///
    /// # Safety
    /// The stage is empty; rows are whole numbers of half chunks.
    #[inline(always)]
    unsafe fn copy_codes(&self, step: u32, stage: u32) {
        const CHUNK: u32 = CHUNK_BYTES as u32;
        const CHUNKS: u32 = STEP_BYTES / CHUNK;
        let (config, tokens) = (self.cta.config, &self.cta.params.tokens);
        let Problem { m, k, .. } = self.cta.params.problem;
        let (matrix, row_bytes) = (tokens.codes + self.matrix * tokens.code_stride, k / 2);
        let mut at = warp::lane_id();
        // Not unrolled, as it seldom runs.
        while at < config.columns * CHUNKS {
            let (row, chunk) = (at / CHUNKS, at % CHUNKS * CHUNK);
            let (token, column) = (self.first + row, step * STEP_BYTES + chunk);
            let from = matrix + u64::from(token) * u64::from(row_bytes) + u64::from(column);
            let mut codes = [0; 4];
            let place = Swizzle::B128.offset(row as usize, chunk as usize, config.columns as usize);
            // SAFETY: halves that begin inside the row are inside.
            unsafe {
                if token < m && column < row_bytes {
                    [codes[0], codes[1]] = memory::ld_global_v2_b32(from);
                }
                if token < m && column + CHUNK / 2 < row_bytes {
                    [codes[2], codes[3]] = memory::ld_global_v2_b32(from + u64::from(CHUNK / 2));
                }
                memory::st_shared_v4_b32(stage + config.y_codes_at() + place as u32, codes);
            }
            at = marker::pin(at + warp::LANES);
        }
    }
}
