//! Block-scaled and 16-bit matrices: random contents, their values, and the bytes that
//! kernels take.

use fp4_formats::gemm::hopper::Operand as Half;
use fp4_formats::layout::ScaleLayout;
use fp4_formats::quantize::Format;
use fp4_formats::{e2m1, e4m3, ue8m0};
use half::{bf16, f16};

/// A small generator with a fixed sequence (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What scales are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// 1 and 2: sums are exact in f32.
    Exact,
    /// Every finite scale of NVFP4; MXFP4's exponents from -40 to 40.
    FullRange,
}

/// `batch` matrices of `rows` x `k`.
pub struct Operand {
    pub format: Format,
    pub rows: u32,
    pub k: u32,
    pub batch: u32,
    /// Packed.
    pub codes: Vec<u8>,
    /// Row-major.
    pub scales: Vec<u8>,
}

impl Operand {
    pub fn random(
        format: Format,
        [rows, k, batch]: [u32; 3],
        scales: Scales,
        random: &mut Random,
    ) -> Self {
        let count = batch as usize * rows as usize;
        let codes = (0..count * k as usize / 2).map(|_| random.next() as u8).collect();
        let scale = |random: &mut Random| match (format, scales) {
            (Format::Nvfp4, Scales::Exact) => e4m3::encode([1.0, 2.0][random.below(2) as usize]),
            (Format::Nvfp4, Scales::FullRange) => random.below(0x7f) as u8,
            (Format::Mxfp4, Scales::Exact) => 127 + random.below(2) as u8,
            (Format::Mxfp4, Scales::FullRange) => 127 - 40 + random.below(81) as u8,
        };
        let blocks = (k / format.block()) as usize;
        let scales = (0..count * blocks).map(|_| scale(random)).collect();
        Self { format, rows, k, batch, codes, scales }
    }

    pub fn blocks(&self) -> u32 {
        self.k / self.format.block()
    }

    /// Values of one batch entry, row-major.
    pub fn values(&self, batch: u32) -> Vec<f64> {
        let (rows, k) = (self.rows as usize, self.k as usize);
        let block = self.format.block() as usize;
        let first = batch as usize * rows * k;
        (first..first + rows * k)
            .map(|i| {
                let byte = self.codes[i / 2];
                let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
                let scale = self.scales[i / block];
                let scale = match self.format {
                    Format::Nvfp4 => e4m3::decode(scale),
                    Format::Mxfp4 => ue8m0::decode(scale),
                };
                f64::from(e2m1::decode(code)) * f64::from(scale)
            })
            .collect()
    }

    /// The scales in `layout`, one batch entry after the other, with `padding` in the
    /// padding.
    pub fn scales_in(&self, layout: ScaleLayout, padding: u8) -> Vec<u8> {
        let (rows, blocks) = (self.rows as usize, self.blocks() as usize);
        let each = layout.bytes(rows, blocks).expect("small");
        let mut bytes = vec![padding; each * self.batch as usize];
        for batch in 0..self.batch as usize {
            for row in 0..rows {
                for block in 0..blocks {
                    bytes[batch * each + layout.offset(row, block, blocks)] =
                        self.scales[(batch * rows + row) * blocks + block];
                }
            }
        }
        bytes
    }
}

/// `batch` matrices of `rows` x `k` 16-bit floats.
pub struct Halves {
    pub kind: Half,
    pub rows: u32,
    pub k: u32,
    pub bits: Vec<u16>,
}

impl Halves {
    /// Multiples of 1/4 from -2 to 2, so that sums are exact in f32; or of 2^-7 from -1 to
    /// 1, times a power of two.
    pub fn random(
        kind: Half,
        [rows, k, batch]: [u32; 3],
        scales: Scales,
        random: &mut Random,
    ) -> Self {
        let value = |random: &mut Random| match scales {
            Scales::Exact => (random.below(17) as f32 - 8.0) / 4.0,
            Scales::FullRange => {
                let exponent = random.below(16) as i32 - 8;
                (random.below(257) as f32 - 128.0) / 128.0 * 2f32.powi(exponent)
            }
        };
        let count = batch as usize * rows as usize * k as usize;
        let bits = (0..count)
            .map(|_| match kind {
                Half::F16 => f16::from_f32(value(random)).to_bits(),
                Half::Bf16 => bf16::from_f32(value(random)).to_bits(),
            })
            .collect();
        Self { kind, rows, k, bits }
    }

    /// Values of one batch entry, row-major.
    pub fn values(&self, batch: u32) -> Vec<f64> {
        let each = self.rows as usize * self.k as usize;
        self.bits[batch as usize * each..][..each]
            .iter()
            .map(|&bits| match self.kind {
                Half::F16 => f16::from_bits(bits).to_f64(),
                Half::Bf16 => bf16::from_bits(bits).to_f64(),
            })
            .collect()
    }
}
