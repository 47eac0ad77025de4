//! A whole mixture of gated experts.

use std::sync::Arc;
use std::thread::{self, ThreadId};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, D, DType, Layout, Result, Shape, Tensor};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, HalfMatrix, WeightForm};
use nvfp4::moe::{MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeShape, TokenFormat};
use nvfp4::tensor::Dims;
use nvfp4::{FloatType, floats};

use crate::engine::{Activations, kept, lock};
use crate::error::{shape, wrap};
use crate::strided;
use crate::weights::{Weights, upload_floats};
use crate::{Engine, MoeLinear};

/// The weighted sum of the results of each token's experts:
/// `y[t] = sum over j of weights[t, j] (act(gate x[t]) * (up x[t])) Wd^T + bd`, of the expert `ids[t, j]`.
///
/// | tensor | shape | type |
/// | --- | --- | --- |
/// | `x`, `y`, what is added | `[T, H]` | f32, f16, bf16 |
/// | `ids` | `[T, top-k]` | u8, u32, i32, i64 |
/// | `weights` | `[T, top-k]` | f32 |
///
/// It takes fewer launches than two [`MoeLinear`] and the sum: the results of an expert are never put back in the order of the
/// choices. Layers of the same sizes and engine share the memory between the products. It is a [`CustomOp3`] of `x`, `ids` and
/// `weights`. An id that is no expert's is an error of the reference, and NaN of the kernels. Clones share the weights.
#[derive(Clone, Debug)]
pub struct MoeMlp {
    gate_up: MoeLinear,
    down: MoeLinear,
    activation: Activation,
}

/// A layer as planned, with the memory of its launches.
pub(crate) struct Planned {
    key: Key,
    layer: MoeLayer,
    memory: MoeMemory,
}

impl std::fmt::Debug for Planned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Planned({:?})", self.key)
    }
}

/// The properties that a plan depends on, and the thread on whose stream its memory is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    thread: ThreadId,
    tokens: usize,
    top_k: usize,
    experts: usize,
    forms: [WeightForm; 2],
    activation: Activation,
    output: FloatType,
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: usize,
    top_k: usize,
    hidden: usize,
}

impl MoeMlp {
    /// A layer of the experts' [gated](MoeLinear::gated) projections and of those down.
    ///
    /// # Errors
    /// For projections that are not gated, or gated ones down; for other numbers of experts or sizes; and for two engines.
    pub fn new(gate_up: MoeLinear, down: MoeLinear) -> Result<Self> {
        let activation = match [gate_up.gate(), down.gate()] {
            [Some(gate), None] => gate.activation,
            [None, _] => return Err(shape("projections to the activation", "gated", "not gated")),
            [_, Some(_)] => return Err(shape("projections behind it", "not gated", "gated")),
        };
        for (what, found, required) in [
            ("experts of the projections down", down.experts(), gate_up.experts()),
            ("inputs of the projections down", down.in_features(), gate_up.out_features()),
            ("outputs of the projections down", down.out_features(), gate_up.in_features()),
        ] {
            if found != required {
                return Err(shape(what, required.to_string(), found));
            }
        }
        if !Arc::ptr_eq(gate_up.engine(), down.engine()) {
            return Err(shape("engine of the projections down", "that of the others", "another"));
        }
        Ok(Self { gate_up, down, activation })
    }

    /// The result for `x`.
    ///
    /// # Errors
    /// For other shapes and types than the table says, and tensors on another device.
    pub fn forward(&self, x: &Tensor, ids: &Tensor, weights: &Tensor) -> Result<Tensor> {
        x.apply_op3_no_bwd(ids, weights, &Op { layer: self, added: None }).map(kept)
    }

    /// The result for `x` plus `added`, which has its shape and type: the sum is rounded once.
    ///
    /// # Errors
    /// The same as [`forward`](Self::forward)'s, and for another shape or type of `added`.
    pub fn forward_add(
        &self,
        x: &Tensor,
        ids: &Tensor,
        weights: &Tensor,
        added: &Tensor,
    ) -> Result<Tensor> {
        if added.shape() != x.shape() || added.dtype() != x.dtype() {
            let required = format!("{:?} of {}", x.dims(), x.dtype().as_str());
            let actual = (added.dims(), added.dtype().as_str());
            return Err(shape("what is added", required, actual));
        }
        x.apply_op3_no_bwd(ids, weights, &Op { layer: self, added: Some(added) }).map(kept)
    }

