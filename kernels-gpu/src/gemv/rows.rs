//! The main loop: a warp's rows times a panel of the vector.

use super::{BlockDot, Panel};
use cuda_std::ptx::{convert, float, memory};
use cuda_std::warp;
use fp4_formats::gemv::{GemvConfig, GemvParams};
use fp4_formats::layout::TILE_BYTES;
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

const BLOCK: u32 = Nvfp4::BLOCK as u32;

/// The rows that a warp carries.
///
/// Rows past the matrix are aliases of its last row: they are read like the
/// others, which keeps the loop free of branches, and never stored.
#[derive(Clone, Copy)]
pub struct Rows<const ROWS: usize> {
    /// Index of the first; may be past the matrix in a warp without work.
    pub first: u32,
    /// Rows of the matrix.
    m: u32,
    /// Distance between the warp's rows.
    step: u32,
    /// Address of each row's codes.
    codes: [u64; ROWS],
    /// Address of each row's scales; 128x4: of its word in the first tile.
    scales: [u64; ROWS],
    /// Blocks of a row.
    blocks: u32,
}

impl<const ROWS: usize> Rows<ROWS> {
    /// Rows of row group `group` of `batch`.
    #[inline(always)]
    pub fn new(config: &GemvConfig, p: &GemvParams, batch: u32, group: u32) -> Self {
        let blocks = p.k / BLOCK;
        let first = match config.scale_layout {
            ScaleLayout::Linear => group * ROWS as u32,
            ScaleLayout::Blocked128x4 => group / 32 * 128 + group % 32,
        };
        let batch_codes = p.a_codes + u64::from(batch) * u64::from(p.m) * u64::from(p.k / 2);
        let batch_scales = p.a_scales + u64::from(batch) * p.a_scale_stride;
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

    /// Index in the matrix of the warp's row `i`.
    #[inline(always)]
    pub fn index(&self, i: u32) -> u32 {
        self.first + i * self.step
    }
}

/// One lane's place in the stream of chunks that its warp's rows bring, with one
/// chunk of each row in registers or on its way there.
///
/// A row's registers are refilled as soon as they have been used, so that the
/// loads of all rows stay in flight without a second set of registers; the
/// chunk after a tile's last one is the next tile's first.
pub struct Stream<const ROWS: usize, const CHUNK: usize> {
    codes: [[[u32; 2]; CHUNK]; ROWS],
    /// e4m3 codes, one block in each byte from the lowest.
    scales: [u16; ROWS],
}

/// Where a lane reads next.
struct Cursor<const ROWS: usize> {
    codes: [u64; ROWS],
    /// Linear: address of each row's next scales. 128x4: of row 0's scales in
    /// the first tile, in element 0.
    scales: [u64; ROWS],
    /// Index of the chunk in its row.
    chunk: u32,
    /// Rows that exist.
    rows: u32,
    /// Blocks of a row.
    blocks: u32,
}

impl<const ROWS: usize> Cursor<ROWS> {
    /// At chunk `chunk` of `rows`.
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

    /// One step on.
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

/// A run of chunks of the same rows: those whose vector elements are resident
/// together.
pub struct Segment<const ROWS: usize> {
    /// The rows.
    pub rows: Rows<ROWS>,
    /// First element along K.
    pub first: u32,
    /// Elements along K; 0 if there is no such segment.
    pub count: u32,
}

impl<const ROWS: usize> Segment<ROWS> {
    /// Chunks of a row; none for a warp without rows.
    #[inline(always)]
    fn chunks<const CHUNK: usize>(&self) -> u32 {
        if self.rows.exists(0) { self.count / (BLOCK * CHUNK as u32) } else { 0 }
    }

    /// The lane's first chunk.
    #[inline(always)]
    fn cursor<const CHUNK: usize>(&self, config: &GemvConfig) -> Cursor<ROWS> {
        Cursor::new(config, &self.rows, self.first / (BLOCK * CHUNK as u32) + warp::lane_id())
    }
}

impl<const ROWS: usize, const CHUNK: usize> Stream<ROWS, CHUNK> {
    /// Starts the loads of the lane's first chunk of `segment`.
    #[inline(always)]
    pub fn start(config: &GemvConfig, segment: &Segment<ROWS>) -> Self {
        let mut stream = Self { codes: [[[0; 2]; CHUNK]; ROWS], scales: [0; ROWS] };
        if warp::lane_id() < segment.chunks::<CHUNK>() {
            let at = segment.cursor::<CHUNK>(config);
            // SAFETY: a chunk of the segment.
            unsafe {
                stream.load_scales(config, &at);
                for i in 0..ROWS {
                    stream.load_codes(i, &at);
                }
            }
        }
        stream
    }

