//! The cost model of kernels on `mma.sync`, whose warps all do the same: the CTAs of an SM copy, multiply and store by
//! turns. Targets differ in the cycles of a step and in what limits the main loop.

use fp4_formats::gemm::fragments::FragmentConfig;
use fp4_formats::gemm::{Problem, ResultType, Schedule, Split};

use super::fragments::{
    Costs, Estimate, FIX_UP_BYTES, HANDOVER_CYCLES, LAUNCH_CYCLES, STORE_BYTES, block_cycles,
    fix_up_steps,
};

/// Cycles until the first stages of an item have arrived.
const ITEM_CYCLES: u64 = 1200;

/// The part of the cost model in which targets differ.
pub trait WarpCosts: FragmentConfig {
    /// Whether no more CTAs share the steps of all tiles than are needed for the longest run to be as short: others would
    /// only send partial sums.
    const FEWEST_CTAS: bool;

    /// Cycles of an SM for a step of a tile.
    fn step_cycles(&self) -> u32;

    /// Returns the cycles in which an SM runs `steps` steps of each of `resident` CTAs at a time, and their limit.
    fn main_loop(&self, problem: &Problem, steps: u64, resident: u64) -> (u64, &'static str);
}

/// Returns the schedule of a problem. `None` if there are fewer steps than CTAs, too many for a
/// launch, or if the kernel cannot split K so.
fn schedule<C: WarpCosts>(
    config: &C,
    split: Split,
    problem: &Problem,
    sms: u32,
) -> Option<Schedule> {
    if split.cluster() > config.max_split() {
        return None;
    }
    let tile = config.tile();
    let mut fit = u64::from(sms) * u64::from(tile.min_blocks);
    let (tiles, steps) = (config.tiles(problem).count(), tile.steps(problem));
    if C::FEWEST_CTAS
        && split == Split::StreamK
        && let Some(total) = tiles.checked_mul(steps.into())
    {
        fit = total.div_ceil(total.div_ceil(fit));
    }
    Schedule::new(split, tiles, steps, fit)
}

/// Multiplies the cycles of groups of `tokens` tokens each by what groups of other sizes, with as many on average, have
/// more: half of each one's last tile is beyond its tokens.
fn ragged(tile: u32, tokens: u32, cycles: u64) -> u64 {
    let (tokens, tile) = (u64::from(tokens), u64::from(tile));
    let (ragged, equal) = (tokens + tile / 2, tokens.next_multiple_of(tile));
    if ragged > equal && equal > 0 { cycles * ragged / equal } else { cycles }
}

impl<C: WarpCosts> Costs for C {
    fn estimate(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let schedule = schedule(self, split, problem, sms)?;
        let tile = self.tile();
        let tiles = self.tiles(problem).count();
        let ctas = schedule.ctas(tiles);
        let fit = u64::from(sms) * u64::from(tile.min_blocks);
        // An SM has so many CTAs at a time, whose products take turns.
        let resident = ctas.div_ceil(u64::from(sms)).min(tile.min_blocks.into());
        let waves = ctas.div_ceil(fit);
        let (body, bound) = self.main_loop(problem, schedule.most().into(), resident);
        let items = tiles.div_ceil(ctas) + u64::from(schedule.has_fix_up());
        let mut each = items * (ITEM_CYCLES + self.store_cycles(1, result));
        if schedule.has_fix_up() {
            let parts = u64::from(schedule.parts());
            each += HANDOVER_CYCLES + (parts - 1) * (u64::from(tile.partial_bytes) / FIX_UP_BYTES);
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
        let tile = self.tile();
        let mut found = self.estimate(Split::None, expected, sms, result)?;
        if C::GROUPED.contains(self) {
            found.cycles = ragged(tile.tokens, expected.m, found.cycles);
        }
        let ctas = u64::from(sms) * u64::from(tile.min_blocks);
        found.on_device(ctas, tile.steps(expected))
    }

    fn store_cycles(&self, _: u32, result: ResultType) -> u64 {
        let tile = self.tile();
        match result {
            ResultType::Floats(_) => u64::from(tile.partial_bytes) / STORE_BYTES,
            ResultType::Blocks(_) => block_cycles([tile.rows, tile.tokens], 1),
        }
    }

    fn whole_tile_slack(&self) -> u32 {
        fix_up_steps(self.tile().partial_bytes, self.step_cycles())
    }
}
