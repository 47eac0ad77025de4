//! The cost model of configurations and schedules, and the choice by it.

use fp4_formats::Operand;
use fp4_formats::gemm::sm90::config::{
    CONFIGS, GROUPED, K_STEP, MIXED, Sm90Config, TRIMMED_TOKENS, WIDE_NARROWEST,
};
use fp4_formats::gemm::{Adding, Problem, ResultType, Schedule, Split};
use fp4_formats::quantize::Format;

use super::fragments::{
    Costs, Estimate, FIX_UP_BYTES, HANDOVER_CYCLES, LAUNCH_CYCLES, STORE_BYTES, block_cycles,
    every_tile_has_cycles, fix_up_steps, whole_tiles,
};

/// Returns the cycles of an SM for a step of a tile of `width` tokens, decoded and multiplied; for narrowed
/// tiles, those of the configuration's tokens. These constants reproduce launches that follow one another on
/// an H200, in which parts of one overlap the next. 0 for a tile that no configuration has.
const fn product_cycles(config: &Sm90Config, width: u32) -> u32 {
    let decodes_more = matches!(config.scheme.format, Format::Nvfp4);
    match (config.scheme.operand, config.rows, config.tokens) {
        (Operand::E4m3, 128, 32) => 400,
        (Operand::E4m3, 128, 64) => 450,
        (Operand::E4m3, 128, 128) if matches!(config.adding, Adding::Fast) => 700,
        (Operand::E4m3, 128, 128) if decodes_more => 820,
        (Operand::E4m3, 128, 128) => 770,
        (Operand::E4m3, 128, 160) => 920,
        (Operand::E4m3, 128, 192) => 1000,
        (Operand::E4m3, 128, 256) => 1060,
        (Operand::Half(_), 128, 8) => 330,
        (Operand::Half(_), 128, 16) => 430,
        (Operand::Half(_), 128, 32) => 550,
        (Operand::Half(_), 128, 48) if width <= TRIMMED_TOKENS[0] => 555,
        (Operand::Half(_), 128, 48) if width <= TRIMMED_TOKENS[1] => 585,
        (Operand::Half(_), 128, 48) => 605,
        (Operand::Half(_), 128, 64) => 650,
        (Operand::Half(_), 128, 128) => 1060,
        (Operand::Half(_), 128, 256) | (Operand::Half(_), 256, 128) => 2200,
        _ => 0,
    }
}

/// Returns [`product_cycles`] of a tile that is not narrowed.
const fn own_cycles(config: &Sm90Config) -> u32 {
    product_cycles(config, config.tokens)
}

every_tile_has_cycles!(Sm90Config, own_cycles);

/// Bytes per cycle from memory to all SMs.
const DRAM_BYTES: u64 = 2075;
/// Bytes of activations per cycle from L2, while weights come from memory.
const ACTIVATION_BYTES: u64 = 8000;
/// Bytes per cycle from L2 to all SMs.
const L2_BYTES: u64 = 4900;
/// More cycles of a launch for each of its CTAs.
const CTA_CYCLES: u64 = 30;
/// Bytes of sums per cycle from registers to float results that [do not go through the
/// stages](Sm90Config::stages_results).
const STAGED_BYTES: u64 = 67;
/// More for each CTA of a cluster after the first.
const MEMBER_CYCLES: u64 = 1300;
/// More for a launch of grouped products with multicast.
const MULTICAST_CYCLES: u64 = 2300;
/// More for a launch with multicast, whose CTAs copy nothing before the barrier of their cluster,
/// and for each step.
const MEETING_CYCLES: u64 = 1500;
const SHARE_CYCLES: u64 = 20;
/// More for a launch whose last products of e4m3 are promoted, of 128 x 7168 x 16384, whose limit is memory: 1.1 us.
const PROMOTION_CYCLES: u64 = 1900;
/// Bytes of partial sums per cycle from each contributor of a fix-up, if the producer has copied them.
const COPIED_BYTES: u64 = 60;
/// The difference of a grouped product in tiles of eight tokens from one in tiles of twice as many: the
/// additional time of a step, and the saved time of the launch. These reproduce 8 to 64 groups of one
/// or two tokens.
const FEW_TOKENS: u32 = 8;
const FEW_STEP_CYCLES: u64 = 69;
const LESS_LAUNCH_CYCLES: u64 = 9000;
/// SMs of an H200's graphics processing clusters, inferred from which launches take twice as
/// long. CTAs of a cluster are on SMs of one of them.
const GPCS: [u32; 8] = [18, 18, 18, 18, 16, 16, 16, 12];
const GPC_SMS: u32 = 132;

