//! Weights where they are multiplied.

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{DeviceWeights, Repacked};
use nvfp4::tensor::Blocks;

use crate::engine::{Computer, Engine};
use crate::error::{shape, wrap};

/// Matrices `[N, K]` of one size with their biases.
#[derive(Debug)]
pub(crate) enum Weights {
    /// Values, a tensor `[N, K]` for each matrix, and the biases `[matrices, N]`.
    Reference { dense: Vec<Tensor>, bias: Option<Tensor> },
    /// Weights in the order of the kernels, and the biases in f32.
    Device { kernels: Box<Kernels>, weights: DeviceWeights, bias: Option<DeviceBuffer> },
}

/// Sizes of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub matrices: usize,
    pub n: usize,
    pub k: usize,
}

/// Brings matrices to where an engine multiplies them. `bias` has `[N]` or `[matrices, N]` elements.
pub(crate) fn bring(
    engine: &Engine,
    matrices: &[Blocks],
    bias: Option<&Tensor>,
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
    let sizes = Sizes { matrices: matrices.len(), n, k };
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
            let repack = |matrix: &Blocks| match matrix {
                Blocks::Nvfp4(matrix) => Repacked::for_device(device, matrix, kind),
                Blocks::Mxfp4(matrix) => Repacked::for_device(device, matrix, kind),
            };
            let repacked: Vec<Repacked> =
                matrices.iter().map(repack).collect::<nvfp4::Result<_>>().map_err(wrap)?;
            let repacked = match repacked.as_slice() {
                [one] => one.upload(device),
                many => Repacked::stack(many).and_then(|stack| stack.upload(device)),
            };
            let bias = bias.map(|bias| -> Result<DeviceBuffer> {
                let values: Vec<f32> = bias.flatten_all()?.to_vec1()?;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                DeviceBuffer::upload(device, "bias", &bytes).map_err(wrap)
            });
            let (weights, bias) = (repacked.map_err(wrap)?, bias.transpose()?);
            Weights::Device { kernels: kernels.clone(), weights, bias }
        }
    };
    Ok((weights, sizes))
}

/// `x w^T + bias` in f32 for rows of `K` values.
pub(crate) fn reference(x: Vec<f32>, dense: &Tensor, bias: Option<&Tensor>) -> Result<Vec<f32>> {
    let rows = x.len() / dense.dim(1)?;
    let x = Tensor::from_vec(x, (rows, dense.dim(1)?), &Device::Cpu)?;
    let product = x.matmul(&dense.t()?)?;
    let product = match bias {
        Some(bias) => product.broadcast_add(bias)?,
        None => product,
    };
    product.flatten_all()?.to_vec1()
}
