//! Atomics: the old and the new value of each operation on a separate word per thread, and
//! commutative operations of all threads on a few words.

use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::values::{Kind, operands};

pub(super) fn probes(set: &mut Set) {
    for space in ["global", "shared"] {
        for ty in ["u32", "s32", "u64", "s64"] {
            for op in ["add", "min", "max"] {
                if (op, ty) != ("add", "s64") {
                    own(set, space, op, ty, 1);
                }
            }
        }
        for op in ["inc", "dec"] {
            own(set, space, op, "u32", 1);
        }
        for ty in ["b32", "b64"] {
            for op in ["and", "or", "xor", "exch"] {
                own(set, space, op, ty, 1);
            }
            own(set, space, "cas", ty, 2);
        }
        own(set, space, "cas", "b16", 2);
        for ty in ["f32", "f64"] {
            own(set, space, "add", ty, 1);
        }
        for ty in ["f16", "f16x2", "bf16", "bf16x2"] {
            own(set, space, "add.noftz", ty, 1);
        }
        contended(set, space);
    }
    wide(set);
    vectors(set);
}

/// Code that finds a place of the thread's own in `space`, and the operand that
/// addresses it. In global memory it is the thread's output of `bytes` bytes.
fn place(space: &str, bytes: usize) -> (String, &'static str) {
    if space == "global" {
        (format!("mad.wide.u32 %d0, %i, {bytes}, %out;"), "[%d0]")
    } else {
        let code = format!(
            ".shared .align 16 .b8 places[{}]; mov.u32 %r20, places; \
             mad.lo.u32 %r20, %t, {bytes}, %r20;",
            128 * bytes
        );
        (code, "[%r20]")
    }
}

/// An operation on a place that no other thread uses. `%a` is there before, `%b`
/// and `%c` are its operands.
fn own(set: &mut Set, space: &str, op: &str, ty: &str, count: usize) {
    let kind = Kind::of(ty);
    let bits = 8 * kind.width();
    let mut kinds = vec![kind; 1 + count];
    let operands = if count == 2 { "%b, %c" } else { "%b" };
    // A compare-and-swap that always fails shows nothing.
    let meet = if count == 2 {
        format!("and.b32 %r21, %i, 1; setp.eq.u32 %p0, %r21, 0; @%p0 mov.b{bits} %b, %a;")
    } else {
        String::new()
    };
    let name = format!("atom.{space}.{op}.{ty}");
    let (old, new, join, to) = match bits {
        16 => ("%h0", "%h1", "mov.b32 %o, {%h0, %h1};", "b32"),
        32 => ("%r0", "%r1", "mov.b64 %o, {%r0, %r1};", "b64"),
        _ => ("%d1", "%d2", "", "b64"),
    };
    let (setup, at) = place(space, Kind::of(to).width());
    let before = format!("{setup} {meet} st.{space}.b{bits} {at}, %a;");
    let action = format!("{name} {old}, {at}, {operands}; ld.{space}.b{bits} {new}, {at};");
    if bits < 64 {
        set.body(&name, &kinds, to, &format!("{before} {action} {join}"));
    } else {
        for (which, register) in [("old", old), ("new", new)] {
            let body = format!("{before} {action} mov.b64 %o, {register};");
            set.body(&format!("{name} {which}"), &kinds, ty, &body);
        }
    }
    let element = set.last().map(|probe| match ty {
        "f16" | "f16x2" => Element::F16,
        "bf16" | "bf16x2" => Element::Bf16,
        "f32" => Element::F32,
        _ => probe.element,
    });
    if let (Some(probe), Some(element)) = (set.last(), element) {
        probe.element = element;
    }
    if !matches!(op, "exch" | "cas") {
        kinds.truncate(2);
        let reduction = name.replacen("atom", "red", 1);
        let (new, join, to) = match bits {
            16 => ("%h1", "cvt.u32.u16 %o, %h1;", "b32"),
            _ => ("%o", "", ty),
        };
        let (setup, at) = place(space, Kind::of(to).width());
        let before = format!("{setup} st.{space}.b{bits} {at}, %a;");
        let body = format!("{before} {reduction} {at}, %b; ld.{space}.b{bits} {new}, {at}; {join}");
        set.body(&reduction, &kinds, to, &body);
    }
}

