//! `test`: everything that can be tested on this machine; with `--quick` what takes a few minutes,
//! with a filter the tests of that name.
//!
//! Steps and tests that need something this machine lacks are skipped: listed by name and reason before
//! the totals, and counted there once. Parts of tests that were left out are listed, too.

mod browser;
mod candle;
mod cargo;
mod coverage;
mod exporters;
mod gated;
mod mutants;
mod nvcc;
mod python;
mod targets;

use crate::build_kernels::{self, Assembler};
use crate::counts::{self, FILE as COUNTS};
use crate::run::{self, tools};
use crate::{fetch_model, lint};
use anyhow::{Context, Result};
use cargo::{Cargo, MODEL_VARIABLE};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use cuda_builder::{Compiler, Fetch};
use fp4_formats::Arch;
use gated::{Part, Record};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use targets::{Needed, Selection, Target};

/// The test that launches one configuration of each family of kernels.
const QUICK: &str = "quick";
/// The filter that names the compilation of the kernels by compilers other than the one that is used.
const OTHER_COMPILERS: &str = "other-compilers";
/// Packages whose tests launch kernels.
const WITH_KERNELS: [&str; 4] = ["nvfp4", "nvfp4-checkpoint", "nvfp4-lab", "nvfp4-tests"];
/// Tests that are named at the end.
const SLOWEST: usize = 10;

#[derive(Args)]
pub struct Options {
    /// Lint, unit tests, and one configuration of each family of kernels; says what it leaves out
    #[arg(long)]
    quick: bool,
    /// Leave out what needs the network: the real model, ptxas, nvcc, Chromium and what the Python
    /// module is tested with, unless they are here
    #[arg(long)]
    offline: bool,
    /// Everything: also the parts that have passed with the same inputs (`.ci/green.json`), and what
    /// `--exporters` runs
    #[arg(long, conflicts_with_all = ["quick", "filter"])]
    all: bool,
    /// Write to `.ci/green.json` which of the parts that take long have passed, with their inputs
    #[arg(long, conflicts_with_all = ["quick", "exporters"])]
    record: bool,
    /// Only this: what ModelOpt, llmcompressor and TorchAO write is converted, and their loaders read
    /// what is written here; installs 6 GB of Python packages in target/exporters
    #[arg(long, conflicts_with_all = ["quick", "filter"])]
    exporters: bool,
    /// Say at the end for each kernel which share of its instructions the tests reached on the
    /// emulator, and list the others; with a filter, of kernels that were launched. The launches on
    /// a GPU do not count
    #[arg(long, conflicts_with = "exporters")]
    coverage: bool,
    /// Only tests of this package, of test programs or modules of them (`program_module`) whose name
    /// contains this, or whose own name contains this; only what has them is built
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    filter: Option<String>,
}

/// A fault of the arguments.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    /// The filter names nothing.
    #[error(
        "FILTER is {actual:?}, must be a package, or a part of the name of a test, a test program or its module"
    )]
    NothingNamed {
        /// The filter.
        actual: String,
    },
}

/// A step or a test that was not run, or a part of a test.
pub struct Skipped {
    name: String,
    reason: String,
}

/// The results so far.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: Vec<Skipped>,
    /// Tests that left out a part.
    partly: Vec<Skipped>,
    /// Seconds of each test that was timed.
    times: Vec<(f64, String)>,
}

