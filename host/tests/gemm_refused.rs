//! Refusals of a GEMM before anything is launched: each time with the field, the required and the
//! actual value, on each machine. No kernel is there to run.

use crate::support::{Folder, MACHINES, SCALED, no_kernels};
use fp4_formats::Arch;
use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::Split;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, DeviceWeights, GatedWeights, Gemm,
    GemmOptions, GemmOverrides, GemmRun, GroupBuffers, Grouping, HalfMatrix, Output, Repacked,
    ResultBuffers, UpOptions, Vectors, Workspace, gemm, gemm_gated, plan, plan_for,
};
use nvfp4::quantize::Format;
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::gemm::reference;

const LONGEST: &str = "from 1 to 2147483647";

/// The error's field, requirement and finding.
#[track_caller]
fn refused<T>(result: Result<T>, field: &str, required: &str, actual: &str) {
    match result.map(drop).expect_err("refused") {
        Error::Shape { field: f, required: r, actual: a } => {
            assert_eq!((f.as_str(), r.as_str(), a.as_str()), (field, required, actual));
        }
        other => panic!("{other:?} for {field}"),
    }
}

fn zeros<F: BlockFormat>(name: &str, [l, rows, k]: [usize; 3]) -> BlockScaled<F> {
    let dims = Dims::new(l, rows, k).expect("dims");
    let (codes, scales) = (vec![0; l * rows * k / 2], vec![0; l * rows * k / F::BLOCK]);
    BlockScaled::new(name, dims, Linear, codes, scales, 1.0).expect("zeros")
}

fn halves(name: &str, [l, rows, k]: [usize; 3], operand: HalfType) -> HalfMatrix {
    let dims = Dims::new(l, rows, k).expect("dims");
    HalfMatrix::new(name, dims, operand, vec![0; 2 * l * rows * k]).expect("zeros")
}

fn on_machines(test: &str, check: impl Fn(&Kernels, Arch)) {
    on_data_centre_machines(test, &check);
    check(&no_kernels(&Folder::new(test), SCALED), SCALED.1);
}

/// Checks refusals that the machine of block-scaled `mma.sync` words in another way, or does not have.
fn on_data_centre_machines(test: &str, check: impl Fn(&Kernels, Arch)) {
    let folder = Folder::new(test);
    for machine in MACHINES {
        check(&no_kernels(&folder, machine), machine.1);
    }
}

#[test]
fn sizes_of_nothing_and_beyond_integers() {
    for (at, field) in ["batch", "rows", "columns"].into_iter().enumerate() {
        let mut sizes = [2; 3];
        sizes[at] = 0;
        refused(Dims::new(sizes[0], sizes[1], sizes[2]), field, "at least 1", "0");
    }
    on_machines("refused-sizes", |kernels, arch| {
        let machine = kernels.device().properties();
        for kind in [
            ActivationKind::Blocks { format: Format::Nvfp4, layout: Linear },
            ActivationKind::Halves(HalfType::Bf16),
        ] {
            let plan =
                |shape| plan(shape, Format::Nvfp4, kind, arch, machine, &GemmOverrides::default());
            let good = GemmShape { m: 3, n: 5, k: 64, l: 2 };
            plan(good).expect("planned");
            let (none, many) = (0, 1usize << 31);
            for (size, shown) in [(none, "0"), (many, "2147483648")] {
                refused(plan(GemmShape { m: size, ..good }), "M", LONGEST, shown);
                refused(plan(GemmShape { n: size, ..good }), "N", LONGEST, shown);
                refused(plan(GemmShape { k: size, ..good }), "K", LONGEST, shown);
            }
            for (l, shown) in [(0, "0"), (65_536, "65536")] {
                refused(plan(GemmShape { l, ..good }), "batch", "from 1 to 65535", shown);
            }
            for (k, shown) in [(8, "8"), (24, "24"), (65, "65")] {
                refused(plan(GemmShape { k, ..good }), "K", "a multiple of 16", shown);
            }
        }
        let kind = ActivationKind::Halves(HalfType::Bf16);
        let shape = GemmShape { m: 3, n: 5, k: 48, l: 1 };
        let none = GemmOverrides::default();
        let planned = plan(shape, Format::Mxfp4, kind, arch, machine, &none);
        refused(planned, "K", "a multiple of 32", "48");
        // Threads that copy tokens have offsets of 32 bits to the tokens of a tile, here of the eight of the narrowest.
        let long = GemmShape { m: 3, n: 5, k: 1 << 28, l: 1 };
        let planned = plan(long, Format::Nvfp4, kind, arch, machine, &none);
        match arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled => {
                refused(planned, "K", "at most 268435455 for these kernels", "268435456");
            }
            TensorFamily::Wgmma | TensorFamily::Tcgen05 => drop(planned.expect("planned")),
        }
        let less = GemmShape { k: (1 << 28) - 16, ..long };
        plan(less, Format::Nvfp4, kind, arch, machine, &none).expect("planned");
    });
}

