//! Tile configurations of the sm_100a kernels, and the sizes that follow from them.

use super::store::BOX_BYTES;
use crate::gemm::combine::GATE_ROWS;
use crate::gemm::fold;
use crate::gemm::operands::operands;
use crate::gemm::table::{configurations, problems};
use crate::gemm::{
    Dimension, Operands, Problem, Problems, ResultType, Split, TileOrder, TileShape, Tiles,
};
use crate::layout::{TILE_BLOCKS, TILE_BYTES, TILE_ROWS};
use crate::quantize::Format;
use crate::{Divisor, HalfType, Operand};

/// Bytes of an operand's row in one K step: a row of the 128-byte swizzle.
pub const STEP_BYTES: u32 = 128;
/// Elements of a 4-bit operand's row in one K step if both operands are 4-bit.
pub const STEP: u32 = 2 * STEP_BYTES;
/// Elements of a row in one K step if `Y` has 16 bits.
pub const HALF_STEP: u32 = 128;
/// Elements of a row in one K step if `Y` is e4m3: a row of the swizzle. Weights are folded in as many
/// columns.
pub const BYTE_STEP: u32 = STEP_BYTES;
/// K of one `tcgen05.mma` on packed 4-bit operands.
pub const PRODUCT_K: u32 = 64;
/// K of one `tcgen05.mma` on 16-bit operands.
pub const HALF_PRODUCT_K: u32 = 16;
/// K of one `tcgen05.mma` with an operand of 8 bits.
pub const BYTE_PRODUCT_K: u32 = 32;
/// Elements of a row of 16 bits that one copy brings: a row of the 128-byte swizzle.
pub const HALF_BOX: u32 = STEP_BYTES / 2;
/// Columns of tensor memory for a row of decoded `X` in one K step, two elements each.
pub const DECODED_COLUMNS: u32 = HALF_STEP / 2;
/// Columns of tensor memory for a row of `X` in e4m3 in one K step, four elements each.
pub const FOLDED_COLUMNS: u32 = BYTE_STEP / 4;
/// Bytes that stand for the block scales of a row of folded NVFP4 in one K step.
pub const FOLDED_TABLE_BYTES: u32 = BYTE_STEP / Format::Nvfp4.block() * fold::TABLE_BYTES;
/// Tiles of 512 bytes in which the tables of 128 such rows are; one with the rows' factors follows.
pub const FOLDED_TABLE_TILES: u32 = CTA_ROWS * FOLDED_TABLE_BYTES / TILE_BYTES as u32;
/// Rows of `X` that a CTA holds: the lanes of tensor memory.
pub const CTA_ROWS: u32 = TILE_ROWS as u32;
/// Columns of tensor memory. A CTA takes all: its shared memory leaves no room for a
/// second one.
pub const TENSOR_COLUMNS: u32 = 512;
/// Shared memory of a CTA, bytes.
pub const SHARED_LIMIT: u32 = 227 << 10;
/// Alignment of the operand stages, the period of the 128-byte swizzle.
pub const STAGE_ALIGN: u32 = 1024;
/// Bytes behind the stages: barriers, responses of the scheduler, the address of tensor
/// memory.
pub const CONTROL_BYTES: u32 = 512;
/// Most stages; more would not hide more.
pub const MAX_STAGES: u32 = 12;
/// Fewest stages; with fewer, copies do not hide their latency.
pub const MIN_STAGES: u32 = 4;
/// Rows of a column of scales in tensor memory, and of a scale tile in shared memory.
pub const GROUP_ROWS: u32 = 32;
/// Columns below which a tile is narrow: for few tokens, so that the weights are always `X`.
pub const NARROW_COLUMNS: u32 = 64;
/// Columns of the widest tiles.
pub const WIDE_COLUMNS: u32 = 256;
/// Columns that a storing thread has at a time.
pub const STORE_COLUMNS: u32 = 16;
/// Columns of a scale tile in tensor memory.
pub const SCALE_TILE_COLUMNS: u32 = CTA_ROWS / GROUP_ROWS;

