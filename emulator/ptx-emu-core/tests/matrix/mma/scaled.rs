//! Block scales: every selector, extreme scales, selectors that PTX leaves undefined, and operands that
//! `ldmatrix` unpacked.

use super::case::{Acc, Case, Random, d_place};
use super::float::products;
use crate::support::{Run, error_of};
use ptx_emu_core::tensor::element::{Element, ScaleType};
use ptx_emu_core::{AsyncFault, Diagnostic, DiagnosticKind};

const NVF4: &str =
    "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3";
const MXF4: &str = "kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0";
const MXF8: &str = "kind::mxf8f6f4.block_scale.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0";

/// Table 40 of PTX ISA 9.7.14.3, row by row.
#[test]
fn every_selector_names_its_bytes_and_lanes() {
    let e2m1 = [Element::E2m1; 2];
    let forms = [
        (MXF8, 32, [Element::E4m3, Element::E2m1], &[0, 1, 2, 3][..]),
        (MXF4, 64, e2m1, &[0, 2]),
        (NVF4, 64, e2m1, &[0]),
    ];
    for (modifiers, k, elements, bytes) in forms {
        let mut selectors = Vec::new();
        for a_byte in bytes {
            for b_byte in bytes {
                for a_thread in 0..2 {
                    selectors.extend((0..4).map(|b| Some([*a_byte, a_thread, *b_byte, b])));
                }
            }
        }
        assert_eq!(selectors.len(), bytes.len() * bytes.len() * 8);
        products(modifiers, [16, k], elements, [Acc::Single; 2], &selectors);
    }
}

/// One times one everywhere: each element of D is the sum of the products of its blocks' scales.
fn ones(modifiers: &str, one: u32, scales: impl Fn(usize, usize) -> u32) -> Vec<f32> {
    let (k, bits) = if modifiers.contains("k64") { (64, 4) } else { (32, 8) };
    let mut case = Case::new(modifiers, 16, k, bits, false, false);
    case.tail = ", SA, {0, 0}, SB, {0, 0}".to_owned();
    let mut input = case.pack(false, 0, |_, _| one);
    input.extend(case.pack(true, 0, |_, _| one));
    input.extend([0; 128]);
    for side in 0..2 {
        input.extend((0..32).map(|lane| scales(side, lane)));
    }
    case.run(&input).into_iter().map(f32::from_bits).collect()
}

/// Scales from the least to the greatest: results that overflow are infinite, those that an f32 holds are
/// exact, subnormal numbers included.
#[test]
fn extreme_scales() {
    let exact = |ty: ScaleType, codes: [u8; 2], k: f64| {
        let [a, b] = codes.map(|code| ty.value(code));
        (k * a * b) as f32
    };
    for codes in
        [[0, 127], [0, 100], [0, 1], [254, 127], [254, 254], [127, 127], [1, 130], [254, 0]]
    {
        let word = |side: usize, _| u32::from(codes[side]) * 0x0101_0101;
        let expected = exact(ScaleType::Ue8m0, codes, 64.0);
        assert!(ones(MXF4, 2, word).iter().all(|x| x.to_bits() == expected.to_bits()), "{codes:?}");
    }
    for codes in [[0, 0x7e], [1, 1], [1, 0x7e], [0x7e, 0x7e], [8, 7]] {
        let word = |side: usize, _| u32::from(codes[side]) * 0x0101_0101;
        let expected = exact(ScaleType::Ue4m3, codes, 64.0);
        assert!(ones(NVF4, 2, word).iter().all(|x| x.to_bits() == expected.to_bits()), "{codes:?}");
    }
}

