//! The choice of a configuration for a problem: every one that takes the problem, plain and
//! swapped, with an estimate of its time; the shortest is taken.
//!
//! The estimate counts clocks of the slowest CTA: its tiles' K steps, each as long as the slowest
//! of products, decoding, copies into the SM, and the machine's L2 while all CTAs copy; then what
//! is not overlapped at the ends, and a launch before that lays out activations. Below that, DRAM
//! must deliver the operands and take the result once, and a result in NVFP4 be quantised. DRAM's
//! rate is that of all SMs: fewer have fewer bytes in flight, and on sm_90a, where it was measured,
//! take as much longer. Its constants are published rates and counts of instructions, not
//! measurements; those of the fix-up are sm_90a's.

use fp4_formats::gemm::sm100::config::{Products, STORE_COLUMNS};
use fp4_formats::gemm::sm100::prepare::scales_need_it;
use fp4_formats::gemm::sm100::{CONFIGS, GROUPED, MIXED, Sm100Config};
use fp4_formats::gemm::{Problem, ResultType, Schedule, Split, Tiles};
use fp4_formats::quantize::Format;
use fp4_formats::{HalfType, Operand, ScaleLayout};

use super::fragments::cheapest_for_all;
use crate::cuda::ResidentClusters;

/// Rates of a machine per clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Clusters that run at a time.
    pub clusters: ResidentClusters,
    /// Bytes a clock from DRAM, of the whole rates.
    pub dram_rate: u32,
    /// Bytes a clock from L2, of the whole rates.
    pub l2_rate: u32,
    /// Bytes a clock that one SM takes from L2.
    pub sm_rate: u32,
    /// 4-bit multiply-adds of one SM a clock; half as many of 8 bits, a quarter of 16.
    pub product_rate: u32,
}

impl Rates {
    /// B200: 148 SMs, 8 TB/s at 1.965 GHz.
    pub const B200: Self = Self {
        clusters: ResidentClusters::of_sms(148),
        dram_rate: 4071,
        l2_rate: 8192,
        sm_rate: 64,
        product_rate: 16384,
    };
}

/// The least columns whose product time shrinks no further: the tensor core reads `X` from shared memory,
/// 128 bytes a clock.
const LEAST_COLUMNS: u32 = 64;
/// Tokens up to which narrow tiles are chosen: the widest one's.
pub const FEW_TOKENS: u64 = 32;
/// Clocks from launch to the first product, and from the last one to the end.
pub(super) const ENDS: u64 = 3000;
/// Clocks to store a column of a tile of floats, the others' work aside.
const STORE: u64 = 8;
/// Clocks more for a column of NVFP4 or MXFP4: the instructions that a storing warp, one to a quarter
/// of an SM, issues more for sixteen columns, divided by them; and the same if lanes exchange theirs
/// first, because blocks lie across them.
const QUANTIZE: u64 = 93_u64.div_ceil(16);
const QUANTIZE_SWAPPED: u64 = 202_u64.div_ceil(16);
/// Clocks to send or add a column of an exchange.
const EXCHANGE: u64 = 8;
/// Clocks that a product waits for the launch that lays out the scales of activations, while it
/// copies weights already.
const PREPARE: u64 = 2000;
/// Bytes of partial sums a clock from each contributor of a fix-up, as measured on sm_90a, with as many in
/// flight.
const FIX_UP_BYTES: u64 = 30;
/// Fills of the machine up to which a plan cuts tiles by stream-K. In larger launches, the runs of CTAs at
/// work at one time are so far apart that they share no rows in L2, and there is little to even out.
const FEW_WAVES: u32 = 2;

/// Returns the clocks in which a CTA decodes a K step of weights. Each quarter of an SM has one
/// warp for it, which issues an instruction per clock, and in two clocks one instruction on bits or
/// conversions: the counts are ptxas'.
const fn decode_clocks(config: &Sm100Config) -> u64 {
    match (config.products(), config.format) {
        (Products::Blocks | Products::Bytes, _) => 0,
        (Products::Halves(HalfType::F16), Format::Nvfp4) => 200,
        (Products::Halves(HalfType::Bf16), Format::Nvfp4) => 580,
        (Products::Halves(_), Format::Mxfp4) => 560,
        (Products::Folded, _) => 270,
    }
}

