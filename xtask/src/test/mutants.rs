//! The mutation checks: each synchronisation of a kernel, or of the emulator's own programs, is removed or
//! weakened, and the tests must notice. Every mutant that survives runs under all schedules, so that these
//! tests take as long as most others together.

use super::Tally;
use super::cargo::{self, Cargo};
use super::gated::Part;
use anyhow::Result;

/// The name of the part.
pub const NAME: &str = "mutants";
/// The part of their names that these tests have in common: the end of their modules' names.
const TESTS: &str = "mutants::";

/// Arguments of a test program that leave these tests out.
pub fn left_out() -> [String; 2] {
    cargo::without(TESTS)
}

/// The modules of the kernels' mutation checks. They use nothing of the test programs that they are in.
const MODULES: [&str; 4] = [
    "tests/attention/mutants.rs",
    "tests/gemm/mutants.rs",
    "tests/library/mutants.rs",
    "tests/moe/expert_mutants.rs",
];
/// The folders and files of the test programs, in the tests' package.
pub const PROGRAMS: [&str; 10] = [
    "attention",
    "exporters",
    "gemm",
    "gemm_hang.rs",
    "gemv",
    "graphs",
    "library",
    "moe",
    "quantize",
    "quick.rs",
];

/// The tests with what they depend on: their modules, the tests' library and the emulator's package, with all that
/// they are built with, and the kernels.
pub fn part() -> Result<Part> {
    let own = ["xtask/src/test/mutants.rs", "kernels-gpu/equivalent-mutants.txt"];
    let all: Vec<&str> = own.into_iter().chain(MODULES).collect();
    let part = Part::new(NAME, &all).package_without("tests", &PROGRAMS)?;
    part.package("emulator/ptx-emu")?.package("kernels-gpu")
}

/// Runs the tests.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    cargo.run(tally, &["--workspace"], &[TESTS.to_owned()]).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The modules of mutation checks below a folder.
    fn found(folder: &Path, files: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                found(&path, files);
            } else if name.ends_with("mutants.rs") {
                let inner = path.strip_prefix(crate::run::root()).expect("inside");
                files.push(inner.to_string_lossy().into_owned());
            }
        }
    }

    #[test]
    fn modules_use_nothing_beside_them() {
        let mut files = Vec::new();
        found(&crate::run::root().join("tests"), &mut files);
        files.sort();
        assert_eq!(files, MODULES);
        for file in MODULES {
            let text = std::fs::read_to_string(crate::run::root().join(file)).expect("a module");
            assert!(!text.contains("super::") && !text.contains("crate::"), "{file}");
        }
    }
}
