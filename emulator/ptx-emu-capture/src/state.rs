//! The objects that the program has made.

use crate::modules::Loaded;
use ptx_emu_core::tensor_map::TensorMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Memory that kernels may use.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) bytes: u64,
    pub(crate) name: String,
}

/// A kernel that the program knows by a handle.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub(crate) module: u64,
    pub(crate) name: String,
}

/// All of it.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) modules: HashMap<u64, Loaded>,
    pub(crate) kernels: HashMap<u64, Kernel>,
    /// Modules of libraries: the driver has handles of both.
    pub(crate) aliases: HashMap<u64, u64>,
    pub(crate) memory: BTreeMap<u64, Range>,
    made: u64,
    /// Tensor maps that were encoded.
    pub(crate) maps: Vec<([u8; 128], TensorMap)>,
    /// Bundles that were written.
    pub(crate) captured: u64,
}

/// The state, whatever happened to a thread that had it.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Notes an allocation.
    pub(crate) fn allocated(&mut self, maker: &str, address: u64, bytes: u64) {
        if address != 0 && bytes != 0 {
            self.made += 1;
            let name = format!("{} {}", maker.trim_end_matches("_ptsz"), self.made);
            self.memory.insert(address, Range { bytes, name });
        }
    }

    /// Forgets what was allocated from an address on.
    pub(crate) fn freed(&mut self, address: u64) {
        self.memory.remove(&address);
    }

    /// Notes a module.
    pub(crate) fn loaded(&mut self, handle: u64, module: Loaded) {
        self.modules.insert(handle, module);
    }

    /// The handle under which a module is known.
    pub(crate) fn own(&self, module: u64) -> u64 {
        self.aliases.get(&module).copied().unwrap_or(module)
    }

    /// Forgets a module.
    pub(crate) fn unloaded(&mut self, handle: u64) {
        self.modules.remove(&handle);
        self.aliases.retain(|alias, own| *alias != handle && *own != handle);
        self.kernels.retain(|_, kernel| kernel.module != handle);
    }
}
