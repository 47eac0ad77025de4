//! Finding the compiled kernels: for each architecture a module for each family of kernels and a
//! manifest that lists them, in the program itself or in a folder.
//!
//! Modules are code, and what is found is trusted like the program itself: files that are not ours
//! can make a GPU read and write anything in this process's device memory. Folders are therefore
//! looked at only where they are named, or are beside the program. Every module says with which
//! version of the contract crate it was compiled, and is refused if that is not this program's.

mod compile;
mod given;

pub use compile::COMPILER_VARIABLE;

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fp4_formats::{Arch, Family, stamp};
use nvfp4_manifest::{Cubin, FILE_NAME, File, Manifest, ManifestError, Module};
use thiserror::Error;

/// Environment variable that names the folder with `<arch>/manifest.json`.
pub const DIR_VARIABLE: &str = "NVFP4_KERNELS_DIR";

/// Environment variable that says which code of the kernels a GPU is given: `auto`, `ptx`, `cubin`.
pub const CODE_VARIABLE: &str = "NVFP4_KERNELS_CODE";

/// The reason why kernels cannot be had.
#[derive(Debug, Error)]
pub enum KernelsError {
    /// No manifest where one could be.
    #[error(
        "no kernels for {arch}: this program has none in it (feature `embed`), \
         `cargo xtask build-kernels --arch {arch}` makes them, and {DIR_VARIABLE} names a folder \
         that has {arch}/{FILE_NAME}; looked at {}",
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
    #[error("{place}: architecture must be {required}, got {actual}")]
    OtherArch {
        /// The place of the kernels.
        place: KernelSource,
        /// The architecture that was looked for.
        required: Arch,
        /// The one that the manifest is of.
        actual: Arch,
    },
    /// A family without a module.
    #[error("{place}: there is no module of {family}{}", remedy(place, *arch, *family))]
    NoFamily {
        /// The family.
        family: Family,
        /// The architecture.
        arch: Arch,
        /// The place of the kernels.
        place: KernelSource,
    },
    /// A module that the compiler that this program was told of did not compile.
    #[error("{place}: the module of {family} for {arch} cannot be compiled: {reason}")]
    NotCompiled {
        /// The family.
        family: Family,
        /// The architecture.
        arch: Arch,
        /// The place of the kernels.
        place: KernelSource,
        /// The compiler's reason.
        reason: String,
    },
    /// A module that is older than this program: it lacks a kernel of its family.
    #[error(
        "{place}: the module of {family} is stale, it has no kernel {kernel}: `cargo xtask \
         build-kernels` makes it anew"
    )]
    Stale {
        /// The family.
        family: Family,
        /// The kernel.
        kernel: String,
        /// The place of the kernels.
        place: KernelSource,
    },
    /// A kernel that is in no family and in no module.
    #[error("{place}: there is no kernel {kernel:?}")]
    NoKernel {
        /// The name asked for.
        kernel: String,
        /// The place of the kernels.
        place: KernelSource,
    },
    /// A module that was compiled with another version of the contract crate: kernels and program
    /// would disagree about parameters and tables.
    #[error(
        "{place}: the module of {family} must have the stamp {required}, as this program, got \
         {actual}; `cargo xtask build-kernels` makes it anew"
    )]
    OtherStamp {
        /// The family.
        family: Family,
        /// The place of the kernels.
        place: KernelSource,
        /// This program's stamp.
        required: String,
        /// The module's.
        actual: String,
    },
    /// PTX that is no module of these kernels.
    #[error("PTX: {field} must be {required}, got {actual}")]
    NotOurs {
        /// The faulty field.
        field: &'static str,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// The kernels in this program are damaged.
    #[cfg(feature = "embed")]
    #[error(transparent)]
    Embedded(#[from] nvfp4_kernels::EmbeddedError),
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
        /// The value in the file.
        actual: String,
    },
    /// A module's file that cannot be read.
    #[error("the module of {family}: cannot read {}: {source}", path.display())]
    Unreadable {
        /// The family.
        family: Family,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Says how a module that is missing is had.
fn remedy(place: &KernelSource, arch: Arch, family: Family) -> String {
    match place {
        KernelSource::Folder(_) => {
            format!(": `cargo xtask build-kernels --arch {arch} --only {family}` compiles it")
        }
        #[cfg(feature = "embed")]
        KernelSource::Program => match nvfp4_kernels::part(family) {
            nvfp4_kernels::Part::Vectors => String::new(),
            nvfp4_kernels::Part::Gemm => ": the feature `embed-gemm` puts it there".into(),
            nvfp4_kernels::Part::Moe => ": the feature `embed-moe` puts it there".into(),
        },
        #[cfg(not(feature = "embed"))]
        KernelSource::Program => String::new(),
        KernelSource::Given(_) => String::new(),
    }
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

/// The place of compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// A folder.
    Folder(PathBuf),
    /// This program.
    Program,
    /// Texts that the program gave, see [`KernelFiles::from_ptx`].
    Given(Arc<[String]>),
}

impl fmt::Display for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Program => f.write_str("in this program"),
            Self::Given(_) => f.write_str("given as PTX"),
        }
    }
}

