//! Parts of the kernels: a feature of this crate puts each of them into a program. The build script has this
//! file, too.

use fp4_formats::Family;

/// A part of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Products with vectors, quantising, dequantising and attention of one token: in every program with this crate.
    Vectors,
    /// Products with matrices: the feature `gemm`.
    Gemm,
    /// Mixtures of experts, grouped and mixed products: the feature `moe`.
    Moe,
}

/// The part that has a family. Kernels that prepare operands are in two.
pub const fn parts(family: Family) -> &'static [Part] {
    match family {
        Family::Ceiling
        | Family::Gemv
        | Family::QuantizeNvfp4
        | Family::QuantizeMxfp4
        | Family::QuantizeTokens
        | Family::Rows(_)
        | Family::Dequantize
        | Family::Attention => &[Part::Vectors],
        Family::GemmPrepare => &[Part::Gemm, Part::Moe],
        Family::Gemm(..) => &[Part::Gemm],
        Family::Moe | Family::Grouped(..) | Family::Mixed(..) => &[Part::Moe],
    }
}
