//! A GEMM planned once and launched with operands that it was not planned with: those that fit
//! give their own results, all others are typed errors. On both emulated machines.

use fp4_formats::arch::TensorFamily;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions,
    GemmOverrides, Output, Repacked, ResultBuffers, Vectors, Workspace, format_of,
};
use nvfp4::tensor::BlockScaled;
use nvfp4_lab::gemm::reference;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{self, Case, F16, LINEAR, refused};
use nvfp4_tests::{DEVICES, emulated};
use ptx_emu::Schedule;

const M: usize = 5;
const N: usize = 40;
const K: usize = 96;

fn machines() -> impl Iterator<Item = Kernels> {
    DEVICES.into_iter().map(|name| emulated(name, Schedule::Eager))
}

fn kind<F: BlockFormat>() -> ActivationKind {
    LINEAR.kind(format_of::<F>())
}

/// A tensor `[batch, rows, K]` with a global scale.
fn blocks<F: BlockFormat>(batch: usize, rows: usize, scale: f32) -> BlockScaled<F> {
    let mut rng = SplitMix64::new((batch * rows) as u64);
    gemm::blocks(Generator::Exact, [batch, rows, K], ScaleLayout::Linear, scale, &mut rng)
}

fn upload<F: BlockFormat>(
    kernels: &Kernels,
    weights: &BlockScaled<F>,
    kind: ActivationKind,
) -> DeviceWeights {
    let repacked = Repacked::for_device(kernels.device(), weights, kind).expect("repacked");
    repacked.upload(kernels.device()).expect("uploaded")
}

fn options() -> GemmOptions {
    GemmOptions::new().alpha(0.75).output(FloatType::F32)
}

/// The buffers of a launch besides weights, on a device.
struct Buffers {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    out: DeviceBuffer,
    workspace: Workspace,
}

impl Buffers {
    fn new<F: BlockFormat>(kernels: &Kernels, a: &BlockScaled<F>) -> Self {
        let device = kernels.device();
        let upload =
            |name, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes).expect("memory");
        let l = a.dims().batch();
        Self {
            codes: upload("codes", a.codes()),
            scales: upload("scales", a.scales()),
            out: DeviceBuffer::poisoned(device, "out", l * M * N * 4).expect("memory"),
            workspace: Workspace::new(device, 1 << 23).expect("memory"),
        }
    }

    fn launch(&self, gemm: &Gemm, weights: &DeviceWeights) -> Result<(), Error> {
        let a = ActivationBuffers::blocks(&self.codes, &self.scales);
        let out = ResultBuffers::Floats(&self.out);
        gemm.launch(a, weights, out, Some(&self.workspace), Vectors::default())
    }

    fn check<F: BlockFormat>(&self, gemm: &Gemm, a: &BlockScaled<F>, b: &BlockScaled<F>) {
        let expected = reference(&Activations::Blocks(a), b, &options()).expect("the oracle");
        let expected = expected.with_additions(gemm.plan().additions);
        let got = floats::decode(FloatType::F32, &self.out.read().expect("a result"));
        let check = expected.verify(&got, FloatType::F32);
        assert!(check.passed(), "{}\n{}", gemm.plan(), check.summary());
    }
}

/// Layers of the same sizes share a plan; each has a global scale of its own.
#[test]
fn each_launch_takes_the_scale_of_its_weights() {
    fn check<F: BlockFormat>(kernels: &Kernels, scales: [f32; 3]) {
        let a = blocks::<F>(1, M, if F::NAME == Nvfp4::NAME { 0.5 } else { 1.0 });
        let layers = scales.map(|scale| blocks::<F>(1, N, scale));
        let weights = layers.each_ref().map(|layer| upload(kernels, layer, kind::<F>()));
        let scale = a.global_scale();
        let gemm = Gemm::new(
            kernels,
            &weights[0],
            [1, M],
            kind::<F>(),
            &options().activation_scale(scale),
        );
        let gemm = gemm.expect("planned");
        let buffers = Buffers::new(kernels, &a);
        for (layer, weights) in layers.iter().zip(&weights) {
            buffers.launch(&gemm, weights).expect("runs");
            buffers.check(&gemm, &a, layer);
        }
    }
    for kernels in machines() {
        check::<Nvfp4>(&kernels, [2.0, 0.125, 3.0]);
        check::<Mxfp4>(&kernels, [1.0; 3]);
    }
}

