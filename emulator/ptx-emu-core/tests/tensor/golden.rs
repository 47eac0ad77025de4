//! Layouts and descriptors against what NVIDIA's own library computes.

use ptx_emu_core::tensor::element::{Element, ScaleType, ScaleVec};
use ptx_emu_core::tensor::fragment::{
    Fragment, accumulator, scale_lane_a, scale_lane_b, wgmma_a, wgmma_accumulator,
};
use ptx_emu_core::tensor::instruction::{Accumulator, InstructionDescriptor, Kind};
use ptx_emu_core::tensor::shared::{Generation, Major, SharedDescriptor, Swizzle};
use ptx_emu_core::tensor::tmem::{Cell, CopyShape, DataPath, LoadShape, scale};
use serde_json::Value;

fn golden(text: &str, list: &str) -> Vec<Value> {
    let root: Value = serde_json::from_str(text).expect("golden data is JSON");
    let entries = root[list].as_array().expect("a list of entries").clone();
    assert!(!entries.is_empty(), "{list} is empty");
    entries
}

macro_rules! golden {
    ($file:literal, $list:literal) => {
        golden(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/", $file)),
            $list,
        )
    };
}

pub fn int(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}")) as usize
}

pub fn ints(value: &Value) -> Vec<usize> {
    value.as_array().expect("a list").iter().map(int).collect()
}

pub fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn hex(value: &Value) -> u64 {
    let digits = text(value).strip_prefix("0x").expect("hexadecimal");
    u64::from_str_radix(digits, 16).expect("hexadecimal")
}

/// Elements and scales in registers: entries of `mma_regs.json`.
pub fn registers() -> Vec<Value> {
    golden!("ptx_golden/mma_regs.json", "entries")
}

#[test]
fn golden_register_layouts() {
    let entries = registers();
    assert_eq!(entries.len(), 22);
    for entry in &entries {
        let (op, operand) = (text(&entry["op"]), text(&entry["operand"]));
        let values = int(&entry["values"]);
        for (thread, map) in entry["map"].as_array().expect("threads").iter().enumerate() {
            let (warp, lane) = (thread / 32, thread % 32);
            for value in 0..values {
                let expected = ints(&map[value]);
                let place = |fragment: Fragment| {
                    let (row, k) = fragment.place(lane, value / fragment.per_register);
                    (row, k + value % fragment.per_register)
                };
                let actual = match (op, operand) {
                    (_, "D") if op.starts_with("wgmma") => wgmma_accumulator(warp, lane, value),
                    ("wgmma.m64nNk16.f16", "A") => {
                        let (row, k) = wgmma_a(warp, lane, value / 2, 16);
                        (row, k + value % 2)
                    }
                    ("wgmma.m64nNk32.8bit", "A") => {
                        let (row, k) = wgmma_a(warp, lane, value / 4, 8);
                        (row, k + value % 4)
                    }
                    (_, "D") => accumulator(lane, value),
                    (_, "A") if op.contains("k32") => place(Fragment::new(16, 32, 8)),
                    (_, "B") if op.contains("k32") => place(Fragment::new(8, 32, 8)),
                    (_, "A") => place(Fragment::new(16, 64, 4)),
                    (_, "B") => place(Fragment::new(8, 64, 4)),
                    // Selector 0; the lanes that repeat a row are not read.
                    (_, "SFA(row,k)") => {
                        let row = expected[0];
                        assert!(scale_lane_a(row, 0) == lane || lane % 4 > 1, "{op} SFA {lane}");
                        (row, value)
                    }
                    (_, "SFB(col,k)") => {
                        let column = expected[0];
                        assert!(scale_lane_b(column, 0) == lane || lane % 4 > 0, "{op} SFB {lane}");
                        (column, value)
                    }
                    other => panic!("unknown entry {other:?}"),
                };
                assert_eq!(
                    actual,
                    (expected[0], expected[1]),
                    "{op} {operand} thread {thread} value {value}"
                );
            }
        }
    }
}

