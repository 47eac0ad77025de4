//! Rules of the code base that the compiler does not know, as tests.

use crate::run;
use std::collections::{BTreeMap, BTreeSet};
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

/// The text up to the parenthesis that closes one opened before it. Parentheses in string literals
/// are left out of the count.
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
    let folders =
        ["tests/data", "emulator/ptx-emu-core/tests/data"].map(|folder| files(&root.join(folder)));
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

/// A test that prints and returns would count as passed. Examples are no tests.
#[test]
fn tests_say_what_they_skip() {
    let printed = ["println!(\"skip", "say!(\"skip"];
    let calls = ["skipped::test(", "skipped::part("];
    let mut seen = 0;
    let mut offences = Vec::new();
    for (path, text) in sources() {
        let own = path == Path::new("xtask/src/tidy.rs");
        if own || path.iter().any(|part| part == "examples") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            seen += usize::from(calls.iter().any(|call| line.contains(call)));
            if printed.iter().any(|p| line.contains(p)) {
                offences.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(seen > 20, "found only {seen} calls of the crate `skipped`");
    none("tests that are skipped without the crate `skipped`", offences);
}

/// A GPU runs conformance probes and bundles by one unsafe call of the tools, and loops are compiled for
/// instructions of the host in a crate of their own; what runs PTX has none.
#[test]
fn the_emulators_unsafe_calls_are_in_two_files() {
    let emulator = Path::new("emulator");
    let level = |package: &str| {
        let manifest = run::root().join(emulator).join(package).join("Cargo.toml");
        let text = std::fs::read_to_string(manifest).expect("readable");
        ["forbid", "deny"].into_iter().find(|l| text.contains(&format!("unsafe_code = \"{l}\"")))
    };
    for package in ["ptx-emu-core", "ptx-emu-bundle", "ptx-emu-conformance"] {
        assert_eq!(level(package), Some("forbid"), "{package}");
    }
    for (package, file, calls) in [("ptx-emu", "cli/device.rs", 1), ("ptx-emu-simd", "lib.rs", 4)] {
        assert_eq!(level(package), Some("deny"), "{package}");
        let folder = emulator.join(package).join("src");
        let allowed = sources().into_iter().filter(|(path, text)| {
            path.starts_with(&folder) && text.contains("allow(unsafe_code)")
        });
        let allowed: Vec<_> =
            allowed.map(|(path, text)| (path, text.matches("unsafe {").count())).collect();
        assert_eq!(allowed, [(folder.join(file), calls)]);
    }
}

/// Modules of a crate, or of one of its modules, in an order in which each uses only those before it.
struct Layers<'a> {
    /// The folder.
    folder: &'a str,
    /// The file in it that declares the modules.
    root: &'a str,
    /// The beginning of paths to the modules, everywhere in the crate.
    path: &'a str,
    /// The modules, the lowest first.
    order: &'a [&'a str],
    /// The least number of files that have a layer.
    files: usize,
}

/// The layers of the emulator's core.
const EMULATOR: Layers<'_> = Layers {
    folder: "emulator/ptx-emu-core/src",
    root: "lib.rs",
    path: "crate::",
    order: &[
        "num",
        "tensor",
        "syntax",
        "readable",
        "sources",
        "gpu",
        "language",
        "tensor_map",
        "schedule",
        "checks",
        "counters",
        "memory",
        "load_error",
        "diagnostic",
        "trace",
        "machine",
        "decode",
        "isa",
        "load",
    ],
    files: 150,
};

/// The layers of the library.
const LIBRARY: Layers<'_> = Layers {
    folder: "host/src",
    root: "lib.rs",
    path: "crate::",
    order: &[
        "setters",
        "floats",
        "params",
        "threads",
        "kernels",
        "error",
        "shape",
        "whole",
        "tensor",
        "plan",
        "tune",
        "launch",
        "observe",
        "capture",
        "modules",
        "device",
        "stream",
        "buffer",
        "quantize",
        "dequantize",
        "rows",
        "attention",
        "gemm",
        "gemv",
        "moe",
        "parallel",
        "supports",
        "cudarc",
    ],
    files: 76,
};

