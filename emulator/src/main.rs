//! The program `ptx-emu`: runs a PTX kernel on the CPU.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
