//! Lower bounds of the time of launches on the machines of sm_120f, against the least that any kernel needs. They are
//! bounds, never times: nothing of a latency is in them.

use ptx_emu::{Counters, Gpu, LaunchReport};

/// Returns the machines of sm_120f, from 48 to 188 SMs.
#[must_use]
pub const fn machines() -> [Gpu; 3] {
    [Gpu::rtx5090(), Gpu::rtx_pro_6000(), Gpu::dgx_spark()]
}

/// The least that a product of e2m1 by e2m1 needs, whatever the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Needed {
    /// Distinct bytes of the operands.
    pub operands: u64,
    /// Bytes of the result.
    pub result: u64,
    /// Multiply-adds.
    pub products: u64,
}

impl Needed {
    /// Returns the bytes that a launch reads because it has written them before, partial sums, of which none is read
    /// but from L2. They are written to memory nevertheless.
    fn reread(&self, counters: &Counters) -> u64 {
        let beside = counters.global_unique_bytes_read.saturating_sub(self.operands);
        beside.min(counters.global_unique_bytes_written.saturating_sub(self.result))
    }

    /// Returns the seconds for which the bytes are on the way from or to memory.
    fn dram(&self, gpu: &Gpu) -> f64 {
        (self.operands + self.result) as f64 / gpu.dram_bytes_per_s
    }

    /// Returns the seconds for which the tensor cores of all SMs multiply: four products of e2m1 take the time of
    /// one of f16.
    fn tensor(&self, gpu: &Gpu) -> f64 {
        let rate = 4.0 * gpu.tensor_macs_per_clock * f64::from(gpu.sms) * gpu.clock_hz;
        self.products as f64 / rate
    }
}

/// The tiles of a launch that are not divided among CTAs: the SM that has most of them is busy for longer than on average.
/// If CTAs divide tiles, their parts differ by a step at most.
#[derive(Debug, Clone, Copy)]
pub enum Spread {
    /// All SMs have the same work.
    Even,
    /// So many whole tiles.
    Tiles(u64),
}

impl Spread {
    /// Returns the work of the busiest SM as a multiple of the mean over the SMs that have a CTA.
    fn busiest(self, sms: u64) -> f64 {
        match self {
            Self::Even => 1.0,
            Self::Tiles(tiles) => (tiles.div_ceil(sms) * sms) as f64 / tiles as f64,
        }
    }
}

/// The lower bound of launches as a multiple of what is needed.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The launches' bound, over the larger of the times that memory and tensor cores need.
    pub over: f64,
    /// Names of what bounds each launch and the need, for messages.
    pub text: String,
}

/// Returns the bound of launches one after the other, the last of which has its work spread like this.
///
/// # Panics
/// If there is no launch.
#[must_use]
pub fn bound(reports: &[LaunchReport], gpu: &Gpu, needed: Needed, spread: Spread) -> Bound {
    let (last, _) = reports.split_last().expect("a launch");
    let [dram, tensor] = [needed.dram(gpu), needed.tensor(gpu)];
    let least = dram.max(tensor);
    let mut text = format!("dram {:.2}, tensor {:.2} are needed; ", dram / least, tensor / least);
    let mut seconds = 0.0;
    for report in reports {
        let counters = &report.counters;
        let (busiest, reread) = match std::ptr::eq(report, last) {
            true => {
                (spread.busiest(u64::from(gpu.sms).min(counters.ctas)), needed.reread(counters))
            }
            false => (1.0, 0),
        };
        let parts = counters.lower_bound(gpu).parts.into_iter().map(|part| {
            // Memory and L2 serve all SMs.
            let seconds = match part.name {
                "dram" => part.seconds - reread as f64 / gpu.dram_bytes_per_s,
                "l2" => part.seconds,
                _ => part.seconds * busiest,
            };
            (part.name, seconds)
        });
        let parts: Vec<(&str, f64)> = parts.collect();
        seconds += parts.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        for (name, seconds) in parts.iter().filter(|(_, seconds)| *seconds > 0.1 * least) {
            text += &format!("{name} {:.3} ", seconds / least);
        }
    }
    Bound { over: seconds / least, text }
}
