//! `lint`: formatting, clippy and documentation, for the host's crates and for the GPU's. `test` lints
//! the adapter to candle, for which candle has to be compiled, and the Python module, which needs Python.

use crate::{build_kernels, run};
use anyhow::{Context, Result, ensure};
use cuda_builder::{Compiler, Fetch};
use fp4_formats::Arch;
use std::process::{Command, ExitCode};

/// Packages outside the workspace, which `cargo fmt` does not reach from it.
const OUTSIDE: [&str; 5] =
    ["cuda_std", "kernels-gpu", "candle", "candle/mistralrs", "emulator/ptx-emu-python"];

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

/// Gives `done` the name of each check and what came of it. The checks of the kernels, which compile `core` for each
/// target on one core, run beside those of the host's crates.
pub fn each(mut done: impl FnMut(&str, Result<()>)) -> Result<()> {
    let compiler = Compiler::find(Fetch::Allowed)?;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| kernels(&compiler));
        host(&mut done);
        let results = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (name, result) in results {
            done(&name, result);
        }
    });
    Ok(())
}

/// The checks of the host's crates, and the formatting of all.
fn host(done: &mut impl FnMut(&str, Result<()>)) {
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
}

/// The checks of the kernels for each target.
fn kernels(compiler: &Compiler) -> Vec<(String, Result<()>)> {
    let clippy = |arch| {
        let clean = build_kernels::builder(arch, compiler.clone()).clippy();
        let name = format!("cargo clippy of the kernels for {arch}");
        (name, clean.map_err(anyhow::Error::from))
    };
    Arch::compiled().map(clippy).collect()
}

fn step(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
