//! Memory.

use crate::abi::{In, Out, exports};
use crate::device::PITCH;
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{Operation, Rows};
use crate::memory::{Direction, Kind, MAPPED_PAGE, free_bytes};
use crate::state::State;

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2d {
    from: End,
    to: End,
    width: u64,
    height: u64,
}

/// One end of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    x: u64,
    y: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: u64,
}

impl End {
    fn rows(self, width: u64, height: u64) -> Result<Rows, Failure> {
        let base = super::copies::base(self.kind, self.host, self.device)?;
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        if pitch < width {
            let message = format!("pitch: required at least {width}, actual {pitch}");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        Ok(Rows { address: base + self.y * pitch + self.x, pitch, width, height })
    }
}

fn allocate(state: &mut State, address: Out<u64>, bytes: u64, maker: &str) -> Result<(), Failure> {
    if bytes == 0 {
        return Err(Failure::new(INVALID_VALUE, "bytes: required at least 1, actual 0"));
    }
    address.set(state.memory.allocate(maker, bytes)?)
}

fn copy(
    state: &mut State,
    ends: [u64; 2],
    bytes: u64,
    direction: Direction,
    stream: u64,
) -> Result<(), Failure> {
    let [to, from] = ends.map(|address| Rows::one(address, bytes));
    state.enqueue(stream, Operation::copy(to, from, direction))
}

fn copy_2d(state: &mut State, copy: Copy2d, stream: u64) -> Result<(), Failure> {
    let Copy2d { from, to, width, height } = copy;
    let (from, to) = (from.rows(width, height)?, to.rows(width, height)?);
    state.enqueue(stream, Operation::copy(to, from, Direction::ANY))
}

fn fill(state: &mut State, to: Rows, pattern: &[u8], stream: u64) -> Result<(), Failure> {
    state.enqueue(stream, Operation::Fill { to, pattern: pattern.to_vec() })
}

/// An attribute of an address; `None`: it has none.
fn pointer_attribute(
    state: &mut State,
    out: u64,
    attribute: i32,
    address: u64,
) -> Result<(), Failure> {
    let found = state.memory.find(address).map(|(start, range)| (start, range.bytes, range.kind));
    let Some((start, bytes, kind)) = found else {
        return Err(Failure::silent(INVALID_VALUE));
    };
    let host = kind.is_host();
    let (value, length) = match attribute {
        // Context, memory type, address on the device, on the host.
        1 => (crate::state::PRIMARY, 8),
        2 => (if matches!(kind, Kind::Pinned | Kind::Registered) { 1 } else { 2 }, 4),
        3 => (address, 8),
        4 if host => (address, 8),
        // Whether copies synchronise, and whether the memory is managed.
        6 => (0, 4),
        7 => (start, 8),
        8 => ((kind == Kind::Managed).into(), 4),
        9 => (0, 4),
        11 => (start, 8),
        12 => (bytes, 8),
        13 => (1, 4),
        _ => return Err(Failure::not_modelled(&format!("attribute {attribute} of an address"))),
    };
    crate::abi::set_host_bytes(out, &value.to_le_bytes()[..length]);
    Ok(())
}

exports! { driver;
    call cuMemAlloc_v2(address: Out<u64>, bytes: u64) |state| {
        allocate(state, address, bytes, "cuMemAlloc")
    }

    call cuMemAllocAsync | cuMemAllocAsync_ptsz(address: Out<u64>, bytes: u64, stream: u64) |state| {
        if bytes != 0 && state.capturing(stream)?.is_some() {
            return address.set(state.capture_allocation(bytes, stream)?);
        }
        allocate(state, address, bytes, "cuMemAllocAsync")
    }

    call cuMemAllocPitch_v2(
        address: Out<u64>, pitch: Out<u64>, width: u64, height: u64, _element: u32,
    ) |state| {
        let row = width.next_multiple_of(PITCH);
        pitch.set(row)?;
        allocate(state, address, row.saturating_mul(height), "cuMemAllocPitch")
    }

    call cuMemAllocManaged(address: Out<u64>, bytes: u64, _flags: u32) |state| {
        address.set(state.memory.allocate_host("cuMemAllocManaged", bytes, Kind::Managed)?)
    }

    call cuMemAllocHost_v2(address: Out<u64>, bytes: u64) |state| {
        address.set(state.memory.allocate_host("cuMemAllocHost", bytes, Kind::Pinned)?)
    }

    call cuMemHostAlloc(address: Out<u64>, bytes: u64, _flags: u32) |state| {
        address.set(state.memory.allocate_host("cuMemHostAlloc", bytes, Kind::Pinned)?)
    }

    call cuMemHostRegister_v2(address: u64, bytes: u64, _flags: u32) |state| {
        state.memory.share("cuMemHostRegister", address, bytes, Kind::Registered)
    }

    call cuMemHostUnregister(address: u64) |state| {
        state.memory.free(address, &[Kind::Registered])
    }

    query cuMemHostGetDevicePointer_v2(device: Out<u64>, host: u64, _flags: u32) |state| {
        state.memory.check_pinned(host)?;
        device.set(host)
    }

    call cuMemFree_v2(address: u64) |state| {
        state.memory.free(address, &[Kind::Device, Kind::Managed])
    }

    call cuMemFreeAsync | cuMemFreeAsync_ptsz(address: u64, stream: u64) |state| {
        if state.capturing(stream)?.is_some() {
            return state.enqueue(stream, Operation::Free(address));
        }
        state.memory.free(address, &[Kind::Device])
    }

    call cuMemFreeHost(address: u64) |state| {
        state.memory.free(address, &[Kind::Pinned])
    }

    query cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) |_state| {
        let bytes = free_bytes();
        free.set(bytes)?;
        total.set(bytes)
    }

