//! Arithmetic and layouts of tensor cores, common to `mma.sync`, `wgmma` and `tcgen05`. These
//! are pure functions on bytes and numbers, without machine state.
//!
//! | module | PTX ISA 9.x | what |
//! |---|---|---|
//! | [`element`] | 5.2.3 | operand types, and codes to numbers |
//! | [`fragment`] | 9.7.14.5, 9.7.15.5 | matrix elements in the registers of a warp |
//! | [`shared`] | 9.7.15.5.1, 9.7.16.4 | shared-memory matrix descriptors, gathering a tile |
//! | [`tile`] | 9.7.16.10.4 | a gathered operand, and its conversion to panels |
//! | [`aligned`] | 9.7.14.5, 9.7.15.5 | sums as Hopper forms them |
//! | [`product`] | 9.7.15.5, 9.7.16.10 | panels and the blocked products over them |
//! | [`instruction`] | 9.7.16.4.2 | instruction descriptors of `tcgen05.mma` |
//! | [`tmem`] | 9.7.16.2, 9.7.16.8 to .10 | the layouts of tensor memory |
//!
//! # Numeric model
//!
//! PTX leaves the order and width of sums open ("at least single precision"). `wgmma`,
//! and `mma.sync` without a kind, add as an H200 does, bit for bit: see [`aligned`]. For
//! `tcgen05` and the forms of sm_120a one instruction computes
//!
//! ```text
//! D = round(C + sum over k of A[m, k] * B[k, n])
//! ```
//!
//! with exact products, the sum over `k` ascending in f64 from +0, `C` last, and one
//! rounding to nearest even to the type of `D`. Subnormal operands and results are
//! kept; a NaN result is canonical. With block scales the operands are `A * sA` and
//! `B * sB`. Sums of e2m1, e2m3, e3m2 and e4m3 are exact before `C` is added; sums of
//! the wider types, of e5m2 by e5m2, and of blocks whose ue8m0 scales are far apart, to
//! within 2^-52 of the largest partial sum.
//! Integers are exact modulo 2^32, or clamped once at the end with `.satfinite`.
//! f64 is a chain of fused multiply-adds, `k` ascending, from `C`.
//!
//! # Limits
//!
//! Blackwell aligns the products of an instruction to the largest exponent and cuts the
//! bits that fall off, as Hopper does, so its results differ from the second model. Per
//! instruction of depth K the difference should be within
//! `K * 2^-23 * (|C| + sum |A B|)`, plus half a last place of an f16 result; there is no
//! recording of such a machine.

pub mod aligned;
pub mod element;
mod error;
pub mod fragment;
pub mod instruction;
pub mod product;
pub mod shared;
pub mod tile;
pub mod tmem;

pub use error::TensorError;
