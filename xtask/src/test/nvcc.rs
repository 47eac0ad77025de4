//! nvcc, which compiles the programs that `ptx-emu exec` is tested with.

use super::Tally;
use crate::run;
use anyhow::{Context, Result};
use cuda_builder::{ptxas, toolkit};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells the tests where it is.
pub const VARIABLE: &str = "PTX_EMU_NVCC";

/// The packages of nvcc, in versions that fit each other. ptxas comes in the package of nvcc.
const PACKAGES: [&str; 5] = [
    ptxas::PACKAGE,
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// nvcc, if it is here or may be fetched.
pub fn find(tally: &mut Tally, offline: bool) -> Option<PathBuf> {
    let folder = run::root().join("target/cuda-compiler");
    let found = match present(&folder) {
        Some(nvcc) => Ok(nvcc),
        None if offline => Err(anyhow::anyhow!("--offline, and nvcc of CUDA 13 is not here")),
        None => install(&folder),
    };
    found.map_err(|error| tally.skip("programs that nvcc compiles", &format!("{error:#}"))).ok()
}

/// The first nvcc of CUDA 13 of those that are here.
fn present(folder: &Path) -> Option<PathBuf> {
    toolkit::candidates("nvcc", folder).find(|nvcc| works(nvcc))
}

/// Whether it runs, and is of CUDA 13.
fn works(nvcc: &Path) -> bool {
    let out = Command::new(nvcc).arg("--version").output();
    out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("release 13."))
}

fn install(folder: &Path) -> Result<PathBuf> {
    say!("nvcc is not here, installing it from PyPI into {}", folder.display());
    toolkit::install(folder, &PACKAGES, &["bin", "nvvm/bin"])?;
    present(folder).context("the packages brought no nvcc that runs")
}
