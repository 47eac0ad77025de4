//! The sources of modules: whether a module is older than its sources.

use anyhow::{Context, Result};
use nvfp4_manifest::Sources;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Folders that every module depends on.
const SHARED: [&str; 3] = ["cuda_std", "cuda_builder", "formats"];
/// The folder of the kernels, of which a module is made of a part.
const KERNELS: &str = "kernels-gpu/src";
/// Files that every module depends on.
const SHARED_FILES: [&str; 2] = ["kernels-gpu/Cargo.toml", "kernels-gpu/Cargo.lock"];

/// The sources that all modules have in common. The compiler is left out: kernels made by any
/// accepted compiler are good, and a machine may have none.
pub struct Shared {
    root: PathBuf,
    hasher: std::hash::DefaultHasher,
    /// A digest of them and of all that any module is made of.
    pub all: String,
}

impl Shared {
    /// Reads them; `root` is the repository's.
    pub fn read(root: &Path) -> Result<Self> {
        let mut files: Vec<PathBuf> = SHARED_FILES.iter().map(PathBuf::from).collect();
        for folder in SHARED {
            collect(root, Path::new(folder), &mut files)?;
        }
        files.sort();
        let mut hasher = std::hash::DefaultHasher::new();
        add(root, &files, &mut hasher)?;
        let mut shared = Self { root: root.to_owned(), hasher, all: String::new() };
        let mut kernels = Vec::new();
        collect(root, Path::new(KERNELS), &mut kernels)?;
        kernels.sort();
        shared.all = shared.digest_with(&kernels)?;
        Ok(shared)
    }

    /// The digest of a module that is also made of `files`, from the root.
    pub fn digest_with(&self, files: &[PathBuf]) -> Result<String> {
        let mut hasher = self.hasher.clone();
        add(&self.root, files, &mut hasher)?;
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// The sources of a module for which the compiler read the files at `paths`.
    pub fn sources_of(&self, paths: &[PathBuf]) -> Result<Sources> {
        let relative = |path: &PathBuf| path.strip_prefix(&self.root).ok().map(Path::to_owned);
        let mut files: Vec<PathBuf> = paths.iter().filter_map(relative).collect();
        files.sort();
        Ok(Sources { digest: self.digest_with(&files)?, files })
    }
}

fn add(root: &Path, files: &[PathBuf], hasher: &mut impl Hasher) -> Result<()> {
    for file in files {
        file.hash(hasher);
        let path = root.join(file);
        std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?.hash(hasher);
    }
    Ok(())
}

/// The Rust and manifest files below `folder`, but for what cargo makes.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(root.join(folder))
        .with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                collect(root, &path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            files.push(path);
        }
    }
    Ok(())
}