/// Clusters of `size` CTAs that run at a time with `resident` CTAs per SM.
const fn clusters(sms: u32, size: u32, resident: u32) -> u64 {
    if size == 1 {
        return sms as u64 * resident as u64;
    }
    let (mut sum, mut i) = (0, 0);
    while i < GPCS.len() {
        sum += (GPCS[i] * sms / GPC_SMS * resident / size) as u64;
        i += 1;
    }
    if sum == 0 { 1 } else { sum }
}

/// Returns the steps of a tile that its owner [keeps](Schedule::keeping), so that partial sums arrive
/// before it has finished: the number that was measured to be best if the producer copies them,
/// otherwise none. Memory is the limit of few tokens, and CTAs that end earlier leave it unused.
const fn kept_steps(config: &Sm90Config) -> u32 {
    if config.copies_partials() { 2 } else { 0 }
}

/// Returns the schedule of a problem. `None` if there are fewer steps than CTAs, too many for a
/// launch, or if the kernel cannot split K so.
#[must_use]
pub fn schedule(
    config: &Sm90Config,
    split: Split,
    problem: &Problem,
    sms: u32,
) -> Option<Schedule> {
    if !config.takes(split) {
        return None;
    }
    let blocks = match split {
        // Sharing tiles among more CTAs than SMs costs more than it brings.
        Split::StreamK => 1,
        Split::None | Split::Cluster(_) => config.min_blocks,
    };
    let fit = clusters(sms, config.multicast, blocks);
    let tiles = config.tiles(problem).count();
    let schedule = Schedule::new(split, tiles, problem.k.div_ceil(K_STEP), fit)?;
    Some(schedule.keeping(kept_steps(config), tiles))
}

/// Returns the cycles of a grouped product in tiles of variable width, with token counts spread evenly from
/// none to twice the expected ones, without the costs that all such configurations have.
fn spread_cycles(config: &Sm90Config, expected: &Problem, runs: u64) -> u64 {
    const COUNTS: u32 = 16;
    let steps = u64::from(expected.k.div_ceil(K_STEP));
    let row_tiles = u64::from(expected.n.div_ceil(config.work_shape().rows));
    let copies = row_tiles * u64::from(expected.l);
    let (mut work, mut tiles, mut longest) = (0, 0, 0);
    let tiling = config.tiling();
    for i in 1..COUNTS {
        let count = (u64::from(expected.m) * u64::from(i) / u64::from(COUNTS / 2)).max(1) as u32;
        let (step, tile) = width_cycles(config, tiling.width(count));
        work += u64::from(tiling.tiles(count)) * (steps * step + tile);
        tiles += u64::from(tiling.tiles(count));
        longest = longest.max(steps * step + tile);
    }
    let of_all = |sum: u64| sum * copies / u64::from(COUNTS - 1);
    let even = of_all(work) / runs;
    let rounds = of_all(tiles).div_ceil(runs);
    // Sorted whole tiles are even but for a part of the lightest ones; of others all may be heavy.
    let whole = if config.is_wide() && rounds > 2 {
        even + work / tiles / 2
    } else {
        (rounds * longest).max(even)
    };
    let meeting = if config.multicast > 1 { MULTICAST_CYCLES } else { 0 };
    whole.min(even + 2 * (u64::from(config.sum_bytes()) / FIX_UP_BYTES) + HANDOVER_CYCLES) + meeting
}

/// Returns the cycles of a step of a tile of `width` tokens, and of the tile besides its steps, in tiles of
/// variable width. These reproduce equal problems of 48 to 256 tokens on an H200.
const fn width_cycles(config: &Sm90Config, width: u32) -> (u64, u64) {
    if matches!(config.scheme.operand, Operand::E4m3) {
        return match config.adding {
            Adding::Promoted => (400 + width as u64 * 3, 3000),
            Adding::Fast => (300 + width as u64 * 36 / 10, 4500),
        };
    }
    if config.is_wide() {
        let read = if width < WIDE_NARROWEST { WIDE_NARROWEST } else { width } as u64;
        (375 + read * 636 / 100, 3300)
    } else {
        let step = match width {
            ..=96 => 840,
            97..=112 => 995,
            113.. => 1050,
        };
        (step, 2800)
    }
}

