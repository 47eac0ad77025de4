//! Tile configurations of the sm_120f kernels, and the sizes that follow from them.
//!
//! A CTA of eight warps computes tiles of `rows` rows of `B` by `tokens` tokens, or parts of them along K.
//! All warps copy and multiply. The [work list](crate::gemm::work) says which CTA computes which part.

use crate::gemm::fragments::Tile;
use crate::gemm::fragments::blocks::{self, PRODUCT_COLUMNS, PRODUCTS, WORD_BYTES, row_words};
use crate::gemm::fragments::config::fragment_config;
use crate::gemm::fragments::repack::{CHUNK_CODE_BYTES, CHUNK_COLUMNS, CHUNK_ROWS};
pub use crate::gemm::fragments::warps::{
    MARKED_BYTES, MAX_BLOCKS, MAX_SHARED_BYTES, MMA_ROWS, MMA_SUMS, MMA_TOKENS, PIECE_BYTES,
    SHARED_BYTES, THREADS, WARPS,
};
use crate::gemm::fragments::warps::{MAX_REGISTERS, MAX_STAGES, SM_REGISTERS, warp_config};
use crate::gemm::groups::Tiling;
use crate::gemm::operands::operands;
use crate::gemm::table::{configurations, problems};
use crate::gemm::{Adding, Operands, Problems, TileShape};
use crate::quantize::Format;
use crate::{Operand, ue8m0};

/// Lanes whose words of scales a product chooses from, for eight tokens: their scales are in one of four.
pub const LANE_CHOICES: u32 = 4;
/// Products along K that f32 sums may be truncated between: not documented; the fewest that it may be.
const SUMMED_AT_ONCE: u32 = 16;

/// The codes of activations that are multiplied as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCodes {
    /// e2m1, in blocks of the weights' format.
    Blocks,
    /// e4m3, whose blocks have no scales: that of a whole token is a row factor of the epilogue.
    E4m3,
}

/// A word of scales that are all 1, of blocks of e4m3.
pub const UNIT_SCALES: u32 = u32::from_le_bytes([ue8m0::ONE; WORD_BYTES as usize]);

/// The constants that one kernel was compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sm120Config {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Format of the weights.
    pub format: Format,
    /// Codes of the activations.
    pub codes: TokenCodes,
    /// Weight rows of a tile, a multiple of [`CHUNK_ROWS`].
    pub rows: u32,
    /// Tokens of a tile.
    pub tokens: u32,
    /// CTAs that must fit an SM together.
    pub min_blocks: u32,
    /// Warps side by side along the rows; the others along the tokens.
    pub row_warps: u32,
    /// The sizes that the problems of a launch share.
    pub problems: Problems,
}

impl Sm120Config {
    /// The configuration of a row of the table: a tile's rows and tokens, CTAs that must fit an SM, and warps
    /// along the rows.
    const fn new(
        name: &'static str,
        operands: Operands,
        problems: Problems,
        [rows, tokens, min_blocks, row_warps]: [u32; 4],
    ) -> Self {
        let Operands { weights: format, activations } = operands;
        let codes = match (format, activations) {
            (_, None) => TokenCodes::Blocks,
            (Format::Mxfp4, Some(Operand::E4m3)) => TokenCodes::E4m3,
            // Products with e4m3 have a scale for 32 columns.
            (Format::Nvfp4, Some(Operand::E4m3)) | (_, Some(Operand::Half(_))) => {
                panic!("no block-scaled product takes them")
            }
        };
        let config = Self { name, format, codes, rows, tokens, min_blocks, row_warps, problems };
        assert!(rows.is_multiple_of(CHUNK_ROWS) && WARPS.is_multiple_of(row_warps));
        assert!(rows.is_multiple_of(row_warps * MMA_ROWS));
        assert!(tokens.is_multiple_of(config.token_warps() * MMA_TOKENS));
        // A warp begins with the first of the tokens whose scales a lane loads at once.
        assert!(row_warps == WARPS || config.warp_tokens().is_multiple_of(config.scale_eights()));
        // Each thread brings a word of a token's scales at most.
        assert!(tokens * config.token_words() <= THREADS);
        config
    }

