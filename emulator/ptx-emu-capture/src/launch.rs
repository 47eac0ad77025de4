//! Launches: the memory before, the launch on the GPU, and the memory afterwards.

use crate::abi::{Code, SUCCESS, bytes, word};
use crate::driver;
use crate::settings::{Event, complain, complain_once, settings, tell};
use crate::state::{self, Kernel, State};
use ptx_emu_bundle::{Allocation, Bundle, MapPlace, PlacedMap};
use ptx_emu_core::{KernelInfo, readable_name};
use ptx_emu_images::{folder_name, values};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

/// The place of a launch's arguments: a pointer to each, or the driver's list with the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) values: u64,
    pub(crate) extra: u64,
}

/// The shape of a launch, and its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    cluster: Option<[u32; 3]>,
    cooperative: bool,
    programmatic: bool,
}

impl Shape {
    pub(crate) const fn new(grid: [u32; 3], block: [u32; 3], shared: u32, stream: u64) -> Self {
        let (cluster, cooperative, programmatic) = (None, false, false);
        Self { grid, block, shared, stream, cluster, cooperative, programmatic }
    }

    pub(crate) const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Reads the arguments of a `CUlaunchConfig`.
    pub(crate) fn read(config: u64) -> Self {
        const ATTRIBUTE: u64 = 72;
        let words = bytes(config, 56);
        let half = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| words[at + i]));
        let three = |at: usize| [half(at), half(at + 4), half(at + 8)];
        let mut shape = Self::new(three(0), three(12), half(24), word(config + 32));
        let (attributes, count) = (word(config + 40), half(48));
        for at in (0..u64::from(count)).map(|index| attributes + index * ATTRIBUTE) {
            let (id, low, high) = (word(at) as u32, word(at + 8), word(at + 16));
            match id {
                2 => shape.cooperative = low as u32 != 0,
                4 if low != 0 => {
                    shape.cluster = Some([low as u32, (low >> 32) as u32, high as u32])
                }
                6 => shape.programmatic = low as u32 != 0,
                // Nothing that a bundle has: hints, events, priorities.
                _ => {}
            }
        }
        shape
    }
}

/// Launches on the GPU by `real`, and writes the bundle.
pub(crate) fn launch(
    handle: u64,
    shape: Shape,
    arguments: Arguments,
    real: impl FnOnce() -> Code,
) -> Code {
    // One at a time: memory of others' launches would be taken for this one's.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = {
        let mut state = state::lock();
        let kernel = kernel(&state, handle);
        if !settings().wants(&kernel.name, state.captured) {
            return real();
        }
        let before = before(&mut state, &kernel, handle, shape, arguments);
        before.map_err(|why| (kernel.name, why))
    };
    let bundle = match before {
        Ok(bundle) => bundle,
        Err((name, why)) => {
            complain_once(format!("kernel `{}` is not captured: {why}", readable_name(&name)));
            tell(Event::Missed);
            return real();
        }
    };
    let code = real();
    if code == SUCCESS {
        finish(bundle);
    }
    code
}

/// The kernel of a handle. One of a handle that the program got in an unusual way is known by its
/// name.
fn kernel(state: &State, handle: u64) -> Kernel {
    if let Some(known) = state.kernels.get(&handle) {
        return known.clone();
    }
    let name = driver::name(handle).unwrap_or_else(|| format!("{handle:#x}"));
    let mut modules = state.modules.iter();
    let module = modules.find(|(_, module)| module.has(&name)).map_or(0, |(module, _)| *module);
    Kernel { module, name }
}

/// The bundle of a launch that is about to run.
fn before(
    state: &mut State,
    kernel: &Kernel,
    handle: u64,
    shape: Shape,
    arguments: Arguments,
) -> Result<Bundle, String> {
    if driver::is_recorded(shape.stream) {
        return Err("its stream is recorded into a graph".to_owned());
    }
    let Some(module) = state.modules.get_mut(&kernel.module) else {
        return Err("its module was loaded in a way that is not watched".to_owned());
    };
    let info = module.kernel(&kernel.name)?;
    let code = driver::synchronize();
    if code != SUCCESS {
        return Err(format!("waiting for what ran before it failed with {code}"));
    }
    module.note_initial(kernel.module);
    let ptx = module.ptx.clone()?;
    let (mut ptx, _) = values::with_values(&ptx, &module.changed(kernel.module));
    let params = parameters(&info, handle, arguments)?;
    let mut memory = contents(state);
    if values::meets_in_memory(&ptx) {
        let end = memory.last().map_or(0x7000_0000_0000, |last| last.addr + last.size);
        let addr = (end + 1).next_multiple_of(512);
        ptx = values::with_meeting_place(&ptx, addr);
        let name = "barrier of grids".to_owned();
        memory.push(Allocation { addr, size: 8, name, contents: Some(vec![0; 8]) });
    }
    Ok(Bundle {
        ptx,
        entry: kernel.name.clone(),
        grid: shape.grid,
        block: shape.block,
        cluster: shape.cluster.filter(|_| info.cluster.is_none()),
        dynamic_shared: shape.shared,
        cooperative: shape.cooperative,
        programmatic: shape.programmatic,
        tensor_maps: maps(state, &params),
        params,
        memory,
        expected: BTreeMap::new(),
    })
}

