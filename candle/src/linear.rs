//! A linear layer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp2, Layout, Module, Result, Shape, Tensor,
};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{ActivationBuffers, Gemm, HalfMatrix, Residual, ResultBuffers, Vectors};
use nvfp4::tensor::Blocks;
use nvfp4::tensor::Dims;
use nvfp4::{FloatType, floats};

use crate::engine::{Engine, kept, lock};
use crate::error::{shape, wrap};
use crate::strided;
use crate::weights::{Gate, Sizes, Weights, bring, reference, upload_floats};

/// Plans that a layer keeps, one for each number of tokens and type of result.
const PLANS: usize = 64;

/// `y = x W^T + b` with `W` in NVFP4 or MXFP4, for `x` of any rank with K columns, in f32, f16 or bf16.
/// `y` has the type of `x`.
///
/// A [gated](Self::gated) layer makes `act(x Wg^T + bg) * (x Wu^T + bu)` in one launch.
///
/// It is, as an operation of candle, a [`CustomOp1`] of `x`, a [`CustomOp2`] of `x` and what is [added](Self::forward_add), and an
/// [`InplaceOp2`] that writes an existing `y`, for graphs. Any layout of `x` will do: elements that do not follow each other, or do not begin at a
/// multiple of 16 bytes on a GPU, are copied first. There are no gradients. Clones share the weights.
#[derive(Clone, Debug)]
pub struct Linear {
    layer: Arc<Layer>,
}

#[derive(Debug)]
struct Layer {
    engine: Arc<Engine>,
    weights: Weights,
    sizes: Sizes,
    gate: Option<Gate>,
    plans: Mutex<HashMap<(usize, FloatType), Arc<Gemm>>>,
}

/// The addend of the results before they are rounded.
type Added<'a> = Option<Residual<'a>>;

impl Linear {
    /// A layer of a matrix `[N, K]` and a bias `[N]`.
    ///
    /// # Errors
    /// For other sizes; where the engine's kernels do not take the weights, MXFP4 with f16 for example.
    pub fn new(engine: &Arc<Engine>, weight: &Blocks, bias: Option<&Tensor>) -> Result<Self> {
        Self::with_gate(engine, weight, bias, None)
    }

    /// A layer of a matrix `[2 N, K]` with the rows of a gate and of up, and a bias `[2 N]` in the same order.
    ///
    /// # Errors
    /// The same as [`new`](Self::new), and for an odd number of rows.
    pub fn gated(
        engine: &Arc<Engine>,
        weight: &Blocks,
        bias: Option<&Tensor>,
        gate: Gate,
    ) -> Result<Self> {
        Self::with_gate(engine, weight, bias, Some(gate))
    }

    fn with_gate(
        engine: &Arc<Engine>,
        weight: &Blocks,
        bias: Option<&Tensor>,
        gate: Option<Gate>,
    ) -> Result<Self> {
        let (weights, sizes) = bring(engine, std::slice::from_ref(weight), bias, gate)?;
        let (engine, plans) = (engine.clone(), Mutex::default());
        Ok(Self { layer: Arc::new(Layer { engine, weights, sizes, gate, plans }) })
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

    /// `y`, of the shape and type that [`forward`](Module::forward) returns, becomes the result for `x`.
    /// On a GPU `y` is contiguous.
    ///
    /// # Errors
    /// As `forward`'s, and for another shape or type of `y`.
    pub fn forward_into(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        y.inplace_op2(x, self)
    }

    /// The result for `x` plus `added`, which has its shape and type: the sum is rounded once.
    ///
    /// # Errors
    /// The same as `forward`'s, and for another shape or type of `added`.
    pub fn forward_add(&self, x: &Tensor, added: &Tensor) -> Result<Tensor> {
        x.apply_op2_no_bwd(added, self).map(kept)
    }

    /// Rows of `x`, and the shape of the result.
    fn shapes(&self, layout: &Layout) -> Result<(usize, Shape)> {
        let Sizes { n, k, .. } = self.layer.sizes;
        let (mut dims, elements) = (layout.dims().to_vec(), layout.shape().elem_count());
        match dims.last_mut() {
            Some(last) if *last == k && elements > 0 => *last = n,
            _ => {
                return Err(shape(
                    "shape of the activations",
                    format!("[.., {k}], no 0"),
                    layout.dims(),
                ));
            }
        }
        Ok((elements / k, Shape::from(dims)))
    }

    /// The product of so many rows, planned once.
    fn plan(&self, kernels: &Kernels, rows: usize, output: FloatType) -> nvfp4::Result<Arc<Gemm>> {
        let Weights::Device { weights, .. } = &self.layer.weights else {
            unreachable!("weights of an engine with kernels are on its device")
        };
        let mut plans = lock(&self.layer.plans);
        if let Some(plan) = plans.get(&(rows, output)) {
            return Ok(plan.clone());
        }
        let options = Gate::options(self.layer.gate).output(output);
        let options = options.adding(self.layer.engine.adding);
        let kind = self.layer.engine.kind();
        let plan = Arc::new(Gemm::new(kernels, weights, [1, rows], kind, &options)?);
        if plans.len() >= PLANS {
            self.layer.engine.memory.retire(std::mem::take(&mut *plans));
        }
        plans.insert((rows, output), plan.clone());
        Ok(plan)
    }

    /// Queues the product of `x`, 16-bit elements, into `y`.
    fn launch(
        &self,
        rows: usize,
        x: &DeviceBuffer,
        y: &DeviceBuffer,
        output: FloatType,
        added: Added<'_>,
    ) -> nvfp4::Result<()> {
        let Weights::Device { kernels, weights, bias } = &self.layer.weights else {
            unreachable!("only engines with kernels launch")
        };
        let plan = self.plan(kernels, rows, output)?;
        let vectors = Vectors { residual: added, ..bias.vectors() };
        let (x, y) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(y));
        let bytes = plan.workspace_bytes();
        self.layer.engine.with_workspace(kernels, bytes, |workspace| {
            plan.launch(x, weights, y, workspace, vectors)
        })
    }