/// The compiled kernels of an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    place: KernelSource,
    manifest: Manifest,
}

impl KernelFiles {
    /// Finds the kernels for `arch`, by their manifest; modules are read when they are used.
    ///
    /// The first of these that is there is taken: `<dir>/<arch>/manifest.json` with the explicit
    /// `dir`, or else with the one that [`DIR_VARIABLE`] names. With neither of them given:
    /// `kernels/<arch>/` in the program's folder, the folder that the build of this program named
    /// (this repository's does), and the kernels in the program (feature `embed`).
    ///
    /// # Errors
    /// [`KernelsError::NotFound`] with every path tried; [`KernelsError::Manifest`],
    /// [`KernelsError::OtherArch`], [`KernelsError::OtherStamp`].
    pub fn find(arch: Arch, dir: Option<&Path>) -> Result<Self, KernelsError> {
        let named = dir.map(Path::to_path_buf);
        let named = named.or_else(|| env::var_os(DIR_VARIABLE).map(PathBuf::from));
        let is_named = named.is_some();
        let looked = candidates(
            arch,
            named,
            env::current_exe().ok().as_deref().and_then(Path::parent),
            built_with(),
        );
        let folder = looked.iter().find(|folder| folder.join(FILE_NAME).is_file());
        let (place, manifest) = match (folder, in_program(arch)) {
            (Some(folder), _) => {
                let manifest = Manifest::read(&folder.join(FILE_NAME))?;
                (KernelSource::Folder(folder.clone()), manifest)
            }
            (None, Some(manifest)) if !is_named => (KernelSource::Program, manifest?),
            (None, _) => {
                let looked = looked.iter().map(|folder| folder.join(FILE_NAME)).collect();
                return Err(KernelsError::NotFound { arch, looked });
            }
        };
        if manifest.arch != arch {
            let (required, actual) = (arch, manifest.arch);
            return Err(KernelsError::OtherArch { place, required, actual });
        }
        let required = nvfp4_manifest::stamp(Some(stamp::STAMP));
        if let Some(other) = manifest.modules.iter().find(|module| module.stamp != required) {
            let (family, actual) = (other.family, other.stamp.clone());
            return Err(KernelsError::OtherStamp { family, place, required, actual });
        }
        Ok(Self { place, manifest })
    }

    /// The kernels of modules in PTX, such as another compiler's of the same sources. Each text has
    /// kernels of one architecture, in the same families as ours or in others.
    ///
    /// # Errors
    /// [`KernelsError::NotOurs`] for a text without a known target or without kernels of this
    /// library, and for texts of several architectures; [`KernelsError::OtherStamp`].
    pub fn from_ptx(texts: impl IntoIterator<Item = String>) -> Result<Self, KernelsError> {
        let texts: Arc<[String]> = texts.into_iter().collect();
        let place = KernelSource::Given(texts.clone());
        let mut manifest: Option<Manifest> = None;
        for (index, text) in texts.iter().enumerate() {
            let arch = given::target(text)?;
            let manifest = manifest.get_or_insert_with(|| given::empty(arch, text));
            if manifest.arch != arch {
                let (required, actual) = (manifest.arch.to_string(), arch.to_string());
                return Err(KernelsError::NotOurs { field: "target", required, actual });
            }
            for module in given::modules(arch, index, text)? {
                let required = nvfp4_manifest::stamp(Some(stamp::STAMP));
                if module.stamp != required {
                    let (family, actual) = (module.family, module.stamp);
                    return Err(KernelsError::OtherStamp { family, place, required, actual });
                }
                manifest.modules.push(module);
            }
        }
        let manifest = manifest.ok_or_else(|| KernelsError::NotOurs {
            field: "modules",
            required: "at least 1".into(),
            actual: "0".into(),
        })?;
        Ok(Self { place, manifest })
    }

    /// Returns the place of the kernels.
    #[must_use]
    pub fn place(&self) -> &KernelSource {
        &self.place
    }

