//! Launches and kernels.

use crate::abi::{Callback, Dim3, In, Out, Text, exports};
use crate::arguments::{Attribute, Attributes, Shape};
use crate::errors::{Code, Failure, INVALID_VALUE, MISSING_CONFIGURATION};
use crate::graphs;
use crate::occupancy::{RESERVED_SHARED, resident_ctas};
use crate::state::{Configuration, State};
use std::cell::RefCell;

thread_local! {
    /// Configurations between `<<<>>>` and the kernel's stub.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// `cudaLaunchConfig_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: Dim3,
    block: Dim3,
    dynamic_shared: u64,
    stream: u64,
    attributes: In<Attribute>,
    count: u32,
}

/// `cudaFuncAttributes`
#[repr(C)]
struct FunctionAttributes {
    shared: u64,
    constants: u64,
    local: u64,
    max_threads: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode: i32,
    max_dynamic: i32,
    carve_out: i32,
    cluster_must_be_set: i32,
    cluster: [i32; 3],
    cluster_policy: i32,
    non_portable: i32,
    reserved: [i32; 16],
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    dynamic_shared: u64,
    stream: u64,
) -> u32 {
    let configuration =
        Configuration { grid: grid.into(), block: block.into(), dynamic_shared, stream };
    CONFIGURATIONS.with_borrow_mut(|all| all.push(configuration));
    0
}

fn shape(grid: Dim3, block: Dim3, dynamic_shared: u64, stream: u64) -> Shape {
    Shape { grid: grid.into(), block: block.into(), dynamic_shared, stream }
}

impl State {
    fn attribute_of(&mut self, kernel: u64, number: i32, value: i32) -> Result<(), Failure> {
        let info = self.kernel_info(kernel)?;
        let most = self.gpu().shared_per_cta.saturating_sub(info.static_shared);
        let kernel = self.kernel(kernel)?;
        match number {
            8 => {
                let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= most);
                let Some(bytes) = bytes else {
                    let message =
                        format!("MaxDynamicSharedMemorySize: required 0 to {most}, actual {value}");
                    return Err(Failure::new(INVALID_VALUE, message));
                };
                kernel.max_dynamic = Some(bytes);
                Ok(())
            }
            14 => {
                kernel.non_portable = value != 0;
                Ok(())
            }
            // Preferences: carve-out of shared memory, scheduling of clusters.
            9 | 15 => Ok(()),
            _ => Err(Failure::not_modelled(&format!("attribute {number} of a kernel"))),
        }
    }

    /// Sets an attribute of a kernel.
    pub(crate) fn set_kernel_attribute(
        &mut self,
        kernel: u64,
        number: i32,
        value: i32,
    ) -> Result<(), Failure> {
        self.attribute_of(kernel, number, value)
    }

    /// CTAs of a kernel that an SM holds.
    pub(crate) fn resident(
        &mut self,
        kernel: u64,
        threads: i32,
        dynamic: u64,
    ) -> Result<i32, Failure> {
        let threads = u32::try_from(threads).ok().filter(|threads| *threads != 0);
        let Some(threads) = threads else {
            return Err(Failure::new(INVALID_VALUE, "block: required at least one thread"));
        };
        let info = self.kernel_info(kernel)?;
        let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX);
        Ok(resident_ctas(&self.gpu(), &info, threads, dynamic) as i32)
    }

    /// Clusters of a kernel that the machine holds.
    pub(crate) fn resident_clusters(
        &mut self,
        kernel: u64,
        shape: Shape,
        attributes: Attributes,
    ) -> Result<i32, Failure> {
        let info = self.kernel_info(kernel)?;
        let cluster: u32 = attributes.cluster.or(info.cluster).unwrap_or([1; 3]).iter().product();
        let threads = shape.block.iter().product();
        let dynamic = u32::try_from(shape.dynamic_shared).unwrap_or(u32::MAX);
        let gpu = self.gpu();
        let per_sm = resident_ctas(&gpu, &info, threads, dynamic);
        Ok(gpu.resident_clusters(cluster, per_sm) as i32)
    }
}

