//! Block-scaled products whose operands lie where CuTe's tables say, one element or scale at a time:
//! `mma_regs.json`, values that the types of CUTLASS print for `SM120_16x8x64_TN_VS` and
//! `SM120_16x8x32_TN_VS`.
//!
//! Elements have the order that registers of 8 or 4 bits per value give them. The instructions of CuTe have
//! selector 0 throughout, and its tables give a row of `A` to two lanes, a column of `B` to four: other
//! byte-ids are not in them, and of thread-ids only that each takes one of the lanes which hold the same
//! scales. Table 40 of the PTX ISA says the rest (`scaled`).

use super::case::Case;
use crate::tensor::golden::{int, ints, registers, text};
use ptx_emu_core::tensor::element::{Element, ScaleType};
use serde_json::Value;

/// Lines (rows of `A`, columns of `B`) and k by lane and value; rows and columns of `D`.
type Map = Vec<Vec<[usize; 2]>>;

struct Form {
    modifiers: &'static str,
    k: usize,
    /// Bits of an element's container.
    bits: usize,
    elements: [Element; 2],
    scale: ScaleType,
    /// Scales along K.
    vec: usize,
    /// `A`, `B`, `D`, and the scales of `A` and `B`.
    maps: [Map; 5],
}

fn map(op: &str, operand: &str) -> Map {
    let entries = registers();
    let entry = entries
        .iter()
        .find(|entry| text(&entry["op"]) == op && text(&entry["operand"]) == operand)
        .unwrap_or_else(|| panic!("no {operand} of {op}"));
    let lanes = entry["map"].as_array().expect("lanes");
    assert_eq!((lanes.len(), int(&entry["threads"])), (32, 32), "{op} {operand}");
    let place = |value: &Value| ints(value).try_into().expect("a line and k");
    let values = |lane: &Value| -> Vec<[usize; 2]> {
        lane.as_array().expect("values").iter().map(place).collect()
    };
    lanes.iter().map(values).collect()
}

/// 4X in both types of scales, 2X, and 1X, as CuTe's two templates make them.
fn forms() -> Vec<Form> {
    let [e4m3, e2m1] = [Element::E4m3, Element::E2m1];
    let maps = |op: &str| ["A", "B", "D", "SFA(row,k)", "SFB(col,k)"].map(|name| map(op, name));
    let k64 = |modifiers, scale, vec, op| Form {
        modifiers,
        k: 64,
        bits: 4,
        elements: [e2m1; 2],
        scale,
        vec,
        maps: maps(op),
    };
    vec![
        k64(
            "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3",
            ScaleType::Ue4m3,
            4,
            "mma.m16n8k64.mxf4nvf4",
        ),
        k64(
            "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
            ScaleType::Ue8m0,
            4,
            "mma.m16n8k64.mxf4nvf4",
        ),
        k64(
            "kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
            ScaleType::Ue8m0,
            2,
            "mma.m16n8k64.mxf4",
        ),
        Form {
            modifiers: "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0",
            k: 32,
            bits: 8,
            elements: [e4m3, e2m1],
            scale: ScaleType::Ue8m0,
            vec: 1,
            maps: maps("mma.m16n8k32.mxf8f6f4"),
        },
    ]
}

/// The code of 0, or of 2 to the power `exponent`, in its container.
fn code(form: &Form, side: usize, exponent: Option<i32>) -> u32 {
    let value = exponent.map_or(0.0, |exponent| f64::from(exponent).exp2());
    let element = form.elements[side];
    let found = (0..1u32 << element.bits()).find(|code| element.value(*code) == value);
    // An e2m1 lies in the middle of its byte.
    let shift = if form.bits == 8 && element == Element::E2m1 { 2 } else { 0 };
    found.expect("a value of the type") << shift
}

/// The scale of 2 to the power `exponent`.
fn scale(form: &Form, exponent: usize) -> u32 {
    let value = f64::from(1u32 << exponent);
    u32::from((0..=254).find(|code| form.scale.value(*code) == value).expect("a scale"))
}

/// Registers of a side by lane and value.
fn pack(form: &Form, side: usize, code: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let per = 32 / form.bits;
    let values = form.maps[side][0].len();
    let mut words = vec![0; values / per * 32];
    for lane in 0..32 {
        for value in 0..values {
            words[value / per * 32 + lane] |= code(lane, value) << (value % per * form.bits);
        }
    }
    words
}

/// Registers of a side by line and k, put where CuTe puts them.
fn matrix(form: &Form, side: usize, exponent: impl Fn(usize, usize) -> Option<i32>) -> Vec<u32> {
    pack(form, side, |lane, value| {
        let [line, k] = form.maps[side][lane][value];
        code(form, side, exponent(line, k))
    })
}

/// Runs a product; what it adds to `C`, by row and column. `scales` are the words of `A`, then of `B`.
fn run(
    form: &Form,
    [a, b]: [Vec<u32>; 2],
    scales: &[u32],
    [a_thread, b_thread]: [usize; 2],
) -> [[f64; 8]; 16] {
    let mut case = Case::new(form.modifiers, 16, form.k, form.bits, false, false);
    case.tail = format!(", SA, {{0, {a_thread}}}, SB, {{0, {b_thread}}}");
    // Unlike in each register and lane, so that D is known to be C's neighbour.
    let c = |at: usize| at as f32 * 1024.0;
    let mut input = [a, b].concat();
    input.extend((0..128).map(|at| c(at).to_bits()));
    input.extend(scales);
    let words = case.run(&input);
    let mut d = [[f64::NAN; 8]; 16];
    for (lane, values) in form.maps[2].iter().enumerate() {
        for (value, [row, column]) in values.iter().enumerate() {
            let at = value * 32 + lane;
            d[*row][*column] = f64::from(f32::from_bits(words[at]) - c(at));
        }
    }
    d
}

