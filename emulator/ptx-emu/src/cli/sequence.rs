//! `ptx-emu replay` of a folder with several bundles: those that a program wrote
//! launch by launch. Each holds its own memory, so each is replayed by itself, in
//! the order of the folders' names.

use super::console;
use super::replay::{self, ReplayArgs};
use ptx_emu::bundle::BUNDLE_FILE;
use ptx_emu::sarif::Log;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    let (mut texts, mut worst, mut found) = (Vec::new(), 0, Vec::new());
    for bundle in folders {
        let name = bundle.display().to_string();
        let mut outputs = args.outputs.clone();
        outputs.out = outputs.out.and_then(|out| Some(out.join(bundle.file_name()?)));
        let args = ReplayArgs { bundle, outputs, ..args.clone() };
        let (text, code) = match args.on {
            Some(ordinal) => on_gpu(&args, ordinal),
            None => {
                let mut log = Log::new();
                let ended = replay::one(&args, &mut log);
                found.push(log.run());
                ended
            }
        };
        worst = worst.max(code);
        texts.extend(text.map(|text| if args.json { text } else { format!("{name}\n{text}") }));
    }
    let text = if args.json { format!("[{}]", texts.join(",\n")) } else { texts.join("\n") };
    (Some(text), args.sarif.write_all(&found, worst))
}

/// Replays one on a GPU in its own process: a kernel that goes wrong leaves its process no
/// GPU, and each has other addresses free.
fn on_gpu(args: &ReplayArgs, ordinal: u32) -> (Option<String>, u8) {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.arg("replay").arg(&args.bundle).args(["--on", &format!("cuda:{ordinal}")]);
    for typed in &args.outputs.dtype {
        command.args(["--dtype", &typed.text]);
    }
    if let Some(out) = &args.outputs.out {
        command.arg("--out").arg(out);
    }
    if args.json {
        command.arg("--json");
    }
    match command.stderr(Stdio::inherit()).output() {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout).trim_end().to_owned();
            let code = out.status.code().and_then(|code| u8::try_from(code).ok());
            (Some(text).filter(|text| !text.is_empty()), code.unwrap_or(1))
        }
        Err(error) => {
            console::complain(format_args!("a process that replays cannot be started: {error}"));
            (None, 2)
        }
    }
}
