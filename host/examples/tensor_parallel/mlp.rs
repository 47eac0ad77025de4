//! The MLP `down(silu(gate x) * (up x))`, whole or a device's part of it.

use std::thread;

use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Result;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, DeviceWeights, GatedWeights, Gemm, GemmOptions, HalfMatrix,
    Repacked, ResultBuffers, UpOptions, Vectors, Workspace,
};
use nvfp4::parallel::{Cut, Shard};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::{Activation, FloatType, HalfType, Nvfp4, ScaleLayout, floats};
use nvfp4_lab::rng::SplitMix64;

/// Largest relative error of the sum of parts: kernels may add products in another order, and what is
/// between the products is rounded to bf16 then.
pub const BOUND: f64 = 1e-3;

const KIND: ActivationKind = ActivationKind::Halves(HalfType::Bf16);

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens.
    pub tokens: usize,
    /// Columns of tokens.
    pub hidden: usize,
    /// Outputs of the gate.
    pub between: usize,
}

/// Weights in host memory.
pub struct Mlp {
    gate: BlockScaled<Nvfp4>,
    up: BlockScaled<Nvfp4>,
    down: BlockScaled<Nvfp4>,
}

impl Mlp {
    /// Random weights, the same in every process.
    pub fn random(sizes: Sizes) -> Result<Self> {
        let Sizes { hidden, between, .. } = sizes;
        let mut rng = SplitMix64::new(5);
        let mut matrix = |name, rows: usize, columns: usize| {
            let deviation = (columns as f64).sqrt().recip();
            let values: Vec<f32> =
                (0..rows * columns).map(|_| (rng.normal() * deviation) as f32).collect();
            let dims = Dims::new(1, rows, columns)?;
            quantize(name, &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)
        };
        Ok(Self {
            gate: matrix("gate", between, hidden)?,
            up: matrix("up", between, hidden)?,
            down: matrix("down", hidden, between)?,
        })
    }

    /// A device's part.
    pub fn part(&self, part: Shard) -> Result<Self> {
        Ok(Self {
            gate: self.gate.part(Cut::Rows, part)?,
            up: self.up.part(Cut::Rows, part)?,
            down: self.down.part(Cut::Columns, part)?,
        })
    }

    /// Brings the weights to a device and plans both products.
    pub fn place(&self, kernels: &Kernels, tokens: usize) -> Result<Placed> {
        let device = kernels.device();
        let gated = GatedWeights::pair(&self.gate, &self.up)?;
        let first = Repacked::gated(device, &gated, KIND)?.upload(device)?;
        let second = Repacked::for_device(device, &self.down, KIND)?.upload(device)?;
        let of_first = GemmOptions::new()
            .activation(Activation::Silu)
            .up(UpOptions::new())
            .output(FloatType::Bf16);
        let of_second = GemmOptions::new().output(FloatType::F32);
        let plans = [
            Gemm::new(kernels, &first, [1, tokens], KIND, &of_first)?,
            Gemm::new(kernels, &second, [1, tokens], KIND, &of_second)?,
        ];
        let bytes = plans.iter().map(Gemm::workspace_bytes).max().unwrap_or(0);
        let [between, _] = plans[0].out_bytes()?;
        Ok(Placed {
            weights: [first, second],
            workspace: Workspace::new(device, bytes)?,
            between: DeviceBuffer::poisoned(device, "between", between)?,
            kernels: kernels.clone(),
            plans,
        })
    }
}

/// Tokens of a run, the same in every process: bf16 `[tokens, hidden]`.
pub fn tokens(sizes: Sizes) -> Result<HalfMatrix> {
    let mut rng = SplitMix64::new(6);
    let dims = Dims::new(1, sizes.tokens, sizes.hidden)?;
    let values: Vec<f32> = (0..dims.elements()).map(|_| rng.normal() as f32).collect();
    HalfMatrix::round("x", dims, HalfType::Bf16, &values)
}

/// An MLP, or a part of one, on a device.
pub struct Placed {
    kernels: Kernels,
    weights: [DeviceWeights; 2],
    plans: [Gemm; 2],
    between: DeviceBuffer,
    workspace: Workspace,
}

impl Placed {
    /// Bytes of the result, f32 `[tokens, hidden]`.
    pub fn out_bytes(&self) -> Result<usize> {
        self.plans[1].out_bytes().map(|[bytes, _]| bytes)
    }

    /// Queues both products.
    pub fn launch(&self, x: &DeviceBuffer, y: &DeviceBuffer) -> Result<()> {
        let [first, second] = &self.plans;
        let [of_first, of_second] = &self.weights;
        let (x, between) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(&self.between));
        first.launch(x, of_first, between, Some(&self.workspace), Vectors::default())?;
        let (between, y) = (ActivationBuffers::Halves(&self.between), ResultBuffers::Floats(y));
        second.launch(between, of_second, y, Some(&self.workspace), Vectors::default())?;
        Ok(())
    }

    /// Copies, launches, and brings the result back.
    pub fn run(&self, x: &HalfMatrix) -> Result<Vec<f32>> {
        let device = self.kernels.device();
        let x = DeviceBuffer::upload(device, "x", x.bytes())?;
        let y = DeviceBuffer::poisoned(device, "y", self.out_bytes()?)?;
        self.launch(&x, &y)?;
        Ok(floats::decode(FloatType::F32, &y.read()?))
    }
}

/// The sum of what devices compute of their parts, each on its own thread and device.
pub fn on_several_devices(
    mlp: &Mlp,
    x: &HalfMatrix,
    ranks: usize,
    tokens: usize,
    open: impl Fn() -> Result<Kernels> + Sync,
) -> Result<Vec<f32>> {
    let one = |rank| mlp.part(Shard::new(rank, ranks)?)?.place(&open()?, tokens)?.run(x);
    let terms = thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || one(rank))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Vec<f32>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let length = terms.first().map_or(0, Vec::len);
    Ok((0..length).map(|at| terms.iter().map(|term| term[at]).sum()).collect())
}

/// The norm of the difference over that of what is right.
pub fn relative_error(found: &[f32], right: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = found.iter().zip(right).map(|(found, right)| square(found - right)).sum();
    let whole: f64 = right.iter().map(|&right| square(right)).sum();
    if found.len() == right.len() { (difference / whole).sqrt() } else { f64::INFINITY }
}
