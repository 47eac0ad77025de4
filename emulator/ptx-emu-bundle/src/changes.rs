//! The memory that a launch left: outputs as they are, beside the expected ones.

use super::{Bundle, BundleError, Compare, Expected, OutputReport};
use ptx_emu_core::{GlobalMemory, MemoryError};

/// Bytes of an allocation that something wrote: their address, and what they are.
pub type Part = (u64, Vec<u8>);

impl Bundle {
    /// Makes outputs of what a launch changed. `after` gives the parts of an allocation (address,
    /// size) that hold something after the launch. Ranges that hold the same as before, or are
    /// outputs already, are left out.
    ///
    /// # Errors
    /// The errors of `after`.
    pub fn expect_changes<E>(
        &mut self,
        mut after: impl FnMut(u64, u64) -> Result<Vec<Part>, E>,
    ) -> Result<(), E> {
        for allocation in &self.memory {
            for (index, (addr, bytes)) in
                after(allocation.addr, allocation.size)?.into_iter().enumerate()
            {
                let offset = (addr - allocation.addr) as usize;
                let old = allocation.contents.as_ref();
                let same = old.is_some_and(|old| old[offset..][..bytes.len()] == bytes);
                let end = addr + bytes.len() as u64;
                let known = self.expected.values().any(|output| {
                    output.addr <= addr && end <= output.addr + output.bytes.len() as u64
                });
                if same || known {
                    continue;
                }
                let mut name = match index {
                    0 => allocation.name.clone(),
                    _ => format!("{} {index}", allocation.name),
                };
                if self.expected.contains_key(&name) {
                    name = format!("{name}@{addr:#x}");
                }
                self.expected.insert(name, Expected { addr, bytes, compare: Compare::Exact });
            }
        }
        Ok(())
    }

    /// The bundle with what a launch left in `memory` as its outputs: the expected ones, and
    /// whatever else changed.
    ///
    /// # Errors
    /// [`BundleError::Memory`] for an expected output that is not within an allocation.
    pub fn left_in(&self, memory: &GlobalMemory) -> Result<Self, BundleError> {
        let mut left = self.clone();
        for output in left.expected.values_mut() {
            output.bytes = memory.read_raw(output.addr, output.bytes.len() as u64)?;
        }
        left.expect_changes(|addr, size| {
            let written = memory.written(addr, size)?.into_iter();
            written
                .map(|part| Ok((part.start, memory.read_raw(part.start, part.end - part.start)?)))
                .collect::<Result<_, MemoryError>>()
        })?;
        Ok(left)
    }

    /// Compares this bundle's outputs with those of the same names that a launch left.
    #[must_use]
    pub fn compare(&self, left: &Self) -> Vec<OutputReport> {
        let pairs = self.expected.iter().filter_map(|(name, expected)| {
            let actual = left.expected.get(name)?;
            Some(OutputReport::new(name, expected.compare, &expected.bytes, &actual.bytes, None))
        });
        pairs.collect()
    }
}
