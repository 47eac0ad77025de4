//! Compiles the kernels: for each architecture a module of PTX for each family of kernels, its
//! machine code where ptxas is found, and a manifest.
//!
//! `cargo xtask build-kernels` and the build script of `nvfp4-kernels` both do it with this crate.

mod assemble;
mod jobs;
mod lock;
mod sources;

use anyhow::{Context, Result, bail};
pub use assemble::{Assembler, report};
use cuda_builder::{
    BuiltModule, Compiler, CudaBuilder, Fetch, Kernel, ModuleSpec, Prepared, build, ptx, ptxas,
};
use fp4_formats::arch::{MachineCode, Respelling};
use fp4_formats::{Arch, Family, stamp};
use lock::Lock;
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
    /// ptxas' report for each target that there is machine code for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, ptxas::Usage>,
}

/// The manifest of an architecture's folder.
pub type Manifest = nvfp4_manifest::Manifest<Entry>;

/// Checks that every kernel has machine code for all targets of its architecture that keeps out of local
/// memory, and whose products run side by side.
pub fn no_faults(manifest: &Manifest) -> Result<()> {
    for entry in manifest.modules.iter().flat_map(|module| &module.kernels) {
        let name = &entry.kernel.name;
        for MachineCode { target, .. } in manifest.arch.machine_code() {
            let usage = entry.resources.get(*target);
            let usage = usage.with_context(|| format!("no report of {name} for {target}"))?;
            if let Some(fault) = fault(usage) {
                bail!("{name} for {target} {fault}: {usage:?}");
            }
        }
    }
    Ok(())
}

