//! The counts of a launch, and the bound on its time that follows from them.

mod bound;
mod levels;

pub use bound::{Limit, LowerBound};
pub use levels::{LevelBytes, Levels};

use crate::tensor::element::Element;
use serde::Serialize;
use std::collections::BTreeMap;

/// Instruction family, the granularity at which instructions are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Family {
    /// Integer arithmetic, logic, shifts, `prmt`, `dp4a`.
    Integer,
    /// f32 arithmetic.
    Float,
    /// f16 and bf16 arithmetic, packed or not.
    Half,
    /// f64 arithmetic.
    Double,
    /// `cvt`.
    Convert,
    /// `mov`, packing, address conversion, special registers.
    Move,
    /// `setp`, `set`, `selp`, `slct` and predicate logic.
    Predicate,
    /// `ld`, `st`.
    Memory,
    /// `atom`, `red`.
    Atomic,
    /// `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`.
    Warp,
    /// `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.
    Matrix,
    /// Barriers and fences.
    Sync,
    /// mbarrier operations.
    Mbarrier,
    /// `cp.async`, bulk and tensor copies and reductions, `st.async`,
    /// `red.async`, tensor map edits.
    Copy,
    /// `wgmma`, `tcgen05`.
    Tensor,
    /// Cluster barrier and addresses, launch control, `setmaxnreg`.
    Cluster,
    /// Branches, calls, `exit`.
    Control,
    /// Hints without effect here.
    Hint,
}

/// Executions of a family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FamilyCount {
    /// Warp instructions issued, predicated-off ones included.
    pub warp: u64,
    /// Lane instructions executed.
    pub lane: u64,
}

/// Traffic of a state space as the kernel's instructions asked for it; bytes and
/// sectors include those of asynchronous operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpaceCount {
    /// Warp instructions that read.
    pub reads: u64,
    /// Warp instructions that wrote.
    pub writes: u64,
    /// Bytes read, summed over lanes.
    pub bytes_read: u64,
    /// Bytes written, summed over lanes.
    pub bytes_written: u64,
    /// Distinct 32-byte sectors read, summed over warp instructions and copies
    /// (global and local memory; what L1 and L2 move at most).
    pub sectors_read: u64,
    /// Same for writes.
    pub sectors_written: u64,
}

impl SpaceCount {
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.sectors_read += other.sectors_read;
        self.sectors_written += other.sectors_written;
    }
}

/// Operations of one path and the bytes they moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Operations issued.
    pub operations: u64,
    /// Bytes, to one destination each.
    pub bytes: u64,
}

impl Traffic {
    /// One more operation.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes += bytes;
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// Operations of the asynchronous units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AsyncCount {
    /// `cp.async`, by lane.
    pub copies: Traffic,
    /// `cp.async.bulk`, global to shared memory.
    pub bulk_loads: Traffic,
    /// `cp.async.bulk`, shared to global memory.
    pub bulk_stores: Traffic,
    /// `cp.reduce.async.bulk` to global memory.
    pub bulk_reductions: Traffic,
    /// `cp.async.bulk.tensor` to shared memory; bytes as `complete_tx` counts
    /// them.
    pub tensor_loads: Traffic,
    /// `cp.async.bulk.tensor` to global memory; bytes inside the tensor.
    pub tensor_stores: Traffic,
    /// `cp.reduce.async.bulk.tensor`; bytes inside the tensor.
    pub tensor_reductions: Traffic,
    /// Copies and reductions between shared memories, `st.async`, `red.async`.
    pub cluster_copies: Traffic,
    /// Loads, stores and atomics on other CTAs' shared memory, by lane.
    pub cluster_accesses: Traffic,
    /// Bytes that multicast loads delivered to further CTAs.
    pub multicast_bytes: u64,
    /// The most bytes that copies from global memory to one CTA's shared memory were to bring at
    /// a time, from their issue to their completion. Under the lazy schedule, where they complete
    /// when a wait cannot go on without them, this is how far a kernel copies ahead.
    pub most_bytes_in_flight: u64,
    /// L2 prefetches of bulk and tensor kind.
    pub prefetches: u64,
    /// Lane arrivals at mbarriers.
    pub mbarrier_arrivals: u64,
    /// Warp executions of `test_wait` and `try_wait`.
    pub mbarrier_tests: u64,
    /// Tests that found their phase not over.
    pub mbarrier_tests_failed: u64,
    /// Warp arrivals at the cluster barrier.
    pub cluster_arrivals: u64,
    /// Arrivals at mbarriers, by lane, that release for the whole cluster or more: each waits until
    /// all that the thread has written is where the others see it.
    pub cluster_releases: u64,
    /// The most clusters of the grid that one cluster took over.
    pub most_taken_over: u64,
}

