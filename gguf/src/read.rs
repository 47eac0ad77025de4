//! Reading: the header of a file in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::kind::{self, Kind};
use crate::value::{ARRAY, STRING, Scalar, Value};
use crate::{ALIGNMENT, MAGIC};

/// Arrays within arrays, at most; ggml itself has one level.
const DEPTH: usize = 4;
/// Dimensions of a tensor, at most, as in ggml.
const DIMENSIONS: u32 = 4;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Name.
    pub name: String,
    /// Element type.
    pub kind: Kind,
    /// Shape, outermost dimension first: the reverse of the file's order.
    pub shape: Vec<u64>,
    /// Data.
    pub data: &'a [u8],
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf<'a> {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors in the order of the file.
    pub tensors: Vec<Tensor<'a>>,
}

impl<'a> Gguf<'a> {
    /// Reads a whole file, version 2 or 3, little-endian.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Field`], [`Error::Tensor`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take("the magic", 4)? != MAGIC {
            return Err(reader.field("the magic", 0, "GGUF", format!("{:?}", &bytes[..4])));
        }
        let version = u32::from_le_bytes(reader.array("the version")?);
        if !matches!(version, 2 | 3) {
            let required = "2 or 3, little-endian";
            return Err(reader.field("the version", 4, required, version.to_string()));
        }
        let tensors = u64::from_le_bytes(reader.array("the number of tensors")?);
        let pairs = u64::from_le_bytes(reader.array("the number of metadata pairs")?);
        reader.holds("the metadata", pairs, LEAST_PAIR)?;
        reader.holds("the list of tensors", tensors, LEAST_TENSOR)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pairs {
            let at = reader.at;
            let key = reader.string("a key")?;
            let kind = u32::from_le_bytes(reader.array("the type of a value")?);
            let value = reader.value(kind, DEPTH)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(reader.field("a key", at, "not there before", key));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(Value::Scalar(Scalar::U32(x))) if x.is_power_of_two() => u64::from(*x),
            Some(other) => {
                let required = "a power of two as U32";
                return Err(reader.field("general.alignment", 0, required, format!("{other:?}")));
            }
        };
        let mut outlines = Vec::new();
        let mut names = BTreeSet::new();
        for _ in 0..tensors {
            let at = reader.at;
            let outline = reader.outline()?;
            if !names.insert(outline.0.clone()) {
                return Err(reader.field("a tensor", at, "not there before", outline.0));
            }
            outlines.push(outline);
        }
        let start = (reader.at as u64).next_multiple_of(alignment);
        let tensors = outlines.into_iter().map(|(name, kind, shape, offset)| {
            if !offset.is_multiple_of(alignment) {
                let required = format!("a multiple of {alignment}");
                return Err(Error::tensor(&name, "its offset", required, offset.to_string()));
            }
            let size = kind.bytes(&shape).ok_or_else(|| {
                let required = format!("rows of whole blocks of {} elements", kind.block().0);
                Error::tensor(&name, "its shape", required, format!("{shape:?} of {kind}"))
            })?;
            let first = start.checked_add(offset);
            let range = first.and_then(|first| {
                let (first, end) = (usize::try_from(first).ok()?, first.checked_add(size)?);
                bytes.get(first..usize::try_from(end).ok()?)
            });
            let data = range.ok_or_else(|| {
                let required = format!("within the {} bytes of the file", bytes.len());
                Error::tensor(
                    &name,
                    "its data",
                    required,
                    format!("{size} bytes from {start} + {offset}"),
                )
            })?;
            Ok(Tensor { name, kind, shape, data })
        });
        Ok(Self { tensors: tensors.collect::<Result<_>>()?, metadata })
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// The fewest bytes of a pair of the metadata: an empty key, a type and a value of a byte.
const LEAST_PAIR: u64 = 8 + 4 + 1;
/// The fewest bytes of a tensor's description: an empty name, no dimension, a type and an offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

