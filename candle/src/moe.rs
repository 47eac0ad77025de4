//! Matrices of experts, of which each token takes those that it chose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    ActivationBuffers, ChosenRows, Gemm, GroupBuffers, Grouping, HalfMatrix, ResultBuffers,
};
use nvfp4::moe::{CombineTypes, MoeShape, Routes, Routing};
use nvfp4::tensor::Blocks;
use nvfp4::tensor::Dims;
use nvfp4::{FloatType, floats};

use crate::engine::{Activations, Engine, kept, lock};
use crate::error::{shape, wrap};
use crate::strided;
use crate::weights::{Gate, Sizes, Weights, bring, reference};

/// Plans with their memory that a layer keeps.
const PLANS: usize = 16;

/// Products with the matrix of each choice: `y[t, j] = x[t] W[ids[t, j]]^T + b[ids[t, j]]`, or those of a gate and of up with
/// the activation between them.
///
/// | tensor | shape | type |
/// | --- | --- | --- |
/// | `x` | `[T, K]` or `[T, 1, K]`, or `[T, top-k, K]` with its own row for each choice | f32, f16, bf16 |
/// | `ids` | `[T, top-k]` | u8, u32, i32, i64 |
/// | `y` | `[T, top-k, N]` | that of `x` |
///
/// This is what the experts' layers of an engine need, `QuantMethod::gather_forward` of mistral.rs for one;
/// [`MoeMlp`](crate::MoeMlp) is a whole mixture in fewer launches. It is a [`CustomOp2`] of `x` and `ids`.
/// An id that is no expert's is an error of the reference, and NaN of the kernels. Clones share the weights.
#[derive(Clone, Debug)]
pub struct MoeLinear {
    layer: Arc<Layer>,
}

#[derive(Debug)]
struct Layer {
    engine: Arc<Engine>,
    weights: Weights,
    sizes: Sizes,
    gate: Option<Gate>,
    plans: Mutex<HashMap<(ThreadId, Rows, FloatType), Planned>>,
}

/// The steps for some choices, with memory on the stream of a thread.
#[derive(Debug)]
struct Planned {
    routing: Routing,
    gemm: Gemm,
    routes: Routes,
    /// Rows in the order of experts, unless rows [choose](Rows::choose).
    gathered: Option<DeviceBuffer>,
    rows: DeviceBuffer,
    ones: DeviceBuffer,
}

/// Tokens and choices of each, and whether each choice has a row of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choices {
    tokens: usize,
    top_k: usize,
    own_rows: bool,
}

impl Choices {
    fn count(self) -> usize {
        self.tokens * self.top_k
    }

    /// The rows of these choices. One token's choose their experts' matrices themselves: its experts usually
    /// differ, and then bringing rows of the same expert together spares nothing. Kernels take such rows in 16 bits alone.
    fn rows(self, experts: usize, activations: Activations) -> Rows {
        let is_one = self.tokens == 1 && self.top_k <= experts;
        Rows { count: self.count(), choose: is_one && activations == Activations::Halves }
    }
}

/// Rows of a product, one for each choice: what a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rows {
    count: usize,
    /// Whether they choose their experts' matrices themselves, and are not ordered by expert.
    choose: bool,
}

impl MoeLinear {
    /// A layer of matrices `[N, K]`, one for each expert, and biases `[experts, N]`.
    ///
    /// # Errors
    /// For no experts, and for other or different sizes or formats.
    pub fn new(engine: &Arc<Engine>, experts: &[Blocks], bias: Option<&Tensor>) -> Result<Self> {
        Self::with_gate(engine, experts, bias, None)
    }

    /// A layer of matrices `[2 N, K]` with the rows of a gate and of up, one for each expert, and biases `[experts, 2 N]` in the
    /// same order.
    ///
    /// # Errors
    /// The same as [`new`](Self::new), and for an odd number of rows.
    pub fn gated(
        engine: &Arc<Engine>,
        experts: &[Blocks],
        bias: Option<&Tensor>,
        gate: Gate,
    ) -> Result<Self> {
        Self::with_gate(engine, experts, bias, Some(gate))
    }

    fn with_gate(
        engine: &Arc<Engine>,
        experts: &[Blocks],
        bias: Option<&Tensor>,
        gate: Option<Gate>,
    ) -> Result<Self> {
        let (weights, sizes) = bring(engine, experts, bias, gate)?;
        let (engine, plans) = (engine.clone(), Mutex::default());
        Ok(Self { layer: Arc::new(Layer { engine, weights, sizes, gate, plans }) })
    }

