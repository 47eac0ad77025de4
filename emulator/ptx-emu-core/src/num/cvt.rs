//! `cvt` between scalar types: PTX ISA section 9.7.9.21. Packed and narrower types are
//! in [`narrow`](super::narrow).
//!
//! Float to integer always saturates. NaN becomes 0, except that from f64, or to a
//! 64-bit integer, it becomes the integer whose only set bit is the highest: the PTX
//! ISA says so. PTX leaves NaN open between floats; here it is as on an H200. To and
//! from f64 it keeps its sign and what fits of its payload, and becomes quiet, but
//! `.ftz` makes it the canonical NaN of f32 first. From bf16 to f32, and to the same
//! type without modifiers, its bits stay. Everything else gives the canonical NaN.

use super::round::{Format, Step, Value};
use super::{Rounding, bfloat, half, single};

/// A scalar type of `cvt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are PTX's")]
pub enum NumType {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl NumType {
    /// Width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 8,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        self.format().is_some()
    }

    const fn format(self) -> Option<Format> {
        match self {
            Self::F16 => Some(Format::F16),
            Self::Bf16 => Some(Format::BF16),
            Self::F32 => Some(Format::F32),
            Self::F64 => Some(Format::F64),
            _ => None,
        }
    }

    /// Keeps the low bits that belong to this type and extends them to 64: by the sign
    /// for signed integers, else by zeros.
    #[inline(always)]
    pub const fn extend(self, bits: u64) -> u64 {
        let unused = 64 - self.bits();
        if self.is_signed() {
            ((bits << unused) as i64 >> unused) as u64
        } else {
            bits << unused >> unused
        }
    }

    /// [`Self::extend`] on every lane.
    #[inline(always)]
    fn extend_lanes<const N: usize>(self, lanes: [u64; N]) -> [u64; N] {
        match self {
            Self::U8 => lanes.map(|x| u64::from(x as u8)),
            Self::U16 | Self::F16 | Self::Bf16 => lanes.map(|x| u64::from(x as u16)),
            Self::U32 | Self::F32 => lanes.map(|x| u64::from(x as u32)),
            Self::S8 => lanes.map(|x| x as i8 as u64),
            Self::S16 => lanes.map(|x| x as i16 as u64),
            Self::S32 => lanes.map(|x| x as i32 as u64),
            Self::U64 | Self::S64 | Self::F64 => lanes,
        }
    }
}

/// A scalar `cvt` with its modifiers. Combinations that PTX refuses have the result
/// that the parts suggest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cvt {
    /// Destination type.
    pub to: NumType,
    /// Source type.
    pub from: NumType,
    /// `.rn`, `.rz`, `.rm`, `.rp`, or the direction of `.rni`, `.rzi`, `.rmi`, `.rpi`.
    pub rounding: Rounding,
    /// The rounding is `.rni`, `.rzi`, `.rmi` or `.rpi`. Matters from float to float,
    /// where the result is then an integer; to an integer type it is understood.
    pub integral: bool,
    /// `.ftz`: an f32 source or result that is subnormal becomes a zero.
    pub ftz: bool,
    /// `.sat`: clamps to the range of an integer destination, or to `[+0, 1]`.
    pub sat: bool,
    /// `.relu`: negative values and `-0` become `+0`.
    pub relu: bool,
    /// `.satfinite`: infinities and overflows become the largest finite number.
    pub satfinite: bool,
}

impl Cvt {
    /// A conversion without modifiers, rounding to nearest even.
    pub const fn new(to: NumType, from: NumType) -> Self {
        Self {
            to,
            from,
            rounding: Rounding::Rn,
            integral: false,
            ftz: false,
            sat: false,
            relu: false,
            satfinite: false,
        }
    }

    /// Converts the low bits of `source`. The result is extended to 64 bits as by
    /// [`NumType::extend`], so that a register wider than the type gets what PTX says.
    #[inline]
    pub fn apply(&self, source: u64) -> u64 {
        let source = self.from.extend(source);
        match (self.from.format(), self.to.format()) {
            (None, None) => self.int_to_int(source),
            (None, Some(to)) => self.int_to_float(source, to),
            (Some(from), None) => self.float_to_int(source, from),
            (Some(from), Some(to)) => self.float_to_float(source, from, to),
        }
    }