/// The same beside 16-bit activations: each gives the bytes of a separate product.
#[test]
fn weights_take_turns_beside_halves() {
    for kernels in machines() {
        let cases = [512.0, 3072.0].map(|scale| {
            let case = Case::new([3, 48, 64, 1]).activations(F16).result(FloatType::F16);
            Case { generator: Generator::FullRange, tensor_scales: [1.0, scale], ..case }
        });
        let inputs = cases.each_ref().map(|case| case.inputs::<Nvfp4>());
        let kind = F16.kind(Format::Nvfp4);
        let weights = inputs.each_ref().map(|inputs| upload(&kernels, &inputs.weights, kind));
        let gemm = Gemm::new(&kernels, &weights[0], [1, 3], kind, &GemmOptions::default());
        let gemm = gemm.expect("planned");
        assert_eq!(gemm.workspace_bytes(), 0);
        let [elements, _] = inputs[0].activation_bytes();
        let input = DeviceBuffer::upload(kernels.device(), "a", &elements).expect("memory");
        for (case, weights) in cases.iter().zip(&weights) {
            let [bytes, _] = gemm.out_bytes().expect("small");
            let out = DeviceBuffer::poisoned(kernels.device(), "c", bytes).expect("memory");
            let (a, c) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
            gemm.launch(a, weights, c, None, Vectors::default()).expect("runs");
            assert_eq!(out.read().expect("written"), case.check(&kernels).bytes, "{case:?}");
        }
    }
}

