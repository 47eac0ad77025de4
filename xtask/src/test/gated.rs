//! Parts of the tests that take long and rarely break. They run where something that they depend on has
//! changed since they last passed, and always with `--all`. `.ci/green.json` has a digest of each part's
//! inputs from when it passed; `--record` writes it.

use super::Tally;
use super::targets::{Dependency, Metadata};
use crate::{build_kernels, run};
use anyhow::{Context, Result};
use nvfp4_manifest::fingerprint;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The record, from the root.
const FILE: &str = ".ci/green.json";
/// Files of the root that every part depends on: versions, profiles, the toolchain, cargo's settings.
const COMMON: [&str; 4] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo/config.toml"];
/// Folders of a package that its dependents do not compile.
const OWN: [&str; 3] = ["tests", "benches", "examples"];

/// A part with all that its result depends on.
pub struct Part {
    name: String,
    /// Files and folders, from the root.
    inputs: BTreeSet<PathBuf>,
    /// Programs outside the project, with their versions.
    tools: Vec<String>,
}

impl Part {
    /// A part that depends on these files and folders, from the root.
    pub fn new(name: impl Into<String>, inputs: &[&str]) -> Self {
        let inputs = COMMON.iter().chain(inputs).map(PathBuf::from).collect();
        Self { name: name.into(), inputs, tools: Vec::new() }
    }

    /// The part depends on this program, too.
    pub fn tool(mut self, tool: impl Into<String>) -> Self {
        self.tools.push(tool.into());
        self
    }

    /// The part depends on the PTX of all kernels, which are compiled.
    pub fn compiled_kernels(mut self) -> Result<Self> {
        for arch in fp4_formats::Arch::ALL {
            for module in build_kernels::manifest(arch)?.modules {
                self = self.tool(format!("{arch} {:?}", module.ptx));
            }
        }
        Ok(self)
    }

    /// The part depends on all of the package in a folder, from the root, and on the packages of this project
    /// that the package is built with.
    pub fn package(self, folder: &str) -> Result<Self> {
        self.package_without(folder, &[])
    }

    /// The same, without some files and folders of the package's own.
    pub fn package_without(mut self, folder: &str, left_out: &[&str]) -> Result<Self> {
        let root = run::root();
        let workspace = Metadata::read(None)?;
        let mut seen = BTreeSet::new();
        let mut left = vec![(root.join(folder), true)];
        while let Some((at, first)) = left.pop() {
            if !seen.insert(at.clone()) {
                continue;
            }
            let outside;
            let package = match workspace.package_in(&at) {
                Some(package) => package,
                None => {
                    outside = Metadata::read(Some(&at.join("Cargo.toml")))?;
                    outside.package_in(&at).with_context(|| at.display().to_string())?
                }
            };
            let used = |of: &&Dependency| first || !of.is_for_tests();
            left.extend(package.folders_of(used).map(|folder| (folder, false)));
            let inner = at.strip_prefix(&root).with_context(|| at.display().to_string())?;
            match first {
                true if left_out.is_empty() => self.inputs.extend([inner.to_owned()]),
                true => self.inputs.extend(without(&root, inner, left_out)?),
                false => self.inputs.extend(without(&root, inner, &OWN)?),
            }
        }
        Ok(self)
    }

    /// A digest of all inputs: names and contents of files, and tools.
    fn digest(&self, root: &Path) -> Result<String> {
        let mut files = BTreeSet::new();
        for input in &self.inputs {
            collect(root, input, &mut files)?;
        }
        let mut all = self.tools.join("\n").into_bytes();
        for file in files {
            let contents = std::fs::read(root.join(&file));
            let contents = contents.with_context(|| format!("reading {}", file.display()))?;
            all.extend(format!("\n{} {}\n", file.display(), fingerprint(&contents)).bytes());
        }
        Ok(fingerprint(&all))
    }
}

/// The entries of a folder but for some.
fn without(root: &Path, folder: &Path, left_out: &[&str]) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root.join(folder));
    let entries = entries.with_context(|| format!("reading {}", folder.display()))?.flatten();
    let names = entries.map(|entry| entry.file_name());
    let names = names.filter(|name| !left_out.iter().any(|out| name == out));
    Ok(names.map(|name| folder.join(name)).collect())
}

/// Adds a file, or those below a folder, but for what builds and tools make.
fn collect(root: &Path, at: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !root.join(at).is_dir() {
        files.insert(at.to_owned());
        return Ok(());
    }
    for entry in without(root, at, &["target", "__pycache__", "compiled"])? {
        collect(root, &entry, files)?;
    }
    Ok(())
}

/// The parts that have passed, with the digests of their inputs then.
pub struct Record {
    root: PathBuf,
    green: BTreeMap<String, String>,
    /// Whether parts run that have passed.
    all: bool,
}

