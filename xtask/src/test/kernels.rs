//! The compiled kernels themselves: their synchronising instructions, the same by every accepted compiler,
//! and their machine code.

use super::gated::Part;
use super::{Setting, Tally};
use crate::build_kernels::{self, Assembler};
use crate::counts::{self, FILE as COUNTS};
use crate::run::tools;
use anyhow::{Context, Result};
use cuda_builder::{Compiler, Fetch, nvdisasm};

/// The filter that names the compilation by compilers other than the one that is used.
pub const OTHER_COMPILERS: &str = "other-compilers";
/// The filter that names the check of the machine code.
pub const MACHINE_CODE: &str = "machine-code";

/// Checks that the kernels, as they are compiled for all tests, have the expected synchronising instructions.
pub fn synchronise_as_expected(tally: &mut Tally) {
    for arch in counts::counted() {
        let name = format!("synchronising instructions of the kernels for {arch}");
        let result = counts::built(arch).and_then(|counts| counts::check(arch, &counts));
        tally.step(&name, result);
    }
}

/// The accepted compilers of this machine but for the one that is used.
fn others() -> Result<Vec<Compiler>> {
    let default = Compiler::find(Fetch::Allowed)?;
    Ok(Compiler::all().into_iter().filter(|compiler| compiler.rustc != default.rustc).collect())
}

/// The other compilers, and what they compile and are judged by.
pub fn by_other_compilers() -> Result<Part> {
    let sources = ["cuda_builder", "delivery/build", "xtask/src/counts.rs", COUNTS];
    let part = Part::new(OTHER_COMPILERS, &sources).package("kernels-gpu")?;
    Ok(others()?.iter().fold(part, |part, compiler| part.tool(compiler.describe())))
}

/// Every accepted compiler but the one that is used builds the kernels, and each result keeps the
/// contract that `cuda_builder` checks and has the expected synchronising instructions.
pub fn other_compilers(tally: &mut Tally, _: &Setting) -> Result<()> {
    for compiler in others()? {
        for arch in counts::counted() {
            let name = format!("kernels for {arch} with rustc {}", compiler.release);
            let result = counts::compiled(arch, &compiler);
            tally.step(&name, result.and_then(|counts| counts::check(arch, &counts)));
        }
    }
    let default = Compiler::find(Fetch::Allowed)?;
    let all = Compiler::all();
    for (wanted, origin) in
        [("rustup's toolchain", "active toolchain"), ("Debian's rustc-web", "Debian's rustc-web")]
    {
        if all.iter().all(|c| c.origin != origin) {
            tally.skip(
                &format!("kernels with {wanted}"),
                &format!("not on this machine; used {}", default.describe()),
            );
        }
    }
    Ok(())
}

/// ptxas, installed first if there is none and that is allowed: tests use it, too.
fn assembler(offline: bool) -> Result<Assembler> {
    match offline {
        true => {
            Assembler::find(&tools()).and_then(|found| found.context("no ptxas, and --offline"))
        }
        false => Assembler::find_or_install(&tools()),
    }
}

/// The machine code, with what it is made of: the PTX that stands in `target/kernels` itself, and ptxas. A
/// test of the emulator reads the machine code where there is a disassembler.
pub fn machine_code_of(setting: &Setting) -> Result<Part> {
    let read_by = ["emulator/ptx-emu/src/bound", "emulator/ptx-emu/tests/bound_cli.rs"];
    let made_by = ["cuda_builder/src", "delivery/build/src", "xtask/src/test/kernels.rs"];
    let part = Part::new(MACHINE_CODE, &[&read_by[..], &made_by[..]].concat());
    let part = part.compiled_kernels()?.tool(match assembler(setting.offline) {
        Ok(assembler) => assembler.name,
        Err(why) => format!("no ptxas: {why:#}"),
    });
    Ok(match nvdisasm::find(&tools()) {
        Some(_) => part.tool("nvdisasm"),
        None => part,
    })
}

/// ptxas accepts every kernel and none goes through local memory.
pub fn machine_code(tally: &mut Tally, setting: &Setting) -> Result<()> {
    let assembler = match assembler(setting.offline) {
        Ok(assembler) => assembler,
        Err(why) => {
            tally.skip("machine code", &format!("{why:#}"));
            return Ok(());
        }
    };
    match build_kernels::with_machine_code(&assembler) {
        Ok(manifests) => {
            for manifest in manifests {
                let name = format!("machine code for {}", manifest.arch);
                tally.step(&name, build_kernels::no_faults(&manifest));
            }
        }
        Err(error) => tally.step("machine code", Err(error)),
    }
    Ok(())
}
