//! The main loop: multiplies the rows of a warp with a panel of the activations.

use super::{BlockDot, Panel};
use cuda_std::ptx::{convert, float, memory};
use cuda_std::warp;
use fp4_formats::gemv::{GemvConfig, GemvParams};
use fp4_formats::layout::TILE_BYTES;
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

const BLOCK: u32 = Nvfp4::BLOCK as u32;

/// The rows of the weights that a warp computes at a time.
///
/// Rows past the last row repeat it. They are loaded like the others, which keeps the loop free of
/// branches, and are never stored.
#[derive(Clone, Copy)]
pub struct Rows<const ROWS: usize> {
    /// Index of the first row; past the last row in a warp without work.
    pub first: u32,
    /// Rows of the weights.
    m: u32,
    /// Distance between the warp's rows.
    step: u32,
    /// Address of each row's codes.
    codes: [u64; ROWS],
    /// Address of each row's scales; in the 128x4 layout, of its four bytes in the first tile.
    scales: [u64; ROWS],
    /// Blocks of a row.
    blocks: u32,
}

impl<const ROWS: usize> Rows<ROWS> {
    /// The rows of row group `group` of batch entry `batch`.
    #[inline(always)]
    pub fn new(config: &GemvConfig, p: &GemvParams, batch: u32, group: u32) -> Self {
        let blocks = p.k / BLOCK;
        let first = match config.scale_layout {
            ScaleLayout::Linear => group * ROWS as u32,
            ScaleLayout::Blocked128x4 => group / 32 * 128 + group % 32,
        };
        let batch_codes = p.b_codes + u64::from(batch) * u64::from(p.m) * u64::from(p.k / 2);
        let batch_scales = p.b_scales + u64::from(batch) * p.b_scale_stride;
        let mut rows = Self {
            first,
            m: p.m,
            step: config.row_step(),
            codes: [0; ROWS],
            scales: [0; ROWS],
            blocks,
        };
        for i in 0..ROWS {
            let row = (first + i as u32 * rows.step).min(p.m - 1);
            let offset = config.scale_layout.offset(row as usize, 0, blocks as usize);
            rows.codes[i] = batch_codes + u64::from(row) * u64::from(p.k / 2);
            rows.scales[i] = batch_scales + offset as u64;
        }
        rows
    }

    /// Whether the warp's row `i` exists.
    #[inline(always)]
    pub fn exists(&self, i: u32) -> bool {
        self.index(i) < self.m
    }

    /// How many of the warp's rows exist.
    #[inline(always)]
    fn count(&self) -> u32 {
        let mut count = 0;
        for i in 0..ROWS as u32 {
            count += u32::from(self.exists(i));
        }
        count
    }

    /// Index in the weights of the warp's row `i`.
    #[inline(always)]
    pub fn index(&self, i: u32) -> u32 {
        self.first + i * self.step
    }
}

/// The chunks that one lane has loaded, or is loading, into registers: one for each row of its warp.
///
/// The registers of a row are refilled as soon as they have been used, so that the loads of all
/// rows stay in flight without a second set of registers. After the last chunk of a tile, the first
/// chunk of the CTA's next tile is loaded.
pub struct Stream<const ROWS: usize, const CHUNK: usize> {
    codes: [[[u32; 2]; CHUNK]; ROWS],
    /// e4m3 scales, one per block, the first block's in the lowest byte.
    scales: [u16; ROWS],
}

/// The addresses from which a lane loads a chunk of each row.
struct Cursor<const ROWS: usize> {
    codes: [u64; ROWS],
    /// Linear layout: address of the chunk's scales in each row. 128x4 layout: element 0 is the
    /// address of row 0's scales in the first tile; the others are not used.
    scales: [u64; ROWS],
    /// Index of the chunk in its row.
    chunk: u32,
    /// How many of the warp's rows exist.
    rows: u32,
    /// Blocks of a row.
    blocks: u32,
}

impl<const ROWS: usize> Cursor<ROWS> {
    /// The addresses of chunk `chunk` of `rows`.
    #[inline(always)]
    fn new(config: &GemvConfig, rows: &Rows<ROWS>, chunk: u32) -> Self {
        let mut cursor = Self {
            codes: rows.codes,
            scales: rows.scales,
            chunk,
            rows: rows.count(),
            blocks: rows.blocks,
        };
        for i in 0..ROWS {
            cursor.codes[i] += u64::from(chunk) * u64::from(config.load_bytes);
            if let ScaleLayout::Linear = config.scale_layout {
                cursor.scales[i] += u64::from(chunk) * u64::from(config.chunk_blocks());
            }
        }
        cursor
    }

