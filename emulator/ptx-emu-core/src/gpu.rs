//! Descriptions of GPUs: the limits of a launch, and the rates from which
//! [`Counters::lower_bound`](crate::Counters::lower_bound) computes a bound.

use crate::syntax;

/// One GPU, as far as the emulator needs to know it.
///
/// Sources: the occupancy and arithmetic-throughput tables of the CUDA C++ Programming Guide
/// (compute capabilities 8.0 to 12.x), and for SMs, clocks, memory rate, cache size and rates of tensor
/// cores the vendor's data sheets and the architecture papers of GA100, GA102, AD102, GH100 and GB202.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Short name as given to `--gpu`; [`names`](Self::names) lists all.
    pub name: &'static str,
    /// Architecture whose PTX it runs, with its feature suffix if it has one: `sm_80`, `sm_90a`.
    pub arch: &'static str,
    /// Whether it loads modules that ptxas refuses: with statements that their target or version lacks,
    /// or that no version of PTX has, or with too much static shared memory.
    pub lax: bool,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// SMs of each graphics processing cluster (GPC); the CTAs of a cluster are on SMs of one. If
    /// they are not all [`sms`](Self::sms), all are in one.
    pub gpcs: &'static [u32],
    /// Device memory rate, bytes per second.
    pub dram_bytes_per_s: f64,
    /// Level-2 cache, bytes.
    pub l2_bytes: u64,
    /// Level-2 to SM rate of the whole machine, bytes per clock.
    pub l2_bytes_per_clock: f64,
    /// Boost clock of an SM, Hz.
    pub clock_hz: f64,
    /// Warp instructions that an SM issues per clock.
    pub issue_per_clock: f64,
    /// 32-bit integer lane operations that an SM completes per clock, over all pipes
    /// that take some of them.
    pub int_lanes_per_clock: f64,
    /// f32 lane operations (fma counts one) an SM completes per clock.
    pub float_lanes_per_clock: f64,
    /// Packed half (f16x2, bf16x2) lane operations that an SM completes per clock.
    pub half_lanes_per_clock: f64,
    /// f64 lane operations that an SM completes per clock.
    pub double_lanes_per_clock: f64,
    /// Dense f16 multiply-adds of an SM's tensor cores per clock.
    pub tensor_macs_per_clock: f64,
    /// Time of a floating-point product whose sums are f32, as a multiple of that of one whose sums
    /// are f16. Products with block scales, which have f32 sums only, take the time of f16 sums.
    pub tensor_f32_time: f64,
    /// Bytes of shared memory an SM moves per clock (one wavefront).
    pub shared_bytes_per_clock: u32,
    /// Shared memory of an SM, bytes.
    pub shared_per_sm: u32,
    /// Largest static plus dynamic shared memory of a CTA, bytes.
    pub shared_per_cta: u32,
    /// Largest number of threads of a CTA.
    pub max_threads_per_cta: u32,
    /// Largest block extent in x, y, z.
    pub max_block: [u32; 3],
    /// Largest grid extent in x, y, z.
    pub max_grid: [u32; 3],
    /// Largest cluster, CTAs (non-portable size included).
    pub max_cluster: u32,
    /// Threads resident on an SM.
    pub max_threads_per_sm: u32,
    /// CTAs resident on an SM.
    pub max_ctas_per_sm: u32,
}

impl Gpu {
    /// NVIDIA A100 SXM (GA100, 80 GB HBM2e), `sm_80`.
    #[must_use]
    pub const fn a100() -> Self {
        Self {
            name: "a100",
            arch: "sm_80",
            lax: false,
            sms: 108,
            // It has no clusters.
            gpcs: &[],
            dram_bytes_per_s: 2.039e12,
            l2_bytes: 40 << 20,
            l2_bytes_per_clock: 5120.0,
            clock_hz: 1.41e9,
            float_lanes_per_clock: 64.0,
            double_lanes_per_clock: 32.0,
            tensor_macs_per_clock: 1024.0,
            shared_per_sm: 164 << 10,
            shared_per_cta: 163 << 10,
            max_cluster: 1,
            ..Self::h200()
        }
    }

