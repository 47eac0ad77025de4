//! The cost model of sm_80's configurations and schedules, and the choice by it.

use fp4_formats::WARP;
use fp4_formats::gemm::sm80::config::{CONFIGS, GROUPED, MIXED, Sm80Config};
use fp4_formats::gemm::{Problem, Problems, ResultType, Schedule, Split};
use fp4_formats::quantize::Format;

use super::fragments::{Costs, Estimate};

/// Returns the cycles of an SM for a step of a tile, decoded and multiplied. 0 for a tile that no
/// configuration has.
const fn product_cycles(config: &Sm80Config) -> u32 {
    match (config.rows, config.tokens, config.blocks) {
        (128, 8, 2) => 560,
        (128, 8, 1) => 290,
        (128, 16, 2) => 620,
        (128, 16, 1) => 310,
        (128, 32, 1) => 440,
        (128, 64, 1) => 750,
        (128, 128, 1) => 1175,
        (256, 64, 1) => 1230,
        // Groups leave no registers to load far ahead.
        (256, 128, 1) if config.is_grouped() => 2090,
        (256, 128, 1) => 1950,
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
/// A CTA that is alone on an SM which could have more takes longer by one of so many parts: nothing hides its waits.
const ALONE: u64 = 8;
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

/// Multiplies the cycles of groups of `tokens` tokens each by what groups of other sizes, with as many on average, have
/// more: half of each one's last tile is beyond its tokens.
fn ragged(config: &Sm80Config, tokens: u32, cycles: u64) -> u64 {
    let (tokens, tile) = (u64::from(tokens), u64::from(config.tokens));
    let (ragged, equal) = (tokens + tile / 2, tokens.next_multiple_of(tile));
    match config.problems {
        Problems::Grouped if ragged > equal && equal > 0 => cycles * ragged / equal,
        Problems::Grouped | Problems::Uniform | Problems::Mixed => cycles,
    }
}

impl Costs for Sm80Config {
    fn estimate(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let schedule = schedule(self, split, problem, sms)?;
        let tiles = self.tiles(problem).count();
        let ctas = schedule.ctas(tiles);
        let fit = u64::from(sms) * u64::from(self.min_blocks);
        // An SM has so many CTAs at a time, whose products take turns.
        let resident = ctas.div_ceil(u64::from(sms)).min(self.min_blocks.into());
        let waves = ctas.div_ceil(fit);
        let steps = u64::from(schedule.most());
        let mut products = steps * u64::from(product_cycles(self)) * resident;
        if resident < self.min_blocks.into() {
            products += products / ALONE;
        }
        let bytes = u64::from(self.weight_bytes() + self.activation_bytes());
        let dram = steps * u64::from(self.weight_bytes()) * resident / DRAM_BYTES
            + steps * bytes * resident / (4 * DRAM_BYTES);
        let (body, bound) = if dram > products { (dram, "dram") } else { (products, "products") };
        let items = tiles.div_ceil(ctas) + u64::from(schedule.has_fix_up());
        let mut each = items * (ITEM_CYCLES + self.store_cycles(1, result));
        if schedule.has_fix_up() {
            let parts = u64::from(schedule.parts());
            each +=
                HANDOVER_CYCLES + (parts - 1) * (u64::from(self.partial_bytes()) / FIX_UP_BYTES);
        }
        let cycles = LAUNCH_CYCLES + waves * (body + each);
        let resident = resident as u32;
        Some(Estimate { config: self, split, ctas, waves, resident, schedule, cycles, bound })
    }

    fn found_on_device(
        &'static self,
        expected: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let mut found = self.estimate(Split::None, expected, sms, result)?;
        found.cycles = ragged(self, expected.m, found.cycles);
        let ctas = u64::from(sms) * u64::from(self.min_blocks);
        found.on_device(ctas, expected.k.div_ceil(self.k_step()))
    }

    fn store_cycles(&self, _: u32, result: ResultType) -> u64 {
        match result {
            ResultType::Floats(_) => self.partial_bytes() as u64 / STORE_BYTES,
            ResultType::Blocks(_) => {
                let blocks = (self.rows * self.tokens / Format::Nvfp4.block()) as u64;
                blocks.div_ceil((WARP * PARTITIONS) as u64) * BLOCK_CYCLES
            }
        }
    }

    fn whole_tile_slack(&self) -> u32 {
        let fix_up = 2 * (self.partial_bytes() as u64 / FIX_UP_BYTES) + HANDOVER_CYCLES;
        (fix_up / product_cycles(self) as u64) as u32 + 1
    }
}
