//! f64 arithmetic: every rounding.

use super::spellings;
use crate::builder::Set;
use crate::values::Kind;

pub(super) fn probes(set: &mut Set) {
    const ROUNDINGS: [&str; 4] = [".rn", ".rz", ".rm", ".rp"];
    for name in spellings(&[&["add", "sub", "mul", "div"], &ROUNDINGS, &[".f64"]]) {
        set.simple(&name, &["f64", "f64"], "f64");
    }
    for name in spellings(&[&["fma"], &ROUNDINGS, &[".f64"]]) {
        set.simple(&name, &["f64", "f64", "f64"], "f64");
    }
    for name in spellings(&[&["rcp", "sqrt"], &ROUNDINGS, &[".f64"]]) {
        set.simple(&name, &["f64"], "f64");
    }
    for name in ["min.f64", "max.f64", "copysign.f64"] {
        set.simple(name, &["f64", "f64"], "f64");
    }
    for name in ["abs.f64", "neg.f64"] {
        set.simple(name, &["f64"], "f64");
    }
    nans(set);
    for test in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
        let body = format!("testp.{test}.f64 %p0, %a; selp.b32 %o, 1, 0, %p0;");
        set.body(&format!("testp.{test}.f64"), &[Kind::F64], "b32", &body);
    }
}

/// The choice among several NaN operands.
fn nans(set: &mut Set) {
    const VALUES: [u64; 8] = [
        0x3ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0xfff8_0000_0000_0001,
        0x7ff0_0000_0000_0002,
        0xfff4_0000_0000_0003,
        0x7ff8_1234_5678_9abc,
        0xfff0_0000_0000_0000,
        0x0000_0000_0000_0000,
    ];
    let count = VALUES.len();
    let column = |step: usize| -> Vec<u64> {
        (0..count * count * count).map(|row| VALUES[row / step % count]).collect()
    };
    let columns = [column(1), column(count), column(count * count)];
    let f = Kind::F64;
    for op in ["add.rn", "sub.rn", "mul.rn", "div.rn", "min", "max"] {
        let body = format!("{op}.f64 %o, %a, %b;");
        set.values(&format!("{op}.f64 of NaNs"), &[f; 2], &columns[..2], "f64", &body);
    }
    set.values("fma.rn.f64 of NaNs", &[f; 3], &columns, "f64", "fma.rn.f64 %o, %a, %b, %c;");
    for space in ["global", "shared"] {
        let (setup, at) = match space {
            "global" => ("mad.wide.u32 %d0, %i, 8, %out;", "[%d0]"),
            _ => (
                ".shared .align 8 .b8 places[1024]; mov.u32 %r20, places; \
                 mad.lo.u32 %r20, %t, 8, %r20;",
                "[%r20]",
            ),
        };
        let body = format!(
            "{setup} st.{space}.b64 {at}, %a; red.{space}.add.f64 {at}, %b; \
             ld.{space}.b64 %o, {at};"
        );
        let name = format!("red.{space}.add.f64 of NaNs");
        set.values(&name, &[f; 2], &columns[..2], "f64", &body);
    }
}
