//! Writes each launch as a bundle that `ptx-emu replay` runs: the PTX, the launch's shape, the
//! parameter block, the contents of every allocation before the launch, and the changes.
//!
//! On a GPU, every launch is waited for and all allocations are copied twice. Bundles compare
//! exactly. If a kernel's floating-point sums depend on the order of execution, the emulator's
//! results differ from the GPU's, and `compare` in the bundle has to be edited. `.global` variables
//! of the module are assumed to have their initial values.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ptx_emu_bundle::{Allocation, Bundle, Compare, Expected};
use ptx_emu_core::GlobalMemory;

use crate::cuda::CudaMemory;
use crate::error::{DeviceError, Result};
use crate::launch::LaunchSpec;

/// The folder of the bundles, and the allocations of a GPU.
#[derive(Debug)]
pub struct Capture {
    folder: PathBuf,
    launches: AtomicUsize,
    allocations: Mutex<Vec<(String, Weak<CudaMemory>)>>,
}

/// An allocation and its known contents.
#[derive(Debug)]
struct Snapshot {
    name: String,
    addr: u64,
    bytes: Vec<u8>,
    /// Addresses of initialised bytes.
    written: Vec<Range<u64>>,
}

/// All allocations before a launch.
#[derive(Debug)]
pub(crate) struct Before(Vec<Snapshot>);

impl Capture {
    /// A capture that writes bundles in `folder`, named `000-ENTRY` and so on.
    #[must_use]
    pub fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            folder: folder.to_owned(),
            launches: AtomicUsize::new(0),
            allocations: Mutex::default(),
        })
    }

    /// Number of launches written so far.
    #[must_use]
    pub fn launches(&self) -> usize {
        self.launches.load(Ordering::Relaxed)
    }

    /// Registers an allocation of a GPU.
    pub(crate) fn made(&self, name: &str, memory: &Arc<CudaMemory>) {
        self.known().push((name.to_owned(), Arc::downgrade(memory)));
    }

    /// The allocations of a GPU so far.
    fn known(&self) -> MutexGuard<'_, Vec<(String, Weak<CudaMemory>)>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the memory of the emulator or, where there is none, what was allocated on the GPU.
    fn snapshot(&self, memory: Option<&GlobalMemory>) -> Result<Vec<Snapshot>> {
        match memory {
            Some(memory) => emulated(memory),
            None => {
                let mut known = self.known();
                known.retain(|(_, memory)| memory.strong_count() != 0);
                let live =
                    known.iter().filter_map(|(name, memory)| Some((name, memory.upgrade()?)));
                live.filter(|(_, memory)| !memory.is_empty())
                    .map(|(name, memory)| {
                        let (addr, bytes) = (memory.address(), memory.to_vec()?);
                        let written = std::iter::once(addr..addr + bytes.len() as u64).collect();
                        Ok(Snapshot { name: name.clone(), addr, bytes, written })
                    })
                    .collect()
            }
        }
    }

    /// Copies memory before a launch, that of the emulator if it makes the launch.
    pub(crate) fn before(&self, memory: Option<&GlobalMemory>) -> Result<Before> {
        Ok(Before(self.snapshot(memory)?))
    }

    /// Writes the bundle of a launch of a kernel in `ptx` that has been made; with `right` false, of one that went
    /// wrong, which has no outputs.
    pub(crate) fn after(
        &self,
        memory: Option<&GlobalMemory>,
        ptx: String,
        spec: &LaunchSpec<'_>,
        Before(before): Before,
        right: bool,
    ) -> Result<()> {
        let mut expected = BTreeMap::new();
        let after = if right { self.snapshot(memory)? } else { Vec::new() };
        for after in after {
            let old = before.iter().find(|old| old.addr == after.addr);
            expected.extend(changes(old, &after));
        }
        let allocations = before.into_iter().map(|Snapshot { name, addr, bytes, written }| {
            let size = bytes.len() as u64;
            Allocation { addr, size, name, contents: (!written.is_empty()).then_some(bytes) }
        });
        let bundle = Bundle {
            ptx,
            entry: spec.entry.to_owned(),
            grid: spec.grid,
            block: spec.block,
            cluster: spec.cluster,
            dynamic_shared: spec.dynamic_shared,
            cooperative: false,
            programmatic: spec.overlaps,
            params: spec.params.to_vec(),
            memory: allocations.collect(),
            tensor_maps: Vec::new(),
            expected,
        };
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{number:03}-{}", spec.entry));
        bundle.write(&folder).map_err(|error| DeviceError::Capture(Box::new(error)))?;
        Ok(())
    }
}

fn emulated(memory: &GlobalMemory) -> Result<Vec<Snapshot>> {
    let allocations = memory.allocations().map(|(name, addr, len)| {
        Ok(Snapshot {
            name: name.to_owned(),
            addr,
            bytes: memory.read_raw(addr, len)?,
            written: memory.written(addr, len)?,
        })
    });
    allocations.collect()
}

/// The parts of an allocation that the launch changed.
fn changes(old: Option<&Snapshot>, new: &Snapshot) -> BTreeMap<String, Expected> {
    let within = |range: &Range<u64>, snapshot: &Snapshot| {
        let start = (range.start - snapshot.addr) as usize;
        start..start + (range.end - range.start) as usize
    };
    let parts: Vec<&Range<u64>> = new
        .written
        .iter()
        .filter(|part| {
            let same = old.is_some_and(|old| {
                let known = old.written.iter().any(|w| w.start <= part.start && part.end <= w.end);
                known && old.bytes[within(part, old)] == new.bytes[within(part, new)]
            });
            !same
        })
        .collect();
    let alone = parts.len() == 1;
    let name = |part: &Range<u64>| {
        let (name, addr) = (&new.name, new.addr);
        if alone { format!("{name}@{addr:#x}") } else { format!("{name}@{:#x}", part.start) }
    };
    let expected = |part: &Range<u64>| Expected {
        addr: part.start,
        bytes: new.bytes[within(part, new)].to_vec(),
        compare: Compare::Exact,
    };
    parts.into_iter().map(|part| (name(part), expected(part))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(bytes: &[u8], written: &[Range<u64>]) -> Snapshot {
        Snapshot { name: "x".into(), addr: 1000, bytes: bytes.to_vec(), written: written.to_vec() }
    }

    #[test]
    fn only_what_changed_is_expected() {
        let old = snapshot(&[1, 2, 3, 0xcb, 0xcb, 6], &[1000..1003, 1005..1006]);
        assert!(changes(Some(&old), &snapshot(&old.bytes, &old.written)).is_empty());
        // A byte that was written with its old value counts as written.
        let new = snapshot(&[1, 2, 3, 0xcb, 0xcb, 6], &[1000..1004, 1005..1006]);
        let found = changes(Some(&old), &new);
        assert_eq!(found.len(), 1);
        assert_eq!(found["x@0x3e8"].bytes, [1, 2, 3, 0xcb]);
        let new = snapshot(&[9, 2, 3, 0xcb, 0xcb, 7], &old.written);
        let found: Vec<(u64, usize)> =
            changes(Some(&old), &new).values().map(|e| (e.addr, e.bytes.len())).collect();
        assert_eq!(found, [(1000, 3), (1005, 1)]);
        assert_eq!(changes(None, &new).len(), 2);
    }
}
