//! Launching a kernel. Errors that the driver would report only as "invalid value" are checked
//! and named first.

use std::ffi::c_void;
use std::ptr;

use cuda_lazy::{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, raw};

use super::device::CudaDevice;
use super::error::{CudaError, check};
use super::module::{CudaKernel, CudaModule, Kernel};
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
#[derive(Debug, Clone, Copy)]
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
        // SAFETY: passed on to the caller.
        unsafe { queue(&kernel, self.device(), launch) }
    }
}

impl CudaKernel {
    /// Queues a launch on the stream of `device`, a handle of the kernel's GPU, and returns without
    /// waiting for it. Allocates nothing on the host. The launch's name serves messages alone.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a handle of another GPU; [`CudaError::BadLaunch`] before
    /// anything is launched, or a failed call. Errors of the running kernel are reported by a later
    /// call.
    ///
    /// # Safety
    /// The same as [`CudaModule::launch`].
    pub unsafe fn launch(
        &self,
        device: &CudaDevice,
        launch: &CudaLaunch<'_>,
    ) -> Result<(), CudaError> {
        self.module.require_on(device)?;
        // SAFETY: passed on to the caller.
        unsafe { queue(&self.kernel, device, launch) }
    }

    /// Checks a launch and keeps what the driver's call takes, to queue it any number of times.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    pub fn prepare(
        &self,
        device: &CudaDevice,
        launch: &CudaLaunch<'_>,
    ) -> Result<PreparedLaunch, CudaError> {
        self.module.require_on(device)?;
        let call = Call::checked(&self.kernel, device, launch)?;
        let (kernel, params) = (self.clone(), launch.params.to_vec());
        Ok(PreparedLaunch { call, kernel, params, device: device.clone() })
    }
}

/// A launch that is checked, so that only the driver's call remains: to measure what that takes.
#[derive(Debug)]
pub struct PreparedLaunch {
    call: Call,
    kernel: CudaKernel,
    params: Vec<u8>,
    device: CudaDevice,
}

impl PreparedLaunch {
    /// Calls the driver's launch and nothing else. The context that is current on the thread must be
    /// that of the device.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Safety
    /// The same as [`CudaModule::launch`]; and nobody records the stream meanwhile, because a graph would not
    /// keep what the launch uses.
    pub unsafe fn queue(&mut self) -> Result<(), CudaError> {
        // SAFETY: passed on to the caller.
        unsafe { self.call.make(&self.kernel.kernel, self.device.stream(), &self.params) }
    }
}

/// Checks a launch and queues it.
///
/// # Safety
/// The same as [`CudaModule::launch`].
unsafe fn queue(
    kernel: &Kernel,
    device: &CudaDevice,
    launch: &CudaLaunch<'_>,
) -> Result<(), CudaError> {
    let mut call = Call::checked(kernel, device, launch)?;
    let _turn = device.turn("launching a kernel")?;
    // SAFETY: the caller guarantees the memory that the kernel accesses.
    unsafe { call.make(kernel, device.stream(), launch.params) }
}

/// A checked launch as the driver takes it.
#[derive(Debug)]
struct Call {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    attributes: [LaunchAttribute; 3],
    attribute_count: u32,
}

impl Call {
    /// Checks a launch, makes the context current and the driver allow what the launch needs.
    fn checked(
        kernel: &Kernel,
        device: &CudaDevice,
        launch: &CudaLaunch<'_>,
    ) -> Result<Self, CudaError> {
        let &CudaLaunch { grid, block, dynamic_shared, .. } = launch;
        check_launch(launch, kernel, device.info())?;
        device.bind()?;
        kernel.allow_dynamic_shared(dynamic_shared)?;
        // A cluster shape that the PTX fixes need not be repeated in the launch.
        let cluster = launch.cluster.filter(|_| kernel.limits.cluster.is_none());
        if cluster.is_some_and(|cluster| volume(cluster) > PORTABLE_CLUSTER) {
            kernel.allow_large_clusters()?;
        }
        let flag = |asked: bool, id| asked.then(|| attribute(id, [1, 0, 0]));
        let wanted = [
            cluster.map(cluster_attribute),
            flag(launch.overlaps, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
            flag(launch.cooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE),
        ];
        let (mut attributes, mut attribute_count) = ([attribute(0, [0; 3]); 3], 0);
        for (place, wanted) in attributes.iter_mut().zip(wanted.into_iter().flatten()) {
            *place = wanted;
            attribute_count += 1;
        }
        Ok(Self { grid, block, dynamic_shared, attributes, attribute_count })
    }

    /// Calls the driver.
    ///
    /// # Safety
    /// The same as [`CudaModule::launch`]; `params` are the checked launch's, and the context is current.
    unsafe fn make(
        &mut self,
        kernel: &Kernel,
        stream: *mut c_void,
        params: &[u8],
    ) -> Result<(), CudaError> {
        let mut config = LaunchConfig {
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            stream,
            attribute_count: self.attribute_count,
            attributes: self.attributes.as_mut_ptr(),
        };
        let block = params.as_ptr().cast_mut().cast::<c_void>();
        let mut size = params.len();
        // The block of a single parameter is its value, which the driver puts where it has the
        // parameter. That of several is the whole of them.
        let mut single = [block];
        let mut several = [
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
            block,
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
            (&raw mut size).cast(),
            ptr::null_mut(),
        ];
        let (values, extra) = match kernel.parameters.0.len() {
            0 => (ptr::null_mut(), ptr::null_mut()),
            1 => (single.as_mut_ptr(), ptr::null_mut()),
            _ => (ptr::null_mut(), several.as_mut_ptr()),
        };
        // SAFETY: the configuration, its attributes and the parameters outlive the call, which copies
        // them; the parameters have the kernel's sizes, as checked; the function belongs to this
        // context. The caller guarantees the memory that the kernel accesses.
        let code = unsafe {
            raw::cuLaunchKernelEx((&raw mut config).cast(), kernel.function, values, extra)
        };
        if code != CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER {
            return check("cuLaunchKernelEx", code);
        }
        // A driver before CUDA 11.8: it has a call without attributes and one for cooperative launches.
        let function = kernel.function;
        let ([x, y, z], [block_x, block_y, block_z]) = (self.grid, self.block);
        let attributes = &self.attributes[..self.attribute_count as usize];
        match attributes.iter().map(|attribute| attribute.id).collect::<Vec<_>>()[..] {
            // SAFETY: as above.
            [] => check("cuLaunchKernel", unsafe {
                raw::cuLaunchKernel(
                    function,
                    x,
                    y,
                    z,
                    block_x,
                    block_y,
                    block_z,
                    self.dynamic_shared,
                    stream,
                    values,
                    extra,
                )
            }),
            [CU_LAUNCH_ATTRIBUTE_COOPERATIVE] if extra.is_null() => {
                // SAFETY: as above; the parameters are addresses of values, as a single one's are.
                check("cuLaunchCooperativeKernel", unsafe {
                    raw::cuLaunchCooperativeKernel(
                        function,
                        x,
                        y,
                        z,
                        block_x,
                        block_y,
                        block_z,
                        self.dynamic_shared,
                        stream,
                        values,
                    )
                })
            }
            _ => check("cuLaunchKernelEx", code),
        }
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
