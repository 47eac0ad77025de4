//! The bits that describe operands to `tcgen05` (PTX ISA, "Instruction descriptor" and
//! "Shared memory descriptor").

use crate::HalfType;
use crate::quantize::Format;
use crate::swizzle::Swizzle;

/// e2m1 in the type fields of the kinds mxf4 and mxf4nvf4.
const E2M1: u32 = 1;

/// Instruction descriptor of a block-scaled product of `m` x `n` on packed e2m1, scales
/// from byte `scale_id` (0, or 2 for the second of two products on one scale tile) of
/// their cells.
#[must_use]
pub const fn instruction(format: Format, m: u32, n: u32, scale_id: u32) -> u32 {
    let ue8m0 = match format {
        Format::Nvfp4 => 0,
        Format::Mxfp4 => 1,
    };
    scale_id << 4
        | E2M1 << 7
        | E2M1 << 10
        | (n >> 3) << 17
        | ue8m0 << 23
        | (m >> 7) << 27
        | scale_id << 29
}

/// Instruction descriptor of a product of `m` x `n` on 16-bit operands, sums in f32.
#[must_use]
pub const fn half_instruction(operand: HalfType, m: u32, n: u32) -> u32 {
    let (f32, kind) = (
        1,
        match operand {
            HalfType::F16 => 0,
            HalfType::Bf16 => 1,
        },
    );
    f32 << 4 | kind << 7 | kind << 10 | (n >> 3) << 17 | (m >> 4) << 24
}

/// Types in the fields of the kind mxf8f6f4.
const BYTES_E4M3: u32 = 0;
const BYTES_E2M1: u32 = 5;

/// Returns the instruction descriptor of a block-scaled product of `m` x `n` of weights and
/// activations in e4m3; scales of the weights are byte `scale_id` of their cells, scales of
/// activations byte 0.
#[must_use]
pub const fn byte_instruction(weights: ByteWeights, m: u32, n: u32, scale_id: u32) -> u32 {
    let (ue8m0, kind) = (
        1,
        match weights {
            ByteWeights::E2m1 => BYTES_E2M1,
            ByteWeights::E4m3 => BYTES_E4M3,
        },
    );
    kind << 7 | BYTES_E4M3 << 10 | (n >> 3) << 17 | ue8m0 << 23 | (m >> 7) << 27 | scale_id << 29
}

/// The type of the weights' elements beside activations in e4m3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteWeights {
    /// Codes of MXFP4.
    E2m1,
    /// Bytes of folded NVFP4.
    E4m3,
}

const LEADING: u64 = 16;
const STRIDE: u64 = 32;
const VERSION: u64 = 46;
const SWIZZLE: u64 = 61;
const SWIZZLE_128B: u64 = 2;

/// Shared-memory descriptor of a K-major tile with 128-byte swizzle whose first byte is
/// at address 0; add [`start`] of its address.
#[must_use]
pub const fn codes() -> u64 {
    let stride = Swizzle::B128.atom_bytes() as u64 >> 4;
    // Swizzled K-major operands ignore the leading distance; it is 1 by convention.
    1 << LEADING | stride << STRIDE | 1 << VERSION | SWIZZLE_128B << SWIZZLE
}

/// Shared-memory descriptor of a 512-byte scale tile at address 0; add [`start`] of its address.
#[must_use]
pub const fn scales() -> u64 {
    let stride = Swizzle::None.atom_bytes() as u64 >> 4;
    1 << LEADING | stride << STRIDE | 1 << VERSION
}

/// Returns the addend of a descriptor for the shared address at which its tile begins. Above the
/// bits that a descriptor takes, such an address carries the rank of the CTA.
#[must_use]
pub const fn start(address: u32) -> u64 {
    distance(address & 0x3_ffff)
}

/// Returns the addend of a descriptor for a tile `bytes` behind another one.
#[must_use]
pub const fn distance(bytes: u32) -> u64 {
    (bytes >> 4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that CUTLASS' own helpers give.
    #[test]
    fn known_descriptors() {
        assert_eq!(instruction(Format::Nvfp4, 128, 256, 0), 0x0840_0480);
        assert_eq!(instruction(Format::Nvfp4, 256, 256, 0), 0x1040_0480);
        assert_eq!(half_instruction(HalfType::F16, 128, 256), 0x0840_0010);
        assert_eq!(half_instruction(HalfType::Bf16, 128, 64), 0x0810_0490);
        // The fields of mxf8f6f4 as PTX lists them; fields that it shares with mxf4 are as above.
        assert_eq!(byte_instruction(ByteWeights::E4m3, 128, 256, 0), 0x08c0_0000);
        assert_eq!(byte_instruction(ByteWeights::E2m1, 256, 64, 3), 0x7090_0280);
        assert_eq!(scales(), 0x0000_4008_0001_0000);
        assert_eq!(codes(), 0x4000_4040_0001_0000);
    }

    /// The CTA's rank, which a shared address carries from bit 24 up, is no part of it.
    #[test]
    fn starts_leave_out_the_rank() {
        for address in [0x400, 0x1c400, 0x3_fff0] {
            for rank in 0..16 {
                assert_eq!(start(rank << 24 | address), u64::from(address >> 4));
            }
        }
    }

    #[test]
    fn scale_ids_and_types_have_their_fields() {
        let plain = instruction(Format::Mxfp4, 128, 64, 0);
        assert_eq!(plain & 1 << 23, 1 << 23);
        assert_eq!(instruction(Format::Mxfp4, 128, 64, 2), plain | 2 << 4 | 2 << 29);
    }
}
