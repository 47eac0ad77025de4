//! A module's variables, for a host that reads and writes them by name.

use super::Module;
use super::layout::Symbol;
use crate::memory::{GlobalMemory, MemoryError};

/// A `.global` or `.const` variable of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableInfo {
    /// Name.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// The address in global memory; `None` for a constant.
    pub address: Option<u64>,
}

impl Module {
    /// Its variables, of which the global ones are placed in `memory` unless they are there.
    ///
    /// # Errors
    /// The host's memory does not hold them.
    pub fn variables(&self, memory: &mut GlobalMemory) -> Result<Vec<VariableInfo>, MemoryError> {
        let addresses = self.place_globals(memory)?;
        let globals = self.globals.iter().zip(addresses).map(|(global, address)| VariableInfo {
            name: global.name.clone(),
            bytes: global.size,
            address: Some(address),
        });
        let constants = self.constants.iter().map(|(name, bytes)| VariableInfo {
            name: name.clone(),
            bytes: *bytes,
            address: None,
        });
        Ok(globals.chain(constants).collect())
    }

    /// Lets its global variables be those that `other`, made of the same text, has in `memory`.
    ///
    /// # Errors
    /// The host's memory does not hold them.
    pub fn share_variables(
        &self,
        memory: &mut GlobalMemory,
        other: &Self,
    ) -> Result<(), MemoryError> {
        let addresses = other.place_globals(memory)?;
        memory.set_module_globals(self.id, addresses);
        Ok(())
    }

    /// Returns the bytes of a constant at the next launch, addresses of variables left out; `None`
    /// if there is no such constant.
    #[must_use]
    pub fn constant(&self, name: &str) -> Option<&[u8]> {
        let range = self.constant_range(name)?;
        self.consts.get(range)
    }

    /// Replaces a constant for launches from now on; false: there is none of that name and size.
    pub fn set_constant(&mut self, name: &str, bytes: &[u8]) -> bool {
        let Some(range) = self.constant_range(name).filter(|range| range.len() == bytes.len())
        else {
            return false;
        };
        let inside = |at: usize| range.contains(&at);
        self.const_patches.retain(|patch| !inside(patch.offset));
        self.consts[range].copy_from_slice(bytes);
        true
    }

    fn constant_range(&self, name: &str) -> Option<std::ops::Range<usize>> {
        let (_, bytes) = self.constants.iter().find(|(constant, _)| constant == name)?;
        let Some(Symbol::Const(start)) = self.symbols.get(name) else { return None };
        let start = *start as usize;
        Some(start..start + *bytes as usize)
    }
}