    /// Experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.layer.sizes.matrices
    }

    /// K.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.layer.sizes.k
    }

    /// N.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.layer.sizes.n
    }

    /// The engine that computes.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.layer.engine
    }

    /// The gate, if the layer is gated.
    #[must_use]
    pub fn gate(&self) -> Option<Gate> {
        self.layer.gate
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.layer.weights
    }

    /// The products `y`.
    ///
    /// # Errors
    /// For other shapes and types than the table says, and tensors on another device.
    pub fn gather_forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        x.apply_op2_no_bwd(ids, self).map(kept)
    }

    fn shapes(&self, x: &Layout, ids: &Layout) -> Result<(Choices, Shape)> {
        let Sizes { n, k, .. } = self.layer.sizes;
        let [tokens, top_k] = *ids.dims() else {
            return Err(shape("shape of the ids", "[tokens, choices]", ids.dims()));
        };
        let own_rows = match *x.dims() {
            [rows, columns] | [rows, 1, columns] if rows == tokens && columns == k => false,
            [rows, each, columns] if [rows, each, columns] == [tokens, top_k, k] => true,
            _ => {
                let required =
                    format!("[{tokens}, {k}], [{tokens}, 1, {k}] or [{tokens}, {top_k}, {k}]");
                return Err(shape("shape of the activations", required, x.dims()));
            }
        };
        if tokens * top_k == 0 {
            return Err(shape("shape of the ids", "no 0", ids.dims()));
        }
        Ok((Choices { tokens, top_k, own_rows }, Shape::from((tokens, top_k, n))))
    }

    /// The products of rows by expert, on the host.
    fn on_host(&self, x: &[f32], ids: &[u32], choices: Choices) -> Result<Vec<f32>> {
        let Sizes { matrices, n, k } = self.layer.sizes;
        let Weights::Reference { dense, bias } = &self.layer.weights else {
            unreachable!("only the reference computes on the host")
        };
        let mut result = vec![0f32; choices.count() * n];
        for (expert, dense) in dense.iter().enumerate() {
            let chosen: Vec<usize> =
                (0..ids.len()).filter(|&choice| ids[choice] as usize == expert).collect();
            if chosen.is_empty() {
                continue;
            }
            let row = |choice: usize| {
                let row = if choices.own_rows { choice } else { choice / choices.top_k };
                &x[row * k..][..k]
            };
            let rows: Vec<f32> = chosen.iter().flat_map(|&choice| row(choice)).copied().collect();
            let bias = bias.as_ref().map(|bias| bias.get(expert)).transpose()?;
            let product = reference(rows, dense, bias.as_ref(), self.layer.gate)?;
            for (choice, values) in chosen.into_iter().zip(product.chunks_exact(n)) {
                result[choice * n..][..n].copy_from_slice(values);
            }
        }
        match ids.iter().find(|&&id| id as usize >= matrices) {
            Some(id) => Err(shape("an id", format!("below {matrices}, the experts"), id)),
            None => Ok(result),
        }
    }

    fn planned(
        &self,
        kernels: &Kernels,
        Rows { count, choose }: Rows,
        output: FloatType,
    ) -> nvfp4::Result<Planned> {
        let Sizes { matrices, n, k } = self.layer.sizes;
        let Weights::Device { weights, .. } = &self.layer.weights else {
            unreachable!("weights of an engine with kernels are on its device")
        };
        let device = kernels.device();
        // Each choice becomes a token, so that results of choices are not added up.
        let shape =
            MoeShape { tokens: count, top_k: 1, experts: matrices, first: 0, count: matrices };
        let routing = Routing::new(kernels, shape)?;
        let grouping = if choose {
            let experts = matrices;
            Grouping::Chosen(ChosenRows { rows: count, shared: false, experts, first: 0 })
        } else {
            Grouping::Contiguous { bound: count }
        };
        let kind = self.layer.engine.kind();
        let gathered = (!choose).then(|| DeviceBuffer::zeroed(device, "gathered", count * k * 2));
        let options = Gate::options(self.layer.gate).output(output);
        let options = options.adding(self.layer.engine.adding);
        let ones: Vec<u8> = (0..count).flat_map(|_| 1f32.to_le_bytes()).collect();
        Ok(Planned {
            gemm: Gemm::grouped(kernels, weights, grouping, kind, &options)?,
            routes: routing.routes()?,
            gathered: gathered.transpose()?,
            rows: DeviceBuffer::zeroed(device, "rows", count * n * output.bytes() as usize)?,
            ones: DeviceBuffer::upload(device, "ones", &ones)?,
            routing,
        })
    }

    /// Queues all steps: `x` has 16-bit elements, a row for each choice.
    fn launch(
        &self,
        choices: Choices,
        [x, ids, y]: [&DeviceBuffer; 3],
        output: FloatType,
    ) -> nvfp4::Result<()> {
        let Weights::Device { kernels, weights, bias } = &self.layer.weights else {
            unreachable!("only engines with kernels launch")
        };
        let mut plans = lock(&self.layer.plans);
        let of_choices = choices.rows(self.layer.sizes.matrices, self.layer.engine.activations());
        let key = (thread::current().id(), of_choices, output);
        let planned = match plans.remove(&key) {
            Some(planned) => planned,
            None => self.planned(kernels, of_choices, output)?,
        };
        if plans.len() >= PLANS {
            self.layer.engine.memory.retire(std::mem::take(&mut *plans));
        }
        let Planned { routing, gemm, routes, gathered, rows, ones } =
            plans.entry(key).or_insert(planned);
        let Sizes { n, k, .. } = self.layer.sizes;
        let (x, counts) = match gathered {
            Some(gathered) => {
                routing.route(ids, routes)?;
                routing.gather(x, routes, gathered, k)?;
                (&*gathered, &routes.offsets)
            }
            None => (x, ids),
        };
        let mut groups = GroupBuffers::of(counts);
        groups.status = Some(&routes.status);
        groups.own_vectors = true;
        let vectors = bias.vectors();
        let bytes = gemm.workspace_bytes();
        self.layer.engine.with_workspace(kernels, bytes, |workspace| {
            let (x, y) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(rows));
            gemm.launch_grouped(groups, x, weights, y, workspace, vectors)
        })?;
        let types = (n, CombineTypes { rows: output, result: output, shared: output });
        match gathered {
            Some(_) => routing.combine(rows, routes, ones, None, y, types),
            None => routing.combine_choices(rows, (ids, routes), ones, None, y, types),
        }
    }

    fn emulate(
        &self,
        kernels: &Kernels,
        x: &[f32],
        ids: &[u32],
        choices: Choices,
    ) -> nvfp4::Result<Vec<f32>> {
        let Sizes { n, k, .. } = self.layer.sizes;
        let (device, count) = (kernels.device(), choices.count());
        let repeated: Vec<f32> = match choices.own_rows {
            true => x.to_vec(),
            false => x.chunks_exact(k).flat_map(|row| row.repeat(choices.top_k)).collect(),
        };
        let half = self.layer.engine.half();
        let x = HalfMatrix::round("activations", Dims::new(1, count, k)?, half, &repeated)?;
        let x = DeviceBuffer::upload(device, "activations", x.bytes())?;
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let ids = DeviceBuffer::upload(device, "ids", &ids)?;
        let y = DeviceBuffer::poisoned(device, "result", count * n * size_of::<f32>())?;
        self.launch(choices, [&x, &ids, &y], FloatType::F32)?;
        Ok(floats::decode(FloatType::F32, &y.read()?))
    }
}