/// A scale that is NaN spoils the results of its own row or column, whatever the codes are.
#[test]
fn scales_that_are_no_numbers() {
    for (modifiers, one, nan, unit) in
        [(MXF8, 0x38, 0xff, 0x7f), (MXF4, 0, 0xff, 0x7f), (NVF4, 0, 0x7f, 0x38)]
    {
        // Row 3's are in lane 12, column 5's in lane 20.
        let word = |side: usize, lane: usize| {
            let units = unit * 0x0101_0101;
            if [12, 20][side] == lane { units & !0xff | nan } else { units }
        };
        let found = ones(modifiers, one, word);
        for (at, value) in found.iter().enumerate() {
            let (row, column) = d_place(at % 32, at / 32);
            assert_eq!(
                value.is_nan(),
                row == 3 || column == 5,
                "{modifiers}: ({row}, {column}) {value}"
            );
        }
    }
}

/// A product whose selectors are the registers `%h1` to `%h4`.
fn by_registers(modifiers: &str, before: &str) -> Run {
    let text = format!(
        "mov.u16 %h1, 0; mov.u16 %h2, 0; mov.u16 %h3, 0; mov.u16 %h4, 0; {before}
         mov.b32 %r10, 0x22222222; mov.b32 %r30, 0x7f7f7f7f; mov.b32 %r31, 0x807f7f80;
         mov.b32 %f1, 0f00000000;
         mma.sync.aligned.{modifiers} {{%f0, %f1, %f2, %f3}}, {{%r10, %r10, %r10, %r10}},
             {{%r10, %r10}}, {{%f1, %f1, %f1, %f1}}, {{%r30}}, {{%h1, %h2}}, %r31, {{%h3, %h4}};
         st.global.f32 [%po], %f0;"
    );
    Run::body(&text).target("sm_120a")
}

#[test]
fn selectors_in_registers() {
    for (byte, expected) in [(0, 32.0 * 2.0 + 32.0), (2, 32.0 + 32.0 * 2.0)] {
        let words = by_registers(MXF4, &format!("mov.u16 %h3, {byte}; mov.u16 %h4, 3;")).words();
        assert!(words.iter().all(|word| f32::from_bits(*word) == expected), "{byte}");
    }
    let of = |diagnostic: Diagnostic| match diagnostic.kind {
        DiagnosticKind::Async(AsyncFault::Operand { operand, required, actual }) => {
            (operand, required, actual, diagnostic.lane)
        }
        other => panic!("{other:?}"),
    };
    let fault = |modifiers, before| {
        let (operand, required, actual, lane) = of(by_registers(modifiers, before).diagnostic());
        format!("{operand}: required {required}, actual {actual}, lane {}", lane.expect("a lane"))
    };
    for (modifiers, before, message) in [
        (MXF4, "mov.u16 %h1, 1;", "byte-id-a: required 0 or 2, actual 1, lane 0"),
        (MXF8, "mov.u16 %h3, 4;", "byte-id-b: required 0, 1, 2 or 3, actual 4, lane 0"),
        (NVF4, "mov.u16 %h1, 2;", "byte-id-a: required 0, actual 2, lane 0"),
        (MXF4, "mov.u16 %h2, 2;", "thread-id-a: required 0 or 1, actual 2, lane 0"),
        (MXF4, "mov.u16 %h4, 65535;", "thread-id-b: required 0, 1, 2 or 3, actual 65535, lane 0"),
        (
            MXF4,
            "setp.eq.u32 %p1, %tid, 9; @%p1 mov.u16 %h4, 2;",
            "thread-id-b: required 0 as in lane 0, actual 2, lane 9",
        ),
    ] {
        assert_eq!(fault(modifiers, before), message);
    }
}

