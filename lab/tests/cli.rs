//! The program: bad input gives exit code 2, a message that says what and why, and no output.

use crate::support;
use fp4_formats::{Arch, Family};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fp4_formats::ScaleLayout;
use nvfp4::shape::GemvShape;
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, NewTensor};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::{self, GemvOperands};
use safetensors::Dtype;

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A folder of kernels that load and are none, for errors that come later.
    fn empty_kernels(&self) -> String {
        support::write_no_kernels(&self.0.join("k"), Arch::Sm90a);
        self.file("k")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn nvfp4(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env_remove("NVFP4_KERNELS_DIR").env("NVFP4_TUNE", "off");
    command.output().expect("the program starts")
}

/// Runs with `args`, which must end with exit code 2 and `message` on stderr.
fn refused(args: &[&str], message: &str) {
    let output = nvfp4(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(stderr.contains(message), "{args:?}: {stderr:?} lacks {message:?}");
    assert!(output.stdout.is_empty(), "{args:?} printed {:?}", output.stdout);
}

fn f32_tensor(shape: &[usize], values: &[f32]) -> NewTensor {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    NewTensor { dtype: Dtype::F32, shape: shape.to_vec(), data }
}

fn operands() -> GemvOperands {
    let shape = GemvShape { m: 3, k: 48, l: 2 };
    let layouts = [ScaleLayout::Linear, ScaleLayout::Blocked128x4];
    let (a, b) = Generator::FullRange.gemv(shape, layouts, 1).expect("small");
    GemvOperands { a, b, alpha: 0.5 }
}

/// Only GEMM has results in NVFP4, only of whole blocks, and only in layouts that there are.
#[test]
fn results_in_nvfp4_are_of_gemm() {
    let folder = Folder::new("nvfp4-results");
    let kernels = folder.empty_kernels();
    let bench = |shape: &str, more: &[&str], message: &str| {
        let device = ["--device", "emu:h200", "--kernels", &kernels];
        let args = [&["bench", "--shape", shape, "--dtype", "nvfp4"], &device[..], more].concat();
        refused(&args, message);
    };
    bench("gemv:16x16x1", &[], "--dtype of gemv:16x16x1 must be f16, bf16 or f32, but is nvfp4");
    bench("quantize:16x16", &[], "--dtype of quantize:16x16 must be f16, bf16 or f32");
    bench("gemm:1x24x16", &[], "N must be a multiple of 16 for a result in nvfp4, but is 24");
    bench("gemm:1x16x16", &["--out-layout", "rowwise"], "rowwise");
    bench("dual:1x24x16", &[], "N must be a multiple of 16 for a result in nvfp4, but is 24");
}

#[test]
fn bad_shapes_are_refused() {
    for (shape, message) in [
        ("gemv:0x16x1", "M of shape `gemv:0x16x1` is 0"),
        ("gemv:1x17x1", "must be a multiple of 16"),
        ("gemv:99999999999x16x1", "too large"),
        ("gemv:1x16", "does not have the form gemv:MxKxL"),
        ("dual:1x1x17", "must be a multiple of 16"),
        ("grouped:1,2x1x17", "must be a multiple of 16"),
        ("moe:1x2x3x16x16", "K of shape `moe:1x2x3x16x16` is too large: at most 2"),
        ("conv:1", "unknown operation `conv`"),
    ] {
        refused(&["bench", "--shape", shape], message);
    }
    let huge = ["bench", "--shape", "gemv:2000000000x4000000x1", "--device", "emu:h200"];
    let folder = Folder::new("shapes");
    refused(&[&huge[..], &["--kernels", &folder.empty_kernels()]].concat(), "cannot provide");
    let unknown = "none of identity, silu, gelu-tanh, gelu, relu2, clamped-swiglu";
    refused(&["bench", "--set", "dual", "--activation", "swish"], unknown);
    refused(&["bench", "--set", "x"], "unknown set of shapes `x`");
    refused(&["bench", "--shape", "gemv:1x16x1", "--device", "tpu:0"], "unknown device `tpu:0`");
    refused(&["bench", "--shape", "gemv:1x16x1", "--schedule", "random"], "random:SEED");
}

#[test]
fn missing_kernels_are_refused_with_the_way_out() {
    let folder = Folder::new("kernels");
    for (device, arch) in [("emu:h200", Arch::Sm90a), ("emu:b200", Arch::Sm100a)] {
        let args = ["bench", "--shape", "gemv:1x16x1", "--device", device, "--kernels"];
        let message = format!("cargo xtask build-kernels --arch {arch}");
        refused(&[&args[..], &[&folder.file("none")]].concat(), &message);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused() {
    let message = match nvfp4::cuda::probe() {
        Ok(_) => "does not exist",
        Err(nvfp4::cuda::DriverError::Missing { .. }) => "no NVIDIA driver",
        Err(_) => "NVIDIA driver",
    };
    refused(&["bench", "--shape", "gemv:1x16x1", "--device", "cuda:999"], message);
}

/// Times never come from the emulator, and nothing else than products has a table.
#[test]
fn tuning_without_a_gpu_is_refused_and_nothing_is_written() {
    let folder = Folder::new("tune");
    let (out, kernels) = (folder.file("tune.json"), folder.empty_kernels());
    let run = |what: [&str; 2], message: &str| {
        let args = ["bench", "--tune", "--device", "emu:h200", "--kernels", &kernels];
        let out_args = ["--tune-out", &out];
        refused(&[&args[..], &what, &out_args].concat(), message);
        refused(&[&args[..], &what].concat(), message);
        assert!(!Path::new(&out).exists());
    };
    run(["--shape", "gemm:8x64x64"], "tuning needs a GPU; the device is emu:h200");
    run(["--set", "decode"], "tuning needs a GPU; the device is emu:h200");
    run(["--shape", "dual:8x64x64"], "tuning needs a GPU; the device is emu:h200");
    run(["--shape", "grouped:3,5x64x64"], "tuning needs a GPU; the device is emu:h200");
    run(["--shape", "moe:3x4x2x64x32"], "tuning needs a GPU; the device is emu:h200");
    run(["--shape", "gemv:8x64x1"], "shape to tune must be a product");
    run(["--set", "all"], "shape to tune must be a product");
    refused(&["bench", "--shape", "gemm:8x64x64", "--tune-out", &out], "--tune");
}

#[test]
fn bad_checkpoints_are_refused_and_nothing_is_written() {
    let folder = Folder::new("checkpoint");
    let (good, out) = (folder.file("good.safetensors"), folder.file("out.safetensors"));
    let mut weight = vec![0.5f32; 2 * 32];
    let write = |path: &str, tensors: &[(&str, NewTensor)]| {
        checkpoint::write(Path::new(path), tensors, &[]).expect("written");
    };
    write(
        &good,
        &[("w", f32_tensor(&[2, 32], &weight)), ("odd", f32_tensor(&[2, 20], &weight[..40]))],
    );
    weight[37] = f32::NAN;
    let nan = folder.file("nan.safetensors");
    write(&nan, &[("w", f32_tensor(&[2, 32], &weight))]);
    let cut = folder.file("cut.safetensors");
    let bytes = std::fs::read(&good).expect("readable");
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).expect("written");

    let kernels = folder.empty_kernels();
    let run = |file: &str, tensor: &str, more: &[&str], message: &str| {
        let args = ["run", "gemv", "--checkpoint", file, "--tensor", tensor, "--out", &out];
        let target = ["--device", "emu:h200", "--kernels", &kernels];
        refused(&[&args[..], &target, more].concat(), message);
        assert!(!Path::new(&out).exists(), "{file} {tensor} wrote a result");
    };
    run(&folder.file("none"), "w", &[], "cannot read");
    run(&cut, "w", &[], "cut.safetensors is not usable");
    run(&good, "v", &[], "has no tensor `v`");
    run(&good, "odd", &[], "K of `odd` must be a multiple of 16 (nvfp4), but is 20");
    run(&nan, "w", &[], "has NaN at index 37");
    run(&good, "w", &["--token", "3"], "no embedding of width 32");
    run(&good, "w", &["--vector", &good], "has no tensor `x`");
}

#[test]
fn bad_operands_are_refused() {
    let folder = Folder::new("operands");
    let path = folder.file("in.safetensors");
    let run = |message: &str| refused(&["run", "gemv", "--inputs", &path], message);
    operands::write(Path::new(&path), &operands()).expect("written");
    let again = operands::read(&Checkpoint::open(&path).expect("valid")).expect("valid");
    let GemvOperands { a, b, alpha } = operands();
    assert_eq!((again.a.codes(), again.a.scales(), again.alpha), (a.codes(), a.scales(), alpha));
    assert_eq!(
        (again.b.codes(), again.b.scales(), again.b.layout()),
        (b.codes(), b.scales(), b.layout())
    );

    let byte = |dtype, shape: &[usize], value: u8| NewTensor {
        dtype,
        shape: shape.to_vec(),
        data: vec![value; shape.iter().product()],
    };
    let good = || {
        vec![
            ("b", byte(Dtype::U8, &[2, 8], 0x11)),
            ("b_scale", byte(Dtype::F8_E4M3, &[2, 1], 0x38)),
            ("a", byte(Dtype::U8, &[8], 0x11)),
            ("a_scale", byte(Dtype::U8, &[1], 0x38)),
        ]
    };
    let with = |index: usize, tensor: NewTensor, message: &str| {
        let mut tensors = good();
        tensors[index].1 = tensor;
        checkpoint::write(Path::new(&path), &tensors, &[]).expect("written");
        run(message);
    };
    with(0, byte(Dtype::I8, &[2, 8], 0), "tensor `b`");
    with(0, byte(Dtype::U8, &[16], 0), "has shape [16]; required [L, M, K/2]");
    with(0, byte(Dtype::U8, &[0, 8], 0), "rows must be at least 1, but is 0");
    with(1, byte(Dtype::F8_E4M3, &[2, 1], 0x7f), "a scale that is not finite (byte 0x7f)");
    with(1, byte(Dtype::F8_E4M3, &[2, 1], 0xb8), "a scale with its sign bit set (byte 0xb8)");
    with(1, byte(Dtype::F8_E4M3, &[1, 2], 0x38), "has shape [1, 2]; required [.., K/16 = 1]");
    with(1, byte(Dtype::F8_E4M3, &[3, 1], 0x38), "length of `b` scales must be 2 bytes");
    with(2, byte(Dtype::U8, &[7], 0), "has shape [7]; required [1, 8] or [1, 1, 8] to fit `b`");
    with(3, byte(Dtype::F8_E5M2, &[1], 0x38), "has type F8_E5M2; required F8_E4M3 or U8");
    checkpoint::write(Path::new(&path), &good()[..3], &[]).expect("written");
    run("has no tensor `a_scale`");
    let metadata = [("a_scale_layout", "4x128".to_owned())];
    checkpoint::write(Path::new(&path), &good(), &metadata).expect("written");
    run("metadata `a_scale_layout` must be linear or 128x4, but is `4x128`");
}

/// Weights in `a` and activations in `b` are refused by their shapes, whatever the ranks.
#[test]
fn exchanged_operands_are_refused() {
    let folder = Folder::new("exchanged");
    let path = folder.file("in.safetensors");
    let write = |a: &[usize], b: &[usize]| {
        let codes = |shape: &[usize]| NewTensor {
            dtype: Dtype::U8,
            shape: shape.to_vec(),
            data: vec![0x11; shape.iter().product()],
        };
        let scales = |shape: &[usize]| NewTensor {
            dtype: Dtype::U8,
            shape: [&shape[..shape.len() - 1], &[1]].concat(),
            data: vec![0x38; shape.iter().product::<usize>() / 8],
        };
        let tensors =
            [("a", codes(a)), ("a_scale", scales(a)), ("b", codes(b)), ("b_scale", scales(b))];
        checkpoint::write(Path::new(&path), &tensors, &[]).expect("written");
    };
    let hint =
        "`a` are the activations and `b` the weights, and this file has them the other way round";
    let exchanged: [(&[usize], &[usize], &str); 5] = [
        (&[2, 3, 8], &[2, 8], "tensor `a`"),
        (&[2, 1, 8], &[2, 8], "tensor `a`"),
        (&[3, 8], &[1, 8], "tensor `a`"),
        (&[3, 8], &[8], "tensor `b`"),
        (&[1, 3, 8], &[8], "tensor `b`"),
    ];
    for (a, b, tensor) in exchanged {
        write(a, b);
        refused(&["run", "gemv", "--inputs", &path], tensor);
        refused(&["run", "gemv", "--inputs", &path], hint);
    }
    // Shapes that fit neither order are not called exchanged.
    write(&[3, 8], &[2, 8]);
    let output = nvfp4(&["run", "gemv", "--inputs", &path]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains(hint));
    // Every form of the activations' shape is read.
    for (a, b) in [
        (&[2usize, 8][..], &[2usize, 3, 8][..]),
        (&[2, 1, 8], &[2, 3, 8]),
        (&[8], &[3, 8]),
        (&[1, 8], &[3, 8]),
        (&[1, 1, 8], &[1, 3, 8]),
    ] {
        write(a, b);
        let read = operands::read(&Checkpoint::open(Path::new(&path)).expect("valid"));
        let read = read.unwrap_or_else(|error| panic!("{a:?} {b:?}: {error}"));
        assert_eq!((read.a.dims().rows(), read.b.dims().rows()), (1, 3), "{a:?} {b:?}");
    }
}

#[test]
fn inspect_lists_tensors() {
    let folder = Folder::new("inspect");
    let path = folder.file("x.safetensors");
    let tensor = f32_tensor(&[2, 32], &[0.0; 64]);
    checkpoint::write(Path::new(&path), &[("w", tensor)], &[]).expect("written");
    let text = nvfp4(&["inspect", &path]);
    assert!(text.status.success());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("2 x 32") && text.ends_with("1 tensors, 256 bytes\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&nvfp4(&["inspect", &path, "--json"]).stdout).expect("JSON");
    assert_eq!(json["tensors"][0]["name"], "w");
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([2, 32]));
    refused(&["inspect", &folder.file("none")], "cannot read");
}

#[test]
fn doctor_says_what_will_be_used() {
    let folder = Folder::new("doctor");
    let output = nvfp4(&["doctor", "--json", "--kernels", &folder.file("none")]);
    assert_eq!(output.status.code(), Some(2), "no kernels, so nothing to run");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["ready"], false);
    assert!(json["choice"]["reason"].is_string(), "{json}");
    assert_eq!(json["driver"].is_null(), json["driver_error"].is_string(), "{json}");
}

#[test]
fn doctor_names_modules_that_are_not_compiled() {
    let folder = Folder::new("doctor-missing");
    let entries: Vec<&str> = Family::Gemv.entries(Arch::Sm90a).collect();
    let text = ".version 9.0\n.target sm_90a\n.address_size 64\n";
    support::write_kernels(&folder.0, Arch::Sm90a, &[(Family::Gemv, text, &entries)], 1);
    let kernels = folder.0.display().to_string();
    let output = nvfp4(&["doctor", "--json", "--kernels", &kernels]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let missing = Family::of(Arch::Sm90a).filter(|family| *family != Family::Gemv);
    let missing: Vec<&str> = missing.map(Family::name).collect();
    let status = &json["kernels"][0];
    assert_eq!(status["missing"], serde_json::json!(missing));
    assert!(status["error"].is_null(), "{status}");
    let output = nvfp4(&["doctor", "--kernels", &kernels]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not compiled: ceiling, quantize_nvfp4"), "{text}");
}

/// `bench --layout 128x4` times linear order, unless the stored one is asked for.
#[test]
fn benches_of_128x4_scales_have_both_orders() {
    let kernels = support::kernels_dir();
    let kernels = kernels.to_str().expect("UTF-8");
    for (device, _) in support::compiled() {
        for (more, kernel, text) in [
            (&[][..], "gemv_nvfp4_linear", "repacking: the weights' scales, to linear at load"),
            (&["--as-stored"], "gemv_nvfp4_128x4", "repacking: none"),
        ] {
            let fixed = ["bench", "--shape", "gemv:33x48x2", "--layout", "128x4"];
            let args = [&fixed[..], &["--device", device, "--kernels", kernels], more].concat();
            let output = nvfp4(&args);
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{stdout}");
            assert!(stdout.contains(kernel) && stdout.contains(text), "{stdout}");
        }
    }
}
