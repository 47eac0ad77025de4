//! NVFP4 activations with a scale for each row, on the four emulated targets: plain, gated, grouped and mixed products against
//! the f64 oracle, from operations on rows on the device, and what is refused.

use fp4_formats::quantize::Format;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, BatchStrides, DeviceWeights,
    GatedWeights, Gemm, GemmOptions, GemmRun, GroupedRun, HalfMatrix, MixedGemm, MixedProduct,
    Output, Repacked, ResultBuffers, RowScaled, UpOptions, Vectors, Weights, Workspace,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, Recipe, TensorScale, quantize_matrix};
use nvfp4::rows::{Operands, Results, Rows, RowsOptions, Source};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::gemm::{Verify, reference_for, reference_grouped_for};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{blocks, refused};
use nvfp4_tests::{SCHEDULES, TARGETS, emulated};

/// Values of rows whose magnitudes are far apart, so that a row with another's scale is seen.
fn values([rows, k]: [usize; 2], rng: &mut SplitMix64) -> Vec<f32> {
    let magnitude = |row: usize| [1.0, 1e-4, 700.0, 0.03, 24.0][row % 5];
    (0..rows * k).map(|at| (rng.normal() * magnitude(at / k)) as f32).collect()
}

/// The options by which rows are quantised.
fn options(layout: ScaleLayout) -> QuantizeOptions {
    let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
    QuantizeOptions::new(recipe).scale(TensorScale::PerRow).layout(layout)
}

fn scaled(values: &[f32], dims: Dims, layout: ScaleLayout) -> RowScaled<Nvfp4> {
    let matrix = quantize_matrix("a", values, dims, &options(layout)).expect("whole blocks");
    RowScaled::of_matrix("a", matrix, dims).expect("of rows")
}

fn weights(sizes: [usize; 3], rng: &mut SplitMix64) -> BlockScaled<Nvfp4> {
    blocks(Generator::FullRange, sizes, ScaleLayout::Linear, 1.0, rng)
}

/// The options of epilogues that do not have row factors.
fn epilogues(n: usize) -> [GemmOptions; 4] {
    let vector = |from: f32| (0..n).map(|at| from + (at % 7) as f32 / 8.0).collect::<Vec<_>>();
    [
        GemmOptions::new(),
        GemmOptions::new().output(FloatType::F32).column_factors(vector(0.5)).bias(vector(-3.0)),
        GemmOptions::new().output(FloatType::Bf16).activation(Activation::Silu).alpha(0.25),
        GemmOptions::new().output(Output::Nvfp4 { scale: 64.0, layout: ScaleLayout::Linear }),
    ]
}

/// Ragged sizes of tokens, columns and K, whose N is whole blocks of a result.
const SIZES: [[usize; 3]; 4] = [[1, 48, 80], [7, 16, 48], [33, 144, 272], [130, 80, 336]];

#[test]
fn dense_and_gated_products() {
    for (at, ([m, n, k], target)) in
        SIZES.into_iter().flat_map(|sizes| TARGETS.map(|target| (sizes, target))).enumerate()
    {
        let kernels = emulated(target, SCHEDULES[at % SCHEDULES.len()]);
        let (device, arch) = (kernels.device(), kernels.device().choice().arch);
        for (layout, gated, options) in ScaleLayout::ALL
            .into_iter()
            .flat_map(|layout| [false, true].map(|gated| (layout, gated)))
            .flat_map(|(layout, gated)| epilogues(n).map(move |of| (layout, gated, of)))
        {
            let mut rng = SplitMix64::new(at as u64);
            let a = scaled(&values([m, k], &mut rng), Dims::new(1, m, k).expect("dims"), layout);
            let a = Activations::ScaledRows(&a);
            let both = [(); 2].map(|()| weights([1, n, k], &mut rng));
            let (b, options): (Weights<'_, _>, _) = if gated {
                let pair = GatedWeights::pair(&both[0], &both[1]).expect("a pair");
                (pair.into(), options.up(UpOptions::new().alpha(0.125)))
            } else {
                ((&both[0]).into(), options)
            };
            let repacked = Repacked::of_weights(device, b, a.kind()).expect("kernels");
            let run = GemmRun::new(&kernels, &a, &repacked, &options).expect("planned");
            let result = run.run().expect("runs");
            let reference = reference_for(arch, &a, b, &options).expect("small");
            let found = result.verify(&reference.with_additions(result.plan.additions));
            let what = format!("{target} {m}x{n}x{k} {layout} {gated} {options:?}");
            assert!(found.passed(), "{what}: {}", found.summary());
        }
    }
}

