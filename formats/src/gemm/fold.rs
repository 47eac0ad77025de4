//! Weights as e4m3: a code times its block's scale, times a power of two for each row.
//!
//! `wgmma` has no scales, so e4m3 operands must hold them. In a row of weights, a weight is
//! `operand * factor`; the factor, a power of two as its biased exponent, is applied to sums in f32, exactly.
//! It is that of the whole row, so that sums need not be promoted at each change of it; it stands in
//! each chunk, 128 columns, beside the row's operands. An operand is a sign and one of eight magnitudes of its block, which a
//! thread looks up by `prmt`. They follow from the table entry of the block's scale:
//!
//! | index | stands for the code | NVFP4 | MXFP4 |
//! | --- | --- | --- | --- |
//! | 0 | 0 | 0 | 0 |
//! | 1, 3, 4, 6 | 1, 0.5, 2, 4 | the scale's e4m3, and its exponent less or more | powers of two |
//! | 2, 5, 7 | 1.5, 3, 6 | 1.5 times the scale, rounded to e4m3, with a larger exponent | 1.5 times the same |
//!
//! # Exactness
//! MXFP4: all blocks of a row whose scales are within 2^11 of the row's largest. In a block
//! further below, a weight is the nearest that 2^-11 of the largest scale can express.
//!
//! NVFP4: magnitudes 0.5, 1, 2 and 4. The others need a mantissa of four bits if the scale's is odd,
//! or has three bits, and are rounded to three, ties to even: an error of at most 1/17. A scale below
//! 2^-10 of the power of two in the row's largest is taken for that, as above. Nothing exceeds 448:
//! the largest scale is brought below 64.
//!
//! A NaN scale makes all operands of its block NaN.

use crate::quantize::Format;
use crate::{e2m1, e4m3};

/// Columns of a row that are folded together: a chunk.
pub const COLUMNS: u32 = 128;

/// Bytes of a scale's table entry in NVFP4: the magnitudes 1 and 1.5.
pub const TABLE_BYTES: u32 = 2;

/// Blocks of a row of a chunk, at most.
const BLOCKS: usize = (COLUMNS / Format::Nvfp4.block()) as usize;

/// Indices of the magnitudes of e2m1.
const INDICES: [u8; 8] = [0, 3, 1, 2, 4, 5, 6, 7];

/// Exponent of the largest scale of a row, without the factor.
const NVFP4_TOP: i32 = 5;
const MXFP4_TOP: i32 = 6;
/// Exponent of the least scale. Half of it is e4m3's least normal number.
const BOTTOM: i32 = -5;
/// Bias of an f32's exponent, and the least of a normal number.
const BIAS: i32 = 127;
const LEAST_EXPONENT: i32 = -126;

/// A NaN operand, and the index that has it in a table made for one.
const NAN_INDEX: u8 = 1;

/// One of e4m3's exponents, in its place.
const EXPONENT: u32 = 8;

/// The excess of the magnitudes 2, 3, 4 and 6 over 1 and 1.5, in bytes.
const DOUBLED: u32 = EXPONENT * 0x0202_0101;

/// The magnitudes of NVFP4 by their index, four bytes each, from the e4m3 of 1 and 1.5 times the scale
/// in the low 16 bits; all others are 0.
#[inline(always)]
#[must_use]
pub const fn nvfp4_magnitudes(table: u32) -> [u32; 2] {
    // [0, one, half as much again, one], [one, half as much again, one, half as much again].
    let low = table.wrapping_mul(0x0100_0100).wrapping_add((256 - EXPONENT) << 24);
    let high = table.wrapping_mul(0x0001_0001);
    [low, high.wrapping_add(DOUBLED)]
}

/// The magnitudes of MXFP4 by their index, four bytes each, from the exponent above the least, in its
/// place in an e4m3.
#[inline(always)]
#[must_use]
pub const fn mxfp4_magnitudes(table: u32) -> [u32; 2] {
    // The table of the scale 2^-5.
    const ONE: u32 = 2 * EXPONENT;
    const HALF_AGAIN: u32 = ONE + EXPONENT / 2;
    const LOW: u32 = ONE << 8 | HALF_AGAIN << 16 | (ONE - EXPONENT) << 24;
    const TWO: u32 = ONE | HALF_AGAIN << 8 | ONE << 16 | HALF_AGAIN << 24;
    const HIGH: u32 = TWO + DOUBLED;
    let low = table.wrapping_mul(0x0101_0100).wrapping_add(LOW);
    [low, table.wrapping_mul(0x0101_0101).wrapping_add(HIGH)]
}

