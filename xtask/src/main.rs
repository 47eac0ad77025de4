//! Project tasks, run as `cargo xtask <command>`.
//!
//! Light on purpose: it depends on `cuda_builder` and not on the host library, so that a newcomer's
//! first command starts compiling kernels soon. Commands that need the host library run its
//! program, `nvfp4`.
//!
//! Exit codes: 0 done, 1 something failed, 2 bad input, 141 the reader of the output closed the
//! pipe.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod console;

mod build_kernels;
mod counts;
mod dist;
mod doctor;
mod fetch_model;
mod lint;
mod mutate;
mod package;
mod progress;
#[cfg(test)]
mod prose;
mod run;
mod test;
#[cfg(test)]
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project tasks")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the kernels: target/kernels/<arch>/, a module for each family and manifest.json
    ///
    /// Modules are PTX and, where ptxas is found, machine code beside it.
    BuildKernels(build_kernels::Options),
    /// Run, verify and time (or count) a shape; kernels are compiled when they are first used
    ///
    /// Everything after `bench` goes to `nvfp4 bench`; see `cargo xtask bench --help`. Only `--release` does
    /// not: the program is then optimised, as it is with a GPU and once it has been built so.
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of `nvfp4 bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything that can be tested on this machine, or what a filter names; says what it skipped
    Test(test::Options),
    /// Compare the kernels' synchronising instructions with what is expected, or rewrite that
    Counts(counts::Options),
    /// Lose or weaken one synchronisation of a kernel at a time: is it noticed?
    ///
    /// Everything after `mutate` goes to `ptx-emu mutate`: launch bundles, or a PTX
    /// module with the arguments of `ptx-emu run`; see `cargo xtask mutate --help`.
    #[command(disable_help_flag = true)]
    Mutate {
        /// Arguments of `ptx-emu mutate`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Formatting, clippy and documentation, of the host's crates and the GPU's
    Lint,
    /// Toolchain, driver, GPU, ptxas: what will be used and why
    Doctor {
        /// Machine-readable report of the host side (`nvfp4 doctor --json`)
        #[arg(long)]
        json: bool,
    },
    /// Collect what a GPU machine without cargo needs in target/dist
    Dist,
    /// Package the crates that are meant for others, with the compiled kernels
    Package,
    /// Fetch a real model (all-MiniLM-L6-v2, f32, 90 MB) into target/models
    FetchModel,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => error.exit(),
        // Help: clap would not say that it could not be written.
        Err(text) => {
            say!("{}", text.render().to_string().trim_end());
            return ExitCode::SUCCESS;
        }
    };
    if let Err(error) = run::enter_checkout() {
        note!("error: {error:#}");
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::BuildKernels(options) => build_kernels::run(&options),
        Command::Bench { arguments } => bench(&arguments),
        Command::Test(options) => test::run(&options),
        Command::Counts(options) => counts::run(&options),
        Command::Mutate { arguments } => mutate::run(&arguments),
        Command::Lint => lint::run(),
        Command::Doctor { json } => doctor::run(json),
        Command::Dist => dist::run(),
        Command::Package => package::run(),
        Command::FetchModel => fetch_model::run().map(|path| {
            say!("{}", path.display());
            ExitCode::SUCCESS
        }),
    };
    result.unwrap_or_else(|error| {
        note!("error: {error:#}");
        ExitCode::from(2)
    })
}

fn bench(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let (ours, theirs): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|argument| *argument == "--release");
    run::nvfp4(&[&["bench"], theirs.as_slice()].concat(), !ours.is_empty())
}
