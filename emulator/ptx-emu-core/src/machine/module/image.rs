//! The image of a module for a launch: addresses of its variables, and the values that hold them.

use super::Module;
use super::layout::{self, Patch, Relocation, SharedLayout, Symbol};
use crate::machine::regs::Pool;
use crate::machine::window;
use crate::memory::{GlobalMemory, MemoryError};

impl Module {
    /// Addresses of the `.global` variables, which are made on first use.
    pub(crate) fn place_globals(&self, memory: &mut GlobalMemory) -> Result<Vec<u64>, MemoryError> {
        if let Some(addresses) = memory.module_globals(self.id) {
            return Ok(addresses.to_vec());
        }
        let mut addresses = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            // A name without a size may still have its address taken.
            let bytes = global.size.max(1);
            let address = memory.alloc(&global.name, bytes, global.align)?;
            memory.fill(address, bytes, 0)?;
            addresses.push(address);
        }
        for (global, &address) in self.globals.iter().zip(&addresses) {
            let mut image = global.image.clone();
            self.patch(&mut image, &global.patches, &addresses);
            memory.write(address, &image)?;
        }
        memory.set_module_globals(self.id, addresses.clone());
        Ok(addresses)
    }

    /// Contents of the constant bank.
    pub(crate) fn const_image(&self, globals: &[u64]) -> Vec<u8> {
        let mut image = self.consts.clone();
        self.patch(&mut image, &self.const_patches, globals);
        image
    }

    fn patch(&self, image: &mut [u8], patches: &[Patch], globals: &[u64]) {
        for patch in patches {
            let base = match self.symbols.get(&patch.symbol) {
                Some(Symbol::Global(index)) => globals[*index],
                Some(Symbol::Const(offset)) => {
                    u64::from(*offset) + if patch.generic { window::CONST } else { 0 }
                }
                Some(Symbol::Function(index)) => layout::function_address(*index),
                // Shared variables have no address before a CTA runs.
                Some(Symbol::Shared(_)) | None => 0,
            };
            let mut value = base.wrapping_add_signed(patch.addend);
            if let Some(mask) = patch.mask.filter(|&mask| mask != 0) {
                value = (value & mask) >> mask.trailing_zeros();
            }
            image[patch.offset..patch.offset + patch.bytes]
                .copy_from_slice(&value.to_le_bytes()[..patch.bytes]);
        }
    }

    /// The constant pool of one CTA rank, whose shared memory starts at
    /// `shared_start`.
    pub(crate) fn pool(&self, globals: &[u64], shared: &SharedLayout, shared_start: u32) -> Pool {
        self.pool.build(|symbol| match symbol {
            Relocation::Global(index) => globals[index],
            Relocation::Shared(index) => {
                let offset = shared.offsets.get(&index).copied().unwrap_or(0);
                u64::from(shared_start + offset)
            }
        })
    }
}