/// Elements of one place of every group of four lanes are 1, the others 0; the other operand has a binary
/// digit of `K + k` in each line, so that the products spell the element's row or column and its k.
#[test]
fn each_element_lies_where_cute_puts_it() {
    for form in forms() {
        let units = [scale(&form, 0) * 0x0101_0101; 64];
        let digit = |line: usize, k: usize| ((form.k + k) >> line & 1 == 1).then_some(0);
        for side in 0..2 {
            let other = matrix(&form, 1 - side, digit);
            for (quarter, value) in
                (0..4).flat_map(|quarter| (0..form.maps[side][0].len()).map(move |v| (quarter, v)))
            {
                let hot = pack(&form, side, |lane, at| {
                    code(&form, side, ((lane % 4, at) == (quarter, value)).then_some(0))
                });
                let mut expected = [[0.0; 8]; 16];
                for lane in (quarter..32).step_by(4) {
                    let [line, k] = form.maps[side][lane][value];
                    for across in 0..[8, 16][side] {
                        let (row, column) = if side == 0 { (line, across) } else { (across, line) };
                        expected[row][column] += f64::from(u8::from(digit(across, k).is_some()));
                    }
                }
                let operands = if side == 0 { [hot, other.clone()] } else { [other.clone(), hot] };
                let actual = run(&form, operands, &units, [0; 2]);
                assert_eq!(
                    actual, expected,
                    "{}: operand {side}, value {value} of lanes {quarter} + 4 n",
                    form.modifiers
                );
            }
        }
    }
}

/// Gives byte `byte` of the lanes `quarter + 4 n` a scale of its own, 2 to the power `n + 1` where all others
/// are 1; returns whether the product reads it, line by line. Each line that it serves must be one that CuTe
/// gives such a lane, all of them or none, and grow by what that lane scales.
fn served(form: &Form, side: usize, [byte, quarter, thread]: [usize; 3]) -> Vec<bool> {
    let about = format!(
        "{}: scales {side}, byte {byte} of lanes {quarter} + 4 n, thread-id {thread}",
        form.modifiers
    );
    let block = form.k / form.vec;
    // The other operand tells the blocks apart: 0.5, 1, 2 and 4.
    let exponent = |k: usize| [-1, 0, 1, 2][k / block];
    let operands =
        [0, 1].map(|at| matrix(form, at, |_, k| Some(if at == side { 0 } else { exponent(k) })));
    let weight = |k: usize| f64::from(exponent(k)).exp2();
    let total: f64 = (0..form.k).map(weight).sum();

    let mut scales = [scale(form, 0) * 0x0101_0101; 64];
    let mut added = vec![0.0; [16, 8][side]];
    for lane in (quarter..32).step_by(4) {
        let power = lane / 4 + 1;
        let word = &mut scales[side * 32 + lane];
        *word = *word & !(0xff << (byte * 8)) | scale(form, power) << (byte * 8);
        for [line, k] in form.maps[3 + side][lane].iter().skip(byte * block).take(block) {
            added[*line] += weight(*k) * f64::from((1u32 << power) - 1);
        }
    }
    let d = run(form, operands, &scales, if side == 0 { [thread, 0] } else { [0, thread] });
    let of_line = |line: usize| -> Vec<f64> {
        if side == 0 { d[line].to_vec() } else { d.iter().map(|row| row[line]).collect() }
    };
    let hit: Vec<bool> = (0..added.len()).map(|line| of_line(line)[0] != total).collect();
    let any = hit.contains(&true);
    for (line, added) in added.iter().enumerate() {
        assert_eq!(hit[line], any && *added > 0.0, "{about}: line {line}");
        let expected = if hit[line] { total + added } else { total };
        assert!(of_line(line).iter().all(|sum| *sum == expected), "{about}: line {line}");
    }
    hit
}

/// Under each thread-id, one lane serves a line; each lane serves its line under one thread-id. Bytes behind
/// the scales of a lane serve none.
#[test]
fn each_scale_serves_the_line_that_cute_gives_it() {
    for form in forms() {
        for (side, byte) in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)] {
            let (lines, threads) = ([16, 8][side], [2, 4][side]);
            let about = format!("{}: scales {side}, byte {byte}", form.modifiers);
            let times = usize::from(byte < form.vec);
            let hits: Vec<Vec<Vec<bool>>> = (0..threads)
                .map(|thread| {
                    (0..4).map(|quarter| served(&form, side, [byte, quarter, thread])).collect()
                })
                .collect();
            for (thread, quarters) in hits.iter().enumerate() {
                for line in 0..lines {
                    let lanes = quarters.iter().filter(|hit| hit[line]).count();
                    assert_eq!(lanes, times, "{about}, thread-id {thread}, line {line}");
                }
            }
            for quarter in 0..4 {
                let read = hits.iter().filter(|quarters| quarters[quarter].contains(&true)).count();
                assert_eq!(read, times, "{about}, lanes {quarter} + 4 n");
            }
        }
    }
}