#[test]
fn formats_without_a_kernel() {
    on_machines("refused-formats", |kernels, arch| {
        let machine = kernels.device().properties();
        let plan = |format, kind| {
            let shape = GemmShape { m: 3, n: 5, k: 64, l: 1 };
            plan(shape, format, kind, arch, machine, &GemmOverrides::default())
        };
        let blocks = |format| ActivationKind::Blocks { format, layout: Linear };
        let field = "format of activations";
        let planned = plan(Format::Nvfp4, blocks(Format::Mxfp4));
        refused(planned, field, "nvfp4, as the weights", "mxfp4");
        let planned = plan(Format::Mxfp4, blocks(Format::Nvfp4));
        refused(planned, field, "mxfp4, as the weights", "nvfp4");
        let planned = plan(Format::Mxfp4, ActivationKind::Halves(HalfType::F16));
        let field = "type of activations for mxfp4 weights";
        let required = "bf16, fp8, or the weights' own format";
        refused(planned, field, required, "f16");
        let weights = zeros::<Mxfp4>("w", [1, 5, 64]);
        let kind = ActivationKind::Halves(HalfType::F16);
        let repacked = Repacked::for_device(kernels.device(), &weights, kind);
        refused(repacked, field, required, "f16");
    });
}

/// Operands that do not fit each other are refused by [`gemm`], the oracle and [`GemmRun`].
#[test]
fn operands_that_do_not_fit_each_other() {
    on_machines("refused-operands", |kernels, _| {
        let b = zeros::<Nvfp4>("w", [1, 32, 64]);
        let plain = GemmOptions::default();
        let both =
            |a: &HalfMatrix, b: &BlockScaled<Nvfp4>, options: &GemmOptions, error: [&str; 3]| {
                let a = Activations::Halves(a);
                refused(gemm(kernels, &a, b, options), error[0], error[1], error[2]);
                refused(reference(&a, b, options), error[0], error[1], error[2]);
            };
        let a = halves("x", [2, 3, 80], HalfType::F16);
        both(&a, &b, &plain, ["K of `w`", "80, the K of `x`", "64"]);
        let weights =
            Repacked::for_device(kernels.device(), &b, ActivationKind::Halves(HalfType::F16))
                .expect("repacked");
        let run = GemmRun::new(kernels, &Activations::<Nvfp4>::Halves(&a), &weights, &plain);
        refused(run, "K of `x`", "64, the weights' K", "80");

        let a = halves("x", [2, 3, 64], HalfType::F16);
        let three = zeros::<Nvfp4>("w", [3, 32, 64]);
        both(&a, &three, &plain, ["batch of `w`", "1 or 2, the batch of `x`", "3"]);
        let short = |len: usize| Some(vec![1.0; len]);
        let options = plain.clone().row_factors(short(4));
        both(&a, &b, &options, ["length of the row factors", "M = 3", "4"]);
        let options = plain.clone().column_factors(short(31));
        both(&a, &b, &options, ["length of the column factors", "N = 32", "31"]);
        let options = plain.clone().bias(short(0));
        both(&a, &b, &options, ["length of the bias", "N = 32", "0"]);

        let dims = Dims::new(2, 3, 64).expect("dims");
        let bytes = HalfMatrix::new("x", dims, HalfType::F16, vec![0; 767]);
        refused(bytes, "bytes of `x`", "2 x 384 elements", "767");
        let values = HalfMatrix::round("x", dims, HalfType::Bf16, &[0.0; 385]);
        refused(values, "bytes of `x`", "2 x 384 elements", "770");
    });
}

