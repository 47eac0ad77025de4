//! Modules and their kernels, loaded when they are first used.

use crate::abi::host_bytes;
use crate::errors::{
    Failure, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, NOT_FOUND,
    NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::memory::Memory;
use crate::state::State;
use ptx_emu_core::{Gpu, KernelInfo, LoadError, MemoryError, Module, ModuleText, syntax};
use ptx_emu_images::fatbin::{self, Contents};
use ptx_emu_images::{latest, target, values};
use std::collections::HashMap;

/// A module of the program's.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) ptx: ModuleText,
    pub(crate) names: Vec<String>,
    /// Whether a kernel of it may let a launch after it begin before it has ended.
    pub(crate) lets_dependents_begin: bool,
    /// Variables by name: address and size. Variables of constants have the addresses of copies.
    variables: Option<HashMap<String, (u64, u64)>>,
    /// Constants that the program may have written: name and address of the copy.
    constants: Vec<(String, u64, u64)>,
    /// Decoded for one kernel each.
    decoded: HashMap<String, Decoded>,
    /// Contents of the variables before anything ran.
    initial: HashMap<String, Vec<u8>>,
}

/// A kernel's part of a module.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) module: Module,
    pub(crate) info: KernelInfo,
}

/// A kernel that the program knows by a handle.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub(crate) module: u64,
    pub(crate) name: String,
    /// Dynamic shared memory that it may have, bytes.
    pub(crate) max_dynamic: Option<u32>,
    /// Clusters of more than 8 CTAs are allowed.
    pub(crate) non_portable: bool,
}

/// The kind of an image.
enum Image {
    Ptx(String),
    Fatbin(Contents),
}

/// Reads an image where the program has it.
fn image(address: u64) -> Result<Image, Failure> {
    if address == 0 {
        return Err(Failure::new(INVALID_IMAGE, "the image is a null pointer"));
    }
    let start = host_bytes(address, 4);
    let magic = u32::from_le_bytes([start[0], start[1], start[2], start[3]]);
    match magic {
        fatbin::WRAPPER_MAGIC => {
            let wrapper = host_bytes(address, 16);
            let data = wrapper[8..].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
            image(data)
        }
        fatbin::MAGIC => {
            let read = || {
                let size = fatbin::size(&host_bytes(address, fatbin::HEADER as u64))?;
                fatbin::read(&host_bytes(address, size as u64))
            };
            let failed =
                |error: fatbin::FatbinError| Failure::new(INVALID_IMAGE, error.to_string());
            Ok(Image::Fatbin(read().map_err(failed)?))
        }
        // The start of an ELF file.
        0x464c_457f => {
            Err(Failure::new(NO_BINARY_FOR_GPU, "the module is machine code; required PTX"))
        }
        _ => {
            let text = crate::abi::host_text(address);
            String::from_utf8(text)
                .map(Image::Ptx)
                .map_err(|error| Failure::new(INVALID_IMAGE, format!("not PTX: {error}")))
        }
    }
}

/// PTX in an image, whichever it is for.
pub(crate) fn all_ptx(address: u64) -> Vec<String> {
    match image(address) {
        Ok(Image::Ptx(text)) => vec![text],
        Ok(Image::Fatbin(contents)) => contents.ptx,
        Err(_) => Vec::new(),
    }
}

/// The PTX of an image that a machine runs: of several, that of the latest architecture.
fn choose(image: Image, gpu: &Gpu) -> Result<String, Failure> {
    let contents = match image {
        Image::Ptx(text) => return Ok(text),
        Image::Fatbin(contents) => contents,
    };
    let all: Vec<String> = contents.ptx.iter().map(|text| target(text)).collect();
    if let Some(text) = latest(contents.ptx, |target| gpu.accepts(target)) {
        return Ok(text);
    }
    let code: Vec<String> = contents
        .machine_code
        .iter()
        .map(|number| format!("machine code for sm_{number}"))
        .collect();
    let there = [all, code].concat();
    let there = if there.is_empty() { "nothing".to_owned() } else { there.join(", ") };
    let own = gpu.arch.trim_start_matches("sm_");
    let message = format!(
        "the program has no PTX that {} runs: required {}, actual {there}; build it with \
         nvcc -gencode arch=compute_{own},code=compute_{own}",
        gpu.name,
        gpu.targets(),
    );
    Err(Failure::new(NO_BINARY_FOR_GPU, message))
}

