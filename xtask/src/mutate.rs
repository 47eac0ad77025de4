//! `mutate`: which lost or weakened synchronisations would be noticed. The
//! program `ptx-emu` does it.

use crate::run;
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// Mutants of our kernels that are known to be no faults, from the root.
pub const EQUIVALENTS: &str = "kernels-gpu/equivalent-mutants.txt";

/// Builds `ptx-emu` and runs `ptx-emu mutate` with `arguments`; the project's
/// list of known equivalents is passed on unless another one is named.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let status = run::cargo()
        .args(["build", "--release", "--quiet", "--package", "ptx-emu", "--bin", "ptx-emu"])
        .status()
        .context("running cargo")?;
    if !status.success() {
        bail!("building ptx-emu failed ({status})");
    }
    let program = run::target().join("release/ptx-emu");
    let mut command = Command::new(&program);
    command.arg("mutate").args(arguments);
    let named = arguments.iter().any(|a| a == "--equivalents" || a.starts_with("--equivalents="));
    let list = run::root().join(EQUIVALENTS);
    if !named && list.is_file() {
        command.arg("--equivalents").arg(list);
    }
    let status = command.status().with_context(|| format!("running {}", program.display()))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => bail!("ptx-emu was ended by a signal ({status})"),
    }
}
