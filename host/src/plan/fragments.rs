//! The choice among configurations whose kernels decode weights into fragments. Tensor cores differ in their tables
//! and in the model of the costs.

use fp4_formats::gemm::fragments::{FragmentConfig, Scheme};
use fp4_formats::gemm::{Problem, ResultType, Schedule, Split};

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

/// All candidates of `scheme` for the problem, in the table's order, stream-K first and the
/// largest cluster last.
pub fn candidates<C: Costs>(
    scheme: Scheme,
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> impl Iterator<Item = Estimate<C>> {
    of(C::CONFIGS, scheme).flat_map(move |config| {
        Split::up_to(config.max_split())
            .filter_map(move |split| config.estimate(split, problem, sms, result))
    })
}

/// Lists all candidates of `scheme` for a grouped product, in the table's order; `expected` are the
/// number of problems that have tokens and the tokens of each. They cost as much as the same tiles
/// in a batch of such problems; the CTAs are as many as are resident at a time.
pub fn grouped<C: Costs>(
    scheme: Scheme,
    expected: &Problem,
    sms: u32,
    result: ResultType,
) -> impl Iterator<Item = Estimate<C>> {
    let configs = of(C::GROUPED, scheme);
    configs.filter_map(move |config| config.found_on_device(expected, sms, result))
}

/// Estimates `scheme` for one of several mixed products, with all CTAs that are resident; they take
/// whole tiles. `None` for sizes that no launch takes.
pub fn mixed<C: Costs>(
    scheme: Scheme,
    problem: &Problem,
    sms: u32,
    result: ResultType,
) -> Option<Estimate<C>> {
    of(C::MIXED, scheme).next()?.found_on_device(problem, sms, result)
}

/// The kernels of `table` for a scheme.
pub fn of<C: Costs>(table: &'static [C], scheme: Scheme) -> impl Iterator<Item = &'static C> {
    table.iter().filter(move |config| config.scheme() == scheme)
}
