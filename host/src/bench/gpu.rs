//! Timing on a GPU: cold caches, one CUDA graph, the machine's own ceiling and cuBLAS beside it.

use std::fmt;

use fp4_formats::{BlockFormat, Nvfp4, ceiling};
use half::f16;
use serde::Serialize;

use super::GemvBench;
use crate::cuda::{Cublas, CublasError, CudaDevice, HalfProduct, ReadRate, Times, rotation};
use crate::device::{DeviceError, Kernels};
use crate::error::{Error, Result, reserve};
use crate::gemv::Gemv;
use crate::oracle::Reference;
use crate::shape::GemvShape;
use crate::tensor::BlockScaled;

/// Name of the kernel that only reads, in the same PTX as the others.
pub(super) const READ_KERNEL: &str = "read_ceiling";

/// Most input sets in rotation. Shapes of a few kilobytes do not exceed the cache with it, and
/// their report says so.
pub(super) const MAX_SETS: usize = 1024;

/// How to time.
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
}

impl Default for Protocol {
    fn default() -> Self {
        Self { warmup: 3, replays: 30, ceiling: true, cublas: false }
    }
}

/// The peer's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peer {
    /// What was timed.
    pub name: String,
    /// Input sets in rotation.
    pub sets: usize,
    /// Seconds a product.
    pub times: Times,
    /// Its median over ours: above 1 we are faster.
    pub ratio: f64,
}

/// Measured times of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Input sets in rotation, each launched once a replay.
    pub sets: usize,
    /// Whether the sets together exceed four times the L2 cache.
    pub cold: bool,
    /// Seconds a launch.
    pub times: Times,
    /// Bytes that must move at least once, over the median; bytes a second.
    pub bytes_per_second: f64,
    /// The read-only kernel over the same number of bytes.
    pub ceiling: Option<ReadRate>,
    /// Its time over ours: 1 is the machine's own limit.
    pub ratio_to_ceiling: Option<f64>,
    /// cuBLAS f16.
    pub cublas: Option<Peer>,
    /// Why cuBLAS was asked for and not timed.
    pub cublas_error: Option<String>,
}

/// Times a GEMV that has been verified once, and verifies every input set again.
pub(super) fn time(
    kernels: &Kernels,
    shape: GemvShape,
    a: &BlockScaled<Nvfp4>,
    b: &BlockScaled<Nvfp4>,
    bench: &GemvBench,
    reference: &Reference,
) -> Result<Timing> {
    let device = kernels.device();
    let gpu = device.gpu("timing")?;
    let module = kernels.cuda().ok_or_else(|| DeviceError::NeedsGpu {
        operation: "timing",
        device: device.choice().device.clone(),
    })?;
    let protocol = bench.protocol;
    let bytes = shape.bytes(bench.options.output.bytes() as usize);
    let l2 = device.machine().l2_bytes;

    let wanted = rotation(bytes, l2);
    let sets: Vec<Gemv> = (0..wanted.min(MAX_SETS))
        .map(|_| Gemv::new(kernels, a, b, bench.options.clone()))
        .collect::<Result<_>>()?;
    let graph = gpu.capture(|| sets.iter().try_for_each(|set| set.launch().map(drop)))?;
    // SAFETY: operands and module outlive the call, which waits for its replays.
    let times = unsafe { graph.time(sets.len(), protocol.warmup, protocol.replays)? };
    for (index, set) in sets.iter().enumerate() {
        let check = reference.verify(&set.result()?.values(), bench.options.output);
        if !check.passed() {
            return Err(Error::Wrong { what: format!("the timed result of input set {index}") });
        }
    }

    let ceiling = if protocol.ceiling {
        let readable = bytes.next_multiple_of(16);
        // SAFETY: `read_ceiling` reads the bytes it is given and writes 8 bytes a thread.
        Some(unsafe {
            gpu.time_reads(
                module,
                READ_KERNEL,
                ceiling::THREADS,
                readable,
                protocol.warmup,
                protocol.replays,
            )?
        })
    } else {
        None
    };
    let (cublas, cublas_error) = if protocol.cublas {
        let product = HalfProduct { m: shape.m, n: 1, k: shape.k, batch: shape.l };
        let (matrix, vector) = (halves(a)?, halves(b)?);
        peer_or_reason(time_cublas(gpu, product, &matrix, &vector, protocol, times.median, l2))?
    } else {
        (None, None)
    };
    Ok(Timing {
        sets: sets.len(),
        cold: sets.len() >= wanted,
        bytes_per_second: bytes as f64 / times.median,
        ratio_to_ceiling: ceiling.as_ref().map(|read| read.times.median / times.median),
        times,
        ceiling,
        cublas,
        cublas_error,
    })
}

