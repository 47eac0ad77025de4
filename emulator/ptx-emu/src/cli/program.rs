//! Programs that find libraries of ours before those of CUDA.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The reason why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// A library of ours was not built, or is elsewhere.
    #[error(
        "{}: required the library that programs find before CUDA's, actual no file; \
         cargo build --release -p {package}", .path.display()
    )]
    Library { path: PathBuf, package: &'static str },
    /// The folder with the libraries' names.
    #[error("{}: cannot be made: {source}", .path.display())]
    Folder { path: PathBuf, source: io::Error },
    /// The program itself.
    #[error("{}: cannot be run: {source}", .program.display())]
    Program { program: PathBuf, source: io::Error },
    /// There is no driver to watch.
    #[error("{0}; without a GPU, ptx-emu exec --capture writes bundles")]
    Driver(String),
}

/// A library of ours: the one that was named, or that beside this program.
pub(super) fn library(
    named: Option<&Path>,
    file: &str,
    package: &'static str,
) -> Result<PathBuf, ProgramError> {
    let beside = || {
        let program = std::env::current_exe().unwrap_or_default();
        program.with_file_name(file)
    };
    let path = named.map_or_else(beside, Path::to_owned);
    // The dynamic linker opens it by way of another folder.
    let found = std::path::absolute(&path).ok().filter(|path| path.is_file());
    found.ok_or(ProgramError::Library { path, package })
}

/// Does something with a folder for libraries, which is removed afterwards.
pub(super) fn in_folder<T>(
    run: impl FnOnce(&Path) -> Result<T, ProgramError>,
) -> Result<T, ProgramError> {
    // Process numbers of containers and of runs that were killed are the same: random bits tell the
    // folders apart.
    let random = RandomState::new().hash_one(std::process::id());
    let path = std::env::temp_dir().join(format!("ptx-emu-exec-{random:016x}"));
    std::fs::create_dir(&path)
        .map_err(|source| ProgramError::Folder { path: path.clone(), source })?;
    let result = run(&path);
    // The rest is a few kilobytes in a folder for such things.
    let _ = std::fs::remove_dir_all(&path);
    result
}

/// The use of a program's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    /// The program has those of this one.
    Shared,
    /// The program's output goes to the files `stdout` and `stderr` of the folder; its input is empty.
    Kept,
}

/// Runs a program that finds the libraries in the folder first.
pub(super) fn run(
    program: &[OsString],
    folder: &Path,
    (variable, value): (&str, String),
    streams: Streams,
) -> Result<ExitStatus, ProgramError> {
    let mut paths = vec![folder.to_owned()];
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    paths.extend(std::env::split_paths(&inherited));
    let paths = std::env::join_paths(paths).unwrap_or_else(|_| folder.as_os_str().to_owned());
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env(variable, value).env("LD_LIBRARY_PATH", paths);
    if streams == Streams::Kept {
        let file = |name: &str| {
            let path = folder.join(name);
            File::create(&path).map_err(|source| ProgramError::Folder { path, source })
        };
        command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
    }
    command
        .status()
        .map_err(|source| ProgramError::Program { program: (&program[0]).into(), source })
}

/// The exit code of a program, as a shell has it for one that a signal ended.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(1)
}
