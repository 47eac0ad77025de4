//! `doctor`: what this machine has, and what will be used.

use crate::{build_kernels, run};
use anyhow::Result;
use cuda_builder::{Compiler, Fetch, ptxas};
use std::process::ExitCode;

/// Prints the toolchain's side, then the host library's.
pub fn run(json: bool) -> Result<ExitCode> {
    if json {
        return run::nvfp4(&["doctor", "--json"], false);
    }
    say!("toolchain");
    match Compiler::find(Fetch::Never) {
        Ok(compiler) => {
            say!("  kernels   {} ({})", compiler.describe(), compiler.rustc.display());
            for other in Compiler::all().iter().filter(|o| o.rustc != compiler.rustc) {
                say!("  also      {} ({})", other.describe(), other.rustc.display());
            }
        }
        Err(error) => say!("  kernels   {error}"),
    }
    match ptxas::find(&run::tools()) {
        Some(path) => say!("  ptxas     {}", path.display()),
        None => {
            say!("  ptxas     none; `cargo xtask build-kernels --check` installs one in target/")
        }
    }
    for inventory in build_kernels::inventory()? {
        match build_kernels::missing(&inventory) {
            Some(line) => say!("  modules   {line}"),
            None => say!("  modules   {}: all are compiled", inventory.arch),
        }
    }
    say!("emulator");
    say!("  tools     cargo xtask mutate BUNDLE_DIR: would a lost synchronisation be noticed?");
    say!("            ptx-emu run|replay --explore N, --trace out.json: see ptx-emu run --help");
    say!("host");
    run::nvfp4(&["doctor"], false)
}
