//! The table of driver functions.
//!
//! There is one line per function: its name as exported by `libcuda` (with the `_v2` that
//! `cuda.h` adds by macro) and its parameters. Handles and pointers to structures
//! are [`Ptr`], enumerations are `u32`; the C calling convention makes no further
//! distinction. The signatures are from the CUDA Driver API reference and were
//! checked against the declarations of `cust_raw` 0.11.3.

use std::ffi::{c_char, c_void};

use crate::load::Entry;

/// An opaque handle, or a pointer to a structure that is passed on untouched.
pub type Ptr = *mut c_void;

/// Defines, for each line, `raw::NAME`, and for the lines under `linked` also the
/// C symbol `NAME`.
macro_rules! driver_functions {
    (
        linked { $(fn $linked:ident($($la:ident: $lt:ty),* $(,)?);)* }
        looked_up { $(fn $found:ident($($fa:ident: $ft:ty),* $(,)?);)* }
    ) => {
        /// Every function of the table, returning the driver's own code.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub mod raw {
            use super::*;
            $(driver_functions!(@raw $linked($($la: $lt),*));)*
            $(driver_functions!(@raw $found($($fa: $ft),*));)*
        }

        /// The symbols that `cust` links against.
        #[cfg(feature = "symbols")]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        mod symbols {
            use super::*;
            $(
                // SAFETY of the name: the real library is opened privately
                // (RTLD_LOCAL) and never at link time, so nothing else in the
                // program defines this symbol.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $linked($($la: $lt),*) -> u32 {
                    // SAFETY: the arguments are passed on as they are, and the driver's requirements
                    // on them bind whoever calls this symbol.
                    crate::known_to_cust(unsafe { raw::$linked($($la),*) })
                }
            )*
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($linked),)* $(stringify!($found),)*];
    };
    (@raw $name:ident($($arg:ident: $ty:ty),*)) => {
        #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.")]
        ///
        /// # Safety
        /// As the CUDA Driver API reference states for this function: pointers
        /// valid for what the function reads and writes, handles alive.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> u32 {
            static ENTRY: Entry = Entry::new(
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier holds no nul"),
                },
            );
            crate::record(match ENTRY.address() {
                Ok(address) => {
                    type Function = unsafe extern "C" fn($($ty),*) -> u32;
                    // SAFETY: `address` is libcuda's function of this name, whose
                    // parameters are the ones of this line of the table.
                    let function = unsafe {
                        std::mem::transmute::<*mut c_void, Function>(address.as_ptr())
                    };
                    // SAFETY: the arguments are passed on as they are, and the driver's requirements
                    // on them bind whoever calls this symbol.
                    unsafe { function($($arg),*) }
                }
                Err(code) => code,
            })
        }
    };
}

