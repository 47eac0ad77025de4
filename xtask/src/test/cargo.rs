//! Tests as `cargo test` runs them, counted and timed.

use super::{Skipped, Tally, targets};
use crate::run;
use anyhow::{Context, Result};
use skipped::{Notes, Skip};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A runner that starts each test program in an environment where it takes the flags of [`TIMED`]:
/// the time of a test is an unstable feature of the test harness. Cargo compiles the same with it.
const RUNNER: &str = r#"target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]"#;
/// Flags with which a test program reports how long each test took.
const TIMED: [&str; 2] = ["-Zunstable-options", "--report-time"];

/// Tells tests where the real model is.
pub const MODEL_VARIABLE: &str = "NVFP4_TEST_MODEL";

/// The settings of test runs.
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
    /// `cargo test` with a profile, and its environment.
    fn command(&self, profile: &str) -> Command {
        let mut tests = run::cargo();
        run::on_demand(&mut tests);
        tests
            .args(["test", "--profile", profile])
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

    /// Runs the test programs that `targets` say, and of their tests those whose names have one of the parts
    /// `filters`, or all.
    /// Whether any test was run, or could not be.
    pub fn run<T: AsRef<str>>(
        &self,
        tally: &mut Tally,
        targets: &[T],
        filters: &[String],
    ) -> Result<bool> {
        let before = tally.outcomes();
        let mut command = self.programs(targets);
        command.arg("--").args(TIMED).args(filters);
        outcome(tally, command)?;
        Ok(tally.outcomes() > before)
    }

    /// Runs all test programs of the workspace but for programs of integration tests that are a part of their own, and
    /// for tests that the arguments `left_out` leave out. The program that takes longest runs beside the others in turn,
    /// so that no core waits for the last test of a program.
    pub fn run_others(&self, tally: &mut Tally, parts: &[&str], left_out: &[String]) -> Result<()> {
        let longest = ["--workspace".to_owned(), "--test".to_owned(), LONGEST.to_owned()];
        let apart: Vec<&str> = parts.iter().copied().chain([LONGEST]).collect();
        let others = all_but(&apart)?;
        let command = |targets: &[String]| {
            let mut command = self.programs(targets);
            command.arg("--").args(TIMED).args(left_out);
            command
        };
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                let mut tally = Tally::default();
                shown(&mut tally, command(&others), Show::Programs).map(|()| tally)
            });
            let result = outcome(tally, command(&longest));
            let beside = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            tally.add(beside);
            result
        })
    }

    /// Builds the test programs that `targets` say. A program that does not compile fails when it is run.
    pub fn build<T: AsRef<str>>(&self, targets: &[T]) -> Result<()> {
        let mut command = self.programs(targets);
        command.args(["--no-run", "--quiet"]).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().context("running cargo test")?;
        Ok(())
    }

    /// `cargo test` of the programs that `targets` say.
    fn programs<T: AsRef<str>>(&self, targets: &[T]) -> Command {
        let targets: Vec<&str> = targets.iter().map(AsRef::as_ref).collect();
        let mut command = self.command(run::TESTS);
        command.args(["--config", RUNNER, "--no-fail-fast"]).args(&targets);
        // Without a kind of target, cargo would run examples in documentation, too, whose harness
        // does not take the flags. Programs that are examples have no tests; clippy compiles them.
        if !targets.iter().any(|of| KINDS.contains(of)) {
            command.args(["--lib", "--bins", "--tests"]);
        }
        command
    }

    /// Runs all tests of a package outside the workspace.
    pub fn run_manifest(&self, tally: &mut Tally, manifest: &str) -> Result<()> {
        let mut command = self.command(run::TESTS);
        command.args(["--no-fail-fast", "--manifest-path", manifest]);
        outcome(tally, command)
    }

    /// Runs the examples in documentation.
    pub fn run_documentation(&self, tally: &mut Tally) -> Result<()> {
        let mut command = self.command(run::TESTS);
        command.args(["--workspace", "--no-fail-fast", "--doc"]);
        outcome(tally, command)
    }
}

