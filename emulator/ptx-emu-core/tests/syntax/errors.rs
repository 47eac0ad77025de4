//! The parser's errors for text that is not PTX.

use ptx_emu_core::syntax::{MAX_DEPTH, SyntaxErrorKind, parse};

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// The message for a broken kernel body; lines count from the body's first.
fn body_error(statements: &str) -> String {
    let text = format!(".version 9.0 .target sm_90a .entry k() {{\n{statements}");
    let mut error = parse(&text).expect_err(statements);
    error.pos.line -= 1;
    error.to_string()
}

#[test]
fn module_errors() {
    for (text, message) in [
        ("", "1:1: expected `.version`, found the end of the text"),
        (".target sm_90a", "1:1: expected `.version`, found `.target`"),
        (".version 9 .target", "1:10: expected a version such as `9.0`, found `9`"),
        (".version 9.0\n.entry", "2:1: expected `.target`, found `.entry`"),
        (
            ".version 9.0 .target sm_90a\n .address_size 48",
            "2:16: address size must be 32 or 64, found 48",
        ),
        (".version 9.0 .target sm_90a .frob x;", "1:29: unknown directive `.frob` at module scope"),
        (
            ".version 9.0 .target sm_90a .entry k() .frob {}",
            "1:40: unknown directive `.frob` between a function's head and its body",
        ),
        (
            ".version 9.0 .target sm_90a .entry k() .maxntid 1, 2, 3, 4 {}",
            "1:40: number of the directive's arguments must be 1 to 3, found 4",
        ),
        (
            ".version 9.0 .target sm_90a .entry k() .maxnreg -1 {}",
            "1:49: argument must be non-negative, found -1",
        ),
        (
            ".version 9.0 .target sm_90a .global .align 3 .b8 x;",
            "1:44: alignment must be a power of two, found 3",
        ),
        (
            ".version 9.0 .target sm_90a .global .b8 x[1.5];",
            "1:43: constant expression: `array dimension` takes an integer, found a float",
        ),
        (
            ".version 9.0 .target sm_90a .section .x { {",
            "1:44: expected `}`, found the end of the text",
        ),
        (".version 9.0 .target sm_90a .global .b32 .b64 x;", "1:42: expected a name, found `.b64`"),
        (".version 9.0 .target sm_90a .global x;", "1:37: expected a type, found `x`"),
        (
            ".version 9.0 .target sm_90a .entry k(.b32 x) {}",
            "1:38: expected `.param` or `.reg`, found `.b32`",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn statement_errors() {
    for (text, message) in [
        ("ret", "1:4: expected an operand, found the end of the text"),
        ("ret;", "1:5: expected a statement or `}`, found the end of the text"),
        ("; ret;", "1:1: expected a statement or `}`, found `;`"),
        ("add %a, ;", "1:9: expected an operand, found `;`"),
        ("add %a %b;", "1:8: expected `,` or `;`, found `%b`"),
        ("@p { }", "1:4: expected an instruction, found `{`"),
        ("ld %a, [];", "1:9: expected an address, found `]`"),
        ("ld %a, [%b;", "1:11: expected `,` or `]`, found `;`"),
        ("ld %a, {%b;", "1:11: expected `,` or `}`, found `;`"),
        ("mov %a, 1+%b;", "1:11: expected a constant, found `%b`"),
        ("mov %a, (1;", "1:11: expected `)`, found `;`"),
        ("mov %a, 1/0;", "1:10: division by zero in a constant expression"),
        (
            "mov %a, 1 + 1.0;",
            "1:11: constant expression: `+` takes two integers or two 64-bit floats, found a mixture",
        ),
        ("mov %a, 1.0 << 1.0;", "1:13: constant expression: `<<` takes integers, found floats"),
        (".callprototype _;", "1:1: expected a label before the list, found `.callprototype`"),
        (".frob;", "1:1: unknown directive `.frob` in a function body"),
        (
            ".local .b32 x<40000>, y<40000>;",
            "1:31: number of variables made by `name<N>` must be at most 65536 in a module, found 80000",
        ),
        (".reg .b32 x<4294967296>;", "1:13: number of names must be below 2^32, found 4294967296"),
        ("call (a) f;", "1:10: expected `,`, found `f`"),
        ("call f, 3;", "1:9: expected a prototype or a list of targets, found `3`"),
        ("mov %a, 0f12;", "1:9: bad number `0f12`: 0f takes 8 hexadecimal digits"),
        ("mov %a, \"x\";", "1:9: expected an operand, found `\"x\"`"),
    ] {
        assert_eq!(body_error(text), message, "{text}");
    }
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    let deep = 100_000;
    for (first, again, close) in [
        ("", "{", "}"),
        ("op", "(", "1"),
        ("op", "- ", "1"),
        ("op", "1 ? 1 : ", "1"),
        ("op", "(.s64)", "1"),
        ("op", "{", "}"),
        ("op", "[a, ", "]"),
    ] {
        let text =
            format!("{HEAD}.entry k() {{ {first} {}{}", again.repeat(deep), close.repeat(deep));
        let error = parse(&text).unwrap_err();
        assert_eq!(error.kind, SyntaxErrorKind::TooDeep { limit: MAX_DEPTH }, "{again}: {error}");
    }
    let error = parse(&format!("{HEAD}.global .u32 x = {}", "{".repeat(deep))).unwrap_err();
    assert_eq!(error.kind, SyntaxErrorKind::TooDeep { limit: MAX_DEPTH });
    // The body itself is one level.
    for (levels, ok) in [(MAX_DEPTH as usize - 1, true), (MAX_DEPTH as usize, false)] {
        let (open, close) = ("{".repeat(levels), "}".repeat(levels));
        let text = format!("{HEAD}.entry k() {{ {open} {close} }}");
        assert_eq!(parse(&text).is_ok(), ok, "{levels} inner blocks");
    }
}

#[test]
fn rendered_errors_point_at_the_column() {
    let text = format!("{HEAD}.entry k() {{\n\tadd.s32\t%r1, %r2 %r3;\n}}\n");
    let error = parse(&text).unwrap_err();
    assert_eq!(
        error.render(&text),
        "5:19: expected `,` or `;`, found `%r3`\n  \
           |\n\
         5 | \tadd.s32\t%r1, %r2 %r3;\n  \
           | \t       \t         ^\n"
    );
    // A position past the end of another text must not panic.
    assert!(error.render("short").contains('^'));
    let long = format!("{HEAD}/* é */ {} frob {}", " ".repeat(1000), "x".repeat(1000));
    let rendered = parse(&long).unwrap_err().render(&long);
    assert!(rendered.lines().all(|line| line.chars().count() < 120), "{rendered}");
    assert!(rendered.contains("frob xx"), "{rendered}");
}
