//! Float types, and values as their elements.

use fp4_formats::FloatType;
use nvfp4::floats;
use rayon::prelude::*;
use safetensors::tensor::Dtype;

use super::error::CheckpointError;
use crate::error::Result;

/// Elements that a thread converts at a time.
const TOGETHER: usize = 1 << 16;

/// The float type of a tensor's type; `None` if its elements are no floats of 16 or 32 bits.
pub(super) fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::F32 => Some(FloatType::F32),
        Dtype::F16 => Some(FloatType::F16),
        Dtype::BF16 => Some(FloatType::Bf16),
        _ => None,
    }
}

/// The type of tensors whose elements are of a float type.
pub(super) fn dtype(element: FloatType) -> Dtype {
    match element {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
    }
}

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
