//! Counts during a run, per instruction; they are summed by family at the end.

use super::access::Banks;
use super::code::Instr;
use super::counting::Executed;
use crate::counters::{AsyncCount, Counters, FamilyCount, LevelBytes, SpaceCount, TensorCount};
use crate::diagnostic::Space;

/// Counts of one host thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stats {
    /// Executions of each instruction.
    pub(crate) executed: Vec<Executed>,
    pub(crate) spaces: [SpaceCount; 4],
    /// Counts of recent accesses to shared memory.
    pub(crate) banks: Banks,
    pub(crate) wavefronts: u64,
    pub(crate) wavefronts_ideal: u64,
    pub(crate) atomics: u64,
    pub(crate) barrier_arrivals: u64,
    pub(crate) divergent_branches: u64,
    pub(crate) asynchronous: AsyncCount,
    pub(crate) tensor: TensorCount,
    /// `tcgen05.ld`, `st`, `cp`.
    pub(crate) tensor_memory: LevelBytes,
    pub(crate) ctas: u64,
    pub(crate) clusters: u64,
    pub(crate) threads: u64,
    /// The text that `vprintf` printed, and the cluster that did.
    pub(crate) printed: Vec<(u64, String)>,
}

impl Stats {
    pub(crate) fn new(instructions: usize) -> Self {
        Self { executed: vec![Executed::default(); instructions], ..Self::default() }
    }

    #[inline(always)]
    pub(crate) fn space(&mut self, space: Space) -> &mut SpaceCount {
        &mut self.spaces[match space {
            Space::Global => 0,
            Space::Shared => 1,
            Space::Local => 2,
            Space::Const | Space::Param => 3,
        }]
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.executed.iter_mut().zip(&other.executed) {
            mine.add(theirs);
        }
        for (mine, theirs) in self.spaces.iter_mut().zip(&other.spaces) {
            mine.add(theirs);
        }
        self.wavefronts += other.wavefronts;
        self.wavefronts_ideal += other.wavefronts_ideal;
        self.atomics += other.atomics;
        self.barrier_arrivals += other.barrier_arrivals;
        self.divergent_branches += other.divergent_branches;
        self.asynchronous.add(&other.asynchronous);
        self.tensor.add(&other.tensor);
        self.tensor_memory.read += other.tensor_memory.read;
        self.tensor_memory.written += other.tensor_memory.written;
        self.ctas += other.ctas;
        self.clusters += other.clusters;
        self.threads += other.threads;
        self.printed.extend_from_slice(&other.printed);
    }

    /// Returns the printed text, cluster after cluster.
    pub(crate) fn printed(&mut self) -> String {
        self.printed.sort_by_key(|(cluster, _)| *cluster);
        self.printed.iter().map(|(_, text)| text.as_str()).collect()
    }

    pub(crate) fn fold(&self, code: &[Instr], unique: (u64, u64)) -> Counters {
        let mut counters = Counters {
            ctas: self.ctas,
            clusters: self.clusters,
            threads: self.threads,
            global: self.spaces[0],
            shared: self.spaces[1],
            local: self.spaces[2],
            constant: self.spaces[3],
            global_unique_bytes_read: unique.0,
            global_unique_bytes_written: unique.1,
            shared_wavefronts: self.wavefronts,
            shared_wavefronts_ideal: self.wavefronts_ideal,
            atomics: self.atomics,
            barrier_arrivals: self.barrier_arrivals,
            divergent_branches: self.divergent_branches,
            asynchronous: self.asynchronous,
            tensor: self.tensor,
            ..Counters::default()
        };
        for (instr, &Executed { warps: warp, threads: lane, .. }) in code.iter().zip(&self.executed)
        {
            if warp != 0 {
                let family: &mut FamilyCount = counters.families.entry(instr.family).or_default();
                family.warp += warp;
                family.lane += lane;
                counters.warp_instructions += warp;
                counters.lane_instructions += lane;
            }
        }
        counters.levels.tensor_memory = self.tensor_memory;
        counters.add_levels();
        counters
    }
}
