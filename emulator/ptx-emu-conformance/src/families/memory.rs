//! Loads and stores of every width and vector length in every space, extension to
//! wider registers, cache operators, generic addresses, constants.

use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::values::{Kind, SplitMix};

const THREADS: u32 = 128;

pub(super) fn probes(set: &mut Set) {
    for space in ["global", "shared", "local", "generic"] {
        for width in [8, 16, 32, 64] {
            for count in [1, 2, 4] {
                if width * count <= 128 {
                    round_trip(set, space, width, count);
                }
            }
        }
    }
    for operator in ["ca", "cg", "cs", "lu", "cv", "nc", "volatile", "relaxed.gpu", "acquire.sys"] {
        loads(set, operator);
    }
    for operator in ["wb", "cg", "cs", "wt", "volatile", "relaxed.cta", "release.gpu"] {
        let body = format!(
            "mad.wide.u32 %at, %i, 4, %out; {} [%at], %a; ld.global.b32 %o, [%at]; \
             xor.b32 %o, %o, -1;",
            modified("st", operator)
        );
        set.body(&format!("st.global.{operator}"), &[Kind::Int32], "b32", &body);
    }
    for ty in ["u8", "s8", "u16", "s16", "b8", "b16"] {
        for (register, to) in [("%o", "b32"), ("%o", "b64")] {
            let body = format!("mad.wide.u32 %at, %i, 4, %in0; ld.global.{ty} {register}, [%at];");
            set.body(&format!("ld.global.{ty} to {to}"), &[Kind::Int32], to, &body);
        }
    }
    for ty in ["u32", "s32"] {
        let body = format!("mad.wide.u32 %at, %i, 4, %in0; ld.global.{ty} %o, [%at];");
        set.body(&format!("ld.global.{ty} to b64"), &[Kind::Int32], "b64", &body);
    }
    for ty in ["u8", "b16"] {
        let body = format!(
            "mad.wide.u32 %at, %i, 4, %out; st.global.b32 [%at], -1; st.global.{ty} [%at+1], %a; \
             ld.global.b32 %o, [%at];"
        );
        if ty == "u8" {
            set.body("st.global.u8 into a word", &[Kind::Int32], "b32", &body);
        } else {
            let body = body.replace("%at+1", "%at+2");
            set.body("st.global.b16 into a word", &[Kind::Int16], "b32", &body);
        }
    }
    constants(set);
}

/// `ld.global.ca.b32`, but `ld.volatile.global.b32`.
fn modified(opcode: &str, operator: &str) -> String {
    match operator {
        "volatile" | "relaxed.gpu" | "relaxed.cta" | "acquire.sys" | "release.gpu" => {
            format!("{opcode}.{operator}.global.b32")
        }
        _ => format!("{opcode}.global.{operator}.b32"),
    }
}

fn loads(set: &mut Set, operator: &str) {
    let load = modified("ld", operator);
    let body = format!("xor.b32 %r0, %i, 37; mad.wide.u32 %at, %r0, 4, %in0; {load} %o, [%at];");
    set.body(&format!("ld.global.{operator}"), &[Kind::Int32], "b32", &body);
}

/// Bytes from global memory through `space` and back, by vectors.
fn round_trip(set: &mut Set, space: &str, width: usize, count: usize) {
    let bytes = width / 8 * count;
    let prefix = match width {
        8 | 16 => "%h",
        32 => "%r1",
        _ => "%d1",
    };
    let registers: Vec<String> = (0..count).map(|n| format!("{prefix}{n}")).collect();
    let (list, vector) = match count {
        1 => (registers[0].clone(), String::new()),
        _ => (format!("{{{}}}", registers.join(", ")), format!(".v{count}")),
    };
    let ty = format!("{vector}.b{width}");
    let source = format!("    mad.wide.u32 %at, %i, {bytes}, %in0;\n");
    let target = format!("    mad.wide.u32 %at, %i, {bytes}, %out;\n");
    let middle = match space {
        "shared" => format!(
            "    .shared .align 16 .b8 room[{}]; mov.u32 %r0, room; \
             mad.lo.u32 %r0, %t, {bytes}, %r0; st.shared{ty} [%r0], {list}; bar.sync 0;\n    \
             xor.b32 %t, %t, 33; mov.u32 %r0, room; mad.lo.u32 %r0, %t, {bytes}, %r0; \
             ld.shared{ty} {list}, [%r0];\n",
            bytes * THREADS as usize
        ),
        // The offset comes from memory's contents, so that the frame is used.
        "local" => format!(
            "    .local .align 16 .b8 room[64]; mov.u32 %r0, room; and.b32 %r1, %i, 3; \
             mad.lo.u32 %r0, %r1, 16, %r0; st.local{ty} [%r0], {list}; ld.local{ty} {list}, [%r0];\n"
        ),
        "generic" => format!(
            "    .shared .align 16 .b8 room[{}]; mov.u32 %r0, room; \
             mad.lo.u32 %r0, %t, {bytes}, %r0; cvt.u64.u32 %d0, %r0; \
             cvta.shared.u64 %d0, %d0; st{ty} [%d0], {list}; bar.sync 0;\n    \
             isspacep.shared %p0, %d0; @%p0 ld{ty} {list}, [%d0];\n",
            bytes * THREADS as usize
        ),
        _ => String::new(),
    };
    let (load, store) = match space {
        "generic" => ("ld", "st"),
        _ => ("ld.global", "st.global"),
    };
    let code = format!(
        "{source}    {load}{ty} {list}, [%at];\n{middle}{target}    {store}{ty} [%at], {list};\n"
    );
    let length = bytes * THREADS as usize;
    let mut rng = SplitMix::new((width * 8 + count) as u64);
    let random: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
    set.kernel(
        &format!("{space}{ty}"),
        [1, THREADS],
        vec![Input { width: width / 8, bytes: random }],
        vec![0; length],
        Element::Bits(width / 8),
        &code,
    );
}

/// Initialised variables, read at addresses that the compiler does not know.
fn constants(set: &mut Set) {
    for space in ["const", "global"] {
        let table = format!("table_{space}");
        let code = format!(
            "    mov.u64 %d0, {table}; and.b32 %r0, %i, 15; mad.wide.u32 %d0, %r0, 4, %d0; \
             ld.{space}.u32 %r1, [%d0]; mad.wide.u32 %at, %i, 4, %out; st.global.u32 [%at], %r1;\n"
        );
        let name = format!("initialised .{space}");
        set.kernel(&name, [1, THREADS], Vec::new(), vec![0; 512], Element::Bits(4), &code);
        if let Some(probe) = set.last() {
            let variables = format!(
                ".{space} .align 16 .u32 {table}[16] = {{1, 0x80000000, -1, 'A', 07, 0b101, \
                 4294967295, 1 << 20, 3 + 4 * 5, (7 - 9) & 0xff, ~0, !5, 100 / 7, 100 % 7}};\n"
            );
            let variables = variables.replace("'A', ", "65, ");
            probe.kernel.insert_str(0, &variables);
        }
    }
}
