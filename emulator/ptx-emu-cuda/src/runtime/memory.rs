//! Memory.

use crate::abi::{In, Out, exports};
use crate::device::PITCH;
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{Operation, Rows};
use crate::memory::{Direction, Kind, free_bytes};
use crate::state::State;

/// `cudaPointerAttributes`
#[repr(C)]
struct PointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    reserved: [i64; 8],
}

/// `cudaPitchedPtr`
#[repr(C)]
#[derive(Clone, Copy)]
struct Pitched {
    address: u64,
    pitch: u64,
    width: u64,
    height: u64,
}

/// `cudaExtent` and `cudaPos`
#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    width: u64,
    height: u64,
    depth: u64,
}

/// `cudaMemcpy3DParms`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy3d {
    from_array: u64,
    from_at: Extent,
    from: Pitched,
    to_array: u64,
    to_at: Extent,
    to: Pitched,
    extent: Extent,
    kind: i32,
}

fn allocate(state: &mut State, address: Out<u64>, bytes: u64, maker: &str) -> Result<(), Failure> {
    // No bytes have no address.
    address.set(if bytes == 0 { 0 } else { state.memory.allocate(maker, bytes)? })
}

fn free(state: &mut State, address: u64) -> Result<(), Failure> {
    if address == 0 {
        return Ok(());
    }
    state.memory.free(address, &[Kind::Device, Kind::Managed])
}

