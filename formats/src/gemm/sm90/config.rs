//! Tile configurations of the sm_90a kernels, and the sizes that follow from them.
//!
//! A CTA computes tiles of `rows` rows of `B` by `tokens` tokens, or parts of them along K: one
//! producer warpgroup copies, two consumer warpgroups decode and multiply. The
//! [work list](crate::gemm::work) says which CTA computes which part.

use super::message::{MORE_MESSAGES, Message};
use crate::gemm::fragments::config::fragment_config;
use crate::gemm::fragments::repack::{
    BLOCK_COLUMNS, BLOCK_ROWS, CHUNK_COLUMNS, CHUNK_ROWS, PRODUCT_K, WARPGROUP,
};
use crate::gemm::fragments::{Scheme, Tile};
use crate::gemm::groups::{LEAST_WEIGHT, MAX_WEIGHT, Tiling};
use crate::gemm::operands::operands;
use crate::gemm::table::{configurations, problems};
use crate::gemm::{Adding, Epilogue, Operands, Problems, TileShape};
use crate::{Divisor, FloatType, HalfType, Operand, WARP};

/// Columns of K that a stage of the pipeline holds.
pub const K_STEP: u32 = CHUNK_COLUMNS;
/// Bytes of a token that one copy brings: a row of the 128-byte swizzle.
pub const BOX_BYTES: u32 = 128;
/// Bytes of the columns of one `wgmma`, of whatever operands.
pub const WGMMA_BYTES: u32 = 32;
/// Warpgroups that decode and multiply.
pub const CONSUMERS: u32 = 2;
/// Threads of the consumer warpgroups.
pub const CONSUMER_THREADS: u32 = CONSUMERS * WARPGROUP;
/// Threads of a CTA: the consumers, then the producer's warpgroup, whose first thread copies. It is
/// a whole warpgroup so that it can release its registers to the consumers.
pub const THREADS: u32 = (CONSUMERS + 1) * WARPGROUP;
/// CTAs that may split the K of a tile: the largest cluster that every launch may ask for.
pub const MAX_SPLIT: u32 = 8;
/// CTAs that a configuration may want on an SM.
pub const MAX_BLOCKS: u32 = 2;
/// Most bytes of partial sums that [show by themselves that they are there](Sm90Config::marks_partials): those of a
/// tile of 128 rows by 32 tokens. Less than what a thread loads at a time.
pub const MARKED_BYTES: u32 = PARTIAL_BATCH / 2 * CONSUMER_THREADS * PARTIAL_VECTOR * 4;
/// Bytes of a barrier object.
pub const BARRIER_BYTES: u32 = 8;
/// Bytes of an SM's shared memory that CTAs can have, and bytes of it that the system reserves per
/// CTA.
pub const SM_SHARED_BYTES: u32 = 228 * 1024;
const SYSTEM_SHARED_BYTES: u32 = 1024;
/// Partitions of an SM, registers of a partition, and the unit in which threads get them. A
/// warp's registers are all in one partition; the warps of a CTA are assigned to the
/// partitions in turn.
pub const PARTITIONS: u32 = 4;
const PARTITION_REGISTERS: u32 = 16384;
const REGISTER_UNIT: u32 = 8;
/// The most registers that a thread can have, and that `setmaxnreg` is asked for.
const MAX_REGISTERS: u32 = 240;
/// Registers that a producer's thread keeps; more if it hands over tiles that are narrowed.
const PRODUCER_REGISTERS: u32 = 40;
const WIDTHS_REGISTERS: u32 = 72;
/// More stages than this are no faster: the copies of eight cover the latency of memory.
pub const MAX_STAGES: u32 = 8;
/// Partial sums of a vector.
pub const PARTIAL_VECTOR: u32 = 4;
/// Vectors of partial sums that a thread loads together.
pub const PARTIAL_BATCH: u32 = 8;

/// Tokens of a block of 64 rows whose results of 16 bits are staged at a time.
pub const RESULT_TOKENS: u32 = 32;
/// Bytes from one's results to the next's: padded, so that eight tokens are in different banks.
pub const RESULT_PITCH: u32 = BLOCK_ROWS * HalfType::F16.float().bytes() + RESULT_ALIGN;
/// Bytes of a staged piece.
pub const RESULT_PIECE: u32 = RESULT_TOKENS * RESULT_PITCH;
/// Bytes of a piece of a row of results that a thread stores.
pub const RESULT_ALIGN: u32 = 16;