    query cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<u64>, address: u64) |state| {
        let Some((found, range)) = state.memory.find(address) else {
            return Err(Failure::new(INVALID_VALUE, format!("{address:#x} is not allocated")));
        };
        start.set_if_wanted(found);
        bytes.set_if_wanted(range.bytes);
        Ok(())
    }

    query cuPointerGetAttribute(out: u64, attribute: i32, address: u64) |state| {
        pointer_attribute(state, out, attribute, address)
    }

    query cuPointerGetAttributes(count: u32, attributes: In<i32>, outs: In<u64>, address: u64) |state| {
        let count = count as usize;
        for (attribute, out) in attributes.all(count)?.into_iter().zip(outs.all(count)?) {
            // Addresses without an attribute leave it as it is.
            let _ = pointer_attribute(state, out, attribute, address);
        }
        Ok(())
    }

    call cuMemcpy | cuMemcpy_ptds(to: u64, from: u64, bytes: u64) |state| {
        copy(state, [to, from], bytes, Direction::ANY, 0)
    }

    call cuMemcpyAsync | cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: u64, stream: u64) |state| {
        copy(state, [to, from], bytes, Direction::ANY, stream)
    }

    call cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(to: u64, from: u64, bytes: u64) |state| {
        copy(state, [to, from], bytes, Direction::TO_DEVICE, 0)
    }

    call cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(to: u64, from: u64, bytes: u64) |state| {
        copy(state, [to, from], bytes, Direction::TO_HOST, 0)
    }

    call cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: u64) |state| {
        copy(state, [to, from], bytes, Direction::ON_DEVICE, 0)
    }

    call cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: u64, bytes: u64, stream: u64) |state| {
        copy(state, [to, from], bytes, Direction::TO_DEVICE, stream)
    }

    call cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(to: u64, from: u64, bytes: u64, stream: u64) |state| {
        copy(state, [to, from], bytes, Direction::TO_HOST, stream)
    }

    call cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: u64, stream: u64) |state| {
        copy(state, [to, from], bytes, Direction::ON_DEVICE, stream)
    }

    call cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds | cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(
        parameters: In<Copy2d>,
    ) |state| {
        copy_2d(state, parameters.get()?, 0)
    }

    call cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(parameters: In<Copy2d>, stream: u64) |state| {
        copy_2d(state, parameters.get()?, stream)
    }

    call cuMemsetD8_v2 | cuMemsetD8_v2_ptds(to: u64, value: u8, count: u64) |state| {
        fill(state, Rows::one(to, count), &[value], 0)
    }

    call cuMemsetD16_v2 | cuMemsetD16_v2_ptds(to: u64, value: u16, count: u64) |state| {
        fill(state, Rows::one(to, count), &value.to_le_bytes(), 0)
    }

    call cuMemsetD32_v2 | cuMemsetD32_v2_ptds(to: u64, value: u32, count: u64) |state| {
        fill(state, Rows::one(to, count), &value.to_le_bytes(), 0)
    }

    call cuMemsetD8Async | cuMemsetD8Async_ptsz(to: u64, value: u8, count: u64, stream: u64) |state| {
        fill(state, Rows::one(to, count), &[value], stream)
    }

    call cuMemsetD16Async | cuMemsetD16Async_ptsz(to: u64, value: u16, count: u64, stream: u64) |state| {
        fill(state, Rows::one(to, count), &value.to_le_bytes(), stream)
    }

    call cuMemsetD32Async | cuMemsetD32Async_ptsz(to: u64, value: u32, count: u64, stream: u64) |state| {
        fill(state, Rows::one(to, count), &value.to_le_bytes(), stream)
    }

    call cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(to: u64, pitch: u64, value: u8, width: u64, height: u64) |state| {
        fill(state, Rows { address: to, pitch, width, height }, &[value], 0)
    }

    call cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(to: u64, pitch: u64, value: u32, width: u64, height: u64) |state| {
        fill(state, Rows { address: to, pitch, width, height }, &value.to_le_bytes(), 0)
    }

    query cuMemGetAllocationGranularity(bytes: Out<u64>, _properties: u64, _option: u32) |_state| {
        bytes.set(MAPPED_PAGE)
    }

    query cuMemAddressReserve(
        address: Out<u64>, bytes: u64, _alignment: u64, wish: u64, _flags: u64,
    ) |state| {
        address.set(state.memory.reserve(bytes, wish)?)
    }

    call cuMemAddressFree(address: u64, bytes: u64) |state| {
        state.memory.release_addresses(address, bytes)
    }

    query cuMemCreate(memory: Out<u64>, bytes: u64, _properties: u64, _flags: u64) |state| {
        let handle = state.handle();
        memory.set(state.memory.create(handle, bytes)?)
    }

    query cuMemRelease(memory: u64) |state| {
        state.memory.release(memory)
    }

    call cuMemMap(address: u64, bytes: u64, offset: u64, memory: u64, _flags: u64) |state| {
        if offset != 0 {
            return Err(Failure::not_modelled("mapping a part of an allocation"));
        }
        state.memory.map(address, bytes, memory)
    }

    call cuMemUnmap(address: u64, _bytes: u64) |state| {
        state.memory.free(address, &[Kind::Mapped])
    }

    // The only device may use what is mapped.
    query cuMemSetAccess(address: u64, _bytes: u64, _access: u64, _count: u64) |state| {
        match state.memory.find(address) {
            Some(_) => Ok(()),
            None => Err(Failure::new(INVALID_VALUE, format!("{address:#x}: nothing is mapped"))),
        }
    }

    query cuDeviceGetDefaultMemPool | cuDeviceGetMemPool(pool: Out<u64>, device: i32) |_state| {
        crate::state::device(device)?;
        pool.set(crate::state::PRIMARY)
    }

    // Memory that a pool keeps does not show.
    query cuMemPoolSetAttribute(_pool: u64, _attribute: i32, _value: u64) |_state| {
        Ok(())
    }

    query cuMemPoolTrimTo(_pool: u64, _bytes: u64) |_state| {
        Ok(())
    }
}
