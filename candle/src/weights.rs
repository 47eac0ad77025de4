//! Weights where they are multiplied.

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};
use nvfp4::BlockFormat;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, DeviceWeights, GatedWeights, Repacked, UpOptions, Vectors};
use nvfp4::gemm::{ActivationKind, GemmOptions};
use nvfp4::tensor::{BlockScaled, Blocks};
use rayon::prelude::*;

use crate::engine::{Computer, Engine};
use crate::error::{shape, wrap};

/// Matrices `[N, K]` of one size with their biases.
#[derive(Debug)]
pub(crate) enum Weights {
    /// Values, a tensor `[N, K]` for each matrix, and the biases `[matrices, N]`.
    Reference { dense: Vec<Tensor>, bias: Option<Tensor> },
    /// Weights in the order of the kernels, and the biases in f32.
    Device { kernels: Box<Kernels>, weights: DeviceWeights, bias: Biases },
}

/// Biases `[matrices, N]` in f32; of gated matrices, of the gate, and of up.
#[derive(Debug, Default)]
pub(crate) struct Biases {
    bias: Option<DeviceBuffer>,
    up_bias: Option<DeviceBuffer>,
}

impl Biases {
    /// The biases of the gate, or of matrices that are not gated, and of up.
    pub fn halves(&self) -> [Option<&DeviceBuffer>; 2] {
        let Self { bias, up_bias } = self;
        [bias.as_ref(), up_bias.as_ref()]
    }

    /// The vectors that a launch is given.
    pub fn vectors(&self) -> Vectors<'_> {
        let [bias, up_bias] = self.halves();
        Vectors { bias, up_bias, ..Vectors::default() }
    }
}

/// Matrices `[2 N, K]` whose products with each row make one of N elements: `act(gate) * up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// The function of the gate; [`Activation`] says what it does to up.
    pub activation: Activation,
    /// The order of the rows of both halves.
    pub order: GateOrder,
}

/// The order of the rows of a gate and of up in one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// All rows of the gate, and then all of up.
    Halves,
    /// A row of the gate, and then one of up, as gpt-oss has them.
    Alternating,
}

impl Gate {
    /// The options of a product with gated weights, or of another one.
    pub(crate) fn options(gate: Option<Self>) -> GemmOptions {
        match gate {
            Some(Self { activation, order: _ }) => {
                GemmOptions::new().activation(activation).up(UpOptions::new())
            }
            None => GemmOptions::new(),
        }
    }

    /// Both halves of the last dimension, `2 N`.
    pub(crate) fn halves(self, both: &Tensor) -> Result<[Tensor; 2]> {
        let n = both.dim(D::Minus1)? / 2;
        match self.order {
            GateOrder::Halves => Ok([both.narrow(D::Minus1, 0, n)?, both.narrow(D::Minus1, n, n)?]),
            GateOrder::Alternating => {
                let mut dims = both.dims().to_vec();
                dims.pop();
                let pairs = both.reshape([dims.as_slice(), &[n, 2]].concat())?;
                let half = |at: usize| pairs.narrow(D::Minus1, at, 1)?.squeeze(D::Minus1);
                Ok([half(0)?, half(1)?])
            }
        }
    }

    /// The results of both halves, `[.., 2 N]` in f32, on the CPU.
    fn apply(self, both: &Tensor) -> Result<Tensor> {
        let [gate, up] = self.halves(both)?;
        match self.activation {
            Activation::Identity => gate * up,
            Activation::Silu => gate.silu()? * up,
            Activation::GeluTanh => gate.gelu()? * up,
            Activation::Gelu => gate.gelu_erf()? * up,
            Activation::ReluSquared => gate.relu()?.sqr()? * up,
            Activation::ClampedSwiglu { limit, slope } => {
                let gate = gate.minimum(limit)?;
                let share = ((&gate * f64::from(slope))?.neg()?.exp()? + 1.)?.recip()?;
                (gate * share)? * (up.clamp(-limit, limit)? + 1.)?
            }
        }
    }

    fn repack<F: BlockFormat>(
        self,
        device: &nvfp4::device::Device,
        matrix: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> nvfp4::Result<Repacked> {
        let weights = match self.order {
            GateOrder::Halves => GatedWeights::stacked(matrix)?,
            GateOrder::Alternating => GatedWeights::interleaved(matrix)?,
        };
        Repacked::gated(device, &weights, kind)
    }
}

/// Sizes of weights: N is the number of results, half of the rows of gated matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub matrices: usize,
    pub n: usize,
    pub k: usize,
}

/// The values of all numbers in a range, made by all cores, or the first error in their order.
pub(crate) fn by_all_cores<T: Send, E: Send>(
    numbers: Range<usize>,
    make: impl Fn(usize) -> std::result::Result<T, E> + Sync + Send,
) -> std::result::Result<Vec<T>, E> {
    let all: Vec<_> = numbers.into_par_iter().map(make).collect();
    all.into_iter().collect()
}

