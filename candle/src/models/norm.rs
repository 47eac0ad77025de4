//! RMSNorm before projections.

use std::sync::Arc;
use std::thread::{self, ThreadId};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use candle_nn::ops::rms_norm;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::rows::{Operands, Outputs, Results, Rows, RowsOptions, Source};

use crate::Engine;
use crate::engine::{Computer, kept, lock};
use crate::error::wrap;
use crate::strided;

/// Rows that the library's kernel takes: for a few, candle's has too few threads, and products behind it begin while the
/// library's runs.
const FEW: usize = 64;

/// RMSNorm of rows, times weights.
#[derive(Debug)]
pub(super) struct Norm {
    engine: Arc<Engine>,
    weight: Tensor,
    epsilon: f32,
}

/// An operation as planned. Norms of an engine share it: its own memory is for results that nobody asks for.
#[derive(Debug)]
pub(crate) struct PlannedNorm {
    key: Key,
    rows: Rows,
}

/// The properties that a plan depends on, and the thread on whose stream its memory is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    thread: ThreadId,
    rows: usize,
    columns: usize,
    epsilon: f32,
}

impl Norm {
    /// The norm with weights `[K]`, on the engine's device.
    pub fn new(engine: &Arc<Engine>, weight: Tensor, epsilon: f32) -> Self {
        Self { engine: engine.clone(), weight, epsilon }
    }

    /// The norms of the rows of `x`, `[.., K]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        let rows = x.elem_count() / self.weight.elem_count();
        match self.engine.place() {
            Computer::Kernels(_) if rows <= FEW => {
                x.apply_op2_no_bwd(&self.weight, &Few(self)).map(kept)
            }
            Computer::Kernels(_) | Computer::Reference => rms_norm(&x, &self.weight, self.epsilon),
        }
    }

    /// The operation on so many rows, planned once.
    fn plan(&self, kernels: &Kernels, rows: usize) -> nvfp4::Result<Arc<PlannedNorm>> {
        let (columns, half) = (self.weight.elem_count(), self.engine.half());
        let key = Key { thread: thread::current().id(), rows, columns, epsilon: self.epsilon };
        let memory = &self.engine.memory;
        let mut plans = lock(&memory.norms);
        let make = || {
            let source = Source::RmsNorm { epsilon: self.epsilon, residual: false };
            let options = RowsOptions::new(source, Results::Half);
            let rows = Rows::new(kernels, rows, columns, half, &options)?;
            Ok(Arc::new(PlannedNorm { key, rows }))
        };
        plans.get(memory, |plan| plan.key == key, make).cloned()
    }

    fn launch(
        &self,
        kernels: &Kernels,
        rows: usize,
        [x, weight, y]: [&DeviceBuffer; 3],
    ) -> nvfp4::Result<()> {
        let outputs = Outputs { elements: y, scales: None, multipliers: None };
        self.plan(kernels, rows)?.rows.launch_into(&Operands::normed(x, weight), &outputs)
    }

    fn emulate(&self, kernels: &Kernels, x: &[f32], weight: &[f32]) -> nvfp4::Result<Vec<f32>> {
        let (device, float) = (kernels.device(), self.engine.half().float());
        let upload = |name: &str, values: &[f32]| {
            let bytes = floats::encode(float, values.iter().map(|&value| f64::from(value)));
            DeviceBuffer::upload(device, name, &bytes)
        };
        let (x, weight, rows) =
            (upload("x", x)?, upload("weight", weight)?, x.len() / weight.len());
        let y = DeviceBuffer::poisoned(device, "result", x.len())?;
        self.launch(kernels, rows, [&x, &weight, &y])?;
        Ok(floats::decode(float, &y.read()?))
    }
}

/// The operation on few rows, as one of candle's.
struct Few<'a>(&'a Norm);

impl Few<'_> {
    fn kernels(&self) -> &Kernels {
        match self.0.engine.place() {
            Computer::Kernels(kernels) => kernels,
            Computer::Reference => unreachable!("the reference has candle's norm"),
        }
    }
}

impl CustomOp2 for Few<'_> {
    fn name(&self) -> &'static str {
        "nvfp4-rms-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.engine.require_cpu()?;
        let dtype = candle_core::backend::BackendStorage::dtype(x);
        let (x, weight) = (strided::floats(x, x_layout)?, strided::floats(weight, weight_layout)?);
        let y = self.0.emulate(self.kernels(), &x, &weight).map_err(wrap)?;
        Ok((strided::storage(y, dtype)?, x_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use crate::cuda::{Halves, new_halves};

        let (elements, engine) = (x_layout.shape().elem_count(), &self.0.engine);
        let rows = elements / weight_layout.shape().elem_count();
        let [from, weights] =
            [Halves::of(x, x_layout, engine)?, Halves::of(weight, weight_layout, engine)?];
        let storage = new_halves(engine, x, elements, |y| {
            from.lend(engine, |x| {
                weights.lend(engine, |weight| {
                    Ok(self.0.launch(self.kernels(), rows, [x, weight, y])?)
                })
            })
        })?;
        Ok((storage, x_layout.shape().clone()))
    }
}