fn set_function_attributes(
    state: &mut State,
    out: Out<FunctionAttributes>,
    function: u64,
) -> Result<(), Failure> {
    let kernel = state.registered_kernel(function)?;
    let info = state.kernel_info(kernel)?;
    let gpu = state.gpu();
    let (major, minor) = gpu.compute_capability();
    let kernel = state.kernel(kernel)?.clone();
    let threads = info.reqntid.or(info.maxntid).map(|extent| extent.iter().product::<u32>());
    let cluster = info.cluster.unwrap_or([0; 3]).map(|extent| extent as i32);
    out.set(FunctionAttributes {
        shared: info.static_shared.into(),
        constants: 0,
        local: 0,
        max_threads: threads.unwrap_or(gpu.max_threads_per_cta) as i32,
        // PTX has no registers of a machine.
        registers: info.maxnreg.unwrap_or(0) as i32,
        ptx_version: (major * 10 + minor) as i32,
        binary_version: (major * 10 + minor) as i32,
        cache_mode: 0,
        max_dynamic: kernel.max_dynamic.unwrap_or(48 << 10) as i32,
        carve_out: -1,
        cluster_must_be_set: info.cluster.is_some().into(),
        cluster,
        cluster_policy: 0,
        non_portable: kernel.non_portable.into(),
        reserved: [0; 16],
    })
}

