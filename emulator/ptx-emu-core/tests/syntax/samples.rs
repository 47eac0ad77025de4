//! Compiled and hand-written modules.

use ptx_emu_core::syntax::ast::{Block, Function, Instruction, Item, Linkage, Module, Statement};
use ptx_emu_core::syntax::parse;

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/ptx/", $name))
    };
}

fn module(text: &str) -> Module {
    parse(text).unwrap_or_else(|error| panic!("{}", error.render(text)))
}

fn functions(module: &Module) -> Vec<&Function> {
    module
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
        .collect()
}

/// Instructions of a block and of those inside it, in source order.
fn instructions(block: &Block) -> Vec<&Instruction> {
    block
        .statements
        .iter()
        .flat_map(|statement| match statement {
            Statement::Instruction(instruction) => vec![instruction],
            Statement::Block(inner) => instructions(inner),
            _ => Vec::new(),
        })
        .collect()
}

/// Lines on which instructions begin, found without the parser: compilers write
/// one instruction per line, in lower case, and calls with their semicolon on a
/// later line.
fn instruction_lines(text: &str) -> Vec<u32> {
    let mut in_section = false;
    text.lines()
        .zip(1..)
        .filter(|(line, _)| {
            let line = line.trim();
            in_section = (in_section || line.starts_with(".section")) && line != "}";
            let code = line.split_once("//").map_or(line, |(code, _)| code);
            let code = code.trim_end_matches([' ', '}']);
            !in_section
                && (code.starts_with("call")
                    || code.ends_with(';')
                        && code.starts_with(|c: char| c.is_ascii_lowercase() || c == '@')
                        && !code.contains(".callprototype"))
        })
        .map(|(_, line)| line)
        .collect()
}

#[test]
fn samples_parse() {
    for (name, text) in [
        ("features.sm_90a", sample!("features.sm_90a.ptx")),
        ("features.sm_100a", sample!("features.sm_100a.ptx")),
        ("debug.sm_90a", sample!("debug.sm_90a.ptx")),
        ("initialisers", sample!("initialisers.ptx")),
        ("shapes.sm_90a", sample!("shapes.sm_90a.ptx")),
        ("shapes.sm_100a", sample!("shapes.sm_100a.ptx")),
    ] {
        let module = parse(text).unwrap_or_else(|e| panic!("{name}: {}", e.render(text)));
        assert_eq!(module.version, (9, 0), "{name}");
        assert!(!module.items.is_empty(), "{name}");
    }
}

#[test]
fn debugging_information_is_skipped_and_nothing_else() {
    let text = sample!("debug.sm_90a.ptx");
    let parsed = module(text);
    assert_eq!(parsed.targets, ["sm_90a", "debug"]);
    let lines: Vec<u32> = functions(&parsed)
        .into_iter()
        .filter_map(|function| function.body.as_ref())
        .flat_map(instructions)
        .map(|instruction| instruction.pos.line)
        .collect();
    assert!(lines.len() > 40, "{} instructions", lines.len());
    assert_eq!(lines, instruction_lines(text));
}

#[test]
fn compiled_functions_keep_their_heads() {
    for text in [sample!("features.sm_90a.ptx"), sample!("features.sm_100a.ptx")] {
        let parsed = module(text);
        let functions = functions(&parsed);
        let named = |name: &str| {
            functions.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("no {name}"))
        };
        let directives = |name: &str| {
            let mut names: Vec<&str> =
                named(name).directives.iter().map(|d| d.name.as_str()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(directives("branches"), ["maxntid", "minnctapersm"]);
        assert_eq!(directives("clustered"), ["explicitcluster", "maxnreg", "reqnctapercluster"]);
        assert!(named("vprintf").body.is_none());
        assert_eq!(named("vprintf").linkage, Linkage::Extern);
        let branches = named("branches");
        assert_eq!(branches.params.len(), 3);
        assert_eq!(branches.params[2].dims, [Some(32)]);
        assert_eq!(branches.params[2].align, Some(16));
        assert_eq!(named("_Z5widen3Bigi").returns[0].dims, [Some(24)]);
    }
}

#[test]
fn every_listed_instruction_form_parses_golden() {
    let forms: Vec<&str> = sample!("forms.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(forms.len(), 427, "forms in the list");
    for form in forms {
        let (operands, count) = if form.starts_with("call") {
            ("(r), f, (a, b)", 1)
        } else {
            ("%r1|%p1, {%r2, _}, [%r3+16, {%r4, 0}], !%p2, 0f3F800000", 5)
        };
        let text = format!(".version 9.0 .target sm_100a .entry k() {{ @%p0 {form} {operands}; }}");
        let parsed = module(&text);
        let body = functions(&parsed)[0].body.as_ref().unwrap();
        let found = instructions(body);
        assert_eq!(found.len(), 1, "{form}");
        let mut spelled = vec![found[0].opcode.as_str()];
        spelled.extend(found[0].modifiers.iter().map(String::as_str));
        assert_eq!(spelled.join("."), form);
        assert_eq!(found[0].operands.len(), count, "{form}");
    }
}
