//! Compiles the kernels: for each architecture a module of PTX for each family of kernels, its
//! machine code where ptxas is found, and a manifest.
//!
//! `cargo xtask build-kernels` and the build script of `nvfp4-kernels` both do it with this crate.

mod assemble;
mod jobs;
mod sources;

use anyhow::{Context, Result, bail};
pub use assemble::{Assembler, report};
use cuda_builder::{
    BuiltModule, Compiler, CudaBuilder, Fetch, Kernel, ModuleSpec, Prepared, build, ptx, ptxas,
};
use fp4_formats::arch::Respelling;
use fp4_formats::{Arch, Family, stamp};
use nvfp4_manifest::{FILE_NAME, File, Module};
use serde::{Deserialize, Serialize};
use sources::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A kernel's entry in a manifest.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Name, launch bounds, parameters.
    #[serde(flatten)]
    pub kernel: Kernel,
    /// ptxas' report, where there is machine code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ptxas::Usage>,
}

/// The manifest of an architecture's folder.
pub type Manifest = nvfp4_manifest::Manifest<Entry>;

/// Checks that every kernel has machine code that keeps out of local memory, and whose products run
/// side by side.
pub fn no_faults(manifest: &Manifest) -> Result<()> {
    for entry in manifest.modules.iter().flat_map(|module| &module.kernels) {
        let name = &entry.kernel.name;
        let usage = entry.resources.as_ref().with_context(|| format!("no report of {name}"))?;
        if let Some(fault) = fault(usage) {
            bail!("{name} {fault}: {usage:?}");
        }
    }
    Ok(())
}

/// Returns the fault of a kernel's machine code, if it has one: products that ptxas runs one by one,
/// or accesses to local memory beyond the known ones. sm_90a's tiles of 128 rows by 64 tokens have 80
/// registers; compiled by rustc 1.96 they are one or two short in the store, and grouped kernels up to
/// four, once per tile and not in the main loop.
fn fault(usage: &ptxas::Usage) -> Option<&'static str> {
    let of_sm90 = |end: &str| usage.name.starts_with("gemm_sm90_") && usage.name.ends_with(end);
    let short = |end: &str, frame: u32| of_sm90(end) && usage.stack <= frame;
    if usage.serialized {
        Some("runs its products one by one")
    } else if usage.is_clean() || short("_128x64", 8) || short("_grouped", 16) {
        None
    } else {
        Some("goes through local memory")
    }
}

/// A message of a build to its observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// So many modules are going to be made into this. The stages of a build come one after the other.
    Begin {
        /// The name of the stage.
        stage: &'a str,
        /// How many there are.
        modules: usize,
    },
    /// A module of the stage is ready, or has failed.
    Ready {
        /// Its architecture.
        arch: Arch,
        /// Its family.
        family: Family,
    },
    /// The stage is over.
    End {
        /// The result of the stage and its duration.
        summary: &'a str,
    },
}

/// The folders of the sources and of the results.
#[derive(Clone)]
pub struct Workshop {
    /// The repository's root.
    pub root: PathBuf,
    /// The folder in which each architecture has a folder of modules.
    pub kernels: PathBuf,
    /// The folder for intermediate files.
    pub intermediate: PathBuf,
    /// Is told of progress, by any thread.
    pub observer: Observer,
}

/// An observer of a build's progress.
pub type Observer = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

impl Workshop {
    /// The workshop of a checkout at `root`, whose results are below `target/`.
    pub fn of_checkout(
        root: &Path,
        observer: impl Fn(Progress<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            root: root.to_owned(),
            kernels: root.join("target/kernels"),
            intermediate: root.join("target/gpu"),
            observer: Arc::new(observer),
        }
    }

    /// Folder of an architecture's files.
    pub fn folder(&self, arch: Arch) -> PathBuf {
        self.kernels.join(arch.name())
    }

    /// The manifest of an architecture's folder.
    ///
    /// # Errors
    /// If it is not there or not a manifest.
    pub fn manifest(&self, arch: Arch) -> Result<Manifest> {
        Ok(Manifest::read(&self.folder(arch).join(FILE_NAME))?)
    }

    /// Returns the builder of the GPU crate for `arch` with `compiler`.
    pub fn builder(&self, arch: Arch, compiler: Compiler) -> CudaBuilder {
        let builder = CudaBuilder::new(self.root.join("kernels-gpu"), arch.name())
            .target_dir(&self.intermediate)
            .compiler(compiler);
        arch.cfgs().into_iter().fold(builder, |builder, cfg| builder.cfg(cfg.name, cfg.value))
    }