/// A module that the emulator refuses.
pub(crate) fn refused(error: &LoadError) -> Failure {
    let code = match error {
        LoadError::Target { .. } => NO_BINARY_FOR_GPU,
        LoadError::Unsupported(_) => NOT_SUPPORTED,
        LoadError::Entry { .. } => NOT_FOUND,
        _ => INVALID_PTX,
    };
    Failure::new(code, error.to_string())
}

fn no_room(error: MemoryError) -> Failure {
    Failure::new(OUT_OF_MEMORY, error.to_string())
}

impl Loaded {
    fn new(ptx: String) -> Result<Self, Failure> {
        let lets_dependents_begin = ptx.contains("griddepcontrol.launch_dependents");
        let ptx = ModuleText::new(ptx).map_err(|error| refused(&error.into()))?;
        Ok(Self {
            names: ptx.entry_names(),
            ptx,
            lets_dependents_begin,
            variables: None,
            constants: Vec::new(),
            decoded: HashMap::new(),
            initial: HashMap::new(),
        })
    }

    /// A kernel's part of the module.
    pub(crate) fn decode(
        &mut self,
        name: &str,
        gpu: &Gpu,
        memory: &mut Memory,
    ) -> Result<(), Failure> {
        if self.decoded.contains_key(name) {
            return Ok(());
        }
        let module = self.ptx.load_entry(gpu, name).map_err(|error| refused(&error))?;
        let Some(info) = module.entries().find(|info| info.name == name).cloned() else {
            return Err(Failure::new(NOT_FOUND, format!("the module has no kernel `{name}`")));
        };
        if let Some(other) = self.decoded.values().next() {
            module.share_variables(&mut memory.global, &other.module).map_err(no_room)?;
        }
        self.decoded.insert(name.to_owned(), Decoded { module, info });
        Ok(())
    }

    /// A kernel's part, if it is decoded.
    pub(crate) fn decoded(&self, name: &str) -> Option<&Decoded> {
        self.decoded.get(name)
    }

    /// Address and size of a variable.
    pub(crate) fn variable(
        &mut self,
        name: &str,
        gpu: &Gpu,
        memory: &mut Memory,
    ) -> Result<(u64, u64), Failure> {
        if self.variables.is_none() {
            let any = self.names.first().cloned().ok_or_else(|| {
                Failure::not_modelled("access to variables of a module without kernels")
            })?;
            self.decode(&any, gpu, memory)?;
            let mut by_name = HashMap::new();
            let module = &self.decoded[&any].module;
            for variable in module.variables(&mut memory.global).map_err(no_room)? {
                if let Some(address) = variable.address {
                    memory.note_variable(address, variable.bytes);
                    by_name.insert(variable.name, (address, variable.bytes));
                    continue;
                }
                let contents = module.constant(&variable.name).unwrap_or_default();
                let address = memory.allocate("constant", variable.bytes.max(1))?;
                memory.global.write(address, contents).map_err(no_room)?;
                self.constants.push((variable.name.clone(), address, variable.bytes));
                by_name.insert(variable.name, (address, variable.bytes));
            }
            self.variables = Some(by_name);
        }
        let found = self.variables.as_ref().and_then(|by_name| by_name.get(name)).copied();
        found.ok_or_else(|| Failure::new(NOT_FOUND, format!("the module has no variable `{name}`")))
    }

    /// Gives a kernel's part the constants that the program wrote.
    pub(crate) fn bring_constants(&mut self, name: &str, memory: &Memory) -> Result<(), Failure> {
        let Some(decoded) = self.decoded.get_mut(name) else { return Ok(()) };
        for (constant, address, bytes) in &self.constants {
            let contents = memory.global.read_raw(*address, *bytes).map_err(no_room)?;
            if decoded.module.constant(constant) != Some(&contents) {
                decoded.module.set_constant(constant, &contents);
            }
        }
        Ok(())
    }

    /// Variables that hold something else than when [`note_initial`] was called.
    ///
    /// [`note_initial`]: Self::note_initial
    pub(crate) fn changed(&self, memory: &Memory) -> Vec<(String, Vec<u8>)> {
        let all = self.variables.iter().flatten();
        let mut changed: Vec<(String, Vec<u8>)> = all
            .filter_map(|(name, (address, bytes))| {
                let now = memory.global.read_raw(*address, *bytes).ok()?;
                (self.initial.get(name) != Some(&now)).then(|| (name.clone(), now))
            })
            .collect();
        changed.sort();
        changed
    }