    /// Returns the formats of weights and activations.
    pub const fn operands(&self) -> Operands {
        let activations = match self.codes {
            TokenCodes::Blocks => None,
            TokenCodes::E4m3 => Some(Operand::E4m3),
        };
        Operands { weights: self.format, activations }
    }

    /// Columns of K that a stage of the pipeline holds: those of a chunk of weights.
    #[inline(always)]
    pub const fn k_step(&self) -> u32 {
        CHUNK_COLUMNS
    }

    /// Columns of one product.
    #[inline(always)]
    pub const fn product_columns(&self) -> u32 {
        match self.codes {
            TokenCodes::Blocks => PRODUCT_COLUMNS,
            TokenCodes::E4m3 => PRODUCT_COLUMNS / 2,
        }
    }

    /// Bytes of a token's codes in a stage.
    #[inline(always)]
    pub const fn code_bytes(&self) -> u32 {
        match self.codes {
            TokenCodes::Blocks => CHUNK_COLUMNS / 2,
            TokenCodes::E4m3 => CHUNK_COLUMNS,
        }
    }

    /// Pieces of a token's codes in a stage.
    #[inline(always)]
    pub const fn pieces(&self) -> u32 {
        self.code_bytes() / PIECE_BYTES
    }

    /// Columns of a piece of a token.
    #[inline(always)]
    pub const fn piece_columns(&self) -> u32 {
        CHUNK_COLUMNS / self.pieces()
    }

    /// The place, in a stage, of piece `piece` of a token among those of the token: lanes that load those of several
    /// tokens at a time find them in different banks. `ldmatrix` loads the same piece of eight tokens, and a load of
    /// eight bytes two neighbouring pieces of four.
    #[inline(always)]
    pub const fn place(&self, token: u32, piece: u32) -> u32 {
        match self.codes {
            TokenCodes::Blocks => piece ^ (token / 2 % self.pieces()),
            TokenCodes::E4m3 => piece ^ (token * 2 % self.pieces()),
        }
    }

    /// Words that have the scales of a token in the columns of a stage.
    #[inline(always)]
    pub const fn token_words(&self) -> u32 {
        match self.codes {
            TokenCodes::Blocks => row_words(self.format),
            TokenCodes::E4m3 => 0,
        }
    }

    /// Tokens, over those of one product, whose scales the lanes of a warp load at once, a word each; 1 if they have
    /// none.
    #[inline(always)]
    pub const fn scale_eights(&self) -> u32 {
        match self.token_words() {
            0 => 1,
            words => LANE_CHOICES / words,
        }
    }

    /// Bytes of a chunk of weights.
    #[inline(always)]
    pub const fn chunk_bytes(&self) -> u32 {
        blocks::chunk_bytes(self.format)
    }

    /// Bytes of a stage's codes of tokens.
    #[inline(always)]
    pub const fn token_bytes(&self) -> u32 {
        self.tokens * self.code_bytes()
    }

    /// Bytes of a stage's scales of tokens, of which there are whole words for all lanes.
    #[inline(always)]
    pub const fn token_scale_bytes(&self) -> u32 {
        let eights = (self.tokens / MMA_TOKENS).next_multiple_of(self.scale_eights());
        eights * MMA_TOKENS * self.token_words() * WORD_BYTES
    }

    /// Offset in a stage of the tokens' scales, behind their codes.
    #[inline(always)]
    pub const fn token_scales_offset(&self) -> u32 {
        self.token_bytes()
    }

    /// Offset in a stage of the weights, chunk by chunk, behind the tokens' scales.
    #[inline(always)]
    pub const fn weights_offset(&self) -> u32 {
        self.token_scales_offset() + self.token_scale_bytes()
    }

    /// Bytes of a stage's weights.
    #[inline(always)]
    pub const fn weight_bytes(&self) -> u32 {
        self.chunks() * self.chunk_bytes()
    }

    /// Bytes of a stage.
    #[inline(always)]
    pub const fn stage_bytes(&self) -> u32 {
        self.weights_offset() + self.weight_bytes()
    }

    /// Bytes that a step copies to a stage: all but the words of scales that no token has.
    pub const fn step_bytes(&self) -> u32 {
        let scales = self.tokens * self.token_words() * WORD_BYTES;
        self.token_bytes() + scales + self.weight_bytes()
    }

