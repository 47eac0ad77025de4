//! Command line of `ptx-emu`.
//!
//! Exit codes: 0 the kernel ran, 1 it ran and did something wrong, 2 bad input.
//! Messages go to standard error; standard output has the report, or with
//! `--json` one JSON object in every case but a wrong command line.

mod arguments;
mod error;
mod output;
mod parameters;
mod report;
mod run;

use clap::{Parser, Subcommand};
use std::io::Write as _;
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
}

/// Runs the program with the process's arguments.
pub(crate) fn main() -> ExitCode {
    let Command::Run(args) = Program::parse().command;
    let (report, code) = match run::run(&args) {
        Ok(done) => {
            for warning in done.warnings() {
                eprintln!("ptx-emu: warning: {warning}");
            }
            let text = if args.json { report::json(&done) } else { report::text(&done) };
            (Some(text), 0)
        }
        Err(error) => {
            eprintln!("ptx-emu: {error}");
            (args.json.then(|| report::failure(&error)), error.exit_code())
        }
    };
    if let Some(report) = report {
        // A reader that closed the pipe has seen enough.
        let _ = writeln!(std::io::stdout(), "{report}");
    }
    ExitCode::from(code)
}
