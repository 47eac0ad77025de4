//! Timing on a GPU: cold caches, one CUDA graph, and the GPU's own ceiling and cuBLAS in the same
//! run.

use std::fmt;

use fp4_formats::{BlockFormat, Nvfp4, e4m3};
use half::f16;
use serde::Serialize;

use super::GemvBench;
use super::timing::{Peer, Peers, ReadCeiling, SetTimes, input_sets};
use crate::oracle::Reference;
use crate::rng::SplitMix64;
use crate::shape::GemvShape;
use nvfp4::buffer::ALIGNMENT;
use nvfp4::cuda::{
    Cublas, CublasError, CublasLt, CublasShape, CudaDevice, E4m3Product, E4m3Sums, rotation,
};
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result, reserve};
use nvfp4::gemv::{GemvRun, Repacked};
use nvfp4::tensor::BlockScaled;

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
    /// Whether to time cuBLAS as well: on dequantised f16 operands, and of e4m3 activations on e4m3
    /// operands, too.
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
        let product = CublasShape { m: shape.m, n: 1, k: shape.k, batch: shape.l };
        let (vectors, matrices) = (halves(a)?, halves(b)?);
        let l2 = device.properties().l2_bytes;
        let products = PeerProducts { shapes: &[product], a: &matrices, b: &vectors };
        peer_or_reason(time_cublas(gpu, &products, (protocol, median, l2)))?
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

impl From<nvfp4::cuda::CudaError> for PeerError {
    fn from(error: nvfp4::cuda::CudaError) -> Self {
        Self::Other(error.into())
    }
}

/// The peer's time, or the reason why there is none, from a result of [`time_cublas`].
pub(super) fn peer_or_reason(result: Result<Peer, PeerError>) -> Result<Peers> {
    match result {
        Ok(peer) => Ok(Peers { cublas: Some(peer), ..Peers::default() }),
        Err(PeerError::Cublas(error)) => {
            Ok(Peers { cublas_error: Some(error.to_string()), ..Peers::default() })
        }
        Err(PeerError::Other(error)) => Err(error),
    }
}

/// Products of a peer, one after another, whose operands follow each other in `a` and in `b`.
pub(super) struct PeerProducts<'a> {
    pub shapes: &'a [CublasShape],
    pub a: &'a [u8],
    pub b: &'a [u8],
}

