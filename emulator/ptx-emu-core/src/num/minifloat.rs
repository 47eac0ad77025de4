//! The 8-, 6- and 4-bit formats of PTX ISA section 5.2.3: one code at a time.
//!
//! Codes are the low bits of a `u8`: 8 for e4m3 and e5m2, 6 for e3m2 and e2m3, 4 for
//! e2m1; bits above are ignored when decoding and zero when encoding. Every value of
//! these formats is an f16, which is what `cvt` decodes to. ue8m0 has a bf16 for each
//! of its codes.

use super::Rounding;
use super::half;
use super::round::{Class, Format, Specials, Step};

/// A signed format narrower than 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Minifloat {
    /// Largest 448, NaN `0x7f`, no infinity.
    E4m3,
    /// Largest 57344, with infinity and NaN.
    E5m2,
    /// Largest 28; every code is a number.
    E3m2,
    /// Largest 7.5; every code is a number.
    E2m3,
    /// Largest 6; every code is a number.
    E2m1,
}

impl Minifloat {
    /// Width of a code in bits: 8, 6 or 4.
    pub const fn bits(self) -> u32 {
        match self {
            Self::E4m3 | Self::E5m2 => 8,
            Self::E3m2 | Self::E2m3 => 6,
            Self::E2m1 => 4,
        }
    }

    const fn format(self) -> Format {
        match self {
            Self::E4m3 => Format::new(4, 3, Specials::NanOnly),
            Self::E5m2 => Format::new(5, 2, Specials::Ieee),
            Self::E3m2 => Format::new(3, 2, Specials::None),
            Self::E2m3 => Format::new(2, 3, Specials::None),
            Self::E2m1 => Format::new(2, 1, Specials::None),
        }
    }

    /// The value of `code` as an f16 bit pattern, exactly; NaN is canonical.
    #[inline]
    pub const fn to_f16(self, code: u8) -> u16 {
        match self {
            Self::E4m3 => E4M3[code as usize],
            Self::E5m2 => {
                let bits = (code as u16) << 8;
                if half::is_nan(bits) { half::NAN } else { bits }
            }
            Self::E3m2 => E3M2[(code & 0x3f) as usize],
            Self::E2m3 => E2M3[(code & 0x3f) as usize],
            Self::E2m1 => E2M1[(code & 0xf) as usize],
        }
    }

    /// `.rn.satfinite`: rounds to nearest even; overflow and infinity become the
    /// largest number. NaN becomes NaN where the format has it, else the largest
    /// positive number. With `relu` a negative value or `-0` becomes `+0`.
    #[inline]
    pub fn from_f32(self, x: f32, relu: bool) -> u8 {
        self.encode(x, Step::Mode(Rounding::Rn), relu)
    }

    /// `.rs.satfinite`: as [`Self::from_f32`], but the magnitude is truncated after the
    /// low `width` bits of `random` were added to the discarded ones, aligned to their
    /// top.
    #[inline]
    pub fn from_f32_stochastic(self, x: f32, random: u32, width: u32, relu: bool) -> u8 {
        self.encode(x, Step::Stochastic { bits: random, width }, relu)
    }

    #[inline]
    fn encode(self, x: f32, step: Step, relu: bool) -> u8 {
        let mut v = Format::F32.decode(u64::from(x.to_bits()));
        if relu && v.sign && v.class != Class::Nan {
            v = Format::F32.decode(0);
        }
        self.format().encode(v, step, true) as u8
    }
}

/// Decodes a format of at most 8 bits whose numbers are all normal in f16 and whose
/// only special code, if any, is the all-ones NaN.
const fn f16_table<const N: usize>(exp_bits: u32, man_bits: u32, nan: bool) -> [u16; N] {
    let bias = (1 << (exp_bits - 1)) - 1;
    let sign_bit = N as u16 / 2;
    let mut table = [0; N];
    let mut code = 0;
    while code < N as u16 {
        let sign = if code & sign_bit != 0 { 0x8000 } else { 0 };
        let mag = code & (sign_bit - 1);
        let man = mag & ((1 << man_bits) - 1);
        let exp = mag >> man_bits;
        table[code as usize] = if nan && mag == sign_bit - 1 {
            half::NAN
        } else if mag == 0 {
            sign
        } else if exp == 0 {
            // The leading one of a subnormal becomes the hidden bit.
            let lead = man.ilog2();
            let exp = (16 - bias) as u16 + lead as u16 - man_bits as u16;
            sign | exp << 10 | (man << (10 - lead)) & 0x3ff
        } else {
            sign | (exp + 15 - bias as u16) << 10 | man << (10 - man_bits)
        };
        code += 1;
    }
    table
}

static E4M3: [u16; 256] = f16_table(4, 3, true);
static E3M2: [u16; 64] = f16_table(3, 2, false);
static E2M3: [u16; 64] = f16_table(2, 3, false);
static E2M1: [u16; 16] = f16_table(2, 1, false);

/// Both codes of an e2m1 byte as f16x2: `cvt.rn.f16x2.e2m1x2` is one look-up.
pub(super) static E2M1X2: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = E2M1[byte & 15] as u32 | (E2M1[byte >> 4] as u32) << 16;
        byte += 1;
    }
    table
};

/// NaN of ue8m0.
pub const UE8M0_NAN: u8 = 0xff;

/// The value 2^(code - 127) as a bf16 bit pattern, exactly. Code 0 is a bf16
/// subnormal, code 255 the canonical NaN.
#[inline]
pub const fn ue8m0_to_bf16(code: u8) -> u16 {
    match code {
        0 => 0x0040,
        UE8M0_NAN => super::bfloat::NAN,
        _ => (code as u16) << 7,
    }
}

/// The exponent of `|x|` as ue8m0: rounded up if `up` (`.rp`), else towards zero
/// (`.rz`). Zero and everything below 2^-127 become code 0; the sign is dropped.
/// Overflow and infinity become 254 if `satfinite`, else 255, which is NaN.
#[inline]
pub const fn ue8m0_from_f32(x: f32, up: bool, satfinite: bool) -> u8 {
    let mag = x.to_bits() & 0x7fff_ffff;
    if mag > 0x7f80_0000 {
        return UE8M0_NAN;
    }
    // 2^-127, a subnormal f32, is code 0 exactly.
    let inexact = mag & 0x007f_ffff != 0 && mag > 0x0040_0000;
    let code = (mag >> 23) as u8 + (up && inexact) as u8;
    if code == UE8M0_NAN && satfinite { UE8M0_NAN - 1 } else { code }
}
