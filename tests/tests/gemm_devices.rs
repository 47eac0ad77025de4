//! GEMM on every device there is: the emulated ones always, a GPU where there is one.
//!
//! Where inputs make all sums exact, the result does not depend on the order of summing: it is the
//! oracle's, rounded once, and a GPU's bytes are those of the emulator of its architecture.

use fp4_formats::Arch;
use fp4_formats::arch::TensorFamily;
use std::collections::BTreeSet;

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::hopper::config::K_STEP;
use fp4_formats::gemm::hopper::{CONFIGS, HopperConfig, Operand, Scheme};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e4m3, pack};
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{Activations, GemmOptions, GemmOverrides, GemmResult, Output, gemm, reference};
use nvfp4::generate::Generator;
use nvfp4::oracle::Reference;
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::rng::SplitMix64;
use nvfp4::shape::{GEMM_CONTEST, GEMM_CORRECTNESS, GemmShape};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::{Left, devices, gpu};

const ROWS: [usize; 6] = [1, 7, 65, 127, 129, 300];
const COLUMNS: [usize; 7] = [1, 3, 8, 40, 72, 200, 1000];
const DEPTHS: [usize; 9] = [16, 32, 48, 144, 160, 416, 1040, 2064, 7184];
/// Products of a case that the emulators run too.
const SMALL: usize = 12_000_000;

/// What the result is; the scale of one in NVFP4 is what its largest magnitude asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Floats(FloatType),
    Nvfp4(ScaleLayout),
}

const KINDS: [Kind; 5] = [
    Kind::Floats(FloatType::F16),
    Kind::Floats(FloatType::Bf16),
    Kind::Floats(FloatType::F32),
    Kind::Nvfp4(Linear),
    Kind::Nvfp4(Blocked128x4),
];

/// One GEMM and its inputs.
#[derive(Debug, Clone)]
struct Case {
    shape: GemmShape,
    format: Format,
    left: Left,
    /// Layout of the weights' scales.
    layout: ScaleLayout,
    /// Whether all batch entries have the same weights.
    shared: bool,
    generator: Generator,
    kind: Kind,
    /// Row factors, column factors, bias.
    vectors: [bool; 3],
    alpha: f32,
    /// Scales of the tensors over the generator's: activations, weights.
    tensor_scales: [f32; 2],
    /// sm_90a's kernel and parts of K; others, and where there is none, are left to the plan.
    kernel: Option<(&'static str, u32)>,
    seed: u64,
}

/// A case's right answers.
struct Expected {
    reference: Reference,
    /// Elements or codes, and scales, of exact inputs.
    bytes: Option<[Vec<u8>; 2]>,
}

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
    rows: Deck<usize>,
    columns: Deck<usize>,
    depths: Deck<usize>,
    batches: Deck<usize>,
    kinds: Deck<Kind>,
    layouts: Deck<ScaleLayout>,
    blocks: Deck<Left>,
    halves: Deck<bool>,
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
            rows: Deck::new(&ROWS),
            columns: Deck::new(&COLUMNS),
            depths: Deck::new(&DEPTHS),
            batches: Deck::new(&[1, 2, 3]),
            kinds: Deck::new(&KINDS),
            layouts: Deck::new(&ScaleLayout::ALL),
            blocks: Deck::new(&ScaleLayout::ALL.map(Left::Blocks)),
            halves: Deck::new(&[false, false, true]),
            alphas: Deck::new(&[1.0, -0.375, 3.0]),
            scales: Deck::new(&[[1.0, 1.0], [0.5, 4.0], [2.0, 0.125]]),
            vectors: Deck::new(&vectors),
            shared: Deck::new(&[false, true]),
        }
    }

    /// A case for a kernel and parts of K, of the given sizes or of dealt ones of at most `most`
    /// products.
    fn case(
        &mut self,
        config: &'static HopperConfig,
        splits: u32,
        sizes: Option<[usize; 3]>,
        most: usize,
    ) -> Case {
        let rng = &mut self.rng;
        let Scheme { format, operand } = config.scheme;
        let l = self.batches.deal(rng);
        let whole = |k: usize| k.next_multiple_of(format.block() as usize);
        let enough = |k: usize| k.div_ceil(K_STEP as usize) >= splits as usize;
        let [m, n, k] = sizes.unwrap_or_else(|| {
            let k = self.depths.deal_where(rng, enough);
            let m = self.rows.deal_where(rng, |m| l * m * k <= most);
            [m, self.columns.deal_where(rng, |n| l * m * n * k <= most), k]
        });
        let kind = self.kinds.deal(rng);
        let n = if let Kind::Nvfp4(_) = kind { n.next_multiple_of(Nvfp4::BLOCK) } else { n };
        let only_halves = (format, operand) == (Format::Nvfp4, Operand::Bf16);
        let left = if only_halves || self.halves.deal(rng) {
            Left::Halves(operand)
        } else {
            self.blocks.deal(rng)
        };
        Case {
            shape: GemmShape { m, n, k: whole(k), l },
            format,
            left,
            layout: self.layouts.deal(rng),
            shared: self.shared.deal(rng),
            generator: Generator::Exact,
            kind,
            vectors: self.vectors.deal(rng),
            alpha: self.alphas.deal(rng),
            tensor_scales: self.scales.deal(rng),
            kernel: Some((config.name, splits)),
            seed: rng.next_u64(),
        }
    }
}