/// The layers of the library's GEMM.
const GEMM: Layers<'_> = Layers {
    folder: "host/src/gemm",
    root: "mod.rs",
    path: "crate::gemm::",
    order: &[
        "output",
        "residual",
        "options",
        "form",
        "activations",
        "gated",
        "strides",
        "buffers",
        "epilogue",
        "check",
        "groups",
        "candidate",
        "family",
        "parts",
        "fp8",
        "decoded",
        "fragments",
        "sm80",
        "sm90",
        "sm100",
        "sm120",
        "families",
        "weights",
        "plan",
        "remembered",
        "tuned",
        "result",
        "tokens",
        "described",
        "product",
        "grouped",
        "mixed",
        "run",
        "grouped_run",
    ],
    files: 30,
};

/// The lines of a text that are not comments.
fn code(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// The first names behind `start` of the paths in a text, comments left out: of `crate::`, those of
/// `crate::a::B` and of `crate::{a::B, C}`.
fn names_behind(start: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
    };
    let mut found = Vec::new();
    for path in code.split(start).skip(1) {
        match path.strip_prefix('{') {
            None => found.push(name(path)),
            Some(list) => {
                let (mut depth, mut begins) = (0, true);
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begins = true,
                        _ if begins && !c.is_whitespace() => {
                            found.push(name(&list[at..]));
                            begins = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

#[test]
fn names_are_found_in_paths() {
    let text = "use crate::{Gpu, num::{half, int}, syntax};\n// crate::isa\nx(crate::load::f());";
    assert_eq!(names_behind("crate::", text), ["Gpu", "num", "syntax", "load"]);
}

/// A cycle of imports would make a module of any size one piece with all that it uses.
fn imports_go_one_way(layers: &Layers<'_>) {
    let &Layers { folder, root, path: start, order, files } = layers;
    let root_file = run::root().join(folder).join(root);
    let text = code(&std::fs::read_to_string(root_file).expect("readable"));
    let layer = |name: &str| order.iter().position(|known| *known == name);
    // The names that the root has from its modules, and from other crates or modules, which have no layer.
    let mut homes: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for line in text.split("use ").skip(1) {
        let Some((path, _)) = line.split_once(';') else { continue };
        let home = path.split("::").next().and_then(layer);
        for name in path.split(|c: char| !c.is_alphanumeric() && c != '_').skip(1) {
            homes.insert(name.to_owned(), home);
        }
    }
    let modules = text.lines().filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';'));
    for module in modules {
        assert!(layer(module).is_some(), "{folder}: {module} has no layer");
    }
    let mut seen = 0;
    let mut offences = Vec::new();
    for (path, text) in sources() {
        let Ok(inner) = path.strip_prefix(folder) else { continue };
        let first = inner.components().next().expect("a name").as_os_str().to_string_lossy();
        let Some(own) = layer(first.trim_end_matches(".rs")) else { continue };
        seen += 1;
        let mut names = names_behind(start, &text);
        // A module's own file reaches its neighbours by `super`, too; within the tests at its end that is the
        // module itself.
        let is_own =
            inner.components().count() == 1 || inner.ends_with(Path::new(&*first).join("mod.rs"));
        if is_own && start != "crate::" {
            let module = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            names.extend(names_behind("super::", module));
        }
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            let used = layer(&name).map(Some).or_else(|| homes.get(&name).copied());
            match used {
                Some(used) if used.is_none_or(|used| used <= own) => {}
                Some(_) => offences.push(format!("{}: {start}{name}", path.display())),
                None => offences.push(format!("{}: unknown {start}{name}", path.display())),
            }
        }
    }
    assert!(seen >= files, "{folder}: found only {seen} files");
    none("imports against the order of the layers", offences);
}

#[test]
fn imports_of_the_emulators_core_go_one_way() {
    imports_go_one_way(&EMULATOR);
}

#[test]
fn imports_of_the_library_go_one_way() {
    imports_go_one_way(&LIBRARY);
    imports_go_one_way(&GEMM);
}

/// Names of the dependencies of a package that the workspace names or that lie at a path.
fn own_dependencies(package: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(run::root().join(package).join("Cargo.toml"));
    let manifest = manifest.expect("readable");
    let (_, section) = manifest.split_once("[dependencies]\n").expect("dependencies");
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let own = |line: &&str| line.contains("path = ") || line.contains("workspace = true");
    let name = |line: &str| line.split([' ', '.', '=']).next().unwrap_or_default().to_owned();
    lines.filter(own).map(name).collect()
}

/// The modules of a crate that each module uses, by the paths from the root in its files; tests and names of the
/// root that are no modules are left out.
fn imports(folder: &str, root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(folder);
    let text = std::fs::read_to_string(run::root().join(folder).join(root)).expect("readable");
    let modules: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    // Names of the root that come from its modules.
    let mut homes = BTreeMap::new();
    for line in text.split("pub use ").skip(1) {
        let (path, _) = line.split_once(';').expect("a whole item");
        let home = path.split("::").next().expect("a name");
        let names = path.split(|c: char| !c.is_alphanumeric() && c != '_').skip(1);
        homes.extend(names.map(|name| (name.to_owned(), home.to_owned())));
    }
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let Ok(inner) = path.strip_prefix(folder) else { continue };
        let first = inner.components().next().expect("a name").as_os_str().to_string_lossy();
        let own = first.trim_end_matches(".rs");
        if !modules.contains(own) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        // The parent of a file beside the root is the root.
        let code = match inner.components().count() {
            1 => code.replace("super::", "crate::"),
            _ => code.to_owned(),
        };
        let used = names_behind("crate::", &code).into_iter();
        let used = used.map(|name| homes.get(&name).cloned().unwrap_or(name));
        let used = used.filter(|name| modules.contains(name.as_str()) && name != own);
        imports.entry(own.to_owned()).or_default().extend(used);
    }
    assert_eq!(imports.len(), modules.len(), "modules of {}", folder.display());
    imports
}

/// The modules that are left when those are taken away, again and again, that use none of the others: those in
/// cycles, and those that use them.
fn cyclic(mut imports: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let free: Vec<String> = imports
            .iter()
            .filter(|(_, used)| !used.iter().any(|name| imports.contains_key(name)))
            .map(|(name, _)| name.clone())
            .collect();
        if free.is_empty() {
            return imports.into_keys().collect();
        }
        imports.retain(|name, _| !free.contains(name));
    }
}

