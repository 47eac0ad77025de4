//! A quantised weight, independent of layouts.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;

use nvfp4::error::{Result, reserve};
use nvfp4::parallel::{Cut, Shard};
pub use nvfp4::tensor::{Blocks, Convention, GlobalScale};

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
    /// Its format.
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
    /// The scale of the layer's input, from calibration; the largest where each expert has its own.
    pub input: Option<GlobalScale>,
    /// The scale of each expert's input, where they are stored one by one.
    pub inputs: Option<Vec<GlobalScale>>,
}

impl Weight {
    /// All values in f32, with the tensor-level scale of each expert where it has its own; see
    /// [`BlockScaled::dequantize`](nvfp4::tensor::BlockScaled::dequantize).
    ///
    /// # Errors
    /// The errors of [`BlockScaled::dequantize`](nvfp4::tensor::BlockScaled::dequantize).
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

impl Weight {
    /// A part of a weight as it was loaded, with the tensor-level scales of its own experts.
    ///
    /// # Errors
    /// The same as [`BlockScaled::part`](nvfp4::tensor::BlockScaled::part).
    pub fn part(&self, cut: Cut, part: Shard) -> Result<Self> {
        let blocks = self.blocks.part(cut, part)?;
        let dims = blocks.dims();
        let mut own = self.clone();
        let shape = [dims.batch(), dims.rows(), dims.cols()];
        let leading = shape.len() - own.spec.shape.len().min(shape.len());
        own.spec.shape = shape[leading..].to_vec();
        if let (Cut::Experts, Some(scales)) = (cut, &self.experts) {
            own.experts = Some(scales[part.experts(scales.len())?].to_vec());
        }
        if let (Cut::Experts, Some(scales)) = (cut, &self.inputs) {
            own.inputs = Some(scales[part.experts(scales.len())?].to_vec());
        }
        Ok(Self { blocks, ..own })
    }
}
