//! What a launch did, counted, and the bound on time that follows from it.

use crate::Gpu;
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
    /// Barriers and fences.
    Sync,
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

/// Traffic of a state space as the kernel's instructions asked for it.
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
    /// Distinct 32-byte sectors read, summed over warp instructions (global
    /// and local memory; what L1 and L2 move at most).
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
}

/// One limit of the machine and the time it alone would force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Which one: `dram`, `l2`, `issue`, `integer`, `float`, `half`, `double`,
    /// `shared`.
    pub name: &'static str,
    /// Seconds.
    pub seconds: f64,
}

/// A lower bound on the time of a launch on a machine; never a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LowerBound {
    /// Machine it is for.
    pub gpu: &'static str,
    /// The largest of `parts`.
    pub seconds: f64,
    /// Its name.
    pub by: &'static str,
    /// All limits, as if each were the only one.
    pub parts: Vec<Limit>,
}

impl Counters {
    /// Executions of one family.
    #[must_use]
    pub fn family(&self, family: Family) -> FamilyCount {
        self.families.get(&family).copied().unwrap_or_default()
    }

    /// The time below which no schedule can get on `gpu`: each resource works
    /// at its peak rate, everything overlaps perfectly, SMs without a CTA idle,
    /// and every distinct sector crosses DRAM once. The cold-cache case is
    /// meant; data already in L2 may beat the `dram` part.
    ///
    /// What runs is machine code, not PTX. The assembler drops moves,
    /// conversions and predicate arithmetic where it can and fuses integer
    /// operations in pairs (three-input add and logic, multiply-add), so those
    /// families do not count and integer operations count half.
    #[must_use]
    pub fn lower_bound(&self, gpu: &Gpu) -> LowerBound {
        let sms = f64::from(gpu.sms).min(self.ctas.max(1) as f64);
        let clocks =
            |amount: u64, per_sm_clock: f64| amount as f64 / (per_sm_clock * sms * gpu.clock_hz);
        let lane = |family| self.family(family).lane;
        let unique = (self.global_unique_bytes_read + self.global_unique_bytes_written) as f64;
        let sectors = (self.global.sectors_read + self.global.sectors_written) as f64;
        let integer = self.family(Family::Integer);
        let free = [Family::Move, Family::Convert, Family::Predicate, Family::Hint];
        let dropped: u64 = free.iter().map(|&f| self.family(f).warp).sum();
        let issued = self.warp_instructions.saturating_sub(dropped + integer.warp / 2);
        let part = |name, seconds| Limit { name, seconds };
        let parts = vec![
            part("dram", unique / gpu.dram_bytes_per_s),
            part(
                "l2",
                // L1 may keep what it has read; only distinct bytes must cross.
                unique.min(sectors * 32.0) / (gpu.l2_bytes_per_clock * gpu.clock_hz),
            ),
            part("issue", clocks(issued, gpu.issue_per_clock)),
            part("integer", clocks(integer.lane / 2, gpu.int_lanes_per_clock)),
            part("float", clocks(lane(Family::Float), gpu.float_lanes_per_clock)),
            part("half", clocks(lane(Family::Half), gpu.half_lanes_per_clock)),
            part("double", clocks(lane(Family::Double), gpu.double_lanes_per_clock)),
            part("shared", clocks(self.shared_wavefronts, 1.0)),
        ];
        let worst = parts.iter().fold(part("none", 0.0), |worst, part| {
            if part.seconds > worst.seconds { part.clone() } else { worst }
        });
        LowerBound { gpu: gpu.name, seconds: worst.seconds, by: worst.name, parts }
    }
}