#[test]
fn golden_scale_selectors() {
    let entries = golden!("ptx_golden/mma_regs.json", "selectors");
    assert_eq!(entries.len(), 6 * (4 + 2 + 1));
    for entry in &entries {
        let vec = match text(&entry["scale_vec"]) {
            "1X" => ScaleVec::X1,
            "2X" => ScaleVec::X2,
            "4X" => ScaleVec::X4,
            other => panic!("unknown vector {other}"),
        };
        let (byte, thread) = (int(&entry["byte_id"]), int(&entry["thread_id"]));
        assert!(vec.accepts_id(byte as u32), "{entry}");
        assert_eq!(
            ints(&entry["bytes"]),
            (byte..byte + vec.count()).collect::<Vec<_>>(),
            "{entry}"
        );
        let lane = match text(&entry["operand"]) {
            "A" => scale_lane_a,
            "B" => scale_lane_b,
            other => panic!("unknown operand {other}"),
        };
        for (line, expected) in ints(&entry["lanes"]).into_iter().enumerate() {
            assert_eq!(lane(line, thread), expected, "{entry}");
        }
    }
}

fn scale_kind(kind: &str, block: usize) -> Kind {
    match (kind, block) {
        ("mxf8f6f4", 32) => Kind::Mxf8f6f4,
        ("mxf4", 32) => Kind::Mxf4,
        ("mxf4nvf4", 16) => Kind::Mxf4nvf4(ScaleVec::X4),
        ("mxf4nvf4", 32) => Kind::Mxf4nvf4(ScaleVec::X2),
        other => panic!("unknown kind {other:?}"),
    }
}

fn element(value: &Value) -> Element {
    Element::parse(text(value)).unwrap_or_else(|| panic!("unknown type {value}"))
}

#[test]
fn golden_block_scaled_instruction_descriptors() {
    let entries = golden!("ptx_golden/instr_desc.json", "block_scaled");
    assert_eq!(entries.len(), 156);
    for entry in &entries {
        let kind = scale_kind(text(&entry["kind"]), int(&entry["block"]));
        let ctas = int(&entry["cta_group"]) as u32;
        let decoded = InstructionDescriptor::decode(kind, ctas, int(&entry["idesc"]) as u32)
            .unwrap_or_else(|error| panic!("{entry}: {error}"));
        assert_eq!(decoded.m, int(&entry["m"]), "{entry}");
        assert_eq!(decoded.n, int(&entry["n"]), "{entry}");
        assert_eq!(decoded.kind.k(), int(&entry["k"]), "{entry}");
        assert_eq!(decoded.a, element(&entry["a"]), "{entry}");
        assert_eq!(decoded.b, element(&entry["b"]), "{entry}");
        assert_eq!(decoded.d, Accumulator::F32, "{entry}");
        let scaling = decoded.scaling.expect("block-scaled");
        assert_eq!(Some(scaling.scale), ScaleType::parse(text(&entry["sf"])), "{entry}");
        assert_eq!(scaling.a_id as usize, int(&entry["sfa_id"]), "{entry}");
        assert_eq!(scaling.b_id as usize, int(&entry["sfb_id"]), "{entry}");
        assert_eq!((decoded.a_major, decoded.b_major), (Major::K, Major::K), "{entry}");
        assert!(!decoded.negate_a && !decoded.negate_b && !decoded.sparse, "{entry}");
    }
}

#[test]
fn golden_dense_instruction_descriptors() {
    let entries = golden!("ptx_golden/instr_desc.json", "dense");
    assert_eq!(entries.len(), 117);
    for entry in &entries {
        let kind = Kind::parse(text(&entry["kind"]), None).expect("a kind");
        let ctas = int(&entry["cta_group"]) as u32;
        let decoded = InstructionDescriptor::decode(kind, ctas, int(&entry["idesc"]) as u32)
            .unwrap_or_else(|error| panic!("{entry}: {error}"));
        let major = |name: &str| if int(&entry[name]) == 1 { Major::Mn } else { Major::K };
        let d = if text(&entry["d"]) == "f16" { Accumulator::F16 } else { Accumulator::F32 };
        assert_eq!(
            (decoded.m, decoded.n, kind.k(), decoded.d, decoded.scaling),
            (int(&entry["m"]), int(&entry["n"]), int(&entry["k"]), d, None),
            "{entry}"
        );
        assert_eq!(
            (decoded.a, decoded.b, decoded.a_major, decoded.b_major),
            (element(&entry["a"]), element(&entry["b"]), major("trans_a"), major("trans_b")),
            "{entry}"
        );
    }
}

fn swizzle(value: &Value) -> Swizzle {
    match text(value) {
        "none" => Swizzle::None,
        "32B" => Swizzle::B32,
        "64B" => Swizzle::B64,
        "128B" => Swizzle::B128,
        other => panic!("unknown swizzle {other}"),
    }
}