/// Widths of [narrowed](Filling::Narrowed) tiles are multiples of this; the narrowest product that there is;
/// and the tokens that a step costs besides its own, which reproduces what steps take on an H200 (0.68 us of
/// 128 tokens, 0.635 of 112, 0.58 of 96).
const NARROW_UNIT: u32 = 16;
const NARROW_FLOOR: u32 = 96;
const NARROW_FIXED: u32 = 128;
/// The same of [wide](Sm90Config::is_wide) tiles, whose steps take 0.39 us of 48 tokens, 0.47 of
/// 80, 0.59 of 128, 0.83 of 176, 0.95 of 208 and 1.15 of 256: the narrowest product, and the width
/// below which steps take as long.
pub const WIDE_NARROWEST: u32 = 48;
const WIDE_FLOOR: u32 = 64;
const WIDE_FIXED: u32 = 16;
/// The same in e4m3, whose products have these widths: a step of 128 tokens takes 0.44 us, one of 256 takes 0.72.
const WIDE_FOLDED_UNIT: u32 = 32;
const WIDE_FOLDED_FIXED: u32 = 96;
/// Tokens of the products of [trimmed](Sm90Config::trims) tiles, the last of which is the whole tile, and of
/// one of their copies.
pub const TRIMMED_TOKENS: [u32; 3] = [32, 40, 48];
const TRIMMED_BOX: u32 = 16;

const _: () = assert!(BOX_BYTES / HalfType::F16.float().bytes() == BLOCK_COLUMNS);

/// The constants that one kernel was compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sm90Config {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Format of the weights and operand type.
    pub scheme: Scheme,
    /// Bytes of an operand, [`Operand::bytes`](crate::Operand::bytes).
    pub operand_bytes: u32,
    /// Bytes of a chunk of weights, [`Scheme::chunk_bytes`].
    pub chunk_bytes: u32,
    /// Bytes of the scales of 64 rows by 64 columns, [`Scheme::block_scale_bytes`].
    pub block_scale_bytes: u32,
    /// Weight rows of a tile, a multiple of [`CHUNK_ROWS`].
    pub rows: u32,
    /// Tokens of a tile, `wgmma`'s N.
    pub tokens: u32,
    /// CTAs that must fit an SM together.
    pub min_blocks: u32,
    /// CTAs of a cluster that share activations by multicast, 1 or 2. They compute tiles of
    /// neighbouring rows and the same tokens in lockstep, and each copies its part of the tokens
    /// to all.
    pub multicast: u32,
    /// The instruction that multiplies.
    pub instruction: Instruction,
    /// The way in which a problem's tokens fill tiles where problems have their own token counts.
    pub filling: Filling,
    /// The way in which products of e4m3 are added; promoted for other operands, whose sums `wgmma` keeps in f32.
    pub adding: Adding,
    /// The sizes that the problems of a launch share.
    pub problems: Problems,
}

/// The instruction that multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// `mma.sync`: warps multiply on their own. For few tokens; `wgmma` takes as long for a few tokens as for
    /// many, and a fixed time from one product to the next. None for weights in e4m3.
    MmaSync,
    /// `wgmma`.
    Wgmma,
}

/// The ways in which the tokens of a problem fill the tiles of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filling {
    /// Every tile has room for all tokens of the configuration.
    Whole,
    /// The same, and runs are [cut](Tiling::is_cut) wherever that evens them out. On an H200, 64 groups of two
    /// tokens by 4096 x 7168, 8 rounds of whole tiles where 7.76 are needed, take 257 to 267 us cut and 265 to
    /// 271 us whole in tiles of 16 tokens; in tiles of 8 tokens 279 to 286 us and 275 to 278 us.
    Cut,
    /// Products take the narrowest of [`TRIMMED_TOKENS`] that holds a tile's tokens, although all tiles count
    /// alike where work is divided: with many groups of a few tens of tokens, differences between tiles even
    /// out, and narrower products save power.
    Trimmed,
    /// Tiles have no more room than their tokens need, because products of all tokens take longer than
    /// decoding the weights.
    Narrowed,
    /// The same, in tiles of so many tokens that weights are decoded once for the tokens of most problems. With 16-bit
    /// activations a stage has no room for all of them with all columns of a step.
    Wide,
}

/// Bytes of the messages beside so many stages.
const fn messages_bytes(stages: u32) -> u32 {
    (stages + MORE_MESSAGES) * size_of::<Message>() as u32
}

impl Sm90Config {
    /// Returns the formats of weights and activations.
    pub const fn operands(&self) -> Operands {
        self.scheme.operands()
    }