/// `count` choices; with exact ones no sum needs rounding.
fn vector(rng: &mut SplitMix64, count: usize, exact: bool) -> Vec<f32> {
    let choice = |rng: &mut SplitMix64| [0.5, -1.0, 2.0, 4.0][rng.below(4) as usize];
    (0..count).map(|_| if exact { choice(rng) } else { rng.normal() as f32 }).collect()
}

/// Two codes with zeros of the same sign.
fn without_negative_zero(byte: u8) -> u8 {
    let (low, high) = pack::unpair(byte);
    let [low, high] = [low, high].map(|code| if code == 8 { 0 } else { code });
    pack::pair(low, high)
}

impl Case {
    fn run(&self, devices: &[(&str, Kernels)]) {
        match self.format {
            Format::Nvfp4 => self.run_as::<Nvfp4>(devices),
            Format::Mxfp4 => self.run_as::<Mxfp4>(devices),
        }
    }

    /// Whether all sums are exact in f32. Those of the contest's inputs are for any K of its
    /// shapes: only operands with all signs alike come near 2^22.
    fn exact(&self) -> bool {
        matches!(self.generator, Generator::Exact | Generator::ContestGemm)
    }

    /// Runs it on each device and fails with the first mismatch. Results are poisoned before.
    fn run_as<F: BlockFormat>(&self, devices: &[(&str, Kernels)]) {
        let GemmShape { m, n, k, l } = self.shape;
        let mut rng = SplitMix64::new(self.seed);
        let blocks = |name: &str, dims: [usize; 2], layout, factor: f32, rng: &mut SplitMix64| {
            let dims = Dims::new(dims[0], dims[1], k).expect("dims");
            let x = self.generator.blocks::<F>(name, dims, layout, rng).expect(name);
            let (codes, scales) = (x.codes().to_vec(), x.scales().to_vec());
            BlockScaled::<F>::new(name, dims, layout, codes, scales, factor * x.global_scale())
                .expect(name)
        };
        let [a_scale, b_scale] = self.tensor_scales;
        let b = blocks("b", [if self.shared { 1 } else { l }, n], self.layout, b_scale, &mut rng);
        let (left, halves);
        let a = match self.left {
            Left::Blocks(layout) => {
                left = blocks("a", [l, m], layout, a_scale, &mut rng);
                Activations::Blocks(&left)
            }
            Left::Halves(operand) => {
                let dims = Dims::new(l, m, k).expect("dims");
                halves = self.generator.halves("a", dims, operand, &mut rng).expect("a");
                Activations::Halves(&halves)
            }
        };
        let mut vectors = [m, n, n].map(|count| vector(&mut rng, count, self.exact()));
        let [row_factors, column_factors, bias] = std::array::from_fn(|i| {
            Some(std::mem::take(&mut vectors[i])).filter(|_| self.vectors[i])
        });
        let mut options = GemmOptions {
            alpha: self.alpha,
            row_factors,
            column_factors,
            bias,
            ..GemmOptions::default()
        };
        let reference = reference(&a, &b, &options).expect("the oracle");
        options.output = match self.kind {
            Kind::Floats(floats) => floats.into(),
            Kind::Nvfp4(layout) => Output::nvfp4_of(&reference, layout),
        };
        let expected = self.expected(reference, options.output);

        let mut of_emulators: Vec<(Arch, GemmResult)> = Vec::new();
        for (device, kernels) in devices {
            let arch = kernels.device().choice().arch;
            options.overrides = match self.kernel {
                Some((name, splits)) if arch.tensor() == TensorFamily::Wgmma => {
                    GemmOverrides { kernel: Some(name.into()), splits: Some(splits) }
                }
                _ => GemmOverrides::default(),
            };
            let result = gemm(kernels, &a, &b, &options);
            let result = result.unwrap_or_else(|e| panic!("{device}: {self:?}\n{e}"));
            self.compare(device, &result, &expected);
            let same = of_emulators.iter().find(|(of, _)| *of == arch);
            if let Some((_, emulated)) = same.filter(|_| self.exact()) {
                self.compare_bytes(device, &result, emulated);
            } else if same.is_none() {
                of_emulators.push((arch, result));
            }
        }
    }

