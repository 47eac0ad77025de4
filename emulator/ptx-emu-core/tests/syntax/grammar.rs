//! Every operand shape, statement, declaration and initialiser of the grammar.

use ptx_emu_core::syntax::ast::{
    Call, Function, Imm, Init, Instruction, Item, Linkage, Module, Operand, Pos, Space, Statement,
    Variable,
};
use ptx_emu_core::syntax::parse;

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

fn module(text: &str) -> Module {
    parse(text).unwrap_or_else(|error| panic!("{}", error.render(text)))
}

/// Parses statements as the body of a kernel.
fn body(statements: &str) -> Vec<Statement> {
    let text = format!("{HEAD}.entry k() {{\n{statements}\n}}\n");
    match module(&text).items.pop() {
        Some(Item::Function(Function { body: Some(block), .. })) => block.statements,
        other => panic!("no kernel: {other:?}"),
    }
}

fn instruction(text: &str) -> Instruction {
    match body(text).pop() {
        Some(Statement::Instruction(instruction)) => instruction,
        other => panic!("no instruction in {text:?}: {other:?}"),
    }
}

fn operand(text: &str) -> Operand {
    // Not the first operand, where `.5` would be a modifier.
    let mut operands = instruction(&format!("op _, {text};")).operands;
    assert_eq!(operands.len(), 2, "{text}");
    operands.remove(1)
}

fn variables(text: &str) -> Vec<Variable> {
    module(&format!("{HEAD}{text}"))
        .items
        .into_iter()
        .map(|item| match item {
            Item::Variable(variable) => variable,
            other => panic!("no variable: {other:?}"),
        })
        .collect()
}

fn function(text: &str) -> Function {
    match module(&format!("{HEAD}{text}")).items.pop() {
        Some(Item::Function(function)) => function,
        other => panic!("no function: {other:?}"),
    }
}

fn ident(name: &str) -> Operand {
    Operand::Ident(name.to_owned())
}

fn int(value: i64) -> Operand {
    Operand::Imm(Imm::Int { bits: value as u64, unsigned: false })
}

fn uint(bits: u64) -> Operand {
    Operand::Imm(Imm::Int { bits, unsigned: true })
}

fn address(base: &str, offset: i64, rest: Vec<Operand>) -> Operand {
    Operand::Address { base: Some(base.to_owned()), offset, rest }
}

fn absolute(offset: i64) -> Operand {
    Operand::Address { base: None, offset, rest: Vec::new() }
}

fn pair(first: Operand, second: Operand) -> Operand {
    Operand::Pair(Box::new(first), Box::new(second))
}

#[test]
fn scalar_operands() {
    let unary = |op, name| Operand::Unary { op, operand: Box::new(ident(name)) };
    let symbol = |offset| Operand::SymbolOffset { name: "sym".to_owned(), offset };
    let indexed = |offset| Operand::IndexedElement {
        name: "arr".to_owned(),
        index: "%r1".to_owned(),
        offset,
    };
    let float = |value: f64| Operand::Imm(Imm::F64(value.to_bits()));
    let element = Operand::Element { name: "arr".to_owned(), index: 3 };
    for (text, expected) in [
        ("%r1", ident("%r1")),
        ("$L__1", ident("$L__1")),
        ("_Z1k$x", ident("_Z1k$x")),
        ("%tid.x", ident("%tid.x")),
        ("%cluster_nctaid .z", ident("%cluster_nctaid.z")),
        ("%v.b3210", ident("%v.b3210")),
        ("_", Operand::Sink),
        ("!%p", unary('!', "%p")),
        ("-%r", unary('-', "%r")),
        ("~%r", unary('~', "%r")),
        ("sym+16", symbol(16)),
        ("sym + 4*2 - 1", symbol(7)),
        ("sym-4", symbol(-4)),
        ("sym+-4", symbol(-4)),
        ("arr[2+1]", element),
        ("arr[%r1]", indexed(0)),
        ("arr[%r1 - 2]", indexed(-2)),
        ("%a|%b", pair(ident("%a"), ident("%b"))),
        ("_ | %b", pair(Operand::Sink, ident("%b"))),
        ("%a|_", pair(ident("%a"), Operand::Sink)),
        ("0f3F800000", Operand::Imm(Imm::F32(0x3F80_0000))),
        ("-0f3F800000", Operand::Imm(Imm::F32(0xBF80_0000))),
        ("0d3FF0000000000000", float(1.0)),
        ("-1.5", float(-1.5)),
        (".5e1", float(5.0)),
        ("0x7fU", uint(0x7f)),
        ("-5", int(-5)),
    ] {
        assert_eq!(operand(text), expected, "{text}");
    }
}