/// Whether a launch before a dense or batched product lays out the scales of activations, whatever
/// layout they have.
const fn has_preparation(config: &Sm100Config, problem: &Problem) -> bool {
    let blocks = matches!(config.products(), Products::Blocks);
    let needed = scales_need_it(config.format, ScaleLayout::Blocked128x4, problem.m, problem.k);
    blocks && !config.is_grouped() && !config.loads_tokens() && needed
}

/// Clocks in which a CTA stores the results of its part of a tile.
#[must_use]
pub const fn store_clocks(config: &Sm100Config, swapped: bool, result: ResultType) -> u64 {
    let column = match (result, swapped) {
        (ResultType::Floats(_), _) => STORE,
        (ResultType::Blocks(_), false) => STORE + QUANTIZE,
        (ResultType::Blocks(_), true) => STORE + QUANTIZE_SWAPPED,
    };
    let (own, least) = (config.stored_columns(), STORE_COLUMNS);
    (if own < least { least } else { own }) as u64 * column
}

/// One way to run a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Tile configuration.
    pub config: &'static Sm100Config,
    /// Whether `X` is the weights.
    pub swapped: bool,
    /// The split of K.
    pub split: Split,
    /// The assignment of K steps and tiles, if no cluster asks for tiles and none splits one; a CTA there
    /// is a cluster.
    pub schedule: Schedule,
    /// Whether clusters ask for tiles: there are more than the machine holds.
    pub dynamic: bool,
    /// Clusters of the launch.
    pub clusters: u32,
    /// Clusters that the machine holds at a time.
    pub resident: u32,
    /// The tiles; the tiles of a cluster count as one.
    pub tiles: Tiles,
    /// The number of clusters.
    pub count: u32,
    /// Bytes that all CTAs read together, from L2 or from memory.
    pub bytes: u64,
    /// Estimated clocks.
    pub clocks: u64,
    /// The limit by the estimate.
    pub limit: Limit,
}

/// The limit of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// DRAM delivers the operands.
    Dram,
    /// L2 delivers the stages of all CTAs.
    L2,
    /// One SM takes its stages.
    Copies,
    /// The tensor cores multiply.
    Products,
    /// Warps decode weights.
    Decode,
    /// Warps quantise results.
    Results,
}

impl Limit {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::L2 => "l2",
            Self::Copies => "copies",
            Self::Products => "products",
            Self::Decode => "decoding",
            Self::Results => "results",
        }
    }
}

