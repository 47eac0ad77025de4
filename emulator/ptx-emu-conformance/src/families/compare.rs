//! Comparisons, with many NaN cases. A probe applies every operator and collects the results,
//! one bit per operator.

use crate::builder::Set;
use crate::values::Kind;
use std::fmt::Write as _;

const FLOAT: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
const SIGNED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 10] = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];

pub(super) fn probes(set: &mut Set) {
    for ty in ["f32", "ftz.f32", "f64", "f16", "ftz.f16", "bf16"] {
        let short = ty.rsplit('.').next().unwrap_or(ty);
        let kinds = [Kind::of(short); 2];
        setp(set, ty, &kinds, &FLOAT);
        sets(set, ty, &kinds);
    }
    for ty in ["f16x2", "ftz.f16x2", "bf16x2"] {
        packed(set, ty);
    }
    for ty in ["u16", "u32", "u64"] {
        setp(set, ty, &[Kind::of(ty); 2], &UNSIGNED);
    }
    for ty in ["s16", "s32", "s64"] {
        setp(set, ty, &[Kind::of(ty); 2], &SIGNED);
    }
    for ty in ["b16", "b32", "b64"] {
        setp(set, ty, &[Kind::of(ty); 2], &["eq", "ne"]);
    }
    for ty in ["b16", "b32", "b64", "f32", "f64"] {
        let body = format!("setp.lt.s32 %p0, %c, 0; selp.{ty} %o, %a, %b, %p0;");
        let kinds = [Kind::of(ty), Kind::of(ty), Kind::Int32];
        set.body(&format!("selp.{ty}"), &kinds, ty, &body);
        for by in ["s32", "f32", "ftz.f32"] {
            let name = match by.strip_prefix("ftz.") {
                Some(by) => format!("slct.ftz.{ty}.{by}"),
                None => format!("slct.{ty}.{by}"),
            };
            let short = by.rsplit('.').next().unwrap_or(by);
            set.kinds(&name, &[Kind::of(ty), Kind::of(ty), Kind::of(short)], ty);
        }
    }
}

/// All operators, then both results joined with a predicate by each of `.and`,
/// `.or`, `.xor`.
fn setp(set: &mut Set, ty: &str, kinds: &[Kind; 2], operators: &[&str]) {
    let mut body = String::from("mov.b32 %o, 0;");
    let mut bit = 0;
    let mut note = |body: &mut String, predicate: &str| {
        let _ =
            write!(body, " selp.b32 %r0, {:#x}, 0, {predicate}; or.b32 %o, %o, %r0;", 1u32 << bit);
        bit += 1;
    };
    for operator in operators {
        let _ = write!(body, " setp.{operator}.{ty} %p0, %a, %b;");
        note(&mut body, "%p0");
    }
    // Halves have no second result.
    let half = kinds[0] == Kind::F16 || kinds[0] == Kind::Bf16;
    body.push_str(" and.b32 %r1, %i, 1; setp.ne.u32 %p3, %r1, 0;");
    for (join, not) in [("and", ""), ("or", "!"), ("xor", "")] {
        let operator = operators[operators.len() / 2];
        let results = if half { "%p1" } else { "%p1|%p2" };
        let _ = write!(body, " setp.{operator}.{join}.{ty} {results}, %a, %b, {not}%p3;");
        note(&mut body, "%p1");
        if !half {
            note(&mut body, "%p2");
        }
    }
    set.body(&format!("setp.{ty}"), kinds, "b32", &body);
}

/// `set` with results of each type.
fn sets(set: &mut Set, ty: &str, kinds: &[Kind; 2]) {
    let (ftz, short) = match ty.strip_prefix("ftz.") {
        Some(short) => (".ftz", short),
        None => ("", ty),
    };
    for to in ["u32", "s32", "f32"] {
        if to == "f32" && short.ends_with("f16") {
            continue;
        }
        for operator in ["lt", "geu", "nan"] {
            set.kinds(&format!("set.{operator}{ftz}.{to}.{short}"), kinds, to);
        }
    }
    if short == "f16" || short == "bf16" {
        for operator in ["le", "neu"] {
            set.kinds(&format!("set.{operator}{ftz}.{short}.{short}"), kinds, short);
        }
    }
}

fn packed(set: &mut Set, ty: &str) {
    let (ftz, short) = match ty.strip_prefix("ftz.") {
        Some(short) => (".ftz", short),
        None => ("", ty),
    };
    let kinds = [Kind::of(short); 2];
    let mut body = String::from("mov.b32 %o, 0;");
    for (bit, operator) in FLOAT.iter().enumerate() {
        let _ = write!(
            body,
            " setp.{operator}.{ty} %p0|%p1, %a, %b; selp.b32 %r0, {:#x}, 0, %p0; \
             selp.b32 %r1, {:#x}, 0, %p1; or.b32 %r0, %r0, %r1; or.b32 %o, %o, %r0;",
            1u32 << bit,
            1u32 << (bit + 16)
        );
    }
    set.body(&format!("setp.{ty}"), &kinds, "b32", &body);
    for operator in ["lt", "geu", "nan"] {
        set.kinds(&format!("set.{operator}{ftz}.{short}.{short}"), &kinds, short);
    }
}
