//! Helpers that the tests of `wgmma` and `tcgen05` share: numbers, operand tiles in shared memory
//! and the product, written from the PTX ISA and not from the emulator.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod tmem;

use half::{bf16, f16};
use std::sync::LazyLock;

/// A small generator of test values (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32
    }

    pub fn below(&mut self, end: u32) -> u32 {
        self.bits() % end
    }
}

/// Type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ty {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    E2m3,
    E3m2,
    E2m1,
    S8,
    U8,
}

/// Exponent bits, mantissa bits, bias.
const fn minifloat(ty: Ty) -> (u32, u32, i32) {
    match ty {
        Ty::E4m3 => (4, 3, 7),
        Ty::E5m2 => (5, 2, 15),
        Ty::E2m3 => (2, 3, 1),
        Ty::E3m2 => (3, 2, 3),
        _ => (2, 1, 1),
    }
}

impl Ty {
    pub const F8F6F4: [Self; 5] = [Self::E4m3, Self::E5m2, Self::E2m3, Self::E3m2, Self::E2m1];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E2m3 | Self::E3m2 => 6,
            Self::E2m1 => 4,
            _ => 8,
        }
    }

    pub const fn integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8)
    }

    /// Returns the value of a code.
    pub fn value(self, code: u32) -> f64 {
        match self {
            Self::F16 => f16::from_bits(code as u16).to_f64(),
            Self::Bf16 => bf16::from_bits(code as u16).to_f64(),
            Self::Tf32 => f64::from(f32::from_bits(code & !0x1fff)),
            Self::S8 => f64::from(code as u8 as i8),
            Self::U8 => f64::from(code as u8),
            _ => {
                static TABLES: LazyLock<[[f64; 256]; 10]> = LazyLock::new(|| {
                    let mut tables = [[0.0; 256]; 10];
                    for ty in Ty::F8F6F4 {
                        tables[ty as usize] = std::array::from_fn(|code| ty.narrow(code as u32));
                    }
                    tables
                });
                TABLES[self as usize][(code & 0xff) as usize]
            }
        }
    }

    /// Returns the value of a code of up to 8 bits.
    fn narrow(self, code: u32) -> f64 {
        let (e, m, bias) = minifloat(self);
        let exponent = (code >> m & ((1 << e) - 1)) as i32;
        let mantissa = f64::from(code & ((1 << m) - 1)) / f64::from(1 << m);
        let magnitude = match (self, exponent) {
            (Self::E4m3, 15) if code & 7 == 7 => f64::NAN,
            (Self::E5m2, 31) if mantissa == 0.0 => f64::INFINITY,
            (Self::E5m2, 31) => f64::NAN,
            (_, 0) => mantissa * 2f64.powi(1 - bias),
            _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
        };
        if code >> (e + m) & 1 != 0 { -magnitude } else { magnitude }
    }

    /// A finite code: any of those narrower than 16 bits, of the others such that
    /// sums of products are exact in f64.
    pub fn code(self, random: &mut Random) -> u32 {
        let sign = random.below(2);
        match self {
            Self::F16 => sign << 15 | (12 + random.below(6)) << 10 | random.below(1 << 10),
            Self::Bf16 => sign << 15 | (124 + random.below(6)) << 7 | random.below(1 << 7),
            // The low 13 bits are to be ignored.
            Self::Tf32 => sign << 31 | (124 + random.below(6)) << 23 | random.below(1 << 23),
            _ => loop {
                let code = random.below(1 << self.bits());
                if self.value(code).is_finite() {
                    return code;
                }
            },
        }
    }
}

/// Type of an accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    F32,
    F16,
    S32,
}

impl Sum {
    pub fn value(self, bits: u32) -> f64 {
        match self {
            Self::F32 => f64::from(f32::from_bits(bits)),
            Self::F16 => f16::from_bits(bits as u16).to_f64(),
            Self::S32 => f64::from(bits as i32),
        }
    }

