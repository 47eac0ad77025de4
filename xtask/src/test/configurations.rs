//! The tests that run every configuration of the GEMMs: with every option against the oracle, and against the
//! recorded checksums; and whole shapes of a contest. They take as long as all other tests together, and
//! their results are the same where the PTX of the kernels, the emulator, the library and the tests are.

use super::Tally;
use super::cargo::Cargo;
use super::gated::Part;
use anyhow::Result;

/// The name of the part.
pub const NAME: &str = "every-configuration";
/// The parts of names that these tests have.
const TESTS: [&str; 5] = [
    "every_configuration",
    "every_gated_configuration",
    "every_grouped_configuration",
    "every_mixed_configuration",
    "dual_shapes_of_",
];

/// Arguments of a test program that leave these tests out.
pub fn left_out() -> impl Iterator<Item = String> {
    TESTS.into_iter().flat_map(|test| ["--skip".to_owned(), test.to_owned()])
}

/// The tests with what they depend on: their package with all that it is built with, and the kernels' PTX.
pub fn part() -> Result<Part> {
    let own = ["xtask/src/test/configurations.rs"];
    Part::new(NAME, &own).package("tests")?.compiled_kernels()
}

/// Runs the tests.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    cargo.run(tally, &["--workspace"], &TESTS.map(str::to_owned)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::targets;

    /// Tests elsewhere would be left out whenever theirs are, whatever they depend on.
    #[test]
    fn the_tests_are_of_one_package() {
        for name in TESTS {
            let needed = targets::needed(name).expect("cargo metadata");
            let packages = needed.iter().map(|need| need.target.package.as_str());
            // Here stands the name itself.
            let packages: Vec<&str> = packages.filter(|package| *package != "xtask").collect();
            assert!(!packages.is_empty(), "{name} names no test");
            assert!(
                packages.iter().all(|package| *package == "nvfp4-tests"),
                "{name}: {packages:?}"
            );
        }
    }
}
