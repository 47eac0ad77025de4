//! The driver's functions that are watched.

use crate::abi::{Code, SUCCESS, bytes, hooks, set_word, text, word};
use crate::launch::{self, Arguments, Shape};
use crate::modules::Loaded;
use crate::settings::complain_once;
use crate::state::{self, Kernel};
use ptx_emu_core::tensor_map::{
    ElementType, Fill, Interleave, L2Promotion, MAX_RANK, Swizzle, TensorMap,
};

/// Notes the memory whose address the driver wrote to `out`.
fn allocated(maker: &str, out: u64, bytes: u64, code: Code) -> Code {
    if code == SUCCESS {
        state::lock().allocated(maker, word(out), bytes);
    }
    code
}

/// Forgets memory, whose addresses the driver may give out again.
fn freed(address: u64, code: Code) -> Code {
    if code == SUCCESS {
        state::lock().freed(address);
    }
    code
}

/// Notes the module whose handle the driver wrote to `out`, and what its variables hold.
fn loaded(out: u64, image: u64, library: bool, code: Code) -> Code {
    if code == SUCCESS {
        let mut module = Loaded::new(image, library);
        // A library has variables for a context, of which there may be none yet.
        if !library {
            module.note_initial(word(out));
        }
        state::lock().loaded(word(out), module);
    }
    code
}

/// Handles a file as [`loaded`] handles an image.
fn loaded_file(out: u64, path: u64, library: bool, code: Code) -> Code {
    let path = String::from_utf8_lossy(&text(path)).into_owned();
    // PTX need not end with a zero in a file.
    let read = std::fs::read(path).map(|image| [image, vec![0; 16]].concat());
    match read {
        Ok(image) => loaded(out, image.as_ptr().expose_provenance() as u64, library, code),
        Err(_) => code,
    }
}

fn kernel(out: u64, module: u64, name: u64, code: Code) -> Code {
    if code == SUCCESS {
        let mut state = state::lock();
        let name = String::from_utf8_lossy(&text(name)).into_owned();
        let module = state.own(module);
        state.kernels.insert(word(out), Kernel { module, name });
    }
    code
}

/// Notes what variables hold before the program gets to know where they are.
fn before_variable(module: u64) {
    let mut state = state::lock();
    let own = state.own(module);
    if let Some(found) = state.modules.get_mut(&own) {
        found.note_initial(own);
    }
}

/// The watched function in place of the one that the program asked the driver for.
fn replaced(symbol: u64, out: u64, version: i32, flags: u64) {
    const PER_THREAD_STREAM: u64 = 2;
    let symbol = String::from_utf8_lossy(&text(symbol)).into_owned();
    let exports = exports();
    let find = |name: String| exports.iter().find(|(known, _)| *known == name).copied();
    let per_thread = (flags & PER_THREAD_STREAM != 0).then(|| find(format!("{symbol}_ptsz")));
    let found = match symbol.as_str() {
        "cuGetProcAddress" if version < 12000 => find(symbol),
        _ => per_thread.flatten().or_else(|| find(format!("{symbol}_v2"))).or_else(|| find(symbol)),
    };
    if let Some((_, address)) = found
        && word(out) != 0
    {
        set_word(out, address);
    }
}

/// Notes what a tensor map was made of.
#[allow(clippy::too_many_arguments)]
fn encoded(
    out: u64,
    element: u32,
    rank: u32,
    address: u64,
    [dims, strides, box_dims, element_strides]: [u64; 4],
    [interleave, swizzle, l2, fill]: [u32; 4],
) -> Option<()> {
    let rank = Some(rank as usize).filter(|rank| (1..=MAX_RANK).contains(rank))?;
    let words = |at: u64, count: usize| (0..count).map(|i| word(at + 8 * i as u64)).collect();
    let halves = |at: u64| {
        (0..rank).map(move |i| {
            bytes(at + 4 * i as u64, 4)
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u32::from(*byte))
        })
    };
    let map = TensorMap {
        element: ElementType::from_number(element)?,
        address,
        dims: words(dims, rank),
        strides: words(strides, rank - 1),
        box_dims: halves(box_dims).collect(),
        element_strides: halves(element_strides).collect(),
        interleave: Interleave::from_number(interleave)?,
        swizzle: Swizzle::from_number(swizzle)?,
        l2_promotion: L2Promotion::from_number(l2)?,
        fill: Fill::from_number(fill)?,
    };
    let encoded: [u8; 128] = bytes(out, 128).try_into().ok()?;
    let mut state = state::lock();
    if !state.maps.iter().any(|(known, _)| *known == encoded) {
        state.maps.push((encoded, map));
    }
    Some(())
}

