//! nvcc, which compiles the programs that `ptx-emu exec` is tested with.

use super::Tally;
use crate::run;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells the tests where it is.
pub const VARIABLE: &str = "PTX_EMU_NVCC";

/// What it is made of, in versions that fit each other and ptxas.
const PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
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

/// That of CUDA 13 in `CUDA_HOME`, on `PATH`, in the usual folder, or installed here.
fn present(folder: &Path) -> Option<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    home.into_iter()
        .chain(std::env::split_paths(&path))
        .chain([PathBuf::from("/usr/local/cuda/bin"), folder.join("nvidia/cu13/bin")])
        .map(|folder| folder.join("nvcc"))
        .find(|nvcc| nvcc.is_file() && works(nvcc))
}

/// Whether it runs, and is of CUDA 13.
fn works(nvcc: &Path) -> bool {
    let out = Command::new(nvcc).arg("--version").output();
    out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("release 13."))
}

fn install(folder: &Path) -> Result<PathBuf> {
    say!("nvcc is not here, installing it from PyPI into {}", folder.display());
    let out = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--upgrade", "--target"])
        .arg(folder)
        .args(PACKAGES)
        .output()
        .context("running python3 -m pip")?;
    if !out.status.success() {
        bail!("installing nvcc failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let root = folder.join("nvidia/cu13");
    for programs in ["bin", "nvvm/bin"] {
        executable(&root.join(programs))?;
    }
    present(folder).context("the packages brought no nvcc that runs")
}

/// pip keeps the execute bit only for scripts that it knows.
fn executable(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        use std::os::unix::fs::PermissionsExt;
        let path = entry?.path();
        let mut permissions = std::fs::metadata(&path)?.permissions();
        permissions.set_mode(permissions.mode() | 0o111);
        std::fs::set_permissions(&path, permissions)?;
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