/// cuBLAS may be missing, which is worth a line in the report and no more; other errors are not.
pub(super) enum PeerError {
    /// Nothing to compare with.
    Cublas(CublasError),
    /// Anything else.
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

/// The peer's time or why there is none, from a result of [`time_cublas`].
pub(super) fn peer_or_reason<T>(
    result: Result<T, PeerError>,
) -> Result<(Option<T>, Option<String>)> {
    match result {
        Ok(peer) => Ok((Some(peer), None)),
        Err(PeerError::Cublas(error)) => Ok((None, Some(error.to_string()))),
        Err(PeerError::Other(error)) => Err(error),
    }
}

/// A product by cuBLAS on f16 operands, little-endian, with as many input sets as make the caches
/// cold.
pub(super) fn time_cublas(
    gpu: &CudaDevice,
    product: HalfProduct,
    a: &[u8],
    b: &[u8],
    protocol: Protocol,
    ours: f64,
    l2: u64,
) -> Result<Peer, PeerError> {
    let cublas = Cublas::open(gpu)?;
    let count = rotation(a.len() as u64, l2).min(MAX_SETS);
    let mut operands = Vec::new();
    for _ in 0..count {
        operands.push((
            gpu.upload(a)?,
            gpu.upload(b)?,
            gpu.alloc(product.m * product.n * product.batch * size_of::<f16>())?,
        ));
    }
    let launch_all = || -> Result<(), PeerError> {
        for (a, b, c) in &operands {
            // SAFETY: the allocations have the product's sizes and outlive the graph.
            unsafe { cublas.half_product(product, a.address(), b.address(), c.address())? };
        }
        Ok(())
    };
    // Once outside the graph: cuBLAS loads its kernels at their first use.
    launch_all()?;
    gpu.synchronize()?;
    let graph = gpu.capture(launch_all)?;
    // SAFETY: the operands outlive the call, which waits for its replays.
    let times = unsafe { graph.time(count, protocol.warmup, protocol.replays)? };
    let name = format!("cuBLAS {} f16", cublas.version()?);
    Ok(Peer { name, sets: count, ratio: times.median / ours, times })
}

/// Dequantised values in f16, little-endian; the timing does not depend on those that overflow.
pub(super) fn halves<F: BlockFormat>(x: &BlockScaled<F>) -> Result<Vec<u8>> {
    let values = x.dequantize()?;
    let mut bytes = reserve("f16 operand", values.len() * size_of::<f16>())?;
    bytes.extend(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
    Ok(bytes)
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| seconds * 1e6;
        let Times { median, p10, p90, .. } = &self.times;
        writeln!(
            f,
            "  time      {:.3} us (p10 {:.3}, p90 {:.3}), {:.1} GB/s; {} input sets in rotation, {} \
             caches",
            us(*median),
            us(*p10),
            us(*p90),
            self.bytes_per_second * 1e-9,
            self.sets,
            if self.cold { "cold" } else { "WARM" },
        )?;
        if let (Some(read), Some(ratio)) = (&self.ceiling, self.ratio_to_ceiling) {
            writeln!(
                f,
                "  ceiling   {:.3} us to read as many bytes, {:.1} GB/s; reached {:.1} %",
                us(read.times.median),
                read.bytes_per_second * 1e-9,
                100.0 * ratio
            )?;
        }
        if let Some(peer) = &self.cublas {
            let (time, ratio) = (us(peer.times.median), peer.ratio);
            writeln!(f, "  peer      {} {time:.3} us: {ratio:.2} x our time", peer.name)?;
        }
        if let Some(error) = &self.cublas_error {
            writeln!(f, "  peer      not timed: {error}")?;
        }
        Ok(())
    }
}