/// Refuses constants outside of table 40 at load, as ptxas does.
#[test]
fn constants_that_select_nothing() {
    for (modifiers, selectors, message) in [
        (NVF4, "%r1, {1, 0}, %r1, {0, 0}", "operand 5: byte-id-a: required 0, actual 1"),
        (MXF4, "%r1, {3, 0}, %r1, {0, 0}", "operand 5: byte-id-a: required 0 or 2, actual 3"),
        (MXF4, "%r1, {0, 2}, %r1, {0, 0}", "operand 5: thread-id-a: required 0 or 1, actual 2"),
        (MXF8, "%r1, {0, 0}, %r1, {4, 0}", "operand 7: byte-id-b: required 0, 1, 2 or 3, actual 4"),
        (
            MXF8,
            "%r1, {0, 0}, %r1, {0, 4}",
            "operand 7: thread-id-b: required 0, 1, 2 or 3, actual 4",
        ),
    ] {
        let error = error_of(
            &format!(
                "mma.sync.aligned.{modifiers} {{%f0, %f1, %f2, %f3}}, {{%r0, %r1, %r2, %r3}},
                 {{%r4, %r5}}, {{%f0, %f1, %f2, %f3}}, {selectors};"
            ),
            "sm_120a",
        );
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// Rows of 16 elements in shared memory, packed and padded, that `ldmatrix` unpacks to the operands of a
/// product of e2m1 (`A`) and e3m2 (`B`). Only e2m1 must be shifted left by 2, to the middle of its byte.
#[test]
fn operands_that_ldmatrix_unpacks() {
    let mut random = Random(71);
    let codes_a: Vec<u32> = (0..16 * 32).map(|_| random.next() & 0xf).collect();
    let codes_b: Vec<u32> = (0..8 * 32).map(|_| random.next() & 0x3f).collect();
    // 16 x 32 as four matrices of 8 rows and 16 elements in the order of A's registers, then two of B's.
    let mut input = Vec::new();
    for matrix in 0..4 {
        for row in 0..8 {
            let from = (row + matrix % 2 * 8) * 32 + matrix / 2 * 16;
            let packed = codes_a[from..from + 16]
                .iter()
                .rev()
                .fold(0u128, |all, code| all << 4 | u128::from(*code));
            input.extend(packed.to_le_bytes());
        }
    }
    for matrix in 0..2 {
        for row in 0..8 {
            let from = row * 32 + matrix * 16;
            let packed = codes_b[from..from + 16]
                .iter()
                .rev()
                .fold(0u128, |all, code| all << 6 | u128::from(*code));
            input.extend(packed.to_le_bytes());
        }
    }
    let run = |shift: u32| {
        let body = format!(
            ".shared .align 16 .b8 s[1024]; .reg .b64 %w; .reg .b32 %base;
             mov.u32 %base, s; mad.lo.u32 %r40, %tid, 16, %base; mad.wide.u32 %w, %tid, 16, %in;
             ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%w]; st.shared.v4.u32 [%r40], {{%r0, %r1, %r2, %r3}};
             ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%w+512];
             st.shared.v4.u32 [%r40+512], {{%r0, %r1, %r2, %r3}};
             bar.warp.sync -1;
             ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {{%r10, %r11, %r12, %r13}}, [%r40];
             ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.b6x16_p32 {{%r14, %r15}}, [%r40+512];
             shl.b32 %r10, %r10, {shift}; shl.b32 %r11, %r11, {shift};
             shl.b32 %r12, %r12, {shift}; shl.b32 %r13, %r13, {shift};
             mov.b32 %f1, 0f3F800000;
             mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32
                 {{%f0, %f1, %f2, %f3}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f1, %f1, %f1, %f1}};
             st.global.f32 [%po], %f0; st.global.f32 [%po+128], %f1;
             st.global.f32 [%po+256], %f2; st.global.f32 [%po+384], %f3;"
        );
        let mut bytes = input.clone();
        bytes.resize(1024, 0);
        let run = Run { out_bytes: 512, input: bytes, ..Run::body(&body).target("sm_120a") };
        run.words().into_iter().map(f32::from_bits).collect::<Vec<f32>>()
    };
    let expected: Vec<f32> = (0..128)
        .map(|at| {
            let (row, column) = d_place(at % 32, at / 32);
            let products = (0..32).map(|k| {
                Element::E2m1.value(codes_a[row * 32 + k])
                    * Element::E3m2.value(codes_b[column * 32 + k])
            });
            (products.sum::<f64>() + 1.0) as f32
        })
        .collect();
    assert_eq!(run(2), expected);
    assert_ne!(run(0), expected);
}
