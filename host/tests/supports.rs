//! `supports` says of a description what planning it on a device says: over a matrix of operations, sizes, formats and
//! options on each machine. No kernel is there to run.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::Split;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{Arch, BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::Dequantizer;
use nvfp4::device::{Device, DeviceProperties, Kernels, Target};
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, ChosenRows, DeviceWeights, Gemm, GemmOptions,
    GemmOverrides, Grouping, MixedGemm, MixedProduct, Output, Repacked, ResultBuffers, UpOptions,
    Vectors, plan_for,
};
use nvfp4::gemv::{self, Gemv, GemvOptions, GemvOverrides};
use nvfp4::moe::{MoeLayer, MoeOptions, MoeShape, TokenFormat, TokenScales};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{Format, QuantizeOptions, Recipe, TensorScale, recipe_by_name};
use nvfp4::rows::{Gather, Results, Rows, RowsOptions, Source};
use nvfp4::shape::{GemmShape, GemvShape};
use nvfp4::supports;
use nvfp4::supports::{Description, MixedDescription};
use nvfp4::tensor::{BlockScaled, Dims};

use crate::support::{Folder, no_kernels};

/// The machines, and the kernels that they are given.
const MACHINES: [(&str, Arch); 5] = [
    ("emu:h200", Arch::Sm90a),
    ("emu:b200", Arch::Sm100a),
    ("emu:b300", Arch::Sm100f),
    ("emu:rtx5090", Arch::Sm120f),
    ("emu:a100", Arch::Sm80),
];

/// The outcomes of a matrix: each must occur, or the matrix shows nothing.
#[derive(Default)]
struct Outcomes {
    planned: usize,
    refused: usize,
}

impl Outcomes {
    /// Compares planning with what is said of the description, for the device and for its architecture.
    #[track_caller]
    fn compare<T>(&mut self, kernels: &Kernels, of: &Description<'_>, planned: Result<T>) {
        let device = kernels.device();
        let said = [
            supports(device, of).map_err(Error::from),
            supports(device.choice().arch, of).map_err(Error::from),
        ];
        let planned = planned.map(drop).map_err(|error| (error.kind(), error.to_string()));
        for said in said {
            let said = said.map_err(|error| (error.kind(), error.to_string()));
            assert_eq!(said, planned, "{} on {}: {of:?}", of.op(), device.choice());
        }
        match planned {
            Ok(()) => self.planned += 1,
            Err(_) => self.refused += 1,
        }
    }

    #[track_caller]
    fn at_least(&self, planned: usize, refused: usize) {
        let found = (self.planned, self.refused);
        assert!(found.0 >= planned && found.1 >= refused, "{found:?} of the matrix");
    }
}

fn on_machines(test: &str, mut check: impl FnMut(&Kernels)) {
    for machine in MACHINES {
        check(&no_kernels(&Folder::new(&format!("{test}-{}", machine.1)), machine));
    }
}

fn kinds() -> Vec<ActivationKind> {
    use ActivationKind as Kind;
    let halves = [HalfType::F16, HalfType::Bf16];
    let blocks = Format::ALL.into_iter().flat_map(|format| {
        ScaleLayout::ALL.map(|layout| ActivationKind::Blocks { format, layout })
    });
    let bytes = [None, Some(HalfType::F16), Some(HalfType::Bf16)];
    blocks.chain(halves.map(Kind::Halves)).chain(bytes.map(Kind::Fp8)).collect()
}

/// Options, some of which no kernel takes.
fn options() -> Vec<GemmOptions> {
    let base = GemmOptions::new;
    let by = |split, kernel: Option<&str>| {
        let kernel = kernel.map(str::to_owned);
        base().overrides(GemmOverrides::new().split(split).kernel(kernel))
    };
    let swiglu = |limit| Activation::ClampedSwiglu { limit, slope: 1.0 };
    vec![
        base(),
        base().up(UpOptions::new()).activation(Activation::Silu),
        base().output(FloatType::F32).activation(swiglu(7.0)),
        base().activation(swiglu(-1.0)),
        base().output(Output::Nvfp4 { scale: 1.0, layout: Linear }),
        base().output(Output::Nvfp4 { scale: f32::NAN, layout: Linear }),
        base().output(Output::Mxfp4 { layout: Blocked128x4 }),
        base().output(Output::Mxfp4 { layout: Linear }).up(UpOptions::new()),
        by(None, Some("gemm_sm90_nvfp4_bf16_128x64")),
        by(None, Some("gemm_of_nobody")),
        by(Some(Split::None), None),
        by(Some(Split::StreamK), None),
        by(Some(Split::Cluster(2)), None),
        by(Some(Split::Cluster(64)), None),
        base().batch_invariant(true),
        by(Some(Split::None), None).batch_invariant(true),
        by(Some(Split::StreamK), None).batch_invariant(true),
        by(None, Some("gemm_sm90_nvfp4_bf16_128x8")).batch_invariant(true),
    ]
}

