//! Finding the compiled kernels: for each architecture a folder with a module for each family of
//! kernels and `manifest.json`, which lists them.
//!
//! Modules are code, and what is found is trusted like the program itself: files that are not ours
//! can make a GPU read and write anything in this process's device memory.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use fp4_formats::{Arch, Family};
use nvfp4_manifest::{FILE_NAME, File, Manifest, ManifestError, Module};
use thiserror::Error;

/// Environment variable that names the folder with `<arch>/manifest.json`.
pub const DIR_VARIABLE: &str = "NVFP4_KERNELS_DIR";

/// Why kernels cannot be had.
#[derive(Debug, Error)]
pub enum KernelsError {
    /// No manifest where one could be.
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
    /// A manifest that cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A folder that holds the kernels of another architecture than its name says.
    #[error("{}: architecture must be {required}, got {actual}", folder.display())]
    OtherArch {
        /// The folder.
        folder: PathBuf,
        /// The architecture that was looked for.
        required: Arch,
        /// The one that the manifest is of.
        actual: Arch,
    },
    /// A family without a module.
    #[error(
        "{} has no module of {family}: `cargo xtask build-kernels --arch {arch}` makes it",
        folder.display()
    )]
    NoFamily {
        /// The family.
        family: Family,
        /// The architecture.
        arch: Arch,
        /// The folder.
        folder: PathBuf,
    },
    /// A module that is older than this program: it lacks a kernel of its family.
    #[error(
        "the module of {family} in {} is stale, it has no kernel {kernel}: `cargo xtask \
         build-kernels` makes it anew",
        folder.display()
    )]
    Stale {
        /// The family.
        family: Family,
        /// The kernel.
        kernel: String,
        /// The folder.
        folder: PathBuf,
    },
    /// A kernel that is in no family and in no module.
    #[error("no kernel {kernel:?} in {}", folder.display())]
    NoKernel {
        /// The name asked for.
        kernel: String,
        /// The folder.
        folder: PathBuf,
    },
    /// A module's file that is not the one that the manifest describes.
    #[error(
        "the module of {family}: {} must have {required}, got {actual}; `cargo xtask \
         build-kernels` makes it anew",
        path.display()
    )]
    Changed {
        /// The family.
        family: Family,
        /// The file.
        path: PathBuf,
        /// Length and fingerprint in the manifest.
        required: String,
        /// Those of the file.
        actual: String,
    },
    /// A module's file that cannot be read.
    #[error("the module of {family}: cannot read {}: {source}", path.display())]
    Unreadable {
        /// The family.
        family: Family,
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

/// The compiled kernels of an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    folder: PathBuf,
    manifest: Manifest,
}

