//! A quantised weight, independent of layouts.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};
use safetensors::tensor::Dtype;

use crate::error::{Error, Result, reserve};
use crate::tensor::{BlockScaled, Dims};

/// A tensor-level scale in its original convention, because inverting it would round it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GlobalScale {
    /// Dequantised values are multiplied by it (`amax / 2688`).
    Multiplier(f32),
    /// Dequantised values are divided by it (`2688 / amax`).
    Divisor(f32),
}

/// The convention of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// [`GlobalScale::Multiplier`].
    Multiplier,
    /// [`GlobalScale::Divisor`].
    Divisor,
}

impl GlobalScale {
    /// A stored number in its convention.
    #[must_use]
    pub fn new(convention: Convention, value: f32) -> Self {
        match convention {
            Convention::Multiplier => Self::Multiplier(value),
            Convention::Divisor => Self::Divisor(value),
        }
    }

    /// The number to store. If the convention changes, it is the reciprocal, rounded to f32. A
    /// number that has been inverted once is unchanged by two more inversions.
    #[must_use]
    pub fn stored(self, convention: Convention) -> f32 {
        match (self, convention) {
            (Self::Multiplier(value), Convention::Multiplier)
            | (Self::Divisor(value), Convention::Divisor) => value,
            (Self::Multiplier(value), Convention::Divisor)
            | (Self::Divisor(value), Convention::Multiplier) => 1.0 / value,
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

/// The order of a weight's last two dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// `[.., N, K]`, blocks along K.
    #[default]
    OutputFirst,
    /// The same, of experts that the model itself has as `[experts, K, N]`.
    InputFirst,
    /// `[experts, K, N]`, blocks along N, so that no product can use them.
    AlongOutput,
}

/// A weight without its data, which suffices to lay out a file.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Name of the tensor before it was quantised, such as `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Its shape, `[N, K]` or `[experts, N, K]`.
    pub shape: Vec<usize>,
    /// How it is quantised.
    pub format: Format,
    /// Whether it has a tensor-level scale. NVFP4 without one has a single level.
    pub global: bool,
    /// Whether it also has a scale for the layer's input.
    pub input: bool,
    /// Element type before it was quantised, if known.
    pub original: Option<Dtype>,
    /// Elements with one stored scale: a block, or two in ModelOpt's groups of 32.
    pub group: usize,
    /// The order of its last two dimensions.
    pub order: Order,
    /// Whether each expert has a tensor-level scale of its own.
    pub expert_scales: bool,
}

impl WeightSpec {
    /// Columns: the dimension of the blocks.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// The shape with its last dimension replaced.
    #[must_use]
    pub fn with_last(&self, last: &[usize]) -> Vec<usize> {
        let leading = self.shape.len().saturating_sub(1);
        [&self.shape[..leading], last].concat()
    }

    /// Shape of the linear scales.
    #[must_use]
    pub fn scale_shape(&self) -> Vec<usize> {
        self.with_last(&[self.cols() / self.format.block() as usize])
    }

    /// The name without its last part, `.weight`: the module.
    #[must_use]
    pub fn module(&self) -> &str {
        module(&self.name)
    }
}

/// The module that a tensor belongs to: its name without the last part.
pub(super) fn module(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or(tensor, |(module, _)| module)
}

/// A quantised weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Everything except the data.
    pub spec: WeightSpec,
    /// Codes and scales; their global scale is the multiplier.
    pub blocks: Blocks,
    /// The tensor-level scale as it was stored; the largest where each expert has its own.
    pub global: Option<GlobalScale>,
    /// The tensor-level scale of each expert, where they are stored one by one.
    pub experts: Option<Vec<GlobalScale>>,
    /// The scale of the layer's input, from calibration.
    pub input: Option<GlobalScale>,
}

impl Weight {
    /// All values in f32, with the tensor-level scale of each expert where it has its own; see
    /// [`BlockScaled::dequantize`].
    ///
    /// # Errors
    /// The errors of [`BlockScaled::dequantize`].
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        if self.experts.is_none() {
            return self.blocks.dequantize();
        }
        let mut values = reserve(&self.spec.name, self.blocks.dims().elements())?;
        for expert in 0..self.blocks.dims().batch() {
            values.extend(self.entry(expert)?.dequantize()?);
        }
        Ok(values)
    }

    /// One of the matrices of a batch, with its own tensor-level scale where it has one.
    ///
    /// # Errors
    /// The errors of [`Blocks::entry`].
    pub fn entry(&self, at: usize) -> Result<Blocks> {
        let entry = self.blocks.entry(at)?;
        let Some(scale) = self.experts.as_ref().and_then(|scales| scales.get(at)) else {
            return Ok(entry);
        };
        let (codes, scales) = (entry.codes().to_vec(), entry.scales().to_vec());
        let (format, dims, linear) = (entry.format(), entry.dims(), ScaleLayout::Linear);
        Blocks::new(format, &self.spec.name, dims, linear, codes, scales, scale.multiplier())
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
