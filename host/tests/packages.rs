//! The packages that a dependent of the library compiles.

use std::collections::BTreeSet;
use std::process::Command;

/// Packages of the library with these features, itself included.
fn packages(features: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--package", "nvfp4", "--edges", "normal", "--prefix", "none"]);
    cargo.args(["--format", "{p}", "--offline", "--no-default-features", "--features", features]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// The library for a GPU, with its kernels in the program.
#[test]
fn without_the_emulator_it_is_small() {
    let all = packages("embed");
    assert!(all.contains("nvfp4-kernels"), "{all:?}");
    assert!(all.len() < 40, "{} packages: {all:?}", all.len());
    for left_out in
        ["clap", "indicatif", "ctrlc", "signal-hook", "ptx-emu-core", "safetensors", "regex"]
    {
        assert!(!all.contains(left_out), "{left_out}");
    }
}

/// Packages of checkpoints and of the program are theirs alone.
#[test]
fn the_library_has_no_packages_of_checkpoints_and_the_program() {
    let all = packages("capture,embed,emulator");
    for left_out in [
        "clap",
        "indicatif",
        "libc",
        "memmap2",
        "nvfp4-checkpoint",
        "nvfp4-lab",
        "regex",
        "safetensors",
        "cust",
    ] {
        assert!(!all.contains(left_out), "{left_out}");
    }
    // It takes the emulator's core alone, with the parts of that.
    let emulator: Vec<&String> = all.iter().filter(|name| name.starts_with("ptx-emu")).collect();
    assert_eq!(emulator, ["ptx-emu-bundle", "ptx-emu-core", "ptx-emu-simd"]);
}