    /// The configuration of a row of the table: a tile's rows and tokens, CTAs of a multicast, and CTAs that
    /// must fit an SM.
    const fn new(
        name: &'static str,
        operands: Operands,
        problems: Problems,
        [rows, tokens, multicast, min_blocks]: [u32; 4],
        instruction: Instruction,
        filling: Filling,
        adding: Adding,
    ) -> Self {
        let Some(scheme) = Scheme::of(operands) else {
            panic!("`wgmma` does not multiply blocks");
        };
        let (operand_bytes, chunk_bytes) = (scheme.operand.bytes(), scheme.chunk_bytes());
        let block_scale_bytes = scheme.block_scale_bytes();
        let config = Self {
            name,
            scheme,
            operand_bytes,
            chunk_bytes,
            block_scale_bytes,
            rows,
            tokens,
            min_blocks,
            multicast,
            instruction,
            filling,
            adding,
            problems,
        };
        match adding {
            Adding::Promoted => {}
            Adding::Fast => assert!(scheme.operand.half().is_none()),
        }
        match instruction {
            Instruction::MmaSync => assert!(tokens <= 16 && scheme.operand.half().is_some()),
            Instruction::Wgmma => assert!(tokens >= 32),
        }
        let tiling = config.tiling();
        assert!(
            tiling.is_even()
                || tiling.weight(1) >= LEAST_WEIGHT && tiling.most_weight() <= MAX_WEIGHT
        );
        match filling {
            Filling::Whole | Filling::Cut => {}
            Filling::Trimmed => assert!(config.boxes() == 2 && tokens == TRIMMED_TOKENS[2]),
            Filling::Narrowed => assert!(tokens >= NARROW_FLOOR),
            Filling::Wide => assert!(tokens >= 2 * NARROW_FLOOR),
        }
        config
    }

    /// Returns the registers of a thread at launch, with which [`min_blocks`](Self::min_blocks)
    /// CTAs fit.
    pub const fn registers(&self) -> u32 {
        let warps = self.min_blocks * (THREADS / WARP).div_ceil(PARTITIONS);
        PARTITION_REGISTERS / (warps * WARP) / REGISTER_UNIT * REGISTER_UNIT
    }

    /// Registers that a producer's thread keeps.
    pub const fn producer_registers(&self) -> u32 {
        if self.narrows() && !self.is_wide() { WIDTHS_REGISTERS } else { PRODUCER_REGISTERS }
    }

    /// Registers of a consumer's thread, once the producer has released all but
    /// [`producer_registers`](Self::producer_registers).
    pub const fn consumer_registers(&self) -> u32 {
        let pool = (CONSUMERS + 1) * self.registers() - self.producer_registers();
        let share = pool / CONSUMERS / REGISTER_UNIT * REGISTER_UNIT;
        if share < MAX_REGISTERS { share } else { MAX_REGISTERS }
    }

    /// Whether warps multiply on their own.
    pub const fn uses_mma_sync(&self) -> bool {
        match self.instruction {
            Instruction::MmaSync => true,
            Instruction::Wgmma => false,
        }
    }

    /// The number of steps whose products of e4m3 `wgmma` has summed that are not yet promoted, before the step with index
    /// `step` of a tile.
    #[inline(always)]
    pub const fn unpromoted(&self, step: u32) -> u32 {
        match self.adding {
            Adding::Promoted => step % PROMOTED_STEPS,
            Adding::Fast => step,
        }
    }

    /// Whether products of e4m3 are promoted after so many steps, more of which follow.
    #[inline(always)]
    pub const fn promotes(&self, steps: u32) -> bool {
        match self.adding {
            Adding::Promoted => steps.is_multiple_of(PROMOTED_STEPS),
            Adding::Fast => false,
        }
    }

    /// Columns of the activations that one copy brings.
    #[inline(always)]
    pub const fn box_columns(&self) -> u32 {
        BOX_BYTES / self.operand_bytes
    }

    /// Copies of a step along K.
    #[inline(always)]
    pub const fn boxes(&self) -> u32 {
        K_STEP / self.box_columns()
    }

    /// Blocks of 64 rows that a consumer warpgroup computes.
    pub const fn row_blocks(&self) -> u32 {
        self.rows / BLOCK_ROWS / CONSUMERS
    }

    /// Whether tiles hold the tokens of most problems ([`Filling::Wide`]).
    #[inline(always)]
    pub const fn is_wide(&self) -> bool {
        matches!(self.filling(), Filling::Wide)
    }

    /// The filling of tiles, whole where all problems have one size.
    #[inline(always)]
    const fn filling(&self) -> Filling {
        if self.is_grouped() { self.filling } else { Filling::Whole }
    }

    /// Whether a stage holds all columns of a step for half of a tile's tokens only.
    #[inline(always)]
    const fn divides_steps(&self) -> bool {
        self.is_wide() && matches!(self.scheme.operand, Operand::Half(_))
    }

    /// Tokens that a stage holds, with all columns of a step.
    #[inline(always)]
    pub const fn stage_tokens(&self) -> u32 {
        if self.divides_steps() { self.tokens / 2 } else { self.tokens }
    }

    /// Stages that a step of a tile of `width` tokens takes: two have half of the columns each, and
    /// the first one has the weights.
    #[inline(always)]
    pub const fn step_stages(&self, width: u32) -> u32 {
        if self.divides_steps() && width > self.stage_tokens() { 2 } else { 1 }
    }

