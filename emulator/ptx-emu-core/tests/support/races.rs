//! The text of a data race's report.

use ptx_emu_core::{DataRace, Diagnostic, DiagnosticKind, Schedule};

/// The race that a diagnostic is, whose text has these parts.
#[track_caller]
pub fn race(diagnostic: Diagnostic, schedule: Schedule, parts: &[&str]) -> DataRace {
    let text = diagnostic.to_string();
    for part in parts {
        assert!(text.contains(part), "{schedule}: `{part}` is not in: {text}");
    }
    match diagnostic.kind {
        DiagnosticKind::Race(race) => *race,
        other => panic!("{schedule}: {other:?}"),
    }
}
