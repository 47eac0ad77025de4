//! `counts`: how often each synchronising instruction stands in each kernel.
//!
//! rustc does not know that inline assembly is convergent: it may duplicate a barrier into both
//! branches of a condition, or move it into one. So the instructions of the compiled kernels are
//! counted and compared with `tests/data/kernels/synchronisation.json`, for every compiler that is
//! accepted. The README beside it says what the counts of each kernel stand for, and when a change
//! is legitimate.

use crate::{build_kernels, run};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use cuda_builder::{Compiler, ptx};
use fp4_formats::{Arch, Family};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct Options {
    /// Rewrite the file, if all accepted compilers on this machine agree
    #[arg(long)]
    write: bool,
}

/// Counts by opcode.
type Opcodes = BTreeMap<String, usize>;
/// Counts by kernel.
pub type Counts = BTreeMap<String, Opcodes>;

/// The expected counts, from the root.
pub const FILE: &str = "tests/data/kernels/synchronisation.json";

/// Path of the expected counts.
fn file() -> PathBuf {
    run::root().join(FILE)
}

/// The expected counts of an architecture's kernels.
pub fn expected(arch: Arch) -> Result<Counts> {
    let path = file();
    let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let mut all: BTreeMap<String, Counts> =
        serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    all.remove(arch.name()).with_context(|| format!("{} lacks {arch}", path.display()))
}

/// The targets whose kernels are counted: all that are compiled for themselves.
pub fn counted() -> impl Iterator<Item = Arch> {
    Arch::compiled()
}

/// Compiles an architecture's kernels and counts.
pub fn compiled(arch: Arch, compiler: &Compiler) -> Result<Counts> {
    let families = Family::of(arch).map(|family| (arch, family)).collect();
    let mut counts = Counts::new();
    for ((_, family), built) in build_kernels::compile(families, compiler)? {
        let built = built.with_context(|| family.to_string())?;
        let kernels = built.kernels.into_iter().map(|kernel| kernel.name);
        count(&mut counts, kernels, &built.ptx)?;
    }
    Ok(counts)
}

/// Counts in an architecture's kernels as they stand in `target/kernels`.
pub fn built(arch: Arch) -> Result<Counts> {
    let mut counts = Counts::new();
    for module in build_kernels::manifest(arch)?.modules {
        let path = build_kernels::folder(arch).join(&module.ptx.name);
        let ptx = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let kernels = module.kernels.into_iter().map(|entry| entry.kernel.name);
        count(&mut counts, kernels, &ptx)?;
    }
    Ok(counts)
}

/// Adds the counts of a module's kernels, of those that synchronise nothing, too.
fn count(counts: &mut Counts, kernels: impl Iterator<Item = String>, ptx: &str) -> Result<()> {
    counts.extend(kernels.map(|kernel| (kernel, Opcodes::new())));
    for ((kernel, opcode), count) in ptx::convergent_counts(ptx) {
        let opcodes = counts.get_mut(&kernel);
        let opcodes = opcodes.with_context(|| format!("{opcode} outside of any kernel"))?;
        opcodes.insert(opcode, count);
    }
    Ok(())
}

/// Returns the differences, one line per kernel.
fn differences(expected: &Counts, found: &Counts) -> Vec<String> {
    let mut lines = Vec::new();
    for (kernel, opcodes) in found {
        let Some(before) = expected.get(kernel) else {
            lines.push(format!("{kernel} has no expected counts"));
            continue;
        };
        let names: Vec<&String> = before.keys().chain(opcodes.keys()).collect();
        let count = |of: &Opcodes, opcode| of.get(opcode).copied().unwrap_or(0);
        let mut changed: Vec<String> = names
            .into_iter()
            .map(|opcode| (opcode, count(before, opcode), count(opcodes, opcode)))
            .filter(|(_, before, now)| before != now)
            .map(|(opcode, before, now)| format!("{opcode} {now} times instead of {before}"))
            .collect();
        changed.sort();
        changed.dedup();
        if !changed.is_empty() {
            lines.push(format!("{kernel} has {}", changed.join(", ")));
        }
    }
    let gone = expected.keys().filter(|kernel| !found.contains_key(*kernel));
    lines.extend(gone.map(|kernel| format!("{kernel} is not there")));
    lines
}

