//! The block formats of FP4, as codes and scales, and as values.
//!
//! | type | block | bytes | scale | nibbles |
//! | --- | --- | --- | --- | --- |
//! | MXFP4 | 32 | 17 | a ue8m0 byte first | byte j of 16: low is value j, high is value j + 16 |
//! | NVFP4 | 4 of 16 | 36 | four ue4m3 bytes first | byte 8 s + j: low is value 16 s + j, high is 16 s + j + 8 |
//!
//! ggml's decoder reads a scale of NVFP4 of 0x7f as 0 and ignores bit 7. Bytes that it would read otherwise
//! than [`e4m3::decode`] are refused in both directions. Its encoder, which this crate does not use, makes 448
//! of every scale from 248 up; the bytes 0x78 to 0x7e themselves are read as what they are.

use fp4_formats::{e2m1, e4m3, pack, ue8m0};
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::kind::Kind;

/// A matrix in linear order, as other formats have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Two codes a byte, the element of lower index in the low nibble.
    pub codes: Vec<u8>,
    /// A byte for each block of 32 (MXFP4) or 16 (NVFP4) elements.
    pub scales: Vec<u8>,
}

fn wrong(tensor: &str, field: &'static str, required: &str, actual: impl ToString) -> Error {
    let (tensor, required) = (tensor.to_owned(), required.to_owned());
    Error::Tensor { tensor, field, required, actual: actual.to_string() }
}

/// Elements of a scaled block, scales and code bytes of a block of the file.
fn geometry(tensor: &str, kind: Kind) -> Result<(usize, usize, usize)> {
    match kind {
        Kind::Mxfp4 => Ok((32, 1, 16)),
        Kind::Nvfp4 => Ok((16, 4, 32)),
        other => Err(wrong(tensor, "its type", "MXFP4 or NVFP4", other)),
    }
}

/// Whether ggml reads a scale as other formats do.
fn is_read_alike(kind: Kind, scale: u8) -> bool {
    match kind {
        // e = 0 is 2^-127 in ggml, too; 255 is NaN elsewhere.
        Kind::Mxfp4 => scale != u8::MAX,
        _ => scale < 0x7f,
    }
}

impl Blocks {
    /// Takes the blocks of a file apart.
    ///
    /// # Errors
    /// [`Error::Tensor`] for another type, a length that is no whole number of blocks, or a scale that is
    /// read differently elsewhere, with its index.
    pub fn of(tensor: &str, kind: Kind, data: &[u8]) -> Result<Self> {
        let (elements, scales_of_block, bytes) = geometry(tensor, kind)?;
        let size = scales_of_block + bytes;
        if !data.len().is_multiple_of(size) {
            return Err(wrong(tensor, "its data", "whole blocks", data.len()));
        }
        let count = data.len() / size;
        let mut codes = Vec::with_capacity(count * bytes);
        let mut scales = Vec::with_capacity(count * scales_of_block);
        for block in data.chunks_exact(size) {
            let (own, packed) = block.split_at(scales_of_block);
            scales.extend_from_slice(own);
            for halves in packed.chunks_exact(elements / 2) {
                let code = |at: usize| {
                    let (low, high) = pack::unpair(halves[at % (elements / 2)]);
                    if at < elements / 2 { low } else { high }
                };
                codes
                    .extend((0..elements / 2).map(|at| pack::pair(code(2 * at), code(2 * at + 1))));
            }
        }
        check(tensor, kind, &scales)?;
        Ok(Self { codes, scales })
    }

    /// Puts the blocks of a file together: the inverse of [`of`](Self::of).
    ///
    /// # Errors
    /// [`Error::Tensor`] for another type, for lengths that do not fit each other, and for a scale that ggml
    /// would read differently, with its index.
    pub fn bytes(&self, tensor: &str, kind: Kind) -> Result<Vec<u8>> {
        let (elements, scales_of_block, bytes) = geometry(tensor, kind)?;
        let fits = self.codes.len() * 2 == self.scales.len() * elements
            && self.scales.len().is_multiple_of(scales_of_block);
        if !fits {
            let actual = format!("{} codes, {} scales", self.codes.len() * 2, self.scales.len());
            return Err(wrong(tensor, "its size", "whole blocks with a scale each", actual));
        }
        check(tensor, kind, &self.scales)?;
        let blocks = self.scales.len() / scales_of_block;
        let mut data = Vec::with_capacity(blocks * (scales_of_block + bytes));
        let pairs = self.codes.chunks_exact(bytes).zip(self.scales.chunks_exact(scales_of_block));
        for (codes, scales) in pairs {
            data.extend_from_slice(scales);
            for own in codes.chunks_exact(elements / 2) {
                let code = |at: usize| {
                    let (low, high) = pack::unpair(own[at / 2]);
                    if at.is_multiple_of(2) { low } else { high }
                };
                data.extend(
                    (0..elements / 2).map(|at| pack::pair(code(at), code(at + elements / 2))),
                );
            }
        }
        Ok(data)
    }
}

fn check(tensor: &str, kind: Kind, scales: &[u8]) -> Result<()> {
    let required = match kind {
        Kind::Mxfp4 => "not 0xff, which is NaN",
        _ => "0x00 to 0x7e: ggml reads 0x7f as 0 and ignores bit 7",
    };
    match scales.iter().position(|&scale| !is_read_alike(kind, scale)) {
        Some(at) => {
            let actual = format!("{:#04x} at index {at}", scales[at]);
            Err(wrong(tensor, "a block scale", required, actual))
        }
        None => Ok(()),
    }
}

/// All values of a tensor in f32, without the second level of NVFP4, which is a tensor of its own.
///
/// # Errors
/// [`Error::Tensor`] for an integer type, for data that are no whole blocks, and the errors of [`Blocks::of`].
pub fn dequantize(tensor: &str, kind: Kind, data: &[u8]) -> Result<Vec<f32>> {
    let whole = kind.block().1 as usize;
    if !data.len().is_multiple_of(whole) {
        return Err(wrong(tensor, "its data", "whole elements", data.len()));
    }
    let values = match kind {
        Kind::F32 => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        Kind::F16 => data.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
        Kind::Bf16 => data.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
        Kind::Q8_0 => {
            let block = |block: &[u8; 34]| {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                let codes: [u8; 32] = std::array::from_fn(|at| block[at + 2]);
                codes.map(|code| f32::from(code as i8) * scale)
            };
            data.as_chunks::<34>().0.iter().flat_map(block).collect()
        }
        Kind::Mxfp4 | Kind::Nvfp4 => {
            let Blocks { codes, scales } = Blocks::of(tensor, kind, data)?;
            let decode: fn(u8) -> f32 =
                if kind == Kind::Mxfp4 { ue8m0::decode } else { e4m3::decode };
            let bytes = codes.len() / scales.len().max(1);
            let block = |(codes, &scale): (&[u8], &u8)| {
                let scale = decode(scale);
                let values = codes.iter().flat_map(move |&byte| {
                    let (low, high) = pack::unpair(byte);
                    [e2m1::decode(low) * scale, e2m1::decode(high) * scale]
                });
                values.collect::<Vec<f32>>()
            };
            codes.chunks_exact(bytes.max(1)).zip(&scales).flat_map(block).collect()
        }
        Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 | Kind::F64 => {
            return Err(wrong(tensor, "its type", "floats of at most 32 bits, or blocks", kind));
        }
    };
    Ok(values)
}
