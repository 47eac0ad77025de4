//! Helpers that the tests of tile copies share: the recorded buffers, and copies between slices.

#![allow(dead_code, reason = "each test binary uses a part")]

use ptx_emu_core::tensor_map::{Reduction, Tile};
use serde_json::Value;

/// Copies that an H200 made.
pub const COPIES: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/data/ptx_golden/tensor_copies_h200.json"
));

/// Bytes of the recorded global buffer and where the tensor begins in it.
pub const GLOBAL: usize = 131_072;
pub const TENSOR: u64 = 65_536;
/// First shared address that a kernel may use.
pub const SHARED: u32 = 0x400;

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
}

/// A list of numbers of 32 bits.
pub fn narrow(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|v| v as u32).collect()
}

/// Bytes as hexadecimal digits.
pub fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Initial global and shared bytes of a recording, as its README says.
pub fn contents(source: &str, special: &[u64]) -> (Vec<u8>, Vec<u8>) {
    let hash = |i: usize| (i as u32).wrapping_mul(0x9E37_79B1);
    if source == "hash" {
        let byte = |i| (hash(i) >> 24) as u8;
        return ((0..GLOBAL).map(byte).collect(), (GLOBAL / 2..GLOBAL).map(byte).collect());
    }
    let words = |k: usize, step: usize| -> Vec<u8> {
        (0..GLOBAL / 4)
            .flat_map(|i| {
                let j = (step * i + k + i / 37) % (2 * special.len());
                let random = hash(i).wrapping_add((k as u32).wrapping_mul(0x85EB_CA6B));
                special.get(j).map_or(random, |&word| word as u32).to_le_bytes()
            })
            .collect()
    };
    (words(0, 3), words(7, 5)[GLOBAL / 2..].to_vec())
}

/// Performs a load on slices; `global` begins at address 0, `shared` at
/// [`SHARED`].
pub fn load(tile: &Tile, global: &[u8], shared: &mut [u8]) {
    for run in tile.runs() {
        let at = (run.shared - SHARED) as usize;
        let target = &mut shared[at..at + run.bytes as usize];
        match run.global {
            Some(address) => {
                target.copy_from_slice(&global[address as usize..][..run.bytes as usize]);
                tile.convert_loaded(target);
            }
            None => {
                for (i, byte) in target.iter_mut().enumerate() {
                    *byte = tile.fill_pattern()[(at + i) % 2];
                }
            }
        }
    }
}

/// Performs a store, or a reduction.
pub fn store(tile: &Tile, reduction: Option<&Reduction>, shared: &[u8], global: &mut [u8]) {
    for run in tile.runs() {
        let Some(address) = run.global else {
            continue;
        };
        let source = &shared[(run.shared - SHARED) as usize..][..run.bytes as usize];
        let target = &mut global[address as usize..][..run.bytes as usize];
        match reduction {
            Some(reduction) => reduction.apply(target, source),
            None => target.copy_from_slice(source),
        }
    }
}
