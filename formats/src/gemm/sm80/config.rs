//! Tile configurations of the sm_80 kernels, and the sizes that follow from them.
//!
//! A CTA of eight warps computes tiles of `rows` rows of `B` by `tokens` tokens, or parts of them along K.
//! All warps copy, decode and multiply. The [work list](crate::gemm::work) says which CTA computes which
//! part.

use crate::gemm::fragments::config::fragment_config;
use crate::gemm::fragments::repack::{
    BLOCK_CODE_BYTES, BLOCK_COLUMNS, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_ROWS, PRODUCT_K,
};
pub use crate::gemm::fragments::warps::{
    MARKED_BYTES, MAX_BLOCKS, MAX_SHARED_BYTES, MMA_ROWS, MMA_SUMS, MMA_TOKENS, PIECE_BYTES,
    SHARED_BYTES, THREADS, WARPS,
};
use crate::gemm::fragments::warps::{MAX_REGISTERS, MAX_STAGES, SM_REGISTERS, warp_config};
use crate::gemm::fragments::{Scheme, Tile};
use crate::gemm::groups::Tiling;
use crate::gemm::operands::operands;
use crate::gemm::table::{configurations, problems};
use crate::gemm::{Adding, Operands, Problems, TileShape};
use crate::{HalfType, Operand};

/// Bytes of a token in a block of 64 columns: a row of the 128-byte swizzle.
pub const TOKEN_BYTES: u32 = BLOCK_COLUMNS * HalfType::F16.float().bytes();
/// Columns of K of one `mma.sync`.
pub const MMA_K: u32 = PRODUCT_K;
/// Most tokens, over those of one product, whose operands a warp loads at a time: more take registers that the sums do
/// not leave.
const MAX_PART: u32 = 4;

/// The constants that one kernel was compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sm80Config {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Format of the weights and operand type.
    pub scheme: Scheme,
    /// Weight rows of a tile, a multiple of [`CHUNK_ROWS`].
    pub rows: u32,
    /// Tokens of a tile.
    pub tokens: u32,
    /// CTAs that must fit an SM together.
    pub min_blocks: u32,
    /// Warps side by side along the rows; the others along the tokens.
    pub row_warps: u32,
    /// Blocks of 64 columns of K that a stage of the pipeline holds, 1 or 2.
    pub blocks: u32,
    /// The sizes that the problems of a launch share.
    pub problems: Problems,
}

impl Sm80Config {
    /// Returns the formats of weights and activations.
    pub const fn operands(&self) -> Operands {
        self.scheme.operands()
    }

    /// The configuration of a row of the table: a tile's rows and tokens, CTAs that must fit an SM, warps
    /// along the rows, and blocks of a stage.
    const fn new(
        name: &'static str,
        operands: Operands,
        problems: Problems,
        [rows, tokens, min_blocks, row_warps, blocks]: [u32; 5],
    ) -> Self {
        let Some(scheme) = Scheme::of(operands) else {
            panic!("`mma.sync` does not multiply blocks");
        };
        assert!(scheme.operand.half().is_some());
        let config = Self { name, scheme, rows, tokens, min_blocks, row_warps, blocks, problems };
        // Stages of two blocks hold whole chunks.
        assert!(blocks == 1 || blocks == CHUNK_BLOCKS && rows == CHUNK_ROWS);
        assert!(rows.is_multiple_of(CHUNK_ROWS) && WARPS.is_multiple_of(row_warps));
        assert!(rows.is_multiple_of(row_warps * MMA_ROWS));
        assert!(tokens.is_multiple_of(config.token_warps() * MMA_TOKENS));
        assert!(config.warp_tokens().is_multiple_of(config.part_tokens()));
        config
    }

    /// Tokens of a warp, over those of one product, whose operands are loaded at a time.
    #[inline(always)]
    pub const fn part_tokens(&self) -> u32 {
        let all = self.warp_tokens();
        if all < MAX_PART { all } else { MAX_PART }
    }

    /// Columns of K that a stage of the pipeline holds.
    #[inline(always)]
    pub const fn k_step(&self) -> u32 {
        self.blocks * BLOCK_COLUMNS
    }

    /// Bytes of a stage's codes.
    #[inline(always)]
    pub const fn code_bytes(&self) -> u32 {
        self.blocks * self.rows / BLOCK_ROWS * BLOCK_CODE_BYTES
    }

    /// Bytes of a stage's codes and scales.
    #[inline(always)]
    pub const fn weight_bytes(&self) -> u32 {
        self.code_bytes() + self.blocks * self.rows / BLOCK_ROWS * self.scheme.block_scale_bytes()
    }

    /// Bytes of a stage's activations.
    #[inline(always)]
    pub const fn activation_bytes(&self) -> u32 {
        self.blocks * self.tokens * TOKEN_BYTES
    }

