//! GEMM on every device there is: the emulated ones always, a GPU where there is one.
//!
//! Inputs make all sums exact, so the result does not depend on the order of summing: it is the
//! oracle's, rounded once, and a GPU's bytes are those of the emulator of its architecture.

use fp4_formats::gemm::Split;
use std::collections::BTreeSet;

use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm90::config::K_STEP;
use fp4_formats::gemm::sm90::{CONFIGS, GROUPED, Sm90Config};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, HalfType, Nvfp4, Operand, ScaleLayout, TensorFamily};
use nvfp4::device::Kernels;
use nvfp4::gemm::GemmOverrides;
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::MoeRun;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::shape::{GEMM_CONTEST, GEMM_CORRECTNESS, GemmShape, grouped_contest};
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{
    ActivationType, BF16, BLOCKED, Case, DEPTHS, F16, LINEAR, RESULTS, ROWS, TOKENS,
};
use nvfp4_tests::mixture::{self, Mixture, MixtureCase, Quantized};
use nvfp4_tests::{devices, gpu};

/// Products of a case that the emulators run too.
const SMALL: usize = 12_000_000;

/// Deals all values in random order before it deals one again.
struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    fn new(all: &[T]) -> Self {
        Self { all: all.to_vec(), left: Vec::new() }
    }

    fn deal(&mut self, rng: &mut SplitMix64) -> T {
        self.deal_where(rng, |_| true)
    }

    /// A value that suits; one that is yet to be dealt, if one of those does.
    fn deal_where(&mut self, rng: &mut SplitMix64, suits: impl Fn(T) -> bool) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        let suitable =
            |from: &[T]| -> Vec<usize> { (0..from.len()).filter(|&at| suits(from[at])).collect() };
        let pick =
            |from: &[usize], rng: &mut SplitMix64| from[rng.below(from.len() as u32) as usize];
        let places = suitable(&self.left);
        if places.is_empty() {
            return self.all[pick(&suitable(&self.all), rng)];
        }
        self.left.swap_remove(pick(&places, rng))
    }
}

/// Makes cases that differ in everything, each value in its turn.
struct Dealer {
    rng: SplitMix64,
    tokens: Deck<usize>,
    rows: Deck<usize>,
    depths: Deck<usize>,
    batches: Deck<usize>,
    results: Deck<ResultKind>,
    layouts: Deck<ScaleLayout>,
    blocks: Deck<ActivationType>,
    halves: Deck<bool>,
    inputs: Deck<HalfType>,
    alphas: Deck<f32>,
    scales: Deck<[f32; 2]>,
    vectors: Deck<[bool; 3]>,
    shared: Deck<bool>,
}

impl Dealer {
    fn new(seed: u64) -> Self {
        let vectors: Vec<[bool; 3]> =
            (0..8).map(|set| [0, 1, 2].map(|bit| set >> bit & 1 == 1)).collect();
        Self {
            rng: SplitMix64::new(seed),
            tokens: Deck::new(&TOKENS),
            rows: Deck::new(&ROWS),
            depths: Deck::new(&DEPTHS),
            batches: Deck::new(&[1, 2, 3]),
            results: Deck::new(&RESULTS),
            layouts: Deck::new(&ScaleLayout::ALL),
            blocks: Deck::new(&[LINEAR, BLOCKED]),
            halves: Deck::new(&[false, false, true]),
            inputs: Deck::new(&[HalfType::F16, HalfType::Bf16]),
            alphas: Deck::new(&[1.0, -0.375, 3.0]),
            scales: Deck::new(&[[1.0, 1.0], [0.5, 4.0], [2.0, 0.125]]),
            vectors: Deck::new(&vectors),
            shared: Deck::new(&[false, true]),
        }
    }

    /// A case for a kernel of sm_90a and parts of K, of the given sizes or of dealt ones of at most
    /// `most` products. Other machines plan.
    fn case(
        &mut self,
        config: &'static Sm90Config,
        split: Split,
        sizes: Option<[usize; 3]>,
        most: usize,
    ) -> Case {
        let rng = &mut self.rng;
        let Scheme { format, operand } = config.scheme;
        let l = self.batches.deal(rng);
        let enough = |k: usize| k.div_ceil(K_STEP as usize) >= split.cluster() as usize;
        let [m, n, k] = sizes.unwrap_or_else(|| {
            let k = self.depths.deal_where(rng, enough);
            let m = self.tokens.deal_where(rng, |m| l * m * k <= most);
            [m, self.rows.deal_where(rng, |n| l * m * n * k <= most), k]
        });
        let result = self.results.deal(rng);
        let n = n.next_multiple_of(result.block());
        let no_blocks = (format, operand) == (Format::Nvfp4, Operand::BF16);
        let as_they_are = self.halves.deal(rng);
        let activations = match operand {
            Operand::Half(half) if no_blocks || as_they_are => ActivationType::Halves(half),
            Operand::Half(_) => self.blocks.deal(rng),
            Operand::E4m3 if as_they_are => ActivationType::Fp8(None),
            Operand::E4m3 => ActivationType::Fp8(Some(self.inputs.deal(rng))),
        };
        let mut case = Case::new([m, n, k, l]).format(format).activations(activations);
        case.result = result;
        case.layout = self.layouts.deal(rng);
        case.shared_weights = self.shared.deal(rng);
        case.vectors = self.vectors.deal(rng);
        case.alpha = self.alphas.deal(rng);
        case.tensor_scales = self.scales.deal(rng);
        case.seed = rng.next_u64();
        case.kernel(config.name, split)
    }
}

