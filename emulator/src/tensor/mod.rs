//! Arithmetic and layouts of tensor cores: what `mma.sync`, `wgmma` and `tcgen05`
//! share. Pure functions: bytes and numbers in, the same out, no machine state.
//!
//! | module | PTX ISA 9.x | what |
//! |---|---|---|
//! | [`element`] | 5.2.3 | operand types, and codes to numbers |
//! | [`fragment`] | 9.7.14.5, 9.7.15.5 | matrix elements in the registers of a warp |
//! | [`shared`] | 9.7.15.5.1, 9.7.16.4 | shared-memory matrix descriptors, gathering a tile |
//! | [`tile`] | 9.7.16.10.4 | a gathered operand, and its way into panels |
//! | [`product`] | 9.7.15.5, 9.7.16.10 | panels and the blocked products over them |
//! | [`instruction`] | 9.7.16.4.2 | instruction descriptors of `tcgen05.mma` |
//! | [`tmem`] | 9.7.16.2, 9.7.16.8 to .10 | which cell of tensor memory holds what |
//!
//! # Numeric model
//!
//! PTX leaves the order and width of sums open ("at least single precision"). The
//! model is the same for all generations: one instruction computes
//!
//! ```text
//! D = round(C + sum over k of A[m, k] * B[k, n])
//! ```
//!
//! with exact products, the sum over `k` ascending in f64 from +0, `C` last, and one
//! rounding to nearest even to the type of `D`. Subnormal operands and results are
//! kept; a NaN result is canonical. With block scales the operands are `A * sA` and
//! `B * sB`. Sums of e2m1, e2m3, e3m2, e4m3 and e5m2 are exact before `C` is added;
//! sums of f16, bf16 and tf32 are so to within 2^-52 of the largest partial sum.
//! Integers are exact modulo 2^32, or clamped once at the end with `.satfinite`.
//! f64 is a chain of fused multiply-adds, `k` ascending, from `C`.
//!
//! # What it can miss
//!
//! Hardware aligns the products of an instruction to the largest exponent and cuts
//! the bits that fall off, so its results differ. Per instruction of depth K the
//! difference is within `K * 2^-23 * (|C| + sum |A B|)` for f16, bf16 and tf32
//! operands and for all operands on sm_100 and later, and within
//! `K * 2^-13 * (|C| + sum |A B|)` for 8-bit floating-point operands on sm_90, whose
//! adder keeps fewer bits; plus half a last place of an f16 result.

pub mod element;
mod error;
pub mod fragment;
pub mod instruction;
pub mod product;
pub mod shared;
pub mod tile;
pub mod tmem;

pub use error::TensorError;
