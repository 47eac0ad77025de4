//! Devices, errors, versions.

use crate::abi::{In, Out, Text, exports, runtime};
use crate::device::{self, CUDA_VERSION, PROPERTIES};
use crate::errors::Code;
use crate::lookup::{self, Found};
use crate::state;

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Code {
    runtime::last(true)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Code {
    runtime::last(false)
}

fn entry_point(
    name: Text,
    function: Out<u64>,
    version: i32,
    status: Out<i32>,
) -> Result<(), crate::errors::Failure> {
    let name = name.get()?;
    let found = lookup::find(&name, version);
    status.set_if_wanted(if found.is_some() { 0 } else { 1 });
    function.set(found.map_or(0, Found::address))
}

exports! { runtime;
    query cudaGetDeviceCount(count: Out<i32>) |_state| {
        count.set(1)
    }

    query cudaGetDevice(number: Out<i32>) |_state| {
        number.set(0)
    }

    query cudaSetDevice(number: i32) |_state| {
        state::device(number)
    }

    query cudaInitDevice(number: i32, _device_flags: u32, _flags: u32) |_state| {
        state::device(number)
    }

    query cudaChooseDevice(number: Out<i32>, _properties: u64) |_state| {
        number.set(0)
    }

    query cudaSetValidDevices(devices: In<i32>, count: i32) |_state| {
        devices.all(usize::try_from(count).unwrap_or(0))?.into_iter().try_for_each(state::device)
    }

    query cudaSetDeviceFlags(_flags: u32) |_state| {
        Ok(())
    }

    query cudaGetDeviceFlags(flags: Out<u32>) |_state| {
        flags.set(0)
    }

    query cudaGetDeviceProperties(properties: Out<[u8; PROPERTIES]>, number: i32) |state| {
        state::device(number)?;
        properties.set(device::properties(&state.gpu())?)
    }

    query cudaDeviceGetAttribute(value: Out<i32>, attribute: i32, number: i32) |state| {
        state::device(number)?;
        value.set(device::attribute(&state.gpu(), attribute)?)
    }

    query cudaDeviceCanAccessPeer(can: Out<i32>, number: i32, peer: i32) |_state| {
        state::device(number)?;
        state::device(peer)?;
        can.set(0)
    }

    call cudaDeviceSynchronize() |_state| {
        Ok(())
    }

    query cudaDeviceReset() |state| {
        state.flush();
        state.reset();
        Ok(())
    }

    query cudaDeviceSetLimit(limit: i32, value: u64) |state| {
        state.set_limit(limit, value);
        Ok(())
    }

    query cudaDeviceGetLimit(value: Out<u64>, limit: i32) |state| {
        value.set(state.limit(limit)?)
    }

    // Preferences.
    query cudaDeviceSetCacheConfig(_config: i32) |_state| {
        Ok(())
    }

    query cudaDeviceGetCacheConfig(config: Out<i32>) |_state| {
        config.set(0)
    }

    query cudaCtxResetPersistingL2Cache() |_state| {
        Ok(())
    }

    query cudaProfilerStart() |_state| {
        Ok(())
    }

    query cudaProfilerStop() |_state| {
        Ok(())
    }

    query cudaDriverGetVersion(version: Out<i32>) |_state| {
        version.set(CUDA_VERSION)
    }

    query cudaRuntimeGetVersion(version: Out<i32>) |_state| {
        version.set(CUDA_VERSION)
    }

    query cudaGetDriverEntryPoint | cudaGetDriverEntryPoint_ptsz(
        name: Text, function: Out<u64>, _flags: u64, status: Out<i32>,
    ) |_state| {
        entry_point(name, function, CUDA_VERSION, status)
    }

    query cudaGetDriverEntryPointByVersion | cudaGetDriverEntryPointByVersion_ptsz(
        name: Text, function: Out<u64>, version: u32, _flags: u64, status: Out<i32>,
    ) |_state| {
        entry_point(name, function, version as i32, status)
    }
}
