//! The epilogue of a GEMM: the parameters that kernels take, and what the oracle computes. A new
//! step is written here, in the contract (`fp4_formats::gemm::epilogue`) and in the kernels' step.

use fp4_formats::FloatType;
use fp4_formats::gemm::{Affine, Epilogue, ResultScales, Sink};

use super::{GemmOptions, Output};

/// The epilogue of a launch: addresses on the device, 0 for what is absent.
pub(super) struct Placed {
    /// Row factors, column factors and bias.
    pub vectors: [u64; 3],
    /// Factor of all results.
    pub alpha: f32,
    pub out: u64,
    /// Elements from one matrix of the result to the next.
    pub out_stride: u64,
    pub scales: ResultScales,
}

impl Placed {
    /// The kernels' parameters for a result of type `output`.
    pub fn params(self, output: Output) -> Epilogue {
        let Self { vectors: [row_factors, column_factors, bias], alpha, .. } = self;
        let bias_type = FloatType::F32 as u32;
        let Self { out, out_stride, scales, .. } = self;
        Epilogue {
            affine: Affine { row_factors, column_factors, bias, alpha, bias_type },
            sink: Sink { out, out_stride, out_type: output.code(), reserved: 0, scales },
        }
    }
}

/// The exact result of a sum, and the magnitude that bounds its error, at `[row, column]`; `scale`
/// is the product of alpha and the operands' tensor scales.
pub(super) fn reference(
    options: &GemmOptions,
    scale: f64,
    [row, column]: [usize; 2],
    [sum, magnitude]: [f64; 2],
) -> [f64; 2] {
    let factor = scale
        * at(options.row_factors.as_ref(), row, 1.0)
        * at(options.column_factors.as_ref(), column, 1.0);
    let bias = at(options.bias.as_ref(), column, 0.0);
    [sum * factor + bias, magnitude * factor.abs() + bias.abs()]
}

/// Element `index` of a vector.
fn at(vector: Option<&Vec<f32>>, index: usize, absent: f64) -> f64 {
    vector.map_or(absent, |vector| f64::from(vector[index]))
}
