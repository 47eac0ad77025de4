//! The adapter to candle, which is outside the workspace: its lints, its tests, and its examples.

use super::Tally;
use super::cargo::Cargo;
use super::gated::Part;
use crate::run;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// The name of the steps, and the filter for them.
pub const NAME: &str = "nvfp4-candle";

/// The machine that the example runs on besides the CPU: one that is given the portable kernels.
const EMULATED: &str = "emu:rtx4090";

/// Its manifest.
const MANIFEST: &str = "candle/Cargo.toml";

/// The steps with what they depend on: the adapter and the library, and the kernels that the tests launch.
pub fn part() -> Result<Part> {
    let data = ["tests/data/models", "tests/data/exporters"];
    Part::new(NAME, &[&["xtask/src/test/candle.rs", "tests/skipped"], &data[..]].concat())
        .package_without("candle", &["mistralrs"])?
        .package("kernels-gpu")
}

/// Runs all steps. The example takes the real model if it is here, and a random one otherwise.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    let mut clippy = run::cargo();
    clippy.args(["clippy", "--profile", run::TESTS, "--quiet", "--all-targets"]);
    clippy.args(["--manifest-path", MANIFEST]);
    tally.step(&format!("{NAME}: clippy"), succeeds(clippy.args(["--", "-Dwarnings"])));
    let mut doc = run::cargo();
    doc.args(["doc", "--profile", run::TESTS, "--quiet", "--no-deps", "--manifest-path", MANIFEST]);
    let doc = succeeds(doc.env("RUSTDOCFLAGS", "-Dwarnings"));
    tally.step(&format!("{NAME}: documentation"), doc);
    cargo.run_manifest(tally, MANIFEST)?;
    let mut example = embed();
    match cargo.model.as_deref().and_then(Path::parent) {
        Some(folder) => {
            example.arg("--").arg(folder);
        }
        None => tally.skip(&format!("{NAME}: sentences through the real model"), "it is not here"),
    }
    tally.step(&format!("{NAME}: example embed"), succeeds(&mut example));
    // The model of random weights is small enough for the emulator.
    let emulated = succeeds(embed().args(["--", EMULATED]));
    tally.step(&format!("{NAME}: example embed on {EMULATED}"), emulated);
    let generated = generates(&["--prompt", "Hello", "--chat", "--max-tokens", "8"], Some(0));
    tally.step(&format!("{NAME}: example generate"), generated);
    let refused = generates(&["--prompt", "Hello", "--max-tokens", "5000"], Some(2));
    tally.step(&format!("{NAME}: example generate refuses too long a text"), refused);
    Ok(())
}

/// Runs the example `generate` with a model that is kept, and compares its exit code.
fn generates(arguments: &[&str], expected: Option<i32>) -> Result<()> {
    let mut command = example("generate");
    command.args(["--", "--device", "cpu", "--model", "tests/data/models/llama"]);
    let out = command.args(arguments).output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.code() == expected, "{}: {}", out.status, said.trim());
    match expected {
        Some(0) => ensure!(String::from_utf8_lossy(&out.stdout).contains("tokens a second")),
        _ => ensure!(said.trim().lines().count() == 1, "not one line: {}", said.trim()),
    }
    Ok(())
}

/// The example `embed`, without its arguments.
fn embed() -> Command {
    example("embed")
}

/// An example, without its arguments.
fn example(name: &str) -> Command {
    let mut example = run::cargo();
    example.args(["run", "--profile", run::TESTS, "--quiet", "--manifest-path", MANIFEST]);
    example.args(["--example", name]);
    example
}

fn succeeds(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