/// The program of integration tests that takes longest of those that are no part of their own.
const LONGEST: &str = "library";

/// Arguments of a test program that leave out the tests whose names have this part.
pub fn without(part: &str) -> [String; 2] {
    ["--skip", part].map(str::to_owned)
}

/// Arguments of cargo for all test programs of the workspace but for some of integration tests.
pub fn all_but(programs: &[&str]) -> Result<Vec<String>> {
    let mut arguments = ["--workspace", "--lib", "--bins"].map(str::to_owned).to_vec();
    let all = targets::all()?;
    let names: BTreeSet<&str> =
        all.iter().filter(|target| target.is_integration()).map(|target| &*target.name).collect();
    for name in names.into_iter().filter(|name| !programs.contains(name)) {
        arguments.extend(["--test".to_owned(), name.to_owned()]);
    }
    Ok(arguments)
}

/// Time at which lines of test programs are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    /// Each at once.
    Lines,
    /// Lines of a program together when it has ended: other programs run beside it.
    Programs,
}

/// Arguments of cargo that name a kind of target.
const KINDS: [&str; 4] = ["--lib", "--bin", "--bins", "--test"];
/// The beginnings of the reasons of ignored tests that run only in a process of their own, started by
/// another test: what they check counts there.
const CHILD: [&str; 2] = ["a child", "the child of "];

/// Shows what a command prints, and adds up its tests.
fn outcome(tally: &mut Tally, command: Command) -> Result<()> {
    shown(tally, command, Show::Lines)
}

/// The same, showing lines at once or later.
fn shown(tally: &mut Tally, mut command: Command, show: Show) -> Result<()> {
    static COMMANDS: AtomicUsize = AtomicUsize::new(0);
    let number = COMMANDS.fetch_add(1, Ordering::Relaxed);
    let notes = run::target().join(format!("skipped-{}-{number}.txt", std::process::id()));
    let notes = Notes::new(notes).context("the file for what tests skip")?;
    let (variable, file) = notes.variable();
    command.env(variable, file);
    // A single thread would be the harness's own, which does not have the name of the test.
    if std::thread::available_parallelism().is_ok_and(|threads| threads.get() == 1) {
        command.env("RUST_TEST_THREADS", "2");
    }
    // Both streams in one, so that what cargo says of a program comes before its tests.
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let mut child = command.spawn().context("running cargo test")?;
    // Its copies of the writer would keep the pipe open.
    drop(command);
    let mut seen = Seen::default();
    let mut kept = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("reading cargo test's output")?;
        let line = String::from_utf8_lossy(&line);
        let summaries = seen.summaries;
        seen.line(&line);
        match show {
            Show::Lines => say!("{line}"),
            Show::Programs => {
                kept.push(line.into_owned());
                if seen.summaries > summaries {
                    say!("{}", kept.join("\n"));
                    kept.clear();
                }
            }
        }
    }
    if !kept.is_empty() {
        say!("{}", kept.join("\n"));
    }
    let status = child.wait().context("waiting for cargo test")?;
    // A failure that no summary shows: a compile error, an abort.
    if !status.success() && seen.failed == 0 || seen.summaries == 0 {
        say!("step cargo test ... FAILED: {status}, {} summaries", seen.summaries);
        tally.failed += 1;
    }
    seen.add_to(tally, notes.read().context("what tests skipped")?);
    Ok(())
}

/// The test programs' output so far.
#[derive(Default)]
struct Seen {
    /// File name of the program that runs.
    program: String,
    summaries: usize,
    passed: usize,
    failed: usize,
    /// Tests that returned, with their programs' file names.
    returned: BTreeSet<(String, String)>,
    skipped: Vec<Skipped>,
    times: Vec<(f64, String)>,
    /// Seconds of each program.
    programs: Vec<(f64, String)>,
}

