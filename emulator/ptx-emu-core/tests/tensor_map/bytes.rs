//! The 128 bytes of tensor maps: the driver's, read back, edited.

use super::common::{COPIES, hex, narrow, numbers};
use proptest::prelude::*;
use ptx_emu_core::Gpu;
use ptx_emu_core::tensor_map::{
    ElementType, Fill, Interleave, L2Promotion, ReplaceField, Swizzle, TensorMap, replace,
};
use serde_json::Value;

const MAPS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/data/ptx_golden/tensor_maps_h200.json"
));
/// 128 bytes, zeros behind those given.
fn padded(text: &str) -> [u8; 128] {
    let mut bytes = [0; 128];
    let given = hex(text);
    bytes[..given.len()].copy_from_slice(&given);
    bytes
}

fn map(case: &Value) -> TensorMap {
    let number = |key: &str| case[key].as_u64().unwrap() as u32;
    TensorMap {
        element: case["dtype"].as_str().unwrap().parse().unwrap(),
        address: case["addr"].as_u64().unwrap(),
        dims: numbers(&case["dims"]),
        strides: numbers(&case["strides"]),
        box_dims: narrow(&case["box"]),
        element_strides: narrow(&case["estrides"]),
        interleave: Interleave::from_number(number("interleave")).unwrap(),
        swizzle: case["swizzle"].as_str().unwrap().parse().unwrap(),
        l2_promotion: L2Promotion::from_number(number("l2")).unwrap(),
        fill: Fill::from_number(number("oob")).unwrap(),
    }
}

/// First byte that differs, for messages.
fn difference(a: &[u8], b: &[u8]) -> Option<(usize, u8, u8)> {
    a.iter().zip(b).enumerate().find(|(_, (a, b))| a != b).map(|(i, (a, b))| (i, *a, *b))
}

fn encodes_as_recorded(cases: &[Value]) -> (usize, usize) {
    let h200 = Gpu::h200();
    let (mut accepted, mut refused) = (0, 0);
    for (index, case) in cases.iter().enumerate() {
        let map = map(case);
        if case["result"] != 0 {
            assert!(map.encode_for(&h200).is_err(), "case {index} is refused: {case}");
            refused += 1;
            continue;
        }
        let expected = padded(case["map"].as_str().unwrap());
        let bytes = map.encode_for(&h200).unwrap_or_else(|e| panic!("case {index}: {e}: {case}"));
        assert_eq!(difference(&bytes, &expected), None, "case {index}: (byte, actual, expected)");
        assert_eq!(TensorMap::decode(&expected).unwrap(), map, "case {index}");
        accepted += 1;
    }
    (accepted, refused)
}

#[test]
fn golden_maps_of_the_driver() {
    let file: Value = serde_json::from_str(MAPS).unwrap();
    assert_eq!(encodes_as_recorded(file["cases"].as_array().unwrap()), (33, 15));
}

#[test]
fn golden_limits_of_the_driver() {
    let file: Value = serde_json::from_str(COPIES).unwrap();
    let (accepted, refused) = encodes_as_recorded(file["encode"].as_array().unwrap());
    assert!(accepted > 100 && refused > 80, "{accepted} {refused}");
}

#[test]
fn golden_replacements() {
    let file: Value = serde_json::from_str(COPIES).unwrap();
    let cases = file["replace"].as_array().unwrap();
    for case in cases {
        let before = if case[0] == "zeros" { 0 } else { 0xff };
        let mut bytes = [before; 128];
        let field = ReplaceField::from_name(case[1].as_str().unwrap()).unwrap();
        let ordinal = case[2].as_u64().unwrap_or(0) as u32;
        replace(&mut bytes, field, ordinal, case[3].as_u64().unwrap()).unwrap();
        let mut expected = [before; 128];
        expected[..64].copy_from_slice(&hex(case[4].as_str().unwrap()));
        assert_eq!(difference(&bytes, &expected), None, "{case}: (byte, actual, expected)");
    }
    assert_eq!(cases.len(), 306);
}

