//! Integer and single-bit products.

use super::case::{Case, Random, d_place};
use ptx_emu_core::tensor::element::Element;

#[test]
fn integers() {
    for (bits, types, shapes) in [
        (8, [("s8", Element::S8), ("u8", Element::U8)], [(8, 16), (16, 16), (16, 32)]),
        (4, [("s4", Element::S4), ("u4", Element::U4)], [(8, 32), (16, 32), (16, 64)]),
    ] {
        for (m, k) in shapes {
            for (a_name, a) in types {
                for (b_name, b) in types {
                    for saturate in [false, true] {
                        let sat = if saturate { ".satfinite" } else { "" };
                        let name = format!("m{m}n8k{k}.row.col{sat}.s32.{a_name}.{b_name}.s32");
                        let case = Case::new(&name, m, k, bits, false, false);
                        let mut random = Random(5);
                        let mask = (1 << bits) - 1;
                        let mut codes = |n: usize| -> Vec<u32> {
                            (0..n).map(|_| random.next() & mask).collect()
                        };
                        let (a_codes, b_codes) = (codes(m * k), codes(8 * k));
                        let mut input = case.pack(false, 0, |row, at| a_codes[row * k + at]);
                        input.extend(case.pack(true, 0, |column, at| b_codes[column * k + at]));
                        let c_from = input.len();
                        // Around both ends, so that sums overflow.
                        input.extend(
                            (0..case.registers[3] * 32)
                                .map(|i| 0x7fff_ff00 + (i as u32 * 37) % 512),
                        );
                        let actual = case.run(&input);
                        for lane in 0..32 {
                            for i in 0..m * 8 / 32 {
                                let (row, column) = d_place(lane, i);
                                let number = |e: Element, code| i64::from(e.integer(code));
                                let sum: i64 = (0..k)
                                    .map(|at| {
                                        number(a, a_codes[row * k + at])
                                            * number(b, b_codes[column * k + at])
                                    })
                                    .sum::<i64>()
                                    + i64::from(input[c_from + i * 32 + lane] as i32);
                                let expected = if saturate {
                                    sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32
                                } else {
                                    sum as i32
                                };
                                assert_eq!(
                                    actual[i * 32 + lane] as i32,
                                    expected,
                                    "{name}: ({row}, {column})"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn single_bits() {
    for (m, k) in [(8, 128), (16, 128), (16, 256)] {
        for op in ["xor", "and"] {
            let name = format!("m{m}n8k{k}.row.col.s32.b1.b1.s32.{op}.popc");
            let case = Case::new(&name, m, k, 1, false, false);
            let mut random = Random(9);
            let mut codes = |n: usize| -> Vec<u32> { (0..n).map(|_| random.next() & 1).collect() };
            let (a, b) = (codes(m * k), codes(8 * k));
            let mut input = case.pack(false, 0, |row, at| a[row * k + at]);
            input.extend(case.pack(true, 0, |column, at| b[column * k + at]));
            let c_from = input.len();
            input.extend((0..case.registers[3] * 32).map(|i| i as u32 * 1000));
            let actual = case.run(&input);
            for lane in 0..32 {
                for i in 0..m * 8 / 32 {
                    let (row, column) = d_place(lane, i);
                    let count: u32 = (0..k)
                        .map(|at| {
                            let (a, b) = (a[row * k + at], b[column * k + at]);
                            if op == "xor" { a ^ b } else { a & b }
                        })
                        .sum();
                    let expected = input[c_from + i * 32 + lane] + count;
                    assert_eq!(actual[i * 32 + lane], expected, "{name}: ({row}, {column})");
                }
            }
        }
    }
}
