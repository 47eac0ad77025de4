//! The program `ptx-emu`: runs a PTX kernel on the CPU.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
