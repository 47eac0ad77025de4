//! CPU quantiser: f32 to NVFP4 with TorchAO's recipe, bit for bit.
//!
//! All arithmetic is f32, rounded to nearest even after each step, in this order
//! (`torchao.prototype.mx_formats.nvfp4_tensor.nvfp4_quantize`; checked against bytes which that
//! function produced):
//!
//! | step | one level | two levels, tensor scale `g` |
//! | --- | --- | --- |
//! | tensor scale | 1 | `g = amax / 2688` |
//! | block scale `s` | `e4m3(clamp(bmax / 6, 2^-6, 448))` | `e4m3(clamp((bmax / 6) / g, 2^-6, 448))` |
//! | element | `e2m1(x * (1 / s))` | `e2m1(x * ((1 / g) / s))` |
//!
//! Signs of zeros are kept, and a block of zeros gets the scale 2^-6. Two choices of our own,
//! where the recipe would produce NaN: infinities and NaN in the input are errors, and a computed
//! tensor scale is at least [`MIN_TENSOR_SCALE`] (a tensor of zeros has amax 0).

use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, e2m1, e4m3, pack};

use crate::error::{Error, Result, filled};
use crate::tensor::{BlockScaled, Dims, byte_counts};

/// Smallest tensor scale, 2^-121: below it the factor `(1 / g) / s` of a block with the smallest
/// scale is infinite, and a zero times it NaN.
pub const MIN_TENSOR_SCALE: f32 = f32::from_bits((127 - 121) << 23);

/// Where the f32 scale of the tensor comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TensorScale {
    /// There is none (it is 1): block scales alone.
    OneLevel,
    /// The largest magnitude of the tensor divided by 6 * 448.
    #[default]
    FromAmax,
    /// A given scale, from calibration. Values beyond its range saturate.
    Given(f32),
}

/// Quantises row-major `values` of shape `dims` to NVFP4 with scales in `layout`.
///
/// # Errors
/// [`Error::Shape`] where K is not a multiple of 16 or the length disagrees with `dims`,
/// [`Error::NonFinite`] for the first infinity or NaN, [`Error::Scalar`] for a given scale that is
/// not finite or below [`MIN_TENSOR_SCALE`].
pub fn quantize(
    name: &str,
    values: &[f32],
    dims: Dims,
    scale: TensorScale,
    layout: ScaleLayout,
) -> Result<BlockScaled<Nvfp4>> {
    if values.len() != dims.elements() {
        return Err(Error::shape(
            format!("length of `{name}`"),
            format!("{} ({} x {} x {})", dims.elements(), dims.batch(), dims.rows(), dims.cols()),
            values.len(),
        ));
    }
    let (code_bytes, scale_bytes) = byte_counts::<Nvfp4>(name, dims, layout)?;
    let amax = largest_magnitude(name, values, dims)?;
    let global = match scale {
        TensorScale::OneLevel => None,
        TensorScale::FromAmax => Some((amax / Nvfp4::MAX_SCALED).max(MIN_TENSOR_SCALE)),
        TensorScale::Given(given) if given.is_finite() && given >= MIN_TENSOR_SCALE => Some(given),
        TensorScale::Given(given) => {
            return Err(Error::Scalar {
                field: format!("tensor scale of `{name}`"),
                required: "finite and at least 2^-121",
                actual: f64::from(given),
            });
        }
    };

    let mut codes = filled("codes", code_bytes, 0u8)?;
    let mut scales = filled("scales", scale_bytes, 0u8)?;
    let kblocks = dims.cols() / Nvfp4::BLOCK;
    let scale_stride = scale_bytes / dims.batch();
    let blocks = values.chunks_exact(Nvfp4::BLOCK).zip(codes.chunks_exact_mut(Nvfp4::BLOCK_BYTES));
    for (index, (block, packed)) in blocks.enumerate() {
        let (byte, factor) = block_scale(block, global);
        for (pair, out) in block.chunks_exact(2).zip(packed) {
            *out = pack::pair(e2m1::encode(pair[0] * factor), e2m1::encode(pair[1] * factor));
        }
        let (row, kb) = (index / kblocks, index % kblocks);
        let (batch, row) = (row / dims.rows(), row % dims.rows());
        scales[batch * scale_stride + layout.offset(row, kb, kblocks)] = byte;
    }
    BlockScaled::new(name, dims, layout, codes, scales, global.unwrap_or(1.0))
}

/// The scale byte of a block, and what its elements are multiplied with before rounding.
fn block_scale(block: &[f32], global: Option<f32>) -> (u8, f32) {
    let amax = block.iter().fold(0f32, |max, x| max.max(x.abs()));
    let wanted = amax / e2m1::MAX;
    let wanted = global.map_or(wanted, |g| wanted / g);
    let byte = e4m3::encode(wanted.clamp(e4m3::MIN_NORMAL, e4m3::MAX));
    // The recipe divides 1/g by s, which rounds twice; 1/(g*s) would differ in the last bit.
    (byte, global.map_or(1.0, |g| 1.0 / g) / e4m3::decode(byte))
}

fn largest_magnitude(name: &str, values: &[f32], dims: Dims) -> Result<f32> {
    let mut amax = 0f32;
    for (index, &value) in values.iter().enumerate() {
        if !value.is_finite() {
            return Err(Error::NonFinite {
                tensor: name.into(),
                index: dims.position(index),
                value,
            });
        }
        amax = amax.max(value.abs());
    }
    Ok(amax)
}
