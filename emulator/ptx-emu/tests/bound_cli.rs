//! `ptx-emu bound`, on a recorded disassembly, and with ptxas and nvdisasm where they are.

use cuda_builder::{nvdisasm, ptxas};
use ptx_emu::bound::disassembly::Disassembly;
use ptx_emu::bundle::{Allocation, Bundle};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PTX: &str = include_str!("data/bound/steps.ptx");
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bound/steps.sass");
const OPCODES: &str = include_str!("data/bound/opcodes.txt");

/// The address to which each of 32 threads of `kept` writes ten numbers.
const OUT: u64 = 0x7000_0000_0000;

/// A launch of `kept`, in a new folder.
fn bundle(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bound-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    let mut params = OUT.to_le_bytes().to_vec();
    params.extend(10_u32.to_le_bytes());
    let bundle = Bundle {
        ptx: PTX.to_owned(),
        entry: "kept".to_owned(),
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        params,
        memory: vec![Allocation { addr: OUT, size: 1280, name: "out".into(), contents: None }],
        tensor_maps: Vec::new(),
        expected: BTreeMap::new(),
    };
    bundle.write(&folder).expect("a bundle");
    folder
}

fn run(command: &mut Command) -> Output {
    command.output().expect("ptx-emu runs")
}

fn ptx_emu(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    command.arg("bound").arg(folder);
    command
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// The tools, or nothing, which is said.
fn tools() -> Option<(PathBuf, PathBuf, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-tools");
    let found = ptxas::find(&folder).zip(nvdisasm::find(&folder));
    if found.is_none() {
        skipped::test("no ptxas or no nvdisasm; `ptx-emu bound --install` installs them");
    }
    found.map(|(ptxas, nvdisasm)| (folder, ptxas, nvdisasm))
}

#[test]
fn of_a_recorded_disassembly() {
    let folder = bundle("recorded");
    let out = run(ptx_emu(&folder).args(["--disassembly", RECORDED, "--json"]));
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let found = json(&out);
    let machine = &found["from_machine_code"];
    assert_eq!(machine["instructions"], 7 + 7 * 10 + 1);
    assert_eq!(machine["by"], "issue");
    assert_eq!(machine["assumed"], false);
    assert_eq!(found["from_counters"]["gpu"], "h200");
    let out = run(ptx_emu(&folder).args(["--disassembly", RECORDED, "--blocks"]));
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("bounds, not times"), "{text}");
    assert!(text.contains("\n  0x0070    7 instructions         10 warps"), "{text}");
}

#[test]
fn missing_tools_are_named() {
    let folder = bundle("missing");
    let none = folder.join("none");
    let out =
        run(ptx_emu(&folder).arg("--tools").arg(&none).env("PATH", "").env_remove("CUDA_HOME"));
    let message = String::from_utf8_lossy(&out.stderr);
    if message.is_empty() {
        return skipped::test("ptxas and nvdisasm are in the usual folder");
    }
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("required in CUDA_HOME, on PATH or in"), "{message}");
}

/// The recorded disassembly is what the tools make.
#[test]
fn of_the_tools() {
    let Some((tools, ..)) = tools() else { return };
    let folder = bundle("tools");
    let fresh = run(ptx_emu(&folder).arg("--tools").arg(&tools).arg("--json"));
    assert_eq!(fresh.status.code(), Some(0), "{}", String::from_utf8_lossy(&fresh.stderr));
    let recorded = run(ptx_emu(&folder).args(["--disassembly", RECORDED, "--json"]));
    assert_eq!(json(&fresh), json(&recorded));
}

/// `opcodes.txt` has the opcodes of our kernels that were compiled. Kernels of MXFP4 and bf16 are left out to
/// save time: they are the same source with other types.
#[test]
fn opcodes_of_our_kernels_are_recorded() {
    let Some((_, _, nvdisasm)) = tools() else { return };
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernels");
    let cubins = ["sm_90a", "sm_100a"].map(|arch| std::fs::read_dir(kernels.join(arch)));
    let cubins = cubins.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
    let wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".cubin") && !name.contains("mxfp4") && !name.contains("bf16")
    };
    let cubins: Vec<PathBuf> = cubins.filter(wanted).collect();
    if cubins.is_empty() {
        return skipped::test("no machine code; `cargo xtask build-kernels --check` makes it");
    }
    let recorded: BTreeSet<&str> = OPCODES.lines().collect();
    let mut unknown = BTreeSet::new();
    for cubin in &cubins {
        let text = nvdisasm::with_lines(&nvdisasm, cubin).expect("a disassembly");
        for function in Disassembly::parse(&text).expect("a disassembly").functions {
            let bases = function.instructions.iter().map(|one| one.base().to_owned());
            unknown.extend(bases.filter(|base| !recorded.contains(base.as_str())));
        }
    }
    assert!(unknown.is_empty(), "not in opcodes.txt, nor with a pipe: {unknown:?}");
}
