//! `test`: everything that can be tested on this machine; with `--quick` what takes a few minutes,
//! with a filter the tests of that name.
//!
//! Steps that need something this machine lacks are skipped by name, with the
//! reason, and counted in the last line.

mod cargo;
mod targets;

use crate::{build_kernels, counts, fetch_model, lint, run};
use anyhow::Result;
use cargo::Cargo;
use clap::Args;
use cuda_builder::{Compiler, Fetch, ptxas};
use fp4_formats::Arch;
use std::process::ExitCode;
use targets::{Needed, Target};

/// The test that launches one configuration of each family of kernels.
const QUICK: &str = "quick";
/// Packages whose tests launch kernels.
const WITH_KERNELS: [&str; 2] = ["nvfp4", "nvfp4-tests"];
/// Tests that are named at the end.
const SLOWEST: usize = 10;

#[derive(Args)]
pub struct Options {
    /// Lint, unit tests, and one configuration of each family of kernels; says what it leaves out
    #[arg(long)]
    quick: bool,
    /// Leave out what needs the network: the real model, and ptxas if it is not
    /// installed
    #[arg(long)]
    offline: bool,
    /// Only tests whose name, file or package contains this; only those are built
    filter: Option<String>,
}

/// What came of everything so far.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
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
        self.skipped += 1;
    }

    /// The slowest tests, then the summary; exit code 1 if anything failed.
    fn finish(mut self) -> ExitCode {
        self.times.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        if !self.times.is_empty() {
            say!("\nslowest tests:");
        }
        for (seconds, name) in self.times.iter().take(SLOWEST) {
            say!("{seconds:>8.1} s  {name}");
        }
        let Self { passed, failed, skipped, .. } = self;
        say!("\ntests: {passed} passed, {failed} failed, {skipped} skipped");
        ExitCode::from(u8::from(failed > 0))
    }
}

/// Runs the command; exit code 1 if anything failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    match (&options.filter, options.quick) {
        (filter, true) => quick(filter.as_deref()),
        (Some(filter), false) => filtered(filter),
        (None, false) => everything(options),
    }
}

fn everything(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let compiler = Compiler::find(Fetch::Allowed)?;
    build_kernels::refresh()?;
    compilers(&mut tally, &compiler);
    machine_code(&mut tally, options);
    let mut cargo = Cargo::default();
    if options.offline {
        tally.skip("real model", "--offline");
    } else {
        match fetch_model::run() {
            Ok(path) => cargo.model = Some(path),
            Err(error) => tally.skip("real model", &format!("{error:#}")),
        }
    }
    cargo.run(&mut tally, &["--workspace", "--no-fail-fast"], None)?;
    cargo.run_documentation(&mut tally)?;
    Ok(tally.finish())
}

/// What finds most mistakes in the least time.
fn quick(filter: Option<&str>) -> Result<ExitCode> {
    let mut tally = Tally::default();
    lint::each(|name, result| tally.step(&format!("lint {name}"), result))?;
    build_kernels::refresh()?;
    let cargo = Cargo::default();
    let unit = ["--workspace", "--no-fail-fast", "--lib", "--bins"];
    cargo.run(&mut tally, &unit, filter)?;
    cargo.run(&mut tally, &["--package", "nvfp4-tests", "--test", QUICK], filter)?;
    let left: Vec<Target> = targets::all()?.into_iter().filter(Target::is_integration).collect();
    let left = left.iter().filter(|target| target.name != QUICK).count();
    for (name, why) in [
        ("files of integration tests", format!("{left} of them")),
        ("examples in documentation", "they are compiled one by one".to_owned()),
        ("kernels by every accepted compiler", "and their synchronising instructions".to_owned()),
        ("machine code", "by ptxas".to_owned()),
        ("real model", "its tests are among the files".to_owned()),
    ] {
        tally.skip(name, &format!("--quick leaves out {why}"));
    }
    Ok(tally.finish())
}

/// The tests of a name.
fn filtered(filter: &str) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let needed = targets::needed(filter)?;
    let kernels = |need: &Needed| WITH_KERNELS.contains(&need.target.package.as_str());
    if needed.iter().any(kernels) {
        build_kernels::refresh()?;
    }
    let cargo = Cargo::default();
    for Needed { target, whole } in &needed {
        let filter = Some(filter).filter(|_| !whole);
        cargo.run(&mut tally, &target.arguments(), filter)?;
    }
    if tally.passed + tally.failed == 0 {
        tally.step(filter, Err(anyhow::anyhow!("no test, test file or package has such a name")));
    }
    Ok(tally.finish())
}

/// Every accepted compiler builds the kernels, and each result keeps the
/// contract that `cuda_builder` checks and has the expected synchronising instructions.
fn compilers(tally: &mut Tally, default: &Compiler) {
    let all = Compiler::all();
    for compiler in &all {
        for arch in Arch::ALL {
            let name = format!("kernels for {arch} with rustc {}", compiler.release);
            let result =
                counts::compiled(arch, compiler).and_then(|counts| counts::check(arch, &counts));
            tally.step(&name, result);
        }
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
}

/// ptxas accepts every kernel and none goes through local memory.
fn machine_code(tally: &mut Tally, options: &Options) {
    let tools = run::tools();
    let ptxas = match ptxas::find(&tools) {
        Some(found) => Ok(found),
        None if options.offline => Err("no ptxas, and --offline".to_string()),
        None => ptxas::install(&tools).map_err(|e| e.to_string()),
    };
    for arch in Arch::ALL {
        let name = format!("machine code for {arch}");
        match &ptxas {
            Ok(ptxas) => {
                let folder = build_kernels::folder(arch);
                let report = ptxas::report(
                    ptxas,
                    &folder.join("kernels.ptx"),
                    arch.name(),
                    &folder.join("kernels.cubin"),
                );
                let result = report.map_err(anyhow::Error::from).and_then(|usage| {
                    anyhow::ensure!(!usage.is_empty(), "ptxas reported no kernel");
                    let dirty: Vec<_> =
                        usage.iter().filter(|u| !u.is_clean()).map(|u| u.name.as_str()).collect();
                    anyhow::ensure!(dirty.is_empty(), "through local memory: {}", dirty.join(", "));
                    Ok(())
                });
                tally.step(&name, result);
            }
            Err(why) => tally.skip(&name, why),
        }
    }
}