    /// Adds the products of `segment`'s rows with the resident vector to
    /// `sums`, each lane those of its chunks; leaves the lane's first chunk of
    /// `next` on its way.
    ///
    /// # Safety
    /// `self` was started for `segment`, whose part of the vector `panel`
    /// holds.
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
            // SAFETY: the panel holds chunk `index`, and `at` is the chunk
            // `LANES` further on, of the same rows.
            unsafe { self.step(dot, config, index, Some(&at), panel, sums) };
            index += warp::LANES;
        }
        let next = next();
        let more = warp::lane_id() < next.chunks::<CHUNK>();
        let at = next.cursor::<CHUNK>(config);
        if index < chunks {
            // SAFETY: as above; `at` is a chunk of `next` if it has one for
            // this lane.
            unsafe { self.step(dot, config, index, more.then_some(&at), panel, sums) };
        } else if more {
            *self = Self::start(config, &next);
        }
    }

    /// Multiplies the chunk in registers, which is chunk `index` of the
    /// resident panel, and refills them from `refill`.
    ///
    /// # Safety
    /// The panel holds the chunk; `refill` is a chunk of existing rows.
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
        // SAFETY: the caller's.
        unsafe {
            let vector = VectorChunk::<D, CHUNK>::load(index, panel);
            let scales = self.scales;
            if let Some(at) = refill {
                self.load_scales(config, at);
            }
            for i in 0..ROWS {
                vector.multiply(dot, &self.codes[i], scales[i], &mut sums[i]);
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
        // SAFETY: inside a row; rows are aligned to the load.
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
        // SAFETY: the caller's.
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
        // SAFETY: inside the row's scales; with two blocks a chunk a row has
        // an even number of them.
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
/// `at` is a chunk of existing rows, which are 32 apart.
#[inline(always)]
unsafe fn blocked_scales<const ROWS: usize, const CHUNK: usize>(at: &Cursor<ROWS>) -> [u16; ROWS] {
    let mut scales = [0; ROWS];
    let block = at.chunk * CHUNK as u32;
    let tile = at.scales[0] + u64::from(block / 4) * TILE_BYTES as u64;
    if at.rows == ROWS as u32 && block / 4 * 4 + 3 < at.blocks {
        // SAFETY: word `i` of these 16 bytes holds four neighbouring scales of
        // row `i`; all sixteen exist.
        let words = unsafe { memory::ld_global_nc_v4_b32(tile) };
        let shift = 8 * (block % 4);
        for i in 0..ROWS {
            let scale = (words[i] >> shift) as u16;
            scales[i] = if CHUNK == 1 { scale & 0xFF } else { scale };
        }
    } else {
        // At the matrix's edges those 16 bytes hold padding, which may never
        // have been written: read just the scales that exist.
        for i in 0..ROWS {
            for j in 0..CHUNK as u32 {
                if (i as u32) < at.rows {
                    let address = tile + u64::from(4 * i as u32 + block % 4 + j);
                    // SAFETY: the scale of an existing row and block.
                    let byte = unsafe { memory::ld_global_nc_u8(address) };
                    scales[i] |= byte << (8 * j);
                }
            }
        }
    }
    scales
}

/// One chunk of the decoded vector.
struct VectorChunk<D: BlockDot, const CHUNK: usize> {
    blocks: [D::Block; CHUNK],
    scales: [u32; 2],
}

impl<D: BlockDot, const CHUNK: usize> VectorChunk<D, CHUNK> {
    /// # Safety
    /// The panel holds chunk `index`.
    #[inline(always)]
    unsafe fn load(index: u32, panel: Panel) -> Self {
        let block = index * CHUNK as u32;
        let scales = panel.scales + block * size_of::<f32>() as u32;
        // SAFETY: these blocks and their scales were staged.
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

    /// Adds the product with one row's chunk to `sum`.
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
