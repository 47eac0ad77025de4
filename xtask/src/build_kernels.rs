//! `build-kernels`: PTX and a manifest for each architecture.

use crate::run;
use anyhow::{Context, Result, bail};
use clap::Args;
use cuda_builder::{Built, Compiler, CudaBuilder, Fetch, Kernel, build, ptxas};
use fp4_formats::Arch;
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Folders whose contents decide what the PTX is.
const SOURCES: [&str; 4] = ["kernels-gpu", "cuda_std", "cuda_builder", "formats"];

#[derive(Args)]
pub struct Options {
    /// Architectures, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = Arch::ALL)]
    arch: Vec<Arch>,
    /// Assemble with ptxas (installed from PyPI into target/ if it is nowhere),
    /// report registers, spills and shared memory, and fail if a kernel spills
    /// or has a frame in local memory
    #[arg(long)]
    check: bool,
    /// Rebuild even if nothing changed
    #[arg(long)]
    force: bool,
}

/// What `manifest.json` says of a built module.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Target.
    pub arch: Arch,
    /// File name of the PTX, beside the manifest.
    pub ptx: String,
    /// PTX ISA version.
    pub ptx_version: String,
    /// Compiler release and LLVM version.
    pub compiler: String,
    /// Digest of the sources and the compiler.
    pub sources: String,
    /// Entry points.
    pub kernels: Vec<Kernel>,
    /// ptxas' report, after `--check`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ptxas::Usage>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut clean = true;
    for &arch in &options.arch {
        let manifest = build_one(arch, options.force)?;
        say!(
            "{arch}: {} kernels, {}",
            manifest.kernels.len(),
            folder(arch).join(&manifest.ptx).display()
        );
        if options.check {
            clean &= check(arch, manifest)?;
        }
    }
    if !clean {
        say!("FAILED: a kernel goes through local memory");
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds what is missing or older than its sources.
pub fn refresh() -> Result<()> {
    for arch in Arch::ALL {
        build_one(arch, false)?;
    }
    Ok(())
}

/// Folder of an architecture's files.
pub fn folder(arch: Arch) -> PathBuf {
    run::kernels().join(arch.name())
}

/// The GPU crate, built with `compiler`.
pub fn compile(arch: Arch, compiler: Compiler) -> Result<Built> {
    Ok(builder(arch, compiler).build()?)
}

/// What builds the GPU crate for `arch` with `compiler`.
pub fn builder(arch: Arch, compiler: Compiler) -> CudaBuilder {
    let builder = CudaBuilder::new(run::root().join("kernels-gpu"), arch.name())
        .target_dir(run::root().join("target/gpu"))
        .compiler(compiler);
    arch.cfgs().into_iter().fold(builder, |builder, cfg| builder.cfg(cfg.name, cfg.value))
}

fn build_one(arch: Arch, force: bool) -> Result<Manifest> {
    let folder = folder(arch);
    let path = folder.join("manifest.json");
    let sources = digest(&run::root())?;
    if !force && let Some(manifest) = fresh(&path, &folder, &sources) {
        return Ok(manifest);
    }
    let compiler = Compiler::find(Fetch::Allowed)?;
    note!("compiling kernels for {arch} with {}", compiler.describe());
    let start = Instant::now();
    let built = compile(arch, compiler)?;
    note!("compiled {} kernels in {:.1} s", built.kernels.len(), start.elapsed().as_secs_f32());
    let manifest = Manifest {
        arch,
        ptx: "kernels.ptx".into(),
        ptx_version: format!("{}.{}", build::PTX_VERSION.0, build::PTX_VERSION.1),
        compiler: built.compiler.describe(),
        sources,
        kernels: built.kernels,
        resources: Vec::new(),
    };
    build::write(&folder.join(&manifest.ptx), &built.ptx)?;
    build::write(&path, &serde_json::to_string_pretty(&manifest)?)?;
    Ok(manifest)
}

/// The manifest at `path`, if its module is there and was made of `sources`.
fn fresh(path: &Path, folder: &Path, sources: &str) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    (manifest.sources == sources && folder.join(&manifest.ptx).is_file()).then_some(manifest)
}

/// A digest of all source files. The compiler is left out: kernels made by any
/// accepted compiler are good, and a machine may have none.
fn digest(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root.join(source), &mut files)?;
    }
    files.sort();
    let mut hasher = std::hash::DefaultHasher::new();
    for file in files {
        file.strip_prefix(root).unwrap_or(&file).hash(&mut hasher);
        std::fs::read(&file)
            .with_context(|| format!("reading {}", file.display()))?
            .hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            files.push(path);
        }
    }
    Ok(())
}

/// ptxas' report of one module; false if a kernel is not clean.
fn check(arch: Arch, mut manifest: Manifest) -> Result<bool> {
    let tools = run::tools();
    let ptxas = match ptxas::find(&tools) {
        Some(found) => found,
        None => ptxas::install(&tools)?,
    };
    let folder = folder(arch);
    let usage = ptxas::report(
        &ptxas,
        &folder.join(&manifest.ptx),
        arch.name(),
        &folder.join("kernels.cubin"),
    )?;
    if usage.len() != manifest.kernels.len() {
        bail!("ptxas reported {} of {} kernels", usage.len(), manifest.kernels.len());
    }
    say!(
        "  {:32} {:>9} {:>7} {:>7} {:>7} {:>8}",
        "kernel",
        "registers",
        "frame",
        "spills",
        "shared",
        "barriers"
    );
    for u in &usage {
        say!(
            "  {:32} {:>9} {:>7} {:>7} {:>7} {:>8}{}",
            u.name,
            u.registers,
            u.stack,
            u.spill_stores + u.spill_loads,
            u.shared,
            u.barriers,
            if u.is_clean() { "" } else { "  <- local memory" }
        );
    }
    let clean = usage.iter().all(ptxas::Usage::is_clean);
    manifest.resources = usage;
    build::write(&folder.join("manifest.json"), &serde_json::to_string_pretty(&manifest)?)?;
    Ok(clean)
}
