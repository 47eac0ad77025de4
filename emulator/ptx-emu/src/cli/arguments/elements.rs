//! Numbers of the types that kernels take.

use super::{Item, show};
use crate::cli::error::ArgumentError;
use ptx_emu::bundle::{Compare, CompareType};
use serde_json::Value;

/// The notation of a number.
#[derive(Debug, Clone, Copy)]
enum Format {
    Unsigned,
    Signed,
    Float(CompareType),
}

/// A type of numbers.
#[derive(Debug)]
pub(super) struct Element {
    /// Its key.
    pub(super) name: &'static str,
    /// Size, bytes.
    pub(super) bytes: usize,
    format: Format,
}

const fn element(name: &'static str, bytes: usize, format: Format) -> Element {
    Element { name, bytes, format }
}

impl Element {
    /// All of them.
    pub(super) const ALL: &'static [Self] = &[
        element("u8", 1, Format::Unsigned),
        element("u16", 2, Format::Unsigned),
        element("u32", 4, Format::Unsigned),
        element("u64", 8, Format::Unsigned),
        element("s8", 1, Format::Signed),
        element("s16", 2, Format::Signed),
        element("s32", 4, Format::Signed),
        element("s64", 8, Format::Signed),
        element("i8", 1, Format::Signed),
        element("i16", 2, Format::Signed),
        element("i32", 4, Format::Signed),
        element("i64", 8, Format::Signed),
        element("f16", 2, Format::Float(CompareType::F16)),
        element("bf16", 2, Format::Float(CompareType::Bf16)),
        element("f32", 4, Format::Float(CompareType::F32)),
        element("f64", 8, Format::Float(CompareType::F64)),
    ];

    /// Their names, for messages.
    pub(super) fn names() -> String {
        Self::ALL.iter().map(|element| element.name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the comparison of numbers of this type: floats within tolerances, `None` for
    /// integers with any.
    pub(super) fn compare(&self, tolerances: Option<[f64; 2]>) -> Option<Compare> {
        match (self.format, tolerances) {
            (Format::Float(dtype), tolerances) => {
                let [rtol, atol] = tolerances.unwrap_or_default();
                Some(Compare::Close { dtype, rtol, atol })
            }
            (Format::Unsigned, None) => {
                Some(Compare::Integers { bytes: self.bytes, signed: false })
            }
            (Format::Signed, None) => Some(Compare::Integers { bytes: self.bytes, signed: true }),
            (Format::Unsigned | Format::Signed, Some(_)) => None,
        }
    }
}

impl Item {
    /// The bytes of a number.
    pub(super) fn element(
        &self,
        field: &str,
        value: &Value,
        element: &Element,
    ) -> Result<Vec<u8>, ArgumentError> {
        let bits = 8 * element.bytes as u32;
        let unsigned = || self.integer(field, value, 0, i128::MAX >> (127 - bits));
        let integer = match element.format {
            Format::Unsigned => unsigned()?,
            Format::Signed => {
                let limit = 1i128 << (bits - 1);
                self.integer(field, value, -limit, limit - 1)?
            }
            Format::Float(_) if value.as_str().is_some_and(|text| text.starts_with("0x")) => {
                unsigned()?
            }
            Format::Float(ty) => {
                let wide = self.float(field, value)?;
                return ty.nearest(wide).ok_or_else(|| {
                    let required = format!("a number within {}'s range", element.name);
                    self.error(field, required, show(value))
                });
            }
        };
        Ok(integer.to_le_bytes()[..element.bytes].to_vec())
    }

    /// The bytes of a list of numbers, at least one.
    pub(super) fn elements(
        &self,
        field: &str,
        value: &Value,
        element: &Element,
    ) -> Result<Vec<u8>, ArgumentError> {
        let items = match value {
            Value::Array(items) if !items.is_empty() => items,
            other => return Err(self.error(field, "a list of at least one number", show(other))),
        };
        let mut bytes = Vec::with_capacity(items.len() * element.bytes);
        for (index, item) in items.iter().enumerate() {
            bytes.extend(self.element(&format!("{field}[{index}]"), item, element)?);
        }
        Ok(bytes)
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
        .ok_or_else(|| {
            let required = "a number, \"nan\", \"inf\", \"-inf\" or bits such as \"0x3c00\"";
            self.error(field, required, show(value))
        })
    }
}