/// Warps of a CTA: four that store results, one that copies, one that multiplies, one
/// that asks for work.
const WARPS: u32 = 7;
/// Warps of a CTA with four that decode `X`: the first of them is a multiple of four, as the lanes
/// of tensor memory that a warp reaches follow from its index.
const DECODE_WARPS: u32 = DECODE_WARP + 4;
/// Index of the first decoding warp.
pub const DECODE_WARP: u32 = 8;
/// Index of the copying warp.
pub const COPY_WARP: u32 = 4;
/// Index of the multiplying warp, which also allocates tensor memory.
pub const PRODUCT_WARP: u32 = 5;
/// Index of the warp that asks for work.
pub const SCHEDULE_WARP: u32 = 6;
/// Index of the warp that loads tokens, if there is one.
pub const TOKEN_WARP: u32 = 7;
/// Warps that store results.
pub const STORE_WARPS: u32 = 4;

/// Returns the bytes of the flags of a launch of `ctas` CTAs under stream-K, zeros before and after it:
/// one word for each storing warp, which it sets when its partial sums are in memory.
pub const fn flag_bytes(ctas: u32) -> u64 {
    ctas as u64 * STORE_WARPS as u64 * size_of::<u32>() as u64
}

/// Tiles along `X` that are walked together, so that CTAs at work at one time share rows of both
/// operands in L2.
pub const BAND: u32 = 8;

/// The operands of a kernel's products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Two operands of 4 bits, with their scales.
    Blocks,
    /// Weights decoded to 16-bit floats, and activations of that type.
    Halves(HalfType),
    /// Weights in MXFP4 with their scales, and activations in e4m3.
    Bytes,
    /// Weights in NVFP4 folded to e4m3 ([`fold`]), the factors of their rows as scales, and activations in e4m3.
    Folded,
}

/// The constants that one sm_100a GEMM kernel was compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sm100Config {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Format of the weights, and of the activations unless `left` says otherwise.
    pub format: Format,
    /// Type of activations that are not in the weights' format. `X` is then the weights
    /// ([`products`](Self::products)).
    pub activations: Option<Operand>,
    /// CTAs that multiply together, 1 or 2: a tile has 128 rows of `X` for each.
    pub cta_group: u32,
    /// Rows of `Y` of a tile.
    pub columns: u32,
    /// Parts of a cluster that share a tile's K steps and add up their sums.
    pub split: Split,
    /// Tiles of a cluster, neighbours along `Y`: each part copies a share of the rows of
    /// `X` to all.
    pub multicast: u32,
    /// The way in which activations reach the stages.
    pub bringing: Bringing,
    /// The ways in which a launch may divide K.
    pub dividing: Dividing,
    /// The sizes that the problems of a launch share.
    pub problems: Problems,
}

/// The way in which activations and their scales reach the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bringing {
    /// The copy engine, scales after a launch that lays them out ([`prepare`](super::prepare)).
    Copied,
    /// A warp that loads them as they are in memory ([`tokens`](super::tokens)): the few tokens of a narrow
    /// tile, for which that launch would cost more than loading them in every CTA.
    Loaded,
}

/// The ways in which launches of a configuration may divide K.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dividing {
    /// The tile decides: among the CTAs that split it, or not at all.
    Tile,
    /// So, or into an even run of all tiles' K steps for each cluster ([`Split::StreamK`]).
    StreamK,
}

impl Sm100Config {
    const fn new(
        name: &'static str,
        Operands { weights: format, activations }: Operands,
        problems: Problems,
        [cta_group, columns, k_parts, multicast]: [u32; 4],
        bringing: Bringing,
        dividing: Dividing,
    ) -> Self {
        let grouped = problems.have_own_tokens();
        assert!((cta_group == 1 || cta_group == 2) && k_parts >= 1 && cta_group * k_parts <= 8);
        assert!(multicast == 1 || (multicast == 2 && k_parts == 1));
        let narrow = matches!(bringing, Bringing::Loaded);
        assert!(if narrow {
            columns == 8 || columns == 16 || columns == 32
        } else {
            columns == 64 || columns == 128 || columns == 192 || columns == 256
        });
        assert!(activations.is_none() || multicast == 1);
        // Few tokens have nothing to share.
        assert!(!narrow || activations.is_none() && cta_group == 1 && multicast == 1 && !grouped);
        // Clusters of grouped products share tokens of one problem and rows of its weights alone.
        assert!(!grouped || k_parts * multicast == 1);
        let split = if k_parts == 1 { Split::None } else { Split::Cluster(k_parts) };
        // Clusters that split a tile or share rows of several have no even runs.
        assert!(matches!(dividing, Dividing::Tile) || k_parts * multicast == 1);
        let config = Self {
            name,
            format,
            activations,
            cta_group,
            columns,
            split,
            multicast,
            bringing,
            dividing,
            problems,
        };
        assert!(config.stages() >= MIN_STAGES && config.buffers() >= 2);
        assert!(config.buffers() <= config.stages());
        assert!(k_parts == 1 || (columns / k_parts).is_multiple_of(EXCHANGE_COLUMNS));
        // No block of a result in NVFP4 is cut if the weights may be `Y`.
        assert!(narrow || config.stored_columns().is_multiple_of(Format::Nvfp4.block()));
        config
    }