    /// [`Self::apply`] on every lane. The conversions that are frequent in address arithmetic and
    /// dequantisation choose their operation once, not once per lane.
    #[inline]
    pub fn apply_lanes<const N: usize>(&self, source: [u64; N]) -> [u64; N] {
        let plain = !(self.sat || self.relu || self.ftz || self.satfinite || self.integral)
            && self.rounding == Rounding::Rn;
        match (self.to, self.from) {
            (to, from) if !self.sat && !to.is_float() && !from.is_float() => {
                to.extend_lanes(from.extend_lanes(source))
            }
            (NumType::F32, NumType::F16) if plain => {
                source.map(|x| u64::from(half::to_f32(x as u16).to_bits()))
            }
            (NumType::F32, NumType::Bf16) if plain => source.map(|x| (x & 0xffff) << 16),
            (NumType::F16, NumType::F32) if plain => {
                source.map(|x| u64::from(half::from_f32(f32::from_bits(x as u32))))
            }
            (NumType::Bf16, NumType::F32) if plain => {
                source.map(|x| u64::from(bfloat::from_f32(f32::from_bits(x as u32))))
            }
            (NumType::F32, NumType::S32) if plain => {
                source.map(|x| u64::from((x as i32 as f32).to_bits()))
            }
            (NumType::F32, NumType::U32) if plain => {
                source.map(|x| u64::from((x as u32 as f32).to_bits()))
            }
            _ => source.map(|x| self.apply(x)),
        }
    }

    #[inline(always)]
    fn int_to_int(&self, source: u64) -> u64 {
        if !self.sat {
            return self.to.extend(source);
        }
        let negative = self.from.is_signed() && (source as i64) < 0;
        let magnitude = if negative { (source as i64).unsigned_abs() } else { source };
        self.clamp(negative, Some(magnitude))
    }

    /// The integer `±magnitude`, or one too large to represent, clamped to `self.to`.
    #[inline]
    fn clamp(&self, negative: bool, magnitude: Option<u64>) -> u64 {
        let magnitude = magnitude.unwrap_or(u64::MAX);
        let all = u64::MAX >> (64 - self.to.bits());
        match (self.to.is_signed(), negative) {
            (true, true) => magnitude.min(all / 2 + 1).wrapping_neg(),
            (true, false) => magnitude.min(all / 2),
            (false, true) => 0,
            (false, false) => magnitude.min(all),
        }
    }

    #[inline]
    fn int_to_float(&self, source: u64, to: Format) -> u64 {
        let signed = self.from.is_signed();
        let bits = match (self.to, self.rounding) {
            (NumType::F32, Rounding::Rn) => {
                let x = if signed { source as i64 as f32 } else { source as f32 };
                u64::from(x.to_bits())
            }
            (NumType::F64, Rounding::Rn) => {
                (if signed { source as i64 as f64 } else { source as f64 }).to_bits()
            }
            _ => {
                let negative = signed && (source as i64) < 0;
                let magnitude = if negative { source.wrapping_neg() } else { source };
                to.encode(Value::integer(negative, magnitude), self.step(), self.satfinite)
            }
        };
        self.finish(bits, to)
    }

    #[inline]
    fn float_to_int(&self, source: u64, from: Format) -> u64 {
        let source = self.flush(source, self.from);
        if self.from == NumType::F32 && self.rounding == Rounding::Rz {
            // `as` truncates and saturates, NaN to 0.
            match self.to {
                NumType::S32 => return f32::from_bits(source as u32) as i32 as i64 as u64,
                NumType::U32 => return u64::from(f32::from_bits(source as u32) as u32),
                _ => {}
            }
        }
        let v = from.decode(source);
        if v.is_nan() {
            let wide = self.from == NumType::F64 || self.to.bits() == 64;
            return if wide { self.to.extend(1 << (self.to.bits() - 1)) } else { 0 };
        }
        self.clamp(v.sign, v.to_integer(self.rounding))
    }

