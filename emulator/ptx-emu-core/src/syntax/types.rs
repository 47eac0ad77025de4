//! Types of instructions and variables.

/// A type as an instruction's modifier names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F32x2,
    F64,
    E4m3x2,
    E5m2x2,
    E2m1x2,
    E2m3x2,
    E3m2x2,
    Ue8m0x2,
    E4m3x4,
    E5m2x4,
    E2m1x4,
    E2m3x4,
    E3m2x4,
}

/// The meaning of a type's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pred,
    Bits,
    Unsigned,
    Signed,
    Float,
    /// Several values in one register.
    Packed,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "u16x2" => Self::U16x2,
            "s16x2" => Self::S16x2,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f32x2" => Self::F32x2,
            "f64" => Self::F64,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "e2m1x2" => Self::E2m1x2,
            "e2m3x2" => Self::E2m3x2,
            "e3m2x2" => Self::E3m2x2,
            "ue8m0x2" => Self::Ue8m0x2,
            "e4m3x4" => Self::E4m3x4,
            "e5m2x4" => Self::E5m2x4,
            "e2m1x4" => Self::E2m1x4,
            "e2m3x4" => Self::E2m3x4,
            "e3m2x4" => Self::E3m2x4,
            _ => return None,
        })
    }

    /// Width in bits; predicates have 1.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 | Self::E2m1x2 => 8,
            Self::B16
            | Self::U16
            | Self::S16
            | Self::F16
            | Self::Bf16
            | Self::E4m3x2
            | Self::E5m2x2
            | Self::E2m3x2
            | Self::E3m2x2
            | Self::Ue8m0x2
            | Self::E2m1x4 => 16,
            Self::B32
            | Self::U32
            | Self::S32
            | Self::U16x2
            | Self::S16x2
            | Self::F16x2
            | Self::Bf16x2
            | Self::Tf32
            | Self::F32
            | Self::E4m3x4
            | Self::E5m2x4
            | Self::E2m3x4
            | Self::E3m2x4 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 | Self::F32x2 => 64,
            Self::B128 => 128,
        }
    }

    /// Width in bytes.
    pub(crate) const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Pred => Kind::Pred,
            Self::B8 | Self::B16 | Self::B32 | Self::B64 | Self::B128 => Kind::Bits,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Kind::Unsigned,
            Self::S8 | Self::S16 | Self::S32 | Self::S64 => Kind::Signed,
            Self::F16 | Self::Bf16 | Self::Tf32 | Self::F32 | Self::F64 => Kind::Float,
            _ => Kind::Packed,
        }
    }

    /// `.s8` to `.s64`.
    pub(crate) const fn is_signed(self) -> bool {
        matches!(self.kind(), Kind::Signed)
    }

    /// An integer or untyped scalar.
    pub(crate) const fn is_integer(self) -> bool {
        matches!(self.kind(), Kind::Signed | Kind::Unsigned | Kind::Bits)
    }
}
