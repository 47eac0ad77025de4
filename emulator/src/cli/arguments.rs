//! The argument file: a JSON list with one item per kernel parameter.
//!
//! | item | value |
//! | --- | --- |
//! | `{"u32": 5}` | integer; `u8` `u16` `u32` `u64` `s8` `s16` `s32` `s64` (`i8`... mean the same), a number or a string such as `"0xff"` |
//! | `{"f32": 1.5}` | float; `f32` `f64`, a number, `"nan"`, `"inf"` or `"-inf"` |
//! | `{"f16": 15360}` | the bits of a half; `f16` `bf16` |
//! | `{"buffer": {"file": "a.bin"}}` | pointer to a copy of the file |
//! | `{"buffer": {"bytes": 4096, "fill": "zero"}}` | pointer to new memory; fill `"poison"` (uninitialised, the default), `"zero"` or a byte value |
//! | `{"buffer": "x"}`, `{"buffer": {"name": "x"}}` | pointer to the buffer that another item defines with `"name": "x"` |
//! | `{"tensor_map": {"dtype": "FLOAT16", "dims": [64, 8], "strides": [128], "box": [64, 8], "buffer": "x"}}` | the 128 bytes of a tensor map, see [`tensor_map`] |
//! | `{"struct": {"bytes": 16, "fields": [{"offset": 0, "u64": 7}, {"offset": 8, "buffer": "x"}]}}` | a parameter passed by value, zero where no field is |
//!
//! `"out": "c.bin"` next to a `"buffer"` writes that buffer's final contents to
//! a file. Paths are relative to the folder of the argument file.

mod tensor_map;

use super::error::ArgumentError;
use ptx_emu::tensor_map::TENSOR_MAP_BYTES;
use serde_json::{Map, Value};
use std::path::PathBuf;
pub(crate) use tensor_map::MapArgument;

/// One item of the list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Argument {
    /// A number.
    Scalar(Scalar),
    /// A pointer to device memory.
    Buffer(Buffer),
    /// A tensor map passed by value.
    TensorMap(Box<MapArgument>),
    /// A parameter passed by value.
    Struct { bytes: u64, fields: Vec<Field> },
}

/// A number as little-endian bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scalar {
    /// Key it was given under.
    pub(crate) kind: &'static str,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// A buffer: a definition if it has a source, else a reference by name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Buffer {
    /// Name that other items may use.
    pub(crate) name: Option<String>,
    /// Contents.
    pub(crate) source: Option<Source>,
    /// File that receives the final contents.
    pub(crate) out: Option<PathBuf>,
}

/// Initial contents of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The contents of a file.
    File(PathBuf),
    /// `bytes` bytes, each of that value, or uninitialised for `None`.
    Fill { bytes: u64, value: Option<u8> },
}

/// A field of a parameter passed by value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    /// Byte offset.
    pub(crate) offset: u64,
    /// Its value.
    pub(crate) value: FieldValue,
}

/// Value of a [`Field`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FieldValue {
    /// A number.
    Scalar(Scalar),
    /// A pointer.
    Buffer(Buffer),
    /// A tensor map.
    TensorMap(Box<MapArgument>),
}

impl FieldValue {
    /// Size in a parameter, bytes.
    fn size(&self) -> u64 {
        match self {
            Self::Scalar(scalar) => scalar.bytes.len() as u64,
            Self::Buffer(_) => 8,
            Self::TensorMap(_) => TENSOR_MAP_BYTES as u64,
        }
    }
}

/// How a scalar is written.
#[derive(Clone, Copy)]
enum Format {
    Unsigned,
    Signed,
    Float,
}

/// Key, size in bytes and format of the scalars.
const SCALARS: [(&str, usize, Format); 16] = [
    ("u8", 1, Format::Unsigned),
    ("u16", 2, Format::Unsigned),
    ("u32", 4, Format::Unsigned),
    ("u64", 8, Format::Unsigned),
    ("s8", 1, Format::Signed),
    ("s16", 2, Format::Signed),
    ("s32", 4, Format::Signed),
    ("s64", 8, Format::Signed),
    ("i8", 1, Format::Signed),
    ("i16", 2, Format::Signed),
    ("i32", 4, Format::Signed),
    ("i64", 8, Format::Signed),
    ("f16", 2, Format::Unsigned),
    ("bf16", 2, Format::Unsigned),
    ("f32", 4, Format::Float),
    ("f64", 8, Format::Float),
];

/// Reads the list; `parameters` are the kernel's, for errors.
pub(crate) fn read(json: &Value, parameters: &[&str]) -> Result<Vec<Argument>, ArgumentError> {
    let at =
        |index: usize| Item { index, name: parameters.get(index).map(|name| (*name).to_owned()) };
    let Value::Array(items) = json else {
        return Err(at(0).error("list", "a list of arguments", show(json)));
    };
    items.iter().enumerate().map(|(index, item)| at(index).argument(item)).collect()
}

