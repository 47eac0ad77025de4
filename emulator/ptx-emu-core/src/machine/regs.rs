//! Register file of a warp, as a structure of arrays: one row of 32 lanes per
//! register, predicates as lane masks.
//!
//! Registers of up to 32 bits live in 32-bit rows (narrow ones zero-extended),
//! 64-bit registers in 64-bit rows, 128-bit ones in two 64-bit rows. A function
//! call moves the base; lanes of a split warp may be at different depths, which
//! is sound because each lane's column is its own stack.
//!
//! Registers that were never written hold 0xCB bytes. Reading one is not
//! reported: LLVM and NVCC emit such reads for values that do not matter.

use super::units::Watch;
use crate::memory::{POISON, POISON_WORD};
use std::sync::Arc;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// The bits of a register without a value.
pub(crate) const POISONED: u32 = u32::from_le_bytes([POISON; 4]);
const POISON_ROW: [u32; LANES] = [POISONED; LANES];

/// A row of the register file relative to the frame, or of the constant pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u32);

const POOL: u32 = 1 << 31;

impl Slot {
    /// Register row `index` of the frame.
    pub(crate) const fn register(index: u32) -> Self {
        Self(index)
    }

    /// Constant pool row `index`.
    pub(crate) const fn pooled(index: u32) -> Self {
        Self(index | POOL)
    }

    /// Row of a register, within the frame.
    pub(crate) const fn index(self) -> u32 {
        self.0
    }

    /// The next row: the upper half of a 128-bit register.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A predicate source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pred {
    /// Register, and whether it is negated.
    Register(u32, bool),
    /// A constant.
    Const(bool),
}

/// Immediate operands and addresses, one row each, shared by all warps of a
/// CTA rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool {
    pub(crate) w32: Vec<[u32; LANES]>,
    pub(crate) w64: Vec<[u64; LANES]>,
}

/// Number of rows a function needs, by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FrameSize {
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
}

impl FrameSize {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            r32: self.r32 + other.r32,
            r64: self.r64 + other.r64,
            preds: self.preds + other.preds,
        }
    }
}

/// A look-up table that a warp's `prmt` instructions share, and the two words
/// it was made from.
#[derive(Debug, Clone)]
struct ByteTable {
    key: (u32, u32),
    /// Whether `pairs` has been made: only on the second use of a key.
    made: bool,
    pairs: Box<[u16; 256]>,
}

/// Register file of a warp.
#[derive(Debug, Clone)]
pub(crate) struct Regs {
    r32: Vec<[u32; LANES]>,
    r64: Vec<[u64; LANES]>,
    preds: Vec<u32>,
    base: FrameSize,
    pool: Arc<Pool>,
    table: ByteTable,
    /// Registers in flight.
    pub(crate) watch: Watch,
}

impl Regs {
    /// A file whose first frame has `size` rows.
    pub(crate) fn new(pool: Arc<Pool>, size: FrameSize) -> Self {
        let mut regs = Self {
            r32: Vec::new(),
            r64: Vec::new(),
            preds: Vec::new(),
            base: FrameSize::default(),
            pool,
            table: ByteTable { key: (0, 0), made: false, pairs: Box::new([0; 256]) },
            watch: Watch::default(),
        };
        regs.reserve(size);
        regs
    }

    /// Poisons everything for another warp.
    pub(crate) fn reset(&mut self, pool: Arc<Pool>) {
        self.r32.fill(POISON_ROW);
        self.r64.fill([POISON_WORD; LANES]);
        self.preds.fill(0);
        self.base = FrameSize::default();
        self.pool = pool;
        self.watch.reset();
    }

    /// The table whose entry for two selector nibbles holds the two bytes that
    /// `prmt` picks from `key`. `None` on the first use of a key, since most
    /// pairs of words are used once.
    pub(crate) fn byte_table(
        &mut self,
        key: (u32, u32),
        entry: impl Fn(u32) -> u16,
    ) -> Option<&[u16; 256]> {
        let table = &mut self.table;
        if table.key != key {
            table.key = key;
            table.made = false;
            return None;
        }
        if !table.made {
            for (pair, value) in table.pairs.iter_mut().enumerate() {
                *value = entry(pair as u32);
            }
            table.made = true;
        }
        Some(&table.pairs)
    }

    /// Makes room for rows below `end`.
    pub(crate) fn reserve(&mut self, end: FrameSize) {
        let grow = |len: usize, want: u32| len.max(want as usize);
        self.r32.resize(grow(self.r32.len(), end.r32), POISON_ROW);
        self.r64.resize(grow(self.r64.len(), end.r64), [POISON_WORD; LANES]);
        self.preds.resize(grow(self.preds.len(), end.preds), 0);
    }

    /// Place of a 32-bit register in the file; `None` for a constant.
    pub(crate) fn absolute(&self, slot: Slot) -> Option<usize> {
        (slot.0 & POOL == 0).then(|| (self.base.r32 + slot.0) as usize)
    }

    /// Place of a register of a class in the file.
    pub(crate) fn row_of(&self, class: Class, slot: Slot) -> Option<(Class, u32)> {
        let base = match class {
            Class::Pred => self.base.preds,
            Class::R32 => self.base.r32,
            Class::R64 | Class::R128 => self.base.r64,
        };
        (slot.0 & POOL == 0).then_some((class, base + slot.0))
    }

    /// Moves to another frame.
    #[inline]
    pub(crate) fn set_base(&mut self, base: FrameSize) {
        self.base = base;
    }

    /// Row of a 32-bit source.
    #[inline(always)]
    pub(crate) fn row32(&self, slot: Slot) -> &[u32; LANES] {
        if slot.0 & POOL == 0 {
            &self.r32[(self.base.r32 + slot.0) as usize]
        } else {
            &self.pool.w32[(slot.0 ^ POOL) as usize]
        }
    }

