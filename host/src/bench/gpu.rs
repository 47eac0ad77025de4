//! Timing on a GPU: cold caches, one CUDA graph, and the GPU's own ceiling and cuBLAS in the same
//! run.

use std::fmt;

use fp4_formats::{BlockFormat, Nvfp4};
use half::f16;
use serde::Serialize;

use super::GemvBench;
use super::timing::{Peer, Peers, ReadCeiling, SetTimes, input_sets};
use crate::cuda::{Cublas, CublasError, CudaDevice, HalfProduct, rotation};
use crate::device::Kernels;
use crate::error::{Error, Result, reserve};
use crate::gemv::{GemvRun, Repacked};
use crate::oracle::Reference;
use crate::shape::GemvShape;
use crate::tensor::BlockScaled;

/// Most input sets in rotation. Shapes of a few kilobytes do not exceed the cache with it, and
/// their report says so.
pub(super) const MAX_SETS: usize = 1024;

/// Options of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Untimed replays of the graph.
    pub warmup: usize,
    /// Timed replays; 0 times nothing.
    pub replays: usize,
    /// Whether to time reading the same number of bytes as well.
    pub ceiling: bool,
    /// Whether to time cuBLAS on dequantised f16 operands as well.
    pub cublas: bool,
    /// Whether to time launches on the host as well.
    pub host: bool,
}

impl Default for Protocol {
    fn default() -> Self {
        Self { warmup: 3, replays: 30, ceiling: true, cublas: false, host: false }
    }
}

/// Measured times of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Over input sets in rotation.
    #[serde(flatten)]
    pub measured: SetTimes,
    /// Bytes that must be read or written at least once, divided by the median; bytes per second.
    pub bytes_per_second: f64,
    /// Reading as many bytes.
    #[serde(flatten)]
    pub read: ReadCeiling,
    /// The peer, or why it was not timed.
    #[serde(flatten)]
    pub peers: Peers,
}

/// Times a GEMV of activations and weights that has been verified once, and verifies every input set
/// again.
pub(super) fn time(
    kernels: &Kernels,
    shape: GemvShape,
    (a, b, weights): (&BlockScaled<Nvfp4>, &BlockScaled<Nvfp4>, &Repacked<'_>),
    bench: &GemvBench,
    reference: &Reference,
) -> Result<Timing> {
    let device = kernels.device();
    let gpu = device.gpu("timing")?;
    let protocol = bench.protocol;
    let bytes = shape.bytes(bench.options.output.bytes() as usize);
    let make = || GemvRun::of_weights(kernels, a, weights, bench.options.clone());
    let (sets, cold) = input_sets(kernels, bytes, make)?;
    let wrong = |set: &GemvRun| -> Result<_> {
        let check = reference.verify(&set.result()?.values(), bench.options.output);
        Ok((!check.passed()).then(String::new))
    };
    // SAFETY: the operands belong to the sets, and `kernels` has the module.
    let measured =
        unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, |set| set.launch(), wrong)? };
    let median = measured.times.median;
    let read = ReadCeiling::measure(kernels, bytes, protocol, &measured.times)?;
    let peers = if protocol.cublas {
        let product = HalfProduct { m: shape.m, n: 1, k: shape.k, batch: shape.l };
        let (vectors, matrices) = (halves(a)?, halves(b)?);
        let l2 = device.properties().l2_bytes;
        peer_or_reason(time_cublas(gpu, &[product], &matrices, &vectors, protocol, median, l2))?
    } else {
        Peers::default()
    };
    Ok(Timing { measured, bytes_per_second: bytes as f64 / median, read, peers })
}

/// An error of timing a peer. A missing cuBLAS is only mentioned in the report; other errors end
/// the bench.
pub(super) enum PeerError {
    /// There is nothing to compare with.
    Cublas(CublasError),
    /// Another error.
    Other(Error),
}

impl From<CublasError> for PeerError {
    fn from(error: CublasError) -> Self {
        Self::Cublas(error)
    }
}

impl From<Error> for PeerError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<crate::cuda::CudaError> for PeerError {
    fn from(error: crate::cuda::CudaError) -> Self {
        Self::Other(error.into())
    }
}

/// The peer's time, or the reason why there is none, from a result of [`time_cublas`].
pub(super) fn peer_or_reason(result: Result<Peer, PeerError>) -> Result<Peers> {
    match result {
        Ok(peer) => Ok(Peers { cublas: Some(peer), cublas_error: None }),
        Err(PeerError::Cublas(error)) => {
            Ok(Peers { cublas: None, cublas_error: Some(error.to_string()) })
        }
        Err(PeerError::Other(error)) => Err(error),
    }
}

/// Times products by cuBLAS, one after another, on little-endian f16 operands, over enough input sets
/// to exceed the caches. The products' operands follow each other in `a` and in `b`.
pub(super) fn time_cublas(
    gpu: &CudaDevice,
    products: &[HalfProduct],
    a: &[u8],
    b: &[u8],
    protocol: Protocol,
    ours: f64,
    l2: u64,
) -> Result<Peer, PeerError> {
    let cublas = Cublas::open(gpu)?;
    let count = rotation(a.len() as u64, l2).min(MAX_SETS);
    let results: usize = products.iter().map(|p| p.m * p.n * p.batch * size_of::<f16>()).sum();
    let mut operands = Vec::new();
    for _ in 0..count {
        operands.push((gpu.upload(a)?, gpu.upload(b)?, gpu.alloc(results)?));
    }
    let launch_all = || -> Result<(), PeerError> {
        for (a, b, c) in &operands {
            let mut at = [a.address(), b.address(), c.address()];
            for &product in products {
                let HalfProduct { m, n, k, batch } = product;
                // SAFETY: the allocations have the products' sizes and outlive the graph.
                unsafe { cublas.half_product(product, at[0], at[1], at[2])? };
                for (at, elements) in at.iter_mut().zip([m * k, n * k, m * n]) {
                    *at += (elements * batch * size_of::<f16>()) as u64;
                }
            }
        }
        Ok(())
    };
    // The first launch is outside the graph, because cuBLAS loads its kernels at their first use.
    launch_all()?;
    gpu.synchronize()?;
    let graph = gpu.capture(launch_all)?;
    // SAFETY: the operands outlive the call, which waits for its replays.
    let times = unsafe { graph.time(count, protocol.warmup, protocol.replays)? };
    let name = format!("cuBLAS {} f16", cublas.version()?);
    Ok(Peer { name, sets: count, ratio: times.median / ours, times })
}

/// Dequantised values in f16, little-endian. Values that overflow do not influence the timing.
pub(super) fn halves<F: BlockFormat>(x: &BlockScaled<F>) -> Result<Vec<u8>> {
    let values = x.dequantize()?;
    let mut bytes = reserve("f16 operand", values.len() * size_of::<f16>())?;
    bytes.extend(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
    Ok(bytes)
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.measured.write(f, format_args!("{:.1} GB/s", self.bytes_per_second * 1e-9))?;
        self.read.write(f, "ceiling")?;
        self.peers.fmt(f)
    }
}
