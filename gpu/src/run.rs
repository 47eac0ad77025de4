//! Running PTX text once on buffers of bytes: launch and copies in one call.

use super::device::CudaDevice;
use super::error::CudaError;
use super::launch::CudaLaunch;
use super::memory::CudaMemory;

/// The shape of a run of [`run_ptx`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtxLaunch<'a> {
    /// The kernel's name in the PTX.
    pub entry: &'a str,
    /// Blocks of the grid, x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block, x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster, x, y, z; `None` for what the kernel requires.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a block, bytes.
    pub dynamic_shared: u32,
}

/// Uploads `buffers`, runs a kernel, waits for it, and returns the contents of the buffers.
/// `params` makes the values of the kernel's parameters from the buffers' addresses.
///
/// # Errors
/// What `params` returns, [`CudaError::Module`] for text that the driver refuses,
/// [`CudaError::NoSuchKernel`], [`CudaError::BadLaunch`], or a failed call. After an
/// error of the kernel itself the device is unusable in this process.
///
/// # Safety
/// With these parameters the kernel reads and writes device memory in `buffers` only.
pub unsafe fn run_ptx<E: From<CudaError>>(
    device: &CudaDevice,
    text: &str,
    launch: &PtxLaunch<'_>,
    buffers: &[&[u8]],
    params: impl FnOnce(&[u64]) -> Result<Vec<Vec<u8>>, E>,
) -> Result<Vec<Vec<u8>>, E> {
    let module = device.load(text)?;
    let memory: Vec<CudaMemory> =
        buffers.iter().map(|bytes| device.upload(bytes)).collect::<Result<_, _>>()?;
    let addresses: Vec<u64> = memory.iter().map(CudaMemory::address).collect();
    let params = params(&addresses)?;
    let params = module.kernel(launch.entry)?.parameters.arrange(launch.entry, &params)?;
    let launch = CudaLaunch {
        entry: launch.entry,
        grid: launch.grid,
        block: launch.block,
        cluster: launch.cluster,
        dynamic_shared: launch.dynamic_shared,
        overlaps: false,
        params: &params,
    };
    // SAFETY: the addresses that `params` was given are allocations of this device,
    // made above and held in `memory` until the kernel has been waited for below (a
    // failed wait leaves a context in which nothing runs any more). The host uses none
    // of them meanwhile. The caller guarantees that the kernel keeps to them.
    unsafe { module.launch(&launch)? };
    device.synchronize()?;
    Ok(memory.iter().map(CudaMemory::to_vec).collect::<Result<_, _>>()?)
}