    /// Whether the kernels of all of `archs` are there, made of the sources as they are.
    ///
    /// # Errors
    /// If the sources cannot be read.
    pub fn is_complete(&self, archs: &[Arch]) -> Result<bool> {
        let shared = Shared::read(&self.root)?;
        Ok(archs.iter().all(|&arch| {
            let Ok(manifest) = self.manifest(arch) else { return false };
            Family::of(arch).all(|family| {
                let module = manifest.module(family);
                module.is_some_and(|module| self.is_fresh(arch, module, &shared))
            })
        }))
    }

    /// Compiles modules, on as many threads as there are cores; those that failed have their error.
    pub fn compile(
        &self,
        targets: Vec<Target>,
        compiler: &Compiler,
    ) -> Result<Vec<(Target, Result<BuiltModule>)>> {
        let mut archs: Vec<Arch> = targets.iter().map(|&(arch, _)| arch).collect();
        archs.dedup();
        let prepared: Vec<Result<(Arch, Prepared)>> = jobs::parallel(archs, |arch| {
            Ok((arch, self.builder(arch, compiler.clone()).prepare()?))
        });
        let prepared: BTreeMap<Arch, Prepared> = prepared.into_iter().collect::<Result<_>>()?;
        Ok(jobs::parallel(targets, |(arch, family)| {
            let spec = ModuleSpec {
                name: family.name().into(),
                entries: family.entries(arch).map(str::to_owned).collect(),
                cfgs: vec![("gpu_operation".into(), family.operation().name().into())],
            };
            let built = prepared[&arch].module(&spec).map_err(anyhow::Error::from);
            (self.observer)(Progress::Ready { arch, family });
            ((arch, family), built)
        }))
    }