#[test]
fn results_and_scalars() {
    on_machines("refused-results", |kernels, _| {
        let (a, b) = (halves("x", [1, 3, 64], HalfType::F16), zeros::<Nvfp4>("w", [1, 40, 64]));
        let run =
            |options: &GemmOptions| gemm(kernels, &Activations::<Nvfp4>::Halves(&a), &b, options);
        let output = Output::Nvfp4 { scale: 1.0, layout: Blocked128x4 };
        let options = GemmOptions::new().output(output);
        refused(run(&options), "N", "a multiple of 16 for a result in nvfp4", "40");
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 2.0] {
            let output = Output::Nvfp4 { scale, layout: Linear };
            let options = GemmOptions::new().output(output);
            let Err(Error::Scalar { field, required, actual }) = run(&options) else {
                panic!("a scale of {scale}");
            };
            assert_eq!(field, "scale of the result");
            assert_eq!(required, "finite and at least 2^-121");
            assert_eq!(actual.to_bits(), f64::from(scale).to_bits());
        }
        for alpha in [f32::INFINITY, f32::NAN, f32::MIN_POSITIVE / 2.0] {
            let options = GemmOptions::new().alpha(alpha);
            let Err(Error::Scalar { field, required, actual }) = run(&options) else {
                panic!("alpha = {alpha}");
            };
            assert_eq!(field, "alpha times both global scales");
            assert_eq!(required, "0 or a normal f32");
            assert_eq!(actual.to_bits(), f64::from(alpha).to_bits());
        }
    });
}

#[test]
fn parameters_of_activations() {
    on_machines("refused-activations", |kernels, _| {
        let (a, b) = (halves("x", [1, 3, 64], HalfType::F16), zeros::<Nvfp4>("w", [1, 40, 64]));
        let a = Activations::<Nvfp4>::Halves(&a);
        let bad = |field: &str, required: &str, value: f32, limit: f32, slope: f32| {
            let activation = Activation::ClampedSwiglu { limit, slope };
            let options = GemmOptions::new().activation(activation);
            let results =
                [gemm(kernels, &a, &b, &options).map(drop), reference(&a, &b, &options).map(drop)];
            for result in results {
                let Err(Error::Scalar { field: f, required: r, actual }) = result else {
                    panic!("{activation}");
                };
                assert_eq!((f.as_str(), r), (field, required));
                assert_eq!(actual.to_bits(), f64::from(value).to_bits());
            }
        };
        for limit in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            bad("limit of the activation", "positive and finite", limit, limit, 1.0);
        }
        for slope in [f32::INFINITY, -f32::INFINITY, f32::NAN] {
            bad("slope of the activation", "finite", slope, 1.0, slope);
        }
    });
}