/// Returns the contents of all memory. Memory that cannot be copied is reported, and left out.
fn contents(state: &State) -> Vec<Allocation> {
    let copied = state.memory.iter().filter_map(|(&addr, range)| {
        match driver::copy_down(addr, range.bytes) {
            Ok(contents) => Some(Allocation {
                addr,
                size: range.bytes,
                name: range.name.clone(),
                contents: Some(contents),
            }),
            Err(code) => {
                complain_once(format!(
                    "{} bytes of {} at {addr:#x} are in no bundle: copying them failed with {code}",
                    range.bytes, range.name
                ));
                None
            }
        }
    });
    copied.collect()
}

/// The parameter block, as PTX has it.
fn parameters(
    info: &KernelInfo,
    handle: u64,
    Arguments { values, extra }: Arguments,
) -> Result<Vec<u8>, String> {
    const BUFFER: u64 = 1;
    let mut block = vec![0; info.param_bytes as usize];
    let given = match (values, extra) {
        (0, 0) if !info.params.is_empty() => return Err("it has no arguments".to_owned()),
        (0, extra) if extra != 0 => {
            let mut pairs = (0..).map(|pair| extra + 16 * pair).take_while(|at| word(*at) != 0);
            let buffer = pairs.find(|at| word(*at) == BUFFER).map(|at| word(at + 8));
            Some(buffer.ok_or("its arguments are in no buffer")?)
        }
        _ => None,
    };
    for (index, param) in info.params.iter().enumerate() {
        let from = match given {
            // The driver's offsets of parameters depend on the GPU.
            Some(buffer) => {
                let offset = driver::parameter_offset(handle, index as u64);
                buffer + offset.unwrap_or(param.offset.into())
            }
            None => word(values + 8 * index as u64),
        };
        if from == 0 {
            return Err(format!("the pointer to parameter `{}` is null", param.name));
        }
        let at = param.offset as usize;
        let size = param.size as usize;
        block[at..at + size].copy_from_slice(&bytes(from, size));
    }
    Ok(block)
}

/// Tensor maps among the parameters, by what they were made of.
fn maps(state: &State, params: &[u8]) -> Vec<PlacedMap> {
    let at = (0..params.len()).step_by(64);
    let found = at.filter_map(|at| {
        let bytes = params.get(at..at + 128)?;
        let (_, map) = state.maps.iter().rev().find(|(known, _)| known == bytes)?;
        Some(PlacedMap { place: MapPlace::Param(at as u64), map: map.clone() })
    });
    found.collect()
}

/// Waits for the launch, and writes the bundle with what it left.
fn finish(mut bundle: Bundle) {
    let code = driver::synchronize();
    let name = readable_name(&bundle.entry);
    if code == SUCCESS {
        let result = bundle.expect_changes(|addr, size| {
            // The meeting place is no memory of the GPU's.
            let bytes = driver::copy_down(addr, size).ok();
            Ok::<_, Infallible>(bytes.map(|bytes| (addr, bytes)).into_iter().collect())
        });
        let Ok(()) = result;
    } else {
        complain(format_args!("kernel `{name}` went wrong on the GPU, with {code}"));
    }
    let mut state = state::lock();
    let folder = settings().folder(&folder_name(state.captured, &bundle.entry));
    state.captured += 1;
    match bundle.write(&folder) {
        Ok(()) => tell(Event::Captured),
        Err(error) => {
            complain(error);
            tell(Event::Missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read() {
        let mut attributes = [[0u64; 9]; 3];
        attributes[0][0] = 4;
        attributes[0][1..3].copy_from_slice(&[2 | 3 << 32, 1]);
        attributes[1][..2].copy_from_slice(&[6, 1]);
        attributes[2][..2].copy_from_slice(&[8, 5]);
        let config =
            [4 | 5 << 32, 6 | 7 << 32, 8 | 9 << 32, 1024, 0xabc0, attributes.as_ptr() as u64, 3];
        let read = Shape::read(config.as_ptr() as u64);
        let plain = Shape::new([4, 5, 6], [7, 8, 9], 1024, 0xabc0);
        assert_eq!(read, Shape { cluster: Some([2, 3, 1]), programmatic: true, ..plain });
        assert!(plain.cooperative().cooperative);
    }
}
