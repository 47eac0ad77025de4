//! Codes of weights and tokens on their way from a stage to the registers of products.
//!
//! Weights are e2m1, in the order of the fragments of products of 64 columns, eight codes to a word. Products with e4m3
//! take bytes, of 32 columns, so that a word of weights is made two registers: a shift and a mask have every second
//! code of it. The columns of a product may be in any order that both operands have, and here each lane has eight
//! neighbouring ones: the even ones, then the odd ones. It loads those of a token as they are, and picks bytes.
//!
//! `ldmatrix` can pad codes of four bits, too (`b4x16_p64`), but takes them from rows that have the room for the
//! padding: stages would hold twice the bytes.

use core::ops::Index;

use cuda_std::ptx::integer::prmt_b32;
use cuda_std::ptx::{memory, mma};
use cuda_std::warp;
use fp4_formats::gemm::fragments::blocks::PRODUCTS;
use fp4_formats::gemm::sm120::config::{PIECE_BYTES, Sm120Config, TokenCodes};

/// The words of codes that a lane has of 16 rows in a stage, for products of 64 columns.
pub type RowWords = [[u32; 4]; PRODUCTS as usize];

/// The codes of tokens, and those of weights beside them.
pub trait Codes {
    /// The codes of tokens.
    const TOKENS: TokenCodes;
    /// Products of a stage along K.
    const PRODUCTS: usize;

    /// A lane's operands of 16 rows in a stage, by products.
    type Rows: Copy + Index<usize, Output = [u32; 4]>;
    /// A lane's operands of eight tokens in a stage, by products.
    type Tokens: Copy + Index<usize, Output = [u32; 2]>;

    /// Makes the operands of rows.
    fn rows(words: RowWords) -> Self::Rows;

    /// Bytes from the first of a stage's tokens to what the lane loads first of those from `token` on, the first of
    /// eight.
    fn first(config: &Sm120Config, token: u32) -> u32;

    /// Loads the operands of eight tokens, `behind` bytes behind the eight to which [`first`](Self::first) leads at
    /// `tokens`.
    ///
    /// # Safety
    /// All threads of the warp reach this same call; the stage is full.
    unsafe fn tokens(tokens: u32, behind: u32) -> Self::Tokens;
}

/// Tokens of e2m1: both operands are multiplied as they are.
pub enum E2m1 {}

impl Codes for E2m1 {
    const TOKENS: TokenCodes = TokenCodes::Blocks;
    const PRODUCTS: usize = PRODUCTS as usize;

    type Rows = RowWords;
    type Tokens = [[u32; 2]; 2];

    #[inline(always)]
    fn rows(words: RowWords) -> RowWords {
        words
    }

    /// Matrices are the four pieces of eight tokens.
    #[inline(always)]
    fn first(config: &Sm120Config, token: u32) -> u32 {
        let (piece, of_eight) = (warp::lane_id() / 8, warp::lane_id() % 8);
        (token + of_eight) * config.code_bytes() + config.place(of_eight, piece) * PIECE_BYTES
    }

    #[inline(always)]
    unsafe fn tokens(tokens: u32, behind: u32) -> [[u32; 2]; 2] {
        // SAFETY: the caller's; inside the stage.
        let [a, b, c, d] = unsafe { mma::ldmatrix_m8n8_x4_shared_b16(tokens + behind) };
        [[a, b], [c, d]]
    }
}

/// Tokens of e4m3.
pub enum E4m3 {}

/// Bits 2 to 5 of each byte, where products have a code of four bits.
const NIBBLES: u32 = 0x3c3c_3c3c;
/// Bytes of eight columns.
const RUN_BYTES: u32 = 8;
/// Selectors of `prmt` for the even and the odd bytes of two words.
const EVEN: u32 = 0x6420;
const ODD: u32 = 0x7531;

impl Codes for E4m3 {
    const TOKENS: TokenCodes = TokenCodes::E4m3;
    const PRODUCTS: usize = 2 * PRODUCTS as usize;

    type Rows = [[u32; 4]; 4];
    type Tokens = [[u32; 2]; 4];

    /// A product's columns are half those of a word's fragment: two words have them, of rows eight apart.
    #[inline(always)]
    fn rows(words: RowWords) -> [[u32; 4]; 4] {
        core::array::from_fn(|product| {
            let half = product % 2 * 2;
            let [low, high] = [words[product / 2][half], words[product / 2][half + 1]];
            let even = |word: u32| word << 2 & NIBBLES;
            let odd = |word: u32| word >> 2 & NIBBLES;
            [even(low), even(high), odd(low), odd(high)]
        })
    }

    #[inline(always)]
    fn first(config: &Sm120Config, token: u32) -> u32 {
        let (of_eight, run) = (warp::lane_id() / 4, warp::lane_id() % 4);
        let (piece, of_piece) = (run * RUN_BYTES / PIECE_BYTES, run * RUN_BYTES % PIECE_BYTES);
        let place = config.place(of_eight, piece) * PIECE_BYTES + of_piece;
        (token + of_eight) * config.code_bytes() + place
    }

    #[inline(always)]
    unsafe fn tokens(tokens: u32, behind: u32) -> [[u32; 2]; 4] {
        core::array::from_fn(|product| {
            // Places of pieces differ from one token to another in the bits that number a token's products.
            let at = tokens ^ (product as u32 * 4 * RUN_BYTES);
            // SAFETY: the caller's; inside the stage.
            let [low, high] = unsafe { memory::ld_shared_v2_b32(at + behind) };
            [prmt_b32(low, high, EVEN), prmt_b32(low, high, ODD)]
        })
    }
}
