//! Operands: the special values of every format, and bits from a seed.

/// The kind of an operand's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Integers of 16 bits.
    Int16,
    /// Integers of 32 bits.
    Int32,
    /// Integers of 64 bits.
    Int64,
    /// Small counts and positions, around and beyond a register's width.
    Count,
    /// f16 in 16 bits.
    F16,
    /// bf16 in 16 bits.
    Bf16,
    /// Two f16.
    F16x2,
    /// Two bf16.
    Bf16x2,
    /// f32.
    F32,
    /// f64.
    F64,
    /// Two codes of 8 bits in 16.
    Codes8x2,
}

impl Kind {
    /// Bytes of a value.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Int16 | Self::F16 | Self::Bf16 | Self::Codes8x2 => 2,
            Self::Int32 | Self::Count | Self::F16x2 | Self::Bf16x2 | Self::F32 => 4,
            Self::Int64 | Self::F64 => 8,
        }
    }

    /// The kind that an instruction's type modifier asks for.
    ///
    /// Total, so that a misspelt table shows as a probe that does not assemble.
    pub(super) fn of(ty: &str) -> Self {
        match ty {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ if ty.ends_with("64") => Self::Int64,
            _ if ty.ends_with("16") => Self::Int16,
            _ => Self::Int32,
        }
    }

    fn specials(self) -> Vec<u64> {
        match self {
            Self::Int16 => integers(16),
            Self::Int32 => integers(32),
            Self::Int64 => integers(64),
            Self::Count => vec![
                0,
                1,
                2,
                4,
                7,
                8,
                15,
                16,
                17,
                24,
                30,
                31,
                32,
                33,
                34,
                47,
                62,
                63,
                64,
                65,
                127,
                128,
                254,
                255,
                256,
                257,
                0x1f00,
                0xffff_ffff,
                0x8000_0000,
                0x8000_0001,
                0xffff_ff00,
            ],
            Self::F16 => F16.iter().map(|&x| x.into()).collect(),
            Self::Bf16 => BF16.iter().map(|&x| x.into()).collect(),
            Self::F16x2 => pairs(&F16),
            Self::Bf16x2 => pairs(&BF16),
            Self::F32 => F32.iter().map(|&x| x.into()).collect(),
            Self::F64 => F64.to_vec(),
            Self::Codes8x2 => (0..256).map(|code| code | ((code * 167 + 13) & 0xff) << 8).collect(),
        }
    }

    /// Bits of the width; every other float has an exponent near that of 1, so that
    /// operands meet.
    fn random(self, rng: &mut SplitMix) -> u64 {
        let bits = rng.next();
        let tame = bits >> 63 == 0;
        let small = |bits: u64, fraction: u32, bias: u64, spread: u64, sign: u32| {
            let exponent = bias - spread + (bits >> 40) % (2 * spread);
            bits & ((1 << fraction) - 1) | exponent << fraction | (bits >> 39 & 1) << sign
        };
        let half = |bits: u64| small(bits, 10, 15, 6, 15);
        let brain = |bits: u64| small(bits, 7, 127, 10, 15);
        match self {
            Self::Count => bits % 80,
            Self::F16 if tame => half(bits),
            Self::Bf16 if tame => brain(bits),
            Self::F16x2 if tame => half(bits) | half(bits.rotate_left(17)) << 16,
            Self::Bf16x2 if tame => brain(bits) | brain(bits.rotate_left(17)) << 16,
            Self::F32 if tame => small(bits, 23, 127, 14, 31),
            Self::F64 if tame => small(rng.next(), 52, 1023, 30, 63),
            // Magnitudes of every size.
            Self::Int16 | Self::Int32 | Self::Int64 if tame => {
                let width = 8 * self.width() as u32;
                let value = rng.next() >> (64 - width) >> (bits % u64::from(width));
                keep(if bits >> 32 & 1 == 0 { value } else { value.wrapping_neg() }, self.width())
            }
            _ => keep(rng.next(), self.width()),
        }
    }
}