impl CustomOp2 for MoeLinear {
    fn name(&self) -> &'static str {
        "nvfp4-moe-linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        ids: &CpuStorage,
        ids_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (choices, result) = self.shapes(x_layout, ids_layout)?;
        let dtype = candle_core::backend::BackendStorage::dtype(x);
        let x = strided::floats(x, x_layout)?;
        let ids = strided::indices(ids, ids_layout)?;
        let values = match &self.layer.weights {
            Weights::Reference { .. } => self.on_host(&x, &ids, choices)?,
            Weights::Device { kernels, .. } => {
                self.layer.engine.require_cpu()?;
                self.emulate(kernels, &x, &ids, choices).map_err(wrap)?
            }
        };
        Ok((strided::storage(values, dtype)?, result))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        ids: &CudaStorage,
        ids_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (choices, result) = self.shapes(x_layout, ids_layout)?;
        let engine = &self.layer.engine;
        let Sizes { n, k, .. } = self.layer.sizes;
        let (tokens, top_k, count) = (choices.tokens, choices.top_k, choices.count());
        let rows = match (choices.own_rows, x_layout.dims().len()) {
            (true, _) => x_layout.clone(),
            (false, 3) => x_layout.broadcast_as((tokens, top_k, k))?,
            (false, _) => {
                let mut stride = x_layout.stride().to_vec();
                stride.insert(1, 0);
                Layout::new(Shape::from((tokens, top_k, k)), stride, x_layout.start_offset())
            }
        };
        let halves = crate::cuda::Halves::of(x, &rows, engine)?;
        let ids = crate::cuda::Ids::of(ids, ids_layout)?;
        let storage = crate::cuda::result(engine, x, count * n, |y, output| {
            halves.lend(engine, |x| {
                ids.lend(engine, |ids| Ok(self.launch(choices, [x, ids, y], output)?))
            })
        })?;
        Ok((storage, result))
    }
}
