//! The test programs of the workspace, and which of them a filter needs.

use crate::run;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The parts of `cargo metadata` that are used.
#[derive(Deserialize)]
pub struct Metadata {
    packages: Vec<Package>,
}

/// A package of a workspace.
#[derive(Deserialize)]
pub struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Described>,
    dependencies: Vec<Dependency>,
}

/// A package that another one depends on.
#[derive(Deserialize)]
pub struct Dependency {
    /// Its folder, if it is named by that.
    path: Option<PathBuf>,
    /// `dev`, `build` or nothing.
    kind: Option<String>,
}

impl Metadata {
    /// The packages of this workspace, or of that of another manifest.
    pub fn read(manifest: Option<&Path>) -> Result<Self> {
        let mut cargo = run::cargo();
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
        if let Some(manifest) = manifest {
            cargo.arg("--manifest-path").arg(manifest);
        }
        let output = cargo.output().context("running cargo metadata")?;
        let message = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "cargo metadata: {}", message());
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")
    }

    /// The package in a folder.
    pub fn package_in(&self, folder: &Path) -> Option<&Package> {
        self.packages.iter().find(|package| package.manifest_path.parent() == Some(folder))
    }
}

impl Package {
    /// The folders of those dependencies that `used` takes and that are named by their folders.
    pub fn folders_of(
        &self,
        used: impl FnMut(&&Dependency) -> bool,
    ) -> impl Iterator<Item = PathBuf> {
        self.dependencies.iter().filter(used).filter_map(|dependency| dependency.path.clone())
    }
}

impl Dependency {
    /// Whether only tests, benches and examples use it.
    pub fn is_for_tests(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// Its package.
    Package,
    /// The program of integration tests that it is.
    Program,
    /// Some of its tests: those whose names have one of these parts.
    Tests(Vec<String>),
}

/// A target that a filter needs.
#[derive(Debug)]
pub struct Needed {
    /// The target.
    pub target: Target,
    /// The reason.
    pub named: Named,
    /// The source files of the tests.
    files: Vec<PathBuf>,
}

impl Needed {
    /// Whether a text stands in the tests' source.
    pub fn mentions(&self, text: &str) -> bool {
        let mentions = |file| std::fs::read_to_string(file).is_ok_and(|all| all.contains(text));
        self.files.iter().any(mentions)
    }
}

/// The tests of one run of cargo.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// Cargo's arguments.
    pub arguments: Vec<String>,
    /// Parts of tests' names, one of which a test must have; none: all tests are meant.
    pub filters: Vec<String>,
}

impl Target {
    /// Whether it is a program of integration tests.
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

    /// The module of a program of integration tests that a file is, `a::b`; `None` for its root.
    fn module(&self, file: &Path) -> Option<String> {
        let folder = self.source.parent().filter(|_| self.is_integration())?;
        let inner = file.strip_prefix(folder).ok().filter(|_| file != self.source)?;
        let parts = inner.with_extension("");
        let parts: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
        let parts = parts.strip_suffix(&["mod".into()]).unwrap_or(&parts);
        Some(parts.join("::"))
    }

