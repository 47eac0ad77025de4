//! The test that a crate outside the workspace builds and runs. It compiles the library and all that it is built
//! with once more, without this workspace's settings.

use super::Tally;
use super::cargo::{self, Cargo};
use super::gated::Part;
use anyhow::Result;

/// The name of the part.
pub const NAME: &str = "outside-crate";
/// The part of its name that the test has: its module.
const TESTS: &str = "outside_crate::";

/// Arguments of a test program that leave the test out.
pub fn left_out() -> [String; 2] {
    cargo::without(TESTS)
}

/// The test with what it depends on: the library with all that it is built with, and the kernels that are in it.
pub fn part() -> Result<Part> {
    let own = ["xtask/src/test/outside.rs", "tests/library/outside_crate.rs"];
    Part::new(NAME, &own).package("host")?.package("kernels-gpu")
}

/// Runs the test.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    cargo.run(tally, &["--workspace", "--test", "library"], &[TESTS.to_owned()]).map(|_| ())
}
