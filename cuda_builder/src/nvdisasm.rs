//! Machine code as text, with the lines of PTX that it comes from.

use crate::error::BuildError;
use crate::{note, toolkit};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The PyPI package that carries nvdisasm. PyPI has none of CUDA 13.0; this is the earliest, and reads what the
/// ptxas of [`crate::ptxas::PACKAGE`] writes.
pub const PACKAGE: &str = "nvidia-cuda-nvdisasm==13.2.51";

/// The first nvdisasm of those that [`toolkit::candidates`] finds, or the one that [`install`] puts
/// below `tools`.
pub fn find(tools: &Path) -> Option<PathBuf> {
    let own = own_folder(tools);
    let installed = own.join(toolkit::PACKAGED).join("bin/nvdisasm");
    let installed = installed.is_file().then_some(installed);
    toolkit::candidates("nvdisasm", tools).next().or(installed)
}

/// pip replaces whole folders of a target, and other tools are in the same ones.
fn own_folder(tools: &Path) -> PathBuf {
    tools.join("nvdisasm")
}

/// Installs nvdisasm from PyPI into `tools`.
///
/// # Errors
/// The same as [`toolkit::install`]; [`BuildError::Nvdisasm`] if the package brought none.
pub fn install(tools: &Path) -> Result<PathBuf, BuildError> {
    let folder = tools.display();
    note(format_args!("nvdisasm is not here, installing {PACKAGE} from PyPI into {folder}"));
    toolkit::install(&own_folder(tools), &[PACKAGE], &["bin"])?;
    find(tools).ok_or_else(|| BuildError::Nvdisasm(format!("{PACKAGE} brought no nvdisasm")))
}

/// Returns nvdisasm's text of a cubin's code, with a comment where the line of PTX changes. The
/// cubin must have line tables ([`crate::ptxas::with_lines`]).
///
/// # Errors
/// [`BuildError::Nvdisasm`] with nvdisasm's messages; [`BuildError::Spawn`].
pub fn with_lines(nvdisasm: &Path, cubin: &Path) -> Result<String, BuildError> {
    let out = Command::new(nvdisasm)
        .args(["--print-code", "--print-line-info-ptx"])
        .arg(cubin)
        .output()
        .map_err(|source| BuildError::Spawn { program: nvdisasm.display().to_string(), source })?;
    if !out.status.success() {
        return Err(BuildError::Nvdisasm(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