fn zeros<F: BlockFormat>([l, rows, k]: [usize; 3]) -> BlockScaled<F> {
    let dims = Dims::new(l, rows, k).expect("dims");
    let (codes, scales) = (vec![0; l * rows * k / 2], vec![0; l * rows * k / F::BLOCK]);
    BlockScaled::new("w", dims, Linear, codes, scales, 1.0).expect("zeros")
}

/// Weights of zeros on a device for activations of `kind`.
fn weights(
    device: &Device,
    [l, n, k]: [usize; 3],
    format: Format,
    (kind, gated): (ActivationKind, bool),
) -> Result<DeviceWeights> {
    fn of<F: BlockFormat>(
        device: &Device,
        sizes: [usize; 3],
        (kind, gated): (ActivationKind, bool),
    ) -> Result<DeviceWeights> {
        let one = zeros::<F>(sizes);
        if !gated {
            return Repacked::for_device(device, &one, kind)?.upload(device);
        }
        let pair = nvfp4::gemm::GatedWeights::pair(&one, &one)?;
        Repacked::gated(device, &pair, kind)?.upload(device)
    }
    match format {
        Format::Nvfp4 => of::<Nvfp4>(device, [l, n, k], (kind, gated)),
        Format::Mxfp4 => of::<Mxfp4>(device, [l, n, k], (kind, gated)),
    }
}

/// Shapes that kernels take, and sizes of nothing, beyond integers and beyond what a launch can number.
#[test]
fn plans_of_all_shapes() {
    let mut outcomes = Outcomes::default();
    on_machines("supports-shapes", |kernels| {
        for (format, activations) in
            Format::ALL.into_iter().flat_map(|format| kinds().into_iter().map(move |k| (format, k)))
        {
            for [m, n, k, l] in [
                [1, 7168, 2048, 1],
                [300, 40, 96, 3],
                [7, 40, 80, 1],
                [1, 1, 32, 1],
                [0, 8, 64, 1],
                [8, 0, 64, 1],
                [8, 8, 0, 1],
                [8, 8, 64, 0],
                [8, 8, 40, 1],
                [8, 8, 64, 65_536],
                [1 << 31, 8, 64, 1],
                [8, 1 << 31, 64, 1],
                [3, 5, 1 << 28, 1],
                [1 << 30, 1 << 30, 1 << 30, 60_000],
            ] {
                let shape = GemmShape { m, n, k, l };
                let options = &GemmOptions::new();
                let planned = plan_for(kernels, shape, format, activations, options);
                let of = Description::Gemm { shape, format, activations, options };
                outcomes.compare(kernels, &of, planned);
            }
        }
    });
    outcomes.at_least(100, 500);
}

/// Formats and options, with weights. Weights of a pair of formats without kernels cannot be made: that is the outcome.
#[test]
fn products() {
    let mut outcomes = Outcomes::default();
    let pairs = || Format::ALL.into_iter().flat_map(|of| kinds().into_iter().map(move |k| (of, k)));
    on_machines("supports-products", |kernels| {
        for ((format, activations), n, options) in pairs().flat_map(|(format, kind)| {
            let options = || options().into_iter();
            [24, 64].into_iter().flat_map(move |n| options().map(move |of| ((format, kind), n, of)))
        }) {
            let (k, options) = (256, &options);
            let gated = (activations, options.up.is_some());
            let made = |matrices| weights(kernels.device(), [matrices, n, k], format, gated);
            let shape = GemmShape { m: 5, n, k, l: 2 };
            let uniform = Description::Gemm { shape, format, activations, options };
            let matrices = 3;
            let of = |grouping| Description::Grouped {
                sizes: [n, k],
                matrices,
                grouping,
                format,
                activations,
                options,
            };
            let contiguous = |bound| Grouping::Contiguous { bound };
            match made(1) {
                Ok(weights) => {
                    let planned = Gemm::new(kernels, &weights, [2, 5], activations, options);
                    outcomes.compare(kernels, &uniform, planned);
                }
                // Options may be refused, too.
                Err(error) if *options == GemmOptions::new() => {
                    outcomes.compare::<()>(kernels, &uniform, Err(error));
                    let error = made(matrices).expect_err("of this format, too");
                    outcomes.compare::<()>(kernels, &of(contiguous(11)), Err(error));
                    continue;
                }
                Err(_) => continue,
            }
            let weights = made(matrices).expect("as one");
            let choice = ChosenRows { rows: 4, shared: true, experts: 5, first: 2 };
            for grouping in [
                contiguous(11),
                contiguous(0),
                Grouping::Slots { tokens: 4 },
                Grouping::Slots { tokens: 1 << 30 },
                Grouping::Chosen(choice),
                Grouping::Chosen(ChosenRows { first: 3, ..choice }),
            ] {
                let planned = Gemm::grouped(kernels, &weights, grouping, activations, options);
                outcomes.compare(kernels, &of(grouping), planned);
            }
        }
    });
    outcomes.at_least(1000, 1000);
}

