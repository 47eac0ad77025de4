//! Errors of the host's accesses to device memory.

/// A refused allocation, read or write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// An allocation of no bytes has no address.
    #[error("allocation `{name}`: bytes: required at least 1, actual 0")]
    Empty {
        /// Allocation.
        name: String,
    },
    /// An alignment that is not a power of two.
    #[error("allocation `{name}`: align: required a power of two, actual {align}")]
    Align {
        /// Allocation.
        name: String,
        /// Alignment asked for.
        align: u64,
    },
    /// The host has not that much memory, or the range leaves the 56-bit
    /// address space that the windows of other state spaces start at.
    #[error("allocation `{name}`: {bytes} bytes at {addr:#x} do not fit")]
    TooLarge {
        /// Allocation.
        name: String,
        /// Address asked for or chosen.
        addr: u64,
        /// Size asked for.
        bytes: u64,
    },
    /// A fixed address that is taken.
    #[error("allocation `{name}`: {bytes} bytes at {addr:#x} overlap `{other}` at {other_addr:#x}")]
    Overlap {
        /// Allocation.
        name: String,
        /// Address asked for.
        addr: u64,
        /// Size asked for.
        bytes: u64,
        /// Allocation in the way.
        other: String,
        /// Its address.
        other_addr: u64,
    },
    /// No allocation holds the whole range.
    #[error("address {addr:#x}: {bytes} bytes there are not inside one allocation")]
    OutOfBounds {
        /// First byte.
        addr: u64,
        /// Length.
        bytes: u64,
    },
    /// A read of an uninitialised byte.
    #[error("`{name}`: byte {offset} (address {addr:#x}) was never written")]
    Uninitialised {
        /// Allocation.
        name: String,
        /// First such byte, from the start of the allocation.
        offset: u64,
        /// Its address.
        addr: u64,
    },
    /// An address that no allocation starts at.
    #[error("address {addr:#x}: no allocation starts there")]
    NotAllocated {
        /// Address.
        addr: u64,
    },
}