#[test]
fn types_that_an_h200_lacks_are_modelled() {
    for (element, stride) in
        [(ElementType::U4Align8, 512), (ElementType::U4Align16, 512), (ElementType::U6Align16, 768)]
    {
        let map = TensorMap::tiled(element, 0x7000_0000, &[1024, 64], &[stride], &[128, 32]);
        assert_eq!(TensorMap::decode(&map.encode_for(&Gpu::b200()).unwrap()).unwrap(), map);
        let message = map.encode_for(&Gpu::h200()).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("dtype: required a type of whole bytes on h200, actual {element}")
        );
    }
    for &swizzle in Swizzle::ALL {
        let mut map = TensorMap::tiled(ElementType::U8, 0x1000, &[256, 64], &[256], &[32, 8]);
        map.swizzle = swizzle;
        assert_eq!(TensorMap::decode(&map.encode().unwrap()).unwrap(), map);
        assert_eq!(map.encode_for(&Gpu::h200()).is_ok(), swizzle <= Swizzle::B128, "{swizzle}");
    }
}

#[test]
fn refusals_name_the_field() {
    let good = TensorMap::tiled(ElementType::F16, 0x1000, &[128, 64], &[256], &[64, 8]);
    good.check().unwrap();
    type Edit = fn(&mut TensorMap);
    let cases: [(Edit, &str); 17] = [
        (|m| m.dims.clear(), "rank: required 1 to 5, actual 0"),
        (|m| m.dims.push(1), "strides: required 2 values, actual 1"),
        (|m| m.interleave = Interleave::B16, "rank: required 3 to 5, actual 2"),
        (|m| m.address = 8, "addr: required a multiple of 16, actual 8"),
        (
            |m| m.address = 1 << 57,
            "addr: required below 0x200000000000000, actual 0x200000000000000",
        ),
        (|m| m.dims[1] = 0, "dims[1]: required 1 to 4294967296, actual 0"),
        (|m| m.strides[0] = 8, "strides[0]: required a multiple of 16, actual 8"),
        (
            |m| m.strides[0] = 1 << 40,
            "strides[0]: required 0 to 1099511627760, actual 1099511627776",
        ),
        (|m| m.box_dims[1] = 257, "box[1]: required 1 to 256, actual 257"),
        (|m| m.box_dims[0] = 12, "box[0]: required a multiple of 16 bytes of FLOAT16, actual 12"),
        (|m| m.box_dims = vec![256, 256, 1], "box: required 2 values, actual 3"),
        (|m| m.element_strides[1] = 9, "estrides[1]: required 1 to 8, actual 9"),
        (
            |m| m.swizzle = Swizzle::B64,
            "box[0]: required at most 64 bytes, the span of swizzle 64B, actual 64 elements of FLOAT16, 128 bytes",
        ),
        (
            |m| {
                m.element = ElementType::U16;
                m.fill = Fill::Nan;
            },
            "oob: required NONE for elements of type UINT16, actual NAN_REQUEST_ZERO_FMA",
        ),
        (
            |m| {
                m.element = ElementType::U4Align16;
                m.box_dims[0] = 64;
            },
            "box[0]: required 128 to 128, actual 64",
        ),
        (
            |m| {
                m.element = ElementType::U4Align16;
                m.box_dims[0] = 128;
                m.swizzle = Swizzle::B64;
            },
            "swizzle: required one of NONE, 128B, 128B_ATOM_32B for elements of type 16U4_ALIGN16B, actual 64B",
        ),
        (
            |m| {
                m.element = ElementType::F64;
                m.box_dims = vec![256, 256];
            },
            "box: required at most 232448 bytes, actual 524288",
        ),
    ];
    for (edit, message) in cases {
        let mut map = good.clone();
        edit(&mut map);
        assert_eq!(map.encode().unwrap_err().to_string(), message);
    }
    let mut bytes = good.encode().unwrap();
    replace(&mut bytes, ReplaceField::Rank, 0, 6).unwrap();
    assert_eq!(
        TensorMap::decode(&bytes).unwrap_err().to_string(),
        "tensor map, bits 68 to 70: rank - 1: required 0 to 4, actual 6"
    );
    assert_eq!(
        replace(&mut bytes, ReplaceField::GlobalStride, 4, 0).unwrap_err().to_string(),
        "tensormap.replace.global_stride: required an ordinal from 0 to 3, actual 4"
    );
    assert_eq!(
        "UINT9".parse::<Fill>().unwrap_err().to_string(),
        "oob: required one of NONE, NAN_REQUEST_ZERO_FMA, actual `UINT9`"
    );
}

