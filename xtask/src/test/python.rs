//! The Python module of the emulator, which is outside the workspace: its lints, its wheel, and its tests
//! with NumPy in a virtual environment.

use super::exporters::python;
use super::gated::Part;
use super::{Skipped, Tally};
use crate::run;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name of the steps, and the filter for them.
pub const NAME: &str = "ptx-emu-python";
/// Prints the version, if virtual environments can be made.
const PROBE: &str = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')";
/// The oldest version that wheels are for.
const OLDEST: [u32; 2] = [3, 9];

/// The package's folder.
fn package() -> PathBuf {
    run::root().join("emulator").join(NAME)
}

/// The folder of the environment and the wheel.
fn work() -> PathBuf {
    run::target().join("python")
}

/// The steps with what they depend on: the package and the emulator, and the programs that the tests run.
pub fn part() -> Result<Part> {
    let programs = ["emulator/ptx-emu/examples", "emulator/ptx-emu-core/tests/findings/triton"];
    let own = ["xtask/src/test/python.rs"];
    let python = version().unwrap_or_else(|why| format!("no Python: {why:#}"));
    let part =
        Part::new(NAME, &[&own[..], &programs[..]].concat()).tool(format!("Python {python}"));
    part.package(&format!("emulator/{NAME}"))
}

/// Runs all steps, or says why not.
pub fn run(tally: &mut Tally, offline: bool) -> Result<()> {
    let environment = match environment(offline) {
        Ok(environment) => environment,
        Err(why) => {
            tally.skip(NAME, &format!("{why:#}"));
            return Ok(());
        }
    };
    let interpreter = environment.join("bin/python");
    tally.step(&format!("{NAME}: clippy"), clippy(&interpreter));
    let installed = wheel(&environment, &interpreter).and_then(|wheel| {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let again = ["--force-reinstall", "--no-deps"];
        python(&interpreter, &[&pip[..], &again[..]].concat(), &wheel)
    });
    let built = installed.is_ok();
    tally.step(&format!("{NAME}: wheel"), installed);
    match built {
        true => pytest(tally, &interpreter),
        false => Ok(()),
    }
}