fn keep(value: u64, bytes: usize) -> u64 {
    if bytes >= 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}

fn integers(width: u32) -> Vec<u64> {
    let top = 1u64 << (width - 1);
    let all = u64::MAX >> (64 - width);
    let mut values = vec![
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        15,
        16,
        17,
        31,
        32,
        33,
        100,
        127,
        128,
        255,
        256,
        all,
        all - 1,
        all - 2,
        all - 6,
        top,
        top - 1,
        top + 1,
        top | 0x55,
        top >> 1,
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        0x0123_4567_89ab_cdef,
        0xff00_ff00_80ff_7f01,
        0x8000_7fff,
    ];
    for value in &mut values {
        *value &= all;
    }
    values
}

/// Every value with every other one as the upper half, some with themselves.
fn pairs(values: &[u16]) -> Vec<u64> {
    let count = values.len();
    let pair = |at: usize| {
        let (low, high) = (values[at % count], values[(at * 7 + at / count + 3) % count]);
        u64::from(low) | u64::from(high) << 16
    };
    (0..2 * count).map(pair).collect()
}

/// Zeros, subnormals, ones and neighbours, ties, powers of two, the limits of
/// integer types and of narrower formats, infinities, NaNs.
const F32: [u32; 64] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x8000_0001,
    0x0000_0002,
    0x007f_ffff,
    0x807f_ffff,
    0x0040_0000,
    0x0080_0000,
    0x8080_0000,
    0x0080_0001,
    0x0100_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3f7f_ffff,
    0x3f00_0000,
    0xbf00_0000,
    0x3eff_ffff,
    0x3fc0_0000,
    0xbfc0_0000,
    0x4000_0000,
    0x4020_0000,
    0xc020_0000,
    0x4040_0000,
    0x4060_0000,
    0x40a0_0000,
    0x3eaa_aaab,
    0x4049_0fdb,
    0xc049_0fdb,
    0x3e80_0000,
    0x3e00_0000,
    0x42fe_0000,
    0x42ff_0000,
    0x4300_0000,
    0x437f_8000,
    0xc300_8000,
    0x43e0_0000,
    0x43e8_0000,
    0x43e8_0001,
    0x43f0_0000,
    0x46ff_ff00,
    0x4700_0000,
    0x477f_e000,
    0x477f_efff,
    0x477f_f000,
    0x477f_ff00,
    0x4780_0000,
    0x3380_0000,
    0x3300_0000,
    0x3300_0001,
    0x387f_c000,
    0x4b00_0001,
    0x4b80_0000,
    0x4eff_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0x4f80_0000,
    0x5f00_0000,
    0xdf00_0000,
    0x5f80_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f00_0000,
];
/// Infinities and NaNs: quiet, signalling, with payloads, of either sign.
const F32_BEYOND: [u32; 8] = [
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7f80_0001,
    0xff81_2345,
    0x7fc1_2345,
    0xffff_ffff,
];
const F64: [u64; 48] = [
    0,
    1 << 63,
    1,
    1 << 63 | 1,
    0x000f_ffff_ffff_ffff,
    0x800f_ffff_ffff_ffff,
    0x0008_0000_0000_0000,
    0x0010_0000_0000_0000,
    0x8010_0000_0000_0000,
    0x0010_0000_0000_0001,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x3ff0_0000_0000_0001,
    0x3fef_ffff_ffff_ffff,
    0x3fe0_0000_0000_0000,
    0xbfe0_0000_0000_0000,
    0x3ff8_0000_0000_0000,
    0xbff8_0000_0000_0000,
    0x4000_0000_0000_0000,
    0x4004_0000_0000_0000,
    0xc004_0000_0000_0000,
    0x4008_0000_0000_0000,
    0x3fd5_5555_5555_5555,
    0x3e60_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x36a0_0000_0000_0000,
    0x380f_ffff_ffff_ffff,
    0x3810_0000_0000_0000,
    0x3f10_0000_0000_0000,
    0x40ef_fc00_0000_0000,
    0x40ef_fe00_0000_0000,
    0x41df_ffff_ffc0_0000,
    0x41e0_0000_0000_0000,
    0xc1e0_0000_0020_0000,
    0x41ef_ffff_ffe0_0000,
    0x43e0_0000_0000_0000,
    0xc3e0_0000_0000_0000,
    0x43f0_0000_0000_0000,
    0x4340_0000_0000_0001,
    0x47ef_ffff_e000_0000,
    0x47ef_ffff_f000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0xfff8_1234_5678_9abc,
    0x7ff0_0000_0000_0001,
];
const F16: [u16; 40] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x0002, 0x0200, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x0401, 0x0800,
    0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x3800, 0xb800, 0x37ff, 0x3e00, 0xbe00, 0x4000, 0x4100, 0xc100,
    0x4200, 0x3555, 0x5640, 0x57f8, 0x5f00, 0x5f40, 0x5bff, 0x6400, 0x7800, 0x7bff, 0xfbff, 0x7c00,
    0xfc00, 0x7e00, 0xfe12, 0x7c01,
];
const BF16: [u16; 40] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x0002, 0x0040, 0x007f, 0x807f, 0x0080, 0x8080, 0x0081, 0x0100,
    0x3f80, 0xbf80, 0x3f81, 0x3f7f, 0x3f00, 0xbf00, 0x3eff, 0x3fc0, 0xbfc0, 0x4000, 0x4020, 0xc020,
    0x4040, 0x3eab, 0x42fe, 0x437f, 0x4780, 0x3380, 0x4f00, 0xcf00, 0x5f00, 0x7f00, 0x7f7f, 0xff7f,
    0x7f80, 0xff80, 0x7fc0, 0xff81,
];

