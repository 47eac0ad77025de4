//! The reached instructions of a process, appended to a file while it runs: a process need not end
//! well, and the modules that a test program keeps are never dropped.
//!
//! A line of the file is a JSON object: a function, how many instructions it has, and ranges of
//! those that a launch was the first of the process to reach.

use super::counting::Executed;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// The environment variable that names a folder: what launches reach is noted in files there.
pub const FOLDER: &str = "PTX_EMU_COVERAGE";

/// Extension of the journal's files.
pub const EXTENSION: &str = "reached";

/// A function by target, name and text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// `.target` of its module.
    pub target: String,
    /// Name.
    pub function: String,
    /// Digest of the lines of its instructions.
    pub text: String,
}

/// A line of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Function.
    #[serde(flatten)]
    pub key: Key,
    /// Instructions that it has.
    pub instructions: usize,
    /// First and last of instructions that were reached, from 0.
    pub reached: Vec<(usize, usize)>,
}

/// The key of a function whose instructions stand on `lines`, trimmed.
#[must_use]
pub fn key<'a>(target: &str, name: &str, lines: impl Iterator<Item = &'a str>) -> Key {
    // FNV-1a, 64 bits: the same on every host.
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in lines.flat_map(|line| line.bytes().chain([b'\n'])) {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    Key { target: target.to_owned(), function: name.to_owned(), text: format!("{digest:016x}") }
}

/// The folder, if the variable names one.
fn folder() -> Option<&'static PathBuf> {
    static NAMED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let named = || std::env::var_os(FOLDER).filter(|name| !name.is_empty()).map(PathBuf::from);
    NAMED.get_or_init(named).as_ref()
}

/// Whether this process keeps a journal.
pub(super) fn is_kept() -> bool {
    folder().is_some()
}

/// Instructions of a function that the process has reached, shared by all its modules.
type Seen = Arc<Mutex<Vec<bool>>>;

#[derive(Debug, Default)]
struct Shared {
    seen: HashMap<Key, Seen>,
    file: Option<File>,
}

fn shared() -> &'static Mutex<Shared> {
    static SHARED: OnceLock<Mutex<Shared>> = OnceLock::new();
    SHARED.get_or_init(Mutex::default)
}

/// The functions of a module.
#[derive(Debug)]
pub(super) struct Journal(Vec<Noted>);

#[derive(Debug)]
struct Noted {
    key: Key,
    /// Its instructions in the module's code.
    code: Vec<usize>,
    seen: Seen,
}

impl Journal {
    pub(super) fn new(functions: Vec<(Key, Vec<usize>)>) -> Self {
        let mut shared = shared().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let noted = functions.into_iter().map(|(key, code)| {
            let seen = shared.seen.entry(key.clone()).or_default().clone();
            Noted { key, code, seen }
        });
        Self(noted.collect())
    }

    /// Appends what a launch reached first.
    pub(super) fn note(&self, executed: &[Executed]) -> Result<(), String> {
        let mut text = String::new();
        for Noted { key, code, seen } in &self.0 {
            let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            seen.resize(code.len(), false);
            let mut new: Vec<(usize, usize)> = Vec::new();
            for (at, (seen, &pc)) in seen.iter_mut().zip(code).enumerate() {
                let reached = executed.get(pc).is_some_and(|executed| executed.threads != 0);
                if !reached || std::mem::replace(seen, true) {
                    continue;
                }
                match new.last_mut() {
                    Some((_, last)) if *last + 1 == at => *last = at,
                    _ => new.push((at, at)),
                }
            }
            if !new.is_empty() {
                let entry = Entry { key: key.clone(), instructions: code.len(), reached: new };
                text += &serde_json::to_string(&entry).map_err(|error| error.to_string())?;
                text.push('\n');
            }
        }
        if text.is_empty() { Ok(()) } else { append(&text) }
    }
}

/// Appends to the process's file.
fn append(text: &str) -> Result<(), String> {
    let Some(folder) = folder() else { return Ok(()) };
    let path = folder.join(format!("{}.{EXTENSION}", std::process::id()));
    let failed = |error: std::io::Error| format!("{FOLDER}: {}: {error}", path.display());
    let mut shared = shared().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let file = match &mut shared.file {
        Some(file) => file,
        none => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            let opened = File::options().create(true).append(true).open(&path);
            none.insert(opened.map_err(failed)?)
        }
    };
    file.write_all(text.as_bytes()).map_err(failed)
}