    /// Returns the formats of weights and activations.
    pub const fn operands(&self) -> Operands {
        Operands { weights: self.format, activations: self.activations }
    }

    /// Rows of `X` and of `Y` of a tile.
    pub const fn extents(&self) -> [u32; 2] {
        [self.rows(), self.columns]
    }

    /// Parts of a cluster that split a tile's K; 1 if K is not split.
    pub const fn k_parts(&self) -> u32 {
        self.split.cluster()
    }

    /// Whether a launch may give each cluster an even run of all tiles' K steps. The work lists of grouped and
    /// mixed products divide K themselves.
    pub const fn takes_stream_k(&self) -> bool {
        matches!(self.dividing, Dividing::StreamK) && !self.is_grouped()
    }

    /// The ways in which a launch may divide K. the table's way first.
    pub fn splits(&self) -> impl Iterator<Item = Split> + use<> {
        let also = if self.takes_stream_k() { Some(Split::StreamK) } else { None };
        [self.split].into_iter().chain(also)
    }

    /// Bytes of the partial sums that a CTA sends through memory under stream-K: of each four columns, a
    /// 16-byte word for every row.
    pub const fn partial_bytes(&self) -> u32 {
        CTA_ROWS * self.columns * size_of::<f32>() as u32
    }

    /// Columns of a tile that one CTA stores.
    pub const fn stored_columns(&self) -> u32 {
        self.columns / self.k_parts()
    }

    /// Whether the weights must be `X`: beside activations that are not in their format, and in narrow tiles.
    pub const fn only_swapped(&self) -> bool {
        self.activations.is_some() || self.loads_tokens()
    }

    /// Whether the weights are `X` in a launch with this
    /// [`Sm100Params::swapped`](super::Sm100Params::swapped). Kernels whose weights must be `X` know it when
    /// they are compiled.
    #[inline(always)]
    pub const fn is_swapped(&self, swapped: u32) -> bool {
        self.only_swapped() || swapped != 0
    }

    /// Whether the kernel takes the scales of activations as they are in memory, and codes that the copy
    /// engine does not take ([`Bringing::Loaded`]).
    pub const fn loads_tokens(&self) -> bool {
        matches!(self.bringing, Bringing::Loaded)
    }

    /// Returns the operands.
    pub const fn products(&self) -> Products {
        match (self.activations, self.format) {
            (None, _) => Products::Blocks,
            (Some(Operand::Half(half)), _) => Products::Halves(half),
            (Some(Operand::E4m3), Format::Mxfp4) => Products::Bytes,
            (Some(Operand::E4m3), Format::Nvfp4) => Products::Folded,
        }
    }

    /// Whether warps decode `X` on its way to tensor memory.
    pub const fn decodes(&self) -> bool {
        match self.products() {
            Products::Blocks | Products::Bytes => false,
            Products::Halves(_) | Products::Folded => true,
        }
    }

    /// Whether `Y` is e4m3: the products then take scales of `X`, and 1 for the scales of `Y`.
    pub const fn takes_bytes(&self) -> bool {
        match self.products() {
            Products::Blocks | Products::Halves(_) => false,
            Products::Bytes | Products::Folded => true,
        }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        let warps = if self.decodes() {
            DECODE_WARPS
        } else if self.loads_tokens() {
            TOKEN_WARP + 1
        } else {
            WARPS
        };
        warps * crate::WARP
    }

    /// Elements of a row in one K step.
    pub const fn step(&self) -> u32 {
        match self.products() {
            Products::Blocks => STEP,
            Products::Halves(_) => HALF_STEP,
            Products::Bytes | Products::Folded => BYTE_STEP,
        }
    }