/// SplitMix64.
#[derive(Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// `count` values for each operand. One operand goes through all its special
/// values, two through pairs of them, three through seeded triples; then come
/// seeded bits, and for three floats triples whose exact sum nearly cancels.
pub(super) fn operands(kinds: &[Kind], count: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut rng = SplitMix::new(seed);
    let mut special: Vec<Vec<u64>> = kinds.iter().map(|kind| kind.specials()).collect();
    for (values, kind) in special.iter_mut().zip(kinds) {
        if *kind == Kind::F32 {
            values.extend(F32_BEYOND.map(u64::from));
        }
    }
    let share = match kinds.len() {
        1 => special[0].len().min(count),
        _ => count * 5 / 8,
    };
    let mut columns = vec![Vec::with_capacity(count); kinds.len()];
    for row in 0..count {
        for (operand, column) in columns.iter_mut().enumerate() {
            let values = &special[operand];
            column.push(match kinds.len() {
                1 if row < share => values[row],
                _ if row < share => values[(rng.next() % values.len() as u64) as usize],
                _ => kinds[operand].random(&mut rng),
            });
        }
    }
    cancel(kinds, &mut columns, count * 7 / 8);
    columns
}

/// Makes `c` of `a * b + c` the rounded negative product, from row `first` on.
fn cancel(kinds: &[Kind], columns: &mut [Vec<u64>], first: usize) {
    let [a, b, c] = columns else { return };
    for row in first..c.len() {
        match kinds {
            [Kind::F32, Kind::F32, Kind::F32] => {
                let product = f32::from_bits(a[row] as u32) * f32::from_bits(b[row] as u32);
                if !product.is_nan() {
                    c[row] = (-product).to_bits().into();
                }
            }
            [Kind::F64, Kind::F64, Kind::F64] => {
                let product = f64::from_bits(a[row]) * f64::from_bits(b[row]);
                if !product.is_nan() {
                    c[row] = (-product).to_bits();
                }
            }
            _ => return,
        }
    }
}
