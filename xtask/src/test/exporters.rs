//! `test --exporters`: what ModelOpt, llmcompressor, TorchAO, Quark, AutoRound and mlx-lm write is converted, and what
//! is written here is read by their loaders. `tests/exporters` has the suite, in Python.

use super::Tally;
use crate::run::{self, Profile, Program};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environments, each with a file of requirements: transformers has a different version in each.
const ENVIRONMENTS: [&str; 3] = ["modelopt", "llmcompressor", "current"];
/// The packages that all of them have, PyTorch above all, are installed once.
const COMMON: &str = "common";
/// The beginning of the suite's last line.
const TOTALS: &str = "exporters:";
/// Packages whose versions the table names.
const NAMED: [&str; 11] = [
    "nvidia-modelopt",
    "llmcompressor",
    "compressed-tensors",
    "torchao",
    "amd-quark",
    "auto-round",
    "mlx",
    "mlx-lm",
    "gguf",
    "transformers",
    "torch",
];

/// The suite's folder.
fn suite() -> PathBuf {
    run::root().join("tests/exporters")
}

/// The folder of the environments and the checkpoints.
fn work() -> PathBuf {
    run::target().join("exporters")
}

/// Runs the suite, or says why not.
pub fn run(tally: &mut Tally, offline: bool) -> Result<()> {
    let program = Program::Nvfp4.build(Profile::Release)?;
    let environments = match environments(offline) {
        Ok(environments) => environments,
        Err(why) => {
            tally.skip("exporters and their loaders", &format!("{why:#}"));
            return Ok(());
        }
    };
    let mut child = Command::new("python3")
        .arg(suite().join("suite.py"))
        .args([OsStr::new("--nvfp4"), program.as_os_str()])
        .args([OsStr::new("--work"), work().join("checkpoints").as_os_str()])
        .args([OsStr::new("--envs"), environments.as_os_str()])
        .stdout(Stdio::piped())
        .spawn()
        .context("running python3")?;
    let mut totals = None;
    for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
        let line = line.context("reading the suite's output")?;
        say!("{line}");
        totals = line.strip_prefix(TOTALS).map(str::to_owned).or(totals);
    }
    let status = child.wait().context("waiting for the suite")?;
    let [passed, failed] = totals.as_deref().and_then(counts).unwrap_or_default();
    tally.passed += passed;
    tally.failed += failed;
    if !status.success() && failed == 0 {
        say!("step exporters and their loaders ... FAILED: {status}");
        tally.failed += 1;
    }
    Ok(())
}

/// Passed and failed of "N passed, M failed".
fn counts(totals: &str) -> Option<[usize; 2]> {
    let (passed, failed) = totals.trim().strip_suffix(" failed")?.split_once(" passed, ")?;
    Some([passed.parse().ok()?, failed.parse().ok()?])
}

/// The folder of the environments, each with what its requirements say.
fn environments(offline: bool) -> Result<PathBuf> {
    let folder = work().join("environments");
    let common = environment(&folder, COMMON, None, offline)?;
    for name in ENVIRONMENTS {
        environment(&folder, name, Some(&common), offline)?;
    }
    let versions: Vec<String> = ENVIRONMENTS.into_iter().map(versions).collect::<Result<_>>()?;
    let path = folder.join("versions.txt");
    std::fs::write(&path, versions.join("\n")).with_context(|| format!("{}", path.display()))?;
    Ok(folder)
}

/// The named packages of an environment.
fn versions(environment: &str) -> Result<String> {
    let all = [requirements(COMMON)?, requirements(environment)?].concat();
    let named =
        |line: &&str| line.split_once("==").is_some_and(|(package, _)| NAMED.contains(&package));
    let named: Vec<String> =
        all.lines().filter(named).map(|line| line.replace("==", " ")).collect();
    Ok(named.join(", "))
}

/// The text of a file of requirements.
fn requirements(name: &str) -> Result<String> {
    let path = suite().join(format!("requirements/{name}.txt"));
    std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
}

/// Makes an environment unless it is there with these requirements; returns the folder of its
/// packages. It sees those of the folder `common`, too.
fn environment(folder: &Path, name: &str, common: Option<&Path>, offline: bool) -> Result<PathBuf> {
    let here = folder.join(name);
    let wanted = requirements(name)?;
    let stamp = here.join("installed.txt");
    if std::fs::read_to_string(&stamp).ok().as_ref() == Some(&wanted) {
        return packages(&here);
    }
    ensure!(!offline, "--offline, and the environment {name} is not here");
    note!("installing {} packages for {name} from PyPI", wanted.lines().count());
    python("python3".as_ref(), &["-m", "venv", "--clear"], &here)?;
    let installed = packages(&here)?;
    if let Some(common) = common {
        let link = installed.join("common.pth");
        std::fs::write(&link, common.as_os_str().as_encoded_bytes())
            .with_context(|| format!("{}", link.display()))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"];
    let file = suite().join(format!("requirements/{name}.txt"));
    python(&here.join("bin/python"), &pip, &file)?;
    std::fs::write(&stamp, wanted).with_context(|| format!("{}", stamp.display()))?;
    Ok(installed)
}

/// The folder of an environment's packages.
fn packages(environment: &Path) -> Result<PathBuf> {
    let library = environment.join("lib");
    let entries = std::fs::read_dir(&library).with_context(|| format!("{}", library.display()))?;
    let found = entries.flatten().map(|entry| entry.path().join("site-packages"));
    found.into_iter().find(|path| path.is_dir()).context("an environment without site-packages")
}

/// Runs Python; what it says goes into the error if it fails.
pub(super) fn python(python: &Path, flags: &[&str], last: &Path) -> Result<()> {
    let out = Command::new(python)
        .args(flags)
        .arg(last)
        .output()
        .with_context(|| format!("running {}", python.display()))?;
    if !out.status.success() {
        let message = String::from_utf8_lossy(&out.stderr);
        bail!("python3 failed ({}): {}", out.status, message.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        assert_eq!(counts(" 12 passed, 3 failed"), Some([12, 3]));
        assert_eq!(counts("12 passed"), None);
    }

    #[test]
    fn requirements_are_pinned_and_of_one_version() {
        let common = requirements(COMMON).expect("a file");
        for name in ENVIRONMENTS {
            let own = requirements(name).expect("a file");
            let packages: Vec<&str> = common
                .lines()
                .chain(own.lines())
                .map(|line| line.split_once("==").expect("a pinned version").0)
                .collect();
            let distinct: std::collections::BTreeSet<&&str> = packages.iter().collect();
            assert_eq!(distinct.len(), packages.len(), "{name}");
            assert!(versions(name).expect("files").contains("transformers "), "{name}");
        }
    }
}