    /// Returns the manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The module that has the kernel `entry`.
    ///
    /// # Errors
    /// [`KernelsError::NoFamily`], [`KernelsError::NotCompiled`] or [`KernelsError::Stale`] for a kernel
    /// that should be there, [`KernelsError::NoKernel`] for any other.
    pub fn module_of(&self, entry: &str) -> Result<Module, KernelsError> {
        let has = |module: &Module| module.kernels.iter().any(|kernel| kernel.name == entry);
        if let Some(module) = self.manifest.modules.iter().find(|module| has(module)) {
            return Ok(module.clone());
        }
        let (kernel, place) = (entry.to_owned(), self.place.clone());
        let Some(family) = Family::of_kernel(self.manifest.arch, entry) else {
            return Err(KernelsError::NoKernel { kernel, place });
        };
        let module = self.module(family)?;
        if has(&module) { Ok(module) } else { Err(KernelsError::Stale { family, kernel, place }) }
    }

    /// Finds the module of a family. One that is not there is compiled if the program was told of a
    /// compiler, see [`COMPILER_VARIABLE`], and the folder is the one that the build of this program named.
    ///
    /// # Errors
    /// [`KernelsError::NoFamily`], [`KernelsError::NotCompiled`], [`KernelsError::OtherStamp`].
    pub fn module(&self, family: Family) -> Result<Module, KernelsError> {
        if let Some(module) = self.manifest.module(family) {
            return Ok(module.clone());
        }
        let (arch, place) = (self.manifest.arch, self.place.clone());
        let KernelSource::Folder(folder) = &self.place else {
            return Err(KernelsError::NoFamily { family, arch, place });
        };
        match compile::compile(folder, built_with(), arch, family) {
            Ok(true) => {}
            Ok(false) => return Err(KernelsError::NoFamily { family, arch, place }),
            Err(reason) => return Err(KernelsError::NotCompiled { family, arch, place, reason }),
        }
        let manifest: Manifest = Manifest::read(&folder.join(FILE_NAME))?;
        let required = nvfp4_manifest::stamp(Some(stamp::STAMP));
        match manifest.module(family) {
            Some(module) if module.stamp == required => Ok(module.clone()),
            Some(Module { stamp: actual, .. }) => {
                let actual = actual.clone();
                Err(KernelsError::OtherStamp { family, place, required, actual })
            }
            None => Err(KernelsError::NoFamily { family, arch, place }),
        }
    }

    /// Finds the modules of all families of the architecture.
    ///
    /// # Errors
    /// As [`module`](Self::module).
    pub fn modules(&self) -> Result<Vec<Module>, KernelsError> {
        Family::of(self.manifest.arch).map(|family| self.module(family)).collect()
    }

    /// Lists the families of the architecture that have no module here.
    #[must_use]
    pub fn missing(&self) -> Vec<Family> {
        let is_missing = |family: &Family| self.manifest.module(*family).is_none();
        Family::of(self.manifest.arch).filter(is_missing).collect()
    }

    /// The PTX of a module.
    ///
    /// # Errors
    /// [`KernelsError::Unreadable`], [`KernelsError::Changed`], [`KernelsError::OtherStamp`].
    pub fn ptx(&self, module: &Module) -> Result<String, KernelsError> {
        let family = module.family;
        let contents = self.contents(family, &module.ptx)?;
        let text = String::from_utf8(contents).map_err(|error| KernelsError::Unreadable {
            family,
            path: self.path(&module.ptx),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        })?;
        let required = nvfp4_manifest::stamp(Some(stamp::STAMP));
        let actual = nvfp4_manifest::stamp(stamp::of_ptx(&text));
        if actual != required {
            let place = self.place.clone();
            return Err(KernelsError::OtherStamp { family, place, required, actual });
        }
        Ok(text)
    }

    /// The contents of machine code of a module.
    ///
    /// # Errors
    /// [`KernelsError::Unreadable`], [`KernelsError::Changed`].
    pub fn cubin(&self, module: &Module, cubin: &Cubin) -> Result<Vec<u8>, KernelsError> {
        self.contents(module.family, &cubin.file)
    }

    /// The path of a file, or its name if it is in no folder.
    fn path(&self, file: &File) -> PathBuf {
        match &self.place {
            KernelSource::Folder(folder) => folder.join(&file.name),
            KernelSource::Program | KernelSource::Given(_) => PathBuf::from(&file.name),
        }
    }

