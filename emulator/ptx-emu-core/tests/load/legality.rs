//! Statements that ptxas takes load, for each target and version, and no others do:
//! `tests/data/ptx/legality.txt`, one statement at a time.

use ptx_emu_core::{Gpu, LoadError, Module};

const RECORD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/ptx/legality.txt"));

/// Versions of PTX, in order.
const VERSIONS: [&str; 27] = [
    "6.3", "6.4", "6.5", "7.0", "7.1", "7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8", "8.0",
    "8.1", "8.2", "8.3", "8.4", "8.5", "8.6", "8.7", "8.8", "9.0", "9.1", "9.2", "9.3", "9.4",
    "9.5",
];

/// The last version that ptxas 13.0 knows.
const LAST_OF_13_0: usize = 21;

/// Statements that some target has and the emulator refuses at load, behind lines that say why. A `*`
/// stands for anything, also at the end.
const NOT_MODELLED: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/data/ptx/legality_not_modelled.txt"
));

fn not_modelled() -> impl Iterator<Item = &'static str> {
    NOT_MODELLED.lines().filter(|line| !line.starts_with('#'))
}

/// A kernel with the statement; the same as in `legality.py`.
fn module(version: &str, target: &str, statement: &str) -> String {
    let (mut directives, body) = match statement.strip_prefix('.') {
        Some(_) => (statement.trim_end_matches(';').to_owned(), ""),
        None => (".maxntid 128 .maxnreg 64".to_owned(), statement),
    };
    if !directives.contains("ntid") {
        directives += " .maxntid 128";
    }
    let wide = if body.contains("%q") { ".reg .b128 %q<4>;" } else { "" };
    let callee = match body.contains("callee") {
        true => ".func (.reg .b32 result) callee(.reg .b32 x) { mov.b32 result, x; ret; }",
        false => "",
    };
    format!(
        ".version {version}\n.target {target}\n.address_size 64
.const .align 16 .b8 c[64]; {callee}
.visible .entry k(.param .align 16 .b8 in[128]) {directives} {{
    .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 bar; .local .align 16 .b8 l[64];
    .param .align 16 .b8 arg[16]; .reg .pred %p<10>; .reg .b8 %b<9>; .reg .b16 %h<17>;
    .reg .b32 %r<140>; .reg .b64 %d<40>; {wide} {body} NEXT: ret; }}"
    )
}

/// The versions that have a statement: the first and the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span(Option<(usize, usize)>);

impl Span {
    fn parse(cell: &str) -> Self {
        let at =
            |text: &str| VERSIONS.iter().position(|version| *version == text).expect("a version");
        Self(match cell.split_once("..") {
            _ if cell == "-" => None,
            Some((first, last)) => Some((at(first), at(last))),
            None => Some((at(cell), VERSIONS.len() - 1)),
        })
    }

    fn has(self, version: usize) -> bool {
        self.0.is_some_and(|(first, last)| (first..=last).contains(&version))
    }

    /// The versions at which the answer changes, and those before them.
    fn edges(self) -> impl Iterator<Item = usize> {
        let (first, last) = self.0.unwrap_or((VERSIONS.len() - 1, VERSIONS.len() - 1));
        [first.checked_sub(1), Some(first), Some(last), Some(last + 1)]
            .into_iter()
            .flatten()
            .filter(|at| *at < VERSIONS.len())
    }
}