/// Brings matrices to where an engine multiplies them. `bias` has an element for each row of a matrix or of all.
pub(crate) fn bring(
    engine: &Engine,
    matrices: &[Blocks],
    bias: Option<&Tensor>,
    gate: Option<Gate>,
) -> Result<(Weights, Sizes)> {
    let Some(first) = matrices.first() else {
        return Err(shape("matrices of weights", "at least one", 0));
    };
    let (n, k) = (first.dims().rows(), first.dims().cols());
    for matrix in matrices {
        let dims = matrix.dims();
        let found = [dims.batch(), dims.rows(), dims.cols()];
        if found != [1, n, k] || matrix.format() != first.format() {
            let required = format!("1 x {n} x {k} {} as the first", first.format().name());
            return Err(shape("a matrix of weights", required, (found, matrix.format().name())));
        }
    }
    if gate.is_some() && !n.is_multiple_of(2) {
        return Err(shape("rows of gated weights", "even, for a gate and as many of up", n));
    }
    let results = if gate.is_some() { n / 2 } else { n };
    let sizes = Sizes { matrices: matrices.len(), n: results, k };
    if let Some(bias) = bias
        && bias.elem_count() != sizes.matrices * n
    {
        let required = format!("{} x {n} elements", sizes.matrices);
        return Err(shape("bias", required, bias.dims()));
    }
    let bias = bias.map(|bias| -> Result<Tensor> {
        bias.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.reshape((sizes.matrices, n))
    });
    let bias = bias.transpose()?;
    let weights = match engine.place() {
        Computer::Reference => {
            let dense = |matrix: &Blocks| {
                Tensor::from_vec(matrix.dequantize().map_err(wrap)?, (n, k), &Device::Cpu)
            };
            Weights::Reference { dense: matrices.iter().map(dense).collect::<Result<_>>()?, bias }
        }
        Computer::Kernels(kernels) => {
            let (device, kind) = (kernels.device(), engine.kind());
            let repack = |matrix: &Blocks| match (matrix, gate) {
                (Blocks::Nvfp4(matrix), None) => Repacked::for_device(device, matrix, kind),
                (Blocks::Mxfp4(matrix), None) => Repacked::for_device(device, matrix, kind),
                (Blocks::Nvfp4(matrix), Some(gate)) => gate.repack(device, matrix, kind),
                (Blocks::Mxfp4(matrix), Some(gate)) => gate.repack(device, matrix, kind),
            };
            let repacked: Vec<Repacked> =
                by_all_cores(0..matrices.len(), |at| repack(&matrices[at])).map_err(wrap)?;
            let repacked = match repacked.as_slice() {
                [one] => one.upload(device),
                many => Repacked::stack(many).and_then(|stack| stack.upload(device)),
            };
            let upload = |bias: &Tensor| -> Result<Option<DeviceBuffer>> {
                upload_floats(device, "bias", &bias.flatten_all()?.to_vec1()?)
                    .map_err(wrap)
                    .map(Some)
            };
            let bias = match (bias, gate) {
                (None, _) => Biases::default(),
                (Some(bias), None) => Biases { bias: upload(&bias)?, up_bias: None },
                (Some(bias), Some(gate)) => {
                    let [bias, up_bias] = gate.halves(&bias)?;
                    Biases { bias: upload(&bias)?, up_bias: upload(&up_bias)? }
                }
            };
            let weights = repacked.map_err(wrap)?;
            Weights::Device { kernels: kernels.clone(), weights, bias }
        }
    };
    Ok((weights, sizes))
}

/// Values in f32 in a buffer of their own.
pub(crate) fn upload_floats(
    device: &nvfp4::device::Device,
    name: &str,
    values: &[f32],
) -> nvfp4::Result<DeviceBuffer> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    DeviceBuffer::upload(device, name, &bytes)
}

/// `x w^T + bias` in f32 for rows of `K` values, or the results of both halves of gated weights.
pub(crate) fn reference(
    x: Vec<f32>,
    dense: &Tensor,
    bias: Option<&Tensor>,
    gate: Option<Gate>,
) -> Result<Vec<f32>> {
    let rows = x.len() / dense.dim(1)?;
    let x = Tensor::from_vec(x, (rows, dense.dim(1)?), &Device::Cpu)?;
    let product = x.matmul(&dense.t()?)?;
    let product = match bias {
        Some(bias) => product.broadcast_add(bias)?,
        None => product,
    };
    let results = match gate {
        Some(gate) => gate.apply(&product)?,
        None => product,
    };
    results.flatten_all()?.to_vec1()
}
