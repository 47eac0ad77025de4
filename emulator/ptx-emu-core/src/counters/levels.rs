//! Bytes by level of memory.

use super::{AsyncCount, Counters};
use serde::Serialize;

/// Bytes at one level of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LevelBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// Bytes by level of memory: those of instructions and of asynchronous
/// operations together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Levels {
    /// Distinct 32-byte sectors of global memory: what DRAM moves at least.
    pub dram: LevelBytes,
    /// Requests to L2 at most: the sectors of each instruction and copy, as if L1 kept nothing.
    pub l2: LevelBytes,
    /// Shared memory: loads, stores, copies, operands of tensor cores as each warp
    /// takes them.
    pub shared: LevelBytes,
    /// Traffic to the shared memory of other CTAs: accesses, copies, multicast; `written` counts
    /// everything.
    pub cluster_shared: LevelBytes,
    /// Tensor memory: `tcgen05.ld`, `st` and `cp`.
    pub tensor_memory: LevelBytes,
}

impl AsyncCount {
    /// Bytes that the operations read from and wrote to global memory.
    fn global_bytes(&self) -> LevelBytes {
        LevelBytes {
            read: self.copies.bytes + self.bulk_loads.bytes + self.tensor_loads.bytes,
            written: self.bulk_stores.bytes
                + self.bulk_reductions.bytes
                + self.tensor_stores.bytes
                + self.tensor_reductions.bytes,
        }
    }

    /// Bytes that the operations read from and wrote to shared memory.
    pub(super) fn shared_bytes(&self) -> LevelBytes {
        let global = self.global_bytes();
        LevelBytes {
            read: global.written + self.cluster_copies.bytes,
            written: global.read + self.multicast_bytes + self.cluster_copies.bytes,
        }
    }
}

impl Counters {
    /// Adds up [`levels`](Self::levels); `tensor_memory` is known already.
    pub(crate) fn add_levels(&mut self) {
        let Self { asynchronous, global, shared, .. } = self;
        let crossing = asynchronous.cluster_copies.bytes
            + asynchronous.cluster_accesses.bytes
            + asynchronous.multicast_bytes;
        self.levels = Levels {
            dram: LevelBytes {
                read: self.global_unique_bytes_read,
                written: self.global_unique_bytes_written,
            },
            l2: LevelBytes { read: 32 * global.sectors_read, written: 32 * global.sectors_written },
            shared: LevelBytes { read: shared.bytes_read, written: shared.bytes_written },
            cluster_shared: LevelBytes { read: 0, written: crossing },
            tensor_memory: self.levels.tensor_memory,
        };
    }
}