#[test]
fn cycles_are_found() {
    let of = |all: &[(&str, &[&str])]| {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        cyclic(all.iter().map(|(name, used)| ((*name).to_owned(), own(used))).collect())
    };
    assert_eq!(of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]), [""; 0]);
    assert_eq!(of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &[])]), ["a", "b", "c"]);
}

/// An engine compiles the library alone, and checkpoints without the laboratory.
#[test]
fn the_library_depends_on_neither_checkpoints_nor_the_laboratory() {
    for (package, above) in
        [("host", ["nvfp4-checkpoint", "nvfp4-lab"]), ("checkpoint", ["nvfp4-lab", "clap"])]
    {
        let own = own_dependencies(package);
        assert!(own.contains(&"fp4-formats".to_owned()), "{package}: {own:?}");
        let found = own.into_iter().filter(|name| above.contains(&name.as_str())).collect();
        none(package, found);
    }
    for (folder, root) in
        [("checkpoint/src", "lib.rs"), ("lab/src", "lib.rs"), ("lab/src/bin/nvfp4", "main.rs")]
    {
        none("modules in a cycle of imports, or that use some", cyclic(imports(folder, root)));
    }
}

/// Cost models and choices are the host's: a module's stamp and digest are made of the contract, so each of
/// their constants there would make every module stale.
#[test]
fn the_contract_has_no_planner() {
    assert_eq!(own_dependencies("formats"), [""; 0]);
    assert_eq!(own_dependencies("kernels-gpu"), ["cuda_std", "fp4-formats"]);
    let words = ["estimate", "cycles", "clocks", "candidates", "rates", "planner"];
    let mut seen = [0, 0];
    let mut offences = Vec::new();
    for (path, text) in sources() {
        let contract = path.starts_with("formats/src");
        if !contract && !path.starts_with("host/src/plan") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().to_lowercase();
            let mut names = code.split(|c: char| !c.is_alphanumeric());
            if names.any(|name| words.contains(&name)) {
                seen[usize::from(contract)] += 1;
                if contract {
                    offences.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(seen[0] > 100, "the planner has {} lines with such names", seen[0]);
    none("costs in the contract, which belong in the host's `plan`", offences);
}

/// Programs' pointers are followed in one file: it serves the stand-ins for CUDA's libraries and
/// the library before the driver's.
#[test]
fn programs_pointers_are_followed_in_one_file() {
    for package in ["emulator/ptx-emu-cuda", "emulator/ptx-emu-capture"] {
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
