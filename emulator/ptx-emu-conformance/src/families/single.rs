//! f32 arithmetic: every rounding, `.ftz`, `.sat`, `.NaN`, `.xorsign.abs`.

use super::spellings;
use crate::builder::Set;
use crate::values::{Kind, SplitMix};

/// Elements of the instructions that everything rests on.
const MORE: usize = 1024;

pub(super) fn probes(set: &mut Set) {
    const ROUNDINGS: [&str; 4] = [".rn", ".rz", ".rm", ".rp"];
    let f = Kind::F32;
    for name in
        spellings(&[&["add", "sub", "mul"], &ROUNDINGS, &["", ".ftz"], &["", ".sat"], &[".f32"]])
    {
        set.counted(&name, &[f, f], "f32", &format!("{name} %o, %a, %b;"), MORE);
    }
    for name in spellings(&[&["fma"], &ROUNDINGS, &["", ".ftz"], &["", ".sat"], &[".f32"]]) {
        set.counted(&name, &[f, f, f], "f32", &format!("{name} %o, %a, %b, %c;"), MORE);
    }
    for name in spellings(&[&["div"], &ROUNDINGS, &["", ".ftz"], &[".f32"]]) {
        set.counted(&name, &[f, f], "f32", &format!("{name} %o, %a, %b;"), MORE);
    }
    for name in spellings(&[&["rcp", "sqrt"], &ROUNDINGS, &["", ".ftz"], &[".f32"]]) {
        set.counted(&name, &[f], "f32", &format!("{name} %o, %a;"), MORE);
    }
    for name in spellings(&[
        &["min", "max"],
        &["", ".ftz"],
        &["", ".NaN"],
        &["", ".xorsign.abs"],
        &[".f32"],
    ]) {
        set.simple(&name, &["f32", "f32"], "f32");
    }
    for name in spellings(&[&["abs", "neg"], &["", ".ftz"], &[".f32"]]) {
        set.simple(&name, &["f32"], "f32");
    }
    near_underflow(set);
    set.simple("copysign.f32", &["f32", "f32"], "f32");
    for test in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
        let body = format!("testp.{test}.f32 %p0, %a; selp.b32 %o, 1, 0, %p0;");
        set.body(&format!("testp.{test}.f32"), &[Kind::F32], "b32", &body);
    }
}

/// Results just above and below the least normal number, which decide when `.ftz`
/// takes effect: before rounding, after it, or after it with unbounded exponents.
fn near_underflow(set: &mut Set) {
    const LEAST: f64 = f32::MIN_POSITIVE as f64;
    let mut rng = SplitMix::new(126);
    let mut columns: [Vec<u64>; 7] = Default::default();
    for _ in 0..512 {
        let random = rng.next();
        let significand = 1.0 + (random >> 41) as f64 / (1 << 23) as f64;
        let step = (random & 7) as i32 - 3;
        let near = |x: f64| u64::from((x as f32).to_bits().wrapping_add_signed(step));
        let a = significand as f32 * 2f32.powi(-63);
        let bits = |x: f32| u64::from(x.to_bits());
        let least_and = |n: u64| bits(-f32::MIN_POSITIVE) + n;
        let values = [
            // a * b
            bits(a),
            near(LEAST / f64::from(a)),
            // a * b + c
            bits(a),
            near(2.0 * LEAST / f64::from(a)),
            least_and(random >> 8 & 3),
            // a / b
            near(LEAST * significand).max(f32::MIN_POSITIVE.to_bits().into()),
            bits(significand as f32),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let f = Kind::F32;
    for rounding in ["rn", "rz", "rm", "rp"] {
        for ftz in ["", ".ftz"] {
            for (op, kinds, from) in [
                ("mul", &[f; 2][..], &columns[..2]),
                ("fma", &[f; 3], &columns[2..5]),
                ("div", &[f; 2], &columns[5..]),
            ] {
                let operands = if kinds.len() == 3 { "%a, %b, %c" } else { "%a, %b" };
                let name = format!("{op}.{rounding}{ftz}.f32 near underflow");
                let body = format!("{op}.{rounding}{ftz}.f32 %o, {operands};");
                set.values(&name, kinds, from, "f32", &body);
            }
        }
    }
}
