//! Memories of the machine, all tracked per byte for initialisation.
//!
//! Every memory is an array of 64-bit little-endian words plus one bit per byte
//! that says whether the byte was ever written. PTX requires natural alignment
//! (9.7.9), so a checked access of up to 8 bytes lies in one word, and one of
//! up to 32 bytes in one 64-byte group of initialisation bits.

mod error;
mod global;
mod local;
mod plain;

pub use error::MemoryError;
pub use global::GlobalMemory;
pub(crate) use global::{BlockId, NotFreed};
pub(crate) use local::Local;
pub(crate) use plain::Plain;

/// The value of an uninitialised byte when a read does not stop at it.
pub(crate) const POISON: u8 = 0xCB;

/// [`POISON`] in every byte of a word.
pub(crate) const POISON_WORD: u64 = u64::from_le_bytes([POISON; 8]);

/// `bytes` low bytes of a word.
#[inline(always)]
pub(crate) const fn byte_mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

/// `bytes` low bits: the initialisation bits of an access.
#[inline(always)]
pub(crate) const fn bit_mask(bytes: usize) -> u64 {
    if bytes >= 64 { u64::MAX } else { (1 << bytes) - 1 }
}

/// Value of an access: up to 32 bytes, low bytes first.
pub(crate) type Value = [u64; 4];

/// Up to 8 bytes as a word.
#[inline(always)]
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Copies bytes out of words; `offset` counts from the first byte of word 0.
#[inline(always)]
fn copy_words_out(offset: usize, out: &mut [u8], word: impl Fn(usize) -> u64) {
    if offset & 7 == 0 && out.len() & 7 == 0 {
        for (at, out) in out.chunks_exact_mut(8).enumerate() {
            out.copy_from_slice(&word((offset >> 3) + at).to_le_bytes());
        }
        return;
    }
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let within = at & 7;
        let here = (8 - within).min(rest.len());
        let (chunk, tail) = rest.split_at_mut(here);
        chunk.copy_from_slice(&word(at >> 3).to_le_bytes()[within..within + here]);
        at += here;
        rest = tail;
    }
}
