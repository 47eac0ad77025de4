//! The cost model of kernels on `mma.sync`, whose warps all do the same: the CTAs of an SM copy, multiply and store by
//! turns. Targets differ in the cycles of a step and in what limits the main loop.

use fp4_formats::Divisor;
use fp4_formats::gemm::fragments::{FragmentConfig, WeightLayout};
use fp4_formats::gemm::groups::{Shares, Work};
use fp4_formats::gemm::{EvenRuns, Problem, ResultType, Schedule, Split};

use super::fragments::{
    Costs, Estimate, FIX_UP_BYTES, HANDOVER_CYCLES, LAUNCH_CYCLES, STORE_BYTES, block_cycles,
    fix_up_steps, whole_tiles,
};

/// Cycles until the first stages of an item have arrived.
const ITEM_CYCLES: u64 = 1200;
/// Fewer CTAs than an SM has room for must save one of so many parts of a grouped product's main loop.
const SAVED: u64 = 32;

/// The part of the cost model in which targets differ.
pub trait WarpCosts: FragmentConfig {
    /// Whether no more CTAs share the steps of all tiles than are needed for the longest run to be as short: others would
    /// only send partial sums.
    const FEWEST_CTAS: bool;
    /// Bytes per cycle from an SM to memory that partial sums take from the operands; `None` if that is not counted.
    const SUMS_BYTES: Option<u64>;

    /// Cycles of an SM for a step of a tile.
    fn step_cycles(&self) -> u32;

    /// [`Costs::adds_in_order`]
    fn has_one_order(&self) -> bool;

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
    scheduled(config, (split, schedule), problem, (sms, per_sm), result)
}

/// Returns the estimate of a schedule with at most `per_sm` CTAs of an SM at a time.
fn scheduled<C: WarpCosts>(
    config: &'static C,
    (split, schedule): (Split, Schedule),
    problem: &Problem,
    (sms, per_sm): (u32, u32),
    result: ResultType,
) -> Option<Estimate<C>> {
    let fit = u64::from(sms) * u64::from(per_sm);
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

/// Returns the CTAs that share the tiles of groups: `most`, which are resident at a time, unless memory is the limit and
/// longer runs send fewer partial sums.
///
/// A run whose end is that of a tile sends none. Runs of quarters of a tile meet such ends often, so these are tried, up
/// to a tile longer than those of all CTAs. Groups of equal sizes count as much as ragged ones: the kernel divides the
/// tiles that there are among the CTAs, so that both have even runs.
fn sharing<C: WarpCosts>(config: &'static C, problem: &Problem, most: u64, sms: u32) -> u64 {
    let (Some(rate), true) = (C::SUMS_BYTES, C::FEWEST_CTAS) else { return most };
    let (tile, tiles) = (config.tile(), config.tiles(problem).count());
    let steps = tile.steps(problem);
    let weights =
        WeightLayout { operands: config.operands(), rows: problem.n, columns: problem.k }.bytes();
    let uneven = ragged(tile.tokens, problem.m, tiles);
    // With fewer tiles than CTAs, longer runs leave the tensor cores of some SMs idle.
    if tiles < most || uneven.saturating_mul(steps.into()) + most >= Divisor::DIVIDENDS.into() {
        return most;
    }
    let total = tiles * u64::from(steps);
    let Some(weights) = weights.and_then(|bytes| bytes.checked_mul(problem.l.into())) else {
        return most;
    };
    // Sums are f32; a result of 16 bits has half of their bytes.
    let results = tiles * u64::from(tile.partial_bytes / 2);
    let cycles_of = |ctas: u64, tiles: u64| {
        let even = EvenRuns {
            ctas: Divisor::nearest(ctas as u32),
            tile: Divisor::nearest(steps),
            least: 1,
            slack: config.whole_tile_slack(),
        };
        let (tiles, total) = (tiles as u32, tiles as u32 * steps);
        let work = Work { tiles, total, longest: even.longest_of(tiles, 1) };
        let (longest, sent) = match even.shares(&work, tile.tiling.is_cut) {
            Shares::InTurn => (work.longest, 0),
            Shares::Even(share) => {
                let runs = total.div_ceil(share);
                let within = (1..runs).filter(|run| !(run * share).is_multiple_of(steps));
                (share, within.count() as u64)
            }
        };
        let resident = ctas.div_ceil(sms.into());
        let products = u64::from(longest) * u64::from(config.step_cycles()) * resident;
        let bytes = weights + results + sent * u64::from(tile.partial_bytes);
        products.max(bytes / (u64::from(sms) * rate))
    };
    let cycles = |ctas| cycles_of(ctas, tiles) + cycles_of(ctas, uneven);
    let (of_all, even) = (cycles(most), total.div_ceil(most));
    let quarter = u64::from(steps.div_ceil(4));
    let runs = (even / quarter + 1..=even / quarter + 4).map(|quarters| quarters * quarter);
    let fewer = runs.map(|run| total.div_ceil(run)).min_by_key(|&ctas| cycles(ctas));
    match fewer {
        Some(ctas) if cycles(ctas) + of_all / SAVED <= of_all => ctas,
        Some(_) | None => most,
    }
}

/// Multiplies the cycles, or the tiles, of groups of `tokens` tokens each by what groups of other sizes, with as many on
/// average, have more: half of each one's last tile is beyond its tokens.
fn ragged(tile: u32, tokens: u32, count: u64) -> u64 {
    let (tokens, tile) = (u64::from(tokens), u64::from(tile));
    let (ragged, equal) = (tokens + tile / 2, tokens.next_multiple_of(tile));
    if ragged > equal && equal > 0 { count * ragged / equal } else { count }
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

    fn whole(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>> {
        match split {
            Split::None => {}
            // No kernel splits K among the CTAs of a cluster.
            Split::StreamK | Split::Cluster(_) => return None,
        }
        let per_sm = self.tile().min_blocks;
        let fit = u64::from(sms) * u64::from(per_sm);
        let (tiles, steps) = (self.tiles(problem).count(), self.tile().steps(problem));
        let schedule = whole_tiles(tiles, steps, fit)?;
        scheduled(self, (split, schedule), problem, (sms, per_sm), result)
    }

    fn adds_in_order(&self) -> bool {
        self.has_one_order()
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
        let mut ctas = u64::from(sms) * u64::from(tile.min_blocks);
        if C::GROUPED.contains(self) {
            found.cycles = ragged(tile.tokens, expected.m, found.cycles);
            ctas = sharing(self, expected, ctas, sms);
        }
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
