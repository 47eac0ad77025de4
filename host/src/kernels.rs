//! Finding the compiled kernels: `kernels.ptx`, one file an architecture.
//!
//! PTX is code, and what is found is trusted like the program itself: a file that is not ours can
//! make a GPU read and write anything in this process's device memory.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use fp4_formats::Arch;
use thiserror::Error;

/// Environment variable that names the folder with `<arch>/kernels.ptx`.
pub const DIR_VARIABLE: &str = "NVFP4_KERNELS_DIR";

/// The file's name within its architecture's folder.
pub const FILE_NAME: &str = "kernels.ptx";

/// Why there are no kernels.
#[derive(Debug, Error)]
pub enum KernelsError {
    /// No file where one could be.
    #[error(
        "no kernels for {arch}: `cargo xtask build-kernels --arch {arch}` makes them, and \
         {DIR_VARIABLE} names a folder that has {arch}/{FILE_NAME}; looked at {}",
        Paths(looked)
    )]
    NotFound {
        /// The architecture.
        arch: Arch,
        /// Every path that was tried, in order.
        looked: Vec<PathBuf>,
    },
    /// A file that is there and cannot be read as text.
    #[error("cannot read the kernels in {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

struct Paths<'a>(&'a [PathBuf]);

impl fmt::Display for Paths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", path.display())?;
        }
        Ok(())
    }
}

/// PTX text and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFile {
    /// The file.
    pub path: PathBuf,
    /// Its contents.
    pub ptx: String,
}

/// Reads the kernels for `arch`.
///
/// The first of these that is there is taken: `<dir>/<arch>/kernels.ptx` with the explicit `dir`,
/// or else with the one that [`DIR_VARIABLE`] names; with neither of them given, `kernels/<arch>/`
/// and `target/kernels/<arch>/` in the executable's folder and then in each folder above it.
///
/// # Errors
/// [`KernelsError::NotFound`] with every path tried; [`KernelsError::Unreadable`].
pub fn find(arch: Arch, dir: Option<&Path>) -> Result<KernelFile, KernelsError> {
    let looked = candidates(
        arch,
        dir.map(Path::to_path_buf).or_else(|| env::var_os(DIR_VARIABLE).map(PathBuf::from)),
        env::current_exe().ok().as_deref().and_then(Path::parent),
    );
    match looked.iter().find(|path| path.is_file()) {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(ptx) => Ok(KernelFile { path: path.clone(), ptx }),
            Err(source) => Err(KernelsError::Unreadable { path: path.clone(), source }),
        },
        None => Err(KernelsError::NotFound { arch, looked }),
    }
}

fn candidates(arch: Arch, dir: Option<PathBuf>, executable_dir: Option<&Path>) -> Vec<PathBuf> {
    let file = |dir: PathBuf| dir.join(arch.name()).join(FILE_NAME);
    if let Some(dir) = dir {
        return vec![file(dir)];
    }
    let mut paths = Vec::new();
    for above in executable_dir.into_iter().flat_map(Path::ancestors) {
        for dir in ["kernels", "target/kernels"] {
            let path = file(above.join(dir));
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_folder_is_the_only_one() {
        let paths = candidates(Arch::Sm90a, Some("x".into()), Some(Path::new("/p/target/release")));
        assert_eq!(paths, [Path::new("x/sm_90a/kernels.ptx")]);
    }

    #[test]
    fn the_nearest_folder_comes_first() {
        let paths = candidates(Arch::Sm100a, None, Some(Path::new("/p/target/release")));
        assert_eq!(paths[0], Path::new("/p/target/release/kernels/sm_100a/kernels.ptx"));
        let target = Path::new("/p/target/kernels/sm_100a/kernels.ptx");
        assert_eq!(paths.iter().filter(|path| *path == target).count(), 1);
    }

    #[test]
    fn the_error_says_where_it_looked_and_what_makes_them() {
        let dir = Path::new("no-such-folder");
        let error = find(Arch::Sm90a, Some(dir)).expect_err("there are no kernels");
        let text = error.to_string();
        assert!(text.contains("cargo xtask build-kernels --arch sm_90a"), "{text}");
        assert!(text.contains("no-such-folder"), "{text}");
    }
}