/// Offset in a packed K-major tile of `rows` rows, by the closed formula.
fn packed_offset(swizzle: Swizzle, rows: usize, row: usize, byte: usize) -> usize {
    let width = swizzle.width() as usize;
    let unswizzled = byte / width * (rows * width) + row * width + byte % width;
    unswizzled ^ (unswizzled >> 7 & (width / 16 - 1)) << 4
}

#[test]
fn golden_shared_memory_descriptors() {
    let entries = golden!("ptx_golden/smem_desc.json", "k_major");
    assert_eq!(entries.len(), 560);
    for entry in &entries {
        let swizzle = swizzle(&entry["swizzle"]);
        let (rows, start) = (int(&entry["rows"]), int(&entry["start"]));
        let step = int(&entry["k_step"]);
        for (name, generation) in [("sm100", Generation::Sm100), ("sm90", Generation::Sm90)] {
            if entry[name].is_null() {
                assert_eq!((name, text(&entry["elem"])), ("sm90", "e2m1"), "{entry}");
                continue;
            }
            let decoded = SharedDescriptor::decode(generation, hex(&entry[name]))
                .unwrap_or_else(|error| panic!("{entry}: {error}"));
            assert_eq!(decoded.swizzle, swizzle, "{entry}");
            assert_eq!(decoded.base_offset, 0, "{entry}");
            assert_eq!(decoded.leading as usize, int(&entry["lbo16"]) * 16, "{entry}");
            assert_eq!(decoded.stride as usize, int(&entry["sbo16"]) * 16, "{entry}");
            let from = start + int(&entry["k_step_bytes"]);
            assert_eq!(decoded.start as usize, from, "{entry}");
            // Every chunk of the step where the tile has it, also when the step
            // starts inside a swizzle period.
            for row in 0..rows {
                for chunk in 0..2 {
                    let byte = step * 32 + chunk * 16;
                    assert_eq!(
                        decoded.address(Major::K, row as u32, chunk as u32) as usize,
                        start + packed_offset(swizzle, rows, row, byte),
                        "{entry} row {row} chunk {chunk}"
                    );
                }
            }
        }
    }
}

#[test]
fn golden_swizzle_offsets() {
    let entries = golden!("formats/swizzle_offsets.json", "k_major");
    for entry in &entries {
        let swizzle = swizzle(&entry["swizzle"]);
        let (rows, width) = (int(&entry["rows"]), int(&entry["row_bytes"]));
        assert_eq!(swizzle.width() as usize, width, "{}", entry["swizzle"]);
        let per_atom = width / 16;
        let table = entry["offset_of_16B_chunk"].as_array().expect("rows");
        assert_eq!(table.len(), rows);
        for (row, chunks) in table.iter().enumerate() {
            for (chunk, expected) in ints(chunks).into_iter().enumerate() {
                let atom = SharedDescriptor {
                    start: (chunk / per_atom * rows * width) as u32,
                    leading: 0,
                    stride: 8 * width as u32,
                    base_offset: 0,
                    swizzle,
                };
                assert_eq!(
                    atom.address(Major::K, row as u32, (chunk % per_atom) as u32) as usize,
                    expected,
                    "{} row {row} chunk {chunk}",
                    entry["swizzle"]
                );
            }
        }
    }
}

#[test]
fn golden_accumulators() {
    let entries = golden!("ptx_golden/acc_tmem.json", "entries");
    assert_eq!(entries.len(), 6);
    for entry in &entries {
        let path =
            DataPath::of(int(&entry["cta_group"]) as u32, int(&entry["m"])).expect("a shape");
        let n = int(&entry["n"]) as u32;
        for line in entry["map"].as_array().expect("lines") {
            let [row, column, lane, at] = ints(line)[..] else { panic!("{line}") };
            assert_eq!(
                path.accumulator(n, row as u32, column as u32),
                Cell { lane: lane as u32, column: at as u32 },
                "{path:?} N {n} row {row} column {column}"
            );
            assert!(row < path.rows() && at < path.columns(n as usize));
        }
    }
}

