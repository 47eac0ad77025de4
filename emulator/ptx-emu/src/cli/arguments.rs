//! The argument file: a JSON list with one item per kernel parameter. `emulator/ptx-emu/docs/arguments.md`
//! describes it.

mod elements;
mod expect;
mod tensor_map;

use super::error::ArgumentError;
use elements::Element;
pub(crate) use expect::{Expect, Expected};
use ptx_emu::tensor_map::TENSOR_MAP_BYTES;
use serde_json::{Map, Value};
use std::path::PathBuf;
pub(crate) use tensor_map::{MapArgument, MapSource};

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
    /// Address, where it is given.
    pub(crate) at: Option<u64>,
    /// File that receives the final contents.
    pub(crate) out: Option<PathBuf>,
    /// The required contents afterwards.
    pub(crate) expect: Option<Expect>,
}

/// Initial contents of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The contents of a file.
    File(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
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
            let mut keys = vec!["tensor_map", "buffer", "out", "expect"];
            keys.extend(beside);
            self.only(whole, object, &keys)?;
            let map = self.tensor_map(&key("tensor_map"), value, object)?;
            return Ok(FieldValue::TensorMap(Box::new(map)));
        }
        if let Some(value) = object.get("buffer") {
            let mut keys = vec!["buffer", "out", "expect"];
            keys.extend(beside);
            self.only(whole, object, &keys)?;
            let prefix = key("");
            return Ok(FieldValue::Buffer(self.buffer(&prefix, &key("buffer"), value, object)?));
        }
        for element in Element::ALL {
            if let Some(value) = object.get(element.name) {
                let mut keys = vec![element.name];
                keys.extend(beside);
                self.only(whole, object, &keys)?;
                let bytes = self.element(&key(element.name), value, element)?;
                return Ok(FieldValue::Scalar(Scalar { kind: element.name, bytes }));
            }
        }
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        Err(self.error(
            whole,
            format!("one of buffer, tensor_map, struct, {}", Element::names()),
            format!("keys [{}]", keys.join(", ")),
        ))
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

    /// A buffer at `path`; `out` and `expect` stand beside it in `around`, whose keys begin with
    /// `prefix` in messages.
    fn buffer(
        &self,
        prefix: &str,
        path: &str,
        value: &Value,
        around: &Map<String, Value>,
    ) -> Result<Buffer, ArgumentError> {
        let out = around.get("out").map(|out| self.string(&format!("{prefix}out"), out));
        let out = out.transpose()?.map(PathBuf::from);
        let expect = around.get("expect").map(|it| self.expect(&format!("{prefix}expect"), it));
        let expect = expect.transpose()?;
        if let Value::String(name) = value {
            return Ok(Buffer { name: Some(name.clone()), source: None, at: None, out, expect });
        }
        let object = self.object(path, value)?;
        let element = Element::ALL.iter().find(|element| object.contains_key(element.name));
        let mut keys = vec!["name", "file", "bytes", "fill", "at"];
        keys.extend(element.map(|element| element.name));
        self.only(path, object, &keys)?;
        let name = object
            .get("name")
            .map(|name| self.string(&format!("{path}.name"), name))
            .transpose()?;
        let source = match (object.get("file"), object.get("bytes"), element) {
            (None, None, None) if name.is_none() => {
                return Err(self.error(path, "elements, file, bytes or name", show(value)));
            }
            (None, None, None) => None,
            (Some(file), None, None) => {
                let file = self.string(&format!("{path}.file"), file)?;
                Some(Source::File(PathBuf::from(file)))
            }
            (None, Some(bytes), None) => {
                let field = format!("{path}.bytes");
                Some(Source::Fill {
                    bytes: self.integer(&field, bytes, 1, 1 << 56)? as u64,
                    value: self.fill(path, object.get("fill"))?,
                })
            }
            (None, None, Some(element)) => {
                let field = format!("{path}.{}", element.name);
                Some(Source::Bytes(self.elements(&field, &object[element.name], element)?))
            }
            (file, bytes, element) => {
                let given = [
                    file.map(|_| "file"),
                    bytes.map(|_| "bytes"),
                    element.map(|element| element.name),
                ];
                let given: Vec<&str> = given.into_iter().flatten().collect();
                return Err(self.error(
                    path,
                    "either elements, file or bytes",
                    given.join(" and "),
                ));
            }
        };
        if object.contains_key("fill") && !matches!(source, Some(Source::Fill { .. })) {
            return Err(self.error(path, "fill only beside bytes", show(value)));
        }
        let at = object.get("at").map(|at| {
            self.integer(&format!("{path}.at"), at, 0, u64::MAX.into()).map(|at| at as u64)
        });
        let at = at.transpose()?;
        if at.is_some() && source.is_none() {
            return Err(self.error(path, "at only where the buffer is defined", show(value)));
        }
        Ok(Buffer { name, source, at, out, expect })
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