/// Several products in one launch. Operands fit, so that the products' plans alone decide.
#[test]
fn mixed_products() {
    let mut outcomes = Outcomes::default();
    let (plain, forced) = (
        GemmOptions::new(),
        GemmOptions::new().overrides(GemmOverrides::new().split(Split::StreamK)),
    );
    on_machines("supports-mixed", |kernels| {
        let device = kernels.device();
        let kind = ActivationKind::Halves(HalfType::Bf16);
        let made = |n, k, format| weights(device, [1, n, k], format, (kind, false));
        let [first, second] = [(24, 64), (40, 128)].map(|(n, k)| made(n, k, Format::Nvfp4));
        let (first, second) = (first.expect("made"), second.expect("made"));
        let other = made(40, 128, Format::Mxfp4).expect("made");
        let buffer = |bytes| DeviceBuffer::zeroed(device, "x", bytes).expect("allocated");
        let x = [buffer(3 * 64 * 2), buffer(5 * 128 * 2)];
        let out = [buffer(3 * 24 * 2), buffer(5 * 40 * 2)];
        let described =
            |sizes, tokens, format, options| MixedDescription { tokens, sizes, format, options };
        for (behind, format, options) in [
            (&second, Format::Nvfp4, &plain),
            (&other, Format::Mxfp4, &plain),
            (&second, Format::Nvfp4, &forced),
        ] {
            let product = |index: usize, tokens, weights, options| MixedProduct {
                tokens,
                activations: ActivationBuffers::Halves(&x[index]),
                weights,
                out: ResultBuffers::Floats(&out[index]),
                vectors: Vectors::default(),
                options,
            };
            let products = [product(0, 3, &first, &plain), product(1, 5, behind, options)];
            let of = [
                described([24, 64], 3, Format::Nvfp4, &plain),
                described([40, 128], 5, format, options),
            ];
            for count in [0, 2] {
                let (products, of) = (&products[..count], &of[..count]);
                let planned = MixedGemm::new(kernels, products, kind);
                let of = Description::Mixed { products: of, activations: kind };
                outcomes.compare(kernels, &of, planned);
            }
        }
    });
    outcomes.at_least(5, 20);
}

#[test]
fn gemvs() {
    let mut outcomes = Outcomes::default();
    on_machines("supports-gemv", |kernels| {
        let kernel = |name: &str| GemvOverrides::new().kernel(name.to_owned());
        let by = |overrides| GemvOptions::new().overrides(overrides);
        let all = [
            GemvOptions::new(),
            GemvOptions::new().output(FloatType::F32).alpha(f32::INFINITY),
            by(GemvOverrides::new().ctas(0)),
            by(GemvOverrides::new().ctas(1)),
            by(kernel("gemv_nvfp4_linear")),
            by(kernel("gemm_sm100_nvfp4_128x8")),
        ];
        for ([m, k, l], stored, options) in
            [[7168, 2048, 1], [40, 48, 3], [40, 40, 1], [0, 64, 1], [8, 64, 0], [1 << 31, 64, 1]]
                .into_iter()
                .flat_map(|sizes| ScaleLayout::ALL.map(|layout| (sizes, layout)))
                .flat_map(|(sizes, layout)| all.clone().map(move |of| (sizes, layout, of)))
        {
            let form = gemv::WeightForm::as_stored(GemvShape { m, k, l }, stored);
            for (workspace, layout) in
                [false, true].into_iter().flat_map(|with| ScaleLayout::ALL.map(|of| (with, of)))
            {
                let of = options.clone();
                let planned = if workspace {
                    Gemv::with_workspace(kernels, form, layout, of)
                } else {
                    Gemv::of_weights(kernels, form, layout, of)
                };
                let of = Description::Gemv {
                    weights: form,
                    activations: layout,
                    workspace,
                    options: &options,
                };
                outcomes.compare(kernels, &of, planned);
            }
        }
    });
    outcomes.at_least(100, 500);
}

