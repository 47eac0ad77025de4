//! Data into, out of and within tensor memory: `tcgen05.ld`, `.st`, `.cp`, `.shift` of
//! every shape, against the layouts of the PTX ISA. All of tensor memory is compared.

use crate::tensor_cores::tmem::{Program, Tmem};
use crate::tensor_cores::{Layout, Matrix, Random, Ty, vector};
use ptx_emu_core::Schedule;

const SOME: [Schedule; 3] = [Schedule::Eager, Schedule::Lazy, Schedule::Random(1)];

/// Shape and registers per thread at `.x1`.
const SHAPES: [(&str, u32); 5] =
    [("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4), ("16x32bx2", 1)];

/// Columns from the lower to the upper threads of `.16x32bx2`.
const SPLIT: u32 = 160;

/// Lane and column of a register of a thread (the fact sheet's table). `wide`: of its
/// low half, columns counting for 16 bits each.
fn cell(shape: &str, thread: u32, register: u32, wide: bool) -> (u32, u32) {
    let (t, r) = (thread, register);
    let scale = if wide { 2 } else { 1 };
    match shape {
        "32x32b" => (t, r * scale),
        "16x64b" => (t / 4 + 8 * (t & 1), (2 * r + t / 2 % 2) * scale),
        "16x128b" => (t / 4 + 8 * (r & 1), (4 * (r / 2) + t % 4) * scale),
        "16x256b" => (t / 4 + 8 * (r / 2 % 2), (8 * (r / 4) + 2 * (t % 4) + (r & 1)) * scale),
        _ => (t % 16, r * scale + if t >= 16 { SPLIT } else { 0 }),
    }
}

/// Every shape, repetition, packing and half of the warp's lanes.
fn accesses() -> Vec<(&'static str, u32, u32, bool, u32)> {
    let mut found = Vec::new();
    for (shape, each) in SHAPES {
        for repeat in (0..8).map(|log| 1 << log).filter(|repeat| repeat * each <= 128) {
            for wide in [false, true] {
                for half in [0, 16] {
                    // The farthest register must exist; two parts must not overlap.
                    let far = cell(shape, 31, repeat * each - 1, wide).1 + 1;
                    let part = if shape == "16x32bx2" { repeat * (1 + u32::from(wide)) } else { 0 };
                    let whole = shape == "32x32b" && half != 0;
                    if !whole && far + u32::from(wide) < 512 && part <= SPLIT {
                        found.push((shape, repeat, each * repeat, wide, half));
                    }
                }
            }
        }
    }
    found
}

fn offset(shape: &str) -> String {
    if shape == "16x32bx2" { format!(", {SPLIT}") } else { String::new() }
}

fn program(tmem: &Tmem, then: String) -> Program {
    let mut program = Program::new(1, vec![Vec::new()], vec![tmem.clone()], String::new());
    program.then = then;
    program
}

/// Registers back to the first columns, a register per column.
fn spill(registers: u32) -> String {
    let values = vector("x", registers as usize);
    format!(
        "tcgen05.st.sync.aligned.32x32b.x{registers}.b32 [%r51], {values};
        tcgen05.wait::st.sync.aligned;\n"
    )
}

#[test]
fn loads_of_every_shape() {
    let tmem = Tmem::distinct(5);
    for (shape, repeat, registers, wide, half) in accesses() {
        let pack = if wide { ".pack::16b" } else { "" };
        let values = vector("x", registers as usize);
        let then = format!(
            "add.u32 %r52, %r51, {:#x};
            tcgen05.ld.sync.aligned.{shape}.x{repeat}{pack}.b32 {values}, [%r52]{};
            tcgen05.wait::ld.sync.aligned;\n{}",
            half << 16 | 1,
            offset(shape),
            spill(registers),
        );
        let mut expected = tmem.clone();
        for warp in 0..4 {
            for (thread, register) in (0..32).flat_map(|t| (0..registers).map(move |r| (t, r))) {
                let (lane, column) = cell(shape, thread, register, wide);
                let get =
                    |column: u32| tmem.get((32 * warp + half + lane) as usize, 1 + column as usize);
                let value =
                    if wide { get(column) & 0xffff | get(column + 1) << 16 } else { get(column) };
                expected.put((32 * warp + thread) as usize, register as usize, value);
            }
        }
        program(&tmem, then).gives(&[expected], &SOME[..1], &format!("{shape}.x{repeat}{pack}"));
    }
}

#[test]
fn golden_loads() {
    let text = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/data/ptx_golden/tcgen05_ld_regs.json"
    ));
    let root: serde_json::Value = serde_json::from_str(text).expect("golden data is JSON");
    let tmem = Tmem::distinct(9);
    let entries = root["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 15);
    for entry in entries {
        let shape = entry["shape"].as_str().expect("a shape");
        let registers = entry["regs"].as_u64().expect("registers") as u32;
        let values = vector("x", registers as usize);
        let then = format!(
            "tcgen05.ld.sync.aligned.{shape}.b32 {values}, [%r51];
            tcgen05.wait::ld.sync.aligned;\n{}",
            spill(registers)
        );
        let mut expected = tmem.clone();
        for place in entry["map"].as_array().expect("a map") {
            let place: Vec<usize> = place
                .as_array()
                .expect("a place")
                .iter()
                .map(|number| number.as_u64().expect("a number") as usize)
                .collect();
            for base in [0, 32, 64, 96] {
                let value = match place[2..] {
                    [lane, column] => tmem.get(base + lane, column),
                    [low_lane, low, high_lane, high] => {
                        tmem.get(base + low_lane, low) & 0xffff
                            | tmem.get(base + high_lane, high) << 16
                    }
                    _ => panic!("{place:?}"),
                };
                expected.put(base + place[0], place[1], value);
            }
        }
        program(&tmem, then).gives(&[expected], &SOME, shape);
    }
}

#[test]
fn stores_of_every_shape() {
    let tmem = Tmem::distinct(6);
    for (shape, repeat, registers, wide, half) in accesses() {
        let unpack = if wide { ".unpack::16b" } else { "" };
        let values = vector("x", registers as usize);
        let then = format!(
            "tcgen05.ld.sync.aligned.32x32b.x{registers}.b32 {values}, [%r51];
            tcgen05.wait::ld.sync.aligned;
            add.u32 %r52, %r51, {:#x};
            tcgen05.st.sync.aligned.{shape}.x{repeat}{unpack}.b32 [%r52]{}, {values};
            tcgen05.wait::st.sync.aligned;\n",
            half << 16 | 1,
            offset(shape),
        );
        let mut expected = tmem.clone();
        for warp in 0..4 {
            for (thread, register) in (0..32).flat_map(|t| (0..registers).map(move |r| (t, r))) {
                let (lane, column) = cell(shape, thread, register, wide);
                let (lane, column) = ((32 * warp + half + lane) as usize, 1 + column as usize);
                let value = tmem.get((32 * warp + thread) as usize, register as usize);
                if wide {
                    expected.put(lane, column, value & 0xffff);
                    expected.put(lane, column + 1, value >> 16);
                } else {
                    expected.put(lane, column, value);
                }
            }
        }
        program(&tmem, then).gives(&[expected], &SOME[..1], &format!("{shape}.x{repeat}{unpack}"));
    }
}

/// Shape of a copy: its rows, bytes per row, and the lanes that get a row.
type Copy = (&'static str, usize, usize, fn(usize) -> Vec<usize>);

const COPIES: [Copy; 6] = [
    ("128x256b", 128, 32, |row| vec![row]),
    ("4x256b", 4, 32, |row| vec![32 * row]),
    ("128x128b", 128, 16, |row| vec![row]),
    ("64x128b.warpx2::02_13", 64, 16, |row| vec![row, row + 64]),
    ("64x128b.warpx2::01_23", 64, 16, |row| {
        let first = row / 32 * 64 + row % 32;
        vec![first, first + 32]
    }),
    ("32x128b.warpx4", 32, 16, |row| vec![row, row + 32, row + 64, row + 96]),
];

#[test]
fn copies_of_every_shape_and_source_format() {
    for (shape, rows, bytes, lanes) in COPIES {
        for (format, ty) in
            [("", Ty::U8), (".b8x16.b4x16_p64", Ty::E2m1), (".b8x16.b6x16_p32", Ty::E3m2)]
        {
            for (width, group) in [(16, 1), (32, 2), (64, 1), (128, 2)] {
                let mut random = Random::new(rows as u64);
                let mut images = Vec::new();
                let mut tmem = Vec::new();
                let mut expected = Vec::new();
                let layout = Layout::new(ty, false, width, rows, 0);
                for rank in 0..group {
                    let matrix = Matrix::new(ty, rows, bytes, &mut random);
                    let mut image = Vec::new();
                    layout.store(&matrix, &mut image);
                    images.push(image);
                    tmem.push(Tmem::distinct(rank));
                    let mut after = Tmem::distinct(rank);
                    for row in 0..rows {
                        for (byte, lane) in
                            (0..bytes).flat_map(|b| lanes(row).into_iter().map(move |l| (b, l)))
                        {
                            let code = matrix.code(row, byte) as u8;
                            after.put_byte(lane, 36 + byte / 4, byte % 4, code);
                        }
                    }
                    expected.push(after);
                }
                let issue = format!(
                    "add.u32 %r10, %r50, 36; mov.b64 %d10, {:#x};
                    tcgen05.cp.cta_group::{group}.{shape}{format} [%r10], %d10;\n",
                    layout.descriptor(1024, true)
                );
                let program = Program::new(group as usize, images, tmem, issue);
                program.gives(&expected, &SOME, &format!("{shape}{format}, swizzle {width}"));
            }
        }
    }
}

#[test]
fn golden_copies_put_scales_where_the_product_looks() {
    let root: serde_json::Value = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/data/ptx_golden/sf_utccp.json"
    )))
    .expect("golden data is JSON");
    let scales: serde_json::Value = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/data/ptx_golden/sf_tmem.json"
    )))
    .expect("golden data is JSON");
    let int = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
    let copies = root["entries"].as_array().expect("entries");
    let mut compared = 0;
    for entry in copies {
        // The stage of each operand at the same place: one at a time.
        for operand in ["A", "B"] {
            let mut random = Random::new(3);
            let mut issue = String::new();
            let list = entry["copies"].as_array().expect("copies");
            let mut end = 0;
            for copy in list.iter().filter(|copy| copy["operand"] == operand) {
                let digits = copy["desc"].as_str().expect("a descriptor").trim_start_matches("0x");
                let bits = u64::from_str_radix(digits, 16).expect("hexadecimal");
                // Descriptors are of a stage at address 0; here it is at 1024.
                issue += &format!(
                    "add.u32 %r10, %r50, {}; mov.b64 %d10, {:#x};
                    tcgen05.cp.cta_group::1.32x128b.warpx4 [%r10], %d10;\n",
                    int(&copy["tmem_column"]),
                    bits + (1024 >> 4)
                );
                end = end.max(int(&copy["smem_byte"]) + 512);
            }
            let image: Vec<u8> = (0..end).map(|_| random.bits() as u8).collect();
            let program = Program::new(1, vec![image.clone()], vec![Tmem::distinct(1)], issue);
            let after = program.run(Schedule::Lazy).expect("a run").remove(0);
            let same = |map: &&serde_json::Value| {
                map["operand"] == operand
                    && map["mma"] == entry["mma"]
                    && map["cta_group"] == entry["cta_group"]
                    && map["tile_mnk"][0] == entry["tile_mnk"][0]
                    && map["tile_mnk"][1] == entry["tile_mnk"][1]
                    && map["block"] == entry["block"]
            };
            for map in scales["entries"].as_array().expect("entries").iter().filter(same) {
                for place in map["map"].as_array().expect("a map") {
                    let place: Vec<usize> =
                        place.as_array().expect("a place").iter().map(int).collect();
                    let [.., smem, lane, column, byte] = place[..] else {
                        panic!("{place:?}");
                    };
                    for copy in [0, 32, 64, 96] {
                        let actual = (after.get(lane + copy, column) >> (8 * byte)) as u8;
                        assert_eq!(actual, image[smem], "{operand} {place:?} of {}", entry["mma"]);
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn shifts_move_a_quarter_of_the_lanes_down() {
    for (lane, column, group) in [(0, 0, 1), (32, 8, 1), (96, 500, 1), (64, 40, 2)] {
        let tmem: Vec<Tmem> = (0..group).map(|rank| Tmem::distinct(70 + rank)).collect();
        let mut expected = tmem.clone();
        for (expected, tmem) in expected.iter_mut().zip(&tmem) {
            for at in 1..32 {
                for column in column..column + 8 {
                    expected.put(lane + at, column, tmem.get(lane + at - 1, column));
                }
            }
        }
        let issue = format!(
            "add.u32 %r10, %r50, {:#x}; tcgen05.shift.cta_group::{group}.down [%r10];\n",
            lane << 16 | column
        );
        let images = vec![Vec::new(); group as usize];
        Program::new(group as usize, images, tmem, issue).gives(&expected, &SOME, "shift");
    }
}
