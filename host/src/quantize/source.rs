//! Elements that are quantised: numbers, or the bytes of a float tensor, which are converted to f32
//! piece by piece.

use std::ops::Range;

use fp4_formats::FloatType;
use half::f16;
use rayon::prelude::*;

use crate::floats;

/// Elements that one thread takes at once.
const CHUNK: usize = 1 << 16;

/// Row-major elements.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Numbers.
    Values(&'a [f32]),
    /// Little-endian elements of a type.
    Bytes(FloatType, &'a [u8]),
}

impl Source<'_> {
    /// Number of elements.
    pub fn len(self) -> usize {
        match self {
            Self::Values(values) => values.len(),
            Self::Bytes(dtype, bytes) => bytes.len() / dtype.bytes() as usize,
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Some of the elements, which are there.
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::Values(values) => Self::Values(&values[range]),
            Self::Bytes(dtype, bytes) => {
                let width = dtype.bytes() as usize;
                Self::Bytes(dtype, &bytes[range.start * width..range.end * width])
            }
        }
    }

    /// Writes the elements to `values`, which has as many.
    pub fn load(self, values: &mut [f32]) {
        match self {
            Self::Values(from) => values.copy_from_slice(from),
            Self::Bytes(dtype, bytes) => floats::decode_to(dtype, bytes, values),
        }
    }

    /// The same by all threads.
    pub fn par_load(self, values: &mut [f32]) {
        let parts = values.par_chunks_mut(CHUNK).enumerate();
        parts.for_each(|(at, values)| {
            self.part(at * CHUNK..at * CHUNK + values.len()).load(values);
        });
    }

    /// The largest magnitude; infinity or NaN if there is one.
    pub fn maximum(self) -> f32 {
        // Without their signs, floats of every type are ordered like their bits; infinities and
        // NaN are largest.
        match self {
            Self::Values(values) => {
                f32::from_bits(largest(values, |x| x.to_bits() as i32 & i32::MAX) as u32)
            }
            Self::Bytes(FloatType::F32, bytes) => {
                let (items, _) = bytes.as_chunks();
                let bits = |item: [u8; 4]| i32::from_le_bytes(item) & i32::MAX;
                f32::from_bits(largest(items, bits) as u32)
            }
            Self::Bytes(FloatType::F16, bytes) => f16::from_bits(largest_half(bytes)).to_f32(),
            Self::Bytes(FloatType::Bf16, bytes) => {
                f32::from_bits(u32::from(largest_half(bytes)) << 16)
            }
        }
    }

    /// The same, by all threads.
    pub fn par_maximum(self) -> f32 {
        let chunks = (0..self.len().div_ceil(CHUNK)).into_par_iter();
        let each = chunks
            .map(|at| self.part(at * CHUNK..self.len().min((at + 1) * CHUNK)).maximum().to_bits());
        f32::from_bits(each.max().unwrap_or(0))
    }
}

fn largest<T: Copy>(items: &[T], bits: impl Fn(T) -> i32) -> i32 {
    items.iter().fold(0, |max, &item| max.max(bits(item)))
}

fn largest_half(bytes: &[u8]) -> u16 {
    let (items, _) = bytes.as_chunks();
    let bits = |item: [u8; 2]| i16::from_le_bytes(item) & i16::MAX;
    items.iter().fold(0i16, |max, &item| max.max(bits(item))) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [f32; 7] = [0.5, -3.0, 2.0, -0.0, 1e-7, -65504.0, 7.0];

    #[test]
    fn maxima_and_parts_of_every_type() {
        for dtype in FloatType::ALL {
            let bytes = floats::encode(dtype, VALUES.iter().map(|&x| f64::from(x)));
            let values = floats::decode(dtype, &bytes);
            for source in [Source::Bytes(dtype, &bytes), Source::Values(&values)] {
                assert_eq!(source.len(), VALUES.len());
                assert_eq!(source.maximum(), values[5].abs(), "{source:?}");
                assert_eq!(source.par_maximum(), values[5].abs());
                assert_eq!(source.part(0..3).maximum(), 3.0);
                assert_eq!(source.part(2..2).maximum(), 0.0);
                let mut part = [0.0; 3];
                source.part(1..4).load(&mut part);
                assert_eq!(part.map(f32::to_bits), [-3.0f32, 2.0, -0.0].map(f32::to_bits));
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_largest() {
        for dtype in FloatType::ALL {
            for odd in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                let bytes = floats::encode(dtype, [1.0, odd, 2.0]);
                assert!(!Source::Bytes(dtype, &bytes).par_maximum().is_finite(), "{dtype:?} {odd}");
                assert!(!Source::Values(&[1.0, odd as f32]).maximum().is_finite());
            }
        }
    }
}
