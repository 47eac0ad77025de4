//! Reports of launches, for an observer that asked for them.
//!
//! Operations return nothing but errors: a GPU has nothing to report when a launch has been queued.
//! The emulator counts what each launch did, and tells the observer of the [`Kernels`](crate::device::Kernels) that it was
//! launched with. On every device the observer is told what is about to be launched.
//!
//! ```
//! use nvfp4::ScaleLayout;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::gemv::{GemvOptions, gemv};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
//! let (kernels, reports) = device.kernels(None)?.observed();
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("w", &[0.5; 16 * 64], Dims::new(1, 16, 64)?, scale, layout)?;
//! let input = quantize("x", &[1.0; 64], Dims::new(1, 1, 64)?, scale, layout)?;
//! gemv(&kernels, &input, &weight, GemvOptions::default())?;
//! let [launch] = reports.take().try_into().expect("one launch");
//! assert!(launch.counters.warp_instructions > 0);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub use ptx_emu_core::LaunchReport;

use crate::launch::LaunchSpec;

/// An observer of launches. Called on the launching thread.
pub trait LaunchObserver: Send + Sync {
    /// A kernel is about to be launched, on a GPU or on the emulator.
    fn launching(&self, spec: &LaunchSpec<'_>) {
        let _ = spec;
    }

    /// A launch on the emulator ended without an error.
    fn launched(&self, report: &LaunchReport);
}

/// An observer that keeps all reports. Clones share them.
#[derive(Clone, Default)]
pub struct Reports {
    kept: Arc<Mutex<Vec<LaunchReport>>>,
}

impl Reports {
    /// The reports since the last call, in the order of the launches.
    #[must_use]
    pub fn take(&self) -> Vec<LaunchReport> {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LaunchObserver for Reports {
    fn launched(&self, report: &LaunchReport) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(report.clone());
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "Reports({kept})")
    }
}