impl Record {
    /// The record of a checkout; without one, every part is due. `all`: every part is due anyway.
    ///
    /// # Errors
    /// If there is a file that is no record.
    pub fn read(root: &Path, all: bool) -> Result<Self> {
        let green = match std::fs::read(root.join(FILE)) {
            Ok(text) => serde_json::from_slice(&text).context(FILE)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).context(FILE),
        };
        Ok(Self { root: root.to_owned(), green, all })
    }

    /// Runs a part that is due, and remembers if it passes. Otherwise the part is skipped.
    pub fn run(
        &mut self,
        tally: &mut Tally,
        part: &Part,
        run: impl FnOnce(&mut Tally) -> Result<()>,
    ) -> Result<()> {
        let digest = part.digest(&self.root)?;
        if !self.all && self.green.get(&part.name) == Some(&digest) {
            let why = format!("has passed with the same inputs ({FILE}); --all runs it");
            tally.skip(&part.name, &why);
            return Ok(());
        }
        let (passed, failed) = (tally.passed, tally.failed);
        run(tally)?;
        // A part whose tools are not here passes nothing.
        if tally.failed == failed && tally.passed > passed {
            self.green.insert(part.name.clone(), digest);
        } else {
            self.green.remove(&part.name);
        }
        Ok(())
    }

    /// Forgets that a part has passed, so that it is due.
    pub fn forget(&mut self, part: &str) {
        self.green.remove(part);
    }

    /// Writes the record.
    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.green)?;
        std::fs::write(self.root.join(FILE), text + "\n").context(FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkout with a record, removed at the end.
    struct Checkout(PathBuf);

    impl Checkout {
        fn new(test: &str) -> Self {
            let name = format!("xtask-gated-{test}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for folder in [".ci", ".cargo", "a/src", "a/target"] {
                std::fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            let checkout = Self(root);
            COMMON.iter().for_each(|file| checkout.write(file, ""));
            checkout.write("a/src/lib.rs", "1");
            checkout
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.join(file), text).expect("written");
        }
    }

    impl Drop for Checkout {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn part() -> Part {
        Part::new("a", &["a"]).tool("Python 3")
    }

    /// Runs a part that ends as `end` says; whether it ran, and its totals.
    fn outcome(record: &mut Record, part: &Part, end: impl Fn(&mut Tally)) -> (bool, [usize; 3]) {
        let (mut tally, mut ran) = (Tally::default(), false);
        let run = |tally: &mut Tally| {
            ran = true;
            end(tally);
            Ok(())
        };
        record.run(&mut tally, part, run).expect("readable");
        (ran, [tally.passed, tally.failed, tally.skipped.len()])
    }

    fn pass(tally: &mut Tally) {
        tally.step("a", Ok(()));
    }

    #[test]
    fn a_part_that_passed_runs_after_a_change_of_its_inputs() {
        let checkout = Checkout::new("change");
        let record = || Record::read(&checkout.0, false).expect("a record");
        let (ran, skipped) = ((true, [1, 0, 0]), (false, [0, 0, 1]));
        let mut first = record();
        assert_eq!(outcome(&mut first, &part(), pass), ran);
        assert_eq!(outcome(&mut record(), &part(), pass), ran, "nothing is written yet");
        first.write().expect("written");
        assert_eq!(outcome(&mut record(), &part(), pass), skipped);
        let mut all = Record::read(&checkout.0, true).expect("a record");
        assert_eq!(outcome(&mut all, &part(), pass), ran, "--all");
        checkout.write("a/target/lib.o", "2");
        assert_eq!(outcome(&mut record(), &part(), pass), skipped, "made by a build");
        assert_eq!(outcome(&mut record(), &part().tool("pip 2"), pass), ran, "another tool");
        let changes = [("a/src/lib.rs", "2", "1"), ("Cargo.lock", "1", "")];
        for (file, text, before) in changes {
            checkout.write(file, text);
            assert_eq!(outcome(&mut record(), &part(), pass), ran, "{file}");
            checkout.write(file, before);
            assert_eq!(outcome(&mut record(), &part(), pass), skipped, "{file}");
        }
        checkout.write("a/src/new.rs", "");
        assert_eq!(outcome(&mut record(), &part(), pass), ran, "a new file");
    }

    #[test]
    fn only_a_part_that_passed_is_green() {
        let checkout = Checkout::new("green");
        let ends: [fn(&mut Tally); 2] =
            [|tally| tally.failed += 1, |tally| tally.skip("a", "no Python")];
        for end in ends {
            let mut record = Record::read(&checkout.0, true).expect("no record");
            outcome(&mut record, &part(), pass);
            assert_eq!(record.green.len(), 1);
            outcome(&mut record, &part(), end);
            assert!(record.green.is_empty(), "{:?}", record.green);
        }
    }

    #[test]
    fn a_package_has_its_dependencies() {
        let part = Part::new("a", &[]).package("candle").expect("metadata");
        let has = |path: &str| part.inputs.contains(Path::new(path));
        assert!(has("candle") && has("host/src") && has("host/Cargo.toml"), "{:?}", part.inputs);
        assert!(has("formats/src") && has("emulator/ptx-emu-core/src"), "{:?}", part.inputs);
        assert!(!has("host/tests") && !has("xtask/src"), "{:?}", part.inputs);
        assert!(part.digest(&run::root()).is_ok());
    }
}
