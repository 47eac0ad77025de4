//! f16, f16x2, bf16, bf16x2 arithmetic with their modifiers.

use super::spellings;
use crate::builder::Set;
use crate::values::{Kind, SplitMix};
use ptx_emu_core::num::half;

pub(super) fn probes(set: &mut Set) {
    for ty in ["f16", "f16x2"] {
        let dot = format!(".{ty}");
        let ty2 = [ty, ty];
        for name in spellings(&[
            &["add", "sub", "mul"],
            &["", ".rn"],
            &["", ".ftz"],
            &["", ".sat"],
            &[&dot],
        ]) {
            set.simple(&name, &ty2, ty);
        }
        for name in spellings(&[&["fma.rn"], &["", ".ftz"], &["", ".sat", ".relu"], &[&dot]]) {
            set.simple(&name, &[ty, ty, ty], ty);
        }
        for name in spellings(&[&["abs", "neg"], &["", ".ftz"], &[&dot]]) {
            set.simple(&name, &[ty], ty);
        }
        for name in spellings(&[
            &["min", "max"],
            &["", ".ftz"],
            &["", ".NaN"],
            &["", ".xorsign.abs"],
            &[&dot],
        ]) {
            set.simple(&name, &ty2, ty);
        }
    }
    for ty in ["bf16", "bf16x2"] {
        let dot = format!(".{ty}");
        let ty2 = [ty, ty];
        for name in spellings(&[&["add", "sub", "mul"], &["", ".rn"], &[&dot]]) {
            set.simple(&name, &ty2, ty);
        }
        for name in spellings(&[&["fma.rn"], &["", ".relu"], &[&dot]]) {
            set.simple(&name, &[ty, ty, ty], ty);
        }
        for name in spellings(&[&["abs", "neg"], &[&dot]]) {
            set.simple(&name, &[ty], ty);
        }
        for name in spellings(&[&["min", "max"], &["", ".NaN"], &["", ".xorsign.abs"], &[&dot]]) {
            set.simple(&name, &ty2, ty);
        }
    }
    near_underflow(set);
}

/// Results just above and below the least normal number 2^-14.
fn near_underflow(set: &mut Set) {
    let mut rng = SplitMix::new(14);
    let mut columns: [Vec<u64>; 5] = Default::default();
    for _ in 0..512 {
        let random = rng.next();
        let a = (1.0 + (random >> 54) as f32 / 1024.0) / 128.0;
        let near = |x: f32| u64::from(half::from_f32(x)) + (random & 7) - 3;
        let values = [
            half::from_f32(a).into(),
            near(2f32.powi(-14) / a),
            half::from_f32(a).into(),
            near(2f32.powi(-13) / a),
            // -2^-14, or up to three places beyond.
            0x8400 + (random >> 8 & 3),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    for ftz in ["", ".ftz"] {
        for (op, kinds, from, operands) in [
            ("mul", &[Kind::F16; 2][..], &columns[..2], "%a, %b"),
            ("fma.rn", &[Kind::F16; 3], &columns[2..], "%a, %b, %c"),
        ] {
            let name = format!("{op}{ftz}.f16 near underflow");
            set.values(&name, kinds, from, "f16", &format!("{op}{ftz}.f16 %o, {operands};"));
        }
    }
}