#[test]
fn grouped_products() {
    let counts = [[3, 0, 17, 1], [0, 40, 5, 70]];
    for (at, (counts, target)) in
        counts.into_iter().flat_map(|counts| TARGETS.map(|target| (counts, target))).enumerate()
    {
        let kernels = emulated(target, SCHEDULES[at % SCHEDULES.len()]);
        let (device, arch) = (kernels.device(), kernels.device().choice().arch);
        let (n, k, tokens) = (144, 176, counts.iter().sum());
        let mut rng = SplitMix64::new(at as u64);
        for (layout, gated) in
            ScaleLayout::ALL.into_iter().flat_map(|layout| [(layout, false), (layout, true)])
        {
            let dims = Dims::new(1, tokens, k).expect("dims");
            let a = scaled(&values([tokens, k], &mut rng), dims, layout);
            let a = Activations::ScaledRows(&a);
            let experts: Vec<_> = (0..8).map(|_| weights([1, n, k], &mut rng)).collect();
            let of_group = |group: usize| -> Weights<'_, Nvfp4> {
                let pair = [&experts[2 * group], &experts[2 * group + 1]];
                if !gated {
                    return pair[0].into();
                }
                GatedWeights::pair(pair[0], pair[1]).expect("a pair").into()
            };
            let groups: Vec<Weights<'_, Nvfp4>> = (0..4).map(of_group).collect();
            let options = GemmOptions::new().output(FloatType::F32);
            let options = if gated { options.up(UpOptions::new()) } else { options };
            let parts: Vec<Repacked> = groups
                .iter()
                .map(|b| Repacked::of_weights(device, *b, a.kind()).expect("kernels"))
                .collect();
            let stacked = Repacked::stack(&parts).expect("of one size");
            let run = GroupedRun::new(&kernels, &a, &stacked, &counts, &options).expect("planned");
            let result = run.run().expect("runs");
            let mut end = 0;
            let ranges = counts.map(|count| {
                end += count;
                end - count..end
            });
            let all = vec![options; groups.len()];
            let reference = reference_grouped_for(arch, &a, &groups, &ranges, &all).expect("small");
            let found = result.verify(&reference.with_additions(result.plan.additions));
            assert!(found.passed(), "{target} {layout} {gated}: {}", found.summary());
        }
    }
}

/// A product's operands on a device.
struct Placed {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    rows: DeviceBuffer,
    weights: DeviceWeights,
    out: DeviceBuffer,
}

impl Placed {
    fn new(kernels: &Kernels, a: &RowScaled<Nvfp4>, b: &BlockScaled<Nvfp4>) -> Self {
        let device = kernels.device();
        let upload = |name: &str, bytes: &[u8]| {
            DeviceBuffer::upload(device, name, bytes).expect("allocated")
        };
        let kind = Activations::ScaledRows(a).kind();
        let repacked = Repacked::for_device(device, b, kind).expect("kernels");
        let bytes = 4 * a.blocks().dims().rows() * b.dims().rows();
        Self {
            codes: upload("codes", a.blocks().codes()),
            scales: upload("scales", a.blocks().scales()),
            rows: upload("row scales", &a.scale_bytes()),
            weights: repacked.upload(device).expect("allocated"),
            out: DeviceBuffer::poisoned(device, "c", bytes).expect("allocated"),
        }
    }

    fn activations(&self) -> ActivationBuffers<'_> {
        let Self { codes, scales, rows, .. } = self;
        ActivationBuffers::Blocks { codes, scales, row_scales: Some(rows) }
    }
}

