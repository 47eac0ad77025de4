//! `lint`: formatting, clippy and documentation, for the host's crates and for the GPU's. `test` lints
//! the adapter to candle, for which candle has to be compiled, and the Python module, which needs Python.

use crate::{build_kernels, run};
use anyhow::{Context, Result, ensure};
use cuda_builder::{Compiler, Fetch};
use fp4_formats::Arch;
use std::process::{Command, ExitCode};

/// Packages outside the workspace, which `cargo fmt` does not reach from it.
const OUTSIDE: [&str; 4] = ["cuda_std", "kernels-gpu", "candle", "emulator/ptx-emu-python"];

/// Features of the library that dependents are expected to choose, besides those of the workspace.
const LIBRARY_FEATURES: [&str; 5] = ["", "embed", "emulator", "capture", "cudarc"];

/// Runs everything; exit code 1 if anything complains.
pub fn run() -> Result<ExitCode> {
    let mut clean = true;
    each(|name, result| {
        clean &= result.is_ok();
        match result {
            Ok(()) => say!("lint {name} ... ok"),
            Err(error) => say!("lint {name} ... FAILED: {error:#}"),
        }
    })?;
    Ok(ExitCode::from(u8::from(!clean)))
}

/// Gives `done` the name of each check and what came of it.
pub fn each(mut done: impl FnMut(&str, Result<()>)) -> Result<()> {
    done("cargo fmt", step(run::cargo().args(["fmt", "--all", "--check"])));
    for name in OUTSIDE {
        let manifest = run::root().join(name).join("Cargo.toml");
        let mut fmt = run::cargo();
        fmt.args(["fmt", "--check", "--manifest-path"]).arg(manifest);
        done(&format!("cargo fmt in {name}"), step(&mut fmt));
    }
    let mut clippy = run::cargo();
    // With the tests' profile, its build scripts and macros are compiled once for both.
    clippy.args(["clippy", "--workspace", "--all-targets", "--profile", run::TESTS, "--quiet"]);
    done("cargo clippy", step(clippy.args(["--", "-Dwarnings"])));
    for features in LIBRARY_FEATURES {
        let mut clippy = run::cargo();
        clippy.args(["clippy", "-p", "nvfp4", "--lib", "--profile", run::TESTS, "--quiet"]);
        clippy.args(["--no-default-features", "--features", features, "--", "-Dwarnings"]);
        done(&format!("cargo clippy of nvfp4 with features `{features}`"), step(&mut clippy));
    }
    let mut doc = run::cargo();
    doc.args(["doc", "--workspace", "--exclude", "xtask", "--no-deps", "--quiet"]);
    doc.args(["--profile", run::TESTS]);
    done("cargo doc", step(doc.env("RUSTDOCFLAGS", "-Dwarnings")));
    let compiler = Compiler::find(Fetch::Allowed)?;
    for arch in Arch::compiled() {
        let clean = build_kernels::builder(arch, compiler.clone()).clippy();
        let name = format!("cargo clippy of the kernels for {arch}");
        done(&name, clean.map_err(anyhow::Error::from));
    }
    Ok(())
}

fn step(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
