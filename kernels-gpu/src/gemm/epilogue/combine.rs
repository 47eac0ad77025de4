//! From the affine step's values to results.

/// The result that a value makes: the value.
#[inline(always)]
pub fn combine(value: f32) -> f32 {
    value
}