#[test]
fn mixtures_of_experts() {
    let mut outcomes = Outcomes::default();
    let good = MoeShape { tokens: 6, top_k: 2, experts: 4, first: 1, count: 3 };
    let shapes = [
        good,
        MoeShape { tokens: 1, ..good },
        MoeShape { tokens: 0, ..good },
        MoeShape { top_k: 1 << 20, ..good },
        MoeShape { first: 2, ..good },
    ];
    let scales = |tokens, between| TokenFormat::Blocks(TokenScales { tokens, between });
    let quantized = [
        None,
        Some(scales(1.0, 1.0)),
        Some(scales(2.0, 1.0)),
        Some(scales(0.0, 1.0)),
        Some(TokenFormat::Fp8),
        Some(TokenFormat::ScaledRows),
    ];
    on_machines("supports-moe", |kernels| {
        for ((format, half), quantized) in Format::ALL
            .into_iter()
            .flat_map(|format| [HalfType::F16, HalfType::Bf16].map(|half| (format, half)))
            .flat_map(|of| quantized.map(|quantized| (of, quantized)))
        {
            let options = MoeOptions::new().quantized(quantized);
            let kind = options.activations(half, format);
            let (hidden, intermediate) = (64, 32);
            let device = kernels.device();
            let first = weights(device, [3, intermediate, hidden], format, (kind, true));
            let second = weights(device, [3, hidden, intermediate], format, (kind, false));
            let of = |shape| Description::Moe {
                shape,
                hidden,
                intermediate,
                format,
                tokens: half,
                options: &options,
            };
            let (first, second) = match (first, second) {
                (Ok(first), Ok(second)) => (first, second),
                (Err(error), _) | (_, Err(error)) => {
                    outcomes.compare::<()>(kernels, &of(good), Err(error));
                    continue;
                }
            };
            for shape in shapes {
                let planned = MoeLayer::new(kernels, shape, &first, &second, half, &options);
                outcomes.compare(kernels, &of(shape), planned.and_then(|layer| layer.memory()));
            }
        }
    });
    outcomes.at_least(50, 50);
}

fn sizes() -> [[usize; 2]; 7] {
    [[4, 64], [1, 48], [3, 40], [0, 64], [5, 0], [1 << 31, 64], [1 << 30, 1 << 20]]
}

#[test]
fn quantisers_and_their_inverse() {
    let mut outcomes = Outcomes::default();
    let recipes = [(Format::Nvfp4, "torchao"), (Format::Nvfp4, "te"), (Format::Mxfp4, "floor")];
    let scales = [
        TensorScale::FromAmax,
        TensorScale::PerRow,
        TensorScale::OneLevel,
        TensorScale::Given(0.5),
        TensorScale::Given(f32::NAN),
    ];
    on_machines("supports-quantise", |kernels| {
        for ([rows, columns], (format, name)) in
            sizes().into_iter().flat_map(|sizes| recipes.map(|recipe| (sizes, recipe)))
        {
            for (scale, layout) in
                scales.into_iter().flat_map(|scale| ScaleLayout::ALL.map(|of| (scale, of)))
            {
                let recipe = recipe_by_name(format, name).expect("known");
                let options = &QuantizeOptions::new(recipe).scale(scale).layout(layout);
                let input = Input::plain(FloatType::Bf16);
                let of = Description::Quantize { rows, columns, input, options };
                outcomes.compare(
                    kernels,
                    &of,
                    Quantizer::new(kernels, rows, columns, input, options),
                );
            }
            for layout in ScaleLayout::ALL {
                let output = FloatType::F32;
                let of = Description::Dequantize { rows, columns, format, layout, output };
                let made = Dequantizer::new(kernels, rows, columns, format, layout, output);
                outcomes.compare(kernels, &of, made);
            }
        }
    });
    outcomes.at_least(100, 200);
}

#[test]
fn operations_on_rows() {
    let mut outcomes = Outcomes::default();
    let blocks = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo));
    let norm = |epsilon, residual| Source::RmsNorm { epsilon, residual };
    on_machines("supports-rows", |kernels| {
        for [rows, columns] in sizes() {
            for source in [Source::Plain, norm(1e-6, true), norm(0.0, false)] {
                for results in [
                    Results::Half,
                    Results::E4m3,
                    Results::Blocks(blocks.scale(TensorScale::PerRow)),
                    Results::Blocks(blocks),
                ] {
                    for gather in [
                        None,
                        Some(Gather { rows: 9, divisor: 2 }),
                        Some(Gather { rows: 9, divisor: 0 }),
                    ] {
                        let options = &RowsOptions::new(source, results).gather(gather);
                        let element = HalfType::Bf16;
                        let of = Description::Rows { rows, columns, element, options };
                        outcomes.compare(
                            kernels,
                            &of,
                            Rows::new(kernels, rows, columns, element, options),
                        );
                    }
                }
            }
        }
    });
    outcomes.at_least(30, 200);
}

/// The properties that an architecture stands for are those of a machine.
#[test]
fn usual_machines_are_those_of_the_emulator() {
    for (name, arch) in MACHINES {
        let device = Device::open(&name.parse().expect("known")).expect("opens");
        assert_eq!(device.properties(), DeviceProperties::usual(arch), "{name}");
        assert_eq!(Target::from(&device), Target::from(arch), "{name}");
    }
}
