//! The steps of `selftest`, in the order in which hardware that nobody has seen should meet it: from
//! the steps that need least of the machine to those that need most.

use fp4_formats::gemm::table::{Kernel, kernels};
use fp4_formats::gemm::{Operands, Problems, Split, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{
    Arch, FloatType, HalfType, Operand, ScaleLayout, TensorFamily, gemv as contract,
};
use nvfp4::gemm::{Activation, GemmOptions, GemmOverrides, ResidualValues, UpOptions};
use nvfp4::gemv::{GemvOptions, GemvOverrides};
use nvfp4::quantize::{QuantizeOptions, Recipe, TensorScale};
use nvfp4::rows::{Results, Rotation, RowsOptions, Source};
use nvfp4::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use nvfp4_lab::bench::{
    ActivationInput, Direction, GemmBench, GemvBench, Protocol, QuantizeBench, RowsBench,
};
use nvfp4_lab::gemm::adding_of;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{
    GemmShape, GemvShape, GroupedShape, MixtureShape, QuantizeShape, RowsShape, Shape,
};
use ptx_emu_conformance::Family;

/// No times.
const UNTIMED: Protocol =
    Protocol { warmup: 0, replays: 0, ceiling: false, cublas: false, host: false };
/// Times, ceilings and peers.
const TIMED: Protocol =
    Protocol { warmup: 3, replays: 20, ceiling: true, cublas: true, host: false };
/// The stage that an unknown machine meets first.
const FIRST: &str = "first";
/// Seed of all inputs.
const SEED: u64 = 7;

/// One thing to run.
pub struct Check {
    /// Steps with the same name follow each other.
    pub stage: &'static str,
    /// The name of the step.
    pub name: String,
    pub subject: Subject,
}

/// The subject of a step.
pub enum Subject {
    /// Bytes to the device and back.
    Copies,
    /// The emulator's probes of a family, on the GPU and on the emulator.
    Probes(Family),
    Gemv(GemvShape, GemvBench),
    Gemm(GemmShape, Box<GemmBench>),
    Grouped(GroupedShape, Box<GemmBench>),
    /// Products in one launch, and the kernel that must run them.
    Mixed(Vec<GemmShape>, &'static str, Box<GemmBench>),
    Moe(MixtureShape, Box<GemmBench>),
    Quantize(QuantizeShape, QuantizeBench),
    Rows(RowsShape, Box<RowsBench>),
    /// Nanoseconds of a launch on the host.
    LaunchCost(GemmShape, GemvShape),
}

/// A kernel of a GEMM, and what it takes.
struct Config {
    name: &'static str,
    /// The part of its steps' names that distinguishes them from others of the same kernel.
    suffix: &'static str,
    format: Format,
    activations: ActivationInput,
    splits: Vec<Split>,
    /// Rows of the weights and tokens of a tile.
    tile: [usize; 2],
    problems: Problems,
}

/// The activations that kernels with this operand are tried with.
fn activations(operand: Operand) -> ActivationInput {
    match operand {
        Operand::Half(half) => ActivationInput::Halves(half),
        Operand::E4m3 => ActivationInput::Fp8(Some(HalfType::Bf16)),
    }
}

/// The splits of K that a kernel is tried with.
fn splits(tensor: TensorFamily, kernel: &Kernel) -> Vec<Split> {
    match (tensor, kernel.problems) {
        (TensorFamily::Tcgen05, _) => sm100::config::named(kernel.name).splits().collect(),
        (
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma,
            Problems::Grouped | Problems::Mixed,
        ) => {
            vec![Split::StreamK]
        }
        (TensorFamily::Wgmma, Problems::Uniform)
            if sm90::config::named(kernel.name).max_split() > 1 =>
        {
            vec![Split::None, Split::Cluster(2), Split::StreamK]
        }
        (
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma,
            Problems::Uniform,
        ) => {
            vec![Split::None, Split::StreamK]
        }
    }
}

fn configs(arch: Arch) -> Vec<Config> {
    let tensor = arch.tensor();
    let of = |kernel: &Kernel| {
        let Kernel { name, operands: Operands { weights, activations: operand }, .. } = *kernel;
        Config {
            name,
            suffix: "",
            format: weights,
            activations: operand.map_or(ActivationInput::Fp4, activations),
            splits: splits(tensor, kernel),
            tile: kernel.tile.map(|extent| extent as usize),
            problems: kernel.problems,
        }
    };
    let mut all: Vec<Config> = kernels(tensor).iter().map(of).collect();
    match tensor {
        TensorFamily::MmaSync | TensorFamily::MmaSyncScaled => {
            // A launch before decodes e4m3 where no kernel multiplies it, the same for all kernels: one of each format
            // and problem tries it.
            let mut tried = Vec::new();
            for kernel in kernels(tensor) {
                let key = (kernel.operands.weights, kernel.problems);
                let bytes = Operands { activations: Some(Operand::E4m3), ..kernel.operands };
                let decoded = !bytes.has_kernels(tensor);
                let is_first = !tried.contains(&key);
                if kernel.operands.activations == Some(Operand::BF16) && decoded && is_first {
                    tried.push(key);
                    let activations = activations(Operand::E4m3);
                    all.push(Config { suffix: " of e4m3", activations, ..of(kernel) });
                }
            }
        }
        TensorFamily::Wgmma => {}
        // A pair of CTAs and clusters come after single ones.
        TensorFamily::Tcgen05 => {
            all.sort_by_key(|config| (config.splits[0].cluster(), config.tile[0]));
        }
    }
    all
}

impl Config {
    fn bench(&self, generator: Generator, split: Split) -> GemmBench {
        let overrides = GemmOverrides::new().kernel(self.name.to_owned()).split(split);
        GemmBench {
            format: self.format,
            activations: self.activations,
            generator,
            decoded: false,
            seed: SEED,
            layout: ScaleLayout::Linear,
            options: GemmOptions::new()
                .output(FloatType::F32)
                .adding(adding_of(&overrides))
                .overrides(overrides),
            quantized: None,
            protocol: UNTIMED,
            explain: false,
            sweep: 0,
        }
    }

    fn step(&self, stage: &'static str, shape: GemmShape, bench: GemmBench, split: Split) -> Check {
        let name = format!("{}{} {split} {shape}", self.name, self.suffix);
        Check { stage, name, subject: Subject::Gemm(shape, Box::new(bench)) }
    }
}

impl Config {
    /// Products of several sizes in one launch: whole tiles with exact sums, then ragged ones, plain and gated.
    fn mixed_steps(&self, activation: Activation) -> Vec<Check> {
        let [n, m] = self.tile;
        let of = |[m, n, k]: [usize; 3]| GemmShape { m, n, k, l: 1 };
        let whole = [[m, 2 * n, 512], [2 * m, n, 128]].map(of).to_vec();
        let ragged = [[m + 3, n + 44, 160], [1, 24, 32], [2 * m + 1, 8, 672]].map(of).to_vec();
        let step = |stage, shapes: &[GemmShape], bench: GemmBench| {
            let texts: Vec<String> = shapes.iter().map(GemmShape::to_string).collect();
            let name = format!("{}{} {}", self.name, self.suffix, texts.join(" "));
            Check {
                stage,
                name,
                subject: Subject::Mixed(shapes.to_vec(), self.name, Box::new(bench)),
            }
        };
        let bench = |generator, output| {
            let mut bench = self.bench(generator, Split::StreamK);
            bench.options = GemmOptions::new().output(output);
            bench
        };
        let mut gated = bench(Generator::ContestDual, FloatType::Bf16);
        gated.options = gated.options.activation(activation).up(UpOptions::default());
        vec![
            step("mixed, exact", &whole, bench(Generator::Exact, FloatType::F32)),
            step("mixed, ragged", &ragged, bench(Generator::FullRange, FloatType::F16)),
            step("mixed and gated, ragged", &ragged, gated),
        ]
    }
}

/// All steps for a device; with `quick` a few of each stage. `times` adds what only a GPU has.
pub fn steps(arch: Arch, quick: bool, on_gpu: bool) -> Vec<Check> {
    let mut steps =
        vec![Check { stage: "copies", name: "64 MiB".into(), subject: Subject::Copies }];
    let configs = configs(arch);
    steps.extend(first(arch, &configs));
    if on_gpu {
        let probes = Family::ALL.iter().map(|&family| Check {
            stage: "conformance",
            name: family.name().into(),
            subject: Subject::Probes(family),
        });
        steps.extend(probes);
    }
    steps.extend(gemvs());
    steps.extend(quantisers());
    steps.extend(rows());
    steps.extend(products(&configs));
    steps.extend(mixtures());
    if on_gpu {
        steps.extend(timed());
    }
    if quick { few(steps) } else { steps }
}

/// All of the first stage; of the others the first, the middle and the last step.
fn few(steps: Vec<Check>) -> Vec<Check> {
    let count = |stage| steps.iter().filter(|step| step.stage == stage).count();
    let mut place = (0, "");
    let keep: Vec<bool> = steps
        .iter()
        .map(|step| {
            place = if place.1 == step.stage { (place.0 + 1, step.stage) } else { (0, step.stage) };
            let last = count(step.stage) - 1;
            step.stage == FIRST || [0, last / 2, last].contains(&place.0)
        })
        .collect();
    steps.into_iter().zip(keep).filter_map(|(step, keep)| keep.then_some(step)).collect()
}

/// Returns the first steps on an unknown machine: a kernel without clusters, one with a pair of
/// CTAs, one that splits K, one that shares operands, and more tiles than the machine holds.
fn first(arch: Arch, configs: &[Config]) -> Vec<Check> {
    let (names, many): (&[&str], _) = match arch.tensor() {
        TensorFamily::MmaSync => (
            &["gemm_sm80_nvfp4_f16_128x8", "gemm_sm80_nvfp4_f16_128x128"],
            "gemm_sm80_nvfp4_f16_128x64",
        ),
        TensorFamily::MmaSyncScaled => (
            &["gemm_sm120_nvfp4_128x8", "gemm_sm80_nvfp4_f16_128x8", "gemm_sm120_nvfp4_128x128"],
            "gemm_sm120_nvfp4_128x64",
        ),
        TensorFamily::Wgmma => (
            &["gemm_sm90_nvfp4_f16_128x8", "gemm_sm90_nvfp4_f16_128x64_multicast2"],
            "gemm_sm90_nvfp4_f16_128x64",
        ),
        TensorFamily::Tcgen05 => (
            &[
                "gemm_sm100_nvfp4_128x64",
                "gemm_sm100_nvfp4_256x64",
                "gemm_sm100_nvfp4_128x64_split2",
                "gemm_sm100_nvfp4_128x256_multicast2",
            ],
            "gemm_sm100_nvfp4_128x64",
        ),
    };
    let find = |name: &&str| configs.iter().find(|config| config.name == *name);
    let one = names.iter().filter_map(find).map(|config| {
        let [n, m] = config.tile;
        let shape = GemmShape { m: m.min(128), n: 2 * n, k: 512, l: 1 };
        let split = config.splits[0];
        config.step(FIRST, shape, config.bench(Generator::Exact, split), split)
    });
    let dynamic = find(&many).map(|config| {
        let split = config.splits[0];
        let shape = GemmShape { m: 64, n: 128 * 320, k: 128, l: 1 };
        config.step(FIRST, shape, config.bench(Generator::Exact, split), split)
    });
    one.chain(dynamic).collect()
}

fn gemvs() -> Vec<Check> {
    let mut steps = Vec::new();
    for config in &contract::CONFIGS {
        let layout = config.scale_layout;
        let multiple = if config.name.ends_with("_k16") { 16 * 33 } else { 512 };
        for (stage, shape, generator) in [
            ("gemv, exact", GemvShape { m: 256, k: multiple, l: 1 }, Generator::Exact),
            ("gemv, ragged", GemvShape { m: 131, k: 3 * multiple, l: 3 }, Generator::FullRange),
        ] {
            let overrides = GemvOverrides::new().kernel(config.name.to_owned());
            let options = GemvOptions::new().output(FloatType::F32).overrides(overrides);
            let layouts = [ScaleLayout::Linear, layout];
            let bench = GemvBench {
                generator,
                seed: SEED,
                layouts,
                as_stored: true,
                options,
                protocol: UNTIMED,
            };
            let name = format!("{} {shape}", config.name);
            steps.push(Check { stage, name, subject: Subject::Gemv(shape, bench) });
        }
    }
    by_stage(steps)
}

/// Norms, activations and rotations, to each kind of results from both types.
fn rows() -> Vec<Check> {
    let blocks = |recipe: Recipe, layout: ScaleLayout| {
        let scale =
            if layout == ScaleLayout::Linear { TensorScale::PerRow } else { TensorScale::OneLevel };
        Results::Blocks(QuantizeOptions::new(recipe).scale(scale).layout(layout))
    };
    let epsilon = 1e-6;
    let sources = [
        Source::Plain,
        Source::RmsNorm { epsilon, residual: true },
        Source::LayerNorm { epsilon, residual: false, bias: true },
        Source::Gated(Activation::Silu),
    ];
    let nvfp4 = Nvfp4Recipe::ALL.iter().copied().map(Recipe::Nvfp4);
    let adaptive = AdaptiveRecipe::ALL.iter().copied().map(Recipe::Adaptive);
    let recipes = nvfp4.chain(adaptive).chain([Recipe::Mxfp4(Mxfp4Recipe::Rceil)]);
    let made: Vec<Results> = recipes
        .flat_map(|recipe| ScaleLayout::ALL.map(|layout| blocks(recipe, layout)))
        .chain([Results::E4m3, Results::Half])
        .collect();
    let mut steps = Vec::new();
    for (turn, results) in made.into_iter().enumerate() {
        for source in sources {
            let element = [HalfType::F16, HalfType::Bf16][turn / 2 % 2];
            let shape = RowsShape { m: 131, k: 32 * 21, gated: source.is_gated() };
            let rotation = (turn % 3 == 1).then_some(Rotation { signs: 0x39c5 });
            let options = RowsOptions::new(source, results).rotation(rotation);
            let of = match &results {
                Results::Blocks(options) => {
                    format!("{} {} {}", results.name(), options.recipe.name(), options.layout)
                }
                Results::E4m3 | Results::Half => results.name().to_owned(),
            };
            let name = format!("{} {} to {of} {shape}", source.name(), element.name());
            let bench = RowsBench { element, options, seed: SEED, protocol: UNTIMED };
            steps.push(Check {
                stage: "rows",
                name,
                subject: Subject::Rows(shape, Box::new(bench)),
            });
        }
    }
    steps
}

/// Every recipe from every type of floats, and back.
fn quantisers() -> Vec<Check> {
    let nvfp4 = Nvfp4Recipe::ALL.iter().copied().map(Recipe::Nvfp4);
    let adaptive = AdaptiveRecipe::ALL.iter().copied().map(Recipe::Adaptive);
    let mxfp4 = Mxfp4Recipe::ALL.iter().copied().map(Recipe::Mxfp4);
    let mut steps = Vec::new();
    for recipe in nvfp4.chain(adaptive).chain(mxfp4) {
        for element in FloatType::ALL {
            for (direction, stage, layout, shape) in [
                (Direction::Quantize, "quantise", ScaleLayout::Linear, [64, 256]),
                (Direction::Quantize, "quantise", ScaleLayout::Blocked128x4, [131, 32 * 9]),
                (Direction::Dequantize, "dequantise", ScaleLayout::Blocked128x4, [131, 32 * 9]),
            ] {
                let shape = QuantizeShape { m: shape[0], k: shape[1] };
                let scale = TensorScale::FromAmax;
                let options = QuantizeOptions::new(recipe).scale(scale).layout(layout);
                let name = format!("{} {} {layout} {shape}", recipe.name(), element.name());
                let bench =
                    QuantizeBench { direction, element, options, seed: SEED, protocol: UNTIMED };
                steps.push(Check { stage, name, subject: Subject::Quantize(shape, bench) });
            }
        }
    }
    by_stage(steps)
}

/// Every kernel of every product, on exact inputs of whole tiles and on ragged ones. Gated products take
/// one activation after the other, kernel by kernel.
fn products(configs: &[Config]) -> Vec<Check> {
    let mut steps = Vec::new();
    for (config, activation) in configs.iter().zip(Activation::ALL.into_iter().cycle()) {
        let [n, m] = config.tile;
        let exact = GemmShape { m, n: 2 * n, k: 1024, l: 1 };
        // An odd number of blocks, of either format.
        let ragged = GemmShape { m: m + 3, n: 3 * n + 5, k: 32 * 27, l: 2 };
        for &split in &config.splits {
            if config.problems == Problems::Mixed {
                steps.extend(config.mixed_steps(activation));
                continue;
            }
            if config.problems == Problems::Grouped {
                let (dual, gated_counts) = (Generator::ContestDual, vec![m + 2, 0, 1]);
                let residual_counts = vec![2, 0, m + 1];
                for (stage, generator, counts, [gated, added]) in [
                    ("grouped, exact", Generator::Exact, vec![m, 0, m], [false; 2]),
                    ("grouped, ragged", Generator::FullRange, vec![3, m + 1, 0, 1], [false; 2]),
                    ("grouped and gated, ragged", dual, gated_counts.clone(), [true, false]),
                    ("grouped, residual", Generator::Exact, residual_counts, [false, true]),
                    ("grouped and gated, residual", dual, gated_counts, [true; 2]),
                ] {
                    let shape = GroupedShape { counts, n: 2 * n + 4, k: 32 * 13 };
                    let mut bench = config.bench(generator, split);
                    if added {
                        let tokens: usize = shape.counts.iter().sum();
                        bench.options = bench.options.residual(Some(residual(tokens * shape.n)));
                    }
                    let name = if gated {
                        bench.options =
                            bench.options.activation(activation).up(UpOptions::default());
                        Shape::GroupedDual(shape.clone())
                    } else {
                        Shape::Grouped(shape.clone())
                    };
                    let name = format!("{}{} {name}", config.name, config.suffix);
                    steps.push(Check {
                        stage,
                        name,
                        subject: Subject::Grouped(shape, Box::new(bench)),
                    });
                }
                continue;
            }
            let plain = config.bench(Generator::Exact, split);
            // Tokens that are quantised have no exact sums.
            let stage = match config.activations {
                ActivationInput::Fp4 | ActivationInput::Fp4Rows | ActivationInput::Halves(_) => {
                    "gemm, exact"
                }
                ActivationInput::Fp8(_) => "gemm, whole tiles",
            };
            steps.push(config.step(stage, exact, plain, split));
            let mut bench = config.bench(Generator::FullRange, split);
            bench.layout = ScaleLayout::Blocked128x4;
            bench.options = bench.options.output(FloatType::Bf16);
            steps.push(config.step("gemm, ragged", ragged, bench, split));
            let mut bench = config.bench(Generator::ContestDual, split);
            let up = UpOptions::default();
            bench.options = bench.options.output(FloatType::F16).activation(activation).up(up);
            steps.push(config.step("gated, ragged", ragged, bench, split));
            let mut bench = config.bench(Generator::ContestDual, split);
            bench.options =
                bench.options.output(FloatType::F32).activation(Activation::ReluSquared);
            steps.push(config.step("relu squared, ragged", ragged, bench, split));
            let added = residual(ragged.l * ragged.m * ragged.n);
            let mut bench = config.bench(Generator::Exact, split);
            bench.options = bench.options.residual(Some(added.clone()));
            steps.push(config.step("gemm, residual", ragged, bench, split));
            let mut bench = config.bench(Generator::ContestDual, split);
            let options = bench.options.output(FloatType::Bf16).residual(Some(added));
            bench.options = options.activation(activation).up(UpOptions::default());
            steps.push(config.step("gated, residual", ragged, bench, split));
        }
        let mut bench = config.bench(Generator::FullRange, config.splits[0]);
        bench.quantized = Some(ScaleLayout::Linear);
        let shape = GemmShape { n: 2 * n + 16, ..ragged };
        if config.problems == Problems::Uniform {
            steps.push(config.step("gemm to nvfp4, ragged", shape, bench, config.splits[0]));
        }
    }
    by_stage(steps)
}

/// A residual of so many elements. Neighbours, and elements of neighbouring rows, differ.
fn residual(elements: usize) -> ResidualValues {
    let values: Vec<f32> = (0..elements).map(|i| (i % 251) as f32 - 125.0).collect();
    ResidualValues::round(FloatType::F16, &values)
}

/// Layers of several tokens, and of one, whose rows choose their experts themselves.
fn mixtures() -> Vec<Check> {
    let several = MixtureShape { tokens: 19, experts: 6, top_k: 2, hidden: 128, between: 96 };
    let one = MixtureShape { tokens: 1, ..several };
    let halves = [HalfType::Bf16, HalfType::F16].map(ActivationInput::Halves);
    let all = [
        (Format::Nvfp4, halves[0]),
        (Format::Nvfp4, halves[1]),
        (Format::Nvfp4, ActivationInput::Fp4),
        (Format::Mxfp4, halves[0]),
    ];
    let step = |shape: MixtureShape, (format, activations): (Format, ActivationInput)| {
        let bench = product(format, activations, UNTIMED);
        let options = bench.options.activation(Activation::Silu).up(UpOptions::default());
        let name = format!("{} {activations} {shape}", format.name());
        let bench = GemmBench { options, ..bench };
        Check { stage: "mixture of experts", name, subject: Subject::Moe(shape, Box::new(bench)) }
    };
    let steps = [several, one].map(|shape| all.map(|of| step(shape, of)));
    steps.into_iter().flatten().collect()
}

/// A product that is planned.
fn product(format: Format, activations: ActivationInput, protocol: Protocol) -> GemmBench {
    GemmBench {
        format,
        activations,
        generator: Generator::FullRange,
        decoded: false,
        seed: SEED,
        layout: ScaleLayout::Blocked128x4,
        options: GemmOptions::new(),
        quantized: None,
        protocol,
        explain: false,
        sweep: 0,
    }
}

/// Times of well-known shapes beside the machine's own limits and the peer.
fn timed() -> Vec<Check> {
    let stage = "times";
    let mut steps = Vec::new();
    let gemm = GemmShape { m: 16, n: 7168, k: 16384, l: 1 };
    let small = GemmShape { m: 16, n: 256, k: 512, l: 1 };
    let cost = Subject::LaunchCost(small, GemvShape { m: 256, k: 512, l: 1 });
    steps.push(Check { stage, name: "launches on the host".into(), subject: cost });
    for (m, k, l) in [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)] {
        let shape = GemvShape { m, k, l };
        let bench = GemvBench { protocol: TIMED, seed: SEED, ..GemvBench::default() };
        steps.push(Check { stage, name: shape.to_string(), subject: Subject::Gemv(shape, bench) });
    }
    for activations in [ActivationInput::Fp4, ActivationInput::Halves(HalfType::Bf16)] {
        for shape in [
            GemmShape { m: 1, ..gemm },
            gemm,
            GemmShape { m: 128, ..gemm },
            GemmShape { m: 128, n: 4096, k: 7168, l: 1 },
            GemmShape { m: 2304, n: 4608, k: 7168, l: 1 },
        ] {
            let bench = product(Format::Nvfp4, activations, TIMED);
            let name = format!("{shape} {activations}");
            steps.push(Check { stage, name, subject: Subject::Gemm(shape, Box::new(bench)) });
        }
    }
    for direction in [Direction::Quantize, Direction::Dequantize] {
        let shape = QuantizeShape { m: 16384, k: 8192 };
        let options = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo));
        let options = options.scale(TensorScale::OneLevel);
        let element = FloatType::Bf16;
        let bench = QuantizeBench { direction, element, options, seed: SEED, protocol: TIMED };
        let name = match direction {
            Direction::Quantize => format!("{shape} quantise"),
            Direction::Dequantize => format!("{shape} dequantise"),
        };
        steps.push(Check { stage, name, subject: Subject::Quantize(shape, bench) });
    }
    for (source, gated) in [
        (Source::RmsNorm { epsilon: 1e-6, residual: true }, false),
        (Source::Gated(Activation::Silu), true),
    ] {
        let shape = RowsShape { m: 16384, k: 8192, gated };
        let blocks = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo));
        let results = Results::Blocks(blocks.scale(TensorScale::OneLevel));
        let options = RowsOptions::new(source, results);
        let bench = RowsBench { element: HalfType::Bf16, options, seed: SEED, protocol: TIMED };
        let name = format!("{shape} {}", source.name());
        steps.push(Check { stage, name, subject: Subject::Rows(shape, Box::new(bench)) });
    }
    steps
}

/// The same steps, stage after stage.
fn by_stage(mut steps: Vec<Check>) -> Vec<Check> {
    let mut stages: Vec<&str> = Vec::new();
    for step in &steps {
        if !stages.contains(&step.stage) {
            stages.push(step.stage);
        }
    }
    steps.sort_by_key(|step| stages.iter().position(|stage| *stage == step.stage));
    steps
}
