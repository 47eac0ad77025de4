//! Wide vector instructions of the host, where it has them.
//!
//! Every x86-64 has vectors of 128 bits, most have 256. A loop over the lanes of a warp or the
//! elements of a tile is compiled for both: generic over [`Host`], with its body in
//! [`Host::run`]. What it computes is the same, since Rust neither contracts nor reorders
//! floating-point operations. The body must be generic too, down to its closures: a closure
//! that only one copy of the loop calls is inlined there, one that several call may not be.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_extract_epi64, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_shuffle_epi8,
};

/// Instructions that a loop is compiled for.
pub(crate) trait Host: Copy + Send + Sync + 'static {
    /// Vectors are wide, and rounding to an integer is one instruction.
    const WIDE: bool;

    /// Calls a closure whose body is compiled for the host.
    fn run<R>(self, body: impl FnOnce() -> R) -> R;

    /// Replaces every byte of the words, which are below 16, by an entry of a table. `None` where
    /// that takes more than an instruction for a vector.
    fn look_up(self, table: [u8; 16], words: &[u32; 32]) -> Option<[u32; 32]>;
}

/// What the target of the compilation has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain;

impl Host for Plain {
    const WIDE: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    fn run<R>(self, body: impl FnOnce() -> R) -> R {
        body()
    }

    #[inline(always)]
    fn look_up(self, _: [u8; 16], _: &[u32; 32]) -> Option<[u32; 32]> {
        None
    }
}

/// AVX2 and what came with it. There is a value only where the host has them.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Host for Avx2 {
    const WIDE: bool = true;

    #[inline(always)]
    #[allow(unsafe_code)]
    fn run<R>(self, body: impl FnOnce() -> R) -> R {
        // SAFETY: `Widest::find`, which alone makes a value of this type, has found that the
        // host has these instructions.
        unsafe { with_avx2(body) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn look_up(self, table: [u8; 16], words: &[u32; 32]) -> Option<[u32; 32]> {
        // SAFETY: as above.
        Some(unsafe { look_up_avx2(table, words) })
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
fn with_avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
#[inline]
fn look_up_avx2(table: [u8; 16], words: &[u32; 32]) -> [u32; 32] {
    let [low, high] =
        [0, 8].map(|at| i64::from_le_bytes(std::array::from_fn(|byte| table[at + byte])));
    let table = _mm256_setr_epi64x(low, high, low, high);
    let mut out = [0; 32];
    for (out, words) in out.chunks_exact_mut(8).zip(words.chunks_exact(8)) {
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(|at| words[at] as i32);
        let found = _mm256_shuffle_epi8(table, _mm256_setr_epi32(a, b, c, d, e, f, g, h));
        let found = [
            _mm256_extract_epi64::<0>(found),
            _mm256_extract_epi64::<1>(found),
            _mm256_extract_epi64::<2>(found),
            _mm256_extract_epi64::<3>(found),
        ];
        for (out, found) in out.chunks_exact_mut(2).zip(found) {
            (out[0], out[1]) = (found as u32, (found >> 32) as u32);
        }
    }
    out
}

/// The best of these.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Widest {
    /// No more than the target.
    Plain(Plain),
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Widest {
    /// Asks the processor.
    #[inline]
    pub(crate) fn find() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe")
            && is_x86_feature_detected!("popcnt")
        {
            return Self::Avx2(Avx2(()));
        }
        Self::Plain(Plain)
    }
}

/// Evaluates an expression in which a name stands for the host's [`Host`].
macro_rules! on_host {
    ($host:ident => $body:expr) => {
        match $crate::simd::Widest::find() {
            $crate::simd::Widest::Plain($host) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Widest::Avx2($host) => $body,
        }
    };
}
pub(crate) use on_host;