impl Seen {
    fn line(&mut self, line: &str) {
        if let Some(program) = program_of(line) {
            self.program = program;
        } else if let Some(summary) = line.strip_prefix("test result:") {
            self.summaries += 1;
            self.passed += count(summary, "passed");
            self.failed += count(summary, "failed");
            if let Some(seconds) = finished(summary) {
                self.programs.push((seconds, unhashed(&self.program).to_owned()));
            }
        } else if let Some((test, outcome)) = test_of(line) {
            let name = || named(&self.program, test);
            if let Some(seconds) = seconds_of(outcome) {
                self.times.push((seconds, name()));
            }
            if let Some(reason) = outcome.strip_prefix("ignored") {
                let reason = reason.strip_prefix(", ").unwrap_or("marked `ignore`");
                if !CHILD.iter().any(|beginning| reason.starts_with(beginning)) {
                    self.skipped.push(Skipped { name: name(), reason: reason.to_owned() });
                }
            } else if outcome.split_whitespace().next() == Some("ok") {
                self.returned.insert((self.program.clone(), test.to_owned()));
            }
        }
    }

    /// Adds the tests to the totals. A test that returned after it said that it checks nothing is skipped, not
    /// passed. Messages of a failed test or a child are shown with the parts that were left out.
    fn add_to(mut self, tally: &mut Tally, skips: Vec<Skip>) {
        for Skip { program, test, part, reason } in skips {
            let name = named(&program, &test);
            if part.is_none() && self.returned.remove(&(program, test)) {
                self.passed -= 1;
                self.skipped.push(Skipped { name, reason });
            } else {
                let reason = part.map_or(reason.clone(), |part| format!("{part}: {reason}"));
                tally.partly.push(Skipped { name, reason });
            }
        }
        let Self { passed, failed, skipped, times, programs, .. } = self;
        tally.passed += passed;
        tally.failed += failed;
        tally.skipped.extend(skipped);
        tally.times.extend(times);
        tally.programs.extend(programs);
    }
}

/// The file name of the program that cargo says it runs; the package of one for examples in documentation.
fn program_of(line: &str) -> Option<String> {
    if let Some(package) = line.trim_start().strip_prefix("Doc-tests ") {
        return Some(package.to_owned());
    }
    let (_, path) = line.trim_start().strip_prefix("Running ")?.rsplit_once('(')?;
    Some(Path::new(path.strip_suffix(')')?).file_name()?.to_string_lossy().into_owned())
}

/// A test as it is shown: behind its program, without cargo's hash.
fn named(program: &str, test: &str) -> String {
    format!("{}::{test}", unhashed(program))
}

/// The name of a program without cargo's hash.
fn unhashed(program: &str) -> &str {
    let hashed = program.rsplit_once('-').filter(|(_, hash)| {
        hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    hashed.map_or(program, |(name, _)| name)
}

/// A test that has ended, and its outcome.
fn test_of(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), outcome))
}

/// Seconds of an outcome that was timed.
fn seconds_of(outcome: &str) -> Option<f64> {
    outcome.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()
}

