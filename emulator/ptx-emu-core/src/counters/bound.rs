//! The least time that a GPU could take for the counted work.

use super::{Counters, Family};
use crate::Gpu;
use serde::Serialize;

/// One limit of the machine and the time it alone would force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Its name: `dram`, `l2`, `issue`, `integer`, `float`, `half`, `double`, `shared`, `tensor`.
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
    /// Bytes that asynchronous copies and tensor cores move through the shared
    /// memory of some CTA, beside the loads and stores of instructions.
    fn beside_loads(&self) -> u64 {
        let moved = self.asynchronous.shared_bytes();
        moved.read + moved.written + self.tensor.shared_bytes
    }

    /// Clocks for which the tensor cores of an SM, that of a sub-core at a quarter of the rate, are busy
    /// with all products together.
    #[must_use]
    pub fn tensor_clocks(&self, gpu: &Gpu) -> f64 {
        let slower = (gpu.tensor_f32_time - 1.0) * self.tensor.half_equivalents_in_f32();
        (self.tensor.half_equivalents() + slower) / gpu.tensor_macs_per_clock
    }

    /// The time below which no schedule can get on `gpu`: each resource works
    /// at its peak rate, everything overlaps perfectly, SMs without a CTA idle,
    /// and every distinct sector crosses DRAM once. The cold-cache case is
    /// meant; data already in L2 may beat the `dram` part.
    ///
    /// The machine runs machine code, not PTX. The assembler drops moves, conversions and predicate
    /// arithmetic where it can and fuses integer operations in pairs (three-input add and logic,
    /// multiply-add), so those families do not count and integer operations count half.
    ///
    /// `shared` is the bandwidth of shared memory, which instructions, asynchronous copies and the
    /// operands of tensor cores use together: 128 bytes per clock and SM.
    #[must_use]
    pub fn lower_bound(&self, gpu: &Gpu) -> LowerBound {
        let sms = f64::from(gpu.sms).min(self.ctas.max(1) as f64);
        let clocks =
            |amount: u64, per_sm_clock: f64| amount as f64 / (per_sm_clock * sms * gpu.clock_hz);
        let lane = |family| self.family(family).lane;
        let unique = (self.global_unique_bytes_read + self.global_unique_bytes_written) as f64;
        let beside = self.beside_loads();
        let shared_clocks = beside.div_ceil(u64::from(gpu.shared_bytes_per_clock));
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
                unique / (gpu.l2_bytes_per_clock * gpu.clock_hz),
            ),
            part("issue", clocks(issued, gpu.issue_per_clock)),
            part("integer", clocks(integer.lane / 2, gpu.int_lanes_per_clock)),
            part("float", clocks(lane(Family::Float), gpu.float_lanes_per_clock)),
            part("half", clocks(lane(Family::Half), gpu.half_lanes_per_clock)),
            part("double", clocks(lane(Family::Double), gpu.double_lanes_per_clock)),
            part("shared", clocks(self.shared_wavefronts + shared_clocks, 1.0)),
            part("tensor", self.tensor_clocks(gpu) / (sms * gpu.clock_hz)),
        ];
        let worst = parts.iter().fold(part("none", 0.0), |worst, part| {
            if part.seconds > worst.seconds { part.clone() } else { worst }
        });
        LowerBound { gpu: gpu.name, seconds: worst.seconds, by: worst.name, parts }
    }
}
