//! `ptx-emu capture`: a CUDA program on a GPU, whose launches are written as bundles.
//!
//! The program finds an ELF file without code in the driver's place, which needs the library
//! that watches (package `ptx-emu-capture`) and then the driver's own: each function is the first
//! of these two that has it.

use super::program::{self, ProgramError, Streams};
use super::{console, stub};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The library that watches.
const LIBRARY: &str = "libptx_emu_capture.so";

/// Runs a CUDA program on this machine's GPU and writes each launch as a bundle.
///
/// A bundle has the memory that the launch found, and what the hardware made of it as expected
/// outputs; `ptx-emu replay` runs it on the emulator, and with --on cuda:0 on a GPU. Kernels must
/// be in the program as PTX. Launches that cannot be captured are reported, and the program runs
/// on. The exit code is the program's.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Folder for the bundles.
    folder: PathBuf,
    /// Capture kernels with this in their name alone; may be repeated.
    #[arg(long, value_name = "PART")]
    kernel: Vec<String>,
    /// Capture that many launches at most.
    #[arg(long, value_name = "N")]
    most: Option<u64>,
    /// The driver's library; by default the one that this machine has.
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// The library that watches; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program; the exit code.
pub(crate) fn run(args: &CaptureArgs) -> u8 {
    match execute(args) {
        Ok((status, report)) => {
            let count = |word: &str| report.lines().filter(|line| *line == word).count();
            let (captured, missed) = (count("captured"), count("missed"));
            console::complain(format_args!("{captured} launches captured, {missed} not"));
            program::exit_code(status)
        }
        Err(error) => {
            console::complain(error);
            2
        }
    }
}

fn execute(args: &CaptureArgs) -> Result<(ExitStatus, String), ProgramError> {
    let library = program::library(args.library.as_deref(), LIBRARY, "ptx-emu-capture")?;
    let driver = match &args.driver {
        Some(driver) => absolute(driver)?,
        None => installed()?,
    };
    program::in_folder(|folder| in_folder(args, &library, &driver, folder))
}

fn absolute(path: &Path) -> Result<PathBuf, ProgramError> {
    std::path::absolute(path)
        .map_err(|source| ProgramError::Folder { path: path.to_owned(), source })
}

/// The driver's library of this machine.
fn installed() -> Result<PathBuf, ProgramError> {
    #[cfg(feature = "cuda")]
    return nvfp4_cuda::driver_file().map_err(|error| ProgramError::Driver(error.to_string()));
    #[cfg(not(feature = "cuda"))]
    Err(ProgramError::Driver(
        "--driver: required, for this program was built without the feature `cuda`".to_owned(),
    ))
}

fn in_folder(
    args: &CaptureArgs,
    library: &Path,
    driver: &Path,
    folder: &Path,
) -> Result<(ExitStatus, String), ProgramError> {
    let needed = [library, driver].map(|path| path.to_string_lossy().into_owned());
    let stub = stub::library(stub::DRIVER, &needed.each_ref().map(String::as_str));
    std::fs::write(folder.join(stub::DRIVER), stub)
        .map_err(|source| ProgramError::Folder { path: folder.to_owned(), source })?;
    let report = folder.join("report");
    let settings = json!({
        "driver": driver,
        "folder": absolute(&args.folder)?,
        "kernels": args.kernel,
        "most": args.most,
        "report": report,
    });
    let variable = ("PTX_EMU_CAPTURE", settings.to_string());
    let status = program::run(&args.program, folder, variable, Streams::Shared)?;
    Ok((status, std::fs::read_to_string(report).unwrap_or_default()))
}
