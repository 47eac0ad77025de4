//! Launches as bundles, which `ptx-emu replay` runs.

use crate::errors::{Failure, NOT_SUPPORTED};
use crate::launch::Launch;
use crate::memory::{Kind, Memory};
use crate::modules::unknown;
use crate::state::State;
use ptx_emu_bundle::{Allocation, Bundle, MapPlace, PlacedMap};
use ptx_emu_core::MemoryError;
use ptx_emu_images::folder_name;
use ptx_emu_images::values::with_values;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A launch before it runs.
pub(crate) struct Captured {
    folder: PathBuf,
    bundle: Bundle,
    /// Whether it came to an end.
    ended: bool,
}

/// Takes down a launch and the memory that it finds.
pub(crate) fn before(state: &State, folder: &Path, launch: &Launch) -> Result<Captured, Failure> {
    let kernel =
        state.kernels.get(&launch.kernel).ok_or_else(|| unknown("kernel", launch.kernel))?;
    let module = state.modules.get(&kernel.module);
    let module = module.ok_or_else(|| unknown("module", kernel.module))?;
    let memory = &state.memory;
    let (ptx, missing) = with_values(module.ptx.text(), &module.changed(memory));
    for variable in missing {
        crate::report::complain(format_args!(
            "warning: --capture: variable `{variable}` has its first value in the bundle"
        ));
    }
    let ranges = memory.ranges.iter().filter(|(_, range)| range.kind != Kind::Variable);
    let allocations = ranges.map(|(&addr, range)| allocation(memory, addr, range.bytes));
    Ok(Captured {
        folder: folder.join(folder_name(state.launches, &kernel.name)),
        bundle: Bundle {
            ptx,
            entry: kernel.name.clone(),
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared: u32::try_from(launch.dynamic_shared).unwrap_or(u32::MAX),
            cooperative: launch.cooperative,
            programmatic: launch.programmatic,
            params: launch.params.clone(),
            memory: allocations.collect::<Result<_, _>>()?,
            tensor_maps: placed_maps(state, &launch.params),
            expected: BTreeMap::new(),
        },
        ended: true,
    })
}

fn failed(error: &impl ToString) -> Failure {
    Failure::new(NOT_SUPPORTED, format!("--capture: {}", error.to_string()))
}

fn allocation(memory: &Memory, addr: u64, size: u64) -> Result<Allocation, Failure> {
    let name = memory.global.allocations().find(|found| found.1 == addr);
    let name = name.map_or_else(String::new, |found| found.0.to_owned());
    let written = memory.global.written(addr, size).map_err(|error| failed(&error))?;
    let contents = match written.is_empty() {
        true => None,
        false => Some(memory.global.read_raw(addr, size).map_err(|error| failed(&error))?),
    };
    Ok(Allocation { addr, size, name, contents })
}

/// Tensor maps among the parameters: their bytes depend on the driver, so a bundle has their
/// arguments.
fn placed_maps(state: &State, params: &[u8]) -> Vec<PlacedMap> {
    let at = (0..params.len()).step_by(64);
    let found = at.filter_map(|at| {
        let bytes = params.get(at..at + 128)?;
        let (_, map) = state.maps.iter().rev().find(|(known, _)| known == bytes)?;
        Some(PlacedMap { place: MapPlace::Param(at as u64), map: map.clone() })
    });
    found.collect()
}

impl Captured {
    /// The launch did not end: nothing can be expected of it.
    pub(crate) fn without_outputs(mut self) -> Self {
        self.ended = false;
        self
    }

    /// Writes the bundle, with what the launch changed as expected outputs.
    pub(crate) fn write(mut self, memory: &Memory) -> Result<(), Failure> {
        if self.ended {
            let changes = self.bundle.expect_changes(|addr, size| {
                let written = memory.global.written(addr, size)?.into_iter();
                written
                    .map(|part| {
                        let bytes = memory.global.read_raw(part.start, part.end - part.start)?;
                        Ok((part.start, bytes))
                    })
                    .collect::<Result<_, MemoryError>>()
            });
            changes.map_err(|error| failed(&error))?;
        }
        self.bundle.write(&self.folder).map_err(|error| failed(&error))
    }
}
