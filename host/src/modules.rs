//! Modules of kernels on a device: each is loaded when one of its kernels is first used.

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fp4_formats::Family;
use nvfp4_manifest::{Callable, Cubin};
#[cfg(feature = "emulator")]
use ptx_emu_core::Gpu;
use serde::Serialize;

use crate::cuda::{CudaDevice, CudaModule, DeclaredParameters};
use crate::error::{DeviceError, Error, Result};
pub use crate::kernels::CODE_VARIABLE;
use crate::kernels::KernelFiles;

/// The code that a GPU is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodeRequest {
    /// Machine code where there is some that the driver takes, else PTX.
    #[default]
    Auto,
    /// PTX, which the driver compiles.
    Ptx,
    /// Machine code, and an error where there is none.
    Cubin,
}

impl CodeRequest {
    /// Reads the request from [`CODE_VARIABLE`].
    ///
    /// # Errors
    /// [`DeviceError::UnknownCode`].
    pub fn from_environment() -> Result<Self, DeviceError> {
        match env::var(CODE_VARIABLE).as_deref() {
            Err(_) | Ok("auto" | "") => Ok(Self::Auto),
            Ok("ptx") => Ok(Self::Ptx),
            Ok("cubin") => Ok(Self::Cubin),
            Ok(text) => Err(DeviceError::UnknownCode { text: text.into() }),
        }
    }
}

/// The code that a module was loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// PTX that the driver compiled.
    Ptx,
    /// Machine code.
    Cubin,
    /// PTX that the emulator runs.
    Emulated,
}

/// A loaded module and its code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadedModule {
    /// Its kernels.
    pub family: Family,
    /// The loaded code.
    pub code: Code,
    /// The reason for that code.
    pub reason: String,
    /// The time of loading, reading the file included.
    pub milliseconds: f64,
}

impl fmt::Display for LoadedModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, code, reason, milliseconds } = self;
        let code = match code {
            Code::Ptx => "PTX",
            Code::Cubin => "machine code",
            Code::Emulated => "PTX for the emulator",
        };
        write!(f, "{family}: {code} in {milliseconds:.1} ms ({reason})")
    }
}

/// The modules of a device.
pub(crate) struct Modules {
    files: KernelFiles,
    request: CodeRequest,
    cuda: Cache<CudaModule>,
    #[cfg(feature = "emulator")]
    emulated: Cache<Arc<ptx_emu_core::Module>>,
    loaded: Mutex<Vec<LoadedModule>>,
}

/// A module, or nothing until it is loaded: threads that need it wait for the one that loads it.
type Loading<T> = Arc<Mutex<Option<T>>>;

/// A lock whose contents are right even if a thread panicked while it held it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Modules of one kind, by the kernels in them.
struct Cache<T> {
    by_entry: Mutex<HashMap<String, T>>,
    by_family: Mutex<HashMap<Family, Loading<T>>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { by_entry: Mutex::default(), by_family: Mutex::default() }
    }
}

impl fmt::Debug for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The code itself is thousands of lines that nobody wants to see.
        f.debug_struct("Modules").field("loaded", &self.loaded()).finish_non_exhaustive()
    }
}

impl Modules {
    pub fn new(files: KernelFiles, request: CodeRequest) -> Self {
        Self {
            files,
            request,
            cuda: Cache::default(),
            #[cfg(feature = "emulator")]
            emulated: Cache::default(),
            loaded: Mutex::default(),
        }
    }

    pub fn files(&self) -> &KernelFiles {
        &self.files
    }

    /// Returns the modules that are loaded and their code, in the order of loading.
    pub fn loaded(&self) -> Vec<LoadedModule> {
        lock(&self.loaded).clone()
    }

    /// The module that has the kernel `entry`, for launches on the stream of `gpu`.
    pub fn cuda(&self, entry: &str, gpu: &CudaDevice) -> Result<CudaModule> {
        let module = self.get(&self.cuda, entry, |listed| self.load_on_gpu(listed, gpu))?;
        Ok(module.on(gpu)?)
    }

    /// The module that has the kernel `entry`, for the emulator of `gpu`.
    #[cfg(feature = "emulator")]
    pub fn emulated(&self, entry: &str, gpu: &Gpu) -> Result<Arc<ptx_emu_core::Module>> {
        self.get(&self.emulated, entry, |listed| {
            let module = ptx_emu_core::Module::load(&self.files.ptx(listed)?, gpu)?;
            Ok((Arc::new(module), Code::Emulated, format!("an emulated {}", gpu.name)))
        })
    }

    fn get<T: Clone>(
        &self,
        cache: &Cache<T>,
        entry: &str,
        load: impl FnOnce(&nvfp4_manifest::Module) -> Result<(T, Code, String)>,
    ) -> Result<T> {
        if let Some(module) = lock(&cache.by_entry).get(entry) {
            return Ok(module.clone());
        }
        let listed = self.files.module_of(entry)?;
        let loading = lock(&cache.by_family).entry(listed.family).or_default().clone();
        let mut loading = lock(&loading);
        let module = match &*loading {
            Some(module) => module.clone(),
            None => {
                let start = Instant::now();
                let (module, code, reason) = load(&listed)?;
                let milliseconds = start.elapsed().as_secs_f64() * 1e3;
                let how = LoadedModule { family: listed.family, code, reason, milliseconds };
                lock(&self.loaded).push(how);
                loading.insert(module).clone()
            }
        };
        lock(&cache.by_entry).insert(entry.to_owned(), module.clone());
        Ok(module)
    }

    fn load_on_gpu(
        &self,
        listed: &nvfp4_manifest::Module,
        gpu: &CudaDevice,
    ) -> Result<(CudaModule, Code, String)> {
        let ptx = |reason: String| {
            Ok::<_, Error>((gpu.load(&self.files.ptx(listed)?)?, Code::Ptx, reason))
        };
        if self.request == CodeRequest::Ptx {
            return ptx(format!("{CODE_VARIABLE} asks for it"));
        }
        let (arch, capability) = (self.files.manifest().arch, gpu.info().compute_capability);
        let (major, minor) = capability;
        let Some(described) = listed.cubin_for(arch, capability) else {
            if self.request == CodeRequest::Cubin {
                return Err(DeviceError::NoMachineCode { family: listed.family, capability }.into());
            }
            return ptx(match listed.cubins.is_empty() {
                true => "no machine code was made: there was no ptxas".into(),
                false => {
                    format!("no machine code of {arch} loads on compute capability {major}.{minor}")
                }
            });
        };
        let declared = listed.kernels.iter().map(|kernel| {
            let &Callable { parameters: count, param_bytes: bytes, .. } = kernel;
            (kernel.name.clone(), DeclaredParameters { count, bytes })
        });
        let cubin = self.files.cubin(listed, described)?;
        // SAFETY: the file is as ptxas wrote it: its fingerprint is the manifest's.
        match unsafe { gpu.load_cubin(&cubin, declared.collect()) } {
            Ok(module) => {
                let Cubin { target, assembler, file: _ } = described;
                let reason =
                    format!("{assembler} for {target}, compute capability {major}.{minor}");
                Ok((module, Code::Cubin, reason))
            }
            Err(error) if self.request == CodeRequest::Cubin => Err(error.into()),
            Err(error) => ptx(format!("the machine code was refused: {error}")),
        }
    }
}