    /// Bytes of a stage.
    #[inline(always)]
    pub const fn stage_bytes(&self) -> u32 {
        self.weight_bytes() + self.activation_bytes()
    }

    /// Bytes that a step copies: those of a stage.
    pub const fn step_bytes(&self) -> u32 {
        self.stage_bytes()
    }

    /// Stages of activations: as many as fit what a CTA has without a request if two CTAs have an SM,
    /// otherwise as many as fit the most.
    #[inline(always)]
    pub const fn stages(&self) -> u32 {
        let fit = (self.stage_room() - self.weight_bytes()) / self.stage_bytes();
        if fit < MAX_STAGES { fit } else { MAX_STAGES }
    }

    /// Stages of weights: they arrive a step before activations.
    #[inline(always)]
    pub const fn weight_stages(&self) -> u32 {
        self.stages() + 1
    }

    /// Offset in shared memory of the weights of the stages; their activations are in front.
    #[inline(always)]
    pub const fn weights_offset(&self) -> u32 {
        self.stages() * self.activation_bytes()
    }

    /// Offset in shared memory of that table, behind the stages.
    #[inline(always)]
    pub const fn table_offset(&self) -> u32 {
        self.weights_offset() + self.weight_stages() * self.weight_bytes()
    }

    /// The way in which products of e4m3 are added: all sums are in f32.
    pub const fn adding(&self) -> Adding {
        Adding::Promoted
    }

    /// f32 additions, one after the other, within `steps` K steps. An `mma.sync` adds eight products and the old
    /// sum at once, twice, truncating instead of rounding, which counts twice. Its products are truncated each,
    /// which counts if a sum has no others.
    pub const fn additions_in(&self, steps: u32) -> u32 {
        2 * steps * (self.k_step() / (MMA_K / 2)) + MMA_K
    }
}

/// The table of the sm_80 kernels ([`table`](crate::gemm::table)): calls `$with!` for each.
///
/// A row says its tile in rows by tokens, the CTAs that an SM has, the warps along the rows, the blocks of 64
/// columns of a stage, and which problems it has kernels for.
///
/// | tiles | for |
/// |---|---|
/// | 128 x 8, 128 x 16, 128 x 32 | decoding: each warp decodes its rows once for all tokens; two CTAs per SM copy while the other stores. Groups leave room for two stages of two blocks only, so that stages of one are faster |
/// | 128 x 64 | some tens of tokens: each warp decodes its rows once for all tokens |
/// | 256 x 64 | some tens of tokens and much K: warps of 32 rows decode each row once, for all tokens |
/// | 128 x 128 | prompts of some hundred tokens, where larger tiles would be too few |
/// | 256 x 128 | many tokens: each row is decoded once for 128 tokens |
#[macro_export]
macro_rules! sm80_gemm_configs {
    ($with:ident) => {
        $crate::gemm_kernels! {
            $with gemm_sm80:
            [nvfp4_f16 nvfp4_bf16 mxfp4_bf16] {
                (128 x 8) (2 per SM, 8 along rows, stages of 2) uniform;
                (128 x 16) (2 per SM, 8 along rows, stages of 2) uniform;
                (128 x 8) (2 per SM, 8 along rows, stages of 1) grouped;
                (128 x 16) (2 per SM, 8 along rows, stages of 1) grouped;
                (128 x 32) (2 per SM, 8 along rows, stages of 1) uniform grouped;
                (128 x 64) (2 per SM, 8 along rows, stages of 1) uniform mixed;
                (128 x 128) (1 per SM, 4 along rows, stages of 1) uniform grouped;
                (256 x 64) (1 per SM, 8 along rows, stages of 1) uniform grouped;
                (256 x 128) (1 per SM, 8 along rows, stages of 1) uniform grouped;
            }
        }
    };
}

/// The configuration of a kernel of the table.
macro_rules! config {
    ([$($name:tt)+] $types:ident $problems:ident ($rows:literal x $tokens:literal)
     ($ctas:literal per SM, $row_warps:literal along rows, stages of $blocks:literal)) => {
        Sm80Config::new(
            concat!($(stringify!($name)),+),
            operands!($types),
            problems!($problems),
            [$rows, $tokens, $ctas, $row_warps, $blocks],
        )
    };
}

fragment_config!(Sm80Config);
warp_config!(Sm80Config);
configurations!($ sm80_gemm_configs, config, Sm80Config, "sm_80");

const _: () = assert!(matches!(Operand::F16.half(), Some(half) if half.float().bytes() == 2));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::fragments::config::no_bank_twice;
    use crate::gemm::fragments::warps::warp_tests;

    warp_tests!(2);
}
