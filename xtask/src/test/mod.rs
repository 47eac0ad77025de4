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
mod gemm_and_moe;
mod kernels;
mod mistralrs;
mod mutants;
mod nvcc;
mod outside;
mod python;
mod targets;

use crate::{build_kernels, fetch_model, lint, run};
use anyhow::{Context, Result};
use cargo::{Cargo, MODEL_VARIABLE};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use gated::{Part, Record};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use targets::{Needed, Selection, Target};

/// The test that launches one configuration of each family of kernels.
const QUICK: &str = "quick";
/// Packages whose tests launch kernels.
const WITH_KERNELS: [&str; 4] = ["nvfp4", "nvfp4-checkpoint", "nvfp4-lab", "nvfp4-tests"];
/// Tests that are named at the end.
const SLOWEST: usize = 10;
/// Seconds below which a test program's time is not listed.
const BRIEF: f64 = 1.0;

/// The settings of the parts that run where something that they depend on has changed.
pub struct Setting {
    cargo: Cargo,
    offline: bool,
}

/// The stage of all tests at which a part runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Begins when all kernels are compiled, before programs run them.
    Kernels,
    /// Follows the tests of the workspace.
    Programs,
}

/// A part of the tests that takes long and rarely breaks.
struct Gate {
    /// The filter that names it.
    name: &'static str,
    stage: Stage,
    /// Whether all kernels must be compiled, to be checked or to tell by their PTX whether the part is due.
    with_kernels: bool,
    /// Whether it takes the real model if that is here.
    with_model: bool,
    /// All that its result depends on.
    part: fn(&Setting) -> Result<Part>,
    run: fn(&mut Tally, &Setting) -> Result<()>,
}

/// The parts that [`Record`] remembers.
const GATES: [Gate; 8] = [
    Gate {
        name: kernels::OTHER_COMPILERS,
        stage: Stage::Kernels,
        with_kernels: true,
        with_model: false,
        part: |_| kernels::by_other_compilers(),
        run: kernels::other_compilers,
    },
    Gate {
        name: kernels::MACHINE_CODE,
        stage: Stage::Kernels,
        with_kernels: true,
        with_model: false,
        part: kernels::machine_code_of,
        run: kernels::machine_code,
    },
    Gate {
        name: gemm_and_moe::NAME,
        stage: Stage::Programs,
        with_kernels: true,
        with_model: true,
        part: |_| gemm_and_moe::part(),
        run: |tally, setting| gemm_and_moe::run(tally, &setting.cargo),
    },
    Gate {
        name: outside::NAME,
        stage: Stage::Programs,
        with_kernels: false,
        with_model: false,
        part: |_| outside::part(),
        run: |tally, setting| outside::run(tally, &setting.cargo),
    },
    Gate {
        name: mutants::NAME,
        stage: Stage::Programs,
        with_kernels: false,
        with_model: false,
        part: |_| mutants::part(),
        run: |tally, setting| mutants::run(tally, &setting.cargo),
    },
    Gate {
        name: candle::NAME,
        stage: Stage::Programs,
        with_kernels: false,
        with_model: true,
        part: |_| candle::part(),
        run: |tally, setting| candle::run(tally, &setting.cargo),
    },
    Gate {
        name: mistralrs::NAME,
        stage: Stage::Programs,
        with_kernels: false,
        with_model: false,
        part: |_| mistralrs::part(),
        run: |tally, setting| mistralrs::run(tally, &setting.cargo),
    },
    Gate {
        name: python::NAME,
        stage: Stage::Programs,
        with_kernels: false,
        with_model: false,
        part: |_| python::part(),
        run: |tally, setting| python::run(tally, setting.offline),
    },
];

impl Gate {
    /// Runs the part if it is due, and remembers whether it passed.
    fn pass(&self, tally: &mut Tally, setting: &Setting, record: &mut Record) -> Result<()> {
        let part = (self.part)(setting)?;
        tally.timed(self.name, |tally| record.run(tally, &part, |tally| (self.run)(tally, setting)))
    }
}

