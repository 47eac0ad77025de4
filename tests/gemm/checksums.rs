//! Every GEMM configuration gives the bits that are recorded in `tests/data/checksums`.
//!
//! The keys name plain properties of a configuration, not kernels, so that the checksums outlive
//! renamed kernels and types. `tests/data/checksums/README.md` says when a change is legitimate.

use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::gemm::Split;
use fp4_formats::gemm::{Adding, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, Operand};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    ActivationKind, GemmOptions, GemmOverrides, GemmResult, GemmRun, Output, Repacked, gemm,
};
use nvfp4::shape::GemmShape;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::checksums::{self, Checksums};
use nvfp4_tests::emulated_on;
use nvfp4_tests::gemm::{ActivationType, Case, adding_of};
use ptx_emu::Gpu;

/// A K of `steps` steps of `step` and a part of one.
const fn ragged_k(step: u32, steps: u32) -> usize {
    (step * steps + 32) as usize
}

/// One result, what is applied to it, and their names in keys.
struct Variant {
    output: Output,
    alpha: f32,
    /// Row factors, column factors, bias.
    vectors: [bool; 3],
}

const fn variant(output: Output, alpha: f32, vectors: [bool; 3]) -> Variant {
    Variant { output, alpha, vectors }
}

const F16: Output = Output::Floats(FloatType::F16);
const BF16: Output = Output::Floats(FloatType::Bf16);
const F32: Output = Output::Floats(FloatType::F32);
const LINEAR: Output = Output::Nvfp4 { scale: 0.015625, layout: Linear };
const BLOCKED: Output = Output::Nvfp4 { scale: 0.015625, layout: Blocked128x4 };

/// Every type of result, alone and with each of the factors.
const VARIANTS: [Variant; 12] = [
    variant(F32, 1.0, [false, false, false]),
    variant(F16, -1.5, [true, false, false]),
    variant(BF16, 1.0, [false, true, true]),
    variant(LINEAR, 0.375, [true, true, true]),
    variant(BLOCKED, 1.0, [false, false, false]),
    variant(F32, 0.375, [true, true, true]),
    variant(F16, 1.0, [false, false, true]),
    variant(BF16, 1.0, [true, false, false]),
    variant(LINEAR, 1.0, [false, true, false]),
    variant(BLOCKED, -1.5, [false, false, true]),
    variant(Output::Mxfp4 { layout: Linear }, 1.0, [false, false, false]),
    variant(Output::Mxfp4 { layout: Blocked128x4 }, 0.375, [true, true, true]),
];

impl Variant {
    fn options(&self, shape: GemmShape, overrides: GemmOverrides) -> GemmOptions {
        let [rows, columns, bias] = self.vectors;
        let vector = |wanted: bool, count: usize, step: f32| {
            wanted.then(|| (0..count).map(|i| 0.75 + step * (i % 11) as f32).collect())
        };
        GemmOptions::new()
            .alpha(self.alpha)
            .output(self.output)
            .row_factors(vector(rows, shape.m, -0.37))
            .column_factors(vector(columns, shape.n, 0.23))
            .bias(vector(bias, shape.n, 1.19))
            .adding(adding_of(&overrides))
            .overrides(overrides)
    }

    fn key(&self) -> String {
        let mut text = match self.output {
            Output::Floats(_) => self.output.name().to_owned(),
            Output::Nvfp4 { layout, .. } | Output::Mxfp4 { layout } => {
                format!("{} {layout}", self.output.name())
            }
        };
        if self.alpha != 1.0 {
            text += &format!(" alpha {}", self.alpha);
        }
        let names = self.vectors.into_iter().zip([" rows", " columns", " bias"]);
        names.filter(|(wanted, _)| *wanted).for_each(|(_, name)| text += name);
        text
    }
}

/// Activations as keys name them.
fn name(activations: ActivationType) -> String {
    match activations {
        ActivationType::Blocks(layout) => format!("fp4 {layout}"),
        ActivationType::Halves(operand) => operand.name().to_owned(),
        ActivationType::Fp8(from) => ActivationKind::Fp8(from).name().to_owned(),
    }
}

/// A machine with `sms` SMs: of few, CTAs have several tiles, and parts of tiles.
fn machine(gpu: Gpu, sms: u32) -> Kernels {
    emulated_on(Gpu { sms, ..gpu }, checksums::schedule())
}

/// One product of random operands.
struct Product<'a> {
    kernels: &'a Kernels,
    format: Format,
    activations: ActivationType,
    shape: GemmShape,
    variant: &'a Variant,
    overrides: GemmOverrides,
}