    /// Returns the elements of a row of `Y` that one copy brings, if they are not 4-bit.
    pub const fn y_box(&self) -> u32 {
        if self.takes_bytes() { STEP_BYTES } else { HALF_BOX }
    }

    /// Rows of `X` of a tile.
    pub const fn rows(&self) -> u32 {
        CTA_ROWS * self.cta_group
    }

    /// CTAs of a cluster: pairs (or CTAs) that split a tile or share its rows.
    pub const fn cluster(&self) -> u32 {
        self.cta_group * self.k_parts() * self.multicast
    }

    /// Rows of `Y` of a cluster's tiles.
    pub const fn cluster_columns(&self) -> u32 {
        self.columns * self.multicast
    }

    /// Whether results of this type can be stored. If the weights are `Y`, a CTA has whole blocks of
    /// them, and at least the sixteen that it stores together, in the columns that it stores; a
    /// gated product takes two columns for each. It reads them in the order of [accumulators that
    /// overlap](Self::accumulators_overlap), which must not cut a block either.
    pub const fn stores(&self, result: ResultType, gated: bool, swapped: bool) -> bool {
        let block = result.block();
        let least = if block < 2 * GATE_ROWS { 2 * GATE_ROWS } else { block };
        let columns = least << gated as u32;
        swapped
            || self.stored_columns().is_multiple_of(columns)
                && self.accumulator_step().is_multiple_of(columns)
    }

    /// Rows of `X` codes that one copy brings.
    pub const fn x_box_rows(&self) -> u32 {
        CTA_ROWS / self.multicast
    }

    /// Scale tiles along K of `X` that one copy brings.
    pub const fn x_box_tiles(&self) -> u32 {
        self.scale_tiles() / self.multicast
    }

    /// Scale tiles along K of `Y` that one copy brings: of a pair, each CTA copies its
    /// part to both.
    pub const fn y_box_tiles(&self) -> u32 {
        self.scale_tiles() / self.cta_group
    }

    /// Bytes that one CTA's copies read in a K step; the rest of its stage comes from others'
    /// copies or from a warp that loads it.
    pub const fn read_bytes(&self) -> u32 {
        (self.x_code_bytes() + self.x_scale_bytes()) / self.multicast
            + self.y_bytes()
            + self.y_copied_scale_bytes() / self.cta_group
    }

    /// Rows of `Y` that one CTA holds.
    pub const fn cta_columns(&self) -> u32 {
        self.columns / self.cta_group
    }

    /// Scale tiles along K of one K step; of folded weights, tiles of tables and of factors.
    pub const fn scale_tiles(&self) -> u32 {
        match self.products() {
            Products::Blocks | Products::Halves(_) | Products::Bytes => {
                self.step() / self.format.block() / TILE_BLOCKS as u32
            }
            Products::Folded => FOLDED_TABLE_TILES + 1,
        }
    }

    /// Returns the scale tiles along K of rows of `k` elements of the weights, or of either operand if
    /// both are 4-bit.
    pub const fn row_scale_tiles(&self, k: u32) -> u32 {
        match self.products() {
            Products::Blocks | Products::Halves(_) | Products::Bytes => {
                k.div_ceil(self.format.block()).div_ceil(TILE_BLOCKS as u32)
            }
            Products::Folded => self.steps(k) * self.scale_tiles(),
        }
    }

    /// 128-row groups of scales that a tile's rows of `Y` lie in. Each CTA holds all.
    pub const fn y_groups(&self) -> u32 {
        self.columns.div_ceil(TILE_ROWS as u32)
    }

    /// Products of one K step that share a scale tile.
    pub const fn products_per_scale_tile(&self) -> u32 {
        STEP / PRODUCT_K / self.scale_tiles()
    }

    /// Bytes of `X` codes that the copies of a K step bring.
    pub const fn x_code_bytes(&self) -> u32 {
        CTA_ROWS * self.step() / 2
    }

    /// Offset of the `Y` codes in a stage.
    pub const fn y_codes_at(&self) -> u32 {
        self.x_bytes()
    }

    /// Offset of the scales of `Y` in a stage.
    pub const fn y_scales_at(&self) -> u32 {
        self.y_codes_at() + self.y_bytes()
    }

    /// Offset of the scales of `X` in a stage.
    pub const fn x_scales_at(&self) -> u32 {
        self.y_scales_at() + self.y_scale_bytes()
    }

