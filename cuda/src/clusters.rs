//! The number of clusters that a GPU runs at a time, by the driver.

use std::ptr;

use cuda_lazy::raw;

use super::error::{CudaError, check};
use super::launch::{LaunchConfig, cluster_attribute};
use super::module::LoadedModule;
use super::probe::DeviceInfo;
use super::resident::ResidentClusters;

/// A kernel that does nothing. With all the shared memory of a block, each of its blocks has an SM
/// for itself.
const PROBE: &str = ".version 8.0
.target sm_90
.address_size 64
.visible .entry probe() { ret; }
";
const THREADS: u32 = 128;

/// The clusters of the GPU, whose context is current.
pub(crate) fn resident(info: &DeviceInfo) -> Result<ResidentClusters, CudaError> {
    let module = LoadedModule::compile(PROBE)?;
    let kernel = module.kernel("probe")?;
    kernel.allow_dynamic_shared(info.shared_per_block)?;
    let mut counts = [0; ResidentClusters::SIZES.len()];
    for (count, size) in counts.iter_mut().zip(ResidentClusters::SIZES) {
        let mut attribute = cluster_attribute([size, 1, 1]);
        let mut config = LaunchConfig {
            grid: [size, 1, 1],
            block: [THREADS, 1, 1],
            dynamic_shared: info.shared_per_block,
            stream: ptr::null_mut(),
            attributes: &raw mut attribute,
            attribute_count: 1,
        };
        let mut clusters = 0;
        // SAFETY: `clusters` is writable; the configuration and its attribute outlive the call; the
        // function is alive with its module.
        check("cuOccupancyMaxActiveClusters", unsafe {
            raw::cuOccupancyMaxActiveClusters(
                &mut clusters,
                kernel.function,
                (&raw mut config).cast(),
            )
        })?;
        *count = u32::try_from(clusters).unwrap_or(0);
    }
    Ok(ResidentClusters::new(counts))
}
