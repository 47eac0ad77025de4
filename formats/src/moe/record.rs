//! The packed row: a token's elements, scales and header in one record, for the way to another device.
//!
//! ```text
//! byte 0       16                        16 + codes, to 16         to 16
//!      | Header | elements, codes or e4m3 | scales of blocks        |
//! ```
//!
//! A record is contiguous and a multiple of [`ALIGN`] bytes, as are the places of its parts. Bytes between the parts
//! are nobody's.

use super::NOWHERE;
use crate::params::blocks;

/// Alignment of records and of their parts.
pub const ALIGN: u32 = 16;

/// The beginning of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Header {
    /// The expert on the device that the record is for, or [`NOWHERE`]: the record is no token's, and its other bytes
    /// are nobody's, but for the rest of the header, which is 0.
    pub expert: u32,
    /// The token's slot on the device that the record is from: token times `top_k`, plus the choice.
    pub place: u32,
    /// The weight of the token's choice.
    pub weight: f32,
    /// The scale of the row; 1 for elements that have none.
    pub scale: f32,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: u32 = size_of::<Self>() as u32;
    /// The place of [`expert`](Self::expert) in a record.
    pub const EXPERT_AT: u32 = core::mem::offset_of!(Self, expert) as u32;
    /// The place of [`scale`](Self::scale) in a record.
    pub const SCALE_AT: u32 = core::mem::offset_of!(Self, scale) as u32;
    /// The header of a record that is no token's.
    pub const NONE: Self = Self { expert: NOWHERE, place: 0, weight: 0.0, scale: 0.0 };

    /// The words of the header, in the order of memory.
    #[must_use]
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        let Self { expert, place, weight, scale } = *self;
        [expert, place, weight.to_bits(), scale.to_bits()]
    }

    /// The header of these words.
    #[must_use]
    pub const fn of_words([expert, place, weight, scale]: [u32; 4]) -> Self {
        let (weight, scale) = (f32::from_bits(weight), f32::from_bits(scale));
        Self { expert, place, weight, scale }
    }
}

/// The layout of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Bytes of the elements: 16-bit numbers, codes of four bits, or e4m3.
    pub elements: u32,
    /// Bytes of the scales of blocks; 0 for elements that have none.
    pub scales: u32,
}

impl Record {
    /// The place of the elements in a record.
    pub const ELEMENTS_AT: u32 = Header::BYTES.next_multiple_of(ALIGN);

    /// The place of the scales of blocks in a record.
    #[must_use]
    pub const fn scales_at(&self) -> u32 {
        Self::ELEMENTS_AT + self.elements.next_multiple_of(ALIGN)
    }

    /// Bytes of a record.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.scales_at() + self.scales.next_multiple_of(ALIGN)
    }
}

blocks! {
    Header { expert, place, weight, scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_apart() {
        for (elements, scales, places) in
            [(3584, 448, [3600, 4048]), (8, 1, [32, 48]), (40, 5, [64, 80]), (64, 0, [80, 80])]
        {
            let record = Record { elements, scales };
            assert_eq!([record.scales_at(), record.bytes()], places);
        }
        assert_eq!((Record::ELEMENTS_AT, Header::BYTES), (16, 16));
    }

    #[test]
    fn headers_are_read_back() {
        let header = Header { expert: 3, place: 70, weight: -0.5, scale: 2.0 };
        assert_eq!(Header::of_words(header.words()), header);
        assert_eq!(Header::NONE.words(), [u32::MAX, 0, 0, 0]);
        assert_eq!((Header::EXPERT_AT, Header::SCALE_AT), (0, 12));
    }
}
