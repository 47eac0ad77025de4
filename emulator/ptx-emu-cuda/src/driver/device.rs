//! Devices, contexts, errors, versions.

use crate::abi::{In, Out, Text, exports};
use crate::device::{self, CUDA_VERSION};
use crate::errors::{
    Code, Failure, INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, describe,
};
use crate::lookup::{self, Found};
use crate::modules::unknown;
use crate::state::{self, Context, PRIMARY, State};
use std::cell::RefCell;
use std::ffi::c_char;

thread_local! {
    /// Contexts of this thread, the current one last.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn current() -> u64 {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

fn require_current() -> Result<u64, Failure> {
    match current() {
        0 => Err(Failure::new(INVALID_CONTEXT, "there is no current context")),
        context => Ok(context),
    }
}

fn create(state: &mut State, context: Out<u64>, flags: u32, number: i32) -> Result<(), Failure> {
    state::device(number)?;
    let handle = state.handle();
    state.contexts.insert(handle, Context { flags });
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    context.set(handle)
}

fn set_text(out: Out<u8>, length: i32, text: &str) -> Result<(), Failure> {
    let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1));
    let room = room.ok_or_else(|| Failure::new(INVALID_VALUE, "there is no room for the text"))?;
    let mut bytes = text.as_bytes().to_vec();
    bytes.truncate(room);
    bytes.push(0);
    out.set_all(bytes)
}

fn text_of(code: Code, text: Out<*const c_char>, name: bool) -> Result<(), Failure> {
    let Some((driver, _, meaning)) = describe(code) else {
        return Err(Failure::silent(INVALID_VALUE));
    };
    text.set(if name { driver } else { meaning }.as_ptr())
}

fn proc_address(
    name: Text,
    function: Out<u64>,
    version: i32,
    status: Out<i32>,
) -> Result<(), Failure> {
    let found = lookup::find(&name.get()?, version);
    status.set_if_wanted(if found.is_some() { 0 } else { 1 });
    let missing = found.is_none();
    function.set(found.map_or(0, Found::address))?;
    if missing { Err(Failure::silent(NOT_FOUND)) } else { Ok(()) }
}

/// `CU_LIMIT_MALLOC_HEAP_SIZE`
const HEAP: i32 = 2;

impl State {
    /// Sets a limit; that of the heap holds for later calls of `malloc` by kernels.
    pub(crate) fn set_limit(&mut self, limit: i32, value: u64) {
        self.limits.insert(limit, value);
        if limit == HEAP {
            self.memory.global.set_heap_limit(value);
        }
    }

    /// A limit: what was set, else what devices begin with.
    pub(crate) fn limit(&self, limit: i32) -> Result<u64, Failure> {
        if let Some(value) = self.limits.get(&limit) {
            return Ok(*value);
        }
        Ok(match limit {
            // Stack of a thread, buffer of printf, heap of the device, bytes.
            0 => 1024,
            1 => 1 << 20,
            HEAP => 8 << 20,
            // L2: granularity of fetches and what is set aside.
            5 => 64,
            6 => 0,
            _ => return Err(Failure::new(INVALID_VALUE, format!("limit {limit} is not modelled"))),
        })
    }
}

/// `CUctxCreateParams`
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct ContextParameters {
    affinities: u64,
    affinity_count: i32,
    graphics: u64,
}

