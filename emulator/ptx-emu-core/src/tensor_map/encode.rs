//! The 128 bytes of a tensor map.
//!
//! They are little-endian bit fields, derived from maps that an H200's driver encoded and from
//! the effects of `tensormap.replace` on an H200:
//!
//! | bits | field |
//! |---|---|
//! | 0..64 | address |
//! | 68..71 | rank - 1 |
//! | 71..75 | element type |
//! | 75..77 | interleave |
//! | 77..79, 86 | swizzle mode, low and high bits |
//! | 79 | NaN fill |
//! | 80 | tf32 (with type f32 or f32.ftz) |
//! | 81..83 | L2 promotion |
//! | 87..89 | swizzle atomicity (this module's choice) |
//! | 96 + 32 i | stride i / 16, low 32 bits |
//! | 224 + 4 i | stride i / 16, high 4 bits |
//! | 256 + 32 i | dimension i - 1 |
//! | 416 + 3 i | element stride i - 1 |
//! | 440..448, 448 + 8 (i - 1) | box extent 0 - 1, box extent i - 1 |
//! | 512..544 | element size times the floors of box extent / element stride |
//! | 576..608 | alignment of the swizzle pattern, bytes |
//!
//! The last two are used only by the driver: hardware ignores them and
//! `tensormap.replace` leaves them as they are.

use super::{
    ElementType, Fill, Interleave, L2Promotion, MAX_RANK, Swizzle, TensorMap, TensorMapError,
};
use crate::Gpu;

/// Size of a tensor map, bytes.
pub const TENSOR_MAP_BYTES: usize = 128;

/// Bit and width of a field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits(pub(super) u32, pub(super) u32);

pub(super) const ADDRESS: Bits = Bits(0, 64);
pub(super) const RANK: Bits = Bits(68, 3);
pub(super) const TYPE: Bits = Bits(71, 4);
pub(super) const INTERLEAVE: Bits = Bits(75, 2);
pub(super) const SWIZZLE: Bits = Bits(77, 2);
pub(super) const NAN_FILL: Bits = Bits(79, 1);
pub(super) const TF32: Bits = Bits(80, 1);
const L2: Bits = Bits(81, 2);
pub(super) const SWIZZLE_HIGH: Bits = Bits(86, 1);
pub(super) const ATOMICITY: Bits = Bits(87, 2);

const NOTED_BYTES: Bits = Bits(512, 32);
const NOTED_ALIGN: Bits = Bits(576, 32);

/// Low and high part of stride `i` in units of 16 bytes.
pub(super) const fn stride_bits(i: usize) -> (Bits, Bits) {
    (Bits(96 + 32 * i as u32, 32), Bits(224 + 4 * i as u32, 4))
}

pub(super) const fn dim_bits(i: usize) -> Bits {
    Bits(256 + 32 * i as u32, 32)
}

pub(super) const fn element_stride_bits(i: usize) -> Bits {
    Bits(416 + 3 * i as u32, 3)
}

pub(super) const fn box_bits(i: usize) -> Bits {
    Bits(440 + 8 * i as u32, 8)
}

impl Bits {
    /// The field's value.
    pub(super) fn get(self, bytes: &[u8; TENSOR_MAP_BYTES]) -> u64 {
        let Self(bit, width) = self;
        (0..width).fold(0, |value, i| {
            let at = bit + i;
            value | u64::from(bytes[at as usize / 8] >> (at % 8) & 1) << i
        })
    }

    /// Replaces the field by the low bits of `value`.
    pub(super) fn set(self, bytes: &mut [u8; TENSOR_MAP_BYTES], value: u64) {
        let Self(bit, width) = self;
        for i in 0..width {
            let at = bit + i;
            let byte = &mut bytes[at as usize / 8];
            *byte = *byte & !(1 << (at % 8)) | ((value >> i & 1) as u8) << (at % 8);
        }
    }

    fn error(self, field: &'static str, required: &'static str, actual: u64) -> TensorMapError {
        TensorMapError::Bits { field, bit: self.0, width: self.1, required, actual }
    }
}

/// Element types in the order of their codes; `true` sets the tf32 bit. The
/// sub-byte codes are this module's choice.
const CODES: [(ElementType, u64, bool); 16] = [
    (ElementType::U8, 0, false),
    (ElementType::U16, 1, false),
    (ElementType::U32, 2, false),
    (ElementType::S32, 3, false),
    (ElementType::U64, 4, false),
    (ElementType::S64, 5, false),
    (ElementType::F16, 6, false),
    (ElementType::F32, 7, false),
    (ElementType::F32Ftz, 8, false),
    (ElementType::F64, 9, false),
    (ElementType::Bf16, 10, false),
    (ElementType::Tf32, 7, true),
    (ElementType::Tf32Ftz, 8, true),
    (ElementType::U4Align8, 11, false),
    (ElementType::U4Align16, 12, false),
    (ElementType::U6Align16, 13, false),
];

/// Code and tf32 bit of an element type.
pub(super) fn type_code(element: ElementType) -> (u64, bool) {
    CODES
        .iter()
        .find(|(candidate, ..)| *candidate == element)
        .map_or((0, false), |&(_, code, tf32)| (code, tf32))
}

