//! `test --coverage`: how many of our kernels' instructions the tests reach on the emulator.

use super::cargo::Cargo;
use crate::run::{self, Profile, Program};
use anyhow::{Context, Result, bail};
use fp4_formats::Arch;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that tells the emulator's library where to note what launches reach:
/// `ptx_emu_core::journal::FOLDER`.
const VARIABLE: &str = "PTX_EMU_COVERAGE";
/// The share of instructions that all tests must reach, or that are explained, in percent.
const AIM: u32 = 97;
/// The list of reasons why others are not reached, from the root.
const EXPLAINED: &str = "kernels-gpu/unreached.txt";

/// The folder in which test programs note the instructions that they reach.
fn folder() -> PathBuf {
    run::target().join("coverage")
}

/// Makes the tests' processes note the instructions that they reach. Notes of earlier runs are
/// removed.
pub fn begin(cargo: &mut Cargo) -> Result<()> {
    let folder = folder();
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    cargo.variables.push((VARIABLE, folder));
    Ok(())
}

/// Prints the share of each kernel, and what no test reached and nothing explains. `whole`: all tests
/// have run, so that kernels without a launch are shown, too, and the list of reasons must be right.
///
/// # Errors
/// If, of all tests, too little is reached, or the list is wrong.
pub fn report(whole: bool) -> Result<()> {
    let program = Program::PtxEmu.build(Profile::Release)?;
    let mut command = Command::new(program);
    command.arg("coverage").arg(folder()).arg("--explained").arg(run::root().join(EXPLAINED));
    match whole {
        true => command.args(["--aim", &AIM.to_string()]),
        false => command.arg("--launched"),
    };
    for arch in Arch::compiled() {
        command.args(modules(&run::kernels().join(arch.name()))?);
    }
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    say!("\n{}", String::from_utf8_lossy(&output.stdout));
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) => bail!("less than {AIM} % is reached or explained, or {EXPLAINED} is wrong"),
        _ => bail!("{said}"),
    }
}

/// The modules in a folder, by name.
fn modules(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "ptx")).collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_the_emulators() {
        let source = run::root().join("emulator/ptx-emu-core/src/machine/journal.rs");
        let text = std::fs::read_to_string(&source).expect("the emulator's source");
        assert!(text.contains(&format!("FOLDER: &str = \"{VARIABLE}\"")), "{}", source.display());
    }
}
