//! The choice among configurations whose kernels take weights in the order of fragments. Tensor cores differ in their
//! tables and in the model of the costs.

use fp4_formats::WARP;
use fp4_formats::gemm::fragments::FragmentConfig;
use fp4_formats::gemm::{Adding, Operands, Problem, ResultType, Schedule, Split};
use fp4_formats::quantize::Format;

/// Cycles of a launch of CTAs that compute whole tiles, without the stores.
pub(super) const LAUNCH_CYCLES: u64 = 4800;
/// Bytes of sums per cycle from registers to float results, including the store to memory.
pub(super) const STORE_BYTES: u64 = 40;
/// Instructions in which a thread stores sixteen columns of a result in NVFP4 or MXFP4, counted in sm_90a's machine
/// code for NVFP4: each quarter of an SM issues one per cycle, for a warp.
pub(super) const BLOCK_CYCLES: u64 = 340;
/// Quarters of an SM.
const PARTITIONS: u32 = 4;
/// Cycles from a contributor's last store of partial sums to the owner's first load.
pub(super) const HANDOVER_CYCLES: u64 = 2500;
/// Bytes of partial sums per cycle from each contributor of a fix-up, if the threads that add them load them.
pub(super) const FIX_UP_BYTES: u64 = 30;

/// Returns the cycles in which `parts` CTAs store a tile, rows by tokens, in NVFP4 or MXFP4.
pub(super) fn block_cycles([rows, tokens]: [u32; 2], parts: u64) -> u64 {
    let blocks = u64::from(rows * tokens / Format::Nvfp4.block());
    blocks.div_ceil(parts * u64::from(WARP * PARTITIONS)) * BLOCK_CYCLES
}

/// Returns the steps of `cycles` cycles that take as long as the fix-up of a tile with `bytes` bytes of partial sums.
pub(super) fn fix_up_steps(bytes: u32, cycles: u32) -> u32 {
    let fix_up = 2 * (u64::from(bytes) / FIX_UP_BYTES) + HANDOVER_CYCLES;
    (fix_up / u64::from(cycles)) as u32 + 1
}

/// Checks while compiling that `$cycles` is not 0 for any configuration of a table.
macro_rules! every_tile_has_cycles {
    ($Config:ty, $cycles:path) => {
        const _: () = {
            let tables: [&[$Config]; 3] = [&CONFIGS, &GROUPED, &MIXED];
            let (mut table, mut at) = (0, 0);
            while table < tables.len() {
                if at < tables[table].len() {
                    assert!($cycles(&tables[table][at]) > 0);
                    at += 1;
                } else {
                    (table, at) = (table + 1, 0);
                }
            }
        };
    };
}
pub(super) use every_tile_has_cycles;

/// The cost model of a table's configurations.
pub trait Costs: FragmentConfig {
    /// The estimate for a split of K and a result of type `result`; that of floats does not depend on which. `None`
    /// where no schedule divides the problem so.
    fn estimate(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>>;

    /// The same, with every tile computed by one CTA, or in the same parts by the CTAs of a cluster: no cut depends on the
    /// number of tiles. `None` for stream-K.
    fn whole(
        &'static self,
        split: Split,
        problem: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>>;

    /// Whether the kernel adds K in the order that those of all larger tiles have, by the same instruction.
    fn adds_in_order(&self) -> bool;

    /// Estimates a configuration whose work list is made on the device: the cost of the same tiles in a batch.
    fn found_on_device(
        &'static self,
        expected: &Problem,
        sms: u32,
        result: ResultType,
    ) -> Option<Estimate<Self>>;

    /// Cycles in which a CTA stores the results of a tile that `parts` CTAs share.
    fn store_cycles(&self, parts: u32, result: ResultType) -> u64;

    /// Returns the steps that take as long as sending partial sums, waiting for them and adding them: runs of a
    /// grouped product may be longer by as much if that spares the fix-up.
    fn whole_tile_slack(&self) -> u32;
}

/// The estimated cost of a candidate in cycles of an SM: the comparator of [`candidates`]. A model
/// for ranking, not a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate<C: 'static> {
    /// The configuration.
    pub config: &'static C,
    /// The split of K.
    pub split: Split,
    /// CTAs of the launch.
    pub ctas: u64,
    /// Times that the machine is filled with them.
    pub waves: u64,
    /// CTAs that an SM has at a time.
    pub resident: u32,
    /// The assignment of K steps and tiles to CTAs.
    pub schedule: Schedule,
    /// Cycles of the whole launch.
    pub cycles: u64,
    /// The limit of the main loop: `products`, `l2` or `dram`.
    pub bound: &'static str,
}

impl<C: Costs> Estimate<C> {
    /// The same cost for a launch of `ctas` CTAs, all of them resident, that find out on the device which parts of
    /// tiles of `steps` steps they compute.
    #[must_use]
    pub fn on_device(self, ctas: u64, steps: u32) -> Option<Self> {
        let schedule = Schedule::stream_k(1, steps, 1)?;
        Some(Self { ctas, waves: 1, resident: self.config.tile().min_blocks, schedule, ..self })
    }

