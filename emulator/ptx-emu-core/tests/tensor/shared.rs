//! Descriptors of shared-memory tiles and instructions: gathering against the
//! canonical layouts, and what is refused.

use proptest::prelude::*;
use ptx_emu_core::tensor::TensorError;
use ptx_emu_core::tensor::element::{Element, ScaleVec};
use ptx_emu_core::tensor::instruction::{InstructionDescriptor, Kind};
use ptx_emu_core::tensor::shared::{
    GatherError, Generation, Major, Operand, SharedDescriptor, Swizzle,
};
use ptx_emu_core::tensor::tile::Packing;
use ptx_emu_core::tensor::tmem::{CopyShape, DataPath, LoadShape};
use std::collections::HashSet;
use std::convert::Infallible;

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

/// The swizzle functor `<bits, base, 3>` (or 2) of the canonical layouts: the `bits`
/// bits from `base` up are XORed with those `shift` higher.
fn swizzled(swizzle: Swizzle, address: usize) -> usize {
    let (bits, base, shift) = match swizzle {
        Swizzle::None => (0, 4, 3),
        Swizzle::B32 => (1, 4, 3),
        Swizzle::B64 => (2, 4, 3),
        Swizzle::B128 => (3, 4, 3),
        Swizzle::B128Atom32 => (2, 5, 2),
    };
    let field = ((1 << bits) - 1) << base;
    address ^ (address >> shift & field)
}

/// Returns the place of element (`row`, `k`) of a tile in bytes: the canonical layouts in
/// coordinates of elements, `((T, w, m), (8, k))` and so on.
fn place(desc: &SharedDescriptor, major: Major, bytes: usize, row: usize, k: usize) -> usize {
    let (leading, stride) = (desc.leading as usize, desc.stride as usize);
    let width = desc.swizzle.width() as usize;
    let per_chunk = 16 / bytes;
    let unswizzled = match (major, desc.swizzle) {
        (Major::K, Swizzle::None) => {
            row % 8 * 16 + row / 8 * stride + k / per_chunk * leading + k % per_chunk * bytes
        }
        (Major::K, _) => row % 8 * width + row / 8 * stride + k * bytes,
        (Major::Mn, Swizzle::None) => {
            row % per_chunk * bytes + row / per_chunk * stride + k % 8 * 16 + k / 8 * leading
        }
        (Major::Mn, swizzle) => {
            let (lines, across) =
                (if swizzle == Swizzle::B128Atom32 { 4 } else { 8 }, width / bytes);
            row % across * bytes + row / across * leading + k % lines * width + k / lines * stride
        }
    };
    swizzled(desc.swizzle, desc.start as usize + unswizzled)
}

/// Fills a memory so that every element of a tile is unique, gathers it, compares.
fn check(desc: &SharedDescriptor, operand: &Operand) {
    let bytes = operand.element.bits() as usize / 8;
    let mut memory = vec![0u8; 1 << 18];
    let mut seen = HashSet::new();
    let number = |row: usize, k: usize| (row * operand.k + k + 1) as u32;
    for row in 0..operand.rows {
        for k in 0..operand.k {
            let at = place(desc, operand.major, bytes, row, k);
            assert!(seen.insert(at), "{desc:?}: elements overlap at {at:#x}");
            memory[at..at + bytes].copy_from_slice(&number(row, k).to_le_bytes()[..bytes]);
        }
    }
    let mut out = Vec::new();
    let read = |address: u32| {
        assert!(address.is_multiple_of(16), "{address:#x}");
        let from = address as usize;
        Ok::<_, Infallible>(memory[from..from + 16].try_into().expect("16 bytes"))
    };
    desc.gather(operand, read, &mut out).expect("gathers");
    for (at, actual) in out.chunks_exact(bytes).enumerate() {
        let (row, k) = (at / operand.k, at % operand.k);
        let expected = &number(row, k).to_le_bytes()[..bytes];
        assert_eq!(actual, expected, "{desc:?} {operand:?}: row {row} k {k}");
    }
}

fn k_of(element: Element) -> usize {
    256 / element.bits() as usize
}

#[test]
fn k_major_tiles_of_all_widths_and_steps() {
    for swizzle in SWIZZLES {
        let width = swizzle.width();
        for element in [Element::E4m3, Element::Bf16, Element::Tf32] {
            for rows in [8, 64, 136] {
                for step in 0..(width / 32).max(1) {
                    let desc = SharedDescriptor {
                        start: 0x4000 + step * 32,
                        leading: if swizzle == Swizzle::None { rows as u32 * 16 } else { 16 },
                        stride: 8 * width,
                        base_offset: 0,
                        swizzle,
                    };
                    let packing = Packing::Dense;
                    check(
                        &desc,
                        &Operand { element, packing, major: Major::K, rows, k: k_of(element) },
                    );
                }
            }
        }
    }
}

