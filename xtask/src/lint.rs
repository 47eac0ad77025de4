//! `lint`: formatting and clippy, for the host's crates and for the GPU's.

use crate::{build_kernels, run};
use anyhow::{Context, Result};
use cuda_builder::{Compiler, Fetch};
use fp4_formats::Arch;
use std::process::{Command, ExitCode};

/// Packages outside the workspace, which `cargo fmt` does not reach from it.
const GPU_CRATES: [&str; 2] = ["cuda_std", "kernels-gpu"];

/// Runs everything; exit code 1 if anything complains.
pub fn run() -> Result<ExitCode> {
    let mut clean = true;
    clean &= step("cargo fmt", run::cargo().args(["fmt", "--all", "--check"]))?;
    for name in GPU_CRATES {
        let manifest = run::root().join(name).join("Cargo.toml");
        let mut fmt = run::cargo();
        fmt.args(["fmt", "--check", "--manifest-path"]).arg(manifest);
        clean &= step(&format!("cargo fmt in {name}"), &mut fmt)?;
    }
    let mut clippy = run::cargo();
    clippy.args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--release",
        "--quiet",
        "--",
        "-Dwarnings",
    ]);
    clean &= step("cargo clippy", &mut clippy)?;

    let compiler = Compiler::find(Fetch::Allowed)?;
    for arch in Arch::ALL {
        let name = format!("cargo clippy of the kernels for {arch}");
        match build_kernels::builder(arch, compiler.clone()).clippy() {
            Ok(()) => println!("lint {name} ... ok"),
            Err(error) => {
                println!("lint {name} ... FAILED\n{error}");
                clean = false;
            }
        }
    }
    Ok(ExitCode::from(u8::from(!clean)))
}

fn step(name: &str, command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| format!("running {name}"))?;
    println!("lint {name} ... {}", if status.success() { "ok" } else { "FAILED" });
    Ok(status.success())
}
