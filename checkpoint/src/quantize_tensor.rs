//! Quantising one tensor of a model, and the tensor-level scale that it gets.

use std::borrow::Cow;

use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, Nvfp4};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::Dtype;

use super::decode::Encoded;
use super::encode::float_type;
use super::error::CheckpointError;
use super::file::Checkpoint;
use super::model::Model;
use super::options::ModelOptions;
use super::orientation::{Orientation, transposed};
use super::search::{self, search};
use super::weight::{GlobalScale, Weight, WeightSpec};
use crate::error::Result;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::quantize::source::Source;
use nvfp4::quantize::{QuantizeOptions, TensorScale, device, quantize_source};
use nvfp4::tensor::Dims;

/// A quantised tensor and what became of its values.
pub(super) struct Quantized {
    pub weight: Weight,
    /// Values that are not zero.
    pub values: u64,
    /// Elements whose code is zero.
    pub underflows: u64,
    /// Blocks whose scale is not the recipe's.
    pub searched: u64,
}

/// Quantises one tensor of the model with the tensor-level scale `scale`. `order` is that in which
/// the model stores it.
pub(super) fn quantize_tensor(
    model: &Model,
    spec: &WeightSpec,
    order: Orientation,
    scale: TensorScale,
    options: &ModelOptions,
    kernels: Option<&Kernels>,
) -> Result<Quantized> {
    let dims = match *spec.shape.as_slice() {
        [rows, cols] => Dims::new(1, rows, cols)?,
        [experts, rows, cols] => Dims::new(experts, rows, cols)?,
        _ => {
            return Err(CheckpointError::shape(
                &spec.name,
                "a matrix or several",
                spec.shape.len(),
            ));
        }
    };
    let recipe = options.recipe;
    let how = QuantizeOptions::new(recipe).scale(scale);
    let raw = Floats::of(model, &spec.name)?;
    let copy = match order {
        Orientation::OutputFirst => None,
        Orientation::InputFirst => Some(transposed_bytes(&spec.name, &raw, dims)?),
    };
    let data = copy.as_deref().unwrap_or(&raw.data);
    let source = Source::Bytes(raw.element, data);
    let mut matrix = match kernels {
        None => match quantize_source(&spec.name, source, dims, &how)? {
            Some(matrix) => matrix,
            None => return Err(not_finite(&spec.name, model.file(&spec.name)?)),
        },
        Some(kernels) => {
            match device::quantize_once(kernels, data, raw.element, dims, &how) {
                // The device knows where; the file says what and at which byte.
                Err(Error::NonFiniteAt { index, .. }) => {
                    model.file(&spec.name)?.floats(&spec.name)?;
                    return Err(Error::NonFiniteAt { tensor: spec.name.clone(), index }.into());
                }
                matrix => matrix?,
            }
        }
    };
    let global = matrix.global();
    let mut searched = 0;
    if options.search {
        let multiplier = global.map_or(1.0, GlobalScale::multiplier);
        let largest = search::largest(options.save.layout);
        searched = search(source, multiplier, largest, &mut matrix.codes, &mut matrix.scales);
    }
    if spec.group > options.recipe.format().block() as usize {
        let multiplier = global.map_or(1.0, GlobalScale::multiplier);
        search::pair(source, multiplier, &mut matrix.codes, &mut matrix.scales);
    }
    let (values, underflows) = underflows(data, raw.element, &matrix.codes);
    let blocks = matrix.into_blocks(&spec.name, dims)?;
    let (experts, input, inputs) = (None, None, None);
    let weight = Weight { spec: spec.clone(), blocks, global, experts, input, inputs };
    Ok(Quantized { weight, values, underflows, searched })
}

/// The elements of a tensor to quantise.
struct Floats<'a> {
    element: FloatType,
    data: Cow<'a, [u8]>,
}

impl<'a> Floats<'a> {
    /// The tensor as it is stored; one in FP8 or packed integers in F32, all finite.
    fn of(model: &'a Model, name: &str) -> Result<Self> {
        let Some(encoded) = Encoded::of(model, name)? else {
            let raw = model.raw(name)?;
            let Some(element) = float_type(raw.dtype) else {
                let (required, found) = ("F32, F16 or BF16", format!("{:?}", raw.dtype));
                return Err(CheckpointError::shape("element type", required, found));
            };
            return Ok(Self { element, data: raw.data.into() });
        };
        let values = encoded.decode(model)?;
        let data = values.par_iter().flat_map_iter(|value| value.to_le_bytes()).collect();
        Ok(Self { element: FloatType::F32, data: Cow::Owned(data) })
    }
}

