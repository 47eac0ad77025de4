//! Fat binaries: what `nvcc` puts into a program and `cuModuleLoadData` takes.
//!
//! A header (`0xba55ed50`, a version, its own size, the size of the rest) and entries, each with a
//! header of its own: kind (1 is PTX, 2 is machine code), the size of its header and of what
//! follows, the size of compressed data, the architecture, flags and the size before compression.
//! NVIDIA does not document the format; the fields used here are those of what nvcc 13.0 writes
//! in each of its modes of compression. Anything unexpected is an error.

/// First bytes of a fat binary.
pub const MAGIC: u32 = 0xba55_ed50;
/// First bytes of the structure that a program has instead, which points to a fat binary.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// Size of the first header, bytes.
pub const HEADER: usize = 16;
/// Least size of an entry's header.
const ENTRY: usize = 64;
const PTX: u16 = 1;
const MACHINE_CODE: u16 = 2;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// Largest PTX that is unpacked.
const LARGEST: u64 = 1 << 30;

/// A fat binary that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatbinError {
    /// A field with an unexpected value.
    #[error("fat binary: {field}: required {required}, actual {actual}")]
    Field {
        /// The field.
        field: &'static str,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// Compressed data that is not.
    #[error("fat binary: {method}: {problem}")]
    Compression {
        /// The method of compression.
        method: &'static str,
        /// The fault.
        problem: String,
    },
}

fn field(field: &'static str, required: impl ToString, actual: impl ToString) -> FatbinError {
    FatbinError::Field { field, required: required.to_string(), actual: actual.to_string() }
}

/// The contents of a fat binary.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Its PTX modules.
    pub ptx: Vec<String>,
    /// Architectures of its machine code: 100 for `sm_100`.
    pub machine_code: Vec<u32>,
}

/// Size of a fat binary, from its first [`HEADER`] bytes.
///
/// # Errors
/// They are no such header.
pub fn size(header: &[u8]) -> Result<usize, FatbinError> {
    let magic = number(header, 0, 4)?;
    if magic != u64::from(MAGIC) {
        return Err(field("magic", format!("{MAGIC:#x}"), format!("{magic:#x}")));
    }
    let version = number(header, 4, 2)?;
    if version != 1 {
        return Err(field("version", 1, version));
    }
    let own = number(header, 6, 2)?;
    if own < HEADER as u64 {
        return Err(field("header size", format!("at least {HEADER}"), own));
    }
    let rest = number(header, 8, 8)?;
    let total = own.checked_add(rest).filter(|&total| total <= LARGEST);
    total
        .map(|total| total as usize)
        .ok_or_else(|| field("size", format!("at most {LARGEST}"), rest))
}

/// Reads a fat binary.
///
/// # Errors
/// A field that does not fit, or compressed data that is not.
pub fn read(bytes: &[u8]) -> Result<Contents, FatbinError> {
    let end = size(bytes)?;
    let bytes = bytes.get(..end).ok_or_else(|| field("size", end, bytes.len()))?;
    let mut at = number(bytes, 6, 2)? as usize;
    let mut contents = Contents::default();
    while at < end {
        let entry = &bytes[at..];
        let kind = number(entry, 0, 2)? as u16;
        let own = number(entry, 4, 4)? as usize;
        let payload = number(entry, 8, 8)?;
        if own < ENTRY {
            return Err(field("size of an entry's header", format!("at least {ENTRY}"), own));
        }
        let next = usize::try_from(payload).ok().and_then(|payload| own.checked_add(payload));
        let Some(data) = next.and_then(|next| entry.get(own..next)) else {
            return Err(field("size of an entry", format!("at most {}", entry.len()), payload));
        };
        match kind {
            PTX => contents.ptx.push(text(entry, data)?),
            MACHINE_CODE => contents.machine_code.push(number(entry, 28, 4)? as u32),
            // Intermediate code for link-time optimisation and the like, which nothing runs.
            _ => {}
        }
        at += own + data.len();
    }
    Ok(contents)
}

fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64, FatbinError> {
    let Some(part) = bytes.get(at..at + length) else {
        return Err(field("size", at + length, bytes.len()));
    };
    Ok(part.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// PTX of an entry.
fn text(entry: &[u8], data: &[u8]) -> Result<String, FatbinError> {
    let compressed = number(entry, 16, 4)? as usize;
    let flags = number(entry, 40, 8)?;
    let size = number(entry, 56, 8)?;
    let packed = if compressed == 0 { data } else { data.get(..compressed).unwrap_or(data) };
    if flags & (LZ4 | ZSTD) != 0 && size > LARGEST {
        return Err(field("size of PTX", format!("at most {LARGEST}"), size));
    }
    let plain = match flags & (LZ4 | ZSTD) {
        0 => data.to_vec(),
        LZ4 => lz4_flex::block::decompress(packed, size as usize).map_err(|error| {
            FatbinError::Compression { method: "LZ4", problem: error.to_string() }
        })?,
        ZSTD => zstd(packed, size)?,
        both => return Err(field("flags", "one kind of compression", format!("{both:#x}"))),
    };
    let end = plain.iter().position(|byte| *byte == 0).unwrap_or(plain.len());
    String::from_utf8(plain[..end].to_vec()).map_err(|error| field("PTX", "UTF-8", error))
}

fn zstd(packed: &[u8], size: u64) -> Result<Vec<u8>, FatbinError> {
    use std::io::Read as _;
    let failed = |problem: String| FatbinError::Compression { method: "zstd", problem };
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed)
        .map_err(|error| failed(error.to_string()))?;
    let mut plain = Vec::new();
    decoder.take(size).read_to_end(&mut plain).map_err(|error| failed(error.to_string()))?;
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n.entry k() { ret; }\n";

    fn entry(kind: u16, flags: u64, compressed: usize, data: &[u8]) -> Vec<u8> {
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(8), 0);
        let mut bytes = [kind.to_le_bytes(), 0x101u16.to_le_bytes()].concat();
        bytes.extend(80u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend((compressed as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(100u32.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend((TEXT.len() as u64).to_le_bytes());
        bytes.resize(80, 0);
        bytes.extend(data);
        bytes
    }

    fn fatbin(entries: &[Vec<u8>]) -> Vec<u8> {
        let rest = entries.concat();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1u16, 16].map(u16::to_le_bytes).concat());
        bytes.extend((rest.len() as u64).to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn ptx_is_read_however_it_is_packed() {
        let lz4 = lz4_flex::block::compress(TEXT.as_bytes());
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(TEXT.as_bytes(), level);
        let bytes = fatbin(&[
            entry(PTX, 0x11, 0, TEXT.as_bytes()),
            entry(PTX, 0x11 | LZ4, lz4.len(), &lz4),
            entry(MACHINE_CODE, 0x11, 0, b"\x7fELF"),
            entry(PTX, 0x11 | ZSTD, zstd.len(), &zstd),
        ]);
        let contents = read(&bytes).expect("a fat binary");
        assert_eq!(contents.ptx, [TEXT; 3]);
        assert_eq!(contents.machine_code, [100]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let good = fatbin(&[entry(PTX, 0x11, 0, TEXT.as_bytes())]);
        for length in 0..good.len() {
            assert!(read(&good[..length]).is_err(), "{length} bytes");
        }
        // Magic, version, size of the header, size of an entry's header.
        for at in [0, 4, 6, 20] {
            let mut bad = good.clone();
            bad[at] = 0;
            assert!(read(&bad).is_err(), "byte {at}");
        }
        for flags in [LZ4, ZSTD, LZ4 | ZSTD] {
            let bad = fatbin(&[entry(PTX, flags, 9, &[0xff; 16])]);
            assert!(read(&bad).is_err(), "flags {flags:#x}");
        }
    }
}
