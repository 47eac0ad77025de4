//! Where things are, and how other programs are run.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where kernels go.
pub fn kernels() -> PathBuf {
    root().join("target/kernels")
}

/// Where tools that are installed for the project go.
pub fn tools() -> PathBuf {
    root().join("target/cuda-tools")
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Builds the program `nvfp4` and returns its path.
pub fn build_nvfp4() -> Result<PathBuf> {
    let status = cargo()
        .args(["build", "--release", "--quiet", "--package", "nvfp4", "--bin", "nvfp4"])
        .status()
        .context("running cargo")?;
    if !status.success() {
        bail!("building nvfp4 failed ({status})");
    }
    Ok(target().join("release/nvfp4"))
}

/// Runs `nvfp4` with this checkout's kernels; its exit code is ours.
pub fn nvfp4(arguments: &[&str]) -> Result<ExitCode> {
    let program = build_nvfp4()?;
    let status = Command::new(&program)
        .args(arguments)
        .env("NVFP4_KERNELS_DIR", kernels())
        .status()
        .with_context(|| format!("running {}", program.display()))?;
    Ok(match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => {
            note!("error: nvfp4 was ended by a signal ({status})");
            ExitCode::from(1)
        }
    })
}
