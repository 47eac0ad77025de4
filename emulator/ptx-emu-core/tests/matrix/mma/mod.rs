//! `mma.sync` in kernels, against a naive oracle whose layouts are written out as the
//! PTX ISA lists them.

mod case;
mod float;
mod golden;
mod integer;
mod quad;
mod scaled;

use crate::support::{Run, error_of};
use case::{Case, d_place};
use ptx_emu_core::{DiagnosticKind, LoadError};

#[test]
fn special_values_reach_their_elements_only() {
    let case = Case::new("m16n8k16.row.col.f32.f16.f16.f32", 16, 16, 16, false, false);
    // Row 3 has an infinity, row 5 a NaN, column 2 a zero where row 3 is infinite.
    let mut input = case.pack(false, 0, |row, k| match (row, k) {
        (3, 7) => 0x7c00,
        (5, 1) => 0x7e00,
        _ => 0x3c00,
    });
    input.extend(case.pack(
        true,
        0,
        |column, k| if (column, k) == (2, 7) { 0x8000 } else { 0x3c00 },
    ));
    input.extend([0f32.to_bits(); 128]);
    let actual = case.run(&input);
    for lane in 0..32 {
        for i in 0..4 {
            let expected = match d_place(lane, i) {
                (5, _) | (3, 2) => 0x7fff_ffff,
                (3, _) => f32::INFINITY.to_bits(),
                (_, 2) => 15f32.to_bits(),
                _ => 16f32.to_bits(),
            };
            assert_eq!(actual[i * 32 + lane], expected, "{:?}", d_place(lane, i));
        }
    }
}

#[test]
fn immediates_and_overlapping_registers() {
    let run = Run {
        out_bytes: 512,
        ..Run::body(
            "mov.b32 %r0, 0x3c003c00; mov.b32 %f1, 0f00000000;
             mov.b32 %r10, 0x40004000; mov.b32 %r11, 0x40004000;
             mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},
                 {%r0, %r0}, {%r10}, {%f1, %f1, 0f3F800000, 0f3F800000};
             mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f3, %f2, %f1, %f0},
                 {%r0, %r0}, {%r11}, {%f0, %f1, %f2, %f3};
             st.global.f32 [%po], %f3; st.global.f32 [%po+128], %f2;
             st.global.f32 [%po+256], %f1; st.global.f32 [%po+384], %f0;",
        )
    };
    let words = run.words();
    for (register, expected) in [32f32, 32.0, 33.0, 33.0].into_iter().enumerate() {
        for lane in 0..32 {
            assert_eq!(words[register * 32 + lane], expected.to_bits(), "{register} lane {lane}");
        }
    }
}

const PLAIN: &str = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},
    {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};";

#[test]
fn divergent_and_exited_lanes_are_reported() {
    let divergent =
        Run::body(&format!("setp.lt.u32 %p1, %tid, 7; @%p1 bra L; {PLAIN} L: bar.warp.sync -1;"));
    let kind = divergent.diagnostic().kind;
    assert!(matches!(kind, DiagnosticKind::MissingMembers { members: u32::MAX, .. }), "{kind:?}");
    let exited = Run::body(&format!("setp.lt.u32 %p1, %tid, 7; @%p1 exit; {PLAIN}"));
    let expected = DiagnosticKind::MissingMembers { present: !0x7f, members: u32::MAX };
    assert_eq!(exited.diagnostic().kind, expected);
}

#[test]
fn forms_that_do_not_exist() {
    let (d, ab, c) = ("{%f0, %f1, %f2, %f3}", "{%r0, %r1}, {%r2}", "{%f0, %f1, %f2, %f3}");
    let cases = [
        ("mma.sync.aligned.m16n8k8.col.col.f32.f16.f16.f32", "layouts other than .row.col"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "m16n8k32 of F16 and F16 into F32"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f32", "m16n8k8 of F16 and F16 into F16"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.bf16.f32", "operands F16 and Bf16"),
        (
            "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f32",
            "m16n8k32 of E4m3 and E4m3 into F16",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e4m3.f16",
            "m16n8k32 of E2m1 and E4m3 into F32",
        ),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "sparse operands"),
        ("mma.sync.m16n8k8.row.col.f32.f16.f16.f32", "no .aligned"),
        ("mma.sync.aligned.m16n8k8.row.col.satfinite.f32.f16.f16.f32", "modifier .satfinite"),
        ("mma.sync.aligned.kind::mxf4.m16n8k64.row.col.f32.e2m1.e2m1.f32", "block scales without"),
        ("mma.sync.aligned.block_scale.m16n8k8.row.col.f32.f16.f16.f32", "block scales without"),
        (
            "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32",
            "single bits need .xor.popc or .and.popc",
        ),
        (
            "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
            "kind::mxf4 with scale vector Some(X4) of Ue8m0",
        ),
    ];
    for (name, why) in cases {
        let error = error_of(&format!("{name} {d}, {ab}, {c};"), "sm_120a");
        let LoadError::Unsupported(items) = &error else { panic!("{name}: {error}") };
        assert!(items[0].why.contains(why), "{name}: {error}");
    }
    let short = error_of(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};",
        "sm_80",
    );
    assert!(short.to_string().contains("operand 0: registers: required 4, actual 2"), "{short}");
}
