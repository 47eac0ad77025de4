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
    /// Incomplete outputs of killed runs beside it, which were removed.
    pub removed: Vec<PathBuf>,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.kept.is_empty() {
            writeln!(f, "kept, as no part of the replaced checkpoint: {}", self.kept.join(", "))?;
        }
        for path in &self.removed {
            writeln!(f, "removed, as a killed run left it: {}", path.display())?;
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
/// when it is complete, and removed otherwise. It remains only if the process is killed; the next run for
/// the same output removes it then.
#[derive(Debug)]
pub struct Staging {
    temporary: PathBuf,
    /// The marker, locked while this run is alive.
    owner: Option<File>,
    /// Outputs of killed runs that were removed.
    removed: Vec<PathBuf>,
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
    /// may it be replaced, and only if it is a folder that is empty or has `.safetensors` or `.gguf` files.
    /// [`Error::Io`].
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        check_target(target, force)?;
        let removed = remove_abandoned(target);
        let created = fresh(target, PARTIAL, create_owned);
        let io = |source| Error::Io { action: "create a folder for", path: target.into(), source };
        let (temporary, owner) = created.map_err(io)?;
        let (target, owner) = (target.into(), Some(owner));
        Ok(Self { temporary, owner, removed, target, force, committed: false })
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
        fs::remove_file(self.temporary.join(OWNER)).map_err(io)?;
        self.owner = None;
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
        let replaced = old.map(|old| clear(old, &self.target)).unwrap_or_default();
        Ok(Replaced { removed: std::mem::take(&mut self.removed), ..replaced })
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

/// Ending of incomplete outputs.
const PARTIAL: &str = "partial";
/// The file that marks a folder as an incomplete output, and that its run has locked. A replaced checkpoint,
/// which has such a name while it is cleared, has none.
const OWNER: &str = ".nvfp4-partial";

/// Makes a folder with a locked marker.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if another run took it for an abandoned one before it was locked.
fn create_owned(path: &Path) -> io::Result<File> {
    fs::create_dir(path)?;
    let marker = path.join(OWNER);
    let owner = File::create_new(&marker)?;
    // Without locks, nobody can lock it later either, and so nobody removes it.
    if owner.lock().is_ok() && !marker.exists() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    Ok(owner)
}

/// Removes incomplete outputs for `target` whose runs are gone: their markers are not locked. Best effort,
/// since they are in nobody's way.
fn remove_abandoned(target: &Path) -> Vec<PathBuf> {
    let Some(name) = target.file_name().map(OsStr::to_string_lossy) else { return Vec::new() };
    let is_abandoned = |path: &PathBuf| {
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        let random = own
            .strip_prefix('.')
            .and_then(|rest| rest.strip_prefix(&*name))
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|rest| rest.strip_suffix(PARTIAL)?.strip_suffix('.'));
        let digits = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
        if !random.is_some_and(digits) {
            return false;
        }
        let Ok(marker) = File::open(path.join(OWNER)) else { return false };
        // The lock is held until the folder is gone, so that its run, if it is just beginning, sees that.
        marker.try_lock().is_ok() && fs::remove_dir_all(path).is_ok()
    };
    let entries = fs::read_dir(folder_of(target)).into_iter().flatten().flatten();
    let mut removed: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(is_abandoned).collect();
    removed.sort();
    removed
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
        names.is_empty()
            || names
                .iter()
                .any(|x| x.extension().is_some_and(|e| e == "safetensors" || e == "gguf"))
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
    Replaced { removed: Vec::new(), kept, left_behind: cleared.is_err().then_some(old) }
}

/// Whether a file of this name belongs to a checkpoint, and to none but one.
fn is_part(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(".safetensors")
        || name.ends_with(".gguf")
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
            Replaced {
                kept: vec!["notes.md".into(), "results".into()],
                left_behind: None,
                removed: Vec::new()
            }
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

    /// The leftovers of a killed run are removed by the next for the same output, unless the run is alive or they
    /// are a replaced checkpoint, which has no marker.
    #[test]
    fn abandoned_outputs_are_removed() {
        let scratch = Scratch::new();
        let target = scratch.0.join("out");
        let alive = Staging::create(&target, false).expect("a folder");
        let abandoned = scratch.0.join(".out.0123456789abcdef.partial");
        fill(&abandoned, &[OWNER, "model.safetensors"]);
        let replaced = scratch.0.join(".out.0123456789abcdee.partial");
        fill(&replaced, &["model.safetensors", "notes"]);
        let of_another = scratch.0.join(".out2.0123456789abcdef.partial");
        fill(&of_another, &[OWNER]);
        let next = Staging::create(&target, false).expect("a folder");
        assert!(alive.path().is_dir() && replaced.is_dir() && of_another.is_dir());
        assert!(!abandoned.exists());
        fill(next.path(), &["model.safetensors"]);
        let done = next.commit().expect("committed");
        assert_eq!(done.removed, [abandoned]);
        assert_eq!(fs::read_dir(&target).expect("a folder").count(), 1);
        assert!(done.to_string().starts_with("removed, as a killed run left it: "));
    }

    #[test]
    fn long_names() {
        let scratch = Scratch::new();
        let path = scratch.0.join("n".repeat(250));
        write_whole(&path, b"x").expect("written");
        assert_eq!(scratch.names(), ["n".repeat(250)]);
    }
}
