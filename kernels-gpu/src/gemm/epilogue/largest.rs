//! The largest magnitude of a launch's results, in f32, if a launch asks for it.

use cuda_std::ptx::{float, reduce};
use cuda_std::warp;
use fp4_formats::gemm::Sink;

use super::pinned_halves;

/// Whether one is asked for.
#[inline(always)]
pub fn is_wanted(sink: &Sink) -> bool {
    // Pinned, so that the answer takes no register during the main loop.
    let [low, high] = pinned_halves(sink.magnitude);
    low | high != 0
}

/// The larger one of `found` and the largest magnitude of the first `exist` values; NaN if any of
/// them is.
#[inline(always)]
pub fn with<const N: usize>(mut found: f32, values: [f32; N], exist: u32) -> f32 {
    for i in 0..N {
        let larger = float::max_nan_f32(found, float::abs_f32(values[i]));
        found = if (i as u32) < exist { larger } else { found };
    }
    found
}

/// Raises the launch's largest magnitude to the largest that the lanes of a warp found, if it is
/// asked for.
///
/// # Safety
/// All lanes of the warp call it; the address is as the documentation of [`Sink`] says.
#[inline(always)]
pub unsafe fn raise(sink: &Sink, found: impl Fn() -> f32) {
    if !is_wanted(sink) {
        return;
    }
    // SAFETY: all lanes are here; other threads raise the word, too, and nobody reads it.
    unsafe {
        let found = warp::max_u32(found().to_bits());
        if warp::lane_id() == 0 {
            reduce::red_relaxed_gpu_global_max_u32(sink.magnitude, found);
        }
    }
}