fn pinned(state: &mut State, address: Out<u64>, bytes: u64, maker: &str) -> Result<(), Failure> {
    if bytes == 0 {
        return address.set(0);
    }
    address.set(state.memory.allocate_host(maker, bytes, Kind::Pinned)?)
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

fn copy_rows(
    state: &mut State,
    to: (u64, u64),
    from: (u64, u64),
    size: (u64, u64),
    direction: Direction,
    stream: u64,
) -> Result<(), Failure> {
    state.enqueue(stream, Operation::copy(rows(to, size)?, rows(from, size)?, direction))
}

/// Rows at an address with a pitch.
fn rows((address, pitch): (u64, u64), (width, height): (u64, u64)) -> Result<Rows, Failure> {
    if pitch < width && height > 1 {
        let message = format!("pitch: required at least {width}, actual {pitch}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    Ok(Rows { address, pitch, width, height })
}

/// The operation of a copy in three dimensions.
pub(super) fn copy_3d(copy: Copy3d) -> Result<Operation, Failure> {
    if copy.from_array != 0 || copy.to_array != 0 {
        return Err(Failure::not_modelled("a copy of an array"));
    }
    let direction = Direction::of(copy.kind)?;
    let Extent { width, height, depth } = copy.extent;
    let layer = |layer: u64| -> Result<[Rows; 2], Failure> {
        let at = |at: Extent, pitched: Pitched| {
            let row = (at.depth + layer) * pitched.height + at.height;
            let address = pitched.address + row * pitched.pitch + at.width;
            rows((address, pitched.pitch), (width, height))
        };
        Ok([at(copy.to_at, copy.to)?, at(copy.from_at, copy.from)?])
    };
    let layers = (0..depth).map(layer).collect::<Result<_, _>>()?;
    Ok(Operation::Copy { layers, direction })
}

/// A copy as the parameters of one in three dimensions, whose positions are in the addresses.
pub(super) fn parameters_3d(layers: &[[Rows; 2]], direction: Direction) -> Copy3d {
    let zero = Extent { width: 0, height: 0, depth: 0 };
    let end = |at: usize| {
        let pitched = |first: &[Rows; 2]| {
            let Rows { address, pitch, width, height } = first[at];
            let apart = layers.get(1).map_or(0, |second| second[at].address - address);
            let height = if pitch == 0 || apart == 0 { height } else { apart / pitch };
            Pitched { address, pitch, width, height }
        };
        let none = Pitched { address: 0, pitch: 0, width: 0, height: 0 };
        layers.first().map_or(none, pitched)
    };
    let (width, height) = layers.first().map_or((0, 0), |[to, _]| (to.width, to.height));
    Copy3d {
        from_array: 0,
        from_at: zero,
        from: end(1),
        to_array: 0,
        to_at: zero,
        to: end(0),
        extent: Extent { width, height, depth: layers.len() as u64 },
        kind: direction.number(),
    }
}

fn fill(state: &mut State, to: Rows, value: i32, stream: u64) -> Result<(), Failure> {
    state.enqueue(stream, Operation::Fill { to, pattern: vec![value as u8] })
}

/// Address of a part of the variable that a host variable stands for.
pub(super) fn variable(
    state: &mut State,
    symbol: u64,
    bytes: u64,
    offset: u64,
) -> Result<u64, Failure> {
    let (address, size) = state.registered_variable(symbol)?;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let message =
            format!("variable: required at most {size} bytes, actual {bytes} at {offset}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    Ok(address + offset)
}

exports! { runtime;
    call cudaMalloc(address: Out<u64>, bytes: u64) |state| {
        allocate(state, address, bytes, "cudaMalloc")
    }

    call cudaMallocAsync | cudaMallocAsync_ptsz(address: Out<u64>, bytes: u64, stream: u64) |state| {
        if bytes != 0 && state.capturing(stream)?.is_some() {
            return address.set(state.capture_allocation(bytes, stream)?);
        }
        allocate(state, address, bytes, "cudaMallocAsync")
    }

    call cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz(
        address: Out<u64>, bytes: u64, _pool: u64, stream: u64,
    ) |state| {
        if bytes != 0 && state.capturing(stream)?.is_some() {
            return address.set(state.capture_allocation(bytes, stream)?);
        }
        allocate(state, address, bytes, "cudaMallocFromPoolAsync")
    }

    call cudaMallocPitch(address: Out<u64>, pitch: Out<u64>, width: u64, height: u64) |state| {
        let row = width.next_multiple_of(PITCH);
        pitch.set(row)?;
        allocate(state, address, row.saturating_mul(height), "cudaMallocPitch")
    }

    call cudaMalloc3D(pitched: Out<Pitched>, extent: Extent) |state| {
        let pitch = extent.width.next_multiple_of(PITCH);
        let bytes = pitch.saturating_mul(extent.height).saturating_mul(extent.depth);
        let address = state.memory.allocate("cudaMalloc3D", bytes)?;
        pitched.set(Pitched { address, pitch, width: extent.width, height: extent.height })
    }

    call cudaMallocManaged(address: Out<u64>, bytes: u64, _flags: u32) |state| {
        address.set(state.memory.allocate_host("cudaMallocManaged", bytes, Kind::Managed)?)
    }

    call cudaMallocHost(address: Out<u64>, bytes: u64) |state| {
        pinned(state, address, bytes, "cudaMallocHost")
    }

    call cudaHostAlloc(address: Out<u64>, bytes: u64, _flags: u32) |state| {
        pinned(state, address, bytes, "cudaHostAlloc")
    }

    call cudaHostRegister(address: u64, bytes: u64, _flags: u32) |state| {
        state.memory.share("cudaHostRegister", address, bytes, Kind::Registered)
    }

    call cudaHostUnregister(address: u64) |state| {
        state.memory.free(address, &[Kind::Registered])
    }

    query cudaHostGetDevicePointer(device: Out<u64>, host: u64, _flags: u32) |state| {
        state.memory.check_pinned(host)?;
        device.set(host)
    }

    query cudaHostGetFlags(flags: Out<u32>, host: u64) |state| {
        state.memory.check_pinned(host)?;
        // Mapped.
        flags.set(2)
    }

    call cudaFree(address: u64) |state| {
        free(state, address)
    }

    call cudaFreeAsync | cudaFreeAsync_ptsz(address: u64, stream: u64) |state| {
        if address != 0 && state.capturing(stream)?.is_some() {
            return state.enqueue(stream, Operation::Free(address));
        }
        free(state, address)
    }

    call cudaFreeHost(address: u64) |state| {
        if address == 0 {
            return Ok(());
        }
        state.memory.free(address, &[Kind::Pinned])
    }

    call cudaMemcpy | cudaMemcpy_ptds(to: u64, from: u64, bytes: u64, kind: i32) |state| {
        copy(state, [to, from], bytes, Direction::of(kind)?, 0)
    }

    call cudaMemcpyAsync | cudaMemcpyAsync_ptsz(
        to: u64, from: u64, bytes: u64, kind: i32, stream: u64,
    ) |state| {
        copy(state, [to, from], bytes, Direction::of(kind)?, stream)
    }

    call cudaMemcpyPeer(to: u64, to_device: i32, from: u64, from_device: i32, bytes: u64) |state| {
        crate::state::device(to_device)?;
        crate::state::device(from_device)?;
        copy(state, [to, from], bytes, Direction::ON_DEVICE, 0)
    }

    call cudaMemcpyPeerAsync(
        to: u64, to_device: i32, from: u64, from_device: i32, bytes: u64, stream: u64,
    ) |state| {
        crate::state::device(to_device)?;
        crate::state::device(from_device)?;
        copy(state, [to, from], bytes, Direction::ON_DEVICE, stream)
    }

    call cudaMemcpy2D | cudaMemcpy2D_ptds(
        to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64, kind: i32,
    ) |state| {
        copy_rows(state, (to, to_pitch), (from, from_pitch), (width, height), Direction::of(kind)?, 0)
    }

    call cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz(
        to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64, kind: i32,
        stream: u64,
    ) |state| {
        let direction = Direction::of(kind)?;
        copy_rows(state, (to, to_pitch), (from, from_pitch), (width, height), direction, stream)
    }

    call cudaMemcpy3D | cudaMemcpy3D_ptds(parameters: In<Copy3d>) |state| {
        state.enqueue(0, copy_3d(parameters.get()?)?)
    }

    call cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz(parameters: In<Copy3d>, stream: u64) |state| {
        state.enqueue(stream, copy_3d(parameters.get()?)?)
    }

    call cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds(
        symbol: u64, from: u64, bytes: u64, offset: u64, _kind: i32,
    ) |state| {
        let to = variable(state, symbol, bytes, offset)?;
        copy(state, [to, from], bytes, Direction::ANY, 0)
    }

    call cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz(
        symbol: u64, from: u64, bytes: u64, offset: u64, _kind: i32, stream: u64,
    ) |state| {
        let to = variable(state, symbol, bytes, offset)?;
        copy(state, [to, from], bytes, Direction::ANY, stream)
    }

    call cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds(
        to: u64, symbol: u64, bytes: u64, offset: u64, _kind: i32,
    ) |state| {
        let from = variable(state, symbol, bytes, offset)?;
        copy(state, [to, from], bytes, Direction::ANY, 0)
    }

    call cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz(
        to: u64, symbol: u64, bytes: u64, offset: u64, _kind: i32, stream: u64,
    ) |state| {
        let from = variable(state, symbol, bytes, offset)?;
        copy(state, [to, from], bytes, Direction::ANY, stream)
    }

    call cudaMemset | cudaMemset_ptds(to: u64, value: i32, bytes: u64) |state| {
        fill(state, Rows::one(to, bytes), value, 0)
    }

    call cudaMemsetAsync | cudaMemsetAsync_ptsz(to: u64, value: i32, bytes: u64, stream: u64) |state| {
        fill(state, Rows::one(to, bytes), value, stream)
    }

    call cudaMemset2D | cudaMemset2D_ptds(to: u64, pitch: u64, value: i32, width: u64, height: u64) |state| {
        fill(state, Rows { address: to, pitch, width, height }, value, 0)
    }

    call cudaMemset2DAsync | cudaMemset2DAsync_ptsz(
        to: u64, pitch: u64, value: i32, width: u64, height: u64, stream: u64,
    ) |state| {
        fill(state, Rows { address: to, pitch, width, height }, value, stream)
    }

    query cudaMemGetInfo(free: Out<u64>, total: Out<u64>) |_state| {
        let bytes = free_bytes();
        free.set(bytes)?;
        total.set(bytes)
    }

    // Hints: memory is in one place.
    call cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz(
        address: u64, _bytes: u64, _location: u64, _flags: u32, _stream: u64,
    ) |state| {
        state.memory.find(address).map(drop).ok_or_else(|| {
            Failure::new(INVALID_VALUE, format!("{address:#x} is not managed memory"))
        })
    }

    call cudaMemAdvise(address: u64, _bytes: u64, _advice: i32, _location: u64) |state| {
        state.memory.find(address).map(drop).ok_or_else(|| {
            Failure::new(INVALID_VALUE, format!("{address:#x} is not managed memory"))
        })
    }

    query cudaDeviceGetDefaultMemPool | cudaDeviceGetMemPool(pool: Out<u64>, device: i32) |_state| {
        crate::state::device(device)?;
        pool.set(crate::state::PRIMARY)
    }

    // Memory that a pool keeps does not show.
    query cudaMemPoolSetAttribute(_pool: u64, _attribute: i32, _value: u64) |_state| {
        Ok(())
    }

    query cudaMemPoolTrimTo(_pool: u64, _bytes: u64) |_state| {
        Ok(())
    }

    query cudaPointerGetAttributes(attributes: Out<PointerAttributes>, address: u64) |state| {
        let kind = state.memory.find(address).map(|(_, range)| range.kind);
        let (kind, device, device_pointer, host_pointer) = match kind {
            None => (0, -2, 0, 0),
            Some(Kind::Pinned | Kind::Registered) => (1, 0, address, address),
            Some(Kind::Device | Kind::Mapped | Kind::Variable) => (2, 0, address, 0),
            Some(Kind::Managed) => (3, 0, address, address),
        };
        attributes.set(PointerAttributes {
            kind, device, device_pointer, host_pointer, reserved: [0; 8],
        })
    }
}