type Outline = (String, Kind, Vec<u64>, u64);

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn field(
        &self,
        field: &'static str,
        at: usize,
        required: &'static str,
        actual: String,
    ) -> Error {
        Error::Field { field, at: at as u64, required, actual }
    }

    /// Refuses a number of items that the rest of the file cannot hold.
    fn holds(&self, what: &'static str, count: u64, least: u64) -> Result<()> {
        let (at, actual) = (self.at as u64, self.bytes.len() as u64);
        let required = count.saturating_mul(least);
        match required <= actual - at {
            true => Ok(()),
            false => Err(Error::Truncated { what, at, required, actual }),
        }
    }

    fn take(&mut self, what: &'static str, count: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let (at, actual) = (self.at as u64, self.bytes.len() as u64);
        let taken = taken.ok_or(Error::Truncated { what, at, required: count, actual })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(what, N as u64)?);
        Ok(bytes)
    }

    fn string(&mut self, what: &'static str) -> Result<String> {
        let length = u64::from_le_bytes(self.array(what)?);
        Ok(String::from_utf8_lossy(self.take(what, length)?).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value> {
        const WHAT: &str = "a value";
        let scalar = match kind {
            0 => Scalar::U8(self.array::<1>(WHAT)?[0]),
            1 => Scalar::I8(i8::from_le_bytes(self.array(WHAT)?)),
            2 => Scalar::U16(u16::from_le_bytes(self.array(WHAT)?)),
            3 => Scalar::I16(i16::from_le_bytes(self.array(WHAT)?)),
            4 => Scalar::U32(u32::from_le_bytes(self.array(WHAT)?)),
            5 => Scalar::I32(i32::from_le_bytes(self.array(WHAT)?)),
            6 => Scalar::F32(f32::from_le_bytes(self.array(WHAT)?)),
            7 => match self.array::<1>(WHAT)? {
                [0] => Scalar::Bool(false),
                [1] => Scalar::Bool(true),
                [other] => {
                    let at = self.at - 1;
                    return Err(self.field("a truth value", at, "0 or 1", other.to_string()));
                }
            },
            STRING => return Ok(Value::String(self.string("a string")?)),
            ARRAY if depth > 0 => {
                let of = u32::from_le_bytes(self.array("the type of an array")?);
                let count = u64::from_le_bytes(self.array("the length of an array")?);
                // Grown value by value, so that a false length allocates no more than the file has.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(of, depth - 1)?);
                }
                return Ok(Value::Array(of, values));
            }
            10 => Scalar::U64(u64::from_le_bytes(self.array(WHAT)?)),
            11 => Scalar::I64(i64::from_le_bytes(self.array(WHAT)?)),
            12 => Scalar::F64(f64::from_le_bytes(self.array(WHAT)?)),
            other => {
                let required = "0 to 12, arrays at most four deep";
                return Err(self.field(
                    "the type of a value",
                    self.at,
                    required,
                    other.to_string(),
                ));
            }
        };
        Ok(Value::Scalar(scalar))
    }

    fn outline(&mut self) -> Result<Outline> {
        let name = self.string("the name of a tensor")?;
        let at = self.at;
        let dimensions = u32::from_le_bytes(self.array("the number of dimensions")?);
        if dimensions > DIMENSIONS {
            let actual = dimensions.to_string();
            return Err(self.field("the number of dimensions", at, "at most 4", actual));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(u64::from_le_bytes(self.array("a dimension")?));
        }
        shape.reverse();
        let number = u32::from_le_bytes(self.array("the type of a tensor")?);
        let kind = Kind::of(number).ok_or_else(|| Error::Tensor {
            tensor: name.clone(),
            field: "its type",
            required: "F32, F16, BF16, F64, Q8_0, MXFP4, NVFP4 or an integer".into(),
            actual: match kind::unread(number) {
                Some(name) => format!("{name} ({number})"),
                None => number.to_string(),
            },
        })?;
        let offset = u64::from_le_bytes(self.array("the offset of a tensor")?);
        Ok((name, kind, shape, offset))
    }
}
