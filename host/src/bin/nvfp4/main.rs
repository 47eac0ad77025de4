//! The program `nvfp4`.
//!
//! Exit codes: 0 for a verified result; 1 if the result is wrong or the kernel failed; 2 for bad
//! input or if there is nothing to run on.

mod args;
mod checkpoints;
mod commands;
mod gemm;
mod progress;
mod tune;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::execute(args::Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(error.downcast_ref::<nvfp4::error::Error>().map_or(2, |e| e.exit_code()))
        }
    }
}