    fn expected(&self, reference: Reference, output: Output) -> Expected {
        let GemmShape { m, n, l, .. } = self.shape;
        let bytes = self.exact().then(|| match output {
            Output::Floats(floats) => {
                [floats::encode(floats, reference.values.iter().copied()), Vec::new()]
            }
            Output::Nvfp4 { scale, layout } => {
                let values: Vec<f32> = reference.values.iter().map(|&x| x as f32).collect();
                let dims = Dims::new(l, m, n).expect("dims");
                let blocks = quantize("c", &values, dims, TensorScale::Given(scale), layout);
                let blocks = blocks.expect("finite");
                [blocks.codes().to_vec(), blocks.scales().to_vec()]
            }
        });
        Expected { reference, bytes }
    }

    /// `[batch, row, column]` of a result's byte.
    fn place(&self, byte: usize) -> [usize; 3] {
        let GemmShape { m, n, .. } = self.shape;
        let index = match self.kind {
            Kind::Floats(floats) => byte / floats.bytes() as usize,
            Kind::Nvfp4(_) => byte * 2,
        };
        [index / (m * n), index / n % m, index % n]
    }

    fn compare(&self, device: &str, result: &GemmResult, expected: &Expected) {
        let check = result.verify(&expected.reference);
        let plan = &result.plan;
        assert!(check.passed(), "{device}: {self:?}\n{plan}\n{}", check.summary());
        let Some([bytes, scales]) = &expected.bytes else { return };
        assert_eq!(result.bytes.len(), bytes.len(), "{device}: {self:?}");
        // Zeros may have either sign: the oracle's has that of another order of factors.
        let wrong = match self.kind {
            Kind::Floats(floats) => {
                let (got, right) = (result.values(), floats::decode(floats, bytes));
                let wrong = (0..got.len()).find(|&at| got[at] != right[at]);
                wrong.map(|at| (at * floats.bytes() as usize, got[at], right[at]))
            }
            Kind::Nvfp4(layout) => {
                assert_eq!(result.scales.len(), scales.len(), "{device}: {self:?}");
                let wrong = (0..scales.len()).find(|&at| result.scales[at] != scales[at]);
                if let Some(at) = wrong {
                    let (got, right) = (result.scales[at], scales[at]);
                    panic!(
                        "{device}: {self:?}\n{plan}\nbyte {at} of the {layout} scales is {got:#x} \
                         ({}), not {right:#x} ({})",
                        e4m3::decode(got),
                        e4m3::decode(right)
                    );
                }
                let pair = |bytes: &[u8], at| without_negative_zero(bytes[at]);
                let wrong = (0..bytes.len()).find(|&at| pair(&result.bytes, at) != pair(bytes, at));
                wrong.map(|at| (at, f32::from(result.bytes[at]), f32::from(bytes[at])))
            }
        };
        if let Some((at, got, right)) = wrong {
            let place = self.place(at);
            panic!("{device}: {self:?}\n{plan}\n[l, m, n] = {place:?}: {got:e}, not {right:e}");
        }
    }