driver_functions! {
    // All that cust 0.3.2 names, so that it links in every profile.
    linked {
        // Start.
        fn cuDriverGetVersion(driver_version: *mut i32);
        fn cuGetErrorString(error: u32, p_str: *mut *const c_char);
        fn cuInit(flags: u32);
        // Devices.
        fn cuDeviceGet(device: *mut i32, ordinal: i32);
        fn cuDeviceGetAttribute(pi: *mut i32, attrib: u32, dev: i32);
        fn cuDeviceGetCount(count: *mut i32);
        fn cuDeviceGetName(name: *mut c_char, len: i32, dev: i32);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: i32);
        // Contexts.
        fn cuCtxCreate_v2(pctx: *mut Ptr, flags: u32, dev: i32);
        fn cuCtxDestroy_v2(ctx: Ptr);
        fn cuCtxGetApiVersion(ctx: Ptr, version: *mut u32);
        fn cuCtxGetCacheConfig(pconfig: *mut u32);
        fn cuCtxGetCurrent(pctx: *mut Ptr);
        fn cuCtxGetDevice(device: *mut i32);
        fn cuCtxGetFlags(flags: *mut u32);
        fn cuCtxGetLimit(pvalue: *mut usize, limit: u32);
        fn cuCtxGetSharedMemConfig(p_config: *mut u32);
        fn cuCtxGetStreamPriorityRange(least_priority: *mut i32, greatest_priority: *mut i32);
        fn cuCtxPopCurrent_v2(pctx: *mut Ptr);
        fn cuCtxPushCurrent_v2(ctx: Ptr);
        fn cuCtxSetCacheConfig(config: u32);
        fn cuCtxSetCurrent(ctx: Ptr);
        fn cuCtxSetLimit(limit: u32, value: usize);
        fn cuCtxSetSharedMemConfig(config: u32);
        fn cuCtxSynchronize();
        fn cuDevicePrimaryCtxRelease_v2(dev: i32);
        fn cuDevicePrimaryCtxReset_v2(dev: i32);
        fn cuDevicePrimaryCtxRetain(pctx: *mut Ptr, dev: i32);
        fn cuDevicePrimaryCtxSetFlags_v2(dev: i32, flags: u32);
        // Modules.
        fn cuFuncGetAttribute(pi: *mut i32, attrib: u32, hfunc: Ptr);
        fn cuFuncSetCacheConfig(hfunc: Ptr, config: u32);
        fn cuFuncSetSharedMemConfig(hfunc: Ptr, config: u32);
        fn cuLinkAddData_v2(
            state: Ptr, kind: u32, data: Ptr, size: usize, name: *const c_char, num_options: u32,
            options: Ptr, option_values: *mut Ptr,
        );
        fn cuLinkComplete(state: Ptr, cubin_out: *mut Ptr, size_out: *mut usize);
        fn cuLinkCreate_v2(
            num_options: u32, options: Ptr, option_values: *mut Ptr, state_out: *mut Ptr,
        );
        fn cuLinkDestroy(state: Ptr);
        fn cuModuleGetFunction(hfunc: *mut Ptr, hmod: Ptr, name: *const c_char);
        fn cuModuleGetGlobal_v2(dptr: *mut u64, bytes: *mut usize, hmod: Ptr, name: *const c_char);
        fn cuModuleLoad(module: *mut Ptr, fname: *const c_char);
        fn cuModuleLoadData(module: *mut Ptr, image: Ptr);
        fn cuModuleLoadDataEx(
            module: *mut Ptr, image: Ptr, num_options: u32, options: Ptr, option_values: *mut Ptr,
        );
        fn cuModuleUnload(hmod: Ptr);
        fn cuOccupancyAvailableDynamicSMemPerBlock(
            dynamic_smem_size: *mut usize, func: Ptr, num_blocks: i32, block_size: i32,
        );
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            num_blocks: *mut i32, func: Ptr, block_size: i32, dynamic_smem_size: usize,
        );
        fn cuOccupancyMaxPotentialBlockSize(
            min_grid_size: *mut i32, block_size: *mut i32, func: Ptr,
            block_size_to_dynamic_smem_size: Ptr, dynamic_smem_size: usize, block_size_limit: i32,
        );
        // Memory.
        fn cuMemAdvise(dev_ptr: u64, count: usize, advice: u32, device: i32);
        fn cuMemAllocAsync(dptr: *mut u64, bytesize: usize, h_stream: Ptr);
        fn cuMemAllocHost_v2(pp: *mut Ptr, bytesize: usize);
        fn cuMemAllocManaged(dptr: *mut u64, bytesize: usize, flags: u32);
        fn cuMemAlloc_v2(dptr: *mut u64, bytesize: usize);
        fn cuMemFreeAsync(dptr: u64, h_stream: Ptr);
        fn cuMemFreeHost(p: Ptr);
        fn cuMemFree_v2(dptr: u64);
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuMemPrefetchAsync(dev_ptr: u64, count: usize, dst_device: i32, h_stream: Ptr);
        fn cuMemcpy2D_v2(p_copy: Ptr);
        fn cuMemcpyAtoH_v2(dst_host: Ptr, src_array: Ptr, src_offset: usize, byte_count: usize);
        fn cuMemcpyDtoDAsync_v2(dst_device: u64, src_device: u64, byte_count: usize, h_stream: Ptr);
        fn cuMemcpyDtoD_v2(dst_device: u64, src_device: u64, byte_count: usize);
        fn cuMemcpyDtoHAsync_v2(dst_host: Ptr, src_device: u64, byte_count: usize, h_stream: Ptr);
        fn cuMemcpyDtoH_v2(dst_host: Ptr, src_device: u64, byte_count: usize);
        fn cuMemcpyHtoA_v2(dst_array: Ptr, dst_offset: usize, src_host: Ptr, byte_count: usize);
        fn cuMemcpyHtoDAsync_v2(dst_device: u64, src_host: Ptr, byte_count: usize, h_stream: Ptr);
        fn cuMemcpyHtoD_v2(dst_device: u64, src_host: Ptr, byte_count: usize);
        fn cuMemsetD16Async(dst_device: u64, us: u16, n: usize, h_stream: Ptr);
        fn cuMemsetD16_v2(dst_device: u64, us: u16, n: usize);
        fn cuMemsetD32Async(dst_device: u64, ui: u32, n: usize, h_stream: Ptr);
        fn cuMemsetD32_v2(dst_device: u64, ui: u32, n: usize);
        fn cuMemsetD8Async(dst_device: u64, uc: u8, n: usize, h_stream: Ptr);
        fn cuMemsetD8_v2(dst_device: u64, uc: u8, n: usize);
        // Streams, events, launches.
        fn cuEventCreate(ph_event: *mut Ptr, flags: u32);
        fn cuEventDestroy_v2(h_event: Ptr);
        fn cuEventElapsedTime(p_milliseconds: *mut f32, h_start: Ptr, h_end: Ptr);
        fn cuEventQuery(h_event: Ptr);
        fn cuEventRecord(h_event: Ptr, h_stream: Ptr);
        fn cuEventSynchronize(h_event: Ptr);
        fn cuLaunchHostFunc(h_stream: Ptr, callback: Ptr, user_data: Ptr);
        fn cuLaunchKernel(
            f: Ptr, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
            block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: Ptr,
            kernel_params: *mut Ptr, extra: *mut Ptr,
        );
        fn cuStreamCreateWithPriority(ph_stream: *mut Ptr, flags: u32, priority: i32);
        fn cuStreamDestroy_v2(h_stream: Ptr);
        fn cuStreamGetFlags(h_stream: Ptr, flags: *mut u32);
        fn cuStreamGetPriority(h_stream: Ptr, priority: *mut i32);
        fn cuStreamSynchronize(h_stream: Ptr);
        fn cuStreamWaitEvent(h_stream: Ptr, h_event: Ptr, flags: u32);
        // Graphs.
        fn cuGraphAddKernelNode(
            ph_graph_node: *mut Ptr, h_graph: Ptr, dependencies: *mut Ptr,
            num_dependencies: usize, node_params: Ptr,
        );
        fn cuGraphCreate(ph_graph: *mut Ptr, flags: u32);
        fn cuGraphDebugDotPrint(h_graph: Ptr, path: *const c_char, flags: u32);
        fn cuGraphDestroy(h_graph: Ptr);
        fn cuGraphGetEdges(h_graph: Ptr, from: *mut Ptr, to: *mut Ptr, num_edges: *mut usize);
        fn cuGraphGetNodes(h_graph: Ptr, nodes: *mut Ptr, num_nodes: *mut usize);
        fn cuGraphKernelNodeGetParams(h_node: Ptr, node_params: Ptr);
        fn cuGraphNodeGetType(h_node: Ptr, kind: Ptr);
        // Arrays, textures, surfaces, external memory.
        fn cuArray3DCreate_v2(p_handle: *mut Ptr, p_allocate_array: Ptr);
        fn cuArray3DGetDescriptor_v2(p_array_descriptor: Ptr, h_array: Ptr);
        fn cuArrayDestroy(h_array: Ptr);
        fn cuDestroyExternalMemory(ext_mem: Ptr);
        fn cuExternalMemoryGetMappedBuffer(dev_ptr: *mut u64, ext_mem: Ptr, buffer_desc: Ptr);
        fn cuImportExternalMemory(ext_mem_out: *mut Ptr, mem_handle_desc: Ptr);
        fn cuSurfObjectCreate(p_surf_object: *mut u64, p_res_desc: Ptr);
        fn cuSurfObjectDestroy(surf_object: u64);
        fn cuSurfObjectGetResourceDesc(p_res_desc: Ptr, surf_object: u64);
        fn cuTexObjectCreate(
            p_tex_object: *mut u64, p_res_desc: Ptr, p_tex_desc: Ptr, p_res_view_desc: Ptr,
        );
        fn cuTexObjectDestroy(tex_object: u64);
        fn cuTexObjectGetResourceDesc(p_res_desc: Ptr, tex_object: u64);
        fn cuTexObjectGetResourceViewDesc(p_res_view_desc: Ptr, tex_object: u64);
    }
    // Functions that cust lacks.
    looked_up {
        fn cuGetErrorName(error: u32, name: *mut *const c_char);
        fn cuFuncSetAttribute(function: Ptr, attribute: u32, value: i32);
        fn cuFuncGetParamInfo(function: Ptr, index: usize, offset: *mut usize, size: *mut usize);
        fn cuFuncGetName(name: *mut *const c_char, function: Ptr);
        fn cuModuleGetFunctionCount(count: *mut u32, module: Ptr);
        fn cuModuleEnumerateFunctions(functions: *mut Ptr, count: u32, module: Ptr);
        fn cuMemAddressReserve(
            ptr: *mut u64, size: usize, alignment: usize, addr: u64, flags: u64,
        );
        fn cuMemAddressFree(ptr: u64, size: usize);
        fn cuMemCreate(handle: *mut u64, size: usize, prop: Ptr, flags: u64);
        fn cuMemRelease(handle: u64);
        fn cuMemMap(ptr: u64, size: usize, offset: usize, handle: u64, flags: u64);
        fn cuMemUnmap(ptr: u64, size: usize);
        fn cuMemSetAccess(ptr: u64, size: usize, desc: Ptr, count: usize);
        fn cuMemGetAllocationGranularity(granularity: *mut usize, prop: Ptr, option: u32);
        fn cuLaunchCooperativeKernel(
            f: Ptr, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
            block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: Ptr,
            kernel_params: *mut Ptr,
        );
        fn cuLaunchKernelEx(config: Ptr, function: Ptr, params: *mut Ptr, extra: *mut Ptr);
        fn cuOccupancyMaxActiveClusters(num_clusters: *mut i32, func: Ptr, config: Ptr);
        fn cuStreamGetCtx(stream: Ptr, context: *mut Ptr);
        fn cuStreamIsCapturing(stream: Ptr, status: *mut u32);
        fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
        fn cuStreamBeginCapture_v2(stream: Ptr, mode: u32);
        fn cuStreamEndCapture(stream: Ptr, graph: *mut Ptr);
        fn cuGraphInstantiateWithFlags(exec: *mut Ptr, graph: Ptr, flags: u64);
        fn cuGraphUpload(exec: Ptr, stream: Ptr);
        fn cuGraphLaunch(exec: Ptr, stream: Ptr);
        fn cuGraphExecDestroy(exec: Ptr);
        fn cuTensorMapEncodeTiled(
            map: Ptr,
            element: u32,
            rank: u32,
            address: Ptr,
            dims: *const u64,
            strides: *const u64,
            box_dims: *const u32,
            element_strides: *const u32,
            interleave: u32,
            swizzle: u32,
            l2_promotion: u32,
            fill: u32,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn the_table_names_each_function_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        let repeated = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(repeated, None);
        assert!(names.iter().all(|name| name.starts_with("cu")));
    }

    #[test]
    fn every_function_is_in_the_installed_driver() {
        let library = match crate::library() {
            Ok(library) => library,
            Err(error) => return skipped::test(error),
        };
        let missing: Vec<_> = NAMES.iter().filter(|name| !library.has(name)).collect();
        assert!(missing.is_empty(), "not in {}: {missing:?}", library.path());
    }
}