prop_compose! {
    fn any_map()(
        element in prop::sample::select(ElementType::ALL),
        address in 0u64..1 << 52,
        dims in prop::collection::vec(1u64..=1 << 25, 1..=5),
    )(
        address in Just(address * 32),
        strides in prop::collection::vec(0u64..1 << 35, dims.len() - 1),
        extents in prop::collection::vec(1u32..=4, dims.len() - 1),
        width in 1u32..=4,
        steps in prop::collection::vec(1u32..=8, dims.len()),
        dims in Just(dims),
        element in Just(element),
        swizzle in prop::sample::select(Swizzle::ALL),
        promotion in prop::sample::select(L2Promotion::ALL),
        fill in prop::sample::select(Fill::ALL),
    ) -> TensorMap {
        let padded = element.padded_payload().is_some();
        let width = if padded { 128 } else { (width * 128).div_ceil(element.bits()).min(256) };
        let dims = dims.iter().map(|dim| dim * if element.is_sub_byte() { 128 } else { 1 });
        let mut map = TensorMap {
            element,
            address,
            dims: dims.collect(),
            strides: strides.iter().map(|stride| stride * 32).collect(),
            box_dims: std::iter::once(width).chain(extents).collect(),
            element_strides: steps,
            interleave: Interleave::None,
            swizzle,
            l2_promotion: promotion,
            fill: if element.is_float() { fill } else { Fill::Zero },
        };
        if map.check().is_err() {
            map.swizzle = Swizzle::None;
        }
        map
    }
}

proptest! {
    #[test]
    fn decoding_inverts_encoding(map in any_map()) {
        let bytes = map.encode().unwrap();
        prop_assert_eq!(TensorMap::decode(&bytes).unwrap(), map);
    }

    /// Replacing every field of an unrelated map makes the map, but for the tf32
    /// bit, which is never cleared, and the driver's notes.
    #[test]
    fn replacing_every_field_makes_the_map(map in any_map(), from in any_map()) {
        prop_assume!(!matches!(from.element, ElementType::Tf32 | ElementType::Tf32Ftz));
        let wanted = map.encode().unwrap();
        let mut bytes = from.encode().unwrap();
        let bits = |from: usize, width: usize| {
            (0..width).fold(0u64, |v, i| {
                v | u64::from(wanted[(from + i) / 8] >> ((from + i) % 8) & 1) << i
            })
        };
        let mut set = |field, ordinal: usize, value| {
            replace(&mut bytes, field, ordinal as u32, value).unwrap();
        };
        let element = match map.element {
            ElementType::F64 => 9,
            ElementType::Bf16 => 10,
            ElementType::F32Ftz => 8,
            element => u64::from(element.number()),
        };
        set(ReplaceField::ElementType, 0, element);
        set(ReplaceField::GlobalAddress, 0, map.address);
        set(ReplaceField::Rank, 0, map.rank() as u64 - 1);
        for i in 0..map.rank() {
            set(ReplaceField::BoxDim, i, map.box_dims[i].into());
            set(ReplaceField::GlobalDim, i, map.dims[i]);
            set(ReplaceField::ElementStride, i, map.element_strides[i].into());
            if i > 0 {
                set(ReplaceField::GlobalStride, i - 1, map.strides[i - 1]);
            }
        }
        set(ReplaceField::InterleaveLayout, 0, 0);
        set(ReplaceField::SwizzleMode, 0, bits(77, 2));
        set(ReplaceField::SwizzleAtomicity, 0, bits(87, 2));
        set(ReplaceField::FillMode, 0, bits(79, 1));
        let mut expected = map;
        expected.l2_promotion = from.l2_promotion;
        prop_assert_eq!(TensorMap::decode(&bytes).unwrap(), expected);
    }

    #[test]
    fn decoding_takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 128)) {
        let bytes: [u8; 128] = bytes.try_into().unwrap();
        if let Ok(map) = TensorMap::decode(&bytes) {
            // Neither may panic.
            let _ = map.encode();
            let _ = ptx_emu_core::tensor_map::Tile::load(&map, &vec![0; map.rank()], 0);
        }
    }
}