    #[inline]
    fn float_to_float(&self, source: u64, from: Format, to: Format) -> u64 {
        let modified = self.sat || self.relu || self.ftz || self.integral;
        if self.from == self.to && !modified && matches!(self.to, NumType::F32 | NumType::F64) {
            return source;
        }
        // To f16, `.ftz` is accepted and does nothing on an H200.
        let source = if self.to == NumType::F16 { source } else { self.flush(source, self.from) };
        let nearest = self.rounding == Rounding::Rn && !self.integral && !self.satfinite;
        let bits = match (self.to, self.from) {
            (NumType::F32, NumType::F16) if !self.integral => {
                u64::from(half::to_f32(source as u16).to_bits())
            }
            (NumType::F32, NumType::Bf16) if !self.integral => (source & 0xffff) << 16,
            (NumType::F16, NumType::F32) if nearest => {
                u64::from(half::from_f32(f32::from_bits(source as u32)))
            }
            (NumType::Bf16, NumType::F32) if nearest => {
                u64::from(bfloat::from_f32(f32::from_bits(source as u32)))
            }
            (NumType::F32, NumType::F64) if self.ftz => {
                let x = f64::from_bits(source);
                let bits = self.convert(from.decode(source), source, from, to);
                let rounded = f32::from_bits(bits as u32);
                u64::from(single::flush_result(rounded, x, self.rounding, true).to_bits())
            }
            _ => self.convert(from.decode(source), source, from, to),
        };
        self.finish(self.flush(bits, self.to), to)
    }

    fn convert(&self, v: Value, source: u64, from: Format, to: Format) -> u64 {
        if v.is_nan() {
            return match (to, from) {
                (Format::F64, Format::F32) if self.ftz => {
                    widen_nan(single::NAN.to_bits().into(), from)
                }
                (Format::F64, _) => widen_nan(source, from),
                (_, Format::F64) => narrow_nan(source, to),
                _ => to.nan(),
            };
        }
        if self.integral && v.exp < 0 {
            // Every number with a fraction is small enough for a 64-bit integer.
            if let Some(magnitude) = v.to_integer(self.rounding) {
                let rounded = Value::integer(v.sign, magnitude);
                return to.encode(rounded, Step::Mode(Rounding::Rn), self.satfinite);
            }
        }
        to.encode(v, self.step(), self.satfinite)
    }

    const fn step(&self) -> Step {
        Step::Mode(self.rounding)
    }

    #[inline(always)]
    fn flush(&self, bits: u64, ty: NumType) -> u64 {
        if ty == NumType::F32 {
            u64::from(single::flush(f32::from_bits(bits as u32), self.ftz).to_bits())
        } else {
            bits
        }
    }

    /// `.sat` and `.relu` on an encoded result.
    #[inline(always)]
    fn finish(&self, bits: u64, to: Format) -> u64 {
        if !(self.sat || self.relu) {
            return bits;
        }
        let v = to.decode(bits);
        if v.is_nan() {
            return if self.sat { 0 } else { bits };
        }
        if v.sign {
            return 0;
        }
        // Patterns of positive numbers order like the numbers.
        if self.sat { bits.min(to.one()) } else { bits }
    }
}

/// The f64 NaN `bits` as a quiet one of `to`, of the same sign and with the upper bits
/// of the payload.
fn narrow_nan(bits: u64, to: Format) -> u64 {
    let sign = if bits & Format::F64.sign_bit() != 0 { to.sign_bit() } else { 0 };
    let payload = bits & ((1 << Format::F64.man_bits) - 1);
    let quiet = 1 << (to.man_bits - 1);
    let exponent = to.nan() & !((1 << to.man_bits) - 1);
    sign | exponent | quiet | payload >> (Format::F64.man_bits - to.man_bits)
}

/// The NaN `bits` of `from` as a quiet f64 of the same sign and payload.
fn widen_nan(bits: u64, from: Format) -> u64 {
    let f64_bits = Format::F64;
    let sign = if bits & from.sign_bit() != 0 { f64_bits.sign_bit() } else { 0 };
    let payload = bits & ((1 << from.man_bits) - 1);
    let quiet = (f64_bits.sign_bit() - 1) & !((1 << (f64_bits.man_bits - 1)) - 1);
    sign | quiet | payload << (f64_bits.man_bits - from.man_bits)
}