    /// Stages: as many as fit what a CTA has without a request if two CTAs have an SM, otherwise as many as fit
    /// the most.
    #[inline(always)]
    pub const fn stages(&self) -> u32 {
        let fit = self.stage_room() / self.stage_bytes();
        if fit < MAX_STAGES { fit } else { MAX_STAGES }
    }

    /// Offset in shared memory of the table of groups or products, behind the stages.
    #[inline(always)]
    pub const fn table_offset(&self) -> u32 {
        self.stages() * self.stage_bytes()
    }

    /// The way in which products of e4m3 are added: all sums are in f32.
    pub const fn adding(&self) -> Adding {
        Adding::Promoted
    }

    /// f32 additions, one after the other, within `steps` K steps. How a block-scaled product adds is not
    /// documented: here as 16 of its products and the old sum at once, truncating instead of rounding, which counts
    /// twice, and with each product truncated, which counts if a sum has no others.
    pub const fn additions_in(&self, steps: u32) -> u32 {
        2 * steps * (CHUNK_COLUMNS / SUMMED_AT_ONCE) + self.product_columns()
    }
}

/// The table of the sm_120f kernels ([`table`](crate::gemm::table)): calls `$with!` for each.
///
/// A row says its tile in rows by tokens, the CTAs that an SM has, the warps along the rows, and which problems it
/// has kernels for.
///
/// | tiles | for |
/// |---|---|
/// | 128 x 8, 128 x 16, 128 x 32 | decoding: two CTAs per SM copy while the other stores |
/// | 128 x 64 | some tens of tokens; with a table of groups, or of e4m3, two CTAs would have too few stages |
/// | 128 x 128 | prompts of some hundred tokens, where larger tiles would be too few |
/// | 256 x 128 | many tokens: fewest bytes from L2 for a product; of e4m3, a table of groups leaves room for two stages only |
#[macro_export]
macro_rules! sm120f_gemm_configs {
    ($with:ident) => {
        $crate::gemm_kernels! {
            $with gemm_sm120:
            [nvfp4 mxfp4] {
                (128 x 8) (2 per SM, 8 along rows) uniform grouped;
                (128 x 16) (2 per SM, 8 along rows) uniform grouped;
                (128 x 32) (2 per SM, 8 along rows) uniform grouped;
                (128 x 64) (2 per SM, 8 along rows) uniform;
                (128 x 64) (1 per SM, 8 along rows) grouped mixed;
                (128 x 128) (1 per SM, 4 along rows) uniform grouped;
                (256 x 128) (1 per SM, 8 along rows) uniform grouped;
            }
            [mxfp4_e4m3] {
                (128 x 8) (2 per SM, 8 along rows) uniform grouped;
                (128 x 16) (2 per SM, 8 along rows) uniform grouped;
                (128 x 32) (2 per SM, 8 along rows) uniform grouped;
                (128 x 64) (1 per SM, 8 along rows) uniform grouped mixed;
                (128 x 128) (1 per SM, 4 along rows) uniform grouped;
                (256 x 128) (1 per SM, 8 along rows) uniform;
            }
        }
    };
}

/// The configuration of a kernel of the table.
macro_rules! config {
    ([$($name:tt)+] $types:ident $problems:ident ($rows:literal x $tokens:literal)
     ($ctas:literal per SM, $row_warps:literal along rows)) => {
        Sm120Config::new(
            concat!($(stringify!($name)),+),
            operands!($types),
            problems!($problems),
            [$rows, $tokens, $ctas, $row_warps],
        )
    };
}

fragment_config!(Sm120Config);
warp_config!(Sm120Config);
configurations!($ sm120f_gemm_configs, config, Sm120Config, "sm_120f");

const _: () = assert!(PRODUCTS == 2 && CHUNK_CODE_BYTES.is_multiple_of(PIECE_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::fragments::config::no_bank_twice;
    use crate::gemm::fragments::warps::warp_tests;

    warp_tests!(3);

    #[test]
    fn stages_are_aligned() {
        all().for_each(|config| {
            assert!(config.stage_bytes().is_multiple_of(128), "{}", config.name)
        });
    }
}
