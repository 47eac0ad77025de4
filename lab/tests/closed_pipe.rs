//! Output that nobody reads any more ends every command quietly; output that cannot be written is an
//! error of every command.
//!
//! Runs of kernels need them compiled (`cargo xtask build-kernels`); without them, a test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

#[path = "../../emulator/ptx-emu/tests/support/pipes.rs"]
mod pipes;
#[path = "../../checkpoint/tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::process::Command;

use fp4_formats::{Nvfp4, ScaleLayout};
use nvfp4::gemm::GemmOptions;
use nvfp4::tensor::Dims;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::gemm::{GemmActivations, GemmOperands, Halves, write};
use nvfp4_lab::rng::SplitMix64;
use pipes::CLOSED_PIPE;
use support::{Folder, compiled, kernels_dir, write_model};

fn nvfp4(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env("NVFP4_KERNELS_DIR", kernels_dir()).env("NVFP4_TUNE", "off");
    command
}

/// Small operands of `nvfp4 run gemm`.
fn gemm_operands() -> GemmOperands<Nvfp4> {
    let mut rng = SplitMix64::new(1);
    let mut matrix = |name, rows| {
        let dims = Dims::new(1, rows, 64).expect("dims");
        Generator::FullRange.blocks(name, dims, ScaleLayout::Linear, &mut rng).expect("blocks")
    };
    let a = GemmActivations::Blocks(matrix("a", 3));
    let options = GemmOptions::default();
    GemmOperands { a, b: matrix("b", 16), halves: Halves::None, options }
}

/// Every command once, with output that is as short and as long as it may be.
fn commands(folder: &Folder) -> Vec<Vec<String>> {
    let file = |name: &str| folder.file(name).display().to_string();
    let [model, out, converted] = ["model.safetensors", "out", "converted"].map(file);
    write_model(model.as_ref());
    let operands = file("operands.safetensors");
    write(operands.as_ref(), &gemm_operands()).expect("written");
    let recipe = ["--layout", "compressed-tensors", "--recipe", "te"];
    let gemv = ["--tensor", "model.layers.0.mlp.up.weight", "--checkpoint"];
    let mut all = vec![
        [&["quantize", &model][..], &recipe, &["--out", &out]].concat(),
        vec!["convert", &out, "--layout", "torchao", "--out", &converted],
        vec!["verify", &out, "--against", &model],
        vec!["verify", &out, "--against", &model, "--json"],
        vec!["inspect", &out],
        vec!["inspect", &model, "--json"],
        vec!["doctor"],
        vec!["doctor", "--json"],
    ];
    for (device, _) in compiled() {
        let device = ["--device", device];
        all.extend([
            [&["bench", "--shape", "gemv:16x64x1"][..], &device].concat(),
            [&["bench", "--shape", "gemm:3x16x64", "--json"][..], &device].concat(),
            [&["bench", "--shape", "quantize:16x64"][..], &device].concat(),
            [&["run", "gemv"][..], &gemv, &[&model], &device].concat(),
            [&["run", "gemm", "--inputs", &operands][..], &device].concat(),
        ]);
    }
    all.into_iter().map(|args| args.into_iter().map(str::to_owned).collect()).collect()
}

#[test]
fn a_reader_that_was_never_there() {
    let folder = Folder::new("closed-pipe");
    for args in commands(&folder) {
        let output = pipes::without_a_reader(nvfp4(&args), false);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{args:?}: {stderr}");
        assert!(stderr.is_empty(), "{args:?}: {stderr}");
    }
}

/// `nvfp4 .. 2>&1 | head -0`: messages have no reader either.
#[test]
fn messages_without_a_reader() {
    let folder = Folder::new("closed-pipes");
    let mut all = commands(&folder);
    all.push(["inspect", "nowhere"].map(str::to_owned).to_vec());
    for args in all {
        let status = pipes::without_a_reader(nvfp4(&args), true).status;
        let expected = if args[0] == "inspect" && args[1] == "nowhere" { 2 } else { CLOSED_PIPE };
        assert_eq!(status.code(), Some(expected), "{args:?}");
    }
}

/// `nvfp4 .. >/dev/full`, as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_every_command() {
    let folder = Folder::new("full-disk");
    let mut all = commands(&folder);
    let help: [&[&str]; 4] = [&["--help"], &["--version"], &["bench", "--help"], &["help"]];
    all.extend(help.map(|args| args.iter().map(|arg| (*arg).to_owned()).collect()));
    if let Some((device, _)) = compiled().first() {
        let selftest = ["selftest", "--quick", "--device", device];
        all.push(selftest.map(str::to_owned).to_vec());
    }
    for args in all {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let output = nvfp4(&args).stdout(full).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("error: No space left on device"), "{args:?}: {stderr}");
    }
}

/// `nvfp4 .. | head -1`.
#[test]
fn a_reader_of_one_line() {
    let folder = Folder::new("head");
    for args in commands(&folder) {
        let (status, stderr) = pipes::with_a_reader_of_one_line(nvfp4(&args));
        // Short output may have been written before the reader left.
        assert!(matches!(status.code(), Some(0 | CLOSED_PIPE)), "{args:?}: {status} {stderr}");
        assert!(stderr.is_empty(), "{args:?}: {stderr}");
    }
}
