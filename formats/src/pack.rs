//! Two 4-bit elements per byte: element `2j` in the low nibble, element `2j + 1` in the high
//! nibble.
//!
//! This is the order of `cvt` to and from `.e2m1x2` (PTX ISA) and of every checkpoint format of
//! NVFP4.

/// Bytes that hold `elements` packed elements; an odd last element occupies a whole byte.
#[inline]
#[must_use]
pub const fn packed_len(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// One byte from two codes; bits above the low four of each are ignored.
#[inline]
#[must_use]
pub const fn pair(low: u8, high: u8) -> u8 {
    (low & 0xf) | (high << 4)
}

/// Four bytes from eight codes, the first in the lowest bits; bits above the low four of each are 0.
#[inline]
#[must_use]
pub const fn eight(codes: [u8; 8]) -> u32 {
    let codes = u64::from_le_bytes(codes);
    let pairs = (codes | codes >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    (fours | fours >> 16) as u32
}

/// The two codes of a byte, the lower-indexed element first.
#[inline]
#[must_use]
pub const fn unpair(byte: u8) -> (u8, u8) {
    (byte & 0xf, byte >> 4)
}

/// The code of element `index`, or `None` past the end.
#[inline]
#[must_use]
pub const fn get(packed: &[u8], index: usize) -> Option<u8> {
    if index / 2 >= packed.len() {
        return None;
    }
    let (low, high) = unpair(packed[index / 2]);
    Some(if index.is_multiple_of(2) { low } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibble_order() {
        assert_eq!(pair(0x1, 0x2), 0x21);
        assert_eq!(unpair(0x21), (0x1, 0x2));
        assert_eq!(get(&[0x21, 0x43], 0), Some(1));
        assert_eq!(get(&[0x21, 0x43], 3), Some(4));
        assert_eq!(get(&[0x21, 0x43], 4), None);
    }

    #[test]
    fn eight_codes_stand_in_order() {
        assert_eq!(eight([1, 2, 3, 4, 5, 6, 7, 8]), 0x8765_4321);
        for at in 0..8 {
            let mut codes = [0; 8];
            codes[at] = 0xf;
            assert_eq!(eight(codes), 0xf << (4 * at), "code {at}");
        }
    }

    #[test]
    fn odd_lengths_round_up() {
        assert_eq!(packed_len(0), 0);
        assert_eq!(packed_len(15), 8);
        assert_eq!(packed_len(16), 8);
    }

    #[test]
    fn every_byte_survives_a_round_trip() {
        for byte in 0..=255u8 {
            let (low, high) = unpair(byte);
            assert_eq!(pair(low, high), byte, "byte {byte:#x}");
        }
    }
}
