//! Local memory of the 32 lanes of a warp: a stack a lane, stored word by word
//! across lanes because lanes mostly touch the same offset together.

use super::{POISON_WORD, Value, byte_mask};

/// Local memory of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Local {
    words: Vec<[u64; 32]>,
    /// Bit `b` of a lane's entry: byte `b` of the word was written.
    init: Vec<[u8; 32]>,
}

impl Local {
    /// Bytes that a lane has.
    pub(crate) fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Makes room for `bytes` bytes per lane.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        let rows = bytes.div_ceil(8);
        if rows > self.words.len() {
            self.words.resize(rows, [POISON_WORD; 32]);
            self.init.resize(rows, [0; 32]);
        }
    }

    /// Makes `bytes` bytes from `offset` uninitialised in the lanes of `mask`:
    /// a new stack frame starts without its predecessor's values.
    pub(crate) fn poison(&mut self, offset: usize, bytes: usize, mask: u32) {
        let rows = offset / 8..(offset + bytes).div_ceil(8).min(self.words.len());
        for row in rows {
            for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                self.words[row][lane] = POISON_WORD;
                self.init[row][lane] = 0;
            }
        }
    }

    /// Makes bytes of a lane uninitialised.
    pub(crate) fn forget(&mut self, lane: usize, offset: usize, bytes: usize) {
        for at in offset..offset + bytes {
            self.init[at >> 3][lane] &= !(1 << (at & 7));
        }
    }

    /// First byte of an aligned access that was never written.
    #[inline]
    pub(crate) fn first_uninitialised(
        &self,
        lane: usize,
        offset: usize,
        bytes: usize,
    ) -> Option<usize> {
        if bytes < 8 {
            let want = ((1u32 << bytes) - 1) << (offset & 7);
            let missing = want & !u32::from(self.init[offset >> 3][lane]);
            return (missing != 0).then(|| (offset & !7) + missing.trailing_zeros() as usize);
        }
        (0..bytes / 8).find_map(|k| {
            let have = self.init[(offset >> 3) + k][lane];
            (have != 0xff).then(|| (offset & !7) + 8 * k + (!have).trailing_zeros() as usize)
        })
    }

    /// An aligned, in-bounds read.
    #[inline]
    pub(crate) fn load(&self, lane: usize, offset: usize, bytes: usize) -> Value {
        let mut value = [0; 4];
        if bytes < 8 {
            value[0] = (self.words[offset >> 3][lane] >> ((offset & 7) * 8)) & byte_mask(bytes);
        } else {
            for (k, word) in value.iter_mut().enumerate().take(bytes / 8) {
                *word = self.words[(offset >> 3) + k][lane];
            }
        }
        value
    }

    /// An aligned, in-bounds write.
    #[inline]
    pub(crate) fn store(&mut self, lane: usize, offset: usize, bytes: usize, value: &Value) {
        if bytes < 8 {
            let shift = (offset & 7) * 8;
            let mask = byte_mask(bytes) << shift;
            let word = &mut self.words[offset >> 3][lane];
            *word = (*word & !mask) | ((value[0] << shift) & mask);
            self.init[offset >> 3][lane] |= (((1u32 << bytes) - 1) << (offset & 7)) as u8;
        } else {
            for (k, word) in value.iter().enumerate().take(bytes / 8) {
                self.words[(offset >> 3) + k][lane] = *word;
                self.init[(offset >> 3) + k][lane] = 0xff;
            }
        }
    }

    /// Copies bytes, and whether they are initialised, within a lane.
    pub(crate) fn copy(&mut self, lane: usize, from: usize, to: usize, bytes: usize) {
        for k in 0..bytes {
            if self.first_uninitialised(lane, from + k, 1).is_none() {
                let value = self.load(lane, from + k, 1);
                self.store(lane, to + k, 1, &value);
            }
        }
    }
}
