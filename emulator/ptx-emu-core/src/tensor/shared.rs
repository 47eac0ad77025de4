//! Shared-memory matrix descriptors and the tiles they name: PTX ISA 9.7.15.5.1
//! (`wgmma`, sm_90) and 9.7.16.4.1 (`tcgen05`, sm_100).
//!
//! A tile is read in chunks of 16 bytes. K-major, a chunk holds consecutive k of one
//! row (a row of `A` or a column of `B`); MN-major, consecutive rows at one k. With
//! `w` the swizzle width (16 bytes without swizzle), chunk `c` of line `l` is, before
//! the swizzle, at
//!
//! | | line `l` | chunk `c` |
//! |---|---|---|
//! | K-major, no swizzle | row: `l/8 * SBO + l%8 * 16` | `c * LBO` |
//! | K-major, swizzled | row: `l/8 * SBO + l%8 * w` | `c * 16` |
//! | MN-major, no swizzle | k: `l/8 * LBO + l%8 * 16` | `c * SBO` |
//! | MN-major, swizzled | k: `l/8 * SBO + l%8 * w` | `c*16/w * LBO + c*16%w` |
//!
//! (4 instead of 8 lines with 32-byte atoms.) The swizzle then exchanges address bits:
//! bits 4 to 6 are XORed with bits 7 to 9, as many as the width has, or with 32-byte
//! atoms bits 5 and 6 with bits 7 and 8. These are bits of the address itself, so a
//! tile may be entered in the middle of a swizzle period.
//!
//! A base offset is taken as the number of the 128-byte line at which the pattern
//! starts and is subtracted before the XOR; no golden data covers it.

use super::TensorError;
use super::element::Element;
use super::tile::Packing;

/// Swizzle of a tile, with the address bits it exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Addresses are as they are.
    None,
    /// 32 bytes.
    B32,
    /// 64 bytes.
    B64,
    /// 128 bytes.
    B128,
    /// 128 bytes in atoms of 32; MN-major only.
    B128Atom32,
}

impl Swizzle {
    /// Bytes of a line that belong together.
    #[must_use]
    pub const fn width(self) -> u32 {
        match self {
            Self::None => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 | Self::B128Atom32 => 128,
        }
    }

    /// Lines that follow each other at a distance of [`Self::width`].
    const fn lines(self) -> u32 {
        match self {
            Self::B128Atom32 => 4,
            _ => 8,
        }
    }

    /// The place of the chunk at `address`, whose pattern starts `base` lines of
    /// 128 bytes after a multiple of the period.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, address: u32, base: u32) -> u32 {
        let line = (address >> 7).wrapping_sub(base);
        address
            ^ match self {
                Self::None => 0,
                Self::B32 => (line & 1) << 4,
                Self::B64 => (line & 3) << 4,
                Self::B128 => (line & 7) << 4,
                Self::B128Atom32 => (line & 3) << 5,
            }
    }
}

/// The contiguous dimension of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Major {
    /// K: "row" `A`, "column" `B`.
    K,
    /// M or N: transposed.
    Mn,
}

/// The generation of a descriptor format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generation {
    /// `wgmma`
    Sm90,
    /// `tcgen05`
    Sm100,
}

/// A decoded shared-memory matrix descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedDescriptor {
    /// Address of the first chunk in bytes, a multiple of 16 below 2^18.
    pub start: u32,
    /// Leading dimension byte offset, "LBO".
    pub leading: u32,
    /// Stride dimension byte offset, "SBO".
    pub stride: u32,
    /// Line of 128 bytes, modulo 8, at which the swizzle pattern starts.
    pub base_offset: u32,
    /// Swizzle.
    pub swizzle: Swizzle,
}

const WHAT: &str = "shared-memory matrix descriptor";

