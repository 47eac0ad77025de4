//! The scale of a product of tensors.

use crate::error::{Error, Result};

/// `alpha * ga * gb` in f32, computed in f64 and rounded once. A product outside the normal range of
/// f32 would make results inaccurate, so it is refused; zero is accepted.
pub(crate) fn combined_scale(alpha: f32, ga: f32, gb: f32) -> Result<f32> {
    let exact = f64::from(alpha) * f64::from(ga) * f64::from(gb);
    let rounded = exact as f32;
    if rounded.is_normal() || exact == 0.0 {
        Ok(rounded)
    } else {
        Err(Error::Scalar {
            field: "alpha times both global scales".into(),
            required: "0 or a normal f32",
            actual: exact,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_that_f32_cannot_hold_are_refused() {
        assert_eq!(combined_scale(2.0, 0.5, 3.0).expect("fits"), 3.0);
        assert_eq!(combined_scale(0.0, 1.0, 1.0).expect("zero is fine"), 0.0);
        for (alpha, ga, gb) in [(1e30, 1e30, 1.0), (1e-30, 1e-30, 1.0), (f32::NAN, 1.0, 1.0)] {
            let error = combined_scale(alpha, ga, gb).expect_err("out of range");
            assert!(matches!(error, Error::Scalar { .. }), "{error}");
        }
    }
}
