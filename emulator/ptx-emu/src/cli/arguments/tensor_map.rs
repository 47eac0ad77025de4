//! Tensor maps among the arguments: those of `cuTensorMapEncodeTiled`, or their 128 bytes.
//!
//! | key | value |
//! | --- | --- |
//! | `file` | the 128 bytes, instead of all other keys but `buffer`, which gives another address |
//! | `dtype` | name of the element type, e.g. `FLOAT16` |
//! | `rank` | number of dimensions, if given that of `dims` |
//! | `dims`, `strides`, `box` | lists, innermost dimension first; strides in bytes, one fewer |
//! | `estrides` | element strides, by default ones |
//! | `interleave`, `swizzle`, `l2`, `oob` | the driver's name or number, by default `NONE` |
//! | `buffer` | the tensor's buffer, as elsewhere; also taken next to `"tensor_map"`, with `"out"` |
//! | `offset` | first byte of the tensor in its buffer, by default 0 |
//! | `addr` | an address instead of a buffer |

use super::{Buffer, Item, show};
use crate::cli::error::ArgumentError;
use ptx_emu::tensor_map::{
    ElementType, Fill, Interleave, L2Promotion, Swizzle, TensorMap, UnknownName,
};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::str::FromStr;

/// A tensor map and the buffer it is of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MapArgument {
    /// The map.
    pub(crate) map: MapSource,
    /// Buffer that holds the tensor.
    pub(crate) buffer: Option<Buffer>,
}

/// The source of a tensor map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MapSource {
    /// Its fields. The address counts from the start of the buffer, if there is one.
    Fields(TensorMap),
    /// A file with the 128 bytes. A buffer's address takes the place of the address in them.
    File(PathBuf),
}

type Number<T> = fn(u32) -> Option<T>;

impl Item {
    /// Reads a tensor map; `around` is the object that it is in.
    pub(super) fn tensor_map(
        &self,
        path: &str,
        value: &Value,
        around: &Map<String, Value>,
    ) -> Result<MapArgument, ArgumentError> {
        const KEYS: [&str; 13] = [
            "dtype",
            "rank",
            "dims",
            "strides",
            "box",
            "estrides",
            "interleave",
            "swizzle",
            "l2",
            "oob",
            "buffer",
            "offset",
            "addr",
        ];
        let object = self.object(path, value)?;
        if let Some(file) = object.get("file") {
            self.only(path, object, &["file", "buffer"])?;
            let file = self.string(&format!("{path}.file"), file)?;
            let buffer = self.map_buffer(path, object, around)?;
            return Ok(MapArgument { map: MapSource::File(PathBuf::from(file)), buffer });
        }
        self.only(path, object, &KEYS)?;
        let field = |key: &str| format!("{path}.{key}");
        let dims = self.integers(&field("dims"), object.get("dims"), u64::MAX)?;
        if let Some(rank) = object.get("rank")
            && rank.as_u64() != Some(dims.len() as u64)
        {
            let required = format!("{}, the number of dims", dims.len());
            return Err(self.error(&field("rank"), required, show(rank)));
        }
        let narrow = |key: &str| -> Result<Vec<u32>, ArgumentError> {
            let list = self.integers(&field(key), object.get(key), u32::MAX.into())?;
            Ok(list.into_iter().map(|number| number as u32).collect())
        };
        let element_strides =
            if object.contains_key("estrides") { narrow("estrides")? } else { vec![1; dims.len()] };
        let strides = match object.get("strides") {
            None if dims.len() <= 1 => Vec::new(),
            list => self.integers(&field("strides"), list, u64::MAX)?,
        };
        let (address, buffer) = self.tensor(path, object, around)?;
        let map = TensorMap {
            element: self.named::<ElementType>(&field("dtype"), object.get("dtype"), |_| None)?,
            address,
            dims,
            strides,
            box_dims: narrow("box")?,
            element_strides,
            interleave: self.choice(path, object, "interleave", Interleave::from_number)?,
            swizzle: self.choice(path, object, "swizzle", Swizzle::from_number)?,
            l2_promotion: self.choice(path, object, "l2", L2Promotion::from_number)?,
            fill: self.choice(path, object, "oob", Fill::from_number)?,
        };
        Ok(MapArgument { map: MapSource::Fields(map), buffer })
    }

