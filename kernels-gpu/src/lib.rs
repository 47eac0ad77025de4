//! The kernels. One room an operation; what differs between architectures
//! stands behind a trait with one implementation each.
//!
//! Built once for each architecture by `cuda_builder`, which sets
//! `cfg(gpu_arch = "...")`.

#![no_std]
#![feature(abi_ptx)]

pub mod ceiling;
pub mod gemv;
