//! The combine step, from the affine step's values to results: [`Combine`] with this machine's
//! approximations.

use cuda_std::ptx::{float, marker};
use fp4_formats::gemm::combine::Machine;
use fp4_formats::gemm::{Affine, Combine, Epilogue};

/// The GPU's instructions; approximations are within 2^-22 of the result.
struct Instructions;

impl Machine for Instructions {
    #[inline(always)]
    fn exp2(x: f32) -> f32 {
        float::ex2_approx_ftz_f32(x)
    }

    #[inline(always)]
    fn reciprocal(x: f32) -> f32 {
        float::rcp_approx_ftz_f32(x)
    }

    #[inline(always)]
    fn minimum(x: f32, y: f32) -> f32 {
        float::min_nan_f32(x, y)
    }

    #[inline(always)]
    fn maximum(x: f32, y: f32) -> f32 {
        float::max_nan_f32(x, y)
    }

    /// One copy of the function's code: values move through the first place.
    #[inline(always)]
    fn each<const N: usize>(mut values: [f32; N], function: impl Fn(f32) -> f32) -> [f32; N] {
        let mut i = 0;
        while i < N as u32 {
            let result = function(values[0]);
            for j in 1..N {
                values[j - 1] = values[j];
            }
            values[N - 1] = result;
            i = marker::pin(i + 1);
        }
        values
    }
}

/// Combines half `half` with the results so far: of the gate, or of a product without one, the
/// activation of the values; of `up`, the products.
#[inline(always)]
pub fn combine<const N: usize>(
    combine: &Combine,
    half: u32,
    results: [f32; N],
    values: [f32; N],
) -> [f32; N] {
    if half == 0 {
        combine.activate::<Instructions, N>(values)
    } else {
        combine.gate::<Instructions, N>(results, values)
    }
}

/// The results of a product that is [gated by a sigmoid](Combine::is_sigmoid_gate).
#[inline(always)]
pub fn by_sigmoid<const N: usize>(combine: &Combine, gate: [f32; N], up: [f32; N]) -> [f32; N] {
    let activated = gate.map(|x| combine.by_sigmoid::<Instructions>(x));
    combine.gate::<Instructions, N>(activated, up)
}

/// Factors and bias of half `half`.
#[inline(always)]
pub fn affine_of(epilogue: &Epilogue, half: u32) -> Affine {
    let Epilogue { affine, up, .. } = epilogue;
    // Field by field: the parameters are no array, whose elements would be copied to local memory.
    if half == 0 { *affine } else { *up }
}
