//! Argument files, good and bad.

use super::*;
use ptx_emu::bundle::{Compare, CompareType};
use serde_json::json;

fn one(item: &Value) -> Result<Argument, String> {
    read(&json!([item]), &["p"]).map(|mut list| list.remove(0)).map_err(|error| error.to_string())
}

fn bytes(item: &Value) -> Vec<u8> {
    match one(item) {
        Ok(Argument::Scalar(scalar)) => scalar.bytes,
        other => panic!("{item}: {other:?}"),
    }
}

#[test]
fn scalars_are_little_endian() {
    for (item, expected) in [
        (json!({"u8": 255}), vec![255]),
        (json!({"u16": 258}), vec![2, 1]),
        (json!({"u32": 4_294_967_295u32}), vec![255; 4]),
        (json!({"u64": u64::MAX}), vec![255; 8]),
        (json!({"u64": "0xff"}), vec![255, 0, 0, 0, 0, 0, 0, 0]),
        (json!({"i32": -2}), vec![254, 255, 255, 255]),
        (json!({"s64": i64::MIN}), vec![0, 0, 0, 0, 0, 0, 0, 128]),
        (json!({"s8": "-128"}), vec![128]),
        (json!({"f16": 1}), vec![0, 0x3c]),
        (json!({"f16": "0x3c00"}), vec![0, 0x3c]),
        // Ties to even, of the number itself: rounded to f32 first, this would be a tie.
        (json!({"f16": 1.000_488_281_25}), vec![0, 0x3c]),
        (json!({"f16": 1.000_488_281_250_000_2}), vec![1, 0x3c]),
        (json!({"f16": "-inf"}), vec![0, 0xfc]),
        (json!({"bf16": -2.5}), vec![0x20, 0xc0]),
        (json!({"bf16": "nan"}), vec![0xc0, 0x7f]),
        (json!({"f32": "0x7fc00001"}), vec![1, 0, 0xc0, 0x7f]),
        (json!({"f32": 1.0}), vec![0, 0, 0x80, 0x3f]),
        (json!({"f32": 1}), vec![0, 0, 0x80, 0x3f]),
        (json!({"f32": "-inf"}), vec![0, 0, 0x80, 0xff]),
        (json!({"f64": -2.0}), vec![0, 0, 0, 0, 0, 0, 0, 0xc0]),
    ] {
        assert_eq!(bytes(&item), expected, "{item}");
    }
}

#[test]
fn scalar_limits_are_exact() {
    for (kind, least, most) in [
        ("u8", 0i128, 255i128),
        ("u16", 0, 65_535),
        ("u32", 0, u32::MAX.into()),
        ("i8", -128, 127),
        ("s16", -32_768, 32_767),
        ("i32", i32::MIN.into(), i32::MAX.into()),
        ("i64", i64::MIN.into(), i64::MAX.into()),
        ("u64", 0, u64::MAX.into()),
    ] {
        for (value, ok) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            let item = json!({kind: value.to_string()});
            assert_eq!(one(&item).is_ok(), ok, "{item}");
        }
    }
}

#[test]
fn buffers() {
    let buffer = |name: Option<&str>, source, out: Option<&str>| {
        Ok(Argument::Buffer(Buffer {
            name: name.map(str::to_owned),
            source,
            at: None,
            out: out.map(PathBuf::from),
            expect: None,
        }))
    };
    let fill = |bytes, value| Some(Source::Fill { bytes, value });
    let file = Some(Source::File("a".into()));
    assert_eq!(one(&json!({"buffer": "x"})), buffer(Some("x"), None, None));
    assert_eq!(
        one(&json!({"buffer": {"name": "x"}, "out": "o"})),
        buffer(Some("x"), None, Some("o"))
    );
    assert_eq!(one(&json!({"buffer": {"name": "x", "file": "a"}})), buffer(Some("x"), file, None));
    let inline = Some(Source::Bytes(vec![1, 0, 0xfe, 0xff]));
    assert_eq!(one(&json!({"buffer": {"s16": [1, -2]}})), buffer(None, inline, None));
    let Ok(Argument::Buffer(placed)) = one(&json!({"buffer": {"bytes": 5, "at": "0x7f00"}})) else {
        panic!("not a buffer");
    };
    assert_eq!(placed.at, Some(0x7f00));
    for (given, value) in [(json!("poison"), None), (json!("zero"), Some(0)), (json!(7), Some(7))] {
        assert_eq!(
            one(&json!({"buffer": {"bytes": 5, "fill": given}})),
            buffer(None, fill(5, value), None)
        );
    }
}

#[test]
fn expectations() {
    let expect = |given: Value| match one(&json!({"buffer": "x", "expect": given})) {
        Ok(Argument::Buffer(buffer)) => buffer.expect.expect("it is given"),
        other => panic!("{other:?}"),
    };
    let bytes = |bytes: &[u8]| Expected::Bytes(bytes.to_vec());
    let halves = expect(json!({"f16": [1, "nan"], "rtol": 0.5}));
    assert_eq!(halves.contents, bytes(&[0, 0x3c, 0, 0x7e]));
    let close = Compare::Close { dtype: CompareType::F16, rtol: 0.5, atol: 0.0 };
    assert_eq!(halves.compare, close);
    let words = expect(json!({"u16": [258]}));
    assert_eq!(words.contents, bytes(&[2, 1]));
    assert_eq!(words.compare, Compare::Integers { bytes: 2, signed: false });
    let file = expect(json!({"file": "a", "dtype": "i8"}));
    assert_eq!(file.contents, Expected::File("a".into()));
    assert_eq!(file.compare, Compare::Integers { bytes: 1, signed: true });
    assert_eq!(expect(json!({"file": "a"})).compare, Compare::Exact);
}