    /// Bytes that they take in a stage: beside operands of 8 bits they are padded to as many.
    pub const fn x_bytes(&self) -> u32 {
        match self.products() {
            Products::Blocks | Products::Halves(_) | Products::Folded => self.x_code_bytes(),
            Products::Bytes => 2 * self.x_code_bytes(),
        }
    }

    /// Bytes of `Y` codes or elements of a stage.
    pub const fn y_bytes(&self) -> u32 {
        let row = match self.products() {
            Products::Blocks => STEP / 2,
            Products::Halves(half) => HALF_STEP * Operand::Half(half).bytes(),
            Products::Bytes | Products::Folded => BYTE_STEP,
        };
        self.cta_columns() * row
    }

    /// Bytes of `X` scales of a stage.
    pub const fn x_scale_bytes(&self) -> u32 {
        self.scale_tiles() * TILE_BYTES as u32
    }

    /// Returns the tiles of `Y` scales of a stage: a warp that loads tokens makes one of all their
    /// scales.
    pub const fn y_scale_tiles(&self) -> u32 {
        match self.products() {
            Products::Blocks if self.loads_tokens() => 1,
            Products::Blocks => self.y_groups() * self.scale_tiles(),
            Products::Halves(_) | Products::Bytes | Products::Folded => 0,
        }
    }

    /// Bytes of `Y` scales of a stage.
    pub const fn y_scale_bytes(&self) -> u32 {
        self.y_scale_tiles() * TILE_BYTES as u32
    }

    /// Returns the bytes of scales of `Y` that copies bring.
    pub const fn y_copied_scale_bytes(&self) -> u32 {
        if self.loads_tokens() { 0 } else { self.y_scale_bytes() }
    }

    /// Returns the bytes that loads of a token's scales bring in a K step. In the 128x4 layout they
    /// are neighbours of the scales of three other groups of tokens, which come with them.
    pub const fn loaded_bytes(&self) -> u32 {
        if self.loads_tokens() { self.scale_tiles() * TILE_BYTES as u32 / GROUP_ROWS } else { 0 }
    }

    /// Returns the bytes that one CTA's copies of a K step bring.
    pub const fn stage_bytes(&self) -> u32 {
        self.x_code_bytes() + self.y_bytes() + self.x_scale_bytes() + self.y_copied_scale_bytes()
    }

    /// Returns the bytes that the second CTA of a pair is signalled in a K step: the `X` that it
    /// decodes.
    pub const fn decoded_bytes(&self) -> u32 {
        if self.decodes() { self.x_code_bytes() + self.x_scale_bytes() } else { 0 }
    }

    /// Returns the bytes that the first CTA of a pair is signalled in a K step: its own and the
    /// other's, except the `X` that the other decodes.
    pub const fn leader_bytes(&self) -> u32 {
        self.stage_bytes() + (self.cta_group - 1) * (self.stage_bytes() - self.decoded_bytes())
    }

    /// Bytes from one stage to the next.
    pub const fn stage_stride(&self) -> u32 {
        let bytes = self.x_bytes() + self.y_bytes() + self.x_scale_bytes() + self.y_scale_bytes();
        bytes.next_multiple_of(STAGE_ALIGN)
    }

    /// Returns the bytes of a tile of scales of 1, if `Y` has no scales.
    pub const fn ones_bytes(&self) -> u32 {
        if self.takes_bytes() { TILE_BYTES as u32 } else { 0 }
    }

    /// Bytes in which a CTA receives the sums of the others of its cluster.
    pub const fn exchange_bytes(&self) -> u32 {
        (self.k_parts() - 1) * CTA_ROWS * self.stored_columns() * size_of::<f32>() as u32
    }

    /// Stages that fit beside `boxes` boxes of results a storing warp.
    const fn stages_beside(&self, boxes: u32) -> u32 {
        let boxes = boxes * STORE_WARPS * BOX_BYTES;
        let others = self.exchange_bytes() + boxes + CONTROL_BYTES + self.table_bytes();
        let others = others + self.ones_bytes();
        let stages = (SHARED_LIMIT - STAGE_ALIGN - others) / self.stage_stride();
        if stages < MAX_STAGES { stages } else { MAX_STAGES }
    }

