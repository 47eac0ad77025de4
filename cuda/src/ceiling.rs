//! The read and copy bandwidth of the GPU and its rate of products, measured like a kernel.

use serde::Serialize;

use super::device::CudaDevice;
use super::error::CudaError;
use super::launch::CudaLaunch;
use super::memory::CudaMemory;
use super::module::CudaModule;
use super::times::Times;

/// Most inputs in rotation; with very small inputs they do not exceed the cache.
const MAX_COPIES: usize = 1024;

/// The speed of a kernel that only reads its input, or of a copy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadRate {
    /// Bytes read by one launch.
    pub bytes: u64,
    /// Distinct inputs in rotation.
    pub sets: usize,
    /// Seconds per launch.
    pub times: Times,
    /// `bytes` divided by the median, bytes per second.
    pub bytes_per_second: f64,
}

/// The number of distinct inputs of `bytes` each that together exceed four times a cache of
/// `l2_bytes`, so that launches that rotate over them find none of them in the cache. At least 2.
pub fn rotation(bytes: u64, l2_bytes: u64) -> usize {
    let sets = l2_bytes.saturating_mul(4) / bytes.max(1) + 1;
    usize::try_from(sets.max(2)).unwrap_or(usize::MAX)
}

/// 64-bit parameters, as the kernels' PTX declares them.
fn words<const N: usize>(values: [u64; N]) -> Vec<u8> {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// A launch of one-dimensional CTAs that share nothing.
fn launch<'a>(entry: &'a str, ctas: u32, threads: u32, params: &'a [u8]) -> CudaLaunch<'a> {
    CudaLaunch {
        entry,
        grid: [ctas, 1, 1],
        block: [threads, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        overlaps: false,
        cooperative: false,
        params,
    }
}

/// The speed of a kernel that only multiplies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProductRate {
    /// Seconds per launch.
    pub times: Times,
    /// Operations of a launch divided by the median, operations per second.
    pub flops_per_second: f64,
}

impl CudaDevice {
    /// Times a kernel that only multiplies, in as many CTAs as the device holds at once.
    ///
    /// `kernel` has two 64-bit parameters: the number of `rounds`, and an address to which it may write four bytes. It
    /// is launched with `threads` threads per CTA, each of which does `operations` operations.
    ///
    /// # Errors
    /// The errors of [`CudaModule::launch`], or a failed call.
    ///
    /// # Safety
    /// `kernel` writes no more than stated above.
    pub unsafe fn time_products(
        &self,
        module: &CudaModule,
        (kernel, threads): (&str, u32),
        (rounds, operations): (u64, u64),
        warmup: usize,
        replays: usize,
    ) -> Result<ProductRate, CudaError> {
        let ctas = module.blocks_per_sm(kernel, threads, 0)?.max(1) * self.info().sms;
        let output = self.alloc(16)?;
        let params = words([rounds, output.address()]);
        let launch = launch(kernel, ctas, threads, &params);
        let graph = self.capture(|| {
            // SAFETY: the output has the stated size, within which the caller guarantees that the kernel
            // stays, and outlives the graph.
            unsafe { module.launch(&launch) }
        })?;
        // SAFETY: output and module are alive until the end of this call, and `time` waits for its replays.
        let times = unsafe { graph.time(1, warmup, replays)? };
        let flops_per_second = u64::from(ctas) as f64 * operations as f64 / times.median;
        Ok(ProductRate { times, flops_per_second })
    }

    /// Times reading `bytes` bytes with cold caches.
    ///
    /// `kernel` has three 64-bit parameters: the address to read from (256-byte
    /// aligned), the number of bytes, and an address to which it may write 8 bytes per
    /// thread. It is launched with `threads` threads per block and as many blocks
    /// as the device holds at once, and reads its input in a grid-stride loop.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if `bytes` is zero or not a multiple of 16, the errors of
    /// [`CudaModule::launch`], or a failed call.
    ///
    /// # Safety
    /// `kernel` reads and writes no more than stated above.
    pub unsafe fn time_reads(
        &self,
        module: &CudaModule,
        kernel: &str,
        threads: u32,
        bytes: u64,
        warmup: usize,
        replays: usize,
    ) -> Result<ReadRate, CudaError> {
        let size = usize::try_from(bytes).unwrap_or(0);
        if size == 0 || size % 16 != 0 {
            return Err(CudaError::BadArgument {
                operation: "timing reads",
                field: "bytes",
                required: "a positive multiple of 16".to_owned(),
                actual: bytes.to_string(),
            });
        }
        let blocks = module.blocks_per_sm(kernel, threads, 0)?.max(1) * self.info().sms;
        let sets = rotation(bytes, self.info().l2_bytes);
        let inputs = self.noise(size, sets)?;
        let output = self.alloc(8 * threads as usize * blocks as usize)?;

        let launch_all = || -> Result<(), CudaError> {
            for input in &inputs {
                let params = words([input.address(), bytes, output.address()]);
                let launch = launch(kernel, blocks, threads, &params);
                // SAFETY: input and output have the stated sizes, within which the caller
                // guarantees that the kernel stays, and outlive the graph.
                unsafe { module.launch(&launch)? };
            }
            Ok(())
        };
        let graph = self.capture(launch_all)?;
        // SAFETY: inputs, output and module are alive until the end of this call,
        // and `time` waits for its replays.
        let times = unsafe { graph.time(sets, warmup, replays)? };
        Ok(ReadRate { bytes, sets, bytes_per_second: bytes as f64 / times.median, times })
    }

    /// Times copies from device memory to device memory with cold caches. Each copy reads
    /// `bytes / 2` bytes and writes as many.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for less than 2 bytes, or a failed call.
    pub fn time_copies(
        &self,
        bytes: u64,
        warmup: usize,
        replays: usize,
    ) -> Result<ReadRate, CudaError> {
        let size = usize::try_from(bytes / 2).unwrap_or(0);
        if size == 0 {
            return Err(CudaError::BadArgument {
                operation: "timing copies",
                field: "bytes",
                required: "at least 2, and addressable".to_owned(),
                actual: bytes.to_string(),
            });
        }
        let sets = rotation(bytes, self.info().l2_bytes).min(MAX_COPIES);
        let sources = self.noise(size, sets)?;
        let targets = (0..sets).map(|_| self.alloc(size)).collect::<Result<Vec<_>, _>>()?;
        let graph = self.capture(|| -> Result<(), CudaError> {
            targets.iter().zip(&sources).try_for_each(|(to, from)| to.queue_copy(from))
        })?;
        // SAFETY: both sides are alive until the end of this call, and `time` waits for
        // its replays.
        let times = unsafe { graph.time(sets, warmup, replays)? };
        let bytes = 2 * size as u64;
        Ok(ReadRate { bytes, sets, bytes_per_second: bytes as f64 / times.median, times })
    }

    /// Allocations of incompressible bytes, because compressed memory would be read faster than
    /// real data.
    fn noise(&self, bytes: usize, count: usize) -> Result<Vec<CudaMemory>, CudaError> {
        let mut state = 0_u64;
        let mut host = vec![0; bytes];
        for word in host.chunks_mut(8) {
            word.copy_from_slice(&splitmix64(&mut state).to_le_bytes()[..word.len()]);
        }
        (0..count).map(|_| self.upload(&host)).collect()
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_are_little_endian_words() {
        let params = words([1, 2, 0x0102_0304_0506_0708]);
        assert_eq!(params[..16], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(params[16..], [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    proptest! {
        #[test]
        fn a_rotation_exceeds_four_caches_and_is_no_larger(
            bytes in 0_u64..1 << 32,
            cache in 0_u64..1 << 28,
        ) {
            let sets = rotation(bytes, cache) as u64;
            prop_assert!(sets * bytes.max(1) > 4 * cache);
            prop_assert!(sets == 2 || (sets - 1) * bytes.max(1) <= 4 * cache);
        }
    }
}
