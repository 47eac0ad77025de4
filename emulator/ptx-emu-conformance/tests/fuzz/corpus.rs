//! Programs of one kernel each.

use ptx_emu_conformance::{Family, Probe, probes};
use std::path::{Path, PathBuf};

/// A PTX text to mutate.
#[derive(Debug, Clone)]
pub struct Program {
    pub name: String,
    /// Directives before the kernel.
    pub head: String,
    /// The kernel and what follows it.
    pub body: String,
    /// The probe that it is, for its launch.
    pub probe: Option<Probe>,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn ptx_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    files.sort();
    files
}

/// The kernels of a module, each with what stands before the first of them.
fn split(name: &str, text: &str, out: &mut Vec<Program>) {
    const START: &str = ".visible .entry";
    let first = text.find(START).unwrap_or(text.len());
    let (head, kernels) = text.split_at(first);
    for body in kernels.split_inclusive(START).filter(|part| *part != START) {
        let body = format!("{START}{}", body.strip_suffix(START).unwrap_or(body));
        out.push(Program { name: name.to_owned(), head: head.to_owned(), body, probe: None });
    }
    if kernels.is_empty() {
        let body = head.to_owned();
        out.push(Program { name: name.to_owned(), head: String::new(), body, probe: None });
    }
}

/// All programs there are.
pub fn corpus() -> Vec<Program> {
    let mut programs = Vec::new();
    let kept = ["tests/data/ptx", "emulator/ptx-emu-core/tests/data", "benches/emulator"];
    // The folders in which they were built.
    let built = ["target/kernels/sm_90a", "target/kernels/sm_100a"];
    let files = |folder: &str| ptx_files(&repository().join(folder));
    assert!(kept.iter().all(|folder| !files(folder).is_empty()), "a folder without programs");
    for file in kept.into_iter().chain(built).flat_map(files) {
        let text = std::fs::read_to_string(&file).expect("a readable sample");
        let name = file.strip_prefix(repository()).unwrap_or(&file).display().to_string();
        split(&name, &text, &mut programs);
    }
    // As many as there are probes, so that they do not drown.
    let samples = programs.clone();
    for &family in Family::ALL {
        for probe in probes(family) {
            programs.push(Program {
                name: format!("{family}: {}", probe.name),
                head: Probe::HEAD.to_owned(),
                body: probe.kernel.clone(),
                probe: Some(probe),
            });
        }
    }
    let probes = programs.len() - samples.len();
    let again = probes / samples.len().max(1);
    for _ in 0..again {
        programs.extend(samples.iter().cloned());
    }
    programs
}