/// Seconds of a program, at the end of its summary.
fn finished(summary: &str) -> Option<f64> {
    summary.rsplit_once("finished in ")?.1.trim().strip_suffix('s')?.parse().ok()
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
        assert_eq!((count(line, "passed"), count(line, "failed")), (12, 3));
        assert_eq!(finished(line), Some(0.1));
        assert_eq!(finished(" ok. 12 passed"), None);
    }

    #[test]
    fn all_programs_run_once() {
        let apart = [LONGEST, "gemm"];
        let arguments = all_but(&apart).expect("cargo metadata");
        let integration = targets::all().expect("cargo metadata").into_iter();
        let mut names: Vec<String> = integration
            .filter(|target| target.is_integration())
            .map(|target| target.name)
            .collect();
        for program in apart {
            assert!(arguments.iter().all(|argument| argument != program));
            assert_eq!(names.iter().filter(|name| *name == program).count(), 1);
        }
        names.retain(|name| !apart.contains(&name.as_str()));
        names.sort();
        names.dedup();
        let named: Vec<&String> = arguments[3..].iter().skip(1).step_by(2).collect();
        assert_eq!(named, names.iter().collect::<Vec<_>>());
    }

    #[test]
    fn tests_are_timed() {
        let line = "     Running tests/gemv.rs (target/release/deps/gemv-227a7bb0da264bf1)";
        let program = program_of(line).expect("a program");
        assert_eq!(program, "gemv-227a7bb0da264bf1");
        assert_eq!(program_of("   Doc-tests nvfp4").as_deref(), Some("nvfp4"));
        let timed = |line| {
            let (test, outcome) = test_of(line)?;
            Some((seconds_of(outcome)?, named(&program, test)))
        };
        assert_eq!(timed("test a::b ... ok <1.25s>"), Some((1.25, "gemv::a::b".to_owned())));
        let failed = "test a - should panic ... FAILED <0.001s>";
        assert_eq!(timed(failed), Some((0.001, "gemv::a".to_owned())));
        assert_eq!(timed("test a::b ... ok"), None);
        assert_eq!(timed("test result: ok. 1 passed"), None);
        assert_eq!(named("ptx-emu", "a"), "ptx-emu::a");
    }

    /// Two programs of one name, each with a test of one name, only one of which is skipped.
    const OUTPUT: &str = "     Running tests/gemv.rs (target/release/deps/gemv-0000000000000001)
running 6 tests
test both ... ok <0.001s>
test checked ... ok <0.100s>
test child ... ignored, the child of both
test fails ... FAILED <0.001s>
test panics - should panic ... ok <0.001s>
test slow ... ignored, prints times
test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s
     Running tests/gemv.rs (target/release/deps/gemv-0000000000000002)
running 1 test
test both ... ok <0.001s>
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
   Doc-tests nvfp4
test host/src/lib.rs - (line 3) ... ignored
test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";

    #[test]
    fn a_skipped_test_is_counted_once() {
        let mut seen = Seen::default();
        OUTPUT.lines().for_each(|line| seen.line(line));
        let skip = |test: &str, part: Option<&str>| Skip {
            program: "gemv-0000000000000001".into(),
            test: test.into(),
            part: part.map(str::to_owned),
            reason: "no GPU".into(),
        };
        let mut tally = Tally { passed: 10, ..Tally::default() };
        let skips = vec![
            skip("both", None),
            // A second reason of the same test.
            Skip { reason: "no ptxas".into(), ..skip("both", None) },
            skip("checked", Some("cuda:0")),
            skip("child", None),
            skip("fails", None),
        ];
        seen.add_to(&mut tally, skips);
        let programs = [(0.1, "gemv"), (0.1, "gemv"), (0.1, "nvfp4")];
        assert_eq!(tally.programs, programs.map(|(seconds, name)| (seconds, name.to_owned())));
        let shown = |skipped: &[Skipped]| -> Vec<String> {
            skipped.iter().map(|one| format!("{}: {}", one.name, one.reason)).collect()
        };
        assert_eq!((tally.passed, tally.failed), (13, 1));
        let skipped = [
            "gemv::slow: prints times",
            "nvfp4::host/src/lib.rs - (line 3): marked `ignore`",
            "gemv::both: no GPU",
        ];
        assert_eq!(shown(&tally.skipped), skipped);
        let partly = [
            "gemv::both: no ptxas",
            "gemv::checked: cuda:0: no GPU",
            "gemv::child: no GPU",
            "gemv::fails: no GPU",
        ];
        assert_eq!(shown(&tally.partly), partly);
    }
}
