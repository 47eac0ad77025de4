//! `nvfp4 run rows`, and `nvfp4 bench` of norms and activations: operands in files, results, and bad input.
//!
//! Runs need the compiled kernels (`cargo xtask build-kernels`); without them, a test leaves them out, or fails if
//! `NVFP4_KERNELS_DIR` promises them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Folder, compiled, kernels_dir, tensor};
use fp4_formats::{FloatType, HalfType};
use nvfp4::floats;
use nvfp4::quantize::{Format, QuantizeOptions, TensorScale, recipe_by_name};
use nvfp4::rows::{Made, Operands, Results, Rotation, RowsOptions, Source, reference};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint};
use nvfp4_lab::rng::SplitMix64;
use safetensors::Dtype;

fn nvfp4(args: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env("NVFP4_KERNELS_DIR", kernels_dir());
    command.output().expect("the program starts")
}

/// Runs operands of a file; returns the exit code and what the program said.
fn run(inputs: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut args = vec!["run".as_ref(), "rows".as_ref(), "--inputs".as_ref(), inputs.as_os_str()];
    args.extend(more.iter().map(OsStr::new));
    let output = nvfp4(&args);
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("text"))
}

fn bf16(count: usize, seed: u64) -> Vec<u8> {
    let mut rng = SplitMix64::new(seed);
    floats::encode(FloatType::Bf16, (0..count).map(|_| rng.normal()).collect::<Vec<_>>())
}

#[test]
fn norms_of_files_are_the_references() {
    let folder = Folder::new("rows");
    let (rows, cols) = (3, 96);
    let (x, residual, weight) = (bf16(rows * cols, 1), bf16(rows * cols, 2), bf16(cols, 3));
    let inputs = folder.file("in.safetensors");
    let matrix = |bytes: &[u8]| tensor(Dtype::BF16, &[rows, cols], bytes.to_vec());
    let tensors = [
        ("input", matrix(&x)),
        ("residual", matrix(&residual)),
        ("weight", tensor(Dtype::BF16, &[cols], weight.clone())),
    ];
    checkpoint::write(&inputs, &tensors, &[]).expect("written");
    let recipe = recipe_by_name(Format::Nvfp4, "te").expect("known");
    let options = QuantizeOptions::new(recipe).scale(TensorScale::PerRow);
    let source = Source::RmsNorm { epsilon: 1e-5, residual: true };
    let rotation = Some(Rotation { signs: 5 });
    let options = RowsOptions::new(source, Results::Blocks(options)).rotation(rotation);
    let operands = Operands::normed(&x[..], &weight[..]).residual(&residual[..]);
    let expected = reference(rows, cols, HalfType::Bf16, &options, &operands).expect("fits");
    let Made::Blocks(made) = expected.made else { panic!("blocks were asked for") };
    for (device, _) in compiled() {
        let out = folder.file("out.safetensors");
        let path = out.display().to_string();
        let more = ["--device", device, "--recipe", "te", "--epsilon", "1e-5", "--rotate", "5"];
        let (code, said) = run(&inputs, &[&more[..], &["--out", &path]].concat());
        assert_eq!(code, Some(0), "{said}");
        let found = Checkpoint::open(&out).expect("a file");
        let bytes = |name: &str| found.raw(name).expect(name).data.to_vec();
        assert_eq!(bytes("codes"), made.codes, "{device}");
        assert_eq!(bytes("scales"), made.scales, "{device}");
        assert_eq!(Some(bytes("residual")), expected.residual, "{device}");
        let parameters: Vec<u8> = made.parameters.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes("parameters"), parameters, "{device}");
    }
}

#[test]
fn activations_and_indices_of_files() {
    let folder = Folder::new("rows-gated");
    let inputs = folder.file("in.safetensors");
    let matrix = |seed| tensor(Dtype::BF16, &[2, 64], bf16(128, seed));
    let index: Vec<u8> = [1, -1, 0, 1, 1].into_iter().flat_map(i32::to_le_bytes).collect();
    let mut tensors =
        vec![("input", matrix(1)), ("up", matrix(2)), ("index", tensor(Dtype::I32, &[5], index))];
    checkpoint::write(&inputs, &tensors, &[]).expect("written");
    for (device, _) in compiled() {
        for more in
            [&["--to", "half"][..], &["--to", "e4m3"], &["--format", "mxfp4", "--recipe", "rceil"]]
        {
            let out = folder.file("out.safetensors");
            let path = out.display().to_string();
            let (code, said) =
                run(&inputs, &[more, &["--device", device, "--out", &path]].concat());
            assert_eq!(code, Some(0), "{said}");
            let found = Checkpoint::open(&out).expect("a file");
            let shape =
                found.raw(if more[1] == "half" { "c" } else { "codes" }).expect("there").shape;
            assert_eq!(shape, [5, if more[0] == "--format" { 32 } else { 64 }]);
        }
    }
    let index: Vec<u8> = [1i32, 2].into_iter().flat_map(i32::to_le_bytes).collect();
    tensors[2].1 = tensor(Dtype::I32, &[2], index);
    checkpoint::write(&inputs, &tensors, &[]).expect("written");
    let (code, said) = run(&inputs, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("element of `index` must be -1, or from 0 to 1, but is 2"), "{said}");
}

#[test]
fn benches_verify() {
    for (device, _) in compiled() {
        for (shape, more) in [
            ("norm:3x7168", &["--residual", "--layout", "128x4"][..]),
            ("norm:2x64", &["--norm", "layer", "--scale", "row", "--rotate"]),
            ("act:3x96", &["--format", "mxfp4", "--recipe", "rceil"]),
            ("act:3x48", &["--to", "e4m3", "--activation", "relu2", "--dtype", "f16"]),
            ("mlp:3x160x96", &["--activations", "bf16", "--format", "mxfp4"]),
            ("mlp:5x96x224", &["--activations", "fp8-from-f16", "--activation", "gelu"]),
            ("mlp:2x64x96", &["--activations", "fp4-rows"]),
        ] {
            let args = [&["bench", "--shape", shape, "--device", device][..], more].concat();
            let output = nvfp4(&args.iter().map(OsStr::new).collect::<Vec<_>>());
            let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert!(said.contains("1 of 1 shapes verified"), "{said}");
        }
    }
    for (shape, more, required) in [
        ("norm:3x64", ["--scale", "amax"], "tensor-level scale"),
        ("norm:3x64", ["--dtype", "f32"], "f16 or bf16"),
        ("act:3x48", ["--format", "mxfp4"], "multiple of 32"),
        ("mlp:3x64x64", ["--activations", "fp4"], "fp4-rows, for an MLP"),
    ] {
        let args = [&["bench", "--shape", shape, "--device", "emu:h200"][..], &more].concat();
        let output = nvfp4(&args.iter().map(OsStr::new).collect::<Vec<_>>());
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(required), "{said}");
    }
}