    /// Advances by one step: 32 chunks.
    #[inline(always)]
    fn advance(&mut self, config: &GemvConfig) {
        self.chunk += warp::LANES;
        for i in 0..ROWS {
            self.codes[i] += u64::from(warp::LANES * config.load_bytes);
            if let ScaleLayout::Linear = config.scale_layout {
                self.scales[i] += u64::from(warp::LANES * config.chunk_blocks());
            }
        }
    }
}

/// A range of chunks of the same rows, whose activations are resident in shared memory together.
pub struct Segment<const ROWS: usize> {
    /// The rows.
    pub rows: Rows<ROWS>,
    /// Index along K of the first element.
    pub first: u32,
    /// Number of elements along K; 0 if the CTA has no further segment.
    pub count: u32,
}

impl<const ROWS: usize> Segment<ROWS> {
    /// Number of chunks in a row; 0 for a warp without rows.
    #[inline(always)]
    fn chunks<const CHUNK: usize>(&self) -> u32 {
        if self.rows.exists(0) { self.count / (BLOCK * CHUNK as u32) } else { 0 }
    }

    /// The addresses of the lane's first chunk.
    #[inline(always)]
    fn cursor<const CHUNK: usize>(&self, config: &GemvConfig) -> Cursor<ROWS> {
        Cursor::new(config, &self.rows, self.first / (BLOCK * CHUNK as u32) + warp::lane_id())
    }
}

impl<const ROWS: usize, const CHUNK: usize> Stream<ROWS, CHUNK> {
    /// Starts loading the lane's first chunk of `segment`.
    #[inline(always)]
    pub fn start(config: &GemvConfig, segment: &Segment<ROWS>) -> Self {
        let mut stream = Self { codes: [[[0; 2]; CHUNK]; ROWS], scales: [0; ROWS] };
        if warp::lane_id() < segment.chunks::<CHUNK>() {
            let at = segment.cursor::<CHUNK>(config);
            // SAFETY: the lane has a chunk in the segment, so `at` is a chunk of existing rows.
            unsafe {
                stream.load_scales(config, &at);
                for i in 0..ROWS {
                    stream.load_codes(i, &at);
                }
            }
        }
        stream
    }

    /// Adds to `sums` the products of `segment`'s rows with the resident activations, each lane those
    /// of its own chunks, and starts loading the lane's first chunk of the segment `next`.
    ///
    /// # Safety
    /// `self` was started for `segment`, and `panel` holds the segment's activations.
    #[inline(always)]
    pub unsafe fn accumulate<D: BlockDot>(
        &mut self,
        dot: D,
        config: &GemvConfig,
        segment: &Segment<ROWS>,
        next: impl FnOnce() -> Segment<ROWS>,
        panel: Panel,
        sums: &mut [f32; ROWS],
    ) {
        let chunks = segment.chunks::<CHUNK>();
        let mut index = warp::lane_id();
        let mut at = segment.cursor::<CHUNK>(config);
        while index + warp::LANES < chunks {
            at.advance(config);
            // SAFETY: the panel holds chunk `index`; `at` is the chunk `LANES` after it in the same
            // rows, which exists because `index + LANES` is below `chunks`.
            unsafe { self.step(dot, config, index, Some(&at), panel, sums) };
            index += warp::LANES;
        }
        let next = next();
        let more = warp::lane_id() < next.chunks::<CHUNK>();
        let at = next.cursor::<CHUNK>(config);
        if index < chunks {
            // SAFETY: the panel holds chunk `index`; `at` is passed only if `next` has that chunk.
            unsafe { self.step(dot, config, index, more.then_some(&at), panel, sums) };
        } else if more {
            *self = Self::start(config, &next);
        }
    }

    /// Multiplies the chunk in registers with chunk `index` of the resident panel, and refills the
    /// registers from `refill`.
    ///
    /// # Safety
    /// The panel holds chunk `index`, and `refill` is a chunk of existing rows.
    #[inline(always)]
    unsafe fn step<D: BlockDot>(
        &mut self,
        dot: D,
        config: &GemvConfig,
        index: u32,
        refill: Option<&Cursor<ROWS>>,
        panel: Panel,
        sums: &mut [f32; ROWS],
    ) {
        // SAFETY: the caller guarantees that the panel holds the chunk and that `refill` exists.
        unsafe {
            let activations = ActivationChunk::<D, CHUNK>::load(index, panel);
            let scales = self.scales;
            if let Some(at) = refill {
                self.load_scales(config, at);
            }
            for i in 0..ROWS {
                activations.multiply(dot, &self.codes[i], scales[i], &mut sums[i]);
                if let Some(at) = refill {
                    self.load_codes(i, at);
                }
            }
        }
    }

