//! Operand types of matrix instructions (PTX ISA 5.2.3, 9.7.14.5, 9.7.16.4.2) and
//! the values of their codes.

use crate::num::minifloat::{Minifloat, UE8M0_NAN};
use crate::num::{bfloat, half};
use std::sync::LazyLock;

/// Type of an element of `A` or `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.tf32`: an f32 whose low 13 bits are ignored.
    Tf32,
    /// `.e4m3`
    E4m3,
    /// `.e5m2`
    E5m2,
    /// `.e2m3`
    E2m3,
    /// `.e3m2`
    E3m2,
    /// `.e2m1`
    E2m1,
    /// `.s8`
    S8,
    /// `.u8`
    U8,
    /// `.s4`
    S4,
    /// `.u4`
    U4,
    /// `.b1`
    B1,
    /// `.f64`
    F64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::F16,
        Self::Bf16,
        Self::Tf32,
        Self::E4m3,
        Self::E5m2,
        Self::E2m3,
        Self::E3m2,
        Self::E2m1,
        Self::S8,
        Self::U8,
        Self::S4,
        Self::U4,
        Self::B1,
        Self::F64,
    ];

    /// The type that a PTX modifier names, without its dot.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "e2m3" => Self::E2m3,
            "e3m2" => Self::E3m2,
            "e2m1" => Self::E2m1,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "b1" => Self::B1,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Width of a code in bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::F64 => 64,
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::E2m3 | Self::E3m2 => 6,
            Self::E2m1 | Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    /// `.e4m3` to `.e2m1`: the types of the f8f6f4 kinds.
    #[must_use]
    pub const fn is_f8f6f4(self) -> bool {
        matches!(self, Self::E4m3 | Self::E5m2 | Self::E2m3 | Self::E3m2 | Self::E2m1)
    }

    /// `.s8` to `.u4`.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S4 | Self::U4)
    }

    /// The number that a code of at most 32 bits stands for, exactly; bits above
    /// the code are ignored. For [`Self::F64`] the code would be wider: 0.
    #[inline]
    #[must_use]
    pub fn value(self, code: u32) -> f64 {
        match self {
            Self::F16 => f64::from(half::to_f32(code as u16)),
            Self::Bf16 => f64::from(bfloat::to_f32(code as u16)),
            Self::Tf32 => f64::from(f32::from_bits(code & 0xffff_e000)),
            Self::F64 => 0.0,
            _ => self.table()[(code & 0xff) as usize],
        }
    }

    /// The integer that a code of an integer type stands for; 0 for other types.
    #[inline]
    #[must_use]
    pub const fn integer(self, code: u32) -> i16 {
        match self {
            Self::S8 => code as u8 as i8 as i16,
            Self::U8 => code as u8 as i16,
            Self::S4 => (((code << 4) as u8 as i8) >> 4) as i16,
            Self::U4 => (code & 0xf) as i16,
            Self::B1 => (code & 1) as i16,
            _ => 0,
        }
    }

    /// Value of every byte, of which the low bits are the code. Zeros for types
    /// wider than a byte.
    #[must_use]
    pub fn table(self) -> &'static [f64; 256] {
        static TABLES: LazyLock<[[f64; 256]; 14]> = LazyLock::new(|| {
            let mut tables = [[0.0; 256]; 14];
            for element in Element::ALL {
                let format = match element {
                    Element::E4m3 => Some(Minifloat::E4m3),
                    Element::E5m2 => Some(Minifloat::E5m2),
                    Element::E2m3 => Some(Minifloat::E2m3),
                    Element::E3m2 => Some(Minifloat::E3m2),
                    Element::E2m1 => Some(Minifloat::E2m1),
                    _ => None,
                };
                for (code, value) in tables[element as usize].iter_mut().enumerate() {
                    *value = match format {
                        Some(format) => f64::from(half::to_f32(format.to_f16(code as u8))),
                        None => f64::from(element.integer(code as u32)),
                    };
                }
            }
            tables
        });
        &TABLES[self as usize]
    }
}

/// Type of a block scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// `.ue8m0`: 2^(code - 127); 0xff is NaN.
    Ue8m0,
    /// `.ue4m3`: e4m3 without a sign. PTX leaves codes with bit 7 set undefined;
    /// here the bit is ignored. 0x7f is NaN.
    Ue4m3,
}

impl ScaleType {
    /// The type that a PTX modifier names, without its dot.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "ue8m0" => Some(Self::Ue8m0),
            "ue4m3" => Some(Self::Ue4m3),
            _ => None,
        }
    }

    /// The number that a code stands for, exactly.
    #[inline]
    #[must_use]
    pub fn value(self, code: u8) -> f64 {
        match self {
            Self::Ue8m0 if code == UE8M0_NAN => f64::NAN,
            // Every exponent of ue8m0 is that of a normal f64.
            Self::Ue8m0 => f64::from_bits((u64::from(code) + 1023 - 127) << 52),
            Self::Ue4m3 => Element::E4m3.table()[(code & 0x7f) as usize],
        }
    }
}

/// Scales of an operand row along the K of one instruction: `.scale_vec`
/// (PTX ISA 9.7.14.3, 9.7.16.10.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleVec {
    /// One for all of K.
    X1,
    /// Two.
    X2,
    /// Four.
    X4,
}

impl ScaleVec {
    /// Scales along K.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
        }
    }

    /// Whether a 4-byte cell has this many scales from byte `id` on, aligned.
    #[must_use]
    pub const fn accepts_id(self, id: u32) -> bool {
        id < 4 && id.is_multiple_of(self.count() as u32)
    }
}