    /// The values of the result for a tensor on the CPU, and for what is added to them.
    fn on_cpu(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
        rows: usize,
        added: Option<&[f32]>,
    ) -> Result<Vec<f32>> {
        let x = strided::floats(storage, layout)?;
        match &self.layer.weights {
            Weights::Reference { dense, bias } => {
                let mut values = reference(x, &dense[0], bias.as_ref(), self.layer.gate)?;
                let added = values.iter_mut().zip(added.unwrap_or_default());
                added.for_each(|(value, added)| *value += added);
                Ok(values)
            }
            Weights::Device { kernels, .. } => {
                self.layer.engine.require_cpu()?;
                self.emulate(kernels, rows, &x, added).map_err(wrap)
            }
        }
    }

    fn emulate(
        &self,
        kernels: &Kernels,
        rows: usize,
        x: &[f32],
        added: Option<&[f32]>,
    ) -> nvfp4::Result<Vec<f32>> {
        let Sizes { n, k, .. } = self.layer.sizes;
        let (device, half) = (kernels.device(), self.layer.engine.half());
        let x = HalfMatrix::round("activations", Dims::new(1, rows, k)?, half, x)?;
        let x = DeviceBuffer::upload(device, "activations", x.bytes())?;
        let y = DeviceBuffer::poisoned(device, "result", rows * n * size_of::<f32>())?;
        let added = added.map(|added| upload_floats(device, "what is added", added));
        let added = added.transpose()?;
        let added = added.as_ref().map(|added| Residual::of(added, FloatType::F32));
        self.launch(rows, &x, &y, FloatType::F32, added)?;
        Ok(floats::decode(FloatType::F32, &y.read()?))
    }
}

impl Module for Linear {
    /// # Errors
    /// For activations that do not have K columns, have another type, or are on another device.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self).map(kept)
    }
}

/// Candle's name for the operation.
const NAME: &str = "nvfp4-linear";

impl CustomOp1 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, result) = self.shapes(layout)?;
        let dtype = candle_core::backend::BackendStorage::dtype(storage);
        Ok((strided::storage(self.on_cpu(storage, layout, rows, None)?, dtype)?, result))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (rows, result) = self.shapes(layout)?;
        let x = crate::cuda::Halves::of(storage, layout, &self.layer.engine)?;
        let n = self.layer.sizes.n;
        let result_of = crate::cuda::result(&self.layer.engine, storage, rows * n, |y, output| {
            x.lend(&self.layer.engine, |x| Ok(self.launch(rows, x, y, output, None)?))
        })?;
        Ok((result_of, result))
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        added: &CpuStorage,
        added_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dtype = |storage: &CpuStorage| candle_core::backend::BackendStorage::dtype(storage);
        let rows = self.fits("what is added", [dtype(x), dtype(added)], x_layout, added_layout)?;
        let values = strided::floats(added, added_layout)?;
        let values = self.on_cpu(x, x_layout, rows, Some(&values))?;
        Ok((strided::storage(values, dtype(x))?, added_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        added: &CudaStorage,
        added_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let dtype = |storage: &CudaStorage| candle_core::backend::BackendStorage::dtype(storage);
        let rows = self.fits("what is added", [dtype(x), dtype(added)], x_layout, added_layout)?;
        let engine = &self.layer.engine;
        let (halves, n) = (crate::cuda::Halves::of(x, x_layout, engine)?, self.layer.sizes.n);
        let result = crate::cuda::result(engine, x, rows * n, |y, output| {
            halves.lend(engine, |x| {
                crate::cuda::lend(engine, added, added_layout, |added| {
                    let added = Some(Residual::of(added, output));
                    Ok(self.launch(rows, x, y, output, added)?)
                })
            })
        })?;
        Ok((result, added_layout.shape().clone()))
    }
}

impl InplaceOp2 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        y: &mut CpuStorage,
        y_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        let dtype = |storage: &CpuStorage| candle_core::backend::BackendStorage::dtype(storage);
        let rows = self.fits("the result", [dtype(x), dtype(y)], x_layout, y_layout)?;
        strided::scatter(&self.on_cpu(x, x_layout, rows, None)?, y, y_layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        y: &mut CudaStorage,
        y_layout: &Layout,
        x: &CudaStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        let dtype = |storage: &CudaStorage| candle_core::backend::BackendStorage::dtype(storage);
        let rows = self.fits("the result", [dtype(x), dtype(y)], x_layout, y_layout)?;
        let x = crate::cuda::Halves::of(x, x_layout, &self.layer.engine)?;
        crate::cuda::into(&self.layer.engine, y, y_layout, |y, output| {
            x.lend(&self.layer.engine, |x| Ok(self.launch(rows, x, y, output, None)?))
        })
    }
}

impl Linear {
    /// Rows, if `y`, which is `what`, has the shape and type of the result for `x`.
    fn fits(
        &self,
        what: &str,
        [x, y]: [DType; 2],
        x_layout: &Layout,
        y_layout: &Layout,
    ) -> Result<usize> {
        let (rows, result) = self.shapes(x_layout)?;
        if y_layout.shape() != &result {
            let required = format!("{:?}", result.dims());
            return Err(shape(format!("shape of {what}"), required, y_layout.dims()));
        }
        if x != y {
            let required = format!("{}, as the activations", x.as_str());
            return Err(shape(format!("type of {what}"), required, y.as_str()));
        }
        Ok(rows)
    }
}