/// The environment with the packages of `tests/requirements.txt`, made unless it is there.
fn environment(offline: bool) -> Result<PathBuf> {
    let version = version()?;
    let requirements = package().join("tests/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements)
        .with_context(|| requirements.display().to_string())?;
    let wanted = format!("Python {version}\n{wanted}");
    let here = work().join("environment");
    let stamp = here.join("installed.txt");
    if std::fs::read_to_string(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(here);
    }
    ensure!(!offline, "--offline, and its virtual environment is not here");
    note!("installing maturin, NumPy and pytest from PyPI in {}", here.display());
    python("python3".as_ref(), &["-m", "venv", "--clear"], &here)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    python(&here.join("bin/python"), &pip, &requirements).context("pip install")?;
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(here)
}

/// The version of `python3`, if it can do what is needed.
fn version() -> Result<String> {
    let out = Command::new("python3").args(["-c", PROBE]).output().context("running python3")?;
    if !out.status.success() {
        let message = String::from_utf8_lossy(&out.stderr);
        let last = message.trim().lines().last().unwrap_or_default().to_owned();
        bail!("python3 makes no virtual environments: {last}");
    }
    let version = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    let [major, minor] = OLDEST;
    let old = parsed(&version).is_none_or(|version| version < OLDEST);
    ensure!(!old, "python3: required {major}.{minor} or later, actual {version}");
    Ok(version)
}

/// Major and minor of `3.11`.
fn parsed(version: &str) -> Option<[u32; 2]> {
    let (major, minor) = version.split_once('.')?;
    Some([major.parse().ok()?, minor.parse().ok()?])
}

fn clippy(interpreter: &Path) -> Result<()> {
    let mut clippy = run::cargo();
    clippy.args(["clippy", "--release", "--quiet", "--all-targets", "--manifest-path"]);
    clippy.arg(package().join("Cargo.toml")).args(["--", "-Dwarnings"]);
    // Otherwise PyO3 looks for an interpreter itself.
    let status = clippy.env("PYO3_PYTHON", interpreter).status().context("running cargo clippy")?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Builds the wheel; its path.
fn wheel(environment: &Path, interpreter: &Path) -> Result<PathBuf> {
    let folder = work().join("wheel");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let status = Command::new(environment.join("bin/maturin"))
        .args(["build", "--release", "--quiet", "--locked", "--interpreter"])
        .arg(interpreter)
        .arg("--manifest-path")
        .arg(package().join("Cargo.toml"))
        .arg("--out")
        .arg(&folder)
        .status()
        .context("running maturin")?;
    ensure!(status.success(), "maturin: {status}");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    entries.flatten().map(|entry| entry.path()).next().context("maturin left no wheel")
}

/// Runs the tests, and adds up what came of them.
fn pytest(tally: &mut Tally, interpreter: &Path) -> Result<()> {
    let mut child = Command::new(interpreter)
        .args(["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider"])
        .arg(package().join("tests"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .spawn()
        .context("running pytest")?;
    let mut totals = [0; 3];
    let mut named = Vec::new();
    for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
        let line = line.context("reading pytest's output")?;
        say!("{line}");
        totals = counts(&line).unwrap_or(totals);
        named.extend(skipped(&line));
    }
    let status = child.wait().context("waiting for pytest")?;
    let [passed, failed, skipped] = totals;
    tally.passed += passed;
    tally.failed += failed;
    let unnamed = skipped.saturating_sub(named.len());
    named.extend(std::iter::repeat_n((format!("{NAME}: a test"), "not said".to_owned()), unnamed));
    tally.skipped.extend(named.into_iter().map(|(name, reason)| Skipped { name, reason }));
    // No test at all is a failure, too.
    if failed == 0 && (!status.success() || passed == 0) {
        say!("step {NAME}: pytest ... FAILED: {status}, {passed} passed");
        tally.failed += 1;
    }
    Ok(())
}

/// The tests that a line of pytest's list says are skipped, with the reason: `SKIPPED [2] tests/a.py:3: no Triton`
/// is of two.
fn skipped(line: &str) -> Vec<(String, String)> {
    let parsed = || {
        let (count, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
        let (place, reason) = rest.split_once(": ")?;
        let test = (format!("{NAME}: {place}"), reason.to_owned());
        Some(vec![test; count.parse().ok()?])
    };
    parsed().unwrap_or_default()
}

/// Passed, failed and skipped of pytest's last line: `1 failed, 12 passed, 2 skipped in 0.5s`.
fn counts(line: &str) -> Option<[usize; 3]> {
    let (parts, _) = line.trim_matches(['=', ' ']).split_once(" in ")?;
    let mut counts = [0; 3];
    for part in parts.split(", ") {
        let (count, what) = part.split_once(' ')?;
        let count: usize = count.parse().ok()?;
        match what {
            "passed" => counts[0] += count,
            "failed" | "error" | "errors" => counts[1] += count,
            "skipped" => counts[2] += count,
            _ => {}
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        assert_eq!(counts("138 passed in 1.05s"), Some([138, 0, 0]));
        let line = "== 1 failed, 12 passed, 2 skipped, 1 warning, 3 errors in 61.0s (0:01:01) ==";
        assert_eq!(counts(line), Some([12, 4, 2]));
        assert_eq!(counts("no tests ran in 0.01s"), None);
        assert_eq!(counts("SKIPPED [1] tests/a.py:3: not in this version"), None);
    }

    #[test]
    fn skipped_tests_are_named() {
        let test = |place: &str| (format!("{NAME}: {place}"), "no Triton: it is large".to_owned());
        let line = "SKIPPED [2] tests/a.py:3: no Triton: it is large";
        assert_eq!(skipped(line), [test("tests/a.py:3"), test("tests/a.py:3")]);
        assert_eq!(skipped("138 passed in 1.05s"), []);
    }

    #[test]
    fn requirements_are_pinned() {
        let path = package().join("tests/requirements.txt");
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.contains("==")), "{text}");
    }

    #[test]
    fn versions_are_in_the_order_of_their_numbers() {
        assert!(parsed("3.11").is_some_and(|version| version > OLDEST));
        assert!(parsed("3.8").is_some_and(|version| version < OLDEST));
        assert_eq!(parsed("three"), None);
    }
}
