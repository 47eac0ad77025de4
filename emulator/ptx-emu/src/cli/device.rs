//! Kernels on a GPU.

use nvfp4_cuda::{CudaDevice, CudaError, PtxBuffer, PtxLaunch, run_ptx};

/// Runs a kernel on the GPU; what its buffers hold afterwards. `params` makes the values of its
/// parameters from the buffers' addresses.
///
/// The kernels are probes of the library, which keep to their buffers (the emulator checks that in
/// the tests), and launches of bundles that somebody asked to be run on this GPU, as whoever starts a CUDA
/// program does. Nothing else is in the context's memory.
#[allow(unsafe_code)]
pub(super) fn run<E: From<CudaError>>(
    device: &CudaDevice,
    text: &str,
    launch: &PtxLaunch<'_>,
    buffers: &[PtxBuffer<'_>],
    params: impl FnOnce(&[u64]) -> Result<Vec<Vec<u8>>, E>,
) -> Result<Vec<Vec<u8>>, E> {
    // SAFETY: probes keep to their buffers. That a bundle's kernel does is for whoever runs it to
    // know; the memory of the context that is not in its buffers is the driver's, and the
    // process reads no other after the kernel than what it gave to it.
    unsafe { run_ptx(device, text, launch, buffers, params) }
}
