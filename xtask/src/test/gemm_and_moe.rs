//! The test programs of GEMMs and of mixtures of experts: every configuration with every option against the
//! oracle and against the recorded checksums, budgets, and whole shapes of a contest. They take longer than all
//! other tests together, and their results are the same where the PTX of the kernels, the emulator, the library
//! and the tests are.

use super::Tally;
use super::cargo::Cargo;
use super::gated::Part;
use super::mutants;
use anyhow::Result;

/// The name of the part.
pub const NAME: &str = "gemm-and-moe";
/// The test programs.
pub const PROGRAMS: [&str; 2] = ["gemm", "moe"];

/// The programs with what they depend on: their package with all that it is built with, and the kernels' PTX.
pub fn part() -> Result<Part> {
    let own = ["xtask/src/test/gemm_and_moe.rs"];
    let others: Vec<&str> =
        mutants::PROGRAMS.into_iter().filter(|name| !PROGRAMS.contains(name)).collect();
    Part::new(NAME, &own).package_without("tests", &others)?.compiled_kernels()
}

/// Runs the programs but for their mutation checks, which are a part of their own.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    let programs = PROGRAMS.into_iter().flat_map(|program| ["--test", program]);
    let targets: Vec<&str> = ["--workspace"].into_iter().chain(programs).collect();
    cargo.run(tally, &targets, &mutants::left_out()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::targets;

    /// A program of another package would run only where this part does, whatever it depends on.
    #[test]
    fn the_programs_are_of_one_package() {
        let all = targets::all().expect("cargo metadata");
        for name in PROGRAMS {
            let of_name =
                all.iter().filter(|target| target.is_integration() && target.name == name);
            let packages: Vec<&str> = of_name.map(|target| target.package.as_str()).collect();
            assert_eq!(packages, ["nvfp4-tests"], "{name}");
        }
    }
}