/// The parts of K that every configuration of sm_90a is run with.
const SPLITS: [Split; 3] = [Split::StreamK, Split::None, Split::Cluster(2)];

/// Every configuration of sm_90a, divided in each way, with exact inputs and full-range ones:
/// weights and activations in both formats and as 16-bit floats, all results, factors, bias and
/// tensor scales, batches, layouts and ragged sizes in turn.
#[test]
fn every_configuration_and_every_size() {
    let devices = devices();
    let mut dealer = Dealer::new(17);
    let mut seen = [(); 3].map(|()| BTreeSet::new());
    for generator in [Generator::Exact, Generator::FullRange] {
        for config in &CONFIGS {
            for split in SPLITS {
                let split = split.at_most(config.max_split());
                let case = dealer.case(config, split, None, SMALL);
                let case = Case { generator, ..case };
                let GemmShape { m, n, k, .. } = case.shape;
                for (seen, size) in seen.iter_mut().zip([m, n, k]) {
                    seen.insert(size);
                }
                case.check_on(&devices);
            }
        }
    }
    let [tokens, rows, depths] = seen;
    assert!(TOKENS.iter().all(|size| tokens.contains(size)), "M: {tokens:?}");
    assert!(ROWS.iter().all(|size| rows.contains(size)), "N: {rows:?}");
    assert!(DEPTHS.iter().all(|size| depths.contains(size)), "K: {depths:?}");
}

/// The whole product of the ragged sizes, on a GPU: each with a kernel and parts of K, or left to
/// the plan.
#[test]
fn all_sizes_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [kernels];
    let mut dealer = Dealer::new(23);
    let mut choices = Deck::new(&CONFIGS.each_ref());
    let mut splits = Deck::new(&[
        Split::StreamK,
        Split::None,
        Split::Cluster(2),
        Split::Cluster(3),
        Split::Cluster(5),
        Split::Cluster(8),
    ]);
    for m in TOKENS {
        for n in ROWS {
            for k in DEPTHS {
                for generator in [Generator::Exact, Generator::FullRange] {
                    let config = choices.deal(&mut dealer.rng);
                    let most = config.max_split().min(k.div_ceil(K_STEP as usize) as u32);
                    let suits = |split: Split| split.cluster() <= most;
                    let split = splits.deal_where(&mut dealer.rng, suits);
                    let mut case = dealer.case(config, split, Some([m, n, k]), usize::MAX);
                    case.generator = generator;
                    if (m + n + k) % 4 == 0 {
                        case.overrides = GemmOverrides::default();
                    }
                    case.check_on(&devices);
                }
            }
        }
    }
}

/// A problem of the public GEMM contest: NVFP4 to f16.
fn contest(GemmShape { m, n, k, l }: GemmShape, layout: ScaleLayout) -> Case {
    let activations = ActivationType::Blocks(layout);
    let case = Case::new([m, n, k, l]).activations(activations).result(FloatType::F16);
    Case { layout, generator: Generator::ContestGemm, seed: n as u64, ..case }
}

/// Operations of a correctness shape that the emulators run too.
const EMULATED: f64 = 4e9;

/// The smaller correctness shapes of the public contest, with its inputs.
#[test]
fn contest_shapes() {
    let devices = devices();
    let shapes: Vec<GemmShape> =
        GEMM_CORRECTNESS.into_iter().filter(|shape| shape.flops() < EMULATED).collect();
    assert_eq!(shapes.len(), 6);
    for (index, shape) in shapes.into_iter().enumerate() {
        contest(shape, ScaleLayout::ALL[index % 2]).check_on(&devices);
    }
}

/// The other correctness shapes and the benchmark's, on a GPU, with scales in both layouts.
#[test]
fn large_contest_shapes_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [kernels];
    for shape in GEMM_CONTEST.into_iter().chain(GEMM_CORRECTNESS) {
        for layout in ScaleLayout::ALL {
            contest(shape, layout).check_on(&devices);
        }
    }
}

/// Full-range inputs at large sizes, on a GPU: all results and activations.
#[test]
fn large_full_range_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [kernels];
    for (index, result) in RESULTS.into_iter().enumerate() {
        for (format, activations) in [
            (Format::Nvfp4, BLOCKED),
            (Format::Nvfp4, F16),
            (Format::Nvfp4, BF16),
            (Format::Mxfp4, LINEAR),
            (Format::Mxfp4, BF16),
        ] {
            let n = 2064usize.next_multiple_of(result.block());
            let sizes = [[1, 33, 130, 515, 1000][index % 5], n, 7200, 1];
            let case = Case::new(sizes).format(format).activations(activations);
            let case = Case { result, generator: Generator::FullRange, ..case };
            case.check_on(&devices);
        }
    }
}