    /// The buffer, in the map's object or beside it.
    fn map_buffer(
        &self,
        path: &str,
        object: &Map<String, Value>,
        around: &Map<String, Value>,
    ) -> Result<Option<Buffer>, ArgumentError> {
        let prefix = path.strip_suffix("tensor_map").unwrap_or_default();
        let beside = ["out", "expect"].into_iter().find(|key| around.contains_key(*key));
        let (place, buffer) = match (object.get("buffer"), around.get("buffer"), beside) {
            (Some(_), Some(_), _) => {
                return Err(self.error(path, "one buffer, in it or next to it", "both"));
            }
            (Some(buffer), None, _) => (format!("{path}.buffer"), buffer),
            (None, Some(buffer), _) => (format!("{prefix}buffer"), buffer),
            (None, None, Some(key)) => {
                return Err(self.error(path, format!("a buffer beside {key}"), show(&Value::Null)));
            }
            (None, None, None) => return Ok(None),
        };
        self.buffer(prefix, &place, buffer, around).map(Some)
    }

    /// Address, or offset and buffer.
    fn tensor(
        &self,
        path: &str,
        object: &Map<String, Value>,
        around: &Map<String, Value>,
    ) -> Result<(u64, Option<Buffer>), ArgumentError> {
        let number = |key: &str| {
            let value = object.get(key).unwrap_or(&Value::Null);
            self.integer(&format!("{path}.{key}"), value, 0, u64::MAX.into())
        };
        let buffer = self.map_buffer(path, object, around)?;
        match (buffer, object.contains_key("addr"), object.contains_key("offset")) {
            (Some(buffer), false, true) => Ok((number("offset")? as u64, Some(buffer))),
            (Some(buffer), false, false) => Ok((0, Some(buffer))),
            (None, true, false) => Ok((number("addr")? as u64, None)),
            (buffer, addr, _) => {
                let actual = match (buffer, addr) {
                    (Some(_), _) => "both",
                    (None, true) => "addr and offset",
                    (None, false) => "neither",
                };
                Err(self.error(path, "either a buffer, with or without offset, or addr", actual))
            }
        }
    }

    fn integers(
        &self,
        field: &str,
        value: Option<&Value>,
        most: u64,
    ) -> Result<Vec<u64>, ArgumentError> {
        let Some(Value::Array(items)) = value else {
            let actual = value.map_or("none".to_owned(), show);
            return Err(self.error(field, "a list of integers", actual));
        };
        let item = |(index, value)| {
            let integer = self.integer(&format!("{field}[{index}]"), value, 0, most.into())?;
            Ok(integer as u64)
        };
        items.iter().enumerate().map(item).collect()
    }

    /// A driver enumeration by name or number; `NONE` if it is not given.
    fn choice<T: FromStr<Err = UnknownName>>(
        &self,
        path: &str,
        object: &Map<String, Value>,
        key: &str,
        number: Number<T>,
    ) -> Result<T, ArgumentError> {
        let none = Value::from("NONE");
        self.named(&format!("{path}.{key}"), Some(object.get(key).unwrap_or(&none)), number)
    }

    fn named<T: FromStr<Err = UnknownName>>(
        &self,
        field: &str,
        value: Option<&Value>,
        number: Number<T>,
    ) -> Result<T, ArgumentError> {
        let value = value.unwrap_or(&Value::Null);
        let by_number = value.as_u64().and_then(|n| number(u32::try_from(n).ok()?));
        if let Some(found) = by_number {
            return Ok(found);
        }
        value.as_str().unwrap_or_default().parse().map_err(|error: UnknownName| {
            self.error(field, format!("one of {}", error.required), show(value))
        })
    }
}

#[cfg(test)]
mod tests;
