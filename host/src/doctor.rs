//! What this machine has, and what a command without `--device` would use.

use std::fmt;
use std::path::{Path, PathBuf};

use fp4_formats::Arch;
use serde::Serialize;

use crate::cuda::{self, DriverInfo};
use crate::device::{Choice, Device, DeviceRequest};
use crate::error::Result;
use crate::kernels;
use crate::tune::DeviceKey;

/// Kernels of one architecture.
#[derive(Clone, Debug, Serialize)]
pub struct KernelsStatus {
    /// The architecture.
    pub arch: Arch,
    /// The file, where there is one.
    pub path: Option<PathBuf>,
    /// Whether there is none, and where it was looked for.
    pub error: Option<String>,
}

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The driver and its GPUs.
    pub driver: Option<DriverInfo>,
    /// Why there is no driver.
    pub driver_error: Option<String>,
    /// Kernels by architecture.
    pub kernels: Vec<KernelsStatus>,
    /// What `--device auto` uses.
    pub choice: Choice,
    /// What a tuning table for them belongs to, where kernels load.
    pub tune_key: Option<DeviceKey>,
    /// The tuning table in use, or why there is none.
    pub tuning: Option<String>,
    /// Whether a kernel can be run: the chosen device has kernels that load.
    pub ready: bool,
    /// Why not.
    pub not_ready: Option<String>,
}

/// Looks at driver, GPUs and kernels; `dir` as in [`kernels::find`].
///
/// # Errors
/// [`DeviceError`](crate::device::DeviceError) where a supported GPU is there and does not open.
pub fn diagnose(dir: Option<&Path>) -> Result<Diagnosis> {
    let (driver, driver_error) = match cuda::probe() {
        Ok(driver) => (Some(driver), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let kernels = Arch::ALL.map(|arch| match kernels::find(arch, dir) {
        Ok(file) => KernelsStatus { arch, path: Some(file.path), error: None },
        Err(error) => KernelsStatus { arch, path: None, error: Some(error.to_string()) },
    });
    let device = Device::open(&DeviceRequest::Auto)?;
    let loaded = device.kernels(dir);
    let (tune_key, tuning) = match &loaded {
        Ok(kernels) => (Some(kernels.tune_key().clone()), Some(kernels.tuning().to_string())),
        Err(_) => (None, None),
    };
    let not_ready = loaded.err().map(|error| error.to_string());
    Ok(Diagnosis {
        driver,
        driver_error,
        kernels: kernels.into(),
        choice: device.choice().clone(),
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
                        Some(arch) => writeln!(f, "gpu       {info}: {arch}")?,
                        None => writeln!(f, "gpu       {info}: not supported")?,
                    }
                }
            }
            (None, error) => {
                writeln!(f, "driver    none: {}", error.as_deref().unwrap_or("unknown"))?;
            }
        }
        for status in &self.kernels {
            match (&status.path, &status.error) {
                (Some(path), _) => writeln!(f, "kernels   {}: {}", status.arch, path.display())?,
                (None, error) => writeln!(f, "kernels   {}", error.as_deref().unwrap_or("none"))?,
            }
        }
        writeln!(f, "device    {}", self.choice)?;
        if let (Some(key), Some(tuning)) = (&self.tune_key, &self.tuning) {
            writeln!(f, "tuning    {tuning}; tables are for {key}")?;
        }
        match &self.not_ready {
            None => writeln!(f, "ready"),
            Some(reason) => writeln!(f, "not ready: {reason}"),
        }
    }
}
