//! f16 `m8n8k4`: four products of quads.

use super::case::{Acc, Case, Random, read, small};
use ptx_emu_core::tensor::element::Element;

/// PTX ISA 9.7.14.5.1: lanes 0-3 and 16-19 compute the first product, and so on.
#[test]
fn quads() {
    for (a_row, b_row) in [(true, false), (true, true), (false, false), (false, true)] {
        for (d, c) in [("f16", "f16"), ("f32", "f16"), ("f32", "f32")] {
            let layout = |row: bool| if row { "row" } else { "col" };
            let name = format!("m8n8k4.{}.{}.{d}.f16.f16.{c}", layout(a_row), layout(b_row));
            let count = |ty: &str| if ty == "f16" { 4 } else { 8 };
            let case = Case {
                modifiers: name.clone(),
                m: 8,
                k: 4,
                bits: 16,
                words: 1,
                registers: [count(d), 2, 2, count(c)],
                tail: String::new(),
            };
            let mut random = Random(33);
            let codes: Vec<u32> =
                (0..2 * 4 * 32).map(|_| small(Element::F16, &mut random)).collect();
            let number = |code: u32| Element::F16.value(code);
            let side = |lane: usize| lane % 4 + if lane < 16 { 0 } else { 4 };
            let upper = |lane: usize| if lane < 16 { 0 } else { 4 };
            let (mut a, mut b) = ([[[0.0; 4]; 8]; 4], [[[0.0; 8]; 4]; 4]);
            let mut input = vec![0; 4 * 32];
            for lane in 0..32 {
                let quad = lane % 16 / 4;
                for i in 0..4 {
                    let (a_code, b_code) = (codes[lane * 4 + i], codes[128 + lane * 4 + i]);
                    let (row, k) =
                        if a_row { (side(lane), i) } else { (i + upper(lane), lane % 4) };
                    a[quad][row][k] = number(a_code);
                    let (k, column) =
                        if b_row { (lane % 4, i + upper(lane)) } else { (i, side(lane)) };
                    b[quad][k][column] = number(b_code);
                    input[i / 2 * 32 + lane] |= a_code << (i % 2 * 16);
                    input[64 + i / 2 * 32 + lane] |= b_code << (i % 2 * 16);
                }
            }
            let acc = |ty: &str| if ty == "f16" { Acc::Half } else { Acc::Single };
            input.extend((0..count(c) * 32).map(|_| match acc(c) {
                Acc::Half => 0x3c00_4000 + (random.next() & 0x8003_8003),
                Acc::Single => (random.next() as f32 / 1024.0).to_bits(),
            }));
            let place = |ty: &str, lane: usize, i: usize| {
                if ty == "f16" {
                    return (side(lane), i);
                }
                let x = (lane & 1) + (i & 2);
                (x + upper(lane), (i & 4) + (lane & 2) + (i & 1))
            };
            let mut expected = [[[0.0; 8]; 8]; 4];
            for lane in 0..32 {
                for i in 0..8 {
                    let (row, column) = place(c, lane, i);
                    let quad = lane % 16 / 4;
                    let sum: f64 = (0..4).map(|k| a[quad][row][k] * b[quad][k][column]).sum();
                    expected[quad][row][column] = sum + read(acc(c), &input[128..], lane, i);
                }
            }
            let actual = case.run(&input);
            for lane in 0..32 {
                for i in 0..8 {
                    let (row, column) = place(d, lane, i);
                    let exact = expected[lane % 16 / 4][row][column];
                    let rounded = match acc(d) {
                        Acc::Half => half::f16::from_f64(exact).to_f64(),
                        Acc::Single => f64::from(exact as f32),
                    };
                    assert_eq!(
                        read(acc(d), &actual, lane, i),
                        rounded,
                        "{name}: quad {} ({row}, {column})",
                        lane % 16 / 4
                    );
                }
            }
        }
    }
}
