//! Machine code of modules: ptxas.

use super::lock::Lock;
use super::{Entry, Manifest, Progress, Target, Workshop, fault, jobs};
use anyhow::{Context, Result, bail};
use cuda_builder::{build, ptxas};
use fp4_formats::arch::MachineCode;
use fp4_formats::{Arch, Family};
use nvfp4_manifest::{Cubin, File, Module};
use std::collections::BTreeSet;
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

/// Assembles those of `targets` that are there and have no machine code.
///
/// # Errors
/// The first failure; all others are assembled.
pub fn complete(workshop: &Workshop, assembler: &Assembler, targets: &[Target]) -> Result<()> {
    let start = Instant::now();
    let mut missing: Vec<(u64, Target, MachineCode)> = Vec::new();
    for arch in targets.iter().map(|&(arch, _)| arch).collect::<BTreeSet<_>>() {
        for module in workshop.manifest(arch)?.modules {
            let target = (arch, module.family);
            for &code in arch.machine_code() {
                if targets.contains(&target) && !is_assembled(workshop, arch, &module, code) {
                    missing.push((module.ptx.bytes, target, code));
                }
            }
        }
    }
    // The largest first.
    missing.sort_by_key(|&(bytes, ..)| std::cmp::Reverse(bytes));
    let count = missing.len();
    if count == 0 {
        return Ok(());
    }
    let stage = format!("assembling with {}", assembler.name);
    (workshop.observer)(Progress::Begin { stage: &stage, modules: count });
    let results: Vec<Result<()>> = jobs::parallel(missing, |(_, target, code)| {
        let result = assemble(workshop, assembler, target, code);
        (workshop.observer)(Progress::Ready { arch: target.0, family: target.1 });
        result
    });
    let seconds = start.elapsed().as_secs_f32();
    let summary = format!("assembled {count} modules in {seconds:.1} s");
    (workshop.observer)(Progress::End { summary: &summary });
    results.into_iter().collect()
}

/// Says whether a module has this machine code, as it was written.
fn is_assembled(
    workshop: &Workshop,
    arch: Arch,
    module: &Module<Entry>,
    code: MachineCode,
) -> bool {
    module.cubin(code.target).is_some_and(|cubin| {
        let cubin_on_disk = std::fs::read(workshop.folder(arch).join(&cubin.file.name));
        cubin_on_disk.is_ok_and(|contents| cubin.file.is(&contents))
    })
}

fn assemble(
    workshop: &Workshop,
    assembler: &Assembler,
    target: Target,
    code: MachineCode,
) -> Result<()> {
    let (arch, family) = target;
    let _lock = Lock::of_module(workshop, target)?;
    let manifest = workshop.manifest(arch)?;
    // Another build may have removed or assembled it since.
    let Some(module) = manifest.module(family) else { return Ok(()) };
    if is_assembled(workshop, arch, module, code) {
        return Ok(());
    }
    let name = format!("{family}.{}.cubin", code.target);
    // Beside other intermediate files: what the folder of modules has and its manifest does not list
    // is removed.
    let made = workshop.intermediate.join("cubins").join(arch.name());
    std::fs::create_dir_all(&made).with_context(|| made.display().to_string())?;
    let made = made.join(&name);
    let ptx = workshop.folder(arch).join(&module.ptx.name);
    let usage = ptxas::report(&assembler.path, &ptx, code.target, &made)
        .with_context(|| format!("{arch}/{family} for {}", code.target))?;
    let contents = std::fs::read(&made).with_context(|| made.display().to_string())?;
    let assembled = module.ptx.clone();
    workshop.update(arch, |manifest| {
        let same = |module: &&mut Module<Entry>| module.family == family && module.ptx == assembled;
        let Some(module) = manifest.modules.iter_mut().find(same) else { return Ok(()) };
        for entry in &mut module.kernels {
            let Some(usage) = usage.iter().find(|usage| usage.name == entry.kernel.name) else {
                bail!("ptxas reported nothing of {arch}/{}", entry.kernel.name);
            };
            entry.resources.insert(code.target.to_owned(), usage.clone());
        }
        build::write(&workshop.folder(arch).join(&name), &contents)?;
        let (target, file) = (code.target.to_owned(), File::of(name.clone(), &contents));
        module.cubins.retain(|cubin| cubin.target != target);
        module.cubins.push(Cubin { target, file, assembler: assembler.name.clone() });
        module.cubins.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(())
    })?;
    Ok(())
}

/// Describes the resources that kernels of `families` take on an SM, a line for each, and says whether all
/// are within their limits.
pub fn report(manifest: &Manifest, families: &[Family]) -> (Vec<String>, bool) {
    let mut lines = vec![format!(
        "  {:36} {:8} {:>9} {:>7} {:>7} {:>7} {:>8}",
        "kernel", "target", "registers", "frame", "spills", "shared", "barriers"
    )];
    let modules = manifest.modules.iter().filter(|module| families.contains(&module.family));
    let kernels = modules.flat_map(|module| &module.kernels);
    let mut clean = true;
    for (target, u) in kernels.flat_map(|entry| &entry.resources) {
        let fault = fault(u);
        lines.push(format!(
            "  {:36} {target:8} {:>9} {:>7} {:>7} {:>7} {:>8}{}{}",
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