/// Whether a statement is one of a line of [`NOT_MODELLED`].
fn matches(line: &str, statement: &str) -> bool {
    let mut parts = line.split('*');
    let Some(mut rest) = parts.next().and_then(|start| statement.strip_prefix(start)) else {
        return false;
    };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// A statement with the versions that have it, for each target: by ptxas 13.5, and by 13.0.
type Case = (&'static str, Vec<(Span, Span)>);

fn cases() -> (Vec<&'static str>, Vec<Case>) {
    let mut lines = RECORD.lines().skip_while(|line| !line.starts_with("# sm_"));
    let columns = lines.next().expect("targets").trim_start_matches("# ").split(' ').collect();
    let mut spans = Vec::new();
    let mut cases = Vec::new();
    for line in lines {
        match line.strip_prefix("  ") {
            Some(statement) => cases.push((statement, Vec::clone(&spans))),
            None => {
                let (new, old) = line.split_once(" | ").unwrap_or((line, line));
                let cells = new.split(' ').zip(old.split(' '));
                spans = cells.map(|(new, old)| (Span::parse(new), Span::parse(old))).collect();
            }
        }
    }
    (columns, cases)
}

/// Returns the number of cases, and those in which the emulator is not as ptxas.
fn differences(part: usize, parts: usize) -> (usize, Vec<String>) {
    let (columns, cases) = cases();
    let machine = |target: &&str| Gpu::for_module(&format!(".version 9.0\n.target {target}"));
    let gpus: Vec<Gpu> = columns.iter().map(machine).collect();
    let mut count = 0;
    let mut wrong = Vec::new();
    for (statement, spans) in cases.iter().skip(part).step_by(parts) {
        assert_eq!(spans.len(), columns.len(), "{statement}");
        let missing = not_modelled().any(|line| matches(line, statement));
        for ((target, gpu), (new, old)) in columns.iter().zip(&gpus).zip(spans) {
            let mut versions: Vec<usize> = new.edges().chain(old.edges()).collect();
            versions.sort_unstable();
            versions.dedup();
            for at in versions {
                // Either is right if two releases of ptxas differ.
                let right = [new.has(at), if at > LAST_OF_13_0 { new } else { old }.has(at)];
                let found = match Module::load(&module(VERSIONS[at], target, statement), gpu) {
                    Err(LoadError::Version { .. }) => continue,
                    Err(_) if missing => continue,
                    found => found.map(drop),
                };
                count += 1;
                if !right.contains(&found.is_ok()) {
                    let why = found.map_or_else(|error| error.to_string(), |()| "loads".to_owned());
                    wrong.push(format!("{statement}\t{target} {}: {why}", VERSIONS[at]));
                }
            }
        }
    }
    (count, wrong)
}

#[test]
fn the_emulator_takes_what_ptxas_takes() {
    let parts = 4;
    let found: Vec<(usize, Vec<String>)> = std::thread::scope(|scope| {
        let start = |part| scope.spawn(move || differences(part, parts));
        let running: Vec<_> = (0..parts).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let count: usize = found.iter().map(|(count, _)| count).sum();
    let wrong: Vec<&String> = found.iter().flat_map(|(_, wrong)| wrong).collect();
    assert!(count > 100_000, "{count} cases");
    let shown: Vec<&str> = wrong.iter().take(60).map(|line| line.as_str()).collect();
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), shown.join("\n"));
}

/// No line is there for nothing.
#[test]
fn what_is_not_modelled_is_refused() {
    let (columns, cases) = cases();
    for line in not_modelled() {
        let refused = cases.iter().filter(|(statement, _)| matches(line, statement)).any(
            |(statement, spans)| {
                columns.iter().zip(spans).any(|(target, (new, _))| {
                    let gpu = Gpu::for_module(&format!(".version 9.0\n.target {target}"));
                    new.0.is_some_and(|(first, _)| {
                        Module::load(&module(VERSIONS[first], target, statement), &gpu).is_err()
                    })
                })
            },
        );
        assert!(refused, "{line}");
    }
}

#[test]
fn constants_that_no_instruction_has_are_named() {
    for (statement, says) in [
        (
            "setmaxnreg.dec.sync.aligned.u32 100;",
            "required a multiple of 8 in 24..=256, actual 100",
        ),
        ("setmaxnreg.inc.sync.aligned.u32 16;", "required a multiple of 8 in 24..=256, actual 16"),
        (
            "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%d9], 48;",
            "columns: required a power of two from 32 to 512, actual 48",
        ),
    ] {
        let error = Module::load(&module("9.0", "sm_100a", statement), &Gpu::b200());
        let said = error.map(drop).expect_err(statement).to_string();
        assert!(said.contains(says), "{said}");
    }
}

/// `lax` machines load what the target lacks, and what no target has.
#[test]
fn lax_machines_load_more() {
    let copy = module("7.0", "sm_75", "cp.async.cg.shared.global [s], [%d9], 16;");
    let shape = module("9.0", "sm_90", "add.ftz.f64 %d1, %d2, %d3;");
    for text in [copy, shape] {
        let gpu = Gpu::h200();
        assert!(matches!(Module::load(&text, &gpu), Err(LoadError::Unsupported(_))), "{text}");
        let loaded = Module::load(&text, &Gpu { lax: true, ..gpu });
        assert!(loaded.is_ok(), "{text}");
    }
}
