//! `ptx-emu exec`: CUDA programs, compiled by nvcc as anybody would, run without a GPU.
//!
//! `PTX_EMU_NVCC` says where nvcc of CUDA 13 is; `cargo xtask test` installs it. Without it the
//! programs are skipped.
#![cfg(target_os = "linux")]

// The library that is loaded by the programs is built because this names it.
use ptx_emu_cuda as _;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub(crate) const SM_100A: &str = "arch=compute_100a,code=compute_100a";
const SM_90A: &str = "arch=compute_90a,code=compute_90a";

/// The folder in which programs are compiled.
pub(crate) fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exec");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// nvcc, and the folder where the linker finds what programs need.
pub(crate) fn tools() -> Option<&'static (PathBuf, PathBuf)> {
    static TOOLS: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let found = TOOLS.get_or_init(|| {
        let nvcc = PathBuf::from(std::env::var_os("PTX_EMU_NVCC")?);
        let root = nvcc.parent()?.parent()?;
        let libraries = folder().join("libraries");
        let _ = std::fs::remove_dir_all(&libraries);
        std::fs::create_dir_all(&libraries).expect("a folder");
        let link = |from: PathBuf, to: &str| {
            std::os::unix::fs::symlink(from, libraries.join(to)).expect("a link");
        };
        // nvcc's packages have the libraries without the names that the linker looks for.
        let runtime = ["lib", "lib64"].map(|lib| root.join(lib).join("libcudart.so.13"));
        link(runtime.into_iter().find(|path| path.is_file())?, "libcudart.so");
        link(root.join("lib/libcudadevrt.a"), "libcudadevrt.a");
        link(root.join("lib/libcudart_static.a"), "libcudart_static.a");
        link(stand_in(), "libcuda.so");
        Some((nvcc, libraries))
    });
    if found.is_none() {
        skipped::test("no nvcc of CUDA 13 in PTX_EMU_NVCC");
    }
    found.as_ref()
}

/// The stand-in library, which cargo has beside the test or above it.
pub(crate) fn stand_in() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let found = test.ancestors().skip(1).take(2).map(|at| at.join("libptx_emu_cuda.so"));
    found.into_iter().find(|path| path.is_file()).expect("cargo builds the library")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/programs").join(name)
}

