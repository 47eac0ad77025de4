//! Launch bundles: one kernel launch with all its inputs and its expected outputs, as a
//! folder.
//!
//! A bundle holds the PTX, the launch's shape, the bytes of the parameter block,
//! device allocations at the addresses in the block, tensor maps by their
//! arguments (their 128 bytes depend on the driver and are encoded here), and
//! expected outputs with the way to compare them. A program that runs the kernel on a GPU
//! can write one; `ptx-emu replay` runs it on the emulator.
//!
//! # `bundle.json`
//!
//! | field | contents |
//! |---|---|
//! | `ptx` | path of the module; all paths are relative to the folder |
//! | `entry`, `grid`, `block` | kernel, CTAs, threads of a CTA |
//! | `cluster` | CTAs of a cluster; left out or null: as the kernel requires |
//! | `dynamic_shared` | bytes; left out: 0 |
//! | `cooperative`, `programmatic` | left out: false; attributes of the launch, which a GPU is given |
//! | `params` | the whole parameter block in hexadecimal |
//! | `memory` | allocations: `addr`, `size`, `name`, and `file` with the contents; without it they are uninitialised |
//! | `tensor_maps` | `in`: `"param"` or `"global"`; `at`: offset in the block, or address; the arguments of `cuTensorMapEncodeTiled`: `dtype`, `rank`, `addr`, `dims`, `strides`, `box`, `estrides`, `interleave`, `swizzle`, `l2`, `oob`, names as the driver's without prefix |
//! | `expected` | by name: `addr`, `size`, `file`, `compare`: `"exact"` (byte by byte), `{"dtype"}` (equal elements of `u8` to `s64`, `f16`, `bf16`, `f32`, `f64`) or, of floats, `{"dtype", "rtol", "atol"}` |
//!
//! Addresses and sizes are numbers or strings (`"0x7f0000000000"`). Unknown
//! fields are ignored.

mod changes;
mod compare;
mod error;
mod format;
mod place;

pub use changes::Part;
pub use compare::{Compare, CompareType, FirstMismatch, OutputReport};
pub use error::BundleError;
pub use format::PTX_FILE;

use ptx_emu_core::tensor_map::TensorMap;
use std::collections::BTreeMap;

/// A kernel launch with its memory and expected outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// PTX text.
    pub ptx: String,
    /// Kernel.
    pub entry: String,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster; `None`: as the kernel requires.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// The launch is cooperative: a GPU runs all its CTAs at the same time, or refuses it.
    pub cooperative: bool,
    /// The launch may begin before the one before it in its stream has ended. A bundle is run by
    /// itself, so it has no effect but that the kernel may ask for it.
    pub programmatic: bool,
    /// The whole parameter block. The bytes at the places of tensor maps do not matter.
    pub params: Vec<u8>,
    /// Device allocations.
    pub memory: Vec<Allocation>,
    /// Tensor maps to encode.
    pub tensor_maps: Vec<PlacedMap>,
    /// Outputs by name.
    pub expected: BTreeMap<String, Expected>,
}

/// A device allocation at a fixed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Address.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Name, for messages; file names are made of it.
    pub name: String,
    /// Contents before the launch, `size` bytes; `None`: never written.
    pub contents: Option<Vec<u8>>,
}

/// The place of a tensor map's 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapPlace {
    /// The parameter block, at this offset.
    Param(u64),
    /// Global memory, at this address.
    Global(u64),
}

/// A tensor map of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMap {
    /// Place.
    pub place: MapPlace,
    /// Arguments.
    pub map: TensorMap,
}

/// The bytes that the launch must leave in a range of memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Address.
    pub addr: u64,
    /// Bytes there afterwards.
    pub bytes: Vec<u8>,
    /// The kind of comparison.
    pub compare: Compare,
}

/// Name of the description in a bundle's folder.
pub const BUNDLE_FILE: &str = "bundle.json";
