//! Outputs that appear complete or not at all.
//!
//! A file or folder is written under a temporary name beside its final one, brought to disk, and
//! renamed. Temporary names have 64 random bits, so that runs of other threads, containers and
//! hosts neither meet nor are blocked by what a killed run left. Only what this run created is ever
//! removed.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::CheckpointError;
use crate::error::Result;
use nvfp4::error::Error;
pub use nvfp4::whole::write_whole;
use nvfp4::whole::{beside, folder_of, fresh, sync_folder};

/// The fate of the checkpoint that was replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replaced {
    /// Names of files and folders in the old checkpoint that are no part of one, and which the new
    /// one does not have. They are in the new folder.
    pub kept: Vec<String>,
    /// The old checkpoint's folder, if it could not be removed entirely.
    pub left_behind: Option<PathBuf>,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.kept.is_empty() {
            writeln!(f, "kept, as no part of the replaced checkpoint: {}", self.kept.join(", "))?;
        }
        match &self.left_behind {
            Some(path) => {
                writeln!(f, "the old checkpoint could not be removed from {}", path.display())
            }
            None => Ok(()),
        }
    }
}

/// A folder with a temporary name (`.NAME.RANDOM.partial`, beside the final one). It is renamed
/// when it is complete, and removed otherwise. It remains only if the process is killed.
#[derive(Debug)]
pub struct Staging {
    temporary: PathBuf,
    target: PathBuf,
    force: bool,
    committed: bool,
}

impl Staging {
    /// Makes the temporary folder beside `target`. With `force`, an existing checkpoint is
    /// replaced at the end.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] if `target` exists and may not be replaced. Only with `force`
    /// may it be replaced, and only if it is a folder that is empty or has `.safetensors` files.
    /// [`Error::Io`].
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        check_target(target, force)?;
        let created = fresh(target, "partial", |path| fs::create_dir(path));
        let io = |source| Error::Io { action: "create a folder for", path: target.into(), source };
        let (temporary, ()) = created.map_err(io)?;
        Ok(Self { temporary, target: target.into(), force, committed: false })
    }

    /// The temporary folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The final path.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Brings the folder to disk and renames it to its final name. If the system can exchange two
    /// names, an old checkpoint is replaced in one step.
    ///
    /// The old checkpoint loses its tensors, index and configuration, and files of which the new
    /// one has another version. Everything else is moved to the new folder.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), after which the old target is unchanged;
    /// [`Error::Io`]. That an old checkpoint cannot be removed is no error.
    pub fn commit(mut self) -> Result<Replaced> {
        check_target(&self.target, self.force)?;
        let io = |source| Error::Io { action: "write", path: self.target.clone(), source };
        sync_contents(&self.temporary).map_err(io)?;
        let old = if self.target.symlink_metadata().is_ok() {
            Some(exchange(&self.temporary, &self.target).map_err(io)?)
        } else {
            match rename(&self.temporary, &self.target, Existing::Fail) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    fs::rename(&self.temporary, &self.target).map_err(io)?;
                }
                Err(error) if is_taken(&error) => {
                    let advice = "it appeared while the output was written";
                    let path = self.target.clone();
                    return Err(CheckpointError::Exists { path, advice });
                }
                done => done.map_err(io)?,
            }
            None
        };
        self.committed = true;
        sync_folder(folder_of(&self.target)).map_err(io)?;
        Ok(old.map(|old| clear(old, &self.target)).unwrap_or_default())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort, because the error that led here is reported.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

fn check_target(target: &Path, force: bool) -> Result<()> {
    if target.file_name().is_none() {
        return Err(CheckpointError::shape(
            "output",
            "a path that ends in a name",
            target.display(),
        ));
    }
    let exists = |advice| CheckpointError::Exists { path: target.into(), advice };
    let Ok(info) = target.symlink_metadata() else { return Ok(()) };
    if !force {
        return Err(exists("--force replaces a checkpoint"));
    }
    let is_checkpoint = info.is_dir() && {
        let io = |source| Error::Io { action: "read", path: target.into(), source };
        let names = fs::read_dir(target).map_err(io)?.flatten().map(|entry| entry.path());
        let names: Vec<PathBuf> = names.collect();
        names.is_empty() || names.iter().any(|x| x.extension().is_some_and(|e| e == "safetensors"))
    };
    if is_checkpoint {
        Ok(())
    } else {
        Err(exists("it is no folder with a checkpoint, which is all that is ever replaced"))
    }
}

/// Brings the files of a folder, which has no folders in it, and their names to disk.
fn sync_contents(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    sync_folder(folder)
}

/// The effect of a rename if the new name is taken.
#[derive(Clone, Copy)]
enum Existing {
    Fail,
    Exchange,
}

/// Renames atomically.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the system or the file system cannot do that.
#[cfg(target_os = "linux")]
fn rename(from: &Path, to: &Path, existing: Existing) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let flags = match existing {
        Existing::Fail => libc::RENAME_NOREPLACE,
        Existing::Exchange => libc::RENAME_EXCHANGE,
    };
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    let here = libc::AT_FDCWD;
    // SAFETY: both paths are strings that end in zero and are alive during the call, which only
    // reads them.
    let failed = unsafe {
        libc::syscall(libc::SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), flags)
    };
    if failed == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => Err(ErrorKind::Unsupported.into()),
        _ => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn rename(_from: &Path, _to: &Path, _existing: Existing) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty)
}

/// Puts `new` in the place of `target`. Returns the path of what was there.
fn exchange(new: &Path, target: &Path) -> io::Result<PathBuf> {
    match rename(new, target, Existing::Exchange) {
        Err(error) if error.kind() == ErrorKind::Unsupported => exchange_in_two_steps(new, target),
        done => done.map(|()| new.to_path_buf()),
    }
}

