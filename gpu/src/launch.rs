//! Launching a kernel. Errors that the driver would report only as "invalid value" are checked
//! and named first.

use std::ffi::c_void;
use std::ptr;

use cuda_lazy::raw;

use super::error::{CudaError, check};
use super::module::{CudaModule, Kernel};
use super::probe::DeviceInfo;

/// One launch of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaLaunch<'a> {
    /// The kernel's name in the PTX.
    pub entry: &'a str,
    /// Blocks of the grid, x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block, x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster, x, y, z; `None` for the kernel's `.reqnctapercluster`, or no
    /// cluster.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a block, bytes.
    pub dynamic_shared: u32,
    /// Whether blocks may start before the previous kernel of the stream has ended
    /// (programmatic dependent launch). The kernel then waits for it with
    /// `griddepcontrol.wait`.
    pub overlaps: bool,
    /// Whether all blocks run at the same time, so that they may wait for each other. The driver
    /// refuses the launch if the GPU does not hold them.
    pub cooperative: bool,
    /// The whole parameter block: the value of a kernel's single parameter, or several
    /// parameters at the offsets of [`CudaModule::parameters`], up to the end of the last.
    pub params: &'a [u8],
}

/// `CUlaunchConfig` (CUDA Driver API, Data types).
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub stream: *mut c_void,
    pub attributes: *mut LaunchAttribute,
    pub attribute_count: u32,
}

/// `CUlaunchAttribute`: identifier, padding to 8 bytes, a union of 64 bytes, of which a
/// cluster shape takes the first three words and a flag the first.
#[repr(C, align(8))]
pub(crate) struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 3],
    rest: [u32; 13],
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

const CU_LAUNCH_ATTRIBUTE_COOPERATIVE: u32 = 2;
const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: u32 = 4;
const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

/// Largest cluster any supported GPU accepts, and the largest that all accept
/// (CUDA C++ Programming Guide, Thread Block Clusters).
const MAX_CLUSTER: u64 = 16;
const PORTABLE_CLUSTER: u64 = 8;
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

impl CudaModule {
    /// Queues a launch on the device's stream and returns without waiting for it.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`], [`CudaError::BadLaunch`] before anything is
    /// launched, or a failed call. Errors of the running kernel are reported by a later call.
    ///
    /// # Safety
    /// The kernel accesses memory through the addresses in `params`.
    /// * They are allocations of this device, and the kernel's accesses are within them.
    /// * They are alive until the kernel has finished, and the host makes no conflicting
    ///   accesses before that.
    pub unsafe fn launch(&self, launch: &CudaLaunch<'_>) -> Result<(), CudaError> {
        let kernel = self.kernel(launch.entry)?;
        check_launch(launch, &kernel, self.device().info())?;
        kernel.allow_dynamic_shared(launch.dynamic_shared)?;

        // A cluster shape that the PTX fixes need not be repeated in the launch.
        let cluster = launch.cluster.filter(|_| kernel.limits.cluster.is_none());
        if cluster.is_some_and(|cluster| volume(cluster) > PORTABLE_CLUSTER) {
            kernel.allow_large_clusters()?;
        }
        let mut attributes: Vec<LaunchAttribute> = cluster
            .map(cluster_attribute)
            .into_iter()
            .chain(launch.overlaps.then(|| {
                attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0])
            }))
            .chain(
                launch.cooperative.then(|| attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0])),
            )
            .collect();
        let mut config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            stream: self.device().stream(),
            attribute_count: attributes.len() as u32,
            attributes: attributes.as_mut_ptr(),
        };
        let params = kernel.parameters.place(launch.params);
        let mut size = params.len();
        let mut extra = [
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
            params.as_ptr().cast_mut().cast::<c_void>(),
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
            (&raw mut size).cast(),
            ptr::null_mut(),
        ];
        let extra = if params.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() };
        let _turn = self.device().turn("launching a kernel")?;
        // SAFETY: the configuration, its attributes and the parameter block outlive
        // the call, which copies them; the function belongs to this context. The caller
        // guarantees the memory that the kernel accesses.
        check("cuLaunchKernelEx", unsafe {
            raw::cuLaunchKernelEx((&raw mut config).cast(), kernel.function, ptr::null_mut(), extra)
        })
    }
}

/// The attribute of a launch in clusters of this shape.
pub(crate) fn cluster_attribute(shape: [u32; 3]) -> LaunchAttribute {
    attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, shape)
}

fn attribute(id: u32, value: [u32; 3]) -> LaunchAttribute {
    LaunchAttribute { id, padding: 0, value, rest: [0; 13] }
}

fn volume(shape: [u32; 3]) -> u64 {
    shape.iter().fold(1, |product: u64, &size| product.saturating_mul(size.into()))
}

fn check_launch(
    launch: &CudaLaunch<'_>,
    kernel: &Kernel,
    device: &DeviceInfo,
) -> Result<(), CudaError> {
    let limits = &kernel.limits;
    let bad = |field, required: String, actual: String| {
        Err(CudaError::BadLaunch { kernel: launch.entry.to_owned(), field, required, actual })
    };
    let CudaLaunch { grid, block, .. } = launch;

    if launch.params.len() != limits.param_bytes {
        let required = format!("{} bytes", limits.param_bytes);
        return bad("params", required, format!("{} bytes", launch.params.len()));
    }
    if (0..3).any(|axis| grid[axis] == 0 || grid[axis] > MAX_GRID[axis]) {
        let required = format!("from 1 to {MAX_GRID:?}");
        return bad("grid", required, format!("{grid:?}"));
    }
    let threads = volume(*block);
    if threads == 0 || threads > limits.max_threads.into() {
        let required = format!("1 to {} threads", limits.max_threads);
        return bad("block", required, format!("{block:?} = {threads} threads"));
    }
    let shared = u64::from(launch.dynamic_shared) + u64::from(limits.static_shared);
    if shared > device.shared_per_block.into() {
        let required = format!(
            "at most {} bytes beside {} static ones",
            device.shared_per_block.saturating_sub(limits.static_shared),
            limits.static_shared
        );
        return bad("dynamic_shared", required, format!("{} bytes", launch.dynamic_shared));
    }
    let Some(cluster) = launch.cluster.or(limits.cluster) else {
        return Ok(());
    };
    if limits.cluster.is_some_and(|fixed| fixed != cluster) {
        let required = format!("{:?}, as the kernel says", limits.cluster.unwrap_or_default());
        return bad("cluster", required, format!("{cluster:?}"));
    }
    let blocks = volume(cluster);
    if blocks == 0 || blocks > MAX_CLUSTER {
        let required = format!("1 to {MAX_CLUSTER} blocks");
        return bad("cluster", required, format!("{cluster:?} = {blocks} blocks"));
    }
    if (0..3).any(|axis| grid[axis] % cluster[axis] != 0) {
        let required = format!("a multiple of the cluster {cluster:?}");
        return bad("grid", required, format!("{grid:?}"));
    }
    Ok(())
}
