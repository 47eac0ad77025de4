//! The layers for mistral.rs, in a package outside the workspace: their tests. Compiling `mistralrs-quant` with all that it is
//! built with takes five minutes of processor time.

use super::Tally;
use super::cargo::Cargo;
use super::gated::Part;
use anyhow::Result;

/// The name of the part, and the filter for it.
pub const NAME: &str = "nvfp4-mistralrs";

/// The tests with what they depend on: the package with the adapter's sources, the library, and the kernels that they launch.
pub fn part() -> Result<Part> {
    let own =
        ["xtask/src/test/mistralrs.rs", "candle/src", "tests/skipped", "tests/data/models/llama"];
    Part::new(NAME, &own).package("candle/mistralrs")?.package("kernels-gpu")
}

/// Runs the tests.
pub fn run(tally: &mut Tally, cargo: &Cargo) -> Result<()> {
    cargo.run_manifest(tally, "candle/mistralrs/Cargo.toml")
}
