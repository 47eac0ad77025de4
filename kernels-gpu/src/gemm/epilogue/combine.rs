//! From the affine step's values to results.

use fp4_formats::gemm::Epilogue;

/// The result that a value makes: the value.
#[inline(always)]
pub fn combine(_: &Epilogue, value: f32) -> f32 {
    value
}