/// Each product of one launch has its rows' scales; the results are those of products alone.
#[test]
fn mixed_products() {
    let layout = ScaleLayout::Linear;
    for (at, target) in TARGETS.into_iter().enumerate() {
        let kernels = emulated(target, SCHEDULES[at]);
        let mut rng = SplitMix64::new(at as u64);
        let operands: Vec<_> = SIZES[..3]
            .iter()
            .map(|&[m, n, k]| {
                let dims = Dims::new(1, m, k).expect("dims");
                let a = scaled(&values([m, k], &mut rng), dims, layout);
                (a, weights([1, n, k], &mut rng))
            })
            .collect();
        let placed: Vec<_> = operands.iter().map(|(a, b)| Placed::new(&kernels, a, b)).collect();
        let options = GemmOptions::new().output(FloatType::F32);
        let kind = ActivationKind::Blocks { format: Format::Nvfp4, layout };
        let products: Vec<_> = placed
            .iter()
            .zip(&operands)
            .map(|(placed, (a, _))| MixedProduct {
                tokens: a.blocks().dims().rows(),
                activations: placed.activations(),
                weights: &placed.weights,
                out: ResultBuffers::Floats(&placed.out),
                vectors: Vectors::default(),
                options: &options,
            })
            .collect();
        let launch = MixedGemm::new(&kernels, &products, kind).expect("planned");
        launch.launch().expect("runs");
        for ((placed, (a, b)), plan) in placed.iter().zip(&operands).zip(launch.plans()) {
            let bytes = placed.out.read().expect("written");
            let got = nvfp4::floats::decode(FloatType::F32, &bytes);
            let a = Activations::ScaledRows(a);
            let arch = kernels.device().choice().arch;
            let reference = reference_for(arch, &a, b, &options).expect("small");
            let additions = plan.expect("tokens").additions;
            let found = reference.with_additions(additions).verify(&got, FloatType::F32);
            assert!(found.passed(), "{target}: {}", found.summary());
        }
    }
}

/// Rows that the device quantises, by the operation on rows and by the quantiser, give the bits of rows that the CPU
/// quantised.
#[test]
fn rows_from_the_device() {
    for (at, target) in TARGETS.into_iter().enumerate() {
        let kernels = emulated(target, SCHEDULES[at]);
        let device = kernels.device();
        let ([m, n, k], layout) = ([19, 56, 304], ScaleLayout::ALL[at % 2]);
        let mut rng = SplitMix64::new(at as u64);
        let dims = Dims::new(1, m, k).expect("dims");
        let x = HalfMatrix::round("x", dims, HalfType::Bf16, &values([m, k], &mut rng));
        let x = x.expect("small");
        let b = weights([1, n, k], &mut rng);
        let rounded = nvfp4::floats::decode(FloatType::Bf16, x.bytes());
        let a = scaled(&rounded, dims, layout);
        let of_cpu = GemmRun::new(
            &kernels,
            &Activations::ScaledRows(&a),
            &Repacked::for_device(device, &b, Activations::ScaledRows(&a).kind()).expect("kernels"),
            &GemmOptions::new(),
        );
        let right = of_cpu.expect("planned").run().expect("runs").bytes;

        let placed = Placed::new(&kernels, &a, &b);
        let kind = Activations::ScaledRows(&a).kind();
        let plan = Gemm::new(&kernels, &placed.weights, [1, m], kind, &GemmOptions::new());
        let plan = plan.expect("planned");
        let workspace = Workspace::new(device, plan.workspace_bytes()).expect("allocated");
        let input = DeviceBuffer::upload(device, "x", x.bytes()).expect("allocated");
        let made = RowsOptions::new(Source::Plain, Results::Blocks(options(layout)));
        let rows = Rows::new(&kernels, m, k, HalfType::Bf16, &made).expect("planned");
        rows.launch(&Operands::plain(&input)).expect("runs");
        let quantizer =
            Quantizer::new(&kernels, m, k, Input::plain(FloatType::Bf16), &options(layout));
        let quantizer = quantizer.expect("planned");
        quantizer.launch(&input, None).expect("runs");
        let of_quantizer = ActivationBuffers::Blocks {
            codes: quantizer.codes(),
            scales: quantizer.scales(),
            row_scales: Some(quantizer.row_scales().expect("of rows")),
        };
        for a in [rows.outputs().into(), of_quantizer] {
            let [bytes, _] = plan.out_bytes().expect("small");
            let out = DeviceBuffer::poisoned(device, "c", bytes).expect("allocated");
            let result = ResultBuffers::Floats(&out);
            plan.launch(a, &placed.weights, result, Some(&workspace), Vectors::default())
                .expect("runs");
            assert_eq!(out.read().expect("written"), right, "{target}");
        }
    }
}

