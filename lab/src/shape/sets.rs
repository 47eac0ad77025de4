//! Named sets of shapes.

use super::{GemmShape, GemvShape, GroupedShape, MixtureShape, QuantizeShape, Shape, ShapeError};

/// The benchmark shapes of the public GEMV contest.
pub const GEMV_CONTEST: [GemvShape; 3] =
    [GemvShape::of(7168, 16384, 1), GemvShape::of(4096, 7168, 8), GemvShape::of(7168, 2048, 4)];

/// The correctness shapes of the public GEMV contest.
pub const GEMV_CORRECTNESS: [GemvShape; 9] = [
    GemvShape::of(128, 256, 1),
    GemvShape::of(128, 1536, 1),
    GemvShape::of(128, 3072, 1),
    GemvShape::of(256, 7168, 1),
    GemvShape::of(2432, 4608, 2),
    GemvShape::of(384, 7168, 2),
    GemvShape::of(512, 512, 2),
    GemvShape::of(512, 4096, 2),
    GemvShape::of(512, 1536, 2),
];

/// Ragged shapes: every combination of M = 1, 3, 129; K = 16, 48, 7184; L = 1, 2, 8.
#[must_use]
pub fn gemv_ragged() -> Vec<GemvShape> {
    let mut shapes = Vec::new();
    for m in [1, 3, 129] {
        for k in [16, 48, 7184] {
            shapes.extend([1, 2, 8].map(|l| GemvShape { m, k, l }));
        }
    }
    shapes
}

/// The benchmark shapes of the public GEMM contest.
pub const GEMM_CONTEST: [GemmShape; 3] = [
    GemmShape::of(128, 7168, 16384),
    GemmShape::of(128, 4096, 7168),
    GemmShape::of(128, 7168, 2048),
];

/// Products of many tokens, which the tensor cores bound.
pub const GEMM_LARGE: [GemmShape; 3] = [
    GemmShape::of(2304, 4608, 7168),
    GemmShape::of(4096, 4096, 4096),
    GemmShape::of(8192, 8192, 8192),
];

/// The correctness shapes of the public GEMM contest.
pub const GEMM_CORRECTNESS: [GemmShape; 10] = [
    GemmShape::of(128, 256, 256),
    GemmShape::of(128, 1536, 7168),
    GemmShape::of(128, 3072, 1536),
    GemmShape::of(256, 7168, 256),
    GemmShape::of(256, 7168, 2048),
    GemmShape::of(2304, 4608, 7168),
    GemmShape::of(384, 7168, 2304),
    GemmShape::of(512, 512, 7168),
    GemmShape::of(512, 4096, 512),
    GemmShape::of(512, 1536, 7168),
];

/// The benchmark shapes of the public dual GEMM contest.
pub const DUAL_CONTEST: [GemmShape; 4] = [
    GemmShape::of(256, 4096, 7168),
    GemmShape::of(512, 4096, 7168),
    GemmShape::of(256, 3072, 4096),
    GemmShape::of(512, 3072, 7168),
];

/// The correctness shapes of the public dual GEMM contest.
pub const DUAL_CORRECTNESS: [GemmShape; 9] = [
    GemmShape::of(1536, 512, 7168),
    GemmShape::of(256, 512, 256),
    GemmShape::of(3072, 1024, 1536),
    GemmShape::of(7168, 1024, 256),
    GemmShape::of(7168, 2304, 2048),
    GemmShape::of(4608, 384, 7168),
    GemmShape::of(7168, 384, 2304),
    GemmShape::of(512, 768, 7168),
    GemmShape::of(4096, 768, 512),
];

/// The products of one decoding step: few tokens, two layers.
#[must_use]
pub fn decode() -> Vec<GemmShape> {
    let layer = |(n, k)| [1, 2, 4, 8, 16, 32, 64].map(|m| GemmShape::of(m, n, k));
    [(7168, 16384), (4096, 7168)].into_iter().flat_map(layer).collect()
}