    /// Bytes of a stage's activations.
    #[inline(always)]
    pub const fn activation_bytes(&self) -> u32 {
        K_STEP * self.operand_bytes * self.stage_tokens()
    }

    /// f32 sums of a thread for each block of 64 rows.
    pub const fn thread_sums(&self) -> usize {
        (self.tokens * BLOCK_ROWS / WARPGROUP) as usize
    }

    /// Whether tiles have no more room than they need ([`Filling::Narrowed`], [`Filling::Wide`]).
    #[inline(always)]
    pub const fn narrows(&self) -> bool {
        match self.filling() {
            Filling::Narrowed | Filling::Wide => true,
            Filling::Whole | Filling::Cut | Filling::Trimmed => false,
        }
    }

    /// Whether products have one of a few widths ([`Filling::Trimmed`]).
    #[inline(always)]
    pub const fn trims(&self) -> bool {
        matches!(self.filling(), Filling::Trimmed)
    }

    /// Whether products have several widths.
    #[inline(always)]
    pub const fn has_widths(&self) -> bool {
        self.narrows() || self.trims()
    }

    /// Whether CTAs bring the [next product's weights](crate::gemm::NextWeights) to L2: CTAs of few tokens do
    /// that take the rows of one chunk, the unit of its row tiles.
    #[inline(always)]
    pub const fn prefetches_next(&self) -> bool {
        self.multicast == 1 && self.rows == CHUNK_ROWS
    }

    /// Returns the division of a grouped product's tokens into tiles.
    pub const fn tiling(&self) -> Tiling {
        let all = Tiling::of(self.tokens);
        let unit = NARROW_UNIT;
        match self.filling() {
            Filling::Whole | Filling::Trimmed => all,
            Filling::Cut => Tiling { is_cut: true, ..all },
            Filling::Narrowed => Tiling { unit, floor: NARROW_FLOOR, fixed: NARROW_FIXED, ..all },
            Filling::Wide => {
                let [unit, fixed] = match self.scheme.operand {
                    Operand::Half(_) => [unit, WIDE_FIXED],
                    Operand::E4m3 => [WIDE_FOLDED_UNIT, WIDE_FOLDED_FIXED],
                };
                Tiling { unit, floor: WIDE_FLOOR, fixed, ..all }
            }
        }
    }

    /// Tokens that one copy brings, to all CTAs of a multicast. Narrower tiles take fewer copies.
    #[inline(always)]
    pub const fn box_tokens(&self) -> u32 {
        if self.narrows() {
            2 * NARROW_UNIT
        } else if self.trims() {
            TRIMMED_BOX
        } else {
            self.tokens / self.multicast
        }
    }

    /// Bytes of a stage's codes and scales.
    #[inline(always)]
    pub const fn weight_bytes(&self) -> u32 {
        self.rows / CHUNK_ROWS * self.chunk_bytes
    }

    /// Arrivals that complete a phase of an `empty` barrier, and of `sums_stored`: one of every
    /// consumer thread, and one of each consumer warp of the peer CTA of a multicast, whose
    /// stages this CTA's copies write, too.
    pub const fn empty_arrivals(&self) -> u32 {
        CONSUMER_THREADS + (self.multicast - 1) * (CONSUMER_THREADS / WARP)
    }

    /// Returns the bytes of a stage, which its copies bring for a tile with room for as many tokens
    /// as it holds.
    #[inline(always)]
    pub const fn stage_bytes(&self) -> u32 {
        self.copied_bytes(self.stage_tokens(), 0)
    }

    /// Returns the bytes that the copies of stage `part` of a step bring for a tile of `width` tokens.
    /// Boxes that reach out of bounds count in full.
    #[inline(always)]
    pub const fn copied_bytes(&self, width: u32, part: u32) -> u32 {
        let columns = K_STEP / self.step_stages(width);
        let weights = if part == 0 { self.weight_bytes() } else { 0 };
        columns * self.operand_bytes * self.copied_tokens(width) + weights
    }

    /// Returns the tokens in the boxes of a tile of `width` tokens, in all CTAs of a multicast: no
    /// fewer than the narrowest product reads.
    #[inline(always)]
    pub const fn copied_tokens(&self, width: u32) -> u32 {
        let narrowest = match self.filling() {
            Filling::Whole | Filling::Cut => return self.tokens,
            Filling::Trimmed => TRIMMED_TOKENS[0],
            Filling::Narrowed => NARROW_FLOOR,
            Filling::Wide => WIDE_NARROWEST,
        };
        let read = if width < narrowest { narrowest } else { width };
        read.next_multiple_of(self.box_tokens())
    }

