//! `cvt` between all scalar types, with every rounding that `sm_90a` has.

use super::spellings;
use crate::builder::Set;
use crate::values::Kind;

const INTEGERS: [&str; 8] = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
const FLOATS: [&str; 4] = ["f16", "bf16", "f32", "f64"];

/// Elements of conversions that have few cases.
const FEW: usize = 256;

pub(super) fn probes(set: &mut Set) {
    for to in INTEGERS {
        for from in INTEGERS.into_iter().filter(|from| *from != to) {
            add(set, "cvt", to, from, FEW);
            if !holds(to, from) {
                add(set, "cvt.sat", to, from, FEW);
            }
        }
        for from in FLOATS {
            // bf16 has no conversions from and to bytes, and none that saturate.
            if from == "bf16" && to.ends_with('8') {
                continue;
            }
            let ftz: &[&str] = if from == "f32" { &["", ".ftz"] } else { &[""] };
            for start in spellings(&[&["cvt"], &[".rni", ".rzi", ".rmi", ".rpi"], ftz]) {
                add(set, &start, to, from, FEW);
            }
            for rounding in ["rn", "rz", "rm", "rp"] {
                add(set, &format!("cvt.{rounding}"), from, to, FEW);
            }
            if from != "bf16" {
                add(set, "cvt.rzi.sat", to, from, FEW);
                add(set, "cvt.rn.sat", from, to, FEW);
            }
        }
    }
    floats(set);
    near_underflow(set);
}

/// f64 just above and below the least normal f32.
fn near_underflow(set: &mut Set) {
    let least = f64::from(f32::MIN_POSITIVE);
    let step = least / (1u64 << 28) as f64;
    let column: Vec<u64> = (-192..64).map(|n| (least + f64::from(n) * step).to_bits()).collect();
    for rounding in ["rn", "rz", "rm", "rp"] {
        for ftz in ["", ".ftz"] {
            let instruction = format!("cvt.{rounding}{ftz}.f32.f64");
            let name = format!("{instruction} near underflow");
            let body = format!("{instruction} %o, %a;");
            set.values(&name, &[Kind::F64], std::slice::from_ref(&column), "f32", &body);
        }
    }
}

/// Whether every `from` is a `to`: there is no `.sat` then.
fn holds(to: &str, from: &str) -> bool {
    let split = |ty: &str| (ty.starts_with('s'), ty[1..].parse::<u32>().unwrap_or(0));
    let ((to_signed, to_bits), (from_signed, from_bits)) = (split(to), split(from));
    to_bits > from_bits && (to_signed || !from_signed)
}

fn floats(set: &mut Set) {
    const ROUNDINGS: [&str; 4] = [".rn", ".rz", ".rm", ".rp"];
    const INTEGRAL: [&str; 4] = [".rni", ".rzi", ".rmi", ".rpi"];
    // To the same type: an integer, or only flushed and clamped.
    for ty in FLOATS {
        let ftz: &[&str] = if ty == "f32" { &["", ".ftz"] } else { &[""] };
        let sat: &[&str] = if ty == "bf16" { &[""] } else { &["", ".sat"] };
        for start in spellings(&[&["cvt"], &INTEGRAL, ftz, sat]) {
            add(set, &start, ty, ty, 512);
        }
        for start in spellings(&[&["cvt"], ftz, sat]) {
            add(set, &start, ty, ty, 512);
        }
    }
    // To a wider type.
    for start in spellings(&[&["cvt"], &["", ".ftz"], &["", ".sat"]]) {
        add(set, &start, "f32", "f16", 512);
        add(set, &start, "f64", "f32", 512);
    }
    for start in ["cvt", "cvt.sat"] {
        add(set, start, "f64", "f16", 512);
    }
    add(set, "cvt", "f32", "bf16", 512);
    add(set, "cvt", "f64", "bf16", 512);
    // To a narrower type.
    for start in spellings(&[&["cvt"], &ROUNDINGS, &["", ".ftz"], &["", ".sat"]]) {
        add(set, &start, "f32", "f64", 512);
        add(set, &start, "f16", "f32", 512);
    }
    for start in spellings(&[&["cvt"], &ROUNDINGS, &["", ".sat"]]) {
        add(set, &start, "f16", "f64", 512);
    }
    for start in spellings(&[&["cvt"], &ROUNDINGS]) {
        add(set, &start, "bf16", "f32", 512);
        add(set, &start, "bf16", "f64", 512);
    }
    for start in spellings(&[&["cvt"], &[".rn", ".rz"], &["", ".relu"], &["", ".satfinite"]]) {
        if start.contains("relu") || start.contains("satfinite") {
            add(set, &start, "f16", "f32", 512);
            add(set, &start, "bf16", "f32", 512);
        }
    }
    for start in spellings(&[&["cvt"], &ROUNDINGS]) {
        add(set, &start, "bf16", "f16", 512);
        add(set, &start, "f16", "bf16", 512);
    }
}

/// Types of 8 bits have no registers: sources are in 16 bits, results
/// in 32, which shows how they are extended.
fn add(set: &mut Set, start: &str, to: &str, from: &str, count: usize) {
    let name = format!("{start}.{to}.{from}");
    let kind = if from.ends_with('8') { Kind::Int16 } else { Kind::of(from) };
    let out = if to.ends_with('8') { "b32" } else { to };
    set.counted(&name, &[kind], out, &format!("{name} %o, %a;"), count);
}
