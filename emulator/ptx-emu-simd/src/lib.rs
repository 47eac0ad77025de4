//! Wide vector instructions of the host, where it has them, for the emulator `ptx-emu`, the oracle and the quantiser on a
//! CPU. A crate of
//! its own, because calls of what is compiled for them are unsafe and its user forbids unsafe code.
//!
//! Every x86-64 has vectors of 128 bits, most have 256. A loop over the lanes of a warp or the
//! elements of a tile is compiled for both: generic over [`Host`], with its body in [`Host::run`].
//! The result is the same, since Rust neither contracts nor reorders floating-point operations. The
//! body must be generic too, down to its closures: a closure that only one copy of the loop calls
//! is inlined there, one that several call may not be.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _CMP_NEQ_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_blendv_epi8, _mm_extract_epi64,
    _mm_packs_epi32, _mm_set1_epi16, _mm_setr_epi32, _mm256_add_ps, _mm256_and_si256,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps,
    _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extract_epi64, _mm256_extracti128_si256,
    _mm256_mul_ps, _mm256_or_si256, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_setzero_ps,
    _mm256_shuffle_epi8, _mm256_srli_epi32, _mm256_sub_epi32, _mm256_sub_ps, _mm256_xor_si256,
};

/// A long body: a closure of its size may not be inlined where it is compiled for the host, a method that is
/// `#[inline(always)]`, as [`run`](Self::run) has to be, is.
pub trait Body {
    /// Result.
    type Out;

    /// Runs it.
    fn run(self) -> Self::Out;
}

/// Instructions that a loop is compiled for.
pub trait Host: Copy + Send + Sync + 'static {
    /// Vectors are wide, and rounding to an integer is one instruction.
    const WIDE: bool;

    /// `f32::mul_add` is one instruction in [`run`](Self::run).
    const FUSED: bool;

    /// Calls a closure whose body is compiled for the host.
    fn run<R>(self, body: impl FnOnce() -> R) -> R;

    /// Runs a body that is compiled for the host.
    fn run_body<B: Body>(self, body: B) -> B::Out;

    /// Replaces every byte of the words, which are below 16, by an entry of a table. `None` where
    /// that takes more than an instruction for a vector.
    fn look_up(self, table: [u8; 16], words: &[u32; 32]) -> Option<[u32; 32]>;

    /// `a * b + c` of pairs of f16, each rounded once to nearest even, NaN canonical. `None` where
    /// the host does not convert f16.
    fn fma_f16x2(self, factors: [&[u32; 32]; 2], c: &[u32; 32]) -> Option<[u32; 32]>;
}

/// The features of the compilation's target.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Host for Plain {
    const WIDE: bool = cfg!(target_arch = "aarch64");
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    #[inline(always)]
    fn run<R>(self, body: impl FnOnce() -> R) -> R {
        body()
    }

    #[inline(always)]
    fn run_body<B: Body>(self, body: B) -> B::Out {
        body.run()
    }

    #[inline(always)]
    fn look_up(self, _: [u8; 16], _: &[u32; 32]) -> Option<[u32; 32]> {
        None
    }

    #[inline(always)]
    fn fma_f16x2(self, _: [&[u32; 32]; 2], _: &[u32; 32]) -> Option<[u32; 32]> {
        None
    }
}