#[test]
fn golden_tcgen05_ld_registers() {
    let entries = golden!("ptx_golden/tcgen05_ld_regs.json", "entries");
    assert_eq!(entries.len(), 15);
    for entry in &entries {
        let name = text(&entry["shape"]);
        let mut parts = name.split('.');
        let shape = match parts.next() {
            Some("32x32b") => LoadShape::L32x32b,
            Some("16x64b") => LoadShape::L16x64b,
            Some("16x128b") => LoadShape::L16x128b,
            Some("16x256b") => LoadShape::L16x256b,
            other => panic!("unknown shape {other:?}"),
        };
        let repeat = parts.next().and_then(|x| x[1..].parse().ok()).expect("a repeat");
        assert_eq!(shape.registers(repeat) as usize, int(&entry["regs"]), "{name}");
        for line in entry["map"].as_array().expect("lines") {
            let line: Vec<u32> = ints(line).into_iter().map(|x| x as u32).collect();
            let (thread, register) = (line[0], line[1]);
            let cells: Vec<Cell> =
                line[2..].chunks(2).map(|c| Cell { lane: c[0], column: c[1] }).collect();
            if int(&entry["pack16"]) == 1 {
                let actual = shape.packed_cells(thread, register);
                assert_eq!(actual.as_slice(), cells, "{name} {thread} {register}");
            } else {
                let actual = shape.cell(thread, register);
                assert_eq!([actual].as_slice(), cells, "{name} {thread} {register}");
            }
        }
    }
}

/// Groups of 32 rows that an operand of a tile stages in a CTA.
fn groups(entry: &Value, operand: &str) -> u32 {
    let tile = ints(&entry["tile_mnk"]);
    let rows = if operand == "A" { tile[0] / int(&entry["cta_group"]) } else { tile[1] };
    rows.next_multiple_of(128) as u32 / 32
}

fn scales_per_step(entry: &Value) -> usize {
    let kind = scale_kind(text(&entry["mma"]), int(&entry["block"]));
    kind.scale_vec().expect("block-scaled").count()
}

#[test]
fn golden_scales_in_tensor_memory() {
    let entries = golden!("ptx_golden/sf_tmem.json", "entries");
    assert_eq!(entries.len(), 12);
    for entry in &entries {
        let groups = groups(entry, text(&entry["operand"]));
        let count = scales_per_step(entry);
        for line in entry["map"].as_array().expect("lines") {
            let [row, step, index, _, lane, column, byte] = ints(line)[..] else {
                panic!("{line}")
            };
            let actual = scale(groups, row as u32, (step * count + index) as u32);
            assert_eq!(
                (actual.cell.lane as usize, actual.cell.column as usize, actual.byte as usize),
                (lane, column, byte),
                "{} {} row {row} step {step} scale {index}",
                entry["mma"],
                entry["operand"]
            );
        }
    }
}

#[test]
fn golden_copies_put_scales_where_the_product_looks() {
    let entries = golden!("ptx_golden/sf_utccp.json", "entries");
    assert_eq!(entries.len(), 6);
    let shape = CopyShape::parse("32x128b", "warpx4").expect("a shape");
    for entry in &entries {
        for copy in entry["copies"].as_array().expect("copies") {
            let desc = SharedDescriptor::decode(Generation::Sm100, hex(&copy["desc"]))
                .unwrap_or_else(|error| panic!("{copy}: {error}"));
            let groups = groups(entry, text(&copy["operand"]));
            let (block, atom) = (int(&copy["row_block"]) as u32, int(&copy["k_atom"]) as u32);
            for row in 0..shape.rows() {
                // Byte 4c + b of row i is scale b of row 32c + i.
                let address = desc.address(Major::K, row, 0);
                assert_eq!(address as usize, int(&copy["smem_byte"]) + 16 * row as usize, "{copy}");
                assert_eq!(shape.lanes(row), (row, 4, 32), "{copy}");
                for column in 0..shape.columns() {
                    let wanted = scale(groups, block * 128 + column * 32 + row, atom * 4);
                    assert_eq!(
                        (wanted.cell.lane, wanted.cell.column as usize, wanted.byte),
                        (row, int(&copy["tmem_column"]) + column as usize, 0),
                        "{copy} row {row} column {column}"
                    );
                }
            }
        }
        let count = scales_per_step(entry);
        for (name, operand) in [("sfa_addr_per_k_step", "A"), ("sfb_addr_per_k_step", "B")] {
            for (step, address) in entry[name].as_array().expect("steps").iter().enumerate() {
                let first = scale(groups(entry, operand), 0, (step * count) as u32);
                let address = hex(address) as u32;
                assert_eq!(
                    (first.cell.column, first.byte),
                    (address & 0xffff, address >> 30),
                    "{} {name} step {step}",
                    entry["mma"]
                );
            }
        }
    }
}
