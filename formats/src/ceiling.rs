//! The contract of the kernels that show a GPU's limits: `ceiling_read` only reads, `ceiling_products` only multiplies.

use crate::WARP;
use crate::gemm::sm80::config::{MMA_K, MMA_ROWS, MMA_TOKENS};
use crate::params::blocks;

/// Entry name of the kernel that reads.
pub const NAME: &str = "ceiling_read";

/// Entry name of the kernel that multiplies.
pub const PRODUCTS_NAME: &str = "ceiling_products";

/// Entry names of all of them.
pub const NAMES: [&str; 2] = [NAME, PRODUCTS_NAME];

/// Threads of a CTA.
pub const THREADS: u32 = 256;

/// Independent 16-byte loads that a thread keeps in flight.
pub const LOADS_IN_FLIGHT: usize = 8;

/// Independent products of a warp: enough to hide the latency of one.
pub const PRODUCTS_IN_FLIGHT: usize = 16;

/// A thread whose words fold to this value stores it: reason enough for the
/// compiler to keep the loads, and random data practically never does.
pub const SENTINEL: u32 = 0x5EED_CAFE;

/// Parameter block of `ceiling_read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ReadParams {
    /// Device address of the data, 16-byte aligned.
    pub data: u64,
    /// Bytes, a multiple of 16.
    pub bytes: u64,
    /// Device address of four writable bytes.
    pub out: u64,
}

/// Parameter block of `ceiling_products`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ProductsParams {
    /// Rounds of [`PRODUCTS_IN_FLIGHT`] products of each warp.
    pub rounds: u64,
    /// Device address of four writable bytes.
    pub out: u64,
}

/// Operations of a CTA of `ceiling_products`, two for each product of scalars.
pub const fn cta_operations(rounds: u64) -> u64 {
    let product = 2 * MMA_ROWS * MMA_TOKENS * MMA_K;
    rounds * PRODUCTS_IN_FLIGHT as u64 * (THREADS / WARP * product) as u64
}

blocks! {
    ReadParams { data, bytes, out }
    ProductsParams { rounds, out }
}