impl Product<'_> {
    /// Runs it, and adds its bits under a key that begins with `key`.
    fn add(self, sums: &mut Checksums, key: impl FnOnce(&GemmResult) -> String) {
        let result = match self.format {
            Format::Nvfp4 => self.run::<Nvfp4>(),
            Format::Mxfp4 => self.run::<Mxfp4>(),
        };
        let GemmShape { m, n, k, l } = self.shape;
        let added = match adding_of(&self.overrides) {
            Adding::Promoted => "",
            Adding::Fast => " added fast",
        };
        let key = format!(
            "{} {} x {}{added}, {}, {m}x{n}x{k}x{l} on {} SMs, {}",
            result.plan.arch,
            self.format.name(),
            name(self.activations),
            key(&result),
            self.kernels.device().properties().sms,
            self.variant.key(),
        );
        sums.add(key, &[&result.bytes, &result.scales]);
    }

    fn run<F: BlockFormat>(&self) -> GemmResult {
        let GemmShape { m, n, k, l } = self.shape;
        let mut case = Case::new([m, n, k, l]).format(self.format).activations(self.activations);
        case.layout = Blocked128x4;
        case.generator = Generator::FullRange;
        case.seed = (m * n + k + l) as u64;
        let inputs = case.inputs::<F>();
        let options = self.variant.options(self.shape, self.overrides.clone());
        let (a, weights) = (inputs.activations(), &inputs.weights);
        let result = match self.activations {
            ActivationType::Blocks(_) | ActivationType::Halves(_) => {
                gemm(self.kernels, &a, weights, &options)
            }
            ActivationType::Fp8(from) => {
                // The scales of tokens take the place of row factors.
                let rows = options.row_factors.clone().filter(|_| from.is_some());
                let weights = Repacked::rounded(self.kernels.device(), weights.into(), a.kind());
                let run = weights.and_then(|weights| {
                    GemmRun::new(self.kernels, &a, &weights, &options.clone().row_factors(rows))
                });
                run.and_then(|run| run.run())
            }
        };
        result.unwrap_or_else(|e| panic!("{case:?} {options:?}: {e}"))
    }
}

/// A configuration in plain properties.
#[derive(Debug, Clone, Copy)]
struct Tile {
    kernel: &'static str,
    format: Format,
    /// Weight rows and tokens, or their counterparts, of a tile.
    sizes: [usize; 2],
    /// CTAs that multiply together.
    multiplying: u32,
    /// CTAs that copy for one another.
    multicast: u32,
}

impl Tile {
    /// Returns the key in the table; the tile of rows by tokens is the plan's.
    fn key(&self, split: Split, result: &GemmResult) -> String {
        let ([rows, tokens], Self { multiplying, multicast, .. }) = (result.plan.tile, self);
        assert_eq!(result.plan.kernel, self.kernel);
        format!("tile {rows}x{tokens} multiply {multiplying} multicast {multicast} split {split}")
    }
}

/// The activations that sm_90a's kernels for weights in `format` decoded to `operand` take.
fn decoded_to(format: Format, operand: Operand) -> &'static [ActivationType] {
    match (format, operand) {
        (Format::Nvfp4, Operand::F16) => &[
            ActivationType::Halves(HalfType::F16),
            ActivationType::Blocks(Linear),
            ActivationType::Blocks(Blocked128x4),
        ],
        (Format::Mxfp4, Operand::BF16) => &[
            ActivationType::Halves(HalfType::Bf16),
            ActivationType::Blocks(Blocked128x4),
            ActivationType::Blocks(Linear),
        ],
        (Format::Nvfp4, Operand::BF16) => &[ActivationType::Halves(HalfType::Bf16)],
        (Format::Mxfp4, Operand::F16) => &[],
        (_, Operand::E4m3) => &[
            ActivationType::Fp8(None),
            ActivationType::Fp8(Some(HalfType::F16)),
            ActivationType::Fp8(Some(HalfType::Bf16)),
        ],
    }
}

/// N of ragged tiles: whole blocks where results are blocks.
fn ragged(rows: usize, variant: &Variant) -> usize {
    match variant.output {
        Output::Floats(_) => rows + 75,
        Output::Nvfp4 { .. } => rows + 80,
        Output::Mxfp4 { .. } => rows + 96,
    }
}

/// All configurations for NVFP4 weights, each with every split that it takes.
#[test]
fn every_configuration_of_sm_90a_for_nvfp4() {
    sm_90a(Format::Nvfp4);
}

/// The same for MXFP4 weights.
#[test]
fn every_configuration_of_sm_90a_for_mxfp4() {
    sm_90a(Format::Mxfp4);
}