    /// Notes what the variables hold, the first time that it is called.
    pub(crate) fn note_initial(&mut self, gpu: &Gpu, memory: &mut Memory) -> Result<(), Failure> {
        if !self.initial.is_empty() {
            return Ok(());
        }
        // No variable has that name; all are placed to look for it.
        match self.variable("", gpu, memory) {
            Err(failure) if failure.code != NOT_FOUND => return Err(failure),
            _ => {}
        }
        for (name, (address, bytes)) in self.variables.iter().flatten() {
            let contents = memory.global.read_raw(*address, *bytes).map_err(no_room)?;
            self.initial.insert(name.clone(), contents);
        }
        Ok(())
    }
}

impl State {
    /// Loads the image at an address of the program.
    pub(crate) fn load_module(&mut self, address: u64) -> Result<u64, Failure> {
        let gpu = self.gpu();
        let text = choose(image(address)?, &gpu)?;
        self.load_text(text)
    }

    /// Loads PTX text.
    pub(crate) fn load_text(&mut self, text: String) -> Result<u64, Failure> {
        if let Some(target) = syntax::targets(&text).unwrap_or_default().first()
            && !self.gpu().accepts(target)
        {
            let gpu = self.gpu();
            let message =
                format!("target: required {} ({}), actual {target}", gpu.targets(), gpu.name);
            return Err(Failure::new(NO_BINARY_FOR_GPU, message));
        }
        let text = self.with_grid_workspace(text)?;
        let loaded = Loaded::new(text)?;
        let handle = self.handle();
        self.modules.insert(handle, loaded);
        Ok(handle)
    }

    /// The text with the address of the memory in which the CTAs of a cooperative grid meet. Its
    /// halves are in special registers, which the driver sets.
    fn with_grid_workspace(&mut self, text: String) -> Result<String, Failure> {
        if !values::meets_in_memory(&text) {
            return Ok(text);
        }
        let address = match self.grid_workspace {
            Some(address) => address,
            None => {
                // A size, and the barrier.
                let address = self.memory.allocate("barrier of grids", 8)?;
                self.memory.fill(address, &[0], 8)?;
                *self.grid_workspace.insert(address)
            }
        };
        Ok(values::with_meeting_place(&text, address))
    }

    pub(crate) fn module(&mut self, handle: u64) -> Result<&mut Loaded, Failure> {
        self.modules.get_mut(&handle).ok_or_else(|| unknown("module", handle))
    }

    /// The handle of a kernel.
    pub(crate) fn kernel_of(&mut self, module: u64, name: &str) -> Result<u64, Failure> {
        let known = self
            .kernels
            .iter()
            .find(|(_, kernel)| kernel.module == module && kernel.name == name)
            .map(|(handle, _)| *handle);
        if let Some(handle) = known {
            return Ok(handle);
        }
        let names = &self.module(module)?.names;
        if !names.iter().any(|entry| entry == name) {
            let message = format!("kernel: required one of [{}], actual {name}", names.join(", "));
            return Err(Failure::new(NOT_FOUND, message));
        }
        let handle = self.handle();
        let kernel =
            Kernel { module, name: name.to_owned(), max_dynamic: None, non_portable: false };
        self.kernels.insert(handle, kernel);
        Ok(handle)
    }

    pub(crate) fn kernel(&mut self, handle: u64) -> Result<&mut Kernel, Failure> {
        self.kernels.get_mut(&handle).ok_or_else(|| unknown("kernel", handle))
    }

    /// Returns the properties of a kernel, which is decoded for it.
    pub(crate) fn kernel_info(&mut self, handle: u64) -> Result<KernelInfo, Failure> {
        let Kernel { module, name, .. } = self.kernel(handle)?.clone();
        let gpu = self.gpu();
        let loaded = self.modules.get_mut(&module).ok_or_else(|| unknown("module", module))?;
        loaded.decode(&name, &gpu, &mut self.memory)?;
        if self.settings.capture.is_some() {
            loaded.note_initial(&gpu, &mut self.memory)?;
        }
        let decoded = loaded.decoded(&name).ok_or_else(|| unknown("kernel", handle))?;
        Ok(decoded.info.clone())
    }

    /// Address and size of a module's variable.
    pub(crate) fn variable(&mut self, module: u64, name: &str) -> Result<(u64, u64), Failure> {
        let gpu = self.gpu();
        let loaded = self.modules.get_mut(&module).ok_or_else(|| unknown("module", module))?;
        if self.settings.capture.is_some() {
            loaded.note_initial(&gpu, &mut self.memory)?;
        }
        loaded.variable(name, &gpu, &mut self.memory)
    }
}

/// A handle of nothing.
pub(crate) fn unknown(what: &str, handle: u64) -> Failure {
    Failure::new(INVALID_HANDLE, format!("{handle:#x} is no {what}"))
}