#[test]
fn mn_major_tiles_of_all_widths() {
    for swizzle in SWIZZLES.into_iter().chain([Swizzle::B128Atom32]) {
        let width = swizzle.width();
        for element in [Element::S8, Element::F16, Element::Tf32] {
            for rows in [16, 64, 256] {
                let k = k_of(element);
                let lines = if swizzle == Swizzle::B128Atom32 { 4 } else { 8 };
                let atoms = (rows as u32 * element.bits() / 8).div_ceil(width);
                // Atoms along K first, then along MN, and the other way round.
                let atom = width * lines;
                let orders = [(atom, atom * (k as u32 / lines)), (atom * atoms, atom)];
                for (k_stride, mn_stride) in orders {
                    let (leading, stride) = match swizzle {
                        Swizzle::None => (k_stride, mn_stride),
                        _ => (mn_stride, k_stride),
                    };
                    let desc = SharedDescriptor {
                        start: 0x2000,
                        leading,
                        stride,
                        base_offset: 0,
                        swizzle,
                    };
                    let packing = Packing::Dense;
                    check(&desc, &Operand { element, packing, major: Major::Mn, rows, k });
                }
            }
        }
    }
}

#[test]
fn padded_codes_are_unpacked() {
    for element in [Element::E2m1, Element::E3m2, Element::E4m3] {
        let bits = element.bits();
        for major in [Major::K, Major::Mn] {
            let desc = SharedDescriptor {
                start: 0,
                leading: 4096,
                stride: 128,
                base_offset: 0,
                swizzle: Swizzle::None,
            };
            let operand = Operand { element, packing: Packing::Padded, major, rows: 32, k: 32 };
            let code = |line: usize, at: usize| (line * 31 + at * 7) as u8 & (0xff >> (8 - bits));
            let read = |address: u32| {
                // The line (row or k) and the group of 16 elements across it.
                let address = address as usize;
                let (line, group) = match major {
                    Major::K => (address % 4096 / 16, address / 4096),
                    Major::Mn => (address / 4096 * 8 + address % 128 / 16, address % 4096 / 128),
                };
                let codes = (0..16).fold(0u128, |all, at| {
                    all | u128::from(code(line, group * 16 + at)) << (at as u32 * bits)
                });
                // Padding that must not be looked at.
                let padding = u128::MAX.checked_shl(16 * bits).unwrap_or(0);
                Ok::<_, Infallible>((codes | padding).to_le_bytes())
            };
            let mut out = Vec::new();
            desc.gather(&operand, read, &mut out).expect("gathers");
            assert_eq!(out.len(), 32 * 32);
            for (at, actual) in out.iter().enumerate() {
                let (row, k) = (at / 32, at % 32);
                let expected = if major == Major::K { code(row, k) } else { code(k, row) };
                assert_eq!(*actual, expected, "{element:?} {major:?}: row {row} k {k}");
            }
        }
    }
}

#[test]
fn a_base_offset_moves_the_pattern() {
    // A tile of 128-byte lines that starts 3 lines into a period, written by a
    // producer that counts lines from the tile's start.
    let desc = SharedDescriptor {
        start: 3 * 128,
        leading: 16,
        stride: 1024,
        base_offset: 3,
        swizzle: Swizzle::B128,
    };
    for row in 0..8 {
        for chunk in 0..2 {
            let expected = 3 * 128 + row * 128 + ((chunk ^ row) << 4);
            assert_eq!(desc.address(Major::K, row, chunk), expected, "row {row} chunk {chunk}");
        }
    }
}

#[test]
fn errors_of_reads_come_through() {
    let desc = SharedDescriptor::decode(Generation::Sm90, 0x4000_0040_0001_0000).expect("valid");
    let operand = Operand {
        element: Element::F16,
        packing: Packing::Dense,
        major: Major::K,
        rows: 64,
        k: 16,
    };
    let mut reads = 0;
    let result = desc.gather(
        &operand,
        |address| {
            reads += 1;
            if address >= 1024 { Err(address) } else { Ok([0; 16]) }
        },
        &mut Vec::new(),
    );
    assert_eq!(result, Err(GatherError::Read(1024)));
    assert_eq!(reads, 17);
}