impl Tally {
    fn step(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                say!("step {name} ... ok");
                self.passed += 1;
            }
            Err(error) => {
                say!("step {name} ... FAILED: {error:#}");
                self.failed += 1;
            }
        }
    }

    fn skip(&mut self, name: &str, why: &str) {
        say!("step {name} ... skipped: {why}");
        self.skipped.push(Skipped { name: name.to_owned(), reason: why.to_owned() });
    }

    /// Everything that passed, failed or was skipped.
    fn outcomes(&self) -> usize {
        self.passed + self.failed + self.skipped.len()
    }

    /// The slowest tests, what was skipped, then the totals.
    fn summary(&self) -> String {
        let mut slowest: Vec<&(f64, String)> = self.times.iter().collect();
        slowest.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut lines = Vec::new();
        if !slowest.is_empty() {
            lines.push("\nslowest tests:".to_owned());
        }
        let named = slowest.iter().take(SLOWEST);
        lines.extend(named.map(|(seconds, name)| format!("{seconds:>8.1} s  {name}")));
        let Self { passed, failed, skipped, partly, .. } = self;
        lines.extend(by_reason("skipped:", skipped));
        lines.extend(by_reason("left out by tests:", partly));
        let skipped = skipped.len();
        lines.push(format!("\ntests: {passed} passed, {failed} failed, {skipped} skipped"));
        lines.join("\n")
    }

    /// Prints the summary; exit code 1 if anything failed.
    fn finish(self) -> ExitCode {
        say!("{}", self.summary());
        ExitCode::from(u8::from(self.failed > 0))
    }
}

/// Each reason with the names that it holds for, below a title.
fn by_reason(title: &str, skipped: &[Skipped]) -> Vec<String> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Skipped { name, reason } in skipped {
        names.entry(reason).or_default().push(name);
    }
    let mut lines = Vec::new();
    if !names.is_empty() {
        lines.push(format!("\n{title}"));
    }
    for (reason, names) in names {
        lines.push(format!("  {reason}"));
        lines.extend(names.into_iter().map(|name| format!("    {name}")));
    }
    lines
}

/// Runs the command; exit code 1 if anything failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.exporters {
        let mut tally = Tally::default();
        exporters::run(&mut tally, options.offline)?;
        return Ok(tally.finish());
    }
    let mut cargo = Cargo::default();
    if options.coverage {
        coverage::begin(&mut cargo)?;
    }
    // A filter that names a part runs it.
    let mut record = Record::read(&run::root(), options.all || options.filter.is_some())?;
    let (mut tally, whole) = match (&options.filter, options.quick) {
        (filter, true) => (quick(filter.as_deref(), cargo)?, false),
        (Some(filter), false) => (filtered(filter, options.offline, cargo, &mut record)?, false),
        (None, false) => (everything(options, cargo, &mut record)?, true),
    };
    if options.record {
        record.write()?;
    }
    if options.coverage {
        tally.step("coverage of the kernels", coverage::report(whole));
    }
    Ok(tally.finish())
}

fn everything(options: &Options, cargo: Cargo, record: &mut Record) -> Result<Tally> {
    let mut tally = Tally::default();
    let compiler = Compiler::find(Fetch::Allowed)?;
    build_kernels::refresh()?;
    compilers(&mut tally, &compiler, record)?;
    machine_code(&mut tally, options);
    // Downloads take no processor: tests are compiled meanwhile.
    let (cargo, skipped) = std::thread::scope(|scope| {
        let found = scope.spawn(|| {
            let mut tally = Tally::default();
            let model = model(&mut tally, options.offline);
            let nvcc = nvcc::find(&mut tally, options.offline);
            let chromium = browser::find(&mut tally, options.offline);
            (model, nvcc, chromium, tally.skipped)
        });
        let built = cargo.build(&["--workspace"]);
        let (model, nvcc, chromium, skipped) =
            found.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        built.map(|()| (Cargo { model, nvcc, chromium, ..cargo }, skipped))
    })?;
    tally.skipped.extend(skipped);
    cargo.run(&mut tally, &["--workspace"], &mutants::left_out())?;
    cargo.run_documentation(&mut tally)?;
    record.run(&mut tally, &mutants::part()?, |tally| mutants::run(tally, &cargo))?;
    record.run(&mut tally, &candle::part()?, |tally| candle::run(tally, &cargo))?;
    record.run(&mut tally, &python::part()?, |tally| python::run(tally, options.offline))?;
    match options.all {
        true => exporters::run(&mut tally, options.offline)?,
        false => {
            let why = "only with --exporters or --all: 6 GB of Python packages";
            tally.skip("exporters and their loaders", why);
        }
    }
    Ok(tally)
}

