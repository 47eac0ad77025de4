//! All that the program has made: one device, its memory, and what handles stand for.

use crate::driver::Link;
use crate::errors::{Code, Failure, INVALID_DEVICE, LAUNCH_FAILED};
use crate::graphs::Graph;
use crate::launch::Launch;
use crate::memory::Memory;
use crate::modules::{Kernel, Loaded, all_ptx};
use crate::settings::Settings;
use crate::streams::{Event, Fronts, Stream};
use ptx_emu_core::Gpu;
use ptx_emu_core::tensor_map::TensorMap;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A fat binary that the program registered when it began.
#[derive(Debug)]
pub(crate) struct Registered {
    /// The address of the image.
    pub(crate) image: u64,
    /// Its module, once it is loaded.
    pub(crate) module: Option<u64>,
}

/// A kernel or variable of a registered fat binary.
#[derive(Debug, Clone)]
pub(crate) struct Symbol {
    pub(crate) fatbin: u64,
    pub(crate) name: String,
}

/// The configuration of a launch between `<<<>>>` and the kernel's stub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u64,
    pub(crate) stream: u64,
}

/// All that the program has made.
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// The function that is being called.
    pub(crate) caller: String,
    gpu: Option<Gpu>,
    pub(crate) memory: Memory,
    next_handle: u64,
    pub(crate) modules: HashMap<u64, Loaded>,
    pub(crate) kernels: HashMap<u64, Kernel>,
    pub(crate) fatbins: HashMap<u64, Registered>,
    /// Kernels and variables by the address of what stands for them in the program.
    pub(crate) symbols: HashMap<u64, Symbol>,
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) fronts: Fronts,
    pub(crate) links: HashMap<u64, Link>,
    pub(crate) contexts: HashMap<u64, Context>,
    pub(crate) limits: HashMap<i32, u64>,
    /// Tensor maps that were encoded.
    pub(crate) maps: Vec<([u8; 128], TensorMap)>,
    /// Launches that run when it is known whether the next one overlaps them.
    pub(crate) pending: Vec<Launch>,
    /// The code of every call since a launch failed.
    pub(crate) failed: Option<Code>,
    /// Launches that a GPU refuses, too, whose errors the program has not read.
    pub(crate) unseen: usize,
    /// Seconds that the launches took at least, if events are to have such times.
    pub(crate) seconds: f64,
    /// Launches that ran.
    pub(crate) launches: u64,
    /// The address of the barrier of cooperative grids.
    pub(crate) grid_workspace: Option<u64>,
}

/// A context. All of them share the device's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context {
    pub(crate) flags: u32,
}

/// The primary context.
pub(crate) const PRIMARY: u64 = 0x10;

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    crate::abi::flush_at_exit();
    Mutex::new(State::new())
});

/// The state, whatever happened to a thread that had it.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn new() -> Self {
        Self {
            settings: Settings::from_environment(),
            caller: String::new(),
            gpu: None,
            memory: Memory::new(),
            next_handle: 0x1000,
            modules: HashMap::new(),
            kernels: HashMap::new(),
            fatbins: HashMap::new(),
            symbols: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            fronts: Fronts::default(),
            links: HashMap::new(),
            contexts: HashMap::from([(PRIMARY, Context::default())]),
            limits: HashMap::new(),
            maps: Vec::new(),
            pending: Vec::new(),
            failed: None,
            unseen: 0,
            seconds: 0.0,
            launches: 0,
            grid_workspace: None,
        }
    }

    /// The machine: the one that was asked for, else a B200 if it runs all the PTX that the
    /// program has brought, else another that does.
    pub(crate) fn gpu(&mut self) -> Gpu {
        if let Some(gpu) = &self.gpu {
            return gpu.clone();
        }
        let gpu = self.settings.gpu.clone().unwrap_or_else(|| {
            let texts: Vec<Vec<String>> =
                self.fatbins.values().map(|fatbin| all_ptx(fatbin.image)).collect();
            let runs = |gpu: &Gpu| {
                let accepts = |text: &String| {
                    let targets = ptx_emu_core::syntax::targets(text).unwrap_or_default();
                    targets.first().is_some_and(|target| gpu.accepts(target))
                };
                texts.iter().filter(|all| !all.is_empty()).all(|all| all.iter().any(accepts))
            };
            let mut machines = [Gpu::b200(), Gpu::h200()].into_iter().chain(Gpu::ALL);
            machines.find(runs).unwrap_or_else(Gpu::b200)
        });
        self.gpu.insert(Gpu { lax: self.settings.lax, ..gpu }).clone()
    }

    /// A handle that was never given out.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// Runs what was begun; an error if a launch has failed.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        self.flush();
        self.failed.map_or(Ok(()), |code| Err(Failure::silent(code)))
    }

    /// A launch has failed: nothing else works from now on.
    pub(crate) fn fail(&mut self) {
        self.failed = Some(LAUNCH_FAILED);
    }

    /// Forgets everything but what the program registered when it began.
    pub(crate) fn reset(&mut self) {
        let fresh = Self::new();
        let old = std::mem::replace(self, fresh);
        self.settings = old.settings;
        self.gpu = old.gpu;
        self.next_handle = old.next_handle;
        self.symbols = old.symbols;
        self.launches = old.launches;
        self.unseen = old.unseen;
        self.seconds = old.seconds;
        self.fatbins = old.fatbins;
        for fatbin in self.fatbins.values_mut() {
            fatbin.module = None;
        }
    }
}

/// The only device has number 0.
pub(crate) fn device(number: i32) -> Result<(), Failure> {
    if number != 0 {
        return Err(Failure::new(INVALID_DEVICE, format!("device: required 0, actual {number}")));
    }
    Ok(())
}
