//! The mutation checks: each synchronisation of a kernel, or of the emulator's own programs, is removed or
//! weakened, and the tests must notice. Every mutant that survives runs under all schedules, so that these
//! tests take as long as most others together.

use super::Tally;
use super::cargo::Cargo;
use super::gated::Part;
use anyhow::Result;

/// The name of the part.
pub const NAME: &str = "mutants";
/// The part of their names that these tests have in common: the end of their modules' names.
const TESTS: &str = "mutants::";

/// Arguments of a test program that leave these tests out.
pub fn left_out() -> impl Iterator<Item = String> {
    ["--skip", TESTS].into_iter().map(str::to_owned)
}

/// The tests with what they depend on: the tests' package and the emulator's, with all that they are built with,
/// and the kernels.
pub fn part() -> Result<Part> {
    let own = ["xtask/src/test/mutants.rs", "kernels-gpu/equivalent-mutants.txt"];
    Part::new(NAME, &own).package("tests")?.package("emulator/ptx-emu")?.package("kernels-gpu")
}

/// Runs the tests.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    cargo.run(tally, &["--workspace"], &[TESTS.to_owned()]).map(|_| ())
}