    /// # Safety
    /// `at` is a chunk of existing rows.
    #[inline(always)]
    unsafe fn load_codes(&mut self, i: usize, at: &Cursor<ROWS>) {
        // SAFETY: the chunk is inside an existing row, and rows are aligned to `load_bytes`.
        unsafe {
            if CHUNK == 2 {
                let [a, b, c, d] = memory::ld_global_nc_no_allocate_v4_b32(at.codes[i]);
                self.codes[i][0] = [a, b];
                self.codes[i][CHUNK - 1] = [c, d];
            } else {
                self.codes[i][0] = memory::ld_global_nc_no_allocate_v2_b32(at.codes[i]);
            }
        }
    }

    /// # Safety
    /// `at` is a chunk of existing rows.
    #[inline(always)]
    unsafe fn load_scales(&mut self, config: &GemvConfig, at: &Cursor<ROWS>) {
        // SAFETY: the caller guarantees that `at` is a chunk of existing rows.
        self.scales = unsafe {
            match config.scale_layout {
                ScaleLayout::Linear => linear_scales::<ROWS, CHUNK>(at),
                ScaleLayout::Blocked128x4 => blocked_scales::<ROWS, CHUNK>(at),
            }
        };
    }
}

/// # Safety
/// `at` is a chunk of existing rows.
#[inline(always)]
unsafe fn linear_scales<const ROWS: usize, const CHUNK: usize>(at: &Cursor<ROWS>) -> [u16; ROWS] {
    let mut scales = [0; ROWS];
    for i in 0..ROWS {
        // SAFETY: the address is inside the row's scales. With two blocks per chunk, a row has an
        // even number of scales, so that each pair is 2-byte aligned.
        scales[i] = unsafe {
            if CHUNK == 2 {
                memory::ld_global_nc_u16(at.scales[i])
            } else {
                memory::ld_global_nc_u8(at.scales[i])
            }
        };
    }
    scales
}

/// # Safety
/// `at` is a chunk of existing rows. The warp's rows are `r`, `r + 32`, `r + 64` and `r + 96` of one
/// 128x4 tile.
#[inline(always)]
unsafe fn blocked_scales<const ROWS: usize, const CHUNK: usize>(at: &Cursor<ROWS>) -> [u16; ROWS] {
    let mut scales = [0; ROWS];
    let block = at.chunk * CHUNK as u32;
    let tile = at.scales[0] + u64::from(block / 4) * TILE_BYTES as u64;
    if at.rows == ROWS as u32 && block / 4 * 4 + 3 < at.blocks {
        // SAFETY: these 16 aligned bytes hold four adjacent scales of each of the four rows, row
        // `i`'s in word `i`, and all sixteen exist.
        let words = unsafe { memory::ld_global_nc_v4_b32(tile) };
        let shift = 8 * (block % 4);
        for i in 0..ROWS {
            let scale = (words[i] >> shift) as u16;
            scales[i] = if CHUNK == 1 { scale & 0xFF } else { scale };
        }
    } else {
        // At the edges of the weights the 16 bytes contain padding, which may be uninitialised, so
        // only the scales that exist are read.
        for i in 0..ROWS {
            for j in 0..CHUNK as u32 {
                if (i as u32) < at.rows {
                    let address = tile + u64::from(4 * i as u32 + block % 4 + j);
                    // SAFETY: the address is that of the scale of an existing row and block.
                    let byte = unsafe { memory::ld_global_nc_u8(address) };
                    scales[i] |= byte << (8 * j);
                }
            }
        }
    }
    scales
}

/// One chunk of the decoded activations.
struct ActivationChunk<D: BlockDot, const CHUNK: usize> {
    blocks: [D::Block; CHUNK],
    scales: [u32; 2],
}

impl<D: BlockDot, const CHUNK: usize> ActivationChunk<D, CHUNK> {
    /// # Safety
    /// The panel holds chunk `index`.
    #[inline(always)]
    unsafe fn load(index: u32, panel: Panel) -> Self {
        let block = index * CHUNK as u32;
        let scales = panel.scales + block * size_of::<f32>() as u32;
        // SAFETY: the caller guarantees that these blocks and their scales were staged.
        unsafe {
            Self {
                blocks: core::array::from_fn(|j| {
                    D::load(panel.block::<D, CHUNK>(block + j as u32), panel.plane)
                }),
                scales: if CHUNK == 2 {
                    memory::ld_shared_v2_b32(scales)
                } else {
                    [memory::ld_shared_b32(scales), 0]
                },
            }
        }
    }

    /// Adds the product with the chunk of one row to `sum`.
    #[inline(always)]
    fn multiply(&self, dot: D, codes: &[[u32; 2]; CHUNK], scales: u16, sum: &mut f32) {
        let pair = convert::cvt_rn_f16x2_e4m3x2(scales);
        let row_scales = [pair as u16, (pair >> 16) as u16];
        for j in 0..CHUNK {
            let scale = convert::cvt_f32_f16(row_scales[j]) * f32::from_bits(self.scales[j]);
            *sum = float::fma_rn_f32(dot.dot(codes[j], &self.blocks[j]), scale, *sum);
        }
    }
}