/// The bits of a word of eight folded weights that are indices of magnitudes.
pub const MAGNITUDES: u32 = 0x7777_7777;

/// The bits of [`signs`].
pub const SIGNS: u32 = 0x8080_8080;

/// Returns the place of weight `byte` of the four in half `half` of a word: the lowest bit of the
/// index of its magnitude, and its sign's bit.
///
/// Magnitudes are nibbles, the first four weights in the low half, and the nibbles' highest bits are the
/// signs: the first four weights' in the odd nibbles, in which they are the sign bits of bytes, and the
/// others' in the even ones.
#[must_use]
pub const fn word_bits(half: u32, byte: u32) -> (u32, u32) {
    (16 * half + 4 * byte, 8 * byte + if half == 0 { 7 } else { 3 })
}

/// Returns the selector with which `prmt` selects the four magnitudes of half `half` of a word: in
/// its low 16 bits.
#[inline(always)]
#[must_use]
pub const fn selector(word: u32, half: u32) -> u32 {
    (word & MAGNITUDES) >> (16 * half)
}

/// The signs of the four operands of half `half` of a word, in their places.
#[inline(always)]
#[must_use]
pub const fn signs(word: u32, half: u32) -> u32 {
    word << (4 * half) & SIGNS
}

/// A row of a chunk, folded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Folded {
    /// Format of the weights.
    format: Format,
    /// The index of each column's magnitude, and at 8 its sign.
    pub indices: [u8; COLUMNS as usize],
    /// The table that stands for each block's scale.
    pub tables: [u16; BLOCKS],
    /// Biased exponent of the factor.
    pub factor: u8,
    /// The loss by folding.
    pub lost: Lost,
}

/// The loss of some weights by folding.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lost {
    /// Weights that changed.
    pub changed: u64,
    /// The sum of the squares of the weights, without a scale of the tensor, and of the changes.
    pub signal: f64,
    /// See [`signal`](Self::signal).
    pub noise: f64,
}

impl Lost {
    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            changed: self.changed + other.changed,
            signal: self.signal + other.signal,
            noise: self.noise + other.noise,
        }
    }
}

/// A scale as folding sees it.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// The scale of a block without a value.
    Zero,
    Nan,
    /// Magnitude and exponent.
    Value(f32, i32),
}

impl Scale {
    /// A block's scale; one that no code multiplies counts for nothing.
    fn new(format: Format, byte: u8, is_empty: bool) -> Self {
        let value = match format {
            Format::Nvfp4 => e4m3::decode(byte & 0x7f),
            Format::Mxfp4 => crate::ue8m0::decode(byte),
        };
        if value.is_nan() {
            return Self::Nan;
        }
        if value == 0.0 || is_empty {
            return Self::Zero;
        }
        let exponent = match format {
            Format::Nvfp4 => (value.to_bits() >> 23) as i32 - BIAS,
            // The least is a subnormal f32.
            Format::Mxfp4 => i32::from(byte) - BIAS,
        };
        Self::Value(value, exponent)
    }
}

/// The largest scale of a row, which decides its factor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// Exponent of that scale; none of a row without values.
    top: Option<i32>,
}

impl Range {
    /// The range of a row that has so far this one, and a block more: its scale byte, and whether all its
    /// codes are 0.
    #[must_use]
    pub fn with(self, format: Format, byte: u8, is_empty: bool) -> Self {
        match Scale::new(format, byte, is_empty) {
            Scale::Zero | Scale::Nan => self,
            Scale::Value(_, exponent) => Self { top: self.top.max(Some(exponent)) },
        }
    }

    /// log2 of the factor.
    fn shift(self, format: Format) -> i32 {
        let most = match format {
            Format::Nvfp4 => NVFP4_TOP,
            Format::Mxfp4 => MXFP4_TOP,
        };
        self.top.map_or(0, |top| (top - most).max(LEAST_EXPONENT))
    }
}

