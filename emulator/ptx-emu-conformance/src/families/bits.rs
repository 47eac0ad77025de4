//! Bit fields with positions and lengths beyond the register, shifts beyond the
//! width, `prmt` in every mode, `lop3`, funnel shifts.

use crate::builder::Set;
use crate::values::Kind;

pub(super) fn probes(set: &mut Set) {
    for bits in ["b32", "b64"] {
        for op in ["popc", "clz"] {
            set.simple(&format!("{op}.{bits}"), &[bits], "u32");
        }
        set.simple(&format!("brev.{bits}"), &[bits], bits);
        let kinds = [Kind::of(bits), Kind::of(bits), Kind::Count, Kind::Count];
        set.kinds(&format!("bfi.{bits}"), &kinds, bits);
    }
    for ty in ["u32", "s32", "u64", "s64"] {
        set.simple(&format!("bfind.{ty}"), &[ty], "u32");
        set.simple(&format!("bfind.shiftamt.{ty}"), &[ty], "u32");
        set.kinds(&format!("bfe.{ty}"), &[Kind::of(ty), Kind::Count, Kind::Count], ty);
    }
    // A base of more than 31 is undefined.
    set.body(
        "fns.b32",
        &[Kind::Int32, Kind::Int32, Kind::Count],
        "b32",
        "and.b32 %r0, %b, 31; sub.s32 %r1, %c, 16; fns.b32 %o, %a, %r0, %r1;",
    );
    for mode in ["clamp", "wrap"] {
        set.kinds(&format!("bmsk.{mode}.b32"), &[Kind::Count, Kind::Count], "b32");
        for ty in ["u32", "s32"] {
            set.kinds(&format!("szext.{mode}.{ty}"), &[Kind::Int32, Kind::Count], ty);
        }
        for direction in ["l", "r"] {
            let kinds = [Kind::Int32, Kind::Int32, Kind::Count];
            set.kinds(&format!("shf.{direction}.{mode}.b32"), &kinds, "b32");
        }
    }
    for width in ["16", "32", "64"] {
        let bits = format!("b{width}");
        for instruction in [
            format!("shl.b{width}"),
            format!("shr.b{width}"),
            format!("shr.u{width}"),
            format!("shr.s{width}"),
        ] {
            set.kinds(&instruction, &[Kind::of(&bits), Kind::Count], &bits);
        }
        for op in ["and", "or", "xor"] {
            set.simple(&format!("{op}.{bits}"), &[&bits, &bits], &bits);
        }
        for op in ["not", "cnot"] {
            set.simple(&format!("{op}.{bits}"), &[&bits], &bits);
        }
    }
    for table in
        [0x00, 0x01, 0x17, 0x2d, 0x3c, 0x55, 0x69, 0x80, 0x96, 0xaa, 0xb8, 0xca, 0xe8, 0xff]
    {
        let body = format!("lop3.b32 %o, %a, %b, %c, {table:#x};");
        let kinds = [Kind::Int32; 3];
        set.body(&format!("lop3.b32 {table:#04x}"), &kinds, "b32", &body);
    }
    // Both results of `lop3` with a predicate.
    for op in ["or", "and"] {
        let body = format!(
            "setp.lt.u32 %p0, %c, %b; lop3.{op}.b32 %r0|%p1, %a, %b, %c, 0x96, %p0; \
             selp.b32 %r1, 1, 0, %p1; mov.b64 %o, {{%r0, %r1}};"
        );
        set.body(&format!("lop3.{op}.b32"), &[Kind::Int32; 3], "b64", &body);
    }
    let permuted = [Kind::Int32; 3];
    set.kinds("prmt.b32", &permuted, "b32");
    for mode in ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] {
        set.kinds(&format!("prmt.b32.{mode}"), &permuted, "b32");
    }
    let body = "setp.lt.s32 %p0, %a, %b; setp.gt.u32 %p1, %a, %b; and.pred %p2, %p0, %p1; \
                or.pred %p3, %p0, %p1; xor.pred %p4, %p0, %p1; not.pred %p5, %p0; \
                selp.b32 %r0, 1, 0, %p2; selp.b32 %r1, 2, 0, %p3; selp.b32 %r2, 4, 0, %p4; \
                selp.b32 %r3, 8, 0, %p5; or.b32 %r0, %r0, %r1; or.b32 %r2, %r2, %r3; \
                or.b32 %o, %r0, %r2;";
    set.body("logic of predicates", &[Kind::Int32; 2], "b32", body);
}