    /// NVIDIA GeForce RTX 3090 (GA102, 24 GB GDDR6X), `sm_86`.
    #[must_use]
    pub const fn rtx3090() -> Self {
        Self {
            name: "rtx3090",
            arch: "sm_86",
            lax: false,
            sms: 82,
            dram_bytes_per_s: 0.936e12,
            l2_bytes: 6 << 20,
            // Assumed: 64 bytes per SM, the most that an SM takes. No sheet has the rate.
            l2_bytes_per_clock: 82.0 * 64.0,
            clock_hz: 1.695e9,
            float_lanes_per_clock: 128.0,
            half_lanes_per_clock: 64.0,
            double_lanes_per_clock: 2.0,
            tensor_macs_per_clock: 512.0,
            // 142 TFLOP/s with f16 sums, 71 with f32 sums.
            tensor_f32_time: 2.0,
            shared_per_sm: 100 << 10,
            shared_per_cta: 99 << 10,
            max_threads_per_sm: 1536,
            max_ctas_per_sm: 16,
            ..Self::a100()
        }
    }

    /// NVIDIA GeForce RTX 4090 (AD102, 24 GB GDDR6X), `sm_89`.
    #[must_use]
    pub const fn rtx4090() -> Self {
        Self {
            name: "rtx4090",
            arch: "sm_89",
            lax: false,
            sms: 128,
            dram_bytes_per_s: 1.008e12,
            l2_bytes: 72 << 20,
            // Assumed, as of the RTX 3090.
            l2_bytes_per_clock: 128.0 * 64.0,
            clock_hz: 2.52e9,
            max_ctas_per_sm: 24,
            ..Self::rtx3090()
        }
    }

    /// NVIDIA L40S (AD102, 48 GB GDDR6), `sm_89`. Unlike GeForce, it sums products in f32 at the full rate.
    #[must_use]
    pub const fn l40s() -> Self {
        Self {
            name: "l40s",
            sms: 142,
            dram_bytes_per_s: 0.864e12,
            l2_bytes: 96 << 20,
            // Assumed, as of the RTX 3090.
            l2_bytes_per_clock: 142.0 * 64.0,
            tensor_f32_time: 1.0,
            ..Self::rtx4090()
        }
    }

    /// NVIDIA H200 (GH100, 141 GB HBM3e), `sm_90a`.
    #[must_use]
    pub const fn h200() -> Self {
        Self {
            name: "h200",
            arch: "sm_90a",
            lax: false,
            sms: 132,
            // Inferred from which launches take twice as long on one.
            gpcs: &[18, 18, 18, 18, 16, 16, 16, 12],
            dram_bytes_per_s: 4.8e12,
            l2_bytes: 60 << 20,
            l2_bytes_per_clock: 5120.0,
            clock_hz: 1.98e9,
            issue_per_clock: 4.0,
            int_lanes_per_clock: 128.0,
            float_lanes_per_clock: 128.0,
            half_lanes_per_clock: 128.0,
            double_lanes_per_clock: 64.0,
            tensor_macs_per_clock: 2048.0,
            tensor_f32_time: 1.0,
            shared_bytes_per_clock: 128,
            shared_per_sm: 228 << 10,
            shared_per_cta: 227 << 10,
            max_threads_per_cta: 1024,
            max_block: [1024, 1024, 64],
            max_grid: [0x7fff_ffff, 65535, 65535],
            max_cluster: 16,
            max_threads_per_sm: 2048,
            max_ctas_per_sm: 32,
        }
    }

    /// NVIDIA B200 (192 GB HBM3e), `sm_100a`.
    #[must_use]
    pub const fn b200() -> Self {
        Self {
            name: "b200",
            arch: "sm_100a",
            lax: false,
            sms: 148,
            // Assumed: even numbers, as unequal as two of an H200's. No B200 was asked.
            gpcs: &[20, 20, 18, 18, 18, 18, 18, 18],
            dram_bytes_per_s: 8.0e12,
            l2_bytes: 126 << 20,
            l2_bytes_per_clock: 6144.0,
            clock_hz: 1.965e9,
            tensor_macs_per_clock: 4096.0,
            ..Self::h200()
        }
    }

