//! `build-kernels`: the kernels of this checkout in `target/kernels`.

use crate::progress::Bar;
use crate::run;
use anyhow::Result;
use clap::Args;
use cuda_builder::{BuiltModule, Compiler, CudaBuilder};
use fp4_formats::Arch;
pub use nvfp4_kernels_build::{Assembler, Manifest, no_faults};
use nvfp4_kernels_build::{Target, Workshop, report, summary};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct Options {
    /// Architectures, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = Arch::ALL)]
    arch: Vec<Arch>,
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

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    let assembler = match (options.ptx_only, options.check) {
        (true, _) => None,
        (false, false) => Assembler::find(&run::tools())?,
        (false, true) => Some(Assembler::find_or_install(&run::tools())?),
    };
    if assembler.is_none() && !options.ptx_only {
        note!("ptxas is not here: no machine code beside the PTX (`--check` installs it)");
    }
    let manifests = workshop().build(&options.arch, options.force, assembler.as_ref())?;
    let mut clean = true;
    for manifest in &manifests {
        say!("{} in {}", summary(manifest), folder(manifest.arch).display());
        if options.check {
            let (lines, is_clean) = report(manifest);
            lines.iter().for_each(|line| say!("{line}"));
            clean &= is_clean;
        }
    }
    if !clean {
        say!("FAILED: a kernel goes through local memory, or runs its products one by one");
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds what is missing or older than its sources, with machine code where ptxas is found.
pub fn refresh() -> Result<()> {
    workshop().build(&Arch::ALL, false, Assembler::find(&run::tools())?.as_ref()).map(drop)
}

/// Builds what is missing, machine code too.
pub fn with_machine_code(assembler: &Assembler) -> Result<Vec<Manifest>> {
    workshop().build(&Arch::ALL, false, Some(assembler))
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
