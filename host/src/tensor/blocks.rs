//! Codes and scales of either format, and the tensor-level scale as it is stored.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};

use super::{BlockScaled, Dims};
use crate::error::{Error, Result};

/// A tensor-level scale in its original convention, because inverting it would round it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GlobalScale {
    /// Dequantised values are multiplied by it (`amax / 2688`).
    Multiplier(f32),
    /// Dequantised values are divided by it (`2688 / amax`).
    Divisor(f32),
    /// The largest magnitude (`amax`), 2688 times the multiplier.
    Largest(f32),
}

/// The convention of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// [`GlobalScale::Multiplier`].
    Multiplier,
    /// [`GlobalScale::Divisor`].
    Divisor,
    /// [`GlobalScale::Largest`].
    Largest,
}

/// The largest code times the largest block scale of NVFP4.
const RANGE: f32 = 6.0 * 448.0;

impl GlobalScale {
    /// A stored number in its convention.
    #[must_use]
    pub fn new(convention: Convention, value: f32) -> Self {
        match convention {
            Convention::Multiplier => Self::Multiplier(value),
            Convention::Divisor => Self::Divisor(value),
            Convention::Largest => Self::Largest(value),
        }
    }

    /// The number to store. If the convention changes, it is the reciprocal or 2688 times as large or small, rounded to
    /// f32. A number that has been inverted once is unchanged by two more inversions.
    #[must_use]
    pub fn stored(self, convention: Convention) -> f32 {
        match (self, convention) {
            (Self::Multiplier(value), Convention::Multiplier)
            | (Self::Divisor(value), Convention::Divisor)
            | (Self::Largest(value), Convention::Largest) => value,
            (Self::Multiplier(value), Convention::Divisor)
            | (Self::Divisor(value), Convention::Multiplier) => 1.0 / value,
            (Self::Multiplier(value), Convention::Largest) => value * RANGE,
            (Self::Largest(value), Convention::Multiplier) => value / RANGE,
            (Self::Divisor(value), Convention::Largest)
            | (Self::Largest(value), Convention::Divisor) => RANGE / value,
        }
    }

    /// The multiplier of dequantised values.
    #[must_use]
    pub fn multiplier(self) -> f32 {
        self.stored(Convention::Multiplier)
    }
}

/// Codes and scales of either format, scales linear.
#[derive(Clone, Debug, PartialEq)]
pub enum Blocks {
    /// Blocks of 16, e4m3 scales.
    Nvfp4(BlockScaled<Nvfp4>),
    /// Blocks of 32, ue8m0 scales.
    Mxfp4(BlockScaled<Mxfp4>),
}

impl Blocks {
    /// Blocks of these parts, after checking them. Scales in `layout` are converted to linear.
    ///
    /// # Errors
    /// The errors of [`BlockScaled::new`].
    pub fn new(
        format: Format,
        name: &str,
        dims: Dims,
        layout: ScaleLayout,
        codes: Vec<u8>,
        scales: Vec<u8>,
        multiplier: f32,
    ) -> Result<Self> {
        fn linear<F: BlockFormat>(tensor: BlockScaled<F>) -> Result<BlockScaled<F>> {
            match tensor.layout() {
                ScaleLayout::Linear => Ok(tensor),
                ScaleLayout::Blocked128x4 => tensor.to_layout(ScaleLayout::Linear),
            }
        }
        Ok(match format {
            Format::Nvfp4 => Self::Nvfp4(linear(BlockScaled::new(
                name, dims, layout, codes, scales, multiplier,
            )?)?),
            Format::Mxfp4 => Self::Mxfp4(linear(BlockScaled::new(
                name, dims, layout, codes, scales, multiplier,
            )?)?),
        })
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Nvfp4(_) => Format::Nvfp4,
            Self::Mxfp4(_) => Format::Mxfp4,
        }
    }

    /// Shape in elements; batch entries are experts.
    #[must_use]
    pub fn dims(&self) -> Dims {
        match self {
            Self::Nvfp4(tensor) => tensor.dims(),
            Self::Mxfp4(tensor) => tensor.dims(),
        }
    }

    /// Packed codes, row-major.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        match self {
            Self::Nvfp4(tensor) => tensor.codes(),
            Self::Mxfp4(tensor) => tensor.codes(),
        }
    }

    /// Scale bytes, row-major.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        match self {
            Self::Nvfp4(tensor) => tensor.scales(),
            Self::Mxfp4(tensor) => tensor.scales(),
        }
    }

    /// Scale bytes in 128x4 tiles, padding zero.
    ///
    /// # Errors
    /// The errors of [`BlockScaled::to_layout`].
    pub fn blocked_scales(&self) -> Result<Vec<u8>> {
        let layout = ScaleLayout::Blocked128x4;
        Ok(match self {
            Self::Nvfp4(tensor) => tensor.to_layout(layout)?.scales().to_vec(),
            Self::Mxfp4(tensor) => tensor.to_layout(layout)?.scales().to_vec(),
        })
    }

    /// One of the matrices of a batch.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not so many.
    pub fn entry(&self, at: usize) -> Result<Self> {
        fn of<F: BlockFormat>(tensor: &BlockScaled<F>, at: usize) -> Result<BlockScaled<F>> {
            let dims = tensor.dims();
            let one = |bytes: &[u8]| {
                let each = bytes.len() / dims.batch();
                bytes.get(at * each..(at + 1) * each).map(<[u8]>::to_vec)
            };
            let (Some(codes), Some(scales)) = (one(tensor.codes()), one(tensor.scales())) else {
                let field = format!("matrix of `{}`", tensor.name());
                return Err(Error::shape(field, format!("below {}", dims.batch()), at));
            };
            let (name, layout) = (format!("{}[{at}]", tensor.name()), ScaleLayout::Linear);
            let one = Dims::new(1, dims.rows(), dims.cols())?;
            BlockScaled::new(name, one, layout, codes, scales, tensor.global_scale())
        }
        if self.dims().batch() == 1 && at == 0 {
            return Ok(self.clone());
        }
        Ok(match self {
            Self::Nvfp4(tensor) => Self::Nvfp4(of(tensor, at)?),
            Self::Mxfp4(tensor) => Self::Mxfp4(of(tensor, at)?),
        })
    }

    /// All values in f32; see [`BlockScaled::dequantize`].
    ///
    /// # Errors
    /// The errors of [`BlockScaled::dequantize`].
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        match self {
            Self::Nvfp4(tensor) => tensor.dequantize(),
            Self::Mxfp4(tensor) => tensor.dequantize(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Repeated inversion is stable, as `stored` documents.
        #[test]
        fn the_third_inversion_gives_the_first(bits in 0x0100_0000u32..0x7e00_0000) {
            let start = GlobalScale::Multiplier(f32::from_bits(bits));
            let first = start.stored(Convention::Divisor);
            let second = GlobalScale::Divisor(first).stored(Convention::Multiplier);
            let third = GlobalScale::Multiplier(second).stored(Convention::Divisor);
            prop_assert_eq!(first.to_bits(), third.to_bits());
            prop_assert!((i64::from(second.to_bits()) - i64::from(bits)).abs() <= 1);
        }
    }
}
