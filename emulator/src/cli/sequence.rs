//! `ptx-emu replay` of a folder with several bundles: those that a program wrote
//! launch by launch. Each holds its own memory, so each is replayed by itself, in
//! the order of the folders' names.

use super::replay::{self, ReplayArgs};
use ptx_emu::bundle::BUNDLE_FILE;
use std::path::{Path, PathBuf};

/// The bundles in a folder that is none itself, in order; `None` when it has none.
pub(super) fn folders(folder: &Path) -> Option<Vec<PathBuf>> {
    if folder.join(BUNDLE_FILE).exists() {
        return None;
    }
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join(BUNDLE_FILE).is_file()).collect();
    found.sort();
    (!found.is_empty()).then_some(found)
}

/// Replays all of them: what to print on standard output (with `--json` a list),
/// and the worst exit code.
pub(super) fn run(args: &ReplayArgs, folders: Vec<PathBuf>) -> (Option<String>, u8) {
    let (mut texts, mut worst) = (Vec::new(), 0);
    for bundle in folders {
        let name = bundle.display().to_string();
        let (text, code) = replay::run(&ReplayArgs { bundle, ..args.clone() });
        worst = worst.max(code);
        texts.extend(text.map(|text| if args.json { text } else { format!("{name}\n{text}") }));
    }
    let text = if args.json { format!("[{}]", texts.join(",\n")) } else { texts.join("\n") };
    (Some(text), worst)
}