/// The error for a tensor with an infinity or a NaN. If there is none any more, the file was changed.
fn not_finite(name: &str, file: &Checkpoint) -> CheckpointError {
    match file.floats(name) {
        Err(error) => error,
        Ok(_) => CheckpointError::Changed { path: file.path().into() },
    }
}

/// The elements of a float tensor `[experts, K, N]` as `[experts, N, K]`, which `dims` is.
fn transposed_bytes(name: &str, raw: &Floats<'_>, dims: Dims) -> Result<Vec<u8>> {
    let stored = [dims.cols(), dims.rows()];
    Ok(match raw.element {
        FloatType::F32 => transposed(name, raw.data.as_chunks::<4>().0, stored)?.into_flattened(),
        FloatType::F16 | FloatType::Bf16 => {
            transposed(name, raw.data.as_chunks::<2>().0, stored)?.into_flattened()
        }
    })
}

/// Counts the elements of a float tensor that are not zero, and those of them that have a code of
/// zero. The code of a zero is zero with every recipe.
fn underflows(data: &[u8], element: FloatType, codes: &[u8]) -> (u64, u64) {
    const CHUNK: usize = 1 << 16;
    /// The number of elements that are counted in 16 bits, which is faster.
    const PART: usize = 1 << 10;
    fn count<T: Sync>(items: &[T], each: impl Fn(&T) -> u8 + Sync) -> u64 {
        let part = |part: &[T]| part.iter().map(|item| u16::from(each(item))).sum::<u16>();
        items
            .par_chunks(CHUNK)
            .map(|x| x.chunks(PART).map(|x| u64::from(part(x))).sum::<u64>())
            .sum()
    }
    let elements = match element {
        FloatType::F32 => count(data.as_chunks().0, |x| u8::from(u32::from_le_bytes(*x) << 1 != 0)),
        FloatType::F16 | FloatType::Bf16 => {
            count(data.as_chunks().0, |x| u8::from(u16::from_le_bytes(*x) << 1 != 0))
        }
    };
    let codes = count(codes, |byte| u8::from(byte & 0x07 != 0) + u8::from(byte & 0x70 != 0));
    (elements, elements.saturating_sub(codes))
}

/// The tensor-level scale of weights with one largest magnitude, whose tensors are of type `dtype`.
///
/// compressed-tensors computes its divisor in the model's type, as 2688 times the reciprocal of the
/// magnitude, both rounded; a divisor that has no finite value there is 1.
pub(super) fn scale_for(recipe: Recipe, amax: f32, dtype: Dtype) -> TensorScale {
    let parameter = match recipe {
        Recipe::Nvfp4(Nvfp4Recipe::CompressedTensors) => {
            let rounded = |x: f32| match dtype {
                Dtype::BF16 => bf16::from_f32(x).to_f32(),
                Dtype::F16 => f16::from_f32(x).to_f32(),
                _ => x,
            };
            let divisor = rounded(rounded(1.0 / amax) * Nvfp4::MAX_SCALED);
            Some(if divisor.is_finite() { divisor } else { 1.0 })
        }
        Recipe::Nvfp4(
            Nvfp4Recipe::TorchAo | Nvfp4Recipe::TransformerEngine | Nvfp4Recipe::ModelOpt,
        )
        | Recipe::Adaptive(_)
        | Recipe::Mxfp4(_) => recipe.tensor_parameter(amax),
    };
    let (Some(parameter), Some(project)) = (parameter, recipe.parameter_of()) else {
        return TensorScale::FromAmax;
    };
    if project.accepts(parameter) {
        TensorScale::Given(parameter)
    } else {
        // A block of zeros only; each recipe has a rule for it.
        TensorScale::FromAmax
    }
}

/// The largest magnitude of a float tensor.
pub(super) fn amax(model: &Model, name: &str) -> Result<f32> {
    let raw = Floats::of(model, name)?;
    let largest = Source::Bytes(raw.element, &raw.data).par_maximum();
    if largest.is_finite() { Ok(largest) } else { Err(not_finite(name, model.file(name)?)) }
}
