//! The contract of the kernel that only reads: `ceiling_read`.

use crate::params::blocks;

/// Entry name.
pub const NAME: &str = "ceiling_read";

/// Threads of a CTA.
pub const THREADS: u32 = 256;

/// Independent 16-byte loads that a thread keeps in flight.
pub const LOADS_IN_FLIGHT: usize = 8;

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

blocks! {
    ReadParams { data, bytes, out }
}
