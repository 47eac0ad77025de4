//! Layers from checkpoints.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Shape, Tensor};
use nvfp4::parallel::{Cut, Shard};
use nvfp4::quantize::source::Source as Elements;
use nvfp4::quantize::{Format, QuantizeOptions, quantize_bytes, quantize_matrix, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{Blocks, Layout, Model, Order, Parts, load};

use crate::engine::Engine;
use crate::error::{shape, wrap};
use crate::weights::by_all_cores;
use crate::{Linear, MoeLinear};

/// Gives layers of a checkpoint by name, as `VarBuilder` of candle-nn gives tensors. The checkpoint is a
/// file, a folder of shards, or an index; weights are in the layout of ModelOpt, compressed-tensors,
/// TorchAO or gpt-oss, which is found by the tensors' names.
///
/// ```
/// use candle_core::{Device, Module, Result, Tensor};
/// use nvfp4_candle::{Engine, PackedBuilder};
///
/// # fn main() -> Result<()> {
/// # let folder = std::env::temp_dir().join(format!("nvfp4-candle-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("model.safetensors");
/// # let weight = Tensor::arange(0f32, 64. * 32., &Device::Cpu)?.reshape((64, 32))?;
/// # candle_core::safetensors::save(&[("mlp.up.weight", weight)].into(), &path)?;
/// let builder = PackedBuilder::open(&path, &Engine::reference())?;
/// // This one has floats, which become NVFP4 only if that is asked for.
/// let up = builder.quantizing().pp("mlp").pp("up").linear(32, 64)?;
/// let y = up.forward(&Tensor::ones((3, 32), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [3, 64]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PackedBuilder {
    source: Arc<Source>,
    path: String,
    quantizes: Option<Format>,
    part: Option<Shard>,
}

#[derive(Debug)]
struct Source {
    model: Model,
    layout: Option<Layout>,
    /// Weights by the name of the tensor before it was quantised.
    weights: HashMap<String, Parts>,
    engine: Arc<Engine>,
}

impl PackedBuilder {
    /// Opens a checkpoint.
    ///
    /// # Errors
    /// The same as [`Model::open`].
    pub fn open(path: impl Into<PathBuf>, engine: &Arc<Engine>) -> Result<Self> {
        Ok(Self::new(Model::open(path).map_err(wrap)?, engine))
    }

    /// Makes a builder for an open checkpoint.
    #[must_use]
    pub fn new(model: Model, engine: &Arc<Engine>) -> Self {
        let layout = Layout::detect(&model);
        let parts = layout.map(|layout| layout.find(&model)).unwrap_or_default();
        let weights = parts.into_iter().map(|parts| (parts.name.clone(), parts)).collect();
        let source = Arc::new(Source { model, layout, weights, engine: engine.clone() });
        Self { source, path: String::new(), quantizes: None, part: None }
    }

    /// Names from `name` on.
    #[must_use]
    pub fn pp(&self, name: impl ToString) -> Self {
        Self { path: self.name(&name.to_string()), ..self.clone() }
    }

    /// Quantises matrices that the checkpoint has in floats to NVFP4 by TorchAO's recipe. Without it they
    /// are errors: a checkpoint leaves them so for a reason.
    #[must_use]
    pub fn quantizing(&self) -> Self {
        self.quantizing_to(Format::Nvfp4)
    }

    /// [`quantizing`](Self::quantizing) to a format of which TorchAO's recipe is used.
    #[must_use]
    pub fn quantizing_to(&self, format: Format) -> Self {
        Self { quantizes: Some(format), ..self.clone() }
    }

    /// The same builder, which leaves floats.
    #[cfg(feature = "models")]
    pub(crate) fn without_quantizing(&self) -> Self {
        Self { quantizes: None, ..self.clone() }
    }

    /// The format that floats are quantised to, if that is asked for.
    #[cfg(feature = "models")]
    pub(crate) fn quantizes(&self) -> Option<Format> {
        self.quantizes
    }

    /// Takes a part of each weight, as the functions say.
    #[must_use]
    pub fn part(&self, part: Shard) -> Self {
        Self { part: Some(part), ..self.clone() }
    }

    /// The full name of a tensor.
    pub(crate) fn name(&self, tensor: &str) -> String {
        match self.path.as_str() {
            "" => tensor.to_owned(),
            path => format!("{path}.{tensor}"),
        }
    }

