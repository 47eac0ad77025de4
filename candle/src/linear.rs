//! A linear layer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    CpuStorage, CustomOp1, DType, InplaceOp2, Layout, Module, Result, Shape, Tensor,
};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{ActivationBuffers, Gemm, GemmOptions, HalfMatrix, ResultBuffers, Vectors};
use nvfp4::tensor::Blocks;
use nvfp4::tensor::Dims;
use nvfp4::{FloatType, floats};

use crate::engine::{Engine, lock};
use crate::error::{shape, wrap};
use crate::strided;
use crate::weights::{Sizes, Weights, bring, reference};

/// Plans that a layer keeps, one for each number of tokens and type of result.
const PLANS: usize = 64;

/// `y = x W^T + b` with `W` in NVFP4 or MXFP4, for `x` of any rank with K columns, in f32, f16 or bf16.
/// `y` has the type of `x`.
///
/// As an operation of candle it is a [`CustomOp1`] of `x`, and an [`InplaceOp2`] that writes an existing
/// `y`, for graphs. Any layout of `x` will do: elements that do not follow each other, or do not begin at a
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
    plans: Mutex<HashMap<(usize, FloatType), Arc<Gemm>>>,
}

impl Linear {
    /// A layer of a matrix `[N, K]` and a bias `[N]`.
    ///
    /// # Errors
    /// For other sizes; where the engine's kernels do not take the weights, MXFP4 with f16 for example.
    pub fn new(engine: &Arc<Engine>, weight: &Blocks, bias: Option<&Tensor>) -> Result<Self> {
        let (weights, sizes) = bring(engine, std::slice::from_ref(weight), bias)?;
        let engine = engine.clone();
        Ok(Self { layer: Arc::new(Layer { engine, weights, sizes, plans: Mutex::default() }) })
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
        let options = GemmOptions::new().output(output).adding(self.layer.engine.adding);
        let kind = self.layer.engine.kind();
        let plan = Arc::new(Gemm::new(kernels, weights, [1, rows], kind, &options)?);
        if plans.len() >= PLANS {
            self.layer.engine.retire(std::mem::take(&mut *plans));
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
    ) -> nvfp4::Result<()> {
        let Weights::Device { kernels, weights, bias } = &self.layer.weights else {
            unreachable!("only engines with kernels launch")
        };
        let plan = self.plan(kernels, rows, output)?;
        let vectors = Vectors { bias: bias.as_ref(), ..Vectors::default() };
        let (x, y) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(y));
        let bytes = plan.workspace_bytes();
        self.layer.engine.with_workspace(kernels, bytes, |workspace| {
            plan.launch(x, weights, y, workspace, vectors)
        })
    }

    /// The values of the result for a tensor on the CPU.
    fn on_cpu(&self, storage: &CpuStorage, layout: &Layout, rows: usize) -> Result<Vec<f32>> {
        let x = strided::floats(storage, layout)?;
        match &self.layer.weights {
            Weights::Reference { dense, bias } => reference(x, &dense[0], bias.as_ref()),
            Weights::Device { kernels, .. } => {
                self.layer.engine.require_cpu()?;
                self.emulate(kernels, rows, &x).map_err(wrap)
            }
        }
    }

    fn emulate(&self, kernels: &Kernels, rows: usize, x: &[f32]) -> nvfp4::Result<Vec<f32>> {
        let Sizes { n, k, .. } = self.layer.sizes;
        let (device, half) = (kernels.device(), self.layer.engine.half());
        let x = HalfMatrix::round("activations", Dims::new(1, rows, k)?, half, x)?;
        let x = DeviceBuffer::upload(device, "activations", x.bytes())?;
        let y = DeviceBuffer::poisoned(device, "result", rows * n * size_of::<f32>())?;
        self.launch(rows, &x, &y, FloatType::F32)?;
        Ok(floats::decode(FloatType::F32, &y.read()?))
    }
}

impl Module for Linear {
    /// # Errors
    /// For activations that do not have K columns, have another type, or are on another device.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
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
        Ok((strided::storage(self.on_cpu(storage, layout, rows)?, dtype)?, result))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (rows, result) = self.shapes(layout)?;
        let x = crate::cuda::Halves::of(storage, layout, &self.layer.engine)?;
        let n = self.layer.sizes.n;
        let result_of = crate::cuda::result(&self.layer.engine, storage, rows * n, |y, output| {
            x.lend(&self.layer.engine, |x| Ok(self.launch(rows, x, y, output)?))
        })?;
        Ok((result_of, result))
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
        let rows = self.fits([dtype(x), dtype(y)], x_layout, y_layout)?;
        strided::scatter(&self.on_cpu(x, x_layout, rows)?, y, y_layout)
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
        let rows = self.fits([dtype(x), dtype(y)], x_layout, y_layout)?;
        let x = crate::cuda::Halves::of(x, x_layout, &self.layer.engine)?;
        crate::cuda::into(&self.layer.engine, y, y_layout, |y, output| {
            x.lend(&self.layer.engine, |x| Ok(self.launch(rows, x, y, output)?))
        })
    }
}

impl Linear {
    /// Rows, if a result of the shape and type of `x`'s goes to `y`.
    fn fits(&self, [x, y]: [DType; 2], x_layout: &Layout, y_layout: &Layout) -> Result<usize> {
        let (rows, result) = self.shapes(x_layout)?;
        if y_layout.shape() != &result {
            let required = format!("{:?}", result.dims());
            return Err(shape("shape of the result", required, y_layout.dims()));
        }
        if x != y {
            let required = format!("{}, as the activations", x.as_str());
            return Err(shape("type of the result", required, y.as_str()));
        }
        Ok(rows)
    }
}
