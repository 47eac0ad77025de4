//! The cost model of sm_80's configurations and schedules, and the choice by it.

use fp4_formats::WARP;
use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm80::config::{CONFIGS, GROUPED, MAX_BLOCKS, MIXED, Sm80Config, THREADS};
use fp4_formats::gemm::{Problem, ResultType, Schedule, Split, Tiles};
use fp4_formats::quantize::Format;

use super::fragments::{Configuration, Estimate, Tile};

/// Returns the cycles of an SM for a step of a tile, decoded and multiplied. 0 for a tile that no
/// configuration has.
const fn product_cycles(config: &Sm80Config) -> u32 {
    match (config.rows, config.tokens) {
        (128, 8) => 300,
        (128, 16) => 360,
        (128, 32) => 280,
        (128, 64) => 490,
        (128, 128) => 960,
        (256, 128) => 1880,
        _ => 0,
    }
}

/// Every tile of the tables has cycles of its own.
const _: () = {
    let tables: [&[Sm80Config]; 3] = [&CONFIGS, &GROUPED, &MIXED];
    let (mut table, mut at) = (0, 0);
    while table < tables.len() {
        if at < tables[table].len() {
            assert!(product_cycles(&tables[table][at]) > 0);
            at += 1;
        } else {
            (table, at) = (table + 1, 0);
        }
    }
};

/// Returns the steps that take as long as sending partial sums, waiting for them and adding them:
/// runs of a grouped product may be longer by as much if that spares the fix-up.
const fn whole_tile_slack(config: &Sm80Config) -> u32 {
    let fix_up = 2 * (config.partial_bytes() as u64 / FIX_UP_BYTES) + HANDOVER_CYCLES;
    (fix_up / product_cycles(config) as u64) as u32 + 1
}

/// Bytes per cycle from memory to an SM of an H200. GPUs with less choose the same where memory is the limit.
const DRAM_BYTES: u64 = 16;
/// Cycles of a launch of CTAs that compute whole tiles, without the stores.
const LAUNCH_CYCLES: u64 = 4800;
/// Cycles until the first stages of an item have arrived.
const ITEM_CYCLES: u64 = 1200;
/// Bytes of sums per cycle from registers to float results, including the store to memory.
const STORE_BYTES: u64 = 40;
/// Instructions in which a thread stores sixteen columns of a result in NVFP4 or MXFP4: each quarter of an SM
/// issues one per cycle, for a warp.
const BLOCK_CYCLES: u64 = 340;
/// Quarters of an SM.
const PARTITIONS: u32 = 4;
/// Cycles from a contributor's last store of partial sums to the owner's first load.
const HANDOVER_CYCLES: u64 = 2500;
/// Bytes of partial sums per cycle from each contributor of a fix-up.
const FIX_UP_BYTES: u64 = 30;

/// Returns the schedule of a problem. `None` if there are fewer steps than CTAs, too many for a
/// launch, or if the kernel cannot split K so.
fn schedule(config: &Sm80Config, split: Split, problem: &Problem, sms: u32) -> Option<Schedule> {
    if !config.takes(split) {
        return None;
    }
    let fit = u64::from(sms) * u64::from(config.min_blocks);
    Schedule::new(split, config.tiles(problem).count(), problem.k.div_ceil(config.k_step()), fit)
}

/// Cycles in which a CTA stores the results of a tile.
const fn store_cycles(config: &Sm80Config, result: ResultType) -> u64 {
    match result {
        ResultType::Floats(_) => config.partial_bytes() as u64 / STORE_BYTES,
        ResultType::Blocks(_) => {
            let blocks = (config.rows * config.tokens / Format::Nvfp4.block()) as u64;
            blocks.div_ceil((WARP * PARTITIONS) as u64) * BLOCK_CYCLES
        }
    }
}

/// The estimate for one candidate with a result of type `result`; that of floats does not depend
/// on which. `None` where there is no such [`schedule`].
fn estimate(
    config: &'static Sm80Config,
    split: Split,
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> Option<Estimate<Sm80Config>> {
    let schedule = schedule(config, split, problem, sms)?;
    let tiles = config.tiles(problem).count();
    let ctas = schedule.ctas(tiles);
    let fit = u64::from(sms) * u64::from(config.min_blocks);
    // An SM has so many CTAs at a time, whose products take turns.
    let resident = ctas.div_ceil(u64::from(sms)).min(config.min_blocks.into());
    let waves = ctas.div_ceil(fit);
    let steps = u64::from(schedule.most());
    let products = steps * u64::from(product_cycles(config)) * resident;
    let bytes = u64::from(config.weight_bytes() + config.activation_bytes());
    let dram = steps * u64::from(config.weight_bytes()) * resident / DRAM_BYTES
        + steps * bytes * resident / (4 * DRAM_BYTES);
    let (body, bound) = if dram > products { (dram, "dram") } else { (products, "products") };
    let items = tiles.div_ceil(ctas) + u64::from(schedule.has_fix_up());
    let mut each = items * (ITEM_CYCLES + store_cycles(config, result));
    if schedule.has_fix_up() {
        let parts = u64::from(schedule.parts());
        each += HANDOVER_CYCLES + (parts - 1) * (u64::from(config.partial_bytes()) / FIX_UP_BYTES);
    }
    let cycles = LAUNCH_CYCLES + waves * (body + each);
    let resident = resident as u32;
    Some(Estimate { config, split, ctas, waves, resident, schedule, cycles, bound })
}

impl Configuration for Sm80Config {
    const CONFIGS: &'static [Self] = &CONFIGS;
    const GROUPED: &'static [Self] = &GROUPED;
    const MIXED: &'static [Self] = &MIXED;
    const MAX_BLOCKS: u32 = MAX_BLOCKS;

    fn name(&self) -> &'static str {
        self.name
    }

    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn tile(&self) -> Tile {
        Tile {
            rows: self.rows,
            tokens: self.tokens,
            multicast: 1,
            k_step: self.k_step(),
            step_bytes: self.stage_bytes(),
            partial_bytes: self.partial_bytes(),
            min_blocks: self.min_blocks,
            threads: THREADS,
            stages: self.stages(),
            tiling: self.tiling(),
        }
    }

    fn tiles(&self, problem: &Problem) -> Tiles {
        self.tiles(problem)
    }

    fn max_split(&self) -> u32 {
        1
    }

    fn shared_bytes(&self, _: u32) -> u32 {
        self.shared_bytes()
    }

    fn additions_in(&self, steps: u32) -> u32 {
        self.additions_in(steps)
    }

    fn estimate(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        estimate(self, split, problem, sms, result)
    }

    fn found_on_device(
        &'static self,
        expected: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let found = estimate(self, Split::None, expected, sms, result)?;
        let ctas = u64::from(sms) * u64::from(self.min_blocks);
        found.on_device(ctas, expected.k.div_ceil(self.k_step()))
    }

    fn store_cycles(&self, _: u32, result: ResultType) -> u64 {
        store_cycles(self, result)
    }

    fn whole_tile_slack(&self) -> u32 {
        whole_tile_slack(self)
    }
}