    /// Row of a 64-bit source.
    #[inline(always)]
    pub(crate) fn row64(&self, slot: Slot) -> &[u64; LANES] {
        if slot.0 & POOL == 0 {
            &self.r64[(self.base.r64 + slot.0) as usize]
        } else {
            &self.pool.w64[(slot.0 ^ POOL) as usize]
        }
    }

    #[inline(always)]
    fn row32_mut(&mut self, slot: Slot) -> &mut [u32; LANES] {
        &mut self.r32[(self.base.r32 + slot.0) as usize]
    }

    #[inline(always)]
    fn row64_mut(&mut self, slot: Slot) -> &mut [u64; LANES] {
        &mut self.r64[(self.base.r64 + slot.0) as usize]
    }

    /// A predicate source as a lane mask.
    #[inline(always)]
    pub(crate) fn pred(&self, pred: Pred) -> u32 {
        match pred {
            Pred::Register(index, negated) => {
                let mask = self.preds[(self.base.preds + index) as usize];
                if negated { !mask } else { mask }
            }
            Pred::Const(true) => FULL,
            Pred::Const(false) => 0,
        }
    }

    /// Writes a predicate register in the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_pred(&mut self, index: u32, mask: u32, value: u32) {
        let row = &mut self.preds[(self.base.preds + index) as usize];
        *row = (*row & !mask) | (value & mask);
    }

    /// Writes a row in the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn put<B: Bits>(&mut self, slot: Slot, mask: u32, values: &[B; LANES]) {
        let row = B::row_mut(self, slot);
        if mask == FULL {
            *row = *values;
        } else {
            for (lane, value) in values.iter().enumerate() {
                if mask >> lane & 1 != 0 {
                    row[lane] = *value;
                }
            }
        }
    }

    /// Writes one lane of a row.
    #[inline(always)]
    pub(crate) fn put_lane<B: Bits>(&mut self, slot: Slot, lane: usize, value: B) {
        B::row_mut(self, slot)[lane] = value;
    }
}

/// Applies `f` to every lane. A plain loop: `array::map` over this many lanes
/// is not vectorised.
#[inline(always)]
pub(crate) fn map_row<A: Copy, B: Copy + Default>(
    row: &[A; LANES],
    f: impl Fn(A) -> B,
) -> [B; LANES] {
    let mut out = [B::default(); LANES];
    for (out, value) in out.iter_mut().zip(row) {
        *out = f(*value);
    }
    out
}

/// Class of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Predicate.
    Pred,
    /// Up to 32 bits.
    R32,
    /// 64 bits.
    R64,
    /// 128 bits, two rows.
    R128,
}

/// A row element.
pub(crate) trait Bits: Copy + Default + Send + Sync + 'static {
    /// Register class of the row.
    const CLASS: Class;
    /// Source row.
    fn row(regs: &Regs, slot: Slot) -> &[Self; LANES];
    /// Destination row.
    fn row_mut(regs: &mut Regs, slot: Slot) -> &mut [Self; LANES];
}

impl Bits for u32 {
    const CLASS: Class = Class::R32;
    #[inline(always)]
    fn row(regs: &Regs, slot: Slot) -> &[Self; LANES] {
        regs.row32(slot)
    }
    #[inline(always)]
    fn row_mut(regs: &mut Regs, slot: Slot) -> &mut [Self; LANES] {
        regs.row32_mut(slot)
    }
}

impl Bits for u64 {
    const CLASS: Class = Class::R64;
    #[inline(always)]
    fn row(regs: &Regs, slot: Slot) -> &[Self; LANES] {
        regs.row64(slot)
    }
    #[inline(always)]
    fn row_mut(regs: &mut Regs, slot: Slot) -> &mut [Self; LANES] {
        regs.row64_mut(slot)
    }
}

/// A value that fits a register: how it is read from and written to its row.
pub(crate) trait Scalar: Copy + Send + Sync + 'static {
    /// Row element.
    type Bits: Bits;
    /// Width in bits.
    const WIDTH: u32;
    /// Whether an immediate of it is a floating-point one.
    const FLOAT: bool;
    /// Converts the low bits of a register.
    fn get(bits: Self::Bits) -> Self;
    /// Converts to a register, zero-extended.
    fn bits(self) -> Self::Bits;
}

macro_rules! scalar {
    ($($ty:ty: $bits:ty, $width:expr, $float:expr, $get:expr, $put:expr;)*) => {$(
        impl Scalar for $ty {
            type Bits = $bits;
            const WIDTH: u32 = $width;
            const FLOAT: bool = $float;
            #[inline(always)]
            fn get(bits: $bits) -> Self { ($get)(bits) }
            #[inline(always)]
            fn bits(self) -> $bits { ($put)(self) }
        }
    )*};
}

scalar! {
    u8: u32, 8, false, |b: u32| b as u8, u32::from;
    i8: u32, 8, false, |b: u32| b as i8, |v: i8| u32::from(v as u8);
    u16: u32, 16, false, |b: u32| b as u16, u32::from;
    i16: u32, 16, false, |b: u32| b as i16, |v: i16| u32::from(v as u16);
    u32: u32, 32, false, |b: u32| b, |v: u32| v;
    i32: u32, 32, false, |b: u32| b as i32, |v: i32| v as u32;
    f32: u32, 32, true, f32::from_bits, f32::to_bits;
    u64: u64, 64, false, |b: u64| b, |v: u64| v;
    i64: u64, 64, false, |b: u64| b as i64, |v: i64| v as u64;
    f64: u64, 64, true, f64::from_bits, f64::to_bits;
}
