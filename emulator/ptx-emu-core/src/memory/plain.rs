//! A memory that one host thread owns: shared memory, parameters, constants.

use super::{POISON_WORD, Value, bit_mask, byte_mask, copy_words_out, word_of};

/// Words, initialisation bits, and a length in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plain {
    words: Vec<u64>,
    /// Bit `b` of entry `g`: byte `64 * g + b` was written.
    init: Vec<u64>,
    len: usize,
}

impl Plain {
    /// `len` bytes, none of them initialised.
    pub(crate) fn poisoned(len: usize) -> Self {
        Self {
            words: vec![POISON_WORD; len.div_ceil(64) * 8],
            init: vec![0; len.div_ceil(64)],
            len,
        }
    }

    /// A copy of `bytes`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut memory = Self::poisoned(bytes.len());
        for (offset, &byte) in bytes.iter().enumerate() {
            memory.store(offset, 1, &[u64::from(byte), 0, 0, 0]);
        }
        memory
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes every byte uninitialised again.
    pub(crate) fn poison(&mut self) {
        self.words.fill(POISON_WORD);
        self.init.fill(0);
    }

    /// Bits of the bytes of the access that were never written, within their
    /// group of 64.
    #[inline(always)]
    pub(crate) fn uninitialised_bits(&self, offset: usize, bytes: usize) -> u64 {
        (bit_mask(bytes) << (offset & 63)) & !self.init[offset >> 6]
    }

    /// First byte of the access that was never written.
    #[inline(always)]
    pub(crate) fn first_uninitialised(&self, offset: usize, bytes: usize) -> Option<usize> {
        let missing = self.uninitialised_bits(offset, bytes);
        (missing != 0).then(|| (offset & !63) + missing.trailing_zeros() as usize)
    }

    /// An aligned, in-bounds access.
    #[inline(always)]
    pub(crate) fn load(&self, offset: usize, bytes: usize) -> Value {
        let mut value = [0; 4];
        if bytes <= 8 {
            value[0] = (self.words[offset >> 3] >> ((offset & 7) * 8)) & byte_mask(bytes);
        } else {
            for (k, word) in value.iter_mut().enumerate().take(bytes / 8) {
                *word = self.words[(offset >> 3) + k];
            }
        }
        value
    }