    /// NVIDIA B300 (288 GB HBM3e), `sm_103a`. Its counted rates differ from a B200's only in f64.
    #[must_use]
    pub const fn b300() -> Self {
        Self { name: "b300", arch: "sm_103a", double_lanes_per_clock: 2.0, ..Self::b200() }
    }

    /// NVIDIA GeForce RTX 5090 (GB202, 32 GB GDDR7), `sm_120a`: 1676 TFLOP/s of FP4.
    #[must_use]
    pub const fn rtx5090() -> Self {
        Self {
            name: "rtx5090",
            arch: "sm_120a",
            lax: false,
            sms: 170,
            dram_bytes_per_s: 1.792e12,
            l2_bytes: 96 << 20,
            // Assumed, as of the RTX 3090.
            l2_bytes_per_clock: 170.0 * 64.0,
            clock_hz: 2.407e9,
            // The portable size; no sheet has a larger one. The SMs of its GPCs are not published either.
            max_cluster: 8,
            ..Self::rtx4090()
        }
    }

    /// NVIDIA RTX PRO 6000 Blackwell Workstation Edition (GB202, 96 GB GDDR7), `sm_120a`. Unlike GeForce, it
    /// sums products in f32 at the full rate.
    #[must_use]
    pub const fn rtx_pro_6000() -> Self {
        Self {
            name: "rtx-pro-6000",
            sms: 188,
            l2_bytes: 128 << 20,
            // Assumed, as of the RTX 3090.
            l2_bytes_per_clock: 188.0 * 64.0,
            clock_hz: 2.617e9,
            tensor_f32_time: 1.0,
            ..Self::rtx5090()
        }
    }

    /// NVIDIA DGX Spark (GB10, 128 GB LPDDR5X that CPU and GPU share), `sm_121a`.
    #[must_use]
    pub const fn dgx_spark() -> Self {
        Self {
            name: "dgx-spark",
            arch: "sm_121a",
            lax: false,
            sms: 48,
            dram_bytes_per_s: 0.273e12,
            l2_bytes: 24 << 20,
            // Assumed, as of the RTX 3090.
            l2_bytes_per_clock: 48.0 * 64.0,
            clock_hz: 2.418e9,
            // Assumed: the sheet has no rate of f32 sums, and a bound must not be too high.
            tensor_f32_time: 1.0,
            ..Self::rtx5090()
        }
    }

    /// All machines that are described, in the order of their compute capabilities.
    pub const ALL: [Self; 10] = [
        Self::a100(),
        Self::rtx3090(),
        Self::rtx4090(),
        Self::l40s(),
        Self::h200(),
        Self::b200(),
        Self::b300(),
        Self::rtx5090(),
        Self::rtx_pro_6000(),
        Self::dgx_spark(),
    ];

    /// The names of all machines, for messages: `a100, rtx3090 or h200`.
    #[must_use]
    pub fn names() -> String {
        let [first @ .., last] = Self::ALL.map(|gpu| gpu.name);
        format!("{} or {last}", first.join(", "))
    }

    /// The targets that it runs, in words.
    #[must_use]
    pub fn targets(&self) -> String {
        let Some(own) = Target::parse(self.arch) else {
            return "none".to_owned();
        };
        if own.suffix.is_none() {
            return format!("sm_{} or lower", own.number);
        }
        // Family targets begin with compute capability 10.0 (PTX ISA 11.1.2).
        let families = (own.number / 10 * 10..=own.number)
            .rev()
            .filter(|number| *number >= 100 && Self::ALL.iter().any(|gpu| gpu.is_of(*number)))
            .map(|number| format!("sm_{number}f, "));
        format!("sm_{0}a, {1}and sm_{0} or lower", own.number, families.collect::<String>())
    }

    fn is_of(&self, number: u32) -> bool {
        Target::parse(self.arch).is_some_and(|own| own.number == number)
    }

