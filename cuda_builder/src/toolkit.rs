//! Programs of the CUDA toolkit: where they are on a machine, and how PyPI's packages of them are
//! installed.

use crate::error::BuildError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages' folder, relative to the folder that they are installed into.
pub const PACKAGED: &str = "nvidia/cu13";

/// The files of this name in `CUDA_HOME`, on `PATH`, in the usual folder, and where [`install`]
/// puts them in `tools`, in this order.
pub fn candidates(program: &str, tools: &Path) -> impl Iterator<Item = PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let usual = [PathBuf::from("/usr/local/cuda/bin"), tools.join(PACKAGED).join("bin")];
    let folders = home.into_iter().chain(path).chain(usual);
    folders.map(move |folder| folder.join(program)).filter(|candidate| candidate.is_file())
}

/// Installs packages from PyPI into `tools`, without what they depend on, and makes the programs in
/// `folders`, which are below [`PACKAGED`], executable: pip keeps the bit only for scripts that it knows.
///
/// # Errors
/// [`BuildError::Install`] with pip's message; [`BuildError::Spawn`], [`BuildError::Io`].
pub fn install(tools: &Path, packages: &[&str], folders: &[&str]) -> Result<(), BuildError> {
    let out = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--upgrade", "--target"])
        .arg(tools)
        .args(packages)
        .output()
        .map_err(|source| BuildError::Spawn { program: "python3 -m pip".into(), source })?;
    if !out.status.success() {
        let message = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        return Err(BuildError::Install { packages: packages.join(", "), message });
    }
    for folder in folders {
        let folder = tools.join(PACKAGED).join(folder);
        make_executable(&folder).map_err(|source| BuildError::Io {
            action: "making programs executable in",
            path: folder,
            source,
        })?;
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let mut permissions = entry.metadata()?.permissions();
        permissions.set_mode(permissions.mode() | 0o111);
        std::fs::set_permissions(entry.path(), permissions)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_executable(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PACKAGED, candidates};

    #[test]
    fn installed_programs_come_last() {
        let tools = std::env::temp_dir().join(format!("toolkit-{}", std::process::id()));
        let bin = tools.join(PACKAGED).join("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::write(bin.join("no-such-program"), "").expect("a file");
        let found: Vec<_> = candidates("no-such-program", &tools).collect();
        let others: Vec<_> = candidates("no-such-program-either", &tools).collect();
        std::fs::remove_dir_all(&tools).expect("removed");
        assert_eq!(found, [bin.join("no-such-program")]);
        assert!(others.is_empty());
    }
}
