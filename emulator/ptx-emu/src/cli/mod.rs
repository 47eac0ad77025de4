//! Command line of `ptx-emu`.
//!
//! Exit codes: 0 if the kernel ran (with the expected outputs), 1 if it ran with an
//! error, 2 for bad input, 141 if the reader of the report closed the pipe.
//! Messages go to standard error; standard output has the report, or with
//! `--json` one JSON object in every case but a wrong command line.

mod arguments;
mod bound;
#[cfg(target_os = "linux")]
mod capture;
mod check;
mod checks;
mod conformance;
mod console;
mod coverage;
#[cfg(feature = "cuda")]
mod device;
mod error;
#[cfg(target_os = "linux")]
mod exec;
mod explain;
mod explore;
mod hardware;
mod mutate;
mod output;
mod parameters;
#[cfg(target_os = "linux")]
mod program;
mod replay;
mod report;
mod run;
mod sarif;
mod sequence;
#[cfg(target_os = "linux")]
mod stub;
mod trace;

use clap::{Parser, Subcommand};
use ptx_emu::sarif::Log;
use std::process::ExitCode;

/// Runs PTX kernels for Hopper and Blackwell GPUs on the CPU and says what is
/// wrong with them.
#[derive(Debug, Parser)]
#[command(name = "ptx-emu", version)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Replay(replay::ReplayArgs),
    Coverage(coverage::CoverageCommand),
    Bound(bound::BoundArgs),
    Mutate(mutate::MutateArgs),
    Conformance(conformance::ConformanceArgs),
    Explain(explain::ExplainArgs),
    #[cfg(target_os = "linux")]
    Exec(exec::ExecArgs),
    #[cfg(target_os = "linux")]
    Capture(capture::CaptureArgs),
}

/// Runs the program with the process's arguments.
pub(crate) fn main() -> ExitCode {
    let program = match Program::try_parse() {
        Ok(program) => program,
        Err(error) if error.use_stderr() => error.exit(),
        // Help, and the version: clap would not say that they could not be written.
        Err(text) => {
            return ExitCode::from(console::report(text.render().to_string().trim_end(), 0));
        }
    };
    let (report, code) = match program.command {
        Command::Run(args) => run_kernel(&args),
        Command::Check(args) => check::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Bound(args) => bound::run(&args),
        Command::Mutate(args) => mutate::run(&args),
        Command::Explain(args) => (Some(explain::run(&args)), 0),
        #[cfg(target_os = "linux")]
        Command::Exec(args) => (None, exec::run(&args)),
        #[cfg(target_os = "linux")]
        Command::Capture(args) => (None, capture::run(&args)),
        Command::Conformance(args) => match conformance::run(&args) {
            Ok((text, code)) => (Some(text), code),
            Err(error) => {
                console::complain(error);
                (None, 2)
            }
        },
    };
    ExitCode::from(report.map_or(code, |report| console::report(&report, code)))
}

/// Returns the text for standard output, and the exit code.
fn run_kernel(args: &run::RunArgs) -> (Option<String>, u8) {
    let mut log = Log::new();
    let (text, code) = launch(args, &mut log);
    (text, args.sarif.write(&log, code))
}

/// Launches once or under many schedules, and adds what was found to the log.
fn launch(args: &run::RunArgs, log: &mut Log) -> (Option<String>, u8) {
    let module = &args.module;
    if let Some(seeds) = args.explore.seeds() {
        return match run::explore(args, seeds) {
            Ok(tried) => {
                explore::add(&tried, log, module);
                explore::report(&tried, args.checks.model(), args.json)
            }
            Err(error) => failed(&error, args, log),
        };
    }
    match run::run(args) {
        Ok(done) => {
            for warning in done.warnings() {
                console::complain(format_args!("warning: {warning}"));
            }
            checks::complain(&done.findings, done.findings_left_out);
            sarif::findings(log, &done.findings, module, None);
            sarif::outputs(log, &done.compared, module);
            let text = if args.json { report::json(&done) } else { report::text(&done) };
            (Some(text), u8::from(!done.is_right()))
        }
        Err(error) => failed(&error, args, log),
    }
}

fn failed(error: &error::CliError, args: &run::RunArgs, log: &mut Log) -> (Option<String>, u8) {
    match error {
        error::CliError::Launch(ptx_emu::LaunchError::Diagnostic(found)) => {
            console::complain(checks::line(found));
            checks::complain(&found.others, 0);
            sarif::diagnostic(log, found, &args.module);
        }
        error => {
            console::complain(error);
            log.failed(&error.to_string());
        }
    }
    let json = || report::failure(error, Some(args.checks.model()));
    (args.json.then(json), error.exit_code())
}
