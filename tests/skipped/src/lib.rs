//! Tests say by this crate what they cannot run on this machine, and why.
//!
//! The test harness counts a test that returns as passed and swallows what it prints. So a test that
//! cannot run says so to whoever runs it: [`test()`] and [`part`] write a line to the file that [`FILE`]
//! names, from which `cargo xtask test` corrects its totals, and to standard error without that variable.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The variable that names the file. Lines are appended to it.
pub const FILE: &str = "NVFP4_SKIPPED";

/// A test that was not run, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// File name of the test program.
    pub program: String,
    /// Name of the test in its program; in a thread that the harness has not named, where it said so.
    pub test: String,
    /// The part that was not run; `None`: nothing of the test was.
    pub part: Option<String>,
    /// The reason why not.
    pub reason: String,
}

/// Says that the test that calls this checks nothing here. It returns afterwards.
#[track_caller]
pub fn test(reason: impl Display) {
    say(None, &reason);
}

/// Says that the test that calls this leaves out `part`, and goes on without.
#[track_caller]
pub fn part(part: impl Display, reason: impl Display) {
    say(Some(part.to_string()), &reason);
}

#[track_caller]
fn say(part: Option<String>, reason: &dyn Display) {
    let caller = Location::caller();
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main");
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let test = test.map_or_else(|| format!("{}:{}", caller.file(), caller.line()), str::to_owned);
    let skip = Skip { program, test, part, reason: reason.to_string() };
    skip.tell(std::env::var_os(FILE).as_deref());
}

impl Skip {
    /// Appends the line to a file, or prints it on standard error.
    ///
    /// # Panics
    /// If the file cannot be written: the test would count as passed.
    fn tell(&self, file: Option<&OsStr>) {
        let Some(file) = file else {
            // Unlike `eprintln!`, this is not swallowed by the harness.
            let what = self.part.as_ref().map(|part| format!(" ({part})")).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "skipped {}{what}: {}", self.test, self.reason);
            return;
        };
        let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
        // One call for the line: tests of a program write at the same time.
        let written = open.and_then(|mut file| file.write_all(self.line().as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", Path::new(file).display()));
    }

    /// Its fields between tabs.
    fn line(&self) -> String {
        let Self { program, test, part, reason } = self;
        let fields = [program, test, part.as_deref().unwrap_or_default(), reason];
        let plain = fields.map(|field| field.split_whitespace().collect::<Vec<_>>().join(" "));
        format!("{}\n", plain.join("\t"))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t').map(str::to_owned);
        let mut next = || fields.next();
        let (program, test, part, reason) = (next()?, next()?, next()?, next()?);
        Some(Self { program, test, part: Some(part).filter(|part| !part.is_empty()), reason })
    }
}

/// A file for the test programs of one run, removed at the end.
pub struct Notes(PathBuf);

impl Notes {
    /// An empty one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(path: PathBuf) -> std::io::Result<Self> {
        std::fs::write(&path, "")?;
        Ok(Self(path))
    }

    /// The variable that test programs need, and its value.
    #[must_use]
    pub fn variable(&self) -> (&'static str, OsString) {
        (FILE, self.0.clone().into_os_string())
    }

    /// Reads what tests said so far, each skip once.
    ///
    /// # Errors
    /// If the file cannot be read, or has a line that no test writes.
    pub fn read(&self) -> std::io::Result<Vec<Skip>> {
        let text = std::fs::read_to_string(&self.0)?;
        let invalid = |line: &str| {
            std::io::Error::new(std::io::ErrorKind::InvalidData, format!("a line {line:?}"))
        };
        let skips = text.lines().map(|line| Skip::parse(line).ok_or_else(|| invalid(line)));
        let mut skips = skips.collect::<std::io::Result<Vec<Skip>>>()?;
        skips.sort();
        skips.dedup();
        Ok(skips)
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // A file that stays is emptied by the next run.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(test: &str, part: Option<&str>) -> Skip {
        Skip {
            program: "gemv-0123".into(),
            test: test.into(),
            part: part.map(str::to_owned),
            reason: "no GPU".into(),
        }
    }

    #[test]
    fn lines_are_read_back() {
        for part in [None, Some("cuda:0")] {
            let skip = skip("a::b", part);
            let line = skip.line();
            assert_eq!(Skip::parse(line.strip_suffix('\n').expect("a line")), Some(skip));
        }
        let lines = Skip { reason: "two\n\tlines".into(), ..skip("a", None) }.line();
        assert_eq!(lines, "gemv-0123\ta\t\ttwo lines\n");
        assert_eq!(Skip::parse("one field"), None);
    }

    #[test]
    fn what_is_said_twice_is_noted_once() {
        let path = std::env::temp_dir().join(format!("skipped-{}", std::process::id()));
        let notes = Notes::new(path.clone()).expect("written");
        let file = notes.variable().1;
        let said = [skip("a", None), skip("a", Some("p")), skip("a", None), skip("b", None)];
        said.iter().for_each(|skip| skip.tell(Some(&file)));
        let [whole, part, _, other] = said;
        assert_eq!(notes.read().expect("readable"), [whole, part, other]);
        drop(notes);
        assert!(!path.exists());
    }
}
