//! The program `nvfp4`.
//!
//! Exit codes: 0 for a verified result; 1 if the result is wrong or the kernel failed; 2 for bad
//! input or if there is nothing to run on; 141 if the reader of the output closed the pipe.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod checkpoints;
mod commands;
mod gemm;
mod progress;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Exit code where the reader of the output has left: that of a program that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    let error = match commands::execute(args::Args::parse()) {
        Ok(code) => return code,
        Err(error) => error,
    };
    // Only output that was to be printed fails as such; all else is an error of the library.
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if kind == Some(io::ErrorKind::BrokenPipe) {
        return ExitCode::from(CLOSED_PIPE);
    }
    // Messages may have lost their reader, too.
    let _ = writeln!(io::stderr(), "error: {error:#}");
    ExitCode::from(error.downcast_ref::<nvfp4::error::Error>().map_or(2, |e| e.exit_code()))
}
