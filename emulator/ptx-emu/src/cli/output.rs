//! Files written after a successful launch: all of them or none.

use super::error::CliError;
use ptx_emu::{GlobalMemory, MemoryError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A buffer whose final contents go to a file.
#[derive(Debug)]
pub(crate) struct Output {
    /// Place of the argument, from 0.
    pub(crate) argument: usize,
    /// Its kernel parameter.
    pub(crate) parameter: String,
    /// File.
    pub(crate) path: PathBuf,
    /// Buffer's address.
    pub(crate) addr: u64,
    /// Buffer's size.
    pub(crate) bytes: u64,
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// The output that was asked for.
    pub(crate) output: Output,
    /// Offset of the first uninitialised byte (these are 0xCB in the file).
    pub(crate) first_uninitialised: Option<u64>,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CliError {
    let path = path.to_owned();
    |source| CliError::Write { path, source }
}

/// Refuses a path that cannot become a file.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let problem = if path.is_dir() {
        Some((io::ErrorKind::IsADirectory, "it is a folder"))
    } else if folder(path).is_dir() && path.file_name().is_some() {
        None
    } else {
        Some((io::ErrorKind::NotFound, "its folder does not exist"))
    };
    match problem {
        None => Ok(()),
        Some((kind, why)) => Err(failed(path)(io::Error::new(kind, why))),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Writes the buffers to temporary files beside their targets, then renames all
/// of them.
pub(crate) fn write_all(
    outputs: Vec<Output>,
    memory: &GlobalMemory,
) -> Result<Vec<Written>, CliError> {
    let mut staged = Staged(Vec::new());
    let mut written = Vec::new();
    for output in outputs {
        let contents = memory.read_raw(output.addr, output.bytes)?;
        staged.add(&output.path, &contents)?;
        let first_uninitialised = match memory.read(output.addr, output.bytes) {
            Err(MemoryError::Uninitialised { offset, .. }) => Some(offset),
            _ => None,
        };
        written.push(Written { output, first_uninitialised });
    }
    staged.commit()?;
    Ok(written)
}

/// Temporary files and their targets; those still there when it is dropped are
/// removed.
struct Staged(Vec<(PathBuf, PathBuf)>);

impl Staged {
    fn add(&mut self, target: &Path, contents: &[u8]) -> Result<(), CliError> {
        let name = format!(".ptx-emu-{}-{}.tmp", std::process::id(), self.0.len());
        let temporary = folder(target).join(name);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(failed(target))?;
        self.0.push((temporary, target.to_owned()));
        file.write_all(contents).map_err(failed(target))
    }

    fn commit(mut self) -> Result<(), CliError> {
        while let Some((temporary, target)) = self.0.first() {
            std::fs::rename(temporary, target).map_err(failed(target))?;
            self.0.remove(0);
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for (temporary, _) in &self.0 {
            // Nothing more can be done about one that stays.
            let _ = std::fs::remove_file(temporary);
        }
    }
}