    fn contents(&self, family: Family, file: &File) -> Result<Vec<u8>, KernelsError> {
        let path = self.path(file);
        let contents = match &self.place {
            KernelSource::Folder(_) => match std::fs::read(&path) {
                Ok(contents) => contents,
                Err(source) => return Err(KernelsError::Unreadable { family, path, source }),
            },
            KernelSource::Program => program_file(self.manifest.arch, file)?,
            KernelSource::Given(texts) => given::text(texts, file).as_bytes().to_owned(),
        };
        if file.is(&contents) {
            return Ok(contents);
        }
        let describe = |file: &File| format!("{} bytes ({})", file.bytes, file.fingerprint);
        let (required, actual) = (describe(file), describe(&File::of("", &contents)));
        Err(KernelsError::Changed { family, path, required, actual })
    }

    /// Checks the modules that are here: every kernel is in its family's, and the files are those that the
    /// manifest describes. [`missing`](Self::missing) lists the others.
    ///
    /// # Errors
    /// The first of [`KernelsError`].
    pub fn check(&self) -> Result<(), KernelsError> {
        for (family, entry) in Family::kernels(self.manifest.arch) {
            let Some(module) = self.manifest.module(family) else { continue };
            if module.kernels.iter().all(|kernel| kernel.name != entry) {
                let (kernel, place) = (entry.to_owned(), self.place.clone());
                return Err(KernelsError::Stale { family, kernel, place });
            }
        }
        for module in &self.manifest.modules {
            self.ptx(module)?;
            for cubin in &module.cubins {
                self.cubin(module, cubin)?;
            }
        }
        Ok(())
    }

    /// Computes a fingerprint of all kernels: of their sources, which are the same whatever of them is
    /// compiled, and whether machine code is loaded where there is some for a GPU of the compute
    /// capability `machine_code`; for modules of unknown sources that of their machine code or PTX.
    #[must_use]
    pub fn fingerprint(&self, machine_code: Option<(u32, u32)>) -> String {
        if !self.manifest.sources.is_empty() {
            let code = if machine_code.is_some() { "machine code" } else { "PTX" };
            return nvfp4_manifest::fingerprint(
                format!("{code} of {}", self.manifest.sources).as_bytes(),
            );
        }
        let all = self.manifest.modules.iter().map(|module| {
            let cubin = machine_code.and_then(|gpu| module.cubin_for(self.manifest.arch, gpu));
            let file = cubin.map_or(&module.ptx, |cubin| &cubin.file);
            format!("{} {}\n", module.family, file.fingerprint)
        });
        nvfp4_manifest::fingerprint(all.collect::<String>().as_bytes())
    }
}

/// The folders that could have the kernels of `arch`.
fn candidates(
    arch: Arch,
    named: Option<PathBuf>,
    executable_dir: Option<&Path>,
    built_with: Option<&Path>,
) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named.join(arch.name())];
    }
    let beside = executable_dir.map(|folder| folder.join("kernels"));
    let folders = beside.into_iter().chain(built_with.map(Path::to_path_buf));
    folders.map(|folder| folder.join(arch.name())).collect()
}

/// The folder that the build of this program named.
fn built_with() -> Option<&'static Path> {
    #[cfg(feature = "embed")]
    return nvfp4_kernels::FOLDER.map(Path::new);
    #[cfg(not(feature = "embed"))]
    None
}

/// The manifest of the kernels for `arch` in this program, if there are any.
fn in_program(arch: Arch) -> Option<Result<Manifest, KernelsError>> {
    #[cfg(feature = "embed")]
    return nvfp4_kernels::embedded(arch).map(|embedded| Ok(embedded.manifest()?));
    #[cfg(not(feature = "embed"))]
    {
        let _ = arch;
        None
    }
}

/// A file of the kernels for `arch` in this program.
fn program_file(arch: Arch, file: &File) -> Result<Vec<u8>, KernelsError> {
    #[cfg(feature = "embed")]
    if let Some(embedded) = nvfp4_kernels::embedded(arch) {
        return Ok(embedded.contents(file)?);
    }
    let looked = vec![PathBuf::from(&file.name)];
    Err(KernelsError::NotFound { arch, looked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_folder_is_the_only_one() {
        let program = Some(Path::new("/p/target/release"));
        let folders = candidates(Arch::Sm90a, Some("x".into()), program, Some(Path::new("/b")));
        assert_eq!(folders, [Path::new("x/sm_90a")]);
    }

    /// Others may be able to write beside a folder above the program.
    #[test]
    fn nothing_is_looked_for_above_the_program() {
        let program = Some(Path::new("/p/target/release"));
        let folders = candidates(Arch::Sm100a, None, program, None);
        assert_eq!(folders, [Path::new("/p/target/release/kernels/sm_100a")]);
        let folders = candidates(Arch::Sm100a, None, program, Some(Path::new("/b")));
        assert_eq!(folders[1..], [Path::new("/b/sm_100a")]);
        assert!(candidates(Arch::Sm100a, None, None, None).is_empty());
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