impl Folded {
    /// Folds codes, at places past the matrix 0, and the scale bytes of the blocks, in a row whose weights
    /// have this range.
    #[must_use]
    pub fn new(
        format: Format,
        codes: &[u8; COLUMNS as usize],
        scale: impl Fn(u32) -> u8,
        range: Range,
    ) -> Self {
        let block = format.block() as usize;
        let count = codes.len() / block;
        let mut scales = [Scale::Zero; BLOCKS];
        let mut flips = [0; BLOCKS];
        for (index, codes) in codes.chunks_exact(block).enumerate() {
            let byte = scale(index as u32);
            flips[index] = if byte & 0x80 != 0 && matches!(format, Format::Nvfp4) { 8 } else { 0 };
            scales[index] = Scale::new(format, byte, codes.iter().all(|code| code & 7 == 0));
        }
        let shift = range.shift(format);
        let mut folded = Self {
            format,
            indices: [0; COLUMNS as usize],
            tables: [Self::table(format, 1.0); BLOCKS],
            factor: (shift + BIAS) as u8,
            lost: Lost::default(),
        };
        for index in 0..count {
            let columns = index * block..(index + 1) * block;
            match scales[index] {
                Scale::Zero => {}
                Scale::Nan => {
                    folded.indices[columns].fill(NAN_INDEX);
                    folded.tables[index] = Self::nan(format);
                }
                Scale::Value(value, exponent) => {
                    let lost = BOTTOM - (exponent - shift);
                    // By a power of two at a time: f32 holds no power below 2^-149.
                    let scaled = times_power(value, -shift);
                    folded.tables[index] =
                        Self::table(format, if lost > 0 { power(BOTTOM) } else { scaled });
                    for column in columns {
                        let code = codes[column] ^ flips[index];
                        let nearest = if lost > 0 {
                            let ratio = times_power(scaled, -BOTTOM);
                            e2m1::encode(e2m1::decode(code) * ratio)
                        } else {
                            code
                        };
                        folded.indices[column] = INDICES[usize::from(nearest & 7)] | nearest & 8;
                        let was = f64::from(e2m1::decode(code)) * f64::from(value);
                        let change = f64::from(folded.operand(column)) * wide_power(shift) - was;
                        folded.lost = folded.lost.and(Lost {
                            changed: u64::from(change != 0.0),
                            signal: was * was,
                            noise: change * change,
                        });
                    }
                }
            }
        }
        folded
    }

    /// Returns the table that stands for a scale without the factor.
    fn table(format: Format, scale: f32) -> u16 {
        match format {
            Format::Nvfp4 => u16::from_le_bytes([e4m3::encode(scale), e4m3::encode(1.5 * scale)]),
            Format::Mxfp4 => {
                let exponent = (scale.to_bits() >> 23) as i32 - BIAS;
                (exponent - BOTTOM) as u16 * EXPONENT as u16
            }
        }
    }

    /// Returns the table that makes index [`NAN_INDEX`] NaN.
    fn nan(format: Format) -> u16 {
        match format {
            Format::Nvfp4 => u16::from_le_bytes([e4m3::NAN; 2]),
            Format::Mxfp4 => {
                let [low, _] = mxfp4_magnitudes(0);
                u16::from(e4m3::NAN) - (low >> (8 * NAN_INDEX) & 0xff) as u16
            }
        }
    }

    /// The operand of a column, without the factor.
    #[must_use]
    pub fn operand(&self, column: usize) -> f32 {
        let table = u32::from(self.tables[column / self.format.block() as usize]);
        let magnitudes = match self.format {
            Format::Nvfp4 => nvfp4_magnitudes(table),
            Format::Mxfp4 => mxfp4_magnitudes(table),
        };
        let index = self.indices[column];
        let half = magnitudes[usize::from(index / 4 % 2)];
        e4m3::decode((half >> (8 * (index % 4))) as u8 | (index & 8) << 4)
    }

    /// The factor of all operands, a power of two.
    #[must_use]
    pub fn factor(&self) -> f32 {
        f32::from_bits(u32::from(self.factor) << 23)
    }
}

/// 2 to the power of `exponent`, which a normal f32 has.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + BIAS) as u32) << 23)
}

