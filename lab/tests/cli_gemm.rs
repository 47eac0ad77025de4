//! `nvfp4 run gemm` and the tuning table of `nvfp4 bench`: operands in files, results, bundles,
//! and what is refused.
//!
//! Runs need the compiled kernels (`cargo xtask build-kernels`); without them, a test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Folder, SCALED, compiled, kernels_dir, tensor};
use fp4_formats::gemm::{Adding, Split};
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout, TensorFamily};
use nvfp4::device::Device;
use nvfp4::floats;
use nvfp4::gemm::{
    self, ActivationKind, Fp8Matrix, GemmOptions, HalfMatrix, ResidualValues, RowScaled, UpOptions,
    gemm,
};
use nvfp4::quantize::Format;
use nvfp4::shape::GemmShape;
use nvfp4::tensor::Dims;
use nvfp4::tune::{self, Measured, Table, TuneProblem};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, NewTensor};
use nvfp4_lab::gemm::{Verify, reference};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::gemm::{AnyOperands, GemmActivations, GemmOperands, Halves, read, write};
use nvfp4_lab::rng::SplitMix64;
use ptx_emu::bundle::{Bundle, ReplayOptions, RunBundle as _};
use ptx_emu_core::Schedule;
use safetensors::Dtype;

fn nvfp4(args: &[&OsStr], table: &OsStr) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env_remove("NVFP4_KERNELS_DIR").env("NVFP4_TUNE", table);
    command.output().expect("the program starts")
}

/// The differences between the products.
#[derive(Clone, Copy)]
enum Activation {
    Blocks(ScaleLayout),
    Halves(HalfType),
}

/// Operands of `[M, N, K, L]` with everything that a file can have; weights are shared where
/// `shared` says so.
fn operands<F: BlockFormat>(
    [m, n, k, l]: [usize; 4],
    activation: Activation,
    layout: ScaleLayout,
    shared: bool,
) -> GemmOperands<F> {
    let mut rng = SplitMix64::new(11);
    let dims = Dims::new(l, m, k).expect("dims");
    let a = match activation {
        Activation::Blocks(layout) => GemmActivations::Blocks(
            Generator::FullRange.blocks("a", dims, layout, &mut rng).expect("a"),
        ),
        Activation::Halves(operand) => GemmActivations::Halves(
            Generator::FullRange.halves("a", dims, operand, &mut rng).expect("a"),
        ),
    };
    let dims = Dims::new(if shared { 1 } else { l }, n, k).expect("dims");
    let b = Generator::FullRange.blocks("b", dims, layout, &mut rng).expect("b");
    let ramp = |count: usize, step: f32| Some((0..count).map(|i| 1.0 + step * i as f32).collect());
    let options = GemmOptions::new()
        .alpha(-0.375)
        .row_factors(ramp(m, 0.25))
        .column_factors(if shared { None } else { ramp(n, -0.125) })
        .bias(ramp(n, 0.5))
        .residual((n % 2 == 0).then(|| {
            let of = [FloatType::F16, FloatType::Bf16, FloatType::F32][n % 3];
            let values: Vec<f32> = (0..l * m * n).map(|i| i as f32 / 7.0 - 3.0).collect();
            ResidualValues::round(of, &values)
        }));
    GemmOperands { a, b, halves: Halves::None, options }
}