    /// f32 additions, one after the other, that lead to a result.
    #[must_use]
    pub fn additions(&self) -> u32 {
        self.config.additions_in(self.schedule.longest()) + self.schedule.parts()
    }

    /// Returns the [`additions`](Self::additions) of a grouped product in runs of at least `least` steps. The factors
    /// of a problem, which are multiplied on the device, count like additions.
    #[must_use]
    pub fn grouped_additions(&self, least: u32) -> u32 {
        const FACTORS: u32 = 4;
        let steps = self.schedule.steps();
        self.config.additions_in(steps) + (steps / least + 2) + FACTORS
    }
}

/// Numbers of tokens by whose costs the one split for all numbers of tokens is chosen.
pub(super) const ALL_TOKENS: [u32; 5] = [1, 16, 64, 256, 1024];

/// Returns the schedule of whole tiles for `fit` CTAs that run at a time: each has as many, or there is a CTA for each.
pub(super) fn whole_tiles(tiles: u64, steps: u32, fit: u64) -> Option<Schedule> {
    let rounds = tiles.div_ceil(fit.max(1));
    let ctas = if rounds > 0 && tiles.is_multiple_of(rounds) { tiles / rounds } else { tiles };
    Schedule::stream_k(tiles, steps, u32::try_from(ctas).ok()?)
}

/// Returns the split of `splits` with the least costs, each over that of the best one, summed over
/// [numbers of tokens](ALL_TOKENS). `cost` is that of a number of tokens, none where a split takes none.
pub(super) fn cheapest_for_all(
    splits: impl Iterator<Item = Split>,
    cost: impl Fn(Split, u32) -> Option<u64>,
) -> Option<Split> {
    const ONE: u64 = 1 << 20;
    let all: Vec<(Split, Vec<u64>)> = splits
        .filter_map(|split| {
            let costs: Option<Vec<u64>> =
                ALL_TOKENS.iter().map(|&tokens| cost(split, tokens)).collect();
            Some((split, costs?))
        })
        .collect();
    let best = |at: usize| all.iter().map(|(_, costs)| costs[at]).min().unwrap_or(1).max(1);
    let best: Vec<u64> = (0..ALL_TOKENS.len()).map(best).collect();
    let sum = |costs: &[u64]| -> u64 {
        costs.iter().zip(&best).map(|(cost, best)| cost.saturating_mul(ONE) / best).sum()
    };
    all.iter().min_by_key(|(_, costs)| sum(costs)).map(|(split, _)| *split)
}

/// The kernels of dense products of `operands` that add K in one order.
pub fn in_order<C: Costs>(operands: Operands) -> impl Iterator<Item = &'static C> {
    of(C::CONFIGS, operands, Adding::Promoted).filter(|config| config.adds_in_order())
}

