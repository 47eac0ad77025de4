//! Reports on standard error, and to `ptx-emu exec`.

use crate::settings::Settings;
use ptx_emu_core::{Diagnostic, Level};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

/// Writes a message to standard error, where somebody may read it.
pub(crate) fn complain(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "ptx-emu: {message}");
}

/// An event that `exec` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A launch was accepted, and runs at once or later.
    Asked,
    /// A launch ran.
    Launch,
    /// A launch did not run that a GPU would have run.
    Refused,
    /// A launch was answered with another error.
    Lost,
    /// The program read the error of a launch that a GPU refuses, too.
    Seen,
    /// A denied finding.
    Denied,
    /// Another finding.
    Warned,
}

impl Event {
    const fn word(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Launch => "launch",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::Seen => "seen",
            Self::Denied => "denied",
            Self::Warned => "warned",
        }
    }
}

/// Tells `exec`, if that runs the program.
pub(crate) fn tell(settings: &Settings, event: Event) {
    append(settings, event.word());
}

fn append(settings: &Settings, line: &str) {
    let Some(path) = &settings.report else { return };
    let opened = OpenOptions::new().append(true).create(true).open(path);
    // One short write at the end of the file: several processes may have it open.
    let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        complain(format_args!("{}: cannot be written: {error}", path.display()));
    }
}

/// Shows a finding.
pub(crate) fn finding(settings: &Settings, found: &Diagnostic) {
    let denied = found.level == Level::Deny;
    let kind = found.kind();
    complain(format_args!(
        "{}[{kind}]: {found} (see `ptx-emu explain {kind}`)\n  what to do: {}",
        if denied { "error" } else { "warning" },
        kind.advice()
    ));
    tell(settings, if denied { Event::Denied } else { Event::Warned });
    append(settings, &format!("finding {}", found.to_json()));
}