#[test]
fn structures() {
    let item = json!({"struct": {"bytes": 16, "fields": [
        {"offset": 8, "buffer": "x", "out": "o"}, {"offset": 4, "u32": 7}]}});
    let Ok(Argument::Struct { bytes, fields }) = one(&item) else {
        panic!("{:?}", one(&item));
    };
    assert_eq!(bytes, 16);
    assert_eq!(fields.iter().map(|f| f.offset).collect::<Vec<_>>(), [8, 4]);
}

#[test]
fn refusals_name_the_parameter_and_the_field() {
    for (item, message) in [
        (json!(5), "item: required an object, actual 5"),
        (json!({"u32": -1}), "u32: required an integer from 0 to 4294967295, actual -1"),
        (json!({"u32": 1.5}), "u32: required an integer from 0 to 4294967295, actual 1.5"),
        (json!({"f32": 1e39}), "f32: required a number within f32's range, actual 1e+39"),
        (
            json!({"f64": true}),
            "f64: required a number, \"nan\", \"inf\", \"-inf\" or bits such as \"0x3c00\", actual true",
        ),
        (json!({"f16": 65520}), "f16: required a number within f16's range, actual 65520"),
        (json!({"f16": "0x10000"}), "f16: required an integer from 0 to 65535, actual \"0x10000\""),
        (
            json!({"buffer": {"f32": []}}),
            "buffer.f32: required a list of at least one number, actual []",
        ),
        (
            json!({"buffer": {"u8": [1, 256]}}),
            "buffer.u8[1]: required an integer from 0 to 255, actual 256",
        ),
        (
            json!({"buffer": {"name": "x", "at": 4096}}),
            "buffer: required at only where the buffer is defined, actual {\"at\":4096,\"name\":\"x\"}",
        ),
        (
            json!({"buffer": "x", "expect": {"u8": [1], "atol": 1}}),
            "expect: required elements of a float type beside rtol and atol, actual u8",
        ),
        (
            json!({"buffer": "x", "expect": {"file": "a", "rtol": 1}}),
            "expect: required elements of a float type beside rtol and atol, actual bytes",
        ),
        (
            json!({"buffer": "x", "expect": {"f32": [1], "rtol": -1}}),
            "expect.rtol: required a number of at least 0, actual -1",
        ),
        (
            json!({"buffer": "x", "expect": {"f32": [1], "file": "a"}}),
            "expect: required either elements or file, actual file and f32",
        ),
        (json!({"u32": 1, "out": "x"}), "item: required no keys but u32, actual key `out`"),
        (
            json!({"buffer": {"file": "a", "bytes": 1}}),
            "buffer: required either elements, file or bytes, actual file and bytes",
        ),
        (json!({"buffer": {}}), "buffer: required elements, file, bytes or name, actual {}"),
        (
            json!({"buffer": {"bytes": 0}}),
            "buffer.bytes: required an integer from 1 to 72057594037927936, actual 0",
        ),
        (
            json!({"buffer": {"bytes": 1, "fill": 256}}),
            "buffer.fill: required \"poison\", \"zero\" or a byte value from 0 to 255, actual 256",
        ),
        (
            json!({"buffer": {"file": "a", "fill": 1}}),
            "buffer: required fill only beside bytes, actual {\"file\":\"a\",\"fill\":1}",
        ),
        (json!({"buffer": "x", "out": ""}), "out: required a non-empty string, actual \"\""),
        (json!({"tensor_map": {}}), "tensor_map.dims: required a list of integers, actual none"),
        (json!({"struct": {"bytes": 8}}), "struct.fields: required a list of fields, actual none"),
        (
            json!({"struct": {"bytes": 8, "fields": [{"offset": 4, "u64": 1}]}}),
            "struct.fields[0]: required an end at or before byte 8, the struct's size, actual byte 12",
        ),
        (
            json!({"struct": {"bytes": 8, "fields": [{"offset": 0, "u32": 1}, {"offset": 3, "u8": 1}]}}),
            "struct.fields[1]: required bytes that no other field has, actual an overlap with the field at offset 0",
        ),
        (
            json!({"struct": {"bytes": 8, "fields": [{"u32": 1}]}}),
            "struct.fields[0].offset: required an integer from 0 to 32763, actual null",
        ),
    ] {
        assert_eq!(
            one(&item).unwrap_err(),
            format!("argument 0 (parameter `p`): {message}"),
            "{item}"
        );
    }
    assert_eq!(
        read(&json!([{"u8": 1}, {"f8": 1}]), &["p"])
            .unwrap_err()
            .to_string()
            .split(": required")
            .next(),
        Some("argument 1: item")
    );
    assert!(read(&json!({}), &[]).is_err());
}