    /// Compares a GPU's bytes with the emulator's.
    fn compare_bytes(&self, device: &str, result: &GemmResult, emulated: &GemmResult) {
        for (part, got, right) in [
            ("elements", &result.bytes, &emulated.bytes),
            ("scales", &result.scales, &emulated.scales),
        ] {
            assert_eq!(got.len(), right.len(), "{device}: {self:?}: {part}");
            if let Some(at) = (0..got.len()).find(|&at| got[at] != right[at]) {
                let place = match part {
                    "elements" => format!("[l, m, n] = {:?}", self.place(at)),
                    _ => format!("byte {at}"),
                };
                let (plan, got, right) = (&result.plan, got[at], right[at]);
                panic!(
                    "{device}: {self:?}\n{plan}\n{part}, {place}: byte {got:#x}, {right:#x} on the \
                     emulator"
                );
            }
        }
    }
}

/// The parts of K that every configuration of sm_90a is run with.
const SPLITS: [u32; 3] = [0, 1, 2];

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
            for splits in SPLITS {
                let splits = splits.min(config.max_splits());
                let case = dealer.case(config, splits, None, SMALL);
                let case = Case { generator, ..case };
                let GemmShape { m, n, k, .. } = case.shape;
                for (seen, size) in seen.iter_mut().zip([m, n, k]) {
                    seen.insert(size);
                }
                case.run(&devices);
            }
        }
    }
    let [rows, columns, depths] = seen;
    assert!(ROWS.iter().all(|size| rows.contains(size)), "M: {rows:?}");
    assert!(COLUMNS.iter().all(|size| columns.contains(size)), "N: {columns:?}");
    assert!(DEPTHS.iter().all(|size| depths.contains(size)), "K: {depths:?}");
}

/// The whole product of the ragged sizes, on a GPU: each with a kernel and parts of K, or left to
/// the plan.
#[test]
fn all_sizes_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [("cuda:0", kernels)];
    let mut dealer = Dealer::new(23);
    let mut choices = Deck::new(&CONFIGS.each_ref());
    let mut parts = Deck::new(&[0, 1, 2, 3, 5, 8]);
    for m in ROWS {
        for n in COLUMNS {
            for k in DEPTHS {
                for generator in [Generator::Exact, Generator::FullRange] {
                    let config = choices.deal(&mut dealer.rng);
                    let most = config.max_splits().min(k.div_ceil(K_STEP as usize) as u32);
                    let splits = parts.deal_where(&mut dealer.rng, |splits| splits <= most);
                    let mut case = dealer.case(config, splits, Some([m, n, k]), usize::MAX);
                    case.generator = generator;
                    case.kernel = case.kernel.filter(|_| (m + n + k) % 4 != 0);
                    case.run(&devices);
                }
            }
        }
    }
}

/// A problem of the public GEMM contest: NVFP4 to f16.
fn contest(shape: GemmShape, layout: ScaleLayout) -> Case {
    Case {
        shape,
        format: Format::Nvfp4,
        left: Left::Blocks(layout),
        layout,
        shared: false,
        generator: Generator::ContestGemm,
        kind: Kind::Floats(FloatType::F16),
        vectors: [false; 3],
        alpha: 1.0,
        tensor_scales: [1.0; 2],
        kernel: None,
        seed: shape.n as u64,
    }
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
        contest(shape, ScaleLayout::ALL[index % 2]).run(&devices);
    }
}

/// The other correctness shapes and the benchmark's, on a GPU, with scales in both layouts.
#[test]
fn large_contest_shapes_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [("cuda:0", kernels)];
    for shape in GEMM_CONTEST.into_iter().chain(GEMM_CORRECTNESS) {
        for layout in ScaleLayout::ALL {
            contest(shape, layout).run(&devices);
        }
    }
}

/// Full-range inputs at large sizes, on a GPU: all results and activations.
#[test]
fn large_full_range_on_a_gpu() {
    let Some(kernels) = gpu() else { return };
    let devices = [("cuda:0", kernels)];
    for (index, kind) in KINDS.into_iter().enumerate() {
        for (format, left) in [
            (Format::Nvfp4, Left::Blocks(Blocked128x4)),
            (Format::Nvfp4, Left::Halves(Operand::F16)),
            (Format::Nvfp4, Left::Halves(Operand::Bf16)),
            (Format::Mxfp4, Left::Blocks(Linear)),
            (Format::Mxfp4, Left::Halves(Operand::Bf16)),
        ] {
            let shape = GemmShape::of([1, 33, 130, 515, 1000][index], 2064, 7200);
            let case = Case {
                format,
                left,
                kind,
                generator: Generator::FullRange,
                ..contest(shape, Linear)
            };
            case.run(&devices);
        }
    }
}