    /// The checkpoint.
    #[cfg(feature = "models")]
    pub(crate) fn model(&self) -> &Model {
        &self.source.model
    }

    /// The engine that computes.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.source.engine
    }

    /// Whether there is a tensor, or a quantised weight, of this name.
    #[must_use]
    pub fn contains(&self, tensor: &str) -> bool {
        let name = self.name(tensor);
        self.source.weights.contains_key(&name) || self.source.model.contains(&name)
    }

    /// A tensor of floats, on the engine's device.
    ///
    /// # Errors
    /// If it is missing, has another shape or type, or a value that is not finite.
    pub fn get(&self, dims: impl Into<Shape>, tensor: &str, dtype: DType) -> Result<Tensor> {
        let (name, dims) = (self.name(tensor), dims.into());
        let model = &self.source.model;
        let found = model.file(&name).and_then(|file| file.floats(&name));
        let found = found.map_err(wrap)?;
        if found.shape != dims.dims() {
            return Err(shape(
                format!("shape of `{name}`"),
                format!("{:?}", dims.dims()),
                found.shape,
            ));
        }
        Tensor::from_vec(found.values, dims, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(self.source.engine.device())
    }

    /// The layer of `weight`, `[outputs, inputs]`, and of `bias` if there is one.
    ///
    /// # Errors
    /// If the weight is missing, has other sizes, or is in floats.
    pub fn linear(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        let bias = self.bias(&[outputs])?;
        Linear::new(self.engine(), &self.matrix(inputs, outputs, None)?, bias.as_ref())
    }

    /// [`linear`](Self::linear), of which a device has some of the outputs, where the builder has a
    /// [part](Self::part).
    ///
    /// # Errors
    /// The same as there, and for sizes that cannot be divided so.
    pub fn linear_by_rows(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        let bias = match (self.bias(&[outputs])?, self.part) {
            (Some(bias), Some(part)) => {
                let own = part.range("bias", outputs, 1).map_err(wrap)?;
                Some(bias.narrow(0, own.start, own.len())?)
            }
            (bias, _) => bias,
        };
        let weight = self.matrix(inputs, outputs, Some(Cut::Rows))?;
        Linear::new(self.engine(), &weight, bias.as_ref())
    }

    /// [`linear`](Self::linear), of which a device takes some of the inputs: all devices' results add up
    /// to the layer's. The first has the bias.
    ///
    /// # Errors
    /// The same as there, and for sizes that cannot be divided so.
    pub fn linear_by_columns(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        let first = self.part.is_none_or(|part| part.rank() == 0);
        let bias = self.bias(&[outputs])?.filter(|_| first);
        let weight = self.matrix(inputs, outputs, Some(Cut::Columns))?;
        Linear::new(self.engine(), &weight, bias.as_ref())
    }

    /// The matrices of experts: one tensor `weight` or, for gpt-oss, of this name itself, with
    /// `[experts, outputs, inputs]`; or a module for each, `0.NAME`, `1.NAME` and so on, for a builder of
    /// the list of experts. If the builder has a [part](Self::part), the experts are that part's.
    ///
    /// # Errors
    /// The same as [`linear`](Self::linear).
    pub fn experts(
        &self,
        experts: usize,
        inputs: usize,
        outputs: usize,
        name: &str,
    ) -> Result<MoeLinear> {
        let own = match self.part {
            Some(part) => part.experts(experts).map_err(wrap)?,
            None => 0..experts,
        };
        let joint = [self.name(name), self.pp(name).name("weight")];
        if let Some(parts) = joint.iter().find_map(|name| self.source.weights.get(name)) {
            let weight = self.load(parts)?;
            let dims = weight.blocks.dims();
            self.check(
                &parts.name,
                [dims.batch(), dims.rows(), dims.cols()],
                [experts, outputs, inputs],
            )?;
            let matrices = by_all_cores(own.clone(), |at| weight.entry(at)).map_err(wrap)?;
            let bias = [format!("{name}_bias"), format!("{name}.bias")];
            let bias = bias.iter().find(|bias| self.contains(bias));
            let bias =
                bias.map(|bias| self.get((experts, outputs), bias, DType::F32)).transpose()?;
            let bias = bias.map(|bias| bias.narrow(0, own.start, own.len())).transpose()?;
            return MoeLinear::new(self.engine(), &matrices, bias.as_ref());
        }
        let of = |expert: usize| self.pp(expert).pp(name);
        let matrices =
            by_all_cores(own.clone(), |expert| of(expert).matrix(inputs, outputs, None))?;
        let biases = own.map(|expert| of(expert).bias(&[outputs])).collect::<Result<Vec<_>>>()?;
        let biases: Option<Vec<Tensor>> = biases.into_iter().collect();
        let bias = biases.map(|biases| Tensor::stack(&biases, 0)).transpose()?;
        MoeLinear::new(self.engine(), &matrices, bias.as_ref())
    }

    fn bias(&self, dims: &[usize]) -> Result<Option<Tensor>> {
        match self.contains("bias") {
            true => self.get(dims.to_vec(), "bias", DType::F32).map(Some),
            false => Ok(None),
        }
    }

    /// A weight in four bits, whatever its order; `None` if there is none of this name.
    #[cfg(feature = "models")]
    pub(crate) fn stored(&self, tensor: &str) -> Result<Option<nvfp4_checkpoint::Weight>> {
        let parts = self.source.weights.get(&self.name(tensor));
        parts.map(|parts| self.read(parts)).transpose()
    }

    fn read(&self, parts: &Parts) -> Result<nvfp4_checkpoint::Weight> {
        let Some(layout) = self.source.layout else {
            unreachable!("only a layout finds the parts of weights")
        };
        load(&self.source.model, layout, parts).map_err(wrap)
    }

    fn load(&self, parts: &Parts) -> Result<nvfp4_checkpoint::Weight> {
        let weight = self.read(parts)?;
        match weight.spec.order {
            Order::OutputFirst | Order::InputFirst => Ok(weight),
            Order::AlongOutput => Err(shape(
                format!("blocks of `{}`", parts.name),
                "along the inputs",
                "along outputs",
            )),
        }
    }

    fn check(&self, name: &str, found: [usize; 3], required: [usize; 3]) -> Result<()> {
        if found == required {
            return Ok(());
        }
        Err(shape(format!("shape of `{name}` (matrices, N, K)"), format!("{required:?}"), found))
    }

    /// The matrix `weight`, or the builder's part of it.
    fn matrix(&self, inputs: usize, outputs: usize, cut: Option<Cut>) -> Result<Blocks> {
        let name = self.name("weight");
        let blocks = match self.source.weights.get(&name) {
            Some(parts) => {
                let weight = self.load(parts)?;
                let dims = weight.blocks.dims();
                self.check(&name, [dims.batch(), dims.rows(), dims.cols()], [1, outputs, inputs])?;
                weight.blocks
            }
            None => self.quantized(&name, inputs, outputs)?,
        };
        match (cut, self.part) {
            (Some(cut), Some(part)) => blocks.part(cut, part).map_err(wrap),
            (None, _) | (_, None) => Ok(blocks),
        }
    }

    /// A matrix of floats in the format that is asked for.
    fn quantized(&self, name: &str, inputs: usize, outputs: usize) -> Result<Blocks> {
        let file = self.source.model.file(name).map_err(wrap)?;
        let Some(format) = self.quantizes else {
            return Err(shape(format!("`{name}`"), "quantised, or quantising asked for", "floats"));
        };
        let (dtype, tensor) = file.float_bytes(name).map_err(wrap)?;
        if tensor.shape != [outputs, inputs] {
            let required = format!("{:?}", [outputs, inputs]);
            return Err(shape(format!("shape of `{name}`"), required, tensor.shape));
        }
        quantized(name, Elements::Bytes(dtype, &tensor.data), [outputs, inputs], format)
    }
}

/// A matrix of floats in blocks, by TorchAO's recipe.
pub(crate) fn quantized(
    name: &str,
    elements: Elements<'_>,
    [rows, columns]: [usize; 2],
    format: Format,
) -> Result<Blocks> {
    let options = QuantizeOptions::new(recipe_by_name(format, "torchao").map_err(wrap)?);
    let dims = Dims::new(1, rows, columns).map_err(wrap)?;
    let matrix = match elements {
        Elements::Values(values) => quantize_matrix(name, values, dims, &options),
        Elements::Bytes(dtype, bytes) => quantize_bytes(name, dtype, bytes, dims, &options),
    };
    matrix.and_then(|matrix| matrix.into_blocks(name, dims)).map_err(wrap)
}