    /// Boxes of results of a storing warp: one is filled while another is copied to
    /// memory, unless the stages need the room.
    pub const fn boxes(&self) -> u32 {
        if self.stages_beside(2) < MIN_STAGES { 1 } else { 2 }
    }

    /// Bytes of all boxes of results.
    pub const fn boxes_bytes(&self) -> u32 {
        self.boxes() * STORE_WARPS * BOX_BYTES
    }

    /// Stages of the ring.
    pub const fn stages(&self) -> u32 {
        self.stages_beside(self.boxes())
    }

    /// Dynamic shared memory of a CTA, bytes: alignment, stages, boxes, exchange, control, scales of 1,
    /// table.
    pub const fn shared_bytes(&self) -> u32 {
        let stages = self.stages() * self.stage_stride();
        let others = self.boxes_bytes() + self.exchange_bytes();
        STAGE_ALIGN + stages + others + CONTROL_BYTES + self.table_bytes() + self.ones_bytes()
    }

    /// Distance of the two accumulators in tensor memory, columns. They overlap if two
    /// do not fit beside the scales: then the second tile's products begin once the
    /// columns that both use have been read.
    pub const fn accumulator_step(&self) -> u32 {
        match (self.columns, self.decodes()) {
            (256, false) => 160,
            (256, true) => 128,
            _ => self.columns,
        }
    }

    /// Whether the accumulators overlap.
    pub const fn accumulators_overlap(&self) -> bool {
        self.accumulator_step() < self.columns
    }

    /// Stages of the ring of accumulators.
    pub const fn accumulator_stages(&self) -> u32 {
        if self.accumulators_overlap() { 1 } else { 2 }
    }

    /// Columns of tensor memory that the accumulators take.
    pub const fn accumulator_columns(&self) -> u32 {
        self.accumulator_step() + self.columns
    }

    /// Columns of the scales of 1, which follow the accumulators.
    pub const fn ones_columns(&self) -> u32 {
        if self.takes_bytes() { SCALE_TILE_COLUMNS * self.y_groups() } else { 0 }
    }

    /// Columns of tensor memory that a K step needs besides the accumulator: scales of
    /// `X`, then of `Y`; or decoded `X`, then its factors.
    pub const fn buffer_columns(&self) -> u32 {
        match self.products() {
            Products::Blocks => SCALE_TILE_COLUMNS * (self.scale_tiles() + self.y_scale_tiles()),
            Products::Halves(_) => DECODED_COLUMNS,
            Products::Bytes => SCALE_TILE_COLUMNS * self.scale_tiles(),
            Products::Folded => FOLDED_COLUMNS + SCALE_TILE_COLUMNS,
        }
    }

    /// Returns the sets of those columns: one is filled while products read others.
    pub const fn buffers(&self) -> u32 {
        let buffers = (TENSOR_COLUMNS - self.buffer_base()) / self.buffer_columns();
        if buffers < 4 { buffers } else { 4 }
    }

    /// Returns the first of those columns.
    pub const fn buffer_base(&self) -> u32 {
        self.accumulator_columns() + self.ones_columns()
    }

    /// K steps of rows of `k` elements.
    pub const fn steps(&self, k: u32) -> u32 {
        k.div_ceil(self.step())
    }

    /// The K steps of rows of `k` elements that part `split` of the splits takes: the first, and
    /// the one after the last.
    #[inline(always)]
    pub const fn k_part(&self, k: u32, split: u32) -> (u32, u32) {
        Divisor::nearest(self.k_parts()).part(self.steps(k), split)
    }

    /// Rows of `B` and tokens of the tiles of a cluster, which count as one.
    #[inline(always)]
    pub const fn work_shape(&self, swapped: bool) -> TileShape {
        let (x, y) = (self.rows(), self.cluster_columns());
        if swapped { TileShape { rows: x, tokens: y } } else { TileShape { rows: y, tokens: x } }
    }

    /// Order of a problem's tiles: along `X` in bands.
    #[inline(always)]
    pub const fn order(swapped: bool) -> TileOrder {
        TileOrder { inner: if swapped { Dimension::Rows } else { Dimension::Tokens }, band: BAND }
    }

    /// The tiles of a dense or batched problem. The tiles of a cluster count as one.
    pub const fn tiles(&self, problem: &Problem, swapped: bool) -> Tiles {
        Tiles::uniform(problem, self.work_shape(swapped), Self::order(swapped))
    }

