//! Instructions whose results PTX does not specify exactly. The hardware's results are
//! recorded, and the emulator's correctly rounded results must be within the documented error
//! of them.

use super::spellings;
use crate::builder::Set;
use crate::compare::Comparison;
use crate::values::{Kind, operands};

/// Elements of a probe.
const COUNT: usize = 2048;

pub(super) fn probes(set: &mut Set) {
    // Errors of PTX ISA 9.7.3.8 to 9.7.3.22: relative, absolute.
    let ulps = |n: f64| (n * 2f64.powi(-23), 0.0);
    for (op, (relative, absolute), reason) in [
        ("rcp", ulps(1.0), "at most 1 ulp (PTX ISA 9.7.3.13)"),
        ("sqrt", ulps(1.0), "relative error at most 2^-23 (9.7.3.15)"),
        ("rsqrt", (2f64.powf(-22.9), 0.0), "relative error at most 2^-22.9 (9.7.3.16)"),
        ("ex2", ulps(2.0), "at most 2 ulp (9.7.3.21)"),
        ("lg2", (2f64.powi(-22), 2f64.powi(-22)), "at most 2^-22, absolute near 1 (9.7.3.20)"),
    ] {
        for name in spellings(&[&[op], &[".approx"], &["", ".ftz"], &[".f32"]]) {
            unary(set, &name, "f32", Comparison::Close { relative, absolute, reason });
        }
    }
    for name in spellings(&[&["sin", "cos"], &[".approx"], &["", ".ftz"], &[".f32"]]) {
        turned(set, &name);
    }
    let reason = "relative error at most 2^-11 (9.7.3.22)";
    let close = Comparison::Close { relative: 2f64.powi(-11), absolute: 0.0, reason };
    unary(set, "tanh.approx.f32", "f32", close);
    // Operands whose quotient has the documented error: |b| from 2^-126 to 2^126.
    let reason = "at most 2 ulp (9.7.3.8)";
    let (relative, absolute) = ulps(2.0);
    let close = Comparison::Close { relative, absolute, reason };
    for name in spellings(&[&["div.approx", "div.full"], &["", ".ftz"], &[".f32"]]) {
        let body = format!("{name} %o, %a, %b;");
        set.counted(&name, &[Kind::F32, Kind::F32], "f32", &body, COUNT);
        tolerate(set, close);
    }
    halves(set);
    let reason = "relative error at most 2^-20 of the upper half (9.7.3.14, 9.7.3.17)";
    for name in ["rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"] {
        unary(
            set,
            name,
            "f64",
            Comparison::Close { relative: 2f64.powi(-20), absolute: 0.0, reason },
        );
    }
    let reason = "no error is documented (9.7.3.16); twice that of a division and a root";
    let close = Comparison::Close { relative: 2f64.powi(-52), absolute: 0.0, reason };
    unary(set, "rsqrt.approx.f64", "f64", close);
}

fn tolerate(set: &mut Set, comparison: Comparison) {
    if let Some(probe) = set.last() {
        probe.comparison = comparison;
    }
}

fn unary(set: &mut Set, name: &str, ty: &str, comparison: Comparison) {
    set.counted(name, &[Kind::of(ty)], ty, &format!("{name} %o, %a;"), COUNT);
    tolerate(set, comparison);
}

/// `sin` and `cos`: the documented error holds from -pi to pi, so arguments there.
fn turned(set: &mut Set, name: &str) {
    let mut column = operands(&[Kind::F32], COUNT, 7).swap_remove(0);
    for bits in &mut column {
        let x = f32::from_bits(*bits as u32);
        if x.is_finite() && x.abs() > std::f32::consts::PI {
            *bits = (x % std::f32::consts::PI).to_bits().into();
        }
    }
    set.values(name, &[Kind::F32], &[column], "f32", &format!("{name} %o, %a;"));
    let reason = "absolute error at most 2^-20.5 from -pi to pi (9.7.3.18, 9.7.3.19)";
    let absolute = 2f64.powf(-20.5);
    tolerate(set, Comparison::Close { relative: 0.0, absolute, reason });
}

/// `ex2` and `tanh` of half types: every f16 and every bf16.
fn halves(set: &mut Set) {
    let all = |low: u64| -> Vec<u64> { (0..8192).map(|n| n * 8 + low).collect() };
    for (op, ty, bits, reason) in [
        ("ex2.approx", "f16", 9.9, "relative error at most 2^-9.9 (9.7.4.10)"),
        ("ex2.approx.ftz", "bf16", 7.0, "relative error at most 2^-7 (9.7.4.10)"),
        ("tanh.approx", "f16", 10.987, "absolute error at most 2^-10.987 (9.7.4.9)"),
        ("tanh.approx", "bf16", 8.0, "absolute error at most 2^-8 (9.7.4.9)"),
    ] {
        let error = 2f64.powf(-bits);
        let name = format!("{op}.{ty}");
        let body = format!("{name} %o, %a;");
        set.values(&name, &[Kind::of(ty)], &[all(3)], ty, &body);
        tolerate(set, Comparison::Close { relative: error, absolute: 0.0, reason });
        let pair = format!("{ty}x2");
        let name = format!("{op}.{pair}");
        set.counted(&name, &[Kind::of(&pair)], &pair, &format!("{name} %o, %a;"), COUNT);
        tolerate(set, Comparison::Close { relative: error, absolute: 0.0, reason });
    }
}
