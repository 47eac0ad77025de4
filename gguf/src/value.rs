//! Metadata values.

/// A number or a truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number or a truth value.
    Scalar(Scalar),
    /// Type 8. Bytes that are no UTF-8 are replaced when they are read.
    String(String),
    /// Type 9: values of one type, whose number is given for an empty array's sake.
    Array(u32, Vec<Value>),
}

/// Number of the type of strings.
pub(crate) const STRING: u32 = 8;
/// Number of the type of arrays.
pub(crate) const ARRAY: u32 = 9;

impl Scalar {
    /// The number of the type.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::U8(x) => out.push(x),
            Self::I8(x) => out.extend(x.to_le_bytes()),
            Self::U16(x) => out.extend(x.to_le_bytes()),
            Self::I16(x) => out.extend(x.to_le_bytes()),
            Self::U32(x) => out.extend(x.to_le_bytes()),
            Self::I32(x) => out.extend(x.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::Bool(x) => out.push(u8::from(x)),
            Self::U64(x) => out.extend(x.to_le_bytes()),
            Self::I64(x) => out.extend(x.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
        }
    }
}

impl Value {
    /// The number of the type.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Scalar(scalar) => scalar.number(),
            Self::String(_) => STRING,
            Self::Array(..) => ARRAY,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Scalar(_) | Self::Array(..) => None,
        }
    }

    /// The number, if it is an unsigned integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Scalar(Scalar::U8(x)) => Some((*x).into()),
            Self::Scalar(Scalar::U16(x)) => Some((*x).into()),
            Self::Scalar(Scalar::U32(x)) => Some((*x).into()),
            Self::Scalar(Scalar::U64(x)) => Some(*x),
            Self::Scalar(_) | Self::String(_) | Self::Array(..) => None,
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Scalar(scalar) => scalar.put(out),
            Self::String(text) => put_string(text, out),
            Self::Array(kind, values) => {
                out.extend(kind.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.put(out));
            }
        }
    }
}

/// A string with its length before it.
pub(crate) fn put_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