impl SharedDescriptor {
    /// Decodes a descriptor.
    ///
    /// # Errors
    ///
    /// Fixed bits that differ, an unknown swizzle code, and the absolute mode of
    /// the leading dimension, which sm_90 and sm_100 lack.
    pub fn decode(generation: Generation, bits: u64) -> Result<Self, TensorError> {
        let field = |at: u32, width: u32| (bits >> at) as u32 & ((1 << width) - 1);
        let fixed = |name, at, width, required: u32| {
            let actual = field(at, width);
            if actual == required {
                return Ok(());
            }
            let required = format!("{required:#b} in {}", generation.name());
            Err(TensorError::new(WHAT, name, required, format!("{actual:#b} in {bits:#018x}")))
        };
        let swizzle = match generation {
            Generation::Sm90 => {
                fixed("bits 46-48", 46, 3, 0)?;
                fixed("bits 52-61", 52, 10, 0)?;
                [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][field(62, 2) as usize]
            }
            Generation::Sm100 => {
                fixed("bits 46-48", 46, 3, 1)?;
                fixed("bit 52, leading dimension mode", 52, 1, 0)?;
                fixed("bits 53-60", 53, 8, 0)?;
                match field(61, 3) {
                    0 => Swizzle::None,
                    1 => Swizzle::B128Atom32,
                    2 => Swizzle::B128,
                    4 => Swizzle::B64,
                    6 => Swizzle::B32,
                    code => {
                        let required = "0, 1, 2, 4 or 6";
                        return Err(TensorError::new(WHAT, "swizzle, bits 61-63", required, code));
                    }
                }
            }
        };
        Ok(Self {
            start: field(0, 14) << 4,
            leading: field(16, 14) << 4,
            stride: field(32, 14) << 4,
            base_offset: field(49, 3),
            swizzle,
        })
    }

    /// Checks the leading dimension offset of an operand that has no use for it: K-major, with a
    /// swizzle or a chunk for each row. It is 0 or 16 bytes by convention, or the distance
    /// from one panel along K to the next. Anything else is most likely part of another field:
    /// the rank of a CTA, which a shared address carries above bit 23.
    ///
    /// # Errors
    /// The field, if it is something else.
    pub fn check_leading(&self, operand: &Operand) -> Result<(), TensorError> {
        let width = self.swizzle.width();
        let chunks = operand.k as u32 * operand.container() / 128;
        if operand.major == Major::Mn || self.swizzle == Swizzle::None && chunks > 1 {
            return Ok(());
        }
        let (panel, atom) = (operand.rows as u32 * width, 8 * width);
        if matches!(self.leading, 0 | 16)
            || self.leading >= panel && self.leading.is_multiple_of(atom)
        {
            return Ok(());
        }
        let required = format!("0 or 16 bytes, or a multiple of {atom} from {panel} on");
        let actual = format!("{} bytes", self.leading);
        Err(TensorError::new(WHAT, "leading dimension offset", required, actual))
    }

    /// Address of chunk `chunk` of line `line` (see the table above).
    #[inline(always)]
    #[must_use]
    pub const fn address(&self, major: Major, line: u32, chunk: u32) -> u32 {
        let (width, lines) = (self.swizzle.width(), self.swizzle.lines());
        let (of_line, of_chunk) = match (major, self.swizzle) {
            (Major::K, Swizzle::None) => (self.stride, chunk.wrapping_mul(self.leading)),
            (Major::K, _) => (self.stride, chunk.wrapping_mul(16)),
            (Major::Mn, Swizzle::None) => (self.leading, chunk.wrapping_mul(self.stride)),
            (Major::Mn, _) => {
                let across = width / 16;
                let group = (chunk / across).wrapping_mul(self.leading);
                (self.stride, group.wrapping_add(chunk % across * 16))
            }
        };
        let of_line = (line / lines).wrapping_mul(of_line).wrapping_add(line % lines * width);
        let address = self.start.wrapping_add(of_line).wrapping_add(of_chunk);
        self.swizzle.apply(address, self.base_offset)
    }

