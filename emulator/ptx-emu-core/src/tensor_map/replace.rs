//! `tensormap.replace`: PTX ISA 9.7.9.28.
//!
//! The edits are those of an H200: register operands are truncated to the field's width;
//! dimensions, extents and element strides are stored less one, and strides without their low
//! 4 bits. The element type numbers are those of the instruction. `.elemtype` sets the tf32 bit
//! for its tf32 types and never clears it, so that f32 after tf32 is still tf32, as on hardware.

use super::encode::{
    ADDRESS, ATOMICITY, INTERLEAVE, NAN_FILL, RANK, SWIZZLE, SWIZZLE_HIGH, TENSOR_MAP_BYTES, TF32,
    TYPE, box_bits, dim_bits, element_stride_bits, stride_bits, type_code,
};
use super::{ElementType, MAX_RANK, ReplaceError};

/// A field that `tensormap.replace` can edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplaceField {
    /// `.global_address`, a 64-bit register.
    GlobalAddress,
    /// `.rank`, a register with the rank less one.
    Rank,
    /// `.box_dim`, ordinal and a register.
    BoxDim,
    /// `.global_dim`, ordinal and a register.
    GlobalDim,
    /// `.global_stride`, ordinal and a 64-bit register with bytes.
    GlobalStride,
    /// `.element_stride`, ordinal and a register.
    ElementStride,
    /// `.elemtype`, an immediate in the instruction's own numbering.
    ElementType,
    /// `.interleave_layout`, an immediate.
    InterleaveLayout,
    /// `.swizzle_mode`, an immediate.
    SwizzleMode,
    /// `.swizzle_atomicity`, an immediate.
    SwizzleAtomicity,
    /// `.fill_mode`, an immediate.
    FillMode,
}

/// Element types as `.elemtype` numbers them.
const ELEMENT_TYPES: [ElementType; 16] = [
    ElementType::U8,
    ElementType::U16,
    ElementType::U32,
    ElementType::S32,
    ElementType::U64,
    ElementType::S64,
    ElementType::F16,
    ElementType::F32,
    ElementType::F32Ftz,
    ElementType::F64,
    ElementType::Bf16,
    ElementType::Tf32,
    ElementType::Tf32Ftz,
    ElementType::U4Align8,
    ElementType::U4Align16,
    ElementType::U6Align16,
];

impl ReplaceField {
    /// Every field.
    pub const ALL: [Self; 11] = [
        Self::GlobalAddress,
        Self::Rank,
        Self::BoxDim,
        Self::GlobalDim,
        Self::GlobalStride,
        Self::ElementStride,
        Self::ElementType,
        Self::InterleaveLayout,
        Self::SwizzleMode,
        Self::SwizzleAtomicity,
        Self::FillMode,
    ];

    /// The instruction's modifier, without its dot.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GlobalAddress => "global_address",
            Self::Rank => "rank",
            Self::BoxDim => "box_dim",
            Self::GlobalDim => "global_dim",
            Self::GlobalStride => "global_stride",
            Self::ElementStride => "element_stride",
            Self::ElementType => "elemtype",
            Self::InterleaveLayout => "interleave_layout",
            Self::SwizzleMode => "swizzle_mode",
            Self::SwizzleAtomicity => "swizzle_atomicity",
            Self::FillMode => "fill_mode",
        }
    }

    /// The field of a modifier without its dot.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }

    /// Values of the ordinal operand, from 0; 0 for fields without one.
    #[must_use]
    pub const fn ordinals(self) -> u32 {
        match self {
            Self::BoxDim | Self::GlobalDim | Self::ElementStride => MAX_RANK as u32,
            Self::GlobalStride => MAX_RANK as u32 - 1,
            _ => 0,
        }
    }

    /// Width of the new value, bits: the instruction's type.
    #[must_use]
    pub const fn value_bits(self) -> u32 {
        match self {
            Self::GlobalAddress | Self::GlobalStride => 64,
            _ => 32,
        }
    }

    /// Number of immediates that the field takes, from 0; `None` for fields
    /// that take a register.
    #[must_use]
    pub const fn immediates(self) -> Option<u64> {
        match self {
            Self::ElementType => Some(ELEMENT_TYPES.len() as u64),
            Self::InterleaveLayout => Some(3),
            Self::SwizzleMode => Some(5),
            Self::SwizzleAtomicity => Some(4),
            Self::FillMode => Some(2),
            _ => None,
        }
    }
}

/// Edits one field of a tensor map in place; `ordinal` is ignored by fields
/// without one.
///
/// # Errors
///
/// An ordinal or an immediate that does not exist. The use of the edited map is not checked.
pub fn replace(
    map: &mut [u8; TENSOR_MAP_BYTES],
    field: ReplaceField,
    ordinal: u32,
    value: u64,
) -> Result<(), ReplaceError> {
    let error = |what: &str, count: u64, actual: u64| ReplaceError {
        field: field.name(),
        required: format!("{what} from 0 to {}", count - 1),
        actual: actual.to_string(),
    };
    let ordinals = field.ordinals();
    if ordinals != 0 && ordinal >= ordinals {
        return Err(error("an ordinal", ordinals.into(), ordinal.into()));
    }
    if let Some(count) = field.immediates()
        && value >= count
    {
        return Err(error("a value", count, value));
    }
    let i = ordinal as usize;
    match field {
        ReplaceField::GlobalAddress => ADDRESS.set(map, value),
        ReplaceField::Rank => RANK.set(map, value),
        ReplaceField::BoxDim => box_bits(i).set(map, value.wrapping_sub(1)),
        ReplaceField::GlobalDim => dim_bits(i).set(map, value.wrapping_sub(1)),
        ReplaceField::ElementStride => element_stride_bits(i).set(map, value.wrapping_sub(1)),
        ReplaceField::GlobalStride => {
            let (low, high) = stride_bits(i);
            low.set(map, value >> 4);
            high.set(map, value >> 36);
        }
        ReplaceField::ElementType => {
            let (code, tf32) = type_code(ELEMENT_TYPES[value as usize]);
            TYPE.set(map, code);
            if tf32 {
                TF32.set(map, 1);
            }
        }
        ReplaceField::InterleaveLayout => INTERLEAVE.set(map, value),
        ReplaceField::SwizzleMode => {
            SWIZZLE.set(map, value);
            SWIZZLE_HIGH.set(map, value >> 2);
        }
        ReplaceField::SwizzleAtomicity => ATOMICITY.set(map, value),
        ReplaceField::FillMode => NAN_FILL.set(map, value),
    }
    Ok(())
}
