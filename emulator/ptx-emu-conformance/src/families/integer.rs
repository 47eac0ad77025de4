//! Integer arithmetic: division by zero and of the least number, products' upper
//! halves, saturation, carries.

use crate::builder::Set;
use crate::values::Kind;

const ALL: [&str; 6] = ["u16", "s16", "u32", "s32", "u64", "s64"];

pub(super) fn probes(set: &mut Set) {
    for ty in ALL {
        for op in ["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"] {
            set.simple(&format!("{op}.{ty}"), &[ty, ty], ty);
        }
        for op in ["mad.lo", "mad.hi"] {
            set.simple(&format!("{op}.{ty}"), &[ty, ty, ty], ty);
        }
        // The third operand of `sad` is unsigned and of the same width.
        set.simple(&format!("sad.{ty}"), &[ty, ty, ty], ty);
    }
    for ty in ["s16", "s32", "s64"] {
        for op in ["abs", "neg"] {
            set.simple(&format!("{op}.{ty}"), &[ty], ty);
        }
    }
    for (ty, wide) in [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")] {
        set.simple(&format!("mul.wide.{ty}"), &[ty, ty], wide);
        set.simple(&format!("mad.wide.{ty}"), &[ty, ty, wide], wide);
    }
    for instruction in ["add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32"] {
        set.simple(instruction, &["s32", "s32"], "s32");
    }
    for ty in ["u16x2", "s16x2"] {
        for op in ["add", "min", "max"] {
            set.simple(&format!("{op}.{ty}"), &["b32", "b32"], "b32");
        }
    }
    for op in ["min.relu.s16x2", "max.relu.s16x2"] {
        set.simple(op, &["b32", "b32"], "b32");
    }
    for ty in ["u32", "s32"] {
        for half in ["lo", "hi"] {
            set.simple(&format!("mul24.{half}.{ty}"), &[ty, ty], ty);
            set.simple(&format!("mad24.{half}.{ty}"), &[ty, ty, ty], ty);
        }
        for other in ["u32", "s32"] {
            set.simple(&format!("dp4a.{ty}.{other}"), &["b32", "b32", "b32"], "b32");
            for half in ["lo", "hi"] {
                let instruction = format!("dp2a.{half}.{ty}.{other}");
                set.simple(&instruction, &["b32", "b32", "b32"], "b32");
            }
        }
    }
    set.simple("mad.hi.sat.s32", &["s32", "s32", "s32"], "s32");
    set.simple("mad24.hi.sat.s32", &["s32", "s32", "s32"], "s32");
    carries(set);
}

/// Chains through `CC.CF`, as a 64-bit result of 32-bit halves, and as the carry
/// itself.
fn carries(set: &mut Set) {
    let split = "mov.b64 {%r0, %r1}, %a; mov.b64 {%r2, %r3}, %b;";
    let wide = [Kind::Int64, Kind::Int64];
    for op in ["add", "sub"] {
        for ty in ["u32", "s32"] {
            let body = format!(
                "{split} {op}.cc.{ty} %r4, %r0, %r2; {op}c.{ty} %r5, %r1, %r3; \
                 mov.b64 %o, {{%r4, %r5}};"
            );
            set.body(&format!("{op}.cc then {op}c {ty}"), &wide, "b64", &body);
            let body = format!(
                "{split} {op}.cc.{ty} %r4, %r0, %r2; {op}c.cc.{ty} %r5, %r1, %r3; \
                 {op}c.{ty} %r6, 0, 0; xor.b32 %r4, %r4, %r5; mov.b64 %o, {{%r4, %r6}};"
            );
            set.body(&format!("{op}.cc, {op}c.cc then {op}c {ty}"), &wide, "b64", &body);
        }
        for ty in ["u64", "s64"] {
            let body = format!(
                "{op}.cc.{ty} %d0, %a, %b; {op}c.{ty} %d1, 0, 0; \
                 shl.b64 %d1, %d1, 1; xor.b64 %o, %d0, %d1;"
            );
            set.body(&format!("{op}.cc then {op}c {ty}"), &wide, "b64", &body);
        }
    }
    let kinds = [Kind::Int32, Kind::Int32, Kind::Int64];
    for ty in ["u32", "s32"] {
        let body = format!(
            "mov.b64 {{%r0, %r1}}, %c; mad.lo.cc.{ty} %r2, %a, %b, %r0; \
             madc.hi.{ty} %r3, %a, %b, %r1; mov.b64 %o, {{%r2, %r3}};"
        );
        set.body(&format!("mad.lo.cc then madc.hi {ty}"), &kinds, "b64", &body);
        let body = format!(
            "mov.b64 {{%r0, %r1}}, %c; mad.hi.cc.{ty} %r2, %a, %b, %r0; \
             madc.lo.cc.{ty} %r3, %a, %b, %r1; addc.u32 %r4, 0, 0; \
             xor.b32 %r2, %r2, %r4; mov.b64 %o, {{%r2, %r3}};"
        );
        set.body(&format!("mad.hi.cc then madc.lo.cc {ty}"), &kinds, "b64", &body);
    }
}
