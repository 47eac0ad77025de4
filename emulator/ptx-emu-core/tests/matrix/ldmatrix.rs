//! `ldmatrix`, `stmatrix`, `movmatrix` in kernels.

use crate::support::{Run, error_of};
use ptx_emu_core::{DiagnosticKind, LoadError};

/// Shared memory of 4 KiB that holds byte `(i * 7 + i / 256) % 251` at `i`, the row
/// addresses of this lane in `%r50` (32 rows of 16 bytes, 48 bytes apart), `body`.
fn body(body: &str) -> String {
    format!(
        ".shared .align 16 .b8 s[4096];
         mov.u32 %r40, s; mov.u32 %r41, 0;
         FILL:
           mad.lo.u32 %r42, %r41, 32, %tid;
           mul.lo.u32 %r43, %r42, 7; shr.u32 %r44, %r42, 8; add.u32 %r43, %r43, %r44;
           rem.u32 %r43, %r43, 251; cvt.u16.u32 %h1, %r43;
           add.u32 %r45, %r40, %r42; st.shared.u8 [%r45], %h1;
           add.u32 %r41, %r41, 1; setp.lt.u32 %p1, %r41, 128; @%p1 bra FILL;
         bar.warp.sync -1;
         mad.lo.u32 %r50, %tid, 48, %r40;
         {body}"
    )
}

fn byte(at: usize) -> u8 {
    ((at * 7 + at / 256) % 251) as u8
}

/// Byte `at` of row `row`.
fn row_byte(row: usize, at: usize) -> u8 {
    byte(row * 48 + at)
}

fn load(instruction: &str, registers: usize) -> Vec<[u8; 4]> {
    let list: Vec<String> = (0..registers).map(|r| format!("%r{r}")).collect();
    let mut text = format!("{instruction} {{{}}}, [%r50];\n", list.join(", "));
    for r in 0..registers {
        text += &format!("st.global.u32 [%po+{}], %r{r};\n", r * 128);
    }
    let run =
        Run { out_bytes: 128 * registers as u64, ..Run::body(&body(&text)).target("sm_100a") };
    run.words().into_iter().map(u32::to_le_bytes).collect()
}

/// Compares each register of each lane with `expected(lane, register)`.
fn check(name: &str, actual: &[[u8; 4]], expected: impl Fn(usize, usize) -> [u8; 4]) {
    for (at, actual) in actual.iter().enumerate() {
        let (register, lane) = (at / 32, at % 32);
        assert_eq!(*actual, expected(lane, register), "{name}: register {register} lane {lane}");
    }
}

#[test]
fn ldmatrix_of_16_bits() {
    for count in [1, 2, 4] {
        for (before, after) in [(format!("m8n8.x{count}"), ""), (format!("x{count}"), ".m8n8")] {
            let trans = if after.is_empty() {
                format!("{before}.trans")
            } else {
                format!("{before}.trans{after}")
            };
            let plain = format!("ldmatrix.sync.aligned.{before}{after}.shared.b16");
            check(&plain, &load(&plain, count), |lane, register| {
                std::array::from_fn(|b| row_byte(register * 8 + lane / 4, lane % 4 * 4 + b))
            });
            let trans = format!("ldmatrix.sync.aligned.{trans}.shared::cta.b16");
            check(&trans, &load(&trans, count), |lane, register| {
                // Element (row, column) of the transposed matrix is (column, row).
                std::array::from_fn(|b| {
                    let (row, column) = (lane / 4, lane % 4 * 2 + b / 2);
                    row_byte(register * 8 + column, row * 2 + b % 2)
                })
            });
        }
    }
}

#[test]
fn ldmatrix_of_8_bits_is_an_operand_of_mma() {
    for count in [1, 2] {
        let name = format!("ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8");
        check(&name, &load(&name, 2 * count), |lane, register| {
            // Rows are k: the fragment of A, 16 x 16 of 8 bits.
            let m = lane / 4 + register % 2 * 8;
            std::array::from_fn(|b| row_byte(register / 2 * 16 + lane % 4 * 4 + b, m))
        });
    }
}