/// One whole tile on a whole H200, where stream-K gives many CTAs a part of it, and ragged tiles
/// of a batch on three SMs.
fn sm_90a(format: Format) {
    let [whole, few] = [132, 3].map(|sms| machine(Gpu::h200(), sms));
    let mut sums = Checksums::default();
    for config in sm90::CONFIGS.iter().filter(|config| config.scheme.format == format) {
        let tile = Tile {
            kernel: config.name,
            format,
            sizes: [config.rows, config.tokens].map(|size| size as usize),
            multiplying: 1,
            multicast: config.multicast,
        };
        let all = decoded_to(format, config.scheme.operand);
        let [rows, tokens] = tile.sizes;
        for split in Split::up_to(config.max_split()) {
            // Number of the split in the order in which the variants are dealt.
            let (number, count) = match split {
                Split::StreamK => (0, VARIANTS.len()),
                Split::None => (1, 4),
                Split::Cluster(ctas) => (ctas, 1),
            };
            let of = |i: usize| &VARIANTS[(i + number as usize * 2) % VARIANTS.len()];
            let overrides = GemmOverrides::new().kernel(tile.kernel.to_string()).split(split);
            let k = ragged_k(sm90::config::K_STEP, number.max(5));
            let mut add = |kernels, i: usize, variant, [m, n, l]: [usize; 3]| {
                let shape = GemmShape { m, n, k, l };
                let (activations, overrides) = (all[i % all.len()], overrides.clone());
                let product = Product { kernels, format, activations, shape, variant, overrides };
                product.add(&mut sums, |result| tile.key(split, result));
            };
            add(&whole, number as usize, of(0), [tokens, rows * tile.multicast as usize, 1]);
            for i in 0..count {
                add(&few, i, of(i), [tokens + 3, ragged(rows, of(i)), 2]);
            }
        }
    }
    sums.compare(&format!("gemm_sm_90a_{}", format.name()));
}

/// All configurations, on shapes of few tokens and of few columns, so that the weights are
/// the rows of the tensor core's tiles in some and the columns in others.
#[test]
fn every_configuration_of_sm_100a() {
    let [whole, few] = [148, 8].map(|sms| machine(nvfp4_tests::b200(), sms));
    let mut sums = Checksums::default();
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        let tile = Tile {
            kernel: config.name,
            format: config.format,
            sizes: [config.rows(), config.cluster_columns()].map(|size| size as usize),
            multiplying: config.cta_group,
            multicast: config.multicast,
        };
        let all = match config.activations {
            Some(operand) => vec![ActivationType::as_they_are(operand)],
            None => vec![ActivationType::Blocks(Linear), ActivationType::Blocks(Blocked128x4)],
        };
        let [rows, columns] = tile.sizes;
        let overrides = GemmOverrides::new().kernel(tile.kernel.to_string()).split(config.split);
        let k = ragged_k(config.step(), config.k_parts().max(2));
        let mut add = |kernels, i: usize, variant, [m, n, l]: [usize; 3]| {
            let shape = GemmShape { m, n, k, l };
            let (activations, overrides) = (all[i % all.len()], overrides.clone());
            let product =
                Product { kernels, format: tile.format, activations, shape, variant, overrides };
            product.add(&mut sums, |result| tile.key(config.split, result));
        };
        add(&whole, at, &VARIANTS[at % VARIANTS.len()], [columns, rows, 1]);
        for (i, variant) in VARIANTS.iter().enumerate() {
            let shape = if (at + i) % 2 == 0 {
                [9, ragged(rows, variant), 2]
            } else {
                [rows + 9, ragged(0, variant), 2]
            };
            add(&few, i, variant, shape);
        }
    }
    sums.compare("gemm_sm_100a");
}

/// The plan's choices on whole machines.
#[test]
fn as_planned() {
    let mut sums = Checksums::default();
    for kernels in [machine(Gpu::h200(), 132), machine(nvfp4_tests::b200(), 148)] {
        let mut i = 0;
        for (format, operand) in [
            (Format::Nvfp4, Operand::F16),
            (Format::Nvfp4, Operand::BF16),
            (Format::Mxfp4, Operand::BF16),
        ] {
            for &activations in decoded_to(format, operand) {
                for [m, n, l] in [[1usize, 512, 1], [16, 1000, 1], [70, 320, 3], [200, 520, 1]] {
                    let variant = (0..VARIANTS.len()).map(|j| &VARIANTS[(i + j) % VARIANTS.len()]);
                    let fits = |variant: &&Variant| {
                        matches!(variant.output, Output::Floats(_)) || n.is_multiple_of(16)
                    };
                    let shape = GemmShape { m, n, k: 1184, l };
                    let variant = variant.into_iter().find(fits).expect("floats fit");
                    let overrides = GemmOverrides::default();
                    Product { kernels: &kernels, format, activations, shape, variant, overrides }
                        .add(&mut sums, |_| "as planned".into());
                    i += 1;
                }
            }
        }
    }
    sums.compare("gemm_planned");
}
