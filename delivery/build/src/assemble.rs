//! Machine code of modules: ptxas.

use super::{Entry, Manifest, Progress, Workshop, fault, jobs};
use anyhow::{Context, Result, bail};
use cuda_builder::ptxas;
use fp4_formats::Arch;
use nvfp4_manifest::{Cubin, File, Module};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The ptxas that is used.
pub struct Assembler {
    /// The program.
    pub path: PathBuf,
    /// `ptxas` and its version.
    pub name: String,
}

impl Assembler {
    /// The one on this machine, if there is one; `tools` is the folder where one would have been
    /// installed.
    ///
    /// # Errors
    /// If it does not say its version.
    pub fn find(tools: &Path) -> Result<Option<Self>> {
        ptxas::find(tools).map(Self::at).transpose()
    }

    /// The one on this machine, installed into `tools` first if there is none.
    ///
    /// # Errors
    /// If it cannot be installed or does not say its version.
    pub fn find_or_install(tools: &Path) -> Result<Self> {
        match Self::find(tools)? {
            Some(found) => Ok(found),
            None => Self::at(ptxas::install(tools)?),
        }
    }

    fn at(path: PathBuf) -> Result<Self> {
        let name = format!("ptxas {}", ptxas::version(&path)?);
        Ok(Self { path, name })
    }
}

/// Assembles the modules that have no machine code.
///
/// # Errors
/// The first failure; all others are assembled.
pub fn complete(
    workshop: &Workshop,
    assembler: &Assembler,
    manifests: &mut [Manifest],
) -> Result<()> {
    let start = Instant::now();
    let mut missing: Vec<(Arch, &mut Module<Entry>)> = Vec::new();
    for manifest in manifests {
        let arch = manifest.arch;
        missing.extend(
            manifest
                .modules
                .iter_mut()
                .filter(|m| !is_fresh(workshop, arch, m))
                .map(|module| (arch, module)),
        );
    }
    // The largest first.
    missing.sort_by_key(|(_, module)| std::cmp::Reverse(module.ptx.bytes));
    let count = missing.len();
    if count == 0 {
        return Ok(());
    }
    let stage = format!("assembling with {}", assembler.name);
    (workshop.observer)(Progress::Begin { stage: &stage, modules: count });
    let results: Vec<Result<()>> = jobs::parallel(missing, |(arch, module)| {
        let result = assemble(workshop, assembler, arch, module);
        (workshop.observer)(Progress::Ready { arch, family: module.family });
        result
    });
    let seconds = start.elapsed().as_secs_f32();
    let summary = format!("assembled {count} modules in {seconds:.1} s");
    (workshop.observer)(Progress::End { summary: &summary });
    results.into_iter().collect()
}

/// Whether a module has machine code, as it was written.
fn is_fresh(workshop: &Workshop, arch: Arch, module: &Module<Entry>) -> bool {
    module.cubin.as_ref().is_some_and(|cubin| {
        let cubin_on_disk = std::fs::read(workshop.folder(arch).join(&cubin.file.name));
        cubin_on_disk.is_ok_and(|contents| cubin.file.is(&contents))
    })
}

fn assemble(
    workshop: &Workshop,
    assembler: &Assembler,
    arch: Arch,
    module: &mut Module<Entry>,
) -> Result<()> {
    let folder = workshop.folder(arch);
    let name = format!("{}.cubin", module.family);
    let path = folder.join(&name);
    let ptx = folder.join(&module.ptx.name);
    let usage = ptxas::report(&assembler.path, &ptx, arch.name(), &path)
        .with_context(|| format!("{arch}/{}", module.family))?;
    for entry in &mut module.kernels {
        let Some(usage) = usage.iter().find(|usage| usage.name == entry.kernel.name) else {
            bail!("ptxas reported nothing of {arch}/{}", entry.kernel.name);
        };
        entry.resources = Some(usage.clone());
    }
    let contents = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let file = File::of(name, &contents);
    module.cubin = Some(Cubin { file, assembler: assembler.name.clone() });
    Ok(())
}

/// Describes the resources that kernels take on an SM, a line for each, and says whether all are
/// within their limits.
pub fn report(manifest: &Manifest) -> (Vec<String>, bool) {
    let mut lines = vec![format!(
        "  {:36} {:>9} {:>7} {:>7} {:>7} {:>8}",
        "kernel", "registers", "frame", "spills", "shared", "barriers"
    )];
    let kernels = manifest.modules.iter().flat_map(|module| &module.kernels);
    let mut clean = true;
    for u in kernels.filter_map(|entry| entry.resources.as_ref()) {
        let fault = fault(u);
        lines.push(format!(
            "  {:36} {:>9} {:>7} {:>7} {:>7} {:>8}{}{}",
            u.name,
            u.registers,
            u.stack,
            u.spill_stores + u.spill_loads,
            u.shared,
            u.barriers,
            if fault.is_some() { "  <- " } else { "" },
            fault.unwrap_or_default(),
        ));
        clean &= fault.is_none();
    }
    (lines, clean)
}
