//! Rules of the code base that the compiler does not know, as tests.

use crate::run;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every `.rs` file of the project with its text, path relative to the root.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, found);
                }
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    let root = run::root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    assert!(paths.len() > 50, "found only {} source files", paths.len());
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source file is UTF-8");
            (path.strip_prefix(&root).expect("below the root").to_path_buf(), text)
        })
        .collect()
}

/// Fails with one line for each offence.
fn none(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

#[test]
fn inline_assembly_stands_in_cuda_std_ptx_only() {
    let marker = concat!("asm", "!(");
    let offences = sources()
        .into_iter()
        .filter(|(path, text)| text.contains(marker) && !path.starts_with("cuda_std/src/ptx"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    none("inline assembly outside cuda_std::ptx", offences);
}

/// The text up to the parenthesis that closes one opened before it. Those in
/// string literals are left out of the count.
fn arguments(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// rustc does not mark inline assembly convergent; without `nomem`, `readonly`
/// and `pure` it is at least ordered with everything else.
#[test]
fn synchronising_wrappers_have_side_effects() {
    let synchronising =
        ["bar.", "barrier.", "shfl.", "vote.", "match.", "redux.", "elect.", "fence."];
    let mut offences = Vec::new();
    let mut checked = 0;
    for (path, text) in sources() {
        if !path.starts_with("cuda_std/src/ptx") {
            continue;
        }
        for block in text.split(concat!("asm", "!(")).skip(1) {
            let block = arguments(block);
            let instruction = block.split('"').nth(1).unwrap_or("").trim_start_matches("{{ ");
            if synchronising.iter().any(|s| instruction.starts_with(s)) {
                checked += 1;
                if ["nomem", "readonly", "pure"].iter().any(|o| block.contains(o)) {
                    offences.push(format!("{}: {instruction}", path.display()));
                }
            }
        }
    }
    assert!(checked >= 2, "the rule matched only {checked} wrappers");
    none("synchronising wrappers that the compiler may move", offences);
}

#[test]
fn kernel_files_are_short() {
    let offences = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with("kernels-gpu"))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 400)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    none("kernel files of more than 400 lines", offences);
}

#[test]
fn every_file_says_what_it_is() {
    let offences = sources()
        .into_iter()
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    none("files without module documentation", offences);
}

/// Every file below a folder of the project.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable"));
    let below = entries.map(|entry| entry.path()).map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    below.flatten().collect()
}

/// Recordings of two projects may have the same bytes; any other file is kept once.
#[test]
fn test_data_are_kept_once() {
    let root = run::root();
    let folders = ["tests/data", "emulator/tests/data"].map(|folder| files(&root.join(folder)));
    let mut seen = BTreeMap::new();
    let mut offences = Vec::new();
    for path in folders.into_iter().flatten() {
        let recorded = ["quant", "exporters"].map(|name| root.join("tests/data").join(name));
        if recorded.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let bytes = std::fs::read(&path).expect("readable");
        if let Some(other) = seen.insert(bytes, path.clone()) {
            offences.push(format!("{} and {}", other.display(), path.display()));
        }
    }
    assert!(seen.len() > 40, "found only {} files", seen.len());
    none("the same data twice", offences);
}

#[test]
fn nothing_is_left_open() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("todo", "!("),
        concat!("unimpl", "emented!("),
    ];
    let mut offences = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|w| line.contains(w)) {
                offences.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    none("unfinished work", offences);
}

/// A GPU runs the conformance probes by one unsafe call. The emulator itself has those of functions
/// that are compiled for instructions of the host, in one file.
#[test]
fn the_emulator_has_unsafe_calls_in_two_files() {
    let manifest =
        std::fs::read_to_string(run::root().join("emulator/Cargo.toml")).expect("readable");
    assert!(manifest.contains("unsafe_code = \"deny\""));
    let emulator = run::root().join("emulator/src");
    let allowed = sources().into_iter().filter(|(path, text)| {
        run::root().join(path).starts_with(&emulator) && text.contains("allow(unsafe_code)")
    });
    let mut allowed: Vec<_> =
        allowed.map(|(path, text)| (path, text.matches("unsafe {").count())).collect();
    allowed.sort();
    assert_eq!(allowed.len(), 2, "{allowed:?}");
    assert!(allowed[0].0.ends_with("cli/device.rs") && allowed[0].1 == 1, "{allowed:?}");
    assert!(allowed[1].0.ends_with("simd.rs") && allowed[1].1 == 3, "{allowed:?}");
}

/// What stands in for CUDA's libraries, and what comes before the driver's, follows the program's
/// pointers in one file.
#[test]
fn programs_pointers_are_followed_in_one_file() {
    for package in ["emulator-cuda", "emulator-capture"] {
        follows_pointers_in_one_file(Path::new(package));
    }
}

fn follows_pointers_in_one_file(package: &Path) {
    let abi = package.join("src/abi.rs");
    let mut seen = 0;
    let offences = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with(package))
        .inspect(|_| seen += 1)
        .filter(|(path, text)| {
            let blocks = text.contains("unsafe {") || text.contains("unsafe impl");
            blocks && *path != abi
        })
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(seen > 6, "found only {seen} files");
    none(&format!("unsafe blocks outside {}", abi.display()), offences);
}

#[test]
fn unsafe_blocks_say_why() {
    let mut offences = Vec::new();
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if !code.contains("unsafe {") || code.contains('"') {
                continue;
            }
            // Above the statement that the block belongs to, or on its line.
            let start = number.saturating_sub(8);
            if !lines[start..=number].iter().any(|l| l.contains("SAFETY:")) {
                offences.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    none("unsafe blocks without a SAFETY line", offences);
}
