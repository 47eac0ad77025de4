//! Files that appear complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Attempts to find a temporary name that is free. Two names of 64 random bits are equal only if
/// the source of randomness is broken.
const ATTEMPTS: usize = 4;
/// Longer names are left out of temporary names, whose length is limited to 255 bytes.
const LONGEST_NAME: usize = 200;

/// Writes a temporary file, brings it to disk and renames it, so that `path` is either unchanged or
/// complete.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.into(), source };
    let (temporary, mut file) = fresh(path, "tmp", |path| File::create_new(path)).map_err(io)?;
    let written = (|| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_folder(folder_of(path))
    })();
    written.map_err(|error| {
        // Best effort, because the first error is reported. After the rename nothing has this name.
        let _ = fs::remove_file(&temporary);
        io(error)
    })
}

/// Creates something under a temporary name beside `path`.
pub fn fresh<T>(
    path: &Path,
    ending: &str,
    create: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    let mut attempts = 0;
    loop {
        let temporary = beside(path, ending);
        attempts += 1;
        match create(&temporary) {
            Ok(created) => return Ok((temporary, created)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempts < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
}

/// A hidden name in the same folder with random digits, different at each call.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(".");
    let last = path.file_name().unwrap_or_default();
    if last.len() <= LONGEST_NAME {
        name.push(last);
        name.push(".");
    }
    // The standard library seeds its hashers with random numbers of the system.
    let random = RandomState::new().hash_one(std::process::id());
    name.push(format!("{random:016x}.{ending}"));
    path.with_file_name(name)
}

/// The folder that a path's last name is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Brings the names in a folder to disk, where the system has a way to do that.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(folder)?.sync_all() {
        // Some file systems cannot.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}
