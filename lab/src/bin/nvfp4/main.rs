//! The program `nvfp4`.
//!
//! Exit codes: 0 for a verified result; 1 if the result is wrong or the kernel failed; 2 for bad
//! input or if there is nothing to run on; 130 and 143 after SIGINT and SIGTERM; 141 if the reader
//! of the output closed the pipe.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod checkpoints;
mod commands;
mod common;
mod gemm;
mod moe;
mod progress;
mod report;
mod rows;
mod selftest;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use nvfp4::error::Error;
use nvfp4_checkpoint::CheckpointError;

/// Exit code where the reader of the output has left: that of a program that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

/// An error and its causes, each said once: some errors have their cause in their own message.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    text
}

fn main() -> ExitCode {
    let parsed = match args::Args::try_parse() {
        Ok(args) => commands::execute(args),
        Err(error) if error.use_stderr() => error.exit(),
        // Help, and the version: clap would not say that they could not be written.
        Err(text) => common::write_out(&text.render().to_string()).map(|()| ExitCode::SUCCESS),
    };
    let error = match parsed {
        Ok(code) => return code,
        Err(error) => error,
    };
    // Only output that was to be printed fails as such; all else is an error of the library.
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if kind == Some(io::ErrorKind::BrokenPipe) {
        return ExitCode::from(CLOSED_PIPE);
    }
    // Messages may have lost their reader, too.
    let _ = writeln!(io::stderr(), "error: {}", common::printable(&message(&error)));
    let of_checkpoint = error.downcast_ref::<CheckpointError>();
    if let Some(CheckpointError::Interrupted { .. }) = of_checkpoint
        && let Some(code) = progress::signalled()
    {
        return ExitCode::from(code);
    }
    let code = of_checkpoint.map(CheckpointError::exit_code);
    let code = code.or_else(|| error.downcast_ref::<Error>().map(Error::exit_code));
    // Shape strings that cannot be used, and arguments that do not fit each other.
    ExitCode::from(code.unwrap_or(2))
}
