//! Attention of one token of each text to the tokens before it: the contract of the kernels between a decoder's joined
//! projection of queries, keys and values and its projection of results.
//!
//! ```text
//! queries --[RMSNorm of each head]--> turned to the token's position --+
//! key     --[RMSNorm]--> turned --> the cache's place ----------------+--> softmax(q k^T scale) v
//! value   ------------------------> the cache's place ----------------+
//! ```
//!
//! Tensors are of f16 or bf16, dense but for the rows of the projection. A text has a token at every place of the cache from its
//! first one to the token's own; heads of queries that share a head of keys follow each other.
//!
//! | tensor | shape |
//! |---|---|
//! | queries, keys and values of the tokens | `[texts, heads, dim]`, `[texts, kv_heads, dim]` twice; texts at a distance of [`row`](AttentionParams::row) |
//! | cosines and sines | `[positions, dim / 2]` |
//! | caches of keys and of values | `[texts, kv_heads, capacity, dim]` |
//! | result | `[texts, heads, dim]` |
//!
//! # Arithmetic
//! Norm and rotation are f32 and rounded to the tensors' type once, in the pairs `(i, i + dim / 2)`. Scores are exact products added in f32. A
//! share is rounded to the tensors' type before its product with a value; sums of shares and of products are f32, and are divided
//! at the end: values beyond f32's largest number divided by the places become infinite. The order of
//! the sums depends on the number of splits.

use crate::params::blocks;
use crate::{HalfType, WARP};

/// Places of the cache that a warp takes at a time.
pub const TILE: u32 = 16;
/// Warps of a CTA.
pub const WARPS: u32 = 8;
/// Threads of a CTA.
pub const THREADS: u32 = WARPS * WARP;
/// The most heads of queries that share a head of keys: rows of a tensor core's operand.
pub const MAX_GROUP: u32 = 16;
/// The most splits of a text's places.
pub const MAX_SPLITS: u32 = 64;
/// [`AttentionParams::window`] if all places are seen.
pub const NO_WINDOW: u32 = u32::MAX;

/// The configuration of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionConfig {
    /// Entry name in the PTX module of every architecture.
    pub name: &'static str,
    /// Type of all tensors.
    pub half: HalfType,
    /// Elements of a head.
    pub dim: u32,
}

macro_rules! configs {
    ($($name:ident: $half:ident, $dim:literal;)*) => {
        [$(AttentionConfig { name: stringify!($name), half: HalfType::$half, dim: $dim }),*]
    };
}

/// The kernels.
pub const ATTENTION: [AttentionConfig; 6] = configs! {
    attention_f16_32: F16, 32;
    attention_f16_64: F16, 64;
    attention_f16_128: F16, 128;
    attention_bf16_32: Bf16, 32;
    attention_bf16_64: Bf16, 64;
    attention_bf16_128: Bf16, 128;
};

/// The kernel for tensors of a type with so many elements to a head, if there is one.
#[must_use]
pub fn attention_config(half: HalfType, dim: usize) -> Option<&'static AttentionConfig> {
    ATTENTION.iter().find(|config| config.half == half && config.dim as usize == dim)
}

/// Places of a CTA's dynamic shared memory, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Bytes from a query to the next. Eight rows that a warp loads together are in other banks.
    pub query: u32,
    /// Begin of the sums, f32 `[WARPS, group, dim]`, behind the queries.
    pub sums: u32,
    /// Begin of the rows' largest scores and sums of shares, f32 `[WARPS, MAX_GROUP, 2]`.
    pub rows: u32,
    /// The word that says whether the CTA is the last of its head.
    pub last: u32,
    /// Bytes of all.
    pub bytes: u32,
}

impl Shared {
    /// The places for so many heads of `dim` elements.
    #[must_use]
    pub const fn of(group: u32, dim: u32) -> Self {
        let query = 2 * dim + 64;
        let sums = group * query;
        let rows = sums + WARPS * group * dim * 4;
        let last = rows + WARPS * MAX_GROUP * 8;
        Self { query, sums, rows, last, bytes: last + 16 }
    }
}

