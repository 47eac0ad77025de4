//! `cvt` to tf32, to and from packed halves, e4m3 and e5m2, and `cvt.pack`.

use super::spellings;
use crate::builder::Set;
use crate::compare::Element;
use crate::values::Kind;

pub(super) fn probes(set: &mut Set) {
    for name in spellings(&[&["cvt.rna"], &["", ".satfinite"], &[".tf32.f32"]])
        .into_iter()
        .chain(spellings(&[&["cvt"], &[".rn", ".rz"], &["", ".relu"], &[".tf32.f32"]]))
    {
        set.simple(&name, &["f32"], "f32");
    }
    for ty in ["f16x2", "bf16x2"] {
        let end = format!(".{ty}.f32");
        for name in
            spellings(&[&["cvt"], &[".rn", ".rz"], &["", ".relu"], &["", ".satfinite"], &[&end]])
        {
            set.simple(&name, &["f32", "f32"], ty);
        }
    }
    for format in ["e4m3x2", "e5m2x2"] {
        for relu in ["", ".relu"] {
            let name = format!("cvt.rn.satfinite{relu}.{format}.f32");
            set.counted(&name, &[Kind::F32; 2], "b16", &format!("{name} %o, %a, %b;"), 2048);
            codes(set);
            let name = format!("cvt.rn.satfinite{relu}.{format}.f16x2");
            let body = format!("{name} %o, %a;");
            if relu.is_empty() {
                // Every f16, in both halves.
                let pair = |n: u64| n | ((n * 40_503 + 12_345) & 0xffff) << 16;
                let all = (0..0x1_0000).map(pair).collect();
                set.values(&name, &[Kind::F16x2], &[all], "b16", &body);
            } else {
                set.body(&name, &[Kind::F16x2], "b16", &body);
            }
            codes(set);
            let name = format!("cvt.rn{relu}.f16x2.{format}");
            set.kinds(&name, &[Kind::Codes8x2], "f16x2");
        }
    }
    for ty in ["u16", "s16"] {
        set.simple(&format!("cvt.pack.sat.{ty}.s32"), &["s32", "s32"], "b32");
    }
    for ty in ["u8", "s8", "u4", "s4", "u2", "s2"] {
        let name = format!("cvt.pack.sat.{ty}.s32.b32");
        set.simple(&name, &["s32", "s32", "b32"], "b32");
    }
}

/// The output of the last probe is codes of a byte.
fn codes(set: &mut Set) {
    if let Some(probe) = set.last() {
        probe.element = Element::Bits(1);
    }
}