#[test]
fn what_rows_with_scales_do_not_take() {
    for target in TARGETS {
        let kernels = emulated(target, SCHEDULES[0]);
        let device = kernels.device();
        let ([m, n, k], layout) = ([4, 32, 64], ScaleLayout::Linear);
        let mut rng = SplitMix64::new(1);
        let dims = Dims::new(1, m, k).expect("dims");
        let (a, b) =
            (scaled(&values([m, k], &mut rng), dims, layout), weights([1, n, k], &mut rng));
        let kind = Activations::ScaledRows(&a).kind();
        let repacked = Repacked::for_device(device, &b, kind).expect("kernels");
        let with_factors = GemmOptions::new().row_factors(vec![1.0; m]);
        let run = GemmRun::new(&kernels, &Activations::ScaledRows(&a), &repacked, &with_factors);
        let text = refused("factors", run.expect("planned").launch());
        assert!(text.starts_with("row factors must be absent"), "{text}");

        // Two matrices have scales of their own only where they are one.
        let placed = Placed::new(&kernels, &a, &b);
        let plan = Gemm::new(&kernels, &placed.weights, [2, m / 2], kind, &GemmOptions::new());
        let plan = plan.expect("planned");
        let out = DeviceBuffer::poisoned(device, "c", 2 * m * n).expect("allocated");
        let workspace = Workspace::new(device, 1 << 23).expect("allocated");
        let launch = |plan: &Gemm, a: ActivationBuffers<'_>, out: &DeviceBuffer| {
            assert!(plan.workspace_bytes() <= workspace.len());
            let out = ResultBuffers::Floats(out);
            plan.launch(a, &placed.weights, out, Some(&workspace), Vectors::default())
        };
        let text = refused("a batch", launch(&plan, placed.activations(), &out));
        assert!(text.contains("of one matrix, or of one that all entries share"), "{text}");
        let plan = Gemm::new(&kernels, &placed.weights, [2, m], kind, &GemmOptions::new());
        let strides = BatchStrides::new().activations(0).activation_scales(0);
        let shared = plan.expect("planned").with_strides(strides).expect("shared");
        let twice = DeviceBuffer::poisoned(device, "c", 2 * 2 * m * n).expect("allocated");
        launch(&shared, placed.activations(), &twice).expect("one matrix");
        let bytes = twice.read().expect("written");
        assert_eq!(bytes[..bytes.len() / 2], bytes[bytes.len() / 2..]);

        let plan = Gemm::new(&kernels, &placed.weights, [1, m], kind, &GemmOptions::new());
        let plan = plan.expect("planned");
        let short = DeviceBuffer::zeroed(device, "short", 4 * (m - 1)).expect("allocated");
        let Placed { codes, scales, .. } = &placed;
        let a = ActivationBuffers::Blocks { codes, scales, row_scales: Some(&short) };
        let text = refused("a scale less", launch(&plan, a, &out));
        assert!(text.contains("the rows' scales must be 16"), "{text}");
    }
    let other: BlockScaled<Mxfp4> =
        blocks(Generator::Exact, [1, 2, 32], ScaleLayout::Linear, 1.0, &mut SplitMix64::new(1));
    let text = refused("mxfp4", RowScaled::new(other, vec![1.0; 2]));
    assert!(text.contains("absent, as mxfp4 has none"), "{text}");
}
