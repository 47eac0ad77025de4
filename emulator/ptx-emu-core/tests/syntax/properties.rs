//! Any text gives a tree or an error: no panic, no hang, positions inside the
//! text.

use proptest::prelude::*;
use ptx_emu_core::syntax::parse;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/ptx/", $name))
    };
}

const SAMPLES: [&str; 5] = [
    sample!("features.sm_90a.ptx"),
    sample!("debug.sm_90a.ptx"),
    sample!("initialisers.ptx"),
    sample!("shapes.sm_90a.ptx"),
    sample!("shapes.sm_100a.ptx"),
];

/// Pieces that the grammar decides by, so that random sequences of them get past
/// the first token.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ";",
    ":",
    "|",
    "!",
    "-",
    "~",
    "+",
    "*",
    "/",
    "%",
    "<<",
    ">",
    "<",
    "?",
    "@",
    "=",
    "_",
    "%r1",
    "$L",
    "sym",
    "WARP_SZ",
    "generic",
    "call",
    "ret",
    "ld",
    ".reg",
    ".param",
    ".global",
    ".local",
    ".align",
    ".ptr",
    ".b32",
    ".v4",
    ".pred",
    ".attribute",
    ".loc",
    ".file",
    ".section",
    ".pragma",
    ".branchtargets",
    ".callprototype",
    ".entry",
    ".func",
    ".visible",
    ".maxntid",
    ".noreturn",
    ".s64",
    ".5",
    ".L2::128B",
    "0",
    "16",
    "0x1F",
    "0f3F800000",
    "1.5",
    "\"s\"",
    "// c\n",
    "/* c */",
    "#",
    "é",
];

/// Parses, and checks what must hold for every text.
fn check(text: &str) {
    let Err(error) = parse(text) else { return };
    let line =
        (error.pos.line as usize).checked_sub(1).and_then(|index| text.split('\n').nth(index));
    let Some(line) = line else {
        panic!("{error}: no such line in {text:?}");
    };
    assert!(
        (1..=line.len() + 1).contains(&(error.pos.column as usize)),
        "{error}: no such column in {text:?}"
    );
    assert!(error.render(text).ends_with("^\n"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_characters(characters in prop::collection::vec(any::<char>(), 0..200)) {
        let text: String = characters.into_iter().collect();
        check(&format!(".version 9.0 .target sm_90a {text}"));
    }

    #[test]
    fn random_pieces(pieces in prop::collection::vec((0..PIECES.len(), any::<bool>()), 0..80)) {
        let mut text = String::new();
        for (piece, spaced) in pieces {
            text.push_str(PIECES[piece]);
            text.push_str(if spaced { " " } else { "" });
        }
        check(&format!(".version 9.0 .target sm_90a {text}"));
        check(&format!(".version 9.0 .target sm_90a .entry k() {{ {text}"));
        check(&format!(".version 9.0 .target sm_90a .entry k() {{ op {text}"));
    }

    #[test]
    fn mutated_samples(
        sample in 0..SAMPLES.len(),
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..4u8, any::<u8>(), 0..40usize),
            1..6,
        ),
    ) {
        let mut bytes = SAMPLES[sample].as_bytes().to_vec();
        for (at, kind, byte, length) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            let end = (at + length).min(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => bytes.swap(at, length % end.max(1)),
            }
        }
        check(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn every_prefix_of_a_sample_is_an_error_or_a_module() {
    for sample in SAMPLES {
        let step = sample.len().div_ceil(500);
        for end in (0..sample.len()).step_by(step) {
            if let Some(prefix) = sample.get(..end) {
                check(prefix);
            }
        }
    }
}

/// Appends one line, given its number.
type Line<'a> = &'a dyn Fn(&mut String, usize);

/// Sixteen times the text may take sixteen times as long, with a margin of four
/// for noise; quadratic behaviour would take 256 times.
#[test]
fn time_is_linear_in_the_text() {
    let shortest = |count: usize, line: Line<'_>| -> Duration {
        let mut text = String::from(".version 9.0\n.target sm_90a\n.entry k() {\n");
        for index in 0..count {
            line(&mut text, index);
        }
        text.push_str("ret;\n}\n");
        (0..5)
            .map(|_| {
                let start = Instant::now();
                assert!(parse(&text).is_ok());
                start.elapsed()
            })
            .min()
            .unwrap_or_default()
    };
    let lines: [(&str, Line<'_>); 5] = [
        ("instructions", &|text, index| {
            let _ = writeln!(text, "\t@%p{index} add.s32 %r{index}, %r1, {index}+1;");
        }),
        ("variables", &|text, index| {
            let _ = writeln!(text, ".local .align 8 .b8 v{index}[8], w{index};");
        }),
        ("labels", &|text, index| {
            let _ = write!(text, "L{index}: ");
        }),
        ("comments on one line", &|text, _| {
            text.push_str("/* comment */");
        }),
        ("line markers", &|text, _| {
            text.push_str("    # 1 \"f\"\n");
        }),
    ];
    for (name, line) in lines {
        let small = shortest(4_000, line).max(Duration::from_micros(200));
        let large = shortest(64_000, line);
        assert!(large < small * 64, "{name}: {small:?} for 1, {large:?} for 16");
    }
}
