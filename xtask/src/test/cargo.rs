//! Tests as `cargo test` runs them, counted and timed.

use super::Tally;
use crate::run;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A runner that starts each test program in an environment where it takes the flags of [`TIMED`]:
/// the time of a test is an unstable feature of the test harness. Cargo compiles the same with it.
const RUNNER: &str = r#"target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]"#;
/// Flags with which a test program reports how long each test took.
const TIMED: [&str; 2] = ["-Zunstable-options", "--report-time"];

/// Tells tests where the real model is.
pub const MODEL_VARIABLE: &str = "NVFP4_TEST_MODEL";

/// How tests are run.
#[derive(Default)]
pub struct Cargo {
    /// The real model, if it is there.
    pub model: Option<PathBuf>,
    /// nvcc, if it is here.
    pub nvcc: Option<PathBuf>,
    /// Chromium, if it is here.
    pub chromium: Option<PathBuf>,
    /// Variables that name folders.
    pub variables: Vec<(&'static str, PathBuf)>,
}

impl Cargo {
    /// `cargo test` with its environment.
    fn command(&self) -> Command {
        let mut tests = run::cargo();
        tests
            .args(["test", "--release"])
            .env("NVFP4_KERNELS_DIR", run::kernels())
            // A tuning table of this machine is no part of the test.
            .env("NVFP4_TUNE", "off");
        for (name, folder) in &self.variables {
            tests.env(name, folder);
        }
        if let Some(model) = &self.model {
            tests.env(MODEL_VARIABLE, model);
        }
        if let Some(nvcc) = &self.nvcc {
            tests.env(super::nvcc::VARIABLE, nvcc);
        }
        if let Some(chromium) = &self.chromium {
            tests.env(super::browser::VARIABLE, chromium);
        }
        tests
    }

    /// Runs the test programs that `targets` say, and of their tests those that `filter` names.
    /// Whether any test was run, or could not be.
    pub fn run<T: AsRef<str>>(
        &self,
        tally: &mut Tally,
        targets: &[T],
        filter: Option<&str>,
    ) -> Result<bool> {
        let targets: Vec<&str> = targets.iter().map(AsRef::as_ref).collect();
        let before = tally.outcomes();
        let mut command = self.command();
        command.args(["--config", RUNNER, "--no-fail-fast"]).args(&targets);
        // Without a kind of target, cargo would run examples in documentation, too, whose harness
        // does not take the flags.
        if !targets.iter().any(|of| KINDS.contains(of)) {
            command.args(["--lib", "--bins", "--tests", "--examples"]);
        }
        command.arg("--").args(TIMED).args(filter);
        outcome(tally, command)?;
        Ok(tally.outcomes() > before)
    }

    /// Runs all tests of a package outside the workspace.
    pub fn run_manifest(&self, tally: &mut Tally, manifest: &str) -> Result<()> {
        let mut command = self.command();
        command.args(["--no-fail-fast", "--manifest-path", manifest]);
        outcome(tally, command)
    }

    /// Runs the examples in documentation.
    pub fn run_documentation(&self, tally: &mut Tally) -> Result<()> {
        let mut command = self.command();
        command.args(["--workspace", "--no-fail-fast", "--doc"]);
        outcome(tally, command)
    }
}

/// Arguments of cargo that name a kind of target.
const KINDS: [&str; 4] = ["--lib", "--bin", "--bins", "--test"];

/// Shows what a command prints, and adds up its tests.
fn outcome(tally: &mut Tally, mut command: Command) -> Result<()> {
    // Both streams in one, so that what cargo says of a program comes before its tests.
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let mut child = command.spawn().context("running cargo test")?;
    // Its copies of the writer would keep the pipe open.
    drop(command);
    let (mut summaries, failed) = (0, tally.failed);
    let mut program = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("reading cargo test's output")?;
        let line = String::from_utf8_lossy(&line);
        say!("{line}");
        if let Some(name) = program_of(&line) {
            program = name;
        } else if let Some((seconds, test)) = time_of(&line) {
            tally.times.push((seconds, format!("{program}::{test}")));
        } else if let Some(summary) = line.strip_prefix("test result:") {
            summaries += 1;
            tally.passed += count(summary, "passed");
            tally.failed += count(summary, "failed");
            tally.skipped += count(summary, "ignored");
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    // A failure that no summary shows: a compile error, an abort.
    if !status.success() && tally.failed == failed || summaries == 0 {
        say!("step cargo test ... FAILED: {status}, {summaries} summaries");
        tally.failed += 1;
    }
    Ok(())
}

/// The program that cargo says it runs.
fn program_of(line: &str) -> Option<String> {
    let (_, path) = line.trim_start().strip_prefix("Running ")?.rsplit_once('(')?;
    let stem = Path::new(path.strip_suffix(')')?).file_stem()?.to_string_lossy().into_owned();
    // Behind the last hyphen is cargo's hash.
    Some(stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_owned()))
}

/// Seconds and name of a test that has ended.
fn time_of(line: &str) -> Option<(f64, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let seconds = outcome.rsplit_once('<')?.1.strip_suffix("s>")?;
    Some((seconds.parse().ok()?, name))
}

/// The number before `what;` in cargo's summary.
fn count(summary: &str, what: &str) -> usize {
    summary
        .split(';')
        .filter_map(|part| part.trim().strip_suffix(what))
        .filter_map(|number| number.split_whitespace().last()?.parse::<usize>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_added_up() {
        let line =
            " ok. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            (count(line, "passed"), count(line, "failed"), count(line, "ignored")),
            (12, 3, 4)
        );
    }

    #[test]
    fn tests_are_timed() {
        let line = "     Running tests/gemv.rs (target/release/deps/gemv-227a7bb0da264bf1)";
        assert_eq!(program_of(line).as_deref(), Some("gemv"));
        assert_eq!(program_of("   Doc-tests nvfp4"), None);
        assert_eq!(time_of("test a::b ... ok <1.25s>"), Some((1.25, "a::b")));
        assert_eq!(
            time_of("test a - should panic ... FAILED <0.001s>"),
            Some((0.001, "a - should panic"))
        );
        assert_eq!(time_of("test a::b ... ok"), None);
        assert_eq!(time_of("test result: ok. 1 passed"), None);
    }
}
