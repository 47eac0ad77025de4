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

/// A program of the workspace, in the package of the same name.
#[derive(Clone, Copy)]
pub enum Program {
    /// `nvfp4`.
    Nvfp4,
    /// `ptx-emu`.
    PtxEmu,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 => "nvfp4",
            Self::PtxEmu => "ptx-emu",
        }
    }

    /// Builds it and returns its path.
    pub fn build(self) -> Result<PathBuf> {
        let name = self.name();
        let status = cargo()
            .args(["build", "--release", "--quiet", "--package", name, "--bin", name])
            .args(["--features", "cli,cust"])
            .status()
            .context("running cargo")?;
        if !status.success() {
            bail!("building {name} failed ({status})");
        }
        Ok(target().join("release").join(name))
    }

    /// Builds it and runs it as `prepare` says; its exit code is ours.
    pub fn run(self, prepare: impl FnOnce(&mut Command)) -> Result<ExitCode> {
        let program = self.build()?;
        let mut command = Command::new(&program);
        prepare(&mut command);
        let status = command.status().with_context(|| format!("running {}", program.display()))?;
        Ok(match status.code() {
            Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            None => {
                note!("error: {} was ended by a signal ({status})", self.name());
                ExitCode::from(1)
            }
        })
    }
}

/// Runs `nvfp4` with this checkout's kernels; its exit code is ours.
pub fn nvfp4(arguments: &[&str]) -> Result<ExitCode> {
    Program::Nvfp4.run(|command| {
        command.args(arguments).env("NVFP4_KERNELS_DIR", kernels());
    })
}