    fn engine(&self) -> &Engine {
        self.gate_up.engine()
    }

    fn sizes(&self, x: &Layout, ids: &Layout, (weights, dtype): (&Layout, DType)) -> Result<Sizes> {
        let hidden = self.gate_up.in_features();
        let [tokens, top_k] = *ids.dims() else {
            return Err(shape("shape of the ids", "[tokens, choices]", ids.dims()));
        };
        if tokens * top_k == 0 {
            return Err(shape("shape of the ids", "no 0", ids.dims()));
        }
        if x.dims() != [tokens, hidden] {
            let required = format!("[{tokens}, {hidden}]");
            return Err(shape("shape of the activations", required, x.dims()));
        }
        if weights.dims() != ids.dims() {
            let required = format!("[{tokens}, {top_k}]");
            return Err(shape("shape of the weights", required, weights.dims()));
        }
        if dtype != DType::F32 {
            return Err(shape("type of the weights", "f32", dtype.as_str()));
        }
        Ok(Sizes { tokens, top_k, hidden })
    }

    /// Queues the layer: `x` has 16-bit elements.
    fn launch(
        &self,
        Sizes { tokens, top_k, hidden: _ }: Sizes,
        inputs: &MoeInputs<'_>,
        y: &DeviceBuffer,
        output: FloatType,
    ) -> nvfp4::Result<()> {
        let (
            Weights::Device { kernels, weights: first, bias },
            Weights::Device { kernels: _, weights: second, bias: down },
        ) = (self.gate_up.weights(), self.down.weights())
        else {
            unreachable!("only engines with kernels launch")
        };
        let (engine, experts) = (self.engine(), self.gate_up.experts());
        let key = Key {
            thread: thread::current().id(),
            tokens,
            top_k,
            experts,
            forms: [first.form(), second.form()],
            activation: self.activation,
            output,
        };
        let mut plans = lock(&engine.memory.mixtures);
        let planned = plans.get(
            &engine.memory,
            |planned| planned.key == key,
            || {
                let half = engine.half();
                let quantized = match engine.activations() {
                    Activations::Halves => None,
                    Activations::Fp8 => Some(TokenFormat::Fp8),
                };
                let options = MoeOptions::new().activation(self.activation).output(output);
                let options = options.rows(half.float()).quantized(quantized);
                let options = options.adding(engine.adding);
                let of = MoeShape { tokens, top_k, experts, first: 0, count: experts };
                let layer = MoeLayer::new(kernels, of, first, second, half, &options)?;
                let memory = layer.memory()?;
                Ok::<_, nvfp4::Error>(Planned { key, layer, memory })
            },
        )?;
        let Planned { key: _, layer, memory } = planned;
        let [gate, up] = bias.halves();
        let [down, _] = down.halves();
        layer.launch(inputs, [first, second], memory, y, MoeBiases { gate, up, down })
    }

    fn emulate(
        &self,
        kernels: &Kernels,
        sizes: Sizes,
        x: &[f32],
        ids: &[u32],
        weights: &[f32],
        added: Option<&[f32]>,
    ) -> nvfp4::Result<Vec<f32>> {
        let (device, half) = (kernels.device(), self.engine().half());
        let Sizes { tokens, top_k: _, hidden } = sizes;
        let x = HalfMatrix::round("activations", Dims::new(1, tokens, hidden)?, half, x)?;
        let x = DeviceBuffer::upload(device, "activations", x.bytes())?;
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let ids = DeviceBuffer::upload(device, "ids", &ids)?;
        let weights = upload_floats(device, "weights", weights)?;
        let added = added.map(|added| upload_floats(device, "what is added", added)).transpose()?;
        let y = DeviceBuffer::poisoned(device, "result", tokens * hidden * size_of::<f32>())?;
        let inputs =
            MoeInputs { activations: &x, ids: &ids, weights: &weights, shared: added.as_ref() };
        self.launch(sizes, &inputs, &y, FloatType::F32)?;
        Ok(floats::decode(FloatType::F32, &y.read()?))
    }