    /// The nearest code; integers wrap.
    pub fn round(self, x: f64) -> u32 {
        match self {
            Self::F32 if x.is_nan() => 0x7fff_ffff,
            Self::F32 => (x as f32).to_bits(),
            Self::F16 => u32::from(round_f16(x)),
            Self::S32 => x as i64 as u32,
        }
    }

    /// A finite old accumulator.
    pub fn code(self, random: &mut Random) -> u32 {
        let sign = random.below(2);
        match self {
            Self::F32 => sign << 31 | (120 + random.below(16)) << 23 | random.below(1 << 23),
            Self::F16 => sign << 15 | (10 + random.below(10)) << 10 | random.below(1 << 10),
            Self::S32 => random.bits(),
        }
    }
}

/// Nearest f16, ties to even, once.
fn round_f16(x: f64) -> u16 {
    let near = f16::from_f32(x as f32);
    if x.is_nan() {
        return 0x7fff;
    }
    let around = [near.to_bits().wrapping_sub(1), near.to_bits(), near.to_bits().wrapping_add(1)];
    let distance = |bits: u16| {
        let value = f16::from_bits(bits);
        // An infinity stands for the next number after the largest.
        let value = if value.is_infinite() { 65536f64.copysign(x) } else { value.to_f64() };
        (value - x).abs()
    };
    around
        .into_iter()
        .filter(|&bits| !f16::from_bits(bits).is_nan() && bits >> 15 == near.to_bits() >> 15)
        .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
        .expect("the nearest one itself")
}

/// A matrix of codes: rows of `A`, or columns of `B`, each along K.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub ty: Ty,
    pub rows: usize,
    pub k: usize,
    pub codes: Vec<u32>,
}

impl Matrix {
    pub fn new(ty: Ty, rows: usize, k: usize, random: &mut Random) -> Self {
        let codes = (0..rows * k).map(|_| ty.code(random)).collect();
        Self { ty, rows, k, codes }
    }

    pub fn code(&self, row: usize, k: usize) -> u32 {
        self.codes[row * self.k + k]
    }

    pub fn value(&self, row: usize, k: usize) -> f64 {
        self.ty.value(self.code(row, k))
    }
}

/// Bytes a line of a layout has, 16 without swizzle; [`ATOM32`] has 128.
pub type Width = u32;
/// 128-byte swizzle of 32-byte atoms.
pub const ATOM32: Width = 1;

/// The place of a tile in shared memory. Offsets in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub mn_major: bool,
    pub width: Width,
    /// Offset of the tile; a multiple of 1024.
    pub start: u32,
    /// Offset of the instruction's first chunk from there.
    pub inside: u32,
    pub leading: u32,
    pub stride: u32,
    /// 4-bit codes take 8, 6-bit codes 12 of every 16 bytes.
    pub padded: bool,
}

/// Canonical layouts of PTX ISA 9.7.15.5.1.2 and 9.7.16.10.5: a tile of `rows` rows
/// (or columns of `B`) with generous strides.
impl Layout {
    pub fn new(ty: Ty, mn_major: bool, width: Width, rows: usize, start: u32) -> Self {
        let padded = ty.bits() < 8;
        let mut layout = Self { mn_major, width, start, inside: 0, leading: 16, stride: 0, padded };
        let groups = (rows as u32).div_ceil(8);
        (layout.leading, layout.stride) = match (mn_major, width) {
            // Chunks of one line, groups of eight rows (K-major) or the reverse.
            (false, 16) => (groups * 128 + 128, 128),
            (true, 16) => (128, 640),
            // One more group of eight lines of room.
            (false, _) => (16, 8 * width + 1024),
            (true, ATOM32) => (4096, 512),
            (true, _) => (4096, 8 * width),
        };
        layout
    }

    /// Packed 4-bit codes.
    pub fn packed(self) -> Self {
        Self { padded: false, ..self }
    }

    fn container(&self, ty: Ty) -> u32 {
        if self.padded { 8 } else { ty.bits() }
    }

