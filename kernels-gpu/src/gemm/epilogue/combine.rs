//! The combine step, from the affine step's values to results: [`Combine`] with this machine's
//! approximations.

use crate::floats::Instructions;
use fp4_formats::gemm::{Affine, Combine, Epilogue};

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