exports! { driver;
    query cuInit(flags: u32) |_state| {
        match flags {
            0 => Ok(()),
            _ => Err(Failure::new(INVALID_VALUE, format!("flags: required 0, actual {flags}"))),
        }
    }

    query cuDriverGetVersion(version: Out<i32>) |_state| {
        version.set(CUDA_VERSION)
    }

    query cuDeviceGetCount(count: Out<i32>) |_state| {
        count.set(1)
    }

    query cuDeviceGet(device: Out<i32>, number: i32) |_state| {
        state::device(number)?;
        device.set(0)
    }

    query cuDeviceGetName(name: Out<u8>, length: i32, number: i32) |state| {
        state::device(number)?;
        set_text(name, length, &device::name(&state.gpu()))
    }

    query cuDeviceGetUuid | cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, number: i32) |state| {
        state::device(number)?;
        uuid.set(device::uuid(&state.gpu()))
    }

    query cuDeviceTotalMem_v2(bytes: Out<u64>, number: i32) |_state| {
        state::device(number)?;
        bytes.set(device::total_memory())
    }

    query cuDeviceGetAttribute(value: Out<i32>, attribute: i32, number: i32) |state| {
        state::device(number)?;
        value.set(device::attribute(&state.gpu(), attribute)?)
    }

    query cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, number: i32) |state| {
        state::device(number)?;
        let (found_major, found_minor) = state.gpu().compute_capability();
        major.set(found_major as i32)?;
        minor.set(found_minor as i32)
    }

    query cuDeviceCanAccessPeer(can: Out<i32>, number: i32, peer: i32) |_state| {
        state::device(number)?;
        state::device(peer)?;
        can.set(0)
    }

    query cuDevicePrimaryCtxRetain(context: Out<u64>, number: i32) |_state| {
        state::device(number)?;
        context.set(PRIMARY)
    }

    query cuDevicePrimaryCtxRelease_v2(number: i32) |_state| {
        state::device(number)
    }

    query cuDevicePrimaryCtxSetFlags_v2(number: i32, flags: u32) |state| {
        state::device(number)?;
        state.contexts.insert(PRIMARY, Context { flags });
        Ok(())
    }

    query cuDevicePrimaryCtxGetState(number: i32, flags: Out<u32>, active: Out<i32>) |state| {
        state::device(number)?;
        flags.set(state.contexts.get(&PRIMARY).map_or(0, |context| context.flags))?;
        active.set(1)
    }

    query cuDevicePrimaryCtxReset_v2(number: i32) |state| {
        state::device(number)?;
        state.flush();
        state.reset();
        Ok(())
    }

    query cuCtxCreate_v2(context: Out<u64>, flags: u32, number: i32) |state| {
        create(state, context, flags, number)
    }

    query cuCtxCreate_v3(context: Out<u64>, _affinity: u64, _count: i32, flags: u32, number: i32) |state| {
        create(state, context, flags, number)
    }

    query cuCtxCreate_v4(context: Out<u64>, parameters: In<ContextParameters>, flags: u32, number: i32) |state| {
        if parameters.address() != 0 && parameters.get()? != ContextParameters::default() {
            return Err(Failure::not_modelled("a context with parameters"));
        }
        create(state, context, flags, number)
    }

    query cuCtxDestroy_v2(context: u64) |state| {
        state.flush();
        CURRENT.with_borrow_mut(|stack| stack.retain(|other| *other != context));
        state.contexts.remove(&context).map(drop).ok_or_else(|| unknown("context", context))
    }

    query cuCtxGetCurrent(context: Out<u64>) |_state| {
        context.set(current())
    }

    query cuCtxSetCurrent(context: u64) |state| {
        if context != 0 && !state.contexts.contains_key(&context) {
            return Err(unknown("context", context));
        }
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    query cuCtxPushCurrent_v2(context: u64) |state| {
        if !state.contexts.contains_key(&context) {
            return Err(unknown("context", context));
        }
        CURRENT.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    query cuCtxPopCurrent_v2(context: Out<u64>) |_state| {
        let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else {
            return Err(Failure::new(INVALID_CONTEXT, "there is no current context"));
        };
        context.set_if_wanted(popped);
        Ok(())
    }

    query cuCtxGetDevice(device: Out<i32>) |_state| {
        require_current()?;
        device.set(0)
    }

    query cuCtxGetFlags(flags: Out<u32>) |state| {
        let context = require_current()?;
        flags.set(state.contexts.get(&context).map_or(0, |context| context.flags))
    }

    query cuCtxGetApiVersion(_context: u64, version: Out<u32>) |_state| {
        // The version of contexts since CUDA 4.
        version.set(3020)
    }

    call cuCtxSynchronize() |_state| {
        require_current().map(drop)
    }

    query cuCtxSetLimit(limit: i32, value: u64) |state| {
        state.set_limit(limit, value);
        Ok(())
    }

    query cuCtxGetLimit(value: Out<u64>, limit: i32) |state| {
        value.set(state.limit(limit)?)
    }

    query cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |_state| {
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    // A preference.
    query cuCtxSetCacheConfig(_config: i32) |_state| {
        Ok(())
    }

    query cuCtxResetPersistingL2Cache() |_state| {
        Ok(())
    }

    query cuGetErrorName(code: Code, text: Out<*const c_char>) |_state| {
        text_of(code, text, true)
    }

    query cuGetErrorString(code: Code, text: Out<*const c_char>) |_state| {
        text_of(code, text, false)
    }

    query cuGetProcAddress_v2 | cuGetProcAddress_v2_ptsz(
        name: Text, function: Out<u64>, version: i32, _flags: u64, status: Out<i32>,
    ) |_state| {
        proc_address(name, function, version, status)
    }

    query cuGetProcAddress(name: Text, function: Out<u64>, version: i32, _flags: u64) |_state| {
        let found = lookup::find(&name.get()?, version);
        let missing = found.is_none();
        function.set(found.map_or(0, Found::address))?;
        if missing { Err(Failure::silent(NOT_FOUND)) } else { Ok(()) }
    }

    query cuGetExportTable(_table: u64, _id: u64) |_state| {
        let message = "the CUDA runtime is linked into the program or a library of it (cuBLAS has \
             one); build it with nvcc -cudart shared";
        Err(Failure::new(NOT_SUPPORTED, message))
    }

    query cuProfilerStart() |_state| {
        Ok(())
    }

    query cuProfilerStop() |_state| {
        Ok(())
    }
}