impl PeerProducts<'_> {
    /// Bytes of an f16 result.
    const RESULT: usize = size_of::<f16>();

    /// Offsets of both operands, whose elements have `element` bytes, and of the result of each product.
    fn offsets(&self, element: usize) -> Vec<[u64; 3]> {
        let mut next = [0; 3];
        let offsets = self.shapes.iter().map(|&CublasShape { m, n, k, batch }| {
            let bytes = [m * k * element, n * k * element, m * n * Self::RESULT];
            let end = std::array::from_fn(|i| next[i] + (bytes[i] * batch) as u64);
            std::mem::replace(&mut next, end)
        });
        offsets.collect()
    }

    /// The largest power of two, up to what allocations are aligned to, of which all are multiples.
    fn alignment(offsets: &[[u64; 3]]) -> u32 {
        let all = offsets.iter().flatten().fold(ALIGNMENT, |all, offset| all | offset);
        1 << all.trailing_zeros()
    }

    /// Times `launch` of each product, with its addresses, over enough input sets to exceed the caches.
    fn time(
        &self,
        gpu: &CudaDevice,
        (name, element): (String, usize),
        (protocol, ours, l2): (Protocol, f64, u64),
        launch: impl Fn(usize, [u64; 3]) -> Result<(), CublasError>,
    ) -> Result<Peer, PeerError> {
        let count = rotation(self.a.len() as u64, l2).min(MAX_SETS);
        let results: usize = self.shapes.iter().map(|p| p.m * p.n * p.batch * Self::RESULT).sum();
        let mut operands = Vec::new();
        for _ in 0..count {
            operands.push((gpu.upload(self.a)?, gpu.upload(self.b)?, gpu.alloc(results)?));
        }
        let offsets = self.offsets(element);
        let launch_all = || -> Result<(), PeerError> {
            for (a, b, c) in &operands {
                let first = [a.address(), b.address(), c.address()];
                for (index, offsets) in offsets.iter().enumerate() {
                    launch(index, std::array::from_fn(|i| first[i] + offsets[i]))?;
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
        Ok(Peer { name, sets: count, ratio: times.median / ours, times })
    }
}

/// Times products by cuBLAS on little-endian f16 operands. `how` are the protocol, our time and the bytes
/// of L2.
pub(super) fn time_cublas(
    gpu: &CudaDevice,
    products: &PeerProducts<'_>,
    how: (Protocol, f64, u64),
) -> Result<Peer, PeerError> {
    let cublas = Cublas::open(gpu)?;
    let name = format!("cuBLAS {} f16", cublas.version()?);
    products.time(gpu, (name, size_of::<f16>()), how, |index, [a, b, c]| {
        // SAFETY: the allocations have the products' sizes and outlive the graph.
        unsafe { cublas.half_product(products.shapes[index], a, b, c) }
    })
}

/// Times products by cuBLAS on e4m3 operands with one scale for each whole tensor.
fn time_e4m3(
    gpu: &CudaDevice,
    products: &PeerProducts<'_>,
    sums: E4m3Sums,
    how: (Protocol, f64, u64),
) -> Result<Peer, PeerError> {
    let cublas = CublasLt::open(gpu)?;
    let added = match sums {
        E4m3Sums::Promoted => "",
        E4m3Sums::Fast => ", fast sums",
    };
    let name = format!("cuBLAS {} e4m3{added}", cublas.version());
    let alignment = PeerProducts::alignment(&products.offsets(1));
    let plans: Vec<E4m3Product<'_>> = products
        .shapes
        .iter()
        .map(|&shape| cublas.e4m3_product(shape, sums, alignment))
        .collect::<Result<_, _>>()?;
    products.time(gpu, (name, 1), how, |index, [a, b, c]| {
        // SAFETY: the allocations have the products' sizes and outlive the graph.
        unsafe { plans[index].launch(a, b, c) }
    })
}

/// Adds cuBLAS' products of e4m3 operands of these shapes to the peers, or the reason why one is missing.
pub(super) fn add_e4m3(
    peers: &mut Peers,
    gpu: &CudaDevice,
    shapes: &[CublasShape],
    how: (Protocol, f64, u64),
) -> Result<()> {
    let elements = |rows: fn(&CublasShape) -> usize| -> usize {
        shapes.iter().map(|shape| rows(shape) * shape.k * shape.batch).sum()
    };
    let (a, b) = (e4m3_noise(elements(|shape| shape.m)), e4m3_noise(elements(|shape| shape.n)));
    let products = PeerProducts { shapes, a: &a, b: &b };
    for sums in [E4m3Sums::Promoted, E4m3Sums::Fast] {
        match time_e4m3(gpu, &products, sums, how) {
            Ok(peer) => peers.cublas_e4m3.push(peer),
            Err(PeerError::Cublas(error)) => {
                peers.cublas_e4m3_error.get_or_insert(error.to_string());
            }
            Err(PeerError::Other(error)) => return Err(error),
        }
    }
    Ok(())
}

/// `count` standard normal f16, little-endian: what a product multiplies decides its clocks.
pub(super) fn noise(count: usize) -> Vec<u8> {
    normal(count, |value| f16::from_f64(value).to_le_bytes())
}

/// The same in e4m3, scaled so that hardly any of them exceeds its range.
fn e4m3_noise(count: usize) -> Vec<u8> {
    normal(count, |value| [e4m3::encode((value * 64.0) as f32)])
}

/// `count` standard normal numbers as bytes.
fn normal<const N: usize>(count: usize, bytes: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
    let mut rng = SplitMix64::new(7);
    // A period that no tile has; drawing each number anew would take longer than the product.
    let pool: Vec<[u8; N]> = (0..65_521).map(|_| bytes(rng.normal())).collect();
    pool.iter().cycle().take(count).flatten().copied().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_follow_each_other() {
        let shapes = [[16, 3, 32, 2], [48, 1, 16, 1], [16, 1, 16, 1]];
        let shapes = shapes.map(|[m, n, k, batch]| CublasShape { m, n, k, batch });
        let products = PeerProducts { shapes: &shapes, a: &[], b: &[] };
        let e4m3 = products.offsets(1);
        assert_eq!(e4m3, [[0, 0, 0], [1024, 192, 192], [1792, 208, 288]]);
        assert_eq!(products.offsets(2)[1], [2048, 384, 192]);
        assert_eq!(PeerProducts::alignment(&e4m3), 16);
        assert_eq!(PeerProducts::alignment(&e4m3[..2]), 64);
        assert_eq!(PeerProducts::alignment(&e4m3[..1]), 256);
    }

    /// Signs are even, and few values are beyond the range or too small for it.
    #[test]
    fn noise_fills_the_range_of_e4m3() {
        let values: Vec<f32> = e4m3_noise(100_000).into_iter().map(e4m3::decode).collect();
        let share = |f: fn(f32) -> bool| {
            values.iter().filter(|value| f(**value)).count() as f64 / values.len() as f64
        };
        assert!(values.iter().all(|value| value.is_finite()));
        assert!((0.49..0.51).contains(&share(|x| x < 0.0)));
        // Everything above 68 is 72 or more: 28.8 % of normal numbers are above 68 / 64.
        assert!((0.28..0.30).contains(&share(|x| x.abs() > 64.0)));
        assert!(share(|x| x == 0.0) < 0.01);
        assert_eq!(noise(3).len(), 6);
    }
}