/// Compiles a program; `None`: there is no nvcc.
pub(crate) fn compile(source_name: &str, name: &str, arguments: &[&str]) -> Option<PathBuf> {
    let (nvcc, libraries) = tools()?;
    let program = folder().join(name);
    let out = Command::new(nvcc)
        .args(arguments)
        .arg(source(source_name))
        .arg("-L")
        .arg(libraries)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("nvcc runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// The arguments that the documentation gives.
pub(crate) fn documented(arch: &str) -> [&str; 4] {
    ["-cudart", "shared", "-gencode", arch]
}

pub(crate) fn exec(options: &[&str], program: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("exec")
        .arg("--stand-in")
        .arg(stand_in())
        .args(options)
        .arg("--")
        .arg(program)
        .output()
        .expect("ptx-emu runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that prints that it is right, under every kind of schedule, and nothing is found.
fn right(name: &str, arch: &str, more: &[&str]) {
    let arguments = [&documented(arch), more].concat();
    let Some(program) = compile(&format!("{name}.cu"), name, &arguments) else { return };
    for schedule in ["eager", "lazy", "random:3"] {
        let out = exec(&["--schedule", schedule], &program);
        let (printed, said) = (text(&out.stdout), text(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{schedule}: {printed}{said}");
        assert!(printed.ends_with(&format!("{name}: right\n")), "{schedule}: {printed}{said}");
        assert!(said.contains("not modelled; findings: 0 errors, 0 warnings"), "{said}");
        let not = format!("not looked for under {schedule}: data races");
        assert!(said.contains(&not), "{said}");
        let nowhere = said.contains("data races in global memory");
        assert_eq!(nowhere, schedule != "eager", "{said}");
        assert!(!said.contains("no version information"), "{said}");
    }
}

#[test]
fn vector_add() {
    right("vector_add", SM_100A, &[]);
}

#[test]
fn reduction_in_shared_memory() {
    right("reduction", SM_100A, &[]);
}

#[test]
fn pipeline_of_cp_async() {
    right("pipeline", SM_100A, &[]);
}

#[test]
fn tensor_map_copies() {
    right("tma", SM_100A, &[]);
}

#[test]
fn wgmma() {
    right("wgmma", SM_90A, &[]);
}

#[test]
fn wmma() {
    right("wmma", SM_90A, &[]);
    right("wmma", SM_100A, &[]);
}

#[test]
fn tcgen05() {
    right("tcgen05", SM_100A, &[]);
}

#[test]
fn dependent_launches() {
    right("dependent", SM_100A, &[]);
}

#[test]
fn two_streams() {
    right("streams", SM_100A, &[]);
}

#[test]
fn graph() {
    right("graph", SM_100A, &[]);
}

#[test]
fn graph_of_nodes() {
    right("nodes", SM_100A, &[]);
}

#[test]
fn graph_of_nodes_of_every_kind() {
    right("graph_nodes", SM_100A, &[]);
}

#[test]
fn graph_with_memory_of_its_own() {
    right("graph_memory", SM_100A, &[]);
    let arguments = [&documented(SM_100A)[..], &["-DBROKEN"]].concat();
    let Some(program) = compile("graph_memory.cu", "graph_memory-broken", &arguments) else {
        return;
    };
    let said = text(&exec(&[], &program).stderr);
    assert!(
        said.contains("error[uninitialised-read]") && said.contains("memory of a graph"),
        "{said}"
    );
}

#[test]
fn memory_that_kernels_allocate() {
    right("heap", SM_100A, &[]);
    let arguments = [&documented(SM_100A)[..], &["-DBROKEN"]].concat();
    let Some(program) = compile("heap.cu", "heap-broken", &arguments) else { return };
    let out = exec(&[], &program);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("error[out-of-bounds]") && said.contains("device's heap"), "{said}");
}

#[test]
fn cooperative_grid() {
    right("cooperative", SM_100A, &[]);
}

#[test]
fn driver_interface() {
    right("driver", SM_100A, &["-lcuda"]);
}

#[test]
fn graph_of_nodes_through_the_driver() {
    right("driver_graph", SM_100A, &["-lcuda"]);
    let Some(program) = compile(
        "driver_graph.cu",
        "driver_graph-said",
        &[&documented(SM_100A)[..], &["-lcuda"]].concat(),
    ) else {
        return;
    };
    let said = text(&exec(&[], &program).stderr);
    for name in ["cuGraphAddNode_v2", "cuGraphConditionalHandleCreate"] {
        let refused = format!("{name}: a conditional node of a graph is not modelled");
        assert!(said.contains(&refused), "{said}");
    }
}

/// Text of the device stands where the program printed it, from every kind of fat binary.
#[test]
fn printing_from_every_fat_binary() {
    for mode in ["none", "size", "speed", "balance", "default"] {
        let arguments = [&documented(SM_100A)[..], &["-compress-mode", mode]].concat();
        let name = format!("print-{mode}");
        let Some(program) = compile("print.cu", &name, &arguments) else { return };
        let out = exec(&[], &program);
        let expected = "before\n\
            thread 0 of block 0, from 1.75\nthread 1 of block 0, from 1.75\n\
            thread 0 of block 1, from 1.75\nthread 1 of block 1, from 1.75\nprint: right\n";
        assert_eq!(text(&out.stdout), expected, "{mode}: {}", text(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{mode}");
    }
}

#[test]
fn a_missing_barrier_is_found() {
    let arguments = [&documented(SM_100A)[..], &["-DBROKEN"]].concat();
    let Some(program) = compile("reduction.cu", "reduction-broken", &arguments) else { return };
    let out = exec(&["--schedule", "lazy"], &program);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("error[data-race]"), "{said}");
    assert!(said.contains("kernel `sum`"), "{said}");
    // The program learns of it from the call that waits.
    let printed = text(&out.stdout);
    assert!(
        printed.starts_with("cudaDeviceSynchronize(): unspecified launch failure"),
        "{printed}"
    );
    // As a warning it is none of the program's business.
    let out = exec(&["--schedule", "lazy", "--warn", "data-race"], &program);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("warning[data-race]"));
}

#[test]
fn a_missing_wait_for_the_launch_before_is_found() {
    let arguments = [&documented(SM_100A)[..], &["-DBROKEN"]].concat();
    let Some(program) = compile("dependent.cu", "dependent-broken", &arguments) else { return };
    let found = (0..10).any(|seed| {
        let out = exec(&["--schedule", &format!("random:{seed}")], &program);
        out.status.code() == Some(1) && text(&out.stderr).contains("error[uninitialised")
    });
    assert!(found, "no schedule read before the wait that is missing");
}

#[test]
fn launches_are_captured() {
    let Some(program) = compile("tma.cu", "tma-captured", &documented(SM_100A)) else { return };
    let bundles = folder().join("bundles");
    let _ = std::fs::remove_dir_all(&bundles);
    let out = exec(&["--capture", bundles.to_str().expect("UTF-8")], &program);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let replay = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(["replay", "--schedule", "lazy"])
        .arg(&bundles)
        .output()
        .expect("ptx-emu runs");
    assert_eq!(replay.status.code(), Some(0), "{}", text(&replay.stderr));
    assert!(text(&replay.stdout).contains("4096 elements as expected"), "{}", text(&replay.stdout));
    let bundle = bundles.join("0000-copy/bundle.json");
    let bundle = std::fs::read_to_string(bundle).expect("a bundle");
    assert!(bundle.contains("\"FLOAT32\""), "the tensor map's arguments are in the bundle");
}

/// Constants that the program wrote, and a counter that earlier launches raised.
#[test]
fn variables_are_captured() {
    let arguments = documented(SM_100A);
    let Some(program) = compile("variables.cu", "variables-captured", &arguments) else { return };
    let bundles = folder().join("bundles-of-variables");
    let _ = std::fs::remove_dir_all(&bundles);
    let out = exec(&["--capture", bundles.to_str().expect("UTF-8")], &program);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let replay = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("replay")
        .arg(&bundles)
        .output()
        .expect("ptx-emu runs");
    assert_eq!(replay.status.code(), Some(0), "{}", text(&replay.stderr));
    assert_eq!(text(&replay.stdout).matches("128 elements as expected").count(), 3);
}

#[test]
fn what_cannot_run_says_why() {
    // The runtime in the program has an interface to the driver that nobody documents.
    let Some(program) = compile("reduction.cu", "reduction-static", &["-gencode", SM_100A]) else {
        return;
    };
    let out = exec(&[], &program);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stdout));
    assert!(text(&out.stderr).contains("build it with nvcc -cudart shared"));
    // Machine code alone.
    let code = ["-cudart", "shared", "-gencode", "arch=compute_100a,code=sm_100a"];
    let program = compile("reduction.cu", "reduction-code", &code).expect("nvcc is there");
    let out = exec(&[], &program);
    let said = text(&out.stderr);
    assert!(said.contains("actual machine code for sm_100"), "{said}");
    assert_ne!(out.status.code(), Some(0));
    // PTX for another machine.
    let program = compile("reduction.cu", "reduction-90a", &documented(SM_90A)).expect("nvcc");
    let out = exec(&["--gpu", "b200"], &program);
    assert!(text(&out.stderr).contains("actual sm_90a"), "{}", text(&out.stderr));
    assert_eq!(out.status.code(), Some(3));
}

/// The program of `lost.cu` for one `WHAT`.
fn lost(what: &str) -> Option<PathBuf> {
    let define = format!("-DWHAT={what}");
    compile("lost.cu", &format!("lost-{what}"), &[&documented(SM_90A)[..], &[&define]].concat())
}

#[test]
fn launches_that_do_not_run_are_errors() {
    let Some(program) = lost("0") else { return };
    let out = exec(&[], &program);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("0 launches emulated"), "{said}");
    assert!(said.contains("1 launches did not run"), "{said}");
    // The program saw that the first one did not run, as it would on a GPU.
    let out = exec(&[], &lost("1").expect("nvcc"));
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(!said.contains("did not run"), "{said}");
    // It ended while a launch waited for its successor.
    let out = exec(&[], &lost("2").expect("nvcc"));
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("1 launches did not run"), "{said}");
    // No PTX for the machine, and nobody looks.
    let out = exec(&["--gpu", "b200"], &lost("0").expect("nvcc"));
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("actual sm_90a") && said.contains("did not run"), "{said}");
}