#[test]
fn operands_that_do_not_exist() {
    let base = Operand {
        element: Element::E2m1,
        packing: Packing::Dense,
        major: Major::Mn,
        rows: 8,
        k: 64,
    };
    let cases = [
        (base, Swizzle::B128, "operand: major: required K for packed 4-bit types, actual MN"),
        (
            Operand { element: Element::F16, major: Major::K, k: 16, ..base },
            Swizzle::B128Atom32,
            "operand: major: required MN with swizzle atoms of 32 bytes, actual K",
        ),
        (
            Operand { major: Major::K, k: 48, ..base },
            Swizzle::None,
            "operand: k: required a multiple of 32, actual 48",
        ),
        (
            Operand { element: Element::E3m2, major: Major::K, ..base },
            Swizzle::None,
            "operand: element: required one of this packing, actual E3m2",
        ),
        (
            Operand { element: Element::F16, packing: Packing::Padded, ..base },
            Swizzle::None,
            "operand: element: required one of this packing, actual F16",
        ),
    ];
    for (operand, swizzle, expected) in cases {
        let desc = SharedDescriptor { start: 0, leading: 0, stride: 0, base_offset: 0, swizzle };
        let read = |_| -> Result<[u8; 16], Infallible> { panic!("nothing is read") };
        let error = desc.gather(&operand, read, &mut Vec::new()).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn descriptors_that_are_invalid() {
    use Generation::{Sm90, Sm100};
    let what = "shared-memory matrix descriptor";
    let cases = [
        (
            Sm100,
            0x4000_0040_0001_0000,
            "bits 46-48: required 0b1 in sm_100 descriptors, actual 0b0",
        ),
        (Sm90, 0x4000_4040_0001_0000, "bits 46-48: required 0b0 in sm_90 descriptors, actual 0b1"),
        (Sm100, 0x4010_4040_0001_0000, "bit 52, leading dimension mode: required 0b0"),
        (Sm100, 0x4020_4040_0001_0000, "bits 53-60: required 0b0"),
        (Sm100, 0x6000_4040_0001_0000, "swizzle, bits 61-63: required 0, 1, 2, 4 or 6, actual 3"),
        (Sm90, 0x6000_0040_0001_0000, "bits 52-61: required 0b0"),
    ];
    for (generation, bits, expected) in cases {
        let error = SharedDescriptor::decode(generation, bits).expect_err(expected).to_string();
        assert!(error.starts_with(&format!("{what}: {expected}")), "{bits:#x}: {error}");
    }
    let ok = SharedDescriptor::decode(Sm100, 0x2000_4040_0001_3fff).expect("valid");
    assert_eq!((ok.swizzle, ok.start), (Swizzle::B128Atom32, 0x3fff0));
}

#[test]
fn instruction_descriptors_that_are_invalid() {
    let nvfp4 = Kind::Mxf4nvf4(ScaleVec::X4);
    let cases: [(Kind, u32, u32, &str, &str); 16] = [
        (Kind::F16, 1, 0x0402_0010 | 1 << 23, "bit 23", "0"),
        (Kind::F16, 1, 0x0402_0090, "type of B, bits 10-12", "Bf16, as A"),
        (Kind::F16, 1, 0x0402_0110, "type of A, bits 7-9", "0 (f16) or 1 (bf16)"),
        (Kind::F16, 1, 0x0402_0020, "type of D, bits 4-5", "0 (f16) or 1 (f32)"),
        (Kind::F16, 1, 0x0402_0018, "saturate, bit 3", "0"),
        (Kind::F16, 1, 0x0302_0010, "M", "one of [64, 128]"),
        (Kind::F16, 2, 0x0402_0010, "M", "one of [128, 256]"),
        (Kind::F16, 2, 0x0802_0010, "N", "a multiple of 16, up to 256"),
        (Kind::F16, 1, 0x0400_0010, "N", "a multiple of 8, up to 256"),
        (Kind::Tf32, 1, 0x0402_0900, "type of D, bits 4-5", "1 (f32)"),
        (Kind::I8, 1, 0x0402_2020, "negate, bits 13-14", "0"),
        (
            Kind::F8f6f4,
            1,
            0x0402_0110,
            "type of A, bits 7-9",
            "0 (e4m3), 1 (e5m2), 3 (e2m3), 4 (e3m2) or 5 (e2m1)",
        ),
        (nvfp4, 1, 0x0840_0480 | 1 << 4, "scale B id, bits 4-5", "a multiple of 4, below 4"),
        (nvfp4, 1, 0x0840_8480, "transpose, bits 15-16", "0"),
        (Kind::Mxf4, 1, 0x0840_0480, "scale type, bit 23", "1 (ue8m0)"),
        (nvfp4, 1, 0x8840_0480, "bit 31, K", "0"),
    ];
    for (kind, ctas, bits, field, required) in cases {
        let error = InstructionDescriptor::decode(kind, ctas, bits)
            .expect_err(&format!("{kind:?} {bits:#010x}: {field}"));
        let TensorError { field: actual, required: actual_required, .. } = &error;
        assert_eq!((*actual, actual_required.as_str()), (field, required), "{bits:#010x}: {error}");
    }
    let error = InstructionDescriptor::decode(Kind::F16, 3, 0x0402_0010).expect_err("groups");
    assert_eq!(error.to_string(), "tcgen05.mma: cta_group: required 1 or 2, actual 3");
    // The reserved bits do not forbid negation, transposes, sparsity.
    let all = InstructionDescriptor::decode(Kind::F16, 1, 0x0402_0010 | 0xe007).expect("valid");
    assert!(all.negate_a && all.negate_b && all.sparse && all.a_major == Major::Mn);
    assert_eq!((all.sparsity, all.b_major, all.max_shift), (3, Major::K, 0));
    assert!(InstructionDescriptor::decode(Kind::I8, 1, 0x0402_0028).expect("valid").saturate);
}

/// Every register of every thread has cells of its own.
#[test]
fn load_shapes_are_bijections() {
    let shapes = [
        LoadShape::L32x32b,
        LoadShape::L16x64b,
        LoadShape::L16x128b,
        LoadShape::L16x256b,
        LoadShape::L16x32bx2 { offset: 32 },
    ];
    for shape in shapes {
        let mut repeat = 1;
        while repeat <= shape.max_repeat() {
            let (mut cells, mut halves) = (HashSet::new(), HashSet::new());
            for thread in 0..32 {
                for register in 0..shape.registers(repeat) {
                    let cell = shape.cell(thread, register);
                    assert!(cell.lane < shape.lanes(), "{shape:?}: {cell:?}");
                    if repeat <= 16 || !matches!(shape, LoadShape::L16x32bx2 { .. }) {
                        assert!(cells.insert(cell), "{shape:?} x{repeat}: {cell:?} twice");
                        for half in shape.packed_cells(thread, register) {
                            assert!(halves.insert(half), "{shape:?} x{repeat} packed: {half:?}");
                        }
                    }
                }
            }
            repeat *= 2;
        }
    }
    assert_eq!(LoadShape::L16x256b.max_repeat(), 32);
}

#[test]
fn copies_reach_the_lanes_of_their_warps() {
    let lanes = |shape: CopyShape| -> Vec<(u32, u32)> {
        let mut all: Vec<(u32, u32)> = (0..shape.rows())
            .flat_map(|row| {
                let (first, count, gap) = shape.lanes(row);
                (0..count).map(move |copy| (first + copy * gap, row))
            })
            .collect();
        all.sort_unstable();
        all
    };
    let full: Vec<_> = (0..128).map(|lane| (lane, lane)).collect();
    assert_eq!(lanes(CopyShape::C128x256b), full);
    assert_eq!(lanes(CopyShape::C128x128b), full);
    assert_eq!(lanes(CopyShape::C4x256b), [(0, 0), (32, 1), (64, 2), (96, 3)]);
    let of = |row: fn(u32) -> u32| (0..128).map(|lane| (lane, row(lane))).collect::<Vec<_>>();
    assert_eq!(lanes(CopyShape::C32x128b), of(|lane| lane % 32));
    assert_eq!(lanes(CopyShape::C64x128bWarps02), of(|lane| lane % 64));
    assert_eq!(lanes(CopyShape::C64x128bWarps01), of(|lane| lane / 64 * 32 + lane % 32));
    assert_eq!(CopyShape::parse("32x128b", ""), None);
    assert_eq!(CopyShape::parse("64x128b", "warpx2::01_23"), Some(CopyShape::C64x128bWarps01));
}

#[test]
fn data_paths_are_injective() {
    for (ctas, m) in [(1, 64), (1, 128), (2, 128), (2, 256)] {
        let path = DataPath::of(ctas, m).expect("a shape");
        let mut cells = HashSet::new();
        for row in 0..path.rows() as u32 {
            for column in 0..64 {
                let cell = path.accumulator(64, row, column);
                assert!(cell.lane < 128 && (cell.column as usize) < path.columns(64), "{cell:?}");
                assert!(cells.insert(cell), "{path:?}: {cell:?} twice");
            }
        }
    }
    assert_eq!(DataPath::of(1, 256), None);
}

proptest! {
    #[test]
    fn decoding_never_panics(bits in any::<u64>(), ctas in 0u32..4) {
        let _ = SharedDescriptor::decode(Generation::Sm90, bits);
        if let Ok(desc) = SharedDescriptor::decode(Generation::Sm100, bits | 1 << 46) {
            for (line, chunk) in [(0, 0), (255, 1), (63, 63), (u32::MAX, u32::MAX)] {
                for major in [Major::K, Major::Mn] {
                    prop_assert_eq!(desc.address(major, line, chunk) % 16, 0);
                }
            }
        }
        for kind in [Kind::F16, Kind::I8, Kind::Mxf8f6f4, Kind::Mxf4nvf4(ScaleVec::X4)] {
            if let Ok(desc) = InstructionDescriptor::decode(kind, ctas, bits as u32) {
                prop_assert!(DataPath::of(ctas, desc.m).is_some());
            }
        }
    }
}