    /// Whether the kernel takes rows of `k` elements: whole blocks, and a K step for
    /// every CTA of a cluster.
    pub const fn takes_k(&self, k: u32) -> bool {
        k > 0 && k.is_multiple_of(self.format.block()) && self.steps(k) >= self.k_parts()
    }
}

/// Columns that CTAs exchange at a time.
pub const EXCHANGE_COLUMNS: u32 = 8;

/// The table of the sm_100a kernels ([`table`](crate::gemm::table)): calls `$with!` for each.
///
/// A row says its tile in rows of `X` by rows of `Y`, CTAs that split it and tiles of a multicast; who brings
/// activations to the stages ([`Bringing`]) and how a launch may divide K ([`Dividing`]); and which problems it
/// has kernels for.
///
/// Until a B200 has measured more, these are the configurations that the estimate chooses for the
/// contest's shapes and for decoding and prompts of common layers, and the simplest of each
/// mechanism:
///
/// | tiles | why |
/// |---|---|
/// | 128 x 64 | no cluster, no pair: takes every problem, and is the first to run on new hardware |
/// | 128 x 64 split 2 | split-K without pairs, alone |
/// | 128 x 256 multicast | multicast without pairs, alone |
/// | 256 x 64, with and without splits | tens of tokens; 128 x 7168 x 2048 |
/// | 128 x 128 split 4 | 128 x 4096 x 7168 |
/// | 256 x 128 split 2 | 128 x 7168 x 16384 |
/// | 256 x 128, 256 x 256 multicast | prompts of some hundred tokens, and more |
///
/// Narrow tiles, for decoding, with weights as the rows of `X`. If a tile is split, each CTA stores 8
/// columns, the fewest that are exchanged:
///
/// | tiles | why |
/// |---|---|
/// | 128 x 8, 128 x 16, 128 x 32 | up to 8, 16 and 32 tokens, of many rows or batch entries, or by stream-K |
/// | 128 x 32 split 4 | fewer rows: as many as a quarter of the machine's CTAs have |
///
/// Beside 16-bit activations, also with weights as the rows of `X`:
///
/// | tiles | why |
/// |---|---|
/// | 128 x 64 | takes every problem |
/// | 128 x 64 split 2, split 4 | decoding |
/// | 128 x 128 split 2, split 4 | 128 tokens |
/// | 256 x 128 | prompts |
/// | 256 x 256, bf16 only | prompts, whose decoding takes longest |
///
/// Beside activations in e4m3, also with weights as the rows of `X`:
///
/// | tiles | why |
/// |---|---|
/// | 128 x 64 | takes every problem |
/// | 128 x 64 split 4 | few tokens |
/// | 256 x 128, 256 x 256 | prompts |
///
/// Grouped products take no split and no multicast, whose clusters would have to share tokens of one problem:
///
/// | tiles | why |
/// |---|---|
/// | 128 x 64 | no cluster: takes every problem, and is the first to run on new hardware |
/// | 256 x 64 | few tokens for each group |
/// | 256 x 128 | a hundred tokens for each group; of mixed products the only one, so that the PTX stays small |
/// | 256 x 256, beside 4-bit activations | prompts |
#[macro_export]
macro_rules! sm100a_gemm_configs {
    ($with:ident) => {
        $crate::gemm_kernels! {
            $with gemm_sm100:
            [nvfp4 mxfp4] {
                (128 x 64) (Copied, StreamK) uniform grouped;
                (256 x 64) (Copied, StreamK) uniform grouped;
                (128 x 64 _split 2) (Copied, Tile) uniform;
                (128 x 128 _split 4) (Copied, Tile) uniform;
                (256 x 64 _split 2) (Copied, Tile) uniform;
                (256 x 64 _split 4) (Copied, Tile) uniform;
                (256 x 128 _split 2) (Copied, Tile) uniform;
                (256 x 128) (Copied, Tile) grouped mixed;
                (256 x 256) (Copied, Tile) grouped;
                (128 x 256 _multicast 2) (Copied, Tile) uniform;
                (256 x 128 _multicast 2) (Copied, Tile) uniform;
                (256 x 256 _multicast 2) (Copied, Tile) uniform;
            }
            [nvfp4_f16] {
                (128 x 64) (Copied, StreamK) uniform grouped;
                (256 x 128) (Copied, StreamK) uniform grouped mixed;
                (128 x 64 _split 2) (Copied, Tile) uniform;
                (128 x 64 _split 4) (Copied, Tile) uniform;
                (128 x 128 _split 2) (Copied, Tile) uniform;
                (128 x 128 _split 4) (Copied, Tile) uniform;
            }
            [nvfp4_bf16 mxfp4_bf16] {
                (128 x 64) (Copied, StreamK) uniform grouped;
                (256 x 128) (Copied, StreamK) uniform grouped mixed;
                (256 x 256) (Copied, Tile) uniform;
                (128 x 64 _split 2) (Copied, Tile) uniform;
                (128 x 64 _split 4) (Copied, Tile) uniform;
                (128 x 128 _split 2) (Copied, Tile) uniform;
                (128 x 128 _split 4) (Copied, Tile) uniform;
            }
            [nvfp4_e4m3 mxfp4_e4m3] {
                (128 x 64) (Copied, StreamK) uniform grouped;
                (256 x 128) (Copied, StreamK) uniform grouped;
                (256 x 256) (Copied, Tile) uniform;
                (128 x 64 _split 4) (Copied, Tile) uniform;
            }
            [nvfp4 mxfp4] {
                (128 x 8) (Loaded, StreamK) uniform;
                (128 x 16) (Loaded, StreamK) uniform;
                (128 x 32) (Loaded, StreamK) uniform;
                (128 x 32 _split 4) (Loaded, Tile) uniform;
            }
        }
    };
}

