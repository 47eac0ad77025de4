//! `doctor`: what this machine has, and what will be used.

use crate::run;
use anyhow::Result;
use cuda_builder::{Compiler, Fetch, ptxas};
use std::process::ExitCode;

/// Prints the toolchain's side, then the host library's.
pub fn run(json: bool) -> Result<ExitCode> {
    if json {
        return run::nvfp4(&["doctor", "--json"]);
    }
    println!("toolchain");
    match Compiler::find(Fetch::Never) {
        Ok(compiler) => {
            println!("  kernels   {} ({})", compiler.describe(), compiler.rustc.display());
            for other in Compiler::all().iter().filter(|o| o.rustc != compiler.rustc) {
                println!("  also      {} ({})", other.describe(), other.rustc.display());
            }
        }
        Err(error) => println!("  kernels   {error}"),
    }
    match ptxas::find(&run::tools()) {
        Some(path) => println!("  ptxas     {}", path.display()),
        None => println!(
            "  ptxas     none; `cargo xtask build-kernels --check` installs one in target/"
        ),
    }
    println!("emulator");
    println!("  tools     cargo xtask mutate BUNDLE_DIR: would a lost synchronisation be noticed?");
    println!(
        "            ptx-emu run|replay --explore N, --trace out.json: see ptx-emu run --help"
    );
    println!("host");
    run::nvfp4(&["doctor"])
}
