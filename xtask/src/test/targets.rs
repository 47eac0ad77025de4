//! The test programs of the workspace, and which of them a filter needs.

use crate::run;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The parts of `cargo metadata` that are used.
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

/// The parts of a target that a filter names, from most to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// Its package.
    Package,
    /// The file of integration tests that it is.
    File,
    /// Some of its tests.
    Tests,
}

/// A target that a filter needs.
#[derive(Debug)]
pub struct Needed {
    /// The target.
    pub target: Target,
    /// Why.
    pub named: Named,
}

/// The tests of one run of cargo.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// Cargo's arguments.
    pub arguments: Vec<String>,
    /// Whether all of its tests are meant.
    pub whole: bool,
}

impl Target {
    /// Whether it is a file of integration tests.
    pub fn is_integration(&self) -> bool {
        self.kind == Kind::Integration
    }

    /// Returns the arguments that select it in its package.
    fn arguments(&self) -> Vec<String> {
        match self.kind {
            Kind::Library => vec!["--lib".to_owned()],
            Kind::Program => vec!["--bin".to_owned(), self.name.clone()],
            Kind::Integration => vec!["--test".to_owned(), self.name.clone()],
        }
    }

    /// Whether a text stands in its source.
    pub fn mentions(&self, text: &str) -> bool {
        let mentions = |file| std::fs::read_to_string(file).is_ok_and(|all| all.contains(text));
        self.files().iter().any(mentions)
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

/// Returns the targets whose tests `filter` names: all of a package, files of integration tests,
/// and those in whose source such a test stands.
pub fn needed(filter: &str) -> Result<Vec<Needed>> {
    let named = |target: &Target| {
        if target.package == filter {
            Some(Named::Package)
        } else if target.is_integration() && target.name.contains(filter) {
            Some(Named::File)
        } else if target.files().iter().any(|file| names(filter, file)) {
            Some(Named::Tests)
        } else {
            None
        }
    };
    let mut needed: Vec<Needed> = all()?
        .into_iter()
        .filter_map(|target| Some(Needed { named: named(&target)?, target }))
        .collect();
    needed.sort_by_key(|need| need.named);
    Ok(needed)
}

/// How few runs of cargo test those. Files of integration tests and programs are selected in the
/// whole workspace, so that cargo takes their dependencies with the same features as for all tests
/// and does not compile them again.
pub fn selections(needed: &[Needed]) -> Vec<Selection> {
    let mut selections: Vec<Selection> = Vec::new();
    for Needed { target, named } in needed {
        let whole = *named != Named::Tests;
        let in_package = *named == Named::Package || target.kind == Kind::Library;
        let scope: &[&str] = match in_package {
            true => &["--package", &target.package],
            false => &["--workspace"],
        };
        let same = |other: &&mut Selection| {
            other.whole == whole && other.arguments.iter().zip(scope).all(|(a, b)| a == b)
        };
        let own = target.arguments();
        match selections.iter_mut().find(same) {
            // Targets of several packages may have one name.
            Some(other) if other.arguments.windows(own.len()).any(|part| part == own) => {}
            Some(other) => other.arguments.extend(own),
            None => {
                let scope = scope.iter().map(|&argument| argument.to_owned());
                selections.push(Selection { arguments: scope.chain(own).collect(), whole });
            }
        }
    }
    selections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(filter: &str) -> Vec<(String, String, Named)> {
        let needed = needed(filter).expect("cargo metadata");
        needed.into_iter().map(|n| (n.target.package, n.target.name, n.named)).collect()
    }

    #[test]
    fn a_filter_needs_few_targets() {
        let of = |package: &str, name: &str, named| (package.to_owned(), name.to_owned(), named);
        assert_eq!(found("gemm_stores"), [of("nvfp4-tests", "gemm_stores", Named::File)]);
        let both = found("both_ways_give_the_same_bits");
        assert_eq!(both, [of("nvfp4-tests", "gemm_stores", Named::Tests)]);
        // In a module of a program.
        assert_eq!(found("a_filter_needs_few_targets"), [of("xtask", "xtask", Named::Tests)]);
        let package = found("nvfp4-cuda-builder");
        assert!(package.iter().any(|(.., named)| *named == Named::Package));
        for (package, target, named) in package {
            assert_eq!(
                package == "nvfp4-cuda-builder",
                named == Named::Package,
                "{package} {target}"
            );
        }
        // Put together, so that no source has it.
        assert_eq!(found(&["no_test", "is_called_so"].join("_")), []);
    }

    #[test]
    fn a_few_runs_test_what_is_needed() {
        let need = |package: &str, name: &str, kind, named| Needed {
            target: Target {
                package: package.to_owned(),
                name: name.to_owned(),
                kind,
                source: PathBuf::new(),
            },
            named,
        };
        let needed = [
            need("p", "p", Kind::Library, Named::Package),
            need("p", "a", Kind::Integration, Named::Package),
            need("q", "b", Kind::Integration, Named::File),
            need("r", "b", Kind::Integration, Named::File),
            need("r", "c", Kind::Integration, Named::File),
            need("r", "r", Kind::Library, Named::Tests),
            need("r", "d", Kind::Program, Named::Tests),
        ];
        let runs: Vec<(String, bool)> = selections(&needed)
            .into_iter()
            .map(|selection| (selection.arguments.join(" "), selection.whole))
            .collect();
        let expected = [
            ("--package p --lib --test a", true),
            ("--workspace --test b --test c", true),
            ("--package r --lib", false),
            ("--workspace --bin d", false),
        ];
        assert_eq!(runs, expected.map(|(arguments, whole)| (arguments.to_owned(), whole)));
    }
}