#[test]
fn gated_operands_that_do_not_fit_each_other() {
    on_machines("refused-gated", |kernels, arch| {
        let x = halves("x", [2, 3, 64], HalfType::F16);
        let a = Activations::<Nvfp4>::Halves(&x);
        let (gate, other) = (zeros("g", [1, 40, 64]), zeros("u", [1, 40, 64]));
        let weights = GatedWeights::pair(&gate, &other).expect("valid");
        let both = |options: &GemmOptions, error: [&str; 3]| {
            refused(gemm_gated(kernels, &a, &weights, options), error[0], error[1], error[2]);
            refused(reference(&a, weights, options), error[0], error[1], error[2]);
        };
        let plain = GemmOptions::default();
        both(&plain, ["options for up", "there for gated weights", "absent"]);
        let gated = GemmOptions::new().up(UpOptions::default());
        let required = "gated, as there are options for up";
        refused(gemm(kernels, &a, &gate, &gated), "weights", required, "not gated");
        refused(reference(&a, &gate, &gated), "weights", required, "not gated");
        let short = Some(vec![1.0; 80]);
        let options = gated.clone().column_factors(short.clone());
        both(&options, ["length of the column factors", "N = 40", "80"]);
        let with = |up| GemmOptions::new().up(up);
        let up = UpOptions::new().column_factors(short.clone());
        both(&with(up), ["length of the column factors of up", "N = 40", "80"]);
        let up = UpOptions::new().bias(short);
        both(&with(up), ["length of the bias of up", "N = 40", "80"]);

        let kind = ActivationKind::Halves(HalfType::F16);
        let device = kernels.device();
        let repacked = Repacked::gated(device, &weights, kind).expect("repacked");
        assert_eq!(repacked.form().gated, Some(40));
        assert_eq!((repacked.form().rows, repacked.form().result_columns()), (80, 40));
        let on_device = repacked.upload(device).expect("uploaded");
        let new = |weights: &DeviceWeights, options: &GemmOptions| {
            Gemm::new(kernels, weights, [2, 3], kind, options)
        };
        refused(new(&on_device, &plain), "options for up", "there for gated weights", "absent");
        let output = Output::Nvfp4 { scale: 1.0, layout: Linear };
        let blocks = gated.clone().output(output);
        let required = "a multiple of 16 for a result in nvfp4";
        refused(new(&on_device, &blocks), "N", required, "40");
        for alpha in [f32::INFINITY, f32::NAN, f32::MIN_POSITIVE / 2.0] {
            let error = new(&on_device, &with(UpOptions::new().alpha(alpha)));
            assert!(matches!(error, Err(Error::Scalar { .. })), "{alpha}");
        }

        let gemm = new(&on_device, &gated).expect("planned");
        assert_eq!((gemm.plan().op, gemm.plan().arch), ("dual", arch));
        let says = "dual: each result is made of a gate and up, activation identity";
        assert!(gemm.plan().why.iter().any(|why| why == says), "{}", gemm.plan());
        assert_eq!(gemm.result_dims().expect("small"), Dims::new(2, 3, 40).expect("small"));
        assert_eq!(gemm.out_bytes().expect("small"), [2 * 3 * 40 * 2, 0]);
        let (input, out) = (buffer(kernels, 768), buffer(kernels, 480));
        let other = buffer(kernels, 164);
        let launch = |weights: &DeviceWeights, vectors: Vectors<'_>| {
            let (a, out) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
            gemm.launch(a, weights, out, None, vectors)
        };
        let vectors = Vectors { column_factors: Some(&other), ..Vectors::default() };
        refused(launch(&on_device, vectors), "bytes of the column factors", "160", "164");
        let vectors = Vectors { up_column_factors: Some(&other), ..Vectors::default() };
        refused(launch(&on_device, vectors), "bytes of the column factors of up", "160", "164");
        let vectors = Vectors { up_bias: Some(&other), ..Vectors::default() };
        refused(launch(&on_device, vectors), "bytes of the bias of up", "160", "164");
        // As many rows, not gated; gated, with as many rows and fewer columns.
        let plain_weights = Repacked::for_device(device, &zeros::<Nvfp4>("w", [1, 80, 64]), kind);
        let plain_weights = plain_weights.expect("repacked").upload(device).expect("uploaded");
        let launched = launch(&plain_weights, Vectors::default());
        refused(launched, "weights", "gated, as planned", "not gated");
        let fewer = zeros::<Nvfp4>("w", [1, 78, 64]);
        let fewer = GatedWeights::stacked(&fewer).expect("even");
        let fewer = Repacked::gated(device, &fewer, kind).expect("repacked");
        assert_eq!(fewer.form().rows, 80);
        let fewer = fewer.upload(device).expect("uploaded");
        refused(launch(&fewer, Vectors::default()), "N of the weights", "40, as planned", "39");

        let product = new(&plain_weights, &plain).expect("planned");
        let launched = |vectors| {
            let (a, out) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
            product.launch(a, &plain_weights, out, None, vectors)
        };
        refused(launched(Vectors::default()), "bytes of the result", "960", "480");

        let shape = GemmShape { m: 3, n: 1 << 30, k: 64, l: 2 };
        let planned = plan_for(kernels, shape, Format::Nvfp4, kind, &gated);
        refused(planned, "N", "from 1 to 1073741816", "1073741824");
        let shape = GemmShape { n: 1_073_741_816, ..shape };
        plan_for(kernels, shape, Format::Nvfp4, kind, &gated).expect("planned");
    });
}