impl KernelFiles {
    /// Finds the kernels for `arch`, by their manifest; modules are read when they are used.
    ///
    /// The first of these that is there is taken: `<dir>/<arch>/manifest.json` with the explicit
    /// `dir`, or else with the one that [`DIR_VARIABLE`] names; with neither of them given,
    /// `kernels/<arch>/` and `target/kernels/<arch>/` in the executable's folder and then in each
    /// folder above it.
    ///
    /// # Errors
    /// [`KernelsError::NotFound`] with every path tried; [`KernelsError::Manifest`],
    /// [`KernelsError::OtherArch`].
    pub fn find(arch: Arch, dir: Option<&Path>) -> Result<Self, KernelsError> {
        let looked = candidates(
            arch,
            dir.map(Path::to_path_buf).or_else(|| env::var_os(DIR_VARIABLE).map(PathBuf::from)),
            env::current_exe().ok().as_deref().and_then(Path::parent),
        );
        let Some(folder) = looked.iter().find(|folder| folder.join(FILE_NAME).is_file()) else {
            let looked = looked.iter().map(|folder| folder.join(FILE_NAME)).collect();
            return Err(KernelsError::NotFound { arch, looked });
        };
        let (folder, manifest) = (folder.clone(), Manifest::read(&folder.join(FILE_NAME))?);
        if manifest.arch != arch {
            let (required, actual) = (arch, manifest.arch);
            return Err(KernelsError::OtherArch { folder, required, actual });
        }
        Ok(Self { folder, manifest })
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What there is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The module that has the kernel `entry`.
    ///
    /// # Errors
    /// [`KernelsError::NoFamily`] or [`KernelsError::Stale`] for a kernel that should be there,
    /// [`KernelsError::NoKernel`] for any other.
    pub fn module_of(&self, entry: &str) -> Result<&Module, KernelsError> {
        let has = |module: &&Module| module.kernels.iter().any(|kernel| kernel.name == entry);
        if let Some(module) = self.manifest.modules.iter().find(has) {
            return Ok(module);
        }
        let (kernel, folder) = (entry.to_owned(), self.folder.clone());
        let Some(family) = Family::of_kernel(self.manifest.arch, entry) else {
            return Err(KernelsError::NoKernel { kernel, folder });
        };
        self.module(family)?;
        Err(KernelsError::Stale { family, kernel, folder })
    }

    fn module(&self, family: Family) -> Result<&Module, KernelsError> {
        self.manifest.module(family).ok_or_else(|| KernelsError::NoFamily {
            family,
            arch: self.manifest.arch,
            folder: self.folder.clone(),
        })
    }

    /// The PTX of a module.
    ///
    /// # Errors
    /// [`KernelsError::Unreadable`], [`KernelsError::Changed`].
    pub fn ptx(&self, module: &Module) -> Result<String, KernelsError> {
        let contents = self.contents(module.family, &module.ptx)?;
        String::from_utf8(contents).map_err(|error| KernelsError::Unreadable {
            family: module.family,
            path: self.folder.join(&module.ptx.name),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        })
    }

    /// The machine code of a module, where there is some.
    ///
    /// # Errors
    /// [`KernelsError::Unreadable`], [`KernelsError::Changed`].
    pub fn cubin(&self, module: &Module) -> Result<Option<Vec<u8>>, KernelsError> {
        let cubin = module.cubin.as_ref();
        cubin.map(|cubin| self.contents(module.family, &cubin.file)).transpose()
    }

    fn contents(&self, family: Family, file: &File) -> Result<Vec<u8>, KernelsError> {
        let path = self.folder.join(&file.name);
        let contents = match std::fs::read(&path) {
            Ok(contents) => contents,
            Err(source) => return Err(KernelsError::Unreadable { family, path, source }),
        };
        if file.is(&contents) {
            return Ok(contents);
        }
        let describe = |file: &File| format!("{} bytes ({})", file.bytes, file.fingerprint);
        let (required, actual) = (describe(file), describe(&File::of("", &contents)));
        Err(KernelsError::Changed { family, path, required, actual })
    }

    /// Checks all families of the architecture: every kernel is in its module, and the files are
    /// those that the manifest describes.
    ///
    /// # Errors
    /// The first of [`KernelsError`].
    pub fn check(&self) -> Result<(), KernelsError> {
        for (family, entry) in Family::kernels(self.manifest.arch) {
            if self.module_of(entry)?.family != family {
                let (kernel, folder) = (entry.to_owned(), self.folder.clone());
                return Err(KernelsError::Stale { family, kernel, folder });
            }
        }
        for module in &self.manifest.modules {
            self.ptx(module)?;
            self.cubin(module)?;
        }
        Ok(())
    }

    /// A fingerprint of all modules: of their machine code where `machine_code` says so and there
    /// is some, else of their PTX.
    #[must_use]
    pub fn fingerprint(&self, machine_code: bool) -> String {
        let all = self.manifest.modules.iter().map(|module| {
            let cubin = module.cubin.as_ref().filter(|_| machine_code);
            let file = cubin.map_or(&module.ptx, |cubin| &cubin.file);
            format!("{} {}\n", module.family, file.fingerprint)
        });
        nvfp4_manifest::fingerprint(all.collect::<String>().as_bytes())
    }
}

/// The folders that could have the kernels of `arch`.
fn candidates(arch: Arch, dir: Option<PathBuf>, executable_dir: Option<&Path>) -> Vec<PathBuf> {
    if let Some(dir) = dir {
        return vec![dir.join(arch.name())];
    }
    let mut folders = Vec::new();
    for above in executable_dir.into_iter().flat_map(Path::ancestors) {
        for dir in ["kernels", "target/kernels"] {
            let folder = above.join(dir).join(arch.name());
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_folder_is_the_only_one() {
        let folders =
            candidates(Arch::Sm90a, Some("x".into()), Some(Path::new("/p/target/release")));
        assert_eq!(folders, [Path::new("x/sm_90a")]);
    }

    #[test]
    fn the_nearest_folder_comes_first() {
        let folders = candidates(Arch::Sm100a, None, Some(Path::new("/p/target/release")));
        assert_eq!(folders[0], Path::new("/p/target/release/kernels/sm_100a"));
        let target = Path::new("/p/target/kernels/sm_100a");
        assert_eq!(folders.iter().filter(|folder| *folder == target).count(), 1);
    }

    #[test]
    fn the_error_says_where_it_looked_and_what_makes_them() {
        let dir = Path::new("no-such-folder");
        let error = KernelFiles::find(Arch::Sm90a, Some(dir)).expect_err("there are no kernels");
        let text = error.to_string();
        assert!(text.contains("cargo xtask build-kernels --arch sm_90a"), "{text}");
        assert!(text.contains("no-such-folder/sm_90a/manifest.json"), "{text}");
    }
}
