//! `test`: everything that can be tested on this machine.
//!
//! Steps that need something this machine lacks are skipped by name, with the
//! reason, and counted in the last line.

use crate::{build_kernels, fetch_model, run};
use anyhow::{Context, Result};
use clap::Args;
use cuda_builder::{Arch, Compiler, Fetch, ptx, ptxas};
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

#[derive(Args)]
pub struct Options {
    /// Leave out what needs the network: the real model, and ptxas if it is not
    /// installed
    #[arg(long)]
    offline: bool,
}

/// What came of everything so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    fn step(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                println!("step {name} ... ok");
                self.passed += 1;
            }
            Err(error) => {
                println!("step {name} ... FAILED: {error:#}");
                self.failed += 1;
            }
        }
    }

    fn skip(&mut self, name: &str, why: &str) {
        println!("step {name} ... skipped: {why}");
        self.skipped += 1;
    }
}

/// Runs the command; exit code 1 if anything failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let compiler = Compiler::find(Fetch::Allowed)?;
    build_kernels::refresh()?;
    compilers(&mut tally, &compiler);
    machine_code(&mut tally, options);

    let model = if options.offline {
        tally.skip("real model", "--offline");
        None
    } else {
        match fetch_model::run() {
            Ok(path) => Some(path),
            Err(error) => {
                tally.skip("real model", &format!("{error:#}"));
                None
            }
        }
    };
    let mut tests = run::cargo();
    tests
        .args(["test", "--workspace", "--release", "--no-fail-fast"])
        .env("NVFP4_KERNELS_DIR", run::kernels());
    if let Some(model) = model {
        tests.env("NVFP4_TEST_MODEL", model);
    }
    cargo_tests(&mut tally, tests)?;

    println!(
        "\ntests: {} passed, {} failed, {} skipped",
        tally.passed, tally.failed, tally.skipped
    );
    Ok(ExitCode::from(u8::from(tally.failed > 0)))
}

/// Every accepted compiler builds the kernels, and each result keeps the
/// contract that `cuda_builder` checks and the synchronisation that the source
/// asks for.
fn compilers(tally: &mut Tally, default: &Compiler) {
    let all = Compiler::all();
    for compiler in &all {
        for arch in Arch::ALL {
            let name = format!("kernels for {arch} with rustc {}", compiler.release);
            let result = build_kernels::compile(arch, compiler.clone())
                .and_then(|built| synchronisation(&built.ptx));
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

/// The barriers of a GEMV kernel: two around staging, and nothing else that
/// threads execute together but the epilogue's five shuffles and, for R rows,
/// R - 1 transposing ones in place of the first log2(R).
fn synchronisation(text: &str) -> Result<()> {
    let counts = ptx::convergent_counts(text);
    for config in &fp4_formats::gemv::CONFIGS {
        let rows = config.rows_per_warp as usize;
        let shuffles = rows - 1 + 5 - rows.ilog2() as usize;
        for (opcode, expected) in [("bar.sync", 2), ("shfl.sync.bfly.b32", shuffles)] {
            let key = (config.name.to_string(), opcode.to_string());
            let found = counts.get(&key).copied().unwrap_or(0);
            anyhow::ensure!(
                found == expected,
                "{} has {found} {opcode}, its source asks for {expected}",
                config.name
            );
        }
        let others: Vec<_> = counts
            .keys()
            .filter(|(entry, op)| {
                entry == config.name && op != "bar.sync" && op != "shfl.sync.bfly.b32"
            })
            .collect();
        anyhow::ensure!(others.is_empty(), "unexpected synchronisation: {others:?}");
    }
    Ok(())
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
                    arch,
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

/// Runs cargo test, shows its output, and adds up its summary lines.
fn cargo_tests(tally: &mut Tally, mut command: std::process::Command) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("running cargo test")?;
    let mut summaries = 0;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            let line = line.context("reading cargo test's output")?;
            println!("{line}");
            if let Some(summary) = line.strip_prefix("test result:") {
                summaries += 1;
                tally.passed += count(summary, "passed");
                tally.failed += count(summary, "failed");
                tally.skipped += count(summary, "ignored");
            }
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    // A failure that no summary shows: a compile error, an abort.
    if !status.success() && tally.failed == 0 || summaries == 0 {
        println!("step cargo test ... FAILED: {status}, {summaries} summaries");
        tally.failed += 1;
    }
    Ok(())
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
    use super::count;

    #[test]
    fn summaries_are_added_up() {
        let line =
            " ok. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            (count(line, "passed"), count(line, "failed"), count(line, "ignored")),
            (12, 3, 4)
        );
    }
}