    /// An aligned, in-bounds access of `N` words.
    #[inline(always)]
    pub(crate) fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        let words = &self.words[offset >> 3..][..N];
        std::array::from_fn(|k| words[k])
    }

    /// Whether the 128 bytes from an offset on, in bounds, were all written.
    #[inline(always)]
    pub(crate) fn has_words32(&self, offset: usize) -> bool {
        let below = bit_mask(offset & 63);
        let groups = &self.init[offset >> 6..];
        match (groups, below) {
            ([first, second, ..], 0) => first & second == u64::MAX,
            ([first, second, third, ..], _) => {
                (first | below) & second & (third | !below) == u64::MAX
            }
            _ => false,
        }
    }

    /// The 32 words of 4 bytes from an offset on, a multiple of 4, in bounds.
    #[inline(always)]
    pub(crate) fn words32(&self, offset: usize) -> [u32; 32] {
        let mut out = [0; 32];
        let first = offset >> 3;
        if offset.is_multiple_of(8) {
            for (pair, word) in
                out.as_chunks_mut::<2>().0.iter_mut().zip(&self.words[first..first + 16])
            {
                *pair = [*word as u32, (*word >> 32) as u32];
            }
        } else {
            let words = &self.words[first..first + 17];
            for (pair, two) in out.as_chunks_mut::<2>().0.iter_mut().zip(words.windows(2)) {
                *pair = [(two[0] >> 32) as u32, two[1] as u32];
            }
        }
        out
    }

    /// Stores the low halves of 32 words from an offset on, a multiple of 4, in bounds.
    #[inline(always)]
    pub(crate) fn store_words32(&mut self, offset: usize, values: &[u64; 32]) {
        const LOW: u64 = u32::MAX as u64;
        let first = offset >> 3;
        if offset.is_multiple_of(8) {
            let words = &mut self.words[first..first + 16];
            for (word, pair) in words.iter_mut().zip(values.as_chunks::<2>().0) {
                *word = pair[0] & LOW | pair[1] << 32;
            }
        } else {
            let words = &mut self.words[first..first + 17];
            words[0] = words[0] & LOW | values[0] << 32;
            for (word, pair) in words[1..16].iter_mut().zip(values[1..].as_chunks::<2>().0) {
                *word = pair[0] & LOW | pair[1] << 32;
            }
            words[16] = words[16] & !LOW | values[31] & LOW;
        }
        self.each_group(offset, 128, |group, bits| *group |= bits);
    }

    /// Whether an aligned, in-bounds write would change nothing.
    pub(crate) fn holds(&self, offset: usize, bytes: usize, value: &Value) -> bool {
        let there = self.load(offset, bytes);
        if bytes <= 8 {
            return there[0] == value[0] & byte_mask(bytes);
        }
        there[..bytes / 8] == value[..bytes / 8]
    }

    /// An aligned, in-bounds write.
    #[inline(always)]
    pub(crate) fn store(&mut self, offset: usize, bytes: usize, value: &Value) {
        if bytes < 8 {
            let shift = (offset & 7) * 8;
            let mask = byte_mask(bytes) << shift;
            let word = &mut self.words[offset >> 3];
            *word = (*word & !mask) | ((value[0] << shift) & mask);
        } else {
            for (k, word) in value.iter().enumerate().take(bytes / 8) {
                self.words[(offset >> 3) + k] = *word;
            }
        }
        self.init[offset >> 6] |= bit_mask(bytes) << (offset & 63);
    }

    /// First byte of a range of any length and alignment that was never
    /// written.
    pub(crate) fn first_uninitialised_in(&self, offset: usize, bytes: usize) -> Option<usize> {
        let mut at = offset;
        while at < offset + bytes {
            let here = (64 - (at & 63)).min(offset + bytes - at);
            if let Some(first) = self.first_uninitialised(at, here) {
                return Some(first);
            }
            at += here;
        }
        None
    }

    /// Copies an in-bounds range of any alignment out, whatever is known of it.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        copy_words_out(offset, out, |word| self.words[word]);
    }

    /// Writes an in-bounds range of any alignment.
    pub(crate) fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        if offset & 7 == 0 {
            let (whole, tail) = bytes.as_chunks::<8>();
            for (word, bytes) in self.words[offset >> 3..][..whole.len()].iter_mut().zip(whole) {
                *word = u64::from_le_bytes(*bytes);
            }
            at += 8 * whole.len();
            rest = tail;
        }
        while !rest.is_empty() {
            let room = 8 - (at & 7);
            let (chunk, tail) = rest.split_at(room.min(rest.len()));
            let (word, shift) = (&mut self.words[at >> 3], (at & 7) * 8);
            let mask = byte_mask(chunk.len()) << shift;
            *word = *word & !mask | word_of(chunk) << shift;
            at += chunk.len();
            rest = tail;
        }
        self.each_group(offset, bytes.len(), |group, bits| *group |= bits);
    }

    /// Makes an in-bounds range uninitialised again.
    pub(crate) fn forget(&mut self, offset: usize, bytes: usize) {
        for at in offset..offset + bytes {
            self.store(at, 1, &[POISON_WORD & 0xff, 0, 0, 0]);
        }
        self.each_group(offset, bytes, |group, bits| *group &= !bits);
    }

    /// Calls `f` with each group of initialisation bits of a range and the bits
    /// in it.
    fn each_group(&mut self, offset: usize, bytes: usize, f: impl Fn(&mut u64, u64)) {
        let mut at = offset;
        while at < offset + bytes {
            let here = (64 - (at & 63)).min(offset + bytes - at);
            f(&mut self.init[at >> 6], bit_mask(here) << (at & 63));
            at += here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Plain;

    /// Rows of 32 words are what single words are, wherever they begin.
    #[test]
    fn rows_of_words() {
        let values: [u64; 32] =
            std::array::from_fn(|lane| 0xffff_ffff_0000_0000 | (3 * lane as u64));
        for offset in (0..=256 - 128).step_by(4) {
            let (mut row, mut single) = (Plain::poisoned(256), Plain::poisoned(256));
            row.store_words32(offset, &values);
            for (lane, value) in values.iter().enumerate() {
                single.store(offset + 4 * lane, 4, &[*value, 0, 0, 0]);
            }
            assert_eq!((&row.words, &row.init), (&single.words, &single.init), "{offset}");
            assert_eq!(row.words32(offset), values.map(|value| value as u32));
            for other in (0..=256 - 128).step_by(4) {
                let all = row.first_uninitialised_in(other, 128).is_none();
                assert_eq!(row.has_words32(other), all, "{offset} {other}");
            }
        }
    }
}