/// Runs the tests that find most mistakes in the least time.
fn quick(filter: Option<&str>, cargo: Cargo) -> Result<Tally> {
    let mut tally = Tally::default();
    lint::each(|name, result| tally.step(&format!("lint {name}"), result))?;
    build_kernels::refresh()?;
    let unit = ["--workspace", "--lib", "--bins"];
    let filters: Vec<String> = filter.map(str::to_owned).into_iter().collect();
    cargo.run(&mut tally, &unit, &filters)?;
    cargo.run(&mut tally, &["--workspace", "--test", QUICK], &filters)?;
    let left: Vec<Target> = targets::all()?.into_iter().filter(Target::is_integration).collect();
    let left = left.iter().filter(|target| target.name != QUICK).count();
    for name in [
        &format!("{left} programs of integration tests"),
        "examples in documentation",
        "kernels by every accepted compiler, and their synchronising instructions",
        "machine code by ptxas",
        "real model",
        candle::NAME,
        python::NAME,
        "exporters and their loaders",
    ] {
        tally.skip(name, "--quick");
    }
    Ok(tally)
}

/// The tests of a name.
fn filtered(filter: &str, offline: bool, cargo: Cargo, record: &mut Record) -> Result<Tally> {
    if filter == OTHER_COMPILERS {
        let mut tally = Tally::default();
        other_compilers(&mut tally, &Compiler::find(Fetch::Allowed)?, record)?;
        return Ok(tally);
    }
    if filter == candle::NAME {
        let mut tally = Tally::default();
        build_kernels::sweep()?;
        let cargo = Cargo { model: model(&mut tally, offline), ..cargo };
        record.run(&mut tally, &candle::part()?, |tally| candle::run(tally, &cargo))?;
        return Ok(tally);
    }
    if filter == mutants::NAME {
        let mut tally = Tally::default();
        build_kernels::sweep()?;
        record.run(&mut tally, &mutants::part()?, |tally| mutants::run(tally, &cargo))?;
        return Ok(tally);
    }
    if filter == python::NAME {
        let mut tally = Tally::default();
        record.run(&mut tally, &python::part()?, |tally| python::run(tally, offline))?;
        return Ok(tally);
    }
    let nothing_named = || UsageError::NothingNamed { actual: filter.to_owned() };
    let mut tally = Tally::default();
    let needed = targets::needed(filter)?;
    if needed.is_empty() {
        return Err(nothing_named().into());
    }
    let launches = |need: &&Needed| WITH_KERNELS.contains(&need.target.package.as_str());
    if needed.iter().any(|need| launches(&need)) {
        build_kernels::sweep()?;
    }
    let with_model = needed.iter().filter(launches).any(|need| need.mentions(MODEL_VARIABLE));
    let with_nvcc = needed.iter().any(|need| need.mentions(nvcc::VARIABLE));
    let with_chromium = needed.iter().any(|need| need.mentions(browser::VARIABLE));
    let cargo = Cargo {
        model: with_model.then(|| model(&mut tally, offline)).flatten(),
        nvcc: with_nvcc.then(|| nvcc::find(&mut tally, offline)).flatten(),
        chromium: with_chromium.then(|| browser::find(&mut tally, offline)).flatten(),
        ..cargo
    };
    let mut ran = false;
    for Selection { arguments, filters } in targets::selections(&needed) {
        ran |= cargo.run(&mut tally, &arguments, &filters)?;
    }
    // The name stands in a source, but is no test's.
    if !ran {
        return Err(nothing_named().into());
    }
    Ok(tally)
}

/// The real model, if it is there or may be fetched.
fn model(tally: &mut Tally, offline: bool) -> Option<PathBuf> {
    let fetched = match offline {
        true => fetch_model::present().context("--offline, and it is not here"),
        false => fetch_model::run(),
    };
    fetched.map_err(|error| tally.skip("real model", &format!("{error:#}"))).ok()
}

/// Checks that the kernels, as they are compiled for all tests, have the expected synchronising instructions, and
/// that every other accepted compiler gives kernels with the same.
fn compilers(tally: &mut Tally, default: &Compiler, record: &mut Record) -> Result<()> {
    for arch in Arch::compiled() {
        let name = format!("synchronising instructions of the kernels for {arch}");
        let result = counts::built(arch).and_then(|counts| counts::check(arch, &counts));
        tally.step(&name, result);
    }
    other_compilers(tally, default, record)
}