    /// Returns the stages of the pipeline: as many as fit, up to the number that memory latency
    /// needs.
    #[inline(always)]
    pub const fn stages(&self) -> u32 {
        let sums = if self.sums_apart() { self.sum_bytes() } else { 0 };
        let messages = if self.is_grouped() { messages_bytes(MAX_STAGES) } else { 0 };
        let others = 2 * BARRIER_BYTES + self.table_bytes() + messages + sums;
        let budget = SM_SHARED_BYTES / self.min_blocks - SYSTEM_SHARED_BYTES;
        let fit = (budget - others) / (self.stage_bytes() + 2 * BARRIER_BYTES);
        if fit < MAX_STAGES { fit } else { MAX_STAGES }
    }

    /// Bytes of the vectors of partial sums that all threads load together.
    pub const fn partial_batch_bytes(&self) -> u32 {
        PARTIAL_BATCH * CONSUMER_THREADS * PARTIAL_VECTOR * size_of::<f32>() as u32
    }

    /// Whether the producer copies the partial sums of a tile's contributors into stages, behind the
    /// stages of the tile's own steps, so that they are there when the last products end. It does if the
    /// activations of a stage take as many bytes as a batch. Otherwise the consumers load them, as they
    /// do if a thread has more sums, which leave no register for it.
    #[inline(always)]
    pub const fn copies_partials(&self) -> bool {
        const MOST_SUMS: usize = 64;
        self.activation_bytes() >= self.partial_batch_bytes()
            && self.row_blocks() as usize * self.thread_sums() <= MOST_SUMS
    }

    /// Whether the partial sums that a contributor sends show by themselves that they are there: no word of them is
    /// zero, and their memory is zero before a launch and after it. So nobody waits for a flag behind
    /// them, which with few sums takes longer than they do.
    #[inline(always)]
    pub const fn marks_partials(&self) -> bool {
        self.partial_bytes() <= MARKED_BYTES
    }

    /// Whether the sums have their own memory behind the stages, so that copies for the next tile
    /// do not wait until they are stored. So have few tokens of many problems, whose tiles are
    /// short and whose sums are small. Elsewhere the sums overlay the stages.
    #[inline(always)]
    pub const fn sums_apart(&self) -> bool {
        self.is_grouped() && self.uses_mma_sync()
    }

    /// Offset of the sums in shared memory.
    pub const fn sums_offset(&self) -> u32 {
        if self.sums_apart() { self.stages() * self.stage_bytes() } else { 0 }
    }

    /// Bytes of a CTA's sums in shared memory.
    #[inline(always)]
    pub const fn sum_bytes(&self) -> u32 {
        self.tokens * self.sum_pitch() * size_of::<f32>() as u32
    }

    /// Offset of the stages' weights in shared memory; their activations start at 0, because a
    /// swizzled tile starts at a multiple of 1024.
    #[inline(always)]
    pub const fn weights_offset(&self) -> u32 {
        self.stages() * self.activation_bytes()
    }

    /// Offset of the barriers in shared memory.
    #[inline(always)]
    pub const fn barriers_offset(&self) -> u32 {
        let stages = self.stages() * self.stage_bytes();
        let sums = self.sum_bytes().next_multiple_of(BARRIER_BYTES);
        if self.sums_apart() {
            stages + sums
        } else if stages > sums {
            stages
        } else {
            sums
        }
    }

    /// Offset in shared memory of that table.
    #[inline(always)]
    pub const fn table_offset(&self) -> u32 {
        self.sums_received_offset() + BARRIER_BYTES
    }

    /// Offset in shared memory of the barrier `first_message` of a grouped product, which has no split-K
    /// and so no use for `sums_received`.
    pub const fn first_message_offset(&self) -> u32 {
        assert!(self.is_grouped());
        self.sums_received_offset()
    }

    /// Offset in shared memory of the [messages](Message) of a grouped product's producer.
    #[inline(always)]
    pub const fn messages_offset(&self) -> u32 {
        self.table_offset() + self.table_bytes()
    }

    /// Returns the number of messages.
    #[inline(always)]
    pub const fn messages(&self) -> u32 {
        self.stages() + MORE_MESSAGES
    }

    /// Bytes of the messages.
    #[inline(always)]
    pub const fn messages_bytes(&self) -> u32 {
        if self.is_grouped() { messages_bytes(self.stages()) } else { 0 }
    }

    /// Offset in shared memory of the results that [`stages_results`](Self::stages_results).
    #[inline(always)]
    pub const fn results_offset(&self) -> u32 {
        (self.messages_offset() + self.messages_bytes()).next_multiple_of(RESULT_ALIGN)
    }

    /// Bytes in which a warpgroup stages results: a piece of them, and the factors of all tokens.
    #[inline(always)]
    pub const fn result_bytes(&self) -> u32 {
        RESULT_PIECE + self.tokens * size_of::<f32>() as u32
    }