    /// Clusters of `size` CTAs that it holds at a time, if an SM holds `per_sm` of the CTAs.
    #[must_use]
    pub fn resident_clusters(&self, size: u32, per_sm: u32) -> u32 {
        let of = |sms: u32| sms * per_sm / size.max(1);
        if self.gpcs.iter().sum::<u32>() != self.sms {
            return of(self.sms);
        }
        self.gpcs.iter().copied().map(of).sum()
    }

    /// Its compute capability, major and minor; 0.0 if [`arch`](Self::arch) is no target.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        Target::parse(self.arch).map_or((0, 0), |target| (target.number / 10, target.number % 10))
    }

    /// The machine of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    /// The machine that a PTX module is for: the one of the lowest compute capability that runs it.
    /// An H200 if there is none, so that loading says what is wrong.
    #[must_use]
    pub fn for_module(text: &str) -> Self {
        let targets = syntax::targets(text).unwrap_or_default();
        let accepts = |gpu: &Self| targets.first().is_some_and(|target| gpu.accepts(target));
        Self::ALL.into_iter().find(accepts).unwrap_or_else(Self::h200)
    }

    /// Whether PTX for `target` (`sm_80`, `sm_90a`, `sm_100f`) runs here: a
    /// plain target on every equal or later architecture, an `a` target only on
    /// exactly that one, an `f` target within its family (PTX ISA 11.1.2).
    #[must_use]
    pub fn accepts(&self, target: &str) -> bool {
        let (Some(want), Some(have)) = (Target::parse(target), Target::parse(self.arch)) else {
            return false;
        };
        match want.suffix {
            None => want.number <= have.number,
            // Only machines with a suffix have features of their own.
            Some(_) if have.suffix.is_none() => false,
            Some('f') => want.number / 10 == have.number / 10 && want.number <= have.number,
            Some(_) => want.number == have.number,
        }
    }
}

/// A `.target`: the compute capability times ten, and `a` or `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) number: u32,
    pub(crate) suffix: Option<char>,
}

