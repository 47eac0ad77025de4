//! The facts about this machine, and the device that a command without `--device` would use.

use std::fmt;
use std::path::Path;

use fp4_formats::{Arch, Family, ceiling};
use serde::Serialize;

use nvfp4::cuda::{self, CudaVersion, DriverInfo};
use nvfp4::device::{Choice, Device, DeviceRequest};
use nvfp4::error::Result;
use nvfp4::kernels::KernelFiles;
use nvfp4::modules::LoadedModule;
use nvfp4::tune::DeviceKey;

/// Kernels of one architecture.
#[derive(Clone, Debug, Serialize)]
pub struct KernelsStatus {
    /// The architecture.
    pub arch: Arch,
    /// The compute capabilities of the GPUs that run them.
    pub capabilities: String,
    /// The oldest driver that loads their PTX, by the CUDA version that it supports.
    pub driver: CudaVersion,
    /// The folder of the kernels.
    pub path: Option<String>,
    /// Modules in it.
    pub modules: usize,
    /// The number of modules that have machine code for a target or more.
    pub machine_code: usize,
    /// The assembler that made the machine code.
    pub assembler: Option<String>,
    /// Families whose modules are not there.
    pub missing: Vec<Family>,
    /// The fault of the kernels: there are none, or some are stale or damaged.
    pub error: Option<String>,
}

impl KernelsStatus {
    fn of(arch: Arch, dir: Option<&Path>) -> Self {
        let nothing = Self {
            arch,
            capabilities: arch.capabilities().to_string(),
            driver: arch.ptx_version().driver(),
            path: None,
            modules: 0,
            machine_code: 0,
            assembler: None,
            missing: Vec::new(),
            error: None,
        };
        match KernelFiles::find(arch, dir) {
            Ok(files) => {
                let modules = &files.manifest().modules;
                let cubin = modules.iter().find_map(|module| module.cubins.first());
                Self {
                    path: Some(files.place().to_string()),
                    modules: modules.len(),
                    machine_code: modules.iter().filter(|m| !m.cubins.is_empty()).count(),
                    assembler: cubin.map(|cubin| cubin.assembler.clone()),
                    missing: files.missing(),
                    error: files.check().err().map(|error| error.to_string()),
                    ..nothing
                }
            }
            Err(error) => Self { error: Some(error.to_string()), ..nothing },
        }
    }
}

impl fmt::Display for KernelsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            arch,
            capabilities,
            driver,
            path,
            modules,
            machine_code,
            assembler,
            missing,
            error,
        } = self;
        if let Some(path) = path {
            write!(f, "{arch} (compute capability {capabilities}, driver for CUDA {driver}): ")?;
            write!(f, "{modules} modules, {path}")?;
            match assembler {
                Some(assembler) => write!(f, ", {machine_code} with machine code by {assembler}")?,
                None => write!(f, ", PTX only")?,
            }
            if !missing.is_empty() {
                let names: Vec<&str> = missing.iter().map(|family| family.name()).collect();
                write!(f, "; not compiled: {}", names.join(", "))?;
            }
        }
        match error {
            Some(error) if path.is_some() => write!(f, "; {error}"),
            Some(error) => write!(f, "{error}"),
            None => Ok(()),
        }
    }
}

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The driver and its GPUs.
    pub driver: Option<DriverInfo>,
    /// The reason why there is no driver.
    pub driver_error: Option<String>,
    /// Kernels by architecture.
    pub kernels: Vec<KernelsStatus>,
    /// The device that `--device auto` uses.
    pub choice: Choice,
    /// The target whose kernels the device is given, and why, where kernels load.
    pub target: Option<String>,
    /// The code that the device was given to load, and why.
    pub code: Vec<LoadedModule>,
    /// The key of a tuning table for them, if kernels load.
    pub tune_key: Option<DeviceKey>,
    /// The tuning table in use, or why there is none.
    pub tuning: Option<String>,
    /// Whether a kernel can be run: the chosen device has kernels that load.
    pub ready: bool,
    /// The reason why not.
    pub not_ready: Option<String>,
}

/// Looks at driver, GPUs and kernels; `dir` as in [`KernelFiles::find`].
///
/// # Errors
/// [`DeviceError`](nvfp4::device::DeviceError) where a supported GPU is there and does not open.
pub fn diagnose(dir: Option<&Path>) -> Result<Diagnosis> {
    let (driver, driver_error) = match cuda::probe() {
        Ok(driver) => (Some(driver), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let statuses = Arch::ALL.map(|arch| KernelsStatus::of(arch, dir));
    let device = Device::open(&DeviceRequest::Auto)?;
    let kernels = device.kernels(dir).and_then(|kernels| {
        kernels.files().check()?;
        // The smallest module tells whether the device takes machine code. With none there, one that the
        // program was told how to compile tells whether it can be.
        let modules = kernels.files().manifest().modules.iter();
        let smallest = modules.min_by_key(|module| module.ptx.bytes);
        let entry = smallest.and_then(|module| module.kernels.first());
        kernels.load([entry.map_or(ceiling::NAME, |kernel| kernel.name.as_str())])?;
        Ok(kernels)
    });
    let (mut choice, mut target, mut tune_key, mut tuning, mut code) =
        (device.choice().clone(), None, None, None, Vec::new());
    if let Ok(kernels) = &kernels {
        choice = kernels.device().choice().clone();
        target = Some(format!("{}, {}", choice.arch, choice.code));
        tune_key = Some(kernels.tune_key().clone());
        tuning = Some(kernels.tuning().to_string());
        code = kernels.loaded();
    }
    let not_ready = kernels.err().map(|error| error.to_string());
    Ok(Diagnosis {
        driver,
        driver_error,
        kernels: statuses.into(),
        choice,
        target,
        code,
        tune_key,
        tuning,
        ready: not_ready.is_none(),
        not_ready,
    })
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.driver, &self.driver_error) {
            (Some(driver), _) => {
                writeln!(f, "driver    CUDA {} ({})", driver.version, driver.library)?;
                for info in &driver.devices {
                    match info.arch() {
                        Some(arch) => {
                            let reason = arch.reason(info.compute_capability);
                            writeln!(f, "gpu       {info}: {arch}, {reason}")?;
                        }
                        None => writeln!(f, "gpu       {info}: not supported")?,
                    }
                }
            }
            (None, error) => {
                writeln!(f, "driver    none: {}", error.as_deref().unwrap_or("unknown"))?;
            }
        }
        for status in &self.kernels {
            writeln!(f, "kernels   {status}")?;
        }
        writeln!(f, "device    {}", self.choice)?;
        if let Some(target) = &self.target {
            writeln!(f, "target    {target}")?;
        }
        for module in &self.code {
            writeln!(f, "code      {module}")?;
        }
        if let (Some(key), Some(tuning)) = (&self.tune_key, &self.tuning) {
            writeln!(f, "tuning    {tuning}; tables are for {key}")?;
        }
        match &self.not_ready {
            None => writeln!(f, "ready"),
            Some(reason) => writeln!(f, "not ready: {reason}"),
        }
    }
}