#[test]
fn ldmatrix_unpacks_narrow_elements() {
    for (format, bits) in [("b4x16_p64", 4), ("b6x16_p32", 6)] {
        let element = |row: usize, at: usize| {
            let low = at * bits / 8;
            let pair = u16::from_le_bytes([row_byte(row, low), row_byte(row, low + 1)]);
            (pair >> (at * bits % 8)) as u8 & ((1 << bits) - 1)
        };
        for count in [1, 2, 4] {
            let name = format!("ldmatrix.sync.aligned.m8n16.x{count}.shared.b8x16.{format}");
            check(&name, &load(&name, count), |lane, register| {
                std::array::from_fn(|b| element(register * 8 + lane / 4, lane % 4 * 4 + b))
            });
        }
        for count in [1, 2] {
            let name = format!("ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8x16.{format}");
            check(&name, &load(&name, 2 * count), |lane, register| {
                let m = lane / 4 + register % 2 * 8;
                std::array::from_fn(|b| element(register / 2 * 16 + lane % 4 * 4 + b, m))
            });
        }
    }
}

/// Stores registers whose bytes are unique and reads rows back.
fn store(instruction: &str, registers: usize) -> Vec<Vec<u8>> {
    let mut text = String::new();
    for r in 0..registers {
        // Bytes 4 * lane + b, the register in the top bits of none of them.
        text += &format!("mul.lo.u32 %r{r}, %tid, 0x04040404; add.u32 %r{r}, %r{r}, 0x03020100;\n");
        text += &format!("xor.b32 %r{r}, %r{r}, {};\n", 0x8080_8080_u32 * u32::from(r % 2 == 1));
    }
    let list: Vec<String> = (0..registers).map(|r| format!("%r{r}")).collect();
    text += &format!("{instruction} [%r50], {{{}}}; bar.warp.sync -1;\n", list.join(", "));
    text += "ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r50];
             mad.wide.u32 %d9, %tid, 16, %out; st.global.v4.u32 [%d9], {%r30, %r31, %r32, %r33};";
    let run = Run { out_bytes: 512, ..Run::body(&body(&text)).target("sm_100a") };
    run.bytes().chunks(16).map(<[u8]>::to_vec).collect()
}

fn register_byte(lane: usize, register: usize, b: usize) -> u8 {
    (lane * 4 + b) as u8 ^ if register % 2 == 1 { 0x80 } else { 0 }
}

fn check_rows(name: &str, rows: &[Vec<u8>], written: usize, expected: impl Fn(usize, usize) -> u8) {
    for (row, bytes) in rows.iter().enumerate() {
        for (at, actual) in bytes.iter().enumerate() {
            let expected = if row < written { expected(row, at) } else { row_byte(row, at) };
            assert_eq!(*actual, expected, "{name}: row {row} byte {at}");
        }
    }
}

#[test]
fn stmatrix_stores_what_ldmatrix_loads() {
    for count in [1, 2, 4] {
        let name = format!("stmatrix.sync.aligned.m8n8.x{count}.shared.b16");
        check_rows(&name, &store(&name, count), 8 * count, |row, at| {
            register_byte(row % 8 * 4 + at / 4, row / 8, at % 4)
        });
        let name = format!("stmatrix.sync.aligned.x{count}.trans.m8n8.shared::cta.b16");
        check_rows(&name, &store(&name, count), 8 * count, |row, at| {
            // Element (row, column) of the stored matrix is (column, row).
            let (row8, column) = (row % 8, at / 2);
            register_byte(column * 4 + row8 / 2, row / 8, row8 % 2 * 2 + at % 2)
        });
        let name = format!("stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8");
        check_rows(&name, &store(&name, count), 8 * count, |row, at| {
            // A 16 x 8 fragment like D of mma: element (at, row).
            let (lane, b) = (at % 8 * 4 + row % 8 / 2, row % 2 + at / 8 * 2);
            register_byte(lane, row / 8, b)
        });
    }
}

#[test]
fn movmatrix_transposes() {
    let text = "mul.lo.u32 %r1, %tid, 0x00020002; add.u32 %r1, %r1, 0x00010000;
        movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1; st.global.u32 [%po], %r2;";
    let words = Run::body(text).target("sm_100a").words();
    for (lane, word) in words.into_iter().enumerate() {
        // Element (row, column) is 8 row + column.
        let (row, column) = (lane / 4, lane % 4 * 2);
        let expected = (column * 8 + row) as u32 | (((column + 1) * 8 + row) as u32) << 16;
        assert_eq!(word, expected, "lane {lane}");
    }
}

