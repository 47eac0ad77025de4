//! Every entry of the golden files printed by NVIDIA's own headers (see tests/data/formats).

use fp4_formats::{ScaleLayout, Swizzle, e2m1, e4m3, pack, swizzle, ue8m0};
use serde_json::Value;

fn load(name: &str) -> Value {
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/formats/{}"), name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("field {field} is not a list"))
}

fn uint(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count")) as usize
}

/// f16 bits to f32, exact and independent of the crate under test.
fn f16(bits: usize) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f32);
    match exponent {
        31 if mantissa == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        0 => sign * mantissa * 2f32.powi(-24),
        e => sign * (1.0 + mantissa / 1024.0) * 2f32.powi(e - 15),
    }
}

fn check_decode(
    table: &str,
    expected: impl Fn(usize) -> f32,
    decode: impl Fn(u8) -> f32,
    len: usize,
) {
    let golden = load("conversions.json");
    let values = items(&golden, table);
    assert_eq!(values.len(), len, "{table}");
    for (code, bits) in values.iter().enumerate() {
        let (want, got) = (expected(uint(bits)), decode(code as u8));
        let same = if want.is_nan() { got.is_nan() } else { got.to_bits() == want.to_bits() };
        assert!(same, "{table}[{code}]: got {got:e}, expected {want:e}");
    }
}

fn check_encode(table: &str, encode: impl Fn(f32) -> u8, at_least: usize) {
    let golden = load("conversions.json");
    let samples = items(&golden, table);
    assert!(samples.len() >= at_least, "{table} has only {} samples", samples.len());
    for (index, sample) in samples.iter().enumerate() {
        let x = f32::from_bits(uint(&sample[0]) as u32);
        let (want, got) = (uint(&sample[1]), usize::from(encode(x)));
        assert_eq!(got, want, "{table}[{index}]: {x:e} ({:#010x})", x.to_bits());
    }
}

#[test]
fn golden_decode_tables() {
    check_decode("e2m1_to_f16_bits", f16, e2m1::decode, 16);
    check_decode("e4m3_to_f16_bits", f16, e4m3::decode, 256);
    check_decode(
        "ue8m0_to_bf16_bits",
        |bits| f32::from_bits((bits as u32) << 16),
        ue8m0::decode,
        256,
    );
}

#[test]
fn golden_encode_samples() {
    check_encode("f32_to_e2m1_rn_satfinite", e2m1::encode, 115);
    check_encode("f32_to_e4m3_rn_satfinite", e4m3::encode, 1549);
    check_encode("f32_to_ue8m0_rp_satfinite", ue8m0::encode_up, 790);
    check_encode("f32_to_ue8m0_rz_satfinite", ue8m0::encode_down, 790);
}

#[test]
fn golden_nibble_order() {
    let golden = load("conversions.json");
    let (low, high) = pack::unpair(0x21);
    let halves = &golden["e2m1x2_0x21_to_f16x2"];
    assert_eq!(e2m1::decode(low), f16(uint(&halves["low"])));
    assert_eq!(e2m1::decode(high), f16(uint(&halves["high"])));
    let packed = pack::pair(e2m1::encode(0.5), e2m1::encode(6.0));
    assert_eq!(usize::from(packed), uint(&golden["float2_x0.5_y6_to_e2m1x2"]));
}

#[test]
fn golden_scale_offsets() {
    let golden = load("sf_offsets.json");
    let layouts = items(&golden, "layouts");
    assert_eq!(layouts.len(), 12);
    for case in layouts {
        let (rows, blocks) = (uint(&case["rows"]), uint(&case["k_blocks"]));
        let name = format!("{} {rows} x {blocks}", case["config"]);
        let layout = ScaleLayout::Blocked128x4;
        assert_eq!(layout.bytes(rows, blocks), Ok(uint(&case["alloc_bytes"])), "{name}");
        let offsets = items(case, "offset");
        assert_eq!(offsets.len(), rows, "{name}");
        for (row, line) in offsets.iter().enumerate() {
            let line = line.as_array().expect("a row of offsets");
            assert_eq!(line.len(), blocks, "{name} row {row}");
            for (kb, want) in line.iter().enumerate() {
                assert_eq!(
                    layout.offset(row, kb, blocks),
                    uint(want),
                    "{name} row {row} block {kb}"
                );
            }
        }
    }
}

#[test]
fn golden_swizzle_offsets() {
    let golden = load("swizzle_offsets.json");
    let cases = items(&golden, "k_major");
    assert_eq!(cases.len(), 6);
    for case in cases {
        let mode = match case["swizzle"].as_str() {
            Some("none") => Swizzle::None,
            Some("32B") => Swizzle::B32,
            Some("64B") => Swizzle::B64,
            Some("128B") => Swizzle::B128,
            other => panic!("swizzle {other:?}"),
        };
        assert_eq!(mode.row_bytes(), uint(&case["row_bytes"]));
        let (rows, k_bytes) = (uint(&case["rows"]), uint(&case["k_bytes"]));
        let name = format!("{mode:?} {rows} x {k_bytes}");
        let lines = items(case, "offset_of_16B_chunk");
        assert_eq!(lines.len(), rows, "{name}");
        for (row, line) in lines.iter().enumerate() {
            let line = line.as_array().expect("a row of offsets");
            assert_eq!(line.len(), k_bytes / swizzle::CHUNK_BYTES, "{name} row {row}");
            for (chunk, want) in line.iter().enumerate() {
                for byte in 0..swizzle::CHUNK_BYTES {
                    let got = mode.offset(row, chunk * swizzle::CHUNK_BYTES + byte, rows);
                    assert_eq!(
                        got,
                        uint(want) + byte,
                        "{name} row {row} chunk {chunk} byte {byte}"
                    );
                }
            }
        }
    }
}
