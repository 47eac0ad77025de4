//! Launches and occupancy.

use crate::abi::{Callback, In, Out, exports};
use crate::arguments::{Attribute, Attributes, Shape};
use crate::graphs;

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    stream: u64,
    attributes: In<Attribute>,
    count: u32,
}

impl Config {
    fn shape(self) -> Shape {
        let Self { grid, block, dynamic_shared, stream, .. } = self;
        Shape { grid, block, dynamic_shared: dynamic_shared.into(), stream }
    }

    fn attributes(self) -> Result<Attributes, crate::errors::Failure> {
        Attributes::read(&self.attributes.all(self.count as usize)?)
    }
}

exports! { driver;
    query cuLaunchKernel | cuLaunchKernel_ptsz(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        dynamic_shared: u32, stream: u64, arguments: In<u64>, extra: In<u64>,
    ) |state| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared: dynamic_shared.into(), stream };
        state.launch_with_extra(kernel, shape, Attributes::default(), arguments, extra)
    }

    query cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        dynamic_shared: u32, stream: u64, arguments: In<u64>,
    ) |state| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared: dynamic_shared.into(), stream };
        let attributes = Attributes { cooperative: true, ..Attributes::default() };
        state.launch_with(kernel, shape, attributes, arguments)
    }

    query cuLaunchKernelEx | cuLaunchKernelEx_ptsz(
        config: In<Config>, kernel: u64, arguments: In<u64>, extra: In<u64>,
    ) |state| {
        let config = config.get()?;
        state.launch_with_extra(kernel, config.shape(), config.attributes()?, arguments, extra)
    }

    free cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        stream: u64, function: extern "C" fn(u64), argument: u64,
    ) |_state| {
        graphs::host_function(stream, Callback::Host { function, argument })
    }

    query cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: Out<i32>, kernel: u64, threads: i32, dynamic: u64,
    ) |state| {
        count.set(state.resident(kernel, threads, dynamic)?)
    }

    query cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>, kernel: u64, threads: i32, dynamic: u64, _flags: u32,
    ) |state| {
        count.set(state.resident(kernel, threads, dynamic)?)
    }

    query cuOccupancyMaxActiveClusters(count: Out<i32>, kernel: u64, config: In<Config>) |state| {
        let config = config.get()?;
        count.set(state.resident_clusters(kernel, config.shape(), config.attributes()?)?)
    }

    query cuOccupancyMaxPotentialClusterSize(size: Out<i32>, kernel: u64, _config: u64) |state| {
        let most = state.gpu().max_cluster as i32;
        size.set(if state.kernel(kernel)?.non_portable { most } else { 8 })
    }
}