/// Returns the fault of a kernel's machine code, if it has one: products that ptxas runs one by one,
/// or accesses to local memory beyond the known ones. sm_90a's tiles of 128 rows by 64 tokens have 80
/// registers; compiled by rustc 1.96 they are one or two short in the store, and grouped kernels up to
/// four, once per tile and not in the main loop. Grouped kernels of 256 tokens that add fast are sixteen short where a tile's
/// sums meet, and outside the main loops, too. For sm_120f, the widest grouped kernel of sm_80 for MXFP4 is four short
/// where it finds an item's tile.
fn fault(usage: &ptxas::Usage) -> Option<&'static str> {
    let of_sm90 = |end: &str| usage.name.starts_with("gemm_sm90_") && usage.name.ends_with(end);
    let shared = usage.name.contains("_multicast");
    let short = |end: &str, frame: u32| of_sm90(end) && !shared && usage.stack <= frame;
    let meets = of_sm90("_fast_grouped") && usage.stack <= 64;
    let finds_tile = usage.name == "gemm_sm80_mxfp4_bf16_256x128_grouped" && usage.stack <= 16;
    if usage.serialized {
        Some("runs its products one by one")
    } else if usage.is_clean()
        || short("_128x64", 8)
        || short("_grouped", 16)
        || meets
        || finds_tile
    {
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
        /// The number of modules.
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

    /// The modules that the manifest of an architecture's folder lists; none if there is no manifest, or one
    /// that another version of this crate wrote and this version cannot read. A build then writes it anew.
    pub fn modules(&self, arch: Arch) -> Vec<Module<Entry>> {
        self.manifest(arch).map_or_else(|_| Vec::new(), |manifest| manifest.modules)
    }

    /// Returns the builder of the GPU crate for `arch` with `compiler`.
    pub fn builder(&self, arch: Arch, compiler: Compiler) -> CudaBuilder {
        let version = arch.ptx_version();
        let builder = CudaBuilder::new(self.root.join("kernels-gpu"), arch.name())
            .ptx_version(version.major, version.minor)
            .target_dir(&self.intermediate)
            .compiler(compiler);
        arch.cfgs().into_iter().fold(builder, |builder, cfg| builder.cfg(cfg.name, cfg.value))
    }

    /// Says which of `families` are compiled from the sources as they are, in each of `archs`.
    ///
    /// # Errors
    /// If the sources cannot be read.
    pub fn inventory(&self, archs: &[Arch], families: &[Family]) -> Result<Vec<Inventory>> {
        let shared = Shared::read(&self.root)?;
        Ok(archs
            .iter()
            .map(|&arch| {
                let modules = self.modules(arch);
                let is_fresh = |family: &Family| {
                    modules.iter().any(|m| m.family == *family && self.is_fresh(arch, m, &shared))
                };
                let (compiled, missing) = of(arch, families).partition(is_fresh);
                Inventory { arch, compiled, missing }
            })
            .collect())
    }

    /// The digest of a module that is made of `files`, from the root, and of what all modules share.
    ///
    /// # Errors
    /// If the sources cannot be read.
    pub fn digest(&self, files: &[PathBuf]) -> Result<String> {
        Shared::read(&self.root)?.digest_with(files)
    }

    /// Compiles modules, on as many threads as there are cores; those that failed have their error.
    ///
    /// # Errors
    /// If what modules depend on cannot be built.
    pub fn compile(
        &self,
        targets: Vec<Target>,
        compiler: &Compiler,
    ) -> Result<Vec<(Target, Result<BuiltModule>)>> {
        let prepared = self.prepare(&targets, compiler)?;
        Ok(jobs::parallel(targets, |target| {
            let built = Lock::of_module(self, target).and_then(|_lock| prepared.module(target));
            (self.observer)(Progress::Ready { arch: target.0, family: target.1 });
            (target, built)
        }))
    }

    /// Builds what modules depend on.
    fn prepare(&self, targets: &[Target], compiler: &Compiler) -> Result<PreparedArchs> {
        let archs: BTreeSet<Arch> = targets.iter().map(|&(arch, _)| arch).collect();
        let prepared: Vec<Result<(Arch, Prepared)>> =
            jobs::parallel(archs.into_iter().collect(), |arch| {
                Ok((arch, self.builder(arch, compiler.clone()).prepare()?))
            });
        Ok(PreparedArchs(prepared.into_iter().collect::<Result<_>>()?))
    }

    /// Removes modules that are not made of the sources as they are from the folders of `archs`. A program
    /// then finds a module that is right or none.
    ///
    /// # Errors
    /// If the sources cannot be read or the folders not be written.
    pub fn sweep(&self, archs: &[Arch]) -> Result<()> {
        let shared = Shared::read(&self.root)?;
        archs.iter().try_for_each(|&arch| self.drop_stale(arch, &shared, |_| false).map(drop))
    }

    /// Removes the modules of `arch` that are stale or that `also` names; returns what is left.
    fn drop_stale(
        &self,
        arch: Arch,
        shared: &Shared,
        also: impl Fn(Family) -> bool,
    ) -> Result<Manifest> {
        self.update(arch, |manifest| {
            manifest.sources.clone_from(&shared.all);
            manifest.modules.retain(|m| !also(m.family) && self.is_fresh(arch, m, shared));
            Ok(())
        })
    }

    /// Builds modules of `families` for `archs` that are missing or older than their sources, with machine
    /// code if there is an assembler; with `force`, all of them. Other modules stay if they are as
    /// their sources and go if they are not. Builds that run at once wait for each other's modules instead
    /// of compiling them twice.
    ///
    /// # Errors
    /// The first failure; all other modules are built.
    pub fn build(
        &self,
        archs: &[Arch],
        families: &[Family],
        force: bool,
        assembler: Option<&Assembler>,
    ) -> Result<Vec<Manifest>> {
        let start = Instant::now();
        let shared = Shared::read(&self.root)?;
        let mut stale = Vec::new();
        let compiled = |&arch: &Arch| arch.respelled().map_or(arch, |respelling| respelling.of);
        let wanted: BTreeSet<Arch> = archs.iter().map(compiled).collect();
        for &arch in &wanted {
            let old = self.modules(arch);
            let asked = |family: Family| force && families.contains(&family);
            let manifest = self.drop_stale(arch, &shared, asked)?;
            // The largest are compiled first; of what was never built, those with the most kernels.
            let size = |family: Family| {
                let kernels = family.entries(arch).count() as u64;
                let known = old.iter().find(|module| module.family == family);
                known.map_or(kernels << 16, |module| module.ptx.bytes)
            };
            let missing = of(arch, families).filter(|&family| manifest.module(family).is_none());
            stale.extend(missing.map(|family| (size(family), (arch, family))));
        }
        stale.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        let stale: Vec<Target> = stale.into_iter().map(|(_, target)| target).collect();

        let mut failed = None;
        let count = stale.len();
        if count > 0 {
            let compiler = Compiler::find(Fetch::Allowed)?;
            let stage = format!("compiling with {}", compiler.describe());
            (self.observer)(Progress::Begin { stage: &stage, modules: count });
            let prepared = self.prepare(&stale, &compiler)?;
            let made = jobs::parallel(stale, |target| {
                let made = self.make(target, &prepared, &shared);
                (self.observer)(Progress::Ready { arch: target.0, family: target.1 });
                made
            });
            let compiled = made.iter().filter(|made| matches!(made, Ok(true))).count();
            failed = made.into_iter().find_map(Result::err);
            let seconds = start.elapsed().as_secs_f32();
            let summary = format!("compiled {compiled} modules in {seconds:.1} s");
            (self.observer)(Progress::End { summary: &summary });
        }
        for &arch in archs {
            if let Some(respelling) = arch.respelled() {
                self.respell(arch, respelling, &shared)?;
            }
        }
        if let Some(assembler) = assembler {
            let mut targets: Vec<Target> = Vec::new();
            for &arch in archs.iter().chain(&wanted).collect::<BTreeSet<_>>() {
                targets.extend(of(arch, families).map(|family| (arch, family)));
            }
            let assembled = assemble::complete(self, assembler, &targets);
            failed = failed.or(assembled.err());
        }
        match failed {
            None => archs.iter().map(|&arch| self.manifest(arch)).collect(),
            Some(error) => Err(error),
        }
    }

    /// Compiles a module and puts it into its folder, unless another build has done it since; whether it
    /// did.
    fn make(&self, target: Target, prepared: &PreparedArchs, shared: &Shared) -> Result<bool> {
        let (arch, family) = target;
        let _lock = Lock::of_module(self, target)?;
        let there = self.manifest(arch).ok();
        let there = there.as_ref().and_then(|manifest| manifest.module(family));
        if there.is_some_and(|module| self.is_fresh(arch, module, shared)) {
            return Ok(false);
        }
        let built = prepared.module(target)?;
        let kernels =
            built.kernels.into_iter().map(|kernel| Entry { kernel, resources: BTreeMap::new() });
        let module = Module {
            family,
            ptx: File::of(format!("{family}.ptx"), built.ptx.as_bytes()),
            cubins: Vec::new(),
            stamp: nvfp4_manifest::stamp(stamp::of_ptx(&built.ptx)),
            compiler: prepared.0[&arch].compiler().describe(),
            sources: shared.sources_of(&built.sources)?,
            kernels: kernels.collect(),
        };
        self.update(arch, |manifest| {
            build::write(&self.folder(arch).join(&module.ptx.name), &built.ptx)?;
            manifest.modules.retain(|other| other.family != family);
            manifest.modules.push(module);
            Ok(())
        })?;
        Ok(true)
    }

    /// Makes the modules of `arch` of those there are of the architecture that it has the instructions of,
    /// where they are not yet.
    fn respell(&self, arch: Arch, respelling: Respelling, shared: &Shared) -> Result<()> {
        let _lock = Lock::of_manifest(self, respelling.of)?;
        let of = self.manifest(respelling.of)?;
        self.update(arch, |manifest| {
            manifest.sources.clone_from(&of.sources);
            let mut old = std::mem::take(&mut manifest.modules);
            for module in &of.modules {
                let at = old.iter().position(|old| old.family == module.family);
                let old = at.map(|at| old.swap_remove(at));
                let is_made = |old: &Module<Entry>| {
                    old.sources == module.sources && self.is_fresh(arch, old, shared)
                };
                manifest.modules.push(match old {
                    Some(old) if is_made(&old) => old,
                    old => self.respelled(arch, respelling, module, old)?,
                });
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Makes a module of `arch` of another architecture's. Machine code that there was is kept where the
    /// PTX is the same.
    fn respelled(
        &self,
        arch: Arch,
        respelling: Respelling,
        module: &Module<Entry>,
        old: Option<Module<Entry>>,
    ) -> Result<Module<Entry>> {
        let from = self.folder(respelling.of).join(&module.ptx.name);
        let text = std::fs::read_to_string(&from).with_context(|| from.display().to_string())?;
        let of = [respelling.of, arch];
        let [from, to] = of.map(|arch| arch.ptx_version().to_string());
        let text = ptx::respell(&text, [&from, &to], of.map(Arch::name), respelling.modifiers)
            .with_context(|| format!("{arch}/{}", module.family))?;
        let ptx = File::of(module.ptx.name.clone(), text.as_bytes());
        build::write(&self.folder(arch).join(&ptx.name), &text)?;
        let sources = module.sources.clone();
        if let Some(old) = old.filter(|old| old.ptx == ptx) {
            return Ok(Module { sources, ..old });
        }
        let kernels = module.kernels.iter().map(|entry| entry.kernel.clone());
        let kernels = kernels.map(|kernel| Entry { kernel, resources: BTreeMap::new() });
        Ok(Module {
            family: module.family,
            ptx,
            cubins: Vec::new(),
            stamp: module.stamp.clone(),
            compiler: module.compiler.clone(),
            sources,
            kernels: kernels.collect(),
        })
    }

    /// Says whether a module was made of the sources as they are, and its PTX is as it was written.
    fn is_fresh(&self, arch: Arch, module: &Module<Entry>, shared: &Shared) -> bool {
        let ptx = std::fs::read(self.folder(arch).join(&module.ptx.name));
        ptx.is_ok_and(|ptx| module.ptx.is(&ptx))
            && shared
                .digest_with(&module.sources.files)
                .is_ok_and(|now| now == module.sources.digest)
            && module.kernels.len() == module.family.entries(arch).count()
    }

    /// Changes the manifest of an architecture's folder, which may not be there yet, while no other build
    /// does; returns it. Modules that it no longer lists are removed.
    fn update(
        &self,
        arch: Arch,
        change: impl FnOnce(&mut Manifest) -> Result<()>,
    ) -> Result<Manifest> {
        let _lock = Lock::of_manifest(self, arch)?;
        let ptx_version = arch.ptx_version().to_string();
        // One that cannot be read is written anew.
        let (sources, modules) = match self.manifest(arch) {
            Ok(Manifest { sources, modules, .. }) => (sources, modules),
            Err(_) => (String::new(), Vec::new()),
        };
        let mut manifest = Manifest { arch, ptx_version, sources, modules };
        change(&mut manifest)?;
        manifest.modules.sort_by_key(|module| module.family);
        let folder = self.folder(arch);
        build::write(&folder.join(FILE_NAME), serde_json::to_string_pretty(&manifest)?)?;
        let files = manifest.modules.iter().flat_map(Module::files);
        let listed: Vec<&str> = files.map(|file| file.name.as_str()).collect();
        let of_modules = |path: &Path| path.extension().is_some_and(|e| e == "ptx" || e == "cubin");
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if of_modules(&path) && !name.is_some_and(|name| listed.contains(&name)) {
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(manifest)
    }
}

/// Architectures for which what modules depend on is built.
struct PreparedArchs(BTreeMap<Arch, Prepared>);

impl PreparedArchs {
    /// Compiles a module.
    fn module(&self, (arch, family): Target) -> Result<BuiltModule> {
        let spec = ModuleSpec {
            name: family.name().into(),
            entries: family.entries(arch).map(str::to_owned).collect(),
            cfgs: vec![("gpu_operation".into(), family.operation().name().into())],
        };
        Ok(self.0[&arch].module(&spec)?)
    }
}

/// Families of an architecture that are compiled, and those that are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The architecture.
    pub arch: Arch,
    /// Families whose modules are made of the sources as they are.
    pub compiled: Vec<Family>,
    /// Families whose modules are not there or are stale.
    pub missing: Vec<Family>,
}

/// Keeps those of `families` that `arch` has kernels of.
fn of(arch: Arch, families: &[Family]) -> impl Iterator<Item = Family> {
    Family::of(arch).filter(|family| families.contains(family))
}

/// A module to be compiled.
pub type Target = (Arch, Family);

/// A line for an architecture: modules, kernels, bytes.
pub fn summary(manifest: &Manifest) -> String {
    let modules = &manifest.modules;
    let kernels: usize = modules.iter().map(|module| module.kernels.len()).sum();
    let ptx: u64 = modules.iter().map(|module| module.ptx.bytes).sum();
    let cubins = modules.iter().flat_map(|module| &module.cubins).map(|cubin| cubin.file.bytes);
    let mut text = format!(
        "{}: {} modules, {kernels} kernels, {ptx} bytes of PTX",
        manifest.arch,
        modules.len()
    );
    match (cubins.clone().count(), cubins.sum::<u64>()) {
        (0, _) => text += ", no machine code",
        (count, bytes) => text += &format!(", {bytes} bytes of machine code in {count} files"),
    }
    text
}