/// The same in f64.
fn wide_power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// `x` times 2 to the power of `exponent`, from -254 to 254.
fn times_power(x: f32, exponent: i32) -> f32 {
    let first = exponent / 2;
    x * power(first) * power(exponent - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(format: Format, codes: impl Fn(usize) -> u8, scales: impl Fn(u32) -> u8) -> Folded {
        let codes = core::array::from_fn(codes);
        let range = range(format, &codes, &scales);
        Folded::new(format, &codes, scales, range)
    }

    /// The range of a row of one chunk.
    fn range(format: Format, codes: &[u8; 128], scales: impl Fn(u32) -> u8) -> Range {
        let blocks = codes.chunks(format.block() as usize).enumerate();
        blocks.fold(Range::default(), |range, (block, codes)| {
            range.with(format, scales(block as u32), codes.iter().all(|code| code & 7 == 0))
        })
    }

    fn value(folded: &Folded, column: usize) -> f32 {
        folded.operand(column) * folded.factor()
    }

    /// Every scale of NVFP4, alone in its row: every magnitude is the product rounded to e4m3's
    /// mantissa, and exact if the module says so.
    #[test]
    fn every_scale_of_nvfp4() {
        for byte in 0..0x7f {
            let row = folded(Format::Nvfp4, |column| (column % 16) as u8, |_| byte);
            let scale = e4m3::decode(byte);
            for column in 0..128 {
                let code = (column % 16) as u8;
                let (got, exact) = (value(&row, column), e2m1::decode(code) * scale);
                match code & 7 {
                    3 | 5 | 7 => {
                        assert!((got - exact).abs() <= exact.abs() / 17.0, "{byte:#x} {code}");
                    }
                    _ => assert_eq!(got, exact, "{byte:#x} {code}"),
                }
            }
        }
    }

    /// A chunk of small scales takes the factor of its row.
    #[test]
    fn chunks_of_a_row_have_one_factor() {
        for (format, large, small) in [(Format::Nvfp4, 0x70, 0x38), (Format::Mxfp4, 130, 121)] {
            let row = range(format, &[3; 128], |_| small).with(format, large, false);
            // An empty block and a NaN do not count.
            let row =
                row.with(format, 0x7e, true).with(format, 0x7f, matches!(format, Format::Mxfp4));
            let of = |scale| Folded::new(format, &[3; 128], |_| scale, row);
            assert_eq!(of(large).factor, of(small).factor, "{format:?}");
            assert_eq!(value(&of(small), 5), value(&folded(format, |_| 3, |_| small), 5));
        }
    }

    /// MXFP4 is exact if the scales of a row are within 2^11, whatever the largest.
    #[test]
    fn mxfp4_is_exact_in_its_range() {
        for top in 0..=254u8 {
            for below in 0..=11u8.min(top) {
                let scales = [top, top - below, top - below / 2, top];
                let row = folded(
                    Format::Mxfp4,
                    |column| (column * 7 % 16) as u8,
                    |block| scales[block as usize],
                );
                assert!(row.lost.changed == 0, "{top} {below}");
                for column in [0, 1, 2, 31, 32, 45, 63, 64, 100, 127] {
                    let code = (column * 7 % 16) as u8;
                    let exponent = i32::from(scales[column / 32]) - 127;
                    let exact = f64::from(e2m1::decode(code)) * 2f64.powi(exponent);
                    let got =
                        f64::from(row.operand(column)) * 2f64.powi(i32::from(row.factor) - 127);
                    assert_eq!(got, exact, "{top} {below} {column}");
                }
            }
        }
    }

    /// Scales that are further below are rounded to the nearest that there is, and said not to be
    /// exact, unless they are.
    #[test]
    fn far_scales_are_rounded() {
        // The unit of the least scale is 4 of this one.
        let scales = |block| if block == 0 { 140 } else { 127 };
        let row = folded(Format::Mxfp4, |_| 5, scales);
        assert_eq!(
            (value(&row, 0), value(&row, 32), row.lost.changed == 0),
            (3.0 * 8192.0, 4.0, false)
        );
        let row = folded(Format::Mxfp4, |_| 1, scales);
        assert_eq!((value(&row, 32), row.lost.changed == 0), (0.0, false));
        let row = folded(Format::Mxfp4, |c| if c < 32 { 1 } else { 6 }, scales);
        assert_eq!((value(&row, 32), row.lost.changed == 0), (4.0, true));
        let row = folded(Format::Nvfp4, |_| 6, |block| if block == 0 { 0x7e } else { 1 });
        assert!(row.lost.changed != 0 && value(&row, 0) == 4.0 * 448.0);
        assert!((value(&row, 127) - 4.0 / 512.0).abs() <= 0.25 / 32.0 * row.factor());
    }

    /// NaN scales, empty blocks, negative scales.
    #[test]
    fn special_scales() {
        for (format, nan) in [(Format::Nvfp4, 0x7f), (Format::Mxfp4, 0xff)] {
            let row =
                folded(format, |column| (column % 16) as u8, |b| if b == 1 { nan } else { 0x38 });
            let block = format.block() as usize;
            for column in 0..128 {
                let is_nan = column / block == 1;
                assert_eq!(value(&row, column).is_nan(), is_nan, "{format:?} {column}");
            }
            let row = folded(format, |_| 0, |_| 0xfe);
            assert!(row.lost.changed == 0 && (0..128).all(|column| value(&row, column) == 0.0));
            // A block of zeros does not push others out of range.
            let row = folded(format, |c| u8::from(c >= 64), |b| if b == 0 { 0x7e } else { 0x01 });
            assert!(row.lost.changed == 0, "{format:?}");
        }
        let row = folded(Format::Nvfp4, |column| (column % 16) as u8, |_| 0xb8);
        assert_eq!([value(&row, 2), value(&row, 10)], [-1.0, 1.0]);
    }
}