    /// The part of a file's tests that the filter names, if any: all, in a module of that name, or those that
    /// have it in theirs. A module goes by the program's name and its own, `program_module`.
    fn part(&self, filter: &str, file: &Path) -> Option<String> {
        let text = std::fs::read_to_string(file).ok().filter(|text| has_tests(text))?;
        let module = self.module(file).filter(|module| {
            format!("{}::{module}", self.name)
                .replace("::", "_")
                .contains(&filter.replace("::", "_"))
        });
        let named = || names(filter, file, &text).then(|| filter.to_owned());
        module.map(|module| format!("{module}::")).or_else(named)
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
    let mut targets = Vec::new();
    for Package { name: package, targets: described, .. } in Metadata::read(None)?.packages {
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

/// Whether tests stand in a source file.
fn has_tests(text: &str) -> bool {
    text.contains("#[test]") || text.contains("proptest!")
}

/// Whether a source file with tests has one that the filter may name: a function, or a module.
fn names(filter: &str, file: &Path, text: &str) -> bool {
    let last = filter.rsplit("::").next().unwrap_or(filter);
    let named = |line: &str| {
        let name = ["fn ", "mod "].into_iter().find_map(|word| line.trim().strip_prefix(word));
        name.and_then(|name| name.split(['(', '<', ' ', ';']).next())
            .is_some_and(|name| name.contains(last))
    };
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.is_some_and(|stem| stem.contains(last)) || text.lines().any(named)
}

/// Returns the targets whose tests `filter` names: all of a package, programs of integration tests or
/// modules of them, and those in whose source such a test stands.
pub fn needed(filter: &str) -> Result<Vec<Needed>> {
    let need = |target: Target| {
        let files = target.files();
        if target.package == filter {
            return Some(Needed { target, named: Named::Package, files });
        }
        if target.is_integration() && target.name.contains(filter) {
            return Some(Needed { target, named: Named::Program, files });
        }
        let part = |file: PathBuf| Some((target.part(filter, &file)?, file));
        let (mut parts, files): (Vec<String>, Vec<PathBuf>) =
            files.into_iter().filter_map(part).unzip();
        parts.sort();
        parts.dedup();
        (!parts.is_empty()).then_some(Needed { target, named: Named::Tests(parts), files })
    };
    let mut needed: Vec<Needed> = all()?.into_iter().filter_map(need).collect();
    needed.sort_by(|a, b| a.named.cmp(&b.named));
    Ok(needed)
}

/// Returns few runs of cargo that test those. Integration tests and programs are selected in the
/// whole workspace, so that cargo takes their dependencies with the same features as for all tests
/// and does not compile them again.
pub fn selections(needed: &[Needed]) -> Vec<Selection> {
    let mut selections: Vec<Selection> = Vec::new();
    for Needed { target, named, .. } in needed {
        let filters = match named {
            Named::Package | Named::Program => Vec::new(),
            Named::Tests(parts) => parts.clone(),
        };
        let in_package = *named == Named::Package || target.kind == Kind::Library;
        let scope: &[&str] = match in_package {
            true => &["--package", &target.package],
            false => &["--workspace"],
        };
        let same = |other: &&mut Selection| {
            other.filters == filters && other.arguments.iter().zip(scope).all(|(a, b)| a == b)
        };
        let own = target.arguments();
        match selections.iter_mut().find(same) {
            // Targets of several packages may have one name.
            Some(other) if other.arguments.windows(own.len()).any(|part| part == own) => {}
            Some(other) => other.arguments.extend(own),
            None => {
                let scope = scope.iter().map(|&argument| argument.to_owned());
                selections.push(Selection { arguments: scope.chain(own).collect(), filters });
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
        let tests = |part: &str| Named::Tests(vec![part.to_owned()]);
        let of = |package: &str, name: &str, named| (package.to_owned(), name.to_owned(), named);
        assert_eq!(found("gemm_stores"), [of("nvfp4-tests", "gemm", tests("stores::"))]);
        let name = "both_ways_give_the_same_bits";
        assert_eq!(found(name), [of("nvfp4-tests", "gemm", tests(name))]);
        let stem = "gemm_hang";
        assert_eq!(found(stem), [of("nvfp4-tests", "gemm_hang", Named::Program)]);
        let folder = found("tcgen05_fail");
        assert!(matches!(&folder[..], [(_, target, Named::Tests(_))] if target == "machine"));
        // In a module of a program.
        let name = "a_filter_needs_few_targets";
        assert_eq!(found(name), [of("xtask", "xtask", tests(name))]);
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
        let tests = |part: &str| Named::Tests(vec![part.to_owned()]);
        let need = |package: &str, name: &str, kind, named| Needed {
            target: Target {
                package: package.to_owned(),
                name: name.to_owned(),
                kind,
                source: PathBuf::new(),
            },
            named,
            files: Vec::new(),
        };
        let needed = [
            need("p", "p", Kind::Library, Named::Package),
            need("p", "a", Kind::Integration, Named::Package),
            need("q", "b", Kind::Integration, Named::Program),
            need("r", "b", Kind::Integration, Named::Program),
            need("r", "c", Kind::Integration, Named::Program),
            need("r", "r", Kind::Library, tests("t")),
            need("r", "d", Kind::Program, tests("t")),
            need("r", "e", Kind::Integration, tests("t")),
            need("r", "f", Kind::Integration, tests("m::")),
        ];
        let runs: Vec<(String, String)> = selections(&needed)
            .into_iter()
            .map(|selection| (selection.arguments.join(" "), selection.filters.join(" ")))
            .collect();
        let expected = [
            ("--package p --lib --test a", ""),
            ("--workspace --test b --test c", ""),
            ("--package r --lib", "t"),
            ("--workspace --bin d --test e", "t"),
            ("--workspace --test f", "m::"),
        ];
        assert_eq!(
            runs,
            expected.map(|(arguments, parts)| (arguments.to_owned(), parts.to_owned()))
        );
    }
}