    /// Reads a tile, chunk by chunk, into rows of K.
    ///
    /// `read` gets an address in the shared memory of the CTA and returns the 16
    /// bytes there. `out` becomes `rows * k` containers of [`Operand::container`]
    /// bits. Reads go line by line.
    ///
    /// # Errors
    ///
    /// Gathers the bytes that `read` returns, or returns [`GatherError::Operand`] for operands that
    /// no instruction has: K-major with 32-byte atoms, MN-major with packed 4-bit types, rows that
    /// are not whole chunks.
    pub fn gather<E>(
        &self,
        operand: &Operand,
        mut read: impl FnMut(u32) -> Result<[u8; 16], E>,
        out: &mut Vec<u8>,
    ) -> Result<(), GatherError<E>> {
        operand.check(self.swizzle)?;
        let codes = operand.codes_per_chunk();
        let container = operand.container() as usize;
        let row_bytes = operand.k * container / 8;
        out.clear();
        out.resize(operand.rows * row_bytes, 0);
        match operand.major {
            Major::K => {
                let width = codes * container / 8;
                for (row, line) in out.chunks_exact_mut(row_bytes).enumerate() {
                    for (chunk, bytes) in line.chunks_exact_mut(width).enumerate() {
                        let address = self.address(Major::K, row as u32, chunk as u32);
                        let read = read(address).map_err(GatherError::Read)?;
                        operand.unpack(&read, bytes);
                    }
                }
            }
            Major::Mn => {
                let width = container / 8;
                for k in 0..operand.k {
                    for first in (0..operand.rows).step_by(codes) {
                        let address = self.address(Major::Mn, k as u32, (first / codes) as u32);
                        let read = read(address).map_err(GatherError::Read)?;
                        let mut bytes = [0; 16];
                        operand.unpack(&read, &mut bytes);
                        let rows = operand.rows.min(first + codes);
                        for (row, code) in (first..rows).zip(bytes.chunks_exact(width)) {
                            out[row * row_bytes + k * width..][..width].copy_from_slice(code);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Generation {
    const fn name(self) -> &'static str {
        match self {
            Self::Sm90 => "sm_90 descriptors",
            Self::Sm100 => "sm_100 descriptors",
        }
    }
}

/// The part of a tile that an instruction takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Type of the elements.
    pub element: Element,
    /// The packing of types narrower than a byte.
    pub packing: Packing,
    /// Contiguous dimension.
    pub major: Major,
    /// Rows of `A` or columns of `B`.
    pub rows: usize,
    /// Elements of K.
    pub k: usize,
}

impl Operand {
    /// Width of an element in a gathered tile, bits.
    #[must_use]
    pub const fn container(&self) -> u32 {
        match self.packing {
            Packing::Padded => 8,
            Packing::Dense => self.element.bits(),
        }
    }

    const fn codes_per_chunk(&self) -> usize {
        128 / self.container() as usize
    }

    fn check<E>(&self, swizzle: Swizzle) -> Result<(), GatherError<E>> {
        let error = |field, required: &str, actual: String| {
            Err(GatherError::Operand(TensorError::new("operand", field, required, actual)))
        };
        let element = self.element;
        let known = match self.packing {
            Packing::Dense => matches!(element.bits(), 4 | 8 | 16 | 32),
            Packing::Padded => matches!(element.bits(), 4 | 6 | 8),
        };
        if !known {
            return error("element", "one of this packing", format!("{element:?}"));
        }
        match self.major {
            Major::K if swizzle == Swizzle::B128Atom32 => {
                error("major", "MN with swizzle atoms of 32 bytes", "K".into())
            }
            Major::Mn if self.container() < 8 => {
                error("major", "K for packed 4-bit types", "MN".into())
            }
            Major::K if self.k == 0 || !self.k.is_multiple_of(self.codes_per_chunk()) => {
                let required = format!("a multiple of {}", self.codes_per_chunk());
                error("k", &required, self.k.to_string())
            }
            _ => Ok(()),
        }
    }

    /// The codes of a chunk, in containers.
    #[inline(always)]
    fn unpack(&self, chunk: &[u8; 16], out: &mut [u8]) {
        match (self.packing, self.element.bits()) {
            (Packing::Padded, bits @ (4 | 6)) => {
                let codes = u128::from_le_bytes(*chunk);
                for (at, out) in out.iter_mut().enumerate() {
                    *out = (codes >> (at as u32 * bits)) as u8 & ((1 << bits) - 1);
                }
            }
            _ => out.copy_from_slice(chunk),
        }
    }
}

/// The reason why a tile was not gathered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatherError<E> {
    /// Shared memory could not be read.
    #[error("{0}")]
    Read(E),
    /// No instruction has such an operand.
    #[error("{0}")]
    Operand(TensorError),
}