/// AVX2 and what came with it. There is a value only where the host has them.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Host for Avx2 {
    const WIDE: bool = true;
    const FUSED: bool = true;

    #[inline(always)]
    #[allow(unsafe_code)]
    fn run<R>(self, body: impl FnOnce() -> R) -> R {
        // SAFETY: `Widest::find`, which alone makes a value of this type, has found that the
        // host has these instructions.
        unsafe { with_avx2(body) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn run_body<B: Body>(self, body: B) -> B::Out {
        // SAFETY: as above.
        unsafe { body_with_avx2(body) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn look_up(self, table: [u8; 16], words: &[u32; 32]) -> Option<[u32; 32]> {
        // SAFETY: as above.
        Some(unsafe { look_up_avx2(table, words) })
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn fma_f16x2(self, factors: [&[u32; 32]; 2], c: &[u32; 32]) -> Option<[u32; 32]> {
        // SAFETY: as above.
        Some(unsafe { fma_f16x2_avx2(factors, c) })
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
#[inline]
fn with_avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
#[inline]
fn body_with_avx2<B: Body>(body: B) -> B::Out {
    body.run()
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

/// Computes as `ptx_emu_core::num::half::fma_x2`, which explains the rounding to odd.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
#[inline]
fn fma_f16x2_avx2([a, b]: [&[u32; 32]; 2], c: &[u32; 32]) -> [u32; 32] {
    let widen = |row: &[u32; 32], at: usize| {
        let [x, y, z, w] = std::array::from_fn(|word| row[at + word] as i32);
        _mm256_cvtph_ps(_mm_setr_epi32(x, y, z, w))
    };
    let mut out = [0; 32];
    for (at, out) in out.chunks_exact_mut(4).enumerate() {
        let at = 4 * at;
        let (product, c) = (_mm256_mul_ps(widen(a, at), widen(b, at)), widen(c, at));
        let sum = _mm256_add_ps(product, c);
        let part = _mm256_sub_ps(sum, product);
        let rest = _mm256_sub_ps(product, _mm256_sub_ps(sum, part));
        let error = _mm256_add_ps(rest, _mm256_sub_ps(c, part));
        // All bits of an error that is a number and not zero, then one.
        let lost = _mm256_cmp_ps::<_CMP_NEQ_OQ>(error, _mm256_setzero_ps());
        let lost = _mm256_srli_epi32::<31>(_mm256_castps_si256(lost));
        let bits = _mm256_castps_si256(sum);
        let away = _mm256_srli_epi32::<31>(_mm256_xor_si256(bits, _mm256_castps_si256(error)));
        let odd = _mm256_sub_epi32(bits, _mm256_and_si256(lost, away));
        let odd = _mm256_castsi256_ps(_mm256_or_si256(odd, lost));
        let code = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(odd);
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(odd, odd));
        let (low, high) = (_mm256_castsi256_si128(nan), _mm256_extracti128_si256::<1>(nan));
        let code = _mm_blendv_epi8(code, _mm_set1_epi16(0x7fff), _mm_packs_epi32(low, high));
        let halves = [_mm_extract_epi64::<0>(code), _mm_extract_epi64::<1>(code)];
        for (out, found) in out.chunks_exact_mut(2).zip(halves) {
            (out[0], out[1]) = (found as u32, (found >> 32) as u32);
        }
    }
    out
}

/// The best of these.
#[derive(Debug, Clone, Copy)]
pub enum Widest {
    /// No more than the target.
    Plain(Plain),
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Widest {
    /// Asks the processor.
    #[inline]
    pub fn find() -> Self {
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
#[macro_export]
macro_rules! on_host {
    ($host:ident => $body:expr) => {
        match $crate::Widest::find() {
            $crate::Widest::Plain($host) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::Widest::Avx2($host) => $body,
        }
    };
}

/// Separate sums of [`dot`], so that it can be vectorised.
const LANES: usize = 8;

/// Sum of the products of two rows of f64 of one length, and of their magnitudes.
#[must_use]
pub fn dot(x: &[f64], y: &[f64]) -> [f64; 2] {
    on_host!(host => host.run(|| {
        let (mut sums, mut magnitudes) = ([0f64; LANES], [0f64; LANES]);
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (y, y_rest) = y.as_chunks::<LANES>();
        for (x, y) in x.iter().zip(y) {
            for lane in 0..LANES {
                let product = x[lane] * y[lane];
                sums[lane] += product;
                magnitudes[lane] += product.abs();
            }
        }
        for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
            sums[lane] += x * y;
            magnitudes[lane] += (x * y).abs();
        }
        [sums.iter().sum(), magnitudes.iter().sum()]
    }))
}

#[cfg(test)]
mod tests {
    use super::{Host, dot};

    #[test]
    fn products_are_summed_by_lane() {
        let x: Vec<f64> = (0..27).map(|at| f64::from(at) - 7.5).collect();
        let y: Vec<f64> = (0..27).map(|at| f64::from(at * 5 % 13) - 4.25).collect();
        let products = || x.iter().zip(&y).map(|(x, y)| x * y);
        let expected = [products().sum(), products().map(f64::abs).sum::<f64>()];
        assert_eq!(dot(&x, &y), expected, "sums of few bits are exact");
        assert_eq!(dot(&x[..0], &y), [0.0; 2]);
    }

    #[test]
    fn bytes_are_looked_up() {
        let table = std::array::from_fn(|at| (at * 17) as u8 ^ 0x80);
        let words = std::array::from_fn(|lane| {
            u32::from_le_bytes([0, 5, 10, 15].map(|at| (at + lane as u8) % 16))
        });
        let Some(row) = on_host!(host => host.look_up(table, &words)) else {
            return skipped::test("this host has no AVX2");
        };
        for (found, word) in row.iter().zip(words) {
            let expected = word.to_le_bytes().map(|at| table[usize::from(at)]);
            assert_eq!(found.to_le_bytes(), expected);
        }
    }
}