/// The configuration of a kernel of the table.
macro_rules! config {
    ([$($name:tt)+] $types:ident $problems:ident
     ($rows:literal x $columns:literal $(_split $split:literal)? $(_multicast $multicast:literal)?)
     ($bringing:ident, $dividing:ident)) => {
        Sm100Config::new(
            concat!($(stringify!($name)),+),
            operands!($types),
            problems!($problems),
            [$rows / CTA_ROWS, $columns, 1 $(* $split)?, 1 $(* $multicast)?],
            Bringing::$bringing,
            Dividing::$dividing,
        )
    };
}

configurations!($ sm100a_gemm_configs, config, Sm100Config, "sm_100a");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_fits() {
        for config in all() {
            assert!(config.shared_bytes() <= SHARED_LIMIT, "{}", config.name);
            let used = config.buffer_base() + config.buffers() * config.buffer_columns();
            assert!(used <= TENSOR_COLUMNS, "{}: {used} columns", config.name);
            assert_eq!(config.y_bytes() % STAGE_ALIGN, 0, "{}", config.name);
            assert_eq!(config.x_bytes() % STAGE_ALIGN, 0, "{}", config.name);
            assert_eq!(config.exchange_bytes() % STAGE_ALIGN, 0, "{}", config.name);
        }
    }

    #[test]
    fn stages_of_the_table() {
        let stages = |name| CONFIGS.iter().find(|c| c.name == name).unwrap().stages();
        assert_eq!(stages("gemm_sm100_nvfp4_128x64"), 7);
        assert_eq!(stages("gemm_sm100_nvfp4_128x256_multicast2"), 4);
        assert_eq!(stages("gemm_sm100_nvfp4_256x256_multicast2"), 5);
        assert_eq!(stages("gemm_sm100_nvfp4_128x128_split4"), 4);
        assert_eq!(stages("gemm_sm100_nvfp4_f16_128x64"), 8);
        assert_eq!(stages("gemm_sm100_nvfp4_bf16_256x128"), 8);
        assert_eq!(stages("gemm_sm100_nvfp4_bf16_256x256"), 5);
        assert!(GROUPED.iter().all(|config| config.boxes() == 2));
        // All others have room for two boxes of results.
        let narrow: [&str; 4] = core::array::from_fn(|i| {
            CONFIGS.iter().filter(|c| c.boxes() == 1).map(|c| c.name).nth(i).unwrap_or("")
        });
        assert_eq!(
            narrow,
            [
                "gemm_sm100_nvfp4_128x256_multicast2",
                "gemm_sm100_nvfp4_f16_128x128_split4",
                "gemm_sm100_nvfp4_bf16_128x128_split4",
                "gemm_sm100_mxfp4_bf16_128x128_split4",
            ]
        );
        assert_eq!(CONFIGS.iter().filter(|c| c.boxes() == 1).count(), narrow.len());
    }
}