impl Target {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("sm_")?;
        let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let suffix = match &rest[digits.len()..] {
            "" => None,
            "a" => Some('a'),
            "f" => Some('f'),
            _ => return None,
        };
        Some(Self { number: digits.parse().ok()?, suffix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_in_gpcs() {
        let b200 = Gpu::b200();
        assert_eq!([1, 2, 4, 8].map(|size| b200.resident_clusters(size, 1)), [148, 74, 34, 16]);
        assert_eq!(b200.resident_clusters(8, 2), 34);
        let few = Gpu { sms: 10, ..b200 };
        assert_eq!([1, 4, 16].map(|size| few.resident_clusters(size, 1)), [10, 2, 0]);
    }

    #[test]
    fn targets_in_words_are_those_accepted() {
        let targets = Gpu::ALL.map(|gpu| gpu.targets());
        assert_eq!(targets[0], "sm_80 or lower");
        assert_eq!(targets[2], "sm_89 or lower");
        assert_eq!(targets[4], "sm_90a, and sm_90 or lower");
        assert_eq!(targets[5], "sm_100a, sm_100f, and sm_100 or lower");
        assert_eq!(targets[6], "sm_103a, sm_103f, sm_100f, and sm_103 or lower");
        assert_eq!(targets[7], "sm_120a, sm_120f, and sm_120 or lower");
        assert_eq!(targets[9], "sm_121a, sm_121f, sm_120f, and sm_121 or lower");
        for (gpu, targets) in Gpu::ALL.iter().zip(&targets) {
            for part in targets.split(", ").filter(|part| part.starts_with("sm_")) {
                let target = part.split(' ').next().unwrap_or_default();
                assert!(gpu.accepts(target), "{} {target}", gpu.name);
            }
        }
    }

    #[test]
    fn later_machines_run_what_earlier_ones_do() {
        let runs = |target: &str| {
            let all = Gpu::ALL.into_iter().filter(|gpu| gpu.accepts(target));
            all.map(|gpu| gpu.name).collect::<Vec<_>>().join(" ")
        };
        let twelve = "rtx5090 rtx-pro-6000 dgx-spark";
        assert_eq!(runs("sm_80"), format!("a100 rtx3090 rtx4090 l40s h200 b200 b300 {twelve}"));
        assert_eq!(runs("sm_86"), format!("rtx3090 rtx4090 l40s h200 b200 b300 {twelve}"));
        assert_eq!(runs("sm_89"), format!("rtx4090 l40s h200 b200 b300 {twelve}"));
        assert_eq!(runs("sm_90"), format!("h200 b200 b300 {twelve}"));
        assert_eq!(runs("sm_90a"), "h200");
        assert_eq!(runs("sm_100"), format!("b200 b300 {twelve}"));
        assert_eq!(runs("sm_100f"), "b200 b300");
        assert_eq!((runs("sm_120"), runs("sm_120f")), (twelve.to_owned(), twelve.to_owned()));
        assert_eq!(runs("sm_120a"), "rtx5090 rtx-pro-6000");
        for target in ["sm_121", "sm_121a", "sm_121f"] {
            assert_eq!(runs(target), "dgx-spark", "{target}");
        }
        assert_eq!((runs("sm_80a"), runs("sm_89f")), (String::new(), String::new()));
    }

    /// The products of the data sheets, in FLOP/s: dense f16 with f16 and with f32 sums.
    #[test]
    fn rates_are_those_of_the_sheets() {
        for (gpu, half, single) in [
            (Gpu::a100(), 312e12, 312e12),
            (Gpu::rtx3090(), 142e12, 71e12),
            (Gpu::rtx4090(), 330.3e12, 165.2e12),
            (Gpu::l40s(), 362.05e12, 362.05e12),
            (Gpu::rtx5090(), 419e12, 209.5e12),
            (Gpu::rtx_pro_6000(), 503.8e12, 503.8e12),
        ] {
            let rate = 2.0 * gpu.tensor_macs_per_clock * f64::from(gpu.sms) * gpu.clock_hz;
            // The L40S's sheet reckons with a clock 1.2 % below the boost clock.
            assert!((rate / half - 1.0).abs() < 0.013, "{} {rate:e}", gpu.name);
            let rate = rate / gpu.tensor_f32_time;
            assert!((rate / single - 1.0).abs() < 0.013, "{} {rate:e}", gpu.name);
        }
        // Dense FP4 has four times the rate of f16 with f16 sums: 4096 FLOP of an SM per clock. The sheet of
        // DGX Spark rounds up to a PFLOP/s of sparse products, twice that of dense ones.
        for (gpu, nibbles, near) in [
            (Gpu::rtx5090(), 1676e12, 0.01),
            (Gpu::rtx_pro_6000(), 2015e12, 0.01),
            (Gpu::dgx_spark(), 500e12, 0.06),
        ] {
            assert_eq!(4.0 * 2.0 * gpu.tensor_macs_per_clock, 4096.0, "{}", gpu.name);
            let rate = 4096.0 * f64::from(gpu.sms) * gpu.clock_hz;
            assert!((rate / nibbles - 1.0).abs() < near, "{} {rate:e}", gpu.name);
        }
    }

    #[test]
    fn machine_follows_the_target() {
        for (target, name) in [
            ("sm_90a", "h200"),
            ("sm_100a", "b200"),
            ("sm_100f", "b200"),
            ("sm_103a", "b300"),
            ("sm_75", "a100"),
            ("sm_80", "a100"),
            ("sm_86", "rtx3090"),
            ("sm_87", "rtx4090"),
            ("sm_89", "rtx4090"),
            ("sm_90", "h200"),
            ("sm_100", "b200"),
            ("sm_110a", "h200"),
            ("sm_110", "rtx5090"),
            ("sm_120", "rtx5090"),
            ("sm_120a", "rtx5090"),
            ("sm_120f", "rtx5090"),
            ("sm_121", "dgx-spark"),
            ("sm_121a", "dgx-spark"),
            ("sm_121f", "dgx-spark"),
        ] {
            let text = format!(".version 9.0\n.target {target}\n");
            assert_eq!(Gpu::for_module(&text).name, name, "{target}");
        }
        assert_eq!(Gpu::for_module("not PTX").name, "h200");
    }
}