impl AsyncCount {
    pub(crate) fn add(&mut self, other: &Self) {
        self.copies.add(&other.copies);
        self.bulk_loads.add(&other.bulk_loads);
        self.bulk_stores.add(&other.bulk_stores);
        self.bulk_reductions.add(&other.bulk_reductions);
        self.tensor_loads.add(&other.tensor_loads);
        self.tensor_stores.add(&other.tensor_stores);
        self.tensor_reductions.add(&other.tensor_reductions);
        self.cluster_copies.add(&other.cluster_copies);
        self.cluster_accesses.add(&other.cluster_accesses);
        self.multicast_bytes += other.multicast_bytes;
        self.most_bytes_in_flight = self.most_bytes_in_flight.max(other.most_bytes_in_flight);
        self.prefetches += other.prefetches;
        self.mbarrier_arrivals += other.mbarrier_arrivals;
        self.mbarrier_tests += other.mbarrier_tests;
        self.mbarrier_tests_failed += other.mbarrier_tests_failed;
        self.cluster_arrivals += other.cluster_arrivals;
        self.cluster_releases += other.cluster_releases;
        self.most_taken_over = self.most_taken_over.max(other.most_taken_over);
    }
}

/// Work of the tensor cores: multiply-adds of `mma.sync`, `wgmma` and `tcgen05.mma`,
/// by type of the operands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TensorCount {
    /// Instructions; `mma.sync` and `wgmma` count each warp.
    pub instructions: u64,
    /// f16 and bf16.
    pub half: u64,
    /// The part of `half` whose sums are f32.
    pub half_in_f32: u64,
    /// tf32.
    pub tf32: u64,
    /// e4m3, e5m2, and everything of the f8f6f4 kinds.
    pub byte: u64,
    /// The part of `byte` whose sums are f32.
    pub byte_in_f32: u64,
    /// s8 and u8.
    pub integer: u64,
    /// e2m1 of the mxf4 kinds.
    pub nibble: u64,
    /// f64.
    pub double: u64,
    /// Single bits.
    pub bit: u64,
    /// Bytes of operands that were taken from shared memory: those of a `wgmma`
    /// once for its four warps.
    pub shared_bytes: u64,
}

impl TensorCount {
    /// One more instruction; `packed`, its 4-bit operands are not padded to bytes; `in_f32`, its sums
    /// are f32.
    pub(crate) fn count(&mut self, element: Element, packed: bool, in_f32: bool, operations: u64) {
        self.instructions += 1;
        let single = if in_f32 { operations } else { 0 };
        *match element {
            Element::F16 | Element::Bf16 => {
                self.half_in_f32 += single;
                &mut self.half
            }
            Element::Tf32 => &mut self.tf32,
            Element::S8 | Element::U8 => &mut self.integer,
            Element::E2m1 if packed => &mut self.nibble,
            Element::F64 => &mut self.double,
            Element::B1 => &mut self.bit,
            _ => {
                self.byte_in_f32 += single;
                &mut self.byte
            }
        } += operations;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.half += other.half;
        self.half_in_f32 += other.half_in_f32;
        self.tf32 += other.tf32;
        self.byte += other.byte;
        self.byte_in_f32 += other.byte_in_f32;
        self.integer += other.integer;
        self.nibble += other.nibble;
        self.double += other.double;
        self.bit += other.bit;
        self.shared_bytes += other.shared_bytes;
    }

    /// Multiply-adds of f16 that take as long: tf32 run at half the rate, 8-bit types
    /// at twice and 4-bit types at four times. f64 and single bits are left out.
    fn half_equivalents(&self) -> f64 {
        self.half as f64
            + 2.0 * self.tf32 as f64
            + (self.byte + self.integer) as f64 / 2.0
            + self.nibble as f64 / 4.0
    }

    /// The part of [`half_equivalents`](Self::half_equivalents) whose sums are f32.
    fn half_equivalents_in_f32(&self) -> f64 {
        self.half_in_f32 as f64 + 2.0 * self.tf32 as f64 + self.byte_in_f32 as f64 / 2.0
    }
}

/// Everything that was counted. Field names are stable in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// CTAs run.
    pub ctas: u64,
    /// Clusters run.
    pub clusters: u64,
    /// Threads run.
    pub threads: u64,
    /// Warp instructions issued.
    pub warp_instructions: u64,
    /// Lane instructions executed.
    pub lane_instructions: u64,
    /// Both by instruction family.
    pub families: BTreeMap<Family, FamilyCount>,
    /// Global memory traffic.
    pub global: SpaceCount,
    /// Shared memory traffic.
    pub shared: SpaceCount,
    /// Local memory traffic.
    pub local: SpaceCount,
    /// Constant and parameter traffic.
    pub constant: SpaceCount,
    /// Bytes of the distinct 32-byte sectors of global memory that were read:
    /// what DRAM must deliver at least once.
    pub global_unique_bytes_read: u64,
    /// Same for written sectors.
    pub global_unique_bytes_written: u64,
    /// Passes over the shared memory banks (32 banks of 4 bytes).
    pub shared_wavefronts: u64,
    /// Passes that would do without bank conflicts.
    pub shared_wavefronts_ideal: u64,
    /// Lane operations of `atom` and `red`.
    pub atomics: u64,
    /// Warp arrivals at CTA barriers.
    pub barrier_arrivals: u64,
    /// Branches at which a warp split.
    pub divergent_branches: u64,
    /// Asynchronous operations.
    pub asynchronous: AsyncCount,
    /// Work of the tensor cores.
    pub tensor: TensorCount,
    /// Bytes by level of memory.
    pub levels: Levels,
}

impl Counters {
    /// Executions of one family.
    #[must_use]
    pub fn family(&self, family: Family) -> FamilyCount {
        self.families.get(&family).copied().unwrap_or_default()
    }
}