/// Swizzle mode and atomicity as `tensormap.replace` numbers them.
const fn swizzle_code(swizzle: Swizzle) -> (u64, u64) {
    match swizzle {
        Swizzle::None => (0, 0),
        Swizzle::B32 => (1, 0),
        Swizzle::B64 => (2, 0),
        Swizzle::B128 => (3, 0),
        Swizzle::B128Atom32 => (3, 1),
        Swizzle::B128Atom32Flip8 => (3, 2),
        Swizzle::B128Atom64 => (3, 3),
    }
}

impl TensorMap {
    /// The 128 bytes, as a driver writes them that knows every type.
    ///
    /// # Errors
    ///
    /// A field that breaks the rules of [`TensorMap::check`].
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], TensorMapError> {
        self.check()?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        ADDRESS.set(&mut bytes, self.address);
        RANK.set(&mut bytes, self.rank() as u64 - 1);
        let (code, tf32) = type_code(self.element);
        TYPE.set(&mut bytes, code);
        TF32.set(&mut bytes, tf32.into());
        INTERLEAVE.set(&mut bytes, self.interleave.number().into());
        let (mode, atomicity) = swizzle_code(self.swizzle);
        SWIZZLE.set(&mut bytes, mode);
        ATOMICITY.set(&mut bytes, atomicity);
        NAN_FILL.set(&mut bytes, self.fill.number().into());
        L2.set(&mut bytes, self.l2_promotion.number().into());
        for (i, stride) in self.strides.iter().enumerate() {
            let (low, high) = stride_bits(i);
            low.set(&mut bytes, stride >> 4);
            high.set(&mut bytes, stride >> 36);
        }
        for (i, &dim) in self.dims.iter().enumerate() {
            dim_bits(i).set(&mut bytes, dim - 1);
        }
        for (i, &stride) in self.element_strides.iter().enumerate() {
            element_stride_bits(i).set(&mut bytes, u64::from(stride) - 1);
        }
        for (i, &extent) in self.box_dims.iter().enumerate() {
            box_bits(i).set(&mut bytes, u64::from(extent) - 1);
        }
        let elements: u32 = self
            .box_dims
            .iter()
            .zip(&self.element_strides)
            .map(|(extent, step)| extent / step)
            .product();
        NOTED_BYTES.set(&mut bytes, u64::from(elements * self.element.bits() / 8));
        // The pattern repeats after 8 rows of the span.
        NOTED_ALIGN.set(&mut bytes, u64::from(self.swizzle.span() * 8).max(16));
        Ok(bytes)
    }

    /// The 128 bytes, as the driver of `gpu` writes them.
    ///
    /// # Errors
    ///
    /// A field that breaks the rules of [`TensorMap::check_for`].
    pub fn encode_for(&self, gpu: &Gpu) -> Result<[u8; TENSOR_MAP_BYTES], TensorMapError> {
        self.check_for(gpu)?;
        self.encode()
    }

    /// Reads 128 bytes. Templates with address 0 or strides 0 are maps like any
    /// other; whether a copy can use the map is [`Tile`](super::Tile)'s matter.
    ///
    /// # Errors
    ///
    /// A field whose bits name nothing.
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<Self, TensorMapError> {
        let rank = RANK.get(bytes);
        if rank >= MAX_RANK as u64 {
            return Err(RANK.error("rank - 1", "0 to 4", rank));
        }
        let rank = rank as usize + 1;
        let code = TYPE.get(bytes);
        let tf32 = TF32.get(bytes) != 0;
        let element = CODES
            .iter()
            .filter(|(_, candidate, _)| *candidate == code)
            .max_by_key(|(.., candidate)| *candidate == tf32)
            .map(|(element, ..)| *element)
            .ok_or_else(|| TYPE.error("element type", "0 to 13", code))?;
        let interleave = INTERLEAVE.get(bytes);
        let l2 = L2.get(bytes);
        Ok(Self {
            element,
            address: ADDRESS.get(bytes),
            dims: (0..rank).map(|i| dim_bits(i).get(bytes) + 1).collect(),
            strides: (0..rank - 1)
                .map(|i| {
                    let (low, high) = stride_bits(i);
                    high.get(bytes) << 36 | low.get(bytes) << 4
                })
                .collect(),
            box_dims: (0..rank).map(|i| box_bits(i).get(bytes) as u32 + 1).collect(),
            element_strides: (0..rank)
                .map(|i| element_stride_bits(i).get(bytes) as u32 + 1)
                .collect(),
            interleave: Interleave::from_number(interleave as u32)
                .ok_or_else(|| INTERLEAVE.error("interleave", "0 to 2", interleave))?,
            swizzle: decode_swizzle(bytes)?,
            l2_promotion: L2Promotion::from_number(l2 as u32)
                .ok_or_else(|| L2.error("L2 promotion", "0 to 3", l2))?,
            fill: if NAN_FILL.get(bytes) == 0 { Fill::Zero } else { Fill::Nan },
        })
    }
}

fn decode_swizzle(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<Swizzle, TensorMapError> {
    if SWIZZLE_HIGH.get(bytes) != 0 {
        return Err(SWIZZLE_HIGH.error("swizzle mode, high bit", "0 (none, 32B, 64B, 128B)", 1));
    }
    let found = (SWIZZLE.get(bytes), ATOMICITY.get(bytes));
    Swizzle::ALL
        .iter()
        .copied()
        .find(|swizzle| swizzle_code(*swizzle) == found)
        .ok_or_else(|| ATOMICITY.error("swizzle atomicity", "0 unless the mode is 128B", found.1))
}