exports! { runtime;
    query __cudaPopCallConfiguration(
        grid: Out<Dim3>, block: Out<Dim3>, dynamic_shared: Out<u64>, stream: Out<u64>,
    ) |_state| {
        let Some(found) = CONFIGURATIONS.with_borrow_mut(Vec::pop) else {
            return Err(Failure::new(MISSING_CONFIGURATION, "there is no configuration"));
        };
        let dim = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        grid.set(dim(found.grid))?;
        block.set(dim(found.block))?;
        dynamic_shared.set(found.dynamic_shared)?;
        stream.set(found.stream)
    }

    query __cudaGetKernel | cudaGetKernel | cudaGetFuncBySymbol(kernel: Out<u64>, function: u64) |state| {
        kernel.set(state.registered_kernel(function)?)
    }

    query __cudaLaunchKernel | __cudaLaunchKernel_ptsz(
        kernel: u64, grid: Dim3, block: Dim3, arguments: In<u64>, dynamic_shared: u64, stream: u64,
    ) |state| {
        let shape = shape(grid, block, dynamic_shared, stream);
        state.launch_with(kernel, shape, Attributes::default(), arguments)
    }

    query cudaLaunchKernel | cudaLaunchKernel_ptsz(
        function: u64, grid: Dim3, block: Dim3, arguments: In<u64>, dynamic_shared: u64, stream: u64,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        let shape = shape(grid, block, dynamic_shared, stream);
        state.launch_with(kernel, shape, Attributes::default(), arguments)
    }

    query cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz(
        function: u64, grid: Dim3, block: Dim3, arguments: In<u64>, dynamic_shared: u64, stream: u64,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        let shape = shape(grid, block, dynamic_shared, stream);
        let attributes = Attributes { cooperative: true, ..Attributes::default() };
        state.launch_with(kernel, shape, attributes, arguments)
    }

    query cudaLaunchKernelExC | cudaLaunchKernelExC_ptsz(
        config: In<Config>, function: u64, arguments: In<u64>,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        let config = config.get()?;
        let attributes = Attributes::read(&config.attributes.all(config.count as usize)?)?;
        let shape = shape(config.grid, config.block, config.dynamic_shared, config.stream);
        state.launch_with(kernel, shape, attributes, arguments)
    }

    free cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz(
        stream: u64, function: extern "C" fn(u64), argument: u64,
    ) |_state| {
        graphs::host_function(stream, Callback::Host { function, argument })
    }

    free cudaStreamAddCallback | cudaStreamAddCallback_ptsz(
        stream: u64, function: extern "C" fn(u64, Code, u64), argument: u64, _flags: u32,
    ) |_state| {
        graphs::host_function(stream, Callback::Stream { function, stream, argument })
    }

    query cudaFuncSetAttribute(function: u64, number: i32, value: i32) |state| {
        let kernel = state.registered_kernel(function)?;
        state.set_kernel_attribute(kernel, number, value)
    }

    query cudaKernelSetAttributeForDevice(kernel: u64, number: i32, value: i32, device: i32) |state| {
        crate::state::device(device)?;
        state.set_kernel_attribute(kernel, number, value)
    }

    query cudaFuncSetCacheConfig(function: u64, _config: i32) |state| {
        state.registered_kernel(function).map(drop)
    }

    query cudaFuncGetAttributes(attributes: Out<FunctionAttributes>, function: u64) |state| {
        set_function_attributes(state, attributes, function)
    }

    query cudaFuncGetParamInfo(function: u64, index: u64, offset: Out<u64>, size: Out<u64>) |state| {
        let kernel = state.registered_kernel(function)?;
        let info = state.kernel_info(kernel)?;
        let Some(param) = usize::try_from(index).ok().and_then(|index| info.params.get(index)) else {
            return Err(Failure::silent(INVALID_VALUE));
        };
        offset.set(param.offset.into())?;
        size.set_if_wanted(param.size.into());
        Ok(())
    }

    query cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        count: Out<i32>, function: u64, threads: i32, dynamic: u64,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        count.set(state.resident(kernel, threads, dynamic)?)
    }

    query cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>, function: u64, threads: i32, dynamic: u64, _flags: u32,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        count.set(state.resident(kernel, threads, dynamic)?)
    }

    query cudaOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<u64>, function: u64, ctas: i32, threads: i32,
    ) |state| {
        let kernel = state.registered_kernel(function)?;
        let info = state.kernel_info(kernel)?;
        let gpu = state.gpu();
        let ctas = u32::try_from(ctas).ok().filter(|ctas| *ctas != 0);
        let Some(ctas) = ctas.filter(|_| threads > 0) else {
            return Err(Failure::new(INVALID_VALUE, "required at least one CTA of at least one thread"));
        };
        let each = (gpu.shared_per_sm / ctas).saturating_sub(RESERVED_SHARED);
        bytes.set(each.min(gpu.shared_per_cta).saturating_sub(info.static_shared).into())
    }

    query cudaOccupancyMaxActiveClusters(count: Out<i32>, function: u64, config: In<Config>) |state| {
        let kernel = state.registered_kernel(function)?;
        let config = config.get()?;
        let attributes = Attributes::read(&config.attributes.all(config.count as usize)?)?;
        let shape = shape(config.grid, config.block, config.dynamic_shared, config.stream);
        count.set(state.resident_clusters(kernel, shape, attributes)?)
    }

    query cudaOccupancyMaxPotentialClusterSize(size: Out<i32>, function: u64, _config: In<Config>) |state| {
        let kernel = state.registered_kernel(function)?;
        let most = state.gpu().max_cluster as i32;
        size.set(if state.kernel(kernel)?.non_portable { most } else { 8 })
    }

    query cudaGetSymbolAddress(address: Out<u64>, symbol: u64) |state| {
        address.set(state.registered_variable(symbol)?.0)
    }

    query cudaGetSymbolSize(size: Out<u64>, symbol: u64) |state| {
        size.set(state.registered_variable(symbol)?.1)
    }

    query cudaLibraryLoadData(
        library: Out<u64>, code: u64, _options: u64, _values: u64, _count: u32, _library_options: u64,
        _library_values: u64, _library_count: u32,
    ) |state| {
        library.set(state.load_module(code)?)
    }

    query cudaLibraryUnload(library: u64) |state| {
        state.modules.remove(&library).map(drop).ok_or_else(|| crate::modules::unknown("library", library))
    }

    query cudaLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) |state| {
        kernel.set(state.kernel_of(library, &name.get()?)?)
    }

    query cudaLibraryGetGlobal(address: Out<u64>, bytes: Out<u64>, library: u64, name: Text) |state| {
        let (found, size) = state.variable(library, &name.get()?)?;
        address.set_if_wanted(found);
        bytes.set_if_wanted(size);
        Ok(())
    }
}
