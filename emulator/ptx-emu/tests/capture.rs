//! `ptx-emu capture`. The library that stands in for the driver is the driver here, so that a
//! program's launches are watched as on a machine with a GPU.
//!
//! `PTX_EMU_NVCC` says where nvcc of CUDA 13 is, as for the tests of `exec`.
#![cfg(target_os = "linux")]

// Libraries that programs load are built because these name them.
use ptx_emu_capture as _;
use ptx_emu_cuda as _;

use ptx_emu::bundle::{Bundle, MapPlace};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of this test, without anything in it.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capture").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A library, which cargo has beside the test or above it.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let found = test.ancestors().skip(1).take(2).map(|at| at.join(name));
    found.into_iter().find(|path| path.is_file()).expect("cargo builds the library")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a program of the tests; `None`: there is no nvcc.
fn compile(name: &str, folder: &Path) -> Option<PathBuf> {
    let Some(nvcc) = std::env::var_os("PTX_EMU_NVCC").map(PathBuf::from) else {
        skipped::test("no nvcc of CUDA 13 in PTX_EMU_NVCC");
        return None;
    };
    let root = nvcc.ancestors().nth(2).expect("nvcc is in a toolkit");
    let runtime = ["lib", "lib64"].map(|lib| root.join(lib).join("libcudart.so.13"));
    let link = |from: PathBuf, to: &str| {
        std::os::unix::fs::symlink(from, folder.join(to)).expect("a link");
    };
    let runtime = runtime.into_iter().find(|path| path.is_file());
    link(runtime.expect("the toolkit has its runtime library"), "libcudart.so");
    link(root.join("lib/libcudadevrt.a"), "libcudadevrt.a");
    link(library("libptx_emu_cuda.so"), "libcuda.so");
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/programs");
    let out = Command::new(&nvcc)
        .args(["-cudart", "none", "-gencode", "arch=compute_90a,code=compute_90a"])
        .arg(source.join(format!("{name}.cu")))
        .arg("-L")
        .arg(folder)
        .args(["-lcuda", "-o"])
        .arg(&program)
        .output()
        .expect("nvcc runs");
    assert!(out.status.success(), "{}", text(&out.stderr));
    Some(program)
}

fn capture(bundles: &Path, options: &[&str], program: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("capture")
        .arg("--driver")
        .arg(library("libptx_emu_cuda.so"))
        .arg("--library")
        .arg(library("libptx_emu_capture.so"))
        .args(options)
        .arg(bundles)
        .arg("--")
        .args(program)
        .env("PTX_EMU_EXEC", r#"{"gpu": "h200"}"#)
        .output()
        .expect("ptx-emu runs")
}

fn replay(bundles: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(["replay", "--schedule", "lazy"])
        .arg(bundles)
        .output()
        .expect("ptx-emu runs")
}

/// Launches of each form, with tensor maps, variables and memory of each kind.
#[test]
fn launches_are_captured_and_replay_equal() {
    let at = folder("watched");
    let Some(program) = compile("watched", &at) else { return };
    let bundles = at.join("bundles");
    let out = capture(&bundles, &[], &[&program]);
    let (printed, said) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{printed}{said}");
    assert!(printed.ends_with("watched: right\n"), "{printed}{said}");
    assert!(said.contains("5 launches captured, 1 not"), "{said}");
    assert!(said.contains("kernel `scale` is not captured: its stream is recorded"), "{said}");
    assert!(said.contains("launches of graphs are not captured"), "{said}");
    let out = replay(&bundles);
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let read = |name: &str| Bundle::read(&bundles.join(name)).expect("a bundle");
    // The arguments of `cuLaunchKernel`.
    let first = read("0000-scale");
    assert_eq!((first.grid, first.block), ([2, 1, 1], [32, 1, 1]));
    assert_eq!(first.expected.len(), 1, "{:?}", first.expected.keys());
    // The variable that the program wrote, and the counter that the launch before raised.
    let second = read("0001-scale");
    assert!(second.ptx.contains("{0, 0, 64, 64}"), "the factor is 3");
    assert!(second.ptx.contains("{64, 0, 0, 0}"), "64 threads counted");
    let map = read("0002-copy");
    assert!(matches!(map.tensor_maps[..], [ref one] if one.place == MapPlace::Param(0)));
    let clustered = read("0003-scale");
    assert_eq!((clustered.cluster, clustered.programmatic), (Some([2, 1, 1]), true));
    assert!(read("0004-scale").cooperative);
}

#[test]
fn launches_are_chosen() {
    let at = folder("chosen");
    let Some(program) = compile("watched", &at) else { return };
    let bundles = at.join("bundles");
    let out = capture(&bundles, &["--kernel", "scale", "--most", "2"], &[&program]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let mut names: Vec<_> = std::fs::read_dir(&bundles)
        .expect("bundles")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, ["0000-scale", "0001-scale"]);
}

#[test]
fn programs_without_cuda_run_as_they_are() {
    let at = folder("plain");
    let out = capture(&at.join("bundles"), &[], &[Path::new("/bin/false")]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("0 launches captured, 0 not"), "{}", text(&out.stderr));
    let out = capture(&at.join("bundles"), &[], &[Path::new("/nothing/there")]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/nothing/there: cannot be run"));
}

#[test]
fn a_missing_library_is_named() {
    let out = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(["capture", "--library", "/no/library", "bundles", "--", "/bin/true"])
        .output()
        .expect("ptx-emu runs");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/no/library: required the library"));
}
