//! The layers as mistral.rs calls them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use candle_core::{DType, Device, Module, Result, Tensor};
use mistralrs_quant::{IsqType, QuantMethod, QuantMethodConfig, QuantizeOntoGuard, QuantizedSerde};
use nvfp4::tensor::Blocks;

use crate::error::{shape, wrap};
use crate::{Engine, Linear, MoeLinear};

/// A linear layer.
#[derive(Clone, Debug)]
pub struct PackedLinear {
    layer: Linear,
    kept: Option<Arc<Blocks>>,
}

impl PackedLinear {
    /// Makes a layer whose weights are where they are multiplied alone: `dequantize_w` is an error.
    #[must_use]
    pub fn new(layer: Linear) -> Self {
        Self { layer, kept: None }
    }

    /// Makes a layer of a matrix `[N, K]` and a bias `[N]`, and keeps the matrix on the host for `dequantize_w`.
    ///
    /// # Errors
    /// The same as [`Linear::new`].
    pub fn keeping(engine: &Arc<Engine>, weight: Blocks, bias: Option<&Tensor>) -> Result<Self> {
        let layer = Linear::new(engine, &weight, bias)?;
        Ok(Self { layer, kept: Some(Arc::new(weight)) })
    }
}

/// Matrices of experts.
#[derive(Clone, Debug)]
pub struct PackedExperts {
    layer: MoeLinear,
}

impl PackedExperts {
    /// Makes a layer whose weights are where they are multiplied alone.
    #[must_use]
    pub fn new(layer: MoeLinear) -> Self {
        Self { layer }
    }
}

/// The type of activations that the kernels of an engine take as they are.
fn dtype(engine: &Engine) -> DType {
    crate::engine::dtype(engine.half().float())
}

/// The error for an operation that these weights do not have.
fn refused<T>(operation: &str, required: &str) -> Result<T> {
    Err(shape(format!("`{operation}` of a layer in four bits"), required, "called"))
}

/// Quantising a layer that is quantised leaves it as it is where nothing else is asked for.
fn requantized(
    layer: Arc<dyn QuantMethod>,
    asked: Option<IsqType>,
    device: &Device,
    own: &Device,
) -> Result<Arc<dyn QuantMethod>> {
    if let Some(asked) = asked {
        return Err(shape("type of quantising in place", "none: it is in four bits", asked));
    }
    if !device.same_device(own) {
        let required = format!("{:?}, where the layer was made", own.location());
        return Err(shape("device of quantising in place", required, device.location()));
    }
    Ok(layer)
}

impl QuantMethod for PackedLinear {
    fn new(_method: QuantMethodConfig) -> Result<Self> {
        refused("QuantMethod::new", "not called: `PackedLinear::new` makes it of a `Linear`")
    }

    fn dequantize_w(&self) -> Result<Tensor> {
        let Some(weight) = &self.kept else {
            return refused("dequantize_w", "made by `PackedLinear::keeping`");
        };
        let (rows, columns) = (weight.dims().rows(), weight.dims().cols());
        let values = weight.dequantize().map_err(wrap)?;
        let engine = self.layer.engine();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu)?
            .to_dtype(dtype(engine))?
            .to_device(engine.device())
    }

    fn forward(&self, a: &Tensor) -> Result<Tensor> {
        Module::forward(&self.layer, a)
    }

    fn quantized_act_type(&self) -> Option<DType> {
        None
    }

    fn dtype_and_device(&self) -> (DType, Device) {
        (dtype(self.layer.engine()), self.layer.engine().device().clone())
    }

    fn add_delta_w(&self, _delta: &Tensor) -> Result<Arc<dyn QuantMethod>> {
        refused("add_delta_w", "not called: a sum is not in four bits")
    }

    fn apply_isq(
        self: Arc<Self>,
        asked: Option<IsqType>,
        device: Device,
        _quantized: &AtomicUsize,
        _imatrix_weight: Option<Vec<f32>>,
        _guard: QuantizeOntoGuard,
    ) -> Result<Arc<dyn QuantMethod>> {
        requantized(self.clone(), asked, &device, self.layer.engine().device())
    }
}

impl QuantizedSerde for PackedLinear {
    fn name(&self) -> &'static str {
        "nvfp4-linear"
    }
}

impl QuantMethod for PackedExperts {
    fn new(_method: QuantMethodConfig) -> Result<Self> {
        refused("QuantMethod::new", "not called: `PackedExperts::new` makes it of a `MoeLinear`")
    }

    fn dequantize_w(&self) -> Result<Tensor> {
        refused("dequantize_w", "not called: experts are kept where they are multiplied")
    }

    fn forward(&self, _a: &Tensor) -> Result<Tensor> {
        refused("forward", "`gather_forward`, as it has a matrix for each expert")
    }

    /// `a` is `[tokens, K]`, `[tokens, 1, K]` or `[tokens, top-k, K]`, and `indices` is `[tokens, top-k]`; or, as mistral.rs
    /// has them on some devices, `[texts, tokens, 1, 1, K]` and `[texts, tokens, top-k]`.
    fn gather_forward(&self, a: &Tensor, indices: &Tensor) -> Result<Tensor> {
        match (a.dims(), indices.dims()) {
            (&[texts, tokens, 1, 1, k], &[of_texts, of_tokens, chosen])
                if [texts, tokens] == [of_texts, of_tokens] =>
            {
                let rows = texts * tokens;
                let (a, ids) = (a.reshape((rows, 1, k))?, indices.reshape((rows, chosen))?);
                self.layer.gather_forward(&a, &ids)?.reshape((texts, tokens, chosen, ()))
            }
            _ => self.layer.gather_forward(a, indices),
        }
    }

    fn quantized_act_type(&self) -> Option<DType> {
        None
    }

    fn dtype_and_device(&self) -> (DType, Device) {
        (dtype(self.layer.engine()), self.layer.engine().device().clone())
    }

    fn add_delta_w(&self, _delta: &Tensor) -> Result<Arc<dyn QuantMethod>> {
        refused("add_delta_w", "not called: a sum is not in four bits")
    }

    fn apply_isq(
        self: Arc<Self>,
        asked: Option<IsqType>,
        device: Device,
        _quantized: &AtomicUsize,
        _imatrix_weight: Option<Vec<f32>>,
        _guard: QuantizeOntoGuard,
    ) -> Result<Arc<dyn QuantMethod>> {
        requantized(self.clone(), asked, &device, self.layer.engine().device())
    }
}

impl QuantizedSerde for PackedExperts {
    fn name(&self) -> &'static str {
        "nvfp4-experts"
    }
}