/// Every accepted compiler but the one that is used builds the kernels, and each result keeps the
/// contract that `cuda_builder` checks and has the expected synchronising instructions.
fn other_compilers(tally: &mut Tally, default: &Compiler, record: &mut Record) -> Result<()> {
    let all = Compiler::all();
    for compiler in all.iter().filter(|compiler| compiler.rustc != default.rustc) {
        let sources = ["cuda_builder", "delivery/build", "xtask/src/counts.rs", COUNTS];
        let part = Part::new(format!("kernels with {}", compiler.origin), &sources);
        let part = part.package("kernels-gpu")?.tool(compiler.describe());
        record.run(tally, &part, |tally| {
            for arch in Arch::compiled() {
                let name = format!("kernels for {arch} with rustc {}", compiler.release);
                let result = counts::compiled(arch, compiler);
                tally.step(&name, result.and_then(|counts| counts::check(arch, &counts)));
            }
            Ok(())
        })?;
    }
    for (wanted, origin) in
        [("rustup's toolchain", "active toolchain"), ("Debian's rustc-web", "Debian's rustc-web")]
    {
        if all.iter().all(|c| c.origin != origin) {
            tally.skip(
                &format!("kernels with {wanted}"),
                &format!("not on this machine; used {}", default.describe()),
            );
        }
    }
    Ok(())
}

/// ptxas accepts every kernel and none goes through local memory.
fn machine_code(tally: &mut Tally, options: &Options) {
    let assembler = match options.offline {
        true => {
            Assembler::find(&tools()).and_then(|found| found.context("no ptxas, and --offline"))
        }
        false => Assembler::find_or_install(&tools()),
    };
    let assembler = match assembler {
        Ok(assembler) => assembler,
        Err(why) => return tally.skip("machine code", &format!("{why:#}")),
    };
    match build_kernels::with_machine_code(&assembler) {
        Ok(manifests) => {
            for manifest in manifests {
                let name = format!("machine code for {}", manifest.arch);
                tally.step(&name, build_kernels::no_faults(&manifest));
            }
        }
        Err(error) => tally.step("machine code", Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(name: &str, reason: &str) -> Skipped {
        Skipped { name: name.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn the_totals_are_the_last_line() {
        let times = (0..12).map(|i| (f64::from(i * 7 % 12), format!("t{i}"))).collect();
        let no_gpu =
            [skipped("a::b", "no GPU"), skipped("c", "offline"), skipped("a::d", "no GPU")];
        let partly = vec![skipped("a::e", "cuda:0: no GPU")];
        let tally = Tally { passed: 12, failed: 1, skipped: no_gpu.into(), partly, times };
        let summary = tally.summary();
        let lines: Vec<&str> = summary.lines().filter(|line| !line.is_empty()).collect();
        let (slowest, rest) = lines.split_at(11);
        let expected = [
            "skipped:",
            "  no GPU",
            "    a::b",
            "    a::d",
            "  offline",
            "    c",
            "left out by tests:",
            "  cuda:0: no GPU",
            "    a::e",
            "tests: 12 passed, 1 failed, 3 skipped",
        ];
        assert_eq!(rest, expected);
        let seconds: Vec<String> = (2..12).rev().map(|s| format!("{s}.0")).collect();
        let named = slowest[1..].iter().map(|line| line.split_whitespace().next());
        assert_eq!(named.map(Option::unwrap_or_default).collect::<Vec<_>>(), seconds);
        let nothing = Tally::default().summary();
        assert_eq!(nothing.trim(), "tests: 0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn a_step_is_skipped_once() {
        let mut tally = Tally::default();
        tally.step("a", Ok(()));
        tally.skip("b", "--offline");
        assert_eq!((tally.passed, tally.failed, tally.skipped.len()), (1, 0, 1));
        assert_eq!(tally.outcomes(), 2);
    }
}