fn graph(real: impl FnOnce() -> Code) -> Code {
    complain_once("launches of graphs are not captured".to_owned());
    real()
}

hooks! {
    fn cuGetProcAddress(symbol: u64, out: u64, version: i32, flags: u64) |real| {
        let code = real();
        if code == SUCCESS {
            replaced(symbol, out, version, flags);
        }
        code
    }
    fn cuGetProcAddress_v2(symbol: u64, out: u64, version: i32, flags: u64, status: u64) |real| {
        let code = real();
        if code == SUCCESS {
            replaced(symbol, out, version, flags);
        }
        code
    }

    fn cuModuleLoad(out: u64, path: u64) |real| { loaded_file(out, path, false, real()) }
    fn cuModuleLoadData(out: u64, image: u64) |real| { loaded(out, image, false, real()) }
    fn cuModuleLoadFatBinary(out: u64, image: u64) |real| { loaded(out, image, false, real()) }
    fn cuModuleLoadDataEx(out: u64, image: u64, count: u32, options: u64, values: u64) |real| {
        loaded(out, image, false, real())
    }
    fn cuLibraryLoadData(
        out: u64, image: u64, options: u64, values: u64, count: u32, library_options: u64,
        library_values: u64, library_count: u32,
    ) |real| {
        loaded(out, image, true, real())
    }
    fn cuLibraryLoadFromFile(
        out: u64, path: u64, options: u64, values: u64, count: u32, library_options: u64,
        library_values: u64, library_count: u32,
    ) |real| {
        loaded_file(out, path, true, real())
    }
    fn cuModuleUnload(module: u64) |real| {
        let code = real();
        state::lock().unloaded(module);
        code
    }
    fn cuLibraryUnload(library: u64) |real| {
        let code = real();
        state::lock().unloaded(library);
        code
    }
    fn cuModuleGetFunction(out: u64, module: u64, name: u64) |real| {
        kernel(out, module, name, real())
    }
    fn cuLibraryGetKernel(out: u64, library: u64, name: u64) |real| {
        kernel(out, library, name, real())
    }
    fn cuLibraryGetModule(out: u64, library: u64) |real| {
        let code = real();
        if code == SUCCESS {
            state::lock().aliases.insert(word(out), library);
        }
        code
    }
    fn cuKernelGetFunction(out: u64, kernel: u64) |real| {
        let code = real();
        if code == SUCCESS {
            let mut state = state::lock();
            if let Some(known) = state.kernels.get(&kernel).cloned() {
                state.kernels.insert(word(out), known);
            }
        }
        code
    }
    fn cuModuleGetGlobal_v2(address: u64, size: u64, module: u64, name: u64) |real| {
        before_variable(module);
        real()
    }
    fn cuLibraryGetGlobal(address: u64, size: u64, library: u64, name: u64) |real| {
        before_variable(library);
        real()
    }

    fn cuMemAlloc_v2(out: u64, size: u64) |real| { allocated("cuMemAlloc", out, size, real()) }
    fn cuMemAllocPitch_v2(out: u64, pitch: u64, width: u64, height: u64, element: u32) |real| {
        let code = real();
        let size = if code == SUCCESS { word(pitch).saturating_mul(height) } else { 0 };
        allocated("cuMemAllocPitch", out, size, code)
    }
    fn cuMemAllocManaged(out: u64, size: u64, flags: u32) |real| {
        allocated("cuMemAllocManaged", out, size, real())
    }
    fn cuMemAllocAsync(out: u64, size: u64, stream: u64) |real| {
        allocated("cuMemAllocAsync", out, size, real())
    }
    fn cuMemAllocAsync_ptsz(out: u64, size: u64, stream: u64) |real| {
        allocated("cuMemAllocAsync", out, size, real())
    }
    fn cuMemAllocFromPoolAsync(out: u64, size: u64, pool: u64, stream: u64) |real| {
        allocated("cuMemAllocFromPoolAsync", out, size, real())
    }
    fn cuMemAllocFromPoolAsync_ptsz(out: u64, size: u64, pool: u64, stream: u64) |real| {
        allocated("cuMemAllocFromPoolAsync", out, size, real())
    }
    fn cuMemAllocHost_v2(out: u64, size: u64) |real| {
        allocated("cuMemAllocHost", out, size, real())
    }
    fn cuMemHostAlloc(out: u64, size: u64, flags: u32) |real| {
        allocated("cuMemHostAlloc", out, size, real())
    }
    fn cuMemHostRegister_v2(address: u64, size: u64, flags: u32) |real| {
        let code = real();
        if code == SUCCESS {
            state::lock().allocated("cuMemHostRegister", address, size);
        }
        code
    }
    fn cuMemMap(address: u64, size: u64, offset: u64, memory: u64, flags: u64) |real| {
        let code = real();
        if code == SUCCESS {
            state::lock().allocated("cuMemMap", address, size);
        }
        code
    }
    fn cuMemFree_v2(address: u64) |real| { freed(address, real()) }
    fn cuMemFreeAsync(address: u64, stream: u64) |real| { freed(address, real()) }
    fn cuMemFreeAsync_ptsz(address: u64, stream: u64) |real| { freed(address, real()) }
    fn cuMemFreeHost(address: u64) |real| { freed(address, real()) }
    fn cuMemHostUnregister(address: u64) |real| { freed(address, real()) }
    fn cuMemUnmap(address: u64, size: u64) |real| { freed(address, real()) }

    fn cuTensorMapEncodeTiled(
        out: u64, element: u32, rank: u32, address: u64, dims: u64, strides: u64, box_dims: u64,
        element_strides: u64, interleave: u32, swizzle: u32, l2: u32, fill: u32,
    ) |real| {
        let code = real();
        if code == SUCCESS {
            // Bytes that it does not know stay as the driver made them.
            let lists = [dims, strides, box_dims, element_strides];
            let _ = encoded(out, element, rank, address, lists, [interleave, swizzle, l2, fill]);
        }
        code
    }

    fn cuLaunchKernel(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, values: u64, extra: u64,
    ) |real| {
        let shape = Shape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, stream);
        launch::launch(kernel, shape, Arguments { values, extra }, real)
    }
    fn cuLaunchKernel_ptsz(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, values: u64, extra: u64,
    ) |real| {
        let shape = Shape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, stream);
        launch::launch(kernel, shape, Arguments { values, extra }, real)
    }
    fn cuLaunchCooperativeKernel(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, values: u64,
    ) |real| {
        let shape = Shape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, stream);
        launch::launch(kernel, shape.cooperative(), Arguments { values, extra: 0 }, real)
    }
    fn cuLaunchCooperativeKernel_ptsz(
        kernel: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, values: u64,
    ) |real| {
        let shape = Shape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, stream);
        launch::launch(kernel, shape.cooperative(), Arguments { values, extra: 0 }, real)
    }
    fn cuLaunchKernelEx(config: u64, kernel: u64, values: u64, extra: u64) |real| {
        launch::launch(kernel, Shape::read(config), Arguments { values, extra }, real)
    }
    fn cuLaunchKernelEx_ptsz(config: u64, kernel: u64, values: u64, extra: u64) |real| {
        launch::launch(kernel, Shape::read(config), Arguments { values, extra }, real)
    }

    fn cuGraphLaunch(graph_: u64, stream: u64) |real| { graph(real) }
    fn cuGraphLaunch_ptsz(graph_: u64, stream: u64) |real| { graph(real) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_watched_functions() {
        let get = |name: &std::ffi::CStr, version, flags| {
            let mut address = 1u64;
            replaced(name.as_ptr() as u64, (&raw mut address) as u64, version, flags);
            let found = exports().into_iter().find(|(_, known)| *known == address);
            found.map(|(name, _)| name)
        };
        assert_eq!(get(c"cuMemAlloc", 13000, 0), Some("cuMemAlloc_v2"));
        assert_eq!(get(c"cuLaunchKernel", 13000, 2), Some("cuLaunchKernel_ptsz"));
        assert_eq!(get(c"cuLaunchKernel", 13000, 0), Some("cuLaunchKernel"));
        assert_eq!(get(c"cuGetProcAddress", 11030, 0), Some("cuGetProcAddress"));
        assert_eq!(get(c"cuGetProcAddress", 13000, 0), Some("cuGetProcAddress_v2"));
        assert_eq!(get(c"cuEventCreate", 13000, 0), None);
        // Calls that the driver does not have are refused.
        let mut nothing = 0u64;
        replaced(c"cuMemMap".as_ptr() as u64, (&raw mut nothing) as u64, 13000, 0);
        assert_eq!(nothing, 0);
    }
}
