//! Diagnostics of `wgmma` and `tcgen05`.

use super::OperationSite;
use crate::tensor::TensorError;
use std::fmt;

/// Misuse of tensor cores or tensor memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorFault {
    /// A descriptor that the instruction does not have.
    Descriptor {
        /// Operand that it is for.
        operand: &'static str,
        /// The fault.
        error: TensorError,
    },
    /// A leading dimension offset that the instruction has no use for, and that is none of the
    /// usual values.
    LeadingOffset {
        /// Operand that it is for.
        operand: &'static str,
        /// The fault.
        error: TensorError,
    },
    /// An operand tile reaches outside the shared memory of its CTA.
    OutOfBounds {
        /// The operand.
        operand: &'static str,
        /// Address of the first such chunk of 16 bytes.
        address: u32,
        /// End of the CTA's shared memory.
        end: u32,
    },
    /// An operand tile holds bytes that were never written.
    UninitialisedTile {
        /// The operand.
        operand: &'static str,
        /// Address of the first such byte.
        address: u32,
    },
    /// A cell of tensor memory that was never written is read.
    UninitialisedCell {
        /// The operand that reads it.
        operand: &'static str,
        /// Its lane.
        lane: u32,
        /// Its column.
        column: u32,
    },
    /// Columns of tensor memory that the CTA has not allocated.
    Unallocated {
        /// The operand that is there.
        operand: &'static str,
        /// First column of the operand.
        column: u32,
        /// Columns that it takes.
        columns: u32,
        /// CTA rank in the cluster.
        rank: u32,
    },
    /// A warp accesses lanes that another warp of its warpgroup has.
    WrongLanes {
        /// First lane that the warp may access; 32 are its own.
        required: u32,
        /// First lane of the access.
        actual: u32,
        /// Lanes of the access.
        lanes: u32,
    },
    /// A warp names lane 0 and has others.
    ImpliedLanes {
        /// First lane that the warp may access.
        required: u32,
    },
    /// Tensor memory that an operation in flight still uses.
    InFlight {
        /// First lane.
        lane: u32,
        /// First column.
        column: u32,
        /// Columns.
        columns: u32,
        /// The access writes.
        write: bool,
        /// The operation has yet to read there; otherwise it has yet to write.
        source: bool,
        /// The operation.
        operation: OperationSite,
    },
    /// Registers that an asynchronous instruction still uses.
    RegistersInFlight {
        /// Whether they are the registers of a load; otherwise of a product.
        loaded: bool,
        /// The instruction.
        operation: OperationSite,
        /// The instruction that has to be waited for.
        wait: &'static str,
    },
    /// No `wgmma.fence` since registers of a `wgmma` were written otherwise.
    MissingWgmmaFence {
        /// `accumulator` or `A`.
        operand: &'static str,
    },
    /// Tensor memory that an asynchronous operation accessed is accessed by another thread,
    /// which is synchronised with the first but for a `tcgen05.fence`.
    MissingThreadFence {
        /// First column.
        column: u32,
        /// The earlier operation wrote it; otherwise it read it.
        written: bool,
        /// `fence::before_thread_sync` is missing behind the earlier operation; otherwise
        /// `fence::after_thread_sync` before the later one.
        before: bool,
        /// The earlier operation.
        operation: OperationSite,
    },
    /// A CTA exits with tensor memory allocated.
    NotFreed {
        /// First column of an allocation.
        column: u32,
        /// Its columns.
        columns: u32,
        /// The allocation.
        operation: OperationSite,
    },
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor { operand, error } | Self::LeadingOffset { operand, error } => {
                write!(f, "invalid descriptor of {operand}: {error}")
            }
            Self::OutOfBounds { operand, address, end } => write!(
                f,
                "out of bounds: {operand}: 16 bytes at shared address {address:#x}, the CTA's shared memory is [0x400, {end:#x})"
            ),
            Self::UninitialisedTile { operand, address } => write!(
                f,
                "uninitialised read: {operand}: shared address {address:#x} was never written"
            ),
            Self::UninitialisedCell { operand, lane, column } => write!(
                f,
                "uninitialised tensor memory: {operand}: lane {lane}, column {column} was never written"
            ),
            Self::Unallocated { operand, column, columns, rank } => write!(
                f,
                "unallocated tensor memory: {operand}: columns {column} to {} of CTA rank {rank}",
                column + columns.saturating_sub(1)
            ),
            Self::WrongLanes { required, actual, lanes } => write!(
                f,
                "wrong warp quarter of tensor memory: required lanes within {required} to {}, actual {actual} to {}",
                required + 31,
                actual + lanes - 1
            ),
            Self::ImpliedLanes { required } => write!(
                f,
                "lane of tensor memory: required {required}, the first of the warp's own, actual 0"
            ),
            Self::InFlight { lane, column, columns, write, source, operation } => {
                let verb = if *write { "write" } else { "read" };
                let role =
                    if *source { "source, not read yet," } else { "destination, in flight," };
                write!(
                    f,
                    "tensor memory in flight: {verb} of columns {column} to {} from lane {lane}, a {role} of {operation}",
                    column + columns.saturating_sub(1)
                )
            }
            Self::RegistersInFlight { operation, wait, .. } => {
                write!(
                    f,
                    "registers in flight: {operation} still uses a register of this instruction; {wait} must come first"
                )
            }
            Self::MissingWgmmaFence { operand } => write!(
                f,
                "missing wgmma.fence: registers of the {operand} were written by other instructions since the warp's last wgmma.fence"
            ),
            Self::MissingThreadFence { column, written, before, operation } => {
                let verb = if *written { "written" } else { "read" };
                let (fence, why) = if *before {
                    (
                        "before",
                        "its warp has not executed the fence between it and what this warp waited for",
                    )
                } else {
                    ("after", "this warp has not executed the fence since that completed")
                };
                write!(
                    f,
                    "missing tcgen05.fence::{fence}_thread_sync: column {column} was {verb} by {operation}, and {why}"
                )
            }
            Self::NotFreed { column, columns, operation } => write!(
                f,
                "tensor memory not freed: columns {column} to {} of {operation} are still allocated when the CTA exits",
                column + columns - 1
            ),
        }
    }
}
