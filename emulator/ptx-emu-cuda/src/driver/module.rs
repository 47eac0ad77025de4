//! Modules, libraries, functions.

use crate::abi::{Out, Text, exports};
use crate::errors::{FILE_NOT_FOUND, Failure, INVALID_VALUE};
use crate::modules::unknown;
use crate::state::State;

fn load_file(state: &mut State, module: Out<u64>, path: &str) -> Result<(), Failure> {
    let mut bytes = std::fs::read(path).map_err(|error| {
        Failure::new(FILE_NOT_FOUND, format!("{path}: cannot be read: {error}"))
    })?;
    // PTX need not end with a zero in a file.
    bytes.extend([0; 16]);
    module.set(state.load_module(bytes.as_ptr() as u64)?)
}

fn unload(state: &mut State, module: u64) -> Result<(), Failure> {
    state.kernels.retain(|_, kernel| kernel.module != module);
    state.modules.remove(&module).map(drop).ok_or_else(|| unknown("module", module))
}

fn global(
    state: &mut State,
    address: Out<u64>,
    bytes: Out<u64>,
    module: u64,
    name: Text,
) -> Result<(), Failure> {
    let (found, size) = state.variable(module, &name.get()?)?;
    address.set_if_wanted(found);
    bytes.set_if_wanted(size);
    Ok(())
}

fn attribute(state: &mut State, value: Out<i32>, number: i32, kernel: u64) -> Result<(), Failure> {
    let info = state.kernel_info(kernel)?;
    let gpu = state.gpu();
    let known = state.kernel(kernel)?.clone();
    let (major, minor) = gpu.compute_capability();
    let cluster = info.cluster.unwrap_or([0; 3]);
    value.set(match number {
        0 => {
            let threads = info.reqntid.or(info.maxntid);
            threads.map_or(gpu.max_threads_per_cta, |extent| extent.iter().product()) as i32
        }
        1 => info.static_shared as i32,
        // PTX has neither registers of a machine nor a frame in local memory.
        2 | 3 | 7 => 0,
        4 => info.maxnreg.unwrap_or(0) as i32,
        5 | 6 => (major * 10 + minor) as i32,
        8 => known.max_dynamic.unwrap_or(48 << 10) as i32,
        9 => -1,
        10 => info.cluster.is_some().into(),
        11..=13 => cluster[number as usize - 11] as i32,
        14 => known.non_portable.into(),
        15 => 0,
        _ => return Err(Failure::not_modelled(&format!("attribute {number} of a kernel"))),
    })
}

exports! { driver;
    call cuModuleLoad(module: Out<u64>, path: Text) |state| {
        load_file(state, module, &path.get()?)
    }

    call cuModuleLoadData | cuModuleLoadFatBinary(module: Out<u64>, image: u64) |state| {
        module.set(state.load_module(image)?)
    }

    call cuModuleLoadDataEx(module: Out<u64>, image: u64, _count: u32, _options: u64, _values: u64) |state| {
        module.set(state.load_module(image)?)
    }

    call cuModuleUnload(module: u64) |state| {
        unload(state, module)
    }

    query cuModuleGetFunction(kernel: Out<u64>, module: u64, name: Text) |state| {
        kernel.set(state.kernel_of(module, &name.get()?)?)
    }

    query cuModuleGetFunctionCount(count: Out<u32>, module: u64) |state| {
        count.set(state.module(module)?.names.len() as u32)
    }

    call cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<u64>, module: u64, name: Text) |state| {
        global(state, address, bytes, module, name)
    }

    // Everything is loaded when it is first used.
    query cuModuleGetLoadingMode(mode: Out<i32>) |_state| {
        mode.set(2)
    }

    call cuLibraryLoadData(
        library: Out<u64>, code: u64, _options: u64, _values: u64, _count: u32, _library_options: u64,
        _library_values: u64, _library_count: u32,
    ) |state| {
        library.set(state.load_module(code)?)
    }

    call cuLibraryLoadFromFile(
        library: Out<u64>, path: Text, _options: u64, _values: u64, _count: u32, _library_options: u64,
        _library_values: u64, _library_count: u32,
    ) |state| {
        load_file(state, library, &path.get()?)
    }

    call cuLibraryUnload(library: u64) |state| {
        unload(state, library)
    }

    query cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) |state| {
        kernel.set(state.kernel_of(library, &name.get()?)?)
    }

    query cuLibraryGetModule(module: Out<u64>, library: u64) |state| {
        state.module(library)?;
        module.set(library)
    }

    call cuLibraryGetGlobal(address: Out<u64>, bytes: Out<u64>, library: u64, name: Text) |state| {
        global(state, address, bytes, library, name)
    }

    query cuKernelGetFunction(function: Out<u64>, kernel: u64) |state| {
        state.kernel(kernel)?;
        function.set(kernel)
    }

    query cuKernelSetAttribute(number: i32, value: i32, kernel: u64, device: i32) |state| {
        crate::state::device(device)?;
        state.set_kernel_attribute(kernel, number, value)
    }

    query cuKernelGetAttribute(value: Out<i32>, number: i32, kernel: u64, device: i32) |state| {
        crate::state::device(device)?;
        attribute(state, value, number, kernel)
    }

    query cuFuncGetParamInfo(kernel: u64, index: u64, offset: Out<u64>, bytes: Out<u64>) |state| {
        let info = state.kernel_info(kernel)?;
        // Callers ask until there are no more.
        let found = info.params.get(index as usize);
        let param = found.ok_or(Failure::silent(INVALID_VALUE))?;
        offset.set(param.offset.into())?;
        bytes.set_if_wanted(param.size.into());
        Ok(())
    }

    query cuFuncSetAttribute(kernel: u64, number: i32, value: i32) |state| {
        state.set_kernel_attribute(kernel, number, value)
    }

    query cuFuncGetAttribute(value: Out<i32>, number: i32, kernel: u64) |state| {
        attribute(state, value, number, kernel)
    }

    query cuFuncSetCacheConfig(kernel: u64, _config: i32) |state| {
        state.kernel(kernel).map(drop)
    }

    query cuFuncLoad(kernel: u64) |state| {
        state.kernel_info(kernel).map(drop)
    }

    query cuFuncGetModule(module: Out<u64>, kernel: u64) |state| {
        let found = state.kernel(kernel)?.module;
        module.set(found)
    }
}
