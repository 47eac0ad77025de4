//! Values as the elements of a float type.

use fp4_formats::FloatType;
use nvfp4::floats;
use rayon::prelude::*;

use super::error::CheckpointError;
use crate::error::Result;

/// Elements that a thread converts at a time.
const TOGETHER: usize = 1 << 16;

/// The little-endian elements of values, which the type must hold.
pub(super) fn encoded(name: &str, values: &[f32], element: FloatType) -> Result<Vec<u8>> {
    let largest = values.par_iter().map(|value| value.abs()).reduce(|| 0.0, f32::max);
    let limit = floats::max(element);
    if f64::from(largest) > limit {
        let field = format!("largest magnitude of `{name}`");
        let required = format!("at most {limit} for {}", element.name());
        return Err(CheckpointError::shape(field, required, largest));
    }
    let encode = |values: &[f32]| floats::encode(element, values.iter().copied().map(f64::from));
    Ok(values.par_chunks(TOGETHER).map(encode).collect::<Vec<_>>().concat())
}
