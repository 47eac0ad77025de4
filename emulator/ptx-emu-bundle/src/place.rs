//! The memory and the parameter block of a bundle's launch.

use super::{Bundle, BundleError, MapPlace};
use ptx_emu_core::GlobalMemory;
use ptx_emu_core::tensor_map::TENSOR_MAP_BYTES;

impl Bundle {
    /// The memory before the launch and the parameter block, tensor maps in their places.
    ///
    /// # Errors
    /// Allocations, contents or tensor maps that do not fit.
    pub fn place(&self) -> Result<(GlobalMemory, Vec<u8>), BundleError> {
        let mut memory = GlobalMemory::new();
        self.fill(&mut memory)?;
        let params = self.place_maps(&mut memory)?;
        Ok((memory, params))
    }

    fn fill(&self, memory: &mut GlobalMemory) -> Result<(), BundleError> {
        for (index, allocation) in self.memory.iter().enumerate() {
            memory.alloc_at(allocation.addr, &allocation.name, allocation.size)?;
            let Some(contents) = &allocation.contents else { continue };
            if contents.len() as u64 != allocation.size {
                return Err(BundleError::field(
                    format!("memory[{index}] (`{}`): contents", allocation.name),
                    format!("{} bytes", allocation.size),
                    format!("{} bytes", contents.len()),
                ));
            }
            memory.write(allocation.addr, contents)?;
        }
        Ok(())
    }

    /// Encodes the tensor maps into memory; the parameter block with those that go
    /// there.
    fn place_maps(&self, memory: &mut GlobalMemory) -> Result<Vec<u8>, BundleError> {
        let mut params = self.params.clone();
        for (index, placed) in self.tensor_maps.iter().enumerate() {
            let bytes =
                placed.map.encode().map_err(|source| BundleError::TensorMap { index, source })?;
            match placed.place {
                MapPlace::Global(addr) => memory.write(addr, &bytes)?,
                MapPlace::Param(at) => {
                    let length = params.len();
                    let room = usize::try_from(at)
                        .ok()
                        .and_then(|at| params.get_mut(at..)?.get_mut(..TENSOR_MAP_BYTES));
                    let Some(room) = room else {
                        return Err(BundleError::field(
                            format!("tensor_maps[{index}].at"),
                            format!("{TENSOR_MAP_BYTES} bytes within the {length} of params"),
                            at,
                        ));
                    };
                    room.copy_from_slice(&bytes);
                }
            }
        }
        Ok(params)
    }
}