fn read_back(path: &Path) -> AnyOperands {
    read(&Checkpoint::open(path).expect("a file")).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn operands_come_back_as_they_were_written() {
    let folder = Folder::new("gemm-operands");
    let path = folder.file("in.safetensors");
    let (linear, blocked) = (ScaleLayout::Linear, ScaleLayout::Blocked128x4);
    for (sizes, layouts, shared) in [
        ([3, 5, 64, 2], [linear, blocked], false),
        ([1, 130, 96, 1], [blocked, linear], false),
        ([2, 7, 32, 3], [blocked, blocked], true),
    ] {
        let [left, right] = layouts;
        let halves = [HalfType::F16, HalfType::Bf16].map(Activation::Halves);
        for activation in [Activation::Blocks(left), halves[0], halves[1]] {
            let operands = operands::<Nvfp4>(sizes, activation, right, shared);
            write(&path, &operands).expect("written");
            assert_eq!(read_back(&path), AnyOperands::Nvfp4(operands));
        }
        for activation in [Activation::Blocks(left), halves[1]] {
            let operands = self::operands::<Mxfp4>(sizes, activation, right, shared);
            write(&path, &operands).expect("written");
            assert_eq!(read_back(&path), AnyOperands::Mxfp4(operands));
        }
    }
}

/// The same of a gated product, in every form.
#[test]
fn gated_operands_come_back_as_they_were_written() {
    let folder = Folder::new("dual-operands");
    let path = folder.file("in.safetensors");
    let layout = ScaleLayout::Blocked128x4;
    for shared in [false, true] {
        let plain = operands::<Nvfp4>([3, 10, 64, 2], Activation::Blocks(layout), layout, shared);
        let dims = plain.b.dims();
        let mut rng = SplitMix64::new(12);
        let other = Generator::FullRange.blocks("b_up", dims, ScaleLayout::Linear, &mut rng);
        let other = other.expect("b_up");
        for halves in [Halves::Pair(other), Halves::Stacked, Halves::Interleaved] {
            let n = if matches!(halves, Halves::Pair(_)) { 10 } else { 5 };
            let column_factors = (!shared).then(|| vec![2.0; n]);
            let up = Some(
                UpOptions::new().alpha(0.5).column_factors(column_factors).bias(vec![-1.0; n]),
            );
            let bias = Some(vec![3.0; n]);
            let options = plain.options.clone().column_factors(None::<Vec<f32>>).bias(bias).up(up);
            let options =
                options.residual(ResidualValues::round(FloatType::Bf16, &[0.3; 60][..6 * n]));
            let operands = GemmOperands { halves, options, ..plain.clone() };
            assert_eq!((operands.is_gated(), operands.shape().n), (true, n));
            write(&path, &operands).expect("written");
            assert_eq!(read_back(&path), AnyOperands::Nvfp4(operands));
        }
    }
}

/// Activations in e4m3 are read back with their scales, and the program verifies a product of them.
#[test]
fn activations_in_e4m3() {
    let folder = Folder::new("gemm-fp8");
    let (path, out) = (folder.file("in.safetensors"), folder.file("out.safetensors"));
    let dims = Dims::new(1, 3, 48).expect("dims");
    let values: Vec<f32> = (0..3 * 48).map(|at| (at % 23) as f32 - 9.5).collect();
    let halves = HalfMatrix::round("a", dims, HalfType::Bf16, &values).expect("small");
    let a = Fp8Matrix::quantize(&halves).expect("small");
    let mut rng = SplitMix64::new(4);
    let b = Dims::new(1, 5, 48).expect("dims");
    let b = Generator::FullRange.operand("b", b, ScaleLayout::Linear, &mut rng).expect("small");
    let (halves, options) = (Halves::None, GemmOptions::new());
    let operands = GemmOperands { a: GemmActivations::Fp8(a), b, halves, options };
    write(&path, &operands).expect("written");
    assert_eq!(read_back(&path), AnyOperands::Nvfp4(operands));
    let args = ["run", "gemm", "--device", "emu:h200", "--inputs"].map(OsStr::new);
    let more = [path.as_os_str(), OsStr::new("--out"), out.as_os_str()];
    let output = nvfp4(&[&args[..], &more].concat(), OsStr::new("off"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.exists(), "{stdout}{output:?}");
    assert!(stdout.contains("folded with their block scales"), "{stdout}");

    let mut tensors = small();
    tensors[0].1 = tensor(Dtype::F8_E4M3, &[2, 16], vec![0x38; 32]);
    checkpoint::write(&path, &tensors, &[]).expect("written");
    let output = nvfp4(&[&args[..], &more].concat(), OsStr::new("off"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("a_scale") && output.status.code() == Some(2), "{stderr}");
}

/// NVFP4 with a scale for each row, in files, and made of normal values for a batch-invariant product.
#[test]
fn activations_with_a_scale_for_each_row() {
    let folder = Folder::new("gemm-rows");
    let (path, out) = (folder.file("in.safetensors"), folder.file("out.safetensors"));
    let dims = Dims::new(1, 3, 48).expect("dims");
    let values: Vec<f32> = (0..3 * 48).map(|at| (at * at % 23) as f32 - 9.5).collect();
    let halves = HalfMatrix::round("a", dims, HalfType::Bf16, &values).expect("small");
    let a = RowScaled::quantize(&halves).expect("small");
    let mut rng = SplitMix64::new(4);
    let b = Dims::new(1, 5, 48).expect("dims");
    let b = Generator::FullRange.operand("b", b, ScaleLayout::Linear, &mut rng).expect("small");
    let (halves, options) = (Halves::None, GemmOptions::new());
    let mut operands = GemmOperands { a: GemmActivations::ScaledRows(a), b, halves, options };
    write(&path, &operands).expect("written");
    assert_eq!(read_back(&path), AnyOperands::Nvfp4(operands.clone()));
    for (device, _) in compiled() {
        let kernels = kernels_dir();
        let args = ["run", "gemm", "--batch-invariant", "--device", device, "--kernels"];
        let args = args.map(OsStr::new);
        let more = [OsStr::new("--inputs"), path.as_os_str(), OsStr::new("--out"), out.as_os_str()];
        let ran = [&args[..], &[kernels.as_os_str()], &more].concat();
        let output = nvfp4(&ran, OsStr::new("off"));
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.exists(), "{device}: {stdout}{output:?}");
        assert!(stdout.contains("batch invariant"), "{stdout}");
        std::fs::remove_file(&out).expect("written");
    }
    // Row factors have no place beside them.
    operands.options = GemmOptions::new().row_factors(vec![1.0; 3]);
    write(&path, &operands).expect("written");
    let args = ["run", "gemm", "--device", "emu:h200", "--inputs"].map(OsStr::new);
    let output = nvfp4(&[&args[..], &[path.as_os_str()]].concat(), OsStr::new("off"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("row factors must be absent"), "{stderr}");
    assert_eq!(output.status.code(), Some(2));
}

/// Tensors of a small product with 16-bit activations, M = 2, N = 3, K = 16.
fn small() -> Vec<(&'static str, NewTensor)> {
    let bytes = |dtype, shape: &[usize], value: u8, each: usize| {
        tensor(dtype, shape, vec![value; each * shape.iter().product::<usize>()])
    };
    vec![
        ("a", bytes(Dtype::BF16, &[2, 16], 0x3f, 2)),
        ("b", bytes(Dtype::U8, &[3, 8], 0x11, 1)),
        ("b_scale", bytes(Dtype::F8_E4M3, &[3, 1], 0x38, 1)),
        ("bias", bytes(Dtype::F32, &[3], 0, 4)),
        ("row_factors", bytes(Dtype::F16, &[2], 0, 2)),
    ]
}

#[test]
fn bad_operands_are_refused() {
    let folder = Folder::new("gemm-refused");
    let (path, out) = (folder.file("in.safetensors"), folder.file("out.safetensors"));
    let run = |message: &str| {
        let args = ["run", "gemm", "--inputs"].map(OsStr::new);
        let more = [path.as_os_str(), OsStr::new("--out"), out.as_os_str()];
        let output = nvfp4(&[&args[..], &more].concat(), OsStr::new("off"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}: {stderr}");
        assert!(stderr.contains(message), "{stderr:?} lacks {message:?}");
        assert!(output.stdout.is_empty() && !out.exists());
    };
    run("cannot read");
    let with = |name: &'static str, new: Option<NewTensor>, message: &str| {
        let mut tensors = small();
        tensors.retain(|(known, _)| *known != name);
        tensors.extend(new.map(|new| (name, new)));
        checkpoint::write(&path, &tensors, &[]).expect("written");
        run(message);
    };
    let zeros = |dtype, shape: &[usize], each: usize| {
        Some(tensor(dtype, shape, vec![0; each * shape.iter().product::<usize>()]))
    };
    with("a", None, "has no tensor `a`");
    with("b_scale", None, "has no tensor `b_scale`");
    with("a", zeros(Dtype::F32, &[2, 16], 4), "has type F32; required U8, F16, BF16 or F8_E4M3");
    with("a", zeros(Dtype::BF16, &[32], 2), "has shape [32]; required [L, M, K] or [M, K]");
    with("a", zeros(Dtype::BF16, &[0, 16], 2), "rows must be at least 1, but is 0");
    with("a", zeros(Dtype::BF16, &[2, 32], 2), "K of `b` must be 32, the K of `a`, but is 16");
    with("a", zeros(Dtype::U8, &[2, 8], 1), "has no tensor `a_scale`");
    let nan = tensor(Dtype::BF16, &[1, 16], [0xc0, 0x7f].repeat(16));
    with("a", Some(nan), "has NaN at index 0");
    with("a_scale", zeros(Dtype::U8, &[2, 1], 1), "tensor `a_scale` must be absent");
    with("b", zeros(Dtype::F16, &[3, 8], 2), "has type F16; required U8");
    with("b", zeros(Dtype::U8, &[24], 1), "has shape [24]; required [L, N, K/2] or [N, K/2]");
    with("b_scale", zeros(Dtype::F8_E8M0, &[3, 1], 1), "required F8_E4M3 or U8");
    with("b_scale", zeros(Dtype::U8, &[1, 3], 1), "required [.., K/16 = 1]");
    with("bias", zeros(Dtype::F32, &[2], 4), "has shape [2]; required [N = 3]");
    with("row_factors", zeros(Dtype::F32, &[2, 1], 4), "required [M = 2]");
    let required = "has shape [6]; required [1, 2, 3], or [2, 3] for one matrix";
    with("residual", zeros(Dtype::F32, &[6], 4), required);
    with("residual", zeros(Dtype::U8, &[2, 3], 1), "has type U8");
    let infinite = tensor(Dtype::F32, &[3], f32::INFINITY.to_le_bytes().repeat(3));
    with("column_factors", Some(infinite), "has inf at index 0");
    with("up_bias", zeros(Dtype::F32, &[3], 4), "`up_bias` must be absent, as there is no other");
    with("b_up", zeros(Dtype::U8, &[4, 8], 1), "has no tensor `b_up_scale`");
    let batch = zeros(Dtype::U8, &[2, 3, 8], 1);
    with("b", batch, "length of `b` scales must be 6 bytes");

    for (metadata, message) in [
        (("format", "fp8"), "metadata `format` must be nvfp4 or mxfp4, but is `fp8`"),
        (("format", "mxfp4"), "has type F8_E4M3; required F8_E8M0 or U8"),
        (("b_scale_layout", "4x128"), "metadata `b_scale_layout` must be linear or 128x4"),
        (
            ("b_halves", "apart"),
            "metadata `b_halves` must be stacked or interleaved, but is `apart`",
        ),
        (
            ("b_halves", "stacked"),
            "rows of `b` must be even, for a gate and as many of up, but is 3",
        ),
    ] {
        let metadata = [(metadata.0, metadata.1.to_owned())];
        checkpoint::write(&path, &small(), &metadata).expect("written");
        run(message);
    }
}

/// Runs `run gemm` on operands with the options `more`; replays its launches. Returns the printed
/// text, and the file that it wrote.
fn run<F: BlockFormat>(
    folder: &Folder,
    device: &str,
    operands: &GemmOperands<F>,
    more: &[&str],
) -> (serde_json::Value, Checkpoint) {
    let file = |name: &str| folder.file(&format!("{}-{name}", device.replace(':', "-")));
    let (path, out, captured) = (file("in"), file("out"), file("bundles"));
    let _ = (std::fs::remove_file(&out), std::fs::remove_dir_all(&captured));
    write(&path, operands).expect("written");
    let kernels = kernels_dir();
    let op = if operands.is_gated() { "dual" } else { "gemm" };
    let mut args: Vec<&OsStr> = vec![
        "run".as_ref(),
        op.as_ref(),
        "--device".as_ref(),
        device.as_ref(),
        "--schedule".as_ref(),
        "random:3".as_ref(),
        "--json".as_ref(),
        "--inputs".as_ref(),
        path.as_ref(),
        "--out".as_ref(),
        out.as_ref(),
        "--kernels".as_ref(),
        kernels.as_ref(),
        "--capture".as_ref(),
        captured.as_ref(),
    ];
    args.extend(more.iter().map(OsStr::new));
    let ran = nvfp4(&args, OsStr::new("off"));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!((&json["op"], &json["verified"]), (&op.into(), &true.into()), "{json}");
    assert_eq!(json["plan"]["op"], op);
    assert_eq!(json["format"], F::NAME);
    assert_eq!(json["plan"]["source"], "model");
    assert!(json["emulated"][0]["counters"].is_object());

    let result = Checkpoint::open(&out).expect("a result");
    assert_eq!(result.metadata("kernel"), json["plan"]["kernel"].as_str());
    let bundles: Vec<PathBuf> = std::fs::read_dir(&captured)
        .expect("bundles")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(!bundles.is_empty());
    for bundle in bundles {
        let (name, bundle) = (bundle.display().to_string(), Bundle::read(&bundle).expect("read"));
        for schedule in [Schedule::Lazy, Schedule::Random(5)] {
            let options = ReplayOptions { schedule, ..ReplayOptions::default() };
            let replay = bundle.replay(&options).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(replay.is_right() && !replay.outputs.is_empty(), "{name}, {schedule}");
        }
    }
    (json, result)
}

/// Compares a result of floats in the file with the oracle.
fn runs<F: BlockFormat>(
    folder: &Folder,
    device: &str,
    operands: &GemmOperands<F>,
    output: FloatType,
) {
    let (json, file) = run(folder, device, operands, &["--dtype", output.name()]);
    assert_eq!(json["output"], output.name());
    assert!(json["output_scale"].is_null(), "{json}");
    let GemmShape { m, n, l, .. } = operands.shape();
    let c = file.raw("c").expect("written");
    assert_eq!(c.shape, [l, m, n]);
    let mut options = operands.options.clone().output(output);
    if operands.is_gated() {
        assert_eq!(json["activation"], "silu");
        options.activation = gemm::Activation::Silu;
    }
    let weights = operands.weights().expect("halves that fit");
    let reference = reference(&operands.a.activations(), weights, &options).expect("oracle");
    let check = reference.verify(&floats::decode(output, &c.data), output);
    assert!(check.passed(), "{device}: {}", check.summary());
}

/// Compares a result in NVFP4 in the file with that of the library, which the oracle verifies.
/// The scale is that of the oracle's largest magnitude, or `scale`.
fn runs_in_nvfp4<F: BlockFormat>(
    folder: &Folder,
    device: &str,
    operands: &GemmOperands<F>,
    layout: ScaleLayout,
    scale: Option<f32>,
) {
    let mut more = vec!["--dtype", "nvfp4", "--out-layout", layout.name()];
    let text = scale.map(|scale| scale.to_string());
    more.extend(text.iter().flat_map(|text| ["--out-scale", text]));
    let (json, file) = run(folder, device, operands, &more);
    assert_eq!(json["output"], "nvfp4");

    let (a, b) = (operands.a.activations(), &operands.b);
    let reference = reference(&a, b, &operands.options).expect("oracle");
    let mut output = gemm::Output::nvfp4_of(reference.largest(), layout);
    if let (gemm::Output::Nvfp4 { scale: of_amax, .. }, Some(scale)) = (&mut output, scale) {
        *of_amax = scale;
    }
    let opened = Device::open(&device.parse().expect("known")).expect("opens");
    let kernels = opened.kernels(Some(&kernels_dir())).expect("loads");
    let options = operands.options.clone().output(output);
    let expected = gemm(&kernels, &a, b, &options).unwrap_or_else(|error| panic!("{error}"));
    let check = expected.verify(&reference);
    assert!(check.passed(), "{device}: {}", check.summary());
    let expected = expected.into_blocks::<Nvfp4>("c").expect("finite");

    let GemmShape { m, n, l, .. } = operands.shape();
    let (c, scales) = (file.raw("c").expect("codes"), file.raw("c_scale").expect("scales"));
    assert_eq!((c.dtype, c.shape.as_slice()), (Dtype::U8, &[l, m, n / 2][..]));
    assert_eq!(scales.dtype, Dtype::F8_E4M3);
    assert_eq!(file.metadata("c_scale_layout"), Some(layout.name()));
    let global = file.scalar("c_global_scale").expect("a scale");
    assert_eq!(global, expected.global_scale());
    assert_eq!(json["output_scale"].as_f64().map(|scale| scale as f32), Some(global));
    // Padding included: the kernels write it.
    assert!(c.data == expected.codes() && scales.data == expected.scales(), "{device}");
}

#[test]
fn products_are_right_and_their_launches_replay() {
    let folder = Folder::new("gemm-runs");
    let (linear, blocked) = (ScaleLayout::Linear, ScaleLayout::Blocked128x4);
    let f16 = Activation::Halves(HalfType::F16);
    let bf16 = Activation::Halves(HalfType::Bf16);
    for (device, _) in compiled() {
        let blocks = operands::<Nvfp4>([5, 40, 208, 2], Activation::Blocks(blocked), linear, false);
        runs(&folder, device, &blocks, FloatType::F32);
        let halves = operands::<Nvfp4>([17, 33, 80, 2], f16, blocked, true);
        runs(&folder, device, &halves, FloatType::F16);
        let blocks = operands::<Mxfp4>([3, 130, 96, 1], Activation::Blocks(linear), blocked, false);
        runs(&folder, device, &blocks, FloatType::Bf16);
        let halves = operands::<Mxfp4>([9, 24, 160, 1], bf16, linear, true);
        runs(&folder, device, &halves, FloatType::F32);
    }
}

/// Gated products of files in every form, by default with SiLU.
#[test]
fn gated_products_are_right_and_their_launches_replay() {
    let folder = Folder::new("dual-cli");
    for (device, _) in compiled() {
        let (linear, blocked) = (ScaleLayout::Linear, ScaleLayout::Blocked128x4);
        let plain = operands::<Nvfp4>([3, 34, 160, 2], Activation::Blocks(linear), blocked, false);
        let mut rng = SplitMix64::new(12);
        let other = Generator::FullRange.blocks("b_up", plain.b.dims(), linear, &mut rng);
        for halves in [Halves::Pair(other.expect("b_up")), Halves::Stacked, Halves::Interleaved] {
            let n = if matches!(halves, Halves::Pair(_)) { 34 } else { 17 };
            let ramp = |step: f32| Some((0..n).map(|i| 1.0 + step * i as f32).collect());
            let up = Some(UpOptions::new().alpha(0.5).column_factors(ramp(0.25)).bias(ramp(-0.5)));
            let (column_factors, bias) = (ramp(-0.125), ramp(0.5));
            let options = plain.options.clone().column_factors(column_factors).bias(bias).up(up);
            let residual: Vec<f32> = (0..6 * n).map(|i| 10.0 - 0.3 * i as f32).collect();
            let options = options.residual(ResidualValues::round(FloatType::F16, &residual));
            let operands = GemmOperands { halves, options, ..plain.clone() };
            runs(&folder, device, &operands, FloatType::F32);
        }
    }
}

/// Every emulated machine of compute capability 12 runs products by block-scaled `mma.sync`, verified, and
/// the report names it; no time comes with it.
#[test]
fn benches_on_compute_capability_12_name_the_machine() {
    if !compiled().contains(&SCALED) {
        return;
    }
    let kernels = kernels_dir();
    for (device, name) in [
        (SCALED.0, "emulated RTX5090"),
        ("emu:rtx-pro-6000", "emulated RTX-PRO-6000"),
        ("emu:dgx-spark", "emulated DGX-SPARK"),
    ] {
        let bench = |more: &[&str]| {
            let fixed = ["bench", "--shape", "gemm:3x40x96", "--device", device, "--kernels"];
            let args = fixed.iter().map(OsStr::new).chain([kernels.as_os_str()]);
            let args: Vec<&OsStr> = args.chain(more.iter().map(OsStr::new)).collect();
            let ran = nvfp4(&args, OsStr::new("off"));
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
            String::from_utf8(ran.stdout).expect("text")
        };
        let json: serde_json::Value = serde_json::from_str(&bench(&["--json"])).expect("JSON");
        assert_eq!((&json["op"], &json["verified"]), (&"gemm".into(), &true.into()), "{json}");
        let choice = &json["device"];
        assert_eq!((&choice["device"], &choice["name"]), (&device.into(), &name.into()), "{json}");
        assert_eq!(choice["arch"], SCALED.1.name(), "{json}");
        let kernel = json["plan"]["kernel"].as_str().expect("a name");
        assert!(kernel.starts_with("gemm_sm120_nvfp4_"), "{kernel}");
        let bound = &json["emulated"][0]["lower_bound"];
        assert_eq!(Some(bound["gpu"].as_str().expect("a name")), device.strip_prefix("emu:"));
        assert_eq!(json.get("times"), Some(&serde_json::Value::Null), "{json}");

        let text = bench(&[]);
        let line = format!("\n  device    {device} ({name}, {}): ", SCALED.1);
        assert!(text.contains(&line), "{text}");
    }
}

/// Gated shapes of `bench`, whose inputs are the contest's.
#[test]
fn benches_of_gated_products_are_verified() {
    for (device, _) in compiled() {
        let kernels = kernels_dir();
        let kernels = kernels.to_str().expect("UTF-8");
        for (activation, dtype) in [("silu", "f16"), ("clamped-swiglu", "nvfp4")] {
            let args = [
                ["bench", "--shape", "dual:5x48x160x2", "--device", device].as_slice(),
                &["--generator", "contest-dual", "--activation", activation, "--dtype", dtype],
                &["--activations", "f16", "--kernels", kernels, "--json"],
            ]
            .concat();
            let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
            let ran = nvfp4(&args, OsStr::new("off"));
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
            let json: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
            assert_eq!((&json["op"], &json["verified"]), (&"dual".into(), &true.into()), "{json}");
            assert_eq!(json["shape"], "dual:5x48x160x2");
            assert!(json["activation"].as_str().is_some_and(|text| text.starts_with(activation)));
        }
    }
}

/// Grouped shapes and layers of `bench`.
#[test]
fn benches_of_groups_and_experts_are_verified() {
    for (device, _) in compiled() {
        let kernels = kernels_dir();
        let kernels = kernels.to_str().expect("UTF-8");
        for (shape, op, options) in [
            ("grouped:3,0,2*9x48x96", "grouped", &["--activations", "fp4"]),
            ("grouped:3,0,2*9x48x96", "grouped", &["--dtype", "nvfp4"]),
            ("grouped-dual:17*2x48x96", "grouped dual", &["--activation", "gelu"]),
            ("grouped:3,0,2*9x48x96", "grouped", &["--activations", "fp4-rows"]),
            ("gemm:5x48x96", "gemm", &["--activations", "fp4-rows"]),
            ("moe:5x20x2x64x96", "moe", &["--activations", "fp4-rows"]),
            ("moe:5x20x2x64x96", "moe", &["--activations", "f16"]),
            ("moe:3x4x2x64x32", "moe", &["--activation", "clamped-swiglu"]),
        ] {
            let common = ["bench", "--shape", shape, "--device", device, "--kernels", kernels];
            for more in [&["--json"][..], &["--json", "--batch-invariant"]] {
                let args: Vec<&OsStr> =
                    common.iter().chain(options).chain(more).map(OsStr::new).collect();
                let ran = nvfp4(&args, OsStr::new("off"));
                let stderr = String::from_utf8_lossy(&ran.stderr);
                assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
                let json: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
                assert_eq!((&json["op"], &json["verified"]), (&op.into(), &true.into()), "{json}");
                assert_eq!(json["shape"], shape);
                let said = json.to_string().contains("batch invariant: K is added in one order");
                assert_eq!(said, more.len() > 1, "{json}");
            }
        }
        let moe = ["bench", "--shape", "moe:3x4x2x64x32", "--device", device];
        let args = [&moe[..], &["--kernels", kernels, "--dtype", "nvfp4"]].concat();
        let ran = nvfp4(&args.iter().map(OsStr::new).collect::<Vec<_>>(), OsStr::new("off"));
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{stderr}");
    }
}

#[test]
fn products_in_nvfp4_are_right_and_their_launches_replay() {
    let folder = Folder::new("gemm-runs-nvfp4");
    let (linear, blocked) = (ScaleLayout::Linear, ScaleLayout::Blocked128x4);
    let f16 = Activation::Halves(HalfType::F16);
    for (device, _) in compiled() {
        let blocks = operands::<Nvfp4>([5, 48, 208, 2], Activation::Blocks(blocked), linear, false);
        runs_in_nvfp4(&folder, device, &blocks, blocked, None);
        let halves = operands::<Nvfp4>([17, 32, 80, 2], f16, blocked, true);
        runs_in_nvfp4(&folder, device, &halves, linear, Some(0.5));
        let blocks = operands::<Mxfp4>([130, 80, 96, 1], Activation::Blocks(linear), linear, false);
        runs_in_nvfp4(&folder, device, &blocks, linear, None);
    }
}

/// Bad results in NVFP4 or MXFP4 are refused before anything runs; nothing is written.
#[test]
fn bad_results_are_refused() {
    let folder = Folder::new("gemm-results-refused");
    let (path, out) = (folder.file("in.safetensors"), folder.file("out.safetensors"));
    let kernels = kernels_dir();
    let run = |device: &str, more: &[&str], message: &str| {
        let args = ["run", "gemm", "--device", device, "--inputs"].map(OsStr::new);
        let files = [path.as_os_str(), "--out".as_ref(), out.as_os_str(), "--kernels".as_ref()];
        let more = more.iter().map(OsStr::new);
        let args: Vec<&OsStr> =
            args.into_iter().chain(files).chain([kernels.as_os_str()]).chain(more).collect();
        let output = nvfp4(&args, OsStr::new("off"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}: {stderr}");
        assert!(stderr.contains(message), "{stderr:?} lacks {message:?}");
        assert!(output.stdout.is_empty() && !out.exists());
    };
    checkpoint::write(&path, &small(), &[]).expect("written");
    let message = "N must be a multiple of 16 for a result in nvfp4, but is 3";
    run("emu:h200", &["--dtype", "nvfp4"], message);
    let message = "--out-scale must be absent for a result in f16, but is 2";
    run("emu:h200", &["--out-scale", "2"], message);
    let message = "N must be a multiple of 32 for a result in mxfp4, but is 3";
    run("emu:h200", &["--dtype", "mxfp4"], message);
    let message = "`mxfp8` is none of f16, bf16, f32, nvfp4, mxfp4";
    run("emu:h200", &["--dtype", "mxfp8"], message);
    let operands = operands::<Nvfp4>(
        [1, 16, 16, 1],
        Activation::Halves(HalfType::F16),
        ScaleLayout::Linear,
        true,
    );
    write(&path, &operands).expect("written");
    for (device, _) in compiled() {
        for scale in ["0", "-1", "inf", "1e-40"] {
            let scale = format!("--out-scale={scale}");
            let message = "scale of the result must be finite and at least 2^-121";
            run(device, &["--dtype", "nvfp4", &scale], message);
        }
    }
}

/// A table that NVFP4_TUNE names, written by hand for the emulated machine, decides; a damaged
/// one is ignored and said; `--kernel` beats it.
#[test]
fn the_table_of_the_environment_decides() {
    let folder = Folder::new("gemm-table");
    for (device, arch) in compiled() {
        let (kernel, split) = match arch.tensor() {
            TensorFamily::MmaSync => ("gemm_sm80_nvfp4_f16_128x32", Split::None),
            TensorFamily::MmaSyncScaled => ("gemm_sm120_nvfp4_128x32", Split::None),
            TensorFamily::Wgmma => ("gemm_sm90_nvfp4_f16_128x32", Split::Cluster(2)),
            TensorFamily::Tcgen05 => ("gemm_sm100_nvfp4_256x64", Split::None),
        };
        let opened = Device::open(&device.parse().expect("known")).expect("opens");
        let opened = opened.kernels(Some(&kernels_dir())).expect("loads");
        let mut table = Table::new(opened.tune_key().clone());
        let layout = ScaleLayout::Linear;
        let (format, shape) = (Format::Nvfp4, GemmShape::of(4, 72, 512));
        let activations = ActivationKind::Blocks { format, layout };
        let output = FloatType::F16.into();
        let problem = TuneProblem {
            format,
            activations,
            output,
            gated: false,
            shape,
            groups: None,
            adding: Adding::default(),
        };
        table.insert(problem, Measured { kernel: kernel.into(), split, median_ns: 4000 });
        let path = folder.file(&format!("{}.json", device.replace(':', "-")));
        tune::write(&path, &table).expect("written");

        let kernels = kernels_dir();
        let bench = |table: &OsStr, more: &[&str]| {
            let fixed = ["bench", "--shape", "gemm:4x72x512", "--device", device, "--json"];
            let mut args: Vec<&OsStr> = fixed.map(OsStr::new).to_vec();
            args.extend([OsStr::new("--kernels"), kernels.as_os_str()]);
            args.extend(more.iter().map(OsStr::new));
            let ran = nvfp4(&args, table);
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
            let json: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
            assert_eq!(json["verified"], true);
            json["plan"].clone()
        };
        let plan = bench(path.as_os_str(), &[]);
        let split = split.to_string();
        assert_eq!((&plan["kernel"], &plan["split"]), (&kernel.into(), &split.into()), "{plan}");
        assert_eq!(plan["source"]["table"]["m"], 4, "{plan}");
        let model = bench(OsStr::new("off"), &[]);
        assert_eq!(model["source"], "model");
        assert_ne!((&model["kernel"], &model["split"]), (&plan["kernel"], &plan["split"]));

        let asked = model["kernel"].as_str().expect("a name");
        let plan = bench(path.as_os_str(), &["--kernel", asked]);
        assert_eq!((&plan["source"], &plan["kernel"]), (&"asked".into(), &asked.into()));

        std::fs::write(&path, "{").expect("written");
        let plan = bench(path.as_os_str(), &[]);
        assert_eq!((&plan["source"], &plan["kernel"]), (&"model".into(), &model["kernel"]));
        assert!(plan["why"].to_string().contains("the tuning table is ignored: "), "{plan}");
    }
}

/// `--explain` prints who chose, and every candidate, the best first; with `--kernel`, that
/// kernel's. Without it there is no table, and in JSON there always is.
#[test]
fn benches_explain_their_choice() {
    let kernels = kernels_dir();
    for (device, _) in compiled() {
        let bench = |more: &[&str]| {
            let fixed = ["bench", "--shape", "gemm:4x72x512", "--device", device];
            let mut args: Vec<&OsStr> = fixed.map(OsStr::new).to_vec();
            args.extend([OsStr::new("--kernels"), kernels.as_os_str()]);
            args.extend(more.iter().map(OsStr::new));
            let ran = nvfp4(&args, OsStr::new("off"));
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(0), "{device}: {stderr}");
            String::from_utf8(ran.stdout).expect("text")
        };
        let json: serde_json::Value = serde_json::from_str(&bench(&["--json"])).expect("JSON");
        let plan = &json["plan"];
        let [kernel, split] =
            ["kernel", "split"].map(|field| plan[field].as_str().expect("a name"));
        let candidates = plan["candidates"].as_array().expect("a list");
        assert!(candidates.len() > 3, "{plan}");

        let text = bench(&["--explain"]);
        let chosen =
            format!("  table     chosen: {kernel}, split {split}, the best by the model\n");
        let (_, table) = text.split_once(&chosen).unwrap_or_else(|| panic!("{chosen}: {text}"));
        let lines: Vec<&str> =
            table.lines().take_while(|line| line.contains(" cycles: ")).collect();
        assert_eq!(lines.len(), candidates.len(), "{text}");
        let mut last = 0;
        for (line, candidate) in lines.iter().zip(candidates) {
            let cycles = candidate["cycles"].as_u64().expect("a number");
            let [name, split] =
                ["kernel", "split"].map(|field| candidate[field].as_str().expect("a name"));
            let says = format!("{cycles} cycles: {name}, split {split}, ");
            assert!(line.trim_start().starts_with(&says), "{line} lacks {says}");
            assert!(cycles >= last, "{text}");
            last = cycles;
        }
        assert!(lines[0].contains(&format!(" {kernel}, split {split}, ")), "{text}");

        let other = candidates.last().expect("one")["kernel"].as_str().expect("a name");
        let text = bench(&["--explain", "--kernel", other]);
        assert!(
            text.contains(&format!("chosen: {other}, split ")) && text.contains(", asked for\n"),
            "{text}"
        );
        let lines = text.lines().filter(|line| line.contains(" cycles: "));
        assert!(
            lines.into_iter().all(|line| line.contains(&format!(": {other}, split "))),
            "{text}"
        );
        assert!(!bench(&[]).contains(" cycles: "));
    }
}
