//! `mutate`: which lost or weakened synchronisations would be noticed. The
//! program `ptx-emu` does it.

use crate::run::{self, Profile, Program};
use anyhow::Result;
use std::process::ExitCode;

/// Mutants of our kernels that are known to be no faults, from the root.
pub const EQUIVALENTS: &str = "kernels-gpu/equivalent-mutants.txt";

/// Builds `ptx-emu` and runs `ptx-emu mutate` with `arguments`; the project's
/// list of known equivalents is passed on unless another one is named.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let named = arguments.iter().any(|a| a == "--equivalents" || a.starts_with("--equivalents="));
    let list = run::root().join(EQUIVALENTS);
    Program::PtxEmu.run(Profile::Release, |command| {
        command.arg("mutate").args(arguments);
        if !named && list.is_file() {
            command.arg("--equivalents").arg(list);
        }
    })
}