    /// The result of the reference, on the CPU in f32.
    fn on_host(&self, x: &Tensor, ids: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let between = self.gate_up.gather_forward(x, ids)?;
        let rows = self.down.gather_forward(&between, ids)?;
        rows.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?.sum(1)
    }
}

/// A layer with what is added, as an operation of candle.
struct Op<'a> {
    layer: &'a MoeMlp,
    added: Option<&'a Tensor>,
}

impl CustomOp3 for Op<'_> {
    fn name(&self) -> &'static str {
        "nvfp4-moe-mlp"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        ids: &CpuStorage,
        ids_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dtype = |storage: &CpuStorage| candle_core::backend::BackendStorage::dtype(storage);
        let sizes = self.layer.sizes(x_layout, ids_layout, (weights_layout, dtype(weights)))?;
        let dtype = dtype(x);
        let (x, weights) =
            (strided::floats(x, x_layout)?, strided::floats(weights, weights_layout)?);
        let ids = strided::indices(ids, ids_layout)?;
        let added =
            self.added.map(|added| added.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>());
        let added = added.transpose()?;
        let Sizes { tokens, top_k, hidden } = sizes;
        let values = match self.layer.gate_up.weights() {
            Weights::Reference { .. } => {
                let cpu = &candle_core::Device::Cpu;
                let x = Tensor::from_vec(x, (tokens, hidden), cpu)?;
                let ids = Tensor::from_vec(ids, (tokens, top_k), cpu)?;
                let weights = Tensor::from_vec(weights, (tokens, top_k), cpu)?;
                let mut values: Vec<f32> =
                    self.layer.on_host(&x, &ids, &weights)?.flatten_all()?.to_vec1()?;
                let added = values.iter_mut().zip(added.unwrap_or_default());
                added.for_each(|(value, added)| *value += added);
                values
            }
            Weights::Device { kernels, .. } => {
                self.layer.engine().require_cpu()?;
                let added = added.as_deref();
                self.layer.emulate(kernels, sizes, &x, &ids, &weights, added).map_err(wrap)?
            }
        };
        Ok((strided::storage(values, dtype)?, x_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        ids: &CudaStorage,
        ids_layout: &Layout,
        weights: &CudaStorage,
        weights_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use candle_core::Storage;

        let dtype = candle_core::backend::BackendStorage::dtype(weights);
        let sizes = self.layer.sizes(x_layout, ids_layout, (weights_layout, dtype))?;
        let engine = self.layer.engine();
        let halves = crate::cuda::Halves::of(x, x_layout, engine)?;
        let ids = crate::cuda::Ids::of(ids, ids_layout)?;
        let added = self.added.map(Tensor::storage_and_layout);
        let added = match &added {
            None => None,
            Some((storage, layout)) => match &**storage {
                Storage::Cuda(storage) => Some((storage, *layout)),
                Storage::Cpu(_) | Storage::Metal(_) => {
                    return Err(shape("place of what is added", "a GPU", "another"));
                }
            },
        };
        let elements = sizes.tokens * sizes.hidden;
        let storage = crate::cuda::result(engine, x, elements, |y, output| {
            halves.lend(engine, |activations| {
                ids.lend(engine, |ids| {
                    crate::cuda::lend(engine, weights, weights_layout, |weights| {
                        let run = |shared: Option<&DeviceBuffer>| {
                            let inputs = MoeInputs { activations, ids, weights, shared };
                            Ok(self.layer.launch(sizes, &inputs, y, output)?)
                        };
                        match added {
                            Some((storage, layout)) => {
                                crate::cuda::lend(engine, storage, layout, |added| run(Some(added)))
                            }
                            None => run(None),
                        }
                    })
                })
            })
        })?;
        Ok((storage, x_layout.shape().clone()))
    }
}
