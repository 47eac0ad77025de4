//! The tuning table that opened kernels are planned with.

use std::sync::Arc;

use super::{Backend, Device, Kernels};
use crate::cuda;
use crate::error::Result;
use crate::tune::{DeviceKey, Tuning};

/// The file in which Linux reports the release of NVIDIA's driver.
const DRIVER_FILE: &str = "/proc/driver/nvidia/version";

/// The tuning table of [`Kernels`], which was measured on their device.
#[derive(Debug)]
pub(super) struct Tuned {
    device: DeviceKey,
    tuning: Tuning,
}

impl Tuned {
    /// The state with `tuning`, if it was measured on `device`.
    pub fn new(device: DeviceKey, tuning: Tuning) -> Arc<Self> {
        let tuning = tuning.on(&device);
        Arc::new(Self { device, tuning })
    }
}

impl Kernels {
    /// The same kernels with another tuning table. A table of another device, driver or set of
    /// kernels is ignored, and plans say so.
    #[must_use]
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        let tuned = Tuned::new(self.tuned.device.clone(), tuning);
        Self { tuned, kept: Arc::default(), ..self }
    }

    /// The tuning table in use, or the reason why there is none.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.tuned.tuning
    }

    /// The key of tables for these kernels.
    #[must_use]
    pub fn tune_key(&self) -> &DeviceKey {
        &self.tuned.device
    }
}

impl DeviceKey {
    /// The key of `device` with kernels of this fingerprint.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError) where the driver does not answer.
    pub fn of(device: &Device, kernels: String) -> Result<Self> {
        let driver = match device.backend() {
            Backend::Cuda(_) => {
                let version = cuda::probe().map_err(cuda::CudaError::from)?.version;
                let text = std::fs::read_to_string(DRIVER_FILE).unwrap_or_default();
                match release(&text) {
                    Some(release) => format!("{version} ({release})"),
                    None => version.to_string(),
                }
            }
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => "emulator".into(),
        };
        let (major, minor) = device.compute_capability();
        let compute_capability = format!("{major}.{minor}");
        let (name, sms) = (device.choice().name.clone(), device.properties().sms);
        Ok(Self { name, compute_capability, sms, driver, kernels })
    }
}

/// The driver's release in the system's description of it: the first word that consists of numbers
/// separated by points.
fn release(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace().find(|word| {
        word.contains('.')
            && word
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_both_kinds_of_module() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release";
        assert_eq!(release(closed), Some("580.65.06"));
        assert_eq!(release(open), Some("575.57.08"));
        assert_eq!(release("GCC version: gcc 12.2.0"), None);
        assert_eq!(release("NVRM version: none. .5"), None);
        assert_eq!(release(""), None);
    }
}
