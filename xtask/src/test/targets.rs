//! The test programs of the workspace, and which of them a filter needs.

use crate::run;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What `cargo metadata` says of the workspace.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
    test: bool,
}

/// A kind of target that has tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Library,
    Program,
    Integration,
}

/// A program that cargo makes of tests.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its package.
    pub package: String,
    /// Its name.
    pub name: String,
    kind: Kind,
    source: PathBuf,
}

/// A target that a filter needs.
#[derive(Debug)]
pub struct Needed {
    /// The target.
    pub target: Target,
    /// Whether all of its tests are meant.
    pub whole: bool,
}

impl Target {
    /// Whether it is a file of integration tests.
    pub fn is_integration(&self) -> bool {
        self.kind == Kind::Integration
    }

    /// What names it to cargo.
    pub fn arguments(&self) -> Vec<&str> {
        let mut arguments = vec!["--package", &self.package];
        match self.kind {
            Kind::Library => arguments.push("--lib"),
            Kind::Program => arguments.extend(["--bin", &self.name]),
            Kind::Integration => arguments.extend(["--test", &self.name]),
        }
        arguments
    }

    /// Its source files. A library and a program in one folder have the same.
    fn files(&self) -> Vec<PathBuf> {
        let own_folder = match self.kind {
            Kind::Library | Kind::Program => true,
            Kind::Integration => self.source.ends_with("main.rs"),
        };
        match self.source.parent().filter(|_| own_folder) {
            Some(folder) => below(folder),
            None => vec![self.source.clone()],
        }
    }
}

/// Every file below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path()).map(|path| match path.is_dir() {
        true => below(&path),
        false => vec![path],
    });
    files.flatten().collect()
}

/// All of the workspace.
pub fn all() -> Result<Vec<Target>> {
    let output = run::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let mut targets = Vec::new();
    for Package { name: package, targets: described } in metadata.packages {
        for Described { name, kind, src_path: source, test } in described {
            let kind = kind.iter().find_map(|kind| match kind.as_str() {
                "lib" | "proc-macro" => Some(Kind::Library),
                "bin" => Some(Kind::Program),
                "test" => Some(Kind::Integration),
                _ => None,
            });
            if let Some(kind) = kind.filter(|_| test) {
                targets.push(Target { package: package.clone(), name, kind, source });
            }
        }
    }
    Ok(targets)
}

/// Whether a source file has a test that the filter may name: a function, or a module.
fn names(filter: &str, file: &Path) -> bool {
    let last = filter.rsplit("::").next().unwrap_or(filter);
    let Ok(text) = std::fs::read_to_string(file) else { return false };
    if !text.contains("#[test]") && !text.contains("proptest!") {
        return false;
    }
    let named = |line: &str| {
        let name = ["fn ", "mod "].into_iter().find_map(|word| line.trim().strip_prefix(word));
        name.and_then(|name| name.split(['(', '<', ' ', ';']).next())
            .is_some_and(|name| name.contains(last))
    };
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.is_some_and(|stem| stem.contains(last)) || text.lines().any(named)
}

/// Those that have tests which `filter` names: of a package or a file of this name all tests, else
/// the targets in whose source such a test stands.
pub fn needed(filter: &str) -> Result<Vec<Needed>> {
    let targets = all()?;
    let whole: Vec<Target> = targets
        .iter()
        .filter(|target| {
            target.package == filter || target.is_integration() && target.name.contains(filter)
        })
        .cloned()
        .collect();
    let rest = targets.into_iter().filter(|target| {
        let taken = |other: &Target| other.source == target.source;
        !whole.iter().any(taken) && target.files().iter().any(|file| names(filter, file))
    });
    let rest: Vec<Needed> = rest.map(|target| Needed { target, whole: false }).collect();
    Ok(whole.into_iter().map(|target| Needed { target, whole: true }).chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(filter: &str) -> Vec<(String, String, bool)> {
        let needed = needed(filter).expect("cargo metadata");
        needed.into_iter().map(|n| (n.target.package, n.target.name, n.whole)).collect()
    }

    #[test]
    fn a_filter_needs_few_targets() {
        let of = |package: &str, name: &str, whole| (package.to_owned(), name.to_owned(), whole);
        assert_eq!(found("gemm_stores"), [of("nvfp4-tests", "gemm_stores", true)]);
        let both = found("both_ways_give_the_same_bits");
        assert_eq!(both, [of("nvfp4-tests", "gemm_stores", false)]);
        // In a module of a program.
        assert_eq!(found("a_filter_needs_few_targets"), [of("xtask", "xtask", false)]);
        assert!(found("cuda_builder").iter().all(|(package, ..)| package == "cuda_builder"));
        assert_eq!(found("no_test_is_called_so_that_is_sure"), []);
    }
}