#[test]
fn vectors_of_a_half_that_there_is_not() {
    on_machines("refused-half", |kernels, _| {
        let planned = Planned::new(kernels, HALVES);
        let (elements, bias) = (buffer(kernels, 576), buffer(kernels, 160));
        let launch = |vectors: Vectors<'_>| {
            let a = ActivationBuffers::Halves(&elements);
            let out = ResultBuffers::Floats(&planned.out);
            planned.gemm.launch(a, &planned.weights, out, None, vectors)
        };
        let required = "absent, as the product is not gated";
        let vectors = Vectors { up_bias: Some(&bias), ..Vectors::default() };
        refused(launch(vectors), "the bias of up", required, "there");
        let vectors = Vectors { up_column_factors: Some(&bias), ..Vectors::default() };
        refused(launch(vectors), "the column factors of up", required, "there");
    });
}

/// A planned product, and what it is launched with.
struct Planned {
    gemm: Gemm,
    weights: DeviceWeights,
    out: DeviceBuffer,
    workspace: Option<Workspace>,
}

impl Planned {
    /// 2 matrices of 3 tokens with weights of 40 rows and K = 48. For 4-bit activations the kernel is
    /// one that has them laid out or decoded in a workspace.
    fn new(kernels: &Kernels, kind: ActivationKind) -> Self {
        let weights = Self::weights(kernels, [2, 40, 48], kind);
        let kernel = match (kind, kernels.device().choice().arch.tensor()) {
            (BLOCKS, TensorFamily::Tcgen05) => Some("gemm_sm100_nvfp4_128x64".to_owned()),
            (
                _,
                TensorFamily::MmaSync
                | TensorFamily::MmaSyncScaled
                | TensorFamily::Wgmma
                | TensorFamily::Tcgen05,
            ) => None,
        };
        let options = GemmOptions::new().overrides(GemmOverrides::new().kernel(kernel));
        let gemm = Gemm::new(kernels, &weights, [2, 3], kind, &options).expect("planned");
        let [bytes, _] = gemm.out_bytes().expect("small");
        let workspace = match gemm.workspace_bytes() {
            0 => None,
            bytes => Some(Workspace::new(kernels.device(), bytes).expect("allocated")),
        };
        let out = buffer(kernels, bytes);
        Self { gemm, weights, out, workspace }
    }

    fn weights(kernels: &Kernels, sizes: [usize; 3], kind: ActivationKind) -> DeviceWeights {
        let weights = zeros::<Nvfp4>("w", sizes);
        let repacked = Repacked::for_device(kernels.device(), &weights, kind).expect("repacked");
        repacked.upload(kernels.device()).expect("uploaded")
    }

    fn launch(&self, a: ActivationBuffers<'_>) -> Result<()> {
        let (out, workspace) = (ResultBuffers::Floats(&self.out), self.workspace.as_ref());
        let vectors = Vectors::default();
        self.gemm.launch(a, &self.weights, out, workspace, vectors)
    }
}

fn buffer(kernels: &Kernels, bytes: usize) -> DeviceBuffer {
    DeviceBuffer::poisoned(kernels.device(), "buffer", bytes).expect("allocated")
}

const BLOCKS: ActivationKind = ActivationKind::Blocks { format: Format::Nvfp4, layout: Linear };
const HALVES: ActivationKind = ActivationKind::Halves(HalfType::F16);

#[test]
fn activations_that_were_not_planned_for() {
    on_machines("refused-activations", |kernels, _| {
        let sized = |bytes| buffer(kernels, bytes);
        let (codes, scales, elements) =
            (sized(2 * 3 * 24), sized(2 * 3 * 3), sized(2 * 3 * 48 * 2));
        let blocks = Planned::new(kernels, BLOCKS);
        let short = sized(2 * 3 * 24 - 1);
        let given = ActivationBuffers::blocks(&short, &scales);
        refused(blocks.launch(given), "bytes of the activations' codes", "144", "143");
        let long = sized(2 * 3 * 3 + 1);
        let given = ActivationBuffers::blocks(&codes, &long);
        refused(blocks.launch(given), "bytes of the activations' scales", "18", "19");
        let given = ActivationBuffers::Halves(&elements);
        refused(blocks.launch(given), "activations", "nvfp4", "16-bit elements");

        let halves = Planned::new(kernels, HALVES);
        let given = ActivationBuffers::blocks(&codes, &scales);
        refused(halves.launch(given), "activations", "f16", "codes and scales");
        let given = ActivationBuffers::Halves(&codes);
        refused(halves.launch(given), "bytes of the activations", "576", "144");
    });
}