#[test]
fn a_failed_assertion_has_its_own_code() {
    let Some(program) = lost("3") else { return };
    let out = exec(&[], &program);
    assert_eq!(text(&out.stdout), "710 cudaErrorAssert\n", "{}", text(&out.stderr));
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn times_of_events_are_what_was_asked_for() {
    let Some(program) = lost("4") else { return };
    for (times, printed, said) in [
        ("nan", "nan\n\n", "are NaN"),
        ("zero", "other\nzero\n", "are 0"),
        ("cycles", "some\n\n", "lower bounds for h200 from counted operations, not measured"),
    ] {
        let out = exec(&["--event-times", times], &program);
        assert_eq!(text(&out.stdout), printed, "{times}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(said), "{times}: {}", text(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{times}");
    }
}

/// The exit code of a program that has nothing to do with CUDA is its own.
#[test]
fn exit_codes_are_the_program_s() {
    let out = exec(&[], Path::new("/bin/false"));
    assert_eq!(out.status.code(), Some(1));
    let out = exec(&[], Path::new("/nothing/there"));
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/nothing/there: cannot be run"));
}

#[test]
fn a_missing_library_is_named() {
    let out = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(["exec", "--stand-in", "/no/library", "--", "/bin/true"])
        .output()
        .expect("ptx-emu runs");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/no/library: required the library"));
}