    /// Whether results of 16 bits go from registers to memory through a few separate bytes of shared memory,
    /// a piece of a warpgroup's block at a time, so that stages are filled for the next tile meanwhile. They
    /// do if one CTA has an SM and the room that whole stages leave is enough; a warpgroup with two blocks
    /// has no registers for it.
    #[inline(always)]
    pub const fn stages_results(&self) -> bool {
        let limit = SM_SHARED_BYTES - SYSTEM_SHARED_BYTES;
        self.min_blocks == 1
            && !self.stores_few()
            && self.row_blocks() == 1
            && self.results_offset() + CONSUMERS * self.result_bytes() <= limit
    }

    /// Whether results of 16 bits may be stored by the threads that have their sums: those of few tokens, of dense products.
    /// They are if the [epilogue is short](Epilogue::is_short).
    #[inline(always)]
    pub const fn stores_few(&self) -> bool {
        !self.is_grouped() && self.uses_mma_sync()
    }

    /// Whether results are stored so, or [few results](Self::stores_few): sums times factors of rows, or, of dense products, two sums gated by a
    /// sigmoid; of 16 bits, in aligned rows, without their largest magnitude.
    #[inline(always)]
    pub const fn stores_from_registers(&self, epilogue: &Epilogue) -> bool {
        let sink = &epilogue.sink;
        let is_half =
            sink.out_type == FloatType::F16 as u32 || sink.out_type == FloatType::Bf16 as u32;
        let rows = (sink.columns as u64 | sink.out_stride) * FloatType::F16.bytes() as u64;
        // Activations in e4m3 have factors of rows, and kernels of groups no code for it.
        let gates = !self.is_grouped() && self.scheme.operand.half().is_some();
        if self.stores_few() {
            return is_half && epilogue.is_short();
        }
        self.stages_results()
            && is_half
            && (epilogue.is_plain() || gates && epilogue.is_plain_gate())
            && (sink.out | rows).is_multiple_of(RESULT_ALIGN as u64)
    }

    /// Dynamic shared memory of a CTA, bytes, aligned to 1024.
    #[inline(always)]
    pub const fn shared_bytes(&self) -> u32 {
        if self.stages_results() {
            self.results_offset() + CONSUMERS * self.result_bytes()
        } else {
            self.messages_offset() + self.messages_bytes()
        }
    }

    /// Returns [`shared_bytes`](Self::shared_bytes), or so much that at most `resident` CTAs fit an
    /// SM: if CTAs are fewer than SMs, two on one of them take longer than one on each.
    pub const fn launch_shared_bytes(&self, resident: u32) -> u32 {
        let least = SM_SHARED_BYTES / (resident + 1);
        let needed = self.shared_bytes();
        if resident < self.min_blocks && least > needed { least } else { needed }
    }

    /// Offset in shared memory of the barrier `sums_received`.
    #[inline(always)]
    pub const fn sums_received_offset(&self) -> u32 {
        self.sums_stored_offset() + BARRIER_BYTES
    }

    /// Whether the CTAs of a split-K cluster load one another's sums from shared memory, instead of
    /// sending them: few tokens are little to load, and sending takes one more cluster barrier.
    pub const fn loads_remote(&self) -> bool {
        self.tokens <= 48
    }

    /// Tokens, of the tile's `tokens`, that CTA `rank` of a split-K cluster of `cluster` CTAs
    /// stores: the first and the one after the last.
    pub const fn token_part(tokens: u32, rank: u32, cluster: Divisor) -> (u32, u32) {
        cluster.part(tokens, rank)
    }

    /// Offset in shared memory, over the stages, of the place for sums that the `index`th other
    /// CTA of a split-K cluster of `cluster` CTAs sends.
    pub const fn slot_offset(&self, index: u32, cluster: Divisor) -> u32 {
        let bytes = cluster.div_ceil(self.tokens) * self.sum_pitch() * size_of::<f32>() as u32;
        self.sum_bytes() + index * bytes
    }

    /// Offset in shared memory of the barrier `sums_stored`.
    #[inline(always)]
    pub const fn sums_stored_offset(&self) -> u32 {
        self.barriers_offset() + 2 * self.stages() * BARRIER_BYTES
    }

    /// Rows of `B` and tokens that a CTA computes at a time; of a multicast, all of its CTAs.
    pub const fn work_shape(&self) -> TileShape {
        TileShape { rows: self.rows * self.multicast, tokens: self.tokens }
    }

    /// Returns the largest cluster that splits K: as many CTAs as find room for their sums over the
    /// stages. 1 if CTAs share activations.
    pub const fn max_split(&self) -> u32 {
        let most = if self.multicast > 1 { 1 } else { MAX_SPLIT };
        let mut cluster = 1;
        while cluster < most
            && self.slot_offset(cluster, Divisor::nearest(cluster + 1)) <= self.barriers_offset()
        {
            cluster += 1;
        }
        cluster
    }