impl Estimate {
    /// Estimates `config` on `problem` with one of its [`splits`](Sm100Config::splits); none if it does
    /// not take it.
    #[must_use]
    pub fn new(
        config: &'static Sm100Config,
        swapped: bool,
        split: Split,
        problem: &Problem,
        result: ResultType,
        rates: &Rates,
    ) -> Option<Self> {
        let resident = rates.clusters.of(config.cluster());
        let turned = config.only_swapped() && !swapped;
        if !config.takes_k(problem.k) || resident == 0 || turned {
            return None;
        }
        let tiles = config.tiles(problem, swapped);
        // A launch counts its CTAs, one cluster per tile, in 31 bits.
        let most = i32::MAX as u32 / config.cluster();
        let count = u32::try_from(tiles.count()).ok().filter(|&count| count <= most)?;
        let waves = count.div_ceil(resident) as u64;
        let tile_steps = config.steps(problem.k);
        let steps = tile_steps.div_ceil(config.k_parts()) as u64;
        let (dynamic, clusters, schedule, most) = match split {
            Split::StreamK => {
                // As many CTAs as SMs at most, but for a single pair.
                let fit = resident.min((rates.clusters.of(1) / config.cluster()).max(1));
                let schedule = Schedule::new(split, count as u64, tile_steps, fit as u64)?;
                let clusters = schedule.ctas(count as u64) as u32;
                (false, clusters, schedule, schedule.most() as u64)
            }
            Split::None | Split::Cluster(_) => {
                let dynamic = count > resident;
                let clusters = if dynamic { resident } else { count };
                (dynamic, clusters, Schedule::whole_tiles(tile_steps)?, waves * steps)
            }
        };

        // Rows behind the last token are zeros that no copy reads.
        let y_rows = if swapped { problem.m } else { problem.n };
        let absent = config.columns.saturating_sub(y_rows) as u64 * config.y_bytes() as u64
            / config.columns as u64;
        let tokens = if y_rows < config.columns { y_rows } else { config.columns };
        let loaded = (tokens * config.loaded_bytes()) as u64;
        let bytes = config.stage_bytes() as u64 + loaded - absent;
        let read = config.read_bytes() as u64 + loaded - absent;
        let rows = fp4_formats::gemm::sm100::config::CTA_ROWS as u64;
        let slower = match config.products() {
            Products::Blocks => 1,
            Products::Bytes | Products::Folded => 2,
            Products::Halves(_) => 4,
        };
        let rate = rates.product_rate as u64 / slower;
        let columns = config.columns.max(LEAST_COLUMNS) as u64;
        let products = rows * columns * config.step() as u64 / rate;
        let copies = bytes / rates.sm_rate as u64;
        let l2 = read * (clusters * config.cluster()) as u64 / rates.l2_rate as u64;
        let (mut step, mut limit) = (products, Limit::Products);
        if copies > step {
            (step, limit) = (copies, Limit::Copies);
        }
        if l2 > step {
            (step, limit) = (l2, Limit::L2);
        }
        let decode = decode_clocks(config);
        if decode > step {
            (step, limit) = (decode, Limit::Decode);
        }
        let mut clocks = most * step;
        let l = problem.l as u64;
        let (m, n, k) = (problem.m as u64, problem.n as u64, problem.k as u64);
        let row = k / 2 + k / config.format.block() as u64;
        let token = match config.activations {
            None => row,
            Some(operand) => operand.bytes() as u64 * k,
        };
        let operands = (m * token + n * row) * l;
        // SMs at work on average, while the slowest works all the time.
        let sms = rates.clusters.of(1) as u64;
        let busy = (count as u64 * steps * config.cluster() as u64 / most).min(sms).max(1);
        let dram = (operands + result.bytes(m * n * l)) * sms / busy / rates.dram_rate as u64;
        if dram > clocks {
            (clocks, limit) = (dram, Limit::Dram);
        }
        let store = store_clocks(config, swapped, result);
        if let ResultType::Blocks(_) = result {
            // A tile's results are stored while the next one is multiplied.
            let stored = (waves - 1) * store + most.min(steps) * step;
            if stored > clocks {
                (clocks, limit) = (stored, Limit::Results);
            }
        }
        clocks += ENDS + store;
        if has_preparation(config, problem) {
            clocks += PREPARE;
        }
        if config.k_parts() > 1 {
            clocks += waves * config.columns as u64 * EXCHANGE;
        }
        if schedule.has_fix_up() {
            let sums = config.partial_bytes() as u64;
            clocks += (schedule.parts() - 1) as u64 * (sums / FIX_UP_BYTES);
        }
        let read = read * config.k_parts() as u64;
        let parts = (config.cta_group * config.multicast) as u64;
        let bytes = read * parts * steps * count as u64;
        // With `dynamic` the grid has a cluster for each tile.
        let clusters = if dynamic { count } else { clusters };
        Some(Self {
            config,
            swapped,
            split,
            schedule,
            dynamic,
            clusters,
            resident,
            tiles,
            count,
            bytes,
            clocks,
            limit,
        })
    }
}