    /// Address of the chunk that holds an element, and the element's number in it.
    fn chunk(&self, ty: Ty, row: u32, k: u32) -> (u32, u32) {
        let per = 128 / self.container(ty);
        let (line, across) = if self.mn_major { (k, row) } else { (row, k) };
        let (chunk, at) = (across / per, across % per);
        let offset = match (self.mn_major, self.width) {
            (false, 16) => line / 8 * self.stride + line % 8 * 16 + chunk * self.leading,
            (true, 16) => line / 8 * self.leading + line % 8 * 16 + chunk * self.stride,
            (false, width) => line / 8 * self.stride + line % 8 * width + chunk * 16,
            (true, ATOM32) => {
                line / 4 * self.stride + line % 4 * 128 + chunk / 8 * self.leading + chunk % 8 * 16
            }
            (true, width) => {
                let lines = width / 16;
                line / 8 * self.stride
                    + line % 8 * width
                    + chunk / lines * self.leading
                    + chunk % lines * 16
            }
        };
        let unswizzled = self.start + self.inside + offset;
        let swizzled = match self.width {
            ATOM32 => unswizzled ^ (unswizzled >> 7 & 3) << 5,
            16 => unswizzled,
            width => unswizzled ^ (unswizzled >> 7 & (width / 16 - 1)) << 4,
        };
        (swizzled, at)
    }

    /// Puts a matrix into an image of shared memory.
    pub fn store(&self, matrix: &Matrix, image: &mut Vec<u8>) {
        for row in 0..matrix.rows {
            for k in 0..matrix.k {
                let (chunk, at) = self.chunk(matrix.ty, row as u32, k as u32);
                let bits = matrix.ty.bits();
                let first = (chunk * 8 + at * bits) as usize;
                if image.len() < chunk as usize + 16 {
                    image.resize((chunk as usize + 1024) & !1023, 0xff);
                }
                for bit in 0..bits as usize {
                    let (byte, mask) = ((first + bit) / 8, 1 << ((first + bit) % 8));
                    image[byte] &= !mask;
                    if matrix.code(row, k) >> bit & 1 != 0 {
                        image[byte] |= mask;
                    }
                }
            }
        }
    }

    /// Descriptor bits for a tile whose image is at `base`.
    pub fn descriptor(&self, base: u32, sm100: bool) -> u64 {
        let field = |bytes: u32| u64::from(bytes >> 4);
        let swizzle = match (self.width, sm100) {
            (16, _) => 0,
            (ATOM32, _) => 1 << 61,
            (128, _) => 2 << 61,
            (64, _) => 4 << 61,
            _ => 6 << 61,
        };
        let constant = if sm100 { 1 << 46 } else { 0 };
        field(base + self.start + self.inside)
            | field(self.leading) << 16
            | field(self.stride) << 32
            | constant
            | swizzle
    }
}

/// `sum over k of A[m, k] * B[n, k]`, with a factor for each.
pub fn dot(
    a: &Matrix,
    b: &Matrix,
    (m, n): (usize, usize),
    ks: std::ops::Range<usize>,
    scale: impl Fn(usize) -> (f64, f64),
) -> f64 {
    ks.fold(0.0, |sum, k| {
        let (sa, sb) = scale(k);
        sum + (a.value(m, k) * sa) * (b.value(n, k) * sb)
    })
}

/// PTX that copies `bytes` bytes from `[%d0]` to the shared address in `%r0`, with
/// `threads` threads, and makes them visible to the async proxy.
pub fn copy_in(bytes: usize, threads: u32) -> String {
    let step = threads * 16;
    format!(
        "shl.b32 %r2, %tid, 4;
        COPY: setp.ge.u32 %p1, %r2, {bytes}; @%p1 bra COPIED;
        cvt.u64.u32 %d1, %r2; add.u64 %d1, %d0, %d1;
        ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%d1];
        add.u32 %r7, %r0, %r2; st.shared.v4.u32 [%r7], {{%r3, %r4, %r5, %r6}};
        add.u32 %r2, %r2, {step}; bra COPY;
        COPIED: fence.proxy.async; bar.sync 0;\n"
    )
}

/// `{name0, name1, ...}`
pub fn vector(name: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("{name}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// 32-bit words of bytes.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}
