//! Arithmetic of tile copies: reductions, and the conversions of loads.
//!
//! `cp.reduce.async.bulk.tensor`, PTX ISA 9.7.9.27.3. The operations of each
//! type are those that an H200 executes; the others are illegal instructions there.

use super::{ElementType, Fill, TileError};
use crate::num::{FloatFlags, MinMaxFlags, Rounding, bfloat, double, half, single};

/// Operation of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Add,
    /// Minimum; a number against a NaN.
    Min,
    /// Maximum; a number against a NaN.
    Max,
    /// Old value plus 1, or 0 from the operand on.
    Inc,
    /// Old value less 1, or the operand below 1 and above it.
    Dec,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 8] =
        [Self::Add, Self::Min, Self::Max, Self::Inc, Self::Dec, Self::And, Self::Or, Self::Xor];

    /// The instruction's modifier, without its dot.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Min => "min",
            Self::Max => "max",
            Self::Inc => "inc",
            Self::Dec => "dec",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }

    /// The operation of a modifier without its dot.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// An operation on elements of one type.
#[derive(Debug, Clone, Copy)]
pub struct Reduction {
    bytes: usize,
    /// New value from old value and operand.
    apply: fn(u64, u64) -> u64,
}

const MIN_MAX: MinMaxFlags = MinMaxFlags { ftz: false, nan: false, abs: false, xorsign: false };

fn add_f32(a: u64, b: u64, flags: FloatFlags) -> u64 {
    let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
    single::add(a, b, Rounding::Rn, flags).to_bits().into()
}

impl Reduction {
    /// The operation on a map's elements.
    ///
    /// # Errors
    ///
    /// A type that the operation does not exist for.
    pub fn new(op: ReduceOp, element: ElementType) -> Result<Self, TileError> {
        use ElementType as T;
        use ReduceOp as Op;
        let apply: fn(u64, u64) -> u64 = match (op, element) {
            (Op::Add, T::U32 | T::S32 | T::U64) => u64::wrapping_add,
            (Op::Add, T::F16) => |a, b| half::add(a as u16, b as u16, FloatFlags::NONE).into(),
            (Op::Add, T::Bf16) => |a, b| bfloat::add(a as u16, b as u16).into(),
            (Op::Add, T::F32 | T::Tf32) => |a, b| add_f32(a, b, FloatFlags::NONE),
            (Op::Add, T::F32Ftz | T::Tf32Ftz) => |a, b| add_f32(a, b, FloatFlags::FTZ),
            (Op::Add, T::F64) => {
                |a, b| double::add_in_memory(f64::from_bits(a), f64::from_bits(b)).to_bits()
            }
            (Op::Min, T::U32 | T::U64) => Ord::min,
            (Op::Max, T::U32 | T::U64) => Ord::max,
            (Op::Min, T::S32) => |a, b| (a as i32).min(b as i32) as u64,
            (Op::Max, T::S32) => |a, b| (a as i32).max(b as i32) as u64,
            (Op::Min, T::S64) => |a, b| (a as i64).min(b as i64) as u64,
            (Op::Max, T::S64) => |a, b| (a as i64).max(b as i64) as u64,
            (Op::Min, T::F16) => |a, b| half::min(a as u16, b as u16, MIN_MAX).into(),
            (Op::Max, T::F16) => |a, b| half::max(a as u16, b as u16, MIN_MAX).into(),
            (Op::Min, T::Bf16) => |a, b| bfloat::min(a as u16, b as u16, MIN_MAX).into(),
            (Op::Max, T::Bf16) => |a, b| bfloat::max(a as u16, b as u16, MIN_MAX).into(),
            (Op::Inc, T::U32) => |a, b| if a >= b { 0 } else { a + 1 },
            (Op::Dec, T::U32) => |a, b| if a == 0 || a > b { b } else { a - 1 },
            (Op::And, T::U32 | T::S32 | T::U64) => |a, b| a & b,
            (Op::Or, T::U32 | T::S32 | T::U64) => |a, b| a | b,
            (Op::Xor, T::U32 | T::S32 | T::U64) => |a, b| a ^ b,
            _ => {
                return Err(TileError::field(
                    "reduction",
                    format!("an operation that exists for elements of type {element}"),
                    op.name(),
                ));
            }
        };
        Ok(Self { bytes: element.bits() as usize / 8, apply })
    }

    /// Size of an element, bytes.
    #[must_use]
    pub const fn element_bytes(&self) -> usize {
        self.bytes
    }

    /// Combines whole elements of `operand` into `memory`, one after another;
    /// bytes after the shorter one's last element stay.
    pub fn apply(&self, memory: &mut [u8], operand: &[u8]) {
        let elements = memory.chunks_exact_mut(self.bytes);
        for (old, operand) in elements.zip(operand.chunks_exact(self.bytes)) {
            let result = (self.apply)(word(old), word(operand));
            old.copy_from_slice(&result.to_le_bytes()[..self.bytes]);
        }
    }
}

/// Up to 8 bytes, little endian.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

impl Fill {
    /// The 16 bits that fill out-of-bounds elements, little endian. NaN fill
    /// has the same ones for every type.
    #[must_use]
    pub const fn pattern(self) -> [u8; 2] {
        match self {
            Self::Zero => [0, 0],
            Self::Nan => [0xf7, 0x7f],
        }
    }
}

impl ElementType {
    /// Converts whole elements in place as a load does: tf32 types are rounded
    /// to nearest even, their NaNs become `0x7fffe000`; subnormals stay, also
    /// those of `_FTZ` types.
    pub fn convert_loaded(self, bytes: &mut [u8]) {
        if !matches!(self, Self::Tf32 | Self::Tf32Ftz) {
            return;
        }
        for element in bytes.chunks_exact_mut(4) {
            let rounded = round_tf32(word(element) as u32);
            element.copy_from_slice(&rounded.to_le_bytes());
        }
    }
}

/// f32 to tf32, to nearest even.
const fn round_tf32(bits: u32) -> u32 {
    const DROPPED: u32 = 13;
    const INFINITY: u32 = 0x7f80_0000;
    if bits & 0x7fff_ffff > INFINITY {
        return 0x7fff_e000;
    }
    let half_less_one = (1 << (DROPPED - 1)) - 1;
    let odd = bits >> DROPPED & 1;
    // A finite number carries into infinity at most.
    (bits + half_less_one + odd) >> DROPPED << DROPPED
}