impl Estimate {
    /// Ranks candidates, the best first: the shortest estimate, and among equals the one that reads least.
    /// Narrow tiles of more than [`FEW_TOKENS`] come last: the weights would be read once for each, and the
    /// estimate has the bytes alone. Stream-K of more tiles than fill the machine twice comes last, too.
    #[must_use]
    pub const fn rank(&self) -> (bool, u64, u64) {
        let tokens = self.tiles.token_tiles() as u64 * self.config.columns as u64;
        let many = self.config.loads_tokens() && tokens > FEW_TOKENS;
        let cut = match self.split {
            Split::StreamK => self.count > self.resident.saturating_mul(FEW_WAVES),
            Split::None | Split::Cluster(_) => false,
        };
        (many || cut, self.clocks, self.bytes)
    }
}

/// All candidates for a problem with weights in `format` and activations in the same
/// format, or of the type `activations`; in the table's order, stream-K behind the table's split.
pub fn candidates<'a>(
    format: Format,
    activations: Option<Operand>,
    problem: &'a Problem,
    result: ResultType,
    rates: &'a Rates,
) -> impl Iterator<Item = Estimate> + 'a {
    of_table(&CONFIGS, format, activations, problem, result, rates)
}

/// Returns the split of K that products of all numbers of tokens have if each adds it in one order, with the weights as `X`:
/// `asked`, or the cheapest for all of them. `None` for sizes that no kernel takes, and a split that none makes so.
#[must_use]
pub fn invariant_split(
    format: Format,
    activations: Option<Operand>,
    problem: &Problem,
    result: ResultType,
    rates: &Rates,
    asked: Option<Split>,
) -> Option<Split> {
    let mut splits: Vec<Split> = CONFIGS
        .iter()
        .filter(|config| config.format == format && config.activations == activations)
        .map(|config| config.split)
        .filter(|split| asked.is_none_or(|asked| asked == *split))
        .collect();
    splits.sort_unstable();
    splits.dedup();
    cheapest_for_all(splits.into_iter(), |split, m| {
        let problem = Problem { m, ..*problem };
        candidates(format, activations, &problem, result, rates)
            .filter(|found| found.swapped && found.split == split)
            .min_by_key(Estimate::rank)
            .map(|found| found.clocks)
    })
}

/// Lists all candidates for a grouped product, in the table's order; `expected` are the number of
/// problems that have tokens and the tokens of each. They cost as much as the same tiles in a batch
/// of such problems; the clusters are as many as the machine holds, which take tiles one after the
/// other.
pub fn grouped<'a>(
    format: Format,
    activations: Option<Operand>,
    expected: &'a Problem,
    result: ResultType,
    rates: &'a Rates,
) -> impl Iterator<Item = Estimate> + 'a {
    persistent(&GROUPED, format, activations, expected, result, rates)
}

/// Lists the candidates for one of several mixed products: both orientations of the tile, with all
/// clusters that the machine holds.
pub fn mixed<'a>(
    format: Format,
    activations: Option<Operand>,
    problem: &'a Problem,
    result: ResultType,
    rates: &'a Rates,
) -> impl Iterator<Item = Estimate> + 'a {
    persistent(&MIXED, format, activations, problem, result, rates)
}

/// The candidates of a table whose work lists are made on the device: as many clusters as the machine
/// holds, which take tiles one after the other.
fn persistent<'a>(
    table: &'static [Sm100Config],
    format: Format,
    activations: Option<Operand>,
    problem: &'a Problem,
    result: ResultType,
    rates: &'a Rates,
) -> impl Iterator<Item = Estimate> + 'a {
    of_table(table, format, activations, problem, result, rates).map(|found| Estimate {
        dynamic: false,
        clusters: found.resident,
        ..found
    })
}

