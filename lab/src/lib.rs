//! The laboratory of the crate [`nvfp4`]: the f64 oracle, test inputs, verified and timed runs, files of
//! operands. The program `nvfp4` is made of it.
//!
//! | module | topic |
//! | --- | --- |
//! | [`oracle`] | the f64 reference of a GEMV, and the tolerance of every result |
//! | [`gemm`] | the f64 reference of a GEMM, and the comparison of its results |
//! | [`rows`] | the f64 reference of operations on rows, and the comparison of their results |
//! | [`attention`] | the f64 reference of attention of one token, and the comparison of its results |
//! | [`moe`] | a mixture of experts with operands on the host, compared step by step |
//! | [`shape`], [`generate`], [`rng`] | shape strings and sets of shapes, test inputs from a seed |
//! | [`mod@bench`] | one verified run of a shape, with times or counters |
//! | [`layer`] | a layer of a checkpoint as a GEMV |
//! | [`operands`] | operands of products in a safetensors file |
//! | [`doctor`] | the driver, GPUs and kernels of this machine, and which of them will be used |

pub mod attention;
pub mod bench;
pub mod doctor;
pub mod gemm;
pub mod generate;
pub mod layer;
pub mod moe;
pub mod operands;
pub mod oracle;
pub mod rows;
pub mod shape;

pub use nvfp4_checkpoint::rng;