/// The estimate of a configuration with a schedule.
fn scheduled(
    config: &'static Sm90Config,
    (split, schedule): (Split, Schedule),
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> Option<Estimate<Sm90Config>> {
    let grid = config.tiles(problem);
    let (tiles, row_tiles) = (grid.count(), grid.row_tiles() as u64);
    let runs = schedule.ctas(tiles);
    let ctas = runs * config.multicast as u64;
    let groups = runs / schedule.cluster().value() as u64;
    let cluster = schedule.cluster().value() * config.multicast;
    let mut resident = 1;
    while resident < config.min_blocks && clusters(sms, cluster, resident) < groups {
        resident += 1;
    }
    let waves = groups.div_ceil(clusters(sms, cluster, resident));
    let tiling = config.tiling();
    let step = product_cycles(config, problem.m) * tiling.weight(tiling.width(problem.m))
        / tiling.most_weight();
    let (step, mut bound) = (step * resident, "products");
    let wait = if config.multicast > 1 { SHARE_CYCLES } else { 0 };
    let mut body = waves * schedule.most() as u64 * (step as u64 + wait);
    let weights = problem.n.div_ceil(config.rows) as u64
        * problem.k.div_ceil(K_STEP) as u64
        * config.weight_bytes() as u64
        * problem.l as u64;
    // The first stages of a launch fill while the one before ends.
    let early = ctas * config.stages() as u64 * config.weight_bytes() as u64;
    let stored = match result {
        ResultType::Floats(_) => 0,
        ResultType::Blocks(_) => {
            result.bytes(problem.m as u64 * problem.n as u64 * problem.l as u64)
        }
    };
    let activations = grid.token_tiles() as u64
        * problem.k.div_ceil(K_STEP) as u64
        * config.activation_bytes() as u64
        * problem.l as u64;
    // Fewer CTAs than SMs have fewer bytes in flight.
    let busy = if ctas < sms as u64 { ctas } else { sms as u64 };
    let dram = (weights.saturating_sub(early / 2) + stored) * sms as u64 / busy / DRAM_BYTES
        + activations * row_tiles / ACTIVATION_BYTES;
    if dram > body {
        (body, bound) = (dram, "dram");
    }
    let loaded = weights * grid.token_tiles() as u64 + activations * row_tiles;
    if loaded / L2_BYTES > body {
        (body, bound) = (loaded / L2_BYTES, "l2");
    }
    let (sums, parts) = (config.sum_bytes() as u64, schedule.parts() as u64);
    let mut fixed = LAUNCH_CYCLES + ctas / waves * CTA_CYCLES;
    if config.multicast > 1 {
        fixed += MEETING_CYCLES;
    }
    match (config.scheme.operand, config.adding) {
        (Operand::Half(_), _) | (Operand::E4m3, Adding::Fast) => {}
        (Operand::E4m3, Adding::Promoted) => fixed += PROMOTION_CYCLES,
    }
    if schedule.is_split() {
        let store = config.store_cycles(schedule.cluster().value(), result);
        let sent = if config.loads_remote() { 0 } else { sums / parts / STORE_BYTES };
        fixed += (parts - 1) * (MEMBER_CYCLES + sent) + store;
    } else {
        fixed += tiles.div_ceil(runs) * config.store_cycles(1, result);
        if schedule.has_fix_up() {
            let bytes = if config.copies_partials() { COPIED_BYTES } else { FIX_UP_BYTES };
            fixed += (parts - 1) * (sums / bytes);
        }
    }
    let cycles = body + waves * fixed;
    Some(Estimate { config, split, ctas, waves, resident, schedule, cycles, bound })
}

impl Costs for Sm90Config {
    fn estimate(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let schedule = schedule(self, split, problem, sms)?;
        scheduled(self, (split, schedule), problem, sms, result)
    }

    fn whole(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let schedule = match split {
            Split::None => {
                let fit = clusters(sms, self.multicast, self.min_blocks);
                whole_tiles(self.tiles(problem).count(), problem.k.div_ceil(K_STEP), fit)?
            }
            Split::Cluster(_) => schedule(self, split, problem, sms)?,
            Split::StreamK => return None,
        };
        scheduled(self, (split, schedule), problem, sms, result)
    }

    /// `mma.sync` and `wgmma` add a different number of products at once, and sums that are promoted are others than
    /// fast ones.
    fn adds_in_order(&self) -> bool {
        match self.adding {
            Adding::Promoted => !self.uses_mma_sync(),
            Adding::Fast => false,
        }
    }

    fn found_on_device(
        &'static self,
        expected: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let mut found = self.estimate(Split::None, expected, sms, result)?;
        let resident = self.min_blocks;
        let clusters = clusters(sms, self.multicast, resident);
        let ctas = clusters * self.multicast as u64;
        if self.is_wide() {
            let sibling = GROUPED
                .iter()
                .find(|other| other.scheme == self.scheme && other.narrows() && !other.is_wide())?;
            let narrow = sibling.found_on_device(expected, sms, result)?;
            let [own, others] = [(self, clusters), (sibling, narrow.ctas)]
                .map(|(config, runs)| spread_cycles(config, expected, runs));
            found.cycles = (narrow.cycles + own).saturating_sub(others);
        }
        let steps = expected.k.div_ceil(K_STEP);
        if self.tokens == FEW_TOKENS && self.tiles(expected).token_tiles() == 1 {
            let of_twice =
                |other: &&Sm90Config| other.scheme == self.scheme && other.tokens == 2 * FEW_TOKENS;
            let twice = GROUPED.iter().find(of_twice)?.found_on_device(expected, sms, result)?;
            let rounds = self.tiles(expected).count().div_ceil(ctas);
            let longer = rounds * u64::from(steps) * FEW_STEP_CYCLES;
            found.cycles = (twice.cycles + longer).saturating_sub(LESS_LAUNCH_CYCLES);
        }
        found.on_device(ctas, steps)
    }

    fn store_cycles(&self, parts: u32, result: ResultType) -> u64 {
        let parts = parts as u64;
        match result {
            ResultType::Floats(_) => {
                let staged = self.stages_results() && parts == 1;
                self.sum_bytes() as u64 / parts / if staged { STAGED_BYTES } else { STORE_BYTES }
            }
            ResultType::Blocks(_) => block_cycles([self.rows, self.tokens], parts),
        }
    }

    fn whole_tile_slack(&self) -> u32 {
        fix_up_steps(self.sum_bytes(), own_cycles(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fragments::{BLOCK_CYCLES, candidates, grouped};
    use fp4_formats::FloatType;
    use fp4_formats::gemm::Operands;
    use fp4_formats::gemm::fragments::Scheme;
    use fp4_formats::gemm::fragments::repack::CHUNK_ROWS;
    use fp4_formats::gemm::sm90;
    use fp4_formats::gemm::sm90::config::MAX_SPLIT;
    use fp4_formats::quantize::Format;

    /// Floats cost the same whatever they are; NVFP4 is more work, the more so in larger tiles,
    /// and no work at all in more CTAs than a tile has tokens for.
    #[test]
    fn costs_of_results() {
        use FloatType::{Bf16, F16, F32};
        let sms = 132;
        let problem = Problem { m: 128, n: 7168, k: 2048, l: 1 };
        for config in &CONFIGS {
            for split in Split::up_to(config.max_split()) {
                let cycles = |result| {
                    config.estimate(split, &problem, sms, result).map(|found| found.cycles)
                };
                let [one, others @ ..] = [F16, Bf16, F32].map(|t| cycles(ResultType::Floats(t)));
                assert_eq!(others, [one; 2], "{} {split}", config.name);
                assert!(cycles(ResultType::Blocks(Format::Nvfp4)) > one, "{} {split}", config.name);
            }
            let store = |parts| config.store_cycles(parts, ResultType::Blocks(Format::Nvfp4));
            let blocks = u64::from(config.tokens.div_ceil(16) * (config.rows / CHUNK_ROWS));
            assert_eq!(store(1), blocks * BLOCK_CYCLES);
            let most = blocks.div_ceil(MAX_SPLIT.into());
            assert_eq!(store(MAX_SPLIT), most * BLOCK_CYCLES, "{}", config.name);
        }
    }

    /// Every kernel of grouped products is a candidate, and few tokens take a narrow tile.
    #[test]
    fn choices_of_grouped_products() {
        let result = ResultType::Floats(FloatType::F16);
        for scheme in sm90::operands().filter_map(Scheme::of) {
            let pick_of = |m, n, k, l| {
                let expected = Problem { m, n, k, l };
                let best = grouped::<Sm90Config>(
                    scheme.operands(),
                    Adding::Promoted,
                    &expected,
                    132,
                    result,
                )
                .min_by_key(|found| found.cycles);
                best.unwrap().config.tokens
            };
            let pick = |m, l| pick_of(m, 4096, 7168, l);
            let suits = |config: &&Sm90Config| {
                config.scheme == scheme && Adding::Promoted.allows(config.adding)
            };
            let count = GROUPED.iter().filter(suits).count();
            let expected = Problem { m: 1, n: 4096, k: 7168, l: 8 };
            assert_eq!(
                grouped::<Sm90Config>(scheme.operands(), Adding::Promoted, &expected, 132, result)
                    .count(),
                count
            );
            let few = if scheme.operand.half().is_some() { [8, 16] } else { [32; 2] };
            let many = if scheme.operand.half().is_some() { 256 } else { 128 };
            assert_eq!([pick(1, 8), pick(2, 64), pick(1000, 8)], [few[0], few[1], many]);
            // The measured cases: few tokens in short and in long loops, and much work for wide tiles
            // and little.
            if scheme.operand.half().is_some() {
                for (m, n, k, l, tokens) in [
                    (2, 4096, 2048, 64, 8),
                    (2, 2048, 7168, 64, 16),
                    (128, 4096, 7168, 8, 256),
                    (128, 7168, 2048, 8, 256),
                    (256, 3072, 4096, 2, 128),
                    (256, 4096, 1536, 2, 128),
                ] {
                    assert_eq!(pick_of(m, n, k, l), tokens, "{m} x {n} x {k}, {l}");
                }
            }
        }
    }

    #[test]
    fn choices_of_the_table() {
        let sms = 132;
        let pick = |m, n, k| {
            let problem = Problem { m, n, k, l: 1 };
            let result = ResultType::Floats(FloatType::F16);
            candidates::<Sm90Config>(Operands::NVFP4_F16, Adding::Promoted, &problem, sms, result)
                .min_by_key(|candidate| candidate.cycles)
                .unwrap()
        };
        // Rows and tokens of a tile, CTAs of a multicast, CTAs.
        let measured = [
            ((1, 7168, 16384), (128, 8, 1, 132)),
            ((1, 4096, 7168), (128, 8, 1, 132)),
            ((1, 7168, 2048), (128, 8, 1, 132)),
            ((16, 7168, 16384), (128, 16, 1, 132)),
            ((16, 4096, 7168), (128, 16, 1, 132)),
            ((32, 4096, 7168), (128, 32, 1, 132)),
            ((32, 7168, 2048), (128, 32, 1, 112)),
            ((64, 7168, 2048), (128, 64, 1, 112)),
            ((64, 4096, 7168), (128, 64, 1, 96)),
            ((128, 7168, 2048), (128, 64, 1, 112)),
            ((128, 4096, 7168), (128, 64, 1, 128)),
            ((128, 7168, 16384), (128, 128, 1, 132)),
            ((256, 4096, 7168), (128, 128, 1, 128)),
            ((512, 4096, 7168), (128, 128, 1, 128)),
            ((1024, 7168, 2048), (128, 128, 1, 132)),
            ((2304, 4608, 7168), (128, 128, 2, 132)),
            ((512, 8192, 7168), (128, 128, 2, 132)),
            ((4096, 4096, 4096), (128, 128, 2, 132)),
        ];
        for ((m, n, k), best) in measured {
            let found = pick(m, n, k);
            let Sm90Config { rows, tokens, multicast, .. } = *found.config;
            assert_eq!((rows, tokens, multicast, found.ctas), best, "{m} x {n} x {k}");
        }
        for m in [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300, 2304] {
            for (n, k) in [(7168, 16384), (4096, 7168), (7168, 2048), (8, 16), (200, 7184)] {
                pick(m, n, k);
            }
        }
    }
}
