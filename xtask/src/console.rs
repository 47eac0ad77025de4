//! Standard output and standard error, whose readers may have left.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Exit code where the reader of the output has left: that of a program that SIGPIPE ends.
const CLOSED_PIPE: i32 = 141;

/// Prints a line on standard output; ends the program where that cannot be done.
pub fn line(text: Arguments<'_>) {
    let Err(error) = writeln!(io::stdout(), "{text}") else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(CLOSED_PIPE);
    }
    note(format_args!("error: standard output: {error}"));
    std::process::exit(2);
}

/// Prints a line on standard error, where somebody may read it.
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// [`line`] with `println!`'s arguments.
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::console::line(format_args!($($arguments)*))
    };
}

/// [`note`] with `eprintln!`'s arguments.
macro_rules! note {
    ($($arguments:tt)*) => {
        $crate::console::note(format_args!($($arguments)*))
    };
}
