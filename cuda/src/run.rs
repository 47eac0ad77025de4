//! Running PTX text once on buffers of bytes: launch and copies in one call.

use super::device::CudaDevice;
use super::error::CudaError;
use super::fixed::{FixedMemory, Span};
use super::launch::CudaLaunch;
use super::memory::CudaMemory;

/// The shape of a run of [`run_ptx`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// Whether all blocks run at the same time.
    pub cooperative: bool,
    /// Whether the launch has the attribute of programmatic dependence.
    pub overlaps: bool,
}

/// A buffer of [`run_ptx`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtxBuffer<'a> {
    /// Its contents.
    pub bytes: &'a [u8],
    /// The required address; `None` if the driver chooses.
    pub address: Option<u64>,
}

impl<'a> From<&'a [u8]> for PtxBuffer<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes, address: None }
    }
}

/// Uploads `buffers`, runs a kernel, waits for it, and returns the contents of the buffers.
/// `params` makes the values of the kernel's parameters from the buffers' addresses.
///
/// # Errors
/// The error of `params`, [`CudaError::Module`] for text that the driver refuses,
/// [`CudaError::NoSuchKernel`], [`CudaError::BadLaunch`], [`CudaError::AddressTaken`], or a failed
/// call. After an error of the kernel itself the device is unusable in this process.
///
/// # Safety
/// With these parameters the kernel reads and writes device memory in `buffers` only.
pub unsafe fn run_ptx<E: From<CudaError>>(
    device: &CudaDevice,
    text: &str,
    launch: &PtxLaunch<'_>,
    buffers: &[PtxBuffer<'_>],
    params: impl FnOnce(&[u64]) -> Result<Vec<Vec<u8>>, E>,
) -> Result<Vec<Vec<u8>>, E> {
    let fixed = buffers.iter().filter_map(|buffer| {
        let start = buffer.address?;
        Some(Span { start, end: start.saturating_add(buffer.bytes.len() as u64) })
    });
    // Before anything else may be put there.
    let fixed = FixedMemory::reserve(device, fixed)?;
    let module = device.load(text)?;
    let place = |buffer: &PtxBuffer<'_>| match buffer.address {
        None => device.upload(buffer.bytes),
        Some(address) => {
            // SAFETY: the memory was mapped above for this device and for all of the buffer. It is
            // unmapped after the view has been dropped, which is declared later, and nothing else
            // knows of it.
            let memory = unsafe { CudaMemory::view(device, address, buffer.bytes.len()) };
            memory.write(0, buffer.bytes).map(|()| memory)
        }
    };
    let memory: Vec<CudaMemory> = buffers.iter().map(place).collect::<Result<_, _>>()?;
    let addresses: Vec<u64> = memory.iter().map(CudaMemory::address).collect();
    let params = params(&addresses)?;
    let params = module.kernel(launch.entry)?.parameters.arrange(launch.entry, &params)?;
    let launch = CudaLaunch {
        entry: launch.entry,
        grid: launch.grid,
        block: launch.block,
        cluster: launch.cluster,
        dynamic_shared: launch.dynamic_shared,
        overlaps: launch.overlaps,
        cooperative: launch.cooperative,
        params: &params,
    };
    // SAFETY: the addresses that `params` was given are memory of this device,
    // made above and held in `memory` and `fixed` until the kernel has been waited for below (a
    // failed wait leaves a context in which nothing runs any more). The host uses none
    // of them meanwhile. The caller guarantees that the kernel keeps to them.
    unsafe { module.launch(&launch)? };
    device.synchronize()?;
    let after = memory.iter().map(CudaMemory::to_vec).collect::<Result<_, _>>()?;
    drop(fixed);
    Ok(after)
}