/// The matrices with which quantising is measured.
pub const QUANTIZE: [QuantizeShape; 4] = [
    QuantizeShape { m: 1024, k: 1024 },
    QuantizeShape { m: 4096, k: 8192 },
    QuantizeShape { m: 8192, k: 4096 },
    QuantizeShape { m: 16384, k: 8192 },
];

/// The benchmark shapes of the public grouped GEMM contest.
#[must_use]
pub fn grouped_contest() -> Vec<GroupedShape> {
    let shape = |counts: &[usize], [n, k]: [usize; 2]| GroupedShape { counts: counts.into(), n, k };
    vec![
        shape(&[80, 176, 128, 72, 64, 248, 96, 160], [4096, 7168]),
        shape(&[40, 76, 168, 72, 164, 148, 196, 160], [7168, 2048]),
        shape(&[192, 320], [3072, 4096]),
        shape(&[128, 384], [4096, 1536]),
    ]
}

/// Decoding: 64 experts with two tokens each.
fn grouped_decode() -> GroupedShape {
    GroupedShape { counts: vec![2; 64], n: 4096, k: 7168 }
}

/// A layer of 256 experts, of which a token takes 8, for 1 to 1024 tokens.
const MOE: [MixtureShape; 4] = [mixture(1), mixture(16), mixture(64), mixture(1024)];

const fn mixture(tokens: usize) -> MixtureShape {
    MixtureShape { tokens, experts: 256, top_k: 8, hidden: 7168, between: 2048 }
}

/// The sets for timing. Sets that take gigabytes are last, so that a device without room for them has
/// run all others.
const TIMED: [&str; 8] =
    ["gemv", "gemm", "dual", "grouped", "decode", "quantize", "grouped-decode", "moe"];

/// The shapes of a named set (`--set`).
///
/// | set | what |
/// | --- | --- |
/// | `gemv`, `gemm`, `dual`, `grouped` | the benchmarks of the contests; `gemm` also [`GEMM_LARGE`] |
/// | `gemv-correctness`, `gemv-ragged`, `gemm-correctness`, `dual-correctness` | for checking, not for timing |
/// | `decode`, `grouped-decode` | GEMM and grouped GEMM with few tokens |
/// | `moe` | a mixture of experts; `moe` and `grouped-decode` take gigabytes |
/// | `quantize` | quantising |
/// | `all` | all sets for timing, those that take gigabytes last |
///
/// # Errors
/// [`ShapeError::UnknownSet`].
pub fn set(name: &str) -> Result<Vec<Shape>, ShapeError> {
    match name {
        "gemv" => Ok(GEMV_CONTEST.map(Shape::Gemv).to_vec()),
        "quantize" => Ok(QUANTIZE.map(Shape::Quantize).to_vec()),
        "gemm" => Ok(GEMM_CONTEST.into_iter().chain(GEMM_LARGE).map(Shape::Gemm).collect()),
        "gemm-correctness" => Ok(GEMM_CORRECTNESS.map(Shape::Gemm).to_vec()),
        "decode" => Ok(decode().into_iter().map(Shape::Gemm).collect()),
        "all" => Ok(TIMED.map(set).into_iter().collect::<Result<Vec<_>, _>>()?.concat()),
        "gemv-correctness" => Ok(GEMV_CORRECTNESS.map(Shape::Gemv).to_vec()),
        "gemv-ragged" => Ok(gemv_ragged().into_iter().map(Shape::Gemv).collect()),
        "dual" => Ok(DUAL_CONTEST.map(Shape::Dual).to_vec()),
        "dual-correctness" => Ok(DUAL_CORRECTNESS.map(Shape::Dual).to_vec()),
        "grouped" => Ok(grouped_contest().into_iter().map(Shape::Grouped).collect()),
        "grouped-decode" => Ok(vec![Shape::Grouped(grouped_decode())]),
        "moe" => Ok(MOE.map(Shape::Moe).to_vec()),
        _ => Err(ShapeError::UnknownSet { name: name.into() }),
    }
}