/// Fails where counts are not those that are expected.
pub fn check(arch: Arch, found: &Counts) -> Result<()> {
    let lines = differences(&expected(arch)?, found);
    ensure!(lines.is_empty(), "{}\n  see tests/data/kernels/README.md", lines.join("\n  "));
    Ok(())
}

/// One line for each kernel.
fn text(all: &BTreeMap<String, Counts>) -> Result<String> {
    let mut text = String::from("{\n");
    for (at, (arch, counts)) in all.iter().enumerate() {
        writeln!(text, "  {}: {{", serde_json::to_string(arch)?)?;
        for (at, (kernel, opcodes)) in counts.iter().enumerate() {
            let comma = if at + 1 < counts.len() { "," } else { "" };
            let opcodes = serde_json::to_string(opcodes)?.replace("\":", "\": ").replace(",", ", ");
            writeln!(text, "    {}: {opcodes}{comma}", serde_json::to_string(kernel)?)?;
        }
        writeln!(text, "  }}{}", if at + 1 < all.len() { "," } else { "" })?;
    }
    text.push_str("}\n");
    Ok(text)
}

/// Compares or rewrites; exit code 1 for a difference.
pub fn run(options: &Options) -> Result<ExitCode> {
    let compilers = Compiler::all();
    let mut all = BTreeMap::new();
    let mut same = true;
    for arch in counted() {
        let mut first: Option<(String, Counts)> = None;
        for compiler in &compilers {
            let counts = compiled(arch, compiler)?;
            if options.write {
                if let Some((other, expected)) = &first {
                    let lines = differences(expected, &counts);
                    if !lines.is_empty() {
                        let lines = lines.join("\n  ");
                        bail!("{} against {other}, {arch}:\n  {lines}", compiler.describe());
                    }
                }
            } else if let Err(error) = check(arch, &counts) {
                say!("counts for {arch} with rustc {} ... FAILED: {error:#}", compiler.release);
                same = false;
            } else {
                say!("counts for {arch} with rustc {} ... ok", compiler.release);
            }
            first.get_or_insert((compiler.describe(), counts));
        }
        let (_, counts) = first.context("no compiler on this machine builds the kernels")?;
        all.insert(arch.name().to_owned(), counts);
    }
    if options.write {
        for arch in counted() {
            // A file that cannot be read is replaced, too.
            let before = expected(arch).unwrap_or_default();
            let lines = differences(&before, &all[arch.name()]);
            lines.iter().for_each(|line| say!("{arch}: {line}"));
        }
        std::fs::write(file(), text(&all)?)?;
        let used: Vec<String> = compilers.iter().map(Compiler::describe).collect();
        say!("{} is what {} give", file().display(), used.join(" and "));
    }
    Ok(ExitCode::from(u8::from(!same)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(kernels: &[(&str, &[(&str, usize)])]) -> Counts {
        let opcodes = |list: &[(&str, usize)]| {
            list.iter().map(|(opcode, count)| ((*opcode).to_owned(), *count)).collect()
        };
        kernels.iter().map(|(name, list)| ((*name).to_owned(), opcodes(list))).collect()
    }

    #[test]
    fn each_difference_is_named_once() {
        let expected = counts(&[("a", &[("bar.sync", 2), ("shfl", 1)]), ("b", &[]), ("c", &[])]);
        assert!(differences(&expected, &expected).is_empty());
        let found = counts(&[("a", &[("bar.sync", 3)]), ("b", &[]), ("d", &[])]);
        assert_eq!(
            differences(&expected, &found),
            [
                "a has bar.sync 3 times instead of 2, shfl 0 times instead of 1",
                "d has no expected counts",
                "c is not there",
            ]
        );
    }

    #[test]
    fn what_is_written_is_read() {
        let kernels = counts(&[("a", &[("bar.sync", 2), ("shfl", 1)]), ("b", &[])]);
        let all = BTreeMap::from([("x".to_owned(), kernels.clone()), ("y".to_owned(), kernels)]);
        let read: BTreeMap<String, Counts> =
            serde_json::from_str(&text(&all).expect("text")).expect("JSON");
        assert_eq!(read, all);
    }

    #[test]
    fn the_file_has_every_architecture() {
        for arch in counted() {
            assert!(expected(arch).expect("readable").len() > 20, "{arch}");
        }
    }
}
