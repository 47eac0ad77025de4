//! The files of tables: their paths, reading and writing.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{DeviceKey, Measured, Table, TuneError, TuneProblem, VARIABLE};
use crate::error::{Error, Result};
use crate::whole::write_whole;

/// Largest file that is read, about 80,000 entries.
pub const MAX_BYTES: u64 = 16 << 20;

/// The place of a device's table, from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// None, because [`VARIABLE`] is `off`.
    Off,
    /// The file that [`VARIABLE`] names.
    Named(PathBuf),
    /// A file with the device's name in the user's cache folder.
    Default(PathBuf),
    /// None, because the system names no folder for caches.
    NoFolder,
}

impl Location {
    /// The place of the table of a device with this name.
    #[must_use]
    pub fn find(device: &str) -> Self {
        Self::among(|name| env::var_os(name), device)
    }

    fn among(variable: impl Fn(&str) -> Option<OsString>, device: &str) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        match variable(VARIABLE) {
            Some(value) if value == "off" => return Self::Off,
            Some(value) => return Self::Named(value.into()),
            None => {}
        }
        // By the XDG base directory specification, relative paths are ignored.
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(Path::new(&variable("HOME")?).join(".cache")));
        match cache {
            Some(cache) => Self::Default(cache.join("nvfp4").join(file_name(device))),
            None => Self::NoFolder,
        }
    }

    /// The path for a tool that writes the table.
    ///
    /// # Errors
    /// [`TuneError::Off`], [`TuneError::NoCacheFolder`].
    pub fn path(self) -> Result<PathBuf, TuneError> {
        match self {
            Self::Named(path) | Self::Default(path) => Ok(path),
            Self::Off => Err(TuneError::Off),
            Self::NoFolder => Err(TuneError::NoCacheFolder),
        }
    }
}

/// A name such as `tune-nvidia-h200.json`: the letters and digits of the device's name, with dashes
/// for everything else.
fn file_name(device: &str) -> String {
    let lower = device.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("tune-{}.json", words.collect::<Vec<_>>().join("-"))
}

/// Reads a table; `None` if there is no such file.
///
/// # Errors
/// [`TuneError::Read`], among others for a path that is not a regular file,
/// [`TuneError::TooLarge`], and the errors of [`Table::parse`].
pub fn read(path: &Path) -> Result<Option<Table>, TuneError> {
    let failed = |source| TuneError::Read { path: path.into(), source };
    // This is checked before the file is opened, because opening a pipe may block.
    match std::fs::metadata(path) {
        Ok(info) if info.is_file() => {}
        Ok(_) => return Err(failed(std::io::Error::other("not a regular file"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(TuneError::TooLarge { path: path.into(), most: MAX_BYTES });
    }
    Table::parse(&text, &path.display().to_string()).map(Some)
}

/// The table at `path`, to which a tool adds entries; an empty table if there is no file.
///
/// # Errors
/// The errors of [`read`]; [`TuneError::Elsewhere`] for a table of another device.
pub fn open(path: &Path, device: &DeviceKey) -> Result<Table, TuneError> {
    match read(path)? {
        None => Ok(Table::new(device.clone())),
        Some(table) => {
            table.check_device(device, &path.display().to_string())?;
            Ok(table)
        }
    }
}

/// Adds the measurement of a problem to the table at `path`, which is read again, because another
/// run may have added to it. Runs take turns by a lock on a file beside it, `PATH.lock`. With
/// `replace`, the old table is discarded. Returns the number of
/// entries.
///
/// # Errors
/// The errors of [`open`] and [`write()`], after which the file is unchanged.
pub fn add(
    path: &Path,
    device: &DeviceKey,
    (problem, measured): (TuneProblem, Measured),
    replace: bool,
) -> Result<usize> {
    create_folder(path)?;
    let _turn = turn(path)?;
    let mut table = if replace { Table::new(device.clone()) } else { open(path, device)? };
    table.insert(problem, measured);
    write(path, &table)?;
    Ok(table.len())
}

/// Writes a table to a temporary file beside `path`, which is then renamed to `path`. Creates the
/// folder if it does not exist.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, table: &Table) -> Result<()> {
    create_folder(path)?;
    write_whole(path, table.text().as_bytes())
}

/// Creates the folder of `path` if it does not exist.
fn create_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let failed = |source| Error::Io { action: "create", path: folder.into(), source };
    std::fs::create_dir_all(folder).map_err(failed)
}

/// Waits until no other run changes the table at `path`. The lock ends with the returned file, and
/// with the process. The file stays: removing it would let two runs lock two files of its name.
fn turn(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let failed = |source| Error::Io { action: "lock", path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_where() {
        let find = |variables: &[(&str, &str)]| {
            let variables: Vec<(String, OsString)> =
                variables.iter().map(|(name, value)| ((*name).into(), value.into())).collect();
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            };
            Location::among(variable, "NVIDIA H200")
        };
        let default = |path: &str| Location::Default(path.into());
        let file = "nvfp4/tune-nvidia-h200.json";
        assert_eq!(find(&[("HOME", "/h")]), default(&format!("/h/.cache/{file}")));
        let both = [("HOME", "/h"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(find(&both), default(&format!("/c/{file}")));
        let relative = [("HOME", "/h"), ("XDG_CACHE_HOME", "c")];
        assert_eq!(find(&relative), default(&format!("/h/.cache/{file}")));
        let named = [("HOME", "/h"), (VARIABLE, "t.json")];
        assert_eq!(find(&named), Location::Named("t.json".into()));
        assert_eq!(find(&[("HOME", "/h"), (VARIABLE, "off")]), Location::Off);
        assert_eq!(find(&[("HOME", "/h"), (VARIABLE, "")]), default(&format!("/h/.cache/{file}")));
        assert_eq!(find(&[]), Location::NoFolder);
        assert!(matches!(Location::Off.path(), Err(TuneError::Off)));
        assert!(matches!(Location::NoFolder.path(), Err(TuneError::NoCacheFolder)));
    }

    #[test]
    fn names_of_devices_cannot_leave_the_folder() {
        assert_eq!(file_name("NVIDIA H100 80GB HBM3"), "tune-nvidia-h100-80gb-hbm3.json");
        assert_eq!(file_name("../../etc/x"), "tune-etc-x.json");
        assert_eq!(file_name("NVIDIA H200 MIG 1g.18gb"), "tune-nvidia-h200-mig-1g-18gb.json");
    }
}