/// 128-bit exchange and compare-and-swap, in shared memory: an output is too small
/// a place for them.
fn wide(set: &mut Set) {
    let (setup, at) = place("shared", 16);
    for (op, operands) in [("exch", "%q2"), ("cas", "%q1, %q2")] {
        let name = format!("atom.shared.{op}.b128");
        // Every other comparison fails in the upper half.
        let body = format!(
            "{setup} and.b32 %r21, %i, 1; setp.eq.u32 %p0, %r21, 0; not.b64 %d5, %b; \
             @%p0 mov.b64 %d5, %b; st.shared.v2.b64 {at}, {{%a, %b}}; mov.b128 %q1, {{%a, %d5}}; \
             mov.b128 %q2, {{%c, %e}}; {name} %q0, {at}, {operands}; \
             mov.b128 {{%d1, %d2}}, %q0; ld.shared.v2.b64 {{%d3, %d4}}, {at}; \
             xor.b64 %d2, %d2, %d4; xor.b64 %d1, %d1, %d3; shl.b64 %d2, %d2, 1; \
             add.s64 %o, %d1, %d2;"
        );
        set.body(&name, &[Kind::Int64; 4], "b64", &body);
    }
}

/// 256 threads on 8 places: the order does not matter, what remains is checked.
fn contended(set: &mut Set, space: &str) {
    let ops = [
        ("add", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
        ("add", "u64"),
        ("min", "u64"),
        ("max", "s64"),
    ];
    for (op, ty) in ops {
        let kind = Kind::of(ty);
        let width = kind.width();
        let bits = 8 * width;
        let name = format!("red.{space}.{op}.{ty} by all threads");
        let value = if bits == 64 { "%d1" } else { "%r1" };
        let body = if space == "global" {
            format!(
                "    mad.wide.u32 %at, %i, {width}, %in0; ld.global.b{bits} {value}, [%at];\n    \
                 and.b32 %r0, %i, 7; mad.wide.u32 %at, %r0, {width}, %out; \
                 red.global.{op}.{ty} [%at], {value};\n"
            )
        } else {
            format!(
                "    .shared .align 8 .b8 places[64]; and.b32 %r0, %i, 7; mov.u32 %r2, places; \
                 mad.lo.u32 %r2, %r0, {width}, %r2;\n    \
                 setp.lt.u32 %p0, %i, 8; mad.wide.u32 %at, %r0, {width}, %out; \
                 ld.global.b{bits} {value}, [%at]; @%p0 st.shared.b{bits} [%r2], {value}; \
                 bar.sync 0;\n    \
                 mad.wide.u32 %at, %i, {width}, %in0; ld.global.b{bits} {value}, [%at]; \
                 red.shared.{op}.{ty} [%r2], {value}; bar.sync 0;\n    \
                 @!%p0 bra $done; ld.shared.b{bits} {value}, [%r2]; \
                 mad.wide.u32 %at, %r0, {width}, %out; st.global.b{bits} [%at], {value}; $done:\n"
            )
        };
        let columns = operands(&[kind, kind], 256, 99);
        let bytes = |values: &[u64]| -> Vec<u8> {
            values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)).collect()
        };
        let input = Input { width, bytes: bytes(&columns[0]) };
        let output = bytes(&columns[1][..8]);
        set.kernel(&name, [1, 256], vec![input], output, Element::Bits(width), &body);
    }
}

/// `.v2` and `.v4` forms, global memory only (`sm_90`).
fn vectors(set: &mut Set) {
    let kinds = [Kind::F32; 4];
    for (which, register) in [("old", "{%r0, %r1}"), ("new", "{%r2, %r3}")] {
        let body = format!(
            "mad.wide.u32 %d0, %i, 8, %out; st.global.v2.b32 [%d0], {{%a, %e}}; \
             atom.global.v2.f32.add {{%r0, %r1}}, [%d0], {{%b, %c}}; \
             ld.global.v2.b32 {{%r2, %r3}}, [%d0]; mov.b64 %o, {register};"
        );
        set.body(&format!("atom.global.v2.f32.add {which}"), &kinds, "b64", &body);
        if let Some(probe) = set.last() {
            probe.element = Element::F32;
        }
    }
    for (ty, half) in [("f16x2", Element::F16), ("bf16x2", Element::Bf16)] {
        for op in ["add", "min", "max"] {
            let name = format!("red.global.v2.{ty}.{op}.noftz");
            let body = format!(
                "mad.wide.u32 %d0, %i, 8, %out; st.global.v2.b32 [%d0], {{%a, %e}}; \
                 {name} [%d0], {{%b, %c}}; ld.global.b64 %o, [%d0];"
            );
            set.body(&name, &[Kind::of(ty); 4], "b64", &body);
            if let Some(probe) = set.last() {
                probe.element = half;
            }
        }
    }
}