#[test]
fn addresses_and_vectors() {
    let bare = |base, offset| address(base, offset, Vec::new());
    for (text, expected) in [
        ("[%rd1]", bare("%rd1", 0)),
        ("[%rd1+8]", bare("%rd1", 8)),
        ("[%rd1+-8]", bare("%rd1", -8)),
        ("[%rd1-8]", bare("%rd1", -8)),
        ("[%rd1 - 8 + 4]", bare("%rd1", -4)),
        ("[sym+4<<2]", bare("sym", 16)),
        ("[%rd1+(WARP_SZ*4)]", bare("%rd1", 128)),
        ("[16]", absolute(16)),
        ("[0xffffffffffffffff]", absolute(-1)),
        ("[%map, {%c0, 0}]", address("%map", 0, vec![Operand::Vector(vec![ident("%c0"), int(0)])])),
        (
            "[tex, smp, {%f1}]",
            address("tex", 0, vec![ident("smp"), Operand::Vector(vec![ident("%f1")])]),
        ),
        (
            "{%a, _, 1, %b.x}",
            Operand::Vector(vec![ident("%a"), Operand::Sink, int(1), ident("%b.x")]),
        ),
        ("{%a}|%p", pair(Operand::Vector(vec![ident("%a")]), ident("%p"))),
    ] {
        assert_eq!(operand(text), expected, "{text}");
    }
}

