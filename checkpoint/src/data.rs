//! The bytes of a tensor: those of the file, or what they are in transformers where GGUF has another form.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

/// The difference between a tensor in GGUF and the same tensor in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// The rows of a head are two halves in transformers, which alternate in GGUF.
    Heads {
        /// Number of heads; a divisor of `rows`, with an even quotient.
        heads: usize,
        /// Number of rows.
        rows: usize,
    },
    /// F32 values are larger by one in GGUF.
    OneMore,
}

impl Edit {
    /// Returns the bytes in transformers' form.
    pub fn read(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Heads { heads, rows } => {
                by_rows(bytes, heads, rows, |half, at| 2 * (at % half) + at / half)
            }
            Self::OneMore => floats(bytes, |value| value - 1.0),
        }
    }

    /// Returns the bytes in GGUF's form: the inverse of [`read`](Self::read).
    pub fn write(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Heads { heads, rows } => {
                by_rows(bytes, heads, rows, |half, at| half * (at % 2) + at / 2)
            }
            Self::OneMore => floats(bytes, |value| value + 1.0),
        }
    }
}

fn floats(bytes: &[u8], change: impl Fn(f32) -> f32) -> Vec<u8> {
    let values = bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
    values.flat_map(|value| change(value).to_le_bytes()).collect()
}

/// Reorders the rows of each head; `from` is the row at a place, of half the rows of a head and that place.
fn by_rows(
    bytes: &[u8],
    heads: usize,
    rows: usize,
    from: impl Fn(usize, usize) -> usize,
) -> Vec<u8> {
    let (row, of_head) = (bytes.len() / rows.max(1), rows / heads.max(1));
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact((row * of_head).max(1)) {
        for at in 0..of_head {
            out.extend_from_slice(&head[from(of_head / 2, at) * row..][..row]);
        }
    }
    out
}

/// The bytes of a tensor. If they are not those of the file, they are computed when they are first read.
#[derive(Clone)]
pub struct Data<'a> {
    bytes: &'a [u8],
    edit: Option<Edit>,
    edited: OnceLock<Vec<u8>>,
}

impl<'a> Data<'a> {
    pub(super) fn new(bytes: &'a [u8], edit: Option<Edit>) -> Self {
        Self { bytes, edit, edited: OnceLock::new() }
    }

    /// Their number, without reading them.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "bytes deref to a slice, which has it")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Deref for Data<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.edit {
            None => self.bytes,
            Some(edit) => self.edited.get_or_init(|| edit.read(self.bytes)),
        }
    }
}

impl<'a> From<Data<'a>> for Cow<'a, [u8]> {
    fn from(data: Data<'a>) -> Self {
        match data.edit {
            None => Cow::Borrowed(data.bytes),
            Some(edit) => {
                let edited = data.edited.into_inner();
                Cow::Owned(edited.unwrap_or_else(|| edit.read(data.bytes)))
            }
        }
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Data<'_> {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl AsRef<[u8]> for Data<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_alternate_and_come_back() {
        let edit = Edit::Heads { heads: 2, rows: 12 };
        let bytes: Vec<u8> = (0..36).collect();
        let written = edit.write(&bytes);
        let first: Vec<u8> = written.chunks(3).map(|row| row[0] / 3).collect();
        assert_eq!(first, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert_eq!(edit.read(&written), bytes);
        assert_eq!(Data::new(&written, Some(edit)), bytes);
    }

    #[test]
    fn one_more_is_of_floats() {
        let bytes = 0.25f32.to_le_bytes();
        assert_eq!(Edit::OneMore.write(&bytes), 1.25f32.to_le_bytes());
        assert_eq!(Edit::OneMore.read(&1.25f32.to_le_bytes()), bytes);
    }
}
