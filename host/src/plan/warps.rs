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
    /// Bytes per cycle from an SM to memory that partial sums take from the operands; `None` if that is not counted.
    const SUMS_BYTES: Option<u64>;

    /// Cycles of an SM for a step of a tile.
    fn step_cycles(&self) -> u32;

    /// Returns the cycles in which an SM runs `steps` steps of each of `resident` CTAs at a time, and their limit.
    fn main_loop(&self, problem: &Problem, steps: u64, resident: u64) -> (u64, &'static str);
}

/// Returns the schedule of a problem for `fit` CTAs. `None` if there are fewer steps than CTAs, too many for a
/// launch, or if the kernel cannot split K so.
fn schedule<C: WarpCosts>(
    config: &C,
    split: Split,
    problem: &Problem,
    mut fit: u64,
) -> Option<Schedule> {
    if split.cluster() > config.max_split() {
        return None;
    }
    let (tiles, steps) = (config.tiles(problem).count(), config.tile().steps(problem));
    if C::FEWEST_CTAS
        && split == Split::StreamK
        && let Some(total) = tiles.checked_mul(steps.into())
    {
        fit = total.div_ceil(total.div_ceil(fit));
    }
    Schedule::new(split, tiles, steps, fit)
}

/// Returns the cycles in which memory takes the partial sums of `ctas` CTAs that share all tiles: of tokens that exist.
fn sums_cycles<C: WarpCosts>(config: &C, problem: &Problem, ctas: u64, sms: u32) -> u64 {
    let Some(rate) = C::SUMS_BYTES else { return 0 };
    let tile = config.tile();
    let bytes = u64::from(tile.partial_bytes) * u64::from(problem.m.min(tile.tokens));
    ctas * bytes / (u64::from(tile.tokens) * u64::from(sms) * rate)
}

/// Returns the estimate with at most `per_sm` CTAs of an SM at a time.
fn estimate_with<C: WarpCosts>(
    config: &'static C,
    split: Split,
    problem: &Problem,
    (sms, per_sm): (u32, u32),
    result: ResultType,
) -> Option<Estimate<C>> {
    let fit = u64::from(sms) * u64::from(per_sm);
    let schedule = schedule(config, split, problem, fit)?;
    let tile = config.tile();
    let tiles = config.tiles(problem).count();
    let ctas = schedule.ctas(tiles);
    // An SM has so many CTAs at a time, whose products take turns.
    let resident = ctas.div_ceil(u64::from(sms)).min(per_sm.into());
    let waves = ctas.div_ceil(fit);
    let (body, bound) = config.main_loop(problem, schedule.most().into(), resident);
    let items = tiles.div_ceil(ctas) + u64::from(schedule.has_fix_up());
    let mut each = items * (ITEM_CYCLES + config.store_cycles(1, result));
    if schedule.has_fix_up() {
        let parts = u64::from(schedule.parts());
        each += HANDOVER_CYCLES + (parts - 1) * (u64::from(tile.partial_bytes) / FIX_UP_BYTES);
    }
    let cycles = LAUNCH_CYCLES + waves * (body + each);
    let resident = resident as u32;
    Some(Estimate { config, split, ctas, waves, resident, schedule, cycles, bound })
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
        // Fewer CTAs share the steps with fewer partial sums, if memory is the limit rather than what an SM does at a
        // time; whole tiles have none.
        let most = self.tile().min_blocks;
        let least = if C::FEWEST_CTAS && split == Split::StreamK { 1 } else { most };
        (least..=most)
            .rev()
            .filter_map(|per_sm| {
                let mut found = estimate_with(self, split, problem, (sms, per_sm), result)?;
                if found.schedule.has_fix_up() {
                    found.cycles += found.waves * sums_cycles(self, problem, found.ctas, sms);
                }
                Some(found)
            })
            .min_by_key(|estimate| estimate.cycles)
    }

    fn found_on_device(
        &'static self,
        expected: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        let tile = self.tile();
        // Runs of groups, which the device finds, are ranked as whole tiles are: without what memory takes of sums.
        let per_sm = (sms, tile.min_blocks);
        let mut found = estimate_with(self, Split::None, expected, per_sm, result)?;
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