/// Runs the parts of a stage that are due.
fn gated(tally: &mut Tally, stage: Stage, setting: &Setting, record: &mut Record) -> Result<()> {
    let mut gates = GATES.iter().filter(|gate| gate.stage == stage);
    gates.try_for_each(|gate| gate.pass(tally, setting, record))
}

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
    /// Write to `.ci/green.json` which of the parts that take long have passed, with their inputs; with a
    /// filter that names one, of that one
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
    /// There is nothing to record of what the filter names.
    #[error("FILTER is {actual:?}, must be one of {} to be recorded", GATES.map(|gate| gate.name).join(", "))]
    NothingRecorded {
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
    /// Seconds of each phase, in their order.
    phases: Vec<(f64, String)>,
    /// Seconds of each test program.
    programs: Vec<(f64, String)>,
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

    /// Runs a phase, whose time is listed.
    fn timed<T>(&mut self, phase: &str, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = run(self);
        self.phases.push((start.elapsed().as_secs_f64(), phase.to_owned()));
        result
    }

    /// Adds another's results.
    fn add(&mut self, other: Self) {
        let Self { passed, failed, skipped, partly, times, phases, programs } = other;
        self.passed += passed;
        self.failed += failed;
        self.skipped.extend(skipped);
        self.partly.extend(partly);
        self.times.extend(times);
        self.phases.extend(phases);
        self.programs.extend(programs);
    }

    /// Everything that passed, failed or was skipped.
    fn outcomes(&self) -> usize {
        self.passed + self.failed + self.skipped.len()
    }

    /// The time of each phase, the slowest test programs and tests, what was skipped, then the totals.
    fn summary(&self) -> String {
        let Self { passed, failed, skipped, partly, times, phases, programs } = self;
        let long = programs.iter().filter(|(seconds, _)| *seconds >= BRIEF);
        let mut lines = timed_list("phases:", phases.iter());
        lines.extend(timed_list("slowest test programs:", slowest_first(long)));
        let slowest = slowest_first(times.iter()).into_iter().take(SLOWEST);
        lines.extend(timed_list("slowest tests:", slowest));
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

/// The longest first.
fn slowest_first<'a>(times: impl Iterator<Item = &'a (f64, String)>) -> Vec<&'a (f64, String)> {
    let mut slowest: Vec<&(f64, String)> = times.collect();
    slowest.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    slowest
}