#[test]
fn workspaces_that_are_too_small() {
    on_data_centre_machines("refused-workspaces", |kernels, _| {
        let planned = Planned::new(kernels, BLOCKS);
        let needed = planned.gemm.workspace_bytes();
        assert!(needed > 1, "{}", planned.gemm.plan());
        let (codes, scales) = (buffer(kernels, 144), buffer(kernels, 18));
        let small = Workspace::new(kernels.device(), needed - 1).expect("allocated");
        for (workspace, found) in [(None, 0), (Some(small), needed - 1)] {
            let planned = Planned { workspace, ..Planned::new(kernels, BLOCKS) };
            let given = ActivationBuffers::blocks(&codes, &scales);
            let required = format!("at least {needed} bytes");
            refused(planned.launch(given), "workspace", &required, &found.to_string());
        }
    });
}

#[test]
fn results_that_were_not_planned_for() {
    on_machines("refused-out", |kernels, _| {
        let elements = buffer(kernels, 576);
        let launch = |planned: &Planned, out: ResultBuffers<'_>| {
            let (a, vectors) = (ActivationBuffers::Halves(&elements), Vectors::default());
            planned.gemm.launch(a, &planned.weights, out, None, vectors)
        };
        let floats = Planned::new(kernels, HALVES);
        let short = buffer(kernels, 479);
        let launched = launch(&floats, ResultBuffers::Floats(&short));
        refused(launched, "bytes of the result", "480", "479");
        let out = ResultBuffers::Blocks { codes: &short, scales: &short };
        refused(launch(&floats, out), "result", "f16", "blocks");

        let weights = Planned::weights(kernels, [1, 48, 48], HALVES);
        let output = Output::Nvfp4 { scale: 1.0, layout: Blocked128x4 };
        let options = GemmOptions::new().output(output);
        let gemm = Gemm::new(kernels, &weights, [2, 3], HALVES, &options).expect("planned");
        assert_eq!(gemm.out_bytes().expect("small"), [2 * 3 * 24, 2 * 128 * 4]);
        let blocks = Planned { gemm, weights, ..Planned::new(kernels, HALVES) };
        let (codes, scales) = (buffer(kernels, 144), buffer(kernels, 1024));
        let out = ResultBuffers::Blocks { codes: &scales, scales: &scales };
        refused(launch(&blocks, out), "bytes of the result's codes", "144", "1024");
        let out = ResultBuffers::Blocks { codes: &codes, scales: &codes };
        refused(launch(&blocks, out), "bytes of the result's scales", "1024", "144");
        refused(launch(&blocks, ResultBuffers::Floats(&codes)), "result", "nvfp4", "floats");
    });
}

#[test]
fn vectors_of_other_lengths() {
    on_machines("refused-vectors", |kernels, _| {
        let planned = Planned::new(kernels, HALVES);
        let (elements, other) = (buffer(kernels, 576), buffer(kernels, 164));
        let launch = |vectors: Vectors<'_>| {
            let a = ActivationBuffers::Halves(&elements);
            let out = ResultBuffers::Floats(&planned.out);
            planned.gemm.launch(a, &planned.weights, out, None, vectors)
        };
        let other = Some(&other);
        let vectors = Vectors { row_factors: other, ..Vectors::default() };
        refused(launch(vectors), "bytes of the row factors", "12", "164");
        let vectors = Vectors { column_factors: other, ..Vectors::default() };
        refused(launch(vectors), "bytes of the column factors", "160", "164");
        let vectors = Vectors { bias: other, ..Vectors::default() };
        refused(launch(vectors), "bytes of the bias", "160", "164");
        let vectors = Vectors { magnitude: other, ..Vectors::default() };
        refused(launch(vectors), "bytes of the largest magnitude", "4", "164");
    });
}