#[test]
fn generic_addresses() {
    let text = "cvta.shared.u64 %d1, s; mad.wide.u32 %d1, %tid, 48, %d1;
        ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d1]; st.global.u32 [%po], %r1;";
    let words = Run::body(&body(text)).target("sm_100a").words();
    for (lane, word) in words.into_iter().enumerate() {
        let expected = std::array::from_fn(|b| row_byte(lane / 4, lane % 4 * 4 + b));
        assert_eq!(word.to_le_bytes(), expected, "lane {lane}");
    }
}

#[test]
fn wrong_addresses_are_reported() {
    let case = |text: &str| Run::body(&body(text)).target("sm_100a").diagnostic();
    let misaligned =
        case("add.u32 %r50, %r50, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r50];");
    assert_eq!(misaligned.kind, DiagnosticKind::Misaligned { required: 16 });
    let narrow = case(
        "add.u32 %r50, %r50, 8; ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r1}, [%r50];",
    );
    assert_eq!((narrow.kind, narrow.lane), (DiagnosticKind::Misaligned { required: 16 }, Some(0)));
    let outside = case(
        "setp.eq.u32 %p2, %tid, 11; @%p2 add.u32 %r50, %r50, 65536;
        stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r50], {%r1, %r2};",
    );
    assert_eq!((outside.kind, outside.lane), (DiagnosticKind::OutOfBounds, Some(11)));
    // Lanes whose addresses are not used may have any.
    let unused = "setp.gt.u32 %p2, %tid, 7; @%p2 mov.u32 %r50, 1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r50]; st.global.u32 [%po], %r1;";
    Run::body(&body(unused)).target("sm_100a").words();
}

#[test]
fn uninitialised_rows_are_reported_and_padding_is_not() {
    let text = |bytes: usize, load: &str| {
        format!(
            ".shared .align 16 .b8 s[512]; mov.u32 %r40, s; mad.lo.u32 %r50, %tid, 16, %r40;
             st.shared.v2.u32 [%r50], {{%tid, %tid}};
             {}
             bar.warp.sync -1; {load}; st.global.u32 [%po], %r1;",
            if bytes > 8 { "st.shared.u32 [%r50+8], %tid;" } else { "" }
        )
    };
    let p64 = "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r1}, [%r50]";
    let p32 = "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r1}, [%r50]";
    Run::body(&text(8, p64)).target("sm_100a").words();
    Run::body(&text(12, p32)).target("sm_100a").words();
    let b16 = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r50]";
    for (bytes, load) in [(8, p32), (8, b16), (12, b16)] {
        let kind = Run::body(&text(bytes, load)).target("sm_100a").diagnostic().kind;
        assert!(matches!(kind, DiagnosticKind::UninitialisedRead { .. }), "{load}: {kind:?}");
    }
}

#[test]
fn forms_that_do_not_exist() {
    for (text, why) in [
        (
            "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%r3];",
            "1 m16n16 matrices of 8 bits",
        ),
        (
            "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r1, %r2}, [%r3];",
            "4 m16n16 matrices of 8 bits, transposed",
        ),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b8 {%r1}, [%r3];", "1 m8n8 matrices of 8 bits"),
        (
            "ldmatrix.sync.aligned.m8n16.x1.shared.b4x16_p64 {%r1}, [%r3];",
            "a packed source without .b8x16",
        ),
        (
            "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r1}, [%d3];",
            "a state space other than .shared",
        ),
        ("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1}, [%r3];", "no number of matrices"),
        ("stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r3], {%r1};", "m16n8 matrices of this type"),
        ("movmatrix.sync.aligned.m8n8.b16 %r1, %r2;", "no .trans"),
    ] {
        let error = error_of(text, "sm_100a");
        let LoadError::Unsupported(items) = &error else { panic!("{text}: {error}") };
        assert_eq!(items[0].why, why, "{text}");
    }
    let error = error_of("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r3];", "sm_80");
    assert!(error.to_string().contains("operand 0: registers: required 2, actual 1"), "{error}");
}