/// A line for each name with its seconds, below a title.
fn timed_list<'a>(title: &str, times: impl IntoIterator<Item = &'a (f64, String)>) -> Vec<String> {
    let line = |(seconds, name): &(f64, String)| format!("{seconds:>8.1} s  {name}");
    let mut lines: Vec<String> = times.into_iter().map(line).collect();
    if !lines.is_empty() {
        lines.insert(0, format!("\n{title}"));
    }
    lines
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
    if let Some(filter) = options.filter.as_ref().filter(|_| options.record)
        && GATES.iter().all(|gate| gate.name != filter)
    {
        return Err(UsageError::NothingRecorded { actual: filter.clone() }.into());
    }
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
    if options.coverage {
        // The coverage rests on these tests.
        record.forget(gemm_and_moe::NAME);
    }
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
    let offline = options.offline;
    tally.timed("compiling kernels", |_| build_kernels::refresh_to_run())?;
    kernels::synchronise_as_expected(&mut tally);
    let mut setting = Setting { cargo, offline };
    gated(&mut tally, Stage::Kernels, &setting, record)?;
    // Downloads take no processor: tests are compiled meanwhile.
    let cargo = std::mem::take(&mut setting.cargo);
    let others = cargo::all_but(&gemm_and_moe::PROGRAMS)?;
    setting.cargo = tally.timed("compiling tests", |tally| {
        std::thread::scope(|scope| {
            let found = scope.spawn(|| {
                let mut tally = Tally::default();
                let model = model(&mut tally, offline);
                let nvcc = nvcc::find(&mut tally, offline);
                let chromium = browser::find(&mut tally, offline);
                (model, nvcc, chromium, tally.skipped)
            });
            let built = cargo.build(&others);
            let (model, nvcc, chromium, skipped) =
                found.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            tally.skipped.extend(skipped);
            built.map(|()| Cargo { model, nvcc, chromium, ..cargo })
        })
    })?;
    let cargo = &setting.cargo;
    let left_out = [mutants::left_out(), outside::left_out()].concat();
    tally.timed("tests", |tally| cargo.run_others(tally, &gemm_and_moe::PROGRAMS, &left_out))?;
    tally.timed("examples in documentation", |tally| cargo.run_documentation(tally))?;
    gated(&mut tally, Stage::Programs, &setting, record)?;
    match options.all {
        true => tally.timed("exporters", |tally| exporters::run(tally, offline))?,
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
    build_kernels::refresh_to_run()?;
    let unit = ["--workspace", "--lib", "--bins"];
    let filters: Vec<String> = filter.map(str::to_owned).into_iter().collect();
    cargo.run(&mut tally, &unit, &filters)?;
    cargo.run(&mut tally, &["--workspace", "--test", QUICK], &filters)?;
    let left: Vec<Target> = targets::all()?.into_iter().filter(Target::is_integration).collect();
    let left = left.iter().filter(|target| target.name != QUICK).count();
    for name in [
        &format!("{left} programs of integration tests"),
        "examples in documentation",
        "synchronising instructions of the kernels",
        "real model",
        "exporters and their loaders",
    ] {
        tally.skip(name, "--quick");
    }
    GATES.iter().for_each(|gate| tally.skip(gate.name, "--quick"));
    Ok(tally)
}

/// The tests of a name.
fn filtered(filter: &str, offline: bool, cargo: Cargo, record: &mut Record) -> Result<Tally> {
    if let Some(gate) = GATES.iter().find(|gate| gate.name == filter) {
        let mut tally = Tally::default();
        match gate.with_kernels {
            true => build_kernels::refresh_to_run()?,
            false => build_kernels::sweep()?,
        }
        let model = gate.with_model.then(|| model(&mut tally, offline)).flatten();
        let setting = Setting { cargo: Cargo { model, ..cargo }, offline };
        gate.pass(&mut tally, &setting, record)?;
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
        let mut tally =
            Tally { passed: 12, failed: 1, skipped: no_gpu.into(), partly, ..Tally::default() };
        tally.times = times;
        tally.phases = vec![(2.0, "compiling".into()), (61.25, "tests".into())];
        tally.programs = vec![(1.5, "gemv".into()), (60.0, "gemm".into()), (0.2, "moe".into())];
        let summary = tally.summary();
        let lines: Vec<&str> = summary.lines().filter(|line| !line.is_empty()).collect();
        let (before, lines) = lines.split_at(6);
        let expected = [
            "phases:",
            "     2.0 s  compiling",
            "    61.2 s  tests",
            "slowest test programs:",
            "    60.0 s  gemm",
            "     1.5 s  gemv",
        ];
        assert_eq!(before, expected);
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
        assert_eq!(slowest[0], "slowest tests:");
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
    #[test]
    fn a_phase_has_its_time() {
        let mut tally = Tally::default();
        let inner = tally.timed("a", |tally| {
            tally.step("b", Ok(()));
            Ok(7)
        });
        assert_eq!((inner.ok(), tally.passed), (Some(7), 1));
        assert!(tally.timed("c", |_| -> Result<()> { anyhow::bail!("stops") }).is_err());
        let phases: Vec<&str> = tally.phases.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(phases, ["a", "c"]);
    }

    #[test]
    fn only_a_part_is_recorded() {
        #[derive(clap::Parser)]
        struct Parser {
            #[command(flatten)]
            options: Options,
        }
        let parse = |arguments: &[&str]| {
            let all = ["test"].iter().chain(arguments);
            <Parser as clap::Parser>::try_parse_from(all).map(|parser| parser.options)
        };
        let options = parse(&["--record", "gemm_stores"]).expect("arguments");
        let error = run(&options).expect_err("refused").to_string();
        assert!(error.contains("gemm_stores") && error.contains(mutants::NAME), "{error}");
        for gate in &GATES {
            let options = parse(&["--record", gate.name]).expect("arguments");
            assert!(options.record && options.filter.as_deref() == Some(gate.name));
        }
    }
}