/// Returns the split of K that products of all numbers of tokens have if each adds it in one order: `asked`, or the
/// cheapest for all of them. `None` for sizes that no kernel takes.
pub fn invariant_split<C: Costs>(
    operands: Operands,
    problem: &Problem,
    sms: u32,
    result: ResultType,
    asked: Option<Split>,
) -> Option<Split> {
    let configs = || in_order::<C>(operands);
    let most = configs().map(|config| config.max_split()).max()?;
    let splits = Split::up_to(most).filter(|split| asked.is_none_or(|asked| asked == *split));
    cheapest_for_all(splits, |split, m| {
        let problem = Problem { m, ..*problem };
        let cycles = |config: &'static C| Some(config.whole(split, &problem, sms, result)?.cycles);
        configs().filter_map(cycles).min()
    })
}

/// All candidates of `operands` for the problem with this split, whose sums have the same bits for all numbers of tokens.
pub fn invariant<C: Costs>(
    operands: Operands,
    problem: &Problem,
    sms: u32,
    result: ResultType,
    split: Split,
) -> impl Iterator<Item = Estimate<C>> {
    in_order::<C>(operands).filter_map(move |config| config.whole(split, problem, sms, result))
}

/// All candidates of `operands` for the problem, in the table's order, stream-K first and the
/// largest cluster last.
pub fn candidates<C: Costs>(
    operands: Operands,
    adding: Adding,
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> impl Iterator<Item = Estimate<C>> {
    of(C::CONFIGS, operands, adding).flat_map(move |config| {
        Split::up_to(config.max_split())
            .filter_map(move |split| config.estimate(split, problem, sms, result))
    })
}

/// Lists all candidates of `operands` for a grouped product, in the table's order; `expected` are the
/// number of problems that have tokens and the tokens of each. They cost as much as the same tiles
/// in a batch of such problems; the CTAs are as many as are resident at a time.
pub fn grouped<C: Costs>(
    operands: Operands,
    adding: Adding,
    expected: &Problem,
    sms: u32,
    result: ResultType,
) -> impl Iterator<Item = Estimate<C>> {
    let configs = of(C::GROUPED, operands, adding);
    configs.filter_map(move |config| config.found_on_device(expected, sms, result))
}

/// Estimates `operands` for one of several mixed products, with all CTAs that are resident; they take
/// whole tiles. `None` for sizes that no launch takes.
pub fn mixed<C: Costs>(
    operands: Operands,
    adding: Adding,
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> Option<Estimate<C>> {
    of(C::MIXED, operands, adding).next()?.found_on_device(problem, sms, result)
}

/// The kernels of `table` for a pair of formats that may add so.
pub fn of<C: Costs>(
    table: &'static [C],
    operands: Operands,
    adding: Adding,
) -> impl Iterator<Item = &'static C> {
    let suits = move |config: &&C| config.operands() == operands && adding.allows(config.adding());
    table.iter().filter(suits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No tile is cut, every CTA has as many as another, and they run at a time where the tiles divide so.
    #[test]
    fn whole_tiles_are_not_cut() {
        for (tiles, fit) in
            (1..300u64).flat_map(|tiles| [1, 7, 24, 132, 264].map(|fit| (tiles, fit)))
        {
            for steps in [1, 2, 19, 128] {
                let schedule = whole_tiles(tiles, steps, fit).expect("few");
                let ctas = schedule.ctas(tiles);
                assert!(!schedule.has_fix_up() && !schedule.is_split(), "{tiles} {steps} {fit}");
                assert_eq!(schedule.most(), steps * (tiles / ctas) as u32);
                let rounds = tiles.div_ceil(fit);
                assert_eq!(ctas, if tiles % rounds == 0 { tiles / rounds } else { tiles });
            }
        }
    }

    /// The split with the least costs over all, and not the best of one number of tokens; none takes what no split takes.
    #[test]
    fn one_split_for_all_tokens() {
        let splits = || [Split::None, Split::Cluster(2), Split::Cluster(3)].into_iter();
        let cost = |split, tokens| match (split, tokens) {
            (Split::None, 1..=16) => Some(300),
            (Split::None, _) => Some(100),
            (Split::Cluster(2), 1..=64) => Some(150),
            (Split::Cluster(2), _) => Some(120),
            (_, 1) => Some(1),
            (_, _) => None,
        };
        assert_eq!(cheapest_for_all(splits(), cost), Some(Split::Cluster(2)));
        assert_eq!(cheapest_for_all(splits(), |_, _| None), None);
    }
}
