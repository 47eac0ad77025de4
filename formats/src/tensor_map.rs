//! A tensor map as a member of a parameter block, and the arguments from which it is encoded.

use crate::swizzle::Swizzle;

/// Bytes of a tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// Alignment, bytes, of a tensor map in memory and in a parameter block.
pub const TENSOR_MAP_ALIGN: usize = 64;

/// The 128 bytes that `cuTensorMapEncodeTiled` writes; opaque.
///
/// In a parameter block, maps are the first members, at multiples of [`TENSOR_MAP_ALIGN`]. Rust
/// aligns the block to 8 bytes; the kernel's build raises the alignment of a parameter whose
/// address it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct TensorMap(pub [u64; TENSOR_MAP_BYTES / size_of::<u64>()]);

impl TensorMap {
    /// A map of zeros, for parameters that a launch does not use.
    pub const NONE: Self = Self([0; TENSOR_MAP_BYTES / size_of::<u64>()]);

    /// The map with these bytes, which an encoder wrote.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; TENSOR_MAP_BYTES]) -> Self {
        let mut words = [0; TENSOR_MAP_BYTES / size_of::<u64>()];
        let mut at = 0;
        while at < TENSOR_MAP_BYTES {
            words[at / 8] |= (bytes[at] as u64) << (8 * (at % 8));
            at += 1;
        }
        Self(words)
    }

    /// The bytes as memory holds them.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let mut at = 0;
        while at < TENSOR_MAP_BYTES {
            bytes[at] = (self.0[at / 8] >> (8 * (at % 8))) as u8;
            at += 1;
        }
        bytes
    }
}

/// Element types of the kernels' maps. 4-bit codes are copied as bytes, but where they are to be padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapElement {
    /// 4-bit, of which shared memory gets eight bytes and then a gap of eight: `16U4_ALIGN16B`.
    PaddedU4,
    /// 8-bit.
    U8,
    /// 16-bit.
    U16,
    /// 32-bit.
    U32,
}

impl MapElement {
    /// Bits of an element in memory.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::PaddedU4 => 4,
            Self::U8 => 8,
            Self::U16 => 16,
            Self::U32 => 32,
        }
    }
}

/// The arguments of `cuTensorMapEncodeTiled`, without the address. Dimension 0 is the innermost.
/// Out-of-bounds elements are zero, element strides are 1, and there is no interleaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMapShape {
    /// Element type.
    pub element: MapElement,
    /// Dimensions in use.
    pub rank: usize,
    /// Size of each dimension, elements.
    pub dims: [u64; 5],
    /// Stride of dimension 1 and above, bytes; `rank - 1` in use.
    pub strides: [u64; 4],
    /// Extent of the box, elements.
    pub box_dims: [u32; 5],
    /// Swizzle of shared memory.
    pub swizzle: Swizzle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive() {
        let bytes = core::array::from_fn(|i| (i * 37 + 5) as u8);
        assert_eq!(TensorMap::from_bytes(&bytes).to_bytes(), bytes);
        assert_eq!(size_of::<TensorMap>() % TENSOR_MAP_ALIGN, 0);
    }
}
