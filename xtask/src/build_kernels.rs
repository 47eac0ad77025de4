//! `build-kernels`: the kernels of this checkout in `target/kernels`.

use crate::progress::Bar;
use crate::run;
use anyhow::Result;
use clap::Args;
use cuda_builder::{BuiltModule, Compiler, CudaBuilder};
use fp4_formats::{Arch, Family};
pub use nvfp4_kernels_build::{Assembler, Manifest, no_faults};
use nvfp4_kernels_build::{Inventory, Target, Workshop, report, summary};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct Options {
    /// Architectures, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = Arch::ALL)]
    arch: Vec<Arch>,
    /// Only these families, comma-separated: names, or parts of names that several have
    #[arg(long, value_delimiter = ',', value_name = "FAMILY")]
    only: Vec<String>,
    /// Install ptxas from PyPI into target/ if it is nowhere, report registers, spills and
    /// shared memory, and fail if a kernel spills, has a frame in local memory, or runs `wgmma`s one by one
    #[arg(long)]
    check: bool,
    /// Make no machine code, even where ptxas is found
    #[arg(long, conflicts_with = "check")]
    ptx_only: bool,
    /// Rebuild even if nothing changed
    #[arg(long)]
    force: bool,
}

/// The checkout that this program was built in.
fn workshop() -> Workshop {
    let bar = Bar::default();
    Workshop::of_checkout(&run::root(), move |progress| bar.show(progress))
}

/// Describes what is wrong with the arguments.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    /// `--only` names nothing.
    #[error(
        "--only is {actual:?}, must be a family or a part of a family's name; {}",
        list("known are", Family::ALL)
    )]
    NoFamily {
        /// The actual value.
        actual: String,
    },
}

/// Joins names after a phrase that says what they are.
fn list(what: &str, families: impl IntoIterator<Item = Family>) -> String {
    let names: Vec<&str> = families.into_iter().map(Family::name).collect();
    format!("{what} {}", names.join(", "))
}

/// Finds the families that `--only` names: that of a name, or else all that have it in theirs; without a
/// name all families.
fn named(only: &[String]) -> Result<Vec<Family>, UsageError> {
    let mut wanted = Vec::new();
    for name in only {
        let before = wanted.len();
        match name.parse() {
            Ok(family) => wanted.push(family),
            Err(_) => {
                wanted.extend(Family::ALL.into_iter().filter(|f| f.name().contains(name.as_str())));
            }
        }
        if name.is_empty() || wanted.len() == before {
            return Err(UsageError::NoFamily { actual: name.clone() });
        }
    }
    Ok(if only.is_empty() { Family::ALL.to_vec() } else { wanted })
}

/// Names the families of an architecture that are not compiled; `None` if all are.
pub fn missing(inventory: &Inventory) -> Option<String> {
    let Inventory { arch, compiled, missing } = inventory;
    let families = missing.iter().copied();
    match (compiled.is_empty(), missing.is_empty()) {
        (_, true) => None,
        (true, false) => Some(format!("{arch}: no module is compiled")),
        (false, false) => Some(list(&format!("{arch}: not compiled yet are"), families)),
    }
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    let assembler = match (options.ptx_only, options.check) {
        (true, _) => None,
        (false, false) => Assembler::find(&run::tools())?,
        (false, true) => Some(Assembler::find_or_install(&run::tools())?),
    };
    if assembler.is_none() && !options.ptx_only && options.only.is_empty() {
        note!("ptxas is not here: no machine code beside the PTX (`--check` installs it)");
    }
    let families = named(&options.only)?;
    let workshop = workshop();
    let manifests = workshop.build(&options.arch, &families, options.force, assembler.as_ref())?;
    let mut clean = true;
    for manifest in &manifests {
        say!("{} in {}", summary(manifest), folder(manifest.arch).display());
        if options.check {
            let (lines, is_clean) = report(manifest, &families);
            lines.iter().for_each(|line| say!("{line}"));
            clean &= is_clean;
        }
    }
    for Inventory { arch, compiled, missing } in workshop.inventory(&options.arch, &Family::ALL)? {
        if !missing.is_empty() {
            let all = compiled.len() + missing.len();
            say!("{arch}: {} of {all} modules are not compiled", missing.len());
        }
    }
    if !clean {
        say!("FAILED: a kernel goes through local memory, or runs its products one by one");
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds all that is missing or older than its sources, with machine code where ptxas is found.
pub fn refresh() -> Result<()> {
    let assembler = Assembler::find(&run::tools())?;
    workshop().build(&Arch::ALL, &Family::ALL, false, assembler.as_ref()).map(drop)
}

/// Builds all that programs on this machine run: without a GPU, PTX, which the emulator takes; otherwise also
/// machine code where ptxas is found.
pub fn refresh_to_run() -> Result<()> {
    match run::has_gpu() {
        true => refresh(),
        false => workshop().build(&Arch::ALL, &Family::ALL, false, None).map(drop),
    }
}

/// Prepares what a program may ask for: none of the modules that are there is stale. Missing ones
/// are compiled when the program asks for them, see [`run::on_demand`].
pub fn sweep() -> Result<()> {
    workshop().sweep(&Arch::ALL)
}

/// Lists which modules are compiled.
pub fn inventory() -> Result<Vec<Inventory>> {
    workshop().inventory(&Arch::ALL, &Family::ALL)
}

/// Builds what is missing, machine code too.
pub fn with_machine_code(assembler: &Assembler) -> Result<Vec<Manifest>> {
    workshop().build(&Arch::ALL, &Family::ALL, false, Some(assembler))
}

/// Folder of an architecture's files.
pub fn folder(arch: Arch) -> PathBuf {
    workshop().folder(arch)
}

/// The manifest of an architecture's folder.
pub fn manifest(arch: Arch) -> Result<Manifest> {
    workshop().manifest(arch)
}

/// Returns the builder of the GPU crate for `arch` with `compiler`.
pub fn builder(arch: Arch, compiler: Compiler) -> CudaBuilder {
    workshop().builder(arch, compiler)
}

/// Compiles modules; those that failed have their error.
pub fn compile(
    targets: Vec<Target>,
    compiler: &Compiler,
) -> Result<Vec<(Target, Result<BuiltModule>)>> {
    workshop().compile(targets, compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_whole_or_in_part() {
        let of =
            |names: &[&str]| named(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]).expect("all"), Family::ALL);
        // A name that others contain means its family alone.
        assert_eq!(of(&["moe", "gemv"]).expect("two"), [Family::Moe, Family::Gemv]);
        let part = of(&["mixed_"]).expect("several");
        assert!(part.len() > 1 && part.iter().all(|f| f.name().starts_with("mixed_")), "{part:?}");
        for wrong in ["gemmm", ""] {
            let error = of(&["gemv", wrong]).expect_err("refused").to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("ceiling"), "{error}");
        }
    }

    #[test]
    fn families_that_are_missing_are_named() {
        let inventory = |compiled: &[Family], missing: &[Family]| Inventory {
            arch: Arch::Sm90a,
            compiled: compiled.to_vec(),
            missing: missing.to_vec(),
        };
        assert_eq!(missing(&inventory(&[Family::Gemv], &[])), None);
        let line = missing(&inventory(&[Family::Gemv], &[Family::Moe, Family::Ceiling]));
        assert_eq!(line.as_deref(), Some("sm_90a: not compiled yet are moe, ceiling"));
        let line = missing(&inventory(&[], &[Family::Moe]));
        assert_eq!(line.as_deref(), Some("sm_90a: no module is compiled"));
    }
}