/// The number of splits of each text's places: enough CTAs for all SMs, each with tiles for its warps.
///
/// `heads` are heads of keys of all texts, `places` the most places that a token looks at.
#[must_use]
pub fn splits(heads: u32, places: u32, sms: u32) -> u32 {
    let of_places = places.div_ceil(TILE).div_ceil(WARPS);
    (sms / heads.max(1)).clamp(1, of_places.clamp(1, MAX_SPLITS))
}

/// Parameters. Pointers are device addresses; those of tensors are 16-byte aligned.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct AttentionParams {
    /// Queries of the first text's token.
    pub query: u64,
    /// Its keys.
    pub key: u64,
    /// Its values.
    pub value: u64,
    /// Cosines of all positions.
    pub cosines: u64,
    /// Sines.
    pub sines: u64,
    /// Weights of the norm of each head's queries, `[dim]`; 0 without one.
    pub query_norm: u64,
    /// Weights of the norm of keys; 0 without one.
    pub key_norm: u64,
    /// A score of each head that takes part in the softmax and has no value, `[heads]`; 0 without.
    pub sinks: u64,
    /// u32: the place of the tokens.
    pub place: u64,
    /// u32 `[texts]`: the place at which each text begins; 0 if all begin at the first.
    pub begins: u64,
    /// The cache of keys.
    pub keys: u64,
    /// The cache of values.
    pub values: u64,
    /// The result.
    pub out: u64,
    /// Sums of splits, f32 `[texts kv_heads, splits, group, dim]`; 0 for one split.
    pub sums: u64,
    /// Their largest scores and sums of shares, f32 `[texts kv_heads, splits, group, 2]`; 0 for one split.
    pub rows: u64,
    /// u32 `[texts kv_heads]`: splits that are ready, 0 before a launch and after it; 0 for one split.
    pub ready: u64,
    /// Elements between the rows of two texts: even.
    pub row: u32,
    /// Heads of keys.
    pub kv_heads: u32,
    /// Heads of queries that share a head of keys, at most [`MAX_GROUP`].
    pub group: u32,
    /// Places of the cache.
    pub capacity: u32,
    /// Places that a token sees, with its own; [`NO_WINDOW`] for all.
    pub window: u32,
    /// Places below which the tokens' place is expected, for prefetching; no result depends on it.
    pub expected: u32,
    /// The addend of a norm's mean square.
    pub epsilon: f32,
    /// The factor of scores, times log2(e): shares are powers of two.
    pub scale: f32,
}

blocks! {
    AttentionParams {
        query, key, value, cosines, sines, query_norm, key_norm, sinks, place, begins, keys, values, out, sums, rows,
        ready, row, kv_heads, group, capacity, window, expected, epsilon, scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_type_and_size() {
        for config in ATTENTION {
            let AttentionConfig { name, half, dim } = config;
            let rest = name.strip_prefix("attention_").and_then(|rest| rest.split_once('_'));
            let rest = rest.map(|(half, dim)| (half, dim.parse()));
            assert_eq!(rest, Some((half.name(), Ok(dim))), "{name}");
            assert_eq!(attention_config(half, dim as usize), Some(&config));
        }
        assert_eq!(attention_config(HalfType::F16, 48), None);
    }

    #[test]
    fn splits_fill_the_gpu() {
        // One text of eight heads; few places; many heads; a long text.
        assert_eq!(splits(8, 640, 132), 5);
        assert_eq!(splits(8, 1, 132), 1);
        assert_eq!(splits(512, 640, 132), 1);
        assert_eq!(splits(1, 1 << 20, 132), MAX_SPLITS);
        assert_eq!(splits(0, 0, 0), 1);
    }

    #[test]
    fn shared_memory_fits_the_smallest_gpu() {
        // 99 KiB of compute capability 8.6.
        assert!(Shared::of(MAX_GROUP, 128).bytes <= 99 * 1024);
    }
}
