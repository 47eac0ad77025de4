//! Copies in three dimensions.

use crate::abi::{In, exports};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::{Operation, Rows};
use crate::memory::Direction;

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy3d {
    from: End,
    to: End,
    width: u64,
    height: u64,
    depth: u64,
}

/// One end of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    x: u64,
    y: u64,
    z: u64,
    level: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: u64,
    /// Rows of a layer.
    rows: u64,
}

/// `CU_MEMORYTYPE_HOST` and its like.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// The address where memory of a kind begins.
pub(super) fn base(kind: u32, host: u64, device: u64) -> Result<u64, Failure> {
    match kind {
        HOST => Ok(host),
        DEVICE | UNIFIED => Ok(device),
        ARRAY => Err(Failure::not_modelled("a copy of an array")),
        kind => {
            let message = format!("memory type: required 1 to 4, actual {kind}");
            Err(Failure::new(INVALID_VALUE, message))
        }
    }
}

fn at_least(what: &str, required: u64, actual: u64) -> Result<(), Failure> {
    if actual < required {
        let message = format!("{what}: required at least {required}, actual {actual}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    Ok(())
}

impl End {
    /// The rows of a layer. A pitch and a number of rows of 0 are those of the copy itself.
    fn layer(&self, layer: u64, width: u64, height: u64, depth: u64) -> Result<Rows, Failure> {
        let address = base(self.kind, self.host, self.device)?;
        let pitch = if self.pitch == 0 { self.x + width } else { self.pitch };
        if height > 1 || depth > 1 {
            at_least("pitch", self.x + width, pitch)?;
        }
        let rows = if self.rows == 0 { self.y + height } else { self.rows };
        if depth > 1 {
            at_least("rows of a layer", self.y + height, rows)?;
        }
        let row = (self.z + layer) * rows + self.y;
        Ok(Rows { address: address + row * pitch + self.x, pitch, width, height })
    }

    /// The end of copies of layers, whose positions are in the addresses.
    fn of(layers: &[[Rows; 2]], at: usize, host: Option<bool>) -> Self {
        let zero = Rows { address: 0, pitch: 0, width: 0, height: 0 };
        let Rows { address, pitch, height, .. } = layers.first().map_or(zero, |first| first[at]);
        let apart = layers.get(1).map_or(0, |second| second[at].address - address);
        let rows = if pitch == 0 || apart == 0 { height } else { apart / pitch };
        let (kind, host, device) = match host {
            Some(true) => (HOST, address, 0),
            Some(false) => (DEVICE, 0, address),
            None => (UNIFIED, 0, address),
        };
        Self { x: 0, y: 0, z: 0, level: 0, kind, host, device, array: 0, reserved: 0, pitch, rows }
    }
}

impl Copy3d {
    /// The operation.
    pub(super) fn operation(&self) -> Result<Operation, Failure> {
        let Self { from, to, width, height, depth } = *self;
        let layer = |layer: u64| -> Result<[Rows; 2], Failure> {
            Ok([to.layer(layer, width, height, depth)?, from.layer(layer, width, height, depth)?])
        };
        let layers = (0..depth).map(layer).collect::<Result<_, _>>()?;
        let on_device = |end: &End| (end.kind != UNIFIED).then_some(end.kind == DEVICE);
        let direction = Direction::between(on_device(&from), on_device(&to));
        Ok(Operation::Copy { layers, direction })
    }

    /// The parameters of a copy of layers.
    pub(super) fn of(layers: &[[Rows; 2]], direction: Direction) -> Self {
        let (from, to) = direction.ends();
        let host = |on_device: Option<bool>| on_device.map(|on_device| !on_device);
        let (width, height) = layers.first().map_or((0, 0), |[to, _]| (to.width, to.height));
        Self {
            from: End::of(layers, 1, host(from)),
            to: End::of(layers, 0, host(to)),
            width,
            height,
            depth: layers.len() as u64,
        }
    }
}

exports! { driver;
    call cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(parameters: In<Copy3d>) |state| {
        let copy = parameters.get()?.operation()?;
        state.enqueue(0, copy)
    }

    call cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(parameters: In<Copy3d>, stream: u64) |state| {
        let copy = parameters.get()?.operation()?;
        state.enqueue(stream, copy)
    }
}