/// JSON for a message, cut to a readable length.
fn show(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The item that is being read, for errors.
struct Item {
    index: usize,
    name: Option<String>,
}

impl Item {
    fn error(
        &self,
        field: &str,
        required: impl Into<String>,
        actual: impl Into<String>,
    ) -> ArgumentError {
        ArgumentError {
            index: self.index,
            name: self.name.clone(),
            field: field.to_owned(),
            required: required.into(),
            actual: actual.into(),
        }
    }

    fn argument(&self, item: &Value) -> Result<Argument, ArgumentError> {
        let object = self.object("item", item)?;
        if let Some(value) = object.get("struct") {
            self.only("item", object, &["struct"])?;
            return self.structure(value);
        }
        Ok(match self.field_value("", object, &[])? {
            FieldValue::Scalar(scalar) => Argument::Scalar(scalar),
            FieldValue::Buffer(buffer) => Argument::Buffer(buffer),
            FieldValue::TensorMap(map) => Argument::TensorMap(map),
        })
    }

    /// A scalar, buffer or tensor map; `path` is where the object is, `beside` are keys that
    /// it may have besides.
    fn field_value(
        &self,
        path: &str,
        object: &Map<String, Value>,
        beside: &[&str],
    ) -> Result<FieldValue, ArgumentError> {
        let whole = if path.is_empty() { "item" } else { path };
        let key = |key: &str| {
            if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
        };
        if let Some(value) = object.get("tensor_map") {
            let mut keys = vec!["tensor_map", "buffer", "out"];
            keys.extend(beside);
            self.only(whole, object, &keys)?;
            let map = self.tensor_map(&key("tensor_map"), value, object)?;
            return Ok(FieldValue::TensorMap(Box::new(map)));
        }
        if let Some(value) = object.get("buffer") {
            let mut keys = vec!["buffer", "out"];
            keys.extend(beside);
            self.only(whole, object, &keys)?;
            let out = object.get("out").map(|out| self.string(&key("out"), out)).transpose()?;
            return Ok(FieldValue::Buffer(self.buffer(
                &key("buffer"),
                value,
                out.map(PathBuf::from),
            )?));
        }
        for (kind, bytes, format) in SCALARS {
            if let Some(value) = object.get(kind) {
                let mut keys = vec![kind];
                keys.extend(beside);
                self.only(whole, object, &keys)?;
                let bytes = self.scalar(&key(kind), value, bytes, format)?;
                return Ok(FieldValue::Scalar(Scalar { kind, bytes }));
            }
        }
        let kinds: Vec<&str> = SCALARS.iter().map(|(kind, ..)| *kind).collect();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        Err(self.error(
            whole,
            format!("one of buffer, tensor_map, struct, {}", kinds.join(", ")),
            format!("keys [{}]", keys.join(", ")),
        ))
    }

    fn scalar(
        &self,
        field: &str,
        value: &Value,
        bytes: usize,
        format: Format,
    ) -> Result<Vec<u8>, ArgumentError> {
        let bits = 8 * bytes as u32;
        let integer = match format {
            Format::Unsigned => self.integer(field, value, 0, i128::MAX >> (127 - bits))?,
            Format::Signed => {
                let limit = 1i128 << (bits - 1);
                self.integer(field, value, -limit, limit - 1)?
            }
            Format::Float if bytes == 4 => {
                let wide = self.float(field, value)?;
                let narrow = wide as f32;
                if wide.is_finite() && narrow.is_infinite() {
                    return Err(self.error(field, "a number within f32's range", show(value)));
                }
                return Ok(narrow.to_le_bytes().to_vec());
            }
            Format::Float => return Ok(self.float(field, value)?.to_le_bytes().to_vec()),
        };
        Ok(integer.to_le_bytes()[..bytes].to_vec())
    }

    fn float(&self, field: &str, value: &Value) -> Result<f64, ArgumentError> {
        match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => match text.as_str() {
                "nan" => Some(f64::NAN),
                "inf" => Some(f64::INFINITY),
                "-inf" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| self.error(field, "a number, \"nan\", \"inf\" or \"-inf\"", show(value)))
    }

    fn integer(
        &self,
        field: &str,
        value: &Value,
        least: i128,
        most: i128,
    ) -> Result<i128, ArgumentError> {
        match value {
            Value::Number(number) => {
                number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
            }
            Value::String(text) => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
                None => text.parse().ok(),
            },
            _ => None,
        }
        .filter(|integer| (least..=most).contains(integer))
        .ok_or_else(|| self.error(field, format!("an integer from {least} to {most}"), show(value)))
    }

    fn buffer(
        &self,
        path: &str,
        value: &Value,
        out: Option<PathBuf>,
    ) -> Result<Buffer, ArgumentError> {
        if let Value::String(name) = value {
            return Ok(Buffer { name: Some(name.clone()), source: None, out });
        }
        let object = self.object(path, value)?;
        self.only(path, object, &["name", "file", "bytes", "fill"])?;
        let name = object
            .get("name")
            .map(|name| self.string(&format!("{path}.name"), name))
            .transpose()?;
        let source = match (object.get("file"), object.get("bytes")) {
            (Some(_), Some(_)) => {
                return Err(self.error(path, "either file or bytes", "both"));
            }
            (None, None) if name.is_none() => {
                return Err(self.error(path, "file, bytes or name", show(value)));
            }
            (None, None) => None,
            (Some(file), None) => {
                let file = self.string(&format!("{path}.file"), file)?;
                Some(Source::File(PathBuf::from(file)))
            }
            (None, Some(bytes)) => {
                let field = format!("{path}.bytes");
                Some(Source::Fill {
                    bytes: self.integer(&field, bytes, 1, 1 << 56)? as u64,
                    value: self.fill(path, object.get("fill"))?,
                })
            }
        };
        if object.contains_key("fill") && !matches!(source, Some(Source::Fill { .. })) {
            return Err(self.error(path, "fill only beside bytes", show(value)));
        }
        Ok(Buffer { name, source, out })
    }

    fn fill(&self, path: &str, fill: Option<&Value>) -> Result<Option<u8>, ArgumentError> {
        let Some(fill) = fill else {
            return Ok(None);
        };
        match (fill.as_str(), fill.as_u64()) {
            (Some("poison"), _) => Ok(None),
            (Some("zero"), _) => Ok(Some(0)),
            (_, Some(byte @ 0..=255)) => Ok(Some(byte as u8)),
            _ => Err(self.error(
                &format!("{path}.fill"),
                "\"poison\", \"zero\" or a byte value from 0 to 255",
                show(fill),
            )),
        }
    }

    fn structure(&self, value: &Value) -> Result<Argument, ArgumentError> {
        let object = self.object("struct", value)?;
        self.only("struct", object, &["bytes", "fields"])?;
        let bytes = object.get("bytes").unwrap_or(&Value::Null);
        // Kernel parameters take 32764 bytes in all (PTX ISA 5.1.6.1).
        let bytes = self.integer("struct.bytes", bytes, 1, 32_764)? as u64;
        let Some(Value::Array(items)) = object.get("fields") else {
            let actual = object.get("fields").map_or("none".to_owned(), show);
            return Err(self.error("struct.fields", "a list of fields", actual));
        };
        let mut fields: Vec<Field> = Vec::new();
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("struct.fields[{index}]");
            let field = self.structure_field(&path, item)?;
            let end = field.offset + field.value.size();
            if end > bytes {
                return Err(self.error(
                    &path,
                    format!("an end at or before byte {bytes}, the struct's size"),
                    format!("byte {end}"),
                ));
            }
            if let Some((start, _)) =
                taken.iter().find(|(start, stop)| field.offset < *stop && *start < end)
            {
                return Err(self.error(
                    &path,
                    "bytes that no other field has",
                    format!("an overlap with the field at offset {start}"),
                ));
            }
            taken.push((field.offset, end));
            fields.push(field);
        }
        Ok(Argument::Struct { bytes, fields })
    }

    fn structure_field(&self, path: &str, item: &Value) -> Result<Field, ArgumentError> {
        let object = self.object(path, item)?;
        let offset = object.get("offset").unwrap_or(&Value::Null);
        let offset = self.integer(&format!("{path}.offset"), offset, 0, 32_763)? as u64;
        let value = self.field_value(path, object, &["offset"])?;
        Ok(Field { offset, value })
    }

    fn object<'v>(
        &self,
        field: &str,
        value: &'v Value,
    ) -> Result<&'v Map<String, Value>, ArgumentError> {
        value.as_object().ok_or_else(|| self.error(field, "an object", show(value)))
    }

    fn string(&self, field: &str, value: &Value) -> Result<String, ArgumentError> {
        match value {
            Value::String(text) if !text.is_empty() => Ok(text.clone()),
            _ => Err(self.error(field, "a non-empty string", show(value))),
        }
    }

    /// Refuses misspelt keys.
    fn only(
        &self,
        field: &str,
        object: &Map<String, Value>,
        keys: &[&str],
    ) -> Result<(), ArgumentError> {
        match object.keys().find(|key| !keys.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(self.error(
                field,
                format!("no keys but {}", keys.join(", ")),
                format!("key `{key}`"),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