/// Values that ptxas 13.0 gives a 64-bit variable so initialised.
#[test]
fn constant_expressions_match_the_assembler_golden() {
    for (text, expected) in [
        ("-7 % 3", 0),
        ("-7 / 2", -3),
        ("-7U / 2", 9_223_372_036_854_775_804),
        ("(.u64)-7 / 2", 9_223_372_036_854_775_804),
        ("-8 >> 1", -4),
        ("(.u64)-8 >> 1", 9_223_372_036_854_775_804),
        ("~0 >> 1", i64::MAX),
        ("(5 & -8) >> 1", 0),
        ("(-8 | 0) >> 1", -4),
        ("(-8 ^ 0) / 2", -4),
        ("(0xfffffffffffffff8U | 0) / 2", 9_223_372_036_854_775_804),
        ("(8U ^ -1) / 2", 9_223_372_036_854_775_803),
        ("(-8 & 0xffff) / -1", -65_528),
        ("~7 / 2", 9_223_372_036_854_775_804),
        ("(.s64)(~7) / 2", -4),
        ("-1 < 1U", 0),
        ("-1 < 1", 1),
        ("-1 >= 0U", 1),
        ("!5", 0),
        ("!0", 1),
        ("1 ? 2 : 3", 2),
        ("0 ? 2 : 1 ? 4 : 5", 4),
        ("1 << 70", 64),
        ("1 << 64", 1),
        ("1 >> 70", 0),
        ("-1 >> 70", -1),
        ("1 << -1", i64::MIN),
        ("2 + 3 * 4", 14),
        ("1 << 2 + 1", 8),
        ("1 | 2 ^ 3 & 6", 1),
        ("1 && 0 || 1", 1),
        ("1 || 0 && 0", 1),
        ("7 & 3 == 3", 1),
        ("- - 5", 5),
        ("-(-9223372036854775807 - 1)", i64::MIN),
        ("9223372036854775807 + 1", i64::MIN),
        ("9223372036854775808 / 2", 4_611_686_018_427_387_904),
        ("-9223372036854775808 / -1", 0),
        ("(1 ? -8 : 1U) / 2", -4),
        ("(1 ? 8U : -1) / -1", 0),
        ("(-6 % 4) / -1", 0),
        ("(1U << 1) / -1", 0),
        ("(1 << 1U) / -1", -2),
        ("(1 < 2U) / -1", -1),
        ("(!1U - 1)/2", 0),
        ("(1U && 1U) - 2 >> 1", -1),
        ("1.5 < 2.5", 1),
        (".5 < 1.5", 1),
        ("WARP_SZ * 2", 64),
        ("(.u64)(-8) >> 2 + 1", 0x1fff_ffff_ffff_ffff),
        ("5 % 3", 2),
    ] {
        match operand(text) {
            Operand::Imm(Imm::Int { bits, .. }) => assert_eq!(bits as i64, expected, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn constant_expressions_beyond_the_assembler() {
    assert_eq!(operand("(-9223372036854775807 - 1) / -1"), int(i64::MIN));
    assert_eq!(operand("5 %3"), uint(2));
    assert_eq!(operand("7%(3)"), uint(1));
    assert_eq!(
        operand("1.0 / 3.0 - 2.0*.5"),
        Operand::Imm(Imm::F64((1.0f64 / 3.0 - 1.0).to_bits()))
    );
    assert_eq!(operand("0 ? 1.0 : 2.0"), Operand::Imm(Imm::F64(2.0f64.to_bits())));
}

#[test]
fn calls_in_all_forms() {
    let call = |returns: &[&str], target: &str, args: &[&str], prototype: Option<&str>| {
        let idents = |names: &[&str]| names.iter().map(|n| ident(n)).collect();
        Operand::Call(Box::new(Call {
            returns: idents(returns),
            target: target.to_owned(),
            args: idents(args),
            prototype: prototype.map(str::to_owned),
        }))
    };
    for (text, expected) in [
        ("call f;", call(&[], "f", &[], None)),
        ("call f, ();", call(&[], "f", &[], None)),
        ("call.uni f, (a, b);", call(&[], "f", &["a", "b"], None)),
        ("call.uni (r), f, (a);", call(&["r"], "f", &["a"], None)),
        ("call (r), f;", call(&["r"], "f", &[], None)),
        ("call (r), %rd1, (a), proto;", call(&["r"], "%rd1", &["a"], Some("proto"))),
        ("call %rd1, list;", call(&[], "%rd1", &[], Some("list"))),
        ("call.uni (r0), \n f, \n (\n a,\n b\n );", call(&["r0"], "f", &["a", "b"], None)),
    ] {
        assert_eq!(instruction(text).operands, [expected], "{text}");
    }
}

#[test]
fn statements_and_scopes() {
    let statements = body(
        ".reg .b32 %r<10>, %x;\n\
         .reg .v4 .f32 %v;\n\
         .local .align 16 .b8 frame[32];\n\
         .param .b32 p<2>;\n\
         a: b: @!%p bra a; // comment\n\
         { .reg .pred %p; a: { ret; } }\n\
         .pragma \"nounroll\", \"x\";\n\
         .loc 1 2 3, function_name $L__info+4, inlined_at 1 2 3\n\
         t: .branchtargets a, b;\n\
         c: .calltargets f, g;\n\
         q: .callprototype _ .noreturn;\n\
         w: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b8 _[4]) .abi_preserve 3;",
    );
    let summary: Vec<String> = statements
        .iter()
        .map(|statement| match statement {
            Statement::Registers(decl) => format!("{} {} {:?}", decl.vector, decl.ty, decl.names),
            Statement::Variable(v) => {
                format!("{:?} {} {:?} {:?}", v.space, v.name, v.align, v.dims)
            }
            Statement::Label { name, pos } => format!("{name} at {pos}"),
            Statement::Instruction(i) => format!("{} {:?}", i.opcode, i.guard),
            Statement::Block(b) => format!("block of {} to {}", b.statements.len(), b.end),
            Statement::Directive(d) => format!("{} {:?}", d.name, d.strings),
            Statement::Location(l) => format!("loc {} {} at {}", l.file, l.line, l.pos),
            Statement::BranchTargets { name, targets, .. }
            | Statement::CallTargets { name, targets, .. } => format!("{name} {targets:?}"),
            Statement::CallPrototype { name, returns, params, .. } => {
                format!("{name} {} {}", returns.len(), params.len())
            }
        })
        .collect();
    assert_eq!(
        summary,
        [
            "1 b32 [(\"%r\", Some(10)), (\"%x\", None)]",
            "4 f32 [(\"%v\", None)]",
            "Local frame Some(16) [Some(32)]",
            "Param p0 None []",
            "Param p1 None []",
            "a at 9:1",
            "b at 9:4",
            "bra Some(Guard { negated: true, register: \"%p\" })",
            "block of 3 to 10:30",
            "pragma [\"nounroll\", \"x\"]",
            "loc 1 2 at 12:1",
            "t [\"a\", \"b\"]",
            "c [\"f\", \"g\"]",
            "q 0 0",
            "w 1 2",
        ]
    );
}

#[test]
fn initialisers() {
    let symbol = |name: &str, offset, generic, mask| Init::Symbol {
        name: name.to_owned(),
        offset,
        generic,
        mask,
    };
    let value = |value: i64| Init::Value(Imm::Int { bits: value as u64, unsigned: false });
    let field = |name: &str, value| Init::Field { name: name.to_owned(), value: Box::new(value) };
    for (text, expected) in [
        ("3", value(3)),
        ("-1+3", value(2)),
        ("foo", symbol("foo", 0, false, None)),
        ("foo+4", symbol("foo", 4, false, None)),
        ("foo-4", symbol("foo", -4, false, None)),
        ("generic(foo)", symbol("foo", 0, true, None)),
        ("generic(foo)+8", symbol("foo", 8, true, None)),
        ("generic(foo+8)", symbol("foo", 8, true, None)),
        ("generic", symbol("generic", 0, false, None)),
        ("0xff00(foo)", symbol("foo", 0, false, Some(0xff00))),
        ("0xFF(generic(foo)+4)", symbol("foo", 4, true, Some(0xff))),
        ("{}", Init::List(Vec::new())),
        (
            "{{1, foo}, {generic(foo)}}",
            Init::List(vec![
                Init::List(vec![value(1), symbol("foo", 0, false, None)]),
                Init::List(vec![symbol("foo", 0, true, None)]),
            ]),
        ),
        (
            "{ filter_mode = nearest, force_unnormalized_coords = 1 }",
            Init::List(vec![
                field("filter_mode", symbol("nearest", 0, false, None)),
                field("force_unnormalized_coords", value(1)),
            ]),
        ),
    ] {
        let found = variables(&format!(".global .u64 x = {text};"));
        assert_eq!(found[0].init.as_ref(), Some(&expected), "{text}");
    }
}

#[test]
fn variable_attributes() {
    let found = variables(
        ".visible .global .attribute(.managed, .unified(1, 2)) .align 16 .v4 .f32 a, b[2][], c = 1;\n\
         .extern .shared .align 1024 .b8 smem[];",
    );
    assert_eq!(found.len(), 4);
    let a = &found[0];
    assert_eq!(a.attributes, [".managed", ".unified(1, 2)"]);
    assert_eq!((a.align, a.vector, a.ty.as_str()), (Some(16), 4, "f32"));
    assert_eq!(a.linkage, Linkage::Visible);
    assert_eq!(found[1].dims, [Some(2), None]);
    assert!(found[2].init.is_some());
    assert_eq!(found[3].linkage, Linkage::Extern);
    assert_eq!((found[3].space, found[3].align), (Space::Shared, Some(1024)));
}

#[test]
fn entry_heads() {
    let entry = function(
        ".visible .entry k(.param .u64 .ptr .global .align 16 a, .param .align 8 .ptr .u64 b)\n\
         .maxntid 128, 2\n.minnctapersm 2 .pragma \"nounroll\"; .maxclusterrank 8 .blocksareclusters {}",
    );
    assert!(entry.is_entry);
    let ptr = entry.params[0].ptr.as_ref().unwrap();
    assert_eq!((ptr.space, ptr.align), (Some(Space::Global), Some(16)));
    assert_eq!(entry.params[0].align, None);
    let ptr = entry.params[1].ptr.as_ref().unwrap();
    assert_eq!((ptr.space, ptr.align), (None, None));
    assert_eq!(entry.params[1].align, Some(8));
    let directives: Vec<(&str, &[u64])> =
        entry.directives.iter().map(|d| (d.name.as_str(), d.args.as_slice())).collect();
    assert_eq!(
        directives,
        [
            ("maxntid", &[128, 2][..]),
            ("minnctapersm", &[2]),
            ("pragma", &[]),
            ("maxclusterrank", &[8]),
            ("blocksareclusters", &[]),
        ]
    );
}

#[test]
fn function_heads() {
    let func = function(
        ".weak .func .attribute(.unified(1,2)) (.param .b32 r, .reg .pred q) f \
         (.reg .b32 %a, .param .align 4 .b8 p[8]) .noreturn;",
    );
    assert!(func.noreturn && func.body.is_none() && !func.is_entry);
    assert_eq!(func.linkage, Linkage::Weak);
    assert_eq!((func.returns.len(), func.params.len()), (2, 2));
    assert_eq!(func.returns[1].space, Space::Reg);
    assert_eq!(func.params[1].dims, [Some(8)]);
    assert_eq!(func.directives[0].strings, [".unified(1,2)"]);
    assert!(function(".func f;").params.is_empty());
}

#[test]
fn module_heads() {
    let parsed = module(
        ".version 8.7\n.target sm_100a, debug\n.target texmode_unified\n.address_size 32\n\
         .pragma \"x\";\n.file 1 \"a.cu\", 12, 34\n.section .debug_str { $L: .b8 1, 2\n.b64 $L+4 { } }\n\
         .alias f, g;\n",
    );
    assert_eq!(parsed.version, (8, 7));
    assert_eq!(parsed.targets, ["sm_100a", "debug", "texmode_unified"]);
    assert_eq!(parsed.address_size, 32);
    assert_eq!(parsed.directives[0].strings, ["x"]);
    assert_eq!(
        parsed.items,
        [Item::Alias {
            name: "f".to_owned(),
            target: "g".to_owned(),
            pos: Pos { line: 9, column: 1 },
        }]
    );
}
