//! The options of `ptx-emu capture`, which it passes in an environment variable, and the reports to
//! it.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The environment variable.
const VARIABLE: &str = "PTX_EMU_CAPTURE";

/// The launches that are captured, and the folder that they are written to.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Settings {
    /// The driver's library.
    pub(crate) driver: PathBuf,
    /// The folder of the bundles.
    folder: PathBuf,
    /// Parts of the names of kernels; none: all kernels.
    kernels: Vec<String>,
    /// Launches that are captured; `None`: all.
    most: Option<u64>,
    /// The file in which `ptx-emu capture` reads the outcome of the launches.
    report: Option<PathBuf>,
}

/// Returns the settings of the environment; the program ends if they are none.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            std::process::exit(2);
        })
    });
    &SETTINGS
}

impl Settings {
    /// Returns the folder of a bundle.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether a launch is to be captured, being the one after so many.
    pub(crate) fn wants(&self, kernel: &str, captured: u64) -> bool {
        let readable = ptx_emu_core::readable_name(kernel);
        let named = |part: &String| kernel.contains(part.as_str()) || readable.contains(part);
        self.most.is_none_or(|most| captured < most)
            && (self.kernels.is_empty() || self.kernels.iter().any(named))
    }
}

/// Writes a message to standard error, where somebody may read it.
pub(crate) fn complain(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "ptx-emu: {message}");
}

/// Writes a message unless it was written before.
pub(crate) fn complain_once(message: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&message) {
        complain(&message);
        said.insert(message);
    }
}

/// An event that `ptx-emu capture` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A bundle was written.
    Captured,
    /// A launch ran without one that was to have one.
    Missed,
}

/// Tells `ptx-emu capture`.
pub(crate) fn tell(event: Event) {
    let Some(path) = &settings().report else { return };
    let word = match event {
        Event::Captured => "captured\n",
        Event::Missed => "missed\n",
    };
    // One short write at the end of the file: several processes may have it open.
    let opened = OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = opened.and_then(|mut file| file.write_all(word.as_bytes())) {
        complain(format_args!("{}: cannot be written: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_chosen_by_name_and_number() {
        let text = r#"{"driver": "d", "folder": "f", "kernels": ["add", "k2"], "most": 2,
            "report": null}"#;
        let settings: Settings = serde_json::from_str(text).expect("right");
        let wants = |kernel, captured| settings.wants(kernel, captured);
        assert!(wants("_Z3addPfi", 0) && wants("my_k2_x", 1));
        assert!(!wants("_Z3addPf", 2) && !wants("_Z3subPf", 0));
        let all = Settings::default();
        assert!(all.wants("any", u64::MAX));
        assert_eq!(settings.folder("0000-a"), PathBuf::from("f/0000-a"));
    }
}
