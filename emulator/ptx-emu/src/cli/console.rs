//! Standard output and standard error, whose readers may have left.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Exit code where the reader of the report has left: that of a program that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

/// Writes a message to standard error, where somebody may read it.
pub(crate) fn complain(message: impl Display) {
    let _ = writeln!(io::stderr(), "ptx-emu: {message}");
}

/// Writes what a kernel printed to standard error, where somebody may read it.
pub(crate) fn printed(text: &str) {
    let _ = write!(io::stderr(), "{text}");
}

/// Writes what a program printed to standard output and standard error, where somebody may read it.
#[cfg(target_os = "linux")]
pub(crate) fn bytes([out, error]: &[Vec<u8>; 2]) {
    let mut stdout = io::stdout();
    let _ = stdout.write_all(out).and_then(|()| stdout.flush());
    let _ = io::stderr().write_all(error);
}

/// Writes the report to standard output. The exit code: `code`, or what says that it could not be
/// written.
pub(crate) fn report(text: &str, code: u8) -> u8 {
    let mut out = io::stdout();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => code,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => CLOSED_PIPE,
        Err(error) => {
            complain(format_args!("the report cannot be written: {error}"));
            2
        }
    }
}
