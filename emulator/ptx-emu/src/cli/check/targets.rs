//! `ptx-emu check --targets`: the targets and versions of PTX in which a module would load.

use crate::cli::{console, report, run};
use ptx_emu::{Examined, Gpu};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// A version of PTX.
type Version = (u32, u32);

/// Versions of PTX, each with the CUDA release that brought it and the branch of the driver that came
/// with that, where it is known (PTX ISA 13, release notes of CUDA).
const RELEASES: [(Version, &str, Option<u32>); 27] = [
    ((6, 3), "10.0", Some(410)),
    ((6, 4), "10.1", Some(418)),
    ((6, 5), "10.2", Some(440)),
    ((7, 0), "11.0", Some(450)),
    ((7, 1), "11.1", Some(455)),
    ((7, 2), "11.2", Some(460)),
    ((7, 3), "11.3", Some(465)),
    ((7, 4), "11.4", Some(470)),
    ((7, 5), "11.5", Some(495)),
    ((7, 6), "11.6", Some(510)),
    ((7, 7), "11.7", Some(515)),
    ((7, 8), "11.8", Some(520)),
    ((8, 0), "12.0", Some(525)),
    ((8, 1), "12.1", Some(530)),
    ((8, 2), "12.2", Some(535)),
    ((8, 3), "12.3", Some(545)),
    ((8, 4), "12.4", Some(550)),
    ((8, 5), "12.5", Some(555)),
    ((8, 6), "12.7", Some(565)),
    ((8, 7), "12.8", Some(570)),
    ((8, 8), "12.9", Some(575)),
    ((9, 0), "13.0", Some(580)),
    ((9, 1), "13.1", Some(590)),
    ((9, 2), "13.2", Some(595)),
    ((9, 3), "13.3", None),
    ((9, 4), "13.4", None),
    ((9, 5), "13.5", None),
];

/// A target, and the oldest version in which the module loads for it, or the reason why it does not in
/// any.
struct Found {
    target: String,
    outcome: Result<Version, String>,
}

/// Returns the text for standard output, and the exit code: 0 if there is such a target.
pub(super) fn run(module: &Path, entry: Option<&str>, as_json: bool) -> (Option<String>, u8) {
    let text = match run::read_text(module) {
        Ok(text) => text,
        Err(error) => {
            console::complain(&error);
            return (as_json.then(|| report::failure(&error, None)), error.exit_code());
        }
    };
    let found = survey(&text, entry);
    let any = found.iter().any(|found| found.outcome.is_ok());
    let show = if as_json { shown_as_json } else { shown_as_text };
    (Some(show(module, &found)), if any { 0 } else { 2 })
}

fn survey(text: &str, entry: Option<&str>) -> Vec<Found> {
    let mut all = Vec::new();
    for (target, versions) in ptx_emu::targets() {
        let Some(gpu) = Gpu::ALL.into_iter().find(|gpu| gpu.accepts(&target)) else { continue };
        let fails = |version: Version| fault(&for_language(text, version, &target), &gpu, entry);
        let outcome = match versions.last().map(|newest| fails(*newest)) {
            Some(None) => {
                // Whatever a version has, later ones have.
                let at = versions.partition_point(|version| fails(*version).is_some());
                versions.get(at).copied().ok_or_else(|| "no version has it".to_owned())
            }
            Some(Some(why)) => Err(why),
            None => Err("no version has it".to_owned()),
        };
        all.push(Found { target, outcome });
    }
    all
}

/// The first fault of a module, if it does not load.
fn fault(text: &str, gpu: &Gpu, entry: Option<&str>) -> Option<String> {
    let found = match ptx_emu::examine(text, gpu, entry) {
        Ok(found) => found,
        Err(error) => return Some(error.to_string()),
    };
    found.entries.iter().filter(|entry| !entry.loads()).find_map(|Examined { outcome, .. }| {
        match outcome {
            Err(error) => Some(error.to_string()),
            Ok((_, unsupported)) => unsupported.first().map(ToString::to_string),
        }
    })
}

/// The module with another `.version` and `.target`.
fn for_language(text: &str, (major, minor): Version, target: &str) -> String {
    let text = with_word(text, ".version", &format!("{major}.{minor}"));
    with_word(&text, ".target", target)
}

/// The text with another word behind the first `directive` that no comment has.
fn with_word(text: &str, directive: &str, word: &str) -> String {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        if let Some(at) = code.find(directive) {
            let behind = &code[at + directive.len()..];
            let old = behind.trim_start();
            let from = start + at + directive.len() + (behind.len() - old.len());
            let ends = |c: char| c.is_whitespace() || c == ',';
            let to = from + old.find(ends).unwrap_or(old.len());
            return format!("{}{word}{}", &text[..from], &text[to..]);
        }
        start += line.len();
    }
    text.to_owned()
}

fn release(version: Version) -> Option<(&'static str, Option<u32>)> {
    let found = RELEASES.iter().find(|(of, ..)| *of == version);
    found.map(|&(_, cuda, driver)| (cuda, driver))
}

fn shown_as_text(module: &Path, found: &[Found]) -> String {
    let mut text = format!("{}: targets and the oldest version of PTX", module.display());
    for Found { target, outcome } in found {
        let _ = match outcome {
            Err(why) => write!(text, "\n{target}: none: {why}"),
            Ok((major, minor)) => {
                let _ = write!(text, "\n{target}: PTX {major}.{minor}");
                match release((*major, *minor)) {
                    Some((cuda, Some(driver))) => write!(text, " (CUDA {cuda}, driver {driver})"),
                    Some((cuda, None)) => write!(text, " (CUDA {cuda})"),
                    None => Ok(()),
                }
            }
        };
    }
    text
}

fn shown_as_json(module: &Path, found: &[Found]) -> String {
    let one = |Found { target, outcome }: &Found| match outcome {
        Err(why) => json!({ "target": target, "loads": false, "why": why }),
        Ok((major, minor)) => {
            let release = release((*major, *minor));
            json!({
                "target": target,
                "loads": true,
                "version": format!("{major}.{minor}"),
                "cuda": release.map(|(cuda, _)| cuda),
                "driver": release.and_then(|(_, driver)| driver),
            })
        }
    };
    json!({
        "module": module.display().to_string(),
        "targets": found.iter().map(one).collect::<Vec<_>>(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_outside_comments() {
        let text = "// .version 1.0\n.version 9.0 // of .target x\n.target sm_90a, debug\n";
        let expected = "// .version 1.0\n.version 8.0 // of .target x\n.target sm_80, debug\n";
        assert_eq!(for_language(text, (8, 0), "sm_80"), expected);
        assert_eq!(
            for_language(".version 9.0 .target sm_90a", (7, 8), "sm_89"),
            ".version 7.8 .target sm_89"
        );
    }

    #[test]
    fn every_version_has_a_release() {
        for (target, versions) in ptx_emu::targets() {
            assert!(versions.iter().all(|version| release(*version).is_some()), "{target}");
        }
    }
}
