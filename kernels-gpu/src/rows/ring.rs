//! A thread's chunks of two rows in shared memory: of the row that is finished, and of the next one, which is on its way.
//!
//! A thread reads and writes its own words alone, so that no barrier is needed. Words of neighbouring threads are
//! neighbours: word `w` of chunk `i` of thread `t` of `T` is word `(i * words + w) * T + t` of the stage.

use super::Place;
use super::source::{Raw, Source};
use cuda_std::ptx::{cp_async, memory};
use cuda_std::{shared, thread};
use fp4_formats::rows::{RowsConfig, RowsParams};

const WORD: u32 = 16;

/// The stages.
pub struct Ring {
    /// Address of the thread's first word in the stage of the row that is finished.
    now: u32,
    /// The same in the other stage.
    next: u32,
    /// Chunks of a row that a thread has here.
    kept: u32,
}

impl Ring {
    /// The empty ring of an operation on `S`.
    #[inline(always)]
    pub fn new<S: Source>(place: &Place) -> Self {
        let threads = thread::block_dim_x();
        let kept = RowsConfig::kept_chunks(place.groups, place.warps);
        let now = shared::dynamic::<128>() + thread::thread_idx_x() * WORD;
        Self { now, next: now + kept * S::Raw::WORDS * threads * WORD, kept }
    }

    /// Whether the thread's `i`-th chunk of a row is here.
    #[inline(always)]
    pub fn has(&self, i: u32) -> bool {
        i < self.kept
    }

    /// Address of a word of the thread's `i`-th chunk in a stage.
    #[inline(always)]
    fn address<S: Source>(stage: u32, i: u32, word: u32) -> u32 {
        stage + (i * S::Raw::WORDS + word) * thread::block_dim_x() * WORD
    }

    /// Starts the copies of a row to the next stage.
    ///
    /// # Safety
    /// `p` keeps the module's contract, and the row exists.
    #[inline(always)]
    pub unsafe fn start<S: Source>(&self, p: &RowsParams, place: &Place) {
        let mut i = 0;
        while i < self.kept {
            let chunk = place.kept(i);
            if chunk < place.chunks {
                let bytes = if place.exists { WORD } else { 0 };
                let mut word = 0;
                while word < S::Raw::WORDS {
                    let to = Self::address::<S>(self.next, i, word);
                    // SAFETY: a word of the chunk, which exists; of a row of zeros nothing is read. The place is this
                    // thread's, who has read what was there.
                    unsafe {
                        let from = S::word(p, place, chunk, word);
                        cp_async::cp_async_cg_shared_global_16_zfill(to, from, bytes);
                    }
                    word += 1;
                }
            }
            i += 1;
        }
    }

    /// Ends the group of copies that were started.
    #[inline(always)]
    pub fn commit(&self) {
        cp_async::cp_async_commit_group();
    }

    /// Goes on to the next row, whose copies are waited for if they are not the last group's.
    #[inline(always)]
    pub fn turn(&mut self) {
        (self.now, self.next) = (self.next, self.now);
    }

    /// Waits for the copies of all groups but the last one.
    #[inline(always)]
    pub fn wait(&self) {
        cp_async::cp_async_wait_group::<1>();
    }

    /// The words of the thread's `i`-th chunk.
    ///
    /// # Safety
    /// The chunk exists and [is here](Self::has), and its copies have been waited for.
    #[inline(always)]
    pub unsafe fn load<S: Source>(&self, i: u32) -> S::Raw {
        // SAFETY: the same as the caller's.
        S::Raw::of(|word| unsafe {
            memory::ld_shared_v4_b32(Self::address::<S>(self.now, i, word))
        })
    }

    /// Replaces the words of the thread's `i`-th chunk.
    ///
    /// # Safety
    /// The same as [`load`](Self::load).
    #[inline(always)]
    pub unsafe fn store<S: Source>(&self, i: u32, words: &S::Raw) {
        // SAFETY: the same as the caller's.
        words.each(|word, of| unsafe {
            memory::st_shared_v4_b32(Self::address::<S>(self.now, i, word), of);
        });
    }
}