    /// The way in which products of e4m3 are added.
    pub const fn adding(&self) -> Adding {
        self.adding
    }

    /// f32 additions, one after the other, within `steps` K steps. A `wgmma` adds 16 products and the old sum at
    /// once, truncating instead of rounding, which counts twice.
    pub const fn additions_in(&self, steps: u32) -> u32 {
        match self.scheme.operand {
            // The products of a `wgmma` are truncated each, which counts if a sum has no others.
            Operand::Half(_) => 2 * steps * (K_STEP / PRODUCT_K) + PRODUCT_K,
            // Products are summed from zero until they are promoted; the errors of these sums are not one after
            // another.
            Operand::E4m3 => match self.adding {
                Adding::Promoted => FOLDED_ADDITIONS + 2 * steps.div_ceil(PROMOTED_STEPS),
                Adding::Fast => steps.div_ceil(PROMOTED_STEPS) * FOLDED_ADDITIONS,
            },
        }
    }

    /// The sizes that a launch depends on.
    pub const fn tile(&self) -> Tile {
        Tile {
            rows: self.rows,
            tokens: self.tokens,
            multicast: self.multicast,
            k_step: K_STEP,
            step_bytes: self.multicast * self.weight_bytes() + self.activation_bytes(),
            partial_bytes: self.partial_bytes(),
            marks_partials: self.marks_partials(),
            min_blocks: self.min_blocks,
            threads: THREADS,
            stages: self.stages(),
            tiling: self.tiling(),
        }
    }
}

/// Steps of e4m3 products, of 128 columns each, that `wgmma` sums before they are promoted to f32.
///
/// `wgmma` aligns 32 products and the old sum to the largest of them, and drops all bits below 2^-13 of it. So an
/// instruction loses at most 33 * 2^-13 of the largest magnitude of its products and partial sums, and the 16 of four
/// steps, one after the other, at most 16 times that; of K columns the losses of every 512 are added, and not
/// multiplied.
pub const PROMOTED_STEPS: u32 = 4;

/// The f32 additions whose roundings sum to the error of products of e4m3 until they are promoted
/// ([`PROMOTED_STEPS`]): 2^-9 of the sum of magnitudes, more than they were seen to lose.
pub const FOLDED_ADDITIONS: u32 = 1 << 14;

/// The table of the sm_90a kernels ([`table`](crate::gemm::table)): calls `$with!` for each.
///
/// A row says its tile in rows by tokens, CTAs of a multicast, the CTAs that an SM has, the instruction that
/// multiplies, how grouped products [fill](Filling) the tile, and which problems it has kernels for.
///
/// | tiles | for |
/// |---|---|
/// | 128 x 8, 128 x 16 | decoding: `mma.sync` instead of `wgmma`, two CTAs per SM |
/// | 128 x 32, 128 x 64 | a few sequences at a time, two CTAs per SM |
/// | 128 x 48, grouped | a few tens of tokens for each problem |
/// | 128 x 128 | prompts of some hundred tokens; of grouped products one CTA per SM, whose threads have the registers for the store of groups |
/// | 128 x 256, grouped, multicast | the same where there is work for several tiles per CTA: weights are decoded once for all tokens of most problems |
/// | multicast | 65 and more tokens, if reading activations from L2 takes longest |
/// | 256 x 128 | many tokens, in the few cases in which multicast does not give the same: activations are read half as often |
/// | 128 x 160, 128 x 192, in e4m3, multicast | many tokens: weights are decoded for as many as two sets of sums leave registers for (fewer with NVFP4's tables), because decoding takes longer than the products |
/// | 128 x 64, mixed | all mixed products, so that the PTX stays small: it reads weights nearly as fast as memory gives them, and multiplies at four fifths of the rate of 128 tokens |
#[macro_export]
macro_rules! sm90a_gemm_configs {
    ($with:ident) => {
        $crate::gemm_kernels! {
            $with gemm_sm90:
            [nvfp4_f16 nvfp4_bf16 mxfp4_bf16] {
                (128 x 8) (2 per SM, MmaSync, Whole) uniform grouped;
                (128 x 16) (2 per SM, MmaSync, Cut) uniform grouped;
                (128 x 32) (2 per SM, Wgmma, Whole) uniform grouped;
                (128 x 48) (2 per SM, Wgmma, Trimmed) grouped;
                (128 x 64) (2 per SM, Wgmma, Whole) uniform;
                (128 x 64) (1 per SM, Wgmma, Whole) mixed;
                (128 x 128) (1 per SM, Wgmma, Narrowed) uniform grouped;
                (128 x 256 _multicast 2) (1 per SM, Wgmma, Wide) grouped;
            }
            [nvfp4_f16 nvfp4_bf16 mxfp4_bf16] {
                (128 x 64 _multicast 2) (1 per SM, Wgmma, Whole) uniform;
                (128 x 128 _multicast 2) (1 per SM, Wgmma, Whole) uniform;
            }
            [nvfp4_f16 nvfp4_bf16 mxfp4_bf16] {
                (256 x 128) (1 per SM, Wgmma, Whole) uniform;
            }
            [nvfp4_e4m3 mxfp4_e4m3] {
                (128 x 32) (2 per SM, Wgmma, Whole) uniform grouped;
                (128 x 64) (1 per SM, Wgmma, Whole) uniform;
                (128 x 128) (1 per SM, Wgmma, Narrowed) uniform grouped;
            }
            [nvfp4_e4m3] {
                (128 x 160 _multicast 2) (1 per SM, Wgmma, Whole) uniform;
            }
            [mxfp4_e4m3] {
                (128 x 192 _multicast 2) (1 per SM, Wgmma, Whole) uniform;
            }
            [nvfp4_e4m3 mxfp4_e4m3] {
                (128 x 128 _fast) (1 per SM, Wgmma, Whole, Fast) uniform;
                (128 x 256 _multicast 2 _fast) (1 per SM, Wgmma, Wide, Fast) uniform grouped;
            }
        }
    };
}

