//! A GEMV as a swapped product of one token: whether the tensor cores take it sooner than the kernels of a
//! GEMV. Both are estimated by published rates and counts of instructions, not by measurements of ours.

use super::sm100::{ENDS, Estimate, Rates, choose};
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::{Problem, ResultType};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, WARP};

/// Instructions that an SM issues in a clock, half of what its quarters could: their warps wait for weights in
/// between. For the public contest's three shapes the best published kernels, which convert and multiply like
/// ours, take 2.15 times as long as DRAM on a B200; by this rate ours take 2.2 times as long.
const ISSUED: u64 = 2;

/// Instructions of the kernels' PTX that a warp of a GEMV issues for a block of each lane, counted by the emulator
/// in launches with many rows per CTA.
#[must_use]
pub const fn issued_per_block(scales: ScaleLayout) -> u64 {
    match scales {
        ScaleLayout::Linear => 44,
        ScaleLayout::Blocked128x4 => 46,
    }
}

/// The problem of a GEMV with weights of `m` rows: one token, and a column for each row.
#[must_use]
pub const fn problem(m: u32, k: u32, l: u32) -> Problem {
    Problem { m: 1, n: m, k, l }
}

/// Estimated clocks of the kernels of a GEMV, whose weights' scales are in `scales`: DRAM delivers the
/// operands, or all SMs issue their instructions.
#[must_use]
pub fn own_clocks(
    problem: &Problem,
    scales: ScaleLayout,
    result: ResultType,
    rates: &Rates,
) -> u64 {
    let Problem { n, k, l, .. } = *problem;
    let [n, k, l] = [n, k, l].map(u64::from);
    let block = Nvfp4::BLOCK as u64;
    let row = k / 2 + k / block;
    let bytes = (n + 1) * row * l + result.bytes(n * l);
    let blocks = (n * l * (k / block)).div_ceil(u64::from(WARP));
    let sms = u64::from(rates.clusters.of(1).max(1));
    let issue = blocks * issued_per_block(scales) / (ISSUED * sms);
    ENDS + issue.max(bytes / u64::from(rates.dram_rate))
}

/// The best product on the tensor cores. None for sizes that no kernel takes: rows of weights are
/// multiples of 16 bytes.
#[must_use]
pub fn product(problem: &Problem, result: ResultType, rates: &Rates) -> Option<Estimate> {
    if !takes_k(problem.k) {
        return None;
    }
    choose(Format::Nvfp4, None, problem, result, rates).filter(|found| found.swapped)
}

/// The product by this configuration, its split the better one.
#[must_use]
pub fn by(
    config: &'static Sm100Config,
    problem: &Problem,
    result: ResultType,
    rates: &Rates,
) -> Option<Estimate> {
    if !takes_k(problem.k) {
        return None;
    }
    config
        .splits()
        .filter_map(|split| Estimate::new(config, true, split, problem, result, rates))
        .min_by_key(Estimate::rank)
}

/// Whether rows of `k` elements are multiples of 16 bytes, as the copy engine takes them.
#[must_use]
pub const fn takes_k(k: u32) -> bool {
    k > 0 && !fp4_formats::gemm::sm100::prepare::codes_need_it(k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fp4_formats::FloatType;

    const F16: ResultType = ResultType::Floats(FloatType::F16);

    /// Choices by size: tensor cores are sooner for large weights; for small ones the ends of their
    /// kernels cost more.
    #[test]
    fn choices() {
        let sooner = |m, k, l, scales| {
            let problem = problem(m, k, l);
            let found = product(&problem, F16, &Rates::B200).unwrap();
            assert!(found.swapped && found.config.columns <= 32, "{}", found.config.name);
            found.clocks < own_clocks(&problem, scales, F16, &Rates::B200)
        };
        for scales in ScaleLayout::ALL {
            assert!(sooner(7168, 16384, 1, scales) && sooner(4096, 7168, 8, scales));
            assert!(sooner(7168, 2048, 4, scales));
            assert!(!sooner(512, 512, 2, scales) && !sooner(128, 256, 1, scales));
        }
        assert!(product(&problem(128, 48, 1), F16, &Rates::B200).is_none());
        assert!(product(&problem(128, 0, 1), F16, &Rates::B200).is_none());
    }

    /// The contest's shapes take about 2.2 times as long as DRAM, the shortest more, because of launch and end.
    #[test]
    fn as_published() {
        for (m, k, l) in [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)] {
            let problem = problem(m, k, l);
            let clocks = own_clocks(&problem, ScaleLayout::Blocked128x4, F16, &Rates::B200);
            let bytes = u64::from(m) * u64::from(l) * u64::from(k / 2 + k / 16);
            let dram = bytes as f64 / f64::from(Rates::B200.dram_rate);
            let ratio = clocks as f64 / dram;
            assert!((1.94..2.6).contains(&ratio), "{m} {k} {l}: {ratio}");
        }
    }

    /// Limits: slow DRAM is the limit, whatever is issued.
    #[test]
    fn limits() {
        let problem = problem(4096, 4096, 1);
        let slow = Rates { dram_rate: 16, ..Rates::B200 };
        let [linear, blocked] =
            ScaleLayout::ALL.map(|scales| own_clocks(&problem, scales, F16, &slow));
        let bytes = 4097 * (2048 + 256) + 2 * 4096;
        assert_eq!([linear, blocked], [ENDS + bytes / 16; 2]);
        let [linear, blocked] =
            ScaleLayout::ALL.map(|scales| own_clocks(&problem, scales, F16, &Rates::B200));
        assert!(linear < blocked);
    }
}