/// Every grouped configuration of sm_90a, on ragged groups, empty ones too: each against the oracle,
/// and where sums are exact a GPU's bytes are those of the emulator of its architecture.
#[test]
fn every_grouped_configuration() {
    let devices = devices();
    for (at, config) in GROUPED.iter().enumerate() {
        let Scheme { format, operand } = config.scheme;
        let tokens = config.tokens as usize;
        for (index, generator) in [Generator::Exact, Generator::FullRange].into_iter().enumerate() {
            let counts = [[tokens + 3, 0, 1], [2, tokens, 5]][(at + index) % 2];
            let mut case = GroupedCase::new(&counts, [config.rows as usize / 2 + 40, 160]);
            case.generator = generator;
            case.format = format;
            case.activations = ActivationType::as_they_are(operand);
            case.gated = generator == Generator::FullRange && at % 2 == 0;
            case.factors = at % 2 == 1;
            case.seed = at as u64;
            let mut seen: Vec<(Arch, Vec<u8>)> = Vec::new();
            for kernels in &devices {
                let arch = kernels.device().choice().arch;
                // Other machines plan.
                let named = arch.tensor() == TensorFamily::Wgmma;
                let kernel = named.then(|| config.name.to_string());
                let case =
                    GroupedCase { overrides: GemmOverrides::new().kernel(kernel), ..case.clone() };
                let bytes = case.check(kernels).result.bytes;
                if generator == Generator::Exact {
                    if let Some((_, other)) = seen.iter().find(|(other, _)| *other == arch) {
                        assert!(*other == bytes, "{}: {case:?}", kernels.device().choice());
                    }
                    seen.push((arch, bytes));
                }
            }
        }
    }
}

/// Ragged products of sizes of their own in one launch, of each pair of types: against the oracle.
#[test]
fn products_of_sizes_of_their_own() {
    let pairs = [
        (Format::Nvfp4, F16),
        (Format::Nvfp4, BF16),
        (Format::Nvfp4, LINEAR),
        (Format::Mxfp4, BF16),
        (Format::Mxfp4, BLOCKED),
    ];
    let sizes = [[67, 168, 160], [1, 24, 32], [64, 128, 1056], [131, 8, 416], [33, 272, 2080]];
    for kernels in devices() {
        for (at, (format, activations)) in pairs.into_iter().enumerate() {
            let case = |(index, [m, n, k]): (usize, [usize; 3])| {
                let mut case = Case::new([m, n, k, 1]).format(format).activations(activations);
                case.generator = Generator::FullRange;
                case.seed = (7 * at + index) as u64;
                case.alpha = [4.0, -0.75, 16.0][index % 3];
                case.vectors = [index % 2 == 0, index % 3 == 0, index % 4 > 1];
                case
            };
            let cases: Vec<Case> = sizes.into_iter().enumerate().map(case).collect();
            check_mixed(&kernels, &cases);
        }
    }
}

/// Layers of every kind: each step against the oracle, and two launches give the same bytes.
#[test]
fn mixtures_of_experts() {
    for kernels in devices() {
        for case in mixture::small() {
            check_mixture(&kernels, case);
        }
    }
}

fn check_mixture(kernels: &Kernels, case: MixtureCase) {
    let what = format!("{}: {case:?}", kernels.device().choice());
    let mixture = Mixture::<Nvfp4>::new(case, 3);
    let step = mixture.step(4);
    let operands = mixture.operands(&step);
    let weights = operands.repack(kernels.device()).expect("weights");
    let run = MoeRun::new(kernels, &operands, weights.each_ref()).expect("a layer");
    let mut results = Vec::new();
    for _ in 0..2 {
        run.launch().expect("a launch");
        for check in run.check(&operands).expect("readable") {
            assert!(check.verified, "{what}\n{check}");
        }
        assert_eq!(run.problem().expect("readable"), None, "{what}");
        results.push(run.result().expect("readable"));
    }
    assert!(results[0] == results[1], "{what}: two launches differ");
}

/// The contest's grouped shapes and a larger mixture, on a GPU.
#[test]
fn large_groups_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    for (index, shape) in grouped_contest().into_iter().enumerate() {
        let mut case = GroupedCase::new(&shape.counts, [shape.n, shape.k]);
        case.generator = Generator::FullRange;
        case.activations = [F16, LINEAR][index % 2];
        case.result = FloatType::F16.into();
        case.check(&kernels);
    }
    let large = MixtureCase::new([64, 32, 4], [2048, 1024], HalfType::Bf16);
    check_mixture(&kernels, large);
    check_mixture(&kernels, MixtureCase { quantized: Quantized::Blocks, ..large });
}