/// The configuration of a kernel of the table.
macro_rules! config {
    ([$($name:tt)+] $types:ident $problems:ident ($rows:literal x $tokens:literal $(_multicast $multicast:literal)? $(_fast)?)
     ($blocks:literal per SM, $instruction:ident, $filling:ident $(, $adding:ident)?)) => {
        Sm90Config::new(
            concat!($(stringify!($name)),+),
            operands!($types),
            problems!($problems),
            [$rows, $tokens, 1 $(* $multicast)?, $blocks],
            Instruction::$instruction,
            Filling::$filling,
            Adding::of(&[$(Adding::$adding)?]),
        )
    };
}

fragment_config!(Sm90Config);
configurations!($ sm90a_gemm_configs, config, Sm90Config, "sm_90a");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::fragments::config::no_bank_twice;

    #[test]
    fn tiles_fit_an_sm() {
        for config in all() {
            let cta = config.shared_bytes() + SYSTEM_SHARED_BYTES;
            assert!(cta * config.min_blocks <= SM_SHARED_BYTES, "{}: {cta}", config.name);
            assert!(config.min_blocks <= MAX_BLOCKS, "{}", config.name);
            for resident in 1..=config.min_blocks {
                let cta = config.launch_shared_bytes(resident) + SYSTEM_SHARED_BYTES;
                assert!(cta * resident <= SM_SHARED_BYTES, "{}: {resident}", config.name);
                let more = cta * (resident + 1) > SM_SHARED_BYTES;
                assert!(more || resident == config.min_blocks, "{}: {resident}", config.name);
            }
            for cluster in 2..=config.max_split() {
                let end = config.slot_offset(cluster - 1, Divisor::nearest(cluster));
                assert!(end <= config.barriers_offset(), "{}: {cluster} parts", config.name);
            }
            assert!(config.stages() >= 3, "{}: {} stages", config.name, config.stages());
            assert!(config.activation_bytes().is_multiple_of(1024), "{}", config.name);
            assert!(config.weights_offset().is_multiple_of(1024), "{}", config.name);
            assert!(config.barriers_offset().is_multiple_of(BARRIER_BYTES), "{}", config.name);
            assert!(config.rows.is_multiple_of(CHUNK_ROWS), "{}", config.name);
            for width in (1..=config.tokens).filter(|_| config.trims()) {
                let product = TRIMMED_TOKENS.into_iter().find(|&tokens| width <= tokens);
                assert!(product.is_some_and(|tokens| tokens <= config.copied_tokens(width)));
            }
            // The swizzle moves pieces among eight rows.
            assert!(config.box_tokens().is_multiple_of(8), "{}", config.name);
            let boxes = config.box_tokens() * config.multicast;
            assert!(config.tokens.is_multiple_of(boxes), "{}", config.name);
            // Registers are a partition's: of 288 threads, say, one gets three warps of nine.
            let warps = (THREADS / WARP).div_ceil(PARTITIONS);
            let registers = warps * config.min_blocks * WARP * config.registers();
            assert!(registers <= PARTITION_REGISTERS, "{}: {registers}", config.name);
            let roles = CONSUMERS * config.consumer_registers() + config.producer_registers();
            assert!(roles <= (CONSUMERS + 1) * config.registers(), "{}: {roles}", config.name);
        }
    }

    #[test]
    fn sums_meet_no_bank_twice() {
        all().for_each(|config| no_bank_twice(config.name, config.sum_pitch()));
    }
}
