//! A shared library without code: it has a name and a version, and needs other libraries, in which
//! its symbols are found.
//!
//! Programs note the version of the CUDA runtime's symbols, and the dynamic linker warns about a
//! library of that name which does not define it. A library that Rust makes cannot. This one
//! does.

/// The name of the driver's library.
pub(super) const DRIVER: &str = "libcuda.so.1";

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;

/// An ELF file (64 bits, little endian) with that name, which defines a version of that name and
/// needs these libraries, in which symbols are looked for in this order.
pub(super) fn library(name: &str, needed: &[&str]) -> Vec<u8> {
    // Strings: the empty one, the name, the names of what is needed.
    let mut strings = [b"\0", name.as_bytes(), b"\0"].concat();
    let name_at = 1u32;
    let mut entries: Vec<[u64; 2]> = Vec::new();
    for needed in needed {
        entries.push([1, strings.len() as u64]);
        strings.extend(needed.bytes().chain([0]));
    }
    let start = HEADER + 2 * PROGRAM_HEADER;
    // One symbol, the null one.
    let symbols = vec![0u8; 24];
    // A hash table of one empty bucket and one symbol.
    let hash = words(&[1, 1, 0, 0]);
    let versions = vec![0u8; 8];
    // Two definitions: the library itself, and the version.
    let define = |flags: u32, index: u32, next: u32| {
        let mut bytes = words(&[1 | flags << 16, index | 1 << 16, elf_hash(name), 20, next]);
        bytes.extend(words(&[name_at, 0]));
        bytes
    };
    let definitions = [define(1, 1, 28), define(0, 2, 0)].concat();
    let mut parts = Vec::new();
    let mut place = |part: &[u8]| {
        let at = start + parts.len() as u64;
        parts.extend_from_slice(part);
        parts.resize(parts.len().next_multiple_of(8), 0);
        at
    };
    let symbols = place(&symbols);
    let hash = place(&hash);
    let versions = place(&versions);
    let definitions = place(&definitions);
    let length = strings.len() as u64;
    let strings = place(&strings);
    let dynamic = start + parts.len() as u64;
    entries.extend([
        [14, u64::from(name_at)],
        [4, hash],
        [5, strings],
        [10, length],
        [6, symbols],
        [11, 24],
        [0x6fff_fff0, versions],
        [0x6fff_fffc, definitions],
        [0x6fff_fffd, 2],
        [24, 0],
        [0, 0],
    ]);
    let table: Vec<u8> = entries.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let end = dynamic + table.len() as u64;
    let mut file = header();
    file.extend(segment(1, 6, [0, end, 0x1000]));
    file.extend(segment(2, 6, [dynamic, end - dynamic, 8]));
    file.extend(parts);
    file.extend(table);
    file
}

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The start of the file; it has no sections.
fn header() -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    // A shared object.
    bytes.extend(3u16.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    for word in [0, HEADER, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [HEADER as u16, PROGRAM_HEADER as u16, 2, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes
}

/// A program header: kind, permissions, and place, size and alignment.
fn segment(kind: u32, flags: u32, [at, size, align]: [u64; 3]) -> Vec<u8> {
    let mut bytes = words(&[kind, flags]);
    for word in [at, at, at, size, size, align] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// The hash of ELF's version definitions.
fn elf_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_that_of_elf() {
        assert_eq!(elf_hash("GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(elf_hash(""), 0);
    }

    #[test]
    fn file_has_its_names() {
        let file = library("libcudart.so.13", &["libcuda.so.1", "/a/b.so"]);
        assert!(file.starts_with(b"\x7fELF"));
        let has = |text: &[u8]| file.windows(text.len()).any(|part| part == text);
        assert!(has(b"\0libcudart.so.13\0libcuda.so.1\0/a/b.so\0"));
    }
}