/// The estimates of a table's kernels for these types, in both orientations, with all splits.
fn of_table<'a>(
    table: &'static [Sm100Config],
    format: Format,
    activations: Option<Operand>,
    problem: &'a Problem,
    result: ResultType,
    rates: &'a Rates,
) -> impl Iterator<Item = Estimate> + 'a {
    table
        .iter()
        .filter(move |config| config.format == format && config.activations == activations)
        .flat_map(|config| config.splits().map(move |split| (config, split)))
        .flat_map(|(config, split)| [(config, split, false), (config, split, true)])
        .filter_map(move |(config, split, swapped)| {
            Estimate::new(config, swapped, split, problem, result, rates)
        })
}

/// The candidate of the lowest [rank](Estimate::rank). None for sizes that no kernel takes.
#[must_use]
pub fn choose(
    format: Format,
    activations: Option<Operand>,
    problem: &Problem,
    result: ResultType,
    rates: &Rates,
) -> Option<Estimate> {
    candidates(format, activations, problem, result, rates).min_by_key(Estimate::rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fp4_formats::FloatType;

    const FLOATS: ResultType = ResultType::Floats(FloatType::F16);
    const BLOCKS: ResultType = ResultType::Blocks(Format::Nvfp4);

    fn pick(m: u32, n: u32, k: u32) -> Estimate {
        let problem = Problem { m, n, k, l: 1 };
        choose(Format::Nvfp4, None, &problem, FLOATS, &Rates::B200).unwrap()
    }

    #[test]
    fn choices() {
        let name =
            |m, n, k| (pick(m, n, k).config.name, pick(m, n, k).split, pick(m, n, k).swapped);
        let (stream_k, none) = (Split::StreamK, Split::None);
        assert_eq!(name(1, 7168, 16384), ("gemm_sm100_nvfp4_128x8", stream_k, true));
        assert_eq!(name(128, 7168, 16384), ("gemm_sm100_nvfp4_256x64", stream_k, true));
        assert_eq!(name(4096, 4096, 4096), ("gemm_sm100_nvfp4_256x256_multicast2", none, false));
        assert_eq!(name(1, 1, 16), ("gemm_sm100_nvfp4_128x8", none, true));
    }

    /// All SMs copy if tiles are not as many as SMs, or a few more: for few tokens, of either type, that is
    /// soonest. For many tiles clusters ask for them.
    #[test]
    fn all_sms_copy() {
        let pick = |activations, m, n, k| {
            let problem = Problem { m, n, k, l: 1 };
            let found = choose(Format::Nvfp4, activations, &problem, FLOATS, &Rates::B200).unwrap();
            (found.split, found.clusters * found.config.cluster())
        };
        let halves = [HalfType::F16, HalfType::Bf16].map(|half| Some(Operand::Half(half)));
        for activations in [None].into_iter().chain(halves) {
            for m in [1, 8, 16, 32, 128] {
                assert_eq!(pick(activations, m, 7168, 16384), (Split::StreamK, 148), "{m}");
            }
            let (split, _) = pick(activations, 4096, 8192, 4096);
            assert_eq!(split, Split::None);
        }
        // Clusters that split a tile are as many as SMs but for a few.
        assert_eq!(pick(None, 1, 4096, 4096), (Split::Cluster(4), 128));
    }

    /// Runs that end with tiles cost no fix-up; other runs cost the more, the wider the tiles.
    #[test]
    fn costs_of_a_fix_up() {
        let clocks = |name: &str, split, n| {
            let config = CONFIGS.iter().find(|config| config.name == name).unwrap();
            let problem = Problem { m: 8, n, k: 4096, l: 1 };
            Estimate::new(config, true, split, &problem, FLOATS, &Rates::B200).unwrap()
        };
        let [whole, cut] = [148, 149].map(|tiles| tiles * 128);
        for name in
            ["gemm_sm100_nvfp4_128x8", "gemm_sm100_nvfp4_128x64", "gemm_sm100_nvfp4_f16_128x64"]
        {
            let [one, other] =
                [Split::None, Split::StreamK].map(|split| clocks(name, split, whole));
            assert_eq!((one.clocks, one.clusters), (other.clocks, other.clusters), "{name}");
            let [one, other] = [Split::None, Split::StreamK].map(|split| clocks(name, split, cut));
            assert!(other.schedule.has_fix_up() && other.clocks < one.clocks, "{name}");
        }
    }

    /// Few tokens have the narrowest tile that holds them: for the contest's shapes of a GEMV and layers of
    /// many, few and very few rows.
    #[test]
    fn few_tokens_have_narrow_tiles() {
        let tile = |format, [m, n, k, l]: [u32; 4]| {
            let problem = Problem { m, n, k, l };
            let found = choose(format, None, &problem, FLOATS, &Rates::B200).unwrap();
            assert!(found.swapped);
            [found.config.cta_group, found.config.columns, found.config.k_parts()]
        };
        for format in [Format::Nvfp4, Format::Mxfp4] {
            for (sizes, expected) in [
                ([1, 7168, 16384, 1], [1, 8, 1]),
                ([16, 7168, 16384, 1], [1, 16, 1]),
                ([1, 4096, 7168, 8], [1, 8, 1]),
                ([1, 7168, 2048, 4], [1, 8, 1]),
                ([8, 28672, 8192, 1], [1, 8, 1]),
                ([9, 28672, 8192, 1], [1, 16, 1]),
                ([32, 28672, 8192, 1], [1, 32, 1]),
                ([1, 4096, 4096, 1], [1, 32, 4]),
                ([32, 4096, 14336, 1], [1, 32, 4]),
                ([17, 1000, 2048, 1], [1, 32, 4]),
                ([33, 28672, 8192, 1], [2, 64, 1]),
            ] {
                assert_eq!(tile(format, sizes), expected, "{format:?} {sizes:?}");
            }
            // Never for more tokens, however few steps there are.
            for m in [33, 64, 200] {
                let problem = Problem { m, n: 520, k: 1184, l: 1 };
                let found = choose(format, None, &problem, FLOATS, &Rates::B200).unwrap();
                assert!(!found.config.loads_tokens(), "{m}: {}", found.config.name);
            }
        }
    }

    /// Every kernel of grouped products is a candidate; few tokens for each group take a narrow tile
    /// whose rows are the weights'.
    #[test]
    fn choices_of_grouped_products() {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let pick = |m, l| {
                let expected = Problem { m, n: 4096, k: 7168, l };
                let all = || grouped(format, None, &expected, FLOATS, &Rates::B200);
                assert_eq!(all().count(), 8);
                assert!(all().all(|found| !found.dynamic && found.clusters == found.resident));
                let best = all().min_by_key(|found| (found.clocks, found.bytes)).unwrap();
                (best.config.columns, best.swapped)
            };
            assert_eq!(pick(2, 64), (64, true));
            assert!(pick(4096, 8).0 >= 128);
        }
    }

    /// Beside 16-bit activations: pairs for many tokens, more of them the longer it takes to
    /// decode; splits for few, if K is not long enough for stream-K.
    #[test]
    fn choices_of_halves() {
        let tile = |activations, m, n, k| {
            let problem = Problem { m, n, k, l: 1 };
            choose(Format::Nvfp4, Some(Operand::Half(activations)), &problem, FLOATS, &Rates::B200)
                .map(|choice| {
                    [choice.config.cta_group, choice.config.columns, choice.config.k_parts()]
                })
        };
        assert_eq!(tile(HalfType::F16, 4096, 8192, 4096), Some([2, 128, 1]));
        assert_eq!(tile(HalfType::Bf16, 4096, 8192, 4096), Some([2, 256, 1]));
        assert_eq!(tile(HalfType::F16, 1, 7168, 16384), Some([1, 64, 1]));
        assert_eq!(tile(HalfType::F16, 1, 8192, 8192), Some([1, 64, 2]));
    }

    /// NVFP4 is work for the storing warps, which a long K hides behind products; if memory is the
    /// limit, it is fewer bytes.
    #[test]
    fn costs_of_results() {
        let clocks = |config: &'static Sm100Config, swapped, [m, n, k]: [u32; 3], result| {
            let problem = Problem { m, n, k, l: 1 };
            Estimate::new(config, swapped, config.split, &problem, result, &Rates::B200)
                .map(|found| (found.clocks, found.limit))
        };
        for config in CONFIGS.iter().filter(|config| config.activations.is_none()) {
            for swapped in [false, true] {
                if config.only_swapped() && !swapped {
                    continue;
                }
                let (quantized, floats) = (BLOCKS, FLOATS);
                let more = store_clocks(config, swapped, quantized)
                    - store_clocks(config, swapped, floats);
                let long = [4096, 4096, 32768];
                let [one, other] = [floats, quantized].map(|r| clocks(config, swapped, long, r));
                let expected = one.map(|(clocks, limit)| (clocks + more, limit));
                assert_eq!(other, expected, "{}", config.name);
                let short = [32768, 32768, config.step() * config.k_parts()];
                let (_, limit) = clocks(config, swapped, short, quantized).unwrap();
                // CTAs that split a tile share its results, and a narrow one has few.
                let few = config.k_parts() > 1 || config.loads_tokens();
                assert!(few || limit == Limit::Results, "{}", config.name);
            }
        }
        let wide = [1, 1 << 24, 64];
        let [one, other] = [FLOATS, BLOCKS].map(|result| {
            let problem = Problem { m: wide[0], n: wide[1], k: wide[2], l: 1 };
            let slow = Rates { dram_rate: 64, ..Rates::B200 };
            choose(Format::Nvfp4, None, &problem, result, &slow).unwrap()
        });
        assert_eq!((one.limit, other.limit), (Limit::Dram, Limit::Dram));
        assert!(other.clocks < one.clocks);
    }

    /// Clusters are counted in GPCs: 37 clusters of four CTAs fit on 148 SMs, but only 34 in GPCs
    /// of 18 and 20.
    #[test]
    fn clusters_are_in_gpcs() {
        let problem = Problem { m: 256, n: 36 * 256, k: 1024, l: 1 };
        let config =
            CONFIGS.iter().find(|c| c.name == "gemm_sm100_nvfp4_256x128_multicast2").unwrap();
        assert_eq!(config.cluster(), 4);
        let gpcs = ResidentClusters::of_gpcs(&[20, 20, 18, 18, 18, 18, 18, 18]);
        let of = |clusters| {
            let rates = Rates { clusters, ..Rates::B200 };
            Estimate::new(config, false, config.split, &problem, FLOATS, &rates).unwrap()
        };
        let [even, uneven] = [Rates::B200.clusters, gpcs].map(of);
        assert_eq!([even.count, even.resident, even.clusters], [36, 37, 36]);
        assert_eq!([uneven.count, uneven.resident, uneven.clusters], [36, 34, 36]);
        assert_eq!([even.dynamic, uneven.dynamic], [false, true]);
        assert!(uneven.clocks > even.clocks);
    }

    #[test]
    fn sizes_that_no_kernel_takes() {
        let none = |m, n, k, l| {
            let problem = Problem { m, n, k, l };
            choose(Format::Nvfp4, None, &problem, FLOATS, &Rates::B200).is_none()
        };
        assert!(none(1, 1, 0, 1) && none(1, 1, 8, 1) && none(1, 1, 24, 1));
        assert!(none(u32::MAX, u32::MAX, 16, 1));
    }

    #[test]
    fn a_candidate_fills_no_more_than_the_machine() {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let problem = Problem { m: 300, n: 5000, k: 2048, l: 3 };
            for c in
                candidates(format, None, &problem, ResultType::Floats(FloatType::F32), &Rates::B200)
            {
                let ctas = c.clusters * c.config.cluster();
                assert!(c.dynamic || ctas <= Rates::B200.clusters.of(1), "{c:?}");
                assert!(!c.dynamic || c.clusters == c.count, "{c:?}");
            }
        }
    }
}