#[test]
fn next_weights_of_other_groups() {
    on_machines("refused-next", |kernels, _| {
        let [two, three] = [2, 3].map(|count| Planned::weights(kernels, [count, 40, 48], HALVES));
        let (grouping, options) = (Grouping::Contiguous { bound: 6 }, GemmOptions::default());
        let gemm = Gemm::grouped(kernels, &two, grouping, HALVES, &options).expect("planned");
        let [counts, elements, out] = [12, 576, 480].map(|bytes| buffer(kernels, bytes));
        let groups = GroupBuffers { next: Some(&three), ..GroupBuffers::of(&counts) };
        let (a, vectors) = (ActivationBuffers::Halves(&elements), Vectors::default());
        let launched =
            gemm.launch_grouped(groups, a, &two, ResultBuffers::Floats(&out), None, vectors);
        refused(launched, "matrices of the next product's weights", "2", "3");
    });
}

#[test]
fn weights_that_were_not_planned_for() {
    on_data_centre_machines("refused-weights", |kernels, arch| {
        let planned = Planned::new(kernels, HALVES);
        let elements = buffer(kernels, 576);
        let launch = |weights: &DeviceWeights| {
            let (a, vectors) = (ActivationBuffers::Halves(&elements), Vectors::default());
            planned.gemm.launch(a, weights, ResultBuffers::Floats(&planned.out), None, vectors)
        };
        let taller = Planned::weights(kernels, [2, 41, 48], HALVES);
        refused(launch(&taller), "N of the weights", "40, as planned", "41");
        let wider = Planned::weights(kernels, [2, 40, 64], HALVES);
        refused(launch(&wider), "K of the weights", "48, as planned", "64");
        let required = "1 or 2, the batch";
        let three = Planned::weights(kernels, [3, 40, 48], HALVES);
        refused(launch(&three), "matrices of weights", required, "3");
        let options = GemmOptions::default();
        let gemm = Gemm::new(kernels, &three, [2, 3], HALVES, &options);
        refused(gemm, "matrices of weights", required, "3");
        let options = options.output(FloatType::F32);
        let gemm = Gemm::new(kernels, &three, [3, 0], HALVES, &options);
        refused(gemm, "M", LONGEST, "0");
        // The other machine's kernels take others.
        if arch.tensor() == TensorFamily::Wgmma {
            let bf16 = ActivationKind::Halves(HalfType::Bf16);
            let gemm = Gemm::new(kernels, &planned.weights, [2, 3], bf16, &options);
            let required = "f16, which the weights were repacked for";
            refused(gemm, "type of activations", required, "bf16");
        } else {
            let weights = zeros::<Nvfp4>("w", [2, 40, 48]);
            let weights = Repacked::for_arch(Arch::Sm90a, &weights, HALVES);
            let weights = weights.and_then(|w| w.upload(kernels.device())).expect("uploaded");
            let required = "nvfp4 in the order of tcgen05, as planned";
            let found = "nvfp4 in the order of wgmma for f16 activations";
            refused(launch(&weights), "order of the weights", required, found);
        }
    });
}

#[test]
fn overrides_that_do_not_suit() {
    on_data_centre_machines("refused-overrides", |kernels, arch| {
        let machine = kernels.device().properties();
        let plan = |kernel: Option<&str>, split| {
            let overrides = GemmOverrides::new().kernel(kernel.map(String::from)).split(split);
            plan(GemmShape::of(3, 40, 256), Format::Nvfp4, HALVES, arch, machine, &overrides)
        };
        let Err(Error::Shape { field, required, actual }) = plan(Some("gemm"), None) else {
            panic!("no such kernel");
        };
        assert_eq!((field.as_str(), actual.as_str()), ("kernel", "gemm"));
        assert!(required.starts_with("one of gemm_") && !required.contains("mxfp4"), "{required}");
        if arch.tensor() == TensorFamily::Wgmma {
            let required = "none, stream-k, or cluster:N with N of at most 2";
            refused(plan(None, Some(Split::Cluster(3))), "split of K", required, "cluster:3");
        } else {
            let Err(Error::Shape { field, required, actual }) = plan(None, Some(Split::Cluster(3)))
            else {
                panic!("no such number of parts");
            };
            assert_eq!(
                (field.as_str(), required.as_str()),
                ("GEMM", "a configuration that takes it")
            );
            assert!(actual.contains("Cluster(3)"), "{actual}");
        }
    });
}
