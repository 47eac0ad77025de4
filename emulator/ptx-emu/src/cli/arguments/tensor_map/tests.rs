//! Tensor maps among the arguments, good and bad.

use super::*;
use crate::cli::arguments::{Argument, FieldValue, Source, read};
use serde_json::json;

fn one(item: &Value) -> Result<MapArgument, String> {
    let list = read(&json!([item]), &["p"]).map_err(|error| error.to_string())?;
    match list.into_iter().next() {
        Some(Argument::TensorMap(map)) => Ok(*map),
        other => panic!("{item}: {other:?}"),
    }
}

/// The fields of a map that is given by them.
fn fields(argument: &MapArgument) -> &TensorMap {
    match &argument.map {
        MapSource::Fields(map) => map,
        MapSource::File(file) => panic!("a file, {}", file.display()),
    }
}

#[test]
fn maps_may_be_files() {
    let item = json!({"tensor_map": {"file": "map.bin"}, "buffer": "x", "out": "o"});
    let read = one(&item).unwrap();
    assert_eq!(read.map, MapSource::File("map.bin".into()));
    assert_eq!(read.buffer.and_then(|buffer| buffer.out), Some("o".into()));
    let error = one(&json!({"tensor_map": {"file": "map.bin", "offset": 1}})).unwrap_err();
    assert!(error.ends_with("required no keys but file, buffer, actual key `offset`"), "{error}");
    let error =
        one(&json!({"tensor_map": {"file": "map.bin"}, "expect": {"u8": [1]}})).unwrap_err();
    assert!(error.ends_with("required a buffer beside expect, actual null"), "{error}");
}

#[test]
fn names_numbers_and_defaults_mean_the_same() {
    let short = json!({"tensor_map": {"dtype": "FLOAT16", "dims": [64, 8], "strides": [128],
        "box": [64, 4], "buffer": "x"}});
    let long = json!({"tensor_map": {"dtype": "FLOAT16", "rank": 2, "dims": ["0x40", 8],
        "strides": [128], "box": [64, 4], "estrides": [1, 1], "interleave": 0, "swizzle": 0,
        "l2": "NONE", "oob": 0, "offset": 0}, "buffer": "x"});
    let expected = TensorMap::tiled(ElementType::F16, 0, &[64, 8], &[128], &[64, 4]);
    let read = one(&short).unwrap();
    assert_eq!(*fields(&read), expected);
    assert_eq!(read.buffer.as_ref().unwrap().name.as_deref(), Some("x"));
    assert_eq!(one(&long).unwrap(), read);
    let rich = one(&json!({"tensor_map": {"dtype": "16U4_ALIGN8B", "dims": [256], "box": [256],
        "swizzle": "128B", "l2": 2, "oob": "NAN_REQUEST_ZERO_FMA", "addr": 4096}}))
    .unwrap();
    let map = fields(&rich);
    assert_eq!((map.element, map.address), (ElementType::U4Align8, 4096));
    assert_eq!((map.swizzle, map.fill), (Swizzle::B128, Fill::Nan));
    assert_eq!((map.l2_promotion, &rich.buffer), (L2Promotion::B128, &None));
}

#[test]
fn buffers_are_defined_and_written_too() {
    let item = json!({"tensor_map": {"dtype": "UINT8", "dims": [64], "box": [64], "offset": 32},
        "buffer": {"bytes": 96, "fill": "zero"}, "out": "o"});
    let argument = one(&item).unwrap();
    assert_eq!(fields(&argument).address, 32);
    let buffer = argument.buffer.unwrap();
    assert_eq!(buffer.source, Some(Source::Fill { bytes: 96, value: Some(0) }));
    assert_eq!(buffer.out, Some("o".into()));
}

#[test]
fn structures_hold_maps() {
    let map = json!({"dtype": "UINT8", "dims": [64], "box": [64], "addr": 0});
    let item = json!([{"struct": {"bytes": 200, "fields": [
        {"offset": 64, "tensor_map": map}, {"offset": 192, "u64": 1}]}}]);
    let list = read(&item, &["p"]).unwrap();
    let Argument::Struct { fields, .. } = &list[0] else {
        panic!("{list:?}");
    };
    assert!(matches!(fields[0].value, FieldValue::TensorMap(_)));
    let overlap = json!([{"struct": {"bytes": 200, "fields": [
        {"offset": 64, "tensor_map": map}, {"offset": 184, "u64": 1}]}}]);
    assert_eq!(
        read(&overlap, &["p"]).unwrap_err().to_string(),
        "argument 0 (parameter `p`): struct.fields[1]: required bytes that no other field has, actual an overlap with the field at offset 64"
    );
}

#[test]
fn refusals_name_the_parameter_and_the_field() {
    let with = |key: &str, value: Value| {
        let mut map = json!({"dtype": "UINT8", "dims": [64, 2], "strides": [64], "box": [64, 1],
            "buffer": "x"});
        match value {
            Value::Null => map.as_object_mut().unwrap().remove(key),
            value => map.as_object_mut().unwrap().insert(key.to_owned(), value),
        };
        json!({"tensor_map": map})
    };
    for (item, message) in [
        (json!({"tensor_map": 1}), "tensor_map: required an object, actual 1"),
        (with("dims", Value::Null), "tensor_map.dims: required a list of integers, actual none"),
        (
            with("dims", json!([64, -2])),
            "tensor_map.dims[1]: required an integer from 0 to 18446744073709551615, actual -2",
        ),
        (with("rank", json!(3)), "tensor_map.rank: required 2, the number of dims, actual 3"),
        (
            with("strides", Value::Null),
            "tensor_map.strides: required a list of integers, actual none",
        ),
        (
            with("box", json!([64, 1u64 << 32])),
            "tensor_map.box[1]: required an integer from 0 to 4294967295, actual 4294967296",
        ),
        (
            with("swizzle", json!("256B")),
            "tensor_map.swizzle: required one of NONE, 32B, 64B, 128B, 128B_ATOM_32B, 128B_ATOM_32B_FLIP_8B, 128B_ATOM_64B, actual \"256B\"",
        ),
        (
            with("l2", json!(4)),
            "tensor_map.l2: required one of NONE, L2_64B, L2_128B, L2_256B, actual 4",
        ),
        (
            with("buffer", Value::Null),
            "tensor_map: required either a buffer, with or without offset, or addr, actual neither",
        ),
        (
            with("addr", json!(16)),
            "tensor_map: required either a buffer, with or without offset, or addr, actual both",
        ),
        (
            with("stride", json!([])),
            "tensor_map: required no keys but dtype, rank, dims, strides, box, estrides, interleave, swizzle, l2, oob, buffer, offset, addr, actual key `stride`",
        ),
    ] {
        assert_eq!(
            one(&item).unwrap_err(),
            format!("argument 0 (parameter `p`): {message}"),
            "{item}"
        );
    }
    let message = one(&with("dtype", json!("FLOAT8"))).unwrap_err();
    assert!(message.contains("tensor_map.dtype: required one of UINT8, UINT16,"), "{message}");
    let mut both = with("swizzle", json!("32B"));
    both.as_object_mut().unwrap().insert("buffer".to_owned(), json!("y"));
    assert!(one(&both).unwrap_err().ends_with("one buffer, in it or next to it, actual both"));
}