    /// Builds what is missing or older than its sources, with machine code if there is an
    /// assembler; with `force`, everything.
    ///
    /// # Errors
    /// The first failure; all other modules are built.
    pub fn build(
        &self,
        archs: &[Arch],
        force: bool,
        assembler: Option<&Assembler>,
    ) -> Result<Vec<Manifest>> {
        let start = Instant::now();
        let shared = Shared::read(&self.root)?;
        let mut manifests = Vec::new();
        let mut stale = Vec::new();
        let compiled = |&arch: &Arch| arch.respelled().map_or(arch, |respelling| respelling.of);
        let wanted: BTreeSet<Arch> = archs.iter().map(compiled).collect();
        for arch in wanted {
            let old = self.manifest(arch).ok();
            let mut modules = Vec::new();
            let mut sizes = BTreeMap::new();
            for module in old.into_iter().flat_map(|manifest| manifest.modules) {
                sizes.insert(module.family, module.ptx.bytes);
                if !force && self.is_fresh(arch, &module, &shared) {
                    modules.push(module);
                }
            }
            let missing = Family::of(arch).filter(|&f| modules.iter().all(|m| m.family != f));
            // The largest are compiled first; of what was never built, those with the most kernels.
            let size = |family: Family| {
                let kernels = family.entries(arch).count() as u64;
                sizes.get(&family).copied().unwrap_or(kernels << 16)
            };
            stale.extend(missing.map(|family| (size(family), (arch, family))));
            let ptx_version = format!("{}.{}", build::PTX_VERSION.0, build::PTX_VERSION.1);
            manifests.push(Manifest { arch, ptx_version, modules });
        }
        stale.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        let stale: Vec<Target> = stale.into_iter().map(|(_, target)| target).collect();

        let mut failed = None;
        let count = stale.len();
        if count > 0 {
            let compiler = Compiler::find(Fetch::Allowed)?;
            let stage = format!("compiling with {}", compiler.describe());
            (self.observer)(Progress::Begin { stage: &stage, modules: count });
            for ((arch, family), built) in self.compile(stale, &compiler)? {
                let module = built.and_then(|built| {
                    let sources = shared.sources_of(&built.sources)?;
                    self.write(arch, family, built, sources, &compiler)
                });
                let manifest =
                    manifests.iter_mut().find(|m| m.arch == arch).context("its manifest")?;
                match module {
                    Ok(module) => manifest.modules.push(module),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            let seconds = start.elapsed().as_secs_f32();
            let summary = format!("compiled {count} modules in {seconds:.1} s");
            (self.observer)(Progress::End { summary: &summary });
        }
        for &arch in archs {
            if let Some(respelling) = arch.respelled() {
                let of =
                    manifests.iter().find(|m| m.arch == respelling.of).context("its manifest")?;
                let made = self.respell(arch, respelling, of, self.manifest(arch).ok())?;
                manifests.push(made);
            }
        }
        if let Some(assembler) = assembler {
            let assembled = assemble::complete(self, assembler, &mut manifests);
            failed = failed.or(assembled.err());
        }
        for manifest in &mut manifests {
            manifest.modules.sort_by_key(|module| module.family);
            self.finish(manifest)?;
        }
        match failed {
            None => Ok(manifests),
            Some(error) => Err(error),
        }
    }

    /// Makes the modules of `arch` of those in `of`. Machine code that there was is kept where the PTX is
    /// the same.
    fn respell(
        &self,
        arch: Arch,
        respelling: Respelling,
        of: &Manifest,
        old: Option<Manifest>,
    ) -> Result<Manifest> {
        let mut old = old.map_or_else(Vec::new, |old| old.modules);
        let module = |module: &Module<Entry>| {
            let from = self.folder(of.arch).join(&module.ptx.name);
            let text =
                std::fs::read_to_string(&from).with_context(|| from.display().to_string())?;
            let names = [of.arch.name(), arch.name()];
            let text = ptx::respell(&text, names, respelling.modifiers)
                .with_context(|| format!("{arch}/{}", module.family))?;
            let ptx = File::of(module.ptx.name.clone(), text.as_bytes());
            build::write(&self.folder(arch).join(&ptx.name), &text)?;
            let sources = module.sources.clone();
            if let Some(at) =
                old.iter().position(|old| old.family == module.family && old.ptx == ptx)
            {
                return Ok(Module { sources, ..old.swap_remove(at) });
            }
            let kernels = module.kernels.iter();
            let kernels =
                kernels.map(|entry| Entry { kernel: entry.kernel.clone(), resources: None });
            Ok(Module {
                family: module.family,
                ptx,
                cubin: None,
                stamp: module.stamp.clone(),
                compiler: module.compiler.clone(),
                sources,
                kernels: kernels.collect(),
            })
        };
        let modules = of.modules.iter().map(module).collect::<Result<_>>()?;
        Ok(Manifest { arch, ptx_version: of.ptx_version.clone(), modules })
    }

    /// Whether a module was made of the sources as they are, and its PTX is as it was written.
    fn is_fresh(&self, arch: Arch, module: &Module<Entry>, shared: &Shared) -> bool {
        let ptx = std::fs::read(self.folder(arch).join(&module.ptx.name));
        ptx.is_ok_and(|ptx| module.ptx.is(&ptx))
            && shared
                .digest_with(&module.sources.files)
                .is_ok_and(|now| now == module.sources.digest)
            && module.kernels.len() == module.family.entries(arch).count()
    }

    /// Writes a module's PTX.
    fn write(
        &self,
        arch: Arch,
        family: Family,
        built: BuiltModule,
        sources: nvfp4_manifest::Sources,
        compiler: &Compiler,
    ) -> Result<Module<Entry>> {
        let name = format!("{family}.ptx");
        build::write(&self.folder(arch).join(&name), &built.ptx)?;
        let kernels = built.kernels.into_iter().map(|kernel| Entry { kernel, resources: None });
        Ok(Module {
            family,
            ptx: File::of(name, built.ptx.as_bytes()),
            cubin: None,
            stamp: nvfp4_manifest::stamp(stamp::of_ptx(&built.ptx)),
            compiler: compiler.describe(),
            sources,
            kernels: kernels.collect(),
        })
    }

    /// Writes a manifest, and removes modules that it does not list.
    fn finish(&self, manifest: &Manifest) -> Result<()> {
        let folder = self.folder(manifest.arch);
        build::write(&folder.join(FILE_NAME), serde_json::to_string_pretty(manifest)?)?;
        let cubins =
            manifest.modules.iter().filter_map(|module| Some(&module.cubin.as_ref()?.file));
        let listed: Vec<&str> = manifest
            .modules
            .iter()
            .map(|m| &m.ptx)
            .chain(cubins)
            .map(|f| f.name.as_str())
            .collect();
        let of_modules = |path: &Path| path.extension().is_some_and(|e| e == "ptx" || e == "cubin");
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if of_modules(&path) && !name.is_some_and(|name| listed.contains(&name)) {
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }
}

/// A module to be compiled.
pub type Target = (Arch, Family);

/// A line for an architecture: modules, kernels, bytes.
pub fn summary(manifest: &Manifest) -> String {
    let modules = &manifest.modules;
    let kernels: usize = modules.iter().map(|module| module.kernels.len()).sum();
    let ptx: u64 = modules.iter().map(|module| module.ptx.bytes).sum();
    let cubins = modules.iter().filter_map(|module| Some(module.cubin.as_ref()?.file.bytes));
    let mut text = format!(
        "{}: {} modules, {kernels} kernels, {ptx} bytes of PTX",
        manifest.arch,
        modules.len()
    );
    match (cubins.clone().count(), cubins.sum::<u64>()) {
        (0, _) => text += ", no machine code",
        (count, bytes) => text += &format!(", {bytes} bytes of machine code of {count}"),
    }
    text
}