/// The same where the system cannot do it in one step: in between, nothing is at `target`.
fn exchange_in_two_steps(new: &Path, target: &Path) -> io::Result<PathBuf> {
    let old = beside(target, "old");
    fs::rename(target, &old)?;
    match fs::rename(new, target) {
        Ok(()) => Ok(old),
        Err(error) => {
            // Best effort: if this fails too, the old folder remains as `old`.
            let _ = fs::rename(&old, target);
            Err(error)
        }
    }
}

/// Removes an old checkpoint, which the one in `new` replaces; see [`Staging::commit`].
fn clear(old: PathBuf, new: &Path) -> Replaced {
    let mut kept = Vec::new();
    let cleared = (|| {
        for entry in fs::read_dir(&old)? {
            let entry = entry?;
            let name = entry.file_name();
            let newer = new.join(&name);
            let has_newer = newer.symlink_metadata().is_ok();
            if !entry.file_type()?.is_dir() && (has_newer || is_part(&name)) {
                fs::remove_file(entry.path())?;
            } else if !has_newer {
                fs::rename(entry.path(), newer)?;
                kept.push(name.to_string_lossy().into_owned());
            }
        }
        // Fails if anything is left.
        fs::remove_dir(&old)
    })();
    kept.sort();
    Replaced { kept, left_behind: cleared.is_err().then_some(old) }
}

/// Whether a file of this name belongs to a checkpoint, and to none but one.
fn is_part(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json")
        || name == "config.json"
        || name == "hf_quant_config.json"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let name = std::env::temp_dir().join("nvfp4-staging");
            Self(fresh(&name, "test", |path| fs::create_dir(path)).expect("a folder").0)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("a folder").flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fill(folder: &Path, files: &[&str]) {
        fs::create_dir_all(folder).expect("a folder");
        files.iter().for_each(|file| fs::write(folder.join(file), file).expect("written"));
    }

    /// Threads have one process id, as have programs in two containers.
    #[test]
    fn threads_write_one_file_at_a_time() {
        let scratch = Scratch::new();
        let path = scratch.0.join("table.json");
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write_whole(path, &[thread; 100]).expect("written");
                    }
                });
            }
        });
        let bytes = fs::read(&path).expect("it is there");
        assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(scratch.names(), ["table.json"]);
    }

    #[test]
    fn stagings_of_one_target_do_not_meet() {
        let scratch = Scratch::new();
        let target = scratch.0.join("out");
        let [first, second] = [(); 2].map(|()| Staging::create(&target, false).expect("made"));
        assert_ne!(first.path(), second.path());
        fill(first.path(), &["model.safetensors"]);
        drop(second);
        assert!(first.path().join("model.safetensors").is_file(), "removed what another created");
        let late = Staging::create(&target, false).expect("made");
        assert_eq!(first.commit().expect("committed"), Replaced::default());
        let error = late.commit().expect_err("the target is taken").to_string();
        assert!(error.contains("out exists"), "{error}");
        assert_eq!(scratch.names(), ["out"]);
    }

    /// Both ways of exchanging two folders.
    #[test]
    fn exchanges() {
        for how in [exchange, exchange_in_two_steps] {
            let scratch = Scratch::new();
            let [new, target] = ["new", "target"].map(|name| scratch.0.join(name));
            fill(&new, &["b"]);
            fill(&target, &["a"]);
            let old = how(&new, &target).expect("exchanged");
            assert!(target.join("b").is_file() && old.join("a").is_file());
            assert_eq!(scratch.names().len(), 2);
            fs::remove_dir_all(&old).expect("removed");
            // A failed exchange leaves the target as it is.
            how(&scratch.0.join("none"), &target).expect_err("nothing to put there");
            assert_eq!(scratch.names(), ["target"]);
            assert!(target.join("b").is_file());
        }
    }

    #[test]
    fn only_parts_of_a_checkpoint_are_removed() {
        let scratch = Scratch::new();
        let target = scratch.0.join("out");
        let shards = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"];
        fill(&target, &[&shards[..], &["config.json", "notes.md", "README.md"]].concat());
        fill(&target.join("results"), &["a"]);
        let staging = Staging::create(&target, true).expect("a checkpoint");
        fill(staging.path(), &["model.safetensors", "config.json", "README.md"]);
        let replaced = staging.commit().expect("committed");
        assert_eq!(
            replaced,
            Replaced { kept: vec!["notes.md".into(), "results".into()], left_behind: None }
        );
        assert_eq!(scratch.names(), ["out"]);
        let inside = Scratch(target.clone());
        let names = inside.names();
        assert_eq!(names, ["README.md", "config.json", "model.safetensors", "notes.md", "results"]);
        assert!(target.join("results/a").is_file());
        assert_eq!(fs::read_to_string(target.join("notes.md")).expect("kept"), "notes.md");
    }

    /// A clean-up that fails after success is reported, not an error.
    #[test]
    fn what_is_left_behind_is_reported() {
        let scratch = Scratch::new();
        let target = scratch.0.join("out");
        fill(&target, &["model.safetensors"]);
        fill(&target.join("config.json"), &["a folder has this name"]);
        let staging = Staging::create(&target, true).expect("a checkpoint");
        fill(staging.path(), &["model.safetensors", "config.json"]);
        let replaced = staging.commit().expect("committed");
        let left = replaced.left_behind.expect("it has a folder that is no part of a checkpoint");
        assert!(left.join("config.json/a folder has this name").is_file());
        assert!(target.join("config.json").is_file());
    }

    #[test]
    fn long_names() {
        let scratch = Scratch::new();
        let path = scratch.0.join("n".repeat(250));
        write_whole(&path, b"x").expect("written");
        assert_eq!(scratch.names(), ["n".repeat(250)]);
    }
}