/// A scale that leaves f32's range with others is found at the launch that has it.
#[test]
fn a_scale_that_cannot_be_combined_is_refused_at_launch() {
    for kernels in machines() {
        let a = blocks::<Nvfp4>(1, M, 1e-30);
        let [usual, tiny] = [1.0, 1e-30]
            .map(|scale| upload(&kernels, &blocks::<Nvfp4>(1, N, scale), kind::<Nvfp4>()));
        let plan = |weights| {
            Gemm::new(
                &kernels,
                weights,
                [1, M],
                kind::<Nvfp4>(),
                &options().activation_scale(a.global_scale()),
            )
        };
        assert!(matches!(plan(&tiny), Err(Error::Scalar { .. })));
        let gemm = plan(&usual).expect("planned");
        let buffers = Buffers::new(&kernels, &a);
        buffers.launch(&gemm, &usual).expect("runs");
        let error = buffers.launch(&gemm, &tiny).expect_err("out of range");
        assert!(matches!(error, Error::Scalar { .. }), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

/// A plan for three matrices of activations takes three of weights, or one for all.
#[test]
fn weights_of_another_batch_are_refused() {
    for kernels in machines() {
        let a = blocks::<Nvfp4>(3, M, 0.5);
        let layers = [1, 2, 3, 4].map(|batch| blocks::<Nvfp4>(batch, N, 1.0));
        let weights = layers.each_ref().map(|layer| upload(&kernels, layer, kind::<Nvfp4>()));
        let plan = |weights| {
            Gemm::new(
                &kernels,
                weights,
                [3, M],
                kind::<Nvfp4>(),
                &options().activation_scale(a.global_scale()),
            )
        };
        let buffers = Buffers::new(&kernels, &a);
        for planned in [0, 2] {
            let gemm = plan(&weights[planned]).expect("planned");
            for (weights, layer) in weights.iter().zip(&layers) {
                let batch = layer.dims().batch();
                let what = format!("{batch} in {}", gemm.plan());
                let launched = buffers.launch(&gemm, weights);
                if batch == 1 || batch == 3 {
                    launched.unwrap_or_else(|error| panic!("{what}: {error}"));
                    buffers.check(&gemm, &a, layer);
                } else {
                    let expected =
                        format!("matrices of weights must be 1 or 3, the batch, but is {batch}");
                    assert_eq!(refused(&what, launched), expected);
                    assert_eq!(refused(&what, plan(weights)), expected);
                }
            }
        }
    }
}

#[test]
fn weights_of_other_sizes_and_orders_are_refused() {
    let [sm90, sm100] = DEVICES.map(|name| emulated(name, Schedule::Eager));
    for (kernels, other) in [(&sm90, &sm100), (&sm100, &sm90)] {
        let on_sm90 = kernels.device().choice().arch.tensor() == TensorFamily::Wgmma;
        let a = blocks::<Nvfp4>(1, M, 0.5);
        let b = blocks::<Nvfp4>(1, N, 1.0);
        let weights = upload(kernels, &b, kind::<Nvfp4>());
        let scale = a.global_scale();
        let gemm = Gemm::new(
            kernels,
            &weights,
            [1, M],
            kind::<Nvfp4>(),
            &options().activation_scale(scale),
        );
        let gemm = gemm.expect("planned");
        let buffers = Buffers::new(kernels, &a);
        let launch =
            |what: &str, weights: &DeviceWeights| refused(what, buffers.launch(&gemm, weights));

        let wider = upload(kernels, &blocks::<Nvfp4>(1, N + 8, 1.0), kind::<Nvfp4>());
        let expected = "N of the weights must be 40, as planned, but is 48";
        assert_eq!(launch("more rows", &wider), expected);
        let deeper = Case::new([1, N, K + 32, 1]).inputs::<Nvfp4>().weights;
        let deeper = upload(kernels, &deeper, kind::<Nvfp4>());
        let expected = "K of the weights must be 96, as planned, but is 128";
        assert_eq!(launch("more columns", &deeper), expected);

        let [ours, theirs] = if on_sm90 {
            ["nvfp4 in the order of wgmma for f16 activations", "nvfp4 in the order of tcgen05"]
        } else {
            ["nvfp4 in the order of tcgen05", "nvfp4 in the order of wgmma for f16 activations"]
        };
        let order = |found: &str| {
            format!("order of the weights must be {ours}, as planned, but is {found}")
        };
        let repacked = Repacked::for_device(other.device(), &b, kind::<Nvfp4>());
        let elsewhere = repacked.expect("repacked").upload(kernels.device()).expect("uploaded");
        assert_eq!(launch("of the other architecture", &elsewhere), order(theirs));
        let planned = Gemm::new(
            kernels,
            &elsewhere,
            [1, M],
            kind::<Nvfp4>(),
            &options().activation_scale(scale),
        );
        assert_eq!(refused("of the other architecture", planned), order(theirs));

        let repacked =
            Repacked::for_device(kernels.device(), &b, kind::<Nvfp4>()).expect("repacked");
        let bytes = repacked.bytes().len();
        let short = DeviceBuffer::poisoned(kernels.device(), "short", bytes - 1).expect("memory");
        let expected =
            format!("bytes to write must be {}, the buffer's, but is {bytes}", bytes - 1);
        assert_eq!(refused("too little memory", repacked.upload_to(short)), expected);

        let mxfp4 = upload(kernels, &blocks::<Mxfp4>(1, N, 1.0), kind::<Mxfp4>());
        let found = if on_sm90 {
            "mxfp4 in the order of wgmma for bf16 activations"
        } else {
            "mxfp4 in the order of tcgen05"
        };
        assert_eq!(launch("another format", &mxfp4), order(found));
        if on_sm90 {
            let bf16 = upload(kernels, &b, ActivationKind::Halves(HalfType::Bf16));
            let found = "nvfp4 in the order of wgmma for bf16 activations";
            assert_eq!(launch("for other activations", &bf16), order(found));
        }
    }
}

/// Each operand of a launch in turn: of another size, and on another device of the same kind.
#[test]
fn every_buffer_must_fit_and_be_on_the_device() {
    const NAMES: [&str; 7] = [
        "the activations' codes",
        "the activations' scales",
        "the result's codes",
        "the result's scales",
        "the row factors",
        "the column factors",
        "the bias",
    ];
    const N: usize = 48;
    for kernels in machines() {
        let device = kernels.device();
        let (name, other) =
            (&device.choice().device, emulated(&device.choice().device, Schedule::Eager));
        let a = blocks::<Nvfp4>(1, M, 0.5);
        let b = blocks::<Nvfp4>(1, N, 1.0);
        let weights = upload(&kernels, &b, kind::<Nvfp4>());
        let layout = ScaleLayout::Linear;
        // One with a workspace, in which activations are laid out or decoded.
        let kernel = match device.choice().arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => None,
            TensorFamily::Tcgen05 => Some("gemm_sm100_nvfp4_128x64".to_owned()),
        };
        let options = options().output(Output::Nvfp4 { scale: 1.0, layout });
        let options = options.overrides(GemmOverrides::new().kernel(kernel));
        let gemm = Gemm::new(
            &kernels,
            &weights,
            [1, M],
            kind::<Nvfp4>(),
            &options.clone().activation_scale(a.global_scale()),
        );
        let gemm = gemm.expect("planned");
        let [codes, scales] = gemm.out_bytes().expect("sizes");
        let sizes = [a.codes().len(), a.scales().len(), codes, scales, M * 4, N * 4, N * 4];
        let buffer =
            |device, bytes| DeviceBuffer::upload(device, "x", &vec![0; bytes]).expect("memory");
        let workspace = Workspace::new(device, gemm.workspace_bytes().max(1)).expect("memory");
        let launch = |buffers: &[&DeviceBuffer; 7], weights, workspace| {
            let [codes, scales, out, out_scales, rows, columns, bias] = *buffers;
            let a = ActivationBuffers::blocks(codes, scales);
            let out = ResultBuffers::Blocks { codes: out, scales: out_scales };
            let vectors = Vectors {
                row_factors: Some(rows),
                column_factors: Some(columns),
                bias: Some(bias),
                ..Vectors::default()
            };
            gemm.launch(a, weights, out, workspace, vectors)
        };
        let right = sizes.map(|size| buffer(device, size));
        let right = right.each_ref();
        let report = launch(&right, &weights, Some(&workspace));
        assert!(report.is_ok(), "{name}: {}", report.map(|_| ()).unwrap_err());

        let elsewhere = |what: &str| {
            format!(
                "memory of {what} must be on {name}, as the kernels, but is on another emulated \
                 device"
            )
        };
        for (index, (what, size)) in NAMES.into_iter().zip(sizes).enumerate() {
            let try_with = |wrong: &DeviceBuffer| {
                let mut buffers = right;
                buffers[index] = wrong;
                refused(what, launch(&buffers, &weights, Some(&workspace)))
            };
            for wrong in [size - 1, size + 1] {
                let expected = format!("bytes of {what} must be {size}, but is {wrong}");
                assert_eq!(try_with(&buffer(device, wrong)), expected);
            }
            assert_eq!(try_with(&buffer(other.device(), size)), elsewhere(what));
        }
        let theirs = upload(&other, &b, kind::<Nvfp4>());
        let message = refused("weights", launch(&right, &theirs, Some(&workspace)));
        assert_eq!(message, elsewhere("the weights"));
        let planned = Gemm::new(
            &kernels,
            &theirs,
            [1, M],
            kind::<Nvfp4>(),
            &options.clone().activation_scale(a.global_scale()),
        );
        assert_eq!(refused("weights", planned), elsewhere("the weights"));

        let needed = gemm.workspace_bytes();
        assert!(needed > 1, "{name}: this test is about a workspace too");
        let expected = format!("workspace must be at least {needed} bytes, but is ");
        let message = refused("workspace", launch(&right, &weights, None));
        assert_eq!(message, format!("{expected}0"));
        let small = Workspace::new(device, needed - 1).expect("memory");
        let message = refused("workspace", launch(&right, &weights, Some(&small)));
        assert_eq!(message, format!("{expected}{}", needed - 1));
        let theirs = Workspace::new(other.device(), needed).expect("memory");
        let message = refused("workspace", launch(&right, &weights, Some(&theirs)));
        assert_eq!(message, elsewhere("the workspace"));
    }
}

/// The same of 16-bit activations and a result in floats.
#[test]
fn halves_and_floats_must_fit_and_be_on_the_device() {
    for kernels in machines() {
        let device = kernels.device();
        let (name, other) =
            (&device.choice().device, emulated(&device.choice().device, Schedule::Eager));
        let kind = ActivationKind::Halves(HalfType::Bf16);
        let weights = upload(&kernels, &blocks::<Nvfp4>(1, N, 1.0), kind);
        let gemm = Gemm::new(&kernels, &weights, [1, M], kind, &options()).expect("planned");
        let launch = |input: &DeviceBuffer, out: &DeviceBuffer| {
            let (a, out) = (ActivationBuffers::Halves(input), ResultBuffers::Floats(out));
            gemm.launch(a, &weights, out, None, Vectors::default())
        };
        let buffer =
            |device, bytes| DeviceBuffer::upload(device, "x", &vec![0; bytes]).expect("memory");
        let sizes = [M * K * 2, M * N * 4];
        let [input, out] = sizes.map(|size| buffer(device, size));
        assert!(launch(&input, &out).is_ok(), "{name}");
        let expected = format!("bytes of the activations must be {}, but is 2", sizes[0]);
        assert_eq!(refused("input", launch(&buffer(device, 2), &out)), expected);
        let expected = format!("bytes of the result must be {}, but is 2", sizes[1]);
        assert_eq!(refused("out", launch(&input, &buffer(device, 2))), expected);
        for (what, message) in [
            ("the activations", refused("input", launch(&buffer(other.device(), sizes[0]), &out))),
            ("the result", refused("out", launch(&input, &buffer(other.device(), sizes[1])))),
        ] {
            let expected = format!(
                "memory of {what} must be on {name}, as the kernels, but is on another emulated \
                 device"
            );
            assert_eq!(message, expected);
        }
        let blocks = ActivationBuffers::blocks(&input, &input);
        let result = ResultBuffers::Floats(&out);
        let launched = gemm.launch(blocks, &weights, result, None, Vectors::default());
        let expected = "activations must be bf16, but is codes and scales";
        assert_eq!(refused("blocks", launched), expected);
    }
}
